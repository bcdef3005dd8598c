//! Configurations of every architecture against what they must come to, old keys and new, and against impossible values.

use std::path::Path;

use millrace_ops::{RopePairs, RouteScoring};

use super::*;
use crate::spec::{
    AttentionSpec, ExpertsSpec, FeedForwardSpec, GroupedQuerySpec, IndexerSpec, Indexing, LatentSpec, RopeScaling,
};

const LLAMA: &str = r#""architectures":["LlamaForCausalLM"],"hidden_size":64,"num_attention_heads":4,"num_key_value_heads":2,
    "intermediate_size":96,"num_hidden_layers":2,"vocab_size":100,"max_position_embeddings":512"#;

/// The text core of Kimi K2.6, as far as its shape goes.
const KIMI: &str = r#""model_type":"kimi_k2","hidden_size":7168,"num_hidden_layers":61,"first_k_dense_replace":1,"intermediate_size":18432,
    "moe_intermediate_size":2048,"n_routed_experts":384,"n_shared_experts":1,"num_experts_per_tok":8,"num_attention_heads":64,
    "q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"rms_norm_eps":1e-5,
    "rope_theta":50000.0,"rope_scaling":{"type":"yarn","factor":64.0,"original_max_position_embeddings":4096,"beta_fast":32.0,
    "beta_slow":1.0,"mscale":1.0,"mscale_all_dim":1.0},"max_position_embeddings":262144,"scoring_func":"sigmoid",
    "topk_method":"noaux_tc","norm_topk_prob":true,"n_group":1,"topk_group":1,"routed_scaling_factor":2.827,"vocab_size":163840,
    "num_nextn_predict_layers":0,"tie_word_embeddings":false"#;

const GLM: &str = r#""model_type":"glm_moe_dsa","hidden_size":6144,"num_hidden_layers":78,"first_k_dense_replace":3,
    "intermediate_size":12288,"moe_intermediate_size":2048,"n_routed_experts":256,"n_shared_experts":1,"num_experts_per_tok":8,
    "num_attention_heads":64,"q_lora_rank":2048,"kv_lora_rank":512,"qk_nope_head_dim":192,"qk_rope_head_dim":64,
    "v_head_dim":256,"rope_parameters":{"rope_theta":8000000,"rope_type":"default"},"max_position_embeddings":1048576,
    "index_topk":2048,"index_head_dim":128,"index_n_heads":32,"index_topk_freq":4,"index_skip_topk_offset":3,
    "routed_scaling_factor":2.5,"vocab_size":154880,"num_nextn_predict_layers":1"#;

/// On top of [`LLAMA`].
const GLM_4: &str = r#","architectures":["Glm4MoeForCausalLM"],"moe_intermediate_size":32,"n_routed_experts":8,
    "num_experts_per_tok":2"#;

fn read(base: &str, more: &str) -> Result<ModelSpec, ModelError> {
    // Later duplicates win in JSON, so `more` can spoil or replace a value.
    spec_of(&Config::from_json(Path::new("config.json"), &format!("{{{base}{more}}}")).unwrap())
}

fn grouped_query(spec: &ModelSpec) -> GroupedQuerySpec {
    let AttentionSpec::GroupedQuery(attention) = spec.attention else { panic!("{:?}", spec.attention) };
    attention
}

fn latent(spec: &ModelSpec) -> LatentSpec {
    let AttentionSpec::Latent(attention) = spec.attention else { panic!("{:?}", spec.attention) };
    attention
}

fn experts(spec: &ModelSpec, layer: usize) -> Option<ExpertsSpec> {
    match spec.layers[layer].feed_forward {
        FeedForwardSpec::Dense { .. } => None,
        FeedForwardSpec::Experts(experts) => Some(experts),
    }
}

