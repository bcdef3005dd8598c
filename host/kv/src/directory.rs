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
    pages: Arc<Mutex<Pages>>,
}

#[derive(Debug, Default)]
struct Pages {
    paths: BTreeSet<Path>,
    changes: u64,
}

/// What a directory is, for a reader in another process: digests of pages, sorted. They say nothing without the scopes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixDigests {
    pub page_tokens: u32,
    pub paths: Vec<u64>,
}

impl PrefixDirectory {
    pub(crate) fn new(page_tokens: u32) -> Self {
        Self { page_tokens, pages: Arc::default() }
    }

    /// As one in another process was a moment ago.
    #[must_use]
    pub fn told(digests: &PrefixDigests) -> Self {
        let paths = digests.paths.iter().copied().map(Path).collect();
        let pages = Arc::new(Mutex::new(Pages { paths, changes: 0 }));
        Self { page_tokens: digests.page_tokens, pages }
    }

    /// Of at most so many pages. Where there are more, some are left out, and with them what is found behind them.
    #[must_use]
    pub fn digests(&self, most: usize) -> PrefixDigests {
        let paths = self.lock().paths.iter().take(most).map(|path| path.0).collect();
        PrefixDigests { page_tokens: self.page_tokens, paths }
    }

    /// Counts pages that came or went.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.lock().changes
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
            if !self.lock().paths.contains(&path) {
                break;
            }
            hit = hit.saturating_add(self.page_tokens);
        }
        hit
    }

    pub(crate) fn enter(&self, path: Path) {
        let mut pages = self.lock();
        pages.changes = pages.changes.wrapping_add(u64::from(pages.paths.insert(path)));
    }

    pub(crate) fn leave(&self, path: Path) {
        let mut pages = self.lock();
        pages.changes = pages.changes.wrapping_add(u64::from(pages.paths.remove(&path)));
    }

    /// Whether these are its pages.
    pub(crate) fn is(&self, paths: &BTreeSet<Path>) -> bool {
        self.lock().paths == *paths
    }

    /// A panic under the lock leaves a set that lacks one page or has one too many: a wrong hint.
    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
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

    #[test]
    fn what_is_told_elsewhere_finds_the_same_and_counts_changes() {
        let directory = PrefixDirectory::new(2);
        let first = Path::of(OWN).then(&[1, 2]);
        directory.enter(first);
        directory.enter(first);
        directory.enter(first.then(&[3, 4]));
        assert_eq!(directory.changes(), 2);
        let there = PrefixDirectory::told(&directory.digests(9));
        assert_eq!(there.hit_tokens(OWN, &[1, 2, 3, 4, 5]), 4);
        assert_eq!(there.hit_tokens(PrefixScope([2; 32]), &[1, 2, 3, 4, 5]), 0, "of another scope nothing");
        assert_eq!(directory.digests(1).paths.len(), 1, "no more than that");
        directory.leave(first);
        directory.leave(first);
        assert_eq!(directory.changes(), 3);
        assert_eq!(there.hit_tokens(OWN, &[1, 2, 3, 4, 5]), 4, "as it was");
    }
}
