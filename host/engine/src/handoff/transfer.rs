//! One sequence on its way from prefill to decode, and how that can end. Knows no queue and no copy.

use millrace_core::SeqId;
use millrace_kv::PageRef;
use millrace_scheduler::{DecodeScheduler, Entry, NoRoom};
use millrace_transfer::Incarnation;

use super::Offer;

/// How a transfer ended. The prefill side may now release its pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HandOffEvent {
    /// The decode side runs the sequence from here on: this life of it, where it is another process.
    Committed { seq: SeqId, pages: usize, life: Option<Incarnation> },
    /// A source page no longer carried its tag; the decode side is free of it.
    StaleSource { seq: SeqId },
    /// A reserved page no longer carried its tag; the decode side has put its pages under suspicion.
    StaleTarget { seq: SeqId },
    /// The decode side can never take it.
    Refused { seq: SeqId, why: String },
    /// Cancelled by [`super::HandOff::cancel`] or [`super::HandOff::abandon`] while it was under way; the decode side is free of it.
    Cancelled { seq: SeqId },
}

/// One sequence on its way.
pub(super) struct Transfer {
    pub(super) offer: Offer,
    pub(super) entry: Entry,
    pub(super) first_token: u32,
    pub(super) source: Vec<PageRef>,
    /// Reserved by the decode side; none yet while it has no room.
    pub(super) target: Option<Vec<PageRef>>,
    /// Pages imported.
    pub(super) landed: usize,
    pub(super) end: Option<End>,
}

/// Why a transfer ends without having landed.
pub(super) enum End {
    Cancelled,
    StaleSource,
    StaleTarget,
    Refused(NoRoom),
}

impl Transfer {
    /// Frees the decode side of a transfer that will not land.
    pub(super) fn give_up(&self, end: End, scheduler: &mut DecodeScheduler) -> HandOffEvent {
        let seq = self.offer.seq;
        if self.target.is_some() {
            match end {
                End::StaleTarget => scheduler.abort_mismatched(seq),
                End::Cancelled | End::StaleSource | End::Refused(_) => scheduler.cancel(seq),
            };
        }
        match end {
            End::Cancelled => HandOffEvent::Cancelled { seq },
            End::StaleSource => HandOffEvent::StaleSource { seq },
            End::StaleTarget => HandOffEvent::StaleTarget { seq },
            End::Refused(why) => HandOffEvent::Refused { seq, why: why.to_string() },
        }
    }
}
