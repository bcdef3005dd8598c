//! What quantization lost, by tensor and layer, and what it saved. Knows no format.
//!
//! With x the values of the source and y those of the result: relative error ||x - y|| / ||x||, cosine x.y / (||x|| ||y||), both
//! over all quantized values of a tensor, a layer or the checkpoint.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::elsewhere::Elsewhere;
use super::plan::Plan;
use super::rule::layer_of;
use super::select::Kept;
use super::source::Source;

/// Tensors that a report names as its worst.
const WORST: usize = 10;

/// Sums over values of the source and the result.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sums {
    /// Of (x - y)^2, x^2, y^2 and x y.
    error: f64,
    source: f64,
    result: f64,
    product: f64,
}

impl Sums {
    /// Adds values and what became of them.
    pub(super) fn add(&mut self, values: &[f32], quantized: impl Iterator<Item = f32>) {
        for (&x, y) in values.iter().zip(quantized) {
            let (x, y) = (f64::from(x), f64::from(y));
            self.error += (x - y) * (x - y);
            self.source += x * x;
            self.result += y * y;
            self.product += x * y;
        }
    }

    fn merge(&mut self, other: &Self) {
        self.error += other.error;
        self.source += other.source;
        self.result += other.result;
        self.product += other.product;
    }

    /// ||x - y|| / ||x||; 0 where all values are 0.
    pub fn relative_error(&self) -> f64 {
        if self.source > 0.0 { (self.error / self.source).sqrt() } else { 0.0 }
    }

    /// x.y / (||x|| ||y||); 1 where all values are 0.
    pub fn cosine(&self) -> f64 {
        let lengths = (self.source * self.result).sqrt();
        if lengths > 0.0 { self.product / lengths } else { 1.0 }
    }
}

/// Losses of steps while pieces of them arrive in any order. Sums are added in the order of the pieces, so that the same
/// checkpoint gives the same report with any number of workers.
pub(super) struct Losses {
    done: Vec<Sums>,
    open: BTreeMap<usize, Vec<Option<Sums>>>,
}

impl Losses {
    pub(super) fn new(steps: usize) -> Self {
        Self { done: vec![Sums::default(); steps], open: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, step: usize, part: usize, parts: usize, sums: Sums) {
        let open = self.open.entry(step).or_insert_with(|| vec![None; parts]);
        if let Some(slot) = open.get_mut(part) {
            *slot = Some(sums);
        }
        if open.iter().all(Option::is_some) {
            let mut total = Sums::default();
            open.iter().flatten().for_each(|sums| total.merge(sums));
            if let Some(done) = self.done.get_mut(step) {
                *done = total;
            }
            self.open.remove(&step);
        }
    }
}

/// A tensor or a layer and what it lost.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    pub name: String,
    pub sums: Sums,
}

impl Loss {
    fn json(&self) -> Value {
        json!({ "name": self.name, "relative_error": self.sums.relative_error(), "cosine": self.sums.cosine() })
    }
}

/// Projections that kept their format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptTensors {
    pub why: &'static str,
    pub count: usize,
    pub bytes: u64,
    /// The first of them.
    pub example: String,
}

/// How a quantization went.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizeReport {
    /// Every quantized tensor, in the order of the source.
    pub tensors: Vec<Loss>,
    /// Layers in the order of the source.
    pub layers: Vec<Loss>,
    pub total: Sums,
    /// Projections that the options, the source or their shape kept.
    pub kept: Vec<KeptTensors>,
    /// Bytes of the weight files.
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub files: usize,
    /// Parameters that were quantized.
    pub parameters: u64,
    /// Layout of the quantized tensors, in words.
    pub stored_as: &'static str,
    /// What another program does not load as it is written.
    pub loads_elsewhere: Vec<Elsewhere>,
    /// What the caller may want to know: patterns that matched nothing, files that were not copied.
    pub notes: Vec<String>,
}

