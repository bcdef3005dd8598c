//! Both stages and everything between them: hand-offs through the device queues, events to clients, and what every client
//! must see. Each method is one thing that can happen; `random` decides what happens when.

use std::collections::{BTreeMap, BTreeSet};

use millrace_core::{FinishReason, SeqId};
use millrace_kv::{PageRef, TransferId};
use millrace_policy::Table;

use super::device::{Device, alone};
use super::policy::{Temper, answer};
use super::{Lcg, PAGE_TOKENS, caching_pool, pool};
use crate::{
    DecodeEvent, DecodeScheduler, Draft, Entry, NoRoom, OutcomeStatus, PlanRow, PrefillEvent, PrefillScheduler, StageLimits,
    SubmitError,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Stopped,
    Length,
    Aborted,
    Expired,
    Refused,
    Stale,
    NotFinite,
    NoRoom,
}

impl End {
    fn of(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stopped,
            FinishReason::Length => Self::Length,
        }
    }
}

/// A sequence as its client sees it.
pub(crate) struct Client {
    pub(crate) entry: Entry,
    pub(crate) tokens: Vec<u32>,
    pub(crate) end: Option<End>,
    /// A fault was injected into it, so it may end as stale or not finite.
    pub(crate) harmed: bool,
}

enum Leg {
    /// Prefilled; no room in decode yet.
    Offered,
    Reserved {
        to: Vec<PageRef>,
    },
    Exported {
        to: Vec<PageRef>,
        staged: Vec<Vec<u64>>,
    },
    Imported,
}

struct HandOff {
    entry: Entry,
    first_token: u32,
    from: Vec<PageRef>,
    tokens: u32,
    leg: Leg,
    transfer: TransferId,
}

pub(crate) struct World {
    pub(crate) prefill: PrefillScheduler,
    pub(crate) decode: DecodeScheduler,
    prefill_device: Device,
    decode_device: Device,
    pub(crate) clients: BTreeMap<SeqId, Client>,
    hand_offs: Vec<HandOff>,
    prefill_draft: Option<Draft>,
    decode_draft: Option<Draft>,
    /// (page, of the decode pool): taken from its owner and not returned yet.
    pub(crate) thefts: Vec<(PageRef, bool)>,
    pub(crate) temper: Temper,
    pub(crate) lcg: Lcg,
    pub(crate) now_us: u64,
    pub(crate) max_context: u32,
    /// Outcomes are made wrong with this chance in 1,000.
    pub(crate) fault_per_mille: u32,
    transfers: u64,
    pub(crate) any_suspicion: bool,
    /// Prompts that began behind pages of the tree.
    pub(crate) hits: u32,
}

impl World {
    pub(crate) fn new(limits: StageLimits, prefill_pages: u32, decode_pages: u32, seed: u64) -> Self {
        Self {
            prefill: PrefillScheduler::new(limits, caching_pool(prefill_pages, u32::MAX)),
            decode: DecodeScheduler::new(limits, pool(decode_pages)),
            prefill_device: Device::new(prefill_pages),
            decode_device: Device::new(decode_pages),
            clients: BTreeMap::new(),
            hand_offs: Vec::new(),
            prefill_draft: None,
            decode_draft: None,
            thefts: Vec::new(),
            temper: Temper::Orderly,
            lcg: Lcg(seed),
            now_us: 0,
            max_context: limits.max_context.min(decode_pages * PAGE_TOKENS + 1),
            fault_per_mille: 0,
            transfers: 0,
            any_suspicion: false,
            hits: 0,
        }
    }

    pub(crate) fn submit(&mut self, entry: Entry) -> Result<(), SubmitError> {
        let seq = entry.seq;
        self.prefill_device.know(&entry);
        self.decode_device.know(&entry);
        let result = self.prefill.submit(entry.clone());
        let end = result.is_err().then_some(End::Refused);
        let earlier = self.clients.insert(seq, Client { entry, tokens: Vec::new(), end, harmed: false });
        assert!(earlier.is_none());
        result
    }

    /// The client goes away, whatever state its sequence is in.
    pub(crate) fn abort(&mut self, seq: SeqId) {
        let (prefill, decode) = (self.prefill.abort(seq), self.decode.abort(seq));
        let live = self.clients.get(&seq).is_some_and(|client| client.end.is_none());
        assert_eq!(prefill || decode, live, "sequence {seq} lives where its client does");
        if live {
            self.end(seq, End::Aborted);
        }
    }

    pub(crate) fn expire(&mut self) {
        let events = self.prefill.expire(self.now_us);
        self.on_prefill(events);
    }

