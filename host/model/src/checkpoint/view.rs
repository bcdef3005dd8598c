//! Turns stored tensors into views that a backend can prepare: joins FP8 and packed INT4 codes with their scales, and checks
//! every size, scale and what the config says of them. Knows no file format and no architecture.

mod fp8;
mod packed;
mod scales;

pub(super) use packed::PER_WORD as CODES_PER_WORD;

use millrace_ops::{RowOrder, TensorData, TensorView};

use super::quantization::{Quantization, READ_INSTEAD};
use super::stored::{StoredTensor, StoredType, TensorTable};
use crate::CheckpointError;

/// A tensor with the name it is stored under.
type Named<'a> = (&'a str, &'a StoredTensor);

/// Looks tensors up by hub name.
#[derive(Clone, Copy)]
pub(super) struct Views<'a> {
    pub(super) table: &'a TensorTable,
    pub(super) quantization: &'a Quantization,
    /// For messages where no tensor is at hand.
    pub(super) path: &'a std::path::Path,
}

impl<'a> Views<'a> {
    pub(super) fn view(self, name: &str) -> Result<TensorView<'a>, CheckpointError> {
        match (self.find(name), self.find(&format!("{name}_packed"))) {
            (Some((key, tensor)), None) => return self.plain(key, tensor),
            (None, Some((key, tensor))) => return self.packed(key, tensor),
            (Some((key, tensor)), Some(_)) => {
                return Err(self.table.error(tensor, key, "is stored both as it is and packed (`weight_packed`)"));
            }
            (None, None) => {}
        }
        if let Some(what) = self.other_layout(name) {
            return Err(self.unsupported(what));
        }
        Err(CheckpointError::MissingTensor { path: self.path.to_path_buf(), tensor: name.to_owned() })
    }

    /// Names the quantization of a weight that is stored under other names than those read here.
    fn other_layout(self, name: &str) -> Option<String> {
        let module = name.strip_suffix(".weight")?;
        let layouts = [(".qweight", "AWQ or GPTQ"), ("_blocks", "MXFP4"), (".weight_quantized", "quanto"), (".codes", "AQLM")];
        let (suffix, layout) = layouts.iter().find(|(suffix, _)| self.find(&format!("{module}{suffix}")).is_some())?;
        Some(format!("tensor `{module}{suffix}` ({layout})"))
    }

    /// A tensor whose rows are runs of bytes; FP8 with its scales.
    fn plain(self, key: &'a str, tensor: &'a StoredTensor) -> Result<TensorView<'a>, CheckpointError> {
        let (rows, cols) = self.matrix(key, tensor)?;
        if tensor.kind.is_no_weight() {
            return Err(self.no_weight(key, tensor));
        }
        let bytes = self.sized(key, tensor, tensor.kind.row_bytes(cols).and_then(|b| b.checked_mul(rows)))?;
        let data = match tensor.kind {
            StoredType::F32 => TensorData::F32(bytes),
            StoredType::F16 => TensorData::F16(bytes),
            StoredType::Bf16 => TensorData::Bf16(bytes),
            StoredType::Q8_0 => TensorData::Q8_0(bytes),
            StoredType::Q4_0 => TensorData::Q4_0(bytes),
            StoredType::Q4_1 => TensorData::Q4_1(bytes),
            StoredType::F8E4m3 => self.fp8(key, tensor, bytes)?,
            StoredType::I8 | StoredType::I32 | StoredType::I64 | StoredType::Other(_) => return Err(self.no_weight(key, tensor)),
        };
        if !tensor.kind.is_quantized() {
            self.check_saved_quantized(key, tensor)?;
        }
        let order = match tensor.rotary_pairs {
            None => RowOrder::AsStored,
            Some(head_dim) => RowOrder::RotaryPairs { head_dim },
        };
        Ok(TensorView { name: key, rows, cols, data, order })
    }

    /// Floats beside a scale are values before quantization: the model that was evaluated had rounded ones.
    fn check_saved_quantized(self, key: &str, tensor: &StoredTensor) -> Result<(), CheckpointError> {
        let Some(module) = key.strip_suffix(".weight") else { return Ok(()) };
        if self.find(&format!("{key}_scale")).is_none() || self.quantization.schemes(module).is_err() {
            return Ok(());
        }
        let why = format!("is {} but has a `weight_scale`: it was saved before it was quantized", tensor.kind.name());
        Err(self.table.error(tensor, key, why))
    }

    /// The refusal of integers and bytes, which hold codes of some other program's quantization.
    fn no_weight(self, key: &str, tensor: &StoredTensor) -> CheckpointError {
        let companions =
            [(".absmax", "bitsandbytes"), ("_scale_2", "NVFP4"), ("_global_scale", "NVFP4"), ("_scb", "bitsandbytes")];
        let companion = companions.iter().find(|(suffix, _)| self.find(&format!("{key}{suffix}")).is_some());
        match companion {
            Some((_, layout)) => self.unsupported(format!("tensor `{key}` ({layout})")),
            None => self.table.error(tensor, key, format!("is {}, no weight", tensor.kind.name())),
        }
    }

    fn unsupported(self, what: String) -> CheckpointError {
        CheckpointError::unsupported(self.path, what, READ_INSTEAD)
    }

    fn find(self, key: &str) -> Option<Named<'a>> {
        self.table.entries.get_key_value(key).map(|(key, tensor)| (key.as_str(), tensor))
    }

    /// A tensor that another one needs.
    fn companion(self, key: &str) -> Result<Named<'a>, CheckpointError> {
        let missing = || CheckpointError::MissingTensor { path: self.path.to_path_buf(), tensor: key.to_owned() };
        self.find(key).ok_or_else(missing)
    }

    fn matrix(self, key: &str, tensor: &StoredTensor) -> Result<(usize, usize), CheckpointError> {
        let shape = tensor.matrix().filter(|&(rows, cols)| rows > 0 && cols > 0);
        shape.ok_or_else(|| self.table.error(tensor, key, format!("has shape {:?}, no vector or matrix", tensor.shape)))
    }

    /// The tensor's bytes where there are exactly as many as its shape needs.
    fn sized(self, key: &str, tensor: &'a StoredTensor, wanted: Option<usize>) -> Result<&'a [u8], CheckpointError> {
        if wanted != Some(tensor.bytes) {
            let why = format!("has {} bytes, which {:?} in {} is not", tensor.bytes, tensor.shape, tensor.kind.name());
            return Err(self.table.error(tensor, key, why));
        }
        self.table.bytes(key, tensor)
    }
}
