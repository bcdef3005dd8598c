//! The options that name a model and how its two stages compute. Knows no test.

use std::path::PathBuf;

use clap::Args;
use millrace_core::{KvFormat, Precision, StagePrecision, StageRecipe};

use super::{parse_kv, threads};

/// A model, and what each stage makes of its weights.
#[derive(Args)]
pub(crate) struct WeightArgs {
    /// GGUF file or hub directory.
    #[arg(short, long, value_name = "PATH")]
    pub(super) model: PathBuf,
    /// Worker threads; 0: all that this process may use.
    #[arg(short, long, default_value_t = 0, value_parser = threads())]
    pub(super) threads: usize,
    /// stored, bf16, fp8, int8 or int4.
    #[arg(long, default_value = "int8")]
    pub(super) prefill_weights: StageRecipe,
    /// stored, bf16, fp8, int8 or int4.
    #[arg(long, default_value = "int4")]
    pub(super) decode_weights: StageRecipe,
}

impl WeightArgs {
    /// With decode's pages in `kv`; prefill keeps BF16, but f32 where decode has it.
    pub(super) fn precision(&self, kv: KvFormat) -> Precision {
        let prefill_kv = if kv == KvFormat::F32 { KvFormat::F32 } else { KvFormat::Bf16 };
        Precision {
            prefill: StagePrecision { recipe: self.prefill_weights, kv: prefill_kv },
            decode: StagePrecision { recipe: self.decode_weights, kv },
        }
    }
}

/// The same, and the format of decode's pages.
#[derive(Args)]
pub(crate) struct StageArgs {
    #[command(flatten)]
    pub(super) weights: WeightArgs,
    /// KV format of decode: bf16 or fp8 (prefill keeps bf16; f32 for both with f32).
    #[arg(long, default_value = "fp8", value_parser = parse_kv)]
    pub(super) kv: KvFormat,
}

impl StageArgs {
    pub(super) fn precision(&self) -> Precision {
        self.weights.precision(self.kv)
    }
}
