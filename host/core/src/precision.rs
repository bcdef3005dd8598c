//! How precise each stage is. Knows names only; numbers are in the kernels.

use std::fmt;
use std::str::FromStr;

use millrace_ops::KvFormat;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    Prefill,
    Decode,
}

/// What a stage wants its weights in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StageRecipe {
    /// As the checkpoint has them.
    Stored,
    Bf16,
    Fp8,
    Int8,
    Int4,
}

/// `Reference`: f32 weights of the recipe's exact values, f32 activations, plain loops. `Fast`: the device's kernels. `Precise`: the
/// same, without rounding activations to 8 bits where `Fast` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compute {
    Reference,
    Fast,
    Precise,
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reference => "reference",
            Self::Fast => "fast",
            Self::Precise => "precise",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StagePrecision {
    pub recipe: StageRecipe,
    pub kv: KvFormat,
}

/// Recipe and KV format of both stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Precision {
    pub prefill: StagePrecision,
    pub decode: StagePrecision,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}

impl fmt::Display for StageRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stored => "stored",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        })
    }
}

impl FromStr for StageRecipe {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "stored" => Ok(Self::Stored),
            "bf16" => Ok(Self::Bf16),
            "fp8" => Ok(Self::Fp8),
            "int8" => Ok(Self::Int8),
            "int4" => Ok(Self::Int4),
            other => Err(format!("`{other}` is no recipe; use stored, bf16, fp8, int8 or int4")),
        }
    }
}

impl fmt::Display for StagePrecision {
    /// `int8+kv-bf16`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+kv-{}", self.recipe, self.kv)
    }
}

impl fmt::Display for Precision {
    /// `int8+kv-bf16/int4+kv-fp8`: prefill before the slash, decode after it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.prefill, self.decode)
    }
}
