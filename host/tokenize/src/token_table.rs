//! The bytes of every token, by id, in one flat buffer. Does not know how they are written in a vocabulary file.

/// How a token behaves in output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// No token has this id.
    Missing,
    /// Its bytes are part of the text.
    Text,
    /// A control token: never part of the text.
    Special,
}

/// ```text
///   bytes   | token 0 | token 1 | token 2 ...
///   ends              ^         ^            ends[i] is where token i ends and token i+1 begins
/// ```
#[derive(Debug, Default)]
pub(crate) struct TokenTable {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    kinds: Vec<TokenKind>,
    longest_text: usize,
}

impl TokenTable {
    /// Appends the token with the next id; `None` when the table would exceed 4 GiB.
    pub(crate) fn push(&mut self, kind: TokenKind, bytes: &[u8]) -> Option<()> {
        let end = u32::try_from(self.bytes.len().checked_add(bytes.len())?).ok()?;
        self.bytes.extend_from_slice(bytes);
        self.ends.push(end);
        self.kinds.push(kind);
        if kind == TokenKind::Text {
            self.longest_text = self.longest_text.max(bytes.len());
        }
        Some(())
    }

    /// Ids run from 0 to this, gaps included.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn kind(&self, id: u32) -> TokenKind {
        usize::try_from(id).ok().and_then(|index| self.kinds.get(index)).copied().unwrap_or(TokenKind::Missing)
    }

    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        if self.kind(id) == TokenKind::Missing {
            return None;
        }
        let index = usize::try_from(id).ok()?;
        let end = usize::try_from(*self.ends.get(index)?).ok()?;
        let start = match index.checked_sub(1) {
            Some(previous) => usize::try_from(*self.ends.get(previous)?).ok()?,
            None => 0,
        };
        self.bytes.get(start..end)
    }

    /// Bytes of the longest token that is part of text.
    pub(crate) fn longest_text(&self) -> usize {
        self.longest_text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back() {
        let mut table = TokenTable::default();
        table.push(TokenKind::Special, b"<end>").unwrap();
        table.push(TokenKind::Missing, b"").unwrap();
        table.push(TokenKind::Text, b"abc").unwrap();
        table.push(TokenKind::Text, b"").unwrap();
        assert_eq!(table.bytes(0), Some(&b"<end>"[..]));
        assert_eq!(table.bytes(1), None);
        assert_eq!(table.bytes(2), Some(&b"abc"[..]));
        assert_eq!(table.bytes(3), Some(&b""[..]));
        assert_eq!(table.bytes(4), None);
        assert_eq!(table.bytes(u32::MAX), None);
        assert_eq!((table.len(), table.longest_text()), (4, 3));
    }
}
