//! Activations in INT8: blocks of 32 along a row with an f32 scale, and the sums that the weights' minima or zero codes need.
//! Holds scratch and the portable quantizer; knows neither weights nor who shares the scratch.
//!
//! ```text
//! rows  = [row 0][row 1]..                     each padded to 64 bytes
//! row   = [block 0][block 1]..
//! block = [32 x i8 q][f32 scale][f32 scale * sum(q)][i32 -8 * sum(q)][i32 -128 * sum(q)]      48 bytes
//! ```
//!
//! x = scale * q with scale = max|x| / 127 and q rounded to nearest, ties to even. A block that holds NaN or infinity gets a
//! scale that is not finite, so that its row's products are not finite either.
//!
//! Where that is too coarse (`CpuCompute::Precise`), the remainder x - scale * q is quantized the same way into a block of the next row, and
//! the weight meets both: 15 bits and a sign, at twice the work.

use std::ops::Range;

use super::layout::BLOCK_COLS;
use crate::memory::HostMemory;

/// Blocks smaller than this count as zeros: the reciprocal of their scale would overflow.
pub(super) const SMALLEST: f32 = 1e-30;

/// 32 activations of one row.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct ActivationBlock {
    pub(super) q: [i8; BLOCK_COLS],
    pub(super) scale: f32,
    /// `scale * sum(q)`: what a weight's minimum is multiplied by.
    pub(super) scaled_sum: f32,
    /// `-8 * sum(q)`: what the dot product with symmetric 4-bit codes begins with.
    pub(super) zero_8: i32,
    /// `-128 * sum(q)`: likewise for 8-bit codes.
    pub(super) zero_128: i32,
}

const _: () = assert!(size_of::<ActivationBlock>() == 48);

impl ActivationBlock {
    /// The sum of `q`: what a weight's zero point is multiplied by.
    #[inline]
    pub(super) fn sum(&self) -> i32 {
        self.zero_8 / -8
    }
}

/// Scratch for quantized activations. Several workers may fill disjoint rows at once.
pub struct QuantizedRows {
    memory: Option<HostMemory>,
    capacity: usize,
}

impl Default for QuantizedRows {
    fn default() -> Self {
        Self::new()
    }
}

impl QuantizedRows {
    /// Without memory; see [`QuantizedRows::reserve`].
    pub fn new() -> Self {
        Self { memory: None, capacity: 0 }
    }

    /// Bytes that `rows` rows of `cols` activations take.
    pub fn bytes(rows: usize, cols: usize) -> usize {
        rows * Self::row_bytes(cols)
    }

    /// Makes room for `rows` rows of `cols` activations; what was in it is lost if it has to grow.
    ///
    /// # Errors
    /// A sentence when memory is exhausted.
    pub fn reserve(&mut self, rows: usize, cols: usize) -> Result<(), String> {
        let bytes = Self::bytes(rows, cols);
        if bytes > self.capacity {
            self.memory = Some(HostMemory::new(bytes).map_err(|error| error.to_string())?);
            self.capacity = bytes;
        }
        Ok(())
    }

    fn row_bytes(cols: usize) -> usize {
        (cols.div_ceil(BLOCK_COLS) * size_of::<ActivationBlock>()).next_multiple_of(64)
    }

    /// The blocks of row `row` where rows have `cols` columns.
    ///
    /// Panics where the scratch is too small.
    pub(super) fn row(&self, row: usize, cols: usize) -> *mut ActivationBlock {
        assert!(Self::bytes(row + 1, cols) <= self.capacity, "row {row} of {cols} columns is beyond the reserved scratch");
        let start = self.memory.as_ref().map_or(std::ptr::null_mut(), HostMemory::start);
        // SAFETY: the row ends within the allocation by the assertion.
        unsafe { start.add(row * Self::row_bytes(cols)).cast() }
    }
}

/// Where rows of f32 activations lie, and which rows of the scratch they go to.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) x: *const f32,
    pub(super) stride: usize,
    pub(super) cols: usize,
    /// The first row's, counted in steps.
    pub(super) to_row: usize,
    /// Rows of the scratch that each takes: 2 where remainders follow.
    pub(super) to_step: usize,
}

impl Source {
    /// Row of the scratch for row `row`.
    pub(super) fn scratch_row(&self, row: usize) -> usize {
        (self.to_row + row) * self.to_step
    }
}

