//! Rotary embedding: which channels, which frequencies, how stretched. Frequencies are computed in f32 in the order of
//! operations of transformers' `ROPE_INIT_FUNCTIONS`. Reads keys of transformers before and since version 5 (`rope_theta` and
//! `rope_scaling`, or `rope_parameters`).

use std::f64::consts::PI;

use millrace_ops::RopePairs;

use crate::{CheckpointError, Config, Flag};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeSpec {
    pub theta: f32,
    /// Channels that are rotated, an even number.
    pub rotary: usize,
    pub pairs: RopePairs,
    pub scaling: RopeScaling,
}

/// The heads that a configuration is read for.
pub(crate) struct HeadChannels {
    pub(crate) count: usize,
    pub(crate) pairs: RopePairs,
    pub(crate) part: RotaryPart,
}

/// How much of a head is rotated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RotaryPart {
    /// All of it, whatever the configuration says.
    Whole,
    /// As the configuration says, this part of it where it does not.
    Of(f64),
}

/// Where a configuration does not say.
const DEFAULT_THETA: f32 = 10_000.0;
/// No context is longer.
const LAST_POSITION: f32 = (1u64 << 28) as f32;

/// How rotary frequencies are stretched for contexts longer than trained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    None,
    /// Every frequency divided by `factor`.
    Linear {
        factor: f32,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, those between blended.
    Llama3 {
        factor: f32,
        low_frequency_factor: f32,
        high_frequency_factor: f32,
        original_tokens: f32,
    },
    /// YaRN (Peng et al. 2023): between `low` and `high`, channel by channel, from kept to divided by `factor`.
    Yarn {
        factor: f32,
        /// First channel that is not kept whole, and first that is divided whole; not always integers.
        low: f32,
        high: f32,
        /// Factor on sines and cosines.
        amplitude: f32,
        /// DeepSeek's factor on scores; 1 elsewhere.
        score_scale: f32,
    },
}

impl RopeSpec {
    /// Reads what a configuration says about such heads.
    ///
    /// # Errors
    /// [`CheckpointError::Config`] for missing or impossible values, [`CheckpointError::Unsupported`] for other scalings.
    pub(crate) fn read(config: &Config, head: &HeadChannels) -> Result<Self, CheckpointError> {
        let said = |key: &str| Ok(config.section(key)?.filter(|section| !section.is_empty()));
        match (said("rope_scaling")?, said("rope_parameters")?) {
            (Some(older), Some(newer)) => {
                let spec = Self::from_section(config, Some(&older), head)?;
                if Self::from_section(config, Some(&newer), head)? != spec {
                    return Err(config.wrong("rope_parameters", "says something else than `rope_scaling`"));
                }
                Ok(spec)
            }
            (section, other) => Self::from_section(config, section.or(other).as_ref(), head),
        }
    }

    fn from_section(config: &Config, section: Option<&Config>, head: &HeadChannels) -> Result<Self, CheckpointError> {
        let theta_of = |table: &Config| table.positive_or("rope_theta", f64::from(DEFAULT_THETA));
        let theta = holder(config, section, "rope_theta").map_or(Ok(f64::from(DEFAULT_THETA)), theta_of)? as f32;
        if theta < 1.0 {
            return Err(config.wrong("rope_theta", format!("is {theta}, less than 1")));
        }
        let rotary = rotary_channels(config, section, head)?;
        let scaling = match section {
            None => RopeScaling::None,
            Some(section) => read_scaling(config, section, theta, rotary)?,
        };
        let spec = Self { theta, rotary, pairs: head.pairs, scaling };
        let angles = spec.frequencies().iter().all(|frequency| *frequency >= 0.0 && (frequency * LAST_POSITION).is_finite());
        let is_usable = angles && spec.amplitude().is_finite() && spec.score_scale().is_finite();
        if !is_usable {
            return Err(section.unwrap_or(config).wrong("factor", "and its companions give no finite frequencies"));
        }
        Ok(spec)
    }

    /// Radians per position of each pair, `[rotary / 2]`.
    pub fn frequencies(&self) -> Vec<f32> {
        let dims = self.rotary as f32;
        let wavelengths = (0..self.rotary / 2).map(|i| self.theta.powf((2 * i) as f32 / dims));
        wavelengths.enumerate().map(|(i, wavelength)| self.scaled(i, wavelength)).collect()
    }

    /// Factor on sines and cosines.
    pub fn amplitude(&self) -> f32 {
        if let RopeScaling::Yarn { amplitude, .. } = self.scaling { amplitude } else { 1.0 }
    }

