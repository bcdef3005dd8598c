//! The byte-level alphabet: how GPT-2's BPE writes any byte as a printable character. Knows no vocabulary.
//!
//! ```text
//!   bytes 21..7E, A1..AC, AE..FF     the character of the same number
//!   the other 68, in order           U+0100, U+0101, ...       (space 20 -> U+0120 'Ġ', newline 0A -> U+010A 'Ċ')
//! ```
//! Source: `bytes_to_unicode` in <https://github.com/openai/gpt-2/blob/master/src/encoder.py>.

/// Characters of the alphabet have numbers below this.
const ALPHABET_END: usize = 0x100 + 68;

fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The way from characters back to bytes.
pub(crate) struct ByteAlphabet {
    bytes: [Option<u8>; ALPHABET_END],
}

impl ByteAlphabet {
    pub(crate) fn new() -> Self {
        let mut bytes = [None; ALPHABET_END];
        let mut next = 0x100;
        for byte in 0..=255_u8 {
            let character = if is_printable(byte) {
                usize::from(byte)
            } else {
                next += 1;
                next - 1
            };
            if let Some(slot) = bytes.get_mut(character) {
                *slot = Some(byte);
            }
        }
        Self { bytes }
    }

    /// The bytes that a token's text stands for; `None` where it is not written in this alphabet.
    pub(crate) fn decode(&self, token: &str) -> Option<Vec<u8>> {
        token.chars().map(|character| self.bytes.get(character as usize).copied().flatten()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_characters() {
        let alphabet = ByteAlphabet::new();
        assert_eq!(alphabet.decode("Ġhello"), Some(b" hello".to_vec()));
        assert_eq!(alphabet.decode("Ċ"), Some(b"\n".to_vec()));
        assert_eq!(alphabet.decode("Ã©"), Some("é".as_bytes().to_vec()));
        assert_eq!(alphabet.decode("Ń"), Some(vec![0xAD]));
        assert_eq!(alphabet.decode("漢"), None);
        assert_eq!(alphabet.decode(" "), None);
    }

    #[test]
    fn every_byte_has_one_character() {
        let alphabet = ByteAlphabet::new();
        let mut seen: Vec<u8> = alphabet.bytes.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    }
}
