//! What strikes a world, where and how often. Everything is chosen by the seed; whom it hits is noted, so that `judge` can tell who pays
//! for what.

use millrace_core::{PoolId, SeqId, Stage};
use millrace_engine::Place;
use millrace_kv::PageId;

use super::World;
use crate::device::Happening;
use crate::device::machine::Alien;
use crate::device::submission::{Kind, Named, Point};
use crate::lab::POOLS;
use crate::processes::{Processes, Trouble};
use crate::{FaultKind, SimError};

/// Those that end an engine or a lane come so much more rarely.
const RARER: u32 = 50;

impl World<'_> {
    /// Everything that may happen between two turns.
    pub(super) fn strike(&mut self) -> Result<(), SimError> {
        if self.rolls(FaultKind::Reassign, 1) {
            self.reassign();
        }
        if self.rolls(FaultKind::Abort, 1) {
            self.abort();
        }
        if self.rolls(FaultKind::LateWrite, 1) {
            self.write_late();
        }
        if self.rolls(FaultKind::CopyDelayed, 4) {
            self.delay_copies();
        }
        if self.rolls(FaultKind::ClockJump, 8) {
            self.jump();
        }
        if self.rolls(FaultKind::Exhausted, 8) {
            self.flood();
        }
        if self.rolls(FaultKind::StepFailure, RARER) {
            self.fail_queue();
        }
        // A failed lane stays so; a supervisor would not wait long.
        let failed = (0..POOLS.len()).find(|&queue| self.device.has_failed(queue)).filter(|_| self.rng.one_in(60));
        if self.rolls(FaultKind::ProcessDeath, RARER) || failed.is_some() {
            let pool = failed.unwrap_or_else(|| self.rng.index(POOLS.len()));
            self.die(pool)?;
        }
        self.strike_messages();
        if self.thefts && self.rng.one_in(10) {
            self.engine.return_stolen();
            self.thefts = false;
        }
        if self.rng.one_in(16) {
            self.engine.readmit_all();
        }
        Ok(())
    }

    /// What happens on the way between two processes.
    fn strike_messages(&mut self) {
        const TROUBLES: [(FaultKind, Trouble, u32); 4] = [
            (FaultKind::MessageDelayed, Trouble::Delay, 2),
            (FaultKind::MessageDuplicated, Trouble::Duplicate, 1),
            (FaultKind::MessageReordered, Trouble::Reorder, 1),
            (FaultKind::ConnectionLost, Trouble::Lose, 8),
        ];
        if matches!(self.engine, Processes::One(_)) {
            return;
        }
        for (kind, trouble, rarer) in TROUBLES {
            if self.rolls(kind, rarer)
                && let Processes::Apart(apart) = &mut self.engine
                && let Some(state) = apart.trouble(trouble)
            {
                self.count(kind, state);
            }
        }
    }

    fn rolls(&mut self, kind: FaultKind, rarer: u32) -> bool {
        self.options.faults.contains(&kind) && self.rng.below(1000 * rarer) < self.options.per_mille
    }

    /// A sequence in a place that is chosen first, so that rare places get their share.
    fn somebody(&mut self, wanted: impl Fn(Place) -> bool) -> Option<(SeqId, PoolId, Place)> {
        let all: Vec<_> = self.engine.places().into_iter().filter(|(.., place)| wanted(*place)).collect();
        let mut places: Vec<Place> = all.iter().map(|(.., place)| *place).collect();
        places.sort_unstable();
        places.dedup();
        let chosen = *self.rng.pick(&places)?;
        let there: Vec<_> = all.into_iter().filter(|(.., place)| *place == chosen).collect();
        self.rng.pick(&there).copied()
    }

    fn reassign(&mut self) {
        let Some((seq, pool, place)) = self.somebody(|place| place != Place::Waiting) else { return };
        let index = self.rng.index(self.engine.table(pool, seq).len());
        if !self.take_away(pool, seq, index) {
            return;
        }
        let stage = POOLS[pool.0 as usize];
        let state = match (place, stage) {
            (Place::HandOff, Stage::Prefill) => "hand_off_source",
            (Place::HandOff, Stage::Decode) => "hand_off_target",
            (place, _) => place.name(),
        };
        self.count(FaultKind::Reassign, state);
    }

    /// The pool hands a page of a sequence out again. False: the sequence has no such page.
    pub(super) fn take_away(&mut self, pool: PoolId, seq: SeqId, index: usize) -> bool {
        let table = self.engine.table(pool, seq);
        let Some(stolen) = self.engine.steal(pool, seq, index) else { return false };
        self.lose(pool, stolen.page);
        self.taken.insert((pool.0, stolen.page.0, table[index].tag.raw()));
        self.device.expect_intruder(pool.0 as usize, stolen.page.0, stolen.tag.raw());
        self.thefts = true;
        true
    }

    /// Everybody whose table names the page has lost it.
    pub(super) fn lose(&mut self, pool: PoolId, page: PageId) {
        for seq in self.engine.readers(pool, page) {
            if let Some(client) = self.clients.get_mut(&seq) {
                client.lost_a_page = true;
            }
        }
    }

    /// What is to happen within the next submission of a queue.
    pub(super) fn happening(&mut self, queue: usize) -> Option<Happening> {
        if self.quiet {
            return None;
        }
        let loses = self.rolls(FaultKind::ReassignOnDevice, 1);
        if !loses && !self.rolls(FaultKind::NotFinite, 2) {
            return None;
        }
        let (of, named) = self.device.look(queue, |_, next| (next.kind, next.named().collect::<Vec<Named>>()))?;
        let point = *self.rng.pick(Point::of(of))?;
        let to = *self.rng.pick(&named)?;
        Some(Happening { point, to, what: if loses { Alien::Intruder { tag: 0 } } else { Alien::NotFinite } })
    }

    /// It has happened: whoever names the page is hit.
    pub(super) fn note(&mut self, queue: usize, happening: Happening) {
        let (pool, Named { page, tag }) = (PoolId(queue as u32), happening.to);
        if happening.what != Alien::NotFinite {
            self.count(FaultKind::ReassignOnDevice, happening.point.name());
            return self.lose(pool, PageId(page));
        }
        self.count(FaultKind::NotFinite, happening.point.name());
        self.not_finite.insert((pool.0, page, tag));
        for seq in self.engine.readers(pool, PageId(page)) {
            if let Some(client) = self.clients.get_mut(&seq) {
                client.read_not_finite = true;
            }
        }
    }

    /// Whoever reads a page that is not finite computes on with it: what it writes is not finite either. A copy carries it to all whose
    /// tables name the page, some of which took it over from the tree without a step of their own.
    pub(super) fn spread_not_finite(&mut self, queue: usize, rows: &[SeqId], tables: &[Vec<Named>]) {
        let key = |named: &Named| (queue as u32, named.page, named.tag);
        for (row, table) in tables.iter().enumerate() {
            let hit: Vec<Named> = table.iter().copied().filter(|named| self.not_finite.contains(&key(named))).collect();
            if hit.is_empty() {
                continue;
            }
            let readers = match rows.get(row) {
                Some(seq) => vec![*seq],
                None => hit.iter().flat_map(|named| self.engine.readers(PoolId(queue as u32), PageId(named.page))).collect(),
            };
            if !rows.is_empty() {
                self.not_finite.extend(table.iter().map(key));
            }
            for seq in readers {
                if let Some(client) = self.clients.get_mut(&seq) {
                    client.read_not_finite = true;
                }
            }
        }
    }

    fn abort(&mut self) {
        let Some((seq, _, place)) = self.somebody(|_| true) else { return };
        if !self.live.contains(&seq) {
            return;
        }
        self.engine.abort(seq);
        self.count(FaultKind::Abort, place.name());
        self.end(seq, "aborted");
        // A client that is gone may be told so twice.
        if self.rng.one_in(8) {
            self.engine.abort(seq);
        }
    }

    /// The last step's writes of sequences that ended since: a device that was told too late.
    fn write_late(&mut self) {
        let queue = 1 + self.rng.index(POOLS.len() - 1);
        let Some(rows) = self.last_rows.get(&queue).cloned() else { return };
        let gone = |seq: &SeqId| self.clients.get(seq).is_some_and(|client| client.end.is_some());
        if rows.is_empty() || !rows.iter().all(gone) || self.device.has_failed(queue) || self.device.ready().contains(&queue) {
            return;
        }
        let readers = self.readers(&rows);
        self.device.write_late(queue, readers);
        self.count(FaultKind::LateWrite, "decode");
        self.see_device();
    }

    fn delay_copies(&mut self) {
        let queue = self.rng.index(POOLS.len());
        let kind = self.device.look(queue, |_, next| next.kind);
        let state = match kind {
            Some(Kind::Export) => "export",
            Some(Kind::Import) => "import",
            _ => return,
        };
        self.count(FaultKind::CopyDelayed, state);
        let until = self.turns + 5 + u64::from(self.rng.below(60));
        self.copies_held_until.insert(queue, until);
    }

    fn jump(&mut self) {
        let us = if self.rng.one_in(2) { 3_600_000_000 } else { u64::from(self.rng.below(2_000_000)) };
        self.clock.advance(us);
        self.count(FaultKind::ClockJump, if us >= 3_600_000_000 { "an_hour" } else { "up_to_two_seconds" });
    }

    fn flood(&mut self) {
        self.count(FaultKind::Exhausted, "flood");
        for _ in 0..self.to_come.min(12) {
            self.submit_one();
        }
    }

    fn fail_queue(&mut self) {
        let ready = self.device.ready();
        let Some(&queue) = self.rng.pick(&ready) else { return };
        let state = match self.device.look(queue, |_, next| next.kind) {
            Some(Kind::Step) => "step",
            Some(Kind::Export) => "export",
            Some(Kind::Import) => "import",
            Some(Kind::Tags) => "tags",
            None => return,
        };
        if self.device.has_failed(queue) {
            return;
        }
        self.count(FaultKind::StepFailure, state);
        self.device.fail(queue);
    }

    /// The process with this pool ends.
    fn die(&mut self, pool: usize) -> Result<(), SimError> {
        let apart = matches!(self.engine, Processes::Apart(_));
        let queues = if apart { pool..pool + 1 } else { 0..POOLS.len() };
        let kinds: Vec<Kind> = queues.filter_map(|queue| self.device.look(queue, |_, next| next.kind)).collect();
        let copies = kinds.iter().any(|kind| matches!(kind, Kind::Export | Kind::Import));
        let state = match (apart.then_some(POOLS[pool]), copies, kinds.is_empty()) {
            (None, true, _) => "copy_runs",
            (None, false, false) => "step_runs",
            (None, false, true) => "idle",
            (Some(Stage::Prefill), true, _) => "prefill_copies",
            (Some(Stage::Prefill), ..) => "prefill",
            (Some(Stage::Decode), true, _) => "decode_copies",
            (Some(Stage::Decode), ..) => "decode",
        };
        self.count(FaultKind::ProcessDeath, state);
        let over = self.begin_again(pool)?;
        over.into_iter().for_each(|seq| self.end(seq, "died"));
        Ok(())
    }
}
