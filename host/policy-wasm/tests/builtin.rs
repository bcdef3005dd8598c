//! The built-in components decide as they should: schedule and precision exactly as the native fallbacks, route by its own rules.
//! With `MILLRACE_PLUGINS_BUILT` set to a directory of freshly built components, those are compared with the embedded ones too.

mod support;

use std::path::PathBuf;

use millrace_core::Stage;
use millrace_policy::{
    Ask, Budget, Choice, Decision, FairSchedule, LeastLoadedRoute, Plan, PrecisionPolicy, RoutePolicy, RouteRequest,
    SchedulePolicy, Table, TierPrecision, format, kind,
};
use millrace_policy_wasm::{LoadedPolicy, PolicyKind, builtin};
use support::{Random, engine, request};

const ROUNDS: u32 = 300;

fn embedded(kind: PolicyKind) -> LoadedPolicy {
    engine().load(builtin::component(kind), kind, &builtin::options(kind)).unwrap_or_else(|error| panic!("{kind}: {error}"))
}

/// Freshly built, if there is such a directory.
fn fresh(kind: PolicyKind) -> Option<LoadedPolicy> {
    fresh_named(&kind.to_string(), kind)
}

fn fresh_named(file: &str, kind: PolicyKind) -> Option<LoadedPolicy> {
    let directory = PathBuf::from(std::env::var_os("MILLRACE_PLUGINS_BUILT")?);
    let source = std::fs::read(directory.join(format!("{file}.wasm"))).unwrap_or_else(|error| panic!("{file}.wasm: {error}"));
    Some(engine().load(&source, kind, &builtin::options(kind)).unwrap_or_else(|error| panic!("fresh {file}: {error}")))
}

fn tenants(random: &mut Random) -> Table {
    let rows = random.below(6) as usize;
    random.table(rows, &[kind::WEIGHT, kind::TOKENS_SERVED, kind::TENANT_WAITING, kind::TIER], 4)
}

#[test]
fn components_are_small_and_named() {
    for (kind, name, component) in builtin::NAMED {
        assert!(component.len() < 100_000, "{name}: {} bytes", component.len());
        let loaded = engine().load(component, kind, &builtin::options(kind)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!loaded.wants().is_empty());
    }
    for kind in PolicyKind::ALL {
        let loaded = embedded(kind);
        assert!(loaded.info().name.ends_with(&kind.to_string()), "{:?}", loaded.info());
        assert!(!loaded.wants().is_empty());
    }
}

#[test]
fn schedule_decides_as_the_native_fallback() {
    let mut policies: Vec<Box<dyn SchedulePolicy>> = vec![embedded(PolicyKind::Schedule).schedule().expect("an instance")];
    policies.extend(fresh(PolicyKind::Schedule).map(|loaded| loaded.schedule().expect("an instance")));
    let mut random = Random(21);
    let all: Vec<u32> = (kind::TENANT..=kind::PREEMPTIONS).collect();
    for round in 0..ROUNDS {
        let count = random.below(80) as usize;
        let (rows, tenants) = (random.table(count, &all, 6), tenants(&mut random));
        // Every other round with numbers of every size and sign, of which equal ones stay equal.
        let (rows, tenants) = if round % 2 == 0 { (rows, tenants) } else { (spread(&rows), spread(&tenants)) };
        let stage = if random.below(2) == 0 { Stage::Prefill } else { Stage::Decode };
        let budget =
            Budget { tokens: random.below(200), sequences: random.below(70), ..support::budget(stage, u64::from(round)) };
        let expected: Plan = FairSchedule.plan(&budget, &rows, &tenants);
        for policy in &mut policies {
            assert_eq!(policy.plan_step(&budget, &rows, &tenants).as_ref(), Ok(&expected), "{budget:?} {rows:?} {tenants:?}");
        }
    }
}

fn spread(table: &Table) -> Table {
    let rows = table.rows as usize;
    table.columns.iter().fold(Table::new(rows), |spread, column| {
        let is_spread = [kind::PRIORITY, kind::AGE_US, kind::TOKENS_SERVED].contains(&column.kind);
        let value = |value: &u32| if is_spread { value.wrapping_mul(0x9e37_79b9) } else { *value };
        spread.with(column.kind, column.values.iter().map(value).collect())
    })
}

