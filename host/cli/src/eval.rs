//! `millrace eval ..`: numbers out of a checkpoint, without a tokenizer or a server. Knows files and formats, not models.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use millrace_core::{KvFormat, StageRecipe};
use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};
use millrace_model::eval::{EvalOptions, greedy, visit_logits};
use millrace_model::{Architecture, Checkpoint, WeightCache};
use safetensors::tensor::{Dtype, TensorView};

use crate::bench::parse_kv;

/// An ids file larger than this is a mistake.
const MAX_IDS_FILE_BYTES: u64 = 64 << 20;

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
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// GGUF file or hub directory.
    #[arg(long)]
    model: PathBuf,
    /// A JSON list of token ids, or a safetensors file with `ids`.
    #[arg(long)]
    ids: PathBuf,
    /// stored, bf16, fp8, int8 or int4.
    #[arg(long, default_value = "stored")]
    weights: StageRecipe,
    /// f32, bf16 or fp8; f32 with reference compute and bf16 with fast compute where not given.
    #[arg(long, value_parser = parse_kv)]
    kv: Option<KvFormat>,
    /// reference: f32 from the recipe's exact values; fast: the device's kernels.
    #[arg(long, default_value = "reference", value_parser = parse_compute)]
    compute: CpuCompute,
    /// cpu.
    #[arg(long, default_value = "cpu", value_parser = parse_device)]
    device: String,
    /// Tokens per step.
    #[arg(long, default_value_t = 128)]
    chunk: usize,
    /// Worker threads; 0: all that this process may use.
    #[arg(short, long, default_value_t = 0)]
    threads: usize,
}

fn parse_compute(text: &str) -> Result<CpuCompute, String> {
    match text {
        "reference" => Ok(CpuCompute::Reference),
        "fast" => Ok(CpuCompute::Fast),
        other => Err(format!("`{other}` is no way to compute; use reference or fast")),
    }
}

fn parse_device(text: &str) -> Result<String, String> {
    match text {
        "cpu" => Ok(text.to_owned()),
        other => Err(format!("`{other}` is no device of this build; use cpu")),
    }
}

impl Eval {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Self::Logits { run, out } => logits(&run, &out),
            Self::Greedy { run, max_tokens } => print_greedy(&run, max_tokens),
        }
    }
}

/// A model and what it is run with.
struct Loaded {
    backend: CpuBackend,
    model: Box<dyn Architecture>,
    ids: Vec<u32>,
    options: EvalOptions,
}

fn load(args: &RunArgs) -> Result<Loaded> {
    ensure!(args.chunk >= 1, "--chunk {}: at least one token per step", args.chunk);
    let ids = read_ids(&args.ids)?;
    let checkpoint = Checkpoint::open(&args.model)?;
    let threads = if args.threads == 0 { millrace_cpu::available_threads() } else { args.threads };
    let backend = CpuBackend::new(CpuOptions { threads, compute: args.compute, isa: None })?;
    let model = millrace_model::load(&checkpoint, &backend, args.weights, &mut WeightCache::default())?;
    let kv = args.kv.unwrap_or(match args.compute {
        CpuCompute::Reference => KvFormat::F32,
        CpuCompute::Fast => KvFormat::Bf16,
    });
    eprintln!("{} on {}, weights {}, kv {kv}, {} ids", checkpoint.summary(), args.device, args.weights, ids.len());
    Ok(Loaded { backend, model, ids, options: EvalOptions { kv, page_tokens: 32, chunk: args.chunk } })
}

fn logits(args: &RunArgs, out: &Path) -> Result<()> {
    let loaded = load(args)?;
    let (model, vocab) = (loaded.model.as_ref(), loaded.model.vocab());
    let mut bytes = Vec::new();
    visit_logits(model, &loaded.backend, &loaded.ids, loaded.options, &mut |_, row| {
        bytes.extend(row.iter().flat_map(|logit| logit.to_le_bytes()));
    })?;
    let tensor = TensorView::new(Dtype::F32, vec![loaded.ids.len(), vocab], &bytes).context("logits")?;
    safetensors::serialize_to_file([("logits", tensor)], None, out).with_context(|| format!("cannot write {}", out.display()))?;
    eprintln!("logits f32 [{}, {vocab}] -> {}", loaded.ids.len(), out.display());
    Ok(())
}

fn print_greedy(args: &RunArgs, max_tokens: usize) -> Result<()> {
    let loaded = load(args)?;
    let ids = greedy(loaded.model.as_ref(), &loaded.backend, &loaded.ids, max_tokens, loaded.options)?;
    println!("{}", serde_json::json!({ "ids": ids }));
    Ok(())
}

/// Ids out of a JSON list or a safetensors file with an integer tensor `ids`.
fn read_ids(path: &Path) -> Result<Vec<u32>> {
    let name = path.display();
    let size = std::fs::metadata(path).with_context(|| format!("cannot open {name}"))?.len();
    ensure!(size <= MAX_IDS_FILE_BYTES, "{name}: {size} bytes; a file of token ids has at most {MAX_IDS_FILE_BYTES}");
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let ids = match serde_json::from_slice::<Vec<u32>>(&bytes) {
        Ok(ids) => ids,
        Err(_) if bytes.first().is_some_and(|b| !b.is_ascii_whitespace() && *b != b'[') => safetensors_ids(&bytes)
            .with_context(|| format!("{name}: neither a JSON list of ids nor a safetensors file with an integer tensor `ids`"))?,
        Err(error) => bail!("{name}: not a JSON list of token ids: {error}"),
    };
    ensure!(!ids.is_empty(), "{name}: no ids; at least one is needed");
    Ok(ids)
}

fn safetensors_ids(bytes: &[u8]) -> Result<Vec<u32>> {
    let file = safetensors::SafeTensors::deserialize(bytes)?;
    let tensor = file.tensor("ids")?;
    let data = tensor.data();
    let id = |value: i64| u32::try_from(value).with_context(|| format!("{value} is no token id"));
    match tensor.dtype() {
        Dtype::I64 => data.chunks_exact(8).map(|b| id(i64::from_le_bytes(b.try_into().unwrap_or_default()))).collect(),
        Dtype::I32 => data.chunks_exact(4).map(|b| id(i32::from_le_bytes(b.try_into().unwrap_or_default()).into())).collect(),
        Dtype::U32 => data.chunks_exact(4).map(|b| Ok(u32::from_le_bytes(b.try_into().unwrap_or_default()))).collect(),
        other => bail!("`ids` is {other:?}; I64, I32 or U32 is needed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), bytes).expect("written");
        file
    }

    #[test]
    fn ids_come_from_json_or_safetensors() {
        assert_eq!(read_ids(file(b" [1, 2, 49151]").path()).expect("json"), [1, 2, 49151]);
        let data: Vec<u8> = [7i64, 8].iter().flat_map(|i| i.to_le_bytes()).collect();
        let tensor = TensorView::new(Dtype::I64, vec![2], &data).expect("tensor");
        let bytes = safetensors::serialize([("ids", tensor)], None).expect("serialized");
        assert_eq!(read_ids(file(&bytes).path()).expect("safetensors"), [7, 8]);
    }

    #[test]
    fn what_is_no_ids_file_is_an_error_that_names_it() {
        for bytes in [&b""[..], b"[]", b"[-1]", b"[1, \"a\"]", b"{}", b"\x08\0\0\0\0\0\0\0{}      ", b"[4294967296]"] {
            let file = file(bytes);
            let error = read_ids(file.path()).expect_err("no ids");
            assert!(format!("{error:#}").contains(&file.path().display().to_string()), "{error:#}");
        }
    }
}
