//! `config_groups` of compressed-tensors: which modules are quantized, and how. Knows the config, not the tensors.
//!
//! Source: compressed-tensors 0.20.1, quantization/{quant_config,quant_scheme,quant_args}.py.

use serde_json::Value;

use super::patterns::{Match, Patterns};
use super::{Fp8Scaling, Scheme, refused};
use crate::CheckpointError;
use crate::checkpoint::config::Config;

/// More groups than any config has.
const MAX_GROUPS: usize = 256;

/// One group that quantizes weights.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(super) name: String,
    pub(super) targets: Patterns,
    pub(super) scheme: Scheme,
}

/// All groups that quantize weights; those that only describe activations or KV are left out.
pub(super) fn read(section: &Config) -> Result<Vec<Group>, CheckpointError> {
    let format = section.text("format")?;
    let Some(Value::Object(names)) = section.value("config_groups") else {
        return Err(section.wrong("config_groups", "is missing or no object"));
    };
    let all = section.section("config_groups")?.ok_or_else(|| section.wrong("config_groups", "is missing"))?;
    if names.len() > MAX_GROUPS {
        return Err(section.wrong("config_groups", format!("holds {} groups, more than {MAX_GROUPS}", names.len())));
    }
    let mut groups = Vec::new();
    for name in names.keys() {
        let Some(Value::Object(_)) = all.value(name) else {
            return Err(all.wrong(name, "is no object with `targets` and `weights`"));
        };
        let Some(group) = all.section(name)? else { continue };
        let Some(weights) = group.section("weights")? else { continue };
        let own = group.text("format")?.or(format);
        let scheme = read_scheme(&weights, own)?;
        groups.push(Group { name: name.clone(), targets: Patterns::read(&group, "targets")?, scheme });
    }
    Ok(groups)
}

fn read_scheme(weights: &Config, format: Option<&str>) -> Result<Scheme, CheckpointError> {
    let known = ["pack-quantized", "float-quantized", "naive-quantized", "mixed-precision"];
    if let Some(other) = format.filter(|format| !known.contains(format)) {
        return Err(refused(weights, format!("compressed-tensors format {other}")));
    }
    let format = format.ok_or_else(|| refused(weights, "compressed-tensors without a `format`".to_owned()))?;
    let bits = weights.optional_size("num_bits")?.unwrap_or(8);
    let kind = weights.text("type")?.unwrap_or("int");
    if bits == 4 && kind == "int" && ["pack-quantized", "mixed-precision"].contains(&format) {
        let symmetric = weights.value("symmetric").and_then(Value::as_bool).unwrap_or(true);
        return Ok(Scheme::Int4 { group: group_size(weights)?, zero_points: !symmetric });
    }
    if bits == 8 && kind == "float" && format != "pack-quantized" {
        return Ok(Scheme::Fp8 { scaling: Some(fp8_scaling(weights)?) });
    }
    Err(refused(weights, format!("{format} weights with {bits} bits of type {kind}")))
}

/// Columns of a group; None: one group per row.
fn group_size(weights: &Config) -> Result<Option<usize>, CheckpointError> {
    let said = weights.value("group_size");
    let strategy = weights.text("strategy")?;
    match strategy {
        None | Some("group") if said.is_some_and(|size| size.as_i64() != Some(-1)) => weights.size("group_size").map(Some),
        None if said.is_none() => Ok(None),
        None | Some("channel") => Ok(None),
        Some("group") => Err(weights.wrong("group_size", "is missing, but the strategy is `group`")),
        Some(other) => Err(refused(weights, format!("INT4 with the strategy {other}"))),
    }
}

fn fp8_scaling(weights: &Config) -> Result<Fp8Scaling, CheckpointError> {
    let block = weights.value("block_structure").map(ToString::to_string);
    match (weights.text("strategy")?, block.as_deref()) {
        (None | Some("tensor"), None) => Ok(Fp8Scaling::Tensor),
        (Some("channel"), _) => Ok(Fp8Scaling::Channel),
        (None | Some("block"), Some("[128,128]" | "\"128x128\"")) => Ok(Fp8Scaling::Block),
        (None | Some("block"), block) => {
            Err(refused(weights, format!("FP8 with block_structure {}", block.unwrap_or("missing"))))
        }
        (Some(other), _) => Err(refused(weights, format!("FP8 with the strategy {other}"))),
    }
}

/// The groups that target a module most surely. Where none does, those that might.
pub(super) fn targeting<'a>(groups: &'a [Group], spellings: &[String]) -> Vec<&'a Group> {
    let matched: Vec<(Match, &Group)> = groups.iter().map(|group| (group.targets.find(spellings), group)).collect();
    let best = matched.iter().map(|(sure, _)| *sure).max().unwrap_or(Match::No);
    matched.into_iter().filter(|(sure, _)| *sure == best && best > Match::No).map(|(_, group)| group).collect()
}
