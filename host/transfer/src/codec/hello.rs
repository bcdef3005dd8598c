//! The first messages of a connection as bytes.

use super::{CodecError, Decoder, Encoder};
use crate::{Hello, Terms, TransferId, Welcome, Window};

/// Of any word of the terms: layouts with scales for each layer are the longest.
const MAX_WORD_BYTES: usize = 8 << 10;

impl Hello {
    /// Adds it to a message.
    pub fn encode(&self, out: &mut Encoder) {
        let Terms { protocol, lane, model, weights, shape, format, scales, page_tokens, page_bytes } = &self.terms;
        out.u16(*protocol).incarnation(self.incarnation).u64(self.session).u64(self.first.0);
        [lane, model, weights, shape, format, scales].into_iter().for_each(|word| {
            out.text(word);
        });
        out.u32(*page_tokens).u32(*page_bytes);
    }

    /// Takes it off a message.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(from: &mut Decoder<'_>) -> Result<Self, CodecError> {
        let protocol = from.u16("the protocol's version")?;
        let (incarnation, session) = (from.incarnation()?, from.u64("the session")?);
        let first = TransferId(from.u64("the first transfer")?);
        let mut word = |what| from.text(MAX_WORD_BYTES, what);
        let terms = Terms {
            protocol,
            lane: word("the lane")?,
            model: word("the model")?,
            weights: word("the weights")?,
            shape: word("the shape")?,
            format: word("the format")?,
            scales: word("the scales")?,
            page_tokens: from.u32("page_tokens")?,
            page_bytes: from.u32("page_bytes")?,
        };
        Ok(Self { incarnation, session, terms, first })
    }
}

impl Welcome {
    /// Adds it to a message.
    pub fn encode(&self, out: &mut Encoder) {
        out.incarnation(self.incarnation).u64(self.session).u32(self.window.slots).u32(self.window.transfers);
    }

    /// Takes it off a message.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(from: &mut Decoder<'_>) -> Result<Self, CodecError> {
        let (incarnation, session) = (from.incarnation()?, from.u64("the session")?);
        let window = Window { slots: from.u32("the slots")?, transfers: from.u32("the transfers")? };
        Ok(Self { incarnation, session, window })
    }
}
