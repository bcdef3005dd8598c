//! What a campaign makes of worlds, with made-up ones in their place.

use super::books::IN_VAIN;
use super::*;

fn options(seeds: u64) -> CampaignOptions {
    CampaignOptions {
        engine: EngineKind::Fake,
        world: WorldOptions::default(),
        from: 0,
        seeds,
        reassignments: 0,
        aborts: 0,
        threads: 4,
        at_most: None,
        stop_at_violation: false,
    }
}

fn outcome(seed: u64) -> Outcome {
    let mut outcome = Outcome { digest: seed, ..Outcome::default() };
    outcome.tally.faults.insert((FaultKind::Reassign, "decode"), seed % 3);
    outcome.violation = seed.is_multiple_of(5).then(|| format!("of {seed}"));
    outcome
}

/// Worlds of low seeds take longest, so that they end last.
fn backwards(_: &Lab, seed: u64, _: &WorldOptions) -> Result<Outcome, SimError> {
    std::thread::sleep(Duration::from_millis(40_u64.saturating_sub(seed)));
    Ok(outcome(seed))
}

fn of(options: &CampaignOptions, run: &RunWorld<'_>) -> Report {
    Report { took: Duration::ZERO, ..campaign_of(options, &|_| {}, run).unwrap() }
}

#[test]
fn a_world_that_panics_keeps_its_seed() {
    let run = |_: &Lab, seed: u64, _: &WorldOptions| {
        assert!(seed != 3, "of seed {seed}");
        Ok(Outcome::default())
    };
    let report = of(&options(8), &run);
    let expected = Violation { seed: 3, what: "the world panicked: of seed 3".into(), reassignments: 0, reassignments_in_all: 0 };
    assert_eq!((report.worlds, report.violated, report.violations), (8, 1, vec![expected]));
}

#[test]
fn a_world_that_cannot_be_built_is_told_with_its_seed() {
    let run = |_: &Lab, seed: u64, _: &WorldOptions| match seed {
        2 => Err(SimError::Policy("no".into())),
        _ => Ok(Outcome::default()),
    };
    let error = campaign_of(&options(4), &|_| {}, &run).unwrap_err();
    assert!(error.to_string().contains("seed 2"), "{error}");
}

#[test]
fn violations_are_counted_by_seed_whoever_ends_first() {
    let one = CampaignOptions { threads: 1, ..options(200) };
    let report = of(&options(200), &backwards);
    assert_eq!(report, of(&one, &|_, seed, _| Ok(outcome(seed))));
    let seeds: Vec<u64> = report.violations.iter().map(|violation| violation.seed).collect();
    assert_eq!((report.violated, seeds), (40, (0..20).map(|index| index * 5).collect()));
    let third = &report.violations[2];
    // Ten worlds before it, of 0, 1, 2, 0, 1, 2, .. pages each.
    assert_eq!((third.seed, third.reassignments, third.reassignments_in_all), (10, 1, 10));
}

#[test]
fn the_last_world_is_the_one_with_which_there_was_enough() {
    for threads in [1, 7] {
        let enough = CampaignOptions { reassignments: 10, threads, ..options(1) };
        let report = of(&enough, &backwards);
        assert_eq!((report.worlds, report.tally.reassignments()), (11, 10), "{threads} threads");
        let violated = CampaignOptions { from: 1, stop_at_violation: true, threads, ..options(100) };
        let report = of(&violated, &backwards);
        assert_eq!((report.worlds, report.violated), (5, 1), "{threads} threads");
    }
}

#[test]
fn what_never_comes_is_not_waited_for_for_ever() {
    let waits = CampaignOptions { aborts: 1, ..options(1) };
    let report = of(&waits, &|_, _, _| Ok(Outcome::default()));
    assert_eq!((report.in_vain, report.worlds), (true, IN_VAIN));
    assert!(!of(&options(IN_VAIN + 5), &|_, _, _| Ok(Outcome::default())).in_vain, "nothing is waited for");
}

#[test]
fn options_without_an_end_are_refused() {
    assert_eq!(options(1).check(), Ok(()));
    assert_eq!(options(0).check(), Err(Endless::NoSeeds));
    let last = CampaignOptions { from: u64::MAX - 1, ..options(2) };
    assert_eq!(last.check(), Err(Endless::PastTheLast { from: u64::MAX - 1, seeds: 2 }));
    let with = |kinds: &[FaultKind], per_mille| WorldOptions {
        faults: kinds.iter().copied().collect(),
        per_mille,
        ..WorldOptions::default()
    };
    let waits = |reassignments, aborts, world| CampaignOptions { reassignments, aborts, world, ..options(1) };
    use FaultKind::{Abort, LateWrite, Reassign, ReassignOnDevice};
    assert_eq!(waits(1, 0, with(&[Abort], 25)).check(), Err(Endless::Reassignments));
    assert_eq!(waits(0, 1, with(&[Reassign, ReassignOnDevice], 25)).check(), Err(Endless::Aborts));
    assert_eq!(waits(1, 1, with(&[ReassignOnDevice, LateWrite, Abort], 25)).check(), Ok(()));
    assert_eq!(waits(0, 1, with(&[Abort], 0)).check(), Err(Endless::Aborts));
    assert!(campaign(&options(0), &|_| {}).is_err_and(|error| error.to_string().contains("one seed at least")));
}
