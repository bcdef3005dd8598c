//! Exponentials over vectors. Knows no operation.
//! Polynomials: Cephes Mathematical Library, single precision (`expf`, `exp2f`), errors below 2e-7 of the result.

use super::vector::Vector;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has so few bits that products with an exponent are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];
const EXP2: [f32; 6] = [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_264_8e-1, 6.931_472e-1];

/// `e^x`; 0 below -87, at most about 2^127 above; NaN stays NaN.
///
/// # Safety
/// [`Vector`]'s condition.
#[inline(always)]
pub(crate) unsafe fn exp<V: Vector>(x: V) -> V {
    // SAFETY: this function's condition.
    unsafe {
        let bounded = V::splat(-87.0).max(V::splat(88.0).min(x));
        let n = bounded.mul(V::splat(LOG2_E)).round();
        let r = n.fma(V::splat(-LN_2_HIGH), bounded);
        let r = n.fma(V::splat(-LN_2_LOW), r);
        let mut p = V::splat(EXP[0]);
        p = p.fma(r, V::splat(EXP[1]));
        p = p.fma(r, V::splat(EXP[2]));
        p = p.fma(r, V::splat(EXP[3]));
        p = p.fma(r, V::splat(EXP[4]));
        p = p.fma(r, V::splat(EXP[5]));
        let value = p.fma(r.mul(r), r.add(V::splat(1.0))).mul(n.power_of_two());
        x.below(V::splat(-87.0), V::splat(0.0), value)
    }
}

/// `2^x` for x up to 127; 0 below -126; NaN stays NaN.
///
/// # Safety
/// [`Vector`]'s condition.
#[inline(always)]
pub(crate) unsafe fn exp2<V: Vector>(x: V) -> V {
    // SAFETY: this function's condition.
    unsafe {
        let bounded = V::splat(-126.0).max(x);
        let n = bounded.round();
        let f = bounded.sub(n);
        let mut p = V::splat(EXP2[0]);
        p = p.fma(f, V::splat(EXP2[1]));
        p = p.fma(f, V::splat(EXP2[2]));
        p = p.fma(f, V::splat(EXP2[3]));
        p = p.fma(f, V::splat(EXP2[4]));
        p = p.fma(f, V::splat(EXP2[5]));
        let value = p.fma(f, V::splat(1.0)).mul(n.power_of_two());
        x.below(V::splat(-126.0), V::splat(0.0), value)
    }
}
