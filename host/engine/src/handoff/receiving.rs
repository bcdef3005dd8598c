//! The decode side of a lane whose prefill pool is in another process: finds pages, puts what comes into the staging ring, has it
//! imported where the tags are right, and attaches. What is done and when is decided in `millrace_transfer`.

use std::collections::{BTreeMap, VecDeque};

use millrace_core::{LaneId, SeqId};
use millrace_ops::{
    Backend, BackendError, Buffer, ImportPages, KvLayout, Op, PublishVerdicts, RowStatus, StagedPage, StepRecord,
    Ticket as Submission, Upload, as_bytes,
};
use millrace_scheduler::{DecodeScheduler, NoRoom};
use millrace_transfer::tcp::{Port, PortEvent};
use millrace_transfer::{
    Accepts, Heard, Incarnation, PageKey, Receiver, ReceiverAction, Stamped, Terms, ToDecode, TransferId, Window,
};

use super::driving::LastCopy;
use super::greeting;
use super::ticket::{BadTicket, Ticket};
use super::told::Told;
use crate::EngineError;
use crate::runner::StageRunner;

/// Slots of the staging ring.
const SLOTS: usize = 32;
/// Transfers that a prefill engine may have under way with this one.
const TRANSFERS: u32 = 64;

/// What became of a sequence that another process hands over.
pub(crate) enum Arrival {
    /// It is on its way.
    Coming(Box<Ticket>),
    /// It runs from now on.
    Attached { ticket: Box<Ticket> },
    /// It does not come after all.
    Gone { seq: SeqId },
}

struct Import {
    transfer: TransferId,
    index: u32,
    slot: u32,
    page: PageKey,
}

struct Batch {
    submission: Submission,
    members: Vec<Import>,
}

struct Coming {
    ticket: Box<Ticket>,
    tokens: u32,
    reserved: bool,
}

/// See the module.
pub(crate) struct Receiving {
    receiver: Receiver,
    port: Port,
    terms: Terms,
    lane: LaneId,
    vocab: u32,
    page_tokens: u32,
    /// The pool's layout in each format that it can take pages in.
    layouts: Vec<KvLayout>,
    /// Of the peer that is connected.
    from: KvLayout,
    coming: BTreeMap<TransferId, Coming>,
    imports: VecDeque<Import>,
    batch: Option<Batch>,
    batches: u32,
    staging: Buffer,
    staged: Buffer,
    verdicts: Buffer,
    records: Buffer,
    outbox: VecDeque<Vec<u8>>,
    landed_pages: u64,
    stale_messages: u64,
    told: Told,
}

/// Formats that a pool takes: its own layout in each format that may become its own.
pub(crate) fn accepted(own: &KvLayout) -> Vec<KvLayout> {
    use millrace_ops::KvFormat::{Bf16, F32, Fp8};
    let formats = [F32, Bf16, Fp8].into_iter().filter(|format| format.becomes(own.format));
    formats.map(|format| own.in_format(format)).collect()
}

impl Receiving {
    pub(crate) fn new(
        link: super::LinkSpec,
        lane: LaneId,
        vocab: usize,
        own: &KvLayout,
        backend: &dyn Backend,
    ) -> Result<Self, EngineError> {
        let layouts = accepted(own);
        let accepts = layouts.iter().map(|layout| Accepts {
            format: layout.format.to_string(),
            page_bytes: u32::try_from(layout.page_bytes()).unwrap_or(u32::MAX),
        });
        let window = Window { slots: SLOTS as u32, transfers: TRANSFERS };
        let largest = layouts.iter().map(KvLayout::page_bytes).max().unwrap_or(0);
        Ok(Self {
            receiver: Receiver::new(link.incarnation, link.terms.clone(), accepts.collect(), window),
            port: link.port,
            terms: link.terms,
            lane,
            vocab: u32::try_from(vocab).unwrap_or(u32::MAX),
            page_tokens: u32::try_from(own.page_tokens).unwrap_or(u32::MAX),
            from: own.clone(),
            layouts,
            coming: BTreeMap::new(),
            imports: VecDeque::new(),
            batch: None,
            batches: 0,
            staging: backend.allocate(SLOTS * largest)?,
            staged: backend.allocate(SLOTS * size_of::<StagedPage>())?,
            verdicts: backend.allocate(SLOTS * size_of::<u32>())?,
            records: backend.allocate(SLOTS * size_of::<StepRecord>())?,
            outbox: VecDeque::new(),
            landed_pages: 0,
            stale_messages: 0,
            told: Told::default(),
        })
    }

