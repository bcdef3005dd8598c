//! The logical KV cache: who owns which page, under which tag, and when a freed page may be used again.
//!
//! Pure and deterministic: no clock, IO, RNG or async. It does not know what a page holds, where it lies, nor any device;
//! the backend keeps the tag array beside the pages and is told of every change through [`TagChange`]s.
#![forbid(unsafe_code)]

mod changes;
mod error;
mod invariants;
mod pool;
mod quarantine;
mod table;
mod tag;

pub use error::KvError;
pub use pool::{PageCounts, PagePool, PoolOptions, ZeroFreed};
pub use quarantine::TransferId;
pub use table::{PageTable, pages_for};
pub use tag::{PageId, PageRef, Tag, TagChange};
