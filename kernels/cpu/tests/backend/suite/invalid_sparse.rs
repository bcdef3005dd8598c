//! What AttendLatent and SelectTokens refuse: each must end its submission with `Invalid`.

use millrace_ops::{
    AttendLatent, Buffer, KvCache, KvFormat, KvLayout, Op, PlaneShape, Segment, SelectTokens, Selection, as_bytes,
};

use super::invalid::refused;
use super::{Rig, World, upload};

/// Operations that fit, over two sequences of four rows: (0..4) and (12..16).
struct Fitting {
    world: World,
    attend: AttendLatent,
    select: SelectTokens,
    /// Too small for anything.
    small: Buffer,
}

pub(crate) fn suite(rig: &mut Rig<'_>) {
    let fitting = fitting(rig);
    rig.run([Op::SelectTokens(fitting.select.clone()), Op::AttendLatent(fitting.attend.clone())]);
    attends(rig, &fitting);
    selects(rig, &fitting);
    inputs(rig, &fitting);
    lines(rig, &fitting);
}

fn fitting(rig: &mut Rig<'_>) -> Fitting {
    let (heads, latent, rotary, keys, limit, rows) = (3, 24, 8, 16, 6, 8);
    let shape = |width| PlaneShape { layers: 1, width };
    let layout = KvLayout::latent(shape(latent + rotary), Some(shape(keys)), 16, KvFormat::Bf16);
    let world = World::new(rig, layout, &[(0, 4), (12, 4)]);
    world.set_step(rig, |s| (s.start, s.rows));
    let selection = Selection { tokens: rig.empty(rows * limit * 4), limit };
    let attend = AttendLatent {
        cache: world.cache.clone(),
        step: world.step.clone(),
        layer: 0,
        latent_queries: rig.empty(rows * heads * latent * 4),
        rotary_queries: rig.empty(rows * 40 * 4),
        stride: 40,
        rotary_offset: 0,
        rotary_step: 16,
        heads,
        latent,
        rotary,
        scale: 1.0,
        selection: Some(selection.clone()),
        out: rig.empty(rows * heads * latent * 4),
        rows,
        sequences: 2,
    };
    let select = SelectTokens {
        cache: world.cache.clone(),
        step: world.step.clone(),
        plane: 1,
        layer: 0,
        queries: rig.empty(rows * heads * keys * 4),
        head_weights: rig.empty(rows * heads * 4),
        heads,
        selection,
        rows,
        sequences: 2,
    };
    Fitting { world, attend, select, small: rig.empty(16) }
}

/// The cache as another layout would have it; its pages are small enough for the buffer.
fn as_layout(cache: &KvCache, layout: KvLayout) -> KvCache {
    KvCache { layout, page_count: 1, ..cache.clone() }
}

fn attends(rig: &mut Rig<'_>, Fitting { world, attend: fine, small, .. }: &Fitting) {
    let few = || small.clone();
    let narrow = Selection { tokens: few(), limit: 6 };
    let none = Selection { tokens: fine.out.clone(), limit: 0 };
    let alias = Selection { tokens: fine.out.clone(), limit: 6 };
    let keys_first = as_layout(&world.cache, KvLayout::grouped_query(1, 1, 32, 16, KvFormat::Bf16));
    let mut two_heads = world.cache.layout.clone();
    two_heads.planes[0].heads = 2;
    for (what, op) in [
        ("layer", AttendLatent { layer: 1, ..fine.clone() }),
        ("heads", AttendLatent { heads: 0, ..fine.clone() }),
        ("latent", AttendLatent { latent: 23, ..fine.clone() }),
        ("no latent", AttendLatent { latent: 0, rotary: 32, ..fine.clone() }),
        ("latent that overflows", AttendLatent { latent: usize::MAX, rotary: 33, ..fine.clone() }),
        ("rotary columns", AttendLatent { rotary_offset: 1, ..fine.clone() }),
        ("rotary steps", AttendLatent { rotary_step: 17, ..fine.clone() }),
        ("steps that overflow", AttendLatent { rotary_step: usize::MAX, ..fine.clone() }),
        ("rows", AttendLatent { rows: 9, ..fine.clone() }),
        ("sequences", AttendLatent { sequences: 3, ..fine.clone() }),
        ("latent queries", AttendLatent { latent_queries: few(), ..fine.clone() }),
        ("rotary queries", AttendLatent { rotary_queries: few(), ..fine.clone() }),
        ("out", AttendLatent { out: few(), ..fine.clone() }),
        ("out is an input", AttendLatent { out: fine.latent_queries.clone(), ..fine.clone() }),
        ("a plane of keys", AttendLatent { cache: keys_first, ..fine.clone() }),
        ("latents of two heads", AttendLatent { cache: as_layout(&world.cache, two_heads), ..fine.clone() }),
        ("selection", AttendLatent { selection: Some(narrow), ..fine.clone() }),
        ("a selection of nothing", AttendLatent { selection: Some(none), ..fine.clone() }),
        ("out is the selection", AttendLatent { selection: Some(alias), ..fine.clone() }),
    ] {
        refused(rig, what, [Op::AttendLatent(op)]);
    }
}

