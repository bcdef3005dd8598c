//! One head's keys or values in one page: storing a token's numbers in the page's format, and taking over pages.
//! Knows the layout of [`millrace_ops::KvLayout`]; neither pages, tags nor tokens' owners.
//!
//! FP8 with a scale per token: scale = the largest magnitude / 448, rounded to BF16 first; code = e4m3(value / that scale). What
//! is not finite makes the scale NaN, so it stays visible. A token of zeros has scale 0.
//! FP8 latents: code = e4m3(value / the layer's scale), which saturates at 448 times that scale; NaN stays NaN.

use std::ops::Range;
use std::sync::LazyLock;

use half::bf16;
use millrace_ops::{E4M3_MAX, KvFormat, KvLayout, PlaneKind, PlaneLayout, e4m3_to_f32};

use crate::isa::Isa;
use crate::memory::Region;
use crate::simd;

// Elements are little-endian in the layout and are accessed as numbers here.
const _: () = assert!(cfg!(target_endian = "little"));

/// Elements that are encoded at a time on their way into a block.
const RUN: usize = 64;

/// Value of each e4m3 code.
pub(crate) static E4M3_VALUES: LazyLock<[f32; 256]> = LazyLock::new(|| {
    let mut values = [0.0; 256];
    for (code, value) in (0..=255u8).zip(&mut values) {
        *value = e4m3_to_f32(code);
    }
    values
});

/// Where one head's block lies in a pool.
#[derive(Clone, Copy)]
pub(crate) struct HeadPlace {
    /// Byte offset of the layer's block.
    pub(crate) block: usize,
    pub(crate) head: usize,
    /// The layer's scale of latents in FP8; see [`KvLayout::latent_scales`].
    pub(crate) latent_scale: f32,
}

/// A block's elements, to be written.
enum ElementsMut<'a> {
    F32(&'a mut [f32]),
    /// BF16 bits.
    Bf16(&'a mut [u16]),
    /// e4m3 codes, and per token the BF16 bits of its scale.
    Fp8 {
        codes: &'a mut [u8],
        scales: &'a mut [u16],
    },
    /// e4m3 codes of latents, which share one scale.
    Fp8Latent {
        codes: &'a mut [u8],
        scale: f32,
    },
}

/// A block's elements, to be read.
#[derive(Clone, Copy)]
pub(crate) enum Elements<'a> {
    F32(&'a [f32]),
    /// BF16 bits.
    Bf16(&'a [u16]),
    /// e4m3 codes, and per token the BF16 bits of its scale.
    Fp8 {
        codes: &'a [u8],
        scales: &'a [u16],
    },
    /// e4m3 codes of latents, which share one scale.
    Fp8Latent {
        codes: &'a [u8],
        scale: f32,
    },
}

/// A head's block, to be written.
pub(crate) struct HeadBlockMut<'a> {
    plane: &'a PlaneLayout,
    elements: ElementsMut<'a>,
}

/// A head's block, to be read.
pub(crate) struct HeadBlock<'a> {
    plane: &'a PlaneLayout,
    pub(crate) elements: Elements<'a>,
}

impl HeadPlace {
    /// A head of a layer whose block begins at byte `block`.
    pub(crate) fn new(layout: &KvLayout, (block, layer): (usize, usize), head: usize) -> Self {
        Self { block, head, latent_scale: layout.latent_scales.of(layer) }
    }
}

/// (byte offset of elements, their number, byte offset of scales)
fn offsets(plane: &PlaneLayout, place: HeadPlace) -> (usize, usize, usize) {
    let elements = place.block + place.head * plane.head_bytes();
    (elements, plane.width * plane.page_tokens, place.block + plane.scales_offset(place.head))
}

impl<'a> HeadBlockMut<'a> {
    /// # Safety
    /// Nobody else reads or writes this head's block while the value lives.
    pub(crate) unsafe fn new(pages: &'a Region, plane: &'a PlaneLayout, place: HeadPlace) -> Self {
        let (at, count, scales) = offsets(plane, place);
        // SAFETY: elements and scales of one head overlap with nothing else; exclusive by this function's condition.
        let elements = unsafe {
            match plane.format {
                KvFormat::F32 => ElementsMut::F32(pages.items_at_mut(at, count)),
                KvFormat::Bf16 => ElementsMut::Bf16(pages.items_at_mut(at, count)),
                KvFormat::Fp8 if plane.kind == PlaneKind::Latent => {
                    ElementsMut::Fp8Latent { codes: pages.items_at_mut(at, count), scale: place.latent_scale }
                }
                KvFormat::Fp8 => ElementsMut::Fp8 {
                    codes: pages.items_at_mut(at, count),
                    scales: pages.items_at_mut(scales, plane.page_tokens),
                },
            }
        };
        Self { plane, elements }
    }

