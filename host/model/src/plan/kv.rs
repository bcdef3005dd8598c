//! Bytes of KV per token and page, by plane, and the part of them that a GPU of a tensor-parallel group holds.
//! Knows layouts; not weights, nor how much memory there is.

use std::fmt;
use std::str::FromStr;

use millrace_ops::{KvFormat, KvLayout, PlaneKind, PlaneLayout};

use super::PlanError;
use super::text::{counted, shown, thousands};
use crate::spec::{AttentionSpec, GroupedQuerySpec, LatentSpec, ModelSpec};

/// Formats of KV that a plan counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlanKv {
    Bf16,
    /// e4m3. Keys and values have a BF16 scale per token and head in the page; a latent has one scale per layer that is not in
    /// pages, its rotary part included. Index keys stay in BF16.
    Fp8,
    /// 656 bytes per latent: 512 e4m3, four f32 scales and 64 rotary elements in BF16; index keys have an f32 scale per 128.
    /// What sparse attention of SGLang and vLLM (`fp8_ds_mla`) holds; Millrace holds [`PlanKv::Fp8`].
    Fp8Of656,
}

/// Elements of the latents that the 656-byte layout is made for.
const LATENT_OF_656: (usize, usize) = (512, 64);
const SCALED_TOGETHER: u64 = 128;

/// One plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaneBytes {
    /// `keys`, `values`, `latents` or `index_keys`.
    pub plane: &'static str,
    /// Of all layers.
    pub bytes_per_token: u64,
    /// `61 layers x 576 x 1 B`.
    pub formula: String,
}

/// How a token's KV lies in the GPUs of a tensor-parallel group. Every GPU holds its part of the same tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvShare {
    /// Every head reads the whole latent, so each GPU holds all of it.
    Replicated,
    /// Each GPU holds so many of the KV heads.
    Heads { per_gpu: usize, of: usize },
}

/// A token's and a page's KV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvBytes {
    pub format: PlanKv,
    /// Of a whole token.
    pub planes: Vec<PlaneBytes>,
    pub share: KvShare,
    /// What one GPU holds of a token.
    pub bytes_per_token_and_gpu: u64,
    pub page_tokens: u64,
    /// What one GPU holds of a page, padding included.
    pub page_bytes_per_gpu: u64,
}

impl PlanKv {
    pub const ALL: [Self; 3] = [Self::Bf16, Self::Fp8, Self::Fp8Of656];

    /// Whether a model's KV can be held so.
    ///
    /// # Errors
    /// [`PlanError::KvFormat`] for the 656-byte layout and a model without latents of 512 + 64 elements.
    pub fn check(self, spec: &ModelSpec) -> Result<(), PlanError> {
        let has = match spec.attention {
            AttentionSpec::Latent(latent) => {
                if (latent.latent, latent.rotary) == LATENT_OF_656 || self != Self::Fp8Of656 {
                    return Ok(());
                }
                format!("latents of {} + {}", latent.latent, latent.rotary)
            }
            AttentionSpec::GroupedQuery(_) if self != Self::Fp8Of656 => return Ok(()),
            AttentionSpec::GroupedQuery(attention) => format!("{} and no latents", counted(attention.kv_heads as u64, "KV head")),
        };
        Err(PlanError::KvFormat { format: self, has })
    }
}

impl KvBytes {
    /// `page_tokens` is a multiple of 16.
    ///
    /// # Errors
    /// As [`PlanKv::check`].
    pub fn of(spec: &ModelSpec, format: PlanKv, gpus: usize, page_tokens: usize) -> Result<Self, PlanError> {
        format.check(spec)?;
        let (share, per_gpu) = match spec.attention {
            AttentionSpec::Latent(_) => (KvShare::Replicated, spec.clone()),
            AttentionSpec::GroupedQuery(attention) => {
                let kv_heads = heads_per_gpu(attention.kv_heads, gpus);
                let part = AttentionSpec::GroupedQuery(GroupedQuerySpec { kv_heads, ..attention });
                (KvShare::Heads { per_gpu: kv_heads, of: attention.kv_heads }, ModelSpec { attention: part, ..spec.clone() })
            }
        };
        let (layout, layout_per_gpu) = (layout(spec, format, page_tokens), layout(&per_gpu, format, page_tokens));
        let planes: Vec<PlaneBytes> = match (format, spec.attention) {
            (PlanKv::Fp8Of656, AttentionSpec::Latent(latent)) => planes_of_656(spec, &latent),
            _ => layout.planes.iter().map(plane).collect(),
        };
        let (bytes_per_token_and_gpu, page_bytes_per_gpu) = match format {
            PlanKv::Fp8Of656 => {
                let token = planes.iter().map(|plane| plane.bytes_per_token).sum();
                (token, token * page_tokens as u64)
            }
            PlanKv::Bf16 | PlanKv::Fp8 => (layout_per_gpu.token_bytes() as u64, layout_per_gpu.page_bytes() as u64),
        };
        let page_tokens = page_tokens as u64;
        Ok(Self { format, planes, share, bytes_per_token_and_gpu, page_tokens, page_bytes_per_gpu })
    }

