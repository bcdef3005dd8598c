//! Norms and gates that a queue does together with the product behind them: the bits are those of both apart, and what may not be
//! done together is not.

use millrace_cpu::{CpuBackend, CpuCompute, Isa};
use millrace_ops::{
    Activations, Backend, Buffer, Linear, LinearMode, Op, Priority, RmsNorm, RowOrder, SiluMul, TensorData, TensorView, Weight,
    WeightFormat,
};

use crate::backend;
use crate::suite::Rig;

const COLS: usize = 160;
const WIDTH: usize = 100;

fn weight(rig: &mut Rig<'_>, format: WeightFormat, activations: Activations) -> Weight {
    let values: Vec<u8> = rig.random.floats(COLS * WIDTH).iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = TensorView { name: "w", rows: WIDTH, cols: COLS, data: TensorData::F32(&values), order: RowOrder::AsStored };
    rig.backend.prepare_weight(&[view], format, activations).expect("a weight")
}

/// The operation that makes rows of `COLS` columns into the buffer.
fn makers(rig: &mut Rig<'_>, rows: usize) -> [(Op, Buffer); 2] {
    let (x, both) = (rig.random.floats(rows * COLS), rig.random.floats(rows * 2 * COLS));
    let (x, both, scales) = (rig.floats(&x), rig.floats(&both), rig.floats(&vec![0.7; COLS]));
    let (normed, gated) = (rig.output(rows * COLS), rig.output(rows * COLS));
    let norm = RmsNorm { x, weight: scales, out: normed.clone(), rows, width: COLS, eps: 1e-5 };
    let gate = SiluMul { x: both, out: gated.clone(), rows, width: COLS };
    [(Op::RmsNorm(norm), normed), (Op::SiluMul(gate), gated)]
}

/// Bits of what is made and of the product, with both operations in one submission or in two.
fn bits(rig: &mut Rig<'_>, make: &Op, made: &Buffer, product: &Linear, submissions: usize) -> (Vec<u32>, Vec<u32>) {
    let ops = [make.clone(), Op::Linear(product.clone())];
    match submissions {
        1 => rig.run(ops),
        _ => ops.into_iter().for_each(|op| rig.run([op])),
    }
    (rig.read_words(made), rig.read_words(&product.out))
}

fn compare(backend: &CpuBackend, priority: Priority, isa: Isa) {
    let mut rig = Rig::new(backend, backend, 0.0).on(priority);
    for format in [WeightFormat::Int4, WeightFormat::Int8, WeightFormat::Bf16, WeightFormat::Fp8, WeightFormat::F32] {
        for activations in [Activations::Coarse, Activations::Fine] {
            let weight = weight(&mut rig, format, activations);
            for rows in [1, 2, 3, 4, 5, 9, 33] {
                for (make, made) in makers(&mut rig, rows) {
                    let mut product = |mode| {
                        let (weight, out) = (weight.clone(), rig.output(rows * WIDTH));
                        Linear { x: made.clone(), weight, bias: None, out, rows, mode }
                    };
                    let (apart, together) = (product(LinearMode::Store), product(LinearMode::Store));
                    let apart = bits(&mut rig, &make, &made, &apart, 2);
                    rig.run([zeros(&made, rows * COLS)]);
                    let together = bits(&mut rig, &make, &made, &together, 1);
                    assert!(apart == together, "{isa}, {format}, {activations:?}, {rows} rows, {}", make.name());
                }
            }
        }
    }
}

fn zeros(buffer: &Buffer, floats: usize) -> Op {
    crate::suite::upload(buffer, vec![0; floats * 4])
}

#[test]
fn together_they_come_to_the_same_as_apart() {
    for isa in Isa::available() {
        let backend = backend(3, CpuCompute::Fast, Some(isa));
        for priority in [Priority::High, Priority::Normal] {
            compare(&backend, priority, isa);
        }
    }
}

/// Names of the products that were measured.
fn measured(backend: &CpuBackend) -> Vec<String> {
    backend.operation_times().iter().map(|time| time.kind.to_string()).filter(|kind| kind.contains("linear")).collect()
}

#[test]
fn a_profile_names_both() {
    let backend = backend(2, CpuCompute::Fast, None);
    backend.measure_operations();
    let mut rig = Rig::new(&backend, &backend, 0.0);
    let weight = weight(&mut rig, WeightFormat::Int8, Activations::Coarse);
    for (make, made) in makers(&mut rig, 7) {
        let out = rig.output(7 * WIDTH);
        rig.run([
            make,
            Op::Linear(Linear { x: made, weight: weight.clone(), bias: None, out, rows: 7, mode: LinearMode::Store }),
        ]);
    }
    assert_eq!(measured(&backend), ["rms_norm, linear 100x160", "silu_mul, linear 100x160"]);
}

/// A product that writes what the norm reads, or reads another buffer or other rows, is done by itself.
#[test]
fn what_does_not_fit_is_done_apart() {
    let backend = backend(2, CpuCompute::Fast, None);
    backend.measure_operations();
    let mut rig = Rig::new(&backend, &backend, 0.0);
    let weight = weight(&mut rig, WeightFormat::Int8, Activations::Coarse);
    let [(norm, normed), (gate, _)] = makers(&mut rig, 3);
    let Op::RmsNorm(norm) = norm else { unreachable!("the first is a norm") };
    let other = rig.output(3 * COLS);
    let out = rig.output(3 * COLS);
    let product = |x: &Buffer, out: &Buffer, rows| {
        let (x, weight, out) = (x.clone(), weight.clone(), out.clone());
        Op::Linear(Linear { x, weight, bias: None, out, rows, mode: LinearMode::Store })
    };
    let in_place = RmsNorm { out: norm.x.clone(), ..norm.clone() };
    for ops in [
        [Op::RmsNorm(norm.clone()), product(&normed, &norm.x, 3)],
        [Op::RmsNorm(norm.clone()), product(&other, &out, 3)],
        [Op::RmsNorm(norm.clone()), product(&normed, &out, 2)],
        [Op::RmsNorm(in_place), product(&norm.x, &out, 3)],
        [gate, product(&normed, &out, 3)],
    ] {
        rig.run(ops);
    }
    assert_eq!(measured(&backend), ["linear 100x160"]);
}
