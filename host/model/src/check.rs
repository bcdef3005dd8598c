//! Whether a checkpoint's tensors are those that its configuration asks for, before a weight is read: layers, shapes, and parts
//! that the file has and the configuration denies. Knows names and sizes of tensors; reads no values but those of biases.
//!
//! | in the file, not in the model | |
//! |---|---|
//! | a part that architectures here compute with | an error that names the key which leaves it out |
//! | a bias of a projection in the model, all zero | quiet: it changes nothing |
//! | scales of activations and caches, rotary tables, prediction layers, vision parts | quiet |
//! | anything else | one line for the log |

mod keys;
mod leftovers;
mod wanted;

use std::collections::BTreeSet;
use std::ops::Bound;

pub(crate) use keys::PartKeys;
use keys::given;
use wanted::{Size, Wanted};

use crate::spec::ModelSpec;
use crate::{Checkpoint, CheckpointError};

/// Inside a checkpoint's text model, before a layer's number.
const LAYERS: &str = "model.layers.";
/// What every layer for multi-token prediction has and no other.
const PREDICTION_INPUT: &str = "eh_proj.";

/// Checks all tensors against the model; gives a line about those that are in the file and have no use.
///
/// # Errors
/// [`CheckpointError::Config`] where the file holds fewer layers than the configuration counts, [`CheckpointError::Tensor`]
/// and [`CheckpointError::MissingTensor`] otherwise.
pub(crate) fn check(checkpoint: &Checkpoint, spec: &ModelSpec, keys: &PartKeys) -> Result<Option<String>, CheckpointError> {
    check_layers(checkpoint, spec)?;
    let mut unclaimed: BTreeSet<&str> = checkpoint.tensor_names().collect();
    let mut first = None;
    let outside = wanted::outside(spec, || checkpoint.has_tensor("lm_head.weight"));
    claim(checkpoint, outside, &mut unclaimed, &mut first);
    for (index, layer) in spec.layers.iter().enumerate() {
        claim(checkpoint, wanted::layer(spec, index, layer), &mut unclaimed, &mut first);
    }
    // Where the two contradict each other, what is there tells more than what is not.
    let line = leftovers::judge(checkpoint, spec, keys, &unclaimed)?;
    match first {
        None => Ok(line),
        Some(problem) => Err(problem.error(checkpoint, keys)),
    }
}

/// A tensor of the model that is missing or of another shape.
struct Problem {
    wanted: Wanted,
    /// `None`: it is missing.
    found: Option<(usize, usize)>,
}

/// Takes what the model wants, and what is stored beside it, out of `unclaimed`; keeps the first problem.
fn claim(checkpoint: &Checkpoint, wanted: Vec<Wanted>, unclaimed: &mut BTreeSet<&str>, first: &mut Option<Problem>) {
    for wanted in wanted {
        let stored = checkpoint.stored_name(&wanted.name);
        unclaimed.remove(stored.as_ref());
        // Codes, scales, shapes and zero points of one weight: `weight_packed`, `weight_scale` ..
        let companions = format!("{stored}_");
        let from = (Bound::Included(companions.as_str()), Bound::Unbounded);
        let beside = unclaimed.range::<str, _>(from).take_while(|name| name.starts_with(&companions));
        let beside: Vec<&str> = beside.copied().collect();
        beside.into_iter().for_each(|name| _ = unclaimed.remove(name));
        if first.is_none() {
            let found = checkpoint.stored_shape(&wanted.name);
            // A shape that is no matrix's is for whoever reads the tensor to refuse.
            let fits = found.is_some_and(|shape| shape.is_none_or(|shape| shape == wanted.shape()));
            *first = (!fits).then(|| Problem { wanted, found: found.flatten() });
        }
    }
}

impl Wanted {
    fn shape(&self) -> (usize, usize) {
        (self.rows.elements, self.cols.elements)
    }
}

impl Problem {
    fn error(self, checkpoint: &Checkpoint, keys: &PartKeys) -> CheckpointError {
        let Wanted { name, rows, cols } = self.wanted;
        let Some(found) = self.found else { return missing(checkpoint, &name, keys) };
        let spoken = |(rows, cols)| if rows == 1 { format!("[{cols}]") } else { format!("[{rows}, {cols}]") };
        let is_wrong = |size: &Size, found: usize| size.elements != found;
        let wrong = [(&rows, found.0), (&cols, found.1)];
        let by: Vec<&str> =
            wrong.iter().filter(|(size, found)| is_wrong(size, *found)).flat_map(|(size, _)| size.keys).copied().collect();
        let why = format!(
            "has shape {}, the config asks for {} by {}",
            spoken(found),
            spoken((rows.elements, cols.elements)),
            given(checkpoint.config(), &by)
        );
        checkpoint.tensor_error(&name, why)
    }
}

/// A missing tensor, with the key that asks for it or the layout that is not read where one of them is known.
fn missing(checkpoint: &Checkpoint, name: &str, keys: &PartKeys) -> CheckpointError {
    let error = match checkpoint.tensor(name) {
        Err(error) => error,
        Ok(_) => return CheckpointError::MissingTensor { path: checkpoint.path().to_path_buf(), tensor: name.to_owned() },
    };
    let part = layer_part(name).map(|(_, part)| keys.switching(part)).unwrap_or_default();
    match error {
        CheckpointError::MissingTensor { .. } if !part.is_empty() => {
            let why = format!("is not in the file, the config asks for it by {}", given(checkpoint.config(), part));
            CheckpointError::tensor(checkpoint.path(), name, why)
        }
        other => other,
    }
}

/// Layers of the file against those that the configuration counts.
fn check_layers(checkpoint: &Checkpoint, spec: &ModelSpec) -> Result<(), CheckpointError> {
    let (layers, prediction) = (spec.layers.len(), spec.prediction_layers);
    let numbers = checkpoint.tensor_names().filter_map(|name| Some((layer_part(checkpoint.text_name(name)?)?.0, name)));
    let Some((highest, name)) = numbers.max_by_key(|(number, _)| *number) else { return Ok(()) };
    let held = highest.saturating_add(1);
    let counted = if held == 1 { "1 layer".to_owned() } else { format!("{held} layers") };
    if held > layers.saturating_add(prediction) {
        let said = given(checkpoint.config(), &["num_hidden_layers", "num_nextn_predict_layers"]);
        return Err(checkpoint.tensor_error(name, format!("is of layer {highest}: the file has {counted}, the config {said}")));
    }
    if held < layers {
        return Err(checkpoint.config().wrong("num_hidden_layers", format!("is {layers}, but the file has {counted}")));
    }
    let joins = |layer: usize| checkpoint.has_any(&format!("{LAYERS}{layer}.{PREDICTION_INPUT}"));
    let no_prediction = (layers..held).find(|layer| checkpoint.has_any(&format!("{LAYERS}{layer}.")) && !joins(*layer));
    match no_prediction {
        None => Ok(()),
        Some(layer) => {
            let why = format!("is {layers}, but layer {layer} of the file is none for prediction: it has no `eh_proj`");
            Err(checkpoint.config().wrong("num_hidden_layers", why))
        }
    }
}

/// The layer's number and what follows, of a text model's tensor.
fn layer_part(name: &str) -> Option<(usize, &str)> {
    let (number, part) = name.strip_prefix(LAYERS)?.split_once('.')?;
    Some((number.parse().ok()?, part))
}
