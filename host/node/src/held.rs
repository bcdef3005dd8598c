//! How long the route policy has held a request: waits as often as it says, and knows when the last time has come. Knows no policy.

use std::time::Duration;

use tokio::time::Instant;

pub(crate) struct Held {
    most: Duration,
    /// The first hold.
    since: Option<Instant>,
}

impl Held {
    /// All holds together take `most` at most.
    pub(crate) fn new(most: Duration) -> Self {
        Self { most, since: None }
    }

    /// Whether the request may be held no longer.
    pub(crate) fn is_over(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= self.most)
    }

    /// Waits for `ms`, at least one, and no longer than until holds are over.
    pub(crate) async fn wait(&mut self, ms: u32) {
        let since = *self.since.get_or_insert_with(Instant::now);
        let left = self.most.saturating_sub(since.elapsed());
        tokio::time::sleep(Duration::from_millis(u64::from(ms.max(1))).min(left)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn holds_are_over_when_their_time_is() {
        let mut held = Held::new(Duration::from_millis(60));
        assert!(!held.is_over(), "never held");
        let began = Instant::now();
        held.wait(0).await;
        assert!(began.elapsed() >= Duration::from_millis(1));
        // Longer than is left.
        held.wait(u32::MAX).await;
        assert!(held.is_over() && began.elapsed() >= Duration::from_millis(60));
        held.wait(u32::MAX).await;
        assert!(began.elapsed() < Duration::from_secs(3_600));
    }

    #[tokio::test]
    async fn time_before_the_first_hold_does_not_count() {
        let mut held = Held::new(Duration::from_secs(3_600));
        held.wait(1).await;
        assert!(!held.is_over());
        let untouched = Held::new(Duration::ZERO);
        assert!(!untouched.is_over());
    }
}
