//! Which precisions and lanes a tenant is offered, on three lanes of two precisions.

use millrace_engine::{EngineSnapshot, LaneSpeed};

use super::*;
use crate::admission::TenantBounds;

/// Lanes 0 fast, 1 exact, 2 fast again but small; tenant 1 may not use lane 1.
const DEPLOYMENT: &str = r#"
[model.m]
name = "m"
path = "m.gguf"
[pool.fp]
stage = "prefill"
recipe = "int8"
[pool.fd]
stage = "decode"
recipe = "int4"
kv = "fp8"
[pool.small]
stage = "decode"
recipe = "int4"
kv = "fp8"
[pool.xp]
stage = "prefill"
recipe = "bf16"
[pool.xd]
stage = "decode"
recipe = "bf16"
[lane.fast]
prefill = "fp"
decode = "fd"
kl_micronat = 4770
[lane.exact]
prefill = "xp"
decode = "xd"
[lane.fast-small]
prefill = "fp"
decode = "small"
kl_micronat = 5000
[tenant.gold]
key_sha256 = "1111111111111111111111111111111111111111111111111111111111111111"
tier = "gold"
weight = 3
[tenant.batch]
key_sha256 = "2222222222222222222222222222222222222222222222222222222222222222"
allowed_lanes = ["fast", "fast-small"]
"#;

fn lanes() -> Lanes {
    let config = millrace_config::parse(DEPLOYMENT, "test").unwrap_or_else(|e| panic!("{e}"));
    let pool = |capacity_tokens, weight_bytes| PoolFigures { capacity_tokens, weight_bytes };
    let (wide, narrow) = (270_000_000, 76_000_000);
    let pools = [pool(1000, 135_000_000), pool(1000, narrow), pool(100, narrow), pool(1000, wide), pool(1000, wide)];
    Lanes::new(&config, "0123456789abcdef", &pools)
}

/// A lane as nobody has used it.
fn idle(row: usize, lane: &Lane) -> LaneFacts {
    LaneFacts {
        lane: LaneId(count(row)),
        name: lane.name.to_string(),
        precision: lane.precision,
        waiting: 0,
        running: 0,
        kv_used_per_mille: 0,
        free_pages: 1,
        total_pages: 1,
        ttft_us: 1,
        itl_us: 1,
        speed: LaneSpeed::default(),
        healthy: false,
    }
}

fn engine(healthy: [bool; 3]) -> EngineSnapshot {
    let lanes = lanes();
    let speed = |i: usize| LaneSpeed {
        prefill_tokens_per_s: [900, 0, 700][i],
        decode_tokens_per_s: [90, 0, 0][i],
        decode_step_us: [8, 0, 9][i],
    };
    let facts = |(i, lane): (usize, &Lane)| LaneFacts {
        waiting: count(i) + 1,
        kv_used_per_mille: [100, 200, 900][i],
        total_pages: [300, 10, 100][i],
        speed: speed(i),
        healthy: healthy[i],
        ..idle(i, lane)
    };
    EngineSnapshot { lanes: lanes.rows.iter().enumerate().map(facts).collect(), ..EngineSnapshot::default() }
}

#[test]
fn lanes_of_one_precision_share_a_row_and_name_themselves() {
    let lanes = lanes();
    assert_eq!(lanes.rows.iter().map(|l| l.precision_row).collect::<Vec<_>>(), [0, 1, 0]);
    assert_eq!(&*lanes.rows[0].fingerprint, "fast/int8+kv-bf16/int4+kv-fp8/01234567");
    assert_eq!(lanes.rows.iter().map(|l| l.capacity_tokens).collect::<Vec<_>>(), [1000, 1000, 100]);
}

