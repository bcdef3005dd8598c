//! A sequence's pages in order of position. Does not know whether they are still its own; the tags tell.

use crate::PageRef;

/// Page i holds positions `i * page_tokens ..`.
pub type PageTable = Vec<PageRef>;

/// Pages that `tokens` positions need. `page_tokens` is at least 1.
pub fn pages_for(tokens: u32, page_tokens: u32) -> u32 {
    tokens.div_ceil(page_tokens.max(1))
}

#[cfg(test)]
mod tests {
    use super::pages_for;

    #[test]
    fn a_page_begins_with_its_first_token() {
        assert_eq!([0, 1, 16, 17, u32::MAX].map(|tokens| pages_for(tokens, 16)), [0, 1, 1, 2, 1 << 28]);
    }
}
