//! `millrace eval ..`: numbers out of a checkpoint, without a server. Knows which commands there are.

mod compare;
mod ids;
mod lane;
mod logits;
mod perplexity;
mod precision;
mod text;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use compare::CompareArgs;
use logits::RunArgs;
use perplexity::PerplexityArgs;

#[derive(Subcommand)]
pub(crate) enum Eval {
    /// Writes the logits of every position to a safetensors file: `logits`, f32 [T, vocab].
    Logits {
        #[command(flatten)]
        run: RunArgs,
        /// File to write.
        #[arg(long)]
        out: PathBuf,
    },
    /// Prints the most likely continuation as {"ids": [..]}, its last line.
    Greedy {
        #[command(flatten)]
        run: RunArgs,
        /// Tokens to generate.
        #[arg(long)]
        max_tokens: usize,
    },
    /// How well a model predicts a text, in one precision or with prefill and decode in two.
    Perplexity(PerplexityArgs),
    /// How far the predictions of two precisions of a model are apart: KL divergence, top-1 agreement, worst tokens.
    Compare(CompareArgs),
}

impl Eval {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Self::Logits { run, out } => logits::logits(&run, &out),
            Self::Greedy { run, max_tokens } => logits::print_greedy(&run, max_tokens),
            Self::Perplexity(args) => perplexity::run(&args),
            Self::Compare(args) => compare::run(&args),
        }
    }
}
