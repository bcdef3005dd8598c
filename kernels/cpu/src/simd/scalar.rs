//! The portable forms, and the definitions of what the vector forms compute.

use super::Scan;

pub(super) fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let squares: f64 = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    #[expect(clippy::cast_possible_truncation, reason = "back to the precision of the activations")]
    let inverse = (1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt()) as f32;
    for (v, w) in x.iter_mut().zip(weight) {
        *v = *v * inverse * w;
    }
}

pub(super) fn layer_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let count = x.len() as f64;
    let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
    let variance = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / count;
    let inverse = 1.0 / (variance + f64::from(eps)).sqrt();
    for (v, w) in x.iter_mut().zip(weight) {
        #[expect(clippy::cast_possible_truncation, reason = "back to the precision of the activations")]
        let normed = ((f64::from(*v) - mean) * inverse) as f32;
        *v = normed * w;
    }
}

pub(super) fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
        *o = g / (1.0 + (-g).exp()) * u;
    }
}

pub(super) fn rotation(position: u32, frequencies: &[f32], sines: &mut [f32], cosines: &mut [f32]) {
    for ((f, s), c) in frequencies.iter().zip(sines).zip(cosines) {
        let angle = f64::from(position as f32 * f);
        #[expect(clippy::cast_possible_truncation, reason = "the nearest f32 is wanted")]
        {
            (*s, *c) = (angle.sin() as f32, angle.cos() as f32);
        }
    }
}

pub(super) fn rotate(low: &mut [f32], high: &mut [f32], sines: &[f32], cosines: &[f32]) {
    for (((l, h), s), c) in low.iter_mut().zip(high).zip(sines).zip(cosines) {
        (*l, *h) = (*l * c - *h * s, *h * c + *l * s);
    }
}

pub(super) fn rotate_adjacent(channels: &mut [f32], sines: &[f32], cosines: &[f32]) {
    for ((pair, s), c) in channels.chunks_exact_mut(2).zip(sines).zip(cosines) {
        (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[1] * c + pair[0] * s);
    }
}

/// The same bits on every instruction set: a product, rounded, and a sum. The compiler turns it into the entry point's vectors.
#[inline(always)]
pub(super) fn add_scaled(sum: &mut [f32], x: &[f32], factor: f32) {
    for (s, v) in sum.iter_mut().zip(x) {
        *s += v * factor;
    }
}

pub(super) fn scan(logits: &[f32]) -> Scan {
    let mut scan = Scan { largest: f32::NEG_INFINITY, fine: true };
    for &logit in logits {
        scan.fine &= logit < f32::INFINITY;
        scan.largest = scan.largest.max(logit);
    }
    scan
}

pub(super) fn sum_weights(logits: &[f32], largest: f32, inverse: f32, floor: f32) -> f32 {
    let mut sum = 0.0f64;
    for logit in logits {
        let weight = ((logit - largest) * inverse).exp();
        if weight >= floor {
            sum += f64::from(weight);
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most the number of logits")]
    {
        sum as f32
    }
}
