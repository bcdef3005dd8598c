//! The epoch ticker: an OS thread that advances the engine's epoch while guests run, so that a guest that loops is interrupted.
//!
//! A thread of its own, because tasks of an async runtime do not run while guests occupy all its workers. It parks after a while
//! without calls, so that an idle server is not woken thousands of times a second; the first call afterwards wakes it.
//! It holds the engine weakly and ends with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use wasmtime::{Engine, EngineWeak};

use crate::EngineError;

const IDLE_TICKS: u32 = 200;
/// A parked ticker looks this often whether the engine still exists.
const PARKED: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Thread,
    tick_us: u64,
}

#[derive(Debug, Default)]
struct Shared {
    started: AtomicU64,
    finished: AtomicU64,
    parked: AtomicBool,
    stopped: AtomicBool,
}

/// Ticks after which `us` have passed for certain: the first tick may come at once.
pub(crate) fn ticks(us: u64, tick_us: u64) -> u64 {
    us.div_ceil(tick_us).saturating_add(1)
}

/// While it lives, the epoch advances.
pub(crate) struct Ticking<'a>(&'a Shared);

impl Ticker {
    pub(crate) fn start(engine: &Engine, tick_us: u64) -> Result<Self, EngineError> {
        let tick_us = tick_us.max(100);
        let shared = Arc::new(Shared::default());
        let (weak, state) = (engine.weak(), shared.clone());
        let thread = thread::Builder::new()
            .name("policy-ticker".into())
            .spawn(move || run(&weak, &state, Duration::from_micros(tick_us)))
            .map_err(|error| EngineError::Thread { thread: "ticker", detail: error.to_string() })?;
        Ok(Self { shared, thread: thread.thread().clone(), tick_us })
    }

    /// Called before a guest is entered.
    pub(crate) fn tick(&self) -> Ticking<'_> {
        self.shared.started.fetch_add(1, Ordering::SeqCst);
        if self.shared.parked.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        Ticking(&self.shared)
    }

    pub(crate) fn tick_us(&self) -> u64 {
        self.tick_us
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

impl Drop for Ticking<'_> {
    fn drop(&mut self) {
        self.0.finished.fetch_add(1, Ordering::SeqCst);
    }
}

fn run(engine: &EngineWeak, shared: &Shared, tick: Duration) {
    let (mut idle, mut seen) = (0, 0);
    while !shared.stopped.load(Ordering::SeqCst) {
        thread::sleep(tick);
        let Some(alive) = engine.upgrade() else { return };
        alive.increment_epoch();
        drop(alive);
        let started = shared.started.load(Ordering::SeqCst);
        idle = if started == seen && is_idle(shared) { idle + 1 } else { 0 };
        seen = started;
        if idle >= IDLE_TICKS {
            park(engine, shared);
            idle = 0;
        }
    }
}

/// Says that it parks before it looks for calls; a call says that it starts before it looks for a parked ticker.
/// So one sees the other.
fn park(engine: &EngineWeak, shared: &Shared) {
    shared.parked.store(true, Ordering::SeqCst);
    while is_idle(shared) && !shared.stopped.load(Ordering::SeqCst) && engine.upgrade().is_some() {
        thread::park_timeout(PARKED);
    }
    shared.parked.store(false, Ordering::SeqCst);
}

fn is_idle(shared: &Shared) -> bool {
    shared.started.load(Ordering::SeqCst) == shared.finished.load(Ordering::SeqCst)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
        let started = Instant::now();
        while !holds() {
            assert!(started.elapsed() < Duration::from_secs(20), "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn parks_when_idle_wakes_for_a_call_and_ends_with_its_owner() {
        let ticker = Ticker::start(&Engine::default(), 100);
        let ticker = ticker.expect("a thread");
        assert_eq!(ticks(1, ticker.tick_us()), 2);
        assert_eq!(ticks(1_000, ticker.tick_us()), 11);
        // The engine is gone, so the thread ends by itself.
        let shared = Arc::downgrade(&ticker.shared);
        drop(ticker);
        eventually("ends without its engine", || shared.upgrade().is_none());

        let engine = Engine::default();
        let ticker = Ticker::start(&engine, 100).expect("a thread");
        let parked = ticker.shared.clone();
        for _ in 0..3 {
            eventually("parks", || parked.parked.load(Ordering::SeqCst));
            let ticking = ticker.tick();
            eventually("wakes", || !parked.parked.load(Ordering::SeqCst));
            drop(ticking);
        }
        let shared = Arc::downgrade(&ticker.shared);
        drop((parked, ticker));
        eventually("ends with its owner", || shared.upgrade().is_none());
    }
}
