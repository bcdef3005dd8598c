//! `millrace quantize`: parses, shows how far it is, prints what was lost. Knows no format beyond its name.

mod progress;
mod summary;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use millrace_model::quantize::{Detail, Preset, QuantizeError, QuantizeOptions, QuantizedFormat, quantize};

use crate::Failure;
use crate::output::print;

const WHAT: &str = "\
Quantized are the projections of the text model's layers (attention, indexer, feed-forward, experts): to the nearest code, with the
scale that loses least. Kept as they are stored: embeddings, head, norms, routers, biases, the indexer's weights_proj, eh_proj, other
parts than the text model, what --keep names; with --weights int4 also matrices whose columns the group does not divide (the
report names them); and what a quantized source keeps in floats.
  --weights fp8    e4m3, `weight_scale_inv` for each 128x128 block, as DeepSeek-V3 and GLM-5.2-FP8 are stored; where 128 does not
                   divide a size, as compressed-tensors float-quantized if that is what transformers loads
  --weights int4   compressed-tensors pack-quantized, symmetric, a BF16 scale for each --group columns of a row
  --preset kimi    routed experts only, as Kimi K2's own checkpoints
  --preset glm     fp8: every projection, as GLM-5.2-FP8; int4: routed experts only
FP8 that stays beside INT4 is stored as compressed-tensors float-quantized with block scales.";

/// Quantizes a hub checkpoint into another directory.
#[derive(Args)]
#[command(after_help = WHAT)]
pub(crate) struct QuantizeArgs {
    /// Hub directory in BF16, F16, F32 or FP8 with 128x128 blocks.
    source: PathBuf,
    /// Directory to make; it has its name when it is complete.
    destination: PathBuf,
    /// Format of the projections.
    #[arg(long)]
    weights: Weights,
    /// Columns that share a scale in INT4: 32, 64 or 128; 32 where not given.
    #[arg(long)]
    group: Option<usize>,
    /// Regular expressions, searched in the names of tensors; those that match are kept.
    #[arg(long, value_name = "REGEX", num_args = 1..)]
    keep: Vec<String>,
    /// Choose tensors as published checkpoints do.
    #[arg(long)]
    preset: Option<PresetName>,
    /// Data of one file at most, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    shard_mib: u64,
    /// Worker threads; 0: all that this process may use.
    #[arg(short, long, default_value_t = 0)]
    threads: usize,
    /// One JSON object on stdout instead of tables.
    #[arg(long)]
    json: bool,
    /// Also write the JSON object to this file, with every tensor.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Weights {
    Fp8,
    Int4,
}

#[derive(Clone, Copy, ValueEnum)]
enum PresetName {
    Kimi,
    Glm,
}

pub(crate) fn run(args: &QuantizeArgs) -> Result<(), Failure> {
    let options = options(args).map_err(Failure::Usage)?;
    let mut line = progress::Line::new();
    let result = quantize(&args.source, &args.destination, &options, &mut |progress| line.show(progress));
    line.clear();
    let report = result.map_err(|error| match error {
        QuantizeError::Option { option: "shard size", allowed, .. } => {
            Failure::Usage(format!("--shard-mib {}: {allowed}", args.shard_mib))
        }
        // The destination has no option.
        QuantizeError::Option { option: "destination", .. } => Failure::Usage(error.to_string()),
        QuantizeError::Keep { .. } | QuantizeError::Option { .. } => Failure::Usage(format!("--{error}")),
        QuantizeError::Place { .. } | QuantizeError::ReportFile { .. } => Failure::Usage(error.to_string()),
        other => other.into(),
    })?;
    for note in &report.notes {
        eprintln!("note: {note}");
    }
    let text = match args.json {
        true => format!("{}\n", report.to_json(Detail::Layers)),
        false => summary::of(&report, options.format, &args.destination),
    };
    print(format_args!("{text}"));
    Ok(())
}

fn options(args: &QuantizeArgs) -> Result<QuantizeOptions, String> {
    let format = match (args.weights, args.group) {
        (Weights::Fp8, None) => QuantizedFormat::Fp8Block,
        (Weights::Fp8, Some(_)) => return Err("--group is for --weights int4; FP8 has blocks of 128x128".to_owned()),
        (Weights::Int4, group) => QuantizedFormat::Int4Group { group: group.unwrap_or(32) },
    };
    let shard_bytes = args.shard_mib.checked_mul(1 << 20);
    Ok(QuantizeOptions {
        format,
        preset: args.preset.map(|name| match name {
            PresetName::Kimi => Preset::Kimi,
            PresetName::Glm => Preset::Glm,
        }),
        keep: args.keep.clone(),
        report: args.report.clone(),
        shard_bytes: shard_bytes.ok_or_else(|| format!("--shard-mib {}: no file is that large", args.shard_mib))?,
        threads: if args.threads == 0 { millrace_cpu::available_threads() } else { args.threads },
    })
}
