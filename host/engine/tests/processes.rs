//! A lane whose two pools share nothing but a TCP connection: same tokens as in one process, no page lost, whatever breaks.

mod common;

use std::time::{Duration, Instant};

use common::pair::{Pair, Told};
use common::{PATIENCE, Rig, Setup, expected, log};
use millrace_core::{KvFormat, PoolId, SeqId};
use millrace_engine::{Event, Hold, JobError, Replay};

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

/// Copies take a while, so that something is on its way when a connection breaks or a process dies.
fn slow() -> Setup {
    Setup { delay: Duration::from_millis(2), ..setup() }
}

#[test]
fn a_connection_that_breaks_costs_nothing() {
    let (one, pair) = (Rig::start(setup()), Pair::start(slow()));
    for breaks in 1..6 {
        let streams: Vec<_> = prompts().iter().map(|prompt| pair.submit(prompt, 16)).collect();
        let ended = || streams.iter().all(|&(seq, _)| pair.has_ended(seq));
        let before = pair.sends().connections;
        let mut broken = 0;
        while broken < breaks {
            pair.wait_until("something is on its way", || pair.sends().open > 0 || ended());
            if ended() {
                break;
            }
            let address = pair.cut();
            broken += u32::from(pair.sends().open > 0);
            pair.join(address);
        }
        assert!(broken > 0, "nothing was on its way when the connection broke");
        for (prompt, (seq, _events)) in prompts().iter().zip(&streams) {
            assert_eq!(pair.end_in_decode(*seq), one.generate(prompt, 16));
        }
        assert!(pair.sends().connections >= before + u64::from(broken));
    }
    pair.wait_until_empty();
}

/// What runs in decode dies with it; what is on its way there goes to its next life.
#[test]
fn a_decode_process_that_dies_takes_only_what_it_ran() {
    let (one, mut pair) = (Rig::start(setup()), Pair::start(slow()));
    let (mut survivors, mut lost, mut on_their_way) = (0, 0, 0);
    for round in 0..6 {
        let before = pair.decode.snapshot().counters.output_tokens;
        let streams: Vec<_> = prompts().iter().map(|prompt| pair.submit(prompt, 40)).collect();
        // A life runs what is left of the round before, too.
        let decoded = || pair.decode.snapshot().counters.output_tokens;
        let so_many = before + 5 * round;
        pair.wait_until("the decode engine has work", || decoded() >= so_many && (round > 0 || pair.sends().open > 0));
        on_their_way += pair.sends().open;
        pair.replace_decode();
        for (prompt, (seq, events)) in prompts().iter().zip(streams) {
            let told = || events.recv_timeout(PATIENCE).expect("a sequence leaves prefill");
            while told() != Told::HandedOver {}
            let tokens = pair.end_in_decode(seq);
            let died = Told::Event(Event::Failed(JobError::ShuttingDown));
            if pair.heard.lock().unwrap()[&seq].last() == Some(&died) {
                lost += 1;
            } else {
                survivors += 1;
                let whole = one.generate(prompt, 40);
                assert!(tokens.ends_with(&whole), "{tokens:?} {whole:?}");
            }
        }
        pair.wait_until_empty();
    }
    assert!(survivors >= 1 && lost >= 1 && on_their_way >= 1, "{survivors} survived, {lost} lost, {on_their_way} on their way");
}

#[test]
fn a_sequence_that_is_aborted_leaves_both_sides() {
    let pair = Pair::start(slow());
    let aborted = || {
        let [prefill, decode] = [&pair.prefill, &pair.decode].map(|engine| engine.snapshot().counters);
        [prefill.aborted, prefill.hand_offs_aborted, decode.aborted]
    };
    for (turn, prompt) in (0..40_u32).zip(prompts().iter().cycle()) {
        let (seq, _events) = pair.submit(prompt, 60);
        let decoding = || pair.heard.lock().unwrap().contains_key(&seq);
        match turn % 4 {
            0 => {}
            1 => pair.wait_until("it is on its way", || pair.sends().open > 0 || decoding()),
            2 => pair.wait_until("it decodes", decoding),
            _ => std::thread::sleep(Duration::from_millis(u64::from(turn))),
        }
        let over = || pair.has_ended(seq);
        pair.prefill.abort(seq);
        pair.decode.abort(seq);
        // It may have been between the two; whoever hears of it later says it again.
        std::thread::sleep(Duration::from_millis(20));
        pair.decode.abort(seq);
        assert!(!over(), "it was aborted before its end");
    }
    let cut = pair.cut();
    let (seq, _events) = pair.submit(&prompts()[3], 60);
    pair.wait_until("it waits for its peer", || pair.sends().open == 1);
    let [before, given_up, _] = aborted();
    pair.prefill.abort(seq);
    pair.wait_until("it is given up", || pair.sends().open == 0);
    assert_eq!(aborted()[..2], [before + 1, given_up + 1]);
    pair.join(cut);
    pair.wait_until_empty();
    let [prefill, _, decode] = aborted();
    assert!(prefill >= 10 && decode >= 10, "{prefill} were aborted in prefill and {decode} in decode");
}

