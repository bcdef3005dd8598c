//! The tile registers: their configuration, and the two loops that use them. Knows addresses and strides, not weights.
//!
//! Rust has no stable intrinsics for AMX, so tiles are named in inline assembly. A loop is one block of it, from zeroed sums to
//! stored ones, and says which tiles it changes. Only the configuration lives from one block to the next: nothing but
//! [`Configured`] touches it, and compilers use no tiles on their own.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::offset_of;

/// Rows of a tile, and bytes of each.
pub(crate) const TILE_ROWS: usize = 16;
pub(crate) const ROW_BYTES: usize = 64;
pub(crate) const TILE_BYTES: usize = TILE_ROWS * ROW_BYTES;
/// Panels of a loop.
pub(crate) const PANELS: usize = 2;
/// Bytes that a loop prefetches in each step.
pub(crate) const PREFETCH_BYTES: usize = 4 * 64;

/// Where a loop puts the sums of 16 rows with one panel, `row_bytes` from one row to the next. Assembly reads it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Target {
    pub(crate) start: *mut f32,
    pub(crate) row_bytes: usize,
}

/// Sums of 16 rows with one panel.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Sums(pub(crate) [[f32; 16]; TILE_ROWS]);

impl Sums {
    pub(crate) const ZERO: Self = Self([[0.0; 16]; TILE_ROWS]);

    pub(crate) fn target(&mut self) -> Target {
        Target { start: self.0.as_mut_ptr().cast(), row_bytes: ROW_BYTES }
    }
}

const _: () = assert!(size_of::<Target>() == 16 && offset_of!(Target, start) == 0 && offset_of!(Target, row_bytes) == 8);

/// LDTILECFG's operand: palette 1, all eight tiles of 16 rows by 64 bytes.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<Configuration>() == 64);

static ALL_FULL: Configuration = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut tile = 0;
    while tile < 8 {
        (row_bytes[tile], rows[tile]) = (ROW_BYTES as u16, TILE_ROWS as u8);
        tile += 1;
    }
    Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// While it lives, this thread's tiles are configured. Dropping it gives the tiles' state back, which the system would otherwise
/// have to save with the thread.
pub(crate) struct Configured(PhantomData<*const ()>);

