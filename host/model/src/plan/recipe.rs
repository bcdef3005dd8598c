//! Which tensors a recipe puts into which format. Knows classes of tensors, no shapes.

use std::fmt;
use std::str::FromStr;

use super::format::HeldFormat;
use super::tensors::{TensorClass, TensorGroup};
use super::text::shown;

/// What of a model a recipe puts into its format; the rest is BF16, and correction biases are f32 in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Coverage {
    /// Routed experts alone, as Kimi K2.6 is published in INT4.
    Kimi,
    /// Every projection of the layers, as GLM-5.2-FP8 is published: not the head, embeddings, norms, routers, the indexer's
    /// `weights_proj` and `eh_proj`.
    Glm,
    /// As `Glm`, but `kv_b_proj` stays BF16: what Millrace holds when it quantizes while loading, because attention over latents
    /// takes that projection apart.
    Generic,
}

/// A format for the weights of a stage and what it covers.
///
/// As text: `bf16`, or a format (`fp8`, `fp8-channel`, `int8`, `int4-g32`, `int4-g64`, `int4-g128`) and, after a colon, what it
/// covers (`kimi`, `glm`, `generic`; the last where nothing is said).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WeightRecipe {
    pub format: HeldFormat,
    pub coverage: Coverage,
}

impl Coverage {
    fn holds(self, class: TensorClass) -> bool {
        use TensorClass as C;
        match (self, class) {
            (_, C::RoutedExperts) => true,
            (Self::Kimi, _) | (Self::Generic, C::Absorbed) => false,
            (_, C::Attention | C::Compression | C::Absorbed | C::Indexer | C::DenseMlp | C::SharedExperts) => true,
            _ => false,
        }
    }
}

impl WeightRecipe {
    pub const BF16: Self = Self { format: HeldFormat::Bf16, coverage: Coverage::Generic };

    /// The format of a tensor of this class.
    pub fn format_of(self, class: TensorClass) -> HeldFormat {
        match class {
            TensorClass::CorrectionBias => HeldFormat::F32,
            class if self.coverage.holds(class) => self.format,
            _ => HeldFormat::Bf16,
        }
    }

    /// Those worth comparing for a model with these tensors, widest first; no two of them are the same there.
    pub fn usual(groups: &[TensorGroup]) -> Vec<Self> {
        let has = |class: TensorClass| groups.iter().any(|group| group.class == class);
        let whole_layers = [Coverage::Glm, Coverage::Generic].into_iter();
        let whole_layers = whole_layers.filter(|coverage| *coverage == Coverage::Generic || has(TensorClass::Absorbed));
        let covers: Vec<Coverage> = whole_layers.collect();
        let experts = Some(Coverage::Kimi).filter(|_| has(TensorClass::RoutedExperts));
        let mut recipes = vec![Self::BF16];
        for format in [HeldFormat::Fp8Block, HeldFormat::Fp8Channel, HeldFormat::Int8] {
            recipes.extend(covers.iter().map(|&coverage| Self { format, coverage }));
        }
        for coverage in experts.into_iter().chain(covers) {
            recipes.extend([32, 64, 128].map(|group| Self { format: HeldFormat::Int4 { group }, coverage }));
        }
        recipes
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kimi => "kimi",
            Self::Glm => "glm",
            Self::Generic => "generic",
        })
    }
}

impl fmt::Display for WeightRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.format {
            HeldFormat::Bf16 => f.write_str("bf16"),
            format => write!(f, "{format}:{}", self.coverage),
        }
    }
}

