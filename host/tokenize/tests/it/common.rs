//! Tokenizers for the tests: SmolLM2's vocabulary from `tests/data`, and small hand-made ones. Holds no expectations.

use std::path::PathBuf;

use millrace_tokenize::{GgufVocab, Tokenizer};

/// A file of `tests/data`.
pub(crate) fn data(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests", "data", name].iter().collect();
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// SmolLM2's vocabulary as its GGUF file holds it; see `tests/data/README.md`.
pub(crate) fn smollm2_vocab() -> GgufVocab {
    let mut tokens: Vec<String> = data("smollm2-tokens.txt").lines().map(str::to_owned).collect();
    let merges: Vec<String> = data("smollm2-merges.txt").lines().map(str::to_owned).collect();
    tokens.extend(merges.iter().map(|merge| merge.replacen(' ', "", 1)));
    let mut token_types = vec![1; tokens.len()];
    token_types[..17].fill(3);
    GgufVocab {
        model: "gpt2".to_owned(),
        pre: "smollm".to_owned(),
        tokens,
        token_types,
        merges,
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        add_bos: false,
        add_space_prefix: false,
    }
}

pub(crate) fn smollm2() -> Tokenizer {
    Tokenizer::from_gguf(&smollm2_vocab()).expect("the vocabulary of tests/data is sound")
}

/// A generator of numbers that are the same in every run.
pub(crate) struct Lcg(pub(crate) u64);

impl Lcg {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    /// Any character, with more weight on those that tokenizers treat apart.
    pub(crate) fn character(&mut self) -> char {
        const APART: [char; 24] = [
            ' ', ' ', '\n', '\r', '\t', '\'', '.', '<', '|', '>', '_', '7', 'a', 's', 'é', '\u{301}', '\u{200D}', '\u{3000}',
            '\u{3002}', '漢', '😀', 'ß', '\u{A0}', '٣',
        ];
        if self.below(3) > 0 {
            return APART[self.below(APART.len())];
        }
        loop {
            if let Some(character) = char::from_u32(self.below(0x11_0000) as u32) {
                return character;
            }
        }
    }

    pub(crate) fn text(&mut self, characters: usize) -> String {
        (0..characters).map(|_| self.character()).collect()
    }
}