impl Configured {
    /// # Safety
    /// [`crate::Isa::Amx`] is available.
    pub(crate) unsafe fn new() -> Self {
        // SAFETY: the operand is a valid configuration, and tiles may be used by the caller's condition.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const ALL_FULL, options(nostack, preserves_flags, readonly)) };
        Self(PhantomData)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: tiles may be used, or there would be no `self`; nothing in them is needed any more.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}

/// Operands of a loop over tiles of 32 columns: for tiles of 16 rows of activations, times two panels. Assembly reads some of them.
#[repr(C)]
pub(crate) struct Operands {
    /// The first part of the first row; rows are `row_bytes` apart, a row's parts `part_bytes`.
    pub(crate) x: *const u8,
    pub(crate) row_bytes: usize,
    pub(crate) part_bytes: usize,
    /// Of each row, at least 1.
    pub(crate) parts: usize,
    /// Two panels, their tiles one behind the other.
    pub(crate) w: [*const u8; PANELS],
    /// Tiles of each, at least 1.
    pub(crate) steps: usize,
    /// What to prefetch in the first step, and how much further on in each: [`PREFETCH_BYTES`], or 0 for the same again.
    pub(crate) ahead: *const u8,
    pub(crate) ahead_bytes: usize,
}

/// Sums of 32 rows with two panels: `sums[tile][panel]`.
///
/// # Safety
/// `operands` can be read as far as they say (`ahead` need not), `sums` can be written; tiles are configured.
pub(crate) unsafe fn two(operands: &Operands, sums: &[[Target; PANELS]; 2], _: &Configured) {
    let second = operands.x.wrapping_add(TILE_ROWS * operands.row_bytes);
    // SAFETY: reads what the operands say, 64 bytes a row and part and 1024 a tile of weights, and writes the four tiles of sums.
    unsafe {
        asm!(
            "tilezero tmm0; tilezero tmm1",
            "tilezero tmm2; tilezero tmm3",
            // Activations stream past the weights: the hint keeps them from displacing those in the first cache level.
            "2:",
            "tileloaddt1 tmm4, [{x0} + {row_bytes}]",
            "tileloadd tmm6, [{w0} + {line}]",
            "tileloadd tmm7, [{w1} + {line}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloaddt1 tmm5, [{x1} + {row_bytes}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "mov {part:e}, 1",
            "xor {at:e}, {at:e}",
            "3:",
            "cmp {part}, [{operands} + {parts_at}]",
            "jae 4f",
            "add {at}, [{operands} + {part_bytes_at}]",
            "add {x0}, {at}; add {x1}, {at}",
            "tileloaddt1 tmm4, [{x0} + {row_bytes}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloaddt1 tmm5, [{x1} + {row_bytes}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "sub {x0}, {at}; sub {x1}, {at}",
            "inc {part}",
            "jmp 3b",
            "4:",
            "prefetcht1 [{ahead}]",
            "prefetcht1 [{ahead} + 64]",
            "prefetcht1 [{ahead} + 128]",
            "prefetcht1 [{ahead} + 192]",
            "add {ahead}, [{operands} + {ahead_bytes_at}]",
            "add {x0}, 64; add {x1}, 64",
            "add {w0}, 1024; add {w1}, 1024",
            "dec {steps}",
            "jnz 2b",
            "mov {x0}, [{sums}]",
            "mov {x1}, [{sums} + 8]",
            "tilestored [{x0} + {x1}], tmm0",
            "mov {w0}, [{sums} + 16]",
            "mov {w1}, [{sums} + 24]",
            "tilestored [{w0} + {w1}], tmm1",
            "mov {x0}, [{sums} + 32]",
            "mov {x1}, [{sums} + 40]",
            "tilestored [{x0} + {x1}], tmm2",
            "mov {w0}, [{sums} + 48]",
            "mov {w1}, [{sums} + 56]",
            "tilestored [{w0} + {w1}], tmm3",
            x0 = inout(reg) operands.x => _, x1 = inout(reg) second => _, row_bytes = in(reg) operands.row_bytes,
            w0 = inout(reg) operands.w[0] => _, w1 = inout(reg) operands.w[1] => _, line = in(reg) ROW_BYTES,
            part = out(reg) _, at = out(reg) _, steps = inout(reg) operands.steps => _,
            ahead = inout(reg) operands.ahead => _, operands = in(reg) operands, sums = in(reg) sums,
            parts_at = const offset_of!(Operands, parts), part_bytes_at = const offset_of!(Operands, part_bytes),
            ahead_bytes_at = const offset_of!(Operands, ahead_bytes),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Sums of 16 rows with two panels. Prefetches what it will read itself: where rows are few, reading weights is all that matters.
///
/// # Safety
/// As [`two`].
pub(crate) unsafe fn one(operands: &Operands, sums: &[Target; PANELS], _: &Configured) {
    // SAFETY: reads what the operands say, 64 bytes a row and part and 1024 a tile of weights, and writes two tiles of sums;
    // addresses beyond are only prefetched.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm6, [{w0} + {line}]",
            "tileloadd tmm7, [{w1} + {line}]",
            "xor {part:e}, {part:e}",
            "mov {at}, {x0}",
            "3:",
            "tileloadd tmm4, [{at} + {row_bytes}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {at}, [{operands} + {part_bytes_at}]",
            "inc {part}",
            "cmp {part}, [{operands} + {parts_at}]",
            "jb 3b",
            "xor {part:e}, {part:e}",
            "4:",
            "prefetcht0 [{w0} + {part} + 3072]",
            "prefetcht0 [{w1} + {part} + 3072]",
            "add {part:e}, 64",
            "cmp {part:e}, 1024",
            "jb 4b",
            "add {x0}, 64",
            "add {w0}, 1024",
            "add {w1}, 1024",
            "dec {steps}",
            "jnz 2b",
            "mov {x0}, [{sums}]",
            "mov {at}, [{sums} + 8]",
            "tilestored [{x0} + {at}], tmm0",
            "mov {w0}, [{sums} + 16]",
            "mov {w1}, [{sums} + 24]",
            "tilestored [{w0} + {w1}], tmm1",
            x0 = inout(reg) operands.x => _, row_bytes = in(reg) operands.row_bytes,
            w0 = inout(reg) operands.w[0] => _, w1 = inout(reg) operands.w[1] => _, line = in(reg) ROW_BYTES,
            part = out(reg) _, at = out(reg) _, steps = inout(reg) operands.steps => _,
            operands = in(reg) operands, sums = in(reg) sums,
            parts_at = const offset_of!(Operands, parts), part_bytes_at = const offset_of!(Operands, part_bytes),
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// The nearest BF16 numbers, ties to even; subnormal numbers become zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16,avx512vl")]
pub(crate) fn rounded(x: __m512) -> __m256i {
    // SAFETY: both types are 32 bytes without any invalid ones.
    unsafe { std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x)) }
}

/// BF16 numbers as f32.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn widened(bits: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
}
