//! The words of the prefix cache: scope, owner, options, counters. Knows no tenants, models or weights: the caller builds a
//! scope from all that must be the same before two prompts may share pages.

/// Prompts share pages only within a scope. Opaque: made by the caller of the trust scope and of everything that makes keys
/// and values differ for the same tokens (weights, recipe, KV format and its scales, adapter), so that equal scopes mean equal
/// pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrefixScope(pub [u8; 32]);

/// Who pays for a cached page: whoever brought it in. Several may share a scope, each with a quota of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrefixOwner(pub u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixOptions {
    /// Pages that one owner may have in the tree, those in use included. At the limit its own oldest page makes room.
    pub owner_pages: u32,
}

/// A prompt on its way into the tree.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    pub scope: PrefixScope,
    pub owner: PrefixOwner,
    /// From the first token on, as far as they are computed; what does not fill a page is left out.
    pub tokens: &'a [u32],
}

/// Events since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefixCounters {
    /// Pages that entered the tree.
    pub inserted: u64,
    /// Pages that were computed although the tree had them by then, and were given back for the tree's.
    pub adopted: u64,
    /// Pages that left the tree to make room.
    pub evicted: u64,
    /// Pages that left the tree in doubt, with all behind them.
    pub forgotten: u64,
    /// Prompts that were cut short on their way in because their owner's pages are all in use.
    pub over_quota: u64,
}