    /// Factor that DeepSeek's attention puts on its scores.
    pub fn score_scale(&self) -> f32 {
        if let RopeScaling::Yarn { score_scale, .. } = self.scaling { score_scale } else { 1.0 }
    }

    /// The frequency of pair `i`, whose unscaled frequency is `1 / base`.
    fn scaled(&self, i: usize, base: f32) -> f32 {
        let frequency = 1.0 / base;
        match self.scaling {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_tokens } => {
                let wavelength = 2.0 * std::f32::consts::PI / frequency;
                if wavelength > original_tokens / low_frequency_factor {
                    frequency / factor
                } else if wavelength < original_tokens / high_frequency_factor {
                    frequency
                } else {
                    let span = high_frequency_factor - low_frequency_factor;
                    let smooth = (original_tokens / wavelength - low_frequency_factor) / span;
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
            RopeScaling::Yarn { factor, low, high, .. } => {
                let divided = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
                let kept = 1.0 - divided;
                1.0 / (factor * base) * (1.0 - kept) + frequency * kept
            }
        }
    }
}

/// Where a key of the rotary embedding is: in its own table, which decides, or beside it; be it null.
fn holder<'a>(config: &'a Config, section: Option<&'a Config>, key: &str) -> Option<&'a Config> {
    section.into_iter().chain([config]).find(|table| table.has(key))
}

/// Channels of a head that are rotated.
fn rotary_channels(config: &Config, section: Option<&Config>, head: &HeadChannels) -> Result<usize, CheckpointError> {
    const KEY: &str = "partial_rotary_factor";
    let count = head.count;
    let table = holder(config, section, KEY).unwrap_or(config);
    let part = match head.part {
        RotaryPart::Of(default) => table.positive_or(KEY, default)?,
        RotaryPart::Whole => table.optional_positive(KEY)?.unwrap_or(1.0),
    };
    if head.part == RotaryPart::Whole && part != 1.0 {
        let architecture = config.architecture();
        return Err(table.wrong(KEY, format!("is {part}; heads of {architecture} are rotated whole")));
    }
    // Truncated, as transformers does.
    let rotary = (count as f64 * part) as usize;
    if part > 1.0 || rotary == 0 || !rotary.is_multiple_of(2) {
        let why = format!("is {part}, which makes {rotary} of {count} channels rotary; an even number is needed");
        return Err(table.wrong(KEY, why));
    }
    Ok(rotary)
}

fn read_scaling(config: &Config, section: &Config, theta: f32, rotary: usize) -> Result<RopeScaling, CheckpointError> {
    let number = |key: &str| section.positive(key).map(|n| n as f32);
    // The key was called `type` once.
    let key = if section.has("rope_type") { "rope_type" } else { "type" };
    section.refuse_null(&[key])?;
    let kind = section.text(key)?.unwrap_or("default");
    if matches!(kind, "linear" | "llama3") && section.optional_number("mscale_all_dim")?.is_some_and(|scale| scale != 0.0) {
        return Err(section.wrong("mscale_all_dim", format!("is given, and means nothing with {key} {kind}")));
    }
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
        "llama3" => {
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            if low >= high {
                return Err(section.wrong("low_freq_factor", format!("is {low}, not below high_freq_factor {high}")));
            }
            Ok(RopeScaling::Llama3 {
                factor: number("factor")?,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_tokens: original_tokens(config, section)? as f32,
            })
        }
        "yarn" => read_yarn(config, section, theta, rotary),
        other => Err(CheckpointError::unsupported(
            config.path(),
            format!("rope scaling `{other}`"),
            "use a checkpoint with rope scaling default, linear, llama3 or yarn",
        )),
    }
}

/// Tokens of the context before it was stretched. Some configurations say so beside the table as well; there it decides.
fn original_tokens(config: &Config, section: &Config) -> Result<f64, CheckpointError> {
    const KEY: &str = "original_max_position_embeddings";
    let said = section.positive(KEY)?;
    match config.optional_positive(KEY)?.filter(|beside| *beside != said) {
        None => Ok(said),
        Some(beside) => Err(section.wrong(KEY, format!("is {said}, but beside the table it is {beside}"))),
    }
}

