//! Products on every instruction set of this machine: against f64, against each other, alone and in batches.

use millrace_ops::{LinearMode, TensorFormat, WeightFormat};

use super::case::{BEFORE, Case, check, effective, kernels, pack, product, with_bf16};
use super::lookup::WEIGHT_FORMATS;
use super::tensors::{Random, Tensor, packed_int4, shapes};
use crate::Isa;
use crate::linear::activations::{ActivationBlock, quantize_block, quantize_remainder};
use crate::linear::layout::BLOCK_COLS;
use crate::linear::{CpuCompute, LinearTask, PANEL_ROWS, PackedWeight, QuantizedRows, StepRows, quantize};

const ROWS: [usize; 8] = [1, 2, 3, 5, 8, 13, 32, 70];

#[test]
fn products_agree_with_f64() {
    let mut random = Random::new(11);
    for stored in TensorFormat::ALL {
        for &(rows, cols) in shapes(stored) {
            let tensor = Tensor::random(stored, rows, cols, &mut random);
            let x = random.values(70 * cols);
            for format in WEIGHT_FORMATS {
                let weight = pack(&tensor, format, Isa::Scalar);
                let plain = product(&weight, &x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
                for (isa, steps) in kernels() {
                    let weight = pack(&tensor, format, isa);
                    let right = product(&weight, &effective(&weight, steps, &x));
                    for count in ROWS {
                        let out = Case { steps, ..Case::new(&weight, &x) }.run(0, count);
                        check(&out, &right, 2e-6, &format!("{stored} {rows}x{cols} as {format}, {isa} {steps:?}, {count} rows"));
                    }
                    let out = Case { steps, ..Case::new(&weight, &x) }.run(0, 70);
                    check(&out, &plain, 1.0 / 127.0, &format!("{stored} as {format}, {isa} {steps:?}, unquantized"));
                }
            }
        }
    }
}

#[test]
fn precise_products_agree_with_f64_on_activations_that_are_not_quantized() {
    let mut random = Random::new(22);
    for stored in TensorFormat::ALL {
        for &(rows, cols) in shapes(stored) {
            let tensor = Tensor::random(stored, rows, cols, &mut random);
            let x = random.values(9 * cols);
            for format in WEIGHT_FORMATS {
                for (isa, steps) in kernels() {
                    let weight = PackedWeight::pack(&[tensor.view()], format, CpuCompute::Precise, isa).unwrap();
                    let right = product(&weight, &x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
                    let case = Case { steps, ..Case::new(&weight, &x) };
                    let (whole, what) = (case.run(0, 9), format!("{stored} {rows}x{cols} as {format}, {isa}"));
                    check(&whole, &right, 1.0 / 30_000.0, &what);
                    for first in 0..9 {
                        let alone = Case { chunk: 1, ..case }.run(first, 1);
                        assert_eq!(alone, whole[first * rows..][..rows], "{what}, row {first}");
                    }
                }
            }
        }
    }
}

#[test]
fn products_of_packed_int4_agree_with_f64_in_every_group_and_scale_type() {
    let mut random = Random::new(21);
    for tensor in packed_int4(&mut random) {
        let x = random.values(9 * tensor.cols);
        for format in [WeightFormat::Int4, WeightFormat::Int8] {
            let weight = pack(&tensor, format, Isa::Scalar);
            let right = product(&weight, &effective(&weight, StepRows::Many, &x));
            for (isa, steps) in kernels() {
                let weight = pack(&tensor, format, isa);
                let whole = Case { steps, ..Case::new(&weight, &x) }.run(0, 9);
                let what = format!("{} {}x{} as {format}, {isa}", tensor.format, tensor.rows, tensor.cols);
                check(&whole, &right, 2e-6, &what);
                for first in 0..9 {
                    let alone = Case { steps, chunk: 1, ..Case::new(&weight, &x) }.run(first, 1);
                    assert_eq!(alone, whole[first * tensor.rows..][..tensor.rows], "{what}, row {first}");
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch_or_on_how_panels_are_split() {
    let mut random = Random::new(12);
    use TensorFormat::{F32, Fp8Channel, Int4Group, Int4ZeroPoint, Q4_0, Q4_1, Q8_0};
    for stored in [F32, Q8_0, Q4_0, Q4_1, Int4Group, Int4ZeroPoint, Fp8Channel] {
        let tensor = Tensor::random(stored, 139, 320, &mut random);
        let x = random.values(70 * 320);
        for format in WEIGHT_FORMATS {
            for (isa, steps) in kernels() {
                let weight = pack(&tensor, format, isa);
                let whole = Case { steps, ..Case::new(&weight, &x) }.run(0, 70);
                for row in 0..70 {
                    let alone = Case { steps, chunk: 1 + row % 5, ..Case::new(&weight, &x) }.run(row, 1);
                    assert_eq!(alone, whole[row * 139..][..139], "{stored} as {format}, {isa} {steps:?}, row {row}");
                }
                for count in ROWS {
                    let part = Case { steps, chunk: 3, ..Case::new(&weight, &x) }.run(70 - count, count);
                    assert_eq!(part, whole[(70 - count) * 139..], "{stored} as {format}, {isa} {steps:?}, {count} rows");
                }
            }
        }
    }
}

/// More rows than tiles take in one strip or block.
#[test]
fn many_rows_in_tiles_come_to_what_few_do() {
    let mut random = Random::new(23);
    let tensor = Tensor::random(TensorFormat::F32, 40, 576, &mut random);
    let rows = 450;
    let x = random.values(rows * 576);
    let formats = [WeightFormat::Bf16, WeightFormat::Fp8];
    let computes = [CpuCompute::Fast, CpuCompute::Precise];
    for (isa, format) in with_bf16().into_iter().flat_map(|isa| formats.map(|format| (isa, format))) {
        for compute in computes {
            let weight = PackedWeight::pack(&[tensor.view()], format, compute, isa).unwrap();
            let whole = Case::new(&weight, &x).run(0, rows);
            for first in (0..rows).step_by(37) {
                let count = 37.min(rows - first);
                let part = Case::new(&weight, &x).run(first, count);
                assert_eq!(part, whole[first * 40..][..count * 40], "{format}, {compute:?}, {isa}, rows from {first}");
            }
        }
    }
}

#[test]
fn bias_and_residual_are_added() {
    let mut random = Random::new(13);
    let tensor = Tensor::random(TensorFormat::Q4_1, 45, 96, &mut random);
    let (x, bias) = (random.values(7 * 96), random.values(45));
    for format in WEIGHT_FORMATS {
        for (isa, steps) in kernels() {
            let weight = pack(&tensor, format, isa);
            let plain = Case { steps, ..Case::new(&weight, &x) }.run(0, 7);
            for mode in [LinearMode::Store, LinearMode::Add] {
                for bias in [None, Some(bias.as_slice())] {
                    let out = Case { steps, bias, mode, ..Case::new(&weight, &x) }.run(0, 7);
                    for (i, (got, sum)) in out.iter().zip(&plain).enumerate() {
                        let value = sum + bias.map_or(0.0, |bias| bias[i % 45]);
                        let want = if mode == LinearMode::Add { BEFORE + value } else { value };
                        assert_eq!(*got, want, "{format}, {isa} {steps:?}, {mode:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_quantizer_gives_the_same_bits() {
    let mut random = Random::new(14);
    for cols in [1, 7, 32, 33, 80, 96, 128, 131, 300, 576] {
        let tensor = Tensor::random(TensorFormat::F32, 1, cols, &mut random);
        let mut x = random.values(5 * cols);
        x[cols..2 * cols].fill(0.0);
        x[2 * cols..3 * cols].iter_mut().for_each(|v| *v *= 1e-35);
        x[3 * cols..4 * cols].iter_mut().for_each(|v| *v *= 1e30);
        for isa in Isa::available() {
            // Passes are kept apart where codes have 4 bits.
            let weight = PackedWeight::pack(&[tensor.view()], WeightFormat::Int4, CpuCompute::Precise, isa).unwrap();
            let mut out = vec![0.0; 5];
            let task = LinearTask {
                weight: &weight,
                form: weight.form(StepRows::Many),
                x: x.as_ptr(),
                x_stride: cols,
                rows: 5,
                quantized_row: 2,
                out: out.as_mut_ptr(),
                out_stride: 1,
                bias: None,
                mode: LinearMode::Store,
            };
            let mut scratch = QuantizedRows::new();
            scratch.reserve(14, cols).unwrap();
            // SAFETY: `x` holds five rows and the scratch has room for them behind two others; one thread.
            unsafe { quantize(&task, 0..5, &scratch) };
            for row in 0..5 {
                for (i, chunk) in x[row * cols..][..cols].chunks(BLOCK_COLS).enumerate() {
                    // SAFETY: the row's blocks were just written.
                    let got = unsafe { [0, 1].map(|pass| scratch.row((2 + row) * 2 + pass, cols).add(i).read()) };
                    let coarse = quantize_block(chunk);
                    assert_eq!(fields(&got[0]), fields(&coarse), "{isa}, {cols} columns, row {row}");
                    let rest = quantize_remainder(&coarse, chunk);
                    assert_eq!(fields(&got[1]), fields(&rest), "{isa}, {cols} columns, remainders of row {row}");
                }
            }
        }
    }
}

fn fields(block: &ActivationBlock) -> ([i8; 32], u32, u32, i32, i32) {
    (block.q, block.scale.to_bits(), block.scaled_sum.to_bits(), block.zero_8, block.zero_128)
}

/// Codes and activations at the ends of their ranges must not saturate 16-bit intermediates.
#[test]
fn extreme_codes_do_not_saturate() {
    for fill in [0x00, 0xff, 0x80, 0x7f] {
        for stored in [TensorFormat::Q8_0, TensorFormat::Q4_0, TensorFormat::Q4_1] {
            let mut tensor = Tensor::random(stored, PANEL_ROWS, 32, &mut Random::new(15));
            let (block, header) = match stored {
                TensorFormat::Q8_0 => (34, 2),
                TensorFormat::Q4_0 => (18, 2),
                _ => (20, 4),
            };
            (0..PANEL_ROWS * block).filter(|at| at % block >= header).for_each(|at| tensor.spoil(at, fill));
            for sign in [1.0f32, -1.0] {
                let x = vec![sign; 32];
                for format in [WeightFormat::Int8, WeightFormat::Int4] {
                    for (isa, steps) in kernels() {
                        let weight = pack(&tensor, format, isa);
                        let right = product(&weight, &effective(&weight, steps, &x));
                        check(
                            &Case { steps, ..Case::new(&weight, &x) }.run(0, 1),
                            &right,
                            1e-6,
                            &format!("{stored} as {format}, {isa} {steps:?}, {fill:#x}"),
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_shows_in_its_own_row_alone() {
    let mut random = Random::new(16);
    let tensor = Tensor::random(TensorFormat::Q4_1, 32, 96, &mut random);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = random.values(5 * 96);
        x[2 * 96 + 50] = bad;
        for format in WEIGHT_FORMATS {
            for (isa, steps) in kernels() {
                for compute in [CpuCompute::Fast, CpuCompute::Precise] {
                    let weight = PackedWeight::pack(&[tensor.view()], format, compute, isa).unwrap();
                    let out = Case { steps, ..Case::new(&weight, &x) }.run(0, 5);
                    for (row, out) in out.chunks(32).enumerate() {
                        assert_eq!(
                            out.iter().any(|v| !v.is_finite()),
                            row == 2,
                            "{format}, {isa} {steps:?}, {compute:?}, {bad}, row {row}"
                        );
                    }
                }
            }
        }
    }
}