    /// Stores the `width` values of a token.
    pub(crate) fn store(&mut self, isa: Isa, token: usize, values: &[f32]) {
        let values = &values[..self.plane.width];
        match &mut self.elements {
            ElementsMut::F32(elements) => put(self.plane, elements, (token, 0), values),
            ElementsMut::Bf16(elements) => {
                for (i, values) in values.chunks(RUN).enumerate() {
                    let mut bits = [0; RUN];
                    simd::to_bf16(isa, values, &mut bits);
                    put(self.plane, elements, (token, i * RUN), &bits[..values.len()]);
                }
            }
            ElementsMut::Fp8 { codes: elements, scales } => {
                let scale = fp8_scale(simd::magnitude(isa, values));
                scales[token] = scale.to_bits();
                for (i, values) in values.chunks(RUN).enumerate() {
                    let mut codes = [0; RUN];
                    simd::to_fp8(isa, values, scale.to_f32(), &mut codes);
                    put(self.plane, elements, (token, i * RUN), &codes[..values.len()]);
                }
            }
            ElementsMut::Fp8Latent { codes, scale } => {
                let first = self.plane.element_index(token, 0);
                simd::to_fp8(isa, values, *scale, &mut codes[first..first + values.len()]);
            }
        }
    }

    /// Takes over the first `tokens` tokens of a block of the same shape, converting where formats differ. `scratch` holds
    /// `width * page_tokens + page_tokens` floats.
    pub(crate) fn take(&mut self, isa: Isa, from: &HeadBlock<'_>, tokens: usize, scratch: &mut [f32]) {
        match (&mut self.elements, from.elements) {
            (ElementsMut::F32(to), Elements::F32(from)) => copy(self.plane, tokens, to, from),
            (ElementsMut::Bf16(to), Elements::Bf16(from)) => copy(self.plane, tokens, to, from),
            (ElementsMut::Fp8 { codes, scales }, Elements::Fp8 { codes: from, scales: from_scales }) => {
                copy(self.plane, tokens, codes, from);
                scales[..tokens].copy_from_slice(&from_scales[..tokens]);
            }
            (ElementsMut::Fp8Latent { codes, scale }, Elements::Fp8Latent { codes: from, scale: from_scale })
                if *scale == from_scale =>
            {
                copy(self.plane, tokens, codes, from);
            }
            _ => {
                let (values, scales) = scratch.split_at_mut(self.plane.width * self.plane.page_tokens);
                let scales = &mut scales[..tokens];
                from.widen(isa, tokens, values, scales);
                self.fill(isa, values, scales);
            }
        }
    }

    /// Stores values of as many tokens as there are `scales` (scratch), which lie as the block's elements do.
    fn fill(&mut self, isa: Isa, values: &[f32], scales: &mut [f32]) {
        let (plane, tokens) = (self.plane, scales.len());
        match &mut self.elements {
            ElementsMut::F32(to) => copy(plane, tokens, to, values),
            ElementsMut::Bf16(to) => {
                runs(plane, tokens).for_each(|run| simd::to_bf16(isa, &values[run.clone()], &mut to[run]));
            }
            ElementsMut::Fp8 { codes, scales: bits } => {
                magnitudes(isa, plane, values, scales);
                for (bits, scale) in bits.iter_mut().zip(scales.iter_mut()) {
                    let rounded = fp8_scale(*scale);
                    *bits = rounded.to_bits();
                    *scale = rounded.to_f32();
                }
                match plane.kind {
                    PlaneKind::Keys => channels(plane, tokens)
                        .for_each(|run| simd::to_fp8_each(isa, &values[run.clone()], scales, &mut codes[run])),
                    PlaneKind::Values | PlaneKind::Latent | PlaneKind::IndexKeys => {
                        let rows = values.chunks_exact(plane.width).zip(codes.chunks_exact_mut(plane.width));
                        rows.zip(scales.iter()).for_each(|((values, out), scale)| simd::to_fp8(isa, values, *scale, out));
                    }
                }
            }
            ElementsMut::Fp8Latent { codes, scale } => {
                runs(plane, tokens).for_each(|run| simd::to_fp8(isa, &values[run.clone()], *scale, &mut codes[run]));
            }
        }
    }
}

impl<'a> HeadBlock<'a> {
    /// # Safety
    /// Nobody writes this head's block while the value lives.
    pub(crate) unsafe fn new(pages: &'a Region, plane: &'a PlaneLayout, place: HeadPlace) -> Self {
        let (at, count, scales) = offsets(plane, place);
        // SAFETY: not written meanwhile by this function's condition.
        let elements = unsafe {
            match plane.format {
                KvFormat::F32 => Elements::F32(pages.items_at(at, count)),
                KvFormat::Bf16 => Elements::Bf16(pages.items_at(at, count)),
                KvFormat::Fp8 if plane.kind == PlaneKind::Latent => {
                    Elements::Fp8Latent { codes: pages.items_at(at, count), scale: place.latent_scale }
                }
                KvFormat::Fp8 => {
                    Elements::Fp8 { codes: pages.items_at(at, count), scales: pages.items_at(scales, plane.page_tokens) }
                }
            }
        };
        Self { plane, elements }
    }

