//! When each stream's tokens were published, and what that comes to. Knows no engine but its events.

use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use millrace_engine::{Event, EventSink};

/// An event of a stream, with the time at which it was published.
pub(in super::super) type Stamped = (usize, Instant, Event);

pub(super) const PATIENCE: Duration = Duration::from_secs(600);

/// Sends each event of one stream with the time it was published.
pub(super) struct Stamp(pub(super) Sender<Stamped>, pub(super) usize);

impl EventSink for Stamp {
    fn emit(&mut self, event: Event) {
        // A test that has seen enough drops its end.
        let _ = self.0.send((self.1, Instant::now(), event));
    }
}

/// Times of all tokens, stream by stream.
pub(super) struct Stamps {
    streams: Vec<Vec<Instant>>,
    running: usize,
}

impl Stamps {
    pub(super) fn new(streams: usize, output: usize) -> Self {
        Self { streams: vec![Vec::with_capacity(output); streams], running: streams }
    }

    /// Hears one event.
    pub(super) fn note(&mut self, events: &Receiver<Stamped>) -> Result<()> {
        let (stream, at, event) = events.recv_timeout(PATIENCE).context("the engine went silent")?;
        match event {
            Event::Token(_) => self.streams[stream].push(at),
            Event::Finished(_) => self.running -= 1,
            Event::Failed(error) => bail!("a stream failed: {error}"),
            Event::Prefilled { .. } => {}
        }
        Ok(())
    }

    pub(super) fn all_began(&self) -> bool {
        self.streams.iter().all(|stream| !stream.is_empty())
    }

    pub(super) fn all_ended(&self) -> bool {
        self.running == 0
    }

    /// Tokens per second between the second token of all and the last of the first to end.
    pub(super) fn rate(&self, output: usize) -> Result<f64> {
        for stream in &self.streams {
            ensure!(stream.len() == output, "a stream ended after {} of {output} tokens", stream.len());
        }
        // The first token is prefill's.
        let from = self.streams.iter().filter_map(|s| s.get(1)).max().copied();
        let until = self.streams.iter().filter_map(|s| s.last()).min().copied();
        let (Some(from), Some(until)) = (from, until) else { bail!("a stream gave fewer than two tokens") };
        let counted = self.streams.iter().flatten().filter(|&&at| from < at && at <= until).count();
        let seconds = until.checked_duration_since(from).filter(|d| !d.is_zero());
        let seconds =
            seconds.ok_or_else(|| anyhow!("the streams took no time that can be measured; generate more tokens with -n"))?;
        Ok(counted as f64 / seconds.as_secs_f64())
    }

    /// The 95th percentile, by nearest rank, of the times between two tokens of a stream, of all streams, in microseconds; from the
    /// second token on, as the first is prefill's.
    pub(super) fn itl_p95_us(&self) -> f64 {
        let decoded = self.streams.iter().map(|stream| stream.get(1..).unwrap_or_default());
        let mut gaps: Vec<Duration> = decoded.flat_map(|stream| stream.windows(2).map(|pair| pair[1] - pair[0])).collect();
        gaps.sort_unstable();
        let rank = (95 * gaps.len()).div_ceil(100).saturating_sub(1);
        gaps.get(rank).map_or(0.0, |gap| gap.as_nanos() as f64 / 1e3)
    }
}

/// When the first event came that was waited for, and the event.
pub(super) fn wait_for(events: &Receiver<Stamped>, wanted: impl Fn(&Event) -> bool) -> Result<(Instant, Event)> {
    loop {
        let (_, at, event) = events.recv_timeout(PATIENCE).context("the engine went silent")?;
        if let Event::Failed(error) = &event {
            bail!("the sequence failed: {error}");
        }
        if wanted(&event) {
            return Ok((at, event));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(milliseconds: &[&[u64]]) -> Stamps {
        let start = Instant::now();
        let stream = |times: &&[u64]| times.iter().map(|&ms| start + Duration::from_millis(ms)).collect();
        Stamps { streams: milliseconds.iter().map(stream).collect(), running: 0 }
    }

    #[test]
    fn the_first_token_counts_neither_for_the_rate_nor_for_the_gaps() {
        let both = stamps(&[&[0, 100, 110, 120, 130], &[5, 102, 112, 122, 132]]);
        // Behind 102 and until 130: 110, 112, 120, 122, 130.
        assert!((both.rate(5).unwrap() - 5.0 / 0.028).abs() < 1e-6);
        assert_eq!(both.itl_p95_us(), 10_000.0);
        assert!(both.rate(6).is_err(), "a stream that ended early");
    }

    #[test]
    fn the_slowest_twentieth_is_above_the_95th_percentile() {
        let mut times: Vec<u64> = vec![0];
        times.extend((0..=20).map(|i| 50 + i));
        // Twenty gaps, of which the last is long: the 19th is the 95th percentile.
        times[21] += 500;
        assert_eq!(stamps(&[&times]).itl_p95_us(), 1_000.0);
        times[20] += 200;
        times[21] += 200;
        assert_eq!(stamps(&[&times]).itl_p95_us(), 201_000.0);
        assert_eq!(stamps(&[&[1, 2]]).itl_p95_us(), 0.0, "no gap at all");
    }
}