#[test]
fn old_and_new_rope_keys_mean_the_same() {
    let values = r#""rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
        "original_max_position_embeddings":64"#;
    let old = read(LLAMA, &format!(r#","rope_theta":500000.0,"rope_scaling":{{{values}}}"#)).unwrap();
    let new = read(LLAMA, &format!(r#","rope_parameters":{{"rope_theta":500000.0,{values}}}"#)).unwrap();
    assert_eq!(old, new);
    let rope = grouped_query(&old).rope;
    assert_eq!(rope.theta, 500_000.0);
    assert!(matches!(rope.scaling, RopeScaling::Llama3 { .. }));
    assert_eq!(grouped_query(&read(LLAMA, r#","rope_theta":1e5,"rope_scaling":null"#).unwrap()).rope.theta, 1e5);
    assert_eq!(grouped_query(&read(LLAMA, "").unwrap()).rope.theta, 10_000.0);
    let part = read(LLAMA, &format!(r#"{GLM_4},"partial_rotary_factor":0.25"#)).unwrap();
    assert_eq!(part, read(LLAMA, &format!(r#"{GLM_4},"rope_parameters":{{"partial_rotary_factor":0.25}}"#)).unwrap());
    assert_eq!(grouped_query(&part).rope.rotary, 4);
    // The table's own value decides, as does the older table, which may say the same again.
    let both = r#","rope_theta":3,"rope_parameters":{"rope_theta":1e5},"rope_scaling":{"rope_theta":1e5}"#;
    assert_eq!(grouped_query(&read(LLAMA, both).unwrap()).rope.theta, 1e5);
    assert_eq!(grouped_query(&read(LLAMA, r#","rope_theta":1e5,"rope_parameters":{}"#).unwrap()).rope.theta, 1e5);
}

/// What transformers 5.24 takes where a configuration leaves a key out.
#[test]
fn keys_that_are_left_out() {
    let without = |base: &str, keys: &[&str]| {
        let mut config: serde_json::Value = serde_json::from_str(&format!("{{{base}}}")).unwrap();
        keys.iter().for_each(|key| _ = config.as_object_mut().unwrap().remove(*key));
        spec_of(&Config::from_json(Path::new("config.json"), &config.to_string()).unwrap()).unwrap()
    };
    let routing =
        ["n_group", "topk_group", "routed_scaling_factor", "norm_topk_prob", "first_k_dense_replace", "n_shared_experts"];
    let deepseek = without(KIMI, &routing);
    let found = experts(&deepseek, 3).unwrap();
    assert_eq!((found.rule.groups, found.rule.top_groups, found.rule.scale, found.rule.normalize), (8, 4, 2.5, true));
    assert_eq!((experts(&deepseek, 2), found.shared_intermediate), (None, 2048));
    let glm = without(GLM, &routing);
    let found = experts(&glm, 3).unwrap();
    assert_eq!((found.rule.groups, found.rule.top_groups, found.rule.scale, found.rule.normalize), (1, 1, 2.5, true));
    assert_eq!((experts(&glm, 2), found.shared_intermediate, glm.norm_eps), (None, 2048, 1e-5));
    let glm_4 = read(LLAMA, GLM_4).unwrap();
    let found = experts(&glm_4, 1).unwrap();
    assert_eq!((found.rule.groups, found.rule.scale, found.rule.normalize), (1, 1.0, true));
    assert_eq!((experts(&glm_4, 0), found.shared_intermediate, glm_4.norm_eps), (None, 32, 1e-5));
    // Half of each head is rotated.
    assert_eq!(grouped_query(&glm_4).rope.rotary, 8);
    assert_eq!(read(LLAMA, "").unwrap().norm_eps, 1e-6);
    // Qwen3's heads are 128 wide, those of its mixture of experts hidden / heads.
    let moe = r#","architectures":["Qwen3MoeForCausalLM"],"num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":32"#;
    assert_eq!(grouped_query(&read(LLAMA, moe).unwrap()).head_dim, 16);
}

/// An indexer chooses no more tokens than a context has, so that nothing is made for more.
#[test]
fn indexers_choose_no_more_than_a_context() {
    let limit = |more: &str| latent(&read(GLM, more).unwrap()).indexer.unwrap().limit;
    assert_eq!(limit(r#","index_topk":16777216"#), 1_048_576);
    assert_eq!(limit(r#","index_topk":2048,"max_position_embeddings":512"#), 512);
}

#[test]
fn llama_defaults_and_head_dim() {
    let plain = read(LLAMA, "").unwrap();
    let attention = grouped_query(&plain);
    assert_eq!((attention.head_dim, attention.query_width(), attention.key_width()), (16, 64, 32));
    assert!(!plain.tied_head && !attention.input_bias && !attention.output_bias && !attention.head_norms);
    let apart = read(LLAMA, r#","head_dim":32,"tie_word_embeddings":true,"attention_bias":true"#).unwrap();
    let attention = grouped_query(&apart);
    assert_eq!((attention.head_dim, attention.query_width()), (32, 128));
    assert!(apart.tied_head && attention.input_bias && attention.output_bias);
    let nulls = r#","head_dim":null,"num_key_value_heads":null,"rope_scaling":null,"rope_parameters":null"#;
    let attention = grouped_query(&read(LLAMA, nulls).unwrap());
    assert_eq!((attention.head_dim, attention.kv_heads), (16, 4));
}

#[test]
fn the_qwen_family() {
    let qwen2 = grouped_query(&read(LLAMA, r#","architectures":["Qwen2ForCausalLM"]"#).unwrap());
    assert!(qwen2.input_bias && !qwen2.output_bias && !qwen2.head_norms);
    let qwen3 = grouped_query(&read(LLAMA, r#","architectures":["Qwen3ForCausalLM"]"#).unwrap());
    assert!(qwen3.head_norms && !qwen3.input_bias && qwen3.head_dim == 128);
    let moe = r#","architectures":["Qwen3MoeForCausalLM"],"num_hidden_layers":4,"num_experts":8,"num_experts_per_tok":2,
        "moe_intermediate_size":32,"decoder_sparse_step":2,"mlp_only_layers":[3],"norm_topk_prob":true"#;
    let spec = read(LLAMA, moe).unwrap();
    let sparse: Vec<bool> = (0..4).map(|layer| experts(&spec, layer).is_some()).collect();
    assert_eq!(sparse, [false, true, false, false]);
    let found = experts(&spec, 1).unwrap();
    assert_eq!((found.experts, found.top_k, found.intermediate, found.shared_intermediate), (8, 2, 32, 0));
    assert!(found.rule.normalize && found.rule.scoring == RouteScoring::Softmax && !found.correction_bias);
}

#[test]
fn kimi_k2_and_its_wrapper() {
    let spec = read(KIMI, "").unwrap();
    let attention = latent(&spec);
    assert_eq!((attention.width(), attention.query_dim(), attention.query_rank), (576, 192, Some(1536)));
    assert_eq!(attention.rope.pairs, RopePairs::Adjacent);
    // 1 / sqrt(192) * (0.1 * ln(64) + 1)^2, and sines and cosines unscaled.
    let wanted = (0.1 * 64f64.ln() + 1.0).powi(2) / 192f64.sqrt();
    assert!((f64::from(attention.scale()) - wanted).abs() < 1e-7);
    assert_eq!(attention.rope.amplitude(), 1.0);
    assert_eq!((experts(&spec, 0), spec.layers.len()), (None, 61));
    let found = experts(&spec, 60).unwrap();
    assert_eq!((found.experts, found.top_k, found.shared_intermediate, found.rule.scale), (384, 8, 2048, 2.827));
    assert!(found.correction_bias && spec.skipped.is_empty());
    let wrapped = format!(r#""model_type":"kimi_k25","vision_config":{{}},"text_config":{{{KIMI}}}"#);
    let inner = read(&wrapped, "").unwrap();
    assert!(inner.skipped.len() == 1 && inner.skipped[0].contains("vision"));
    assert_eq!(ModelSpec { skipped: Vec::new(), ..inner }, spec);
    let message = read(&wrapped.replace(r#""kv_lora_rank":512"#, r#""kv_lora_rank":0"#), "").unwrap_err().to_string();
    assert!(message.contains("text_config.kv_lora_rank"), "{message}");
}

#[test]
fn deepseek_v3_groups_its_experts() {
    let more = r#","model_type":"deepseek_v3","n_group":8,"topk_group":4,"num_nextn_predict_layers":1,"rope_interleave":false"#;
    let spec = read(KIMI, more).unwrap();
    let rule = experts(&spec, 5).unwrap().rule;
    assert_eq!((rule.groups, rule.top_groups, rule.scoring), (8, 4, RouteScoring::Sigmoid));
    assert_eq!(spec.prediction_layers, 1);
    assert!(spec.skipped[0].contains("multi-token prediction"));
    assert_eq!(latent(&spec).rope.pairs, RopePairs::Halves);
    assert_eq!(latent(&read(KIMI, r#","q_lora_rank":null"#).unwrap()).query_rank, None);
}

#[test]
fn glm_4_rotates_half_of_its_heads() {
    let more = r#","architectures":["Glm4MoeForCausalLM"],"rope_parameters":{"rope_theta":1e4,"partial_rotary_factor":0.5},
        "use_qk_norm":true,"attention_bias":true,"moe_intermediate_size":32,"n_routed_experts":8,"num_experts_per_tok":2,
        "first_k_dense_replace":1,"n_shared_experts":1"#;
    let spec = read(LLAMA, more).unwrap();
    let attention = grouped_query(&spec);
    assert_eq!((attention.rope.rotary, attention.head_norms, attention.input_bias), (8, true, true));
    assert!(!attention.output_bias && experts(&spec, 0).is_none() && experts(&spec, 1).is_some());
}

/// 21 full and 57 shared layers: 0, 1, 2, 6, 10 .. 74.
#[test]
fn glm_5_2_shares_its_indexers() {
    let spec = read(GLM, "").unwrap();
    let full = |spec: &ModelSpec| -> Vec<usize> {
        (0..spec.layers.len()).filter(|layer| spec.layers[*layer].indexing == Indexing::Full).collect()
    };
    let wanted: Vec<usize> = [0, 1].into_iter().chain((2..78).step_by(4)).collect();
    assert_eq!((full(&spec), spec.full_layers()), (wanted, 21));
    let indexer = IndexerSpec { heads: 32, width: 128, limit: 2048, pairs: RopePairs::Adjacent };
    assert_eq!((latent(&spec).indexer, latent(&spec).query_dim()), (Some(indexer), 256));
    assert_eq!((0..78).filter(|layer| experts(&spec, *layer).is_some()).count(), 75);
    // GLM-5: every layer indexes for itself.
    assert_eq!(read(GLM, r#","index_topk_freq":1"#).unwrap().full_layers(), 78);
    let listed = read(GLM, r#","num_hidden_layers":3,"indexer_types":["full","shared","full"]"#).unwrap();
    assert_eq!(full(&listed), [0, 2]);
    assert_eq!(full(&read(GLM, r#","num_hidden_layers":3,"index_topk_pattern":"FSSF""#).unwrap()), [0]);
    let layout = spec.kv_layout(KvFormat::Fp8, 64);
    assert_eq!((layout.planes[0].layers, layout.planes[1].layers, layout.planes[1].width), (78, 21, 128));
}

#[test]
fn impossible_values_name_their_key() {
    let cases = [
        (LLAMA, r#","num_attention_heads":0"#, "num_attention_heads"),
        (LLAMA, r#","num_attention_heads":65536"#, "num_attention_heads"),
        (LLAMA, r#","num_key_value_heads":3"#, "num_key_value_heads"),
        (LLAMA, r#","num_key_value_heads":8"#, "num_key_value_heads"),
        (LLAMA, r#","num_hidden_layers":1000000"#, "num_hidden_layers"),
        (LLAMA, r#","hidden_size":63"#, "hidden_size"),
        (LLAMA, r#","head_dim":7"#, "head_dim"),
        (LLAMA, r#","rms_norm_eps":0"#, "rms_norm_eps"),
        (LLAMA, r#","vocab_size":-1"#, "vocab_size"),
        (LLAMA, r#","hidden_act":"gelu""#, "gelu"),
        (LLAMA, r#","layer_types":["sliding_attention","full_attention"]"#, "sliding"),
        (LLAMA, r#","use_sliding_window":true,"sliding_window":128,"max_window_layers":1"#, "sliding"),
        (LLAMA, r#","rope_scaling":{"type":"longrope","factor":4}"#, "longrope"),
        (LLAMA, r#","rope_scaling":{"type":"yarn","factor":4}"#, "rope_scaling.original_max_position_embeddings"),
        (LLAMA, r#","rope_scaling":{"rope_type":"llama3"}"#, "rope_scaling.low_freq_factor"),
        (LLAMA, r#","rope_parameters":{"rope_theta":"x"}"#, "rope_parameters.rope_theta"),
        (LLAMA, r#","rope_parameters":{"rope_theta":null}"#, "rope_parameters.rope_theta"),
        (LLAMA, r#","rms_norm_eps":null"#, "rms_norm_eps"),
        (LLAMA, r#","rope_theta":null"#, "rope_theta"),
        (LLAMA, r#","hidden_act":null"#, "hidden_act"),
        (LLAMA, r#","tie_word_embeddings":null"#, "tie_word_embeddings"),
        (LLAMA, r#","rope_parameters":{"partial_rotary_factor":0.01}"#, "partial_rotary_factor"),
        (LLAMA, r#","partial_rotary_factor":2"#, "partial_rotary_factor"),
        (LLAMA, r#","architectures":["MambaForCausalLM"]"#, "MambaForCausalLM"),
        (KIMI, r#","num_key_value_heads":8"#, "num_key_value_heads"),
        (KIMI, r#","qk_rope_head_dim":63"#, "qk_rope_head_dim"),
        (KIMI, r#","kv_lora_rank":268435456"#, "kv_lora_rank"),
        (KIMI, r#","num_experts_per_tok":385"#, "num_experts_per_tok"),
        (KIMI, r#","n_group":5"#, "n_group"),
        (KIMI, r#","n_group":128,"topk_group":2"#, "topk_group"),
        (KIMI, r#","n_routed_experts":100000"#, "n_routed_experts"),
        (KIMI, r#","scoring_func":"softmax""#, "scoring_func"),
        (KIMI, r#","topk_method":"greedy""#, "topk_method"),
        (KIMI, r#","n_shared_experts":100000000"#, "n_shared_experts"),
        (KIMI, r#","first_k_dense_replace":-1"#, "first_k_dense_replace"),
        (GLM, r#","q_lora_rank":null"#, "q_lora_rank"),
        (GLM, r#","index_head_dim":32"#, "index_head_dim"),
        (GLM, r#","index_topk":0"#, "index_topk"),
        (GLM, r#","indexer_types":["full"]"#, "indexer_types"),
        (GLM, r#","num_hidden_layers":1,"indexer_types":["shared"]"#, "indexer_types"),
        (GLM, r#","num_hidden_layers":1,"indexer_types":["none"]"#, "indexer_types"),
        (GLM, r#","mlp_layer_types":["dense"]"#, "mlp_layer_types"),
        (GLM, r#","num_hidden_layers":2,"mlp_layer_types":["dense","dense","sparse"]"#, "mlp_layer_types"),
    ];
    for (base, more, named) in cases {
        let message = read(base, more).unwrap_err().to_string();
        assert!(message.contains(named), "{more}: {message}");
    }
}
