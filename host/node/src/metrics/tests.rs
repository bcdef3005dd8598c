//! The text of `/metrics`: format, names, labels. Knows no server.

use std::collections::BTreeMap;

use millrace_core::{LaneId, Precision, Stage, StagePrecision, StageRecipe};
use millrace_engine::{EngineSnapshot, LaneFacts, LaneSpeed, LinkFacts, PoolFacts};
use millrace_ops::KvFormat;
use millrace_policy::{
    BreakerSettings, FairSchedule, GuestMetric, GuestValue, LeastLoadedRoute, PolicyInfo, RouteLimits, RouteSlot, ScheduleSlot,
};
use millrace_policy_wasm::RecordCounts;

use super::*;
use crate::fleet::ProcessFacts;
use crate::shadow::ShadowReport;

const LIST: &str = include_str!("../../METRICS.md");

fn precision() -> Precision {
    let stage = StagePrecision { recipe: StageRecipe::Int4, kv: KvFormat::Fp8 };
    Precision { prefill: stage, decode: stage }
}

fn snapshot() -> EngineSnapshot {
    let lane = LaneFacts {
        lane: LaneId(0),
        name: "fa\"st\\".to_owned(),
        precision: precision(),
        waiting: 1,
        running: 2,
        kv_used_per_mille: 250,
        free_pages: 75,
        total_pages: 100,
        ttft_us: 40_000,
        itl_us: 8_000,
        speed: LaneSpeed::default(),
        healthy: true,
    };
    let pool = PoolFacts {
        name: "p".to_owned(),
        stage: Stage::Decode,
        total_pages: 100,
        free_pages: 75,
        quarantined_pages: 1,
        pinned_pages: 20,
        evictable_pages: 4,
        suspect_pages: 1,
        cached_pages: 14,
        evicted_pages: 9,
        computed_tokens: 77,
        prefix_queried_tokens: 60,
        prefix_hit_tokens: 32,
        page_bytes: 1000,
        steps: 7,
        plans_reused: 3,
        step_us: 8_000,
        phases: millrace_engine::PhaseTimes { device_us: 9_000_000, policy_us: 250_000, ..Default::default() },
        last_rows: 2,
        healthy: true,
    };
    let link = LinkFacts { lane: "fast".to_owned(), end: "sends", connected: true, pages: 5, ..LinkFacts::default() };
    EngineSnapshot { lanes: vec![lane], pools: vec![pool], links: vec![link], ..EngineSnapshot::default() }
}

fn slots() -> Vec<SlotLabels> {
    let settings = BreakerSettings::default();
    let route = RouteSlot::new(Box::new(LeastLoadedRoute), PolicyInfo::native("r"), settings, RouteLimits::default());
    let schedule = ScheduleSlot::new(Box::new(FairSchedule), PolicyInfo::native("s"), settings);
    let own = |name: &str, value| GuestMetric { name: name.to_owned(), value };
    let mut status = route.status();
    status.report.metrics = vec![own("shed", GuestValue::Counter(3)), own("share", GuestValue::Gauge(0.5))];
    vec![
        SlotLabels { kind: "route", status, shadow: None, record: None },
        SlotLabels {
            kind: "schedule",
            status: schedule.status(),
            shadow: Some(trial()),
            record: Some(RecordCounts { written: 8, dropped: 1 }),
        },
    ]
}

fn trial() -> ShadowReport {
    ShadowReport {
        candidate: PolicyInfo::native("c"),
        compared: 9,
        agreed: 7,
        disagreed: 2,
        faults: 1,
        last_fault: None,
        ended: None,
        skipped: 4,
        examples: Vec::new(),
    }
}

fn rendered() -> String {
    let metrics = Metrics::default();
    metrics.time_to_first_token.record(0.03);
    metrics.http_responses.count(429);
    metrics.ended(Outcome::Stop);
    let lanes = [LaneLabels { name: "fast".to_owned(), precision: precision().to_string() }];
    let engine = snapshot();
    metrics.render(&Scrape {
        model: "m",
        lanes: &lanes,
        page_tokens: 16,
        slots: slots(),
        outcomes_dropped: 4,
        engine: &engine,
        processes: vec![ProcessFacts { pool: "p".to_owned(), stage: Stage::Decode, up: true, starts: 2, pid: Some(77) }],
        waiting: 3,
        running: 2,
        ready: 1,
        uptime_s: 1.5,
    })
}

