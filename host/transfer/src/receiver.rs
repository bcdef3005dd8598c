//! The decode side of hand-offs between two processes, as a pure state machine. Knows neither pages nor what a ticket says:
//! its owner reserves, stages, imports and attaches.
//!
//! ```text
//!   Offer -> [Reserve] -> reserved -> Write.. [Stage].. page whole: [Import] -> landed.. -> Commit: [Attach] -> over -> Heard
//!                 \____________\________________________________\____ Abort, stale target, refused: [Release] _/
//! ```
//! Bytes go into slots of a staging ring and nowhere else. A page is imported out of its slot when all of its parts are there,
//! and only for the (page, tag) that was reserved. A transfer that ends is released once none of its pages is being imported.
//!
//! A session begins with an empty ring: a peer that comes (back) while pages are being imported is asked to try again.

mod incoming;
mod ring;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    Accepts, End, Hello, Incarnation, MAX_PAGES, Mismatch, OutOfOrder, PageKey, Stamped, Terms, ToDecode, ToPrefill, TransferId,
    Welcome, Window,
};

use self::incoming::{Incoming, Part, Put};
use self::ring::Ring;

/// What is to be done next, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReceiverAction {
    Send(Stamped<ToPrefill>),
    /// Find pages for a sequence and answer with [`Receiver::reserved`] or [`Receiver::refuse`], now or later.
    Reserve {
        transfer: TransferId,
        tokens: u32,
        pages: u32,
        ticket: Vec<u8>,
    },
    /// Put bytes into a slot of the ring.
    Stage {
        slot: u32,
        offset: u32,
        bytes: Vec<u8>,
    },
    /// A slot is whole: check the tag, convert, scatter; answer with [`Receiver::imported`] or [`Receiver::stale_target`].
    Import {
        transfer: TransferId,
        index: u32,
        slot: u32,
        page: PageKey,
    },
    /// Every page has landed: the sequence runs from now on.
    Attach {
        transfer: TransferId,
    },
    /// Free whatever the transfer has: its pages, or the wish for some. `stale`: one of them did not carry its tag.
    Release {
        transfer: TransferId,
        stale: bool,
    },
}

/// Why a peer is not welcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Terms(#[from] Mismatch),
    #[error("incarnation {peer} is over; {known} came after it")]
    Stale { peer: Incarnation, known: Incarnation },
    /// A hello that was recorded, or one of a connection that was overtaken.
    #[error("connection {session} of this incarnation is over; {known} came after it")]
    Replayed { session: u64, known: u64 },
    /// Try again in a moment.
    #[error("what the connection before has left is still being put away")]
    Settling,
}

/// What a message was good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    Taken,
    /// Of another life of one of the two sides: it changed nothing.
    Stranger,
    /// A write for a page that was not, or is no longer, reserved for its transfer: it changed nothing.
    StaleWrite,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Receiver {
    own: Incarnation,
    terms: Terms,
    accepts: Vec<Accepts>,
    window: Window,
    /// The last peer that was welcome, connected or not.
    peer: Option<Incarnation>,
    connected: bool,
    /// Of the peer's last connection.
    session: u64,
    /// Of a page as this peer sends it.
    page_bytes: u32,
    /// Every transfer below it is over for the sender.
    heard_below: u64,
    heard: BTreeSet<TransferId>,
    transfers: BTreeMap<TransferId, Incoming>,
    over: BTreeMap<TransferId, End>,
    ring: Ring,
    actions: VecDeque<ReceiverAction>,
}

impl Receiver {
    /// `terms` are compared with the peer's; its pages may have any format of `accepts`.
    pub fn new(own: Incarnation, terms: Terms, accepts: Vec<Accepts>, window: Window) -> Self {
        Self {
            own,
            terms,
            accepts,
            window,
            peer: None,
            connected: false,
            session: 0,
            page_bytes: 0,
            heard_below: 1,
            heard: BTreeSet::new(),
            transfers: BTreeMap::new(),
            over: BTreeMap::new(),
            ring: Ring::new(window.slots),
            actions: VecDeque::new(),
        }
    }

    /// A peer is here, perhaps again. Of a later life than the known one, all transfers of the known one end; the same life is told
    /// once more where its transfers stand.
    ///
    /// # Errors
    /// It is refused, or asked to come back.
    pub fn greet(&mut self, hello: &Hello) -> Result<Welcome, Refused> {
        let peer = hello.incarnation;
        if let Some(known) = self.peer.filter(|&known| known != peer && !peer.supersedes(known)) {
            return Err(Refused::Stale { peer, known });
        }
        if self.peer == Some(peer) && hello.session <= self.session {
            return Err(Refused::Replayed { session: hello.session, known: self.session });
        }
        hello.terms.check(&self.terms, &self.accepts)?;
        self.disconnected();
        if self.peer.is_some_and(|known| known != peer) {
            self.end_all();
        }
        if !self.ring.is_empty() || self.actions.iter().any(|action| matches!(action, ReceiverAction::Release { .. })) {
            return Err(Refused::Settling);
        }
        if self.peer != Some(peer) {
            // Whatever is still here is the earlier life's and has no wish left.
            self.transfers.clear();
            self.over.clear();
            self.heard.clear();
            self.heard_below = hello.first.0;
        }
        self.peer = Some(peer);
        self.connected = true;
        self.session = hello.session;
        self.page_bytes = hello.terms.page_bytes;
        self.forget_below(hello.first);
        self.tell_again();
        Ok(Welcome { incarnation: self.own, session: self.session, window: self.window })
    }

