//! What the experts' operations and products per head must refuse: arguments when they are enqueued, routing that makes no sense
//! when they run. Each with a sentence that names what is wrong.

use std::any::Any;
use std::sync::Arc;

use millrace_ops::{
    BackendError, CombineRows, DispatchRows, ExpertBuffers, LinearExperts, LinearHeads, Op, RouteRows, RouteRule, Weight,
    WeightFormat, WeightMemory,
};

use super::Rig;
use super::routing::{Choice, PLAIN, buffers, routed};
use super::weights::{Shape, Weights};

const CHOICE: Choice = Choice { experts: 4, top_k: 2 };
const SHAPE: Shape = Shape { rows: 32, cols: 32 };
const ROWS: usize = 3;

pub(crate) fn suite(rig: &mut Rig<'_>) {
    heads(rig);
    rules(rig);
    routing_buffers(rig);
    products(rig);
    rows(rig);
    for format in [WeightFormat::F32, WeightFormat::Int4] {
        hostile_starts(rig, format);
    }
    hostile_slots(rig);
}

/// Expects a refusal that says `why`.
fn refused(rig: &mut Rig<'_>, why: &str, op: Op) {
    let name = op.name();
    match rig.try_run([op]) {
        Err(BackendError::Invalid { operation, why: said, .. }) => {
            assert!(operation == name && said.contains(why), "{name}: `{said}` does not say `{why}`");
        }
        other => panic!("{name}, where `{why}`: {other:?}"),
    }
    rig.renew();
}

/// A weight of no backend.
struct Foreign;

impl WeightMemory for Foreign {
    fn rows(&self) -> usize {
        SHAPE.rows
    }

    fn cols(&self) -> usize {
        SHAPE.cols
    }

    fn bytes(&self) -> usize {
        0
    }

