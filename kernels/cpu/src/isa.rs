//! Which instruction set the kernels use. Chosen once per backend; kernels are dispatched once per call, never inside loops.
//! Knows nothing of what the kernels compute.

use std::fmt;

/// An instruction set that the kernels are written for, least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Portable Rust.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-VNNI, and all that [`Isa::Avx2`] needs: processors without AVX-512 that have its dot products of bytes in 256 bits. Integer
    /// weights are multiplied by them; all else is as with [`Isa::Avx2`].
    AvxVnni,
    /// AVX-512 F, BW, DQ, VL and VNNI, and all that [`Isa::Avx2`] needs.
    Avx512,
    /// AVX-512 BF16 and VBMI, and all that [`Isa::Avx512`] needs. In queues of many rows BF16 and FP8 weights are multiplied by dot
    /// products of BF16, in queues of few rows FP8 pages are attended to by them; all else is as with [`Isa::Avx512`].
    Avx512Bf16,
    /// AVX-512 FP16, and all that [`Isa::Avx512Bf16`] needs. In queues of few rows FP8 pages are attended to in FP16; all else is as with
    /// [`Isa::Avx512`]: processors that have FP16 add products of BF16 more slowly than those of f32.
    Avx512Fp16,
    /// AMX tiles of BF16, and all that [`Isa::Avx512Fp16`] needs. In queues of many rows BF16 and FP8 weights are multiplied in tiles, and
    /// BF16 pages attended to in them; all else is as with [`Isa::Avx512Fp16`].
    Amx,
}

impl Isa {
    const ALL: [Self; 7] = [Self::Scalar, Self::Avx2, Self::AvxVnni, Self::Avx512, Self::Avx512Bf16, Self::Avx512Fp16, Self::Amx];

    /// The best one of this machine.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rfind(|isa| isa.supported()).unwrap_or(Self::Scalar)
    }

    /// Those that this machine can run, least first.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.supported()).collect()
    }

    /// Whether products of BF16 in tiles or by dot products are faster than those of f32.
    pub(crate) fn multiplies_bf16(self) -> bool {
        matches!(self, Self::Avx512Bf16 | Self::Amx)
    }

    /// Whether there is arithmetic in FP16.
    pub(crate) fn has_fp16(self) -> bool {
        matches!(self, Self::Avx512Fp16 | Self::Amx)
    }

    /// Whether this machine can run it.
    pub fn supported(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let avx512 = || {
                avx2()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            };
            let bf16 = || avx512() && is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vbmi");
            let fp16 = || bf16() && is_x86_feature_detected!("avx512fp16");
            match self {
                Self::Scalar => true,
                Self::Avx2 => avx2(),
                Self::AvxVnni => avx2() && is_x86_feature_detected!("avxvnni"),
                Self::Avx512 => avx512(),
                Self::Avx512Bf16 => bf16(),
                Self::Avx512Fp16 => fp16(),
                Self::Amx => fp16() && tiles_granted(),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Scalar
        }
    }
}

/// Whether this processor has tiles of BF16 and the system lets this process use them: it keeps their 8 KiB out of a thread's
/// state until a process has asked. Asked once; all threads of the process share the answer.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tiles_granted() -> bool {
    use std::arch::x86_64::__cpuid_count;
    use std::sync::OnceLock;

    /// `ARCH_REQ_XCOMP_PERM` of arch_prctl(2), and the number of the tiles' state component.
    const REQUEST_PERMISSION: libc::c_int = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    /// In EDX of leaf 7: AMX-BF16 and AMX-TILE.
    const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| {
        if __cpuid_count(7, 0).edx & BF16_AND_TILE != BF16_AND_TILE {
            return false;
        }
        // SAFETY: the call takes two numbers and changes nothing but what this process may use; a kernel that does not know it
        // or has not enabled tiles answers with an error.
        unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
    })
}

/// Other systems have no way, or another one, to ask.
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn tiles_granted() -> bool {
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512 => "avx512-vnni",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Avx512Fp16 => "avx512-fp16",
            Self::Amx => "amx",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_last_available() {
        let available = Isa::available();
        assert_eq!(available.first(), Some(&Isa::Scalar));
        assert_eq!(available.last(), Some(&Isa::detect()));
        assert!(available.is_sorted());
    }
}
