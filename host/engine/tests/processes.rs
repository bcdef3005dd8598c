//! A lane whose two pools share nothing but a TCP connection: same tokens as in one process, no page lost, whatever breaks.

mod common;

use std::time::{Duration, Instant};

use common::pair::{Pair, Told};
use common::{PATIENCE, Rig, Setup, expected};
use millrace_core::KvFormat;
use millrace_engine::{Event, JobError};

fn setup() -> Setup {
    Setup { kv: [KvFormat::Bf16, KvFormat::Fp8], ..Setup::default() }
}

/// Prompts of one page and of several, beginning somewhere in the fixture's.
fn prompts() -> Vec<Vec<u32>> {
    let (prompt, _) = expected();
    (1..9).map(|n| prompt.iter().cycle().skip(n).take(7 * n).copied().collect()).collect()
}

#[test]
fn two_processes_say_what_one_says() {
    for kv in [[KvFormat::F32; 2], [KvFormat::Bf16; 2], [KvFormat::Bf16, KvFormat::Fp8]] {
        let setup = Setup { kv, ..Setup::default() };
        let (one, pair) = (Rig::start(setup), Pair::start(setup));
        let streams: Vec<_> = prompts().iter().map(|prompt| pair.submit(prompt, 24)).collect();
        for (prompt, (seq, events)) in prompts().iter().zip(streams) {
            assert_eq!(pair.end_in_decode(seq), one.generate(prompt, 24), "{kv:?}");
            let told: Vec<Told> = events.iter().collect();
            assert!(
                matches!(told[..], [Told::Event(Event::Prefilled { .. }), Told::Event(Event::Token(_)), Told::HandedOver]),
                "{told:?}"
            );
        }
        pair.wait_until_empty();
    }
}

#[test]
fn a_connection_that_breaks_costs_nothing() {
    let (one, pair) = (Rig::start(setup()), Pair::start(setup()));
    for round in 0..6 {
        let streams: Vec<_> = prompts().iter().map(|prompt| pair.submit(prompt, 16)).collect();
        for _ in 0..round {
            std::thread::sleep(Duration::from_millis(7 * round));
            pair.disconnect();
        }
        for (prompt, (seq, _events)) in prompts().iter().zip(streams) {
            assert_eq!(pair.end_in_decode(seq), one.generate(prompt, 16));
        }
    }
    pair.wait_until_empty();
}

/// What runs in decode dies with it; what is on its way there goes to its next life.
#[test]
fn a_decode_process_that_dies_takes_only_what_it_ran() {
    let (one, mut pair) = (Rig::start(setup()), Pair::start(setup()));
    for round in 0..5 {
        let streams: Vec<_> = prompts().iter().map(|prompt| pair.submit(prompt, 40)).collect();
        std::thread::sleep(Duration::from_millis(15 * round));
        pair.replace_decode();
        for (prompt, (seq, events)) in prompts().iter().zip(streams) {
            let lost = || {
                matches!(
                    pair.heard.lock().unwrap().get(&seq).and_then(|told| told.last()),
                    Some(Told::Event(Event::Failed(JobError::ShuttingDown)))
                )
            };
            let deadline = Instant::now() + PATIENCE;
            loop {
                let handed_over = events.try_iter().any(|told| told == Told::HandedOver);
                if handed_over {
                    break;
                }
                assert!(Instant::now() < deadline, "sequence {seq} stays in prefill");
                std::thread::sleep(Duration::from_millis(2));
            }
            let tokens = pair.end_in_decode(seq);
            if !lost() {
                let whole = one.generate(prompt, 40);
                assert!(tokens.ends_with(&whole), "{tokens:?} {whole:?}");
            }
        }
        pair.wait_until_empty();
    }
}

#[test]
fn a_sequence_that_is_aborted_leaves_both_sides() {
    let pair = Pair::start(setup());
    for (delay_ms, prompt) in (0..40).zip(prompts().iter().cycle()) {
        let (seq, _events) = pair.submit(prompt, 60);
        std::thread::sleep(Duration::from_millis(delay_ms));
        pair.prefill.abort(seq);
        pair.decode.abort(seq);
        // It may have been between the two; whoever hears of it later says it again.
        std::thread::sleep(Duration::from_millis(20));
        pair.decode.abort(seq);
    }
    pair.wait_until_empty();
}

#[test]
fn other_weights_are_refused_before_a_byte_moves() {
    let pair = Pair::of(setup(), "llama-bf16");
    let (seq, events) = pair.submit(&prompts()[0], 4);
    assert!(matches!(events.recv_timeout(PATIENCE), Ok(Told::Event(Event::Prefilled { .. }))));
    assert!(matches!(events.recv_timeout(PATIENCE), Ok(Told::Event(Event::Token(_)))));
    assert!(events.recv_timeout(Duration::from_millis(300)).is_err(), "it is offered to nobody");
    assert!(pair.prefill.snapshot().lanes.iter().all(|lane| !lane.healthy));
    assert_eq!(pair.decode.snapshot().links[0].pages, 0);
    pair.prefill.abort(seq);
    pair.wait_until_empty();
}