    pub(crate) fn plan_prefill(&mut self) {
        let Self { prefill, lcg, temper, now_us, .. } = self;
        let mut policy = |budget: &_, rows: &_, _: &_| answer(*temper, lcg, budget, rows);
        let draft = prefill.plan(*now_us, &mut policy, &Table::default());
        self.prefill_draft = draft.or(self.prefill_draft.take());
        let events = self.prefill.take_events();
        self.on_prefill(events);
    }

    pub(crate) fn plan_decode(&mut self) {
        let Self { decode, lcg, temper, now_us, .. } = self;
        let mut policy = |budget: &_, rows: &_, _: &_| answer(*temper, lcg, budget, rows);
        let draft = decode.plan(*now_us, &mut policy, &Table::default());
        self.decode_draft = draft.or(self.decode_draft.take());
        let events = self.decode.take_events();
        self.on_decode(events);
    }

    pub(crate) fn dispatch_prefill(&mut self) {
        if let Some(plan) = self.prefill_draft.take().and_then(|draft| self.prefill.dispatch(draft)) {
            assert!(plan.rows.iter().map(|row| row.tokens.len()).sum::<usize>() <= 16 && plan.rows.len() <= 8);
            plan.rows.iter().for_each(|row| self.check_writes(row));
            self.prefill_device.launch(plan);
        }
    }

    /// What a step writes into is no page of the tree, and nobody else reads it.
    fn check_writes(&self, row: &PlanRow) {
        for &page in &row.table[(row.start / PAGE_TOKENS) as usize..] {
            let pool = self.prefill.pool();
            assert!(!pool.is_cached(page), "{page} is written at position {} although it is cached", row.start);
            assert!(pool.pins(page) == 1 || self.clients[&row.seq].harmed, "{page} is written by one of its readers");
        }
    }

    pub(crate) fn dispatch_decode(&mut self) {
        if let Some(plan) = self.decode_draft.take().and_then(|draft| self.decode.dispatch(draft)) {
            assert!(plan.rows.len() <= 8);
            self.decode_device.launch(plan);
        }
    }

    pub(crate) fn commit_prefill(&mut self) {
        let Some(step) = self.prefill.in_flight() else { return };
        let mut outcomes = self.prefill_device.finish(step);
        self.spoil(&mut outcomes);
        let events = self.prefill.commit(step, &outcomes);
        self.on_prefill(events);
    }

    pub(crate) fn commit_decode(&mut self) {
        let Some(step) = self.decode.in_flight() else { return };
        let mut outcomes = self.decode_device.finish(step);
        self.spoil(&mut outcomes);
        let events = self.decode.commit(step, &outcomes);
        self.on_decode(events);
    }

    /// Faults of the device: a mismatch that the host cannot see, numbers that are none, an outcome that never came.
    fn spoil(&mut self, outcomes: &mut Vec<crate::Outcome>) {
        if self.fault_per_mille == 0 {
            return;
        }
        for outcome in outcomes.iter_mut().filter(|outcome| outcome.status == OutcomeStatus::Ok) {
            if self.lcg.below(1000) < self.fault_per_mille {
                outcome.status = if self.lcg.one_in(2) { OutcomeStatus::StalePage } else { OutcomeStatus::NotFinite };
                self.any_suspicion |= outcome.status == OutcomeStatus::StalePage;
                if let Some(client) = self.clients.get_mut(&outcome.seq) {
                    client.harmed = true;
                }
            }
        }
        if !outcomes.is_empty() && self.lcg.below(1000) < self.fault_per_mille {
            outcomes.pop();
        }
    }

    /// Takes a page from a sequence and writes another's numbers into it.
    pub(crate) fn steal(&mut self, seq: SeqId) {
        let index = self.lcg.below(4) as usize;
        let from_decode = self.decode.steal_page(seq, index).map(|page| (page, true));
        let from_either = from_decode.or_else(|| self.prefill.steal_page(seq, index).map(|page| (page, false)));
        let Some((stolen, of_decode)) = from_either else { return };
        let page = stolen.page;
        for seq in if of_decode { self.decode.readers(page) } else { self.prefill.readers(page) } {
            self.clients.get_mut(&seq).unwrap().harmed = true;
        }
        self.any_suspicion = true;
        let changes = if of_decode { self.decode.take_changes() } else { self.prefill.take_changes() };
        let device = if of_decode { &mut self.decode_device } else { &mut self.prefill_device };
        device.apply(changes);
        device.write(stolen, vec![0xBAD; PAGE_TOKENS as usize]);
        self.thefts.push((stolen, of_decode));
    }

