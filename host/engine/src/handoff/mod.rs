//! The hand-off of a prefilled sequence from a prefill pool to a decode pool: a protocol of plain messages, and the in-process
//! transport that carries it between two pools of one device.
//!
//! ```text
//! prefill side                         decode side (owns the staging ring)
//!   offer(terms, tokens)        ->       reserve pages, each with a new tag
//!   write(page -> slot)         ->       staging slot
//!                                        import: check (page, tag), convert, scatter
//!   release source pages        <-       committed | aborted
//! ```
//!
//! A writer never touches a page of the other side: it fills a staging slot, and the decode side's own queue moves the slot into
//! the page, only if that page still carries the reserved tag. So a late writer costs a slot, never a neighbour's cache.
//!
//! Where the two pools are in different processes, `sending` and `receiving` carry out the same with the machines and over the
//! transport of `millrace_transfer`.

mod copies;
pub(crate) mod driving;
mod greeting;
mod in_process;
mod link;
mod protocol;
mod receiving;
mod sending;
mod ticket;
mod told;
mod transfer;

pub(crate) use in_process::HandOff;
pub use link::LinkSpec;
pub(crate) use link::{Link, terms};
pub use protocol::{Offer, Refusal, Terms, TransferId};
pub(crate) use receiving::{Arrival, Receiving};
pub(crate) use sending::Sending;
pub(crate) use ticket::Ticket;
pub(crate) use transfer::HandOffEvent;
