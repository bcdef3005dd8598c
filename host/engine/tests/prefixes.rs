//! The prefix tree in a whole engine: the same tokens with a hit as without, through chunks, hand-off, evictions and preemption;
//! nothing across scopes; pages back on every path. Pages have 16 tokens.

mod common;

use common::{Rig, Setup, Stream, expected};
use millrace_core::KvFormat;
use millrace_kv::{PrefixOptions, PrefixScope};

const SCOPE: Option<PrefixScope> = Some(PrefixScope([1; 32]));
const OTHER: Option<PrefixScope> = Some(PrefixScope([2; 32]));

fn caching(owner_pages: u32) -> Setup {
    Setup { prefixes: Some(PrefixOptions { owner_pages }), ..Setup::default() }
}

fn run(rig: &Rig, scope: Option<PrefixScope>, prompt: &[u32]) -> (Vec<u32>, u32) {
    finish(&rig.submit_in(scope, prompt, 12).unwrap())
}

fn finish(stream: &Stream) -> (Vec<u32>, u32) {
    let tokens = stream.finish().unwrap();
    (tokens, stream.cached_tokens.get().unwrap())
}

/// The fixture's 48 ids, and behind them others, so that all of these begin alike.
fn prompts(count: usize) -> Vec<Vec<u32>> {
    let ids = &expected().0;
    (0..count).map(|n| ids.iter().copied().chain(ids.iter().copied().skip(n % 40).take(n * 5 % 31)).collect()).collect()
}

#[test]
fn a_hit_gives_the_tokens_of_transformers_for_every_chunk() {
    let (ids, greedy) = expected();
    for chunk in [1, 7, 16, 48] {
        let rig = Rig::start(Setup { chunk, ..caching(u32::MAX) });
        assert_eq!(run(&rig, SCOPE, ids), (greedy.clone(), 0));
        let computed = || rig.engine.snapshot().pools[0].computed_tokens;
        let before = computed();
        assert_eq!(run(&rig, SCOPE, ids), (greedy.clone(), 32), "a prompt of three whole pages computes the last again");
        assert_eq!(computed() - before, 16);
        rig.wait_until_empty(0);
        let prefill = rig.engine.snapshot().pools[0].clone();
        assert_eq!((prefill.cached_pages, prefill.evictable_pages, prefill.free_pages), (3, 3, 61));
    }
}

/// Pages go over in another format; what was shared is only read.
#[test]
fn a_hit_survives_the_conversion_of_its_pages() {
    let prompt = &expected().0;
    let kv = [KvFormat::Bf16, KvFormat::Fp8];
    let alone = Rig::start(Setup { kv, ..Setup::default() }).generate(prompt, 12);
    let rig = Rig::start(Setup { kv, ..caching(u32::MAX) });
    for cached_tokens in [0, 32, 32] {
        assert_eq!(run(&rig, SCOPE, prompt), (alone.clone(), cached_tokens));
    }
}

/// The same prompt costs another scope as much as if nobody had sent it; its own scope shows that it was there.
#[test]
fn another_scope_computes_every_token() {
    let (ids, greedy) = expected();
    let rig = Rig::start(caching(u32::MAX));
    let computed = |scope| {
        let before = rig.engine.snapshot().pools[0].computed_tokens;
        let (tokens, cached_tokens) = run(&rig, scope, ids);
        assert_eq!(&tokens, greedy);
        (rig.engine.snapshot().pools[0].computed_tokens - before, cached_tokens)
    };
    assert_eq!([SCOPE, OTHER, None, SCOPE, OTHER, None].map(computed), [(48, 0), (48, 0), (48, 0), (16, 32), (16, 32), (48, 0)]);
}

#[test]
fn without_a_tree_a_scope_changes_nothing() {
    let (ids, greedy) = expected();
    let rig = Rig::start(Setup::default());
    for _ in 0..2 {
        assert_eq!(run(&rig, SCOPE, ids), (greedy.clone(), 0));
    }
    rig.wait_until_empty(0);
    assert_eq!(rig.engine.snapshot().pools[0].free_pages, 64);
}

/// So few pages that prompts evict each other's, and decode preempts: what comes back is prefilled from the tree.
#[test]
fn a_full_pool_changes_no_token() {
    let prompts = prompts(10);
    let alone: Vec<_> = {
        let rig = Rig::start(Setup::default());
        prompts.iter().map(|p| rig.generate(p, 60)).collect()
    };
    for owner_pages in [u32::MAX, 4, 0] {
        // The prompts' whole pages alone are 12, six in each scope, and each prompt has a page of its own behind them.
        let rig = Rig::start(Setup { pages: 12, ..caching(owner_pages) });
        let mut hits = 0;
        for round in 0..2 {
            let scope = |index: usize| [SCOPE, OTHER][(index + round) % 2];
            let streams: Vec<_> =
                prompts.iter().enumerate().map(|(index, p)| rig.submit_in(scope(index), p, 60).unwrap()).collect();
            for (stream, alone) in streams.iter().zip(&alone) {
                let (tokens, cached_tokens) = finish(stream);
                assert_eq!(&tokens, alone);
                hits += u32::from(cached_tokens > 0);
            }
        }
        let snapshot = rig.engine.snapshot();
        assert!(snapshot.counters.preemptions > 0, "the pool is small enough to preempt");
        let prefill = &snapshot.pools[0];
        assert!(prefill.cached_pages <= owner_pages);
        match owner_pages {
            u32::MAX => assert!(hits > 0 && prefill.evicted_pages > 0, "{hits} hits, {} evicted", prefill.evicted_pages),
            0 => assert_eq!((hits, prefill.evicted_pages), (0, 0)),
            _ => {}
        }
        rig.wait_until_empty(0);
    }
}

#[test]
fn aborts_at_any_time_give_all_pins_back() {
    let rig = Rig::start(Setup { pages: 40, chunk: 5, ..caching(u32::MAX) });
    let prompts = prompts(10);
    for round in 0..20 {
        let streams: Vec<_> = prompts.iter().map(|p| rig.submit_in(SCOPE, p, 100).unwrap()).collect();
        for (index, stream) in streams.iter().enumerate() {
            for _ in 0..(round * 7 + index) % 5 {
                let _ = stream.next();
            }
            rig.engine.abort(stream.seq);
        }
        rig.wait_until_empty(0);
        let prefill = rig.engine.snapshot().pools[0].clone();
        assert_eq!((prefill.free_pages + prefill.evictable_pages, prefill.evictable_pages), (40, prefill.cached_pages));
    }
    let (tokens, cached_tokens) = run(&rig, SCOPE, &expected().0);
    assert_eq!((&tokens, cached_tokens), (&expected().1, 32), "and it serves as before");
}
