//! Which step a device was busy with until when, so that a step is not charged the time that it waited for another's. A device works
//! off one step after the other; where it overlaps them, a step seems shorter than it was. Knows no queue and no clock.

use std::sync::Arc;

use millrace_ops::Backend;

/// Every device of an engine.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    /// When each one ended its last step.
    ended_us: Vec<u64>,
}

impl Devices {
    /// Rows of the devices behind the given backends, one for each different one.
    pub(crate) fn of(backends: &[Arc<dyn Backend>]) -> (Self, Vec<usize>) {
        let mut known: Vec<&Arc<dyn Backend>> = Vec::new();
        let row = |backend| match known.iter().position(|known| Arc::ptr_eq(known, backend)) {
            Some(row) => row,
            None => {
                known.push(backend);
                known.len() - 1
            }
        };
        let rows: Vec<usize> = backends.iter().map(row).collect();
        (Self { ended_us: vec![0; known.len()] }, rows)
    }

    /// When the device turned to a step that was launched then.
    pub(crate) fn begin_of(&self, device: usize, launched_us: u64) -> u64 {
        self.ended_us.get(device).map_or(launched_us, |&ended_us| ended_us.max(launched_us))
    }

    pub(crate) fn end(&mut self, device: usize, ended_us: u64) {
        if let Some(last) = self.ended_us.get_mut(device) {
            *last = ended_us.max(*last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_begins_when_the_one_before_it_on_its_device_has_ended() {
        let mut devices = Devices { ended_us: vec![0; 2] };
        devices.end(0, 500);
        devices.end(0, 400);
        assert_eq!([100, 499, 501].map(|launched| devices.begin_of(0, launched)), [500, 500, 501]);
        assert_eq!(devices.begin_of(1, 100), 100, "another device waits for nobody");
        assert_eq!(devices.begin_of(7, 100), 100);
    }
}
