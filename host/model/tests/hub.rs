//! Hub directories: shards, the small files beside the weights, FP8 and packed INT4 tensors.

mod common;

use std::path::Path;

use common::{Lcg, cpu, distance, expected, fixture};
use half::bf16;
use millrace_core::StageRecipe;
use millrace_cpu::CpuCompute;
use millrace_model::eval::{EvalOptions, logits};
use millrace_model::spec::AttentionSpec;
use millrace_model::{Checkpoint, TokenizerSource, WeightCache, load, spec_of};
use millrace_ops::TensorFormat;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

#[test]
fn shards_give_the_same_model_as_one_file() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(fixture("llama-int4").join("model.safetensors")).unwrap();
    let mut tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    // Every third tensor in another file, so that codes and scales of one weight lie apart.
    let mut map = serde_json::Map::new();
    for part in 0..3 {
        let name = format!("model-{part}.safetensors");
        let shard: Vec<_> = tensors.iter().skip(part).step_by(3).cloned().collect();
        shard.iter().for_each(|(tensor, _)| _ = map.insert(tensor.clone(), name.clone().into()));
        std::fs::write(directory.path().join(&name), safetensors::serialize(shard, None).unwrap()).unwrap();
    }
    let index = serde_json::json!({ "metadata": { "total_size": 0 }, "weight_map": map });
    std::fs::write(directory.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    std::fs::copy(fixture("llama-int4").join("config.json"), directory.path().join("config.json")).unwrap();

    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert!(checkpoint.summary().contains("3 file(s), LlamaForCausalLM, 49 tensors"), "{}", checkpoint.summary());
    let (backend, wanted) = (cpu(CpuCompute::Reference), expected(&fixture("llama-int4")));
    let model = load(&checkpoint, &backend, StageRecipe::Stored, &mut WeightCache::new()).unwrap();
    let out = logits(&*model, &backend, &wanted.ids, EvalOptions::default()).unwrap();
    assert!(distance(&out, &wanted.logits) <= 2e-5);
}

#[test]
fn formats_are_per_tensor() {
    for (name, projection) in [("llama-fp8", TensorFormat::Fp8Block), ("llama-int4", TensorFormat::Int4Group)] {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        assert!(checkpoint.is_quantized());
        for module in ["self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"] {
            let tensor = format!("model.layers.1.{module}.weight");
            let view = checkpoint.tensor(&tensor).unwrap();
            assert_eq!((view.name, view.format()), (tensor.as_str(), projection));
            assert!(checkpoint.has_tensor(&tensor));
        }
        assert_eq!(checkpoint.tensor("lm_head.weight").unwrap().format(), TensorFormat::Bf16);
        assert!(!checkpoint.has_tensor("model.layers.2.mlp.up_proj.weight"));
    }
    let checkpoint = Checkpoint::open(&fixture("llama-bf16")).unwrap();
    assert!(!checkpoint.is_quantized());
    let spec = spec_of(checkpoint.config()).unwrap();
    assert_eq!((spec.layers.len(), spec.hidden, spec.vocab, spec.max_tokens), (2, 128, 256, 512));
    let AttentionSpec::GroupedQuery(attention) = spec.attention else { panic!("{spec:?}") };
    assert_eq!((attention.kv_heads, attention.head_dim), (2, 32));
}

/// A directory with the fixture's weights and the given small files.
fn with_files(files: &[(&str, &str)]) -> (tempfile::TempDir, Checkpoint) {
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("llama-bf16").join(file), directory.path().join(file)).unwrap();
    }
    files.iter().for_each(|(name, text)| std::fs::write(directory.path().join(name), text).unwrap());
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    (directory, checkpoint)
}

#[test]
fn the_small_files_beside_the_weights() {
    let (_directory, plain) = with_files(&[]);
    assert_eq!((plain.tokenizer().unwrap(), plain.chat_template()), (TokenizerSource::Missing, None));
    assert_eq!(plain.eos_tokens(), [2], "from config.json");

    let (directory, full) = with_files(&[
        ("generation_config.json", r#"{"eos_token_id":[7,9]}"#),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", r#"{"chat_template":"from config"}"#),
    ]);
    assert_eq!((full.eos_tokens(), full.chat_template()), ([7, 9].as_slice(), Some("from config")));
    let at = |name: &str| directory.path().join(name);
    let (tokenizer_json, tokenizer_config) = (at("tokenizer.json"), Some(at("tokenizer_config.json")));
    assert_eq!(full.tokenizer().unwrap(), TokenizerSource::Files { tokenizer_json, tokenizer_config });

    let named = r#"{"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]}"#;
    assert_eq!(with_files(&[("tokenizer_config.json", named)]).1.chat_template(), Some("d"));
    let both = [("tokenizer_config.json", named), ("chat_template.jinja", "own file")];
    assert_eq!(with_files(&both).1.chat_template(), Some("own file"));
    assert_eq!(with_files(&[("tokenizer.json", "{}")]).1.digest(), plain.digest(), "the tokenizer is no part of the weights");
}

#[test]
fn the_digest_tells_the_fixtures_apart() {
    let own = common::fixtures().into_iter().filter(|path| path.starts_with(fixture("")));
    let mut digests: Vec<String> = own.map(|path| Checkpoint::open(&path).unwrap().digest().to_owned()).collect();
    let count = digests.len();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), count);
}

