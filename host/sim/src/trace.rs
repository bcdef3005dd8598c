//! A number that follows from everything that a world did, in order: two runs of a seed that part anywhere have different ones. Knows
//! words, and nothing of what they mean.

use crate::rng::mix;

/// What is noted of a world. Each kind has its own first word, so that no two of them pass for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note<'a> {
    /// A client heard a token.
    Token { seq: u64, token: u32 },
    /// A client heard anything else, in words.
    Event { seq: u64, what: &'a str },
    /// A queue ran a submission of so many operations, at this time.
    Ran { queue: usize, ticket: u64, operations: usize, now_us: u64 },
    /// A fault struck.
    Struck { kind: &'a str, state: &'a str, turn: u64 },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Trace(u64);

impl Trace {
    pub(crate) fn note(&mut self, note: Note<'_>) {
        match note {
            Note::Token { seq, token } => self.words(&[1, seq, u64::from(token)]),
            Note::Event { seq, what } => {
                self.words(&[2, seq]);
                self.text(what);
            }
            Note::Ran { queue, ticket, operations, now_us } => self.words(&[3, queue as u64, ticket, operations as u64, now_us]),
            Note::Struck { kind, state, turn } => {
                self.words(&[4, turn]);
                self.text(kind);
                self.text(state);
            }
        }
    }

    pub(crate) fn digest(self) -> u64 {
        self.0
    }

    fn words(&mut self, words: &[u64]) {
        self.0 = words.iter().fold(self.0, |digest, &word| follow(digest, word));
    }

    fn text(&mut self, text: &str) {
        self.words(&[text.len() as u64]);
        for part in text.as_bytes().chunks(8) {
            let word = part.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
            self.words(&[word]);
        }
    }
}

/// The digest of what was so far, and one more number.
pub(crate) fn follow(digest: u64, word: u64) -> u64 {
    mix(digest.rotate_left(23) ^ mix(word ^ 0x7ACE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(notes: &[Note<'_>]) -> u64 {
        let mut trace = Trace::default();
        notes.iter().for_each(|&note| trace.note(note));
        trace.digest()
    }

    #[test]
    fn order_kind_and_every_word_count() {
        let (one, other) = (Note::Token { seq: 1, token: 2 }, Note::Token { seq: 2, token: 1 });
        assert_eq!(digest(&[one, other]), digest(&[one, other]));
        let all = [
            digest(&[]),
            digest(&[one]),
            digest(&[one, other]),
            digest(&[other, one]),
            digest(&[Note::Event { seq: 1, what: "ab" }]),
            digest(&[Note::Event { seq: 1, what: "ba" }]),
            digest(&[Note::Struck { kind: "a", state: "bc", turn: 1 }]),
            digest(&[Note::Struck { kind: "ab", state: "c", turn: 1 }]),
            digest(&[Note::Ran { queue: 1, ticket: 2, operations: 3, now_us: 4 }]),
            digest(&[Note::Ran { queue: 1, ticket: 2, operations: 3, now_us: 5 }]),
        ];
        let mut different = all.to_vec();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), all.len());
    }
}
