//! `millrace bench ..`: measurements that anyone can repeat. Knows how to measure, not how anything works.

mod drawn;
mod engine;
mod handoff;
mod kv;
mod kv_plot;
mod lane;
mod memory;
mod paired;
mod prefix;
mod profile;
mod report;
mod room;
mod serve;
mod spread;
mod stages;
mod tags;

use clap::Subcommand;

pub(crate) use engine::{EngineArgs, parse_kv, threads};

use crate::Failure;

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Prefill and decode tokens/s of one lane in this process, through the real scheduler, hand-off and sampler.
    Engine(EngineArgs),
    /// What the hand-off from prefill to decode costs in one process and over TCP: bytes, MB/s, times to the first and second token.
    Handoff(handoff::HandoffArgs),
    /// Tokens that a decode pool of fixed size holds in BF16 and in FP8, and tokens/s by streams until each is full.
    Kv(kv::KvArgs),
    /// Time to first token with and without a hit in the prefix tree, and that other tenants' prompts change nothing.
    Prefix(prefix::PrefixArgs),
    /// What page tags cost: decode with tags on, off and compiled out, in alternating runs, and the check alone.
    Tags(tags::TagsArgs),
    /// Requests/s, tokens/s and latencies of any OpenAI-compatible server, under a closed loop of clients.
    Serve(serve::LoadArgs),
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Engine(args) => engine::run(&args),
            Self::Handoff(args) => handoff::run(&args),
            Self::Kv(args) => kv::run(&args),
            Self::Prefix(args) => prefix::run(&args),
            Self::Tags(args) => tags::run(&args),
            Self::Serve(args) => serve::run(&args),
        }
    }
}

/// # Errors
/// One of the options has a 0, with which nothing can be measured.
fn start_at_1(options: &[(&str, &[usize])]) -> Result<(), String> {
    match options.iter().find(|(_, numbers)| numbers.contains(&0)) {
        Some((option, _)) => Err(format!("{option} 0: numbers start at 1")),
        None => Ok(()),
    }
}
