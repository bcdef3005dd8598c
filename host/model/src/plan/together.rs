//! Whether both stages fit one host, each split over all of its GPUs. Knows sums of bytes, no tensors.

use super::StagePlan;
use super::capacity::{Capacity, HostGpus};
use super::text::gib;
use super::weights::WeightBytes;

/// Both stages on one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Together {
    /// Weights of prefill and decode.
    pub weights: [u64; 2],
    /// Tensors that both hold in the same format: one copy where both stages run in one process.
    pub shared: WeightBytes,
    /// Of both stages on all GPUs.
    pub reserve: u64,
    /// A stage's pool on each GPU: as asked, or half of what is left.
    pub pool_per_gpu: u64,
    /// Both pools on all GPUs.
    pub pools: u64,
    pub usable: u64,
    /// What each stage's pool holds.
    pub capacities: [Capacity; 2],
}

impl Together {
    /// `shared`: what both stages hold in the same format.
    pub fn of(host: &HostGpus, stages: [&StagePlan; 2], shared: WeightBytes) -> Self {
        let (gpus, weights) = (host.gpus as u64, stages.map(|stage| stage.weights.bytes()));
        let reserve = 2 * gpus * host.reserve_bytes;
        let used = host.part(weights[0] + weights[1] - shared.bytes()) + 2 * host.reserve_bytes;
        let left = host.bytes_per_gpu.saturating_sub(used);
        let pool_per_gpu = host.pool_bytes.unwrap_or(left / 2);
        let capacities = stages.map(|stage| Capacity::of(pool_per_gpu, &stage.kv));
        let pools = 2 * gpus * pool_per_gpu;
        Self { weights, shared, reserve, pool_per_gpu, pools, usable: host.bytes(), capacities }
    }

    /// Weights of both stages, each counted in full, as two processes hold them.
    pub fn weights_apart(&self) -> u64 {
        self.weights.iter().sum()
    }

    /// Weights of both stages in one process.
    pub fn weights_in_one_process(&self) -> u64 {
        self.weights_apart() - self.shared.bytes()
    }

    pub fn needed(&self) -> u64 {
        self.weights_in_one_process() + self.reserve + self.pools
    }

    /// Everything fits, and each pool holds at least a page.
    pub fn fits(&self) -> bool {
        self.needed() <= self.usable && self.capacities.iter().all(|capacity| capacity.pages > 0)
    }

    /// In a sentence.
    pub fn verdict(&self) -> String {
        let (apart, usable) = (self.weights_apart(), self.usable);
        let alone = match apart {
            apart if apart > usable => {
                format!("; the weights alone, each stage's in full, are {} of {} GiB", gib(apart), gib(usable))
            }
            _ => String::new(),
        };
        if self.fits() {
            return format!("both stages fit: {} of {} GiB{alone}", gib(self.needed()), gib(usable));
        }
        match self.needed().saturating_sub(usable) {
            0 => format!("both stages do not fit: a pool holds no page{alone}"),
            missing => format!("both stages do not fit: {} GiB are missing{alone}", gib(missing)),
        }
    }
}
