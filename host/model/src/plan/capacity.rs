//! What fits into GPUs: the room that weights leave for a pool, and the pages and tokens in it. Knows sums of bytes, no tensors.

use super::PlanError;
use super::kv::KvBytes;
use super::text::{counted, gib, thousands};

const MAX_GPUS: usize = 1024;
/// 1 PiB.
const MAX_BYTES: u64 = 1 << 50;

/// The GPUs of one host, which run a model as one tensor-parallel group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostGpus {
    /// 1 to 1024.
    pub gpus: usize,
    /// What each can hold, up to 1 PiB; as for the others.
    pub bytes_per_gpu: u64,
    /// What each stage needs on each GPU beside weights and pages: activations, the runtime, captured graphs, buffers.
    pub reserve_bytes: u64,
    /// Size of a stage's pool on each GPU; `None`: all that is left.
    pub pool_bytes: Option<u64>,
}

/// Where the memory of a GPU goes when one stage runs on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Weights over GPUs, rounded up.
    pub weights_per_gpu: u64,
    pub reserve_bytes: u64,
    pub pool_bytes: u64,
    /// The pool was asked for, not what is left.
    pub pool_is_fixed: bool,
    pub bytes_per_gpu: u64,
}

/// What a pool holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    pub pages: u64,
    pub tokens: u64,
}

impl HostGpus {
    /// # Errors
    /// [`PlanError::OutOfRange`].
    pub fn check(&self) -> Result<(), PlanError> {
        if !(1..=MAX_GPUS).contains(&self.gpus) {
            let (value, allowed) = (thousands(self.gpus as u64), format!("1 to {}", thousands(MAX_GPUS as u64)));
            return Err(PlanError::OutOfRange { what: "the number of GPUs", value, allowed });
        }
        let most = MAX_BYTES >> 30;
        let range = |what, bytes: u64, least: u64| match (least..=MAX_BYTES).contains(&bytes) {
            true => Ok(()),
            false => {
                let from = if least == 0 { "0 to" } else { "more than 0 and at most" };
                let (value, allowed) = (format!("{} GiB", gib(bytes)), format!("{from} {} GiB", thousands(most)));
                Err(PlanError::OutOfRange { what, value, allowed })
            }
        };
        range("the memory of a GPU", self.bytes_per_gpu, 1)?;
        range("the reserve of a GPU", self.reserve_bytes, 0)?;
        range("the pool of a GPU", self.pool_bytes.unwrap_or(1), 1)
    }

    /// Bytes of all GPUs.
    pub fn bytes(&self) -> u64 {
        self.gpus as u64 * self.bytes_per_gpu
    }

    /// A GPU's part of weights that are divided evenly.
    pub fn part(&self, bytes: u64) -> u64 {
        bytes.div_ceil((self.gpus as u64).max(1))
    }

    /// The room of a stage that is alone on the host with these weights.
    pub fn room(&self, weights: u64) -> Room {
        let weights_per_gpu = self.part(weights);
        let left = self.bytes_per_gpu.saturating_sub(weights_per_gpu).saturating_sub(self.reserve_bytes);
        Room {
            weights_per_gpu,
            reserve_bytes: self.reserve_bytes,
            pool_bytes: self.pool_bytes.unwrap_or(left),
            pool_is_fixed: self.pool_bytes.is_some(),
            bytes_per_gpu: self.bytes_per_gpu,
        }
    }
}

impl Room {
    /// What is needed beyond a GPU's memory; 0 where all fits.
    pub fn missing(&self) -> u64 {
        self.needed().saturating_sub(self.bytes_per_gpu)
    }

    /// What nothing uses.
    pub fn spare(&self) -> u64 {
        self.bytes_per_gpu.saturating_sub(self.needed())
    }

    fn needed(&self) -> u64 {
        self.weights_per_gpu + self.reserve_bytes + self.pool_bytes
    }

