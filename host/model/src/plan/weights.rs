//! Bytes of a model's weights under a recipe, with the sums that they come from. Knows neither GPUs nor KV.

use super::format::HeldFormat;
use super::recipe::WeightRecipe;
use super::tensors::TensorGroup;
use super::text::{counted, thousands};

/// Which layers are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// The layers that every token passes.
    Model,
    /// Those, and the layers for multi-token prediction.
    ModelAndPrediction,
    PredictionAlone,
}

impl Counted {
    fn copies(self, group: &TensorGroup) -> u64 {
        match self {
            Self::Model => group.count,
            Self::ModelAndPrediction => group.count + group.prediction_count,
            Self::PredictionAlone => group.prediction_count,
        }
    }
}

/// All tensors that are held in one format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatSum {
    pub format: HeldFormat,
    pub parameters: u64,
    pub code_bytes: u64,
    pub scales: u64,
}

impl FormatSum {
    pub fn bytes(&self) -> u64 {
        self.code_bytes + self.scales * self.format.scale_bytes()
    }

    fn formula(&self) -> String {
        let (parameters, bits) = (thousands(self.parameters), self.format.code_bits());
        let codes = match bits {
            _ if self.code_bytes * 8 != self.parameters * bits => {
                format!("{parameters} x {bits} bit in {} B of whole words", thousands(self.code_bytes))
            }
            4 => format!("{parameters} x 0.5 B"),
            bits => format!("{parameters} x {} B", bits / 8),
        };
        match self.format.scale_bytes() {
            0 => format!("{codes} ({})", self.format),
            bytes => format!("{codes} + {} x {bytes} B ({})", counted(self.scales, "scale"), self.format),
        }
    }
}

/// Weights under a recipe: one sum per format that occurs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightBytes {
    pub sums: Vec<FormatSum>,
}

impl WeightBytes {
    /// Counts `groups`.
    pub fn of(groups: &[TensorGroup], recipe: WeightRecipe, counted: Counted) -> Self {
        Self::of_those(groups, recipe, counted, |_| true)
    }

    /// Counts what engines leave whole on every GPU of a tensor-parallel group.
    pub fn whole_per_gpu(groups: &[TensorGroup], recipe: WeightRecipe, counted: Counted) -> Self {
        Self::of_those(groups, recipe, counted, |group| group.class.is_whole_per_gpu())
    }

    /// Counts what two recipes hold in the same format, so that two stages in one process share it.
    pub fn shared(groups: &[TensorGroup], [one, other]: [WeightRecipe; 2], counted: Counted) -> Self {
        Self::of_those(groups, one, counted, |group| one.format_of(group.class) == other.format_of(group.class))
    }

    fn of_those(
        groups: &[TensorGroup],
        recipe: WeightRecipe,
        counted: Counted,
        is_counted: impl Fn(&TensorGroup) -> bool,
    ) -> Self {
        let mut sums: Vec<FormatSum> = Vec::new();
        for group in groups.iter().filter(|group| is_counted(group)) {
            let (format, copies) = (recipe.format_of(group.class), counted.copies(group));
            let (rows, cols) = (group.rows, group.cols);
            let index = sums.iter().position(|sum| sum.format == format).unwrap_or_else(|| {
                sums.push(FormatSum { format, parameters: 0, code_bytes: 0, scales: 0 });
                sums.len() - 1
            });
            if let Some(sum) = sums.get_mut(index) {
                sum.parameters += rows * cols * copies;
                sum.code_bytes += format.code_bytes(rows, cols) * copies;
                sum.scales += format.scales(rows, cols) * copies;
            }
        }
        sums.retain(|sum| sum.parameters > 0);
        sums.sort_by_key(|sum| std::cmp::Reverse(sum.bytes()));
        Self { sums }
    }

    pub fn bytes(&self) -> u64 {
        self.sums.iter().map(FormatSum::bytes).sum()
    }

    /// Where the bytes come from: `1,014 x 0.5 B + 31 scales x 2 B (int4-g32) + 11 x 2 B (bf16)`.
    pub fn formula(&self) -> String {
        let sums: Vec<String> = self.sums.iter().map(FormatSum::formula).collect();
        if sums.is_empty() { "0".to_owned() } else { sums.join(" + ") }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tensors::TensorClass;
    use super::*;

    fn groups() -> Vec<TensorGroup> {
        let group =
            |name, class, rows, cols, (count, prediction_count)| TensorGroup { name, class, rows, cols, count, prediction_count };
        vec![
            group("lm_head", TensorClass::Head, 100, 64, (1, 0)),
            group("mlp.gate", TensorClass::Router, 4, 64, (2, 1)),
            group("mlp.gate.e_score_correction_bias", TensorClass::CorrectionBias, 1, 4, (2, 1)),
            group("mlp.experts.*.up_proj", TensorClass::RoutedExperts, 32, 64, (8, 4)),
        ]
    }

    #[test]
    fn sums_meet_their_formula() {
        let recipe: WeightRecipe = "int4-g32:kimi".parse().unwrap();
        let bytes = WeightBytes::of(&groups(), recipe, Counted::Model);
        let wanted = 6400 * 2 + 2 * 256 * 2 + 2 * 4 * 4 + 8 * (32 * 64 / 2 + 32 * 2 * 2);
        assert_eq!(bytes.bytes(), wanted);
        let formula = "6,912 x 2 B (bf16) + 16,384 x 0.5 B + 512 scales x 2 B (int4-g32) + 8 x 4 B (f32)";
        assert_eq!(bytes.formula(), formula);
        let prediction = WeightBytes::of(&groups(), recipe, Counted::PredictionAlone);
        assert_eq!(prediction.bytes(), 256 * 2 + 4 * 4 + 4 * (32 * 64 / 2 + 32 * 2 * 2));
        let both = WeightBytes::of(&groups(), recipe, Counted::ModelAndPrediction);
        assert_eq!(both.bytes(), bytes.bytes() + prediction.bytes());
    }

    #[test]
    fn what_is_shared_and_what_is_whole() {
        let recipes: [WeightRecipe; 2] = ["fp8".parse().unwrap(), "int4-g32:kimi".parse().unwrap()];
        let shared = WeightBytes::shared(&groups(), recipes, Counted::Model);
        assert_eq!(shared.bytes(), 6400 * 2 + 2 * 256 * 2 + 2 * 4 * 4);
        assert_eq!(shared, WeightBytes::shared(&groups(), [recipes[1], recipes[0]], Counted::Model));
        let whole = WeightBytes::whole_per_gpu(&groups(), recipes[0], Counted::Model);
        assert_eq!(whole.bytes(), 2 * 256 * 2 + 2 * 4 * 4);
        assert_eq!(WeightBytes::of(&[], WeightRecipe::BF16, Counted::Model).formula(), "0");
    }

    #[test]
    fn codes_that_fill_no_word_are_said() {
        let group = TensorGroup { name: "x", class: TensorClass::RoutedExperts, rows: 2, cols: 9, count: 1, prediction_count: 0 };
        let bytes = WeightBytes::of(&[group], "int4-g32".parse().unwrap(), Counted::Model);
        assert_eq!(bytes.bytes(), 16 + 4);
        assert_eq!(bytes.formula(), "18 x 4 bit in 16 B of whole words + 2 scales x 2 B (int4-g32)");
    }
}
