//! Operations over pages and tags, the hand-off's aside. Expected pages are built here from the layout's definition.

use half::bf16;
use millrace_ops::{
    ApplyTags, Attend, CheckPoint, CheckTags, KvFormat, KvLayout, Op, PlaneColumns, PlaneKind, PlaneShape, PublishVerdicts,
    RowStatus, StaticScales, StepRecord, TagDelta, WriteKv, as_bytes, e4m3_from_f32,
};

use super::{Rig, Slot, World, keys_and_values, upload};

pub(crate) const FORMATS: [KvFormat; 3] = [KvFormat::F32, KvFormat::Bf16, KvFormat::Fp8];

pub(crate) fn suite(rig: &mut Rig<'_>) {
    if cfg!(feature = "tags") {
        apply_tags(rig);
        check_tags(rig);
    } else {
        no_tags_to_check(rig);
    }
    publish_verdicts(rig);
    latents_out_of_range(rig);
    for format in FORMATS {
        for page_tokens in [16, 32, 64] {
            write_kv(rig, KvLayout::grouped_query(2, 3, 32, page_tokens, format));
        }
        write_kv(rig, KvLayout::grouped_query(1, 2, 10, 16, format));
        for (latent, index_keys) in [(576, None), (80, Some(128)), (22, Some(10))] {
            write_kv(rig, latent_layout(latent, index_keys, format));
        }
        if cfg!(feature = "tags") {
            stale_rows_write_nothing(rig, format);
        }
    }
}

fn small() -> KvLayout {
    KvLayout::grouped_query(2, 1, 16, 16, KvFormat::Bf16)
}

fn apply_tags(rig: &mut Rig<'_>) {
    let world = World::new(rig, small(), &[(0, 40)]);
    let deltas =
        [TagDelta { page: 1, zero: 1, tag: 5 }, TagDelta { page: 3, zero: 0, tag: 6 }, TagDelta { page: 1, zero: 1, tag: 7 }];
    let before = rig.read(&world.cache.pages);
    let op = ApplyTags { cache: world.cache.clone(), deltas: world.step.deltas.clone(), count: 3 };
    rig.run([upload(&world.step.deltas, as_bytes(&deltas)), Op::ApplyTags(op)]);
    let tags = rig.read(&world.cache.tags);
    assert_eq!((tags[8], tags[24]), (7, 6), "the last change of a page wins");
    let (pages, size) = (rig.read(&world.cache.pages), world.cache.layout.page_bytes());
    for page in 0..world.cache.page_count {
        let got = &pages[page * size..][..size];
        if page == 1 {
            assert!(got.iter().all(|b| *b == 0), "page 1 is zeroed");
        } else {
            assert_eq!(got, &before[page * size..][..size], "page {page} is left alone");
        }
    }
}

fn check_tags(rig: &mut Rig<'_>) {
    let mut world = World::new(rig, small(), &[(0, 40), (0, 16), (20, 1), (0, 0)]);
    let records: Vec<u8> = (0..4).flat_map(|i| StepRecord::new(i, RowStatus::Ok, 9).0.to_le_bytes()).collect();
    rig.run([upload(&world.step.records, records), upload(&world.step.verdicts, as_bytes(&[1u32, 1, 1, 1]))]);
    world.sequences[1].table[0].tag ^= 1 << 50;
    world.set_step(rig, |s| (s.start, s.rows));
    let check = |point| CheckTags { cache: world.cache.clone(), step: world.step.clone(), sequences: 4, point };
    rig.run([Op::CheckTags(check(CheckPoint::Head))]);
    assert_eq!(rig.read_words(&world.step.verdicts), [0, 1, 0, 0], "the head check clears, then sets");
    // Another page changes hands during the step.
    let taken = TagDelta { page: world.sequences[2].table[1].page, zero: 0, tag: 1 };
    let apply = ApplyTags { cache: world.cache.clone(), deltas: world.step.deltas.clone(), count: 1 };
    rig.run([upload(&world.step.deltas, as_bytes(&[taken])), Op::ApplyTags(apply), Op::CheckTags(check(CheckPoint::Tail))]);
    assert_eq!(rig.read_words(&world.step.verdicts), [0, 1, 1, 0], "the tail check adds");
    let records = rig.records(&world.step.records, 4);
    let statuses: Vec<RowStatus> = records.iter().map(|r| r.status()).collect();
    assert_eq!(statuses, [RowStatus::Ok, RowStatus::StalePage, RowStatus::StalePage, RowStatus::Ok]);
    assert!(records.iter().all(|r| r.step() == 9));
    // A page outside the pool is as stale as any other.
    world.sequences[0].table[2].page = 1 << 30;
    world.set_step(rig, |s| (s.start, s.rows));
    rig.run([Op::CheckTags(CheckTags {
        cache: world.cache.clone(),
        step: world.step.clone(),
        sequences: 4,
        point: CheckPoint::Head,
    })]);
    assert_eq!(rig.read_words(&world.step.verdicts), [1, 1, 1, 0]);
}

