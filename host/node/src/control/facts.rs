//! What an engine process says of itself: once what it is, then how it is.

use millrace_core::{LaneId, Precision, StagePrecision, StageRecipe};
use millrace_engine::{
    Counters, EngineSnapshot, LaneFacts, LaneSpeed, LinkFacts, PhaseTimes, PoolFacts, TenantFacts, TokenHistogram,
};
use millrace_ops::KvFormat;
use millrace_transfer::{CodecError, Decoder, Encoder, Incarnation};

use super::record::{Value, record};
use super::unknown;

const MAX_LAYOUT_BYTES: usize = 8 << 10;
/// Of a histogram; more than any has.
const MAX_BUCKETS: usize = 64;
/// The two ends of a link.
const SENDS: &str = "sends";
const RECEIVES: &str = "receives";
/// Number and precision of a lane are the node's to fill in: it has the same configuration.
const NO_LANE: LaneId = LaneId(0);
const NO_STAGE: StagePrecision = StagePrecision { recipe: StageRecipe::Stored, kv: KvFormat::Bf16 };
const NO_PRECISION: Precision = Precision { prefill: NO_STAGE, decode: NO_STAGE };

/// An engine's pool once its model is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) incarnation: Incarnation,
    /// What of the deployment it runs, as [`crate::deployed`] tells.
    pub(crate) deployed: String,
    pub(crate) pages: u32,
    pub(crate) page_tokens: u32,
    /// Context of the model.
    pub(crate) max_tokens: u32,
    pub(crate) weight_bytes: u64,
    pub(crate) weights_digest: String,
    pub(crate) layout: Layout,
    /// What loading took.
    pub(crate) loading_us: u64,
}

/// The id of a page layout, which is longer than a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout(pub(crate) String);

impl Ready {
    /// What this life's pool is and a later one's is not, in words. Lives and loading times always differ.
    pub(crate) fn differs(&self, later: &Self) -> Option<String> {
        let Self {
            incarnation: _,
            deployed,
            pages,
            page_tokens,
            max_tokens,
            weight_bytes,
            weights_digest,
            layout,
            loading_us: _,
        } = self;
        let number = |what: &str, was: u64, is: u64| (was != is).then(|| format!("{what} is {is} and was {was}"));
        let text = |what: &str, was: &str, is: &str| (was != is).then(|| format!("{what} is `{is}` and was `{was}`"));
        text("what it runs of the deployment", deployed, &later.deployed)
            .or_else(|| text("the digest of its weights", weights_digest, &later.weights_digest))
            .or_else(|| text("its page layout", &layout.0, &later.layout.0))
            .or_else(|| number("its number of pages", u64::from(*pages), u64::from(later.pages)))
            .or_else(|| number("its page_tokens", u64::from(*page_tokens), u64::from(later.page_tokens)))
            .or_else(|| number("its context", u64::from(*max_tokens), u64::from(later.max_tokens)))
            .or_else(|| number("the size of its weights", *weight_bytes, later.weight_bytes))
    }
}

/// A list of counters that is used more than once.
macro_rules! counters {
    ($with:ident) => {
        $with!(Counters {
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
        });
    };
}

macro_rules! sum {
    ($Type:ident { $($field:ident),+ $(,)? }) => {
        /// All counters of several engines together.
        pub(crate) fn add(to: &mut $Type, more: &$Type) {
            let $Type { $($field),+ } = more;
            $(to.$field = to.$field.saturating_add(*$field);)+
        }
    };
}

counters!(record);
counters!(sum);
record!(Ready { incarnation, deployed, pages, page_tokens, max_tokens, weight_bytes, weights_digest, layout, loading_us });
record!(EngineSnapshot { lanes, pools, tenants, links, counters, step_tokens, taken_us });
record!(TenantFacts { waiting, running, tokens_served, cached_pages, page_quota });
record!(LaneSpeed { prefill_tokens_per_s, decode_tokens_per_s, decode_step_us });
record!(PhaseTimes { device_us, notice_us, commit_us, plan_us, policy_us, launch_us });
record!(LinkFacts { lane, end, connected, peer, open, pages, sent_bytes, received_bytes, connections, stale_messages });
record!(LaneFacts { name, waiting, running, kv_used_per_mille, free_pages, total_pages, ttft_us, itl_us, speed, healthy } without {
    lane: NO_LANE,
    precision: NO_PRECISION
});
record!(PoolFacts {
    name,
    stage,
    total_pages,
    free_pages,
    quarantined_pages,
    pinned_pages,
    evictable_pages,
    suspect_pages,
    cached_pages,
    evicted_pages,
    computed_tokens,
    prefix_queried_tokens,
    prefix_hit_tokens,
    page_bytes,
    steps,
    plans_reused,
    step_us,
    phases,
    last_rows,
    healthy,
});

impl Value for Layout {
    fn put(&self, out: &mut Encoder) {
        out.text(&self.0);
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        from.text(MAX_LAYOUT_BYTES, what).map(Self)
    }
}

/// Which end of a link it is.
impl Value for &'static str {
    fn put(&self, out: &mut Encoder) {
        out.u8(u8::from(*self == SENDS));
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        match from.u8(what)? {
            0 => Ok(RECEIVES),
            1 => Ok(SENDS),
            other => unknown(what, other),
        }
    }
}

impl Value for TokenHistogram {
    fn put(&self, out: &mut Encoder) {
        out.u32(u32::try_from(self.counts().len()).unwrap_or(u32::MAX));
        self.counts().iter().for_each(|count| count.put(out));
        self.sum().put(out);
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        let buckets = from.count(MAX_BUCKETS, size_of::<u64>(), what)?;
        let buckets: Vec<u64> = (0..buckets).map(|_| from.u64(what)).collect::<Result<_, _>>()?;
        Ok(Self::of(&buckets, from.u64(what)?))
    }
}

#[cfg(test)]
pub(crate) mod tests;
