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
    ///
    /// Scores every token of the text but the first of each window, given those before it in its window. Where an option tells
    /// prefill and decode apart, the first half of each window goes through prefill, its KV pages are handed to decode and
    /// converted as in serving, and the rest is decoded token by token, several windows side by side. Otherwise all is prefill.
    Perplexity(PerplexityArgs),
    /// How far the predictions of two precisions of a model are apart: KL divergence, top-1 agreement, worst tokens.
    ///
    /// A precision is `[COMPUTE:]PREFILL[/DECODE]`, each stage `RECIPE[+kv-FORMAT]`, in the words of answers and logs: bf16,
    /// int4+kv-fp8, reference:stored, fast:int8+kv-bf16/int4+kv-fp8. A is what B is measured against: divergences are KL(A || B)
    /// per token, in nat. Where either names a DECODE, both run in two stages: the first half of each window through prefill,
    /// the rest decoded token by token over KV pages that were handed over and converted as in serving.
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
