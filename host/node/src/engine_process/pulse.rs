//! Whether the engine of this process still works, as its node has to know it: an engine that cannot go on ends its process, which is
//! started again. Knows no thread and no clock.

/// How old an engine's last look at itself may be before it counts as hung. Its driver's loop turns every 20 ms, whatever a step takes:
/// steps run on threads of the device. A machine that is out of breath must not be restarted for it.
pub(crate) const HEARTBEAT_GRACE_US: u64 = 120_000_000;

/// What is known of an engine at a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pulse {
    /// Its driver's thread has come to its end, by itself or by a panic.
    pub(crate) has_ended: bool,
    /// Since its driver last looked at itself.
    pub(crate) silent_us: u64,
    /// Every pool's device works.
    pub(crate) healthy: bool,
    /// A report for the node was lost.
    pub(crate) lost_reports: bool,
}

impl Pulse {
    /// Why the process has to end, if it has.
    pub(crate) fn trouble(self) -> Option<&'static str> {
        let troubles = [
            (self.has_ended, "the engine's driver thread ended, which it never should; what it said before is above"),
            (
                self.silent_us > HEARTBEAT_GRACE_US,
                "the engine's driver thread has not turned for longer than a busy machine explains",
            ),
            (!self.healthy, "the device of this engine failed"),
            (self.lost_reports, "the node does not read what this engine reports, and some of it is lost"),
        ];
        troubles.into_iter().find(|(is, _)| *is).map(|(_, why)| why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Pulse = Pulse { has_ended: false, silent_us: 0, healthy: true, lost_reports: false };

    #[test]
    fn an_engine_that_cannot_go_on_is_found_out() {
        let ill = [
            (Pulse { has_ended: true, ..WELL }, "driver thread ended"),
            (Pulse { silent_us: HEARTBEAT_GRACE_US + 1, ..WELL }, "not turned"),
            (Pulse { healthy: false, ..WELL }, "device"),
            (Pulse { lost_reports: true, ..WELL }, "lost"),
        ];
        for (pulse, why) in ill {
            assert!(pulse.trouble().is_some_and(|told| told.contains(why)), "{pulse:?}");
        }
    }

    #[test]
    fn a_machine_out_of_breath_is_no_trouble() {
        assert_eq!(WELL.trouble(), None);
        assert_eq!(Pulse { silent_us: HEARTBEAT_GRACE_US, ..WELL }.trouble(), None);
    }
}
