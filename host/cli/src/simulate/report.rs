//! What a simulation came to, as a table or as JSON. Knows counts and words; runs nothing.

use millrace_sim::{
    CampaignOptions, FaultKind, Guest, Policies, PolicyChoice, Report, Transport, Transports, WorldOptions, by_kind,
};
use serde_json::{Value, json};

use crate::output::say;

/// The command that shows one seed's world again.
fn replay(seed: u64, options: &CampaignOptions) -> String {
    let WorldOptions { faults, per_mille, requests, off, policy, transport } = &options.world;
    let names: Vec<&str> = faults.iter().map(|kind| kind.name()).collect();
    let faults = match names.len() {
        0 => "none".to_owned(),
        count if count == FaultKind::ALL.len() => "all".to_owned(),
        _ => names.join(","),
    };
    let policy = match policy {
        Policies::Mixed => "",
        Policies::Guests => " --policy guest",
        Policies::Only(PolicyChoice::Native) => " --policy native",
        Policies::Only(PolicyChoice::Guest(Guest::Fair)) => " --policy fair",
        Policies::Only(PolicyChoice::Guest(Guest::Fcfs)) => " --policy fcfs",
        Policies::Only(PolicyChoice::Guest(Guest::Priority)) => " --policy priority",
    };
    let transport = match transport {
        Transports::Mixed => "",
        Transports::Only(Transport::InProcess) => " --transport in-process",
        Transports::Only(Transport::Messages) => " --transport messages",
    };
    let without = off.map(|guard| format!(" --without {}", guard.name())).unwrap_or_default();
    let engine = options.engine.name();
    format!(
        "millrace simulate --engine {engine} --from {seed} --seeds 1 --faults {faults} --rate {per_mille} --requests {requests}{policy}{transport}{without}"
    )
}

fn seeds_per_second(report: &Report) -> f64 {
    report.worlds as f64 / report.took.as_secs_f64().max(1e-6)
}

pub(super) fn print_json(report: &Report, options: &CampaignOptions, never: &[FaultKind]) {
    let tally = &report.tally;
    let faults: serde_json::Map<String, Value> =
        by_kind(tally).into_iter().map(|(kind, states)| (kind.name().to_owned(), json!(states))).collect();
    let violations: Vec<Value> = report
        .violations
        .iter()
        .map(|violation| {
            json!({
                "seed": violation.seed,
                "what": violation.what,
                "reassignments": violation.reassignments,
                "reassignments_in_all": violation.reassignments_in_all,
                "replay": replay(violation.seed, options),
            })
        })
        .collect();
    let object = json!({
        "engine": options.engine.name(),
        "without": options.world.off.map(|guard| guard.name()),
        "from": options.from,
        "worlds": report.worlds,
        "seconds": report.took.as_secs_f64(),
        "seeds_per_second": seeds_per_second(report),
        "requests": tally.requests,
        "turns": tally.turns,
        "submissions": tally.submissions,
        "published_tokens": tally.published_tokens,
        "wrong_tokens": tally.wrong_tokens,
        "reassignments": tally.reassignments(),
        "aborts": tally.of(FaultKind::Abort),
        "prefix_hits": tally.prefix_hits,
        "hand_offs": tally.hand_offs,
        "preemptions": tally.preemptions,
        "policy_answers": tally.policy_answers,
        "fallback_answers": tally.fallback_answers,
        "faults": faults,
        "ends": tally.ends,
        "digest": format!("{:016x}", report.digest),
        "in_vain": report.in_vain,
        "never_struck": never.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
        "violated_worlds": report.violated,
        "violations": violations,
    });
    say!("{object}");
}

pub(super) fn print_table(report: &Report, options: &CampaignOptions, never: &[FaultKind]) {
    let tally = &report.tally;
    say!("fault               state                       times");
    for (kind, states) in by_kind(tally) {
        for (state, count) in states {
            say!("{:<20}{state:<24}{count:>9}", kind.name());
        }
    }
    for kind in never {
        say!("{:<20}{:<24}{:>9}", kind.name(), "never struck", 0);
    }
    say!("");
    say!("requests by end");
    for (end, count) in &tally.ends {
        say!("{:<44}{count:>9}", end);
    }
    say!("");
    let (engine, seconds) = (options.engine.name(), report.took.as_secs_f64());
    say!("{} worlds on the {engine} engine in {seconds:.1} s, {:.0} a second", report.worlds, seeds_per_second(report));
    say!(
        "{} requests, {} turns, {} submissions, {} hand-offs, {} preemptions, {} prefix hits",
        tally.requests,
        tally.turns,
        tally.submissions,
        tally.hand_offs,
        tally.preemptions,
        tally.prefix_hits
    );
    let aborts = tally.of(FaultKind::Abort);
    say!("{} reassigned pages, {aborts} aborts", tally.reassignments());
    say!("{} tokens published, {} of them wrong", tally.published_tokens, tally.wrong_tokens);
    say!("digest {:016x}: the same for the same seeds and options, whatever the machine and the threads", report.digest);
    say!("{} worlds show what must not be", report.violated);
    for violation in &report.violations {
        let (own, all) = (violation.reassignments, violation.reassignments_in_all);
        say!("  seed {} (after {own} reassignments of its own, {all} with those before): {}", violation.seed, violation.what);
        say!("    {}", replay(violation.seed, options));
    }
}
