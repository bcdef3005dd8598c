//! What a tenant is promised beside a greedy one, in virtual time. `millrace simulate --contest` prints the figures.

use millrace_sim::{Contest, ContestReport, contest};

fn of(which: Contest) -> ContestReport {
    let report = contest(which, 0).unwrap();
    assert_eq!((report.alone.answered, report.held.answered, report.free.answered), (120, 120, 120), "{report:?}");
    assert!(report.held.rival_answered > 100, "the rival does work: {report:?}");
    report
}

/// With quotas at most 1.2 times what it is alone; without them more.
#[test]
fn a_tenant_that_floods_the_pool_hardly_delays_another() {
    let report = of(Contest::Flood);
    assert!(report.holds(), "{} per mille of alone: {report:?}", report.per_mille(&report.held));
    assert!(report.per_mille(&report.free) > 1_400, "without quotas nothing is seen: {report:?}");
}

/// With the fair policy at most 1.3 times what it is alone; first come, first served, many times that.
#[test]
fn a_tenant_that_sends_twenty_times_its_share_hardly_delays_a_light_one() {
    let report = of(Contest::Fairness);
    assert!(report.holds(), "{} per mille of alone: {report:?}", report.per_mille(&report.held));
    assert!(report.per_mille(&report.free) > 2_000, "first come, first served does as well: {report:?}");
}

#[test]
fn a_contest_is_its_seed() {
    assert_eq!(contest(Contest::Fairness, 3).unwrap(), contest(Contest::Fairness, 3).unwrap());
}
