//! What two sides must agree on before a byte moves. Compares words and numbers; knows no model and no layout.

/// Version of the messages. A peer of another one is refused; nothing is guessed.
pub const PROTOCOL: u16 = 1;

/// What the prefill side will send.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Terms {
    pub protocol: u16,
    pub lane: String,
    pub model: String,
    /// Of the checkpoint.
    pub weights: String,
    /// Planes, layers, heads and widths of a page, without its format.
    pub shape: String,
    /// Format of keys and values on the wire.
    pub format: String,
    /// How FP8 codes are scaled, where that is not stored beside them.
    pub scales: String,
    pub page_tokens: u32,
    /// Of one page in `format`.
    pub page_bytes: u32,
}

/// A format that the decode side can turn into its own, and the bytes of a page in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Accepts {
    pub format: String,
    pub page_bytes: u32,
}

/// The first thing that does not agree.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Mismatch {
    #[error("prefill speaks version {prefill} of the hand-off protocol and decode {decode}; run the same release on both sides")]
    Protocol { prefill: u16, decode: u16 },
    #[error("prefill hands over lane `{prefill}`, this is lane `{decode}`; give both sides the same deployment")]
    Lane { prefill: String, decode: String },
    #[error("prefill serves model `{prefill}` and decode `{decode}`; give both sides the same deployment")]
    Model { prefill: String, decode: String },
    #[error("prefill runs weights {prefill} and decode {decode}; both stages of a lane must be made from the same checkpoint")]
    Weights { prefill: String, decode: String },
    #[error("prefill pages are {prefill} and decode pages {decode}; planes, layers, heads and widths must agree")]
    Shape { prefill: String, decode: String },
    #[error("prefill has pages of {prefill} tokens and decode of {decode}; give both pools the same page_tokens")]
    PageTokens { prefill: u32, decode: u32 },
    #[error("prefill scales FP8 by {prefill} and decode by {decode}; calibrate both sides alike")]
    Scales { prefill: String, decode: String },
    #[error("prefill sends {prefill} pages; decode takes {decode}")]
    Format { prefill: String, decode: String },
    #[error("a page of {format} has {prefill} bytes for prefill and {decode} for decode; run the same release on both sides")]
    PageBytes { format: String, prefill: u32, decode: u32 },
}

impl Terms {
    /// Whether what `self` sends can become pages of `decode`, which takes the formats of `accepts`.
    ///
    /// # Errors
    /// The first thing that does not agree, in words.
    pub fn check(&self, decode: &Self, accepts: &[Accepts]) -> Result<(), Mismatch> {
        let words = |prefill: &String, decode: &String| (prefill != decode).then(|| (prefill.clone(), decode.clone()));
        if self.protocol != decode.protocol {
            return Err(Mismatch::Protocol { prefill: self.protocol, decode: decode.protocol });
        }
        if let Some((prefill, decode)) = words(&self.lane, &decode.lane) {
            return Err(Mismatch::Lane { prefill, decode });
        }
        if let Some((prefill, decode)) = words(&self.model, &decode.model) {
            return Err(Mismatch::Model { prefill, decode });
        }
        if let Some((prefill, decode)) = words(&self.weights, &decode.weights) {
            return Err(Mismatch::Weights { prefill, decode });
        }
        if self.page_tokens != decode.page_tokens {
            return Err(Mismatch::PageTokens { prefill: self.page_tokens, decode: decode.page_tokens });
        }
        if let Some((prefill, decode)) = words(&self.shape, &decode.shape) {
            return Err(Mismatch::Shape { prefill, decode });
        }
        if let Some((prefill, decode)) = words(&self.scales, &decode.scales) {
            return Err(Mismatch::Scales { prefill, decode });
        }
        let Some(accepted) = accepts.iter().find(|accepted| accepted.format == self.format) else {
            let known: Vec<&str> = accepts.iter().map(|accepted| accepted.format.as_str()).collect();
            return Err(Mismatch::Format { prefill: self.format.clone(), decode: known.join(", ") });
        };
        if accepted.page_bytes != self.page_bytes {
            let (prefill, decode) = (self.page_bytes, accepted.page_bytes);
            return Err(Mismatch::PageBytes { format: self.format.clone(), prefill, decode });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms {
            protocol: PROTOCOL,
            lane: "fast".into(),
            model: "m".into(),
            weights: "aa".into(),
            shape: "keys:1x1x8/p16".into(),
            format: "bf16".into(),
            scales: "none".into(),
            page_tokens: 16,
            page_bytes: 256,
        }
    }

    #[test]
    fn every_field_is_compared_and_named() {
        let accepts = [Accepts { format: "bf16".into(), page_bytes: 256 }, Accepts { format: "fp8".into(), page_bytes: 128 }];
        assert_eq!(terms().check(&terms(), &accepts), Ok(()));
        let narrowed = Terms { format: "fp8".into(), page_bytes: 128, ..terms() };
        assert_eq!(narrowed.check(&terms(), &accepts), Ok(()));
        let others = [
            (Terms { protocol: 2, ..terms() }, "version 2"),
            (Terms { lane: "x".into(), ..terms() }, "lane `x`"),
            (Terms { model: "x".into(), ..terms() }, "model `x`"),
            (Terms { weights: "bb".into(), ..terms() }, "weights bb"),
            (Terms { shape: "x".into(), ..terms() }, "pages are x"),
            (Terms { page_tokens: 32, ..terms() }, "pages of 32 tokens"),
            (Terms { scales: "x".into(), ..terms() }, "by x"),
            (Terms { format: "f32".into(), ..terms() }, "sends f32"),
            (Terms { page_bytes: 255, ..terms() }, "255 bytes"),
            (Terms { page_bytes: 257, ..terms() }, "257 bytes"),
            (Terms { page_tokens: 8, ..terms() }, "pages of 8 tokens"),
            (Terms { protocol: 0, ..terms() }, "version 0"),
        ];
        for (other, said) in others {
            let message = other.check(&terms(), &accepts).unwrap_err().to_string();
            assert!(message.contains(said), "{message}");
        }
    }
}
