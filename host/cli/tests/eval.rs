//! `millrace eval perplexity` and `eval compare` as an operator meets them: numbers against transformers' logits, cross-stage
//! pairs, other checkpoints, and errors that say what to do. Needs no model but those of the repository.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

fn millrace(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millrace")).args(args).output().expect("the binary runs")
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data").join(name)
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The JSON object on stdout.
fn report(args: &[&str]) -> Value {
    let output = millrace(args);
    assert_eq!(output.status.code(), Some(0), "{}", message(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", message(&output)))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// exp of the mean of -ln p over the tokens after the first, by transformers' logits.
fn reference_perplexity(name: &str) -> f64 {
    let bytes = std::fs::read(fixture(name).join("expected.safetensors")).expect("a file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let (ids, logits) = (file.tensor("ids").expect("ids"), file.tensor("logits").expect("logits"));
    let ids: Vec<usize> =
        ids.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes")) as usize).collect();
    let logits: Vec<f64> =
        logits.data().chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().expect("4 bytes")))).collect();
    let rows = logits.chunks_exact(logits.len() / ids.len()).zip(&ids[1..]);
    let nats: f64 = rows.map(|(row, &id)| row.iter().map(|l| l.exp()).sum::<f64>().ln() - row[id]).sum();
    (nats / (ids.len() - 1) as f64).exp()
}

#[test]
fn perplexity_is_that_of_transformers_in_one_stage_and_in_two() {
    let (model, ids) = (fixture("llama-bf16"), fixture("llama-bf16").join("expected.safetensors"));
    let wanted = reference_perplexity("llama-bf16");
    let base = ["eval", "perplexity", "--model", utf8(&model), "--ids", utf8(&ids), "--json"];
    let whole = report(&base);
    assert_eq!((&whole["tokens"], &whole["decode"]["tokens"]), (&json!(47), &json!(0)));
    assert_eq!(whole["lane"]["precision"], "reference:stored+kv-f32/stored+kv-f32");
    let halves = report(&[&base[..], &["--prefill-tokens", "20", "--decode-kv", "f32"]].concat());
    assert_eq!((&halves["prefill"]["tokens"], &halves["decode"]["tokens"]), (&json!(20), &json!(27)));
    for found in [&whole, &halves] {
        assert!((number(&found["perplexity"]) / wanted - 1.0).abs() < 1e-4, "{found} instead of {wanted}");
        assert!((number(&found["bits_per_token"]) - wanted.log2()).abs() < 1e-3, "{found}");
        assert!(number(&found["tokens_per_second"]) > 0.0, "{found}");
    }
    // Weights of another checkpoint in decode, narrower KV, fast kernels: near, and not the same.
    let decode_model = fixture("llama-int4");
    let lane =
        ["--compute", "fast", "--prefill-weights", "int8", "--decode-model", utf8(&decode_model), "--decode-weights", "int4"];
    let mixed = report(&[&base[..], &lane[..], &["--prefill-kv", "bf16", "--decode-kv", "fp8"]].concat());
    assert_eq!(mixed["lane"]["precision"], "fast:int8+kv-bf16/int4+kv-fp8");
    assert_ne!(mixed["lane"]["prefill_weights_digest"], mixed["lane"]["decode_weights_digest"]);
    let ratio = number(&mixed["perplexity"]) / wanted;
    assert!(ratio != 1.0 && (ratio - 1.0).abs() < 0.05, "{mixed}");
    let text = millrace(&base[..6]);
    assert!(message(&text).contains("47 ") && message(&text).contains("tokens/s"), "{}", message(&text));
}

#[test]
fn compare_tells_how_far_two_precisions_are_apart() {
    let (model, ids) = (fixture("llama-bf16"), fixture("llama-bf16").join("expected.safetensors"));
    let run = |a, b, more: &[&str]| {
        let base = ["eval", "compare", a, b, "--model", utf8(&model), "--ids", utf8(&ids), "--json"];
        report(&[&base[..], more].concat())
    };
    let same = run("bf16", "stored", &[]);
    assert_eq!((number(&same["kl_nat"]["max"]), number(&same["same_top"])), (0.0, 1.0), "{same}");
    assert_eq!((&same["tokens"], &same["decode"]["tokens"], &same["perplexity"]["ratio"]), (&json!(47), &json!(0), &json!(1.0)));

    let lane = run("bf16+kv-bf16", "fast:int8+kv-bf16/int4+kv-fp8", &["--window", "24"]);
    assert_eq!(lane["a"]["precision"], "reference:bf16+kv-bf16/bf16+kv-bf16");
    assert_eq!(lane["b"]["precision"], "fast:int8+kv-bf16/int4+kv-fp8");
    assert_eq!((&lane["prefill"]["tokens"], &lane["decode"]["tokens"]), (&json!(24), &json!(22)));
    let means = [&lane["prefill"], &lane["decode"]].map(|stage| number(&stage["kl_nat"]["mean"]));
    assert!(0.0 < means[0] && means[0] < means[1] && means[1] < 0.05, "4-bit weights and FP8 KV are decode's: {lane}");
    let worst = lane["worst"].as_array().expect("a list");
    assert_eq!(worst.len(), 10);
    assert_eq!(worst[0]["kl_nat"], lane["kl_nat"]["max"]);
    let id = worst[0]["actual"]["id"].as_u64().expect("an id");
    assert_eq!(worst[0]["actual"]["text"], format!("#{id}"), "without a tokenizer a token is shown as its id");

    let other = fixture("llama-int4");
    let other = run("stored", "stored", &["--b-model", utf8(&other)]);
    assert!(number(&other["kl_nat"]["mean"]) > 1e-5, "{other}");
    assert_ne!(other["a"]["prefill_weights_digest"], other["b"]["prefill_weights_digest"]);
    let help = message(&millrace(&["eval", "compare", "--help"]));
    assert!(help.contains("fast:int8+kv-bf16/int4+kv-fp8") && help.contains("KL(A || B)"), "{help}");
    let table = millrace(&["eval", "compare", "bf16", "int8", "--model", utf8(&model), "--ids", utf8(&ids)]);
    for part in ["KL mean", "same top", "worst tokens", "A  reference:bf16+kv-f32", "B's best"] {
        assert!(message(&table).contains(part), "{part} in {}", message(&table));
    }
}

/// The fixture with a tokenizer whose tokens are the 256 bytes, spelled as byte-level BPE spells them.
fn with_byte_tokenizer(name: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture(name).join(file), directory.path().join(file)).expect("copied");
    }
    let plain = |byte: &u32| (33..=126).contains(byte) || (161..=172).contains(byte) || (174..=255).contains(byte);
    let (plain, odd): (Vec<u32>, Vec<u32>) = (0..256).partition(plain);
    let spelled = plain.into_iter().chain((256..).take(odd.len())).filter_map(char::from_u32);
    let vocab: serde_json::Map<String, Value> = spelled.zip(0..).map(|(c, id): (char, u32)| (c.to_string(), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}
    });
    std::fs::write(directory.path().join("tokenizer.json"), tokenizer.to_string()).expect("written");
    directory
}