#[test]
fn precision_decides_as_the_native_fallback() {
    let mut policies: Vec<Box<dyn PrecisionPolicy>> = vec![embedded(PolicyKind::Precision).precision().expect("an instance")];
    policies.extend(fresh(PolicyKind::Precision).map(|loaded| loaded.precision().expect("an instance")));
    let mut random = Random(22);
    let all: Vec<u32> = (kind::PREFILL_WEIGHT_BITS..=kind::PRECISION_WAITING).collect();
    let formats: Vec<u32> = (kind::PREFILL_WEIGHT_FORMAT..=kind::PREFILL_KV_FORMAT).collect();
    for round in 0..ROUNDS {
        let count = 1 + random.below(5) as usize;
        // Every other round with so few numbers that formats alone tell many apart.
        let numbers = random.table(count, &all, if round % 2 == 0 { 1_000 } else { 2 });
        let columns = random.table(count, &formats, 6).columns.into_iter();
        let precisions = columns.fold(numbers, |table, column| table.with(column.kind, column.values.to_vec()));
        let tenants = tenants(&mut random);
        let asks: Vec<Ask> = (0..random.below(6)).map(|_| support::ask(random.below(6), random.below(8_192))).collect();
        let expected: Vec<Choice> = TierPrecision::default().choices(&asks, &precisions, &tenants);
        for policy in &mut policies {
            assert_eq!(
                policy.choose(&asks, &precisions, &tenants).as_ref(),
                Ok(&expected),
                "{asks:?} {precisions:?} {tenants:?}"
            );
        }
    }
}

#[test]
fn route_orders_eligible_lanes_by_tier() {
    let mut policies: Vec<Box<dyn RoutePolicy>> = vec![embedded(PolicyKind::Route).route().expect("an instance")];
    policies.extend(fresh(PolicyKind::Route).map(|loaded| loaded.route().expect("an instance")));
    let mut random = Random(23);
    let facts: Vec<u32> = (kind::LANE_WAITING..=kind::ITL_US).collect();
    for _ in 0..ROUNDS {
        let count = random.below(9) as usize;
        let mut lanes = random.table(count, &facts, 1_000);
        for flag in [kind::HEALTHY, kind::ELIGIBLE] {
            if random.below(3) > 0 {
                lanes = lanes.with(flag, (0..count).map(|_| u32::from(random.below(4) > 0)).collect());
            }
        }
        let tenants = tenants(&mut random);
        let request = request(random.below(6));
        for policy in &mut policies {
            let decision = policy.decide(&request, &lanes, &tenants).expect("an answer");
            check_route(&decision, &request, &lanes, &tenants);
        }
        let decisions: Vec<_> = policies.iter_mut().map(|p| p.decide(&request, &lanes, &tenants).expect("an answer")).collect();
        assert!(decisions.windows(2).all(|pair| pair[0] == pair[1]), "{decisions:?}");
    }
}

/// Standard tenants are routed as the native fallback does; for the others the first key of their order must not fall.
fn check_route(decision: &Decision, request: &RouteRequest, lanes: &Table, tenants: &Table) {
    let native = LeastLoadedRoute.route(lanes);
    let Decision::Forward(forward) = decision else {
        assert!(
            matches!((decision, &native), (Decision::Refuse(a), Decision::Refuse(b)) if a.status == b.status),
            "{decision:?}"
        );
        return;
    };
    let Decision::Forward(eligible) = &native else { panic!("{decision:?}, native {native:?}") };
    let sorted = |rows: &[u32]| {
        let mut rows = rows.to_vec();
        rows.sort_unstable();
        rows
    };
    assert_eq!(sorted(&forward.lanes), sorted(&eligible.lanes), "all eligible lanes, each once");
    let fact = |kind: u32, row: u32| u64::from(lanes.value(kind, row as usize).unwrap_or(0));
    let load = |row: u32| fact(kind::LANE_WAITING, row) + fact(kind::LANE_RUNNING, row);
    match tenants.value(kind::TIER, request.tenant.0 as usize) {
        Some(2) => assert!(forward.lanes.is_sorted_by_key(|&row| (fact(kind::LANE_WAITING, row), fact(kind::TTFT_US, row)))),
        Some(0) => {
            let (busy, pressed): (Vec<u32>, Vec<u32>) =
                forward.lanes.iter().partition(|&&row| fact(kind::KV_USED_PER_MILLE, row) < 900);
            assert_eq!([busy.clone(), pressed.clone()].concat(), forward.lanes, "lanes under pressure come last");
            assert!(busy.is_sorted_by_key(|&row| std::cmp::Reverse(load(row))));
            assert!(pressed.is_sorted_by_key(|&row| load(row)));
        }
        _ => assert_eq!(decision, &native),
    }
}

