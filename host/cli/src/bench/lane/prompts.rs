//! Prompts of made-up token ids. Knows no text.

use std::sync::Arc;

use super::super::drawn;
use super::super::room::PAGE_TOKENS;

/// The ordinary tokens of a vocabulary of so many.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Ids(pub(in super::super) usize);

impl Ids {
    fn id(self, text: u64, position: u64) -> u32 {
        let vocab = self.0 as u64;
        let drawn = drawn::from(drawn::from(text) ^ position);
        ((1000 + drawn % (vocab / 2).max(1)) % vocab.max(1)) as u32
    }

    /// Of each text others.
    pub(in super::super) fn text(self, text: u64, tokens: usize) -> Arc<[u32]> {
        (0..tokens as u64).map(|position| self.id(text, position)).collect()
    }

    /// The first `shared` tokens of `text`, and behind them `own` tokens that belong to `ask` alone.
    pub(in super::super) fn continued(self, text: u64, shared: usize, (ask, own): (u64, usize)) -> Arc<[u32]> {
        let begin = (0..shared as u64).map(|position| self.id(text, position));
        let own = (0..own as u64).map(|position| self.id(drawn::from(text) ^ (ask + 1), shared as u64 + position));
        begin.chain(own).collect()
    }

    /// The prompts of streams that have all but their last page in common; shorter ones are begins of longer ones.
    pub(in super::super) fn stream(self, stream: u64, tokens: usize) -> Arc<[u32]> {
        let own = tokens.min(PAGE_TOKENS);
        self.continued(0, tokens - own, (stream, own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_begin_alike_as_far_as_they_should() {
        let ids = Ids(49_152);
        let (a, b) = (ids.stream(0, 100), ids.stream(1, 100));
        assert_eq!((a.len(), &a[..68]), (100, &b[..68]));
        assert_ne!(a[68..], b[68..]);
        assert_eq!(a[..32], ids.stream(5, 64)[..32], "the shorter one is a begin of the longer one");
        assert_eq!(ids.stream(3, 8).len(), 8);
        let (first, again) = (ids.continued(7, 64, (0, 16)), ids.continued(7, 64, (1, 16)));
        assert_eq!((first.len(), &first[..64]), (80, &again[..64]));
        assert_ne!(first[64..], again[64..]);
        assert_ne!(ids.text(1, 4), ids.text(2, 4));
        assert!(Ids(200).text(3, 500).iter().all(|&id| id < 200), "ids are tokens of a small vocabulary too");
    }
}
