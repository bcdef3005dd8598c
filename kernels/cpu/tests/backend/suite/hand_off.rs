//! The hand-off's copies: pages of one pool exported, then imported into another of any format.

use millrace_ops::{ExportPages, ImportPages, KvLayout, Op, PlaneColumns, StagedPage, StaticScales, WriteKv, as_bytes};

use super::cache::{FORMATS, latent_layout, put, random_rows};
use super::{Rig, Slot, World, decode};

pub(crate) fn suite(rig: &mut Rig<'_>) {
    for from in FORMATS {
        for to in FORMATS {
            let layout = |format| KvLayout::grouped_query(2, 2, 32, 32, format);
            hand_off(rig, layout(from), layout(to));
            let layout = |format| latent_layout(48, Some(24), format);
            hand_off(rig, layout(from), layout(to));
            // Scales of the target are its own: the same codes would be other numbers.
            let scales = StaticScales::new(&[1.0, 0.125, 0.029]);
            hand_off(rig, layout(from), KvLayout { latent_scales: scales, ..layout(to) });
        }
    }
}

/// Two whole pages and a half one, of which the second has another owner by the time it is imported.
fn hand_off(rig: &mut Rig<'_>, source_layout: KvLayout, target_layout: KvLayout) {
    let page_tokens = source_layout.page_tokens;
    let rows = page_tokens * 5 / 2;
    let source = World::new(rig, source_layout.clone(), &[(0, rows)]);
    let target = World::new(rig, target_layout.clone(), &[(0, rows)]);
    source.set_step(rig, |s| (s.start, s.rows));
    write_all(rig, &source, rows);
    let slots = 5;
    let staging = rig.empty(slots * source_layout.page_bytes());
    let verdicts = rig.words(&[0; 8]);
    let staged = |world: &World, i: usize| StagedPage {
        slot: [4, 0, 2][i],
        page: world.sequences[0].table[i].page,
        tag: world.sequences[0].table[i].tag,
        tokens: ([2, 2, 1][i] * page_tokens / 2) as u32,
        verdict: i as u32,
        reserved: 0,
    };
    let pages: Vec<StagedPage> = (0..3).map(|i| staged(&source, i)).collect();
    let pages = rig.bytes(as_bytes(&pages));
    let (cache, count) = (source.cache.clone(), 3);
    rig.run([Op::ExportPages(ExportPages { cache, staging: staging.clone(), pages, verdicts: verdicts.clone(), count })]);
    let mut pages: Vec<StagedPage> = (0..3).map(|i| staged(&target, i)).collect();
    // The second page has a new owner.
    let stale = cfg!(feature = "tags");
    pages[1].tag ^= u64::from(stale);
    let pages = rig.bytes(as_bytes(&pages));
    let before = rig.read(&target.cache.pages);
    let (cache, from_layout) = (target.cache.clone(), source_layout.clone());
    rig.run([Op::ImportPages(ImportPages { cache, from: from_layout, staging, pages, verdicts: verdicts.clone(), count })]);
    assert_eq!(rig.read_words(&verdicts), [0, u32::from(stale), 0, 0, 0, 0, 0, 0]);
    let got = rig.read(&target.cache.pages);
    let mut want = before;
    let source_pages = rig.read(&source.cache.pages);
    let size = target_layout.page_bytes();
    for i in [0, 1, 2].into_iter().filter(|&i| i != 1 || !stale) {
        let from_page = &source_pages[source.sequences[0].table[i].page as usize * source_layout.page_bytes()..];
        let to_page = target.sequences[0].table[i].page as usize * size;
        let tokens = if i == 2 { page_tokens / 2 } else { page_tokens };
        convert(from_page, &source_layout, &mut want[to_page..][..size], &target_layout, tokens);
    }
    let first = got.iter().zip(&want).position(|(g, w)| g != w);
    assert_eq!(first, None, "import {} as {}: first byte that differs", source_layout.id(), target_layout.id());
}

/// Fills every layer of every plane.
fn write_all(rig: &mut Rig<'_>, world: &World, rows: usize) {
    for (plane, p) in world.cache.layout.planes.clone().into_iter().enumerate() {
        let stride = p.heads * p.width;
        for layer in 0..p.layers {
            let x = random_rows(rig, rows, stride);
            let x = rig.floats(&x);
            let (cache, step) = (world.cache.clone(), world.step.clone());
            let planes = vec![PlaneColumns { plane, layer, offset: 0 }];
            rig.run([Op::WriteKv(WriteKv { cache, step, x, stride, planes, rows, sequences: 1 })]);
        }
    }
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
                    let value = |channel| decode(block, from_layout, Slot { plane, layer, head, channel }, token) as f32;
                    let values: Vec<f32> = (0..p.width).map(value).collect();
                    put(to, to_layout, Slot { plane, layer, head, channel: 0 }, token, &values);
                }
            }
        }
    }
}