#[test]
fn a_text_is_tokenized_by_the_checkpoint_and_cut_into_windows() {
    let model = with_byte_tokenizer("llama-bf16");
    let model = utf8(model.path());
    let text = tempfile::NamedTempFile::new().expect("a file");
    // Longer than the context of 512.
    let pangram = "the quick brown fox jumps over the lazy dog. ";
    std::fs::write(text.path(), pangram.repeat(30)).expect("written");
    let base = ["eval", "perplexity", "--model", model, "--text", utf8(text.path()), "--compute", "fast", "--json"];
    let found = report(&base);
    let protocol = &found["protocol"];
    assert_eq!((&protocol["text_tokens"], &protocol["window_tokens"]), (&json!(1350), &json!(512)));
    assert_eq!(found["tokens"], 1350 - 3, "all but the first of each window");
    let once = report(&[&base[..], &["--window", "200", "--stride", "100", "--prefill-tokens", "100"]].concat());
    assert_eq!((&once["tokens"], &once["decode"]["tokens"]), (&json!(1349), &json!(1349 - 100 - 12)), "{once}");
    let compared =
        ["eval", "compare", "bf16", "int4", "--model", model, "--text", utf8(text.path()), "--window", "100", "--json"];
    let compared = report(&compared);
    for worst in compared["worst"].as_array().expect("a list") {
        let before = worst["before"].as_str().expect("text").trim_matches('"');
        assert!(before.len() >= 10 && pangram.repeat(30).contains(before), "{worst}");
        let at = worst["token"].as_u64().expect("a place") as usize;
        assert_eq!(worst["actual"]["text"], format!("{:?}", &pangram.repeat(30)[at..=at]), "a token is a byte here");
    }
}

