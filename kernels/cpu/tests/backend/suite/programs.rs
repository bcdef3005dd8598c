//! Recorded programs: the same numbers as operations that are enqueued, whatever buffers hold when they run. Knows no operation but
//! one.

use std::sync::Arc;

use millrace_ops::{Op, Program, RmsNorm};

use super::{Rig, upload};

pub(crate) fn suite(rig: &mut Rig<'_>) {
    runs_on_what_buffers_hold_then(rig);
    keeps_apart_what_was_enqueued_before(rig);
    fails_where_an_operation_is_wrong(rig);
}

const WIDTH: usize = 48;

fn norm(rig: &mut Rig<'_>) -> RmsNorm {
    let weight = rig.random.floats(WIDTH);
    let (x, weight, out) = (rig.output(WIDTH), rig.floats(&weight), rig.output(WIDTH));
    RmsNorm { x, weight, out, rows: 1, width: WIDTH, eps: 1e-5 }
}

fn record(rig: &mut Rig<'_>, ops: impl IntoIterator<Item = Op>) -> Program {
    rig.queue.begin_recording();
    ops.into_iter().for_each(|op| rig.queue.enqueue(op));
    rig.queue.end_recording()
}

fn runs_on_what_buffers_hold_then(rig: &mut Rig<'_>) {
    let recorded = norm(rig);
    let direct = RmsNorm { out: rig.output(WIDTH), ..recorded.clone() };
    let program = record(rig, [Op::RmsNorm(recorded.clone())]);
    for _ in 0..3 {
        let x: Vec<u8> = rig.random.floats(WIDTH).iter().flat_map(|v| v.to_le_bytes()).collect();
        rig.queue.enqueue(upload(&recorded.x, x));
        rig.queue.enqueue_program(&program);
        rig.run([Op::RmsNorm(direct.clone())]);
        let found = rig.read_floats(&recorded.out);
        assert!(found.iter().all(|v| v.is_finite()));
        assert_eq!(found, rig.read_floats(&direct.out));
    }
}

fn keeps_apart_what_was_enqueued_before(rig: &mut Rig<'_>) {
    let (before, within) = (rig.output(1), rig.output(1));
    rig.queue.enqueue(upload(&before, 1.0f32.to_le_bytes().to_vec()));
    let program = record(rig, [upload(&within, 2.0f32.to_le_bytes().to_vec())]);
    rig.run([]);
    assert_eq!(rig.read_floats(&before), [1.0], "what was enqueued before a recording runs with the next submission");
    assert!(rig.read_floats(&within)[0].is_nan(), "what is recorded does not run");
    let empty = rig.queue.end_recording();
    rig.queue.enqueue_program(&empty);
    rig.queue.enqueue_program(&program);
    rig.queue.enqueue_program(&program);
    rig.run([]);
    assert_eq!(rig.read_floats(&within), [2.0]);
}

fn fails_where_an_operation_is_wrong(rig: &mut Rig<'_>) {
    let op = norm(rig);
    let program = record(rig, [Op::RmsNorm(RmsNorm { rows: 2, ..op })]);
    rig.run([]);
    rig.queue.enqueue_program(&program);
    rig.try_run([]).expect_err("its output is too small");
    rig.renew();
    if rig.backend.describe().name == "cpu" {
        rig.queue.enqueue_program(&Program::new(Arc::new(5)));
        let error = rig.try_run([]).expect_err("not this backend's").to_string();
        assert!(error.contains("recorded by another backend"), "{error}");
        rig.renew();
    }
}
