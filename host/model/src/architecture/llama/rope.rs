//! Rotary frequencies of a Llama, computed in f32 in the order of operations of transformers' `ROPE_INIT_FUNCTIONS`.

use std::f32::consts::PI;

use super::config::{LlamaConfig, RopeScaling};

/// Radians per position of each pair, `[head_dim / 2]`.
pub(super) fn frequencies(config: &LlamaConfig) -> Vec<f32> {
    let dims = config.head_dim as f32;
    let plain = (0..config.head_dim / 2).map(|i| 1.0 / config.rope_theta.powf((2 * i) as f32 / dims));
    plain.map(|frequency| scaled(frequency, config.rope_scaling)).collect()
}

fn scaled(frequency: f32, scaling: RopeScaling) -> f32 {
    let RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_tokens } = scaling else {
        return frequency;
    };
    let wavelength = 2.0 * PI / frequency;
    if wavelength > original_tokens / low_frequency_factor {
        frequency / factor
    } else if wavelength < original_tokens / high_frequency_factor {
        frequency
    } else {
        let smooth = (original_tokens / wavelength - low_frequency_factor) / (high_frequency_factor - low_frequency_factor);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_keeps_short_waves_and_stretches_long_ones() {
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low_frequency_factor: 1.0, high_frequency_factor: 4.0, original_tokens: 64.0 };
        // 1.0: wavelength 6.3 < 16, kept. 0.01: 628 > 64, divided. 0.2: 31.4, blended with smooth 0.34568 by hand.
        assert_eq!(scaled(1.0, scaling), 1.0);
        assert_eq!(scaled(0.01, scaling), 0.00125);
        let smooth = (64.0f64 / (2.0 * std::f64::consts::PI / 0.2) - 1.0) / 3.0;
        let wanted = (1.0 - smooth) * 0.2 / 8.0 + smooth * 0.2;
        assert!((f64::from(scaled(0.2, scaling)) - wanted).abs() < 1e-7);
        assert_eq!(scaled(0.2, RopeScaling::None), 0.2);
    }
}
