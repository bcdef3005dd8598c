//! The hand-off of a prefilled sequence between two processes: a protocol of two pure state machines, a frame codec, and a TCP
//! transport with TLS and a shared secret.
//!
//! ```text
//!   prefill side: Sender                      decode side: Receiver, which owns the staging ring
//!     Hello { terms, incarnation }     ->       compares; Welcome or what does not agree
//!     Offer { tokens, pages, ticket }  ->       reserves pages, each under a new tag
//!                                      <-       Reserved { (page, tag) .. }
//!     Write { page, tag, chunk, .. }   ->       staging slot; whole pages are imported, if the page still has the tag
//!                                      <-       Landed { index }
//!     Commit | Abort                   ->       attaches or frees
//!     (frees the source pages)         <-       Ended { how }
//!     Heard                            ->       forgets
//! ```
//!
//! The machines have no clock, no IO and no memory of addresses. Whoever drives them carries out what [`Sender::next_action`] and
//! [`Receiver::next_action`] ask for. It does not know models, schedulers, devices or what a page holds.
#![forbid(unsafe_code)]

mod codec;
mod incarnation;
mod message;
mod receiver;
mod sender;
pub mod tcp;
mod terms;

pub use codec::{CodecError, Decoder, Encoder};
pub use incarnation::Incarnation;
pub use message::{
    CHUNK_BYTES, End, Hello, MAX_FRAME_BYTES, MAX_PAGES, MAX_TICKET_BYTES, OutOfOrder, PageKey, Stamped, ToDecode, ToPrefill,
    TransferId, Welcome, Window, chunks_of,
};
pub use receiver::{Heard, Receiver, ReceiverAction, Refused};
pub use sender::{Outcome, Sender, SenderAction, StalePeer};
pub use terms::{Accepts, Mismatch, PROTOCOL, Terms};
