//! `millrace eval logits` and `millrace eval greedy`: one model over one list of token ids. Knows files and formats, not models.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use millrace_core::{KvFormat, StageRecipe};
use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};
use millrace_model::eval::{EvalOptions, greedy, visit_logits};
use millrace_model::{Architecture, Checkpoint, WeightCache};
use safetensors::tensor::{Dtype, TensorView};

use super::ids::read_ids;
use super::precision::{default_kv, parse_compute, parse_device};
use crate::bench::{parse_kv, threads};
use crate::output::{keep_apart, say};

#[derive(Args)]
pub(crate) struct RunArgs {
    /// GGUF file or hub directory.
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// A file with a JSON list of token ids, or a safetensors file with a tensor `ids`.
    #[arg(long, value_name = "FILE")]
    ids: PathBuf,
    /// stored, bf16, fp8, int8 or int4.
    #[arg(long, default_value = "stored")]
    weights: StageRecipe,
    /// f32, bf16 or fp8; f32 with reference compute and bf16 with fast compute where not given.
    #[arg(long, value_parser = parse_kv)]
    kv: Option<KvFormat>,
    /// reference: f32 from the recipe's exact values; fast: the device's kernels; precise: the same without rounding activations to 8 bits.
    #[arg(long, default_value = "reference", value_parser = parse_compute)]
    compute: CpuCompute,
    /// cpu.
    #[arg(long, default_value = "cpu", value_parser = parse_device)]
    device: String,
    /// Tokens per step.
    #[arg(long, default_value_t = 128, value_parser = RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    chunk: usize,
    /// Worker threads; 0: all that this process may use.
    #[arg(short, long, default_value_t = 0, value_parser = threads())]
    threads: usize,
}

/// A model and what it is run with.
struct Loaded {
    backend: CpuBackend,
    model: Box<dyn Architecture>,
    ids: Vec<u32>,
    options: EvalOptions,
}

fn load(args: &RunArgs) -> Result<Loaded> {
    let ids = read_ids(&args.ids)?;
    let checkpoint = Checkpoint::open(&args.model)?;
    let threads = if args.threads == 0 { millrace_cpu::available_threads() } else { args.threads };
    let backend = CpuBackend::new(CpuOptions { threads, compute: args.compute, isa: None })?;
    let model = millrace_model::load(&checkpoint, &backend, args.weights, &mut WeightCache::default())?;
    let kv = args.kv.unwrap_or(default_kv(args.compute));
    eprintln!("{} on {}, weights {}, kv {kv}, {} ids", checkpoint.summary(), args.device, args.weights, ids.len());
    Ok(Loaded { backend, model, ids, options: EvalOptions { kv, page_tokens: 32, chunk: args.chunk } })
}

/// Writes `logits`, f32 [T, vocab], to `out`.
pub(super) fn logits(args: &RunArgs, out: &Path) -> Result<()> {
    // Found out before the work, not after it.
    keep_apart(("--out", out), ("--ids", &args.ids))?;
    keep_apart(("--out", out), ("--model", &args.model))?;
    let opened = File::options().append(true).create(true).open(out);
    opened.with_context(|| {
        format!("cannot write {}; --out takes the name of a file in a directory that is there", out.display())
    })?;
    let loaded = load(args)?;
    let (model, vocab) = (loaded.model.as_ref(), loaded.model.vocab());
    let mut bytes = Vec::new();
    visit_logits(model, &loaded.backend, &loaded.ids, loaded.options, &mut |_, row| {
        bytes.extend(row.iter().flat_map(|logit| logit.to_le_bytes()));
    })?;
    let tensor = TensorView::new(Dtype::F32, vec![loaded.ids.len(), vocab], &bytes).context("logits")?;
    let file = safetensors::serialize([("logits", tensor)], None).context("logits")?;
    // Into what is there, which may be a link or a pipe: a new file in its place would be another one.
    let written = File::options().write(true).truncate(true).open(out).and_then(|mut to| to.write_all(&file));
    written.with_context(|| format!("cannot write {}", out.display()))?;
    eprintln!("logits f32 [{}, {vocab}] -> {}", loaded.ids.len(), out.display());
    Ok(())
}

/// Prints {"ids": [..]}.
pub(super) fn print_greedy(args: &RunArgs, max_tokens: usize) -> Result<()> {
    let loaded = load(args)?;
    let ids = greedy(loaded.model.as_ref(), &loaded.backend, &loaded.ids, max_tokens, loaded.options)?;
    say!("{}", serde_json::json!({ "ids": ids }));
    Ok(())
}