    /// Of a whole token.
    pub fn bytes_per_token(&self) -> u64 {
        self.planes.iter().map(|plane| plane.bytes_per_token).sum()
    }

    /// What a GPU holds of a token, and why.
    pub fn share_formula(&self) -> String {
        let (whole, part) = (thousands(self.bytes_per_token()), thousands(self.bytes_per_token_and_gpu));
        match self.share {
            KvShare::Replicated => format!("{part} B: latents are on every GPU whole"),
            KvShare::Heads { per_gpu, of } => format!("{part} B = {whole} B x {per_gpu} of {}", counted(of as u64, "KV head")),
        }
    }

    /// What a GPU holds of a page.
    pub fn page_formula(&self) -> String {
        let plain = self.page_tokens * self.bytes_per_token_and_gpu;
        let padding = match self.page_bytes_per_gpu.saturating_sub(plain) {
            0 => String::new(),
            bytes => format!(" + {} B of padding", thousands(bytes)),
        };
        let (tokens, token) = (counted(self.page_tokens, "token"), thousands(self.bytes_per_token_and_gpu));
        format!("{tokens} x {token} B{padding} = {} B", thousands(self.page_bytes_per_gpu))
    }
}

/// Heads divide over the GPUs where the number of either divides the other; else every GPU holds them all.
fn heads_per_gpu(kv_heads: usize, gpus: usize) -> usize {
    if kv_heads.is_multiple_of(gpus) {
        kv_heads / gpus.max(1)
    } else if gpus.is_multiple_of(kv_heads) {
        1
    } else {
        kv_heads
    }
}

fn layout(spec: &ModelSpec, format: PlanKv, page_tokens: usize) -> KvLayout {
    let format = match format {
        PlanKv::Bf16 => KvFormat::Bf16,
        PlanKv::Fp8 | PlanKv::Fp8Of656 => KvFormat::Fp8,
    };
    spec.kv_layout(format, page_tokens)
}

fn plane(layout: &PlaneLayout) -> PlaneBytes {
    let plane = match layout.kind {
        PlaneKind::Keys => "keys",
        PlaneKind::Values => "values",
        PlaneKind::Latent => "latents",
        PlaneKind::IndexKeys => "index_keys",
    };
    let (layers, heads, width) = (counted(layout.layers as u64, "layer"), layout.heads, layout.width);
    let heads = if heads == 1 { String::new() } else { format!("{} x ", counted(heads as u64, "head")) };
    let element = layout.format.element_bytes();
    let formula = match layout.scale_bytes() {
        0 => format!("{layers} x {heads}{width} x {element} B"),
        scale => format!("{layers} x {heads}({width} x {element} B + {scale} B scale)"),
    };
    PlaneBytes { plane, bytes_per_token: layout.token_bytes() as u64, formula }
}

fn planes_of_656(spec: &ModelSpec, latent: &LatentSpec) -> Vec<PlaneBytes> {
    let (layers, width, rotary) = (spec.layers.len() as u64, latent.latent as u64, latent.rotary as u64);
    let scales = width.div_ceil(SCALED_TOGETHER);
    let (these, of) = (counted(layers, "layer"), counted(scales, "scale"));
    let formula = format!("{these} x ({width} x 1 B + {of} x 4 B + {rotary} x 2 B)");
    let mut planes = vec![PlaneBytes { plane: "latents", bytes_per_token: layers * (width + scales * 4 + rotary * 2), formula }];
    if let Some(indexer) = latent.indexer {
        let (layers, width) = (spec.full_layers() as u64, indexer.width as u64);
        let scales = width.div_ceil(SCALED_TOGETHER);
        let (these, of) = (counted(layers, "layer"), counted(scales, "scale"));
        let formula = format!("{these} x ({width} x 1 B + {of} x 4 B)");
        planes.push(PlaneBytes { plane: "index_keys", bytes_per_token: layers * (width + scales * 4), formula });
    }
    planes
}

impl fmt::Display for PlanKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Fp8Of656 => "fp8-656",
        })
    }
}

impl FromStr for PlanKv {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|format| format.to_string() == text);
        found.ok_or_else(|| {
            let shown = shown(text);
            format!("`{shown}` is no KV format of a plan; use bf16, fp8 or fp8-656 (the 656-byte latent)")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_divide_where_a_number_divides_the_other() {
        let cases = [((8, 8), 1), ((8, 4), 2), ((8, 16), 1), ((8, 3), 8), ((3, 8), 3), ((1, 8), 1), ((96, 8), 12)];
        for ((kv_heads, gpus), wanted) in cases {
            assert_eq!(heads_per_gpu(kv_heads, gpus), wanted, "{kv_heads} heads, {gpus} GPUs");
        }
    }

    #[test]
    fn formats_are_read_as_they_are_written() {
        for format in PlanKv::ALL {
            assert_eq!(format.to_string().parse::<PlanKv>(), Ok(format));
        }
        assert!("f32".parse::<PlanKv>().unwrap_err().contains("fp8-656"));
    }
}
