//! Arguments that do not fit their buffers, and step inputs that do not fit the operation: each must end its submission with
//! `Invalid` and touch nothing.

use millrace_ops::{
    Activations, ApplyTags, Attend, BackendError, Buffer, Embed, ExportPages, GatherRows, ImportPages, KvCache, KvFormat,
    KvLayout, Linear, LinearMode, NormHeads, NormKind, Op, PlaneColumns, PlaneShape, RmsNorm, Rope, RopePairs, RowOrder, Sample,
    SamplerParams, Segment, SiluMul, StagedPage, TagDelta, TensorData, TensorView, Upload, WeightFormat, WriteKv, as_bytes,
};

use super::{Rig, World, keys_and_values, upload};

pub(crate) fn suite(rig: &mut Rig<'_>) {
    sizes(rig);
    inputs(rig);
    later_submissions_do_not_run(rig);
}

pub(crate) fn refused(rig: &mut Rig<'_>, what: &str, ops: impl IntoIterator<Item = Op>) {
    let result = rig.try_run(ops);
    assert!(matches!(result, Err(BackendError::Invalid { .. })), "{what}: {result:?}");
    rig.renew();
}

fn weight(rig: &Rig<'_>) -> millrace_ops::Weight {
    let bytes = vec![0; 32 * 32 * 4];
    let view = TensorView { name: "t", rows: 32, cols: 32, data: TensorData::F32(&bytes), order: RowOrder::AsStored };
    rig.backend.prepare_weight(&[view], WeightFormat::F32, Activations::Coarse).expect("a weight")
}

fn sizes(rig: &mut Rig<'_>) {
    let (small, large) = (rig.empty(60), rig.empty(4096));
    let x = || large.clone();
    let few = |buffer: &Buffer| buffer.clone();
    refused(rig, "upload", [Op::Upload(Upload { to: x(), offset: 4090, bytes: vec![0; 7] })]);
    refused(rig, "upload offset", [Op::Upload(Upload { to: x(), offset: usize::MAX, bytes: vec![0; 7] })]);
    let norm = RmsNorm { x: x(), weight: x(), out: few(&small), rows: 1, width: 16, eps: 0.0 };
    refused(rig, "norm out", [Op::RmsNorm(norm.clone())]);
    refused(rig, "norm overflow", [Op::RmsNorm(RmsNorm { out: x(), rows: usize::MAX / 2, ..norm })]);
    let silu = SiluMul { x: x(), out: few(&small), rows: 2, width: 8 };
    refused(rig, "silu out", [Op::SiluMul(silu.clone())]);
    refused(rig, "silu alias", [Op::SiluMul(SiluMul { out: x(), ..silu })]);
    let table = weight(rig);
    let linear = Linear { x: x(), weight: table.clone(), bias: None, out: few(&small), rows: 1, mode: LinearMode::Store };
    refused(rig, "linear out", [Op::Linear(linear.clone())]);
    refused(rig, "linear bias", [Op::Linear(Linear { out: rig_buffer(rig), bias: Some(few(&small)), ..linear })]);
    refused(rig, "embed", [Op::Embed(Embed { table, tokens: few(&small), out: x(), rows: 16 })]);
    let frequencies = few(&small);
    let rope = Rope {
        x: x(),
        stride: 16,
        offset: 1,
        heads: 1,
        head_dim: 16,
        frequencies,
        rotary: 16,
        pairs: RopePairs::Halves,
        amplitude: 1.0,
        positions: few(&small),
        rows: 2,
    };
    refused(rig, "rope columns", [Op::Rope(rope.clone())]);
    refused(rig, "rope pairs", [Op::Rope(Rope { stride: 17, rotary: 15, ..rope.clone() })]);
    refused(rig, "rope rows", [Op::Rope(Rope { stride: 17, rows: 16, ..rope.clone() })]);
    refused(rig, "rope heads that overlap", [Op::Rope(Rope { stride: 64, heads: 2, head_dim: 15, ..rope.clone() })]);
    refused(rig, "rope overflow", [Op::Rope(Rope { heads: usize::MAX, head_dim: usize::MAX, ..rope })]);
    norms(rig, (&small, &large));
}