/// Decode has no room for all of them: some give their pages up, and go through the other process's prefill again.
#[test]
fn sequences_that_are_preempted_come_back_from_the_other_process() {
    let small = Setup { pages: 24, ..setup() };
    let (one, pair) = (Rig::start(setup()), Pair::start(small));
    let streams: Vec<SeqId> = prompts().iter().map(|prompt| pair.submit(prompt, 100).0).collect();
    let mut seen = vec![0; streams.len()];
    let deadline = Instant::now() + PATIENCE;
    while !streams.iter().all(|&seq| pair.has_ended(seq)) {
        for ((prompt, &seq), seen) in prompts().iter().zip(&streams).zip(&mut seen) {
            if let Some(again) = pair.preempted(seq, *seen) {
                *seen += 1;
                pair.resume(seq, (prompt, 100), again);
            }
        }
        assert!(Instant::now() < deadline, "preempted sequences do not come back: {seen:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    for (prompt, &seq) in prompts().iter().zip(&streams) {
        assert_eq!(pair.end_in_decode(seq), one.generate(prompt, 100), "sequence {seq}");
    }
    let preemptions = pair.decode.snapshot().counters.preemptions;
    assert!(preemptions >= 1 && preemptions == seen.iter().sum::<usize>() as u64, "{preemptions} {seen:?}");
    pair.wait_until_empty();
}

/// The peer has preempted it, and its word of the commit is still on its way: here the last stay is not over.
#[test]
fn a_sequence_that_comes_back_before_its_last_stay_is_over_waits_for_that() {
    let (one, pair) = (Rig::start(setup()), Pair::start(setup()));
    let prompt = &prompts()[4];
    let whole = one.generate(prompt, 20);
    let address = pair.cut();
    let (seq, first) = pair.submit(prompt, 20);
    pair.wait_until("it waits for its peer", || pair.sends().open == 1);
    let again = Replay { tokens: whole[..7].to_vec(), preemptions: 1 };
    let second = pair.resume(seq, (prompt, 20), again.clone());
    pair.wait_until("the last stay is over", || pair.prefill.snapshot().counters.hand_offs_aborted == 1);
    pair.join(address);
    assert_eq!(pair.end_in_decode(seq), whole[7..]);
    let told = |events: &std::sync::mpsc::Receiver<Told>| -> Vec<Told> { events.try_iter().collect() };
    pair.wait_until("it is handed over", || pair.prefill.snapshot().counters.hand_offs == 1);
    let first = told(&first);
    assert!(matches!(first[..], [Told::Event(Event::Prefilled { .. }), Told::Event(Event::Token(_))]), "{first:?}");
    assert_eq!(told(&second), [Told::HandedOver]);
    // And one that nobody wants any more when it comes back.
    let address = pair.cut();
    let (seq, _first) = pair.submit(prompt, 20);
    pair.wait_until("it waits for its peer", || pair.sends().open == 1);
    let second = pair.resume(seq, (prompt, 20), again);
    pair.prefill.abort(seq);
    pair.join(address);
    pair.wait_until_empty();
    assert_eq!(told(&second), []);
    assert!(!pair.heard.lock().unwrap().contains_key(&seq));
}

/// Those that ran before wait for no place: the node does not count them where it says how many may wait.
#[test]
fn a_sequence_that_comes_back_is_not_among_those_that_wait() {
    let pair = Pair::start(setup());
    pair.prefill.hold(PoolId(0), Hold::Held);
    let prompt = &prompts()[4];
    let (new, _events) = pair.submit(prompt, 20);
    let back = SeqId(new.0 + 1);
    let _again = pair.resume(back, (prompt, 20), Replay { tokens: vec![1, 2], preemptions: 1 });
    let load = || pair.prefill.snapshot().lanes.first().map(|lane| (lane.waiting, lane.running));
    pair.wait_until("both are there", || load().is_some_and(|(waiting, running)| waiting + running == 2));
    assert_eq!(load(), Some((1, 1)));
    [new, back].into_iter().for_each(|seq| pair.prefill.abort(seq));
    pair.prefill.hold(PoolId(0), Hold::Free);
    pair.wait_until_empty();
}

/// A sequence that runs is offered again, as a prefill engine's next life may do.
#[test]
fn an_offer_of_a_sequence_that_runs_changes_nothing_of_it() {
    let (one, pair) = (Rig::start(setup()), Pair::start(setup()));
    pair.decode.hold(PoolId(0), Hold::Held);
    let prompt = &prompts()[5];
    let (seq, events) = pair.submit(prompt, 30);
    while events.recv_timeout(PATIENCE).unwrap() != Told::HandedOver {}
    let other = pair.submit_as(seq, &prompts()[2], 9);
    let refused = loop {
        match other.recv_timeout(PATIENCE).unwrap() {
            Told::Event(Event::Failed(why)) => break why,
            told => assert!(matches!(told, Told::Event(Event::Prefilled { .. } | Event::Token(_))), "{told:?}"),
        }
    };
    assert!(matches!(&refused, JobError::HandOff(why) if why.contains("in decode already")), "{refused:?}");
    pair.decode.hold(PoolId(0), Hold::Free);
    assert_eq!(pair.end_in_decode(seq), one.generate(prompt, 30));
    let prefilled = |told: &&Told| matches!(told, Told::Event(Event::Prefilled { .. }));
    assert_eq!(pair.heard.lock().unwrap()[&seq].iter().filter(prefilled).count(), 1, "it is not told of twice");
    pair.wait_until_empty();
}

/// What `events` end with.
fn failure(events: &std::sync::mpsc::Receiver<Told>) -> JobError {
    loop {
        match events.recv_timeout(PATIENCE).expect("an end in time") {
            Told::Event(Event::Failed(why)) => return why,
            Told::Event(Event::Prefilled { .. } | Event::Token(_)) => {}
            told => panic!("{told:?}"),
        }
    }
}

#[test]
fn a_source_page_that_changes_hands_before_it_is_copied_stops_its_sequence_alone() {
    let (one, pair) = (Rig::start(setup()), Pair::start(setup()));
    let address = pair.cut();
    let streams: Vec<_> = prompts().iter().map(|prompt| pair.submit(prompt, 16)).collect();
    pair.wait_until("all wait for their peer", || pair.sends().open == streams.len());
    pair.prefill.steal_page(streams[4].0).unwrap();
    pair.join(address);
    assert_eq!(failure(&streams[4].1), JobError::PageMismatch);
    for (at, (prompt, (seq, _events))) in prompts().iter().zip(&streams).enumerate().filter(|&(at, _)| at != 4) {
        assert_eq!(pair.end_in_decode(*seq), one.generate(prompt, 16), "prompt {at}");
    }
    assert!(!pair.heard.lock().unwrap().contains_key(&streams[4].0), "decode published nothing of it");
    assert_eq!(pair.prefill.snapshot().counters.page_mismatches, 1);
    pair.prefill.readmit(PoolId(0)).unwrap();
    pair.wait_until_empty();
}

#[test]
fn a_target_page_that_changes_hands_before_it_is_written_stops_its_sequence_alone() {
    let late = Setup { delay: Duration::from_millis(60), ..setup() };
    let (one, pair) = (Rig::start(setup()), Pair::start(late));
    let (seq, events) = pair.submit(&prompts()[4], 6);
    // Its pages are reserved; the copy that fills them comes much later.
    pair.wait_until("its pages are reserved", || pair.decode.steal_page(seq).is_ok());
    assert_eq!(failure(&events), JobError::PageMismatch);
    assert!(!pair.heard.lock().unwrap().contains_key(&seq), "decode published nothing of it");
    assert!(pair.decode.snapshot().links[0].pages < 3, "all of its pages landed");
    pair.decode.readmit(PoolId(0)).unwrap();
    let (other, _events) = pair.submit(&prompts()[2], 6);
    assert_eq!(pair.end_in_decode(other), one.generate(&prompts()[2], 6));
}

#[test]
fn other_weights_are_refused_before_a_byte_moves_and_told_of_once() {
    log::listen();
    let pair = Pair::of(setup(), "llama-bf16");
    let (seq, events) = pair.submit(&prompts()[0], 4);
    assert!(matches!(events.recv_timeout(PATIENCE), Ok(Told::Event(Event::Prefilled { .. }))));
    assert!(matches!(events.recv_timeout(PATIENCE), Ok(Told::Event(Event::Token(_)))));
    assert!(events.recv_timeout(Duration::from_secs(2)).is_err(), "it is offered to nobody");
    assert!(pair.prefill.snapshot().lanes.iter().all(|lane| !lane.healthy));
    assert_eq!(pair.decode.snapshot().links[0].pages, 0);
    let tries = pair.sends().connections;
    assert!((2..=20).contains(&tries), "{tries} connections in two seconds");
    for side in ["refuses this lane's hand-offs", "a prefill engine is refused"] {
        assert_eq!(log::lines(&[side, "runs weights"]), 1, "{side}");
    }
    pair.prefill.abort(seq);
    pair.wait_until_empty();
}
