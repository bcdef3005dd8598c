//! The transport between two pools of one device: export into the decode side's staging ring, then import out of it.
//!
//! One batch is under way at a time; it may carry pages of several sequences, and a long sequence may take several batches.
//! Nothing here blocks, and nothing here waits for a queue: [`HandOff::leg`] says which copy runs and in whose queue, and
//! [`HandOff::advance`] does what can be done once it has passed. Knows no pool's health: an error of a copy is its queue's.

use std::collections::VecDeque;

use millrace_core::{SeqId, Stage};
use millrace_kv::PageRef;
use millrace_ops::{
    Backend, BackendError, Buffer, ExportPages, ImportPages, KvLayout, Op, PublishVerdicts, RowStatus, StagedPage, StepRecord,
    Ticket, Upload, as_bytes,
};
use millrace_scheduler::{DecodeScheduler, Entry, NoRoom};

use super::transfer::{End, HandOffEvent, Transfer};
use super::{Offer, TransferId};
use crate::EngineError;
use crate::runner::StageRunner;

/// Pages that one batch can carry.
const STAGING_SLOTS: usize = 64;
/// One verdict per member and side: those of the export first.
const VERDICTS: usize = 2 * STAGING_SLOTS;

struct Member {
    transfer: TransferId,
    pages: usize,
}

enum Leg {
    Export(Ticket),
    Import(Ticket),
}

struct Batch {
    leg: Leg,
    number: u32,
    members: Vec<Member>,
    imports: Vec<StagedPage>,
}

/// The hand-offs of one lane.
pub(crate) struct HandOff {
    waiting: VecDeque<Transfer>,
    batch: Option<Batch>,
    batches: u32,
    next_transfer: u64,
    page_tokens: usize,
    from: KvLayout,
    staging: Buffer,
    exports: Buffer,
    imports: Buffer,
    verdicts: Buffer,
    records: Buffer,
}

impl HandOff {
    /// `from`: the layout of the prefill pool; `backend`: the device of the decode pool, which owns the ring.
    pub(crate) fn new(from: &KvLayout, backend: &dyn Backend) -> Result<Self, EngineError> {
        Ok(Self {
            waiting: VecDeque::new(),
            batch: None,
            batches: 0,
            next_transfer: 1,
            page_tokens: from.page_tokens,
            from: from.clone(),
            staging: backend.allocate(STAGING_SLOTS * from.page_bytes())?,
            exports: backend.allocate(STAGING_SLOTS * size_of::<StagedPage>())?,
            imports: backend.allocate(STAGING_SLOTS * size_of::<StagedPage>())?,
            verdicts: backend.allocate(VERDICTS * size_of::<u32>())?,
            records: backend.allocate(VERDICTS * size_of::<StepRecord>())?,
        })
    }

