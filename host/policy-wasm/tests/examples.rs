//! The policies of `examples/policies` decide as their texts say. They are built by `examples/policies/build.sh` in four languages,
//! into the directory that `MILLRACE_EXAMPLE_POLICIES` names; without it these tests fail. `tests/run.sh policies` does both, and
//! turns on the feature `example-policies` that they need.

mod support;

use std::path::PathBuf;

use millrace_core::{Stage, TenantId};
use millrace_policy::{Ask, Budget, Decision, GuestValue, RouteRequest, Table, kind};
use millrace_policy_wasm::{LoadError, LoadedPolicy, PolicyKind, PolicyLimits, PolicyOptions};
use support::{budget, engine, request};

const BULK: u32 = 0;
const STANDARD: u32 = 1;
const GOLD: u32 = 2;

fn load(name: &str, kind: PolicyKind, config: &str) -> Result<LoadedPolicy, LoadError> {
    let directory = std::env::var_os("MILLRACE_EXAMPLE_POLICIES");
    let directory =
        PathBuf::from(directory.expect("MILLRACE_EXAMPLE_POLICIES names where examples/policies/build.sh built them"));
    let source = std::fs::read(directory.join(format!("{name}.wasm"))).unwrap_or_else(|error| panic!("{name}.wasm: {error}"));
    // Decisions are judged here, not speed.
    let limits = PolicyLimits { deadline_us: 5_000_000, setup_us: 30_000_000, ..PolicyLimits::of(kind) };
    let options = PolicyOptions { limits, config_json: config.to_owned(), ..PolicyOptions::new(name, kind) };
    engine().load(&source, kind, &options)
}

