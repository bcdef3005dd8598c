//! A small world around both schedulers for tests: a fake device whose pages really hold what was written, hand-offs,
//! clients that come and go, policies that obey or not. Knows no threads and no time but its own ticks.

mod bugs;
mod decode_rules;
mod device;
mod kept_rules;
mod policy;
mod prefill_rules;
mod prefix_resets;
mod prefix_rules;
mod random;
mod world;

use std::sync::Arc;

use millrace_core::{LaneId, RequestId, SeqId, TenantId};
use millrace_kv::{PagePool, PoolOptions, PrefixOptions, PrefixScope, ZeroFreed};

use crate::{Entry, StageLimits};

/// Knuth's 64-bit congruential generator; its high bits choose what happens.
pub(crate) struct Lcg(pub(crate) u64);

impl Lcg {
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(bound.max(1))) as u32
    }

    pub(crate) fn one_in(&mut self, bound: u32) -> bool {
        self.below(bound) == 0
    }
}

pub(crate) const PAGE_TOKENS: u32 = 4;

pub(crate) fn pool(pages: u32) -> PagePool {
    PagePool::new(PoolOptions { pages, page_tokens: PAGE_TOKENS, boot_nonce: 7, zero_freed: ZeroFreed::Zero }).unwrap()
}

/// With a prefix tree, of which each tenant may have so many pages.
pub(crate) fn caching_pool(pages: u32, owner_pages: u32) -> PagePool {
    let mut pool = pool(pages);
    pool.cache_prefixes(PrefixOptions { owner_pages });
    pool
}

pub(crate) fn limits() -> StageLimits {
    StageLimits {
        max_step_tokens: 16,
        max_step_us: None,
        max_sequences: 8,
        max_resident: 8,
        max_waiting: 16,
        max_context: 64,
        watermark_pages: 1,
        max_preemptions: 3,
        max_view_rows: 16,
        step_us_hint: 1000,
    }
}

/// A prompt in a scope that begins with so many tokens of a stem, which all of the same stem have in common.
pub(crate) fn stemmed(entry: Entry, scope: u8, stem: (u32, u32)) -> Entry {
    let (stem, shared) = stem;
    let common = (0..shared).map(|position| (stem * 17 + position * 5) % 50);
    let own = entry.prompt.iter().copied().skip(shared as usize);
    let prompt: Vec<u32> = common.chain(own).collect();
    Entry { prompt: prompt.into(), scope: Some(PrefixScope([scope; 32])), ..entry }
}

pub(crate) fn entry(seq: u64, prompt_tokens: u32, max_output: u32) -> Entry {
    let prompt: Vec<u32> = (0..prompt_tokens).map(|position| (seq as u32 * 31 + position * 7) % 50).collect();
    Entry {
        seq: SeqId(seq),
        request: RequestId(seq),
        tenant: TenantId(seq as u32 % 3),
        lane: LaneId(0),
        priority: 0,
        arrival_us: seq,
        deadline_us: None,
        prompt: prompt.into(),
        max_output,
        stop_tokens: Arc::from([]),
        replay: Vec::new(),
        preemptions: 0,
        scope: None,
    }
}
