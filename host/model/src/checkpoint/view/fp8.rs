//! FP8 weights: `X` in F8_E4M3 with `X_scale_inv` (hub FP8) or `X_scale` (compressed-tensors, AutoFP8), value = code * scale.
//! Scales of activations (`input_scale`, `activation_scale`) are not looked at. Knows no packed formats.
//!
//! | scales of | shape |
//! |---|---|
//! | the tensor | `[]`, `[1]` or `[1, 1]` |
//! | each row | `[rows]` or `[rows, 1]` |
//! | each 128x128 block | `[ceil(rows/128), ceil(cols/128)]` |

use millrace_ops::TensorData;

use super::scales::Sign;
use super::{Named, Views};
use crate::CheckpointError;
use crate::checkpoint::quantization::{Fp8Scaling, Scheme, spoken};
use crate::checkpoint::stored::StoredTensor;

const BLOCK: usize = 128;

impl<'a> Views<'a> {
    pub(super) fn fp8(self, key: &'a str, tensor: &'a StoredTensor, codes: &'a [u8]) -> Result<TensorData<'a>, CheckpointError> {
        let wrong = |why: String| self.table.error(tensor, key, why);
        let (rows, cols) = self.matrix(key, tensor)?;
        let module = key.strip_suffix(".weight").unwrap_or(key);
        let said = self.quantization.schemes(module).map_err(|why| wrong(format!("is FP8, {why}")))?;
        let wanted: Vec<Option<Fp8Scaling>> = said
            .iter()
            .filter_map(|(_, scheme)| if let Scheme::Fp8 { scaling } = scheme { Some(*scaling) } else { None })
            .collect();
        if wanted.is_empty() {
            return Err(wrong(format!("is FP8, but the config says {}", spoken(&said))));
        }
        self.no_fp8_zero_points(key)?;
        let named = self.fp8_companion(key, tensor)?;
        let scaling = self.fp8_scaling(named, (rows, cols), &wanted)?;
        let count = match scaling {
            Fp8Scaling::Tensor => 1,
            Fp8Scaling::Channel => rows,
            Fp8Scaling::Block => rows.div_ceil(BLOCK).saturating_mul(cols.div_ceil(BLOCK)),
        };
        let scales = self.scales(named, count, Sign::Positive)?;
        // Zero is code 0 or, negative, 0x80.
        self.check_not_blank(named, &scales, || codes.iter().all(|code| code & 0x7f == 0))?;
        Ok(match scaling {
            Fp8Scaling::Tensor => TensorData::Fp8Tensor { codes, scale: scales.values().next().unwrap_or_default() },
            Fp8Scaling::Channel => TensorData::Fp8Channel { codes, scales },
            Fp8Scaling::Block => TensorData::Fp8Block { codes, scales },
        })
    }

    fn fp8_companion(self, key: &str, tensor: &StoredTensor) -> Result<Named<'a>, CheckpointError> {
        let (inverse, plain) = (format!("{key}_scale_inv"), format!("{key}_scale"));
        match (self.find(&inverse), self.find(&plain)) {
            (Some(_), Some(_)) => {
                Err(self.table.error(tensor, key, "has a `weight_scale_inv` and a `weight_scale`; one is expected"))
            }
            (Some(named), None) | (None, Some(named)) => Ok(named),
            (None, None) => self.companion(&inverse),
        }
    }

    /// What the shape of the scales says, where the config allows it.
    fn fp8_scaling(
        self,
        (key, scales): Named<'a>,
        (rows, cols): (usize, usize),
        wanted: &[Option<Fp8Scaling>],
    ) -> Result<Fp8Scaling, CheckpointError> {
        let shape = scales.shape.as_slice();
        let blocks = [rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)];
        // A shape may be two of these (a tensor of one row, of one block); all of them then say the same.
        let mut fits = Vec::new();
        if matches!(shape, [] | [1] | [1, 1]) {
            fits.push(Fp8Scaling::Tensor);
        }
        if shape == [rows] || shape == [rows, 1] {
            fits.push(Fp8Scaling::Channel);
        }
        if shape == blocks {
            fits.push(Fp8Scaling::Block);
        }
        if let Some(&scaling) = fits.iter().find(|scaling| wanted.contains(&Some(**scaling)) || wanted.contains(&None)) {
            return Ok(scaling);
        }
        let expected = match wanted.first() {
            Some(Some(Fp8Scaling::Tensor)) => "one scale".to_owned(),
            Some(Some(Fp8Scaling::Channel)) => format!("[{rows}, 1] or [{rows}]"),
            Some(Some(Fp8Scaling::Block)) => format!("{blocks:?}"),
            _ => format!("one scale, [{rows}, 1] or {blocks:?}"),
        };
        Err(self.table.error(scales, key, format!("has shape {shape:?}, not {expected}")))
    }

    /// Symmetric weights have none; old writers stored zeros.
    fn no_fp8_zero_points(self, key: &str) -> Result<(), CheckpointError> {
        match self.find(&format!("{key}_zero_point")) {
            Some((name, tensor)) if self.table.bytes(name, tensor)?.iter().any(|&byte| byte != 0) => {
                Err(self.table.error(tensor, name, "holds zero points other than 0, which FP8 does not have"))
            }
            _ => Ok(()),
        }
    }
}
