//! AttendLatent: causal attention over latents that all heads share, of all tokens or of those selected. This file checks
//! arguments; the arithmetic is in `plain` (reference) and `blocked` (vectors). Knows no model.

mod blocked;
mod plain;
mod tile;

use millrace_ops::{AttendLatent, BackendError, PlaneKind};

use self::blocked::BlockedLatent;
use self::plain::PlainLatent;
pub(in crate::ops) use self::plain::dot;
use crate::memory::Region;
use crate::ops::selection::Lines;
use crate::ops::step::{Cache, Step};
use crate::pool::Compute;
use crate::task::{Arguments, Task, product};

/// Index of the latents' plane in the layout.
const LATENTS: usize = 0;

/// An attention with its arguments checked.
struct Checked {
    arguments: Arguments,
    cache: Cache,
    step: Step,
    layer: usize,
    latent_queries: Region,
    rotary_queries: Region,
    stride: usize,
    rotary_offset: usize,
    rotary_step: usize,
    heads: usize,
    latent: usize,
    rotary: usize,
    scale: f32,
    selection: Option<Lines>,
    out: Region,
    rows: usize,
}

impl Checked {
    fn new(arguments: Arguments, op: AttendLatent) -> Result<Self, BackendError> {
        let AttendLatent { stride, rotary_offset, rotary_step, heads, latent, rotary, layer, scale, rows, .. } = op;
        let cache = Cache::new(arguments, op.cache)?;
        let plane = cache.plane(arguments, LATENTS, layer)?;
        arguments.require(plane.kind == PlaneKind::Latent && plane.heads == 1, || {
            format!("plane 0 must be latents of one head, and is {:?} of {}", plane.kind, plane.heads)
        })?;
        arguments.require(latent > 0 && latent.saturating_add(rotary) == plane.width, || {
            format!("{latent} latent and {rotary} rotary elements of a plane of {}", plane.width)
        })?;
        arguments.require(heads > 0, || "no heads".into())?;
        let end = product(&[heads - 1, rotary_step]).saturating_add(rotary_offset).saturating_add(rotary);
        arguments.require(end <= stride, || format!("rotary queries end at column {end} of rows of {stride}"))?;
        let bytes = product(&[rows, heads, latent, 4]);
        let latent_queries = arguments.region("latent_queries", op.latent_queries, bytes)?;
        let rotary_queries = arguments.region("rotary_queries", op.rotary_queries, product(&[rows, stride, 4]))?;
        let out = arguments.region("out", op.out, bytes)?;
        let selection = op.selection.map(|selection| Lines::new(arguments, selection, rows)).transpose()?;
        for input in [&latent_queries, &rotary_queries, &cache.pages].into_iter().chain(selection.as_ref().map(|s| &s.tokens)) {
            arguments.distinct(input, &out)?;
        }
        let step = Step::new(arguments, &op.step, op.sequences)?;
        Ok(Self {
            arguments,
            cache,
            step,
            layer,
            latent_queries,
            rotary_queries,
            stride,
            rotary_offset,
            rotary_step,
            heads,
            latent,
            rotary,
            scale,
            selection,
            out,
            rows,
        })
    }

    /// The latent and the rotary query of a head.
    ///
    /// # Safety
    /// Nobody writes the queries while the slices live.
    unsafe fn query(&self, row: usize, head: usize) -> (&[f32], &[f32]) {
        let rotary = row * self.stride + self.rotary_offset + head * self.rotary_step;
        // SAFETY: this function's condition.
        unsafe {
            let latent = self.latent_queries.items((row * self.heads + head) * self.latent, self.latent);
            (latent, self.rotary_queries.items(rotary, self.rotary))
        }
    }

    /// The output of a head.
    ///
    /// # Safety
    /// Nobody else accesses it while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "device memory; exclusive use is the caller's condition")]
    unsafe fn output(&self, row: usize, head: usize) -> &mut [f32] {
        // SAFETY: this function's condition.
        unsafe { self.out.items_mut((row * self.heads + head) * self.latent, self.latent) }
    }
}

/// Checks an attention and picks its form.
pub(crate) fn lower(arguments: Arguments, op: AttendLatent, compute: Compute) -> Result<Box<dyn Task>, BackendError> {
    let checked = Checked::new(arguments, op)?;
    Ok(match compute.lanes() {
        None => Box::new(PlainLatent::new(checked)),
        Some(lanes) => Box::new(BlockedLatent::new(checked, lanes)),
    })
}
