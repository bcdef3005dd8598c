//! What the two sides say to each other. Plain data; knows no transport and no device.

use millrace_core::SeqId;
use millrace_ops::{KvFormat, KvLayout};

/// Names one hand-off on the side that offers it; never reused, so a repeated message can be told from a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

/// What must agree, or be convertible, before a byte moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Of the checkpoint: both sides must run the same model.
    pub weights_digest: String,
    /// Where and how numbers lie in a page.
    pub layout: KvLayout,
    /// Of the process that holds the pages.
    pub boot_nonce: u16,
}

/// A prefilled sequence, offered to a decode pool.
#[derive(Debug, Clone)]
pub struct Offer {
    pub transfer: TransferId,
    pub seq: SeqId,
    /// Tokens whose keys and values are offered.
    pub tokens: u32,
}

/// Why two pools can never hand off to each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("prefill runs weights {prefill} and decode {decode}; both stages of a lane must be made from the same checkpoint")]
    Weights { prefill: String, decode: String },
    #[error(
        "prefill pages are {prefill} and decode pages {decode}; planes and page_tokens must agree (the KV format may differ)"
    )]
    Layout { prefill: String, decode: String },
    #[error("there is no conversion from {from} to {to} pages")]
    Conversion { from: KvFormat, to: KvFormat },
}

impl Terms {
    /// Whether pages of `self` (prefill) can become pages of `decode`.
    ///
    /// # Errors
    /// The first thing that does not agree.
    pub fn check(&self, decode: &Self) -> Result<(), Refusal> {
        if self.weights_digest != decode.weights_digest {
            return Err(Refusal::Weights { prefill: self.weights_digest.clone(), decode: decode.weights_digest.clone() });
        }
        if !self.layout.agrees_but_for_format(&decode.layout) {
            return Err(Refusal::Layout { prefill: self.layout.id(), decode: decode.layout.id() });
        }
        let (from, to) = (self.layout.format, decode.layout.format);
        if from.becomes(to) { Ok(()) } else { Err(Refusal::Conversion { from, to }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(format: KvFormat) -> Terms {
        Terms { weights_digest: "aa".into(), layout: KvLayout::grouped_query(2, 3, 64, 32, format), boot_nonce: 1 }
    }

    #[test]
    fn formats_may_narrow_but_not_widen() {
        assert_eq!(terms(KvFormat::Bf16).check(&terms(KvFormat::Fp8)), Ok(()));
        assert_eq!(terms(KvFormat::F32).check(&terms(KvFormat::Bf16)), Ok(()));
        let refusal = Refusal::Conversion { from: KvFormat::Fp8, to: KvFormat::Bf16 };
        assert_eq!(terms(KvFormat::Fp8).check(&terms(KvFormat::Bf16)), Err(refusal));
    }

    #[test]
    fn a_mismatch_says_which() {
        let mut other = terms(KvFormat::Fp8);
        other.weights_digest = "bb".into();
        let refusal = Refusal::Weights { prefill: "aa".into(), decode: "bb".into() };
        assert_eq!(terms(KvFormat::Bf16).check(&other), Err(refusal));
        let mut other = terms(KvFormat::Fp8);
        other.layout = KvLayout::grouped_query(2, 3, 64, 16, KvFormat::Fp8);
        let message = terms(KvFormat::Bf16).check(&other).map_err(|r| r.to_string());
        assert!(message.is_err_and(|m| m.contains("p32") && m.contains("p16")));
    }
}