    pub(crate) fn return_theft(&mut self) {
        if let Some((page, of_decode)) = self.thefts.pop() {
            assert!(if of_decode { self.decode.return_stolen(page) } else { self.prefill.return_stolen(page) });
        }
    }

    pub(crate) fn readmit_all(&mut self) {
        for page in self.prefill.pool().suspects() {
            self.prefill.readmit(page).unwrap();
        }
        for page in self.decode.pool().suspects() {
            self.decode.readmit(page).unwrap();
        }
    }

    /// Moves one hand-off on by one leg, whether or not its sequence still lives: a late peer does the same.
    pub(crate) fn hand_off(&mut self, index: usize) {
        if index >= self.hand_offs.len() {
            return;
        }
        let mut hand_off = self.hand_offs.swap_remove(index);
        let seq = hand_off.entry.seq;
        let live = self.clients[&seq].end.is_none();
        hand_off.leg = match hand_off.leg {
            Leg::Offered if !live => return,
            Leg::Offered => match self.decode.reserve(&hand_off.entry, hand_off.tokens, hand_off.first_token) {
                Ok(to) => self.begin_transfer(&hand_off, to),
                Err(NoRoom::Pages { .. } | NoRoom::Sequences { .. }) => Leg::Offered,
                Err(error) => {
                    assert!(matches!(error, NoRoom::Never { .. }), "{error}");
                    assert!(self.prefill.release_handed_off(seq));
                    return self.end(seq, End::NoRoom);
                }
            },
            Leg::Reserved { to } => {
                let staged: Option<Vec<Vec<u64>>> = hand_off.from.iter().map(|&page| self.prefill_device.read(page)).collect();
                match staged {
                    Some(staged) => Leg::Exported { to, staged },
                    None => return self.break_off(seq, hand_off.transfer),
                }
            }
            Leg::Exported { to, staged } => {
                let changes = self.decode.take_changes();
                self.decode_device.apply(changes);
                to.into_iter().zip(staged).for_each(|(page, entries)| self.decode_device.write(page, entries));
                Leg::Imported
            }
            Leg::Imported => {
                self.prefill.drain(hand_off.transfer);
                self.decode.drain(hand_off.transfer);
                if live {
                    assert!(self.prefill.release_handed_off(seq) && self.decode.attach(seq));
                    let events = self.decode.take_events();
                    self.on_decode(events);
                }
                return;
            }
        };
        self.hand_offs.push(hand_off);
    }

    fn begin_transfer(&mut self, hand_off: &HandOff, to: Vec<PageRef>) -> Leg {
        let held = self.prefill.hold(&hand_off.from, hand_off.transfer);
        // A page that was stolen meanwhile cannot be held; the export will see it.
        assert!(held.is_ok() || self.clients[&hand_off.entry.seq].harmed);
        self.decode.hold(&to, hand_off.transfer).unwrap();
        assert_eq!(to.len(), hand_off.from.len());
        Leg::Reserved { to }
    }

    /// The export found a page that is another's.
    fn break_off(&mut self, seq: SeqId, transfer: TransferId) {
        self.prefill.drain(transfer);
        self.decode.drain(transfer);
        if self.clients[&seq].end.is_none() {
            assert!(self.clients[&seq].harmed);
            assert!(self.prefill.abort_mismatched(seq) && self.decode.cancel(seq));
            self.end(seq, End::Stale);
        }
    }

    pub(crate) fn open_hand_offs(&self) -> usize {
        self.hand_offs.len()
    }

    fn on_prefill(&mut self, events: Vec<PrefillEvent>) {
        for event in events {
            match event {
                PrefillEvent::Prefilled { entry, first_token, finished, pages, tokens, cached_tokens } => {
                    let seq = entry.seq;
                    self.check_cached(&entry, cached_tokens);
                    let fresh = entry.replay.is_empty();
                    if fresh && finished != Some(FinishReason::Stop) {
                        self.publish(seq, first_token);
                    }
                    if let Some(reason) = finished {
                        assert!(fresh && self.prefill.release_handed_off(seq));
                        self.end(seq, End::of(reason));
                        continue;
                    }
                    self.transfers += 1;
                    let transfer = TransferId(self.transfers);
                    self.hand_offs.push(HandOff { entry, first_token, from: pages, tokens, leg: Leg::Offered, transfer });
                }
                PrefillEvent::Stale { seq } => self.end(seq, End::Stale),
                PrefillEvent::NotFinite { seq } => self.end(seq, End::NotFinite),
                PrefillEvent::Expired { seq } => self.end(seq, End::Expired),
                PrefillEvent::NoRoom { seq } => self.end(seq, End::NoRoom),
            }
        }
    }

