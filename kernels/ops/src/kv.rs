//! Where a token's keys and values lie in a page. Knows sizes and offsets; not who owns a page, nor any tag.
//!
//! One page holds `page_tokens` tokens of every plane and layer:
//!
//! ```text
//! page  = [plane 0][plane 1]..                    one PageId and one tag cover them all
//! plane = [layer 0][layer 1]..
//! layer = [head 0][head 1].. [scales]             scales: BF16 [heads][page_tokens], FP8 with a scale per token only
//! head  = keys:   [width][page_tokens]            token-minor, so that 16 tokens of one channel are one vector
//!         others: [page_tokens][width]            token-major, so that a token's elements are one run
//! ```
//!
//! FP8 comes with one of two scale modes: keys and values have a scale per token and head; a latent has one scale per layer that
//! never changes ([`StaticScales`]), so that it takes exactly half the bytes of BF16. Index keys stay in BF16.

use std::sync::Arc;

use crate::KvFormat;

/// What a plane holds, which settles the order of elements inside a head's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlaneKind {
    Keys,
    Values,
    /// Compressed keys and values of a token and its rotary key (MLA), one head.
    Latent,
    /// Keys of the indexer of sparse attention, one head; full layers only.
    IndexKeys,
}

impl PlaneKind {
    /// Format that this kind has in pages of `format`. Index keys never go below BF16: they choose which tokens are attended
    /// to, and e4m3 changes that choice (on the fixtures as much as e4m3 latents change the result) to save a twentieth of
    /// the page.
    pub fn stored_in(self, format: KvFormat) -> KvFormat {
        match (self, format) {
            (Self::IndexKeys, KvFormat::Fp8) => KvFormat::Bf16,
            _ => format,
        }
    }
}

/// Scales of the latents of each layer; 1 where nothing is said of a layer. Part of the layout: pages with other scales hold
/// other numbers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct StaticScales(Arc<[u32]>);

impl StaticScales {
    /// One finite scale above 0 per layer; what is not becomes 1.
    pub fn new(scales: &[f32]) -> Self {
        Self(scales.iter().map(|&scale| if scale.is_normal() && scale > 0.0 { scale } else { 1.0 }.to_bits()).collect())
    }

    /// The scale of a layer: value = code * scale.
    pub fn of(&self, layer: usize) -> f32 {
        self.0.get(layer).map_or(1.0, |&bits| f32::from_bits(bits))
    }

    /// Whether some layer has another scale than 1.
    pub fn calibrated(&self) -> bool {
        self.0.iter().any(|&bits| bits != 1.0f32.to_bits())
    }
}

/// One plane: layers, heads and elements per token of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlaneLayout {
    pub kind: PlaneKind,
    pub layers: usize,
    pub heads: usize,
    /// Elements per token and head.
    pub width: usize,
    pub page_tokens: usize,
    pub format: KvFormat,
}

impl PlaneLayout {
    /// Bytes of one head's block, scales not included.
    pub fn head_bytes(&self) -> usize {
        self.width * self.page_tokens * self.format.element_bytes()
    }

    /// Bytes of the scale that goes with each token and head (0 where there is none).
    pub fn scale_bytes(&self) -> usize {
        match (self.kind, self.format) {
            (PlaneKind::Latent, _) | (_, KvFormat::F32 | KvFormat::Bf16) => 0,
            (PlaneKind::Keys | PlaneKind::Values | PlaneKind::IndexKeys, KvFormat::Fp8) => 2,
        }
    }

    /// Offset of a head's scales (BF16, one per token) inside its layer's block.
    pub fn scales_offset(&self, head: usize) -> usize {
        self.heads * self.head_bytes() + head * self.page_tokens * self.scale_bytes()
    }

    /// Bytes per token over all layers, scales included, page padding not.
    pub fn token_bytes(&self) -> usize {
        self.layers * self.heads * (self.width * self.format.element_bytes() + self.scale_bytes())
    }

    /// Bytes of one layer's block, rounded up to a cache line.
    pub fn layer_bytes(&self) -> usize {
        self.scales_offset(self.heads).next_multiple_of(64)
    }