fn norms(rig: &mut Rig<'_>, (small, large): (&Buffer, &Buffer)) {
    let (x, other) = (large.clone(), rig_buffer(rig));
    let (weight, bias) = (other.clone(), Some(other));
    let norm = NormHeads {
        x: x.clone(),
        stride: 40,
        offset: 8,
        heads: 2,
        width: 16,
        kind: NormKind::Layer,
        weight,
        bias,
        eps: 0.0,
        rows: 4,
    };
    let few = small.clone();
    for (what, norm) in [
        ("norm columns", NormHeads { offset: 9, ..norm.clone() }),
        ("norm rows", NormHeads { rows: 26, ..norm.clone() }),
        ("norm width", NormHeads { width: 0, ..norm.clone() }),
        ("norm weight", NormHeads { weight: few.clone(), ..norm.clone() }),
        ("norm bias", NormHeads { bias: Some(few), ..norm.clone() }),
        ("norm weight alias", NormHeads { weight: x.clone(), ..norm.clone() }),
        ("norm bias alias", NormHeads { bias: Some(x), ..norm.clone() }),
        ("norm overflow", NormHeads { heads: usize::MAX, ..norm }),
    ] {
        refused(rig, what, [Op::NormHeads(norm)]);
    }
}

fn rig_buffer(rig: &Rig<'_>) -> Buffer {
    rig.empty(4096)
}

fn inputs(rig: &mut Rig<'_>) {
    let layout = KvLayout::grouped_query(1, 1, 16, 16, KvFormat::Bf16);
    let world = World::new(rig, layout.clone(), &[(0, 4), (0, 4)]);
    let (cache, step) = (world.cache.clone(), world.step.clone());
    let (x, out) = (rig.empty(4096), rig.empty(4096));
    let write = WriteKv {
        cache: cache.clone(),
        step: step.clone(),
        x: x.clone(),
        stride: 32,
        planes: keys_and_values(0, 0, 16),
        rows: 8,
        sequences: 2,
    };
    let attend = Attend {
        cache: cache.clone(),
        step: step.clone(),
        layer: 0,
        x: x.clone(),
        stride: 16,
        query_offset: 0,
        heads: 1,
        scale: 1.0,
        out,
        rows: 8,
        sequences: 2,
    };
    planes(rig, &write);
    refused(rig, "heads", [Op::Attend(Attend { heads: 0, ..attend.clone() })]);
    refused(rig, "sequences", [Op::Attend(Attend { sequences: 3, ..attend.clone() })]);
    refused(rig, "page count", [Op::WriteKv(WriteKv { cache: grown(&world), ..write.clone() })]);
    let segment = |first_row, rows, start, pages| Segment { first_row, rows, start, pages };
    for (what, second) in [
        ("overlap", segment(3, 2, 0, 1)),
        ("too many rows", segment(4, 5, 0, 1)),
        ("positions behind the table", segment(4, 4, 14, 1)),
        ("pages behind the stride", segment(4, 4, 0, 1000)),
        ("wrapping", segment(u32::MAX, 2, u32::MAX, 1)),
    ] {
        let segments = || upload(&step.segments, as_bytes(&[segment(0, 4, 0, 1), second]));
        refused(rig, what, [segments(), Op::WriteKv(write.clone())]);
        refused(rig, what, [segments(), Op::Attend(attend.clone())]);
    }
    world.set_step(rig, |s| (s.start, s.rows));
    let mut lost = World { cache: cache.clone(), step: step.clone(), sequences: world.sequences.clone() };
    lost.sequences[1].table[0].page = 99;
    lost.set_step(rig, |s| (s.start, s.rows));
    refused(rig, "page outside the pool", [Op::Attend(attend)]);
    let delta = TagDelta { page: 99, zero: 1, tag: 1 };
    let apply = ApplyTags { cache: cache.clone(), deltas: step.deltas.clone(), count: 1 };
    refused(rig, "delta outside the pool", [upload(&step.deltas, as_bytes(&[delta])), Op::ApplyTags(apply)]);
    let tokens = rig.words(&[3, 32]);
    let table = weight(rig);
    refused(rig, "token", [Op::Embed(Embed { table, tokens, out: x.clone(), rows: 2 })]);
    let samplers = upload(&step.samplers, as_bytes(&[SamplerParams { segment: 2, ..SamplerParams::default() }]));
    let sample = Sample { logits: x.clone(), step: step.clone(), count: 1, sequences: 2, vocab: 100, step_number: 1 };
    refused(rig, "sampler's segment", [samplers.clone(), Op::Sample(sample)]);
    let gather = GatherRows { x: x.clone(), step: step.clone(), out: rig_buffer(rig), count: 1, width: 4 };
    refused(rig, "gathered segment", [samplers, Op::GatherRows(gather)]);
    staged(rig, &world, layout);
}