fn read_yarn(config: &Config, section: &Config, theta: f32, rotary: usize) -> Result<RopeScaling, CheckpointError> {
    let original = original_tokens(config, section)?;
    // Null: what the context was stretched by. Left out, it is an error to transformers.
    let factor = match section.has("factor") && section.value("factor").is_none() {
        true => config.positive("max_position_embeddings")? / original,
        false => section.positive("factor")?,
    };
    let (mscale, all_dim) = (section.optional_number("mscale")?, section.optional_number("mscale_all_dim")?);
    let said = section.optional_positive("attention_factor")?;
    let amplitude = said.unwrap_or_else(|| match (mscale, all_dim) {
        (Some(mscale), Some(all_dim)) if mscale != 0.0 && all_dim != 0.0 => {
            magnitude(factor, mscale) / magnitude(factor, all_dim)
        }
        _ => magnitude(factor, 1.0),
    });
    let score = all_dim.filter(|all_dim| *all_dim != 0.0).map_or(1.0, |all_dim| magnitude(factor, all_dim).powi(2));
    let (dims, base) = (rotary as f64, f64::from(theta));
    // The channel that turns `rotations` times in the original context.
    let channel = |rotations: f64| dims * (original / (rotations * 2.0 * PI)).ln() / (2.0 * base.ln());
    let fast = section.optional_positive("beta_fast")?.unwrap_or(32.0);
    let slow = section.optional_positive("beta_slow")?.unwrap_or(1.0);
    let (mut low, mut high) = (channel(fast), channel(slow));
    if section.flag("truncate", Flag::On)? {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(dims - 1.0));
    if low == high {
        high += 0.001;
    }
    if theta <= 1.0 || !(low.is_finite() && high.is_finite() && amplitude.is_finite() && score.is_finite()) {
        return Err(section.wrong("factor", "and its companions give no finite frequencies"));
    }
    let [factor, low, high, amplitude, score_scale] = [factor, low, high, amplitude, score].map(|n| n as f32);
    Ok(RopeScaling::Yarn { factor, low, high, amplitude, score_scale })
}

/// YaRN's `mscale`: `0.1 * scale * ln(factor) + 1`.
fn magnitude(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(theta: f32, rotary: usize, scaling: RopeScaling) -> RopeSpec {
        RopeSpec { theta, rotary, pairs: RopePairs::Halves, scaling }
    }

    #[test]
    fn llama3_keeps_short_waves_and_stretches_long_ones() {
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low_frequency_factor: 1.0, high_frequency_factor: 4.0, original_tokens: 64.0 };
        let scaled = |frequency: f32| spec(10_000.0, 2, scaling).scaled(0, 1.0 / frequency);
        // 1.0: wavelength 6.3 < 16, kept. 1/128: 804 > 64, divided. 0.2: 31.4, blended with smooth 0.34568 by hand.
        assert_eq!(scaled(1.0), 1.0);
        assert_eq!(scaled(0.007_812_5), 0.000_976_562_5);
        let smooth = (64.0f64 / (2.0 * PI / 0.2) - 1.0) / 3.0;
        let wanted = (1.0 - smooth) * 0.2 / 8.0 + smooth * 0.2;
        assert!((f64::from(scaled(0.2)) - wanted).abs() < 1e-7);
        assert_eq!(spec(10_000.0, 2, RopeScaling::Linear { factor: 4.0 }).frequencies(), [0.25]);
    }

    /// Values of transformers 5.24's `_compute_yarn_parameters` for theta 50000, 64 channels, factor 64, 4096 tokens.
    #[test]
    fn yarn_keeps_the_first_channels_and_divides_the_last() {
        let text = r#"{"model_type":"x","rope_theta":50000.0,"rope_scaling":{"type":"yarn","factor":64.0,"beta_fast":32.0,
            "beta_slow":1.0,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":4096}}"#;
        let config = Config::from_json(std::path::Path::new("config.json"), text).unwrap();
        let head = HeadChannels { count: 64, pairs: RopePairs::Adjacent, part: RotaryPart::Whole };
        let rope = RopeSpec::read(&config, &head).unwrap();
        let RopeScaling::Yarn { low, high, amplitude, .. } = rope.scaling else { panic!("{rope:?}") };
        assert_eq!((low, high, amplitude), (8.0, 20.0, 1.0));
        let wanted =
            [(0, 1.0), (8, 0.0668740347), (9, 0.0437766574), (19, 0.000158374969), (20, 1.80702336e-5), (31, 4.38220638e-7)];
        for (pair, frequency) in wanted {
            let found = f64::from(rope.frequencies()[pair]);
            assert!((found / frequency - 1.0).abs() < 2e-6, "pair {pair}: {found:e}");
        }
    }
}