    /// How large the pool is and why, in GiB per GPU.
    pub fn formula(&self) -> String {
        let (memory, weights) = (gib(self.bytes_per_gpu), gib(self.weights_per_gpu));
        let (reserve, pool) = (gib(self.reserve_bytes), gib(self.pool_bytes));
        if self.pool_is_fixed {
            let (sum, outcome) = (gib(self.needed()), if self.missing() > 0 { "more than" } else { "within" });
            return format!(
                "{pool} GiB as asked; {weights} weights + {reserve} reserve + {pool} = {sum}, {outcome} {memory} GiB"
            );
        }
        match self.missing() {
            0 => format!("{memory} - {weights} weights - {reserve} reserve = {pool} GiB"),
            missing => format!("none: {weights} weights + {reserve} reserve are {} GiB more than {memory}", gib(missing)),
        }
    }
}

impl Capacity {
    /// Whole pages in `pool_bytes` of a GPU.
    pub fn of(pool_bytes: u64, kv: &KvBytes) -> Self {
        let pages = pool_bytes.checked_div(kv.page_bytes_per_gpu).unwrap_or(0);
        Self { pages, tokens: pages * kv.page_tokens }
    }

    /// How many tokens and why.
    pub fn formula(&self, pool_bytes: u64, kv: &KvBytes) -> String {
        let pages = format!("floor({} B / {} B)", thousands(pool_bytes), thousands(kv.page_bytes_per_gpu));
        format!("{pages} = {} x {}", counted(self.pages, "page"), counted(kv.page_tokens, "token"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostGpus = HostGpus { gpus: 4, bytes_per_gpu: 100, reserve_bytes: 10, pool_bytes: None };

    #[test]
    fn a_pool_is_what_weights_and_reserve_leave() {
        let room = HOST.room(241);
        assert_eq!((room.weights_per_gpu, room.pool_bytes, room.missing(), room.spare()), (61, 29, 0, 0));
        let full = HOST.room(400);
        assert_eq!((full.pool_bytes, full.missing()), (0, 10));
        assert!(full.formula().contains("none"), "{}", full.formula());
    }

    #[test]
    fn a_pool_that_is_asked_for_may_be_too_large() {
        let host = HostGpus { pool_bytes: Some(20), ..HOST };
        assert_eq!((host.room(240).missing(), host.room(240).spare()), (0, 10));
        assert_eq!((host.room(320).missing(), host.room(320).pool_bytes), (10, 20));
        assert!(host.room(320).formula().contains("more than"));
        assert!(host.room(240).formula().contains("within"));
    }

    #[test]
    fn hosts_have_bounds() {
        assert_eq!(HOST.check(), Ok(()));
        let wrong = [
            HostGpus { gpus: 0, ..HOST },
            HostGpus { gpus: 1025, ..HOST },
            HostGpus { bytes_per_gpu: 0, ..HOST },
            HostGpus { bytes_per_gpu: (1 << 50) + 1, ..HOST },
            HostGpus { reserve_bytes: u64::MAX, ..HOST },
            HostGpus { pool_bytes: Some(0), ..HOST },
        ];
        for host in wrong {
            assert!(matches!(host.check(), Err(PlanError::OutOfRange { .. })), "{host:?}");
        }
        let message = |host: HostGpus| host.check().unwrap_err().to_string();
        assert_eq!(message(HostGpus { gpus: 0, ..HOST }), "the number of GPUs is 0; give 1 to 1,024");
        let twice = message(HostGpus { reserve_bytes: 1 << 51, ..HOST });
        assert_eq!(twice, "the reserve of a GPU is 2,097,152.00 GiB; give 0 to 1,048,576 GiB");
        let none = message(HostGpus { bytes_per_gpu: 0, ..HOST });
        assert_eq!(none, "the memory of a GPU is 0.00 GiB; give more than 0 and at most 1,048,576 GiB");
        // The largest host that is believed overflows nothing.
        let largest = HostGpus { gpus: 1024, bytes_per_gpu: 1 << 50, reserve_bytes: 1 << 50, pool_bytes: Some(1 << 50) };
        assert_eq!(largest.check(), Ok(()));
        assert_eq!(largest.bytes(), 1 << 60);
        assert_eq!(largest.room(1 << 53).missing(), (1 << 43) + (1 << 50));
    }
}