/// A build without tags refuses the check, and keeps pages within their pool all the same.
fn no_tags_to_check(rig: &mut Rig<'_>) {
    let mut world = World::new(rig, small(), &[(0, 16)]);
    world.set_step(rig, |s| (s.start, s.rows));
    let (cache, step) = (world.cache.clone(), world.step.clone());
    let refused = rig.try_run([Op::CheckTags(CheckTags { cache, step, sequences: 1, point: CheckPoint::Head })]);
    assert!(refused.is_err_and(|error| error.to_string().contains("no page tags")));
    rig.renew();
    world.sequences[0].table[0].page = 1 << 30;
    world.set_step(rig, |s| (s.start, s.rows));
    let (cache, step, x, planes) = (world.cache.clone(), world.step.clone(), rig.empty(16 * 32 * 4), keys_and_values(0, 0, 16));
    rig.run([Op::WriteKv(WriteKv { cache, step, x, stride: 32, planes, rows: 16, sequences: 1 })]);
    assert_eq!(rig.read_words(&world.step.verdicts), [1]);
}

fn publish_verdicts(rig: &mut Rig<'_>) {
    let (verdicts, records) = (rig.words(&[0, 1, 0, 7]), rig.empty(32));
    rig.run([Op::PublishVerdicts(PublishVerdicts { verdicts, records: records.clone(), count: 4, step_number: 77 })]);
    let got = rig.records(&records, 4);
    let want = [RowStatus::Ok, RowStatus::StalePage, RowStatus::Ok, RowStatus::StalePage];
    assert_eq!(got, want.map(|status| StepRecord::new(0, status, 77)));
}

/// Rows of random keys and values of different sizes, one of zeros.
pub(crate) fn random_rows(rig: &mut Rig<'_>, rows: usize, stride: usize) -> Vec<f32> {
    let mut x = rig.random.floats(rows * stride);
    for (row, values) in x.chunks_mut(stride).enumerate() {
        let size = [1.0, 30.0, 0.001, 1.0, 0.0][row % 5];
        values.iter_mut().for_each(|v| *v *= size);
    }
    x
}

/// The bytes of one stored value, by definition.
fn encoded(format: KvFormat, value: f32, scale: f32) -> Vec<u8> {
    match format {
        KvFormat::F32 => value.to_le_bytes().to_vec(),
        KvFormat::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        KvFormat::Fp8 if scale == 0.0 => vec![0],
        KvFormat::Fp8 => vec![e4m3_from_f32(value / scale)],
    }
}

/// Puts one token's values where the layout says, into the bytes of a page.
pub(crate) fn put(page: &mut [u8], layout: &KvLayout, at: Slot, token: usize, values: &[f32]) {
    let plane = &layout.planes[at.plane];
    let block = layout.block_offset(at.plane, at.layer);
    let largest = values.iter().fold(0.0f32, |a, v| a.max(v.abs()));
    let of_token = bf16::from_f32(largest / 448.0);
    let of_layer = plane.kind == PlaneKind::Latent;
    let scale = if of_layer { layout.latent_scales.of(at.layer) } else { of_token.to_f32() };
    for (channel, value) in values.iter().enumerate() {
        let bytes = encoded(plane.format, *value, scale);
        let offset = block + at.head * plane.head_bytes() + plane.element_index(token, channel) * bytes.len();
        page[offset..offset + bytes.len()].copy_from_slice(&bytes);
    }
    if plane.format == KvFormat::Fp8 && !of_layer {
        let offset = block + plane.scales_offset(at.head) + token * 2;
        page[offset..offset + 2].copy_from_slice(&of_token.to_le_bytes());
    }
}

/// Latents of three layers, the last of which has index keys; scales so that some values of [`random_rows`] saturate.
pub(crate) fn latent_layout(latent: usize, index_keys: Option<usize>, format: KvFormat) -> KvLayout {
    let index_keys = index_keys.map(|width| PlaneShape { layers: 1, width });
    let layout = KvLayout::latent(PlaneShape { layers: 3, width: latent }, index_keys, 16, format);
    KvLayout { latent_scales: StaticScales::new(&[1.0, 0.0625, 0.037]), ..layout }
}

/// The columns of every plane's last layer, with gaps between them, and the columns of a row.
fn all_planes(layout: &KvLayout) -> (Vec<PlaneColumns>, usize) {
    let mut end = 5;
    let mut planes = Vec::new();
    for (plane, p) in layout.planes.iter().enumerate() {
        planes.push(PlaneColumns { plane, layer: p.layers - 1, offset: end });
        end += p.heads * p.width + 3;
    }
    (planes, end)
}