/// Family to kind.
fn families(text: &str) -> BTreeMap<String, String> {
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    kinds.filter_map(|line| line.split_once(' ')).map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

#[test]
fn the_list_of_names_is_in_step() {
    let mut listed = BTreeMap::new();
    for line in LIST.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (name, kind) = (cells.next().unwrap().trim_matches('`'), cells.next().unwrap());
        // One row stands for the same name of each policy.
        for policy in ["route", "schedule"] {
            listed.insert(name.replace("KIND", policy), kind.to_owned());
        }
    }
    assert_eq!(listed, families(&rendered()), "METRICS.md and the program name different metrics");
}

#[test]
fn samples_belong_to_their_family_and_labels_are_escaped() {
    let text = rendered();
    let families = families(&text);
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            current = rest.split(' ').next().unwrap().to_owned();
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            let base =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).filter(|b| families.contains_key(*b));
            assert_eq!(base.unwrap_or(name), current, "{line}");
            assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
        }
    }
    assert!(text.contains(r#"millrace_lane_sequences{lane="fa\"st\\",state="waiting"} 1"#), "{text}");
    assert!(text.contains("vllm:kv_cache_usage_perc{model_name=\"m\"} 0.25"));
    assert!(text.contains("vllm:iteration_tokens_total_bucket{model_name=\"m\",le=\"16384\"} 0"));
    assert!(text.contains("vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 1"));
    assert!(text.contains("millrace_http_responses_total{class=\"4xx\"} 1"));
    assert!(text.contains("millrace_pool_bytes{pool=\"p\"} 100000"));
    assert!(text.contains("vllm:prefix_cache_queries_total{model_name=\"m\"} 60"));
    assert!(text.contains("vllm:prefix_cache_hits_total{model_name=\"m\"} 32"));
    assert!(text.contains("millrace_prefix_cached_pages{pool=\"p\"} 14"));
    assert!(text.contains("millrace_prefix_evicted_pages_total{pool=\"p\"} 9"));
    assert!(text.contains("millrace_computed_tokens_total{pool=\"p\"} 77"));
    assert!(text.contains("millrace_pool_suspect_pages{pool=\"p\"} 1"));
    assert!(text.contains("millrace_step_phase_seconds_total{pool=\"p\",phase=\"policy\"} 0.25"));
    assert!(text.contains("millrace_plans_reused_total{pool=\"p\",stage=\"decode\"} 3"));
    assert!(text.contains("millrace_policy_info{kind=\"route\",name=\"r\""));
    assert!(text.contains("millrace_policy_generation_calls_total{kind=\"route\",generation=\"1\",result=\"timeout\"} 0"));
    assert!(text.contains("millrace_policy_beside_calls_total{kind=\"route\",call=\"handover\",result=\"trap\"} 0"));
    assert!(text.contains("millrace_policy_outcomes_dropped_total 4"));
    assert!(text.contains("millrace_policy_counter_total{kind=\"route\",policy=\"r\",name=\"shed\"} 3"));
    assert!(text.contains("millrace_policy_gauge{kind=\"route\",policy=\"r\",name=\"share\"} 0.5"));
    assert!(text.contains("millrace_policy_records_dropped_total{kind=\"schedule\"} 1"));
    assert!(!text.contains("millrace_policy_records_total{kind=\"route\"}"));
    assert!(text.contains("millrace_policy_shadow_disagreements_total{kind=\"schedule\"} 2"));
}

#[test]
fn buckets_are_cumulative_and_bounds_belong_below() {
    let histogram = Histogram::new(&[1.0, 2.0]);
    for value in [0.5, 1.0, 1.5, 99.0, f64::NAN, -1.0, f64::INFINITY] {
        histogram.record(value);
    }
    let facts = histogram.facts();
    assert_eq!(facts.cumulative, [(1.0, 2), (2.0, 3)]);
    assert_eq!((facts.count, facts.sum), (4, 102.0));
}
