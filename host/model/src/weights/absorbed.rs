//! The two halves of `kv_b_proj`, one weight per head, as attention over latents applies them: the keys' half transposed, to
//! queries; the values' half to outputs. Knows no operation.
//!
//! ```text
//! kv_b_proj [heads * (plain + value), latent]:   head 0: plain rows of keys, value rows of values; head 1: ..
//! absorbed keys of a head    [latent, plain]     element (c, n) = kv_b[head's key row n][c]
//! absorbed values of a head  [value, latent]     its value rows as they are
//! ```

use std::sync::Arc;

use millrace_ops::{Activations, RowOrder, TensorData, TensorView, Weight, WeightFormat};

use super::loader::WeightLoader;
use super::rule::absorbed_format;
use crate::ModelError;
use crate::spec::LatentSpec;

/// (absorbed keys, absorbed values), one weight per head each.
pub(crate) type AbsorbedWeights = (Arc<[Weight]>, Arc<[Weight]>);

impl WeightLoader<'_> {
    /// Splits the projection `name` by head.
    pub(crate) fn absorbed(&mut self, name: &str, spec: &LatentSpec) -> Result<AbsorbedWeights, ModelError> {
        let per_head = spec.plain + spec.value;
        let view = self.checked(name, spec.heads * per_head, spec.latent)?;
        let format = absorbed_format(self.recipe(), view.format());
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let mut rows = vec![0.0; per_head * spec.latent];
        for head in 0..spec.heads {
            for (row, out) in rows.chunks_exact_mut(spec.latent).enumerate() {
                view.row_values(head * per_head + row, out);
            }
            let (key_rows, value_rows) = rows.split_at(spec.plain * spec.latent);
            let part = Part { source: name, head, format };
            keys.push(self.made(&part, "keys", (spec.latent, spec.plain), transposed(key_rows, spec.latent))?);
            values.push(self.made(&part, "values", (spec.value, spec.latent), value_rows.to_vec())?);
        }
        Ok((keys.into(), values.into()))
    }

    /// A weight of values that no tensor holds as they are.
    fn made(
        &mut self,
        part: &Part<'_>,
        what: &str,
        (rows, cols): (usize, usize),
        values: Vec<f32>,
    ) -> Result<Weight, ModelError> {
        let name = format!("{}#{what}-{}", part.source, part.head);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = TensorView { name: &name, rows, cols, data: TensorData::F32(&bytes), order: RowOrder::AsStored };
        self.prepared(&[view], part.format, Activations::Coarse)
    }
}

/// One head of a projection.
struct Part<'a> {
    source: &'a str,
    head: usize,
    format: WeightFormat,
}

/// `[rows, cols]` as `[cols, rows]`.
fn transposed(values: &[f32], cols: usize) -> Vec<f32> {
    let rows = values.len() / cols;
    let mut out = vec![0.0; values.len()];
    for (row, line) in values.chunks_exact(cols).enumerate() {
        for (col, value) in line.iter().enumerate() {
            out[col * rows + row] = *value;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns() {
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
