//! What the fake engine keeps in a page in place of keys and values: for each position who wrote it, for whom, under which tag, and a
//! number that follows from all tokens up to there. So every read can be judged, and every token shows what it was made of.
//!
//! ```text
//! bytes  0     4      8     16    24       28     32      40
//!        page  tenant tag   seq   position flags  chain
//! ```

use crate::model::VOCAB;
use crate::rng::mix;

/// Bytes of one entry in a page.
pub(crate) const ENTRY_BYTES: usize = 40;

/// The token of a row that read anything that was not its own; no honest draw gives it.
pub(crate) const POISON: u32 = VOCAB - 1;

/// Whose numbers an intruder writes: no tenant's.
pub(crate) const INTRUDER: u32 = u32::MAX;

const VALID: u32 = 1;
const TAINTED: u32 = 2;
const NAN: u32 = 4;

/// One position of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    pub(crate) page: u32,
    pub(crate) tenant: u32,
    /// That the writer held the page by.
    pub(crate) tag: u64,
    pub(crate) seq: u64,
    pub(crate) position: u32,
    pub(crate) flags: u32,
    /// Hashes the tokens of all positions up to this one.
    pub(crate) chain: u64,
}

impl Entry {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let word = |at: usize| bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let double = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        Self {
            page: word(0),
            tenant: word(4),
            tag: double(8),
            seq: double(16),
            position: word(24),
            flags: word(28),
            chain: double(32),
        }
    }

    pub(crate) fn bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[0..4].copy_from_slice(&self.page.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.tenant.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.seq.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.position.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.flags.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.chain.to_le_bytes());
        bytes
    }

    /// Of a sequence that goes on behind `before`.
    pub(crate) fn following(before: Option<&Self>, token: u32, position: u32) -> Self {
        let tainted = before.is_some_and(Self::is_tainted);
        let not_finite = before.is_some_and(Self::is_nan);
        Self {
            flags: VALID | if tainted { TAINTED } else { 0 } | if not_finite { NAN } else { 0 },
            position,
            chain: chain(before.map_or(0, |before| before.chain), token, position),
            ..Self::default()
        }
    }

    /// What an intruder leaves in a page that was handed to it.
    pub(crate) fn of_intruder(page: u32, tag: u64, position: u32) -> Self {
        let chain = mix(tag ^ u64::from(position));
        Self { page, tenant: INTRUDER, tag, seq: u64::MAX, position, flags: VALID, chain }
    }

    /// Made of what was not the sequence's own.
    pub(crate) fn tainted(self) -> Self {
        Self { flags: self.flags | TAINTED, ..self }
    }

    pub(crate) fn not_a_number(self) -> Self {
        Self { flags: self.flags | NAN, ..self }
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.flags & VALID != 0
    }

    pub(crate) fn is_tainted(&self) -> bool {
        self.flags & TAINTED != 0
    }

    pub(crate) fn is_nan(&self) -> bool {
        self.flags & NAN != 0
    }
}

/// Of one position more.
pub(crate) fn chain(before: u64, token: u32, position: u32) -> u64 {
    mix(before ^ mix(u64::from(token) << 32 | u64::from(position)))
}

/// The token that follows from what attention read, position by position.
pub(crate) fn draw(read: u64) -> u32 {
    (mix(read ^ 5) % u64::from(POISON)) as u32
}

/// Takes one entry into what attention read.
pub(crate) fn attend(read: u64, entry_chain: u64) -> u64 {
    mix(read.rotate_left(7) ^ entry_chain)
}

/// The output of a prompt that has the device to itself: every token up to `count`.
pub(crate) fn alone(prompt: &[u32], count: u32) -> Vec<u32> {
    let (mut output, mut last, mut read, mut position) = (Vec::new(), 0, 0, 0);
    let mut take = |token: u32| {
        last = chain(last, token, position);
        read = attend(read, last);
        position += 1;
        read
    };
    let mut read = prompt.iter().fold(0, |_, &token| take(token));
    while output.len() < count as usize {
        let token = draw(read);
        output.push(token);
        read = take(token);
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_its_bytes() {
        let before = Entry { page: 3, tenant: 2, tag: u64::MAX - 5, seq: 1 << 40, position: 6, flags: VALID, chain: 77 };
        let entry = Entry::following(Some(&before.tainted()), 9, 7).not_a_number();
        assert_eq!(Entry::read(&entry.bytes()), entry);
        assert!(entry.is_valid() && entry.is_tainted() && entry.is_nan());
        assert!(!Entry::read(&[0; ENTRY_BYTES]).is_valid());
    }

    #[test]
    fn tokens_follow_from_every_token_before_and_are_never_poison() {
        let tokens = alone(&[1, 2, 3], 200);
        assert!(tokens.iter().all(|&token| token < POISON));
        assert_eq!(tokens, alone(&[1, 2, 3], 200));
        assert_ne!(tokens, alone(&[2, 1, 3], 200));
        assert_eq!(alone(&[&[1, 2, 3], &tokens[..50]].concat(), 150), tokens[50..]);
    }
}
