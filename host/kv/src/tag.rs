//! Pages and their tags. Knows how a tag is made; not who owns a page.
//!
//! ```text
//! 63          48 47                                   0
//! [ boot nonce  |  number of the tag change, from 1    ]   one counter for the whole pool
//! ```

use std::fmt;

/// Index of a physical page in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The generation of a page. It changes when the page is handed out and when it is freed, and never repeats in a pool's
/// life: 48 bits of one counter last 89 years at 100,000 changes a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u64);

impl Tag {
    pub(crate) const COUNTER_BITS: u32 = 48;
    pub(crate) const LAST_COUNT: u64 = (1 << Self::COUNTER_BITS) - 1;

    /// The tag of change number `count`; `None` past the 48 bits, and for 0, which no page ever carries.
    pub(crate) fn new(boot_nonce: u16, count: u64) -> Option<Self> {
        (1..=Self::LAST_COUNT).contains(&count).then_some(Self(u64::from(boot_nonce) << Self::COUNTER_BITS | count))
    }

    /// The number that the backend's tag array holds.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// Which life of the process made this tag.
    pub fn boot_nonce(self) -> u16 {
        // The shift leaves 16 bits.
        (self.0 >> Self::COUNTER_BITS) as u16
    }

    /// Which tag change of the pool made it, from 1.
    pub fn count(self) -> u64 {
        self.0 & Self::LAST_COUNT
    }
}

impl fmt::Display for Tag {
    /// `00a3:17`: boot nonce, then number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{}", self.boot_nonce(), self.count())
    }
}

/// A page as its owner knows it. Right only as long as the page still carries this tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageRef {
    pub page: PageId,
    pub tag: Tag,
}

impl fmt::Display for PageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {} (tag {})", self.page, self.tag)
    }
}

/// What the backend has to do to its tag array, in stream order, before anything else touches the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagChange {
    pub page: PageId,
    pub tag: Tag,
    /// Fill the page with zeros.
    pub zero: bool,
}
