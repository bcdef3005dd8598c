//! Prompts: common words in random order, different from the very first word, so that no cache of prefixes helps. Knows words, not
//! tokens; how many words make a prompt of the wanted length is `calibration`'s.

use crate::bench::drawn::Drawn;

/// Short and common, so that most vocabularies have one token for each.
const WORDS: [&str; 128] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state", "family",
    "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system", "program",
    "question", "work", "number", "night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact", "month",
    "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind", "head", "house", "service",
    "friend", "father", "power", "hour", "game", "line", "end", "member", "law", "car", "city", "name", "team", "minute", "idea",
    "body", "back", "face", "level", "office", "door", "health", "person", "art", "war", "history", "party", "result", "change",
    "morning", "reason", "research", "girl", "moment", "air", "teacher", "force", "order", "foot", "boy", "age", "policy",
    "music", "market", "sense", "nation", "plan", "college", "interest", "death", "course", "effort", "field", "road", "rate",
    "heart", "drug", "show", "leader", "light", "voice", "wife", "police", "mind", "price", "report", "decision", "son", "view",
    "town", "arm", "trade", "rest", "sun",
];

const CONSONANTS: &[u8; 16] = b"bcdfghjklmnprstv";
const VOWELS: &[u8; 4] = b"aeio";
/// Of six bits each, for 32 bits.
const SYLLABLES: u32 = 6;

/// All prompts of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prompts {
    seed: u64,
}

impl Prompts {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The prompt of one request: `words` words, at least one. No two indices share their first word.
    pub(super) fn prompt(&self, index: u32, words: usize) -> String {
        let mut random = Drawn::new(self.seed ^ (u64::from(index) << 32));
        let mut text = name(scatter(index ^ Drawn::new(self.seed).next() as u32));
        for _ in 1..words {
            text.push(' ');
            text.push_str(WORDS[random.below(WORDS.len())]);
        }
        text
    }
}

/// A bijection of 32 bits: neighbours have little in common. Multiplication by an odd number and xor with a shift of itself can both
/// be undone.
fn scatter(number: u32) -> u32 {
    let mut x = number;
    for factor in [0x7feb_352d, 0x846c_a68b] {
        x ^= x >> 16;
        x = x.wrapping_mul(factor);
    }
    x ^ (x >> 15)
}

/// A word of its own for each number.
fn name(number: u32) -> String {
    let mut text = String::new();
    for syllable in 0..SYLLABLES {
        let bits = (number >> (6 * syllable)) as usize;
        text.push(char::from(CONSONANTS[bits & 15]));
        text.push(char::from(VOWELS[(bits >> 4) & 3]));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_prompts_begin_alike() {
        let first = |text: String| text.split(' ').next().unwrap().to_owned();
        for seed in [0, 1, u64::MAX] {
            let prompts = Prompts::new(seed);
            let seen: BTreeSet<String> = (0..50_000).map(|index| first(prompts.prompt(index, 3))).collect();
            assert_eq!(seen.len(), 50_000);
            let letters: BTreeSet<String> = seen.iter().map(|word| word[..4].to_owned()).collect();
            assert_eq!(letters.len(), 4_096, "first letters are spread");
        }
        assert_ne!(Prompts::new(1).prompt(0, 1), Prompts::new(2).prompt(0, 1));
    }

    #[test]
    fn a_prompt_has_its_words_and_is_the_same_again() {
        let prompts = Prompts::new(9);
        for words in [1, 2, 240] {
            let text = prompts.prompt(3, words);
            assert_eq!(text.split(' ').count(), words);
            assert_eq!(text, prompts.prompt(3, words));
            assert!(text.bytes().all(|byte| byte == b' ' || byte.is_ascii_lowercase()));
        }
        assert_eq!(prompts.prompt(3, 0), prompts.prompt(3, 1));
        assert_eq!(WORDS.iter().collect::<BTreeSet<_>>().len(), WORDS.len());
    }

    #[test]
    fn numbers_and_words_are_one_to_one() {
        let numbers: Vec<u32> = (0..1_000).chain([u32::MAX, 1 << 31, 1 << 30]).collect();
        let scattered: BTreeSet<u32> = numbers.iter().map(|&number| scatter(number)).collect();
        let named: BTreeSet<String> = numbers.iter().map(|&number| name(number)).collect();
        assert_eq!((scattered.len(), named.len()), (numbers.len(), numbers.len()));
    }
}
