//! Parts of specifications in plain words, for the message of two checkpoints that disagree. Compares nothing. A part that
//! is left out here would go unseen, so every structure is taken apart by name.

use millrace_ops::{RopePairs, RouteRule, RouteScoring};

use crate::spec::{ExpertsSpec, FeedForwardSpec, GroupedQuerySpec, IndexerSpec, LatentSpec, RopeScaling, RopeSpec};

/// What a part is called, and its values.
pub(super) type Part = (&'static str, Vec<String>);

fn yes(flag: bool) -> &'static str {
    if flag { "yes" } else { "no" }
}

fn part(what: &'static str, value: impl ToString) -> Part {
    (what, vec![value.to_string()])
}

pub(super) fn grouped_query(spec: GroupedQuerySpec) -> [Part; 7] {
    let GroupedQuerySpec { heads, kv_heads, head_dim, rope, input_bias, output_bias, head_norms } = spec;
    [
        part("number of attention heads", heads),
        part("number of KV heads", kv_heads),
        part("width of a head", head_dim),
        ("rotary embedding", rotary(rope)),
        part("bias of q, k and v", yes(input_bias)),
        part("bias of o", yes(output_bias)),
        part("norm of heads", yes(head_norms)),
    ]
}

pub(super) fn latent(spec: LatentSpec) -> [Part; 7] {
    let LatentSpec { heads, query_rank, latent, plain, rotary: rotated, value, rope, bias, indexer } = spec;
    let rank = query_rank.map_or_else(|| "none (they are not compressed)".to_owned(), |rank| rank.to_string());
    [
        part("number of attention heads", heads),
        part("width of latents", latent),
        part("width of compressed queries", rank),
        part("widths of a head (plain, rotary, value)", format!("{plain}, {rotated} and {value}")),
        ("rotary embedding", rotary(rope)),
        part("bias of attention", yes(bias)),
        ("indexer", indexer.map_or_else(|| vec!["none".to_owned()], indexing)),
    ]
}

fn rotary(spec: RopeSpec) -> Vec<String> {
    let RopeSpec { theta, rotary, pairs, scaling } = spec;
    vec![format!("base {theta}"), format!("{rotary} channels"), paired(pairs).to_owned(), scaled(scaling)]
}

fn paired(pairs: RopePairs) -> &'static str {
    match pairs {
        RopePairs::Adjacent => "neighbours paired",
        RopePairs::Halves => "halves paired",
    }
}

fn scaled(scaling: RopeScaling) -> String {
    match scaling {
        RopeScaling::None => "no scaling".to_owned(),
        RopeScaling::Linear { factor } => format!("linear scaling by {factor}"),
        RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_tokens } => format!(
            "llama3 scaling by {factor} (low {low_frequency_factor}, high {high_frequency_factor}, {original_tokens} tokens)"
        ),
        RopeScaling::Yarn { factor, low, high, amplitude, score_scale } => {
            format!("yarn scaling by {factor} (channels {low} to {high}, amplitude {amplitude}, scores times {score_scale})")
        }
    }
}

fn indexing(spec: IndexerSpec) -> Vec<String> {
    let IndexerSpec { heads, width, limit, pairs } = spec;
    vec![format!("{heads} heads"), format!("{width} wide"), format!("{limit} tokens chosen"), paired(pairs).to_owned()]
}

pub(super) fn feed_forward(spec: FeedForwardSpec) -> Vec<String> {
    match spec {
        FeedForwardSpec::Dense { intermediate, bias } => {
            let biases = if bias { "with biases" } else { "without biases" };
            vec!["dense".to_owned(), format!("{intermediate} wide"), biases.to_owned()]
        }
        FeedForwardSpec::Experts(experts) => of_experts(experts),
    }
}

fn of_experts(spec: ExpertsSpec) -> Vec<String> {
    let ExpertsSpec { experts, top_k, intermediate, shared_intermediate, rule, correction_bias } = spec;
    let RouteRule { scoring, groups, top_groups, normalize, scale } = rule;
    let shared = match shared_intermediate {
        0 => "none shared".to_owned(),
        width => format!("a shared one {width} wide"),
    };
    let scores = match scoring {
        RouteScoring::Softmax => "softmax scores",
        RouteScoring::Sigmoid => "sigmoid scores",
    };
    vec![
        format!("{experts} experts"),
        format!("{top_k} per token"),
        format!("{intermediate} wide"),
        shared,
        scores.to_owned(),
        format!("{top_groups} of {groups} groups"),
        format!("weights {}normalized", if normalize { "" } else { "not " }),
        format!("weights times {scale}"),
        format!("{} correction bias", if correction_bias { "a" } else { "no" }),
    ]
}
