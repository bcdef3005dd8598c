//! The prefill side of a lane whose decode pool is in another process: copies pages out, says what the protocol wants said, and
//! keeps source pages until an event names their sequence. What is said and when is decided in `millrace_transfer`.
//!
//! ```text
//!   pages --export--> staging --(import into the wire's format)--> --download--> host memory --Write frames--> port
//! ```

use std::collections::{BTreeMap, VecDeque};

use millrace_core::SeqId;
use millrace_kv::PageRef;
use millrace_ops::{
    Backend, BackendError, Buffer, Download, ExportPages, HostPieces, ImportPages, KvCache, KvLayout, Op, PublishVerdicts,
    RowStatus, StagedPage, StepRecord, Ticket as Submission, Upload, as_bytes,
};
use millrace_transfer::tcp::{Port, PortEvent};
use millrace_transfer::{
    CHUNK_BYTES, Incarnation, Outcome, PageKey, Sender, SenderAction, Stamped, Terms, ToDecode, ToPrefill, TransferId,
};

use super::driving::Copy;
use super::greeting::{self, Answer};
use super::ticket::Ticket;
use super::transfer::HandOffEvent;
use crate::EngineError;
use crate::runner::StageRunner;

/// Pages copied out at a time.
const SLOTS: usize = 16;