#[test]
fn route_refuses_a_tenant_over_its_share_when_told_to() {
    let kind = PolicyKind::Route;
    let config_json = r#"{"max_waiting_per_weight": 4, "retry_after_ms": 250}"#.to_owned();
    let options = millrace_policy_wasm::PolicyOptions { config_json, ..builtin::options(kind) };
    let mut route = engine().load(builtin::ROUTE, kind, &options).expect("loads").route().expect("an instance");
    let tenants =
        Table::new(2).with(millrace_policy::kind::WEIGHT, vec![1, 2]).with(millrace_policy::kind::TENANT_WAITING, vec![4, 7]);
    let mut decide = |tenant| route.decide(&request(tenant), &Table::new(1), &tenants).expect("an answer");
    let Decision::Refuse(refusal) = decide(0) else { panic!("forwarded") };
    assert_eq!((refusal.status, refusal.retry_after_ms), (429, Some(250)));
    assert!(matches!(decide(1), Decision::Forward(_)));
}

fn named(kind: PolicyKind, name: &str) -> LoadedPolicy {
    let component = builtin::named(kind, name).expect("a built-in");
    engine().load(component, kind, &builtin::options(kind)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The row of a plan that runs first in decode.
fn order(name: &str, rows: &Table) -> Vec<u32> {
    let mut policy = named(PolicyKind::Schedule, name).schedule().expect("an instance");
    policy.plan_step(&support::budget(Stage::Decode, 1), rows, &Table::new(0)).expect("a plan").run
}

#[test]
fn first_come_first_served_whoever_is_urgent() {
    let rows = Table::new(4)
        .with(kind::AGE_US, vec![10, 40, 20, 90])
        .with(kind::PRIORITY, vec![9, 0, 0, 0])
        .with(kind::STATE, vec![3, 3, 3, 0]);
    // Row 3 is oldest but would join; in decode those that run stay before it.
    assert_eq!(order("fcfs", &rows), [1, 2, 0, 3]);
}

#[test]
fn priority_goes_first_until_others_have_waited_long_enough() {
    let rows = |age_of_the_low: u32| {
        Table::new(2)
            .with(kind::AGE_US, vec![1_000, age_of_the_low])
            .with(kind::PRIORITY, vec![2, 0])
            .with(kind::STATE, vec![3, 3])
    };
    // Two priorities are worth ten seconds.
    assert_eq!(order("priority", &rows(9_000_000)), [0, 1]);
    assert_eq!(order("priority", &rows(10_002_000)), [1, 0]);
    let negative = Table::new(2).with(kind::PRIORITY, vec![u32::MAX, 0]).with(kind::AGE_US, vec![5, 0]);
    assert_eq!(order("priority", &negative), [1, 0], "-1 is less than 0");
}

/// Whoever sends the greatest number goes first for some time, and not for ever.
#[test]
fn no_priority_is_so_great_that_others_starve() {
    let rows = |age_of_the_low: u32, low: i32| {
        Table::new(2)
            .with(kind::AGE_US, vec![0, age_of_the_low])
            .with(kind::PRIORITY, vec![i32::MAX as u32, low as u32])
            .with(kind::STATE, vec![3, 3])
    };
    // 256 levels of five seconds.
    assert_eq!(order("priority", &rows(1_279_999_999, 0)), [0, 1]);
    assert_eq!(order("priority", &rows(1_280_000_001, 0)), [1, 0]);
    // The lowest counts as -256.
    assert_eq!(order("priority", &rows(2_560_000_001, i32::MIN)), [1, 0]);
    // However long a level is, the longest age that there is wins.
    let kind = PolicyKind::Schedule;
    let component = builtin::named(kind, "priority").expect("a built-in");
    let config_json = r#"{"level_ms": 4000000000}"#.to_owned();
    let options = millrace_policy_wasm::PolicyOptions { config_json, ..builtin::options(kind) };
    let mut policy = engine().load(component, kind, &options).expect("loads").schedule().expect("an instance");
    let plan = policy.plan_step(&support::budget(Stage::Decode, 1), &rows(u32::MAX - 1, i32::MIN), &Table::new(0));
    assert_eq!(plan.expect("a plan").run, [1, 0]);
}

#[test]
fn affinity_keeps_sessions_and_goes_where_the_prompt_is() {
    let mut policy = named(PolicyKind::Route, "affinity").route().expect("an instance");
    let lanes = |running: [u32; 3]| Table::new(3).with(kind::LANE_RUNNING, running.to_vec()).with(kind::ELIGIBLE, vec![1; 3]);
    let mut first = |session, lanes: &Table| match policy.decide(&RouteRequest { session, ..request(0) }, lanes, &Table::new(0)) {
        Ok(Decision::Forward(forward)) => forward.lanes[0],
        other => panic!("{other:?}"),
    };
    let homes: Vec<u32> = (0..60).map(|session| first(Some(session), &lanes([0; 3]))).collect();
    assert!((0..3).all(|lane| homes.iter().filter(|home| **home == lane).count() > 5), "{homes:?}");
    let mut busy = [0; 3];
    busy[homes[7] as usize] = 2;
    assert_eq!(first(Some(7), &lanes(busy)), homes[7], "1,024 tokens are worth two sequences");
    busy[homes[7] as usize] = 3;
    assert_ne!(first(Some(7), &lanes(busy)), homes[7]);
    let hits = lanes([0, 0, 1]).with(kind::PREFIX_HIT_TOKENS, vec![0, 100, 700]);
    assert_eq!(first(None, &hits), 2);
}

#[test]
fn affinity_goes_by_what_each_lane_tells_and_by_the_session_where_one_does_not() {
    let mut policy = named(PolicyKind::Route, "affinity").route().expect("an instance");
    let mut first = |session, hits: [u32; 3]| {
        let lanes = Table::new(3).with(kind::PREFIX_HIT_TOKENS, hits.to_vec()).with(kind::ELIGIBLE, vec![1; 3]);
        match policy.decide(&RouteRequest { session, ..request(0) }, &lanes, &Table::new(0)) {
            Ok(Decision::Forward(forward)) => forward.lanes[0],
            other => panic!("{other:?}"),
        }
    };
    let absent = u32::MAX;
    let home = first(Some(7), [absent; 3]);
    let other = (home as usize + 1) % 3;
    let told = |lane: usize, tokens| std::array::from_fn(|row| if row == lane { tokens } else { absent });
    assert_eq!(first(Some(7), told(other, 1_025)), other as u32, "more than a session's own lane counts for");
    assert_eq!(first(Some(7), told(other, 1_023)), home);
    assert_eq!(first(Some(7), told(home as usize, 0)), home, "of equals the session's own");
    assert_eq!(first(Some(7), [0; 3]), home);
    assert_eq!(first(None, [0; 3]), 0);
}

#[test]
fn least_loaded_decides_as_the_native_fallback() {
    let mut policies = vec![named(PolicyKind::Route, "least-loaded").route().expect("an instance")];
    policies.extend(fresh_named("least-loaded-route", PolicyKind::Route).map(|loaded| loaded.route().expect("an instance")));
    let mut random = Random(24);
    let facts: Vec<u32> = (kind::LANE_WAITING..=kind::LANE_STEP_US).filter(|kind| *kind != kind::ELIGIBLE).collect();
    for _ in 0..ROUNDS {
        let count = random.below(9) as usize;
        let mut lanes = random.table(count, &facts, 3);
        if random.below(3) > 0 {
            lanes = lanes.with(kind::ELIGIBLE, (0..count).map(|_| u32::from(random.below(4) > 0)).collect());
        }
        let (tenants, expected) = (tenants(&mut random), LeastLoadedRoute.route(&lanes));
        for policy in &mut policies {
            assert_eq!(policy.decide(&request(1), &lanes, &tenants).as_ref(), Ok(&expected), "{lanes:?}");
        }
    }
}

#[test]
fn precision_gives_way_under_pressure_and_comes_back_later_than_it_went() {
    let mut policy = named(PolicyKind::Precision, "pressure").precision().expect("an instance");
    let asks = [support::ask(0, 100), support::ask(1, 100)];
    let tenants = Table::new(2).with(kind::TIER, vec![1, 2]);
    let mut chosen = |used: [u32; 3]| {
        let precisions = Table::new(3)
            .with(kind::DECODE_WEIGHT_BITS, vec![4, 16, 8])
            .with(kind::KV_BITS, vec![8, 16, 16])
            .with(kind::PRECISION_KV_USED_PER_MILLE, used.to_vec());
        let choices = policy.choose(&asks, &precisions, &tenants).expect("choices");
        choices.iter().map(|choice: &Choice| choice.precision).collect::<Vec<_>>()
    };
    assert_eq!(chosen([0, 849, 0]), [1, 1], "the most precise while there is room");
    assert_eq!(chosen([0, 850, 0]), [2, 1], "gold one step later");
    assert_eq!(chosen([0, 700, 0]), [2, 1], "not yet");
    assert_eq!(chosen([0, 900, 900]), [0, 2]);
    assert_eq!(chosen([900, 900, 900]), [0, 2], "the cheapest takes what is left");
    assert_eq!(chosen([0, 636, 900]), [1, 1]);
}

/// INT8 and FP8 have the same bits; pressure on one is none on the other.
#[test]
fn precisions_of_the_same_bits_are_told_apart() {
    let mut policy = named(PolicyKind::Precision, "pressure").precision().expect("an instance");
    let asks = [support::ask(0, 100)];
    let tenants = Table::new(1).with(kind::TIER, vec![1]);
    let mut chosen = |used: [u32; 3]| {
        let precisions = Table::new(3)
            .with(kind::PREFILL_WEIGHT_BITS, vec![8, 8, 4])
            .with(kind::DECODE_WEIGHT_BITS, vec![8, 8, 4])
            .with(kind::KV_BITS, vec![8, 8, 8])
            .with(kind::PRECISION_KV_USED_PER_MILLE, used.to_vec());
        policy.choose(&asks, &precisions, &tenants).expect("choices")[0].precision
    };
    assert_eq!(chosen([0, 0, 0]), 0);
    assert_eq!(chosen([900, 0, 0]), 1, "the other one of eight bits has room");
    assert_eq!(chosen([700, 0, 0]), 1, "not yet back");
    assert_eq!(chosen([700, 900, 0]), 2);
    assert_eq!(chosen([0, 900, 0]), 0, "what was relieved is taken again while the other is not");
}

/// By their formats, whatever rows they have: what one tenant is offered is not what another is.
#[test]
fn precisions_are_told_apart_by_their_formats_in_any_row() {
    let mut policy = named(PolicyKind::Precision, "pressure").precision().expect("an instance");
    let asks = [support::ask(0, 100)];
    let tenants = Table::new(1).with(kind::TIER, vec![1]);
    // Format of the weights and KV in use, a row each.
    let mut chosen = |offered: &[(u32, u32)]| {
        let each = |value: &dyn Fn(u32) -> u32| offered.iter().map(|(weights, _)| value(*weights)).collect::<Vec<u32>>();
        let bits = |weights: u32| if weights == format::INT4 { 4 } else { 8 };
        let precisions = Table::new(offered.len())
            .with(kind::PREFILL_WEIGHT_BITS, each(&bits))
            .with(kind::DECODE_WEIGHT_BITS, each(&bits))
            .with(kind::PREFILL_WEIGHT_FORMAT, each(&|weights| weights))
            .with(kind::DECODE_WEIGHT_FORMAT, each(&|weights| weights))
            .with(kind::KV_FORMAT, each(&|_| format::BF16))
            .with(kind::PREFILL_KV_FORMAT, each(&|_| format::BF16))
            .with(kind::PRECISION_KV_USED_PER_MILLE, offered.iter().map(|(_, used)| *used).collect());
        policy.choose(&asks, &precisions, &tenants).expect("choices")[0].precision
    };
    let (fp8, int8, int4) = (format::FP8_E4M3, format::INT8, format::INT4);
    assert_eq!(chosen(&[(fp8, 0), (int8, 0), (int4, 0)]), 1, "INT8 is the more precise of eight bits");
    assert_eq!(chosen(&[(fp8, 0), (int8, 900), (int4, 0)]), 0);
    assert_eq!(chosen(&[(fp8, 900), (int8, 700), (int4, 0)]), 2, "neither is back");
    assert_eq!(chosen(&[(int4, 0), (int8, 700)]), 0, "without FP8 on offer, INT8 is still left");
    assert_eq!(chosen(&[(int4, 0), (int8, 0), (fp8, 700)]), 1, "and taken again in another row");
    assert_eq!(chosen(&[(int4, 0), (fp8, 700)]), 0, "while FP8 is still left");
}
