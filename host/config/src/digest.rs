//! A SHA-256 that is configured: of an API key or a component. It is never computed here.

use std::fmt;
use std::str::FromStr;

/// 32 bytes. `Debug` shows none of them, so that a logged configuration gives no key digest away.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// SHA-256 of no bytes: what `printf '' | sha256sum` prints when the variable with the key was empty.
pub(crate) const OF_NOTHING: Digest = Digest([
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27, 0xae, 0x41, 0xe4, 0x64,
    0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
]);

impl Digest {
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// 64 lower-case digits. For digests of components; those of keys stay where they are.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl FromStr for Digest {
    type Err = String;

    /// 64 hexadecimal digits of either case, nothing else.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() != 64 || !text.is_ascii() {
            return Err(format!("has {} characters, a SHA-256 has 64 hexadecimal digits", text.chars().count()));
        }
        let mut bytes = [0u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = pair.iter().try_fold(0u8, |sum, &digit| hex_value(digit).map(|value| sum << 4 | value))?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(redacted)")
    }
}

fn hex_value(digit: u8) -> Result<u8, String> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
        .ok_or_else(|| "has characters that are no hexadecimal digits".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_goes_both_ways_and_is_not_shown() {
        let text = "00ff102030405060708090a0b0c0d0e0f0112233445566778899AABBCCDDEEFf";
        let digest: Digest = text.parse().unwrap();
        assert_eq!(digest.to_hex(), text.to_lowercase());
        assert_eq!(format!("{digest:?}"), "Digest(redacted)");
        assert!("".parse::<Digest>().is_err());
        assert!("g".repeat(64).parse::<Digest>().is_err());
        assert!("+f".repeat(32).parse::<Digest>().is_err());
        assert!("é".repeat(32).parse::<Digest>().is_err());
    }
}
