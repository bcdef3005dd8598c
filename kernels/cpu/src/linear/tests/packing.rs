//! What packing refuses, and how weights are split.

use millrace_ops::{TensorFormat, TensorView, WeightFormat, WeightMemory};

use super::case::with_bf16;
use super::tensors::{Random, Tensor};
use crate::Isa;
use crate::linear::{ActivationForm, CpuCompute, PANEL_ROWS, PackedWeight, StepRows};

fn refusal(parts: &[TensorView<'_>], format: WeightFormat) -> String {
    PackedWeight::pack(parts, format, CpuCompute::Fast, Isa::Scalar).err().unwrap_or_default()
}

#[test]
fn shapes_that_do_not_stack_are_refused() {
    let mut random = Random::new(5);
    let a = Tensor::random(TensorFormat::F32, 4, 64, &mut random);
    let b = Tensor::random(TensorFormat::F32, 4, 32, &mut random);
    assert!(refusal(&[], WeightFormat::F32).contains("at least one"));
    assert!(refusal(&[a.view(), b.view()], WeightFormat::F32).contains("cannot be stacked"));
}

#[test]
fn groups_and_scales_that_integers_cannot_hold_are_refused() {
    let mut random = Random::new(6);
    let group = Tensor::random(TensorFormat::Int4Group, 4, 64, &mut random);
    let minima = Tensor::random(TensorFormat::Q4_1, 4, 64, &mut random);
    assert!(refusal(&[group.view(), minima.view()], WeightFormat::Int8).contains("minima in F16 cannot be stacked"));
    let small = Tensor::random(TensorFormat::Int4Group, 4, 24, &mut random).with_group(8, &mut random);
    assert!(refusal(&[small.view()], WeightFormat::Int4).contains("groups of 8"));
}

#[test]
fn damaged_values_are_refused_with_the_tensor_named() {
    let mut random = Random::new(7);
    for format in [TensorFormat::Fp8Block, TensorFormat::Fp8Channel, TensorFormat::Fp8Tensor] {
        let mut fp8 = Tensor::random(format, 4, 64, &mut random);
        fp8.spoil(70, 0xff);
        assert!(refusal(&[fp8.view()], WeightFormat::Fp8).contains("`t` holds values"));
    }
    for format in [TensorFormat::Int4Group, TensorFormat::Int4ZeroPoint] {
        for bad in [f32::NAN, f32::INFINITY] {
            let int4 = Tensor::random(format, 4, 64, &mut random).with_scale(3, bad);
            for format in [WeightFormat::Int8, WeightFormat::Int4] {
                assert!(refusal(&[int4.view()], format).contains("`t` holds values"), "{format}");
            }
        }
    }
    let mut bf16 = Tensor::random(TensorFormat::Bf16, 4, 64, &mut random);
    bf16.spoil(11, 0x7f);
    bf16.spoil(10, 0xc0);
    for format in [WeightFormat::Fp8, WeightFormat::Int8, WeightFormat::Int4] {
        assert!(refusal(&[bf16.view()], format).contains("not finite"), "{format}");
    }
}

#[test]
fn sizes_and_chunks_cover_the_weight() {
    let mut random = Random::new(8);
    for rows in [1, 16, 17, 333] {
        let tensor = Tensor::random(TensorFormat::Q4_1, rows, 64, &mut random);
        let weight = PackedWeight::pack(&[tensor.view()], WeightFormat::Int4, CpuCompute::Fast, Isa::Scalar).unwrap();
        assert_eq!((weight.rows(), weight.cols(), weight.format()), (rows, 64, WeightFormat::Int4));
        assert_eq!(weight.panel_count(), rows.div_ceil(PANEL_ROWS));
        assert_eq!(weight.bytes(), weight.panel_count() * 16 * 40);
        for workers in [1, 2, 7, 64] {
            assert!(weight.chunk_panels(workers) >= 1);
        }
        assert!(weight.chunk_panels(1) >= weight.panel_count());
    }
}

#[test]
fn large_weights_are_packed_by_several_threads_alike() {
    let mut random = Random::new(9);
    let tensor = Tensor::random(TensorFormat::Q4_1, 1100, 256, &mut random);
    let weight = PackedWeight::pack(&[tensor.view()], WeightFormat::Int8, CpuCompute::Fast, Isa::Scalar).unwrap();
    let (mut held, mut values) = (vec![0.0; 256], vec![0.0; 256]);
    for row in 0..1100 {
        weight.lookup(row, &mut held);
        tensor.view().row_values(row, &mut values);
        assert_eq!(held, values);
    }
}

#[test]
fn tiles_are_for_many_rows_of_bf16_and_fp8() {
    use ActivationForm::{Bf16, Bf16Pairs, Blocks, BlocksAndRemainders, Floats};
    let tensor = Tensor::random(TensorFormat::F32, 16, 64, &mut Random::new(9));
    for (format, compute, few, many) in [
        (WeightFormat::Bf16, CpuCompute::Fast, Floats, Bf16),
        (WeightFormat::Fp8, CpuCompute::Fast, Floats, Bf16),
        (WeightFormat::Bf16, CpuCompute::Precise, Floats, Bf16Pairs),
        (WeightFormat::Bf16, CpuCompute::Reference, Floats, Floats),
        (WeightFormat::F32, CpuCompute::Precise, Floats, Floats),
        (WeightFormat::Int8, CpuCompute::Fast, Blocks, Blocks),
        (WeightFormat::Int4, CpuCompute::Precise, BlocksAndRemainders, BlocksAndRemainders),
    ] {
        for isa in with_bf16() {
            let weight = PackedWeight::pack(&[tensor.view()], format, compute, isa).unwrap();
            assert_eq!([StepRows::Few, StepRows::Many].map(|rows| weight.form(rows)), [few, many], "{format} {compute:?} {isa}");
        }
    }
}