fn write_kv(rig: &mut Rig<'_>, layout: KvLayout) {
    let shapes = [(0, 5), (3, 1), (14, 40), (64, 64), (0, 0), (31, 1)];
    let world = World::new(rig, layout.clone(), &shapes);
    world.set_step(rig, |s| (s.start, s.rows));
    let (mut planes, stride) = all_planes(&layout);
    planes.reverse();
    let rows = world.rows();
    let x = random_rows(rig, rows, stride);
    let mut want = rig.read(&world.cache.pages);
    let mut row = 0;
    for sequence in &world.sequences {
        for i in 0..sequence.rows {
            let position = sequence.start + i;
            let page = sequence.table[position / layout.page_tokens].page as usize * layout.page_bytes();
            for &PlaneColumns { plane, layer, offset } in &planes {
                let (heads, width) = (layout.planes[plane].heads, layout.planes[plane].width);
                for head in 0..heads {
                    let values = &x[row * stride + offset + head * width..][..width];
                    let at = Slot { plane, layer, head, channel: 0 };
                    put(&mut want[page..], &layout, at, position % layout.page_tokens, values);
                }
            }
            row += 1;
        }
    }
    let x = rig.floats(&x);
    let (cache, step) = (world.cache.clone(), world.step.clone());
    let sequences = shapes.len();
    rig.run([Op::WriteKv(WriteKv { cache, step, x, stride, planes, rows, sequences })]);
    let got = rig.read(&world.cache.pages);
    let first = got.iter().zip(&want).position(|(g, w)| g != w);
    assert_eq!(first, None, "write_kv {}: first byte that differs", layout.id());
    assert_eq!(rig.read_words(&world.step.verdicts), [0; 6]);
}

/// A latent shows what is not finite, and saturates at the largest code.
fn latents_out_of_range(rig: &mut Rig<'_>) {
    let layout = latent_layout(32, None, KvFormat::Fp8);
    let world = World::new(rig, layout.clone(), &[(0, 1)]);
    world.set_step(rig, |s| (s.start, s.rows));
    let mut x = vec![0.25; 32];
    (x[0], x[1], x[2], x[3]) = (f32::NAN, f32::INFINITY, -1000.0, 448.0 * 0.0625);
    let x = rig.floats(&x);
    let (cache, step) = (world.cache.clone(), world.step.clone());
    let planes = vec![PlaneColumns { plane: 0, layer: 1, offset: 0 }];
    rig.run([Op::WriteKv(WriteKv { cache, step, x, stride: 32, planes, rows: 1, sequences: 1 })]);
    let pages = rig.read(&world.cache.pages);
    let got: Vec<f64> = (0..5).map(|channel| world.stored(&pages, 0, 0, Slot { plane: 0, layer: 1, head: 0, channel })).collect();
    assert!(got[0].is_nan());
    assert_eq!(got[1..], [28.0, -28.0, 28.0, 0.25]);
}

fn stale_rows_write_nothing(rig: &mut Rig<'_>, format: KvFormat) {
    let layout = KvLayout::grouped_query(1, 2, 16, 16, format);
    let mut world = World::new(rig, layout.clone(), &[(10, 10), (0, 3), (0, 2)]);
    // Sequence 0 loses its second page; sequence 2 was flagged at the head of the step.
    world.sequences[0].table[1].tag += 1;
    world.set_step(rig, |s| (s.start, s.rows));
    let (rows, stride) = (world.rows(), 64);
    let x = rig.random.floats(rows * stride);
    let x = rig.floats(&x);
    let (cache, step) = (world.cache.clone(), world.step.clone());
    let planes = keys_and_values(0, 0, 32);
    let write = WriteKv { cache, step, x: x.clone(), stride, planes, rows, sequences: 3 };
    rig.run([upload(&world.step.verdicts, as_bytes(&[0u32, 0, 1])), Op::WriteKv(write)]);
    assert_eq!(rig.read_words(&world.step.verdicts), [1, 0, 1]);
    let (pages, size) = (rig.read(&world.cache.pages), layout.page_bytes());
    let untouched = |page: u32| pages[page as usize * size..][..size].iter().all(|b| *b == 0xff);
    assert!(untouched(world.sequences[0].table[1].page), "a row whose page is another's writes nothing");
    assert!(untouched(world.sequences[2].table[0].page), "a flagged sequence writes nothing");
    assert!(!untouched(world.sequences[1].table[0].page), "its neighbour does");
    // And flagged sequences attend to nothing.
    let out = rig.output(rows * 64);
    rig.run([Op::Attend(Attend {
        cache: world.cache.clone(),
        step: world.step.clone(),
        layer: 0,
        x,
        stride,
        query_offset: 0,
        heads: 4,
        scale: 0.25,
        out: out.clone(),
        rows,
        sequences: 3,
    })]);
    let out = rig.read_floats(&out);
    assert!(out[..10 * 64].iter().chain(&out[13 * 64..]).all(|v| *v == 0.0), "flagged sequences get zeros");
    assert!(out[10 * 64..13 * 64].iter().all(|v| v.is_finite() && *v != 0.0));
}
