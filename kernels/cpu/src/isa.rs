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
    /// AVX-512 F, BW, VL and VNNI, and all that [`Isa::Avx2`] needs.
    Avx512,
}

impl Isa {
    const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// The best one of this machine.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rfind(|isa| isa.supported()).unwrap_or(Self::Scalar)
    }

    /// Those that this machine can run, least first.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.supported()).collect()
    }

    /// Whether this machine can run it.
    pub fn supported(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            match self {
                Self::Scalar => true,
                Self::Avx2 => avx2(),
                Self::Avx512 => {
                    avx2()
                        && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512vl")
                        && is_x86_feature_detected!("avx512vnni")
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Scalar
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512-vnni",
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
