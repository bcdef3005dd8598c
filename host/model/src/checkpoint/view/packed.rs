//! INT4 weights of compressed-tensors' `pack-quantized`: value = (code - zero) * scale. Knows no FP8.
//!
//! ```text
//! X_packed      I32 [rows, ceil(cols/8)]         element c of a row in bits 4*(c%8) of word c/8, as code = q + 8
//! X_scale       F32, BF16 or F16 [rows, groups]  groups of cols/groups columns; a whole row: [rows, 1]
//! X_shape       I64 or I32 [2]                   rows, cols
//! X_zero_point  I32 [ceil(rows/8), groups]       asymmetric only; zero + 8 of row r in bits 4*(r%8) of word r/8
//! ```
//! Source: compressed-tensors 0.20.1, compressors/pack_quantized (tests/data/packed holds tensors that it wrote).

use millrace_ops::{RowOrder, ScaleData, TensorData, TensorView};

use super::scales::Sign;
use super::{Named, Views};
use crate::CheckpointError;
use crate::checkpoint::quantization::{Scheme, spoken};
use crate::checkpoint::stored::{StoredTensor, StoredType};

/// Elements of a word.
pub(in crate::checkpoint) const PER_WORD: usize = 8;

impl<'a> Views<'a> {
    pub(super) fn packed(self, key: &'a str, tensor: &'a StoredTensor) -> Result<TensorView<'a>, CheckpointError> {
        let wrong = |why: String| self.table.error(tensor, key, why);
        let name = key.strip_suffix("_packed").unwrap_or(key);
        self.refuse_other_packings(name, tensor)?;
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let said = self.quantization.schemes(module).map_err(|why| wrong(format!("is packed INT4, {why}")))?;
        if tensor.kind != StoredType::I32 {
            return Err(wrong(format!("is {}, not I32", tensor.kind.name())));
        }
        let (rows, words) = self.matrix(key, tensor)?;
        let [said_rows, cols] = self.logical_shape(name)?;
        if said_rows != rows || cols.div_ceil(PER_WORD) != words || cols == 0 {
            let wanted = [said_rows, cols.div_ceil(PER_WORD)];
            let why = format!("has shape [{rows}, {words}], but its `weight_shape` [{said_rows}, {cols}] needs {wanted:?}");
            return Err(wrong(why));
        }
        let packed = self.sized(key, tensor, rows.checked_mul(words).and_then(|n| n.checked_mul(4)))?;
        let scales_named = self.companion(&format!("{name}_scale"))?;
        let groups = self.groups(scales_named, rows, cols)?;
        let zeros = self.zero_points(name, rows, groups)?;
        let group = cols / groups;
        let agrees = |scheme: &Scheme| {
            *scheme == Scheme::Int4 { group: Some(group), zero_points: zeros.is_some() }
                || groups == 1 && *scheme == Scheme::Int4 { group: None, zero_points: zeros.is_some() }
        };
        if !said.iter().any(|(_, scheme)| agrees(scheme)) {
            let points = if zeros.is_some() { "with zero points" } else { "without zero points" };
            return Err(wrong(format!("has groups of {group} {points}, but the config says {}", spoken(&said))));
        }
        let scales = self.scales(scales_named, rows.saturating_mul(groups), Sign::Any)?;
        self.check_not_blank(scales_named, &scales, || packed.iter().all(|&byte| byte == 0x88))?;
        let data = data(packed, scales, zeros, group);
        Ok(TensorView { name, rows, cols, data, order: RowOrder::AsStored })
    }

    /// Formats that store `X_packed` in another way.
    fn refuse_other_packings(self, name: &str, tensor: &StoredTensor) -> Result<(), CheckpointError> {
        if self.find(&format!("{name}_g_idx")).is_some() {
            return Err(self.unsupported(format!("tensor `{name}` with activation ordering (`weight_g_idx`)")));
        }
        if self.find(&format!("{name}_global_scale")).is_some() {
            return Err(self.unsupported(format!("tensor `{name}` (NVFP4)")));
        }
        if tensor.kind == StoredType::Other("U8") {
            return Err(self.unsupported(format!("tensor `{name}_packed` in U8 (MXFP4 or another 4-bit float)")));
        }
        Ok(())
    }

    /// Groups of a row, by the shape of the scales.
    fn groups(self, (key, scales): Named<'a>, rows: usize, cols: usize) -> Result<usize, CheckpointError> {
        let groups = match scales.shape.as_slice() {
            [n, groups] if *n == rows => Some(*groups),
            [n] if *n == rows => Some(1),
            _ => None,
        };
        let groups = groups.filter(|&groups| groups > 0 && cols.is_multiple_of(groups));
        groups.ok_or_else(|| {
            let why = format!("has shape {:?}, not [{rows}, groups] with groups that divide {cols} columns", scales.shape);
            self.table.error(scales, key, why)
        })
    }

    /// Packed zero points. Old writers stored zeros for symmetric weights too, unpacked in I8.
    fn zero_points(self, name: &str, rows: usize, groups: usize) -> Result<Option<&'a [u8]>, CheckpointError> {
        let Some((key, tensor)) = self.find(&format!("{name}_zero_point")) else { return Ok(None) };
        if tensor.kind == StoredType::I8 && self.table.bytes(key, tensor)?.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let words = rows.div_ceil(PER_WORD);
        if tensor.kind != StoredType::I32 || tensor.shape != [words, groups] {
            let why = format!("is {} {:?}, not I32 [{words}, {groups}]", tensor.kind.name(), tensor.shape);
            return Err(self.table.error(tensor, key, why));
        }
        self.sized(key, tensor, words.checked_mul(groups).and_then(|n| n.checked_mul(4))).map(Some)
    }

    /// `X_shape`: two integers, 64 or 32 bit.
    pub(in crate::checkpoint) fn logical_shape(self, name: &str) -> Result<[usize; 2], CheckpointError> {
        let (key, tensor) = self.companion(&format!("{name}_shape"))?;
        let bytes = self.table.bytes(key, tensor)?;
        let read = |at: usize| match tensor.kind {
            StoredType::I64 => bytes.get(at * 8..)?.first_chunk().and_then(|b| usize::try_from(i64::from_le_bytes(*b)).ok()),
            StoredType::I32 => bytes.get(at * 4..)?.first_chunk().and_then(|b| usize::try_from(i32::from_le_bytes(*b)).ok()),
            _ => None,
        };
        match (tensor.shape.as_slice(), read(0), read(1)) {
            ([2], Some(rows), Some(cols)) => Ok([rows, cols]),
            _ => Err(self.table.error(tensor, key, format!("is {} {:?}, not two sizes", tensor.kind.name(), tensor.shape))),
        }
    }
}

fn data<'a>(packed: &'a [u8], scales: ScaleData<'a>, zeros: Option<&'a [u8]>, group: usize) -> TensorData<'a> {
    match zeros {
        Some(zeros) => TensorData::Int4ZeroPoint { packed, scales, zeros, group },
        None => TensorData::Int4Group { packed, scales, group },
    }
}