/// The BF16 fixture with random biases on the attention's or the MLP's projections.
fn biased(flag: &str, directory: &Path) -> Checkpoint {
    let bytes = std::fs::read(fixture("llama-bf16").join("model.safetensors")).unwrap();
    let mut tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let modules = if flag == "attention_bias" { "self_attn" } else { "mlp" };
    let mut lcg = Lcg(3);
    let biases: Vec<(String, Vec<u8>)> = tensors
        .iter()
        .filter(|(name, _)| name.contains(modules))
        .map(|(name, view)| {
            let values = (0..view.shape()[0]).flat_map(|_| bf16::from_f32(lcg.real()).to_le_bytes()).collect();
            (name.replace(".weight", ".bias"), values)
        })
        .collect();
    for (name, values) in &biases {
        tensors.push((name.clone(), TensorView::new(Dtype::BF16, vec![values.len() / 2], values).unwrap()));
    }
    std::fs::write(directory.join("model.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
    let config = std::fs::read_to_string(fixture("llama-bf16").join("config.json")).unwrap();
    let (from, to) = (format!("\"{flag}\": false"), format!("\"{flag}\": true"));
    assert!(config.contains(&from));
    std::fs::write(directory.join("config.json"), config.replace(&from, &to)).unwrap();
    Checkpoint::open(directory).unwrap()
}

#[test]
fn biases_reach_the_logits_and_missing_ones_are_errors() {
    let (backend, wanted) = (cpu(CpuCompute::Reference), expected(&fixture("llama-bf16")));
    for (flag, missing) in [("attention_bias", "self_attn.o_proj.bias"), ("mlp_bias", "mlp.up_proj.bias")] {
        let directory = tempfile::tempdir().unwrap();
        let checkpoint = biased(flag, directory.path());
        let model = load(&checkpoint, &backend, StageRecipe::Stored, &mut WeightCache::new()).unwrap();
        let out = logits(&*model, &backend, &wanted.ids, EvalOptions::default()).unwrap();
        assert!(distance(&out, &wanted.logits) > 1e-2, "{flag}");
        assert!(checkpoint.has_tensor(&format!("model.layers.0.{missing}")));
        std::fs::copy(fixture("llama-bf16").join("model.safetensors"), directory.path().join("model.safetensors")).unwrap();
        let without = Checkpoint::open(directory.path()).unwrap();
        let error = load(&without, &backend, StageRecipe::Stored, &mut WeightCache::new()).err().unwrap().to_string();
        assert!(error.contains(".bias"), "{error}");
    }
}

/// A copy of a fixture with other tensors and another configuration.
fn altered(name: &str, tensors: impl Fn(&mut Vec<(String, Vec<usize>, Vec<u8>)>), config: (&str, &str)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(fixture(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut list: Vec<(String, Vec<usize>, Vec<u8>)> =
        file.tensors().into_iter().map(|(name, view)| (name, view.shape().to_vec(), view.data().to_vec())).collect();
    tensors(&mut list);
    let views = list.iter().map(|(name, shape, data)| (name, TensorView::new(Dtype::BF16, shape.clone(), data).unwrap()));
    std::fs::write(directory.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let text = std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
    assert!(text.contains(config.0), "{text}");
    std::fs::write(directory.path().join("config.json"), text.replace(config.0, config.1)).unwrap();
    directory
}

/// transformers uses a head that is stored, whatever the configuration says of tying.
#[test]
fn a_stored_head_is_used_even_where_the_config_calls_it_tied() {
    let tied = (r#""tie_word_embeddings": false"#, r#""tie_word_embeddings": true"#);
    let directory = altered("llama-bf16", |_| {}, tied);
    let (backend, wanted) = (cpu(CpuCompute::Reference), expected(&fixture("llama-bf16")));
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let model = load(&checkpoint, &backend, StageRecipe::Stored, &mut WeightCache::new()).unwrap();
    let out = logits(&*model, &backend, &wanted.ids, EvalOptions::default()).unwrap();
    assert!(distance(&out, &wanted.logits) <= 2e-5);
}

#[test]
fn more_layers_than_the_config_counts_are_refused() {
    let fewer = (r#""num_hidden_layers": 2"#, r#""num_hidden_layers": 1"#);
    let directory = altered("llama-bf16", |_| {}, fewer);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let loaded = load(&checkpoint, &cpu(CpuCompute::Reference), StageRecipe::Stored, &mut WeightCache::new());
    let message = loaded.err().unwrap().to_string();
    assert!(message.contains("model.layers.1.") && message.contains("num_hidden_layers"), "{message}");
}

#[test]
fn logits_that_are_no_numbers_are_errors() {
    let spoil = |tensors: &mut Vec<(String, Vec<usize>, Vec<u8>)>| {
        let norm = tensors.iter_mut().find(|(name, ..)| name == "model.layers.0.input_layernorm.weight").unwrap();
        norm.2[..2].copy_from_slice(&bf16::NAN.to_le_bytes());
    };
    let directory = altered("llama-bf16", spoil, ("{", "{"));
    let backend = cpu(CpuCompute::Reference);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let model = load(&checkpoint, &backend, StageRecipe::Stored, &mut WeightCache::new()).unwrap();
    let message = logits(&*model, &backend, &[1, 2, 3], EvalOptions::default()).unwrap_err().to_string();
    assert!(message.contains("NaN"), "{message}");
    assert!(millrace_model::eval::greedy(&*model, &backend, &[1, 2, 3], 2, EvalOptions::default()).is_err());
}
