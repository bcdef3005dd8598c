//! Operations over pages and tags. Expected pages are built here from the layout's definition.

use half::bf16;
use millrace_ops::{
    ApplyTags, Attend, CheckPoint, CheckTags, ExportPages, ImportPages, KvFormat, KvLayout, Op, PublishVerdicts, RowStatus,
    StagedPage, StepRecord, TagDelta, WriteKv, as_bytes, e4m3_from_f32,
};

use super::{Rig, Slot, World, decode, upload};

pub(crate) const FORMATS: [KvFormat; 3] = [KvFormat::F32, KvFormat::Bf16, KvFormat::Fp8];

pub(crate) fn suite(rig: &mut Rig<'_>) {
    apply_tags(rig);
    check_tags(rig);
    publish_verdicts(rig);
    for format in FORMATS {
        for page_tokens in [16, 32, 64] {
            write_kv(rig, KvLayout::grouped_query(2, 3, 32, page_tokens, format));
        }
        write_kv(rig, KvLayout::grouped_query(1, 2, 10, 16, format));
        stale_rows_write_nothing(rig, format);
        for to in FORMATS {
            hand_off(rig, format, to);
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
fn encoded(format: KvFormat, value: f32, scale: bf16) -> Vec<u8> {
    match format {
        KvFormat::F32 => value.to_le_bytes().to_vec(),
        KvFormat::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        KvFormat::Fp8 if scale.to_f32() == 0.0 => vec![0],
        KvFormat::Fp8 => vec![e4m3_from_f32(value / scale.to_f32())],
    }
}

/// Puts one token's values where the layout says, into the bytes of a page.
fn put(page: &mut [u8], layout: &KvLayout, at: Slot, token: usize, values: &[f32]) {
    let plane = &layout.planes[at.plane];
    let block = layout.block_offset(at.plane, at.layer);
    let largest = values.iter().fold(0.0f32, |a, v| a.max(v.abs()));
    let scale = bf16::from_f32(largest / 448.0);
    for (channel, value) in values.iter().enumerate() {
        let bytes = encoded(layout.format, *value, scale);
        let offset = block + at.head * plane.head_bytes() + plane.element_index(token, channel) * bytes.len();
        page[offset..offset + bytes.len()].copy_from_slice(&bytes);
    }
    if layout.format == KvFormat::Fp8 {
        let offset = block + plane.scales_offset(at.head) + token * 2;
        page[offset..offset + 2].copy_from_slice(&scale.to_le_bytes());
    }
}

fn write_kv(rig: &mut Rig<'_>, layout: KvLayout) {
    let shapes = [(0, 5), (3, 1), (14, 40), (64, 64), (0, 0), (31, 1)];
    let world = World::new(rig, layout.clone(), &shapes);
    world.set_step(rig, |s| (s.start, s.rows));
    let (heads, width, layer) = (layout.planes[0].heads, layout.planes[0].width, layout.planes[0].layers - 1);
    let (key_offset, value_offset) = (5, 5 + heads * width + 3);
    let stride = value_offset + heads * width + 1;
    let rows = world.rows();
    let x = random_rows(rig, rows, stride);
    let mut want = rig.read(&world.cache.pages);
    let mut row = 0;
    for sequence in &world.sequences {
        for i in 0..sequence.rows {
            let position = sequence.start + i;
            let page = sequence.table[position / layout.page_tokens].page as usize * layout.page_bytes();
            for head in 0..heads {
                for (plane, offset) in [(0, key_offset), (1, value_offset)] {
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
    rig.run([Op::WriteKv(WriteKv { cache, step, layer, x, stride, key_offset, value_offset, rows, sequences })]);
    let got = rig.read(&world.cache.pages);
    let first = got.iter().zip(&want).position(|(g, w)| g != w);
    assert_eq!(first, None, "write_kv {}: first byte that differs", layout.id());
    assert_eq!(rig.read_words(&world.step.verdicts), [0; 6]);
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
    let (key_offset, value_offset, sequences) = (0, 32, 3);
    let write = WriteKv { cache, step, layer: 0, x: x.clone(), stride, key_offset, value_offset, rows, sequences };
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

/// Exports pages of one pool, imports them into another of any format.
fn hand_off(rig: &mut Rig<'_>, from: KvFormat, to: KvFormat) {
    let (source_layout, target_layout) = (KvLayout::grouped_query(2, 2, 32, 32, from), KvLayout::grouped_query(2, 2, 32, 32, to));
    let source = World::new(rig, source_layout.clone(), &[(0, 80)]);
    let target = World::new(rig, target_layout.clone(), &[(0, 80)]);
    source.set_step(rig, |s| (s.start, s.rows));
    let (rows, stride) = (80, 128);
    for layer in 0..2 {
        let x = random_rows(rig, rows, stride);
        let x = rig.floats(&x);
        let (cache, step) = (source.cache.clone(), source.step.clone());
        rig.run([Op::WriteKv(WriteKv { cache, step, layer, x, stride, key_offset: 0, value_offset: 64, rows, sequences: 1 })]);
    }
    let slots = 5;
    let staging = rig.empty(slots * source_layout.page_bytes());
    let verdicts = rig.words(&[0; 8]);
    let staged = |world: &World, i: usize| StagedPage {
        slot: [4, 0, 2][i],
        page: world.sequences[0].table[i].page,
        tag: world.sequences[0].table[i].tag,
        tokens: [32, 32, 16][i],
        verdict: i as u32,
        reserved: 0,
    };
    let pages: Vec<StagedPage> = (0..3).map(|i| staged(&source, i)).collect();
    let pages = rig.bytes(as_bytes(&pages));
    let (cache, count) = (source.cache.clone(), 3);
    rig.run([Op::ExportPages(ExportPages { cache, staging: staging.clone(), pages, verdicts: verdicts.clone(), count })]);
    let mut pages: Vec<StagedPage> = (0..3).map(|i| staged(&target, i)).collect();
    pages[1].tag ^= 1; // the second page has a new owner
    let pages = rig.bytes(as_bytes(&pages));
    let before = rig.read(&target.cache.pages);
    let (cache, from_layout) = (target.cache.clone(), source_layout.clone());
    rig.run([Op::ImportPages(ImportPages { cache, from: from_layout, staging, pages, verdicts: verdicts.clone(), count })]);
    assert_eq!(rig.read_words(&verdicts), [0, 1, 0, 0, 0, 0, 0, 0]);
    let got = rig.read(&target.cache.pages);
    let mut want = before;
    let source_pages = rig.read(&source.cache.pages);
    let size = target_layout.page_bytes();
    for i in [0, 2] {
        let from_page = &source_pages[source.sequences[0].table[i].page as usize * size_of_page(&source_layout)..];
        let to_page = target.sequences[0].table[i].page as usize * size;
        let tokens = if i == 2 { 16 } else { 32 };
        convert(from_page, &source_layout, &mut want[to_page..][..size], &target_layout, tokens);
    }
    let first = got.iter().zip(&want).position(|(g, w)| g != w);
    assert_eq!(first, None, "import {from} as {to}: first byte that differs");
}

fn size_of_page(layout: &KvLayout) -> usize {
    layout.page_bytes()
}

fn convert(from: &[u8], from_layout: &KvLayout, to: &mut [u8], to_layout: &KvLayout, tokens: usize) {
    if from_layout == to_layout && tokens == to_layout.page_tokens {
        to.copy_from_slice(&from[..to.len()]);
        return;
    }
    for (plane, p) in from_layout.planes.iter().enumerate() {
        for layer in 0..p.layers {
            for head in 0..p.heads {
                for token in 0..tokens {
                    let block = &from[from_layout.block_offset(plane, layer)..];
                    let value = |channel| decode(block, p, Slot { plane, layer, head, channel }, token) as f32;
                    let values: Vec<f32> = (0..p.width).map(value).collect();
                    put(to, to_layout, Slot { plane, layer, head, channel: 0 }, token, &values);
                }
            }
        }
    }
}
