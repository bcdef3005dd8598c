//! What a node and the engine processes that it supervises say to each other, as messages and as bytes. Everything is bounded and
//! read strictly, although both sides are one program: the other may be another release of it. Knows no socket.

mod event;
mod facts;
mod order;
mod record;
mod schedule;

pub(crate) use event::{MAX_PREFIX_PAGES, Report, SequenceEvent};
#[cfg(test)]
pub(crate) use facts::tests as samples;
pub(crate) use facts::{Layout, Ready, add as add_counters};
use millrace_transfer::CodecError;
pub(crate) use order::{Order, Submission};
pub use schedule::ScheduleRuns;
#[cfg(test)]
pub(crate) use schedule::tests as schedules;
pub(crate) use schedule::{Component, Offer, ScheduleOrder, ScheduleReport};

/// A lane's or pool's name, and other short words.
const MAX_NAME_BYTES: usize = 256;
/// Tokens of a prompt or of an answer.
const MAX_TOKENS: usize = 1 << 20;
/// Lanes, pools, tenants of one engine.
const MAX_ROWS: usize = 1 << 16;

fn unknown<T>(what: &'static str, value: u8) -> Result<T, CodecError> {
    Err(CodecError::Unknown { what, value: u64::from(value) })
}
