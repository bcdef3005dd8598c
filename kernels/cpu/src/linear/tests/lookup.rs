//! Rows of packed weights against the values that their formats must hold.

use half::bf16;
use millrace_ops::{RowOrder, TensorFormat, TensorView, WeightFormat};

use super::tensors::{Random, Tensor, packed_int4, shapes};
use crate::Isa;
use crate::linear::{ActivationForm, CpuCompute, PackedWeight, StepRows};

pub(super) const WEIGHT_FORMATS: [WeightFormat; 5] =
    [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Fp8, WeightFormat::Int8, WeightFormat::Int4];

fn pack(parts: &[TensorView<'_>], format: WeightFormat, compute: CpuCompute) -> PackedWeight {
    PackedWeight::pack(parts, format, compute, Isa::Scalar).unwrap()
}

fn row(weight: &PackedWeight, row: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; weight.cols];
    weight.lookup(row, &mut out);
    out
}

fn exact(view: &TensorView<'_>, row: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; view.cols];
    view.row_values(row, &mut out);
    out
}

/// Whether a weight format keeps the stored values as they are.
fn keeps(stored: TensorFormat, format: WeightFormat) -> bool {
    match format {
        WeightFormat::F32 => true,
        WeightFormat::Bf16 => stored == TensorFormat::Bf16,
        WeightFormat::Fp8 => stored.is_fp8(),
        WeightFormat::Int8 => stored.is_four_bit() || stored == TensorFormat::Q8_0,
        WeightFormat::Int4 => stored.is_four_bit(),
    }
}

/// Root of the mean square of `values`.
fn rms(values: impl Iterator<Item = f32>) -> f32 {
    let (count, sum) = values.fold((0.0f32, 0.0), |(n, s), v| (n + 1.0, s + v * v));
    (sum / count).sqrt()
}

#[test]
fn rows_are_exact_or_nearly_so() {
    let mut random = Random::new(1);
    for stored in TensorFormat::ALL {
        for &(rows, cols) in shapes(stored) {
            let tensor = Tensor::random(stored, rows, cols, &mut random);
            for format in WEIGHT_FORMATS {
                let weight = pack(&[tensor.view()], format, CpuCompute::Fast);
                for r in 0..rows {
                    let (held, values) = (row(&weight, r), exact(&tensor.view(), r));
                    check_row(&held, &values, format, keeps(stored, format));
                }
            }
        }
    }
}

fn check_row(held: &[f32], values: &[f32], format: WeightFormat, kept: bool) {
    if kept {
        assert_eq!(held, values, "{format}");
        return;
    }
    match format {
        WeightFormat::Bf16 => {
            let rounded: Vec<f32> = values.iter().map(|&v| bf16::from_f32(v).to_f32()).collect();
            assert_eq!(held, rounded);
        }
        // e4m3 has 3 bits behind the point: half a step is a 16th of the value; below 2^-6 of 448 steps are even.
        WeightFormat::Fp8 => {
            for (h, v) in held.iter().zip(values) {
                assert!((h - v).abs() <= v.abs() / 15.9 + 1e-5, "{h} for {v}");
            }
        }
        WeightFormat::Int8 => {
            for (held, values) in held.chunks(32).zip(values.chunks(32)) {
                let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                // A scale rounded up to BF16 is at most 2^-7 above.
                assert!(held.iter().zip(values).all(|(h, v)| (h - v).abs() <= largest / 127.0 * 0.51), "{held:?} {values:?}");
            }
        }
        WeightFormat::Int4 => {
            let error = rms(held.iter().zip(values).map(|(h, v)| h - v));
            assert!(error <= 0.1 * rms(values.iter().copied()) + 1e-6, "{error}");
        }
        WeightFormat::F32 => unreachable!("f32 keeps every value"),
    }
}

