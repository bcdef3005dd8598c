//! Why the pool refuses. A refusal changes nothing. Knows no request and no HTTP status.

use crate::{PageId, PageRef, Tag};

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    #[error(
        "{wanted} pages wanted, {free} free, {quarantined} in quarantine; wait for a fence, preempt, or give the pool more pages"
    )]
    OutOfPages { wanted: u32, free: u32, quarantined: u32 },
    #[error("page {page} is outside of the pool of {pages} pages; the reference is of another pool")]
    UnknownPage { page: PageId, pages: u32 },
    #[error("{0} is stale: the page carries tag {current} now, so it is another's or was freed already", current = .1)]
    Stale(PageRef, Tag),
    #[error("{0} is not pinned; only a pinned page can be released or held")]
    NotPinned(PageRef),
    #[error("{0} is named twice in one call")]
    Duplicate(PageRef),
    #[error("page {0} is not under suspicion, so there is nothing to readmit")]
    NotSuspect(PageId),
    #[error("the pool's 48-bit tag counter has no tag left for {0} pages; restart the engine for a new boot nonce")]
    TagsExhausted(u32),
    #[error("a pool needs at least one page and one token per page (got {pages} pages of {page_tokens} tokens)")]
    EmptyPool { pages: u32, page_tokens: u32 },
}