    /// Bytes of this plane in one page.
    pub fn plane_bytes(&self) -> usize {
        self.layers * self.layer_bytes()
    }

    /// Element offset of (token, channel) inside a head's block.
    pub fn element_index(&self, token: usize, channel: usize) -> usize {
        match self.kind {
            PlaneKind::Keys => channel * self.page_tokens + token,
            PlaneKind::Values | PlaneKind::Latent | PlaneKind::IndexKeys => token * self.width + channel,
        }
    }
}

/// The layout of a pool's pages: all planes, in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KvLayout {
    pub planes: Vec<PlaneLayout>,
    pub page_tokens: usize,
    pub format: KvFormat,
    /// Of the latent plane, in FP8.
    pub latent_scales: StaticScales,
}

/// Shape of one kind of plane: layers that have it, elements per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaneShape {
    pub layers: usize,
    pub width: usize,
}

impl KvLayout {
    /// Keys and values of grouped-query attention; `page_tokens` is a multiple of 16.
    pub fn grouped_query(layers: usize, heads: usize, width: usize, page_tokens: usize, format: KvFormat) -> Self {
        let plane = |kind| PlaneLayout { kind, layers, heads, width, page_tokens, format };
        let planes = vec![plane(PlaneKind::Keys), plane(PlaneKind::Values)];
        Self { planes, page_tokens, format, latent_scales: StaticScales::default() }
    }

    /// Latents of MLA, and index keys where attention is sparse; `page_tokens` is a multiple of 16.
    pub fn latent(latent: PlaneShape, index_keys: Option<PlaneShape>, page_tokens: usize, format: KvFormat) -> Self {
        let plane = |kind, shape: PlaneShape| {
            let PlaneShape { layers, width } = shape;
            PlaneLayout { kind, layers, heads: 1, width, page_tokens, format: kind.stored_in(format) }
        };
        let mut planes = vec![plane(PlaneKind::Latent, latent)];
        planes.extend(index_keys.map(|shape| plane(PlaneKind::IndexKeys, shape)));
        Self { planes, page_tokens, format, latent_scales: StaticScales::default() }
    }

    /// Whether every plane has the layout's page size and the format that its kind has in it.
    pub fn is_consistent(&self) -> bool {
        let fits = |p: &PlaneLayout| p.page_tokens == self.page_tokens && p.format == p.kind.stored_in(self.format);
        self.page_tokens > 0 && self.planes.iter().all(fits)
    }

    /// Bytes of one page over all planes.
    pub fn page_bytes(&self) -> usize {
        self.planes.iter().map(PlaneLayout::plane_bytes).sum()
    }

    /// Offset of a plane's layer block inside a page.
    pub fn block_offset(&self, plane: usize, layer: usize) -> usize {
        let before: usize = self.planes[..plane].iter().map(PlaneLayout::plane_bytes).sum();
        before + layer * self.planes[plane].layer_bytes()
    }

    /// Bytes of KV per token, scales included, page padding not.
    pub fn token_bytes(&self) -> usize {
        self.planes.iter().map(PlaneLayout::token_bytes).sum()
    }

    /// The same planes in another format.
    pub fn in_format(&self, format: KvFormat) -> Self {
        let mut layout = self.clone();
        layout.format = format;
        layout.planes.iter_mut().for_each(|plane| plane.format = plane.kind.stored_in(format));
        layout
    }

    /// How FP8 codes are scaled where their scales are not in the page: equal names, equal numbers.
    pub fn scale_mode(&self) -> String {
        if !self.latent_scales.calibrated() {
            return "plain".to_owned();
        }
        let bits: Vec<String> = self.latent_scales.0.iter().map(|bits| format!("{bits:08x}")).collect();
        format!("layers-{}", bits.join("-"))
    }

    /// Whether pages of the two hold the same numbers in the same places but for their format.
    pub fn agrees_but_for_format(&self, other: &Self) -> bool {
        let reformatted = |layout: &Self| {
            let mut layout = layout.clone();
            layout.format = KvFormat::F32;
            layout.planes.iter_mut().for_each(|plane| plane.format = KvFormat::F32);
            layout
        };
        reformatted(self) == reformatted(other)
    }

