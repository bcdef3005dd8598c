//! Keys of a configuration that put parts into a layer or leave them out, for messages. Each architecture says which it reads;
//! a part that no key of it rules is none of that architecture's.

use crate::Config;
use crate::spec::FeedForwardSpec;

/// Keys that an architecture reads, by what they rule; empty: it has no such choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartKeys {
    /// Projections of attention that have a bias where [`ATTENTION_BIAS`] is true.
    pub(crate) biased: &'static [&'static str],
    /// Whether dense feed-forward layers have biases.
    pub(crate) mlp_bias: &'static [&'static str],
    /// Whether each head's query and key is normed.
    pub(crate) head_norms: &'static [&'static str],
    /// Whether queries are compressed.
    pub(crate) compression: &'static [&'static str],
    /// Which layers have an indexer of their own.
    pub(crate) indexing: &'static [&'static str],
    /// Which layers have experts.
    pub(crate) sparsity: &'static [&'static str],
    /// How many experts are shared.
    pub(crate) shared: &'static [&'static str],
}

const ATTENTION_BIAS: &[&str] = &["attention_bias"];
const EXPERT_PARTS: [&str; 3] = ["mlp.experts.", "mlp.gate.", "mlp.shared_experts."];
const DENSE_PARTS: [&str; 3] = ["mlp.gate_proj.", "mlp.up_proj.", "mlp.down_proj."];

impl PartKeys {
    pub(crate) const NONE: Self =
        Self { biased: &[], mlp_bias: &[], head_norms: &[], compression: &[], indexing: &[], sparsity: &[], shared: &[] };

    /// Keys that turn a part of every layer on or off, by its name within a layer.
    pub(super) fn switching(&self, part: &str) -> &'static [&'static str] {
        let module = part.rsplit_once('.').map_or(part, |(module, _)| module);
        if let Some(projection) = module.strip_prefix("self_attn.") {
            return match projection {
                "q_norm" | "k_norm" => self.head_norms,
                _ if part.ends_with(".bias") && self.biased.contains(&projection) => ATTENTION_BIAS,
                _ if part.ends_with(".bias") => &[],
                "q_proj" | "q_a_proj" | "q_a_layernorm" | "q_b_proj" => self.compression,
                _ => &[],
            };
        }
        let is_dense_bias = part.ends_with(".bias") && DENSE_PARTS.iter().any(|dense| part.starts_with(dense));
        if is_dense_bias { self.mlp_bias } else { &[] }
    }

    /// Keys that leave a part out of a layer.
    pub(super) fn denying(&self, part: &str, feed_forward: &FeedForwardSpec) -> &'static [&'static str] {
        let is_of = |parts: &[&str]| parts.iter().any(|prefix| part.starts_with(prefix));
        let switching = self.switching(part);
        match feed_forward {
            _ if !switching.is_empty() => switching,
            _ if part.starts_with("self_attn.indexer.") => self.indexing,
            FeedForwardSpec::Dense { .. } if is_of(&EXPERT_PARTS) => self.sparsity,
            FeedForwardSpec::Experts(_) if is_of(&DENSE_PARTS) => self.sparsity,
            FeedForwardSpec::Experts(_) if part.starts_with("mlp.experts.") && !part.ends_with(".bias") => super::wanted::EXPERTS,
            FeedForwardSpec::Experts(_) if part.starts_with("mlp.shared_experts.") => self.shared,
            _ => &[],
        }
    }
}

/// Keys with their values, for a message: those that the configuration gives, or the first of all.
pub(super) fn given(config: &Config, keys: &[&str]) -> String {
    let spoken = |key: &&str| Some(format!("`{}` {}", config.spelled(key), config.shown(key)?));
    let given: Vec<String> = keys.iter().filter_map(spoken).collect();
    match (given.as_slice(), keys.first()) {
        ([], Some(first)) => format!("`{}`, which it does not give", config.spelled(first)),
        ([], None) => "its architecture".to_owned(),
        (some, _) => some.join(" and "),
    }
}
