//! Rows of floats in vectors: the forms of [`super::scalar`] for any [`Vector`]. Knows no operation.

use super::Scan;
use super::math::exp;
use super::vector::Vector;

/// # Safety
/// [`Vector`]'s condition.
#[inline(always)]
pub(super) unsafe fn rms_norm<V: Vector>(x: &mut [f32], weight: &[f32], eps: f32) {
    let (count, weight) = (x.len(), &weight[..x.len()]);
    // SAFETY: this function's condition; every access is below `count`, which both slices have.
    unsafe {
        let (data, weight) = (x.as_mut_ptr(), weight.as_ptr());
        let mut sums = [V::splat(0.0); 4];
        let mut at = 0;
        while at + 4 * V::LANES <= count {
            let mut k = 0;
            while k < 4 {
                let v = V::load(data.add(at + k * V::LANES));
                sums[k] = v.fma(v, sums[k]);
                k += 1;
            }
            at += 4 * V::LANES;
        }
        while at < count {
            let v = if at + V::LANES <= count { V::load(data.add(at)) } else { V::load_first(data.add(at), count - at) };
            sums[0] = v.fma(v, sums[0]);
            at += V::LANES;
        }
        let squares = sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum();
        let inverse = V::splat(1.0 / (squares / count as f32 + eps).sqrt());
        let mut at = 0;
        while at + V::LANES <= count {
            V::load(data.add(at)).mul(inverse).mul(V::load(weight.add(at))).store(data.add(at));
            at += V::LANES;
        }
        if at < count {
            let left = count - at;
            let v = V::load_first(data.add(at), left).mul(inverse).mul(V::load_first(weight.add(at), left));
            v.store_first(data.add(at), left);
        }
    }
}

/// # Safety
/// [`Vector`]'s condition.
#[inline(always)]
pub(super) unsafe fn layer_norm<V: Vector>(x: &mut [f32], weight: &[f32], eps: f32) {
    let (count, weight) = (x.len(), &weight[..x.len()]);
    // SAFETY: this function's condition; every access is below `count`, which both slices have.
    unsafe {
        let (data, weight, zero) = (x.as_mut_ptr(), weight.as_ptr(), V::splat(0.0));
        let mut sum = zero;
        let mut at = 0;
        while at < count {
            sum = sum.add(load_up_to(data.add(at), count - at));
            at += V::LANES;
        }
        let mean = V::splat(sum.sum() / count as f32);
        let mut squares = zero;
        at = 0;
        while at < count {
            let left = count - at;
            let v = load_up_to::<V>(data.add(at), left).sub(mean);
            let v = if left < V::LANES { v.first(left, zero) } else { v };
            squares = v.fma(v, squares);
            at += V::LANES;
        }
        let inverse = V::splat(1.0 / (squares.sum() / count as f32 + eps).sqrt());
        at = 0;
        while at < count {
            let left = count - at;
            let v = load_up_to::<V>(data.add(at), left).sub(mean).mul(inverse).mul(load_up_to(weight.add(at), left));
            if left < V::LANES {
                v.store_first(data.add(at), left)
            } else {
                v.store(data.add(at))
            }
            at += V::LANES;
        }
    }
}

/// The first `LANES` of `left > 0` floats; zeros behind the last.
///
/// # Safety
/// [`Vector`]'s condition for as many floats.
#[inline(always)]
unsafe fn load_up_to<V: Vector>(from: *const f32, left: usize) -> V {
    // SAFETY: this function's condition.
    unsafe { if left < V::LANES { V::load_first(from, left) } else { V::load(from) } }
}

/// # Safety
/// [`Vector`]'s condition.
#[inline(always)]
pub(super) unsafe fn silu_mul<V: Vector>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    let count = out.len();
    let (gate, up) = (&gate[..count], &up[..count]);
    let mut at = 0;
    // SAFETY: this function's condition; every access is below `count`, which all slices have.
    unsafe {
        while at + V::LANES <= count {
            let g = V::load(gate.as_ptr().add(at));
            silu(g).mul(V::load(up.as_ptr().add(at))).store(out.as_mut_ptr().add(at));
            at += V::LANES;
        }
        if at < count {
            let left = count - at;
            let g = V::load_first(gate.as_ptr().add(at), left);
            silu(g).mul(V::load_first(up.as_ptr().add(at), left)).store_first(out.as_mut_ptr().add(at), left);
        }
    }
}

