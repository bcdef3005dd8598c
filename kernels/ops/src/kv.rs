//! Where a token's keys and values lie in a page. Knows sizes and offsets; not who owns a page, nor any tag.
//!
//! One page holds `page_tokens` tokens of every plane and layer:
//!
//! ```text
//! page  = [plane 0][plane 1]..                    one PageId and one tag cover them all
//! plane = [layer 0][layer 1]..
//! layer = [head 0][head 1].. [scales]             scales: BF16 [heads][page_tokens], FP8 only
//! head  = keys:   [width][page_tokens]            token-minor, so that 16 tokens of one channel are one vector
//!         values: [page_tokens][width]            token-major, so that a token's value is one run
//! ```

use crate::KvFormat;

/// What a plane holds, which settles the order of elements inside a head's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlaneKind {
    Keys,
    Values,
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

    /// Offset of a head's scales (BF16, one per token) inside its layer's block.
    pub fn scales_offset(&self, head: usize) -> usize {
        self.heads * self.head_bytes() + head * self.page_tokens * self.format.scale_bytes()
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
            PlaneKind::Values => token * self.width + channel,
        }
    }
}

/// The layout of a pool's pages: all planes, in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KvLayout {
    pub planes: Vec<PlaneLayout>,
    pub page_tokens: usize,
    pub format: KvFormat,
}

impl KvLayout {
    /// Keys and values of grouped-query attention; `page_tokens` is a multiple of 16.
    pub fn grouped_query(layers: usize, heads: usize, width: usize, page_tokens: usize, format: KvFormat) -> Self {
        let plane = |kind| PlaneLayout { kind, layers, heads, width, page_tokens, format };
        Self { planes: vec![plane(PlaneKind::Keys), plane(PlaneKind::Values)], page_tokens, format }
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
        self.planes.iter().map(|p| p.layers * p.heads * (p.width * p.format.element_bytes() + p.format.scale_bytes())).sum()
    }

    /// A name that two sides of a hand-off compare: everything that changes where or how a number is stored.
    pub fn id(&self) -> String {
        let plane = |p: &PlaneLayout| format!("{:?}:{}x{}x{}", p.kind, p.layers, p.heads, p.width).to_lowercase();
        let planes: Vec<String> = self.planes.iter().map(plane).collect();
        let scales = if self.format == KvFormat::Fp8 { "/scale-token-head" } else { "" };
        format!("{}/p{}/{}{scales}", planes.join("+"), self.page_tokens, self.format)
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
}
