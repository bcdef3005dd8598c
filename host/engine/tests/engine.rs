//! The engine as a whole: right tokens through chunks, hand-off and batches; pages back on every path; a stolen page stops one
//! sequence alone. On the strict backend, so that nothing in the host relies on looking into device memory or on ops having run.

mod common;

use std::time::Duration;

use common::{Rig, Setup, expected};
use millrace_core::{KvFormat, PoolId};
use millrace_engine::{Hold, JobError, SubmitError, TagChecks};

/// Different prompts out of the fixture's ids.
fn prompts(count: usize) -> Vec<Vec<u32>> {
    let ids = &expected().0;
    (0..count).map(|n| ids.iter().cycle().skip(n * 5).take(9 + n * 4 % 37).copied().collect()).collect()
}

#[test]
fn greedy_tokens_are_those_of_transformers_for_every_chunk() {
    let (ids, greedy) = expected();
    for chunk in [1, 7, 16, 48] {
        let rig = Rig::start(Setup { chunk, ..Setup::default() });
        assert_eq!(&rig.generate(ids, 12), greedy, "chunk {chunk}");
        rig.wait_until_empty(0);
    }
}

/// 48 prompt tokens in chunks of 7 take seven steps, the last of 6; the first token is prefill's, so eleven steps of one row follow.
#[test]
fn steps_are_counted_by_their_tokens() {
    let (ids, _) = expected();
    assert_eq!(ids.len(), 48);
    let rig = Rig::start(Setup { chunk: 7, ..Setup::default() });
    rig.generate(ids, 12);
    rig.wait_until_empty(0);
    let steps = rig.engine.snapshot().step_tokens;
    assert_eq!(steps.counts(), [11, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(steps.sum(), 11 + 48);
}

#[test]
fn a_sequence_does_not_care_who_shares_its_batch() {
    let rig = Rig::start(Setup::default());
    let prompts = prompts(12);
    let alone: Vec<_> = prompts.iter().map(|p| rig.generate(p, 20)).collect();
    let streams: Vec<_> = prompts.iter().map(|p| rig.submit(p, 20).unwrap()).collect();
    let together: Vec<_> = streams.iter().map(|s| s.finish().unwrap()).collect();
    assert_eq!(together, alone);
    rig.wait_until_empty(0);
}

#[test]
fn a_held_pool_takes_sequences_and_runs_none_until_it_is_free() {
    let rig = Rig::start(Setup::default());
    let prompts = prompts(6);
    let alone: Vec<_> = prompts.iter().map(|p| rig.generate(p, 9)).collect();
    rig.wait_until_empty(0);
    let before = rig.engine.snapshot();
    rig.engine.hold(PoolId(1), Hold::Held);
    let streams: Vec<_> = prompts.iter().map(|p| rig.submit(p, 9).unwrap()).collect();
    let first: Vec<_> = streams.iter().map(|s| s.next().unwrap()).collect();
    rig.wait_until("all are handed off", |now| now.counters.hand_offs == before.counters.hand_offs + 6);
    // Long enough for many of the driver's looks.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(rig.engine.snapshot().pools[1].steps, before.pools[1].steps);
    rig.engine.hold(PoolId(1), Hold::Free);
    let rest: Vec<_> = streams.iter().map(|s| s.finish().unwrap()).collect();
    let together: Vec<Vec<u32>> = first.iter().zip(&rest).map(|(first, rest)| [&[*first], rest.as_slice()].concat()).collect();
    assert_eq!(together, alone);
    let steps = rig.engine.snapshot().pools[1].steps - before.pools[1].steps;
    assert_eq!(steps, 8, "every step ran all of them");
    rig.wait_until_empty(0);
}

#[test]
fn preempted_sequences_give_the_same_tokens() {
    let prompts = prompts(8);
    let alone: Vec<_> = {
        let rig = Rig::start(Setup::default());
        prompts.iter().map(|p| rig.generate(p, 60)).collect()
    };
    // Each needs up to 7 pages, all of them 50; there are 16.
    let rig = Rig::start(Setup { pages: 16, ..Setup::default() });
    let streams: Vec<_> = prompts.iter().map(|p| rig.submit(p, 60).unwrap()).collect();
    let together: Vec<_> = streams.iter().map(|s| s.finish().unwrap()).collect();
    assert_eq!(together, alone);
    assert!(rig.engine.snapshot().counters.preemptions > 0, "the pool is small enough to preempt");
    rig.wait_until_empty(0);
}

#[test]
fn the_hand_off_converts_pages() {
    let prompt = &expected().0;
    let same = Rig::start(Setup { kv: [KvFormat::Bf16; 2], ..Setup::default() }).generate(prompt, 12);
    let narrowed = Rig::start(Setup { kv: [KvFormat::F32, KvFormat::Bf16], ..Setup::default() }).generate(prompt, 12);
    let fp8 = Rig::start(Setup { kv: [KvFormat::Bf16, KvFormat::Fp8], ..Setup::default() }).generate(prompt, 12);
    // The first token is prefill's own; later ones may differ by what the formats round away, but they are tokens.
    assert_eq!(same[0], fp8[0]);
    assert_eq!(narrowed.len(), 12);
    assert_eq!(fp8.len(), 12);
}

#[test]
fn aborts_at_any_time_give_all_pages_back() {
    let rig = Rig::start(Setup { pages: 40, chunk: 5, ..Setup::default() });
    let prompts = prompts(10);
    for round in 0..30 {
        let streams: Vec<_> = prompts.iter().map(|p| rig.submit(p, 200).unwrap()).collect();
        for (index, stream) in streams.iter().enumerate() {
            // Some before their first step, some in prefill or hand-off, some in decode.
            for _ in 0..(round * 7 + index) % 5 {
                let _ = stream.next();
            }
            rig.engine.abort(stream.seq);
            rig.engine.abort(stream.seq);
        }
        rig.wait_until_empty(0);
    }
    assert_eq!(&rig.generate(&expected().0, 12), &expected().1, "and it serves as before");
}

#[test]
#[cfg(feature = "tags")]
fn a_stolen_page_stops_that_sequence_alone() {
    let rig = Rig::start(Setup::default());
    let prompts = prompts(5);
    let alone: Vec<_> = prompts.iter().map(|p| rig.generate(p, 100)).collect();
    let streams: Vec<_> = prompts.iter().map(|p| rig.submit(p, 100).unwrap()).collect();
    let mut published = Vec::new();
    for _ in 0..10 {
        published.push(streams[2].next().unwrap());
    }
    rig.engine.steal_page(streams[2].seq).unwrap();
    loop {
        match streams[2].next() {
            Ok(token) => published.push(token),
            Err(end) => {
                assert_eq!(end, Err(JobError::PageMismatch));
                break;
            }
        }
    }
    assert_eq!(published[..], alone[2][..published.len()], "nothing wrong was published before the end");
    assert!(published.len() < 100);
    for index in [0, 1, 3, 4] {
        assert_eq!(streams[index].finish().unwrap(), alone[index], "neighbour {index}");
    }
    assert_eq!(rig.engine.snapshot().counters.page_mismatches, 1);
    // The stolen page rests under suspicion until somebody takes it back into use.
    rig.wait_until_empty(1);
    let decode = || rig.engine.snapshot().pools[1].clone();
    assert_eq!((decode().suspect_pages, decode().quarantined_pages, decode().free_pages), (1, 1, 63));
    assert_eq!(rig.engine.readmit(PoolId(0)), Ok(0), "none in the prefill pool");
    assert_eq!(rig.engine.readmit(PoolId(2)), Err(millrace_engine::ReadmitError::UnknownPool(PoolId(2))));
    assert_eq!(rig.engine.readmit(PoolId(1)), Ok(1));
    rig.wait_until_empty(0);
    assert_eq!((decode().suspect_pages, decode().free_pages), (0, 64));
    assert_eq!(rig.engine.readmit(PoolId(1)), Ok(0));
    assert_eq!(rig.generate(&prompts[2], 100), alone[2], "and it serves as before");
}

/// In a build without tags nothing may believe to be protected.
#[test]
#[cfg(not(feature = "tags"))]
fn without_tags_a_pool_that_asks_for_checks_does_not_start() {
    let panic = std::panic::catch_unwind(|| Rig::start(Setup { tag_checks: TagChecks::On, ..Setup::default() })).err();
    let told = panic.and_then(|panic| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    assert!(told.contains("NoTags"), "{told}");
}

#[test]
fn without_tag_checks_a_stolen_page_goes_unnoticed() {
    // The pair of the test above: it shows that the check is what catches the theft.
    let rig = Rig::start(Setup { tag_checks: TagChecks::Off, ..Setup::default() });
    let stream = rig.submit(&prompts(1)[0], 100).unwrap();
    for _ in 0..10 {
        stream.next().unwrap();
    }
    rig.engine.steal_page(stream.seq).unwrap();
    let end = stream.finish();
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(rig.engine.snapshot().counters.page_mismatches, 0);
}

#[test]
fn the_queue_is_bounded_and_says_when_to_come_back() {
    let rig = Rig::start(Setup { max_waiting: 3, pages: 16, chunk: 1, ..Setup::default() });
    let prompt = &expected().0;
    let mut accepted = Vec::new();
    let refusal = loop {
        match rig.submit(prompt, 4) {
            Ok(stream) => accepted.push(stream),
            Err(refusal) => break refusal,
        }
        assert!(accepted.len() < 100, "the queue has a bound");
    };
    assert!(
        matches!(&refusal, SubmitError::QueueFull { lane, retry_after_ms, .. } if lane == "only" && *retry_after_ms >= 1_000),
        "{refusal}"
    );
    for stream in accepted {
        assert_eq!(stream.finish().unwrap().len(), 4);
    }
    rig.wait_until_empty(0);
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let rig = Rig::start(Setup { pages: 4, ..Setup::default() });
    let long = vec![1; 64];
    assert!(matches!(rig.submit(&long, 1), Err(SubmitError::TooLong { needed: 65, limit: 64, .. })));
    assert!(matches!(rig.submit(&[], 1), Err(SubmitError::EmptyPrompt)));
}

#[test]
fn draining_finishes_what_runs_and_takes_nothing_new() {
    let rig = Rig::start(Setup::default());
    let stream = rig.submit(&expected().0, 12).unwrap();
    rig.engine.drain();
    assert!(matches!(rig.submit(&[1, 2, 3], 1), Err(SubmitError::ShuttingDown)));
    assert_eq!(stream.finish().unwrap(), expected().1);
}

#[test]
fn stopping_tells_every_sequence() {
    let rig = Rig::start(Setup::default());
    let stream = rig.submit(&expected().0, 200).unwrap();
    stream.next().unwrap();
    rig.engine.stop();
    assert_eq!(stream.finish(), Err(JobError::ShuttingDown));
}