#[test]
fn errors_name_the_file_and_say_what_to_do() {
    let (model, ids) = (fixture("llama-bf16"), fixture("llama-bf16").join("expected.safetensors"));
    let (model, ids) = (utf8(&model), utf8(&ids));
    let other = fixture("odd-llama");
    let other = utf8(&other);
    let text = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(text.path(), b"\xff\xfe").expect("written");
    let (perplexity, compare) = (["eval", "perplexity", "--model", model], ["eval", "compare", "bf16", "int4", "--model", model]);
    let cases: [(i32, Vec<&str>, &[&str]); 10] = [
        (2, perplexity.to_vec(), &["--text", "--ids"]),
        (2, [&perplexity[..], &["--ids", ids, "--text", ids]].concat(), &["cannot be used with"]),
        (2, [&perplexity[..], &["--ids", ids, "--window", "1"]].concat(), &["--window", "2.."]),
        (2, ["eval", "compare", "int5", "bf16", "--model", model, "--ids", ids].to_vec(), &["`int5` is no recipe"]),
        (1, [&perplexity[..], &["--text", model]].concat(), &[model]),
        (1, [&perplexity[..], &["--text", utf8(text.path())]].concat(), &[utf8(text.path()), "not UTF-8"]),
        (1, [&perplexity[..], &["--text", ids]].concat(), &["UTF-8"]),
        (2, [&perplexity[..], &["--ids", ids, "--prefill-kv", "fp8", "--decode-kv", "bf16"]].concat(), &["keeps or narrows"]),
        (1, [&perplexity[..], &["--ids", ids, "--decode-model", other]].concat(), &[model, other, "not the same model"]),
        (1, [&compare[..], &["--ids", ids, "--b-decode-model", other]].concat(), &[model, other, "not the same model"]),
    ];
    for (code, args, wanted) in cases {
        let output = millrace(&args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", message(&output));
        for part in wanted {
            assert!(message(&output).contains(part), "{args:?}: {part} in {}", message(&output));
        }
    }
    let plain = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(plain.path(), "some text").expect("written");
    let output = millrace(&[&perplexity[..], &["--text", utf8(plain.path())]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(message(&output).contains("no tokenizer") && message(&output).contains("--ids"), "{}", message(&output));
}

/// The digests look at the middle of each tensor, and here the middles are the same.
#[test]
fn checkpoints_that_differ_where_digests_do_not_look_are_two() {
    let original = fixture("llama-bf16");
    let edited = tempfile::tempdir().expect("a directory");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(original.join(file), edited.path().join(file)).expect("copied");
    }
    let path = edited.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("read");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let first = file.tensor("model.embed_tokens.weight").expect("embeddings").data();
    let from = first.as_ptr().addr() - bytes.as_ptr().addr();
    let quarter = first.len() / 4;
    // The signs of the first tokens' vectors.
    bytes[from..from + quarter].iter_mut().skip(1).step_by(2).for_each(|byte| *byte ^= 0x80);
    std::fs::write(&path, bytes).expect("written");
    let ids = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(ids.path(), "[5, 9, 12, 30, 41, 7]").expect("written");
    let args = ["eval", "compare", "bf16", "bf16", "--model", utf8(&original), "--b-model", utf8(edited.path())];
    let found = report(&[&args[..], &["--ids", utf8(ids.path()), "--json"]].concat());
    assert_eq!(found["a"]["prefill_weights_digest"], found["b"]["prefill_weights_digest"], "{found}");
    assert!(number(&found["kl_nat"]["max"]) > 0.0, "{found}");
}

#[test]
fn a_tokenizer_that_differs_is_said() {
    let (first, second) = (with_byte_tokenizer("llama-bf16"), with_byte_tokenizer("llama-int4"));
    // The ids of two letters change places.
    let path = second.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).expect("read")).expect("JSON");
    let vocab = &mut tokenizer["model"]["vocab"];
    let (a, b) = (vocab["a"].clone(), vocab["b"].clone());
    (vocab["a"], vocab["b"]) = (b, a);
    std::fs::write(&path, tokenizer.to_string()).expect("written");
    let text = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(text.path(), "abba and a cab").expect("written");
    let args =
        ["eval", "perplexity", "--model", utf8(first.path()), "--decode-model", utf8(second.path()), "--text", utf8(text.path())];
    let output = millrace(&args);
    assert_eq!(output.status.code(), Some(0), "{}", message(&output));
    assert!(message(&output).contains("its tokenizer differs"), "{}", message(&output));
}