fn loaded(name: &str, kind: PolicyKind) -> LoadedPolicy {
    load(name, kind, "{}").unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn earliest_deadline_first() {
    let loaded = loaded("edf", PolicyKind::Schedule);
    let mut policy = loaded.schedule().expect("an instance");
    let rows = Table::new(5)
        .with(kind::SLACK_US, vec![u32::MAX, 100, 0, 50, 10])
        .with(kind::AGE_US, vec![7, 7, 7, 7, 7])
        .with(kind::STATE, vec![3, 3, 3, 3, 2])
        .with(kind::PAGES_HELD, vec![2, 0, 2, 2, 2]);
    let mut ask = |budget: &Budget| policy.plan_step(budget, &rows, &Table::new(0)).expect("a plan");
    let plan = ask(&budget(Stage::Decode, 1));
    // Row 4 is handing off; row 2 is late already, row 0 has a minute from its arrival.
    assert_eq!(plan.run, [3, 1, 0, 2]);
    assert_eq!(plan.preempt, [2, 0, 3], "most time left first, of those with pages");
    assert_eq!(ask(&Budget { sequences: 2, ..budget(Stage::Decode, 1) }).run, [3, 1]);
    assert!(ask(&budget(Stage::Prefill, 1)).run.is_empty(), "all run in decode");
    for (config, says) in [(r#"{"keep_steps": 33}"#, "keep_steps is 33"), (r#"{"keep": 1}"#, "keep")] {
        let error = load("edf", PolicyKind::Schedule, config).map(|_| ()).expect_err("refused");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn load_is_shed_from_below() {
    let loaded = loaded("load-shedding", PolicyKind::Route);
    let mut policy = loaded.route().expect("an instance");
    let tenants = Table::new(4)
        .with(kind::TIER, vec![BULK, STANDARD, GOLD, GOLD])
        .with(kind::WEIGHT, vec![1; 4])
        .with(kind::TENANT_WAITING, vec![0, 0, 0, 65]);
    let lanes = |waiting: [u32; 2], used: [u32; 2]| {
        Table::new(2)
            .with(kind::LANE_WAITING, waiting.to_vec())
            .with(kind::LANE_RUNNING, vec![1, 0])
            .with(kind::KV_USED_PER_MILLE, used.to_vec())
            .with(kind::ELIGIBLE, vec![1, 1])
    };
    let mut decide = |tenant, lanes: &Table| policy.decide(&request(tenant), lanes, &tenants).expect("a decision");
    let rows = |decision: Decision| match decision {
        Decision::Forward(forward) => forward.lanes,
        other => panic!("{other:?}"),
    };
    assert_eq!(rows(decide(0, &lanes([0, 0], [0, 0]))), [1, 0], "bulk is served while there is room");
    assert_eq!(rows(decide(0, &lanes([40, 0], [0, 899]))), [1, 0], "one full lane is no pressure");
    let full = lanes([40, 3], [0, 950]);
    assert!(
        matches!(decide(0, &full), Decision::Refuse(refusal) if refusal.status == 503 && refusal.retry_after_ms == Some(2_000))
    );
    assert_eq!(decide(1, &full), Decision::Hold(50));
    assert_eq!(rows(decide(2, &full)), [1, 0]);
    assert!(matches!(decide(3, &full), Decision::Refuse(_)), "gold beyond its share counts as bulk");
    let metrics: Vec<_> = policy.report().metrics.iter().map(|metric| (metric.name.clone(), metric.value)).collect();
    assert_eq!(
        metrics,
        [("shed_requests".to_owned(), GuestValue::Counter(2)), ("held_requests".to_owned(), GuestValue::Counter(1))]
    );
    let config = r#"{"hold_ms": 0, "full": 1}"#;
    let error = load("load-shedding", PolicyKind::Route, config).map(|_| ()).expect_err("refused");
    assert!(matches!(&error, LoadError::Config(faults) if faults.len() == 2), "every fault at once: {error}");
}

#[test]
fn sessions_keep_their_lane_and_cached_prompts_go_where_they_are() {
    let loaded = loaded("affinity", PolicyKind::Route);
    let mut policy = loaded.route().expect("an instance");
    let lanes = |eligible: [u32; 4], running: [u32; 4]| {
        Table::new(4)
            .with(kind::LANE_WAITING, vec![0; 4])
            .with(kind::LANE_RUNNING, running.to_vec())
            .with(kind::ELIGIBLE, eligible.to_vec())
    };
    let mut first = |session: Option<u64>, lanes: &Table| {
        let request = RouteRequest { session, ..request(0) };
        match policy.decide(&request, lanes, &Table::new(0)).expect("a decision") {
            Decision::Forward(forward) => forward.lanes[0],
            other => panic!("{other:?}"),
        }
    };
    let all = lanes([1; 4], [0; 4]);
    let homes: Vec<u32> = (0..64).map(|session| first(Some(session << 20), &all)).collect();
    for lane in 0..4 {
        let count = homes.iter().filter(|home| **home == lane).count();
        assert!((4..=32).contains(&count), "lane {lane} has {count} of 64 sessions");
    }
    // One lane fewer moves only its own sessions.
    let three = lanes([1, 1, 1, 0], [0; 4]);
    for (session, home) in homes.iter().enumerate() {
        let now = first(Some((session as u64) << 20), &three);
        assert!(now == *home || (*home == 3 && now < 3), "session {session}: {home} to {now}");
    }
    // Two requests of 512 tokens weigh what a session does; beyond that the shorter queue wins.
    let mut busy = [0; 4];
    busy[homes[0] as usize] = 3;
    assert_ne!(first(Some(0), &lanes([1; 4], busy)), homes[0]);
    assert_eq!(first(None, &lanes([1; 4], [3, 2, 0, 1])), 2);
    let cached = lanes([1; 4], [0, 0, 3, 0]).with(kind::PREFIX_HIT_TOKENS, vec![0, 0, 2_000, 0]);
    assert_eq!(first(Some(0), &cached), 2);
}

#[test]
fn tiers_pay_for_precision() {
    let loaded = loaded("cost-tiers", PolicyKind::Precision);
    let mut policy = loaded.precision().expect("an instance");
    // FP8 weights, BF16 throughout, INT4 with FP8 KV, INT4 with BF16 KV.
    let precisions = |used: [u32; 4], ready: [u32; 4]| {
        Table::new(4)
            .with(kind::PREFILL_WEIGHT_BITS, vec![8, 16, 8, 8])
            .with(kind::DECODE_WEIGHT_BITS, vec![8, 16, 4, 4])
            .with(kind::KV_BITS, vec![16, 16, 8, 16])
            .with(kind::LANES_READY, ready.to_vec())
            .with(kind::PRECISION_KV_USED_PER_MILLE, used.to_vec())
    };
    let tenants = Table::new(3).with(kind::TIER, vec![BULK, STANDARD, GOLD]);
    let asks: Vec<Ask> = (0..3).map(|tenant| Ask { tenant: TenantId(tenant), ..support::ask(tenant, 100) }).collect();
    let mut choose = |precisions: &Table| {
        let choices = policy.choose(&asks, precisions, &tenants).expect("choices");
        choices.iter().map(|choice| (choice.precision, choice.may_downgrade)).collect::<Vec<_>>()
    };
    assert_eq!(choose(&precisions([0; 4], [1; 4])), [(2, true), (0, true), (1, false)]);
    assert_eq!(choose(&precisions([900, 0, 0, 0], [1; 4])), [(2, true), (2, true), (1, false)], "standard under pressure");
    assert_eq!(choose(&precisions([0; 4], [1, 0, 0, 1])), [(3, true), (0, true), (0, false)], "only what is ready");
}
