//! Text comes back from its ids, whole and streamed; and text in pieces has the ids of the whole.

use std::sync::Arc;

use crate::common::{Lcg, smollm2, smollm2_vocab};
use millrace_tokenize::{Detokenizer, GgufVocab, Tokenizer};

/// Every byte and a few merges: spells any text.
fn complete_vocab(pre: &str) -> GgufVocab {
    let mut vocab = smollm2_vocab();
    vocab.pre = pre.to_owned();
    // The bytes that SmolLM2's alphabet lacks, appended.
    for code in (0..0x144).filter_map(char::from_u32) {
        let is_alphabet = matches!(code, '!'..='~' | '\u{A1}'..='\u{AC}' | '\u{AE}'..='\u{FF}' | '\u{100}'..='\u{143}');
        if is_alphabet && !vocab.tokens.contains(&code.to_string()) {
            vocab.tokens.push(code.to_string());
            vocab.token_types.push(1);
        }
    }
    vocab
}

fn bytes_of(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    ids.iter().filter(|&&id| !tokenizer.is_special(id)).flat_map(|&id| tokenizer.token_bytes(id).unwrap()).copied().collect()
}

fn streamed(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer));
    let mut parts: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
    parts.push(detokenizer.finish());
    parts
}

#[test]
fn random_text_comes_back() {
    for pre in ["smollm", "gpt-2", "default", "llama-bpe", "qwen2"] {
        let tokenizer = Arc::new(Tokenizer::from_gguf(&complete_vocab(pre)).unwrap());
        let mut random = Lcg(pre.len() as u64);
        for round in 0..300 {
            let text = random.text(round % 60);
            let ids = tokenizer.encode(&text).unwrap();
            assert_eq!(String::from_utf8(bytes_of(&tokenizer, &ids)).unwrap(), text, "{pre}");
            assert_eq!(streamed(&tokenizer, &ids).concat(), text, "{pre}");
        }
    }
}

#[test]
fn any_ids_stream_into_the_lossy_decoding_of_their_bytes() {
    let tokenizer = Arc::new(Tokenizer::from_gguf(&complete_vocab("smollm")).unwrap());
    let mut random = Lcg(3);
    // The alphabet alone: mostly broken characters.
    let alphabet: Vec<u32> = (17..252).chain(49_152..tokenizer.vocab_size() as u32).collect();
    for round in 0..3000 {
        let ids: Vec<u32> = (0..round % 24)
            .map(|_| if random.below(8) == 0 { random.below(50_000) as u32 } else { alphabet[random.below(alphabet.len())] })
            .collect();
        let known: Vec<u32> = ids.iter().copied().filter(|&id| tokenizer.token_bytes(id).is_some()).collect();
        let want = String::from_utf8_lossy(&bytes_of(&tokenizer, &known)).into_owned();
        assert_eq!(streamed(&tokenizer, &ids).concat(), want, "{ids:?}");
    }
}

#[test]
fn characters_of_several_tokens_are_shown_whole() {
    let tokenizer = Arc::new(smollm2());
    for text in ["ďábelské ódy", "😀👩‍👩‍👧‍👦🏳️‍🌈", "日本語と漢字", "naïve café — 10 € ≈ £8.50", "e\u{301}\u{200D}", "한국어 ไทย हिन्दी"]
    {
        let ids = tokenizer.encode(text).unwrap();
        let parts = streamed(&tokenizer, &ids);
        assert_eq!(parts.concat(), text);
        assert!(parts.iter().all(|part| !part.contains('\u{FFFD}')), "{parts:?}");
        // Every cut of the ids: what was shown is the longest whole part, the rest comes as U+FFFD only at the end.
        for cut in 0..=ids.len() {
            let bytes = bytes_of(&tokenizer, &ids[..cut]);
            let parts = streamed(&tokenizer, &ids[..cut]);
            let (finish, pushed) = parts.split_last().unwrap();
            let whole = String::from_utf8_lossy(&bytes).trim_end_matches('\u{FFFD}').to_owned();
            assert_eq!(pushed.concat(), whole);
            assert_eq!(format!("{whole}{finish}"), String::from_utf8_lossy(&bytes));
        }
    }
}

#[test]
fn two_of_three_bytes_at_the_end() {
    let tokenizer = Arc::new(smollm2());
    let byte = |byte: u8| (17..252).find(|&id| tokenizer.token_bytes(id) == Some(&[byte][..])).unwrap();
    // U+20AC is E2 82 AC; U+1F600 is F0 9F 98 80.
    assert_eq!(streamed(&tokenizer, &[byte(0xE2), byte(0x82)]), ["", "", "\u{FFFD}"]);
    assert_eq!(streamed(&tokenizer, &[byte(0xE2), byte(0x82), byte(0xAC)]), ["", "", "€", ""]);
    assert_eq!(streamed(&tokenizer, &[byte(0xF0), byte(0x9F), byte(0x98), byte(b'a')]), ["", "", "", "\u{FFFD}a", ""]);
    assert_eq!(streamed(&tokenizer, &[byte(0x82), byte(b'a')]), ["\u{FFFD}", "a", ""]);
    // A special token inside of a character has no text and does not break it.
    assert_eq!(streamed(&tokenizer, &[byte(0xE2), 2, byte(0x82), byte(0xAC)]).concat(), "€");
    assert_eq!(streamed(&tokenizer, &[u32::MAX, 49_152, 0]).concat(), "");
}

#[test]
fn characters_beyond_the_vocabulary_are_left_out() {
    let tokenizer = smollm2();
    let ids = tokenizer.encode("a\u{4}b").unwrap();
    assert_eq!(bytes_of(&tokenizer, &ids), b"ab");
    assert!(ids.iter().all(|&id| !tokenizer.is_special(id)));
    assert!(tokenizer.encode("\u{4}").unwrap().is_empty());
}

/// A long text has the ids of its parts only if each part ends at a border; the tokenizer cuts on its own at about 64 KiB.
#[test]
fn long_ordinary_text_has_the_ids_of_the_whole() {
    for pre in ["smollm", "gpt-2", "default", "llama-bpe", "qwen2"] {
        let in_pieces = Tokenizer::from_gguf(&complete_vocab(pre)).unwrap();
        // A token that reaches over a border makes the tokenizer take every text whole.
        let mut vocab = complete_vocab(pre);
        vocab.tokens.push("never seen".to_owned());
        vocab.token_types.push(4);
        let whole = Tokenizer::from_gguf(&vocab).unwrap();
        assert!(format!("{in_pieces:?}").contains("in_pieces: true") && format!("{whole:?}").contains("in_pieces: false"));
        let mut random = Lcg(11);
        let words = [
            "Über ",
            "fox's ",
            "lazy, ",
            "漢字",
            "。",
            "，",
            "42 ",
            "\n",
            "\n\n",
            "  ",
            "don't ",
            "é ",
            "<|im_end|>",
            "... ",
            "😀 ",
        ];
        let text: String = (0..120_000).map(|_| words[random.below(words.len())]).collect();
        assert!(text.len() > 6 * (64 << 10));
        assert_eq!(in_pieces.encode(&text).unwrap(), whole.encode(&text).unwrap(), "{pre}");
    }
}
