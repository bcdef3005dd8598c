//! The prefill side of a lane whose decode pool is in another process: copies pages out, says what the protocol wants said, and
//! keeps source pages until an event names their sequence. What is said and when is decided in `millrace_transfer`.
//!
//! ```text
//!   pages --export--> staging --(import into the wire's format)--> --download--> host memory --Write frames--> port
//! ```

use std::collections::{BTreeMap, VecDeque};

use millrace_core::SeqId;
use millrace_kv::PageRef;
use millrace_ops::{Backend, BackendError, HostPieces, KvLayout, RowStatus, StagedPage, StepRecord, Ticket as Submission};
use millrace_transfer::tcp::{Port, PortEvent};
use millrace_transfer::{
    CHUNK_BYTES, Incarnation, MAX_PAGES, Outcome, PageKey, Sender, SenderAction, Stamped, Terms, ToDecode, ToPrefill, TransferId,
};

use super::copies::{Copies, SLOTS};
use super::driving::LastCopy;
use super::greeting::{self, Answer};
use super::ticket::Ticket;
use super::told::Told;
use super::transfer::HandOffEvent;
use crate::EngineError;
use crate::runner::StageRunner;

/// A sequence whose pages are here.
struct Parcel {
    ticket: Ticket,
    source: Vec<PageRef>,
    tokens: u32,
    /// Nobody wants it any more.
    cancelled: bool,
}

/// A page that is being copied out.
struct Member {
    transfer: TransferId,
    index: u32,
}

struct Batch {
    submission: Submission,
    members: Vec<Member>,
    pieces: HostPieces,
}

/// See the module.
pub(crate) struct Sending {
    sender: Sender,
    port: Port,
    terms: Terms,
    waiting: VecDeque<Parcel>,
    open: BTreeMap<TransferId, Parcel>,
    fetches: VecDeque<Member>,
    batch: Option<Batch>,
    batches: u32,
    copies: Copies,
    /// Frames that wait for room.
    outbox: VecDeque<Vec<u8>>,
    sent_pages: u64,
    told: Told,
    /// Transfers that ended while a copy named their pages.
    ended: Vec<(TransferId, Outcome)>,
}

impl Sending {
    /// `own`: the layout of the prefill pool; `wire`: what the peer gets, which `terms` name.
    pub(crate) fn new(
        link: super::LinkSpec,
        own: &KvLayout,
        wire: &KvLayout,
        backend: &dyn Backend,
    ) -> Result<Self, EngineError> {
        let copies = Copies::new(own, wire, backend)?;
        Ok(Self {
            sender: Sender::new(link.incarnation),
            port: link.port,
            terms: link.terms,
            waiting: VecDeque::new(),
            open: BTreeMap::new(),
            fetches: VecDeque::new(),
            batch: None,
            batches: 0,
            copies,
            outbox: VecDeque::new(),
            sent_pages: 0,
            told: Told::default(),
            ended: Vec::new(),
        })
    }

    /// Offers a prefilled sequence; its source pages stay untouched until an event names it.
    pub(crate) fn offer(&mut self, ticket: Ticket, source: Vec<PageRef>, tokens: u32) {
        self.waiting.push_back(Parcel { ticket, source, tokens, cancelled: false });
    }

    /// An event follows, once the peer is free of it. False: it is not here.
    pub(crate) fn cancel(&mut self, seq: SeqId) -> bool {
        let is_it = |parcel: &Parcel| parcel.ticket.entry.seq == seq;
        if let Some(parcel) = self.waiting.iter_mut().find(|parcel| is_it(parcel)) {
            parcel.cancelled = true;
            return true;
        }
        let Some((&transfer, parcel)) = self.open.iter_mut().find(|(_, parcel)| is_it(parcel)) else { return false };
        parcel.cancelled = true;
        self.sender.cancel(transfer);
        true
    }

    pub(crate) fn peer_dead(&mut self, peer: Incarnation) {
        self.sender.peer_dead(peer);
        self.port.close();
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.sender.is_connected()
    }

    pub(crate) fn facts(&self) -> crate::LinkFacts {
        let counters = self.port.counters();
        crate::LinkFacts {
            lane: self.terms.lane.clone(),
            end: "sends",
            connected: self.is_connected(),
            peer: self.sender.peer().map(|peer| peer.to_string()),
            open: self.open.len() + self.waiting.len(),
            pages: self.sent_pages,
            sent_bytes: counters.sent_bytes,
            received_bytes: counters.received_bytes,
            connections: counters.connections,
            stale_messages: 0,
        }
    }

    /// The copy that was submitted last, in the prefill pool's queue.
    pub(crate) fn leg(&self) -> Option<Submission> {
        self.batch.as_ref().map(|batch| batch.submission)
    }