/// # Safety
/// [`Vector`]'s condition.
#[inline(always)]
unsafe fn silu<V: Vector>(g: V) -> V {
    // SAFETY: this function's condition.
    unsafe { g.div(exp(V::splat(0.0).sub(g)).add(V::splat(1.0))) }
}

/// # Safety
/// [`Vector`]'s condition.
#[inline(always)]
pub(super) unsafe fn scan<V: Vector>(logits: &[f32]) -> Scan {
    let count = logits.len();
    let mut at = 0;
    // SAFETY: this function's condition; every access is below `count`.
    unsafe {
        let lowest = V::splat(f32::NEG_INFINITY);
        let (mut largest, mut bad) = (lowest, false);
        while at < count {
            let left = count - at;
            let v = if left >= V::LANES {
                V::load(logits.as_ptr().add(at))
            } else {
                V::load_first(logits.as_ptr().add(at), left).first(left, lowest)
            };
            bad |= v.any_nan_or_inf();
            largest = v.max(largest);
            at += V::LANES;
        }
        Scan { largest: largest.largest(), fine: !bad }
    }
}

/// # Safety
/// [`Vector`]'s condition.
#[inline(always)]
pub(super) unsafe fn sum_weights<V: Vector>(logits: &[f32], largest: f32, inverse: f32, floor: f32) -> f32 {
    let count = logits.len();
    let mut at = 0;
    // SAFETY: this function's condition; every access is below `count`.
    unsafe {
        let (largest, inverse, floor) = (V::splat(largest), V::splat(inverse), V::splat(floor));
        let zero = V::splat(0.0);
        let mut sum = zero;
        while at < count {
            let left = count - at;
            let v =
                if left >= V::LANES { V::load(logits.as_ptr().add(at)) } else { V::load_first(logits.as_ptr().add(at), left) };
            let weight = exp(v.sub(largest).mul(inverse));
            let weight = weight.below(floor, zero, weight);
            sum = sum.add(if left >= V::LANES { weight } else { weight.first(left, zero) });
            at += V::LANES;
        }
        sum.sum()
    }
}

/// Rotates pairs; plain arithmetic that the compiler turns into the entry point's vectors.
#[inline(always)]
pub(super) fn rotate(low: &mut [f32], high: &mut [f32], sines: &[f32], cosines: &[f32]) {
    for (((l, h), s), c) in low.iter_mut().zip(high).zip(sines).zip(cosines) {
        (*l, *h) = (*l * c - *h * s, *h * c + *l * s);
    }
}

/// Rotates pairs of neighbours; plain arithmetic, as above.
#[inline(always)]
pub(super) fn rotate_adjacent(channels: &mut [f32], sines: &[f32], cosines: &[f32]) {
    for ((pair, s), c) in channels.chunks_exact_mut(2).zip(sines).zip(cosines) {
        (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[1] * c + pair[0] * s);
    }
}

/// Adding and subtracting it rounds an f64 to an integer, which its low bits then hold: 1.5 * 2^52.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

/// Sines and cosines of `position * frequency`, the angle rounded to f32, below 2e7 or so. Reduced to a quarter turn in f64
/// (an error of 1e-11 at 131,072 radians); polynomials of Cephes `sinf` and `cosf`, errors below 1.2e-7. Without branches, so
/// that the compiler vectorizes it.
#[inline(always)]
pub(super) fn rotation(position: u32, frequencies: &[f32], sines: &mut [f32], cosines: &mut [f32]) {
    let position = position as f32;
    for ((f, s), c) in frequencies.iter().zip(sines).zip(cosines) {
        let angle = f64::from(position * f);
        let shifted = angle * std::f64::consts::FRAC_2_PI + ROUNDER;
        let quarter = shifted.to_bits() as u32;
        let rest = (angle - (shifted - ROUNDER) * std::f64::consts::FRAC_PI_2) as f32;
        let square = rest * rest;
        let sine = rest + rest * square * (-1.666_665_5e-1 + square * (8.332_161e-3 + square * -1.951_529_6e-4));
        let tail = 4.166_664_6e-2 + square * (-1.388_731_6e-3 + square * 2.443_315_7e-5);
        let cosine = 1.0 - 0.5 * square + square * square * tail;
        let swap = quarter & 1 != 0;
        let (a, b) = if swap { (cosine, sine) } else { (sine, cosine) };
        *s = f32::from_bits(a.to_bits() ^ (quarter & 2) << 30);
        *c = f32::from_bits(b.to_bits() ^ (quarter.wrapping_add(1) & 2) << 30);
    }
}
