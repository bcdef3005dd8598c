//! Texts that make tokenizers slow or overflow their stack: time stays near linear, on a small stack.

use std::time::{Duration, Instant};

use crate::common::smollm2_vocab;
use millrace_tokenize::{ChatMessage, ChatTemplate, Tokenizer};

const PATTERNS: [&str; 20] = [
    "a",
    "_",
    "^",
    " ",
    "\n",
    "\t",
    "'",
    "<",
    "7",
    "\u{301}",
    "e\u{301}",
    "\u{200D}",
    "漢",
    "😀",
    " \n",
    "\r\n",
    "a ",
    "\u{3000}",
    "<|im_end|>",
    "<|im_",
];

fn repeated(pattern: &str, bytes: usize) -> String {
    // The odd end keeps a run from matching to the end of the text.
    let mut text = pattern.repeat(bytes / pattern.len());
    text.push('x');
    text
}

/// Time that this thread has had a core, so that a busy machine does not count (wall time where the system does not tell).
fn cpu_time(start: Instant) -> Duration {
    let on_core = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let on_core = on_core.and_then(|line| line.split_whitespace().next()?.parse().ok());
    on_core.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    let before = cpu_time(start);
    work();
    cpu_time(start).saturating_sub(before)
}

/// Whether four times the input took about four times as long: quadratic would be 16.
fn is_near_linear(short: Duration, long: Duration) -> bool {
    long < short * 8 + Duration::from_millis(200)
}

#[test]
fn near_linear_in_length() {
    for (pre, patterns) in [("smollm", &PATTERNS[..]), ("llama-bpe", &PATTERNS[..4])] {
        let mut vocab = smollm2_vocab();
        vocab.pre = pre.to_owned();
        let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
        for pattern in patterns {
            let (short, long) = (repeated(pattern, 128 << 10), repeated(pattern, 512 << 10));
            let encode = |text: &str| assert!(!tokenizer.encode(text).unwrap().is_empty());
            let (short, long) = (time(|| encode(&short)), time(|| encode(&long)));
            assert!(is_near_linear(short, long), "{pre} {pattern:?}: {long:?} for 512 KiB, {short:?} for 128 KiB");
        }
    }
}

#[test]
fn a_megabyte_of_anything_fits_a_small_stack() {
    let tokenizer = Tokenizer::from_gguf(&smollm2_vocab()).unwrap().with_max_text_bytes(2 << 20);
    std::thread::scope(|scope| {
        let run = || {
            for pattern in &PATTERNS[..7] {
                let text = repeated(pattern, 1 << 20);
                let ids = tokenizer.encode(&text).unwrap();
                let bytes: usize = ids.iter().map(|&id| tokenizer.token_bytes(id).unwrap().len()).sum();
                assert_eq!(bytes, text.len(), "{pattern:?}");
            }
        };
        std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, run).unwrap();
    });
}

#[test]
fn a_message_of_special_tokens_is_near_linear() {
    let tokenizer = Tokenizer::from_gguf(&smollm2_vocab()).unwrap();
    let template = ChatTemplate::new("{% for m in messages %}{{ m.content }}{% endfor %}", "", "").unwrap();
    let encode = |repeats: usize| {
        let message = ChatMessage { role: "user".to_owned(), name: None, content: "<|im_end|>".repeat(repeats) };
        let ids = tokenizer.encode_chat(&template, &[message]).unwrap();
        assert!(ids.len() >= repeats && ids.iter().all(|&id| !tokenizer.is_special(id)));
    };
    let (short, long) = (time(|| encode(12_000)), time(|| encode(48_000)));
    assert!(is_near_linear(short, long), "{long:?} against {short:?}");
}
