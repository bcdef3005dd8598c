//! The loops of blocked attention, once for all vector sets: scores of query rows over a page's keys, softmax of a part,
//! weighted values, merging of parts. Knows pointers and strides; neither pages nor sequences.
//!
//! What a row comes to depends, to the bit, on nothing but its own numbers: rows share loads, never sums, and each sum runs
//! over channels or tokens in one order.

use crate::simd::math::exp2;
use crate::simd::vector::Vector;

/// Rows that kernels over narrow elements take at once: the heads of most groups. Each number of rows is code of its own, so
/// larger numbers are only for floats, where tiles come with many rows.
const NARROW_ROWS: usize = 4;
/// Largest numbers of rows that any vector set takes at once.
const MOST_SCORE_ROWS: usize = 8;
const MOST_VALUE_ROWS: usize = 6;

/// A stored element.
pub(super) trait Element: Copy + 'static {
    /// Whether it is a float already.
    const WIDE: bool;

    /// `LANES` elements as floats; FP8 codes as their values divided by 256.
    ///
    /// # Safety
    /// [`Vector`]'s condition for `LANES` elements.
    unsafe fn load<V: Vector>(from: *const Self) -> V;
}

/// BF16 bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16(u16);

/// An e4m3 code.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Fp8(u8);

impl Element for f32 {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: this function's condition.
        unsafe { V::load(from) }
    }
}

impl Element for Bf16 {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: this function's condition.
        unsafe { V::load_bf16(from.cast()) }
    }
}

impl Element for Fp8 {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: this function's condition.
        unsafe { V::load_fp8(from.cast()) }
    }
}

/// How many of `left` rows a kernel takes that holds at most `most` in registers.
#[inline(always)]
fn rows_at_once<E: Element>(left: usize, most: usize) -> usize {
    if E::WIDE && left >= most { most } else { left.min(most).min(NARROW_ROWS) }
}

/// Keys of one page and the rows that see them.
#[derive(Clone, Copy)]
pub(super) struct Scores<E> {
    /// `[head_dim, page_tokens]`
    pub(super) keys: *const E,
    pub(super) page_tokens: usize,
    pub(super) head_dim: usize,
    /// `[rows, head_dim]`
    pub(super) queries: *const f32,
    /// Row r's scores at `scores + r * stride`.
    pub(super) scores: *mut f32,
    pub(super) stride: usize,
    pub(super) rows: usize,
    /// Tokens wanted; rounded up to whole vectors, which `page_tokens` is a multiple of.
    pub(super) tokens: usize,
}

/// `scores[r][t] = queries[r] . keys[.., t]`
///
/// # Safety
/// [`Vector`]'s condition; the pointers hold what their fields say.
#[inline(always)]
pub(super) unsafe fn scores<V: Vector, E: Element>(task: Scores<E>) {
    let mut row = 0;
    while row < task.rows {
        let rows = rows_at_once::<E>(task.rows - row, V::SCORE_ROWS);
        // SAFETY: rows `row .. row + rows` are below `task.rows`.
        let part = unsafe {
            let (queries, scores) = (task.queries.add(row * task.head_dim), task.scores.add(row * task.stride));
            Scores { queries, scores, rows, ..task }
        };
        // SAFETY: this function's condition.
        unsafe {
            match rows {
                1 => score_rows::<V, E, 1>(part),
                2 => score_rows::<V, E, 2>(part),
                3 => score_rows::<V, E, 3>(part),
                4 => score_rows::<V, E, 4>(part),
                6 if V::SCORE_ROWS == 6 && E::WIDE => score_rows::<V, E, 6>(part),
                _ if V::SCORE_ROWS == MOST_SCORE_ROWS && E::WIDE => score_rows::<V, E, MOST_SCORE_ROWS>(part),
                _ => unreachable!("rows_at_once gives no other number"),
            }
        }
        row += rows;
    }
}

/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn score_rows<V: Vector, E: Element, const R: usize>(task: Scores<E>) {
    let mut token = 0;
    // SAFETY: this function's condition; vectors begin below `tokens` and end within `page_tokens`.
    unsafe {
        while token + V::LANES < task.tokens {
            score_block::<V, E, R, 2>(task, token);
            token += 2 * V::LANES;
        }
        if token < task.tokens {
            score_block::<V, E, R, 1>(task, token);
        }
    }
}

/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn score_block<V: Vector, E: Element, const R: usize, const C: usize>(task: Scores<E>, token: usize) {
    // SAFETY: this function's condition.
    unsafe {
        let mut sums = [[V::splat(0.0); C]; R];
        let mut keys = task.keys.add(token);
        let mut channel = 0;
        while channel < task.head_dim {
            let mut loaded = [V::splat(0.0); C];
            let mut c = 0;
            while c < C {
                loaded[c] = E::load::<V>(keys.add(c * V::LANES));
                c += 1;
            }
            let mut r = 0;
            while r < R {
                let query = V::splat(*task.queries.add(r * task.head_dim + channel));
                let mut c = 0;
                while c < C {
                    sums[r][c] = loaded[c].fma(query, sums[r][c]);
                    c += 1;
                }
                r += 1;
            }
            keys = keys.add(task.page_tokens);
            channel += 1;
        }
        let mut r = 0;
        while r < R {
            let mut c = 0;
            while c < C {
                sums[r][c].store(task.scores.add(r * task.stride + token + c * V::LANES));
                c += 1;
            }
            r += 1;
        }
    }
}

/// Values of one page and the rows that see all `tokens` of them.
#[derive(Clone, Copy)]
pub(super) struct Values<E> {
    /// `[page_tokens, head_dim]`
    pub(super) values: *const E,
    pub(super) head_dim: usize,
    /// Row r's weights at `weights + r * stride`.
    pub(super) weights: *const f32,
    pub(super) stride: usize,
    /// `[rows, head_dim]`
    pub(super) sums: *mut f32,
    pub(super) rows: usize,
    pub(super) tokens: usize,
}

