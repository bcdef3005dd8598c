//! The hub's files: hand-made tokenizer.json with byte-level and with SentencePiece spelling, and files that are wrong.

use std::path::PathBuf;
use std::sync::Arc;

use millrace_tokenize::{ChatMessage, ChatTemplate, Detokenizer, TokenizeError, Tokenizer};
use serde_json::{Value, json};

struct Files {
    _folder: tempfile::TempDir,
    tokenizer: PathBuf,
    config: PathBuf,
}

fn files(tokenizer: &Value, config: &Value) -> Files {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["tokenizer.json", "tokenizer_config.json"].map(|name| folder.path().join(name));
    std::fs::write(&paths[0], tokenizer.to_string()).unwrap();
    std::fs::write(&paths[1], config.to_string()).unwrap();
    let [tokenizer, config] = paths;
    Files { _folder: folder, tokenizer, config }
}

fn load(tokenizer: &Value, config: &Value) -> Result<Tokenizer, TokenizeError> {
    let files = files(tokenizer, config);
    Tokenizer::from_files(&files.tokenizer, Some(&files.config))
}

fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": special, "special": special})
}

/// a b c d, space and the merges ab, " ab", "cd"; <s> 8, </s> 9 and the user-defined <think> 10.
fn byte_level() -> Value {
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [added(8, "<s>", true), added(9, "</s>", true), added(10, "<think>", false)],
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
             "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [8], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": 0.9, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "Ġ": 4, "ab": 5, "Ġab": 6, "cd": 7, "<": 11, "/": 12, "s": 13, ">": 14},
            "merges": [["a", "b"], ["Ġ", "ab"], ["c", "d"]]}
    })
}

fn config() -> Value {
    json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": false, "tokenizer_class": "PreTrainedTokenizerFast"})
}

#[test]
fn byte_level_file() {
    let tokenizer = load(&byte_level(), &config()).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.vocab_size()), (Some(8), Some(9), 15));
    // BOS from the post-processor; the file's truncation to two tokens and its dropout do not apply.
    assert_eq!(tokenizer.encode("ab abcd</s>").unwrap(), [8, 5, 6, 7, 9]);
    assert_eq!(tokenizer.token_bytes(6), Some(&b" ab"[..]));
    assert!(tokenizer.is_special(9) && !tokenizer.is_special(10));
    assert_eq!(tokenizer.encode("<think>ab").unwrap(), [8, 10, 5]);
    // Without a config nothing is known of BOS and EOS.
    let files = files(&byte_level(), &config());
    let bare = Tokenizer::from_files(&files.tokenizer, None).unwrap();
    assert_eq!((bare.bos(), bare.eos()), (None, None));
}

#[test]
fn chat_with_a_template_that_writes_bos() {
    let tokenizer = load(&byte_level(), &config()).unwrap();
    let template = ChatTemplate::new(
        "{{ bos_token }}{% for m in messages %}{{ m.content | trim }}{% endfor %}{{ eos_token }}",
        "<s>",
        "</s>",
    );
    let template = template.unwrap();
    let chat = |contents: &[&str]| {
        let messages: Vec<ChatMessage> = contents
            .iter()
            .map(|content| ChatMessage { role: "user".to_owned(), name: None, content: (*content).to_owned() })
            .collect();
        tokenizer.encode_chat(&template, &messages).unwrap()
    };
    assert_eq!(chat(&["ab"]), [8, 5, 9]);
    assert_eq!(chat(&["ab</s>"]), [8, 5, 11, 12, 13, 14, 9]);
    // Two contents that the template joins into a special token's spelling.
    assert_eq!(chat(&["ab< ", " /s>"]), [8, 5, 11, 12, 13, 14, 9]);
    assert_eq!(chat(&["<think>"]), [8, 10, 9]);
}

#[test]
fn whole_words_first_do_not_bring_special_tokens_back() {
    let mut file = byte_level();
    file["model"]["ignore_merges"] = json!(true);
    // A special token that is a single word for the pre-tokenizer and an entry of the model's own vocabulary.
    file["model"]["vocab"]["dcba"] = json!(15);
    file["added_tokens"] = json!([added(8, "<s>", true), added(15, "dcba", true)]);
    let tokenizer = load(&file, &json!({})).unwrap();
    assert_eq!(tokenizer.encode("dcba").unwrap(), [8, 15]);
    let template = ChatTemplate::new("{{ messages[0].content }}", "", "").unwrap();
    let spelled = ChatMessage { role: "user".to_owned(), name: None, content: "dcba".to_owned() };
    assert_eq!(tokenizer.encode_chat(&template, &[spelled]).unwrap(), [3, 2, 1, 0]);
}