    fn check_cached(&mut self, entry: &Entry, cached_tokens: u32) {
        assert!(cached_tokens < entry.prompt.len() as u32 && cached_tokens.is_multiple_of(PAGE_TOKENS));
        assert!(cached_tokens == 0 || entry.scope.is_some());
        self.hits += u32::from(cached_tokens > 0);
    }

    fn on_decode(&mut self, events: Vec<DecodeEvent>) {
        for event in events {
            match event {
                DecodeEvent::Token { seq, token } => self.publish(seq, token),
                DecodeEvent::Finished { seq, reason } => self.end(seq, End::of(reason)),
                DecodeEvent::Stale { seq } => self.end(seq, End::Stale),
                DecodeEvent::NotFinite { seq } => self.end(seq, End::NotFinite),
                DecodeEvent::Preempted(entry) => {
                    let client = &self.clients[&entry.seq];
                    assert_eq!(client.end, None, "what has ended is not preempted");
                    assert_eq!(entry.replay, client.tokens, "a preempted sequence replays what was published");
                    self.prefill.submit(entry).unwrap();
                }
            }
        }
    }

    fn publish(&mut self, seq: SeqId, token: u32) {
        let client = self.clients.get_mut(&seq).unwrap();
        assert_eq!(client.end, None, "no token after the end");
        client.tokens.push(token);
    }

    fn end(&mut self, seq: SeqId, end: End) {
        let client = self.clients.get_mut(&seq).unwrap();
        assert_eq!(client.end, None, "sequence {seq} ends once");
        client.end = Some(end);
        self.judge(seq);
    }

    /// The client's tokens against the same sequence alone.
    fn judge(&self, seq: SeqId) {
        let client = &self.clients[&seq];
        let (right, reason) = alone(&client.entry, self.max_context);
        assert!(right.starts_with(&client.tokens), "sequence {seq}: {:?} is no part of {right:?}", client.tokens);
        match client.end {
            Some(end @ (End::Stopped | End::Length)) => {
                // Only pages lost to suspicion may cut an answer short.
                let right = client.tokens == right && end == End::of(reason);
                assert!(right || self.any_suspicion && end == End::Length, "sequence {seq} is cut short");
            }
            Some(End::Stale | End::NotFinite) => assert!(client.harmed, "sequence {seq} pays for another's fault"),
            Some(End::NoRoom) => {
                let pages = (client.entry.prompt.len() as u32).div_ceil(PAGE_TOKENS);
                assert!(self.any_suspicion || pages > self.decode.pool().counts().total);
            }
            _ => {}
        }
    }

    pub(crate) fn check(&self) {
        self.prefill.check_invariants().unwrap();
        self.decode.check_invariants().unwrap();
    }

    pub(crate) fn live(&self) -> BTreeSet<SeqId> {
        self.clients.iter().filter(|(_, client)| client.end.is_none()).map(|(&seq, _)| seq).collect()
    }

    /// One orderly turn of everything, planning ahead.
    pub(crate) fn turn(&mut self) {
        self.now_us += 1;
        self.plan_prefill();
        self.plan_decode();
        self.commit_prefill();
        self.commit_decode();
        self.dispatch_prefill();
        self.dispatch_decode();
        for index in (0..self.open_hand_offs()).rev() {
            self.hand_off(index);
        }
        self.check();
    }

    /// Turns until every client has its end; then every page must be back and empty.
    pub(crate) fn quiesce(&mut self) {
        let mut turns = 0;
        while !self.live().is_empty() || self.open_hand_offs() > 0 {
            self.turn();
            turns += 1;
            assert!(turns < 20_000, "no progress: {:?} {:?} {:?}", self.live(), self.prefill.counts(), self.decode.counts());
        }
        self.commit_prefill();
        self.commit_decode();
        assert_eq!((self.prefill.counts().total(), self.decode.counts().total()), (0, 0));
        let kept = self.prefill.pool().counts();
        assert_eq!((kept.free + kept.evictable, kept.evictable), (kept.total, self.prefill.pool().cached_pages()));
        self.prefill.forget_prefixes();
        let changes = (self.prefill.take_changes(), self.decode.take_changes());
        self.prefill_device.apply(changes.0);
        self.decode_device.apply(changes.1);
        for pool in [self.prefill.pool(), self.decode.pool()].map(|pool| pool.counts()) {
            assert_eq!(pool.free, pool.total, "a page leaked: {pool:?}");
        }
        assert!(self.prefill_device.is_blank() && self.decode_device.is_blank(), "a freed page still holds numbers");
    }
}
