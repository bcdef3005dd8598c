//! What kept prompts save and take: families of the prefix cache. Knows only what pools say of themselves.

use millrace_engine::PoolFacts;

use super::exposition::{Exposition, Labels};

/// Over all pools, as vLLM's are over its one engine.
pub(super) fn tokens(out: &mut Exposition, pools: &[PoolFacts], model: Labels<'_>) {
    let sum = |tokens: fn(&PoolFacts) -> u64| pools.iter().map(tokens).fold(0, u64::saturating_add);
    let (queried, hit) = (sum(|pool| pool.prefix_queried_tokens), sum(|pool| pool.prefix_hit_tokens));
    out.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", model, queried);
    out.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", model, hit);
}

pub(super) fn pages(out: &mut Exposition, pools: &[PoolFacts]) {
    out.family("millrace_prefix_cached_pages", "gauge", "Pages kept for prompts that begin alike, in use or not.");
    for pool in pools {
        out.sample("millrace_prefix_cached_pages", &[("pool", &pool.name)], f64::from(pool.cached_pages));
    }
    out.family("millrace_prefix_evicted_pages_total", "counter", "Kept pages that were given up to make room.");
    for pool in pools {
        out.sample("millrace_prefix_evicted_pages_total", &[("pool", &pool.name)], pool.evicted_pages as f64);
    }
    out.family("millrace_computed_tokens_total", "counter", "Input tokens of a pool's steps.");
    for pool in pools {
        out.sample("millrace_computed_tokens_total", &[("pool", &pool.name)], pool.computed_tokens as f64);
    }
}
