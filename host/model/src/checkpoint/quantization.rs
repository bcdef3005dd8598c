//! How a hub checkpoint says it was quantized. Knows the config, not the tensors: what a tensor is, its file says; this says
//! whether the config agrees.
//!
//! | stored | the config must |
//! |---|---|
//! | floats | say nothing: embeddings, norms and routers are floats in every quantized checkpoint, and lists of kept modules are often incomplete |
//! | floats beside a `weight_scale` | not say that the module is quantized: it was saved before its values were |
//! | FP8 or packed INT4 | name a scheme for the module that agrees in type, groups and zero points, and not list it as kept |
//!
//! vLLM and transformers allocate what the config says and fail, or load nonsense, where the file holds something else; the
//! first line is the one case in which reading on is exact.
//!
//! Sources: `quantization_config` of transformers (FineGrainedFP8Config, CompressedTensorsConfig) and of AutoFP8
//! (`ignored_layers`, one scale per tensor).

mod expressions;
mod groups;
mod patterns;

use std::fmt;

use groups::Group;
use patterns::{Match, Modules, Patterns, spellings};

use serde_json::{Value, json};

use crate::CheckpointError;
use crate::checkpoint::config::Config;

/// What is read, for messages that refuse something else.
pub(super) const READ_INSTEAD: &str = "read are BF16, F16 and F32, FP8 e4m3 with 128x128 blocks or a scale per channel or tensor, \
    compressed-tensors pack-quantized INT4, and GGUF in F32, F16, BF16, Q8_0, Q4_0 and Q4_1; use this model in one of those";

/// What an FP8 scale belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fp8Scaling {
    /// 128x128 values.
    Block,
    /// A row.
    Channel,
    Tensor,
}

/// How weights are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// e4m3 codes. `scaling` None: as stored.
    Fp8 { scaling: Option<Fp8Scaling> },
    /// Packed 4-bit codes. `group`: columns that share a scale, None: a whole row.
    Int4 { group: Option<usize>, zero_points: bool },
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fp8 { scaling } => f.write_str(match scaling {
                Some(Fp8Scaling::Block) => "FP8 with 128x128 blocks",
                Some(Fp8Scaling::Channel) => "FP8 with a scale per channel",
                Some(Fp8Scaling::Tensor) => "FP8 with a scale per tensor",
                None => "FP8",
            }),
            Self::Int4 { group, zero_points } => {
                match group {
                    Some(group) => write!(f, "INT4 in groups of {group}")?,
                    None => f.write_str("INT4 with one group per row")?,
                }
                f.write_str(if *zero_points { " with zero points" } else { " without zero points" })
            }
        }
    }
}

/// The `quantization_config` of a checkpoint.
#[derive(Debug, Clone)]
pub(crate) enum Quantization {
    None,
    Fp8 { scheme: Scheme, kept: Modules },
    Groups { groups: Vec<Group>, ignore: Patterns },
}

impl Quantization {
    /// # Errors
    /// [`CheckpointError::Unsupported`] for every other scheme, by name; [`CheckpointError::Config`] for impossible values.
    pub(crate) fn read(config: &Config) -> Result<Self, CheckpointError> {
        let Some(section) = section(config)? else { return Ok(Self::None) };
        match section.text("quant_method")? {
            Some("fp8") => read_fp8(&section),
            Some("compressed-tensors") => {
                if section.value("transform_config").is_some_and(|value| *value != Value::Null && *value != json!({})) {
                    return Err(refused(&section, "compressed-tensors with a `transform_config` (rotated weights)".to_owned()));
                }
                Ok(Self::Groups { groups: groups::read(&section)?, ignore: Patterns::read(&section, "ignore")? })
            }
            Some(other) => Err(refused(&section, format!("quantization by {}", method_name(other)))),
            None => Err(section.wrong("quant_method", "is missing")),
        }
    }

    /// Schemes that a stored FP8 or INT4 tensor of `module` may have by the config, with the config's name for each.
    ///
    /// # Errors
    /// Why the config contradicts a quantized tensor there; else at least one scheme.
    pub(crate) fn schemes(&self, module: &str) -> Result<Vec<(&str, Scheme)>, String> {
        let module = spellings(module);
        match self {
            Self::None => Err("but the config has no quantization_config".to_owned()),
            Self::Fp8 { kept, .. } if kept.hold(&module) => Err("but the config lists its module as not converted".to_owned()),
            Self::Fp8 { scheme, .. } => Ok(vec![("quant_method fp8", *scheme)]),
            Self::Groups { ignore, .. } if ignore.find(&module) > Match::Perhaps => {
                Err("but the config's `ignore` lists its module".to_owned())
            }
            Self::Groups { groups, .. } => match groups::targeting(groups, &module) {
                none if none.is_empty() => Err("but no group of the config's `config_groups` targets its module".to_owned()),
                some => Ok(some.into_iter().map(|group| (group.name.as_str(), group.scheme)).collect()),
            },
        }
    }
}

/// Under its name, or the first one that compressed-tensors gave it.
fn section(config: &Config) -> Result<Option<Config>, CheckpointError> {
    match config.section("quantization_config")? {
        Some(section) => Ok(Some(section)),
        None => config.section("compression_config"),
    }
}

/// With `weight_block_size` blocks; without, what is stored: AutoFP8 and Mistral write one scale per tensor.
fn read_fp8(section: &Config) -> Result<Quantization, CheckpointError> {
    if let Some(other) = section.text("fmt")?.filter(|fmt| *fmt != "e4m3") {
        return Err(refused(section, format!("FP8 of the type {other}")));
    }
    let scaling = match section.value("weight_block_size").map(ToString::to_string).as_deref() {
        Some("[128,128]") => Some(Fp8Scaling::Block),
        None => None,
        Some(other) => return Err(refused(section, format!("FP8 with weight_block_size {other}"))),
    };
    let key = if section.value("modules_to_not_convert").is_some() { "modules_to_not_convert" } else { "ignored_layers" };
    Ok(Quantization::Fp8 { scheme: Scheme::Fp8 { scaling }, kept: Modules::read(section, key)? })
}

fn refused(section: &Config, what: String) -> CheckpointError {
    CheckpointError::unsupported(section.path(), what, READ_INSTEAD)
}

/// What [`Quantization::schemes`] gave, for a message.
pub(crate) fn spoken(schemes: &[(&str, Scheme)]) -> String {
    let each: Vec<String> = schemes.iter().take(4).map(|(name, scheme)| format!("{scheme} (`{name}`)")).collect();
    each.join(" or ")
}

/// A method's name as people write it.
fn method_name(method: &str) -> String {
    match method {
        "awq" => "AWQ".to_owned(),
        "gptq" | "gptq_marlin" => "GPTQ".to_owned(),
        "mxfp4" => "MXFP4".to_owned(),
        "modelopt" | "modelopt_fp4" => format!("{method} (NVFP4 or FP8 of NVIDIA's model optimizer)"),
        other => other.chars().take(64).collect(),
    }
}

#[cfg(test)]
mod tests;