    /// Offers a prefilled sequence; its source pages stay untouched until an event names it.
    pub(crate) fn offer(&mut self, entry: Entry, first_token: u32, source: Vec<PageRef>, tokens: u32) {
        let offer = Offer { transfer: TransferId(self.next_transfer), seq: entry.seq, tokens };
        self.next_transfer += 1;
        self.waiting.push_back(Transfer { offer, entry, first_token, source, target: None, landed: 0, end: None });
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Ends a hand-off as soon as no transfer names its pages; a `Cancelled` event follows (at the next advance at the latest
    /// when the running batch has passed). Returns whether the sequence was here.
    pub(crate) fn cancel(&mut self, seq: SeqId) -> bool {
        let found = self.waiting.iter_mut().find(|t| t.offer.seq == seq);
        found.map(|t| t.end = Some(End::Cancelled)).is_some()
    }

    /// The copy that was submitted last: the stage whose queue has it, and its ticket there. Until it has passed, it names pages of
    /// both sides, and neither [`Self::advance`] nor [`Self::abandon`] may be called.
    pub(crate) fn leg(&self) -> Option<(Stage, Ticket)> {
        self.batch.as_ref().map(|batch| match batch.leg {
            Leg::Export(ticket) => (Stage::Prefill, ticket),
            Leg::Import(ticket) => (Stage::Decode, ticket),
        })
    }

    /// Does what can be done now; see [`Self::leg`].
    ///
    /// # Errors
    /// The decode queue's, whose records are read here. A copy's own error is seen by whoever asks its queue whether it has passed.
    pub(crate) fn advance(
        &mut self,
        prefill: &mut StageRunner,
        decode: &mut StageRunner,
        scheduler: &mut DecodeScheduler,
    ) -> Result<Vec<HandOffEvent>, BackendError> {
        let mut events = Vec::new();
        match self.batch.as_ref().map(|b| &b.leg) {
            Some(Leg::Export(_)) => self.start_import(decode, scheduler),
            Some(Leg::Import(_)) => self.land(decode)?,
            None => {}
        }
        if self.batch.is_none() {
            self.settle(scheduler, &mut events);
            self.start_export(prefill, scheduler);
        }
        Ok(events)
    }

    /// One of the two pools has failed: ends every transfer, as cancelled where nothing ended it before; see [`Self::leg`].
    pub(crate) fn abandon(&mut self, scheduler: &mut DecodeScheduler) -> Vec<HandOffEvent> {
        let mut events = Vec::new();
        self.batch = None;
        for transfer in &mut self.waiting {
            transfer.end.get_or_insert(End::Cancelled);
        }
        self.settle(scheduler, &mut events);
        events
    }

    /// Ends transfers that are complete, stale or cancelled. Only between batches, so no copy names their pages any more.
    fn settle(&mut self, scheduler: &mut DecodeScheduler, events: &mut Vec<HandOffEvent>) {
        let page_tokens = self.page_tokens;
        self.waiting.retain_mut(|transfer| {
            let seq = transfer.offer.seq;
            if let Some(end) = transfer.end.take() {
                events.push(transfer.give_up(end, scheduler));
                return false;
            }
            let pages = (transfer.offer.tokens as usize).div_ceil(page_tokens);
            if transfer.landed < pages {
                return true;
            }
            scheduler.attach(seq);
            events.push(HandOffEvent::Committed { seq, pages, life: None });
            false
        });
    }

    /// Reserves pages in arrival order, and sends what fits into the ring.
    fn start_export(&mut self, prefill: &mut StageRunner, scheduler: &mut DecodeScheduler) {
        let (mut exports, mut imports, mut members) = (Vec::new(), Vec::new(), Vec::new());
        for transfer in &mut self.waiting {
            if exports.len() == STAGING_SLOTS {
                break;
            }
            if transfer.end.is_some() {
                continue;
            }
            if transfer.target.is_none() {
                // No room: those behind it wait too, or a long one would starve.
                match scheduler.reserve(&transfer.entry, transfer.offer.tokens, transfer.first_token) {
                    Ok(pages) => transfer.target = Some(pages),
                    Err(NoRoom::Pages { .. } | NoRoom::Sequences { .. }) => break,
                    Err(never) => {
                        transfer.end = Some(End::Refused(never));
                        continue;
                    }
                }
            }
            let target = transfer.target.as_deref().unwrap_or_default();
            let verdict = members.len() as u32;
            let pages = (transfer.offer.tokens as usize).div_ceil(self.page_tokens);
            let range = transfer.landed..pages.min(transfer.landed + STAGING_SLOTS - exports.len());
            for index in range.clone() {
                let (Some(from), Some(to)) = (transfer.source.get(index), target.get(index)) else { break };
                let tokens = (transfer.offer.tokens as usize - index * self.page_tokens).min(self.page_tokens) as u32;
                let slot = exports.len() as u32;
                let staged =
                    |page: &PageRef| StagedPage { slot, page: page.page.0, tag: page.tag.raw(), tokens, verdict, reserved: 0 };
                exports.push(staged(from));
                imports.push(staged(to));
            }
            members.push(Member { transfer: transfer.offer.transfer, pages: range.len() });
        }
        if exports.is_empty() {
            return;
        }
        let queue = prefill.cache().clone();
        let upload = |to: &Buffer, bytes: Vec<u8>| Op::Upload(Upload { to: to.clone(), offset: 0, bytes });
        let ops = [
            upload(&self.verdicts, as_bytes(&[0u32; VERDICTS])),
            upload(&self.exports, as_bytes(&exports)),
            Op::ExportPages(ExportPages {
                cache: queue,
                staging: self.staging.clone(),
                pages: self.exports.clone(),
                verdicts: self.verdicts.clone(),
                count: exports.len(),
            }),
        ];
        ops.into_iter().for_each(|op| prefill.queue().enqueue(op));
        let ticket = prefill.queue().submit();
        self.batches = self.batches.wrapping_add(1);
        self.batch = Some(Batch { leg: Leg::Export(ticket), number: self.batches, members, imports });
    }

    /// The ring is filled: the decode side checks tags, converts and scatters.
    fn start_import(&mut self, decode: &mut StageRunner, scheduler: &mut DecodeScheduler) {
        let Some(batch) = self.batch.as_mut() else { return };
        // The reserved pages' new tags come first, or the check would refuse them.
        decode.apply_changes(&scheduler.take_changes());
        let cache = decode.cache().clone();
        let ops = [
            Op::Upload(Upload { to: self.imports.clone(), offset: 0, bytes: as_bytes(&batch.imports) }),
            Op::ImportPages(ImportPages {
                cache,
                from: self.from.clone(),
                staging: self.staging.clone(),
                pages: self.imports.clone(),
                verdicts: self.verdicts.clone(),
                count: batch.imports.len(),
            }),
            Op::PublishVerdicts(PublishVerdicts {
                verdicts: self.verdicts.clone(),
                records: self.records.clone(),
                count: VERDICTS,
                step_number: batch.number,
            }),
        ];
        ops.into_iter().for_each(|op| decode.queue().enqueue(op));
        batch.leg = Leg::Import(decode.queue().submit());
    }

    /// The pages have landed, or their verdict says why not.
    fn land(&mut self, decode: &mut StageRunner) -> Result<(), BackendError> {
        let Some(batch) = self.batch.take() else { return Ok(()) };
        let mut records = [StepRecord::default(); VERDICTS];
        decode.queue().read_records(&self.records, &mut records)?;
        let (exports, imports) = records.split_at(STAGING_SLOTS);
        for ((member, export), import) in batch.members.iter().zip(exports).zip(imports) {
            let Some(transfer) = self.waiting.iter_mut().find(|t| t.offer.transfer == member.transfer) else { continue };
            if export.status() != RowStatus::Ok {
                transfer.end = Some(End::StaleSource);
            } else if import.status() != RowStatus::Ok {
                transfer.end = Some(End::StaleTarget);
            } else {
                transfer.landed += member.pages;
            }
        }
        Ok(())
    }
}
