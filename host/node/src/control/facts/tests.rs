//! What an engine process says of itself arrives as it was said, every field of it: each has a value of its own here.

use millrace_core::Stage;

use super::*;

pub(crate) fn ready() -> Ready {
    Ready {
        incarnation: Incarnation { epoch: 1, boot: 2 },
        deployed: "d".into(),
        pages: 3,
        page_tokens: 4,
        max_tokens: 5,
        weight_bytes: 6,
        weights_digest: "w".into(),
        layout: Layout("l".repeat(MAX_LAYOUT_BYTES)),
        loading_us: 7,
    }
}

fn pool(stage: Stage) -> PoolFacts {
    PoolFacts {
        name: "pool".into(),
        stage,
        total_pages: 10,
        free_pages: 11,
        quarantined_pages: 12,
        pinned_pages: 13,
        evictable_pages: 14,
        suspect_pages: 15,
        cached_pages: 16,
        evicted_pages: 17,
        computed_tokens: 18,
        prefix_queried_tokens: 19,
        prefix_hit_tokens: 20,
        page_bytes: 21,
        steps: 22,
        plans_reused: 23,
        step_us: 24,
        phases: PhaseTimes { device_us: 25, notice_us: 26, commit_us: 27, plan_us: 28, policy_us: 29, launch_us: 30 },
        last_rows: 31,
        healthy: true,
    }
}

pub(crate) fn lane(name: &str) -> LaneFacts {
    LaneFacts {
        lane: NO_LANE,
        name: name.into(),
        precision: NO_PRECISION,
        waiting: 40,
        running: 41,
        kv_used_per_mille: 42,
        free_pages: 43,
        total_pages: 44,
        ttft_us: 45,
        itl_us: 46,
        speed: LaneSpeed { prefill_tokens_per_s: 47, decode_tokens_per_s: 48, decode_step_us: 49 },
        healthy: true,
    }
}

fn link(end: &'static str, peer: Option<&str>) -> LinkFacts {
    LinkFacts {
        lane: "lane".into(),
        end,
        connected: true,
        peer: peer.map(ToOwned::to_owned),
        open: 50,
        pages: 51,
        sent_bytes: 52,
        received_bytes: 53,
        connections: 54,
        stale_messages: 55,
    }
}

fn counts() -> Counters {
    Counters {
        prompt_tokens: 60,
        output_tokens: 61,
        finished: 62,
        aborted: 63,
        failed: 64,
        preemptions: 65,
        tag_checks: 66,
        page_mismatches: 67,
        not_finite: 68,
        hand_offs: 69,
        hand_off_pages: 70,
        hand_offs_aborted: 71,
    }
}

fn snapshot() -> EngineSnapshot {
    let buckets: Vec<u64> = (80..94).collect();
    EngineSnapshot {
        lanes: vec![lane("a"), lane("b")],
        pools: vec![pool(Stage::Prefill), pool(Stage::Decode)],
        tenants: vec![TenantFacts { waiting: 95, running: 96, tokens_served: 97, cached_pages: 56, page_quota: 57 }],
        links: vec![link(SENDS, Some("1:2")), link(RECEIVES, None)],
        counters: counts(),
        step_tokens: TokenHistogram::of(&buckets, 98),
        taken_us: 99,
    }
}

fn bytes<T: Value>(value: &T) -> Vec<u8> {
    let mut out = Encoder::default();
    value.put(&mut out);
    out.finish()
}

fn read<T: Value>(bytes: &[u8]) -> Result<T, CodecError> {
    let mut from = Decoder::new(bytes);
    let value = T::get(&mut from, "it")?;
    from.finish().map(|()| value)
}

#[test]
fn everything_arrives_as_it_was_said_and_nothing_that_is_cut() {
    let said = bytes(&snapshot());
    assert_eq!(format!("{:?}", read::<EngineSnapshot>(&said).unwrap()), format!("{:?}", snapshot()));
    (0..said.len()).for_each(|length| assert!(read::<EngineSnapshot>(&said[..length]).is_err(), "{length}"));
    let said = bytes(&ready());
    assert_eq!(read::<Ready>(&said), Ok(ready()));
    (0..said.len()).for_each(|length| assert!(read::<Ready>(&said[..length]).is_err(), "{length}"));
}

#[test]
fn what_is_longer_than_it_may_be_is_refused() {
    let layout = Layout("l".repeat(MAX_LAYOUT_BYTES + 1));
    assert_eq!(read::<Layout>(&bytes(&layout)), Err(CodecError::Long("it")));
    let name = "n".repeat(super::super::MAX_NAME_BYTES + 1);
    assert_eq!(read::<String>(&bytes(&name)), Err(CodecError::Long("it")));
    let mut rows = Encoder::default();
    rows.u32(super::super::MAX_ROWS as u32 + 1);
    assert_eq!(read::<Vec<u64>>(&rows.finish()), Err(CodecError::Long("it")));
    let mut rows = Encoder::default();
    rows.u32(super::super::MAX_ROWS as u32);
    assert_eq!(read::<Vec<u64>>(&rows.finish()), Err(CodecError::Short("it")), "more rows than there are bytes for");
}

#[test]
fn every_counter_is_added() {
    let mut sum = counts();
    add(&mut sum, &counts());
    let numbers = |counters: &Counters| -> Vec<u64> {
        bytes(counters).chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    let doubled: Vec<u64> = (60..72).map(|count| 2 * count).collect();
    assert_eq!(numbers(&sum), doubled);
    assert_eq!(sum.hand_offs_aborted, 142);
}

#[test]
fn two_lives_differ_in_what_their_pool_is() {
    let other_life = Ready { incarnation: Incarnation { epoch: 9, boot: 9 }, loading_us: 9, ..ready() };
    assert_eq!(ready().differs(&other_life), None);
    let others = [
        Ready { deployed: "e".into(), ..ready() },
        Ready { pages: 9, ..ready() },
        Ready { page_tokens: 9, ..ready() },
        Ready { max_tokens: 9, ..ready() },
        Ready { weight_bytes: 9, ..ready() },
        Ready { weights_digest: "9".into(), ..ready() },
        Ready { layout: Layout("9".into()), ..ready() },
    ];
    for other in others {
        assert!(ready().differs(&other).is_some_and(|what| what.contains(" and was ")), "{other:?}");
    }
}
