//! `millrace simulate --contest`: what a tenant's first tokens cost it beside a greedy one. Prints; what is measured, `millrace-sim`
//! says.

use anyhow::anyhow;
use millrace_sim::{ArmReport, Contest, ContestReport, contest};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::say;

/// # Errors
/// An engine cannot be built, an answer is wrong, or the tenant waits longer than it is promised.
pub(super) fn run(which: Contest, seed: u64, as_json: bool) -> Result<(), Failure> {
    let report = contest(which, seed)?;
    if as_json {
        print_json(&report, seed);
    } else {
        print_table(&report);
    }
    if report.holds() {
        return Ok(());
    }
    let (name, _) = which.compared(&report.held.ttft_us);
    Err(Failure::Failed(anyhow!(
        "{name} of the time to first token is {} times what it is alone with `{}`, more than {}",
        times(report.per_mille(&report.held)),
        report.held.name,
        times(which.most_per_mille())
    )))
}

/// 1234 as 1.234.
fn times(per_mille: u64) -> String {
    format!("{}.{:03}", per_mille / 1000, per_mille % 1000)
}

fn print_table(report: &ContestReport) {
    let name = report.contest.compared(&report.alone.ttft_us).0;
    say!("time to first token of a tenant, in ms of virtual time, and {name} as a multiple of what it is alone");
    say!("");
    say!(
        "{:<12}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}{:>18}",
        "",
        "p50",
        "p95",
        "p99",
        "multiple",
        "answered",
        "refused",
        "rival: answered"
    );
    for arm in [&report.alone, &report.held, &report.free] {
        let ms = |us: u64| format!("{:.1}", us as f64 / 1e3);
        let ArmReport { name, ttft_us, answered, refused, rival_answered, .. } = arm;
        let multiple = times(report.per_mille(arm));
        let (p50, p95, p99) = (ms(ttft_us.p50), ms(ttft_us.p95), ms(ttft_us.p99));
        say!("{name:<12}{p50:>9}{p95:>9}{p99:>9}{multiple:>9}{answered:>10}{refused:>9}{rival_answered:>18}");
    }
    say!("");
    say!("`{}` holds {name} to {} times", report.held.name, times(report.contest.most_per_mille()));
}

fn print_json(report: &ContestReport, seed: u64) {
    let arm = |arm: &ArmReport| -> Value {
        json!({
            "name": arm.name,
            "ttft_us": { "p50": arm.ttft_us.p50, "p95": arm.ttft_us.p95, "p99": arm.ttft_us.p99 },
            "per_mille_of_alone": report.per_mille(arm),
            "answered": arm.answered,
            "refused": arm.refused,
            "prefix_hits": arm.prefix_hits,
            "rival_answered": arm.rival_answered,
            "rival_refused": arm.rival_refused,
        })
    };
    let object = json!({
        "contest": report.contest.name(),
        "seed": seed,
        "compared": report.contest.compared(&report.alone.ttft_us).0,
        "most_per_mille": report.contest.most_per_mille(),
        "holds": report.holds(),
        "arms": [arm(&report.alone), arm(&report.held), arm(&report.free)],
    });
    say!("{object}");
}
