//! What a prefix tree has, as readers on other threads may ask: how much of a prompt is kept. It neither finds pages nor pins them,
//! and the answer may be old by the time it is used: for decisions that are better with it and right without.
//!
//! A page is here by the digest of its scope and of all tokens up to its last, so that a reader walks no tree and takes the lock for a
//! moment. A reader needs the scope, and a prompt of its own that begins alike: nothing else can be learned from it. Two paths with one
//! digest are told apart by the tree alone, which is the one that shares pages.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::PrefixScope;

/// Digest of a scope and of tokens in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path(u64);

impl Path {
    /// Before the first token.
    pub(crate) fn of(scope: PrefixScope) -> Self {
        let words = scope.0.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        Self(words.fold(0, mixed))
    }

    /// One page of tokens further.
    pub(crate) fn then(self, tokens: &[u32]) -> Self {
        Self(tokens.iter().fold(self.0, |digest, &token| mixed(digest, u64::from(token))))
    }
}

/// One step of SplitMix64 over both (Steele, Lea and Flood: Fast splittable pseudorandom number generators): the same everywhere, and
/// every bit of either reaches every bit of the next digest.
fn mixed(digest: u64, word: u64) -> u64 {
    let mut z = (digest ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// See the module. Clones read the same tree.
#[derive(Debug, Clone)]
pub struct PrefixDirectory {
    page_tokens: u32,
    paths: Arc<Mutex<BTreeSet<Path>>>,
}

impl PrefixDirectory {
    pub(crate) fn new(page_tokens: u32) -> Self {
        Self { page_tokens, paths: Arc::default() }
    }

    /// Tokens at the beginning of a prompt that are kept in whole pages within this scope: as many as a lookup now would find, or as
    /// it would have found a moment ago. Nothing is pinned or counted as used. At least one token is left to compute.
    #[must_use]
    pub fn hit_tokens(&self, scope: PrefixScope, tokens: &[u32]) -> u32 {
        let page_tokens = self.page_tokens.max(1) as usize;
        let shareable = tokens.len().saturating_sub(1) / page_tokens;
        let (mut path, mut hit) = (Path::of(scope), 0_u32);
        for page in tokens.chunks_exact(page_tokens).take(shareable) {
            path = path.then(page);
            if !self.lock().contains(&path) {
                break;
            }
            hit = hit.saturating_add(self.page_tokens);
        }
        hit
    }

    pub(crate) fn enter(&self, path: Path) {
        self.lock().insert(path);
    }

    pub(crate) fn leave(&self, path: Path) {
        self.lock().remove(&path);
    }

    /// Whether these are its pages.
    pub(crate) fn is(&self, paths: &BTreeSet<Path>) -> bool {
        *self.lock() == *paths
    }

    /// A panic under the lock leaves a set that lacks one page or has one too many: a wrong hint.
    fn lock(&self) -> MutexGuard<'_, BTreeSet<Path>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: PrefixScope = PrefixScope([1; 32]);

    #[test]
    fn whole_pages_of_the_same_scope_and_the_same_beginning_count() {
        let directory = PrefixDirectory::new(2);
        let first = Path::of(OWN).then(&[1, 2]);
        let second = first.then(&[3, 4]);
        directory.enter(first);
        directory.enter(second);
        let hit = |scope, tokens: &[u32]| directory.hit_tokens(scope, tokens);
        assert_eq!(hit(OWN, &[1, 2, 3, 4, 5]), 4);
        assert_eq!(hit(OWN, &[1, 2, 3, 4]), 2, "one token is left to compute");
        assert_eq!(hit(OWN, &[1, 2, 3, 9, 9]), 2);
        assert_eq!(hit(OWN, &[3, 4, 5]), 0, "a page counts behind its own beginning alone");
        assert_eq!(hit(PrefixScope([2; 32]), &[1, 2, 3, 4, 5]), 0);
        assert_eq!((hit(OWN, &[]), hit(OWN, &[1])), (0, 0));
        directory.leave(first);
        assert_eq!(hit(OWN, &[1, 2, 3, 4, 5]), 0, "what is behind a page that left is not found");
    }
}
