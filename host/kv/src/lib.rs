//! The logical KV cache: who owns which page, under which tag, when a freed page may be used again, and which pages outlive
//! their sequence because another prompt may begin alike.
//!
//! Pure and deterministic: no clock, IO, RNG or async. It does not know what a page holds, where it lies, nor any device;
//! the backend keeps the tag array beside the pages and is told of every change through [`TagChange`]s.
#![forbid(unsafe_code)]

mod changes;
mod directory;
mod error;
mod guards;
mod invariants;
mod page;
mod pool;
mod prefix;
mod quarantine;
mod table;
mod tag;
mod tree;

pub use directory::{PrefixDigests, PrefixDirectory};
pub use error::KvError;
#[cfg(any(test, feature = "fault-injection"))]
pub use guards::Guard;
pub use page::PageCounts;
pub use pool::{PagePool, PoolOptions, ZeroFreed};
pub use prefix::{PrefixCounters, PrefixOptions, PrefixOwner, PrefixScope, Prompt};
pub use quarantine::TransferId;
pub use table::{PageTable, pages_for};
pub use tag::{PageId, PageRef, Tag, TagChange};