    /// The connection is gone: parts of pages that are not whole are dropped with it.
    pub fn disconnected(&mut self) {
        self.connected = false;
        // What is to be staged stays: a page that is whole is imported in any case.
        self.actions.retain(|action| !matches!(action, ReceiverAction::Send(_)));
        for incoming in self.transfers.values_mut() {
            incoming.drop_parts(&mut self.ring);
        }
    }

    /// That life of the peer is over, as its supervisor saw: its transfers end. What is committed goes on.
    pub fn peer_dead(&mut self, peer: Incarnation) {
        if self.peer == Some(peer) {
            self.disconnected();
            self.end_all();
        }
    }

    pub fn is_connected(&self) -> bool {
        self.connected
    }

    pub fn peer(&self) -> Option<Incarnation> {
        self.peer
    }

    /// Transfers that have not ended.
    pub fn open(&self) -> usize {
        self.transfers.len()
    }

    /// Answers [`ReceiverAction::Reserve`] with one page for each of the transfer's. False: it is not wanted any more; a `Release`
    /// follows or has come.
    pub fn reserved(&mut self, transfer: TransferId, pages: Vec<PageKey>) -> bool {
        let Some(incoming) = self.transfers.get_mut(&transfer) else { return false };
        if !incoming.reserve(pages) {
            return false;
        }
        let pages = incoming.targets().to_vec();
        self.send(ToPrefill::Reserved { transfer, pages });
        true
    }

    /// Answers [`ReceiverAction::Reserve`]: it can never be taken.
    pub fn refuse(&mut self, transfer: TransferId, why: String) {
        self.close(transfer, End::Refused(why));
    }

    /// The owner gives a transfer up on its own account.
    pub fn withdraw(&mut self, transfer: TransferId) {
        self.close(transfer, End::Aborted);
    }

    /// Answers [`ReceiverAction::Import`]: the page is in its place.
    pub fn imported(&mut self, transfer: TransferId, index: u32) {
        let Some(incoming) = self.transfers.get_mut(&transfer) else { return };
        if incoming.landed(index, &mut self.ring) {
            self.send(ToPrefill::Landed { transfer, index });
        }
        self.settle(transfer);
    }

    /// Answers [`ReceiverAction::Import`]: the page did not carry its tag.
    pub fn stale_target(&mut self, transfer: TransferId, index: u32) {
        let Some(incoming) = self.transfers.get_mut(&transfer) else { return };
        incoming.refused(index, &mut self.ring);
        incoming.close(End::StaleTarget);
        self.settle(transfer);
    }

    /// Takes a message. One of another life, of a transfer that is over, or that repeats what is known changes nothing.
    ///
    /// # Errors
    /// The peer breaks the protocol.
    pub fn hear(&mut self, stamped: Stamped<ToDecode>) -> Result<Heard, OutOfOrder> {
        if !self.connected || self.peer != Some(stamped.from) || stamped.to != self.own || stamped.session != self.session {
            return Ok(Heard::Stranger);
        }
        match stamped.message {
            ToDecode::Offer { transfer, first, tokens, pages, ticket } => {
                self.forget_below(first);
                self.offered(transfer, tokens, pages, ticket)?;
            }
            ToDecode::Write { transfer, index, page, chunk, bytes } => {
                return self.written(transfer, Part { index, page, chunk, bytes });
            }
            ToDecode::Commit { transfer } => match self.transfers.get_mut(&transfer) {
                Some(incoming) => {
                    incoming.commit();
                    self.settle(transfer);
                }
                None => self.repeat_end(transfer),
            },
            ToDecode::Abort { transfer } => {
                if self.transfers.contains_key(&transfer) {
                    self.close(transfer, End::Aborted);
                } else {
                    self.repeat_end(transfer);
                }
            }
            ToDecode::Heard { transfer } => {
                if self.over.remove(&transfer).is_some() {
                    self.heard.insert(transfer);
                    while self.heard.remove(&TransferId(self.heard_below)) {
                        // A peer may begin with the last number there is.
                        self.heard_below = self.heard_below.saturating_add(1);
                    }
                }
            }
        }
        Ok(Heard::Taken)
    }

    /// What is to be done next, as long as there is something.
    pub fn next_action(&mut self) -> Option<ReceiverAction> {
        self.actions.pop_front()
    }