    /// Gives up a sequence that is on its way. False: it is not.
    pub(crate) fn cancel(&mut self, seq: SeqId) -> bool {
        let Some((&transfer, _)) = self.coming.iter().find(|(_, coming)| coming.ticket.entry.seq == seq) else { return false };
        self.receiver.withdraw(transfer);
        true
    }

    pub(crate) fn peer_dead(&mut self, peer: Incarnation) {
        self.receiver.peer_dead(peer);
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.receiver.is_connected()
    }

    pub(crate) fn facts(&self) -> crate::LinkFacts {
        let counters = self.port.counters();
        crate::LinkFacts {
            lane: self.terms.lane.clone(),
            end: "receives",
            connected: self.is_connected(),
            peer: self.receiver.peer().map(|peer| peer.to_string()),
            open: self.coming.len(),
            pages: self.landed_pages,
            sent_bytes: counters.sent_bytes,
            received_bytes: counters.received_bytes,
            connections: counters.connections,
            stale_messages: self.stale_messages,
        }
    }

    /// The copy that was submitted last, in the decode pool's queue.
    pub(crate) fn leg(&self) -> Option<Submission> {
        self.batch.as_ref().map(|batch| batch.submission)
    }

    /// The decode pool has failed: nothing that is on its way will arrive.
    pub(crate) fn abandon(&mut self, scheduler: &mut DecodeScheduler) -> Vec<Arrival> {
        if let Some(batch) = self.batch.take() {
            batch.members.iter().for_each(|import| self.receiver.stale_target(import.transfer, import.index));
        }
        self.imports.drain(..).for_each(|import| self.receiver.stale_target(import.transfer, import.index));
        self.coming.keys().copied().collect::<Vec<_>>().into_iter().for_each(|transfer| self.receiver.withdraw(transfer));
        self.hear();
        self.act(None, scheduler, 0)
    }

    /// Does what can be done now.
    ///
    /// # Errors
    /// The decode queue's.
    pub(crate) fn advance(
        &mut self,
        decode: &mut StageRunner,
        scheduler: &mut DecodeScheduler,
        copy: LastCopy,
        now_us: u64,
    ) -> Result<Vec<Arrival>, BackendError> {
        self.hear();
        if copy == LastCopy::Passed {
            self.land(decode)?;
        }
        let mut arrivals = self.act(Some(decode), scheduler, now_us);
        self.reserve(scheduler);
        arrivals.extend(self.act(Some(decode), scheduler, now_us));
        if self.batch.is_none() {
            self.start_imports(decode, scheduler);
        }
        Ok(arrivals)
    }

    fn hear(&mut self) {
        while let Some(event) = self.port.take() {
            match event {
                PortEvent::Opened => self.outbox.clear(),
                PortEvent::Closed(why) => {
                    if self.receiver.is_connected() && self.told.is_new(&why) {
                        tracing::warn!(lane = self.terms.lane, %why, "the connection to the prefill engine ended");
                    }
                    self.receiver.disconnected();
                    self.outbox.clear();
                }
                PortEvent::Frame(frame) => {
                    if let Err(why) = self.hear_frame(&frame) {
                        if self.told.is_new(&why) {
                            tracing::error!(
                                lane = self.terms.lane,
                                why,
                                "the prefill engine does not keep to the protocol; disconnected"
                            );
                        }
                        self.receiver.disconnected();
                        self.port.close();
                    }
                }
            }
        }
    }

