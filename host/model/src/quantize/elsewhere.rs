//! What transformers makes of a result. Knows its loader's rules, no config's text and no weights.
//!
//! Found by loading results with transformers 5.24 and compressed-tensors 0.20 (`tests/quantize/loads_elsewhere.py` does it again):
//!
//! | written | transformers |
//! |---|---|
//! | hub FP8, without an FP8 GPU or with `dequantize=True` | divides rows and columns evenly by the number of scales, so a size of more than 128 that 128 does not divide has other blocks: values are wrong, and nothing says so, or, where the number does not divide it either, the checkpoint is refused |
//! | hub FP8, with an FP8 GPU | any size, but for gate and up of experts, whose rows it joins before it counts blocks; holds a layer's experts as one tensor: all FP8, or, where `modules_to_not_convert` names `.experts` itself, all floats |
//! | compressed-tensors FP8 | any size; of experts only those of one block |
//! | compressed-tensors, experts | reads all of them by one group: the first with an expression that contains `experts`, else the first with a name or class. INT4 groups refuse floats or leave them random; FP8 groups pass floats on |
//! | compressed-tensors, dense, with `dequantize=True` | reads all of them by one group: the first without such an expression |
//!
//! So FP8 is written as compressed-tensors where sizes ask for it and experts allow it, and floats that are all of a model's experts
//! get an FP8 group of their own, which `ignore` overrules for every reader that asks it. What remains is said in the report.

use std::collections::BTreeMap;
use std::fmt;

use super::QuantizedFormat;
use super::plan::{BLOCK, Matrix, Modules};
use super::rule::{Part, loaded_as_one, part_of};

/// The program that is spoken of, for messages.
const LOADER: &str = "transformers 5.24";

/// How quantized tensors are named and described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    /// `weight_scale_inv`, `quant_method` fp8.
    HubFp8,
    /// `weight_scale`, `config_groups`.
    CompressedTensors,
}

impl Container {
    /// The one that other programs can read, of the formats that say the same.
    pub(super) fn of<'a>(format: QuantizedFormat, quantized: impl Iterator<Item = &'a Matrix>) -> Self {
        if format != QuantizedFormat::Fp8Block {
            return Self::CompressedTensors;
        }
        let (mut odd, mut wide_experts) = (false, false);
        for matrix in quantized {
            odd |= matrix.sizes().into_iter().any(is_odd);
            wide_experts |= matrix.is_expert() && !matrix.is_one_block();
        }
        if odd && !wide_experts { Self::CompressedTensors } else { Self::HubFp8 }
    }

    /// Name of the scales of an FP8 tensor.
    pub(super) fn fp8_scale(self, tensor: &str) -> String {
        match self {
            Self::HubFp8 => format!("{tensor}_scale_inv"),
            Self::CompressedTensors => format!("{tensor}_scale"),
        }
    }
}

impl Matrix {
    fn sizes(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    fn is_one_block(&self) -> bool {
        self.rows <= BLOCK && self.cols <= BLOCK
    }

    pub(super) fn is_expert(&self) -> bool {
        part_of(&format!("{}.weight", self.module)) == Some(Part::RoutedExpert)
    }

    /// The module that holds all experts of this one's layer.
    pub(super) fn experts(&self) -> Option<String> {
        self.is_expert().then(|| loaded_as_one(&format!("{}.weight", self.module))).flatten()
    }
}

/// A size that blocks do not fill.
fn is_odd(size: usize) -> bool {
    size > BLOCK && !size.is_multiple_of(BLOCK)
}

/// Matrices that another program does not load as they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere {
    /// Which program does what instead, and what to do.
    pub why: String,
    pub count: usize,
    /// The first module.
    pub example: String,
}

impl Elsewhere {
    fn of<'a>(why: String, matrices: impl Iterator<Item = &'a Matrix>) -> Option<Self> {
        let modules: Vec<&Matrix> = matrices.collect();
        let example = modules.first()?.module.clone();
        Some(Self { why, count: modules.len(), example })
    }
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} matrices, the first {})", self.why, self.count, self.example)
    }
}

/// What a group of compressed-tensors stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    Int4,
    Fp8,
    Floats,
}

/// A group as this loader chooses among them: by its targets alone.
pub(super) struct Chosen<'a> {
    pub(super) targets: &'a [String],
    pub(super) stored: Stored,
}

fn speaks_of_experts(target: &str) -> bool {
    target.starts_with("re:") && target.contains("experts")
}

