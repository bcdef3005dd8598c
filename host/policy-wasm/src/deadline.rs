//! How long one call may take. A deadline counts the time that the guest's thread had a core: on a busy machine a thread may wait
//! for one longer than any deadline, which is no fault of the policy. Waiting is bounded too, at a multiple.
//!
//! ```text
//!   call ----- deadline ticks -----> expired? --no: the rest, in ticks--> expired? ...
//!                                       | yes: CPU time >= deadline, or wall time >= 8 deadlines
//!                                    interrupted
//! ```
//! It does not know guests or epochs, only time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;

/// A thread that got an eighth of a core is starved; longer than that the caller does not wait.
const WALL_FACTOR: u32 = 8;

/// The deadline of the call that a store runs; its clones are the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Deadline(Arc<Mutex<Option<Window>>>);

#[derive(Debug, Clone, Copy)]
struct Window {
    /// Of the call's thread, at its start.
    cpu: Option<Duration>,
    wall: Instant,
    allowed: Duration,
}

impl Deadline {
    /// Starts a call on this thread.
    pub(crate) fn begin(&self, deadline_us: u64) {
        let allowed = Duration::from_micros(deadline_us);
        *self.lock() = Some(Window { cpu: thread_time(), wall: Instant::now(), allowed });
    }

    /// On the call's thread: what is left, none if the call is over its deadline.
    pub(crate) fn left(&self) -> Option<Duration> {
        let window = (*self.lock())?;
        let wall = window.wall.elapsed();
        // Without a clock of CPU time, time is wall time.
        let cpu = window.cpu.and_then(|started| thread_time()?.checked_sub(started)).unwrap_or(wall);
        left(window.allowed, cpu, wall)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Window>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// CPU time of this thread so far.
fn thread_time() -> Option<Duration> {
    ThreadTime::try_now().ok().map(|time| time.as_duration())
}

fn left(allowed: Duration, cpu: Duration, wall: Duration) -> Option<Duration> {
    let of_cpu = allowed.checked_sub(cpu)?;
    let of_wall = allowed.saturating_mul(WALL_FACTOR).checked_sub(wall)?;
    Some(of_cpu.min(of_wall)).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_what_counts_until_the_wait_is_too_long() {
        let ms = Duration::from_millis;
        assert_eq!(left(ms(2), ms(0), ms(0)), Some(ms(2)));
        assert_eq!(left(ms(2), ms(1), ms(9)), Some(ms(1)));
        assert_eq!(left(ms(2), ms(0), ms(15)), Some(ms(1)));
        assert_eq!(left(ms(2), ms(0), ms(16)), None);
        assert_eq!(left(ms(2), ms(2), ms(2)), None);
        assert_eq!(left(ms(2), ms(3), ms(3)), None);
        assert_eq!(left(Duration::MAX, ms(3), ms(3)), Some(Duration::MAX - ms(3)));
    }

    #[test]
    fn sleeping_uses_no_cpu_time_and_computing_does() {
        let deadline = Deadline::default();
        assert_eq!(deadline.left(), None);
        deadline.begin(200_000);
        std::thread::sleep(Duration::from_millis(250));
        assert!(deadline.left().is_some_and(|left| left > Duration::from_millis(150)));
        let started = Instant::now();
        while deadline.left().is_some() {
            assert!(started.elapsed() < Duration::from_secs(30));
        }
    }
}
