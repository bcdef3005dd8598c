//! What the tests share: an engine, a clock that is set by hand, made-up facts.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod guests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use millrace_core::{Clock, Stage, TenantId};
use millrace_policy::{Answer, Ask, BreakerSettings, Budget, Plan, RouteRequest, ScheduleSlot, Table, kind};
use millrace_policy_wasm::{EngineOptions, LoadError, LoadedPolicy, PolicyEngine, PolicyKind, PolicyOptions};

/// Time that moves when told.
#[derive(Default)]
pub(crate) struct HandClock(pub(crate) AtomicU64);

impl Clock for HandClock {
    fn now_us(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// One engine a test binary, as one a process in production.
pub(crate) fn engine() -> &'static PolicyEngine {
    static ENGINE: OnceLock<PolicyEngine> = OnceLock::new();
    ENGINE.get_or_init(|| PolicyEngine::new(EngineOptions::new(Arc::new(HandClock::default()))).expect("an engine"))
}

/// A breaker that never opens, so that each call reaches the policy.
pub(crate) const HELD_CLOSED: BreakerSettings =
    BreakerSettings { faults_to_open: u32::MAX, backoff_us: 1, max_backoff_us: 1, opens_to_roll_back: u32::MAX };

pub(crate) fn load(source: &[u8], kind: PolicyKind, name: &str) -> Result<LoadedPolicy, LoadError> {
    engine().load(source, kind, &PolicyOptions::new(name, kind))
}

/// A guest of `tests/guests/` in a slot.
pub(crate) fn schedule_slot(guest: &str) -> ScheduleSlot {
    slot_of(&load(&guests::component(guest), PolicyKind::Schedule, guest).unwrap_or_else(|error| panic!("{guest}: {error}")))
}

pub(crate) fn slot_of(loaded: &LoadedPolicy) -> ScheduleSlot {
    ScheduleSlot::new(loaded.schedule().expect("an instance"), loaded.info().clone(), HELD_CLOSED)
}

/// Four running rows; the native fallback runs them oldest first: 3, 2, 1, 0.
pub(crate) fn plan(slot: &ScheduleSlot, step: u64) -> Answer<Plan> {
    let rows = Table::new(4).with(kind::STATE, vec![3; 4]).with(kind::AGE_US, vec![1, 2, 3, 4]);
    slot.plan_step(0, &budget(Stage::Decode, step), &rows, &Table::new(0))
}

pub(crate) fn budget(stage: Stage, step: u64) -> Budget {
    Budget {
        stage,
        step,
        tokens: 64,
        sequences: 64,
        free_pages: 8,
        total_pages: 16,
        page_tokens: 16,
        step_us: 5_000,
        answer_within_us: None,
    }
}

/// Asks at step 0, where every guest answers well, until the rebuilt instance does.
pub(crate) fn wait_until_rebuilt(slot: &ScheduleSlot, what: &str) {
    let started = Instant::now();
    while plan(slot, 0).fault.is_some() {
        assert!(started.elapsed() < Duration::from_secs(30), "{what}: no fresh instance: {:?}", slot.status().last_error);
        std::thread::sleep(Duration::from_micros(200));
    }
}

pub(crate) fn ask(tenant: u32, prompt_tokens: u32) -> Ask {
    Ask {
        tenant: TenantId(tenant),
        model: "model".into(),
        prompt_tokens,
        max_output_tokens: 16,
        priority: 0,
        streaming: false,
        attributes: vec![("region".into(), "north".into())],
    }
}

pub(crate) fn request(tenant: u32) -> RouteRequest {
    RouteRequest {
        tenant: TenantId(tenant),
        model: "model".into(),
        session: Some(1 << 40),
        prompt_tokens: 100,
        max_output_tokens: 16,
        priority: -1,
        slack_us: Some(5),
        streaming: true,
        attributes: vec![("region".into(), "north".into())],
    }
}

/// A tiny generator; the tests need variety, not quality.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % n).expect("small")
    }

    /// Columns of some kinds, with values below `n` and some absent.
    pub(crate) fn table(&mut self, rows: usize, kinds: &[u32], n: u64) -> Table {
        let mut table = Table::new(rows);
        for &kind in kinds {
            if self.below(5) > 0 {
                let values = (0..rows).map(|_| if self.below(12) == 0 { u32::MAX } else { self.below(n) }).collect();
                table = table.with(kind, values);
            }
        }
        table
    }
}
