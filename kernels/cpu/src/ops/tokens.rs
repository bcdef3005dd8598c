//! Tokens whose elements are runs in their pages (latents, index keys): where they lie, and their values as floats in the two
//! orders that kernels take. Knows formats; no arithmetic of attention.

use half::bf16;
use millrace_ops::{BackendError, KvFormat, PageEntry, PlaneKind};

use super::attend::element::{Bf16, Element, Fp8};
use super::step::Cache;
use crate::simd::vector::{MOST_LANES, Vector};
use crate::task::Arguments;

/// A layer's plane of one head whose tokens are runs.
#[derive(Clone, Copy)]
pub(super) struct TokenPlane<'a> {
    pub(super) arguments: Arguments,
    pub(super) cache: &'a Cache,
    pub(super) plane: usize,
    pub(super) layer: usize,
}

/// Where some tokens lie. Filled for one run of tokens after the other, so that its memory is kept.
#[derive(Default)]
pub(super) struct Found {
    addresses: Vec<*const u8>,
    /// What loaded values are multiplied by, FP8 only.
    factors: Vec<f32>,
    format: Option<KvFormat>,
    width: usize,
}

impl TokenPlane<'_> {
    /// Finds `tokens` of the sequence that has `table`, which names a page for each of them.
    pub(super) fn find(
        &self,
        table: &[PageEntry],
        tokens: impl Iterator<Item = usize>,
        found: &mut Found,
    ) -> Result<(), BackendError> {
        let Self { arguments, cache, plane, layer } = *self;
        let (layout, page_tokens) = (&cache.layout.planes[plane], cache.layout.page_tokens);
        // Pages lie within their buffer, and tokens within a page, so the addresses below are valid.
        let base = cache.pages.address_of::<u8>(cache.page_count * cache.page_bytes).cast_const();
        let token_bytes = layout.width * layout.format.element_bytes();
        let of_layer = cache.layout.latent_scales.of(layer);
        (found.format, found.width) = (Some(layout.format), layout.width);
        found.addresses.clear();
        found.factors.clear();
        for token in tokens {
            let (page, slot) = (cache.known(arguments, &table[token / page_tokens])?, token % page_tokens);
            let block = cache.block(page, plane, layer);
            found.addresses.push(base.wrapping_add(block + slot * token_bytes));
            if layout.format == KvFormat::Fp8 {
                let scale = match layout.kind {
                    PlaneKind::Latent => of_layer,
                    PlaneKind::Keys | PlaneKind::Values | PlaneKind::IndexKeys => {
                        // SAFETY: pages are written by nobody in a phase that reads them.
                        let bits = unsafe { cache.pages.items_at::<u16>(block + layout.scales_offset(0) + slot * 2, 1) };
                        bf16::from_bits(bits[0]).to_f32()
                    }
                };
                // Codes load as their values divided by 256.
                found.factors.push(scale * 256.0);
            }
        }
        Ok(())
    }
}

impl Found {
    pub(super) fn count(&self) -> usize {
        self.addresses.len()
    }

    /// `to[channel][token]` with `stride` floats from one channel to the next; the last vector of tokens is filled up with
    /// copies of the last token.
    ///
    /// # Safety
    /// [`Vector`]'s condition; the pages that tokens were found in still hold them; `to` has room for whole vectors of tokens
    /// in each channel, and `stride` for as many.
    #[inline(always)]
    pub(super) unsafe fn by_channel<V: Vector>(&self, to: *mut f32, stride: usize) {
        // SAFETY: this function's condition; the element type is that of the format.
        unsafe {
            match self.format {
                None => {}
                Some(KvFormat::F32) => self.channels::<V, f32>(to, stride),
                Some(KvFormat::Bf16) => self.channels::<V, Bf16>(to, stride),
                Some(KvFormat::Fp8) => self.channels::<V, Fp8>(to, stride),
            }
        }
    }

    /// `to[token][channel]` of the first `channels`, with `stride` floats from one token to the next and zeros from `channels` up
    /// to a whole vector.
    ///
    /// # Safety
    /// [`Vector`]'s condition; the pages that tokens were found in still hold them; `channels` is at most the plane's width; `to`
    /// has room for whole vectors.
    #[inline(always)]
    pub(super) unsafe fn by_token<V: Vector>(&self, channels: usize, to: *mut f32, stride: usize) {
        // SAFETY: this function's condition; the element type is that of the format.
        unsafe {
            match self.format {
                None => {}
                Some(KvFormat::F32) => self.runs::<V, f32>(channels, to, stride),
                Some(KvFormat::Bf16) => self.runs::<V, Bf16>(channels, to, stride),
                Some(KvFormat::Fp8) => self.runs::<V, Fp8>(channels, to, stride),
            }
        }
    }

    fn factor(&self, token: usize) -> f32 {
        self.factors.get(token).copied().unwrap_or(1.0)
    }

    /// # Safety
    /// As [`Self::by_channel`]; tokens hold elements of type `E`.
    #[inline(always)]
    unsafe fn channels<V: Vector, E: Element>(&self, to: *mut f32, stride: usize) {
        let mut first = 0;
        while first < self.count() {
            let mut tokens = [std::ptr::null::<E>(); MOST_LANES];
            let mut factors = [1.0; MOST_LANES];
            let mut lane = 0;
            while lane < V::LANES {
                let token = (first + lane).min(self.count() - 1);
                tokens[lane] = self.addresses[token].cast();
                factors[lane] = self.factor(token);
                lane += 1;
            }
            // SAFETY: this function's condition; channels end within a token's width.
            unsafe {
                let mut channel = 0;
                while channel + V::LANES <= self.width {
                    let mut block = [V::splat(0.0); MOST_LANES];
                    let mut lane = 0;
                    while lane < V::LANES {
                        block[lane] = E::load_or_nan::<V>(tokens[lane].add(channel)).mul(V::splat(factors[lane]));
                        lane += 1;
                    }
                    V::transpose(&mut block);
                    let mut i = 0;
                    while i < V::LANES {
                        block[i].store(to.add((channel + i) * stride + first));
                        i += 1;
                    }
                    channel += V::LANES;
                }
                while channel < self.width {
                    let mut lane = 0;
                    while lane < V::LANES {
                        *to.add(channel * stride + first + lane) = (*tokens[lane].add(channel)).value() * factors[lane];
                        lane += 1;
                    }
                    channel += 1;
                }
            }
            first += V::LANES;
        }
    }

    /// # Safety
    /// As [`Self::by_token`]; tokens hold elements of type `E`.
    #[inline(always)]
    unsafe fn runs<V: Vector, E: Element>(&self, channels: usize, to: *mut f32, stride: usize) {
        let mut token = 0;
        while token < self.count() {
            let from: *const E = self.addresses[token].cast();
            let factor = self.factor(token);
            // SAFETY: this function's condition; channels end within a token's width, stores within a whole vector.
            unsafe {
                let to = to.add(token * stride);
                let mut channel = 0;
                while channel + V::LANES <= channels {
                    E::load_or_nan::<V>(from.add(channel)).mul(V::splat(factor)).store(to.add(channel));
                    channel += V::LANES;
                }
                if channel < channels {
                    V::splat(0.0).store(to.add(channel));
                }
                while channel < channels {
                    *to.add(channel) = (*from.add(channel)).value() * factor;
                    channel += 1;
                }
            }
            token += 1;
        }
    }
}