    /// A name that two sides of a hand-off compare: everything that changes where or how a number is stored.
    pub fn id(&self) -> String {
        let plane = |p: &PlaneLayout| {
            let scales = match (p.kind, p.format) {
                (_, KvFormat::F32 | KvFormat::Bf16) => "",
                (PlaneKind::Latent, KvFormat::Fp8) => ":scale-layer",
                (_, KvFormat::Fp8) => ":scale-token-head",
            };
            format!("{:?}:{}x{}x{}:{}{scales}", p.kind, p.layers, p.heads, p.width, p.format).to_lowercase()
        };
        let planes: Vec<String> = self.planes.iter().map(plane).collect();
        let mut id = format!("{}/p{}", planes.join("+"), self.page_tokens);
        if self.format == KvFormat::Fp8 && self.latent_scales.calibrated() {
            let bits: Vec<String> = self.latent_scales.0.iter().map(|bits| format!("{bits:08x}")).collect();
            id.push_str(&format!("/scales-{}", bits.join("-")));
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fp8_pages_hold_a_scale_per_token_and_head() {
        let bf16 = KvLayout::grouped_query(30, 3, 64, 32, KvFormat::Bf16);
        let fp8 = KvLayout::grouped_query(30, 3, 64, 32, KvFormat::Fp8);
        assert_eq!(bf16.token_bytes(), 30 * 2 * 3 * 128);
        assert_eq!(fp8.token_bytes(), 30 * 2 * 3 * 66);
        assert_eq!(fp8.page_bytes(), 2 * 30 * (3 * 64 * 32 + 3 * 32 * 2));
        assert_eq!(fp8.block_offset(1, 2), 30 * (6144 + 192) + 2 * (6144 + 192));
        assert_ne!(bf16.id(), fp8.id());
    }

    #[test]
    fn elements_of_a_head_do_not_overlap() {
        let layout = KvLayout::grouped_query(1, 1, 8, 16, KvFormat::F32);
        for plane in &layout.planes {
            let mut seen = std::collections::BTreeSet::new();
            for token in 0..16 {
                for channel in 0..8 {
                    assert!(seen.insert(plane.element_index(token, channel)));
                }
            }
            assert_eq!(seen.last(), Some(&(16 * 8 - 1)));
        }
    }

    #[test]
    fn a_latent_in_fp8_takes_half_of_bf16_and_index_keys_stay() {
        let layout = |format| {
            let index_keys = Some(PlaneShape { layers: 21, width: 128 });
            KvLayout::latent(PlaneShape { layers: 78, width: 576 }, index_keys, 64, format)
        };
        let (bf16, fp8) = (layout(KvFormat::Bf16), layout(KvFormat::Fp8));
        assert_eq!(bf16.planes[0].token_bytes(), 78 * 1152);
        assert_eq!(fp8.planes[0].token_bytes(), 78 * 576);
        assert_eq!((bf16.planes[1].token_bytes(), fp8.planes[1].token_bytes()), (21 * 256, 21 * 256));
        assert!(bf16.is_consistent() && fp8.is_consistent());
        let kimi = KvLayout::latent(PlaneShape { layers: 61, width: 576 }, None, 64, KvFormat::Fp8);
        assert_eq!((kimi.token_bytes(), kimi.page_bytes()), (35_136, 64 * 35_136));
    }

    #[test]
    fn static_scales_are_part_of_the_layouts_name_in_fp8() {
        let layout = |format, scales: &[f32]| {
            let plain = KvLayout::latent(PlaneShape { layers: 2, width: 8 }, None, 16, format);
            KvLayout { latent_scales: StaticScales::new(scales), ..plain }
        };
        assert_eq!(layout(KvFormat::Fp8, &[]).id(), layout(KvFormat::Fp8, &[1.0, f32::NAN]).id());
        assert_ne!(layout(KvFormat::Fp8, &[]).id(), layout(KvFormat::Fp8, &[1.0, 0.5]).id());
        assert_eq!(layout(KvFormat::Bf16, &[]).id(), layout(KvFormat::Bf16, &[1.0, 0.5]).id());
        assert_eq!(layout(KvFormat::Fp8, &[2.0]).latent_scales.of(1), 1.0);
    }
}
