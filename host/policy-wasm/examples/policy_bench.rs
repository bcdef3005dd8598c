//! Times the built-in policies through the whole host path: the slot, conversion, lowering, the guest, lifting, validation.
//! `cargo run --release -p millrace-policy-wasm --example policy_bench [COMPONENT.wasm]` times another schedule policy.
//!
//! Each number: 200 calls to warm up, then 2,000 calls one after the other on one thread.
//! Loading is timed once, as it is done once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_core::{Clock, Stage, TenantId};
use millrace_policy::{
    BreakerSettings, Budget, FairSchedule, PolicyInfo, RouteLimits, RouteRequest, RouteSlot, ScheduleSlot, Table, kind,
};
use millrace_policy_wasm::{EngineOptions, PolicyEngine, PolicyKind, PolicyLimits, PolicyOptions, builtin};

struct Monotonic(Instant);

impl Clock for Monotonic {
    fn now_us(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = Arc::new(Monotonic(Instant::now()));
    let engine = PolicyEngine::new(EngineOptions::new(clock.clone()))?;
    let source = std::env::args().nth(1).map(std::fs::read).transpose()?;
    // Interpreters are measured, not judged.
    let limits = PolicyLimits { deadline_us: 1_000_000, memory_bytes: 256 << 20, ..PolicyLimits::of(PolicyKind::Schedule) };
    let options = PolicyOptions { limits, ..builtin::options(PolicyKind::Schedule) };

    let started = Instant::now();
    let loaded = engine.load(source.as_deref().unwrap_or(builtin::SCHEDULE), PolicyKind::Schedule, &options)?;
    println!("load (compile, checks, trial)   {:>12?}", started.elapsed());
    let started = Instant::now();
    let policy = loaded.schedule()?;
    println!("instantiate and init, first     {:>12?}", started.elapsed());
    let many = times(500, || drop(loaded.schedule()));
    println!("instantiate, init, drop         {}", summary(many));

    let slot = ScheduleSlot::new(policy, loaded.info().clone(), BreakerSettings::default());
    let native = ScheduleSlot::new(Box::new(FairSchedule), PolicyInfo::native("fair"), BreakerSettings::default());
    let tenants = tenants(8);
    for count in [16, 64, 256, 1024] {
        let (rows, budget) = (rows(count), budget(count));
        let ask = |slot: &ScheduleSlot| drop(std::hint::black_box(slot.plan_step(clock.now_us(), &budget, &rows, &tenants)));
        println!("schedule, {count:>4} rows             {}", summary(times(2_000, || ask(&slot))));
        println!("  native fallback               {}", summary(times(2_000, || ask(&native))));
    }
    println!("memory                          {:>12} bytes", slot.status().report.memory_bytes);
    println!("faults                          {:?}", slot.status().total.faults);

    let loaded = engine.load(builtin::ROUTE, PolicyKind::Route, &builtin::options(PolicyKind::Route))?;
    let slot = RouteSlot::new(loaded.route()?, loaded.info().clone(), BreakerSettings::default(), RouteLimits::default());
    let lanes = (kind::LANE_WAITING..=kind::LANE_PRECISION).fold(Table::new(8), |table, kind| table.with(kind, vec![1; 8]));
    let route = || drop(std::hint::black_box(slot.decide(clock.now_us(), &request(), &lanes, &tenants)));
    println!("route, 8 lanes                  {}", summary(times(2_000, route)));
    Ok(())
}

fn times(count: usize, mut work: impl FnMut()) -> Vec<Duration> {
    (0..count / 10).for_each(|_| work());
    let mut times: Vec<Duration> = (0..count)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed()
        })
        .collect();
    times.sort();
    times
}

fn summary(times: Vec<Duration>) -> String {
    let at = |per_mille: usize| times.get(times.len() * per_mille / 1_000).map_or(0, Duration::as_nanos);
    format!("median {:>9} ns   p99 {:>9} ns", at(500), at(990))
}

/// Every column that the host has, eight tenants.
fn rows(count: usize) -> Table {
    (kind::TENANT..=kind::PREEMPTIONS).fold(Table::new(count), |table, kind| {
        let value = |row: u32| match kind {
            kind::TENANT => row % 8,
            kind::STATE => 3,
            _ => row.wrapping_mul(7_919) % 100_000 + 1,
        };
        table.with(kind, (0..count as u32).map(value).collect())
    })
}

fn tenants(count: usize) -> Table {
    (kind::WEIGHT..=kind::TIER).fold(Table::new(count), |table, kind| table.with(kind, (1..=count as u32).collect()))
}

fn budget(count: usize) -> Budget {
    let bound = count as u32;
    Budget {
        stage: Stage::Decode,
        step: 9,
        tokens: bound,
        sequences: bound,
        free_pages: 100,
        total_pages: 1_000,
        page_tokens: 64,
        step_us: 5_000,
        answer_within_us: None,
    }
}

fn request() -> RouteRequest {
    RouteRequest {
        tenant: TenantId(3),
        model: "model".to_owned(),
        session: None,
        prompt_tokens: 700,
        max_output_tokens: 128,
        priority: 0,
        slack_us: None,
        streaming: true,
        attributes: Vec::new(),
    }
}
