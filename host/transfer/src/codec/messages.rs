//! The messages of a hand-off as bytes: kind, stamp, transfer, then what the kind has.

use super::{CodecError, Decoder, Encoder};
use crate::{CHUNK_BYTES, End, MAX_PAGES, MAX_TICKET_BYTES, PageKey, Stamped, ToDecode, ToPrefill, TransferId};

const OFFER: u8 = 1;
const WRITE: u8 = 2;
const COMMIT: u8 = 3;
const ABORT: u8 = 4;
const HEARD: u8 = 5;
const RESERVED: u8 = 11;
const LANDED: u8 = 12;
const ENDED: u8 = 13;

const COMMITTED: u8 = 0;
const ABORTED: u8 = 1;
const STALE_TARGET: u8 = 2;
const REFUSED: u8 = 3;

/// Of the reason for a refusal.
const MAX_WHY_BYTES: usize = 1 << 10;
const PAGE_KEY_BYTES: usize = 12;

fn begin<M>(kind: u8, stamped: &Stamped<M>, transfer: TransferId) -> Encoder {
    let mut out = Encoder::of_kind(kind);
    out.incarnation(stamped.from).incarnation(stamped.to).u64(stamped.session).u64(transfer.0);
    out
}

fn put_page(out: &mut Encoder, page: PageKey) {
    out.u32(page.page).u64(page.tag);
}

fn page(from: &mut Decoder<'_>) -> Result<PageKey, CodecError> {
    Ok(PageKey { page: from.u32("a page")?, tag: from.u64("a tag")? })
}

impl Stamped<ToDecode> {
    pub fn encode(&self) -> Vec<u8> {
        match &self.message {
            ToDecode::Offer { transfer, first, tokens, pages, ticket } => {
                begin(OFFER, self, *transfer).u64(first.0).u32(*tokens).u32(*pages).bytes(ticket).finish()
            }
            ToDecode::Write { transfer, index, page, chunk, bytes } => {
                let mut out = begin(WRITE, self, *transfer);
                out.u32(*index);
                put_page(&mut out, *page);
                out.u32(*chunk).bytes(bytes).finish()
            }
            ToDecode::Commit { transfer } => begin(COMMIT, self, *transfer).finish(),
            ToDecode::Abort { transfer } => begin(ABORT, self, *transfer).finish(),
            ToDecode::Heard { transfer } => begin(HEARD, self, *transfer).finish(),
        }
    }

    /// # Errors
    /// The bytes are no message to a decode side.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut input = Decoder::new(bytes);
        let kind = input.u8("the kind")?;
        let (from, to) = (input.incarnation()?, input.incarnation()?);
        let session = input.u64("the session")?;
        let transfer = TransferId(input.u64("the transfer")?);
        let message = match kind {
            OFFER => ToDecode::Offer {
                transfer,
                first: TransferId(input.u64("the first transfer")?),
                tokens: input.u32("the tokens")?,
                pages: input.u32("the pages")?,
                ticket: input.bytes(MAX_TICKET_BYTES, "the ticket")?.to_vec(),
            },
            WRITE => ToDecode::Write {
                transfer,
                index: input.u32("the index")?,
                page: page(&mut input)?,
                chunk: input.u32("the part")?,
                bytes: input.bytes(CHUNK_BYTES, "the part of a page")?.to_vec(),
            },
            COMMIT => ToDecode::Commit { transfer },
            ABORT => ToDecode::Abort { transfer },
            HEARD => ToDecode::Heard { transfer },
            other => return Err(CodecError::Unknown { what: "the kind", value: u64::from(other) }),
        };
        input.finish()?;
        Ok(Self { from, to, session, message })
    }
}

impl Stamped<ToPrefill> {
    pub fn encode(&self) -> Vec<u8> {
        match &self.message {
            ToPrefill::Reserved { transfer, pages } => {
                let mut out = begin(RESERVED, self, *transfer);
                out.u32(u32::try_from(pages.len()).unwrap_or(u32::MAX));
                pages.iter().for_each(|&page| put_page(&mut out, page));
                out.finish()
            }
            ToPrefill::Landed { transfer, index } => begin(LANDED, self, *transfer).u32(*index).finish(),
            ToPrefill::Ended { transfer, end } => {
                let mut out = begin(ENDED, self, *transfer);
                match end {
                    End::Committed => out.u8(COMMITTED),
                    End::Aborted => out.u8(ABORTED),
                    End::StaleTarget => out.u8(STALE_TARGET),
                    End::Refused(why) => out.u8(REFUSED).text(cut(why)),
                };
                out.finish()
            }
        }
    }

    /// # Errors
    /// The bytes are no message to a prefill side.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut input = Decoder::new(bytes);
        let kind = input.u8("the kind")?;
        let (from, to) = (input.incarnation()?, input.incarnation()?);
        let session = input.u64("the session")?;
        let transfer = TransferId(input.u64("the transfer")?);
        let message = match kind {
            RESERVED => {
                let count = input.count(MAX_PAGES as usize, PAGE_KEY_BYTES, "the reserved pages")?;
                let pages = (0..count).map(|_| page(&mut input)).collect::<Result<_, _>>()?;
                ToPrefill::Reserved { transfer, pages }
            }
            LANDED => ToPrefill::Landed { transfer, index: input.u32("the index")? },
            ENDED => {
                let end = match input.u8("the end")? {
                    COMMITTED => End::Committed,
                    ABORTED => End::Aborted,
                    STALE_TARGET => End::StaleTarget,
                    REFUSED => End::Refused(input.text(MAX_WHY_BYTES, "the reason")?),
                    other => return Err(CodecError::Unknown { what: "the end", value: u64::from(other) }),
                };
                ToPrefill::Ended { transfer, end }
            }
            other => return Err(CodecError::Unknown { what: "the kind", value: u64::from(other) }),
        };
        input.finish()?;
        Ok(Self { from, to, session, message })
    }
}

/// At most so much of a reason as the other side takes.
fn cut(why: &str) -> &str {
    why.get(..why.floor_char_boundary(MAX_WHY_BYTES)).unwrap_or_default()
}
