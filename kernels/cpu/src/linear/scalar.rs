//! Products in portable Rust: the definition that the vector kernels are tested against, and the fallback where there are none.
//! Knows neither threads nor other instruction sets.

use std::ops::Range;

use half::bf16;
use millrace_ops::{LinearMode, e4m3_to_f32};

use super::activations::{ActivationBlock, QuantizedRows};
use super::layout::{BLOCK_COLS, Codes, DENSE_BLOCK_COLS, DenseLayout, Element, IntLayout, Offset, PANEL_ROWS};
use super::scale_type::ScaleType;
use super::weight::code_at;
use super::{LinearTask, PanelLayout};

/// See [`super::multiply`].
///
/// # Safety
/// As there.
pub(super) unsafe fn multiply_int(task: &LinearTask<'_>, layout: &IntLayout, panels: Range<usize>, scratch: &QuantizedRows) {
    for panel in panels {
        let bytes = panel_bytes(task, panel);
        for row in 0..task.rows {
            // SAFETY: the scratch holds `blocks` quantized blocks of each row, by the caller's condition.
            let x = |pass| unsafe {
                std::slice::from_raw_parts(scratch.row(task.scratch_row(row, pass), task.weight.cols), layout.blocks)
            };
            let mut sums = int_sums(layout, bytes, x(0));
            for pass in 1..task.passes() {
                let rest = int_sums(layout, bytes, x(pass));
                sums.iter_mut().zip(rest).for_each(|(sum, rest)| *sum += rest);
            }
            // SAFETY: the caller's condition on `out` and `bias`.
            unsafe { store(task, panel, row, &sums) };
        }
    }
}

/// See [`super::multiply`].
///
/// # Safety
/// As there.
pub(super) unsafe fn multiply_dense(task: &LinearTask<'_>, layout: &DenseLayout, panels: Range<usize>) {
    for panel in panels {
        let bytes = panel_bytes(task, panel);
        for row in 0..task.rows {
            // SAFETY: `x` holds that row, by the caller's condition.
            let x = unsafe { std::slice::from_raw_parts(task.x.add(row * task.x_stride), task.weight.cols) };
            let sums = dense_sums(layout, bytes, x);
            // SAFETY: the caller's condition on `out` and `bias`.
            unsafe { store(task, panel, row, &sums) };
        }
    }
}

fn panel_bytes<'a>(task: &LinearTask<'a>, panel: usize) -> &'a [u8] {
    let bytes = match &task.weight.layout {
        PanelLayout::Int(layout) => layout.panel_bytes(),
        PanelLayout::Dense(layout) => layout.panel_bytes(),
    };
    &task.weight.storage.as_slice()[panel * bytes..][..bytes]
}

fn int_sums(layout: &IntLayout, panel: &[u8], x: &[ActivationBlock]) -> [f32; PANEL_ROWS] {
    let (codes, scales) = panel.split_at(layout.scales_offset());
    let mut sums = [0.0; PANEL_ROWS];
    for (b, (x, codes)) in x.iter().zip(codes.chunks_exact(layout.code_bytes())).enumerate() {
        let scales = &scales[b / layout.span * layout.scale_bytes()..][..layout.scale_bytes()];
        for (row, sum) in sums.iter_mut().enumerate() {
            let mut dot = match (layout.offset, layout.codes) {
                (Offset::Minimum, _) => 0,
                (Offset::Zero, _) => -i32::from(scales[layout.beside_offset(row)]) * x.sum(),
                (Offset::Centre, Codes::Wide) => x.zero_128,
                (Offset::Centre, Codes::Nibbles | Codes::Narrow) => x.zero_8,
            };
            for col in 0..BLOCK_COLS {
                dot += i32::from(code_at(layout.codes, codes, row, col)) * i32::from(x.q[col]);
            }
            *sum += layout.scale.get(scales, row) * x.scale * dot as f32;
            if layout.offset == Offset::Minimum {
                *sum += ScaleType::F16.get(&scales[layout.beside_offset(0)..], row) * x.scaled_sum;
            }
        }
    }
    sums
}

fn dense_sums(layout: &DenseLayout, panel: &[u8], x: &[f32]) -> [f32; PANEL_ROWS] {
    let mut sums = [0.0; PANEL_ROWS];
    for (block, x) in x.chunks(DENSE_BLOCK_COLS).enumerate() {
        let mut partial = [0.0; PANEL_ROWS];
        for (i, x) in x.iter().enumerate() {
            for (row, sum) in partial.iter_mut().enumerate() {
                let at = layout.element_offset(row, block * DENSE_BLOCK_COLS + i);
                *sum += x * match layout.element {
                    Element::F32 => f32_at(panel, at),
                    Element::Bf16 => bf16::from_bits(u16_at(panel, at)).to_f32(),
                    // Times the scale below, which is held times 256.
                    Element::Fp8 => e4m3_to_f32(panel[at]) / 256.0,
                };
            }
        }
        for (row, (sum, partial)) in sums.iter_mut().zip(partial).enumerate() {
            *sum += match layout.element {
                Element::Fp8 => partial * f32_at(panel, layout.scales_offset() + block * 64 + row * 4),
                Element::F32 | Element::Bf16 => partial,
            };
        }
    }
    sums
}

/// Writes one row's part of a panel to the output.
///
/// # Safety
/// The caller's condition on `out` and `bias` of [`super::multiply`].
unsafe fn store(task: &LinearTask<'_>, panel: usize, row: usize, sums: &[f32; PANEL_ROWS]) {
    let first = panel * PANEL_ROWS;
    for (i, sum) in sums.iter().enumerate().take(task.weight.rows - first) {
        // SAFETY: column `first + i` is less than `weight.rows`, the length of a row of `out` and of `bias`.
        unsafe {
            let out = task.out.add(row * task.out_stride + first + i);
            let value = sum + task.bias.map_or(0.0, |bias| *bias.add(first + i));
            *out = if task.mode == LinearMode::Add { *out + value } else { value };
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