    /// The prefill pool has failed: no copy will come any more.
    pub(crate) fn abandon(&mut self) -> Vec<HandOffEvent> {
        self.batch = None;
        self.fetches.clear();
        self.open.keys().copied().collect::<Vec<_>>().into_iter().for_each(|transfer| self.sender.cancel(transfer));
        self.open.values_mut().chain(&mut self.waiting).for_each(|parcel| parcel.cancelled = true);
        self.hear();
        self.act()
    }

    /// Does what can be done now.
    ///
    /// # Errors
    /// The prefill queue's.
    pub(crate) fn advance(&mut self, prefill: &mut StageRunner, copy: LastCopy) -> Result<Vec<HandOffEvent>, BackendError> {
        self.hear();
        if copy == LastCopy::Passed {
            self.take_copies(prefill)?;
        }
        let events = self.act();
        if self.batch.is_none() {
            self.start_copies(prefill);
        }
        Ok(events)
    }

    fn hear(&mut self) {
        while let Some(event) = self.port.take() {
            match event {
                PortEvent::Opened => {
                    self.sender.disconnected();
                    self.outbox.clear();
                    // Nobody may have told of the end of the connection before.
                    self.fetches.clear();
                    let hello = self.sender.hello(&self.terms);
                    self.outbox.push_back(greeting::hello(&hello));
                }
                PortEvent::Closed(why) => {
                    if self.sender.is_connected() && self.told.is_new(&why) {
                        tracing::warn!(lane = self.terms.lane, %why, "the connection to the decode engine ended");
                    }
                    self.sender.disconnected();
                    self.outbox.clear();
                    self.fetches.clear();
                }
                PortEvent::Frame(frame) => {
                    if let Err(why) = self.hear_frame(&frame) {
                        if self.told.is_new(&why) {
                            tracing::error!(
                                lane = self.terms.lane,
                                why,
                                "the decode engine does not keep to the protocol; connecting anew"
                            );
                        }
                        self.sender.disconnected();
                        self.port.close();
                    }
                }
            }
        }
    }

    fn hear_frame(&mut self, frame: &[u8]) -> Result<(), String> {
        match greeting::answer(frame).map_err(|error| error.to_string())? {
            Answer::Welcome(welcome) => {
                self.sender.connected(welcome).map_err(|error| error.to_string())?;
                if self.told.is_new(welcome.incarnation) {
                    tracing::info!(lane = self.terms.lane, peer = %welcome.incarnation, "connected to the decode engine");
                }
                Ok(())
            }
            Answer::Refused { why, again } => {
                if !again && self.told.is_new(&why) {
                    tracing::error!(lane = self.terms.lane, why, "the decode engine refuses this lane's hand-offs; asking again");
                }
                self.port.close();
                Ok(())
            }
            Answer::Message => {
                let message = Stamped::<ToPrefill>::decode(frame).map_err(|error| error.to_string())?;
                self.sender.hear(&message).map_err(|error| error.to_string())
            }
        }
    }

    /// Offers what waits, and carries out what the machine wants, as far as there is room for frames.
    fn act(&mut self) -> Vec<HandOffEvent> {
        let mut events = self.settle();
        loop {
            while !self.outbox.is_empty() && self.port.room() > 0 {
                let frame = self.outbox.pop_front().unwrap_or_default();
                self.port.send(frame);
            }
            if !self.outbox.is_empty() && self.sender.is_connected() {
                return events;
            }
            events.extend(self.offer_waiting());
            match self.sender.next_action() {
                Some(SenderAction::Send(message)) => self.outbox.push_back(message.encode()),
                Some(SenderAction::Fetch { transfer, index }) => self.fetches.push_back(Member { transfer, index }),
                Some(SenderAction::End { transfer, outcome }) if self.is_copied(transfer) => self.ended.push((transfer, outcome)),
                Some(SenderAction::End { transfer, outcome }) => events.extend(self.ended(transfer, outcome)),
                None => return events,
            }
        }
    }