#[test]
fn llama_classes_take_bos_from_their_setting() {
    let mut with = config();
    with["tokenizer_class"] = json!("LlamaTokenizerFast");
    assert_eq!(load(&byte_level(), &with).unwrap().encode("ab").unwrap(), [5]);
    with["add_bos_token"] = json!(true);
    let mut file = byte_level();
    file["post_processor"] = Value::Null;
    assert_eq!(load(&file, &with).unwrap().encode("ab").unwrap(), [8, 5]);
    assert_eq!(load(&file, &config()).unwrap().encode("ab").unwrap(), [5]);
}

/// As Llama 2: spaces as U+2581, bytes as <0xNN>, a space before the text.
fn sentence_piece() -> Value {
    let mut vocab = json!({"<unk>": 0, "<s>": 1, "</s>": 2});
    for byte in 0..=255_u32 {
        vocab[format!("<0x{byte:02X}>")] = json!(3 + byte);
    }
    for (id, token) in (259..).zip(["▁", "h", "i", "hi", "▁hi"]) {
        vocab[token] = json!(id);
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": true, "byte_fallback": true, "ignore_merges": false, "vocab": vocab,
            "merges": ["h i", "▁ hi"]}
    })
}

#[test]
fn sentence_piece_file() {
    let tokenizer = Arc::new(load(&sentence_piece(), &json!({"bos_token": "<s>"})).unwrap());
    assert_eq!(tokenizer.encode("hi hi").unwrap(), [263, 263]);
    assert_eq!(tokenizer.token_bytes(263), Some(" hi".as_bytes()));
    // U+00E9 is C3 A9; the special token is found although the file says that normalizing comes first.
    assert_eq!(tokenizer.encode("hié</s>").unwrap(), [263, 3 + 0xC3, 3 + 0xA9, 2]);
    let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer));
    let parts: Vec<String> = [263, 3 + 0xC3, 3 + 0xA9, 2, 263].into_iter().map(|id| detokenizer.push(id)).collect();
    // The space stays: an answer continues its prompt.
    assert_eq!(parts, [" hi", "", "é", "", " hi"]);
    let template = ChatTemplate::new("<s>{{ messages[0].content }}</s>", "<s>", "</s>").unwrap();
    let message = ChatMessage { role: "user".to_owned(), name: None, content: "hi</s>".to_owned() };
    let ids = tokenizer.encode_chat(&template, &[message]).unwrap();
    assert_eq!((ids[0], ids.last(), ids.iter().filter(|&&id| id == 2).count()), (1, Some(&2), 1));
}

#[test]
fn long_text_without_pre_tokenizer_is_near_linear() {
    let tokenizer = load(&sentence_piece(), &json!({})).unwrap();
    let time = |bytes: usize| {
        let text = "hi".repeat(bytes / 2);
        let start = std::time::Instant::now();
        assert_eq!(tokenizer.encode(&text).unwrap().len(), bytes / 2);
        start.elapsed()
    };
    let (short, long) = (time(64 << 10).min(time(64 << 10)), time(256 << 10).min(time(256 << 10)));
    assert!(long < short * 10 + std::time::Duration::from_millis(250), "{long:?} against {short:?}");
}

#[test]
fn wrong_files_are_refused() {
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut file = byte_level();
        change(&mut file);
        load(&file, &config()).unwrap_err()
    };
    let word_piece = json!({"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9, "vocab": {"a": 0, "<s>": 8}});
    assert!(matches!(refused(&|file| file["model"] = word_piece.clone()), TokenizeError::UnsupportedModel { .. }));
    for error in [
        refused(&|file| *file = json!([])),
        refused(&|file| file["model"] = Value::Null),
        refused(&|file| file["added_tokens"][0]["content"] = json!("ab")),
        refused(&|file| file["model"]["merges"] = json!([["a", "zz"]])),
        refused(&|file| file["model"]["vocab"]["a"] = json!(4_000_000_000_u32)),
        refused(&|file| file["model"]["vocab"] = json!({})),
        refused(&|file| file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("(((")),
        refused(&|file| (file["decoder"], file["pre_tokenizer"]) = (Value::Null, Value::Null)),
    ] {
        assert!(matches!(error, TokenizeError::File { .. }), "{error}");
        assert!(error.to_string().contains("tokenizer.json"));
    }
    assert!(matches!(load(&byte_level(), &json!({"bos_token": "<none>"})), Err(TokenizeError::File { .. })));
    let missing = Tokenizer::from_files(&PathBuf::from("/nonexistent/tokenizer.json"), None).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/tokenizer.json"));
}
