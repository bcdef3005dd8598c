//! Precisions as they are written on the command line: `[COMPUTE:]PREFILL[/DECODE]`, each stage `RECIPE[+kv-FORMAT]`, as
//! `int8+kv-bf16/int4+kv-fp8`. The same words that answers and logs show. Knows no model.

use millrace_core::{KvFormat, Precision, StagePrecision, StageRecipe};
use millrace_cpu::CpuCompute;

use crate::bench::parse_kv;

/// One side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Side {
    /// As the command says elsewhere where not given.
    pub(super) compute: Option<CpuCompute>,
    pub(super) prefill: StageWish,
    /// As prefill where not given.
    pub(super) decode: Option<StageWish>,
}

/// What a stage is wanted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StageWish {
    pub(super) recipe: StageRecipe,
    pub(super) kv: Option<KvFormat>,
}

impl std::str::FromStr for Side {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (compute, stages) = match text.split_once(':') {
            Some((compute, stages)) => (Some(parse_compute(compute)?), stages),
            None => (None, text),
        };
        let (prefill, decode) = match stages.split_once('/') {
            Some((prefill, decode)) => (prefill, Some(decode.parse()?)),
            None => (stages, None),
        };
        Ok(Self { compute, prefill: prefill.parse()?, decode })
    }
}

impl std::str::FromStr for StageWish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (recipe, kv) = match text.split_once('+') {
            Some((recipe, rest)) => {
                let kv = rest.strip_prefix("kv-").ok_or_else(|| {
                    format!("`{text}` is no stage's precision; write RECIPE or RECIPE+kv-FORMAT, as int4+kv-fp8")
                })?;
                (recipe, Some(parse_kv(kv)?))
            }
            None => (text, None),
        };
        Ok(Self { recipe: recipe.parse()?, kv })
    }
}

impl StageWish {
    pub(super) fn precision(self, compute: CpuCompute) -> StagePrecision {
        StagePrecision { recipe: self.recipe, kv: self.kv.unwrap_or(default_kv(compute)) }
    }
}

/// Where the command line names no KV format.
pub(super) fn default_kv(compute: CpuCompute) -> KvFormat {
    match compute {
        CpuCompute::Reference => KvFormat::F32,
        CpuCompute::Fast | CpuCompute::Precise => KvFormat::Bf16,
    }
}

/// `reference:bf16+kv-f32/bf16+kv-f32`.
pub(super) fn describe(compute: CpuCompute, precision: &Precision) -> String {
    format!("{}:{precision}", compute_name(compute))
}

fn compute_name(compute: CpuCompute) -> &'static str {
    match compute {
        CpuCompute::Reference => "reference",
        CpuCompute::Fast => "fast",
        CpuCompute::Precise => "precise",
    }
}

pub(super) fn parse_compute(text: &str) -> Result<CpuCompute, String> {
    match text {
        "reference" => Ok(CpuCompute::Reference),
        "fast" => Ok(CpuCompute::Fast),
        "precise" => Ok(CpuCompute::Precise),
        other => Err(format!("`{other}` is no way to compute; use reference, fast or precise")),
    }
}

pub(super) fn parse_device(text: &str) -> Result<String, String> {
    match text {
        "cpu" => Ok(text.to_owned()),
        other => Err(format!("`{other}` is no device of this build; use cpu")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_written() {
        let side: Side = "fast:int8+kv-bf16/int4+kv-fp8".parse().expect("a side");
        let (prefill, decode) = (side.prefill.precision(CpuCompute::Fast), side.decode.expect("two stages"));
        let precision = Precision { prefill, decode: decode.precision(CpuCompute::Fast) };
        assert_eq!(describe(side.compute.expect("given"), &precision), "fast:int8+kv-bf16/int4+kv-fp8");
        let plain: Side = "bf16".parse().expect("a side");
        assert_eq!((plain.compute, plain.decode), (None, None));
        assert_eq!(plain.prefill.precision(CpuCompute::Reference).to_string(), "bf16+kv-f32");
        assert_eq!(plain.prefill.precision(CpuCompute::Fast).to_string(), "bf16+kv-bf16");
    }

    #[test]
    fn what_is_none_says_what_to_write() {
        for (text, wanted) in [
            ("int9", "`int9` is no recipe"),
            ("int8+bf16", "RECIPE+kv-FORMAT"),
            ("int8+kv-int4", "`int4` is no KV format"),
            ("int8/", "`` is no recipe"),
            ("int8/int4/int4", "`int4/int4` is no recipe"),
            ("slow:int8", "`slow` is no way to compute"),
            ("", "`` is no recipe"),
        ] {
            let error = text.parse::<Side>().expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
