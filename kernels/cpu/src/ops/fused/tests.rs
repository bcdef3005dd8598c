//! A worker that does the work of all.

use std::sync::Arc;

use millrace_ops::{
    Activations, Backend as _, Buffer, Linear, LinearMode, Priority, RmsNorm, RowOrder, TensorData, TensorView, WeightFormat,
};

use super::*;
use crate::backend::{CpuBackend, CpuOptions};
use crate::barrier::Barrier;
use crate::linear::{CpuCompute, QuantizedRows};
use crate::memory::HostMemory;
use crate::task::Scratch;

const COLS: usize = 64;
/// Twelve panels: each of two workers has six, which are more than one run.
const WIDTH: usize = 192;
const ROWS: usize = 2;

/// What is made of the rows is written too where the worker that has the first panels comes last: the other one has taken them.
#[test]
fn rows_are_written_whoever_takes_the_first_panels() {
    let isa = Isa::detect();
    let backend = CpuBackend::new(CpuOptions { threads: 1, compute: CpuCompute::Fast, isa: Some(isa) }).unwrap();
    let filled = |count: usize| {
        let buffer = backend.allocate(count * 4).unwrap();
        let region = Region::of(buffer.clone()).unwrap();
        // SAFETY: nobody else has the buffer.
        unsafe { region.items_mut::<f32>(0, count) }.fill(2.0);
        buffer
    };
    let values: Vec<u8> = (0..COLS * WIDTH).flat_map(|i| ((i % 7) as f32 - 3.0).to_le_bytes()).collect();
    let view = TensorView { name: "w", rows: WIDTH, cols: COLS, data: TensorData::F32(&values), order: RowOrder::AsStored };
    let weight = backend.prepare_weight(&[view], WeightFormat::Int8, Activations::Coarse).unwrap();
    let (x, scales, made) = (filled(ROWS * COLS), filled(COLS), backend.allocate(ROWS * COLS * 4).unwrap());
    let out = backend.allocate(ROWS * WIDTH * 4).unwrap();
    let norm = Op::RmsNorm(RmsNorm { x, weight: scales, out: made.clone(), rows: ROWS, width: COLS, eps: 1e-5 });
    let product =
        Op::Linear(Linear { x: made.clone(), weight, bias: None, out: out.clone(), rows: ROWS, mode: LinearMode::Store });
    let compute = Compute { isa, mode: CpuCompute::Fast, priority: Priority::High };
    let task = fuse(&norm, &product, compute).expect("the two fit");
    let (barrier, shared, quantized) = (Barrier::new(2), Arc::new(HostMemory::new(64).unwrap()), QuantizedRows::new());
    let shared = Region::scratch(&shared);
    for index in [1, 0] {
        let scratch = &mut Scratch::default();
        let mut worker = Worker { index, workers: 2, isa, scratch, shared: &shared, quantized: &quantized, barrier: &barrier };
        task.run(0, &mut worker).unwrap();
    }
    let floats = |buffer: Buffer, count: usize| {
        let region = Region::of(buffer).unwrap();
        // SAFETY: nobody writes the buffer any more.
        unsafe { region.items::<f32>(0, count) }.to_vec()
    };
    // Equal values have the norm 1, which the scales double.
    assert!(floats(made, ROWS * COLS).iter().all(|value| (value - 2.0).abs() < 1e-4));
    assert!(floats(out, ROWS * WIDTH).iter().any(|&value| value != 0.0));
}
