//! Prepares weights and uploads vectors for an architecture that is being loaded. Does not know its layers.

use std::sync::Arc;

use millrace_core::StageRecipe;
use millrace_ops::{Activations, Backend, BackendError, Buffer, Op, Priority, TensorView, Upload, Weight, WeightFormat};

use super::cache::{WeightCache, WeightKey};
use super::rule::{Role, weight_format};
use crate::{Checkpoint, CheckpointError, ModelError};

/// Loads one model's weights on one backend.
pub(crate) struct WeightLoader<'a> {
    checkpoint: &'a Checkpoint,
    backend: &'a dyn Backend,
    recipe: StageRecipe,
    cache: &'a mut WeightCache,
    /// Whether the checkpoint left some projections in floats by intent.
    quantized: bool,
    uploads: Vec<Upload>,
    bytes: usize,
}

/// Tensors stacked along their rows, with the shape that each must have.
pub(crate) struct Stack {
    /// (hub name, rows).
    pub(crate) parts: Vec<(String, usize)>,
    pub(crate) cols: usize,
    pub(crate) activations: Activations,
}

impl<'a> WeightLoader<'a> {
    pub(crate) fn new(
        checkpoint: &'a Checkpoint,
        backend: &'a dyn Backend,
        recipe: StageRecipe,
        cache: &'a mut WeightCache,
    ) -> Self {
        let quantized = checkpoint.is_quantized();
        Self { checkpoint, backend, recipe, cache, quantized, uploads: Vec::new(), bytes: 0 }
    }

    /// A layer's projection.
    pub(crate) fn linear(&mut self, stack: &Stack) -> Result<Weight, ModelError> {
        self.weight(stack, Role::Linear)
    }

    /// An embedding table, a head or a router: what they round shows in the result at once.
    pub(crate) fn table(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight, ModelError> {
        self.weight(&Stack { parts: vec![(name.to_owned(), rows)], cols, activations: Activations::Fine }, Role::Kept)
    }

    /// f32 values of vectors, one after the other, in a buffer that is filled when [`Self::finish`] returns.
    pub(crate) fn vectors(&mut self, parts: &[(String, usize)]) -> Result<Buffer, ModelError> {
        let mut values = Vec::new();
        for (name, length) in parts {
            values.extend(self.checkpoint.vector(name, *length)?);
        }
        self.upload(&values)
    }

    /// A buffer of `values`, filled when [`Self::finish`] returns.
    pub(crate) fn upload(&mut self, values: &[f32]) -> Result<Buffer, ModelError> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let to = self.backend.allocate(bytes.len())?;
        self.bytes = self.bytes.saturating_add(bytes.len());
        self.uploads.push(Upload { to: to.clone(), offset: 0, bytes });
        Ok(to)
    }

    /// Waits until every vector is on the device; gives the bytes of everything loaded, shared weights included.
    pub(crate) fn finish(self) -> Result<usize, ModelError> {
        let mut queue = self.backend.queue(Priority::Normal, Arc::new(|| {}));
        for upload in self.uploads {
            queue.enqueue(Op::Upload(upload));
        }
        let ticket = queue.submit();
        queue.wait(ticket)?;
        Ok(self.bytes)
    }

    fn weight(&mut self, stack: &Stack, role: Role) -> Result<Weight, ModelError> {
        let mut views = Vec::with_capacity(stack.parts.len());
        for (name, rows) in &stack.parts {
            views.push(self.checked(name, *rows, stack.cols)?);
        }
        let formats: Vec<_> = views.iter().map(TensorView::format).collect();
        // In a quantized checkpoint a projection stored in floats was left so by intent.
        let left = self.quantized && formats.iter().any(|f| !f.is_quantized());
        let role = if left { Role::Kept } else { role };
        let format = weight_format(self.recipe, role, &formats);
        self.prepared(&views, format, stack.activations)
    }

    /// Views stacked along their rows in `format`, shared with whoever asked for the same before.
    pub(super) fn prepared(
        &mut self,
        views: &[TensorView<'_>],
        format: WeightFormat,
        activations: Activations,
    ) -> Result<Weight, ModelError> {
        let names: Vec<String> = views.iter().map(|view| view.name.to_owned()).collect();
        let key = WeightKey::new(self.checkpoint.digest(), &names, (format, activations));
        let weight = match self.cache.get(&key) {
            Some(weight) => weight,
            None => {
                let prepared = self.backend.prepare_weight(views, format, activations);
                let weight = prepared.map_err(|source| self.refused(&names, source))?;
                self.cache.put(key, weight.clone());
                weight
            }
        };
        self.bytes = self.bytes.saturating_add(weight.bytes());
        Ok(weight)
    }

    pub(super) fn recipe(&self) -> StageRecipe {
        self.recipe
    }

    pub(crate) fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// What a device refuses about tensors, with the file that holds the first of them.
    fn refused(&self, names: &[String], source: BackendError) -> ModelError {
        match source {
            BackendError::Unsupported { .. } => {
                // Parts of a tensor carry what they are behind a `#`.
                let tensor = names.first().and_then(|name| name.split('#').next());
                let file = tensor.and_then(|name| self.checkpoint.file_of(name));
                let path = file.unwrap_or_else(|| self.checkpoint.path()).to_path_buf();
                ModelError::Weight { path, source }
            }
            other => other.into(),
        }
    }

    pub(super) fn checked(&self, name: &str, rows: usize, cols: usize) -> Result<TensorView<'a>, CheckpointError> {
        let view = self.checkpoint.tensor(name)?;
        if (view.rows, view.cols) != (rows, cols) {
            let why = format!("has shape [{}, {}], the config asks for [{rows}, {cols}]", view.rows, view.cols);
            return Err(self.checkpoint.tensor_error(name, why));
        }
        Ok(view)
    }
}
