//! The products of blocked attention, once for all vector sets: scores of query rows over keys, weighted values. Knows pointers
//! and strides; neither pages nor sequences.
//!
//! What a row comes to depends, to the bit, on nothing but its own numbers: rows share loads, never sums, and each sum runs
//! over channels or tokens in one order.

use super::element::Element;
use crate::simd::vector::{Vector, prefetch};

/// Rows that kernels over narrow elements take at once: the heads of most groups. Each number of rows is code of its own, so
/// larger numbers are only for floats, where tiles come with many rows.
const NARROW_ROWS: usize = 4;
/// Largest numbers of rows that any vector set takes at once.
const MOST_SCORE_ROWS: usize = 8;
const MOST_VALUE_ROWS: usize = 6;

/// [`Values::ahead`] where there is nothing to ask for.
pub(in crate::ops) const HERE: usize = 0;

/// How many of `left` rows a kernel takes that holds at most `most` in registers.
#[inline(always)]
fn rows_at_once<E: Element>(left: usize, most: usize) -> usize {
    if E::WIDE && left >= most { most } else { left.min(most).min(NARROW_ROWS) }
}

/// Keys of one page and the rows that see them.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Scores<E> {
    /// `[head_dim, page_tokens]`
    pub(in crate::ops) keys: *const E,
    pub(in crate::ops) page_tokens: usize,
    pub(in crate::ops) head_dim: usize,
    /// `[rows, head_dim]`
    pub(in crate::ops) queries: *const f32,
    /// Row r's scores at `scores + r * stride`.
    pub(in crate::ops) scores: *mut f32,
    pub(in crate::ops) stride: usize,
    pub(in crate::ops) rows: usize,
    /// Tokens wanted; rounded up to whole vectors, which `page_tokens` is a multiple of.
    pub(in crate::ops) tokens: usize,
    /// As [`Values::ahead`].
    pub(in crate::ops) ahead: usize,
}

/// `scores[r][t] = queries[r] . keys[.., t]`
///
/// # Safety
/// [`Vector`]'s condition; the pointers hold what their fields say.
#[inline(always)]
pub(in crate::ops) unsafe fn scores<V: Vector, E: Element>(task: Scores<E>) {
    let mut row = 0;
    while row < task.rows {
        let rows = rows_at_once::<E>(task.rows - row, V::SCORE_ROWS);
        // SAFETY: rows `row .. row + rows` are below `task.rows`.
        let part = unsafe {
            let (queries, scores) = (task.queries.add(row * task.head_dim), task.scores.add(row * task.stride));
            Scores { queries, scores, rows, ahead: if row == 0 { task.ahead } else { HERE }, ..task }
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
            if task.ahead != HERE {
                prefetch(keys.cast::<u8>().wrapping_add(task.ahead), C * V::LANES * size_of::<E>());
            }
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
pub(in crate::ops) struct Values<E> {
    /// `[tokens, value_stride]`, of which the first `head_dim` of each are taken.
    pub(in crate::ops) values: *const E,
    pub(in crate::ops) value_stride: usize,
    pub(in crate::ops) head_dim: usize,
    /// Row r's weights at `weights + r * stride`.
    pub(in crate::ops) weights: *const f32,
    pub(in crate::ops) stride: usize,
    /// `[rows, head_dim]`
    pub(in crate::ops) sums: *mut f32,
    pub(in crate::ops) rows: usize,
    pub(in crate::ops) tokens: usize,
    /// Bytes from what is read to what is asked for beside it, which need not be valid; wraps, so that it may lie before.
    ///
    /// A block's lines are asked for one by one, between products: all at once they would fill what the machine has for misses, and
    /// products would wait for lines that nobody needs yet.
    pub(in crate::ops) ahead: usize,
}

/// `sums[r] += sum over t of weights[r][t] * values[t]`
///
/// # Safety
/// [`Vector`]'s condition; the pointers hold what their fields say; `head_dim` is a multiple of `LANES`.
#[inline(always)]
pub(in crate::ops) unsafe fn values<V: Vector, E: Element>(task: Values<E>) {
    let mut row = 0;
    while row < task.rows {
        let rows = rows_at_once::<E>(task.rows - row, V::VALUE_ROWS);
        // SAFETY: rows `row .. row + rows` are below `task.rows`.
        let part = unsafe {
            let (weights, sums) = (task.weights.add(row * task.stride), task.sums.add(row * task.head_dim));
            Values { weights, sums, rows, ahead: if row == 0 { task.ahead } else { HERE }, ..task }
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
            if task.ahead != HERE {
                prefetch(values.cast::<u8>().wrapping_add(task.ahead), C * V::LANES * size_of::<E>());
            }
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
            values = values.add(task.value_stride);
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

/// `count` elements as floats, a multiple of `LANES`.
///
/// # Safety
/// [`Vector`]'s condition; both hold `count` elements.
#[inline(always)]
pub(in crate::ops) unsafe fn widen<V: Vector, E: Element>(from: *const E, to: *mut f32, count: usize) {
    let mut at = 0;
    // SAFETY: this function's condition.
    unsafe {
        while at < count {
            E::load::<V>(from.add(at)).store(to.add(at));
            at += V::LANES;
        }
    }
}
