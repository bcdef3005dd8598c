//! Turns stored tensors into views that a backend can prepare: joins FP8 codes with their scales and packed INT4 with its
//! scales and shape, and checks every size. Knows no file format and no architecture.

use millrace_ops::{RowOrder, TensorData, TensorView};

use super::quantization::Quantization;
use super::stored::{StoredTensor, StoredType, TensorTable};
use crate::CheckpointError;

const FP8_BLOCK: usize = 128;

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
        if let Some((key, tensor)) = self.table.entries.get_key_value(name) {
            return self.plain(key, tensor);
        }
        if let Some((key, tensor)) = self.table.entries.get_key_value(&format!("{name}_packed")) {
            return self.packed(key, tensor);
        }
        if let Some(module) = name.strip_suffix(".weight")
            && self.table.entries.contains_key(&format!("{module}.qweight"))
        {
            let what = format!("tensor `{module}.qweight` (AWQ or GPTQ)");
            let instead = "use a checkpoint in BF16, FP8 or compressed-tensors pack-quantized INT4";
            return Err(CheckpointError::unsupported(self.path, what, instead));
        }
        Err(CheckpointError::MissingTensor { path: self.path.to_path_buf(), tensor: name.to_owned() })
    }

    /// A tensor whose rows are runs of bytes; FP8 with its scales.
    fn plain(self, key: &'a str, tensor: &'a StoredTensor) -> Result<TensorView<'a>, CheckpointError> {
        let (rows, cols) = self.matrix(key, tensor)?;
        let bytes = self.sized(key, tensor, tensor.kind.row_bytes(cols).and_then(|b| b.checked_mul(rows)))?;
        let data = match tensor.kind {
            StoredType::F32 => TensorData::F32(bytes),
            StoredType::F16 => TensorData::F16(bytes),
            StoredType::Bf16 => TensorData::Bf16(bytes),
            StoredType::Q8_0 => TensorData::Q8_0(bytes),
            StoredType::Q4_0 => TensorData::Q4_0(bytes),
            StoredType::Q4_1 => TensorData::Q4_1(bytes),
            StoredType::F8E4m3 => TensorData::Fp8Block { codes: bytes, scales: self.fp8_scales(key, tensor, rows, cols)? },
            other => return Err(self.table.error(tensor, key, format!("is {}, no weight", other.name()))),
        };
        let order = match tensor.rotary_pairs {
            None => RowOrder::AsStored,
            Some(head_dim) => RowOrder::RotaryPairs { head_dim },
        };
        Ok(TensorView { name: key, rows, cols, data, order })
    }

    fn fp8_scales(self, key: &str, tensor: &StoredTensor, rows: usize, cols: usize) -> Result<&'a [u8], CheckpointError> {
        if *self.quantization != Quantization::Fp8Blocks {
            return Err(self.table.error(tensor, key, "is FP8, but the config names no FP8 with 128x128 blocks"));
        }
        let scales = self.companion(&format!("{key}_scale_inv"), StoredType::F32)?;
        let wanted = [rows.div_ceil(FP8_BLOCK), cols.div_ceil(FP8_BLOCK)];
        self.shaped(scales, &wanted)
    }

    fn packed(self, key: &'a str, tensor: &'a StoredTensor) -> Result<TensorView<'a>, CheckpointError> {
        let wrong = |why: String| self.table.error(tensor, key, why);
        let name = key.strip_suffix("_packed").unwrap_or(key);
        let Quantization::PackedInt4 { groups } = self.quantization else {
            return Err(wrong("is packed, but the config names no pack-quantized INT4".to_owned()));
        };
        for (suffix, what) in [("_zero_point", "zero points"), ("_g_idx", "activation ordering")] {
            if self.table.entries.contains_key(&format!("{name}{suffix}")) {
                let what = format!("tensor `{name}` with {what}");
                return Err(CheckpointError::unsupported(self.path, what, "use symmetric INT4 without reordering"));
            }
        }
        if tensor.kind != StoredType::I32 {
            return Err(wrong(format!("is {}, not I32", tensor.kind.name())));
        }
        let (rows, words) = self.matrix(key, tensor)?;
        let cols = words.checked_mul(8).ok_or_else(|| wrong("is too wide".to_owned()))?;
        if self.logical_shape(name)? != [rows, cols] {
            return Err(wrong(format!("holds {rows}x{cols} elements, its `weight_shape` says otherwise")));
        }
        let scales = self.companion(&format!("{name}_scale"), StoredType::Bf16)?;
        let per_row = scales.1.shape.last().copied().unwrap_or(0);
        let group = cols.checked_div(per_row).filter(|g| g.checked_mul(per_row) == Some(cols) && g.is_multiple_of(8));
        let group = group.filter(|&g| groups.contains(&Some(g)) || (g == cols && groups.contains(&None)));
        let Some(group) = group else {
            return Err(wrong(format!("has {per_row} scales for {cols} columns, which fits no group size of the config")));
        };
        let packed = self.sized(key, tensor, rows.checked_mul(words).and_then(|n| n.checked_mul(4)))?;
        let scales = self.shaped(scales, &[rows, per_row])?;
        Ok(TensorView { name, rows, cols, data: TensorData::Int4Group { packed, scales, group }, order: RowOrder::AsStored })
    }

    /// `X.weight_shape`: two integers, 64 or 32 bit.
    fn logical_shape(self, name: &str) -> Result<[usize; 2], CheckpointError> {
        let key = format!("{name}_shape");
        let Some((key, tensor)) = self.table.entries.get_key_value(&key) else {
            return Err(CheckpointError::MissingTensor { path: self.path.to_path_buf(), tensor: key });
        };
        let bytes = self.table.bytes(key, tensor)?;
        let read = |at: usize| match tensor.kind {
            StoredType::I64 => bytes.get(at * 8..)?.first_chunk().and_then(|b| usize::try_from(i64::from_le_bytes(*b)).ok()),
            StoredType::I32 => bytes.get(at * 4..)?.first_chunk().and_then(|b| usize::try_from(i32::from_le_bytes(*b)).ok()),
            _ => None,
        };
        match (tensor.shape.as_slice(), read(0), read(1)) {
            ([2], Some(rows), Some(cols)) => Ok([rows, cols]),
            _ => Err(self.table.error(tensor, key, "is not two sizes")),
        }
    }

    fn companion(self, key: &str, kind: StoredType) -> Result<(&'a str, &'a StoredTensor), CheckpointError> {
        let Some((key, tensor)) = self.table.entries.get_key_value(key) else {
            return Err(CheckpointError::MissingTensor { path: self.path.to_path_buf(), tensor: key.to_owned() });
        };
        if tensor.kind != kind {
            return Err(self.table.error(tensor, key, format!("is {}, not {}", tensor.kind.name(), kind.name())));
        }
        Ok((key, tensor))
    }

    fn shaped(self, (key, tensor): (&'a str, &'a StoredTensor), wanted: &[usize; 2]) -> Result<&'a [u8], CheckpointError> {
        if tensor.shape != wanted {
            return Err(self.table.error(tensor, key, format!("has shape {:?}, not {wanted:?}", tensor.shape)));
        }
        let [rows, cols] = *wanted;
        self.sized(key, tensor, tensor.kind.row_bytes(cols).and_then(|b| b.checked_mul(rows)))
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
