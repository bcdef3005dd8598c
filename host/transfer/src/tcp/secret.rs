//! The secret that the processes of a deployment share, and the proof of having it. Never shown.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Bytes of a proof.
pub(super) const PROOF_BYTES: usize = 32;

/// Which side proves; the two proofs of a session differ, so that none can be sent back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Connects,
    Listens,
}

/// 256 bits. Two are not compared: what a peer says is verified in constant time.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// # Errors
    /// Not 64 hexadecimal digits; says so without the text.
    pub fn from_hex(text: &str) -> Result<Self, String> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err("a secret has 64 hexadecimal digits".to_owned());
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or("a secret has hexadecimal digits only");
            let value = digit(pair[0])? << 4 | digit(pair[1])?;
            *byte = u8::try_from(value).unwrap_or(0);
        }
        Ok(Self(bytes))
    }

    /// To hand it to a process that was started.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn keyed(&self, side: Side, session: &[u8]) -> Option<Hmac<Sha256>> {
        let mut keyed = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        keyed.update(match side {
            Side::Connects => b"millrace: the side that connects",
            Side::Listens => b"millrace: the side that listens!",
        });
        keyed.update(session);
        Some(keyed)
    }

    /// What the side says to prove that it has the secret, in this session alone.
    pub(super) fn prove(&self, side: Side, session: &[u8]) -> [u8; PROOF_BYTES] {
        // A key of any length is one.
        self.keyed(side, session).map_or([0; PROOF_BYTES], |keyed| keyed.finalize().into_bytes().into())
    }

    /// Whether a proof is the side's, in the same time for all that are not.
    pub(super) fn verify(&self, side: Side, session: &[u8], proof: &[u8; PROOF_BYTES]) -> bool {
        self.keyed(side, session).is_some_and(|keyed| keyed.verify_slice(proof).is_ok())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_secret_one_side_and_one_session() {
        let secret = Secret::new([7; 32]);
        let proof = secret.prove(Side::Connects, b"session");
        assert!(secret.verify(Side::Connects, b"session", &proof));
        assert!(!secret.verify(Side::Listens, b"session", &proof));
        assert!(!secret.verify(Side::Connects, b"another", &proof));
        assert!(!Secret::new([8; 32]).verify(Side::Connects, b"session", &proof));
    }

    #[test]
    fn hexadecimal_goes_both_ways_and_is_not_shown() {
        let secret = Secret::new(std::array::from_fn(|index| index as u8 * 7));
        let hex: String = (0..32_u8).map(|index| format!("{:02x}", index.wrapping_mul(7))).collect();
        assert_eq!(secret.to_hex(), hex);
        assert_eq!(Secret::from_hex(&hex).map(|same| same.to_hex()), Ok(hex));
        assert_eq!(format!("{secret:?}"), "Secret(redacted)");
        for wrong in ["", "ab", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64), &"é".repeat(32)] {
            let said = Secret::from_hex(wrong).unwrap_err();
            assert!(wrong.is_empty() || !said.contains(wrong), "{said}");
        }
    }
}