#[test]
fn a_tenant_is_offered_what_its_healthy_lanes_have() {
    let lanes = lanes();
    let gold = lanes.offer(0, &engine([true, true, true]));
    assert_eq!(gold.rows, [0, 1]);
    assert_eq!(gold.table.column(kind::DECODE_WEIGHT_BITS), Some(&[4, 16][..]));
    assert_eq!(gold.table.column(kind::KV_BITS), Some(&[8, 16][..]));
    assert_eq!(gold.table.column(kind::LANES_READY), Some(&[2, 1][..]));
    // 76 of 270 MB of decode weights.
    assert_eq!(gold.table.column(kind::RELATIVE_COST_PER_MILLE), Some(&[281, 1000][..]));
    // Against the dearest of what is offered, not of what there is.
    let batch = lanes.offer(1, &engine([true, true, true]));
    assert_eq!(batch.table.column(kind::RELATIVE_COST_PER_MILLE), Some(&[1000][..]));
    // (100 x 300 + 900 x 100) / 400 pages.
    assert_eq!(gold.table.column(kind::PRECISION_KV_USED_PER_MILLE), Some(&[300, 200][..]));
    assert_eq!(gold.table.column(kind::PRECISION_WAITING), Some(&[4, 2][..]));
    assert_eq!(lanes.offer(1, &engine([true, true, true])).rows, [0]);
    assert_eq!(lanes.offer(0, &engine([false, true, false])).rows, [1]);
    assert_eq!(lanes.offer(1, &engine([false, true, false])).rows, [0; 0]);
    assert_eq!(lanes.offer(9, &engine([true, true, true])).rows, [0; 0]);
}

/// FP8 and INT8 have the same bits.
#[test]
fn formats_tell_every_precision_from_every_other() {
    let pool = |name: &str, stage: &str, recipe: &str, kv: &str| {
        format!("[pool.{name}]\nstage = \"{stage}\"\nrecipe = \"{recipe}\"\nkv = \"{kv}\"\n")
    };
    let recipes = ["stored", "bf16", "fp8", "int8", "int4"];
    let all: Vec<(&str, &str)> = recipes.iter().flat_map(|recipe| ["bf16", "fp8"].map(|kv| (*recipe, kv))).collect();
    let mut text = "[model.m]\nname = \"m\"\npath = \"m.gguf\"\n".to_owned();
    for (i, (recipe, kv)) in all.iter().enumerate() {
        text += &(pool(&format!("p{i}"), "prefill", recipe, kv) + &pool(&format!("d{i}"), "decode", recipe, kv));
    }
    let pairs: Vec<(usize, usize)> = (0..all.len()).flat_map(|p| (0..all.len()).map(move |d| (p, d))).collect();
    let of_lane = |(p, d): &(usize, usize)| format!("[lane.l{p}x{d}]\nprefill = \"p{p}\"\ndecode = \"d{d}\"\n");
    text += &pairs.iter().map(of_lane).collect::<String>();
    text += "[tenant.t]\nkey_sha256 = \"1111111111111111111111111111111111111111111111111111111111111111\"\n";
    let config = millrace_config::parse(&text, "test").unwrap_or_else(|e| panic!("{e}"));
    let lanes = Lanes::new(&config, "", &[]);
    let facts = |(i, lane): (usize, &Lane)| LaneFacts { healthy: true, ..idle(i, lane) };
    let engine = EngineSnapshot { lanes: lanes.rows.iter().enumerate().map(facts).collect(), ..EngineSnapshot::default() };
    let table = lanes.offer(0, &engine).table;
    let kinds = [kind::PREFILL_WEIGHT_FORMAT, kind::DECODE_WEIGHT_FORMAT, kind::KV_FORMAT, kind::PREFILL_KV_FORMAT];
    let of = |row: usize| kinds.map(|kind| table.value(kind, row));
    let mut names: Vec<_> = (0..table.rows as usize).map(of).collect();
    let (fp8, int4, bf16) = (Some(format::FP8_E4M3), Some(format::INT4), Some(format::BF16));
    // Prefill FP8 with KV in BF16, decode INT4 with KV in FP8.
    let row = pairs.iter().position(|(p, d)| (all[*p], all[*d]) == (("fp8", "bf16"), ("int4", "fp8"))).expect("the lane");
    assert_eq!(of(row), [fp8, int4, fp8, bf16]);
    assert_eq!(of(0), [Some(format::STORED), Some(format::STORED), bf16, bf16]);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), pairs.len());
}

