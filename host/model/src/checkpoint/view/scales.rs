//! Scales of quantized tensors: their types, and which values they cannot have. Knows no codes.

use millrace_ops::ScaleData;

use super::{Named, Views};
use crate::CheckpointError;
use crate::checkpoint::stored::StoredType;

/// No weight's scale is larger: the largest F16 number, times 448 or 8.
const LARGEST_SCALE: f32 = 65_504.0;

/// Whether a scale may be below zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// FP8: e4m3 codes have a sign of their own and the same magnitudes on both sides, so a sign of the scale could say nothing
    /// more. Every writer derives scales from a magnitude; one below zero is a damaged file.
    Positive,
    /// INT4: scales are signed floats by the format's definition, value = code * scale. Codes go from -8 to 7, so writers give the
    /// value of a group's largest magnitude the code -8 by the sign of the scale (GGUF's Q4_0, AutoRound, `millrace quantize`).
    Any,
}

impl<'a> Views<'a> {
    /// The values of a scale tensor of `count` elements, checked one by one.
    pub(super) fn scales(self, (key, tensor): Named<'a>, count: usize, sign: Sign) -> Result<ScaleData<'a>, CheckpointError> {
        let bytes = || self.sized(key, tensor, tensor.kind.row_bytes(count));
        let scales = match tensor.kind {
            StoredType::F32 => ScaleData::F32(bytes()?),
            StoredType::F16 => ScaleData::F16(bytes()?),
            StoredType::Bf16 => ScaleData::Bf16(bytes()?),
            other => return Err(self.table.error(tensor, key, format!("is {}, not F32, BF16 or F16", other.name()))),
        };
        let usable = |scale: f32| scale.abs() <= LARGEST_SCALE && (sign == Sign::Any || scale >= 0.0);
        if let Some((at, scale)) = scales.values().enumerate().find(|&(_, scale)| !usable(scale)) {
            let least = if sign == Sign::Any { -LARGEST_SCALE } else { 0.0 };
            let why = format!("scale {at} is {scale:?}, not a number from {least} to {LARGEST_SCALE}");
            return Err(self.table.damaged(tensor, key, why));
        }
        Ok(scales)
    }

    /// Scales that are all zero make every value zero, which is only meant where the codes say so too.
    pub(super) fn check_not_blank(
        self,
        (key, tensor): Named<'a>,
        scales: &ScaleData<'_>,
        codes_are_zero: impl FnOnce() -> bool,
    ) -> Result<(), CheckpointError> {
        if scales.values().any(|scale| scale != 0.0) || codes_are_zero() {
            return Ok(());
        }
        Err(self.table.damaged(tensor, key, "every scale is 0, but its codes are not: this part of the file was never written"))
    }
}