fn selects(rig: &mut Rig<'_>, Fitting { select: fine, small, .. }: &Fitting) {
    let few = || small.clone();
    let narrow = Selection { tokens: few(), limit: 6 };
    let none = Selection { limit: 0, ..fine.selection.clone() };
    let long = Selection { limit: usize::MAX, ..fine.selection.clone() };
    for (what, op) in [
        ("a plane of latents", SelectTokens { plane: 0, ..fine.clone() }),
        ("plane", SelectTokens { plane: 2, ..fine.clone() }),
        ("layer", SelectTokens { layer: 1, ..fine.clone() }),
        ("heads", SelectTokens { heads: 0, ..fine.clone() }),
        ("more heads", SelectTokens { heads: 4, ..fine.clone() }),
        ("rows", SelectTokens { rows: 9, ..fine.clone() }),
        ("sequences", SelectTokens { sequences: 3, ..fine.clone() }),
        ("queries", SelectTokens { queries: few(), ..fine.clone() }),
        ("head weights", SelectTokens { head_weights: few(), ..fine.clone() }),
        ("selection", SelectTokens { selection: narrow, ..fine.clone() }),
        ("a selection of nothing", SelectTokens { selection: none, ..fine.clone() }),
        ("a limit that overflows", SelectTokens { selection: long, ..fine.clone() }),
        ("an input is the selection", SelectTokens { queries: fine.selection.tokens.clone(), heads: 1, ..fine.clone() }),
    ] {
        refused(rig, what, [Op::SelectTokens(op)]);
    }
}

fn inputs(rig: &mut Rig<'_>, Fitting { world, attend, select, .. }: &Fitting) {
    let segment = |first_row, rows, start, pages| Segment { first_row, rows, start, pages };
    for (what, second) in [
        ("overlap", segment(3, 2, 0, 1)),
        ("too many rows", segment(4, 5, 0, 1)),
        ("positions behind the table", segment(4, 4, 14, 1)),
        ("pages behind the stride", segment(4, 4, 0, 1000)),
        ("wrapping", segment(u32::MAX, 2, u32::MAX, 1)),
    ] {
        let segments = || upload(&world.step.segments, as_bytes(&[segment(0, 4, 0, 1), second]));
        refused(rig, what, [segments(), Op::AttendLatent(attend.clone())]);
        refused(rig, what, [segments(), Op::SelectTokens(select.clone())]);
    }
    let mut lost = World { cache: world.cache.clone(), step: world.step.clone(), sequences: world.sequences.clone() };
    lost.sequences[1].table[0].page = 99;
    lost.set_step(rig, |s| (s.start, s.rows));
    refused(rig, "page outside the pool", [Op::AttendLatent(AttendLatent { selection: None, ..attend.clone() })]);
    refused(rig, "page outside the pool", [Op::SelectTokens(select.clone())]);
    world.set_step(rig, |s| (s.start, s.rows));
}

/// Lines that no selection writes. The last row is at position 15.
fn lines(rig: &mut Rig<'_>, Fitting { attend, .. }: &Fitting) {
    let Some(Selection { tokens, limit }) = attend.selection.clone() else { unreachable!("made with one") };
    let fine: Vec<u32> = (0..8).flat_map(|_| 0..limit as u32).collect();
    for (what, last) in [
        ("a later token", [0, 1, 2, 3, 4, 16]),
        ("no token at all", [0, 1, 2, 3, 4, u32::MAX]),
        ("a token twice", [0, 1, 2, 2, 4, 5]),
        ("tokens out of order", [0, 1, 3, 2, 4, 5]),
    ] {
        let mut words = fine.clone();
        words[7 * limit..].copy_from_slice(&last);
        refused(rig, what, [upload(&tokens, as_bytes(&words)), Op::AttendLatent(attend.clone())]);
    }
    rig.run([upload(&tokens, as_bytes(&fine)), Op::AttendLatent(attend.clone())]);
}
