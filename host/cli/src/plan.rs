//! `millrace plan`: sizes a deployment from a model's configuration, before a GPU is bought. Knows flags and output, no arithmetic.

mod json;
mod report;

use std::path::{Path, PathBuf};

use clap::Args;
use millrace_model::plan::{Counted, HostGpus, Plan, PlanKv, PlanRequest, StageChoice, WeightRecipe, usual_reserve};
use millrace_model::spec::ModelSpec;
use millrace_model::{Config, spec_of};

use crate::Failure;
use crate::output::print;

/// Sizes of hosts are given in GiB and end at a PiB.
const MAX_GIB: f64 = (1u64 << 20) as f64;

const RECIPES: &str = "\
RECIPE is bf16, or a weight format and what it covers: FORMAT:COVERS. What is not covered is BF16.
  FORMAT   fp8           e4m3, an f32 scale per 128x128 block
           fp8-channel   e4m3, a BF16 scale per row
           int8          a 16-bit scale per 32
           int4-g32, int4-g64, int4-g128   a BF16 scale per group
  COVERS   kimi      routed experts alone, as Kimi K2.6 is stored
           glm       every projection of the layers, as GLM-5.2-FP8 is stored: not head, embeddings, norms, routers, the
                     indexer's weights_proj and eh_proj
           generic   as glm without kv_b_proj, as Millrace quantizes while loading; where nothing is said

Weights are divided evenly over the GPUs. Latents (MLA) are on every GPU whole; KV heads are divided where the number of heads
or of GPUs divides the other, else whole on each.";

#[derive(Args)]
#[command(after_help = RECIPES)]
pub(crate) struct PlanArgs {
    /// config.json of a hub checkpoint, or a directory that holds one.
    #[arg(long)]
    config: PathBuf,
    /// GPUs of one host; the model is split over all of them.
    #[arg(long)]
    gpus: usize,
    /// Memory of one GPU in GiB, as its driver reports it (H200: 140.4).
    #[arg(long, value_name = "GIB", value_parser = parse_positive_gib)]
    gpu_memory: u64,
    /// Size of a stage's KV pool on each GPU in GiB; what weights and reserve leave where not given.
    #[arg(long, value_name = "GIB", value_parser = parse_positive_gib)]
    kv_pool: Option<u64>,
    /// GiB of each GPU that a stage needs beside weights and pages (activations, runtime, graphs, buffers); a tenth of
    /// --gpu-memory where not given.
    #[arg(long, value_name = "GIB", value_parser = parse_gib)]
    reserve: Option<u64>,
    /// Tokens of a page, a multiple of 16.
    #[arg(long, default_value_t = 64)]
    page_tokens: usize,
    /// Weights of prefill; fp8:glm (fp8 for a model without latents) where not given.
    #[arg(long, value_name = "RECIPE")]
    prefill: Option<WeightRecipe>,
    /// KV of prefill: bf16, fp8 or fp8-656 (the 656-byte latent).
    #[arg(long, value_name = "FORMAT", default_value = "bf16")]
    prefill_kv: PlanKv,
    /// Weights of decode; int4-g32:kimi (int4-g32 for a model without experts) where not given.
    #[arg(long, value_name = "RECIPE")]
    decode: Option<WeightRecipe>,
    /// KV of decode: bf16, fp8 or fp8-656.
    #[arg(long, value_name = "FORMAT", default_value = "fp8")]
    decode_kv: PlanKv,
    /// Leave layers for multi-token prediction out of the memory; without this, they are counted where the config names some.
    #[arg(long)]
    no_mtp: bool,
    /// One JSON object on stdout instead of tables; examples/configs/README.md describes it.
    #[arg(long)]
    json: bool,
}

/// What outputs are made of.
struct Planned {
    /// The file and the architecture that it names.
    path: PathBuf,
    architecture: String,
    spec: ModelSpec,
    request: PlanRequest,
    plan: Plan,
}

pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    let planned = planned(args).map_err(Failure::Usage)?;
    let text = if args.json { format!("{}\n", json::of(&planned)) } else { report::of(&planned) };
    print(format_args!("{text}"));
    Ok(())
}

fn planned(args: &PlanArgs) -> Result<Planned, String> {
    let path = config_path(&args.config);
    let config = Config::read(&path).map_err(|error| error.to_string())?;
    let spec = spec_of(&config).map_err(|error| error.to_string())?;
    let request = PlanRequest {
        host: HostGpus {
            gpus: args.gpus,
            bytes_per_gpu: args.gpu_memory,
            reserve_bytes: args.reserve.unwrap_or_else(|| usual_reserve(args.gpu_memory)),
            pool_bytes: args.kv_pool,
        },
        page_tokens: args.page_tokens,
        counted: if args.no_mtp { Counted::Model } else { Counted::ModelAndPrediction },
        prefill: StageChoice { recipe: args.prefill, kv: args.prefill_kv },
        decode: StageChoice { recipe: args.decode, kv: args.decode_kv },
    };
    let mut plan = Plan::new(&spec, &request).map_err(|error| format!("{}: {error}", path.display()))?;
    plan.unknowns.extend(stored(&config));
    Ok(Planned { path, architecture: config.architecture().to_owned(), spec, request, plan })
}

/// A line about how the checkpoint is quantized: a plan counts the recipes that it is given.
fn stored(config: &Config) -> Option<String> {
    let section = config.section("quantization_config").ok().flatten()?;
    let method: String = section.text("quant_method").ok().flatten().unwrap_or("of no name").chars().take(40).collect();
    Some(format!("stored: the config's quantization_config ({method}) is not read; name the recipe that it comes to"))
}

fn config_path(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("config.json") } else { path.to_path_buf() }
}

/// GiB as bytes.
fn parse_gib(text: &str) -> Result<u64, String> {
    let number = text.parse::<f64>().ok().filter(|gib| (0.0..=MAX_GIB).contains(gib));
    let gib = number.ok_or_else(|| format!("`{text}` is no size in GiB from 0 to {MAX_GIB}; write 140.4"))?;
    Ok((gib * (1u64 << 30) as f64) as u64)
}

/// GiB as bytes, more than none.
fn parse_positive_gib(text: &str) -> Result<u64, String> {
    match parse_gib(text)? {
        0 => Err(format!("`{text}` GiB is nothing; write 140.4")),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_of_gib() {
        assert_eq!(parse_gib("1.5"), Ok(3 << 29));
        assert_eq!(parse_gib("44.9"), Ok(48_211_007_897));
        assert_eq!(parse_gib("1048576"), Ok(1 << 50));
        for text in ["-1", "nan", "inf", "1048577", "44,9", "44.9GiB", ""] {
            assert!(parse_gib(text).unwrap_err().contains("GiB"), "{text}");
        }
        assert_eq!((parse_gib("0"), parse_positive_gib("1")), (Ok(0), Ok(1 << 30)));
        assert!(parse_positive_gib("0.0").unwrap_err().contains("nothing"));
    }
}