fn planes(rig: &mut Rig<'_>, write: &WriteKv) {
    let (keys, no_plane) = (PlaneColumns { plane: 0, layer: 0, offset: 0 }, PlaneColumns { plane: 2, layer: 0, offset: 0 });
    for (what, planes) in [
        ("layer", keys_and_values(1, 0, 16)),
        ("plane", vec![keys, no_plane]),
        ("columns", keys_and_values(0, 0, 17)),
        ("columns that overflow", keys_and_values(0, usize::MAX, 16)),
        ("the same plane twice", vec![keys, keys]),
        ("no plane", vec![]),
    ] {
        refused(rig, what, [Op::WriteKv(WriteKv { planes, ..write.clone() })]);
    }
    let narrow = KvCache { layout: KvLayout::grouped_query(1, 1, 0, 16, KvFormat::Bf16), ..write.cache.clone() };
    refused(rig, "plane of width 0", [Op::WriteKv(WriteKv { cache: narrow, ..write.clone() })]);
}

fn grown(world: &World) -> millrace_ops::KvCache {
    millrace_ops::KvCache { page_count: world.cache.page_count + 1, ..world.cache.clone() }
}

fn staged(rig: &mut Rig<'_>, world: &World, layout: KvLayout) {
    let (cache, entry) = (world.cache.clone(), world.sequences[0].table[0]);
    let (staging, verdicts) = (rig.empty(2 * layout.page_bytes()), rig.empty(8));
    let fine = StagedPage { slot: 0, page: entry.page, tag: entry.tag, tokens: 16, verdict: 0, reserved: 0 };
    for (what, pages) in [
        ("slot", vec![StagedPage { slot: 2, ..fine }]),
        ("tokens", vec![StagedPage { tokens: 17, ..fine }]),
        ("verdict", vec![StagedPage { verdict: 2, ..fine }]),
        ("the same page twice", vec![fine, fine]),
    ] {
        let count = pages.len();
        let pages = rig.bytes(as_bytes(&pages));
        let (cache, staging, verdicts) = (cache.clone(), staging.clone(), verdicts.clone());
        let export = ExportPages {
            cache: cache.clone(),
            staging: staging.clone(),
            pages: pages.clone(),
            verdicts: verdicts.clone(),
            count,
        };
        refused(rig, what, [Op::ExportPages(export)]);
        let import = ImportPages { cache, from: layout.clone(), staging, pages, verdicts, count };
        refused(rig, what, [Op::ImportPages(import)]);
    }
    let pages = rig.bytes(as_bytes(&[fine]));
    let shape = PlaneShape { layers: 1, width: 16 };
    for (what, from) in [
        ("page size", KvLayout::grouped_query(1, 1, 16, 32, KvFormat::Bf16)),
        ("heads", KvLayout::grouped_query(1, 2, 16, 16, KvFormat::Bf16)),
        ("kinds of planes", KvLayout::latent(shape, Some(shape), 16, KvFormat::Bf16)),
    ] {
        let (cache, staging, verdicts) = (cache.clone(), staging.clone(), verdicts.clone());
        let import = ImportPages { cache, from, staging, pages: pages.clone(), verdicts, count: 1 };
        refused(rig, what, [Op::ImportPages(import)]);
    }
}

fn later_submissions_do_not_run(rig: &mut Rig<'_>) {
    let buffer = rig.words(&[1]);
    let bad = Op::Upload(Upload { to: buffer.clone(), offset: 4, bytes: vec![9] });
    // Nothing of a submission with a hole in it runs, nor anything after it.
    assert!(rig.try_run([upload(&buffer, vec![7, 7, 7, 7]), bad]).is_err());
    assert!(rig.try_run([upload(&buffer, vec![8, 8, 8, 8])]).is_err());
    rig.renew();
    assert_eq!(rig.read_words(&buffer), [1]);
    rig.run([upload(&buffer, vec![2, 0, 0, 0])]);
    assert_eq!(rig.read_words(&buffer), [2], "another queue goes on");
}