/// A sequence whose pages are here.
struct Parcel {
    ticket: Ticket,
    source: Vec<PageRef>,
    tokens: u32,
    /// Nobody wants it any more.
    cancelled: bool,
    /// It came back, so the peer had it: nobody but the peer has to hear any more how its transfer ended.
    over: bool,
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

/// Buffers of the copies.
struct Copies {
    staging: Buffer,
    exports: Buffer,
    verdicts: Buffer,
    records: Buffer,
    /// Where pages become those of the wire, if it has another format; each page has its own number as tag.
    converted: Option<KvCache>,
    piece_bytes: usize,
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
        let converted = if own == wire {
            None
        } else {
            let (pages, tags) = (backend.allocate(SLOTS * wire.page_bytes())?, backend.allocate(SLOTS * size_of::<u64>())?);
            Some(KvCache { pages, tags, layout: wire.clone(), page_count: SLOTS })
        };
        let copies = Copies {
            staging: backend.allocate(SLOTS * own.page_bytes())?,
            exports: backend.allocate(2 * SLOTS * size_of::<StagedPage>())?,
            verdicts: backend.allocate(SLOTS * size_of::<u32>())?,
            records: backend.allocate(SLOTS * size_of::<StepRecord>())?,
            converted,
            piece_bytes: wire.page_bytes(),
        };
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
            ended: Vec::new(),
        })
    }

    /// Offers a prefilled sequence; its source pages stay untouched until an event names it.
    pub(crate) fn offer(&mut self, ticket: Ticket, source: Vec<PageRef>, tokens: u32) {
        self.waiting.push_back(Parcel { ticket, source, tokens, cancelled: false, over: false });
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

    /// A sequence that the peer ran comes back before the peer was heard to have it: a `Committed` event follows. False: it is not here.
    pub(crate) fn came_back(&mut self, seq: SeqId) -> bool {
        let is_it = |parcel: &Parcel| parcel.ticket.entry.seq == seq;
        if let Some(parcel) = self.waiting.iter_mut().find(|parcel| is_it(parcel)) {
            parcel.over = true;
            return true;
        }
        let Some((&transfer, parcel)) = self.open.iter_mut().find(|(_, parcel)| is_it(parcel)) else { return false };
        parcel.over = true;
        // A later life of the peer may have been offered it meanwhile.
        self.sender.cancel(transfer);
        true
    }

    /// Whether a sequence is on its way.
    pub(crate) fn has(&self, seq: SeqId) -> bool {
        self.waiting.iter().chain(self.open.values()).any(|parcel| parcel.ticket.entry.seq == seq)
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
    pub(crate) fn advance(&mut self, prefill: &mut StageRunner, copy: Copy) -> Result<Vec<HandOffEvent>, BackendError> {
        self.hear();
        if copy == Copy::Passed {
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
                    let hello = self.sender.hello(&self.terms);
                    self.outbox.push_back(greeting::hello(&hello));
                }
                PortEvent::Closed(why) => {
                    if self.sender.is_connected() {
                        tracing::warn!(lane = self.terms.lane, %why, "the connection to the decode engine ended");
                    }
                    self.sender.disconnected();
                    self.outbox.clear();
                    self.fetches.clear();
                }
                PortEvent::Frame(frame) => {
                    if let Err(why) = self.hear_frame(&frame) {
                        tracing::error!(
                            lane = self.terms.lane,
                            why,
                            "the decode engine does not keep to the protocol; connecting anew"
                        );
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
                tracing::info!(lane = self.terms.lane, peer = %welcome.incarnation, "connected to the decode engine");
                Ok(())
            }
            Answer::Refused { why, again } => {
                if !again {
                    tracing::error!(lane = self.terms.lane, why, "the decode engine refuses this lane's hand-offs");
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
            self.offer_waiting();
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

    /// Ends what needs no word of the peer, unless a copy names its pages.
    fn settle(&mut self) -> Vec<HandOffEvent> {
        let mut events = Vec::new();
        let committed = |parcel: &Parcel| HandOffEvent::Committed { seq: parcel.ticket.entry.seq, pages: parcel.source.len() };
        self.waiting.retain(|parcel| {
            if parcel.cancelled {
                events.push(HandOffEvent::Cancelled { seq: parcel.ticket.entry.seq });
            } else if parcel.over {
                events.push(committed(parcel));
            }
            !parcel.cancelled && !parcel.over
        });
        let over = self.open.iter().filter(|(transfer, parcel)| parcel.over && !self.is_copied(**transfer));
        let over: Vec<TransferId> = over.map(|(&transfer, _)| transfer).collect();
        for transfer in over {
            self.fetches.retain(|member| member.transfer != transfer);
            events.extend(self.open.remove(&transfer).as_ref().map(committed));
        }
        let (later, ended) = std::mem::take(&mut self.ended).into_iter().partition(|(transfer, _)| self.is_copied(*transfer));
        self.ended = later;
        let ended: Vec<(TransferId, Outcome)> = ended;
        events.extend(ended.into_iter().filter_map(|(transfer, outcome)| self.ended(transfer, outcome)));
        events
    }

    fn offer_waiting(&mut self) {
        while self.sender.has_room() {
            let Some(parcel) = self.waiting.pop_front() else { return };
            let pages = u32::try_from(parcel.source.len()).unwrap_or(u32::MAX);
            match self.sender.offer(parcel.tokens, pages, parcel.ticket.encode().into()) {
                Some(transfer) => {
                    self.open.insert(transfer, parcel);
                }
                None => return self.waiting.push_front(parcel),
            }
        }
    }

    fn ended(&mut self, transfer: TransferId, outcome: Outcome) -> Option<HandOffEvent> {
        let parcel = self.open.remove(&transfer)?;
        self.fetches.retain(|member| member.transfer != transfer);
        let seq = parcel.ticket.entry.seq;
        Some(match outcome {
            Outcome::Committed => HandOffEvent::Committed { seq, pages: parcel.source.len() },
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
        prefill.queue().read_records(&self.copies.records, &mut records)?;
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

impl Copies {
    /// Everything that copies pages to the host.
    fn operations(
        &self,
        cache: KvCache,
        (exports, imports): (&[StagedPage], &[StagedPage]),
        pieces: &HostPieces,
        step_number: u32,
    ) -> Vec<Op> {
        let upload = |to: &Buffer, offset: usize, bytes: Vec<u8>| Op::Upload(Upload { to: to.clone(), offset, bytes });
        let (staging, verdicts, count) = (self.staging.clone(), self.verdicts.clone(), exports.len());
        let own = cache.layout.clone();
        let mut ops = vec![
            upload(&self.verdicts, 0, as_bytes(&[0u32; SLOTS])),
            upload(&self.exports, 0, as_bytes(exports)),
            Op::ExportPages(ExportPages { cache, staging: staging.clone(), pages: self.exports.clone(), verdicts, count }),
        ];
        let mut from = staging;
        if let Some(converted) = &self.converted {
            let tags: Vec<u8> = (1..=SLOTS as u64).flat_map(u64::to_le_bytes).collect();
            ops.push(upload(&converted.tags, 0, tags));
            ops.push(upload(&self.exports, 0, as_bytes(imports)));
            ops.push(Op::ImportPages(ImportPages {
                cache: converted.clone(),
                from: own,
                staging: from,
                pages: self.exports.clone(),
                verdicts: self.verdicts.clone(),
                count,
            }));
            from = converted.pages.clone();
        }
        ops.push(Op::Download(Download { from, piece_bytes: self.piece_bytes, to: pieces.clone() }));
        let (verdicts, records) = (self.verdicts.clone(), self.records.clone());
        ops.push(Op::PublishVerdicts(PublishVerdicts { verdicts, records, count, step_number }));
        ops
    }
}