    /// Whether the copy that runs names pages of a transfer.
    fn is_copied(&self, transfer: TransferId) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.members.iter().any(|member| member.transfer == transfer))
    }

    /// Ends what needs no word of the peer, and what ended while a copy named its pages, once none does.
    fn settle(&mut self) -> Vec<HandOffEvent> {
        let mut events = Vec::new();
        self.waiting.retain(|parcel| {
            if parcel.cancelled {
                events.push(HandOffEvent::Cancelled { seq: parcel.ticket.entry.seq });
            }
            !parcel.cancelled
        });
        for (transfer, outcome) in std::mem::take(&mut self.ended) {
            if self.is_copied(transfer) {
                self.ended.push((transfer, outcome));
            } else {
                events.extend(self.ended(transfer, outcome));
            }
        }
        events
    }

    /// Offers what waits, as far as there is room; refuses what no message could hold.
    fn offer_waiting(&mut self) -> Vec<HandOffEvent> {
        let mut refused = Vec::new();
        while self.sender.has_room() {
            let Some(parcel) = self.waiting.pop_front() else { break };
            let offered = parcel.ticket.encode().map_err(|error| error.to_string()).and_then(|ticket| {
                let pages = u32::try_from(parcel.source.len()).unwrap_or(u32::MAX);
                let offered = self.sender.offer(parcel.tokens, pages, ticket.into());
                offered.ok_or_else(|| format!("{pages} pages are not what a hand-off can have; at most {MAX_PAGES} can go"))
            });
            match offered {
                Ok(transfer) => {
                    self.open.insert(transfer, parcel);
                }
                Err(why) => refused.push(HandOffEvent::Refused { seq: parcel.ticket.entry.seq, why }),
            }
        }
        refused
    }

    fn ended(&mut self, transfer: TransferId, outcome: Outcome) -> Option<HandOffEvent> {
        let parcel = self.open.remove(&transfer)?;
        self.fetches.retain(|member| member.transfer != transfer);
        let seq = parcel.ticket.entry.seq;
        Some(match outcome {
            Outcome::Committed(life) => {
                self.told.forget();
                HandOffEvent::Committed { seq, pages: parcel.source.len(), life: Some(life) }
            }
            Outcome::StaleSource => HandOffEvent::StaleSource { seq },
            Outcome::StaleTarget => HandOffEvent::StaleTarget { seq },
            Outcome::Refused(why) => HandOffEvent::Refused { seq, why },
            Outcome::Cancelled if parcel.cancelled => HandOffEvent::Cancelled { seq },
            Outcome::Cancelled => HandOffEvent::Refused { seq, why: "the decode engine gave it up".to_owned() },
            Outcome::PeerLost if parcel.cancelled => HandOffEvent::Cancelled { seq },
            Outcome::PeerLost => {
                // Its pages are whole: the next life of the peer gets it.
                self.waiting.push_back(parcel);
                return None;
            }
        })
    }

    fn take_copies(&mut self, prefill: &mut StageRunner) -> Result<(), BackendError> {
        let Some(batch) = self.batch.take() else { return Ok(()) };
        let mut records = vec![StepRecord::default(); batch.members.len()];
        prefill.queue().read_records(self.copies.records(), &mut records)?;
        for (piece, (member, record)) in batch.members.iter().zip(records).enumerate() {
            let bytes = batch.pieces.take(piece);
            if record.status() != RowStatus::Ok {
                self.sender.source_stale(member.transfer);
            } else if let Some((stamp, page)) = self.sender.fetched(member.transfer, member.index) {
                self.sent_pages += 1;
                self.write(&stamp, member, page, &bytes);
            }
        }
        Ok(())
    }

    fn write(&mut self, stamp: &Stamped<()>, member: &Member, page: PageKey, bytes: &[u8]) {
        for (chunk, bytes) in (0..).zip(bytes.chunks(CHUNK_BYTES)) {
            let (transfer, index) = (member.transfer, member.index);
            let message = ToDecode::Write { transfer, index, page, chunk, bytes: bytes.to_vec() };
            let stamped = Stamped { from: stamp.from, to: stamp.to, session: stamp.session, message };
            self.outbox.push_back(stamped.encode());
        }
    }

    /// Copies pages out, as many as fit, unless there is much to send still.
    fn start_copies(&mut self, prefill: &mut StageRunner) {
        let page_tokens = prefill.layout().page_tokens;
        let mut members: Vec<Member> = Vec::new();
        let (mut exports, mut imports) = (Vec::new(), Vec::new());
        while members.len() < SLOTS && self.outbox.len() < SLOTS {
            let Some(member) = self.fetches.pop_front() else { break };
            let Some(parcel) = self.open.get(&member.transfer) else { continue };
            let Some(page) = parcel.source.get(member.index as usize) else { continue };
            let before = member.index as usize * page_tokens;
            let tokens = (parcel.tokens as usize).saturating_sub(before).min(page_tokens) as u32;
            let slot = members.len() as u32;
            let staged = |page: u32, tag: u64| StagedPage { slot, page, tag, tokens, verdict: slot, reserved: 0 };
            exports.push(staged(page.page.0, page.tag.raw()));
            imports.push(staged(slot, u64::from(slot) + 1));
            members.push(member);
        }
        if members.is_empty() {
            return;
        }
        let pieces = HostPieces::new(members.len());
        self.batches = self.batches.wrapping_add(1);
        let ops = self.copies.operations(prefill.cache().clone(), (&exports, &imports), &pieces, self.batches);
        ops.into_iter().for_each(|op| prefill.queue().enqueue(op));
        self.batch = Some(Batch { submission: prefill.queue().submit(), members, pieces });
    }
}
