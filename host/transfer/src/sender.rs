//! The prefill side of hand-offs between two processes, as a pure state machine. Knows neither bytes nor what a ticket says.
//!
//! ```text
//!   offer -> offered -> Reserved -> writing -> committing -> Ended -> End { outcome }
//!               \___________\___________\__ cancel, stale source: aborting __/
//! ```
//! Source pages stay untouched until [`SenderAction::End`] names their transfer: the peer has acknowledged, or is known to be
//! dead (a later life of it said hello, or its supervisor saw it end). No timer ends a transfer.
//!
//! A connection that breaks loses whatever was under way; when the same life of the peer is back, everything that it has not
//! acknowledged is said again. Every message may come twice, late or out of turn.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::{
    End, Hello, Incarnation, MAX_PAGES, OutOfOrder, PageKey, Stamped, Terms, ToDecode, ToPrefill, TransferId, Welcome, Window,
};

/// What is to be said or done once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Duty {
    NotYet,
    Due,
    Done,
}

impl Duty {
    /// The peer may not have heard it.
    fn again(&mut self) {
        if *self == Self::Done {
            *self = Self::Due;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PageState {
    Due,
    /// Being copied out of its pool.
    Fetching,
    Sent,
    Landed,
}

/// Why the sender gives up a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum GivenUp {
    Cancelled,
    StaleSource,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Outgoing {
    tokens: u32,
    ticket: Arc<[u8]>,
    pages: Vec<PageState>,
    /// Reserved by the peer.
    targets: Vec<PageKey>,
    offer: Duty,
    commit: Duty,
    abort: Duty,
    given_up: Option<GivenUp>,
}

/// How a transfer ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// This life of the peer runs the sequence, or has run it.
    Committed(Incarnation),
    /// Cancelled by this side, or by the peer on its own account; the peer is free of it.
    Cancelled,
    StaleSource,
    /// A page of the peer no longer carried its tag.
    StaleTarget,
    /// The peer can never take it.
    Refused(String),
    /// That life of the peer is over, and whatever it had with it. The sequence may be offered to the next.
    PeerLost,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SenderAction {
    Send(Stamped<ToDecode>),
    /// Copy a page out and answer with [`Sender::fetched`] or [`Sender::source_stale`].
    Fetch {
        transfer: TransferId,
        index: u32,
    },
    /// The source pages of this transfer are named by nothing any more.
    End {
        transfer: TransferId,
        outcome: Outcome,
    },
}

/// An earlier life of a peer, or one that is known to be dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer is incarnation {0}, which is over")]
pub struct StalePeer(pub Incarnation);

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sender {
    own: Incarnation,
    /// The last peer that was welcome, connected or not.
    peer: Option<Incarnation>,
    connected: bool,
    dead: Option<Incarnation>,
    /// Of the last hello.
    session: u64,
    window: Window,
    next: u64,
    transfers: BTreeMap<TransferId, Outgoing>,
    /// Slots of the peer that pages of ours take or may take.
    in_flight: u32,
    ended: VecDeque<(TransferId, Outcome)>,
    heard: VecDeque<TransferId>,
}

impl Sender {
    pub fn new(own: Incarnation) -> Self {
        Self {
            own,
            peer: None,
            connected: false,
            dead: None,
            session: 0,
            window: Window { slots: 0, transfers: 0 },
            next: 1,
            transfers: BTreeMap::new(),
            in_flight: 0,
            ended: VecDeque::new(),
            heard: VecDeque::new(),
        }
    }

    /// What a new connection begins with.
    pub fn hello(&mut self, terms: &Terms) -> Hello {
        self.connected = false;
        self.session += 1;
        let first = self.transfers.keys().next().copied().unwrap_or(TransferId(self.next));
        Hello { incarnation: self.own, session: self.session, terms: terms.clone(), first }
    }

    /// The peer has answered. The same life as before gets everything again that it has not acknowledged; with a later one, all
    /// transfers end as lost.
    ///
    /// # Errors
    /// An earlier life than the one known, or the answer to an earlier hello; nothing changes.
    pub fn connected(&mut self, welcome: Welcome) -> Result<(), StalePeer> {
        let peer = welcome.incarnation;
        if welcome.session != self.session {
            return Err(StalePeer(peer));
        }
        if self.dead == Some(peer) || self.peer.or(self.dead).is_some_and(|known| known != peer && !peer.supersedes(known)) {
            return Err(StalePeer(peer));
        }
        if self.peer != Some(peer) {
            self.lose_all();
        }
        self.peer = Some(peer);
        self.connected = true;
        self.window = welcome.window;
        self.heard.clear();
        self.in_flight = 0;
        for transfer in self.transfers.values_mut() {
            transfer.pages.iter_mut().filter(|page| **page != PageState::Landed).for_each(|page| *page = PageState::Due);
            [&mut transfer.offer, &mut transfer.commit, &mut transfer.abort].into_iter().for_each(Duty::again);
        }
        Ok(())
    }

    /// The connection is gone. Nothing ends: the peer may have everything still.
    pub fn disconnected(&mut self) {
        self.connected = false;
    }

    /// That life of the peer is over, as its supervisor saw.
    pub fn peer_dead(&mut self, peer: Incarnation) {
        if self.dead.is_none_or(|dead| peer.supersedes(dead)) {
            self.dead = Some(peer);
        }
        if self.peer == Some(peer) {
            self.peer = None;
            self.connected = false;
            self.lose_all();
        }
    }

    pub fn is_connected(&self) -> bool {
        self.connected
    }

    pub fn peer(&self) -> Option<Incarnation> {
        self.peer
    }

    /// Transfers under way.
    pub fn open(&self) -> usize {
        self.transfers.len()
    }

    /// Whether [`Self::offer`] would be taken.
    pub fn has_room(&self) -> bool {
        let oldest = self.transfers.keys().next().map_or(self.next, |oldest| oldest.0);
        let most = self.window.transfers;
        self.connected && self.transfers.len() < most as usize && self.next - oldest < u64::from(most)
    }

    /// Offers a sequence of so many tokens in so many pages. `None`: not now (see [`Self::has_room`]), or more pages than a
    /// transfer may have.
    pub fn offer(&mut self, tokens: u32, pages: u32, ticket: Arc<[u8]>) -> Option<TransferId> {
        if !self.has_room() || pages == 0 || pages > MAX_PAGES {
            return None;
        }
        let transfer = TransferId(self.next);
        self.next += 1;
        let outgoing = Outgoing {
            tokens,
            ticket,
            pages: vec![PageState::Due; pages as usize],
            targets: Vec::new(),
            offer: Duty::Due,
            commit: Duty::NotYet,
            abort: Duty::NotYet,
            given_up: None,
        };
        self.transfers.insert(transfer, outgoing);
        Some(transfer)
    }

    /// Gives a transfer up; [`SenderAction::End`] follows, once the peer has acknowledged. It may still say that it was committed.
    pub fn cancel(&mut self, transfer: TransferId) {
        self.give_up(transfer, GivenUp::Cancelled);
    }

    /// A source page did not carry its tag.
    pub fn source_stale(&mut self, transfer: TransferId) {
        self.give_up(transfer, GivenUp::StaleSource);
    }

    /// A page was copied out. Returns the stamp of its messages and the page of the peer that it is for, if it is still wanted.
    pub fn fetched(&mut self, transfer: TransferId, index: u32) -> Option<(Stamped<()>, PageKey)> {
        let peer = self.peer.filter(|_| self.connected)?;
        let outgoing = self.transfers.get_mut(&transfer).filter(|outgoing| outgoing.given_up.is_none())?;
        let target = *outgoing.targets.get(index as usize)?;
        let page = outgoing.pages.get_mut(index as usize).filter(|page| **page == PageState::Fetching)?;
        *page = PageState::Sent;
        Some((Stamped { from: self.own, to: peer, session: self.session, message: () }, target))
    }

    /// Takes a message. One of another life, of a transfer that is over, or that repeats what is known changes nothing.
    ///
    /// # Errors
    /// The peer breaks the protocol.
    pub fn hear(&mut self, stamped: &Stamped<ToPrefill>) -> Result<(), OutOfOrder> {
        if !self.connected || self.peer != Some(stamped.from) || stamped.to != self.own || stamped.session != self.session {
            return Ok(());
        }
        match &stamped.message {
            ToPrefill::Reserved { transfer, pages } => self.reserved(*transfer, pages),
            ToPrefill::Landed { transfer, index } => self.landed(*transfer, *index),
            ToPrefill::Ended { transfer, end } => {
                self.hear_end(*transfer, end);
                Ok(())
            }
        }
    }

    /// What is to be done next, as long as there is something.
    pub fn next_action(&mut self) -> Option<SenderAction> {
        if let Some((transfer, outcome)) = self.ended.pop_front() {
            return Some(SenderAction::End { transfer, outcome });
        }
        let peer = self.peer.filter(|_| self.connected)?;
        let (own, session) = (self.own, self.session);
        let send = |message| Some(SenderAction::Send(Stamped { from: own, to: peer, session, message }));
        if let Some(transfer) = self.heard.pop_front() {
            return send(ToDecode::Heard { transfer });
        }
        let room = self.in_flight < self.window.slots;
        let first = self.transfers.keys().next().copied()?;
        for (&transfer, outgoing) in &mut self.transfers {
            if let Some(message) = outgoing.say(transfer, first) {
                return send(message);
            }
            if room && let Some(index) = outgoing.next_page() {
                self.in_flight += 1;
                return Some(SenderAction::Fetch { transfer, index });
            }
        }
        None
    }

    fn give_up(&mut self, transfer: TransferId, why: GivenUp) {
        if let Some(outgoing) = self.transfers.get_mut(&transfer)
            && outgoing.given_up.is_none()
        {
            outgoing.given_up = Some(why);
            outgoing.abort = Duty::Due;
        }
    }

    fn reserved(&mut self, transfer: TransferId, pages: &[PageKey]) -> Result<(), OutOfOrder> {
        let Some(outgoing) = self.transfers.get_mut(&transfer) else { return Ok(()) };
        let wanted = outgoing.pages.len();
        if pages.len() != wanted {
            return Err(OutOfOrder::Reserved { transfer, got: pages.len(), wanted: u32::try_from(wanted).unwrap_or(u32::MAX) });
        }
        if outgoing.targets.is_empty() {
            outgoing.targets = pages.to_vec();
        }
        Ok(())
    }

    fn landed(&mut self, transfer: TransferId, index: u32) -> Result<(), OutOfOrder> {
        let Some(outgoing) = self.transfers.get_mut(&transfer) else { return Ok(()) };
        let page = outgoing.pages.get_mut(index as usize).ok_or(OutOfOrder::NoPage { transfer, index })?;
        let before = std::mem::replace(page, PageState::Landed);
        self.in_flight -= u32::from(matches!(before, PageState::Fetching | PageState::Sent));
        Ok(())
    }

    fn hear_end(&mut self, transfer: TransferId, end: &End) {
        if let Some(outgoing) = self.transfers.remove(&transfer) {
            self.in_flight -= outgoing.slots();
            let outcome = match (end, outgoing.given_up) {
                // Only a connected peer is heard.
                (End::Committed, _) => self.peer.map_or(Outcome::PeerLost, Outcome::Committed),
                (End::StaleTarget, _) => Outcome::StaleTarget,
                (_, Some(GivenUp::StaleSource)) => Outcome::StaleSource,
                (_, Some(GivenUp::Cancelled)) | (End::Aborted, None) => Outcome::Cancelled,
                (End::Refused(why), None) => Outcome::Refused(why.clone()),
            };
            self.ended.push_back((transfer, outcome));
        }
        // Also where the end was heard before: the peer did not hear that it was.
        let bounded = self.heard.len() < 2 * self.window.transfers as usize;
        if bounded && transfer.0 < self.next && !self.heard.contains(&transfer) {
            self.heard.push_back(transfer);
        }
    }

    fn lose_all(&mut self) {
        let lost = std::mem::take(&mut self.transfers);
        self.ended.extend(lost.into_keys().map(|transfer| (transfer, Outcome::PeerLost)));
        self.heard.clear();
        self.in_flight = 0;
    }
}

impl Outgoing {
    /// Slots that its pages take or may take.
    fn slots(&self) -> u32 {
        let taken = self.pages.iter().filter(|page| matches!(page, PageState::Fetching | PageState::Sent));
        u32::try_from(taken.count()).unwrap_or(u32::MAX)
    }

    /// The message that is due, which counts as said.
    fn say(&mut self, transfer: TransferId, first: TransferId) -> Option<ToDecode> {
        if self.offer == Duty::Due {
            self.offer = Duty::Done;
            let (tokens, pages) = (self.tokens, u32::try_from(self.pages.len()).unwrap_or(u32::MAX));
            return Some(ToDecode::Offer { transfer, first, tokens, pages, ticket: self.ticket.to_vec() });
        }
        if self.abort == Duty::Due {
            self.abort = Duty::Done;
            return Some(ToDecode::Abort { transfer });
        }
        let written = || self.pages.iter().all(|page| matches!(page, PageState::Sent | PageState::Landed));
        if self.given_up.is_none() && self.commit != Duty::Done && !self.targets.is_empty() && written() {
            self.commit = Duty::Done;
            return Some(ToDecode::Commit { transfer });
        }
        None
    }

    /// The first page that waits to be written.
    fn next_page(&mut self) -> Option<u32> {
        if self.given_up.is_some() || self.targets.is_empty() {
            return None;
        }
        let index = self.pages.iter().position(|page| *page == PageState::Due)?;
        self.pages[index] = PageState::Fetching;
        u32::try_from(index).ok()
    }
}
