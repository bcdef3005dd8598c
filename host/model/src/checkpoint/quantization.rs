//! How a hub checkpoint says it was quantized. Knows the scheme's parameters, not the tensors.
//!
//! Sources: `quantization_config` of transformers (FineGrainedFP8Config, CompressedTensorsConfig).

use crate::CheckpointError;
use crate::checkpoint::config::Config;

/// Scheme of the quantized tensors; the others are stored as floats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Quantization {
    None,
    /// e4m3 codes with an f32 scale per 128x128 block.
    Fp8Blocks,
    /// compressed-tensors `pack-quantized`, 4 bit, symmetric; the group sizes that the config names (None: one per row).
    PackedInt4 {
        groups: Vec<Option<usize>>,
    },
}

impl Quantization {
    /// # Errors
    /// [`CheckpointError::Unsupported`] for every other scheme, by name; [`CheckpointError::Config`] for impossible values.
    pub(crate) fn read(config: &Config) -> Result<Self, CheckpointError> {
        let Some(section) = config.section("quantization_config")? else { return Ok(Self::None) };
        let instead = "use a checkpoint in BF16, FP8 with 128x128 blocks, or compressed-tensors pack-quantized INT4";
        let refuse = |what: String| Err(CheckpointError::unsupported(config.path(), what, instead));
        match section.text("quant_method")? {
            Some("fp8") => match section.value("weight_block_size").map(ToString::to_string).as_deref() {
                Some("[128,128]") => Ok(Self::Fp8Blocks),
                other => refuse(format!("FP8 with weight_block_size {}", other.unwrap_or("missing"))),
            },
            Some("compressed-tensors") => match section.text("format")? {
                Some("pack-quantized") => read_groups(&section, refuse),
                other => refuse(format!("compressed-tensors format {}", other.unwrap_or("missing"))),
            },
            Some("awq") => refuse("AWQ quantization".to_owned()),
            Some("gptq") => refuse("GPTQ quantization".to_owned()),
            other => refuse(format!("quantization method {}", other.unwrap_or("missing"))),
        }
    }
}

fn read_groups(
    section: &Config,
    refuse: impl Fn(String) -> Result<Quantization, CheckpointError>,
) -> Result<Quantization, CheckpointError> {
    let Some(groups) = section.value("config_groups").and_then(|g| g.as_object()) else {
        return Err(section.wrong("config_groups", "is missing or no object"));
    };
    let Some(all) = section.section("config_groups")? else { return Err(section.wrong("config_groups", "is missing")) };
    let mut sizes = Vec::new();
    for name in groups.keys() {
        let Some(weights) = all.section(name)?.map(|group| group.section("weights")).transpose()?.flatten() else {
            return Err(all.wrong(name, "has no `weights`"));
        };
        let bits = weights.size("num_bits")?;
        let kind = weights.text("type")?.unwrap_or("int");
        if bits != 4 || kind != "int" {
            return refuse(format!("pack-quantized with {bits} bits of type {kind}"));
        }
        if weights.value("symmetric").and_then(serde_json::Value::as_bool) == Some(false) {
            return refuse("asymmetric pack-quantized (zero points)".to_owned());
        }
        sizes.push(weights.optional_size("group_size")?);
    }
    Ok(Quantization::PackedInt4 { groups: sizes })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(quantization: &str) -> Result<Quantization, CheckpointError> {
        let text = format!(r#"{{"model_type":"llama","quantization_config":{quantization}}}"#);
        Quantization::read(&Config::from_json(Path::new("config.json"), &text).unwrap())
    }

    #[test]
    fn schemes_that_are_read() {
        assert_eq!(read("null").unwrap(), Quantization::None);
        assert_eq!(read(r#"{"quant_method":"fp8","weight_block_size":[128,128]}"#).unwrap(), Quantization::Fp8Blocks);
        let int4 = r#"{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{
            "a":{"weights":{"num_bits":4,"type":"int","symmetric":true,"group_size":32}},
            "b":{"weights":{"num_bits":4,"group_size":null}}}}"#;
        assert_eq!(read(int4).unwrap(), Quantization::PackedInt4 { groups: vec![Some(32), None] });
    }

    #[test]
    fn other_schemes_are_refused_by_name() {
        let cases = [
            (r#"{"quant_method":"awq"}"#, "AWQ"),
            (r#"{"quant_method":"gptq"}"#, "GPTQ"),
            (r#"{"quant_method":"bitsandbytes"}"#, "bitsandbytes"),
            (r#"{"quant_method":"fp8","weight_block_size":[64,64]}"#, "[64,64]"),
            (r#"{"quant_method":"fp8"}"#, "missing"),
            (r#"{"quant_method":"compressed-tensors","format":"float-quantized"}"#, "float-quantized"),
            (
                r#"{"quant_method":"compressed-tensors","format":"pack-quantized",
                    "config_groups":{"a":{"weights":{"num_bits":8}}}}"#,
                "8 bits",
            ),
            (
                r#"{"quant_method":"compressed-tensors","format":"pack-quantized",
                    "config_groups":{"a":{"weights":{"num_bits":4,"symmetric":false}}}}"#,
                "asymmetric",
            ),
            (r#"{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"a":{}}}"#, "weights"),
        ];
        for (quantization, named) in cases {
            let message = read(quantization).unwrap_err().to_string();
            assert!(message.contains(named), "{message}");
        }
    }
}
