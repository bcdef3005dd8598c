//! What the two sides say to each other, as plain data with bounds. Knows no bytes on a wire and no state.

use std::fmt;

use crate::{Incarnation, Terms};

/// Part of a page that one message carries; the last part of a page may be shorter.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Of one sequence: two million tokens in pages of 32.
pub const MAX_PAGES: u32 = 1 << 16;
/// What decode has to know of a sequence: a million tokens and what they are drawn with.
pub const MAX_TICKET_BYTES: usize = 5 << 20;
/// Of one message on the wire, after both sides are known to each other.
pub const MAX_FRAME_BYTES: usize = 6 << 20;

/// Parts of a page of so many bytes.
pub fn chunks_of(page_bytes: u32) -> u32 {
    page_bytes.div_ceil(CHUNK_BYTES as u32)
}

/// Names one hand-off between two incarnations. The sender counts them; none comes twice in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u64);

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A page of the decode side, right only as long as it carries this tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey {
    pub page: u32,
    pub tag: u64,
}

/// A message with the lives of both sides and the connection between them that it is meant for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stamped<M> {
    pub from: Incarnation,
    pub to: Incarnation,
    pub session: u64,
    pub message: M,
}

/// What the prefill side opens a connection with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hello {
    pub incarnation: Incarnation,
    /// Counts the connections of this life; none is opened twice.
    pub session: u64,
    pub terms: Terms,
    /// Every transfer below this one is over for the sender.
    pub first: TransferId,
}

/// What the decode side can take at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window {
    /// Slots of the staging ring: pages that are written and have not landed.
    pub slots: u32,
    /// Transfers that are not over for the sender; their numbers span no more than this either.
    pub transfers: u32,
}

/// The decode side's yes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Welcome {
    pub incarnation: Incarnation,
    /// The hello's.
    pub session: u64,
    pub window: Window,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ToDecode {
    Offer {
        transfer: TransferId,
        /// Every transfer below this one is over for the sender; `Heard` may come later than this says so.
        first: TransferId,
        /// Whose keys and values are offered.
        tokens: u32,
        pages: u32,
        /// The sequence in the engine's own words.
        ticket: Vec<u8>,
    },
    /// One part of the page at `index` of the transfer, for the page that was reserved for it.
    Write {
        transfer: TransferId,
        index: u32,
        page: PageKey,
        chunk: u32,
        bytes: Vec<u8>,
    },
    /// Every page has been written; attach the sequence once all have landed.
    Commit {
        transfer: TransferId,
    },
    Abort {
        transfer: TransferId,
    },
    /// The end has been heard and may be forgotten.
    Heard {
        transfer: TransferId,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ToPrefill {
    Reserved {
        transfer: TransferId,
        pages: Vec<PageKey>,
    },
    /// The page at `index` is in its place, and its slot free.
    Landed {
        transfer: TransferId,
        index: u32,
    },
    Ended {
        transfer: TransferId,
        end: End,
    },
}

/// How a transfer ended on the decode side.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// The sequence runs there.
    Committed,
    /// Nothing is left of it.
    Aborted,
    /// A reserved page no longer carried its tag; nothing is left of it.
    StaleTarget,
    /// It can never be taken.
    Refused(String),
}

/// A peer that breaks the protocol; the connection is of no use any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutOfOrder {
    #[error("transfer {0} is far from those under way")]
    Span(TransferId),
    #[error("transfer {transfer} has {pages} pages and {tokens} tokens of {page_tokens} a page, which does not fit")]
    Pages { transfer: TransferId, pages: u32, tokens: u32, page_tokens: u32 },
    #[error("{got} pages are reserved for transfer {transfer} of {wanted}")]
    Reserved { transfer: TransferId, got: usize, wanted: u32 },
    #[error("transfer {transfer} has no page {index}")]
    NoPage { transfer: TransferId, index: u32 },
    #[error("part {chunk} of page {index} of transfer {transfer} has {bytes} bytes, which is not what a page is cut into")]
    Chunk { transfer: TransferId, index: u32, chunk: u32, bytes: usize },
    #[error("page {index} of transfer {transfer} is written while all {slots} slots are taken")]
    NoSlot { transfer: TransferId, index: u32, slots: u32 },
}
