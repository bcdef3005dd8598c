//! Which tensors are quantized: the rule, the options, what the source says, what shapes allow. Reads no weights.

use std::collections::BTreeMap;

use regex::bytes::{Regex, RegexBuilder};

use super::rule::{Part, loaded_as_one, part_of};
use super::source::{ElementType, Source, SourceTensor};
use super::{QuantizeError, QuantizeOptions, QuantizedFormat, Scope};

/// Wider matrices are no model's; a worker holds 128 rows at a time.
const MAX_COLUMNS: usize = 1 << 16;
const MAX_KEEPS: usize = 256;
const MAX_KEEP_BYTES: usize = 1 << 20;

/// What becomes of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Quantize,
    /// A projection that keeps its format.
    Keep(Kept),
    /// No projection.
    Other,
}

/// Why a projection keeps its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kept {
    Asked,
    Preset,
    /// Floats in a quantized source.
    ByIntent,
    /// FP8 is asked for and there.
    Already,
    Columns,
    /// An expert beside one that cannot be quantized.
    Beside,
    Type,
    Wide,
}

impl Kept {
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Asked => "--keep names them",
            Self::Preset => "the preset quantizes routed experts only",
            Self::ByIntent => "the source is quantized and keeps them in floats",
            Self::Already => "they are FP8 already",
            Self::Columns => "their columns are no multiple of the group",
            Self::Beside => {
                "other experts' matrices of their layer cannot be quantized, and programs load all of them in one format"
            }
            Self::Type => "they are no matrices of F32, F16, BF16 or FP8",
            Self::Wide => "they have more than 65,536 columns",
        }
    }

    /// Whether the tensor could not have been quantized, whatever was asked for.
    fn is_forced(self) -> bool {
        matches!(self, Self::Columns | Self::Type | Self::Wide)
    }
}

/// One verdict for each tensor of the source, and what the caller should know about them.
pub(super) struct Selection {
    pub(super) verdicts: Vec<Verdict>,
    pub(super) notes: Vec<String>,
}

impl Selection {
    /// # Errors
    /// [`QuantizeError::Keep`] for a pattern that is no regular expression.
    pub(super) fn new(source: &Source, options: &QuantizeOptions) -> Result<Self, QuantizeError> {
        let keep = compile(&options.keep)?;
        let judge = |tensor: &SourceTensor| match part_of(&tensor.name).map(|part| keeps(source, tensor, part, options, &keep)) {
            Some(None) => Verdict::Quantize,
            Some(Some(kept)) => Verdict::Keep(kept),
            None => Verdict::Other,
        };
        let mut selection = Self { verdicts: source.tensors.iter().map(judge).collect(), notes: Vec::new() };
        let idle = keep.iter().filter(|regex| !source.tensors.iter().any(|tensor| regex.is_match(tensor.name.as_bytes())));
        selection.notes.extend(idle.map(|regex| format!("--keep `{}` matches no tensor", regex.as_str())));
        selection.keep_experts_together(source);
        selection.note_splits(source);
        Ok(selection)
    }

    /// Experts of a layer of which one cannot be quantized all keep their format.
    fn keep_experts_together(&mut self, source: &Source) {
        let experts =
            |tensor: &SourceTensor| loaded_as_one(&tensor.name).filter(|_| part_of(&tensor.name) == Some(Part::RoutedExpert));
        let mut forced = std::collections::BTreeSet::new();
        for (tensor, verdict) in source.tensors.iter().zip(&self.verdicts) {
            if matches!(verdict, Verdict::Keep(kept) if kept.is_forced()) {
                forced.extend(experts(tensor));
            }
        }
        for (tensor, verdict) in source.tensors.iter().zip(&mut self.verdicts) {
            if *verdict == Verdict::Quantize && experts(tensor).is_some_and(|layer| forced.contains(&layer)) {
                *verdict = Verdict::Keep(Kept::Beside);
            }
        }
    }

    /// Tells where parts of what other programs load as one tensor have different formats.
    fn note_splits(&mut self, source: &Source) {
        let mut parts: BTreeMap<String, [bool; 2]> = BTreeMap::new();
        for (tensor, verdict) in source.tensors.iter().zip(&self.verdicts).filter(|(_, verdict)| **verdict != Verdict::Other) {
            if let Some(whole) = loaded_as_one(&tensor.name) {
                let [quantized, kept] = parts.entry(whole).or_default();
                *if *verdict == Verdict::Quantize { quantized } else { kept } = true;
            }
        }
        let split: Vec<&String> = parts.iter().filter(|(_, both)| **both == [true, true]).map(|(whole, _)| whole).collect();
        if let Some(first) = split.first() {
            let count = split.len();
            self.notes.push(format!(
                "{count} groups of tensors that many programs load as one are in two formats, the first {first}; they may refuse that"
            ));
        }
    }
}

/// Why a projection stays as it is stored; None where it is quantized.
fn keeps(source: &Source, tensor: &SourceTensor, part: Part, options: &QuantizeOptions, keep: &[Regex]) -> Option<Kept> {
    let is_fp8 = tensor.kind == ElementType::F8_E4M3;
    let Some((_, cols)) = tensor.matrix().filter(|_| tensor.kind.value_bytes().is_some()) else { return Some(Kept::Type) };
    if keep.iter().any(|regex| regex.is_match(tensor.name.as_bytes())) {
        return Some(Kept::Asked);
    }
    if options.scope() == Scope::RoutedExperts && part != Part::RoutedExpert {
        return Some(Kept::Preset);
    }
    if source.is_fp8 && !is_fp8 {
        return Some(Kept::ByIntent);
    }
    if cols > MAX_COLUMNS {
        return Some(Kept::Wide);
    }
    match options.format {
        QuantizedFormat::Int4Group { group } if !cols.is_multiple_of(group) => Some(Kept::Columns),
        QuantizedFormat::Fp8Block if is_fp8 => Some(Kept::Already),
        _ => None,
    }
}

fn compile(patterns: &[String]) -> Result<Vec<Regex>, QuantizeError> {
    let wrong = |pattern: &str, why: String| QuantizeError::Keep { pattern: pattern.to_owned(), why };
    if let Some(pattern) = patterns.get(MAX_KEEPS) {
        return Err(wrong(pattern, format!("is one of more than {MAX_KEEPS} patterns")));
    }
    let build = |pattern: &String| {
        // Names are ASCII; tables of Unicode classes would only take memory.
        let builder = &mut RegexBuilder::new(pattern);
        let built = builder.unicode(false).size_limit(MAX_KEEP_BYTES).dfa_size_limit(MAX_KEEP_BYTES).build();
        built.map_err(|error| wrong(pattern, error.to_string()))
    };
    patterns.iter().map(build).collect()
}
