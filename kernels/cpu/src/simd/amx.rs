//! The tile registers: their configuration, and the two loops that use them. Knows addresses and strides, not weights.
//!
//! Rust has no stable intrinsics for AMX, so tiles are named in inline assembly. A loop is one block of it, from zeroed sums to
//! stored ones, and says which tiles it changes. Only the configuration lives from one block to the next: nothing but
//! [`Configured`] touches it, and compilers use no tiles on their own.

use std::arch::asm;
use std::marker::PhantomData;
use std::mem::offset_of;

use super::tiles::{Operands, PANELS, ROW_BYTES, TILE_ROWS, Target, TileProducts};

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

impl TileProducts for Configured {
    unsafe fn two(&self, operands: &Operands, sums: &[[Target; PANELS]; 2]) {
        // SAFETY: the caller's condition; tiles are configured while `self` lives.
        unsafe { two(operands, sums, self) }
    }

    unsafe fn one(&self, operands: &Operands, sums: &[Target; PANELS]) {
        // SAFETY: as above.
        unsafe { one(operands, sums, self) }
    }
}

/// Sums of 32 rows with two panels: `sums[tile][panel]`.
///
/// # Safety
/// `operands` can be read as far as they say (`ahead` need not), `sums` can be written; tiles are configured.
unsafe fn two(operands: &Operands, sums: &[[Target; PANELS]; 2], _: &Configured) {
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
unsafe fn one(operands: &Operands, sums: &[Target; PANELS], _: &Configured) {
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
