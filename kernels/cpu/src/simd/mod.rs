//! Arithmetic over rows of floats, dispatched once per call by instruction set. Knows no operation.
//!
//! `scalar` holds the portable forms; `rows` the vector forms, written once over [`vector::Vector`].

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod convert;
#[cfg(target_arch = "x86_64")]
pub(crate) mod dots;
pub(crate) mod math;
mod rows;
mod scalar;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;
pub(crate) mod vector;

use crate::isa::Isa;

/// What a run of logits holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scan {
    pub(crate) largest: f32,
    /// No NaN and no +inf.
    pub(crate) fine: bool,
}

/// Defines a function with one form per instruction set. `$vector` is generic over [`vector::Vector`] or plain code that the
/// compiler vectorizes, which may take unsafe or not.
macro_rules! dispatched {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?, $scalar:path, $avx2:expr, $avx512:expr) => {
        $(#[$doc])*
        pub(crate) fn $name(isa: Isa, $($arg: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(unused_unsafe, reason = "one of the forms is a safe function")]
            fn with_avx2($($arg: $type),*) $(-> $result)? {
                // SAFETY: the features are enabled here, which is all that the form asks for.
                unsafe { $avx2($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
            #[allow(unused_unsafe, reason = "one of the forms is a safe function")]
            fn with_avx512($($arg: $type),*) $(-> $result)? {
                // SAFETY: the features are enabled here, which is all that the form asks for.
                unsafe { $avx512($($arg),*) }
            }

            match isa {
                Isa::Scalar => $scalar($($arg),*),
                // SAFETY: a backend is made only with an instruction set that the machine has.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 | Isa::AvxVnni => unsafe { with_avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Avx512Fp16 | Isa::Amx => unsafe { with_avx512($($arg),*) },
                #[cfg(not(target_arch = "x86_64"))]
                _ => $scalar($($arg),*),
            }
        }
    };
}

dispatched! {
    /// `x = x / sqrt(mean(x^2) + eps) * weight`
    rms_norm(x: &mut [f32], weight: &[f32], eps: f32),
    scalar::rms_norm, rows::rms_norm::<avx2::Avx2>, rows::rms_norm::<avx512::Avx512>
}

dispatched! {
    /// `x = (x - mean(x)) / sqrt(variance(x) + eps) * weight`
    layer_norm(x: &mut [f32], weight: &[f32], eps: f32),
    scalar::layer_norm, rows::layer_norm::<avx2::Avx2>, rows::layer_norm::<avx512::Avx512>
}

dispatched! {
    /// `out = gate / (1 + exp(-gate)) * up`
    silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]),
    scalar::silu_mul, rows::silu_mul::<avx2::Avx2>, rows::silu_mul::<avx512::Avx512>
}

dispatched! {
    /// Sines and cosines of `position * frequency`.
    rotation(position: u32, frequencies: &[f32], sines: &mut [f32], cosines: &mut [f32]),
    scalar::rotation, rows::rotation, rows::rotation
}

dispatched! {
    /// Rotates each pair (low, high).
    rotate(low: &mut [f32], high: &mut [f32], sines: &[f32], cosines: &[f32]),
    scalar::rotate, rows::rotate, rows::rotate
}

dispatched! {
    /// Rotates each pair of neighbours.
    rotate_adjacent(channels: &mut [f32], sines: &[f32], cosines: &[f32]),
    scalar::rotate_adjacent, rows::rotate_adjacent, rows::rotate_adjacent
}

dispatched! {
    /// `sum += x * factor`
    add_scaled(sum: &mut [f32], x: &[f32], factor: f32),
    scalar::add_scaled, scalar::add_scaled, scalar::add_scaled
}

dispatched! {
    /// Largest logit and whether all are usable.
    scan(logits: &[f32]) -> Scan,
    scalar::scan, rows::scan::<avx2::Avx2>, rows::scan::<avx512::Avx512>
}

dispatched! {
    /// Sum of the `exp((logit - largest) * inverse)` that are at least `floor`.
    sum_weights(logits: &[f32], largest: f32, inverse: f32, floor: f32) -> f32,
    scalar::sum_weights, rows::sum_weights::<avx2::Avx2>, rows::sum_weights::<avx512::Avx512>
}

dispatched! {
    /// The largest magnitude; NaN counts as larger than infinity.
    magnitude(values: &[f32]) -> f32,
    convert::magnitude, convert::magnitude, convert::magnitude
}

dispatched! {
    /// Raises each of `largest` to the magnitude of the value beside it; NaN counts as larger than infinity.
    magnitudes(values: &[f32], largest: &mut [f32]),
    convert::magnitudes, convert::magnitudes, convert::magnitudes
}

dispatched! {
    /// To BF16 bits, to nearest, ties to even.
    to_bf16(values: &[f32], out: &mut [u16]),
    convert::to_bf16, convert::to_bf16, convert::to_bf16
}

dispatched! {
    /// From BF16 bits.
    from_bf16(bits: &[u16], out: &mut [f32]),
    convert::from_bf16, convert::from_bf16, convert::from_bf16
}

dispatched! {
    /// To e4m3 codes of `value / scale`; zeros where the scale is 0.
    to_fp8(values: &[f32], scale: f32, out: &mut [u8]),
    convert::to_fp8, convert::to_fp8, convert::to_fp8
}

dispatched! {
    /// To e4m3 codes of each value over the scale beside it; zeros where that is 0.
    to_fp8_each(values: &[f32], scales: &[f32], out: &mut [u8]),
    convert::to_fp8_each, convert::to_fp8_each, convert::to_fp8_each
}

dispatched! {
    /// The values of e4m3 codes.
    from_fp8(codes: &[u8], out: &mut [f32]),
    convert::from_fp8_portable, convert::from_fp8::<avx2::Avx2>, convert::from_fp8::<avx512::Avx512>
}

dispatched! {
    /// Multiplies each value by the factor beside it.
    scale_each(values: &mut [f32], factors: &[f32]),
    convert::scale_each, convert::scale_each, convert::scale_each
}

dispatched! {
    /// Adds to each value the one beside it.
    add_each(values: &mut [f32], addends: &[f32]),
    convert::add_each, convert::add_each, convert::add_each
}