    /// The values of a token, one by one: for planes whose tokens are runs, in forms without vectors.
    pub(crate) fn load(&self, token: usize, out: &mut [f32]) {
        let first = self.plane.element_index(token, 0);
        let run = first..first + out.len();
        let scale = match self.elements {
            Elements::F32(values) => return out.copy_from_slice(&values[run]),
            Elements::Bf16(bits) => return simd::from_bf16(Isa::Scalar, &bits[run], out),
            Elements::Fp8 { codes, scales } => {
                simd::from_fp8(Isa::Scalar, &codes[run], out);
                bf16::from_bits(scales[token]).to_f32()
            }
            Elements::Fp8Latent { codes, scale } => {
                simd::from_fp8(Isa::Scalar, &codes[run], out);
                scale
            }
        };
        out.iter_mut().for_each(|value| *value *= scale);
    }

    /// The values of the first `tokens` tokens, in the order of the elements. `scales` is scratch of a float per token.
    fn widen(&self, isa: Isa, tokens: usize, out: &mut [f32], scales: &mut [f32]) {
        let plane = self.plane;
        match self.elements {
            Elements::F32(from) => copy(plane, tokens, out, from),
            Elements::Bf16(from) => {
                runs(plane, tokens).for_each(|run| simd::from_bf16(isa, &from[run.clone()], &mut out[run]));
            }
            Elements::Fp8 { codes, scales: bits } => {
                for (scale, bits) in scales.iter_mut().zip(bits) {
                    *scale = bf16::from_bits(*bits).to_f32();
                }
                runs(plane, tokens).for_each(|run| simd::from_fp8(isa, &codes[run.clone()], &mut out[run]));
                match plane.kind {
                    PlaneKind::Keys => channels(plane, tokens).for_each(|run| simd::scale_each(isa, &mut out[run], scales)),
                    PlaneKind::Values | PlaneKind::Latent | PlaneKind::IndexKeys => {
                        for (token, scale) in out.chunks_exact_mut(plane.width).zip(scales.iter()) {
                            token.iter_mut().for_each(|value| *value *= scale);
                        }
                    }
                }
            }
            Elements::Fp8Latent { codes, scale } => runs(plane, tokens).for_each(|run| {
                simd::from_fp8(isa, &codes[run.clone()], &mut out[run.clone()]);
                out[run].iter_mut().for_each(|value| *value *= scale);
            }),
        }
    }
}

/// Puts elements of a token, from a channel on, where they belong.
#[inline]
fn put<T: Copy>(plane: &PlaneLayout, elements: &mut [T], (token, channel): (usize, usize), values: &[T]) {
    let first = plane.element_index(token, channel);
    match plane.kind {
        PlaneKind::Values | PlaneKind::Latent | PlaneKind::IndexKeys => {
            elements[first..first + values.len()].copy_from_slice(values)
        }
        PlaneKind::Keys => {
            for (to, value) in elements[first..].iter_mut().step_by(plane.page_tokens).zip(values) {
                *to = *value;
            }
        }
    }
}

fn copy<T: Copy>(plane: &PlaneLayout, tokens: usize, to: &mut [T], from: &[T]) {
    runs(plane, tokens).for_each(|run| to[run.clone()].copy_from_slice(&from[run]));
}

/// The longest runs of elements that the first `tokens` tokens occupy.
fn runs(plane: &PlaneLayout, tokens: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let by_channel = plane.kind == PlaneKind::Keys && tokens < plane.page_tokens;
    let (count, step, length) = if by_channel { (plane.width, plane.page_tokens, tokens) } else { (1, 0, tokens * plane.width) };
    (0..count).map(move |i| i * step..i * step + length)
}

/// The runs of keys, one per channel.
fn channels(plane: &PlaneLayout, tokens: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let step = plane.page_tokens;
    (0..plane.width).map(move |i| i * step..i * step + tokens)
}

/// The largest magnitude of each token.
fn magnitudes(isa: Isa, plane: &PlaneLayout, values: &[f32], largest: &mut [f32]) {
    let tokens = largest.len();
    match plane.kind {
        PlaneKind::Keys => {
            largest.fill(0.0);
            channels(plane, tokens).for_each(|run| simd::magnitudes(isa, &values[run], largest));
        }
        PlaneKind::Values | PlaneKind::Latent | PlaneKind::IndexKeys => {
            for (token, largest) in values.chunks_exact(plane.width).zip(largest) {
                *largest = simd::magnitude(isa, token);
            }
        }
    }
}

/// The scale of a token's values in FP8, of which the largest has magnitude `largest`; NaN where that is not finite.
fn fp8_scale(largest: f32) -> bf16 {
    if largest.is_finite() { bf16::from_f32(largest / E4M3_MAX) } else { bf16::NAN }
}