#[test]
fn speed_is_what_was_measured_and_quality_what_the_operator_says() {
    let (lanes, engine) = (lanes(), engine([true, true, true]));
    let table = lanes.table(0, 0, 50, &engine);
    assert_eq!(table.column(kind::LANE_PREFILL_TOKENS_PER_S), Some(&[900, u32::MAX, 700][..]));
    assert_eq!(table.column(kind::LANE_DECODE_TOKENS_PER_S), Some(&[90, u32::MAX, u32::MAX][..]));
    assert_eq!(table.column(kind::LANE_STEP_US), Some(&[8, u32::MAX, 9][..]));
    let offer = lanes.offer(0, &engine).table;
    // Over the lanes that have measured it.
    assert_eq!(offer.column(kind::PRECISION_PREFILL_TOKENS_PER_S), Some(&[800, u32::MAX][..]));
    assert_eq!(offer.column(kind::PRECISION_DECODE_TOKENS_PER_S), Some(&[90, u32::MAX][..]));
    // Lanes `fast` and `fast-small` say 4,770 and 5,000.
    assert_eq!(offer.column(kind::KL_MICRONAT), Some(&[5_000, u32::MAX][..]));
}

#[test]
fn what_tenants_have_cached_comes_with_their_quota() {
    let facts = |cached_pages, page_quota| millrace_engine::TenantFacts { cached_pages, page_quota, ..Default::default() };
    let engine = EngineSnapshot { tenants: vec![facts(3, 8), facts(0, 0)], ..EngineSnapshot::default() };
    let bounds = [0; 2].map(|_| TenantBounds { max_waiting: None, max_running: None });
    let table = lanes().tenants(&Admission::new(9, &bounds), &engine);
    assert_eq!(table.column(kind::CACHED_PAGES), Some(&[3, 0][..]));
    assert_eq!(table.column(kind::PAGE_QUOTA), Some(&[8, u32::MAX][..]));
}

#[test]
fn a_cost_that_nobody_knows_is_absent() {
    assert_eq!((per_mille(0, 0), per_mille(1, 3), per_mille(u64::MAX, u64::MAX)), (u32::MAX, 333, 1000));
}

#[test]
fn eligible_is_what_is_healthy_allowed_large_enough_and_of_the_precision() {
    let lanes = lanes();
    let eligible = |tenant, precision, needed, healthy| {
        lanes.table(tenant, precision, needed, &engine(healthy)).column(kind::ELIGIBLE).unwrap().to_vec()
    };
    assert_eq!(eligible(0, 0, 50, [true; 3]), [1, 0, 1]);
    assert_eq!(eligible(0, 0, 101, [true; 3]), [1, 0, 0]);
    assert_eq!(eligible(0, 1, 50, [true; 3]), [0, 1, 0]);
    assert_eq!(eligible(1, 1, 50, [true; 3]), [0, 0, 0]);
    assert_eq!(eligible(1, 0, 50, [false, true, true]), [0, 0, 1]);
}

#[test]
fn only_cheaper_precisions_come_after_the_chosen_one() {
    let offer = lanes().offer(0, &engine([true; 3]));
    let choice = |precision, may_downgrade| Choice { precision, may_downgrade, reason: 0 };
    assert_eq!(offer.to_try(choice(1, true)), [1, 0]);
    assert_eq!(offer.to_try(choice(1, false)), [1]);
    assert_eq!(offer.to_try(choice(0, true)), [0]);
}

#[test]
fn tenants_are_counted_by_the_node() {
    let free = TenantBounds { max_waiting: None, max_running: None };
    let admission = Admission::new(8, &[free, free]);
    let mut running = admission.enter(millrace_core::TenantId(1)).unwrap();
    running.run();
    let _waiting = admission.enter(millrace_core::TenantId(1)).unwrap();
    let table = lanes().tenants(&admission, &EngineSnapshot::default());
    assert_eq!(table.column(kind::WEIGHT), Some(&[3, 1][..]));
    assert_eq!(table.column(kind::TIER), Some(&[2, 1][..]));
    assert_eq!(table.column(kind::TENANT_RUNNING), Some(&[0, 1][..]));
    assert_eq!(table.column(kind::TENANT_WAITING), Some(&[0, 1][..]));
}