/// Quantizes `rows` of `source` into their rows of `to`, portably.
///
/// # Safety
/// `source` holds those rows, and nobody else accesses those rows of `to` meanwhile.
pub(super) unsafe fn quantize(source: &Source, rows: Range<usize>, to: &QuantizedRows) {
    for row in rows {
        let blocks = to.row(source.scratch_row(row), source.cols);
        // SAFETY: by this function's own conditions the row can be read and its blocks written.
        unsafe {
            let x = std::slice::from_raw_parts(source.x.add(row * source.stride), source.cols);
            for (i, chunk) in x.chunks(BLOCK_COLS).enumerate() {
                blocks.add(i).write(quantize_block(chunk));
            }
        }
    }
}

/// Quantizes what [`quantize`] left over of `rows`, each into the row of `to` behind the one that it filled.
///
/// # Safety
/// As [`quantize`], which has filled `rows`, and for the rows behind them.
pub(super) unsafe fn quantize_remainders(source: &Source, rows: Range<usize>, to: &QuantizedRows) {
    for row in rows {
        let coarse = to.row(source.scratch_row(row), source.cols);
        let blocks = to.row(source.scratch_row(row) + 1, source.cols);
        // SAFETY: by this function's own conditions the row and its blocks can be read, and the blocks behind them written.
        unsafe {
            let x = std::slice::from_raw_parts(source.x.add(row * source.stride), source.cols);
            for (i, chunk) in x.chunks(BLOCK_COLS).enumerate() {
                blocks.add(i).write(quantize_block(&remainder(&*coarse.add(i), chunk)[..chunk.len()]));
            }
        }
    }
}

/// `x` without what `block` holds of it.
fn remainder(block: &ActivationBlock, x: &[f32]) -> [f32; BLOCK_COLS] {
    let mut left = [0.0; BLOCK_COLS];
    for ((left, x), q) in left.iter_mut().zip(x).zip(block.q) {
        *left = x - block.scale * f32::from(q);
    }
    left
}

/// Quantizes up to 32 activations; missing ones are zeros.
pub(super) fn quantize_block(x: &[f32]) -> ActivationBlock {
    // Compared as integers, so that NaN counts as larger than infinity.
    let largest = f32::from_bits(x.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0));
    let (scale, inverse) = scale_of(largest);
    let mut block = ActivationBlock { q: [0; BLOCK_COLS], scale, scaled_sum: 0.0, zero_8: 0, zero_128: 0 };
    for (q, v) in block.q.iter_mut().zip(x) {
        #[expect(clippy::cast_possible_truncation, reason = "at most 127 in size; saturates where a block is not finite")]
        {
            *q = (v * inverse).round_ties_even() as i8;
        }
    }
    let sum: i32 = block.q.iter().map(|&q| i32::from(q)).sum();
    block.scaled_sum = scale * sum as f32;
    block.zero_8 = sum * -8;
    block.zero_128 = sum * -128;
    block
}

/// Scale of a block whose largest magnitude is `largest`, and its reciprocal.
#[inline]
pub(super) fn scale_of(largest: f32) -> (f32, f32) {
    if largest < SMALLEST { (0.0, 0.0) } else { (largest * (1.0 / 127.0), 127.0 / largest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_holds_its_largest_value_and_its_sums() {
        let x: Vec<f32> = (0..32).map(|i| (i as f32 - 20.0) * 0.25).collect();
        let block = quantize_block(&x);
        assert_eq!(block.q[0], -127);
        let sum: i32 = block.q.iter().map(|&q| i32::from(q)).sum();
        assert_eq!((block.zero_8, block.zero_128), (-8 * sum, -128 * sum));
        for (q, v) in block.q.iter().zip(&x) {
            assert!((f32::from(*q) * block.scale - v).abs() <= block.scale * 0.5001);
        }
    }

    #[test]
    fn a_block_and_its_remainder_hold_fifteen_bits() {
        let x: Vec<f32> = (0..32).map(|i| ((i * i) as f32 * 0.37).sin() * 3.0).collect();
        let block = quantize_block(&x);
        let rest = quantize_block(&remainder(&block, &x));
        for (i, v) in x.iter().enumerate() {
            let held = block.scale * f32::from(block.q[i]) + rest.scale * f32::from(rest.q[i]);
            assert!((held - v).abs() <= 3.0 / 32_000.0, "{held} for {v}");
        }
        let mut bad = [1.0; 32];
        bad[3] = f32::NAN;
        let block = quantize_block(&bad);
        assert!(!quantize_block(&remainder(&block, &bad)).scale.is_finite());
    }

    #[test]
    fn zeros_tiny_values_and_short_blocks_are_fine() {
        assert_eq!(quantize_block(&[0.0; 32]).scale, 0.0);
        assert_eq!(quantize_block(&[1e-38; 5]).q, [0; 32]);
        assert_eq!(quantize_block(&[2.0, -1.0]).q[..3], [127, -64, 0]);
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 32];
            x[7] = bad;
            assert!(!quantize_block(&x).scale.is_finite());
        }
    }
}