/// The group that all experts are read by; there is at least one group.
pub(super) fn experts_group(groups: &[Chosen<'_>]) -> Option<Stored> {
    let spoken = groups.iter().find(|group| group.targets.iter().any(|target| speaks_of_experts(target)));
    let named = || groups.iter().find(|group| group.targets.iter().any(|target| !target.starts_with("re:")));
    spoken.or_else(named).or(groups.first()).map(|group| group.stored)
}

/// The group that everything else is read by with `dequantize=True`.
fn dense_group(groups: &[Chosen<'_>]) -> Option<Stored> {
    groups
        .iter()
        .find(|group| !group.targets.iter().any(|target| speaks_of_experts(target)))
        .or(groups.first())
        .map(|group| group.stored)
}

/// What hub FP8 is elsewhere.
pub(super) fn of_hub_fp8(modules: &Modules) -> Vec<Elsewhere> {
    let odd = |matrix: &&Matrix| matrix.sizes().into_iter().any(is_odd);
    let refused = |matrix: &&Matrix| matrix.sizes().into_iter().any(|n| is_odd(n) && !n.is_multiple_of(n.div_ceil(BLOCK)));
    let where_ = "without an FP8 GPU, and with dequantize=True,";
    let advice = "128 does not divide their rows or columns; --keep leaves them in floats";
    let wrong = format!("{LOADER}, {where_} loads other values than these and does not say so: {advice}");
    let no = format!("{LOADER}, {where_} refuses the checkpoint for these: {advice}");
    let quantized = || modules.quantized.iter();
    let mut formats: BTreeMap<String, [bool; 2]> = BTreeMap::new();
    for (matrices, index) in [(&modules.quantized, 0), (&modules.floats, 1)] {
        for layer in matrices.iter().filter_map(Matrix::experts) {
            formats.entry(layer).or_default()[index] = true;
        }
    }
    let split = |matrix: &&Matrix| matrix.experts().and_then(|layer| formats.get(&layer)) == Some(&[true, true]);
    let random = format!("{LOADER}, with an FP8 GPU, refuses these or leaves them random: experts of a layer are FP8 and floats");
    let joined = |matrix: &&Matrix| {
        let is_one = ["gate_proj", "up_proj", "w1", "w3"].iter().any(|name| matrix.module.ends_with(name));
        let both = matrix.rows.saturating_mul(2).div_ceil(BLOCK).max(2);
        is_one && matrix.is_expert() && matrix.rows.div_ceil(BLOCK).saturating_mul(2) != both
    };
    let apart = format!("{LOADER}, with an FP8 GPU, refuses the checkpoint for these: {advice}");
    let found = [
        Elsewhere::of(wrong, quantized().filter(|matrix| odd(matrix) && !refused(matrix))),
        Elsewhere::of(no, quantized().filter(refused)),
        Elsewhere::of(apart, quantized().filter(joined)),
        Elsewhere::of(random, modules.floats.iter().filter(split)),
    ];
    found.into_iter().flatten().collect()
}

/// What a checkpoint of compressed-tensors is elsewhere.
pub(super) fn of_groups(modules: &Modules, format: QuantizedFormat, groups: &[Chosen<'_>]) -> Vec<Elsewhere> {
    let quantized = if format == QuantizedFormat::Fp8Block { Stored::Fp8 } else { Stored::Int4 };
    let all = [(&modules.quantized, quantized), (&modules.fp8, Stored::Fp8), (&modules.floats, Stored::Floats)];
    let all: Vec<(&Matrix, Stored)> =
        all.into_iter().flat_map(|(list, stored)| list.iter().map(move |matrix| (matrix, stored))).collect();
    let (Some(experts), Some(dense)) = (experts_group(groups), dense_group(groups)) else { return Vec::new() };
    let fits = |matrix: &Matrix, stored: Stored| match (experts, stored) {
        (Stored::Int4, stored) => stored == Stored::Int4,
        (_, Stored::Fp8) => matrix.is_one_block(),
        (_, stored) => stored == Stored::Floats,
    };
    let unfit = all.iter().filter(|(matrix, stored)| matrix.is_expert() && !fits(matrix, *stored));
    let reads = match experts {
        Stored::Int4 => "INT4",
        _ => "FP8 of one block, or floats",
    };
    let refused = format!(
        "{LOADER} refuses these or leaves them random: it reads the experts of all layers in one format, here {reads}; give them \
         all the same"
    );
    let other = all.iter().filter(|(matrix, stored)| !matrix.is_expert() && *stored != Stored::Floats && *stored != dense);
    let dequantized = format!(
        "{LOADER} loads these, but not with dequantize=True: it then reads all matrices outside of experts in one format, {}",
        if dense == Stored::Int4 { "INT4" } else { "FP8" }
    );
    let found =
        [Elsewhere::of(refused, unfit.map(|(matrix, _)| *matrix)), Elsewhere::of(dequantized, other.map(|(matrix, _)| *matrix))];
    found.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrices(list: &[(&str, usize, usize)]) -> Vec<Matrix> {
        let matrix =
            |&(module, rows, cols): &(&str, usize, usize)| Matrix { module: format!("model.layers.{module}"), rows, cols };
        list.iter().map(matrix).collect()
    }

    fn container(list: &[(&str, usize, usize)]) -> Container {
        Container::of(QuantizedFormat::Fp8Block, matrices(list).iter())
    }

    /// Sizes and what transformers 5.24 did with a hub FP8 matrix of them on a CPU.
    #[test]
    fn sizes_as_the_loader_takes_them() {
        for (size, wanted) in [
            (64, ""),
            (96, ""),
            (128, ""),
            (256, ""),
            (384, ""),
            (130, "other values"),
            (192, "other values"),
            (200, "other values"),
            (300, "other values"),
            (960, "other values"),
            (257, "refuses"),
            (320, "refuses"),
            (576, "refuses"),
        ] {
            for (rows, cols) in [(size, 128), (128, size)] {
                let modules = Modules { quantized: matrices(&[("0.mlp.up_proj", rows, cols)]), ..Modules::default() };
                let found = of_hub_fp8(&modules);
                assert_eq!(found.len(), usize::from(!wanted.is_empty()), "{rows} x {cols}: {found:?}");
                assert!(found.iter().all(|elsewhere| elsewhere.why.contains(wanted)), "{rows} x {cols}: {found:?}");
            }
        }
    }

    #[test]
    fn fp8_is_written_as_compressed_tensors_only_where_that_helps() {
        let (even, odd) = (("0.mlp.up_proj", 256, 128), ("0.mlp.up_proj", 192, 128));
        let (small, large) = (("1.mlp.experts.0.up_proj", 64, 128), ("1.mlp.experts.0.up_proj", 256, 128));
        assert_eq!(container(&[even, large]), Container::HubFp8);
        assert_eq!(container(&[even, small]), Container::HubFp8);
        assert_eq!(container(&[odd]), Container::CompressedTensors);
        assert_eq!(container(&[odd, small]), Container::CompressedTensors);
        assert_eq!(container(&[odd, large]), Container::HubFp8);
        let int4 = QuantizedFormat::Int4Group { group: 32 };
        assert_eq!(Container::of(int4, matrices(&[even]).iter()), Container::CompressedTensors);
    }

    #[test]
    fn gate_and_up_of_experts_are_joined_before_blocks_are_counted() {
        for (rows, wanted) in [(64, 0), (128, 0), (192, 1), (256, 0), (300, 1), (360, 0)] {
            let modules = |name| matrices(&[(name, rows, 128)]);
            let found = |name| of_hub_fp8(&Modules { quantized: modules(name), ..Modules::default() });
            let refused = |name| found(name).iter().filter(|elsewhere| elsewhere.why.contains("with an FP8 GPU")).count();
            assert_eq!(refused("0.mlp.experts.0.up_proj"), wanted, "{rows}");
            assert_eq!(refused("0.mlp.experts.0.down_proj") + refused("0.mlp.up_proj"), 0, "{rows}");
        }
    }

    #[test]
    fn experts_of_hub_fp8_in_two_formats_are_named() {
        let quantized = matrices(&[("0.mlp.experts.0.up_proj", 128, 128), ("1.mlp.experts.0.up_proj", 128, 128)]);
        let floats = matrices(&[("0.mlp.experts.0.down_proj", 128, 128), ("2.mlp.experts.0.down_proj", 128, 128)]);
        let found = of_hub_fp8(&Modules { quantized, floats, ..Modules::default() });
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].count, found[0].example.as_str()), (1, "model.layers.0.mlp.experts.0.down_proj"));
    }

    #[test]
    fn groups_are_chosen_as_the_loader_chooses_them() {
        let [linear, experts, others] =
            ["Linear", "re:.*mlp.experts.*", "re:.*self_attn.*"].map(|target| vec![target.to_owned()]);
        let group = |targets, stored| Chosen { targets, stored };
        let cases = [
            (vec![group(&linear, Stored::Int4)], Stored::Int4, Stored::Int4),
            (vec![group(&experts, Stored::Fp8), group(&linear, Stored::Int4)], Stored::Fp8, Stored::Int4),
            (vec![group(&experts, Stored::Int4), group(&linear, Stored::Fp8)], Stored::Int4, Stored::Fp8),
            (vec![group(&others, Stored::Int4), group(&linear, Stored::Fp8)], Stored::Fp8, Stored::Int4),
        ];
        for (groups, experts, dense) in cases {
            assert_eq!((experts_group(&groups), dense_group(&groups)), (Some(experts), Some(dense)));
        }
    }
}
