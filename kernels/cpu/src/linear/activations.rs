//! Activations in INT8: blocks of 32 along a row with an f32 scale, and the sums that the weights' minima or zero codes need.
//! Holds scratch and the portable quantizer; knows neither weights nor who shares the scratch.
//!
//! ```text
//! rows  = [row 0][row 1]..                     an odd number of lines of 64 bytes each: a column of them meets all cache sets
//! row   = [block 0][block 1]..
//! block = [32 x i8 q][f32 scale][f32 scale * sum(q)][i32 -8 * sum(q)][i32 -128 * sum(q)]      48 bytes
//! ```
//!
//! x = scale * q with scale = max|x| / 127 and q rounded to nearest, ties to even. A block that holds NaN or infinity gets a
//! scale that is not finite, so that its row's products are not finite either.
//!
//! Where that is too coarse (`CpuCompute::Precise`), the remainder x - scale * q is quantized with scale / 254 into a block of the
//! next row: 15 bits and a sign. The weight meets both, at twice the work; or, where products of 16 bits cost no more than
//! those of 8 (wide codes under AVX2), [`merge`] makes 16-bit numbers of the two:
//!
//! ```text
//! block of the row        = [i16 of columns 0, 2, 4 .. 30][scale / 254][..the sums of the whole]
//! block of the next row   = [i16 of columns 1, 3, 5 .. 31][as above]
//! ```

use std::ops::Range;

use super::layout::BLOCK_COLS;
use crate::memory::HostMemory;

/// Blocks smaller than this count as zeros: the reciprocal of their scale would overflow.
pub(super) const SMALLEST: f32 = 1e-30;
/// Remainders of a step of the first quantization: -127 ..= 127.
const REMAINDERS: f32 = 254.0;
/// Bytes of a row for each 32 columns: 32 activations in BF16, more than a block in INT8 takes.
const BLOCK_BYTES: usize = 64;
/// Rows that may be read (not used) behind the last one: tiles have 16 rows, and each row of activations has up to two here.
const SPARE_ROWS: usize = 15 * 2;

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

const _: () = assert!(size_of::<ActivationBlock>() == 48 && size_of::<ActivationBlock>() <= BLOCK_BYTES);

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
        (rows + SPARE_ROWS) * Self::row_bytes(cols)
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

    /// From one row to the next.
    pub(super) fn row_bytes(cols: usize) -> usize {
        (cols.div_ceil(BLOCK_COLS) | 1) * BLOCK_BYTES
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
                blocks.add(i).write(quantize_remainder(&*coarse.add(i), chunk));
            }
        }
    }
}

/// What `coarse` left over of `x`, with its scale over 254.
pub(super) fn quantize_remainder(coarse: &ActivationBlock, x: &[f32]) -> ActivationBlock {
    let (scale, inverse) = remainder_scale_of(coarse.scale);
    let mut q = [0; BLOCK_COLS];
    for ((q, x), coarsely) in q.iter_mut().zip(x).zip(coarse.q) {
        let left = x - coarse.scale * f32::from(coarsely);
        #[expect(clippy::cast_possible_truncation, reason = "at most 127 in size; saturates where a block is not finite")]
        {
            *q = (left * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
        }
    }
    let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
    ActivationBlock { q, scale, scaled_sum: scale * sum as f32, zero_8: sum * -8, zero_128: sum * -128 }
}

/// Merges `rows` and their remainders, which [`quantize`] and [`quantize_remainders`] have filled, into numbers of 16 bits.
///
/// # Safety
/// As [`quantize_remainders`].
pub(super) unsafe fn merge(source: &Source, rows: Range<usize>, to: &QuantizedRows) {
    for row in rows {
        let coarse = to.row(source.scratch_row(row), source.cols);
        let rest = to.row(source.scratch_row(row) + 1, source.cols);
        for block in 0..source.cols.div_ceil(BLOCK_COLS) {
            // SAFETY: both rows hold these blocks, by this function's own conditions.
            let (even, odd) = unsafe { (&mut *coarse.add(block), &mut *rest.add(block)) };
            merge_block(even, odd);
        }
    }
}

fn merge_block(coarse: &mut ActivationBlock, rest: &mut ActivationBlock) {
    let mut numbers = [0i16; BLOCK_COLS];
    for ((number, coarse), rest) in numbers.iter_mut().zip(coarse.q).zip(rest.q) {
        *number = i16::from(coarse) * REMAINDERS as i16 + i16::from(rest);
    }
    let (mut even, mut odd) = ([0; BLOCK_COLS], [0; BLOCK_COLS]);
    for (i, pair) in numbers.chunks_exact(2).enumerate() {
        even[2 * i..2 * i + 2].copy_from_slice(&pair[0].to_le_bytes().map(u8::cast_signed));
        odd[2 * i..2 * i + 2].copy_from_slice(&pair[1].to_le_bytes().map(u8::cast_signed));
    }
    let sum: i32 = numbers.iter().map(|&number| i32::from(number)).sum();
    let scale = rest.scale;
    let sums = ActivationBlock { q: even, scale, scaled_sum: scale * sum as f32, zero_8: sum * -8, zero_128: sum * -128 };
    (*coarse, *rest) = (sums, ActivationBlock { q: odd, ..sums });
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

/// Scale of the remainders of a block whose scale is `coarse`, and its reciprocal.
#[inline]
pub(super) fn remainder_scale_of(coarse: f32) -> (f32, f32) {
    (coarse * (1.0 / REMAINDERS), if coarse == 0.0 { 0.0 } else { REMAINDERS / coarse })
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
        let rest = quantize_remainder(&block, &x);
        let (mut even, mut odd) = (block, rest);
        merge_block(&mut even, &mut odd);
        let mut sum = 0;
        for (i, v) in x.iter().enumerate() {
            let held = block.scale * f32::from(block.q[i]) + rest.scale * f32::from(rest.q[i]);
            assert!((held - v).abs() <= 3.0 / 32_000.0, "{held} for {v}");
            let half = if i % 2 == 0 { &even } else { &odd };
            let at = i / 2 * 2;
            let number = i16::from_le_bytes([half.q[at].cast_unsigned(), half.q[at + 1].cast_unsigned()]);
            assert_eq!(i32::from(number), i32::from(block.q[i]) * 254 + i32::from(rest.q[i]));
            assert!((half.scale * f32::from(number) - held).abs() <= 1e-5);
            sum += i32::from(number);
        }
        assert_eq!((even.zero_8, odd.zero_128, even.scaled_sum), (-8 * sum, -128 * sum, even.scale * sum as f32));
        let mut bad = [1.0; 32];
        bad[3] = f32::NAN;
        let block = quantize_block(&bad);
        let mut rest = quantize_remainder(&block, &bad);
        assert!(!rest.scale.is_finite());
        let mut block = block;
        merge_block(&mut block, &mut rest);
        assert!(!block.scale.is_finite() && !rest.scale.is_finite());
        let zeros = quantize_block(&[0.0; 32]);
        assert_eq!(quantize_remainder(&zeros, &[0.0; 32]).q, [0; 32]);
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
