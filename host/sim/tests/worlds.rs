//! Worlds full of faults, the short form; `millrace simulate` is the long one. Nothing may be seen that must not be, and everything that
//! was to strike must have struck.
#![cfg(feature = "tags")]

use millrace_sim::{
    CampaignOptions, EngineKind, FaultKind, Lab, Policies, Report, Transport, Transports, WorldOptions, campaign,
};

fn run(engine: EngineKind, seeds: u64, world: WorldOptions) -> Report {
    let options = CampaignOptions {
        engine,
        world,
        from: 0,
        seeds,
        reassignments: 0,
        aborts: 0,
        threads: 2,
        at_most: None,
        stop_at_violation: true,
    };
    let report = campaign(&options, &|_| {}).unwrap();
    let engine = engine.name();
    let first = report.violations.first();
    assert!(
        first.is_none(),
        "{first:?}; millrace simulate --engine {engine} --from SEED --seeds 1 shows it again: {:?}",
        options.world
    );
    assert_eq!(report.tally.wrong_tokens, 0);
    report
}

#[test]
fn every_fault_strikes_and_nothing_is_seen_that_must_not_be() {
    let world = WorldOptions::default();
    let report = run(EngineKind::Fake, 300, world.clone());
    assert_eq!(report.never_fired(&world), [], "{:?}", report.tally);
    let tally = &report.tally;
    assert!(tally.reassignments() > 1500 && tally.of(FaultKind::Abort) > 1500, "{tally:?}");
    assert!(tally.prefix_hits > 300 && tally.preemptions > 300 && tally.hand_offs > 1500, "{tally:?}");
    let ends =
        ["stop", "length", "aborted", "page_mismatch", "not_finite", "deadline", "device", "died", "no_room", "queue_full"];
    let rare = ends.into_iter().find(|end| tally.ends.get(end).is_none_or(|&count| count < 10));
    assert_eq!(rare, None, "{:?}", tally.ends);
    for (kind, states) in [(FaultKind::Reassign, 6), (FaultKind::ReassignOnDevice, 9), (FaultKind::Abort, 6)] {
        let struck = tally.faults.keys().filter(|(struck, _)| *struck == kind).count();
        assert_eq!(struck, states, "{kind} in {:?}", tally.faults);
    }
}

/// Every pool a process of its own, which may die; messages late, lost with their connection, twice and out of order.
#[test]
fn processes_with_messages_between_them_lose_nothing() {
    let world = WorldOptions { transport: Transports::Only(Transport::Messages), ..WorldOptions::default() };
    let report = run(EngineKind::Fake, 250, world.clone());
    assert_eq!(report.never_fired(&world), [], "{:?}", report.tally);
    let tally = &report.tally;
    assert!(tally.hand_offs > 1000 && tally.preemptions > 200, "{tally:?}");
    let messages = [FaultKind::MessageDelayed, FaultKind::MessageDuplicated, FaultKind::MessageReordered];
    let states = |kind| tally.faults.keys().filter(|(struck, _)| *struck == kind).map(|(_, state)| *state).collect::<Vec<_>>();
    for kind in messages {
        assert_eq!(states(kind), ["to_decode", "to_prefill"], "{kind}");
    }
    assert_eq!(states(FaultKind::ConnectionLost), ["idle", "with_messages"]);
    let deaths = states(FaultKind::ProcessDeath);
    assert!(deaths.contains(&"prefill") && deaths.contains(&"decode"), "{deaths:?}");
}

/// Whoever is there at the end gets its whole answer; nobody fails but those that came too late or were too long.
#[test]
fn without_faults_every_answer_is_whole() {
    let report = run(EngineKind::Fake, 150, WorldOptions { faults: [].into(), ..WorldOptions::default() });
    let fine = ["stop", "length", "deadline", "queue_full", "too_long", "no_room", "device"];
    assert!(report.tally.ends.keys().all(|end| fine.contains(end)), "{:?}", report.tally.ends);
    assert!(report.tally.faults.keys().all(|(kind, _)| *kind == FaultKind::Exhausted), "{:?}", report.tally.faults);
}

/// The built-in components decide, where the others have them now and then.
#[test]
fn the_guests_decide() {
    let world = WorldOptions { policy: Policies::Guests, ..WorldOptions::default() };
    let report = run(EngineKind::Fake, 20, world);
    assert!(report.tally.policy_answers > 500 && report.tally.fallback_answers > 20, "{:?}", report.tally);
}

#[test]
fn the_cpu_backend_keeps_pages_apart() {
    let report = run(EngineKind::Cpu, 12, WorldOptions { per_mille: 40, ..WorldOptions::default() });
    assert!(report.tally.reassignments() > 60 && report.tally.published_tokens > 1000, "{:?}", report.tally);
}

#[test]
fn a_seed_is_a_world() {
    for (engine, seeds) in [(EngineKind::Fake, 12), (EngineKind::Cpu, 2)] {
        let (one, other) = (Lab::new(engine).unwrap(), Lab::new(engine).unwrap());
        let options = WorldOptions::default();
        let outcomes: Vec<_> = (0..seeds).map(|seed| one.run(seed, &options).unwrap()).collect();
        for (seed, outcome) in (0..seeds).zip(&outcomes) {
            assert_eq!(&other.run(seed, &options).unwrap(), outcome, "seed {seed}");
        }
        assert_ne!(outcomes[0], outcomes[1]);
    }
}

/// Whatever the threads do, a run is its options: every token, submission and fault of every world, and the sums.
#[test]
fn a_run_is_its_seeds() {
    let of = |threads, from| {
        let world = WorldOptions::default();
        let (seeds, reassignments, aborts, at_most) = (10, 60, 0, None);
        let engine = EngineKind::Fake;
        let options =
            CampaignOptions { engine, world, from, seeds, reassignments, aborts, threads, at_most, stop_at_violation: true };
        Report { took: Default::default(), ..campaign(&options, &|_| {}).unwrap() }
    };
    let one = of(1, 0);
    assert_eq!((one.violated, one.worlds >= 10), (0, true));
    assert_eq!(of(1, 0), one);
    assert_eq!(of(4, 0), one);
    assert_ne!(of(4, 1).digest, one.digest);
}
