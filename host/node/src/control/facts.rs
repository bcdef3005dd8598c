//! What an engine process says of itself: once what it is, then how it is.

use millrace_core::{LaneId, Precision, Stage, StagePrecision, StageRecipe};
use millrace_engine::{
    Counters, EngineSnapshot, LaneFacts, LaneSpeed, LinkFacts, PhaseTimes, PoolFacts, TenantFacts, TokenHistogram,
};
use millrace_ops::KvFormat;
use millrace_transfer::{CodecError, Decoder, Encoder, Incarnation};

use super::{MAX_NAME_BYTES, MAX_ROWS, incarnation, put_incarnation, unknown};

const MAX_LAYOUT_BYTES: usize = 8 << 10;
/// The two ends of a link.
const SENDS: &str = "sends";
const RECEIVES: &str = "receives";

/// An engine's pool once its model is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) incarnation: Incarnation,
    pub(crate) pages: u32,
    pub(crate) page_tokens: u32,
    /// Context of the model.
    pub(crate) max_tokens: u32,
    pub(crate) weight_bytes: u64,
    pub(crate) weights_digest: String,
    pub(crate) layout: String,
    /// What loading took.
    pub(crate) loading_us: u64,
}

impl Ready {
    pub(super) fn encode(&self, out: &mut Encoder) {
        put_incarnation(out, self.incarnation);
        out.u32(self.pages).u32(self.page_tokens).u32(self.max_tokens).u64(self.weight_bytes);
        out.text(&self.weights_digest).text(&self.layout).u64(self.loading_us);
    }

    pub(super) fn decode(from: &mut Decoder<'_>) -> Result<Self, CodecError> {
        Ok(Self {
            incarnation: incarnation(from)?,
            pages: from.u32("the pages")?,
            page_tokens: from.u32("page_tokens")?,
            max_tokens: from.u32("the context")?,
            weight_bytes: from.u64("the weights' size")?,
            weights_digest: from.text(MAX_NAME_BYTES, "the weights")?,
            layout: from.text(MAX_LAYOUT_BYTES, "the layout")?,
            loading_us: from.u64("the loading time")?,
        })
    }
}

pub(super) fn encode(snapshot: &EngineSnapshot, out: &mut Encoder) {
    let rows = |out: &mut Encoder, count: usize| {
        out.u32(u32::try_from(count).unwrap_or(u32::MAX));
    };
    rows(out, snapshot.lanes.len());
    snapshot.lanes.iter().for_each(|lane| put_lane(out, lane));
    rows(out, snapshot.pools.len());
    snapshot.pools.iter().for_each(|pool| put_pool(out, pool));
    rows(out, snapshot.tenants.len());
    for tenant in &snapshot.tenants {
        out.u32(tenant.waiting).u32(tenant.running).u64(tenant.tokens_served);
        out.u32(tenant.cached_pages).u32(tenant.page_quota);
    }
    rows(out, snapshot.links.len());
    snapshot.links.iter().for_each(|link| put_link(out, link));
    counters(&snapshot.counters).into_iter().for_each(|count| {
        out.u64(count);
    });
    rows(out, snapshot.step_tokens.counts().len());
    snapshot.step_tokens.counts().iter().for_each(|&count| {
        out.u64(count);
    });
    out.u64(snapshot.step_tokens.sum()).u64(snapshot.taken_us);
}