    fn offered(&mut self, transfer: TransferId, tokens: u32, pages: u32, ticket: Vec<u8>) -> Result<(), OutOfOrder> {
        if transfer.0 < self.heard_below || self.heard.contains(&transfer) {
            return Ok(());
        }
        if let Some(incoming) = self.transfers.get(&transfer) {
            if incoming.is_reserved() {
                let pages = incoming.targets().to_vec();
                self.send(ToPrefill::Reserved { transfer, pages });
            }
            return Ok(());
        }
        if self.over.contains_key(&transfer) {
            self.repeat_end(transfer);
            return Ok(());
        }
        let most = self.window.transfers;
        if transfer.0 - self.heard_below >= u64::from(most) {
            return Err(OutOfOrder::Span(transfer));
        }
        let page_tokens = self.terms.page_tokens;
        if tokens == 0 || pages > MAX_PAGES || pages != tokens.div_ceil(page_tokens.max(1)) {
            return Err(OutOfOrder::Pages { transfer, pages, tokens, page_tokens });
        }
        self.transfers.insert(transfer, Incoming::new(pages));
        self.actions.push_back(ReceiverAction::Reserve { transfer, tokens, pages, ticket });
        Ok(())
    }

    fn written(&mut self, transfer: TransferId, part: Part) -> Result<Heard, OutOfOrder> {
        let (index, chunk) = (part.index, part.chunk);
        let Some(incoming) = self.transfers.get_mut(&transfer) else { return Ok(Heard::StaleWrite) };
        match incoming.put(transfer, part, self.page_bytes, &mut self.ring)? {
            Put::Stale => return Ok(Heard::StaleWrite),
            Put::Known => {}
            Put::Landed => self.send(ToPrefill::Landed { transfer, index }),
            Put::Staged { slot, bytes, whole } => {
                let offset = chunk * crate::CHUNK_BYTES as u32;
                self.actions.push_back(ReceiverAction::Stage { slot, offset, bytes });
                if let Some(page) = whole {
                    self.actions.push_back(ReceiverAction::Import { transfer, index, slot, page });
                }
            }
        }
        Ok(Heard::Taken)
    }

    fn close(&mut self, transfer: TransferId, end: End) {
        if let Some(incoming) = self.transfers.get_mut(&transfer) {
            incoming.close(end);
            self.settle(transfer);
        }
    }

    /// Ends a transfer that can end now.
    fn settle(&mut self, transfer: TransferId) {
        let Some(end) = self.transfers.get_mut(&transfer).and_then(|incoming| incoming.end(&mut self.ring)) else { return };
        self.transfers.remove(&transfer);
        self.actions.push_back(match end {
            End::Committed => ReceiverAction::Attach { transfer },
            End::StaleTarget => ReceiverAction::Release { transfer, stale: true },
            End::Aborted | End::Refused(_) => ReceiverAction::Release { transfer, stale: false },
        });
        self.send(ToPrefill::Ended { transfer, end: end.clone() });
        self.over.insert(transfer, end);
    }

    fn end_all(&mut self) {
        let all: Vec<TransferId> = self.transfers.keys().copied().collect();
        all.into_iter().for_each(|transfer| self.close(transfer, End::Aborted));
    }

    fn repeat_end(&mut self, transfer: TransferId) {
        if let Some(end) = self.over.get(&transfer).cloned() {
            self.send(ToPrefill::Ended { transfer, end });
        }
    }

    /// The sender has no transfer below `first` any more.
    fn forget_below(&mut self, first: TransferId) {
        self.heard_below = self.heard_below.max(first.0);
        self.over = self.over.split_off(&first);
        self.heard = self.heard.split_off(&TransferId(self.heard_below));
        let gone: Vec<TransferId> = self.transfers.range(..first).map(|(&transfer, _)| transfer).collect();
        for transfer in gone {
            self.close(transfer, End::Aborted);
            self.over.remove(&transfer);
        }
    }

    fn tell_again(&mut self) {
        let mut again = Vec::new();
        for (&transfer, incoming) in self.transfers.iter().filter(|(_, incoming)| incoming.is_reserved()) {
            again.push(ToPrefill::Reserved { transfer, pages: incoming.targets().to_vec() });
            again.extend(incoming.landed_pages().map(|index| ToPrefill::Landed { transfer, index }));
        }
        again.extend(self.over.iter().map(|(&transfer, end)| ToPrefill::Ended { transfer, end: end.clone() }));
        again.into_iter().for_each(|message| self.send(message));
    }

    /// Without a connection nothing is said; what is true is said again with the next one.
    fn send(&mut self, message: ToPrefill) {
        if let Some(to) = self.peer.filter(|_| self.connected) {
            self.actions.push_back(ReceiverAction::Send(Stamped { from: self.own, to, session: self.session, message }));
        }
    }
}