    fn format(&self) -> WeightFormat {
        WeightFormat::F32
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Sets of four weights that are none, with what is wrong with them.
fn bad_sets(rig: &mut Rig<'_>) -> Vec<(&'static str, Arc<[Weight]>)> {
    let mut set = |shape, format| Weights::random(rig, 4, shape, format).packed;
    let fine = set(SHAPE, WeightFormat::F32);
    let last = |other: &Weight| fine[..3].iter().chain([other]).cloned().collect::<Arc<[Weight]>>();
    vec![
        ("there are no weights", Arc::from([])),
        ("weight 3 is Weight(32x31 f32) and weight 0", last(&set(Shape { cols: 31, ..SHAPE }, WeightFormat::F32)[0])),
        ("weight 3 is Weight(33x32 f32) and weight 0", last(&set(Shape { rows: 33, ..SHAPE }, WeightFormat::F32)[0])),
        ("weight 3 is Weight(32x32 int8) and weight 0", last(&set(SHAPE, WeightFormat::Int8)[0])),
        ("the weight is another backend's", last(&Weight::new(Arc::new(Foreign)))),
    ]
}

fn heads(rig: &mut Rig<'_>) {
    let weights = Weights::random(rig, 4, SHAPE, WeightFormat::F32).packed;
    let (x, out) = (rig.output(ROWS * 140), rig.output(ROWS * 128));
    let fine = LinearHeads { x, x_stride: 140, x_offset: 3, x_step: 35, weights, out, rows: ROWS };
    rig.run([Op::LinearHeads(fine.clone())]);
    for (why, op) in [
        ("heads end at column 141 of rows of 140", LinearHeads { x_offset: 4, ..fine.clone() }),
        ("heads end at column", LinearHeads { x_step: usize::MAX / 2, ..fine.clone() }),
        ("heads end at column", LinearHeads { x_offset: usize::MAX, ..fine.clone() }),
        ("`x` holds", LinearHeads { x_stride: 141, ..fine.clone() }),
        ("`x` holds", LinearHeads { rows: usize::MAX / 2, ..fine.clone() }),
        ("`out` holds", LinearHeads { out: rig.output(ROWS * 128 - 1), ..fine.clone() }),
        ("the output buffer is also an input", LinearHeads { out: fine.x.clone(), ..fine.clone() }),
    ] {
        refused(rig, why, Op::LinearHeads(op));
    }
    for (why, weights) in bad_sets(rig) {
        refused(rig, why, Op::LinearHeads(LinearHeads { weights, ..fine.clone() }));
    }
}

fn route(rig: &mut Rig<'_>, choice: Choice) -> RouteRows {
    let logits = rig.floats(&vec![0.0; ROWS * choice.experts]);
    RouteRows { logits, bias: None, rule: PLAIN, to: buffers(rig, choice, ROWS), rows: ROWS }
}

fn rules(rig: &mut Rig<'_>) {
    let fine = route(rig, CHOICE);
    rig.run([Op::RouteRows(fine.clone())]);
    for (why, choice) in [
        ("0 experts; use 1 to 4096", Choice { experts: 0, top_k: 1 }),
        ("4097 experts; use 1 to 4096", Choice { experts: 4097, top_k: 1 }),
        ("top_k of 0 of 4 experts", Choice { experts: 4, top_k: 0 }),
        ("top_k of 5 of 4 experts", Choice { experts: 4, top_k: 5 }),
    ] {
        let op = route(rig, choice);
        refused(rig, why, Op::RouteRows(op));
    }
    for (why, groups, top_groups) in [
        ("4 experts do not make 0 groups", 0, 0),
        ("4 experts do not make 3 groups", 3, 1),
        ("4 experts do not make 8 groups", 8, 1),
        ("top_groups of 0 of 2 groups", 2, 0),
        ("top_groups of 3 of 2 groups", 2, 3),
        ("top_k of 2 where 1 groups of 1 experts leave a choice of 1", 4, 1),
    ] {
        let rule = RouteRule { groups, top_groups, ..PLAIN };
        refused(rig, why, Op::RouteRows(RouteRows { rule, ..fine.clone() }));
    }
    refused(rig, "are more slots than 32 bits count", Op::RouteRows(RouteRows { rows: 1 << 31, ..fine.clone() }));
    refused(rig, "are more slots than 32 bits count", Op::RouteRows(RouteRows { rows: usize::MAX, ..fine }));
}

fn routing_buffers(rig: &mut Rig<'_>) {
    let fine = route(rig, CHOICE);
    let small = rig.empty(8);
    let with = |change: fn(&mut ExpertBuffers, millrace_ops::Buffer)| {
        let mut to = fine.to.clone();
        change(&mut to, small.clone());
        Op::RouteRows(RouteRows { to, ..fine.clone() })
    };
    refused(rig, "`to.ids` holds 8 bytes where the operation needs 24", with(|to, small| to.ids = small));
    refused(rig, "`to.weights` holds", with(|to, small| to.weights = small));
    refused(rig, "`to.slots` holds", with(|to, small| to.slots = small));
    refused(rig, "`to.slot_rows` holds", with(|to, small| to.slot_rows = small));
    refused(rig, "`to.starts` holds 8 bytes where the operation needs 20", with(|to, small| to.starts = small));
    refused(rig, "`logits` holds", Op::RouteRows(RouteRows { logits: small.clone(), ..fine.clone() }));
    refused(rig, "`bias` holds", Op::RouteRows(RouteRows { bias: Some(small.clone()), ..fine.clone() }));
    let alias = "the output buffer is also an input";
    refused(rig, alias, with(|to, _| to.slots = to.ids.clone()));
    refused(rig, alias, with(|to, _| to.starts = to.weights.clone()));
    refused(rig, alias, Op::RouteRows(RouteRows { logits: fine.to.slot_rows.clone(), rows: 1, ..fine.clone() }));
    refused(rig, alias, Op::RouteRows(RouteRows { bias: Some(fine.to.ids.clone()), ..fine }));
}

fn multiply(rig: &mut Rig<'_>, format: WeightFormat) -> LinearExperts {
    let weights = Weights::random(rig, CHOICE.experts, SHAPE, format).packed;
    let slots = ROWS * CHOICE.top_k;
    let by = routed(rig, CHOICE, &[0, 1, 3, 1, 3, 0], &[0.5; 6]);
    let x = rig.floats(&vec![0.5; slots * SHAPE.cols]);
    LinearExperts { x, weights, by, out: rig.output(slots * SHAPE.rows), rows: ROWS }
}

fn products(rig: &mut Rig<'_>) {
    let fine = multiply(rig, WeightFormat::F32);
    rig.run([Op::LinearExperts(fine.clone())]);
    for (why, weights) in bad_sets(rig) {
        refused(rig, why, Op::LinearExperts(LinearExperts { weights, ..fine.clone() }));
    }
    let weights: Arc<[Weight]> = fine.weights[..3].to_vec().into();
    let by = ExpertBuffers { starts: rig.empty(16), ..fine.by.clone() };
    for (why, op) in [
        ("3 weights for 4 experts", LinearExperts { weights, ..fine.clone() }),
        ("`x` holds", LinearExperts { rows: ROWS + 1, ..fine.clone() }),
        ("`out` holds", LinearExperts { out: rig.empty(4), ..fine.clone() }),
        ("`by.starts` holds 16 bytes where the operation needs 20", LinearExperts { by, ..fine.clone() }),
        ("the output buffer is also an input", LinearExperts { out: fine.x.clone(), ..fine.clone() }),
    ] {
        refused(rig, why, Op::LinearExperts(op));
    }
}

fn rows(rig: &mut Rig<'_>) {
    let by = routed(rig, CHOICE, &[0, 1, 3, 1, 3, 0], &[0.5; 6]);
    let (x, out, small) = (rig.output(ROWS * 8), rig.output(2 * ROWS * 8), rig.empty(20));
    let dispatch = DispatchRows { x: x.clone(), by: by.clone(), out: out.clone(), rows: ROWS, width: 8 };
    for (why, op) in [
        ("`x` holds", DispatchRows { x: small.clone(), ..dispatch.clone() }),
        ("`out` holds", DispatchRows { out: x.clone(), x: out.clone(), ..dispatch.clone() }),
        (
            "`by.slot_rows` holds",
            DispatchRows { by: ExpertBuffers { slot_rows: small.clone(), ..by.clone() }, ..dispatch.clone() },
        ),
        ("the output buffer is also an input", DispatchRows { x: out.clone(), ..dispatch.clone() }),
        ("top_k of 0 of 4 experts", DispatchRows { by: ExpertBuffers { top_k: 0, ..by.clone() }, ..dispatch.clone() }),
        ("`x` holds", DispatchRows { width: usize::MAX / 2, ..dispatch }),
    ] {
        refused(rig, why, Op::DispatchRows(op));
    }
    let combine = CombineRows { x: out.clone(), by: by.clone(), out: x, rows: ROWS, width: 8 };
    for (why, op) in [
        ("`x` holds", CombineRows { x: small.clone(), ..combine.clone() }),
        ("`out` holds", CombineRows { out: small.clone(), ..combine.clone() }),
        ("`by.slots` holds", CombineRows { by: ExpertBuffers { slots: small.clone(), ..by.clone() }, ..combine.clone() }),
        ("`by.weights` holds", CombineRows { by: ExpertBuffers { weights: small, ..by }, ..combine.clone() }),
        ("the output buffer is also an input", CombineRows { out, ..combine }),
    ] {
        refused(rig, why, Op::CombineRows(op));
    }
}

/// Starts that would send a product outside its buffers, or over the same outputs twice.
fn hostile_starts(rig: &mut Rig<'_>, format: WeightFormat) {
    let fine = multiply(rig, format);
    for starts in [
        [1, 2, 4, 4, 6],
        [0, 2, 4, 4, 5],
        [0, 2, 4, 4, 7],
        [0, 4, 2, 4, 6],
        [0, 7, 7, 7, 6],
        [0, u32::MAX, 4, 4, 6],
        [u32::MAX; 5],
        [0, 0, 0, 0, u32::MAX],
        [0x8000_0000, 0, 0, 0, 6],
    ] {
        let by = ExpertBuffers { starts: rig.words(&starts), ..fine.by.clone() };
        let out = rig.output(ROWS * CHOICE.top_k * SHAPE.rows);
        let why = format!("starts of experts go from {} to {} where they must rise from 0 to 6 slots", starts[0], starts[4]);
        refused(rig, &why, Op::LinearExperts(LinearExperts { by, out: out.clone(), ..fine.clone() }));
        assert!(rig.read_floats(&out).iter().all(|v| v.is_nan()), "{starts:?}: nothing is written");
    }
    // Nobody follows what the other buffers say here, so it does no harm.
    let [ids, slots, slot_rows] = [u32::MAX, 7, 1 << 31].map(|garbage| rig.words(&[garbage; 6]));
    rig.run([Op::LinearExperts(LinearExperts { by: ExpertBuffers { ids, slots, slot_rows, ..fine.by.clone() }, ..fine })]);
}

fn hostile_slots(rig: &mut Rig<'_>) {
    let by = routed(rig, CHOICE, &[0, 1, 3, 1, 3, 0], &[0.5; 6]);
    let (x, out) = (rig.output(ROWS * 8), rig.output(2 * ROWS * 8));
    for garbage in [3, 6, u32::MAX, 1 << 31] {
        for place in [0, 5] {
            let mut words = [0; 6];
            words[place] = garbage;
            let by = ExpertBuffers { slot_rows: rig.words(&words), ..by.clone() };
            let why = format!("slot {place} names row {garbage} of 3");
            let op = DispatchRows { x: x.clone(), by: by.clone(), out: out.clone(), rows: ROWS, width: 8 };
            refused(rig, &why, Op::DispatchRows(op));
            if garbage == 3 {
                continue;
            }
            let by = ExpertBuffers { slots: rig.words(&words), ..by };
            let why = format!("choice {} of row {} names slot {garbage} of 6", place % 2, place / 2);
            refused(rig, &why, Op::CombineRows(CombineRows { x: out.clone(), by, out: x.clone(), rows: ROWS, width: 8 }));
        }
    }
    // Routing writes everything that it reads, whatever was there.
    let op = route(rig, CHOICE);
    rig.run([Op::RouteRows(op)]);
}
