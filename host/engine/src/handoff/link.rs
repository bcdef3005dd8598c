//! What connects a lane's two pools: the in-process hand-off, or one end of a connection to another process. Decides nothing.

use millrace_core::{SeqId, Stage};
use millrace_ops::{KvFormat, KvLayout, Ticket};
use millrace_transfer::tcp::Port;
use millrace_transfer::{Incarnation, PROTOCOL, Terms};

use super::{HandOff, Receiving, Sending};
use crate::LinkFacts;

/// One end of a connection, for a lane whose other pool is in another process.
pub struct LinkSpec {
    /// Of this process.
    pub incarnation: Incarnation,
    pub port: Port,
    pub terms: Terms,
}

/// What two sides of a lane compare, for a pool of this layout whose pages are sent in `wire`.
pub(crate) fn terms(lane: &str, model: &str, weights: &str, own: &KvLayout, wire: KvFormat) -> Terms {
    let sent = own.in_format(wire);
    let page = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Terms {
        protocol: PROTOCOL,
        lane: lane.to_owned(),
        model: model.to_owned(),
        weights: weights.to_owned(),
        shape: own.in_format(KvFormat::F32).id(),
        format: wire.to_string(),
        scales: own.scale_mode(),
        page_tokens: page(own.page_tokens),
        page_bytes: page(sent.page_bytes()),
    }
}

pub(crate) enum Link {
    InProcess(Box<HandOff>),
    Sending(Box<Sending>),
    Receiving(Box<Receiving>),
}

impl Link {
    /// Gives up a sequence that is under way; see [`HandOff::cancel`]. False: it is not here.
    pub(crate) fn cancel(&mut self, seq: SeqId) -> bool {
        match self {
            Self::InProcess(hand_off) => hand_off.cancel(seq),
            Self::Sending(sending) => sending.cancel(seq),
            Self::Receiving(receiving) => receiving.cancel(seq),
        }
    }

    /// The copy that was submitted last: the stage whose queue has it, and its ticket there.
    pub(crate) fn leg(&self) -> Option<(Stage, Ticket)> {
        match self {
            Self::InProcess(hand_off) => hand_off.leg(),
            Self::Sending(sending) => sending.leg().map(|ticket| (Stage::Prefill, ticket)),
            Self::Receiving(receiving) => receiving.leg().map(|ticket| (Stage::Decode, ticket)),
        }
    }

    /// Whether there is nothing to look at.
    pub(crate) fn is_idle(&self) -> bool {
        match self {
            Self::InProcess(hand_off) => hand_off.is_idle(),
            // Something may have come from outside.
            Self::Sending(_) | Self::Receiving(_) => false,
        }
    }

    /// Whether sequences can pass.
    pub(crate) fn is_up(&self) -> bool {
        match self {
            Self::InProcess(_) => true,
            Self::Sending(sending) => sending.is_connected(),
            Self::Receiving(receiving) => receiving.is_connected(),
        }
    }

    /// That life of the other process is over.
    pub(crate) fn peer_dead(&mut self, peer: Incarnation) {
        match self {
            Self::InProcess(_) => {}
            Self::Sending(sending) => sending.peer_dead(peer),
            Self::Receiving(receiving) => receiving.peer_dead(peer),
        }
    }

    /// `None`: it is no connection.
    pub(crate) fn facts(&self) -> Option<LinkFacts> {
        match self {
            Self::InProcess(_) => None,
            Self::Sending(sending) => Some(sending.facts()),
            Self::Receiving(receiving) => Some(receiving.facts()),
        }
    }
}