#[test]
fn reference_weights_hold_the_same_values() {
    let mut random = Random::new(2);
    for stored in TensorFormat::ALL {
        let &(rows, cols) = shapes(stored).last().unwrap();
        let tensor = Tensor::random(stored, rows, cols, &mut random);
        for format in WEIGHT_FORMATS {
            let fast = pack(&[tensor.view()], format, CpuCompute::Fast);
            let reference = pack(&[tensor.view()], format, CpuCompute::Reference);
            assert_eq!(reference.form(StepRows::Many), ActivationForm::Floats);
            for r in 0..rows {
                assert_eq!(row(&fast, r), row(&reference, r), "{stored} as {format}");
            }
        }
    }
}

#[test]
fn stacked_parts_keep_their_rows_and_orders() {
    let mut random = Random::new(3);
    for stored in TensorFormat::ALL {
        let cols = 160;
        let mut parts: Vec<Tensor> = [24, 8, 5].map(|rows| Tensor::random(stored, rows, cols, &mut random)).into();
        parts[0].order = RowOrder::RotaryPairs { head_dim: 8 };
        parts[1].order = RowOrder::RotaryPairs { head_dim: 4 };
        let views: Vec<TensorView<'_>> = parts.iter().map(Tensor::view).collect();
        for format in WEIGHT_FORMATS {
            let whole = pack(&views, format, CpuCompute::Fast);
            let mut first = 0;
            for view in &views {
                let alone = pack(&[*view], format, CpuCompute::Fast);
                for r in 0..view.rows {
                    assert_eq!(row(&whole, first + r), row(&alone, r), "{stored} as {format}");
                    if keeps(stored, format) {
                        assert_eq!(row(&alone, r), exact(view, r));
                    }
                }
                first += view.rows;
            }
        }
    }
}

#[test]
fn packed_int4_is_kept_in_every_group_and_scale_type() {
    for tensor in packed_int4(&mut Random::new(20)) {
        for compute in [CpuCompute::Fast, CpuCompute::Reference] {
            for format in [WeightFormat::Int4, WeightFormat::Int8] {
                let weight = pack(&[tensor.view()], format, compute);
                for r in 0..tensor.rows {
                    assert_eq!(row(&weight, r), exact(&tensor.view(), r), "{} as {format}, {compute:?}", tensor.format);
                }
            }
        }
    }
}

#[test]
fn parts_of_different_formats_share_a_layout_without_loss() {
    let mut random = Random::new(4);
    use TensorFormat::{Bf16, Fp8Channel, Int4Group, Int4ZeroPoint, Q4_0, Q4_1, Q8_0};
    let mixes = [
        [Q4_1, Q8_0, Q4_0],
        [Q8_0, Q4_0, Q4_0],
        [Q4_0, Bf16, Q4_1],
        [Int4Group, Bf16, Int4Group],
        [Int4Group, Int4ZeroPoint, Fp8Channel],
        // F16 and BF16 scales meet in F32.
        [Int4Group, Q8_0, Q4_0],
        [Int4ZeroPoint, Q4_0, Q4_0],
    ];
    for mix in mixes {
        let parts: Vec<Tensor> = mix.iter().map(|&format| Tensor::random(format, 20, 64, &mut random)).collect();
        let views: Vec<TensorView<'_>> = parts.iter().map(Tensor::view).collect();
        check_stack(&views, &format!("{mix:?}"));
    }
    // Groups of 32, 128 and a whole row of 256.
    let groups = [(Int4Group, 32), (Int4ZeroPoint, 128), (Int4Group, 256)];
    let parts = groups.map(|(format, group)| Tensor::random(format, 20, 256, &mut random).with_group(group, &mut random));
    let views: Vec<TensorView<'_>> = parts.iter().map(Tensor::view).collect();
    check_stack(&views, "groups");
}

fn check_stack(views: &[TensorView<'_>], what: &str) {
    for format in [WeightFormat::Int8, WeightFormat::Int4] {
        let weight = pack(views, format, CpuCompute::Fast);
        for (i, view) in views.iter().enumerate() {
            println!("{what} as {format}: {}", view.format());
            for r in 0..20 {
                check_row(&row(&weight, i * 20 + r), &exact(view, r), format, keeps(view.format(), format));
            }
        }
    }
}