pub(super) fn decode(from: &mut Decoder<'_>) -> Result<EngineSnapshot, CodecError> {
    let lanes = from.count(MAX_ROWS, 52, "the lanes")?;
    let lanes = (0..lanes).map(|_| lane(from)).collect::<Result<_, _>>()?;
    let pools = from.count(MAX_ROWS, 100, "the pools")?;
    let pools = (0..pools).map(|_| pool(from)).collect::<Result<_, _>>()?;
    let tenants = from.count(MAX_ROWS, 24, "the tenants")?;
    let tenant = |from: &mut Decoder<'_>| {
        let what = "a tenant";
        Ok(TenantFacts {
            waiting: from.u32(what)?,
            running: from.u32(what)?,
            tokens_served: from.u64(what)?,
            cached_pages: from.u32(what)?,
            page_quota: from.u32(what)?,
        })
    };
    let tenants = (0..tenants).map(|_| tenant(from)).collect::<Result<_, CodecError>>()?;
    let links = from.count(MAX_ROWS, 40, "the links")?;
    let links = (0..links).map(|_| link(from)).collect::<Result<_, _>>()?;
    let mut counts = [0; 12];
    for count in &mut counts {
        *count = from.u64("a counter")?;
    }
    let buckets = from.count(64, 8, "the histogram")?;
    let buckets: Vec<u64> = (0..buckets).map(|_| from.u64("the histogram")).collect::<Result<_, _>>()?;
    let step_tokens = TokenHistogram::of(&buckets, from.u64("the histogram")?);
    let taken_us = from.u64("the time")?;
    Ok(EngineSnapshot { lanes, pools, tenants, links, counters: counters_of(counts), step_tokens, taken_us })
}

fn counters(counters: &Counters) -> [u64; 12] {
    let Counters {
        prompt_tokens,
        output_tokens,
        finished,
        aborted,
        failed,
        preemptions,
        tag_checks,
        page_mismatches,
        not_finite,
        hand_offs,
        hand_off_pages,
        hand_offs_aborted,
    } = *counters;
    [
        prompt_tokens,
        output_tokens,
        finished,
        aborted,
        failed,
        preemptions,
        tag_checks,
        page_mismatches,
        not_finite,
        hand_offs,
        hand_off_pages,
        hand_offs_aborted,
    ]
}

fn counters_of(counts: [u64; 12]) -> Counters {
    let [
        prompt_tokens,
        output_tokens,
        finished,
        aborted,
        failed,
        preemptions,
        tag_checks,
        page_mismatches,
        not_finite,
        hand_offs,
        hand_off_pages,
        hand_offs_aborted,
    ] = counts;
    Counters {
        prompt_tokens,
        output_tokens,
        finished,
        aborted,
        failed,
        preemptions,
        tag_checks,
        page_mismatches,
        not_finite,
        hand_offs,
        hand_off_pages,
        hand_offs_aborted,
    }
}

/// All counters of several engines together.
pub(crate) fn add(to: &mut Counters, more: &Counters) {
    let mut sums = counters(to);
    sums.iter_mut().zip(counters(more)).for_each(|(sum, count)| *sum = sum.saturating_add(count));
    *to = counters_of(sums);
}

fn put_lane(out: &mut Encoder, lane: &LaneFacts) {
    out.text(&lane.name).u32(lane.waiting).u32(lane.running).u32(lane.kv_used_per_mille).u32(lane.free_pages);
    out.u32(lane.total_pages).u32(lane.ttft_us).u32(lane.itl_us).u8(u8::from(lane.healthy));
    let LaneSpeed { prefill_tokens_per_s, decode_tokens_per_s, decode_step_us } = lane.speed;
    out.u32(prefill_tokens_per_s).u32(decode_tokens_per_s).u32(decode_step_us);
}

/// Number and precision are the node's to fill in: it has the same configuration.
fn lane(from: &mut Decoder<'_>) -> Result<LaneFacts, CodecError> {
    let none = StagePrecision { recipe: StageRecipe::Stored, kv: KvFormat::Bf16 };
    let name = from.text(MAX_NAME_BYTES, "a lane")?;
    let mut number = || from.u32("a lane");
    let (waiting, running, kv_used_per_mille) = (number()?, number()?, number()?);
    let (free_pages, total_pages, ttft_us, itl_us) = (number()?, number()?, number()?, number()?);
    let (lane, precision) = (LaneId(0), Precision { prefill: none, decode: none });
    let healthy = from.flag("a lane")?;
    let mut number = || from.u32("a lane");
    let speed = LaneSpeed { prefill_tokens_per_s: number()?, decode_tokens_per_s: number()?, decode_step_us: number()? };
    Ok(LaneFacts {
        lane,
        name,
        precision,
        waiting,
        running,
        kv_used_per_mille,
        free_pages,
        total_pages,
        ttft_us,
        itl_us,
        speed,
        healthy,
    })
}

