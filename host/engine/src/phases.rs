//! Where a pool's time goes between one step and the next, so that it can be told what keeps the device waiting. Knows no clock:
//! moments are handed in.
//!
//! ```text
//! device   |--- step n ---|                          |--- step n+1 ---|
//! driver                  |notice|commit|..|launch|    |plan n+2|
//! ```
//!
//! `notice`, `commit` and `launch` keep the device waiting where it has nothing else to do; `plan`, which holds the policy's call, runs
//! beside a step.

/// Sums over the steps of a pool since start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PhaseTimes {
    /// From launch to the end on the device, its waiting for other pools' steps included.
    pub device_us: u64,
    /// From that end until the driver heard of it.
    pub notice_us: u64,
    /// Reading records, advancing sequences, handing tokens out.
    pub commit_us: u64,
    /// Asking the schedule policy and choosing rows and pages.
    pub plan_us: u64,
    /// Of `plan_us`: the policy's own call.
    pub policy_us: u64,
    /// Turning the plan into uploads and operations and submitting them.
    pub launch_us: u64,
}

impl PhaseTimes {
    /// Names and values, in the order in which they follow each other.
    pub fn named(&self) -> [(&'static str, u64); 6] {
        let Self { device_us, notice_us, commit_us, plan_us, policy_us, launch_us } = *self;
        [
            ("device", device_us),
            ("notice", notice_us),
            ("commit", commit_us),
            ("launch", launch_us),
            ("plan", plan_us),
            ("policy", policy_us),
        ]
    }

    /// What was added since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            device_us: self.device_us.saturating_sub(earlier.device_us),
            notice_us: self.notice_us.saturating_sub(earlier.notice_us),
            commit_us: self.commit_us.saturating_sub(earlier.commit_us),
            plan_us: self.plan_us.saturating_sub(earlier.plan_us),
            policy_us: self.policy_us.saturating_sub(earlier.policy_us),
            launch_us: self.launch_us.saturating_sub(earlier.launch_us),
        }
    }
}