    fn hear_frame(&mut self, frame: &[u8]) -> Result<(), String> {
        if let Some(hello) = greeting::read_hello(frame).map_err(|error| error.to_string())? {
            let answer = self.receiver.greet(&hello);
            match &answer {
                Ok(_) => {
                    let format = |layout: &&KvLayout| layout.format.to_string() == hello.terms.format;
                    self.from = self.layouts.iter().find(format).unwrap_or(&self.from).clone();
                    if self.told.is_new(hello.incarnation) {
                        let format = &hello.terms.format;
                        tracing::info!(lane = self.terms.lane, peer = %hello.incarnation, format, "the prefill engine is here");
                    }
                }
                Err(why) => {
                    if self.told.is_new(why) {
                        tracing::warn!(lane = self.terms.lane, peer = %hello.incarnation, %why, "a prefill engine is refused");
                    }
                }
            }
            self.outbox.push_back(greeting::welcome(&answer));
            return Ok(());
        }
        let message = Stamped::<ToDecode>::decode(frame).map_err(|error| error.to_string())?;
        match self.receiver.hear(message).map_err(|error| error.to_string())? {
            Heard::Taken => {}
            Heard::Stranger | Heard::StaleWrite => self.stale_messages += 1,
        }
        Ok(())
    }

    /// Carries out what the machine wants. Without a runner nothing is staged: the pool has failed.
    fn act(&mut self, mut decode: Option<&mut StageRunner>, scheduler: &mut DecodeScheduler, now_us: u64) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        let mut staged = false;
        while let Some(action) = self.receiver.next_action() {
            match action {
                ReceiverAction::Send(message) => self.outbox.push_back(message.encode()),
                ReceiverAction::Reserve { transfer, tokens, ticket, .. } => {
                    let wish = Ticket::decode(&ticket, self.lane, self.vocab, now_us);
                    arrivals.extend(self.wish(transfer, tokens, wish, scheduler));
                }
                ReceiverAction::Stage { slot, offset, bytes } => {
                    if let Some(decode) = decode.as_deref_mut() {
                        let offset = slot as usize * self.from.page_bytes() + offset as usize;
                        decode.queue().enqueue(Op::Upload(Upload { to: self.staging.clone(), offset, bytes }));
                        staged = true;
                    }
                }
                ReceiverAction::Import { transfer, index, slot, page } => {
                    self.imports.push_back(Import { transfer, index, slot, page });
                }
                ReceiverAction::Attach { transfer } => {
                    if let Some(coming) = self.coming.remove(&transfer) {
                        self.told.forget();
                        scheduler.attach(coming.ticket.entry.seq);
                        arrivals.push(Arrival::Attached { ticket: coming.ticket });
                    }
                }
                ReceiverAction::Release { transfer, stale } => arrivals.extend(self.release(transfer, stale, scheduler)),
            }
        }
        if let (true, Some(decode)) = (staged, decode) {
            decode.queue().submit();
        }
        while !self.outbox.is_empty() && self.port.room() > 0 {
            let frame = self.outbox.pop_front().unwrap_or_default();
            self.port.send(frame);
        }
        arrivals
    }

    /// A sequence that is here already is refused before anybody hears of it: nothing of the one that is here changes.
    fn wish(
        &mut self,
        transfer: TransferId,
        tokens: u32,
        wish: Result<Ticket, BadTicket>,
        scheduler: &DecodeScheduler,
    ) -> Option<Arrival> {
        let refused = match wish {
            Ok(ticket) => {
                let seq = ticket.entry.seq;
                if !scheduler.has(seq) && !self.coming.values().any(|coming| coming.ticket.entry.seq == seq) {
                    let ticket = Box::new(ticket);
                    self.coming.insert(transfer, Coming { ticket: ticket.clone(), tokens, reserved: false });
                    return Some(Arrival::Coming(ticket));
                }
                NoRoom::Duplicate(seq).to_string()
            }
            Err(why) => why.to_string(),
        };
        self.receiver.refuse(transfer, refused);
        None
    }

    /// In arrival order: where there is no room for one, those behind it wait too, or a long one would starve.
    fn reserve(&mut self, scheduler: &mut DecodeScheduler) {
        for (&transfer, coming) in self.coming.iter_mut().filter(|(_, coming)| !coming.reserved) {
            let Ticket { entry, first_token, .. } = coming.ticket.as_ref();
            match scheduler.reserve(entry, coming.tokens, *first_token) {
                Ok(pages) => {
                    coming.reserved = true;
                    let keys = pages.iter().map(|page| PageKey { page: page.page.0, tag: page.tag.raw() }).collect();
                    self.receiver.reserved(transfer, keys);
                }
                Err(NoRoom::Pages { .. } | NoRoom::Sequences { .. }) => return,
                Err(never) => self.receiver.refuse(transfer, never.to_string()),
            }
        }
    }

    fn release(&mut self, transfer: TransferId, stale: bool, scheduler: &mut DecodeScheduler) -> Option<Arrival> {
        let coming = self.coming.remove(&transfer)?;
        let seq = coming.ticket.entry.seq;
        if coming.reserved {
            if stale {
                scheduler.abort_mismatched(seq)
            } else {
                scheduler.cancel(seq)
            };
        }
        Some(Arrival::Gone { seq })
    }

    /// Slots that are whole: check tags, convert and scatter.
    fn start_imports(&mut self, decode: &mut StageRunner, scheduler: &mut DecodeScheduler) {
        let count = self.imports.len().min(SLOTS);
        if count == 0 {
            return;
        }
        let members: Vec<Import> = self.imports.drain(..count).collect();
        let staged = |(verdict, import): (u32, &Import)| StagedPage {
            slot: import.slot,
            page: import.page.page,
            tag: import.page.tag,
            tokens: self.tokens_of(import),
            verdict,
            reserved: 0,
        };
        let pages: Vec<StagedPage> = (0..).zip(&members).map(staged).collect();
        // The reserved pages' new tags come first, or the check would refuse them.
        decode.apply_changes(&scheduler.take_changes());
        self.batches = self.batches.wrapping_add(1);
        let cache = decode.cache().clone();
        let (verdicts, records) = (self.verdicts.clone(), self.records.clone());
        let ops = [
            Op::Upload(Upload { to: self.verdicts.clone(), offset: 0, bytes: as_bytes(&[0u32; SLOTS]) }),
            Op::Upload(Upload { to: self.staged.clone(), offset: 0, bytes: as_bytes(&pages) }),
            Op::ImportPages(ImportPages {
                cache,
                from: self.from.clone(),
                staging: self.staging.clone(),
                pages: self.staged.clone(),
                verdicts: verdicts.clone(),
                count,
            }),
            Op::PublishVerdicts(PublishVerdicts { verdicts, records, count, step_number: self.batches }),
        ];
        ops.into_iter().for_each(|op| decode.queue().enqueue(op));
        self.batch = Some(Batch { submission: decode.queue().submit(), members });
    }

    /// Tokens of a page that are filled.
    fn tokens_of(&self, import: &Import) -> u32 {
        let tokens = self.coming.get(&import.transfer).map_or(0, |coming| coming.tokens);
        tokens.saturating_sub(import.index.saturating_mul(self.page_tokens)).min(self.page_tokens)
    }

    /// The pages have landed, or their verdict says why not.
    fn land(&mut self, decode: &mut StageRunner) -> Result<(), BackendError> {
        let Some(batch) = self.batch.take() else { return Ok(()) };
        let mut records = vec![StepRecord::default(); batch.members.len()];
        decode.queue().read_records(&self.records, &mut records)?;
        for (import, record) in batch.members.iter().zip(records) {
            if record.status() == RowStatus::Ok {
                self.landed_pages += 1;
                self.receiver.imported(import.transfer, import.index);
            } else {
                self.receiver.stale_target(import.transfer, import.index);
            }
        }
        Ok(())
    }
}