fn put_pool(out: &mut Encoder, pool: &PoolFacts) {
    out.text(&pool.name).u8(u8::from(pool.stage == Stage::Decode));
    for pages in [pool.total_pages, pool.free_pages, pool.quarantined_pages, pool.pinned_pages, pool.evictable_pages] {
        out.u32(pages);
    }
    out.u32(pool.suspect_pages).u32(pool.cached_pages).u64(pool.evicted_pages).u64(pool.computed_tokens);
    out.u64(pool.prefix_queried_tokens).u64(pool.prefix_hit_tokens).u64(pool.page_bytes as u64).u64(pool.steps);
    out.u64(pool.plans_reused).u32(pool.step_us);
    let PhaseTimes { device_us, notice_us, commit_us, plan_us, policy_us, launch_us } = pool.phases;
    for us in [device_us, notice_us, commit_us, plan_us, policy_us, launch_us] {
        out.u64(us);
    }
    out.u32(pool.last_rows).u8(u8::from(pool.healthy));
}

fn pool(from: &mut Decoder<'_>) -> Result<PoolFacts, CodecError> {
    let name = from.text(MAX_NAME_BYTES, "a pool")?;
    let stage = match from.u8("a pool's stage")? {
        0 => Stage::Prefill,
        1 => Stage::Decode,
        other => return unknown("a pool's stage", other),
    };
    let what = "a pool";
    Ok(PoolFacts {
        name,
        stage,
        total_pages: from.u32(what)?,
        free_pages: from.u32(what)?,
        quarantined_pages: from.u32(what)?,
        pinned_pages: from.u32(what)?,
        evictable_pages: from.u32(what)?,
        suspect_pages: from.u32(what)?,
        cached_pages: from.u32(what)?,
        evicted_pages: from.u64(what)?,
        computed_tokens: from.u64(what)?,
        prefix_queried_tokens: from.u64(what)?,
        prefix_hit_tokens: from.u64(what)?,
        page_bytes: usize::try_from(from.u64(what)?).unwrap_or(usize::MAX),
        steps: from.u64(what)?,
        plans_reused: from.u64(what)?,
        step_us: from.u32(what)?,
        phases: PhaseTimes {
            device_us: from.u64(what)?,
            notice_us: from.u64(what)?,
            commit_us: from.u64(what)?,
            plan_us: from.u64(what)?,
            policy_us: from.u64(what)?,
            launch_us: from.u64(what)?,
        },
        last_rows: from.u32(what)?,
        healthy: from.flag(what)?,
    })
}

fn put_link(out: &mut Encoder, link: &LinkFacts) {
    out.text(&link.lane)
        .u8(u8::from(link.end == SENDS))
        .u8(u8::from(link.connected))
        .text(link.peer.as_deref().unwrap_or_default())
        .u64(link.open as u64);
    out.u64(link.pages).u64(link.sent_bytes).u64(link.received_bytes).u64(link.connections).u64(link.stale_messages);
}

fn link(from: &mut Decoder<'_>) -> Result<LinkFacts, CodecError> {
    let what = "a link";
    let (lane, sends, connected) = (from.text(MAX_NAME_BYTES, what)?, from.flag(what)?, from.flag(what)?);
    let peer = Some(from.text(MAX_NAME_BYTES, what)?).filter(|peer| !peer.is_empty());
    Ok(LinkFacts {
        lane,
        end: if sends { SENDS } else { RECEIVES },
        connected,
        peer,
        open: usize::try_from(from.u64(what)?).unwrap_or(usize::MAX),
        pages: from.u64(what)?,
        sent_bytes: from.u64(what)?,
        received_bytes: from.u64(what)?,
        connections: from.u64(what)?,
        stale_messages: from.u64(what)?,
    })
}
