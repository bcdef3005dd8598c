//! What becomes of each tensor: quantized, or copied and why. Reads no weights and knows no file that is written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::elsewhere::Container;
use super::select::{Kept, Selection, Verdict};
use super::source::{ElementType, Source, SourceTensor};
use super::{QuantizeError, QuantizeOptions, QuantizedFormat};

/// Rows and columns of an FP8 block; also the rows that a worker takes at a time.
pub(super) const BLOCK: usize = 128;

/// How a tensor is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Copy,
    Fp8,
    Int4 { group: usize },
}

/// One source tensor and what is written for it.
#[derive(Debug)]
pub(super) struct Step {
    /// Index into the source's tensors.
    pub(super) tensor: usize,
    /// The source tensor with the scales of its FP8 blocks, where it is read as values.
    pub(super) scales: Option<usize>,
    pub(super) action: Action,
    /// Into [`Plan::outputs`]: Fp8 the codes, scales; Int4 the codes, scales, shape.
    pub(super) outputs: Range<usize>,
}

/// One tensor of the result.
#[derive(Debug, Clone)]
pub(super) struct Output {
    pub(super) name: String,
    pub(super) kind: ElementType,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: u64,
}

/// The weight of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Matrix {
    /// Name of the tensor without `.weight`.
    pub(super) module: String,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Matrix {
    fn of(tensor: &SourceTensor) -> Option<Self> {
        let (rows, cols) = tensor.matrix()?;
        Some(Self { module: module(&tensor.name).to_owned(), rows, cols })
    }
}

/// Matrices by what became of them.
#[derive(Debug, Default)]
pub(super) struct Modules {
    pub(super) quantized: Vec<Matrix>,
    /// Left in FP8 beside INT4.
    pub(super) fp8: Vec<Matrix>,
    /// Left in floats.
    pub(super) floats: Vec<Matrix>,
}

/// Everything that is written, in the order of the source's bytes.
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) outputs: Vec<Output>,
    pub(super) modules: Modules,
    pub(super) container: Container,
    /// Indices of source tensors.
    pub(super) kept: BTreeMap<Kept, Vec<usize>>,
    /// What the caller should know about the choice.
    pub(super) notes: Vec<String>,
}