impl FromStr for WeightRecipe {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (format, coverage) = text.split_once(':').unwrap_or((text, "generic"));
        let format = match format {
            "bf16" => HeldFormat::Bf16,
            "fp8" => HeldFormat::Fp8Block,
            "fp8-channel" => HeldFormat::Fp8Channel,
            "int8" => HeldFormat::Int8,
            "int4-g32" => HeldFormat::Int4 { group: 32 },
            "int4-g64" => HeldFormat::Int4 { group: 64 },
            "int4-g128" => HeldFormat::Int4 { group: 128 },
            "int4" => return Err("`int4` says no group; use int4-g32, int4-g64 or int4-g128".to_owned()),
            "stored" => {
                let why = "a plan sees no checkpoint, so it does not know what is stored";
                return Err(format!("{why}; GLM-5.2-FP8 stores fp8:glm, Kimi K2.6 stores int4-g32:kimi"));
            }
            other => {
                let known = "bf16, fp8, fp8-channel, int8, int4-g32, int4-g64 or int4-g128";
                return Err(format!("`{}` is no weight format; use {known}", shown(other)));
            }
        };
        let coverage = match coverage {
            "kimi" => Coverage::Kimi,
            "glm" => Coverage::Glm,
            "generic" => Coverage::Generic,
            other => {
                let known = "kimi (routed experts alone), glm (projections of layers) or generic (the same without kv_b_proj)";
                return Err(format!("`{}` is not what a format covers; use {known}", shown(other)));
            }
        };
        Ok(if format == HeldFormat::Bf16 { Self::BF16 } else { Self { format, coverage } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_are_read_as_they_are_written() {
        let group = |class| TensorGroup { name: "x", class, rows: 1, cols: 1, count: 1, prediction_count: 0 };
        let usual = WeightRecipe::usual(&[group(TensorClass::RoutedExperts), group(TensorClass::Absorbed)]);
        assert_eq!(usual.len(), 16);
        for recipe in usual {
            assert_eq!(recipe.to_string().parse::<WeightRecipe>(), Ok(recipe));
        }
        assert_eq!(WeightRecipe::usual(&[group(TensorClass::DenseMlp)]).len(), 7);
        assert_eq!("int4-g64".parse::<WeightRecipe>().unwrap().to_string(), "int4-g64:generic");
        assert_eq!("bf16:kimi".parse::<WeightRecipe>(), Ok(WeightRecipe::BF16));
        let cases = [("int4", "group"), ("int4-g16", "int4-g32"), ("stored", "fp8:glm"), ("fp8:all", "kimi"), ("", "bf16")];
        for (text, named) in cases {
            let message = text.parse::<WeightRecipe>().unwrap_err();
            assert!(message.contains(named), "{text}: {message}");
        }
        for text in ["fp8:a\nb", "-1\r\n", "["] {
            assert!(!text.parse::<WeightRecipe>().unwrap_err().contains(['\n', '\r']), "{text}");
        }
    }

    #[test]
    fn what_is_kept_in_higher_precision() {
        use TensorClass as C;
        let format = |text: &str, class| text.parse::<WeightRecipe>().unwrap().format_of(class);
        for class in [C::Embedding, C::Head, C::Norm, C::Router, C::IndexerWeights, C::PredictionInput] {
            for text in ["fp8:kimi", "fp8:glm", "fp8"] {
                assert_eq!(format(text, class), HeldFormat::Bf16, "{text} {class:?}");
            }
        }
        for class in [C::Attention, C::Compression, C::Indexer, C::DenseMlp, C::SharedExperts] {
            assert_eq!(format("fp8:glm", class), HeldFormat::Fp8Block, "{class:?}");
            assert_eq!(format("fp8", class), HeldFormat::Fp8Block, "{class:?}");
            assert_eq!(format("fp8:kimi", class), HeldFormat::Bf16, "{class:?}");
        }
        assert_eq!(format("fp8:glm", C::Absorbed), HeldFormat::Fp8Block);
        assert_eq!(format("fp8", C::Absorbed), HeldFormat::Bf16);
        assert_eq!(format("int4-g32:kimi", C::RoutedExperts), HeldFormat::Int4 { group: 32 });
        assert_eq!(format("bf16", C::CorrectionBias), HeldFormat::F32);
    }
}