impl QuantizeReport {
    pub(super) fn new(source: &Source, plan: &Plan, losses: &Losses) -> Self {
        let mut report = Self {
            tensors: Vec::new(),
            layers: Vec::new(),
            total: Sums::default(),
            kept: plan.kept.iter().filter_map(|(kept, tensors)| kept_tensors(source, *kept, tensors)).collect(),
            bytes_before: source.bytes,
            bytes_after: 0,
            files: 0,
            parameters: 0,
            stored_as: "",
            loads_elsewhere: Vec::new(),
            notes: plan.notes.clone(),
        };
        let mut layers: BTreeMap<&str, usize> = BTreeMap::new();
        for (step, sums) in plan.steps.iter().zip(&losses.done).filter(|(step, _)| step.action != super::plan::Action::Copy) {
            let Some(tensor) = source.tensors.get(step.tensor) else { continue };
            report.tensors.push(Loss { name: tensor.name.clone(), sums: *sums });
            report.total.merge(sums);
            report.parameters = report.parameters.saturating_add(tensor.shape.iter().map(|&n| n as u64).product());
            let name = layer_of(&tensor.name).unwrap_or(&tensor.name);
            let next = report.layers.len();
            let index = *layers.entry(name).or_insert(next);
            match report.layers.get_mut(index) {
                Some(layer) => layer.sums.merge(sums),
                None => report.layers.push(Loss { name: name.to_owned(), sums: *sums }),
            }
        }
        // Files may hold layers in any order; people read them in theirs.
        report.layers.sort_by(|a, b| natural(&a.name).cmp(&natural(&b.name)));
        report
    }

    /// The tensors that lost most, worst first.
    pub fn worst(&self) -> Vec<&Loss> {
        let mut sorted: Vec<&Loss> = self.tensors.iter().collect();
        sorted.sort_by(|a, b| b.sums.relative_error().total_cmp(&a.sums.relative_error()).then_with(|| a.name.cmp(&b.name)));
        sorted.truncate(WORST);
        sorted
    }

    /// One object; with every tensor under `tensors` where `Detail::Tensors`.
    pub fn to_json(&self, detail: Detail) -> Value {
        let list = |losses: &[Loss]| losses.iter().map(Loss::json).collect::<Vec<Value>>();
        let kept = self
            .kept
            .iter()
            .map(|kept| json!({ "why": kept.why, "count": kept.count, "bytes": kept.bytes, "example": kept.example }));
        let elsewhere = self
            .loads_elsewhere
            .iter()
            .map(|elsewhere| json!({ "why": elsewhere.why, "count": elsewhere.count, "example": elsewhere.example }));
        let mut object = json!({
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "files": self.files,
            "quantized_tensors": self.tensors.len(),
            "quantized_parameters": self.parameters,
            "relative_error": self.total.relative_error(),
            "cosine": self.total.cosine(),
            "layers": list(&self.layers),
            "worst": self.worst().into_iter().map(Loss::json).collect::<Vec<Value>>(),
            "kept": kept.collect::<Vec<Value>>(),
            "stored_as": self.stored_as,
            "loads_elsewhere": elsewhere.collect::<Vec<Value>>(),
            "notes": self.notes,
        });
        if let (Detail::Tensors, Some(object)) = (detail, object.as_object_mut()) {
            object.insert("tensors".to_owned(), list(&self.tensors).into());
        }
        object
    }
}

/// How much of a report is written out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    Layers,
    Tensors,
}

fn kept_tensors(source: &Source, kept: Kept, tensors: &[usize]) -> Option<KeptTensors> {
    let tensors: Vec<_> = tensors.iter().filter_map(|&index| source.tensors.get(index)).collect();
    let example = tensors.first()?.name.clone();
    Some(KeptTensors { why: kept.why(), count: tensors.len(), bytes: tensors.iter().map(|t| t.bytes).sum(), example })
}

/// A name for sorting: numbers as numbers.
fn natural(name: &str) -> Vec<(u64, &str)> {
    name.split('.').map(|part| part.parse().map_or((u64::MAX, part), |number| (number, ""))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_their_definition() {
        let mut sums = Sums::default();
        sums.add(&[3.0, 4.0], [3.0, 3.0].into_iter());
        assert_eq!(sums.relative_error(), 0.2);
        assert!((sums.cosine() - 21.0 / (5.0 * 18f64.sqrt())).abs() < 1e-15);
        let zero = Sums::default();
        assert_eq!((zero.relative_error(), zero.cosine()), (0.0, 1.0));
    }

    #[test]
    fn pieces_are_added_in_their_order_whenever_they_arrive() {
        let piece = |x: f32| {
            let mut sums = Sums::default();
            sums.add(&[x], [0.0].into_iter());
            sums
        };
        let values = [1e8, 1.0, -1e8, 3.0].map(piece);
        let total = |order: &[usize]| {
            let mut losses = Losses::new(1);
            order.iter().for_each(|&part| losses.add(0, part, 4, values[part]));
            assert!(losses.open.is_empty());
            losses.done[0]
        };
        assert_eq!(total(&[0, 1, 2, 3]), total(&[3, 1, 0, 2]));
    }

    #[test]
    fn layers_sort_by_number() {
        let mut names = ["model.layers.10", "model.layers.9", "model.layers.0"];
        names.sort_by(|a, b| natural(a).cmp(&natural(b)));
        assert_eq!(names, ["model.layers.0", "model.layers.9", "model.layers.10"]);
    }
}