impl Plan {
    /// # Errors
    /// [`QuantizeError::Keep`] for a pattern that is no regular expression, [`QuantizeError::Tensor`] for FP8 without fitting
    /// scales, [`QuantizeError::Nothing`] where nothing is left to quantize.
    pub(super) fn new(source: &Source, options: &QuantizeOptions) -> Result<Self, QuantizeError> {
        let Selection { verdicts, notes } = Selection::new(source, options)?;
        let by_name: BTreeMap<&str, usize> = source.tensors.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
        let quantized = source.tensors.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::Quantize);
        let quantized: Vec<Matrix> = quantized.filter_map(|(tensor, _)| Matrix::of(tensor)).collect();
        let container = Container::of(options.format, quantized.iter());
        let modules = Modules { quantized, ..Modules::default() };
        let mut plan = Self { steps: Vec::new(), outputs: Vec::new(), modules, container, kept: BTreeMap::new(), notes };
        let mut scales_of = BTreeMap::new();
        for (index, tensor) in source.tensors.iter().enumerate().filter(|(_, tensor)| tensor.kind == ElementType::F8_E4M3) {
            scales_of.insert(index, scales(source, tensor, &by_name)?);
        }
        let companions: BTreeSet<usize> = scales_of.values().copied().collect();
        for (index, (tensor, verdict)) in source.tensors.iter().zip(verdicts).enumerate() {
            let scales = scales_of.get(&index).copied();
            match verdict {
                _ if companions.contains(&index) => {}
                Verdict::Quantize => plan.quantize(tensor, index, scales, options.format),
                Verdict::Keep(kept) => {
                    plan.kept.entry(kept).or_default().push(index);
                    plan.copy(source, index, scales);
                }
                Verdict::Other => plan.copy(source, index, scales),
            }
        }
        if plan.modules.quantized.is_empty() {
            return Err(plan.nothing(source));
        }
        Ok(plan)
    }

    fn quantize(&mut self, tensor: &SourceTensor, index: usize, scales: Option<usize>, format: QuantizedFormat) {
        let Some((rows, cols)) = tensor.matrix() else { return };
        let (name, first) = (&tensor.name, self.outputs.len());
        let elements = rows as u64 * cols as u64;
        let scale = self.container.fp8_scale(name);
        let mut output = |name: String, kind: ElementType, shape: [usize; 2], bytes: u64| {
            self.outputs.push(Output { name, kind, shape: shape.to_vec(), bytes });
        };
        let action = match format {
            QuantizedFormat::Fp8Block => {
                let blocks = [rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)];
                output(name.clone(), ElementType::F8_E4M3, [rows, cols], elements);
                output(scale, ElementType::F32, blocks, (blocks[0] * blocks[1] * 4) as u64);
                Action::Fp8
            }
            QuantizedFormat::Int4Group { group } => {
                output(format!("{name}_packed"), ElementType::I32, [rows, cols / 8], elements / 2);
                output(format!("{name}_scale"), ElementType::BF16, [rows, cols / group], elements / group as u64 * 2);
                let shape = Output { name: format!("{name}_shape"), kind: ElementType::I64, shape: vec![2], bytes: 16 };
                self.outputs.push(shape);
                Action::Int4 { group }
            }
        };
        self.steps.push(Step { tensor: index, scales, action, outputs: first..self.outputs.len() });
    }

    /// Copies a tensor; the scales of FP8 under the name that they have beside INT4.
    fn copy(&mut self, source: &Source, index: usize, scales: Option<usize>) {
        let Some(tensor) = source.tensors.get(index) else { return };
        let is_weight = tensor.matrix().is_some() && tensor.name.ends_with(".weight");
        let is_table = tensor.name.ends_with("embed_tokens.weight");
        if scales.is_some() {
            self.modules.fp8.extend(Matrix::of(tensor));
        } else if is_weight && !is_table {
            self.modules.floats.extend(Matrix::of(tensor));
        }
        let scale_name = self.container.fp8_scale(&tensor.name);
        let mut step = |index: usize, tensor: &SourceTensor, name: String| {
            let at = self.outputs.len();
            self.outputs.push(Output { name, kind: tensor.kind, shape: tensor.shape.clone(), bytes: tensor.bytes });
            self.steps.push(Step { tensor: index, scales: None, action: Action::Copy, outputs: at..at.saturating_add(1) });
        };
        step(index, tensor, tensor.name.clone());
        if let Some((index, tensor)) = scales.and_then(|scales| Some((scales, source.tensors.get(scales)?))) {
            step(index, tensor, scale_name);
        }
    }

    /// What kept every tensor.
    fn nothing(&self, source: &Source) -> QuantizeError {
        let reasons: Vec<String> =
            self.kept.iter().map(|(kept, tensors)| format!("{} matrices stay because {}", tensors.len(), kept.why())).collect();
        let why = if reasons.is_empty() {
            "no tensor has the name of a layer's projection (`model.layers.N...._proj.weight`)".to_owned()
        } else {
            reasons.join(", ")
        };
        QuantizeError::Nothing { path: source.directory.clone(), why }
    }
}

/// The scales of an FP8 tensor: F32, one for each 128x128 block.
fn scales(source: &Source, tensor: &SourceTensor, by_name: &BTreeMap<&str, usize>) -> Result<usize, QuantizeError> {
    let wrong = |why: String| QuantizeError::tensor(source.file_of(tensor), &tensor.name, why);
    let (rows, cols) = tensor.matrix().ok_or_else(|| wrong(format!("is FP8 with shape {:?}, no matrix", tensor.shape)))?;
    let name = format!("{}_scale_inv", tensor.name);
    // As compressed-tensors names it.
    let other = format!("{}_scale", tensor.name);
    let found = by_name.get(name.as_str()).or_else(|| by_name.get(other.as_str())).copied();
    let found = found.and_then(|index| Some((index, source.tensors.get(index)?)));
    let (index, scales) =
        found.ok_or_else(|| wrong(format!("is FP8, but there is no `{name}`; the checkpoint is incomplete")))?;
    let wanted = [rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)];
    if scales.kind != ElementType::F32 || scales.shape != wanted {
        let why = format!("has scales of type {} and shape {:?}; F32 {wanted:?} are needed", scales.kind.name, scales.shape);
        return Err(wrong(why));
    }
    Ok(index)
}

/// `model.layers.0.mlp.up_proj` of its weight.
fn module(tensor: &str) -> &str {
    tensor.strip_suffix(".weight").unwrap_or(tensor)
}