/// `sums[r] += sum over t of weights[r][t] * values[t]`
///
/// # Safety
/// [`Vector`]'s condition; the pointers hold what their fields say; `head_dim` is a multiple of `LANES`.
#[inline(always)]
pub(super) unsafe fn values<V: Vector, E: Element>(task: Values<E>) {
    let mut row = 0;
    while row < task.rows {
        let rows = rows_at_once::<E>(task.rows - row, V::VALUE_ROWS);
        // SAFETY: rows `row .. row + rows` are below `task.rows`.
        let part = unsafe {
            let (weights, sums) = (task.weights.add(row * task.stride), task.sums.add(row * task.head_dim));
            Values { weights, sums, rows, ..task }
        };
        // SAFETY: this function's condition.
        unsafe {
            match rows {
                1 => value_rows::<V, E, 1>(part),
                2 => value_rows::<V, E, 2>(part),
                3 => value_rows::<V, E, 3>(part),
                4 if V::VALUE_ROWS > 3 => value_rows::<V, E, 4>(part),
                _ if V::VALUE_ROWS == MOST_VALUE_ROWS && E::WIDE => value_rows::<V, E, MOST_VALUE_ROWS>(part),
                _ => unreachable!("rows_at_once gives no other number"),
            }
        }
        row += rows;
    }
}

/// # Safety
/// As [`values`].
#[inline(always)]
unsafe fn value_rows<V: Vector, E: Element, const R: usize>(task: Values<E>) {
    let mut column = 0;
    // SAFETY: this function's condition; blocks end within `head_dim`.
    unsafe {
        while column + 4 * V::LANES <= task.head_dim {
            value_block::<V, E, R, 4>(task, column);
            column += 4 * V::LANES;
        }
        while column < task.head_dim {
            value_block::<V, E, R, 1>(task, column);
            column += V::LANES;
        }
    }
}

/// # Safety
/// As [`values`].
#[inline(always)]
unsafe fn value_block<V: Vector, E: Element, const R: usize, const C: usize>(task: Values<E>, column: usize) {
    // SAFETY: this function's condition.
    unsafe {
        let mut sums = [[V::splat(0.0); C]; R];
        let mut r = 0;
        while r < R {
            let mut c = 0;
            while c < C {
                sums[r][c] = V::load(task.sums.add(r * task.head_dim + column + c * V::LANES));
                c += 1;
            }
            r += 1;
        }
        let mut values = task.values.add(column);
        let mut token = 0;
        while token < task.tokens {
            let mut loaded = [V::splat(0.0); C];
            let mut c = 0;
            while c < C {
                loaded[c] = E::load::<V>(values.add(c * V::LANES));
                c += 1;
            }
            let mut r = 0;
            while r < R {
                let weight = V::splat(*task.weights.add(r * task.stride + token));
                let mut c = 0;
                while c < C {
                    sums[r][c] = loaded[c].fma(weight, sums[r][c]);
                    c += 1;
                }
                r += 1;
            }
            values = values.add(task.head_dim);
            token += 1;
        }
        let mut r = 0;
        while r < R {
            let mut c = 0;
            while c < C {
                sums[r][c].store(task.sums.add(r * task.head_dim + column + c * V::LANES));
                c += 1;
            }
            r += 1;
        }
    }
}

/// What the scores and weights of a part are multiplied by, per token (FP8) or all alike.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    /// To base-2 logits.
    pub(super) scores: *const f32,
    /// From weights to what values are multiplied by.
    pub(super) weights: *const f32,
}

/// Largest logit and sum of weights of a part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Softmax {
    pub(super) largest: f32,
    pub(super) sum: f32,
}

/// Turns the first `seen > 0` scores into weights. What lies behind them, up to the next whole vector, is read but has no
/// influence; what it holds afterwards has no meaning.
///
/// # Safety
/// [`Vector`]'s condition; `scores` and the factors hold `seen` floats, rounded up to whole vectors.
#[inline(always)]
pub(super) unsafe fn softmax<V: Vector>(scores: *mut f32, factors: Factors, seen: usize) -> Softmax {
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
pub(super) struct Row {
    /// `[head_dim]`
    pub(super) sums: *mut f32,
    pub(super) softmax: Softmax,
}

/// Adds a later part to a row.
///
/// # Safety
/// [`Vector`]'s condition; both hold `head_dim` sums, a multiple of `LANES`.
#[inline(always)]
pub(super) unsafe fn merge<V: Vector>(row: Row, later: Row, head_dim: usize) -> Softmax {
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
        let mut factors = [[0.0f32; 16]; 2];
        a.store(factors[0].as_mut_ptr());
        b.store(factors[1].as_mut_ptr());
        Softmax { largest, sum: row.softmax.sum * factors[0][0] + later.softmax.sum * factors[1][0] }
    }
}

/// `out = sums / softmax.sum`
///
/// # Safety
/// [`Vector`]'s condition; both hold `head_dim` floats, a multiple of `LANES`.
#[inline(always)]
pub(super) unsafe fn finish<V: Vector>(row: Row, out: *mut f32, head_dim: usize) {
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

/// `count` elements as floats, a multiple of `LANES`.
///
/// # Safety
/// [`Vector`]'s condition; both hold `count` elements.
#[inline(always)]
pub(super) unsafe fn widen<V: Vector, E: Element>(from: *const E, to: *mut f32, count: usize) {
    let mut at = 0;
    // SAFETY: this function's condition.
    unsafe {
        while at < count {
            E::load::<V>(from.add(at)).store(to.add(at));
            at += V::LANES;
        }
    }
}
