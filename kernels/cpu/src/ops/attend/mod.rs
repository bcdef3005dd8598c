//! Attend: causal grouped-query attention over pages. This file checks arguments and cuts the work; the arithmetic is in
//! `plain` (reference) and `blocked` (vectors, and products of BF16 and FP16 where the machine has them). Knows no model.

#[cfg(target_arch = "x86_64")]
mod amx;
mod blocked;
#[cfg(target_arch = "x86_64")]
mod coded;
#[cfg(target_arch = "x86_64")]
mod dots;
pub(in crate::ops) mod element;
#[cfg(target_arch = "x86_64")]
mod halves;
pub(in crate::ops) mod kernels;
pub(in crate::ops) mod plain;
pub(in crate::ops) mod softmax;
#[cfg(target_arch = "x86_64")]
mod split;
mod tile;
mod work;

use millrace_ops::{Attend, BackendError};

use self::blocked::BlockedAttend;
use self::plain::PlainAttend;
use crate::memory::Region;
use crate::ops::step::{Cache, KEYS, Step};
use crate::pool::Compute;
use crate::task::{Arguments, Task, product};

/// An attention with its arguments checked.
struct Checked {
    arguments: Arguments,
    cache: Cache,
    step: Step,
    layer: usize,
    x: Region,
    stride: usize,
    query_offset: usize,
    heads: usize,
    /// Query heads that share a KV head.
    group: usize,
    scale: f32,
    out: Region,
    rows: usize,
}

impl Checked {
    fn new(arguments: Arguments, op: Attend) -> Result<Self, BackendError> {
        let Attend { cache, step, layer, x, stride, query_offset, heads, scale, out, rows, sequences } = op;
        let cache = Cache::new(arguments, cache)?;
        cache.require_grouped_query(arguments, layer)?;
        let keys = &cache.layout.planes[KEYS];
        let (kv_heads, head_dim) = (keys.heads, keys.width);
        arguments.require(heads > 0 && heads.is_multiple_of(kv_heads), || {
            format!("{heads} query heads cannot share {kv_heads} KV heads evenly")
        })?;
        let end = product(&[heads, head_dim]).saturating_add(query_offset);
        arguments.require(end <= stride, || format!("queries end at column {end} of rows of {stride}"))?;
        let x = arguments.region("x", x, product(&[rows, stride, 4]))?;
        let out = arguments.region("out", out, product(&[rows, heads, head_dim, 4]))?;
        arguments.distinct(&x, &out)?;
        arguments.distinct(&cache.pages, &out)?;
        let step = Step::new(arguments, &step, sequences)?;
        let group = heads / kv_heads;
        Ok(Self { arguments, cache, step, layer, x, stride, query_offset, heads, group, scale, out, rows })
    }

    fn head_dim(&self) -> usize {
        self.cache.layout.planes[KEYS].width
    }

    fn kv_heads(&self) -> usize {
        self.cache.layout.planes[KEYS].heads
    }

    /// Queries of the heads that share `kv_head`, `[group, head_dim]`.
    ///
    /// # Safety
    /// Nobody writes `x` while the slice lives.
    unsafe fn queries(&self, row: usize, kv_head: usize) -> &[f32] {
        let width = self.group * self.head_dim();
        // SAFETY: this function's condition.
        unsafe { self.x.items(row * self.stride + self.query_offset + kv_head * width, width) }
    }

    /// Outputs of the heads that share `kv_head`, `[group, head_dim]`.
    ///
    /// # Safety
    /// Nobody else accesses these outputs while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "device memory; exclusive use is the caller's condition")]
    unsafe fn outputs(&self, row: usize, kv_head: usize) -> &mut [f32] {
        let width = self.group * self.head_dim();
        // SAFETY: this function's condition.
        unsafe { self.out.items_mut(row * self.heads * self.head_dim() + kv_head * width, width) }
    }
}

/// Checks an attention and picks its form.
pub(crate) fn lower(arguments: Arguments, op: Attend, compute: Compute) -> Result<Box<dyn Task>, BackendError> {
    let checked = Checked::new(arguments, op)?;
    Ok(match compute.lanes() {
        Some(lanes) if BlockedAttend::fits(&checked, lanes) => Box::new(BlockedAttend::new(checked, compute)),
        _ => Box::new(PlainAttend::new(checked)),
    })
}
