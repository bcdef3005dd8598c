//! The paired run: the same seeds with a guard and without it. With all guards nothing is seen; without any one of them something is,
//! and soon. So the worlds can see what each guard prevents.
#![cfg(feature = "tags")]

use millrace_sim::{CampaignOptions, EngineKind, GuardOff, Report, WorldOptions, campaign};

/// Reassigned pages within which what a guard prevents must show.
const SOON: u64 = 1000;
/// The same with a guard and without it.
const FAKE_SEEDS: u64 = 40;
const CPU_SEEDS: u64 = 8;

fn run(engine: EngineKind, off: Option<GuardOff>, seeds: u64) -> Report {
    let options = CampaignOptions {
        engine,
        world: WorldOptions { off, ..WorldOptions::default() },
        from: 0,
        seeds,
        reassignments: 0,
        aborts: 0,
        threads: 1,
        at_most: None,
        stop_at_violation: false,
    };
    campaign(&options, &|_| {}).unwrap()
}

fn earliest(report: &Report) -> u64 {
    report.violations.iter().map(|violation| violation.reassignments_in_all).min().unwrap_or(u64::MAX)
}

#[test]
fn the_fake_engine_sees_what_each_guard_prevents() {
    let guarded = run(EngineKind::Fake, None, FAKE_SEEDS);
    assert_eq!((guarded.violated, guarded.tally.wrong_tokens), (0, 0), "{:?}", guarded.violations);
    for off in GuardOff::ALL {
        let report = run(EngineKind::Fake, Some(off), FAKE_SEEDS);
        assert!(earliest(&report) < SOON, "{}: {report:?}", off.name());
        // Of these, what was wrong was published, or would have been but for another guard.
        let publishes = matches!(off, GuardOff::TagChecks | GuardOff::TailCheck | GuardOff::Scope);
        assert_eq!(report.tally.wrong_tokens > 0, publishes, "{}: {:?}", off.name(), report.violations);
    }
}

/// Its own tag check is the one under test here. A scope's pages hold the same numbers whoever reads them, so only the fake engine sees
/// whose they are; and its writes cannot go without their fence.
#[test]
fn the_cpu_backend_leaks_without_its_checks() {
    let guarded = run(EngineKind::Cpu, None, CPU_SEEDS);
    assert_eq!((guarded.violated, guarded.tally.wrong_tokens), (0, 0), "{:?}", guarded.violations);
    for off in [GuardOff::TagChecks, GuardOff::HeadCheck, GuardOff::TailCheck, GuardOff::Quarantine, GuardOff::Zeroing] {
        let report = run(EngineKind::Cpu, Some(off), CPU_SEEDS);
        assert!(earliest(&report) < SOON, "{}: {report:?}", off.name());
        let publishes = matches!(off, GuardOff::TagChecks | GuardOff::TailCheck);
        assert!(!publishes || report.tally.wrong_tokens > 0, "{}: {:?}", off.name(), report.violations);
    }
}
