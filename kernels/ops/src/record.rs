//! The only thing that the host reads back while serving: one 8-byte record per sequence of a step.
//!
//! ```text
//! 63          40 39     32 31            0
//! [ step (24)   |status(8)|  token (32)   ]   written by the sampler, status again by the tail check
//! ```

/// How a sequence came through a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowStatus {
    Ok,
    /// A page of its table no longer carries the expected tag: its numbers may be another's.
    StalePage,
    /// NaN or infinity among its logits.
    NotFinite,
}

/// One sequence's result of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct StepRecord(pub u64);

impl StepRecord {
    const STEP_BITS: u32 = 24;

    pub fn new(token: u32, status: RowStatus, step: u32) -> Self {
        let step = u64::from(step & ((1 << Self::STEP_BITS) - 1));
        Self(step << 40 | (status as u64) << 32 | u64::from(token))
    }

    /// The sampled token; without meaning where the step did not sample this sequence.
    pub fn token(self) -> u32 {
        (self.0 & 0xffff_ffff) as u32
    }

    pub fn status(self) -> RowStatus {
        match (self.0 >> 32) & 0xff {
            0 => RowStatus::Ok,
            1 => RowStatus::StalePage,
            _ => RowStatus::NotFinite,
        }
    }

    /// Low 24 bits of the step that wrote this record; stale contents of a ring show themselves.
    pub fn step(self) -> u32 {
        (self.0 >> 40) as u32
    }

    pub fn with_status(self, status: RowStatus) -> Self {
        Self(self.0 & !(0xff << 32) | (status as u64) << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_disturb_each_other() {
        let record = StepRecord::new(u32::MAX, RowStatus::StalePage, 0x0123_4567);
        assert_eq!((record.token(), record.status(), record.step()), (u32::MAX, RowStatus::StalePage, 0x0023_4567));
        let record = record.with_status(RowStatus::NotFinite);
        assert_eq!((record.token(), record.status(), record.step()), (u32::MAX, RowStatus::NotFinite, 0x0023_4567));
    }
}
