//! The softmax of blocked attention, part by part: weights of a part, and sums of parts made relative to one largest logit. Knows
//! pointers; neither pages nor sequences.
//!
//! Logits are to base 2. What a row comes to depends, to the bit, on nothing but its own numbers.

use crate::simd::math::exp2;
use crate::simd::vector::{MOST_LANES, Vector};

/// What the scores and weights of a part are multiplied by, per token (FP8) or all alike.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Factors {
    /// To base-2 logits.
    pub(in crate::ops) scores: *const f32,
    /// From weights to what values are multiplied by.
    pub(in crate::ops) weights: *const f32,
}

/// Largest logit and sum of weights of a part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::ops) struct Softmax {
    pub(in crate::ops) largest: f32,
    pub(in crate::ops) sum: f32,
}

/// Turns the first `seen > 0` scores into weights, relative to the largest logit or `at_least`, whichever is larger. What lies behind them, up to the next whole vector, is read but has no
/// influence; what it holds afterwards has no meaning.
///
/// # Safety
/// [`Vector`]'s condition; `scores` and the factors hold `seen` floats, rounded up to whole vectors.
#[inline(always)]
pub(in crate::ops) unsafe fn softmax<V: Vector>(scores: *mut f32, factors: Factors, seen: usize, at_least: f32) -> Softmax {
    // SAFETY: this function's condition.
    unsafe {
        let lowest = V::splat(f32::NEG_INFINITY);
        let mut largest = lowest;
        let mut at = 0;
        while at < seen {
            let logits = V::load(scores.add(at)).mul(V::load(factors.scores.add(at)));
            let logits = if seen - at < V::LANES { logits.first(seen - at, lowest) } else { logits };
            logits.store(scores.add(at));
            largest = logits.max(largest);
            at += V::LANES;
        }
        let largest = largest.largest();
        let largest = if at_least > largest { at_least } else { largest };
        let bias = V::splat(largest);
        let mut sum = V::splat(0.0);
        let mut at = 0;
        while at < seen {
            let weights = exp2(V::load(scores.add(at)).sub(bias));
            sum = sum.add(weights);
            weights.mul(V::load(factors.weights.add(at))).store(scores.add(at));
            at += V::LANES;
        }
        Softmax { largest, sum: sum.sum() }
    }
}

/// Rows of attention so far: unscaled sums of values and their softmax.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Row {
    /// `[head_dim]`
    pub(in crate::ops) sums: *mut f32,
    pub(in crate::ops) softmax: Softmax,
}

/// Adds a later part to a row.
///
/// # Safety
/// [`Vector`]'s condition; both hold `head_dim` sums, a multiple of `LANES`.
#[inline(always)]
pub(in crate::ops) unsafe fn merge<V: Vector>(row: Row, later: Row, head_dim: usize) -> Softmax {
    let largest = if row.softmax.largest > later.softmax.largest { row.softmax.largest } else { later.softmax.largest };
    // SAFETY: this function's condition.
    unsafe {
        let a = exp2(V::splat(row.softmax.largest - largest));
        let b = exp2(V::splat(later.softmax.largest - largest));
        let mut at = 0;
        while at < head_dim {
            let sum = V::load(row.sums.add(at)).mul(a);
            V::load(later.sums.add(at)).fma(b, sum).store(row.sums.add(at));
            at += V::LANES;
        }
        let mut factors = [[0.0f32; MOST_LANES]; 2];
        a.store(factors[0].as_mut_ptr());
        b.store(factors[1].as_mut_ptr());
        Softmax { largest, sum: row.softmax.sum * factors[0][0] + later.softmax.sum * factors[1][0] }
    }
}

/// Makes sums that are relative to one largest logit relative to another, which is not less; the factor.
///
/// # Safety
/// [`Vector`]'s condition; `sums` holds `head_dim` floats, a multiple of `LANES`.
#[inline(always)]
pub(in crate::ops) unsafe fn fade<V: Vector>(sums: *mut f32, (from, to): (f32, f32), head_dim: usize) -> f32 {
    if from == to {
        return 1.0;
    }
    if from == f32::NEG_INFINITY {
        // Nothing but zeros, or NaN, so far.
        return 0.0;
    }
    // SAFETY: this function's condition.
    unsafe {
        let factor = exp2(V::splat(from - to));
        let mut at = 0;
        while at < head_dim {
            V::load(sums.add(at)).mul(factor).store(sums.add(at));
            at += V::LANES;
        }
        let mut factors = [0.0f32; MOST_LANES];
        factor.store(factors.as_mut_ptr());
        factors[0]
    }
}

/// `out = sums / softmax.sum`
///
/// # Safety
/// [`Vector`]'s condition; both hold `head_dim` floats, a multiple of `LANES`.
#[inline(always)]
pub(in crate::ops) unsafe fn finish<V: Vector>(row: Row, out: *mut f32, head_dim: usize) {
    // SAFETY: this function's condition.
    unsafe {
        let inverse = V::splat(1.0 / row.softmax.sum);
        let mut at = 0;
        while at < head_dim {
            V::load(row.sums.add(at)).mul(inverse).store(out.add(at));
            at += V::LANES;
        }
    }
}
