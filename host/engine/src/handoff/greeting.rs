//! The frames that open a connection between two engines, and how they are told from the messages behind them.

use millrace_transfer::{CodecError, Decoder, Encoder, Hello, Refused, Welcome};

const HELLO: u8 = 0x80;
const WELCOME: u8 = 0x81;
const REFUSED: u8 = 0x82;
const MAX_WHY_BYTES: usize = 4 << 10;

/// What a decode engine says to a prefill engine.
pub(super) enum Answer {
    Welcome(Welcome),
    /// `again`: in a moment it may be another answer.
    Refused {
        why: String,
        again: bool,
    },
    /// A message of the protocol.
    Message,
}

pub(super) fn hello(hello: &Hello) -> Vec<u8> {
    let mut out = Encoder::of_kind(HELLO);
    hello.encode(&mut out);
    out.finish()
}

/// `None`: a message of the protocol.
pub(super) fn read_hello(frame: &[u8]) -> Result<Option<Hello>, CodecError> {
    let mut from = Decoder::new(frame);
    if from.u8("the kind")? != HELLO {
        return Ok(None);
    }
    let hello = Hello::decode(&mut from)?;
    from.finish()?;
    Ok(Some(hello))
}

pub(super) fn welcome(answer: &Result<Welcome, Refused>) -> Vec<u8> {
    match answer {
        Ok(welcome) => {
            let mut out = Encoder::of_kind(WELCOME);
            welcome.encode(&mut out);
            out.finish()
        }
        Err(refused) => {
            let why = refused.to_string();
            let why = why.get(..why.floor_char_boundary(MAX_WHY_BYTES)).unwrap_or_default();
            Encoder::of_kind(REFUSED).u8(u8::from(*refused == Refused::Settling)).text(why).finish()
        }
    }
}

pub(super) fn answer(frame: &[u8]) -> Result<Answer, CodecError> {
    let mut from = Decoder::new(frame);
    let answer = match from.u8("the kind")? {
        WELCOME => Answer::Welcome(Welcome::decode(&mut from)?),
        REFUSED => {
            let again = from.flag("whether to come again")?;
            Answer::Refused { again, why: from.text(MAX_WHY_BYTES, "the reason")? }
        }
        _ => return Ok(Answer::Message),
    };
    from.finish()?;
    Ok(answer)
}
