//! What both stages have in common: the page pool, the step clock and its fence, epochs. Does not know which sequences
//! there are; every page that it is handed back comes with the step that may still touch it.

use std::collections::BTreeMap;

use millrace_core::{SeqId, Stage, TenantId};
use millrace_kv::{KvError, PagePool, PageRef, PrefixOwner, pages_for};
use millrace_policy::{Budget, Table};

use crate::draft::DraftRow;
use crate::kept::{KeptOrder, Premises, SeqOrder};
use crate::step_bound::{Neighbours, StepCost, step_tokens};
use crate::validate::order;
use crate::{Draft, Outcome, PlanRow, PolicyCall, StageCounters, StageLimits, StepPlan};

/// So many plans in a row a policy may let all work rest before the host's own order runs for one step.
const PATIENCE_PLANS: u32 = 8;

#[derive(Debug)]
pub(crate) struct StageState {
    pub(crate) stage: Stage,
    pub(crate) limits: StageLimits,
    pub(crate) pool: PagePool,
    pub(crate) counters: StageCounters,
    pub(crate) step_us: u32,
    pub(crate) step_cost: Option<StepCost>,
    /// Who waits for the next step, in the pool or outside of it, but for those that it runs.
    pub(crate) kept_waiting: Neighbours,
    /// The last step that was dispatched.
    dispatched: u64,
    /// Rows of the step in flight; `None` between steps.
    running: Option<Vec<(SeqId, u32)>>,
    generation: u64,
    epoch: u32,
    idle_plans: u32,
    /// The policy's last order while it may still be used.
    kept: Option<KeptOrder>,
    /// Pages that fault injection took from their owners.
    #[cfg(any(test, feature = "fault-injection"))]
    pub(crate) stolen: Vec<PageRef>,
}

/// What a policy is asked.
pub(crate) struct Question<'a> {
    /// (sequence, its stay, whether it can run) of each row of the table.
    pub(crate) rows: &'a [(SeqId, u32, bool)],
    pub(crate) table: Table,
    pub(crate) tenants: &'a Table,
}

/// A row that ran: which, and what became of it.
pub(crate) struct Ran {
    pub(crate) seq: SeqId,
    pub(crate) epoch: u32,
    pub(crate) outcome: Option<Outcome>,
}

impl StageState {
    pub(crate) fn new(stage: Stage, limits: StageLimits, pool: PagePool) -> Self {
        Self {
            stage,
            limits,
            pool,
            counters: StageCounters::default(),
            step_us: limits.step_us_hint,
            step_cost: None,
            kept_waiting: Neighbours::default(),
            dispatched: 0,
            running: None,
            generation: 0,
            epoch: 0,
            idle_plans: 0,
            kept: None,
            #[cfg(any(test, feature = "fault-injection"))]
            stolen: Vec::new(),
        }
    }

    pub(crate) fn in_flight(&self) -> Option<u64> {
        self.running.as_ref().map(|_| self.dispatched)
    }

    /// The last step that may touch a page.
    pub(crate) fn last_step(&self) -> u64 {
        self.dispatched
    }

    /// A number that no sequence of the step in flight has; it comes round after four billion.
    pub(crate) fn next_epoch(&mut self) -> u32 {
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch
    }

    /// Tokens of the next step.
    pub(crate) fn step_tokens(&self) -> u32 {
        step_tokens(&self.limits, self.pool.page_tokens(), self.step_cost, self.kept_waiting)
    }

    pub(crate) fn budget(&self) -> Budget {
        let counts = self.pool.counts();
        Budget {
            stage: self.stage,
            step: self.dispatched + 1,
            tokens: self.step_tokens(),
            sequences: self.limits.max_sequences,
            free_pages: counts.available(),
            total_pages: counts.total,
            page_tokens: self.pool.page_tokens(),
            step_us: self.step_us,
            answer_within_us: None,
        }
    }

    /// Asks the policy for an order, checks it, and keeps it for as long as the policy says.
    pub(crate) fn ask(&mut self, policy: &mut PolicyCall<'_>, question: &Question<'_>) -> SeqOrder {
        let plan = policy(&self.budget(), &question.table, question.tenants);
        let runnable: Vec<bool> = question.rows.iter().map(|&(_, _, runs)| runs).collect();
        let checked = order(&plan, &runnable);
        self.counters.policy_rows_ignored += checked.ignored;
        let seqs: Vec<SeqId> = question.rows.iter().map(|&(seq, _, _)| seq).collect();
        let order = SeqOrder::of(&checked, &seqs);
        self.kept = KeptOrder::new(&order, self.premises(question.rows), plan.valid_steps);
        order
    }

    /// The last order, if it may serve these rows once more; whoever uses it says so with [`Self::reuse`].
    pub(crate) fn kept_order(&mut self, rows: &[(SeqId, u32, bool)]) -> Option<KeptOrder> {
        self.kept.take().filter(|kept| kept.holds(&self.premises(rows)))
    }

    pub(crate) fn reuse(&mut self, kept: KeptOrder) -> SeqOrder {
        let (order, left) = kept.next();
        self.kept = left;
        self.counters.plans_reused += 1;
        order
    }

    fn premises(&self, rows: &[(SeqId, u32, bool)]) -> Premises {
        Premises::new(rows.to_vec(), self.step_tokens())
    }

    /// Whatever the policy said last, it is asked for the next step.
    pub(crate) fn forget_order(&mut self) {
        self.kept = None;
    }

    /// Positions that the whole pool can hold.
    pub(crate) fn pool_tokens(&self) -> u32 {
        self.pool.counts().total.saturating_mul(self.pool.page_tokens())
    }

    /// Pages that are not under suspicion: all that any sequence can ever get.
    pub(crate) fn usable_pages(&self) -> u32 {
        let counts = self.pool.counts();
        counts.total - counts.suspect
    }

    pub(crate) fn pages_for(&self, tokens: u32) -> u32 {
        pages_for(tokens, self.pool.page_tokens())
    }

    /// Free pages, and where they do not suffice those that the prefix tree gives up for it, the tenant's own first. All or
    /// nothing: where even that does not suffice, nothing is evicted.
    ///
    /// # Errors
    /// There are too few, for now.
    pub(crate) fn allocate(&mut self, pages: u32, tenant: TenantId) -> Result<Vec<PageRef>, KvError> {
        let counts = self.pool.counts();
        if counts.available() + counts.settling >= pages {
            self.pool.make_room(pages, PrefixOwner(tenant.0));
        }
        self.pool.allocate(pages)
    }

    /// No page will come free without a sequence giving it up: no step runs and no transfer holds one.
    pub(crate) fn nothing_coming(&self) -> bool {
        let counts = self.pool.counts();
        let held = counts.quarantined > counts.suspect || counts.evictable_held > 0;
        self.running.is_none() && !held && !self.any_stolen()
    }

    fn any_stolen(&self) -> bool {
        #[cfg(any(test, feature = "fault-injection"))]
        return !self.stolen.is_empty();
        #[cfg(not(any(test, feature = "fault-injection")))]
        false
    }

    /// Notes whether a plan found anything to run although something could; true when patience is at its end.
    pub(crate) fn out_of_patience(&mut self, idle: bool) -> bool {
        self.idle_plans = if idle { self.idle_plans + 1 } else { 0 };
        let out = self.idle_plans > PATIENCE_PLANS;
        if out {
            self.idle_plans = 0;
        }
        out
    }

    pub(crate) fn draft(&mut self, rows: Vec<DraftRow>) -> Option<Draft> {
        if rows.is_empty() {
            return None;
        }
        self.generation += 1;
        Some(Draft { generation: self.generation, rows })
    }

    /// Tag changes stay for the next step (or `take_changes`) if no row is left.
    pub(crate) fn begin_step(&mut self, rows: Vec<PlanRow>, draft: &Draft) -> Option<StepPlan> {
        self.counters.stale_rows += (draft.rows.len() - rows.len()) as u64;
        if rows.is_empty() {
            return None;
        }
        self.dispatched += 1;
        self.counters.steps += 1;
        self.counters.computed_tokens += rows.iter().map(|row| row.tokens.len() as u64).sum::<u64>();
        self.running = Some(rows.iter().map(|row| (row.seq, row.epoch)).collect());
        let changes = self.pool.take_changes();
        Some(StepPlan { step: self.dispatched, stage: self.stage, rows, changes, draft: draft.generation })
    }

    /// Passes the fence and pairs the step's rows with their outcomes; none if this step is not in flight.
    pub(crate) fn end_step(&mut self, step: u64, outcomes: &[Outcome]) -> Vec<Ran> {
        if self.in_flight() != Some(step) {
            return Vec::new();
        }
        self.pool.fence(step);
        let outcomes: BTreeMap<(SeqId, u32), Outcome> = outcomes.iter().map(|o| ((o.seq, o.epoch), *o)).collect();
        let rows = self.running.take().unwrap_or_default();
        rows.into_iter().map(|(seq, epoch)| Ran { seq, epoch, outcome: outcomes.get(&(seq, epoch)).copied() }).collect()
    }

    /// Takes a sequence's pins off its pages. What nobody else pins is evictable, if the prefix tree has it, or else free once
    /// nothing that was dispatched can touch it. A reference that went stale behind the sequence's back is not its page any more
    /// and is left alone.
    pub(crate) fn give_back(&mut self, mut pages: Vec<PageRef>) {
        pages.retain(|&page| self.pool.is_current(page));
        let released = self.pool.release(&pages, self.dispatched);
        debug_assert_eq!(released, Ok(()), "a sequence pins each of its current pages once");
    }

    /// Gives back the pages of a sequence whose tags did not match and keeps the culprits from further use. The device reports
    /// sequences, not pages: where the host sees a stale reference, that page is the culprit; where it sees none, host and
    /// device disagree on some page of the sequence, so all of them are.
    pub(crate) fn give_back_mismatched(&mut self, pages: Vec<PageRef>) {
        self.counters.page_mismatches += 1;
        let stale: Vec<PageRef> = pages.iter().copied().filter(|&page| !self.pool.is_current(page)).collect();
        for &page in if stale.is_empty() { &pages } else { &stale } {
            let known = self.pool.suspect(page);
            debug_assert_eq!(known, Ok(()), "a page table names pages of its own pool");
        }
        self.give_back(pages);
    }

    /// The pool's own invariants, and that each page is pinned as often as `tables` name it.
    pub(crate) fn check_pages<'a>(&self, tables: impl Iterator<Item = &'a PageRef>) -> Result<(), String> {
        self.pool.check_invariants()?;
        let mut names: BTreeMap<PageRef, u32> = BTreeMap::new();
        for &page in tables {
            *names.entry(page).or_default() += 1;
        }
        #[cfg(any(test, feature = "fault-injection"))]
        {
            // What was stolen is its owners' no longer, although they do not know.
            names.retain(|&page, _| self.pool.is_current(page));
            names.extend(self.stolen.iter().map(|&page| (page, 1)));
        }
        if let Some((page, count)) = names.iter().find(|&(&page, &count)| self.pool.pins(page) != count) {
            return Err(format!("{count} page tables name {page}, {} pin it", self.pool.pins(*page)));
        }
        let pinned = self.pool.counts().pinned as usize;
        if names.len() == pinned { Ok(()) } else { Err(format!("{} pages in tables, {pinned} pinned", names.len())) }
    }
}

/// Methods that both schedulers have in the same words; each has a field `state`.
macro_rules! stage_methods {
    ($scheduler:ty) => {
        impl $scheduler {
            /// The pool, to look at.
            pub fn pool(&self) -> &PagePool {
                &self.state.pool
            }

            /// The step that was dispatched and not committed.
            pub fn in_flight(&self) -> Option<u64> {
                self.state.in_flight()
            }

            pub fn counters(&self) -> StageCounters {
                self.state.counters
            }

            /// Whether the sequence is here, in whatever state.
            pub fn has(&self, seq: SeqId) -> bool {
                self.sequences.contains_key(&seq)
            }

            /// Whether no sequence is here, in whatever state.
            pub fn is_empty(&self) -> bool {
                self.sequences.is_empty()
            }

            /// What policies are told of the recent step time.
            pub fn set_step_us(&mut self, step_us: u32) {
                self.state.step_us = step_us;
            }

            /// What recent steps cost: bounds the next one where the limits bound its time.
            pub fn set_step_cost(&mut self, cost: Option<StepCost>) {
                self.state.step_cost = cost;
            }

            /// Has the policy asked for the next step even if its last plan still holds; for when another policy is in force.
            pub fn forget_order(&mut self) {
                self.state.forget_order();
            }

            /// Tag changes that no step has taken yet, for what touches pages outside of steps: apply them, in stream order,
            /// before a hand-off writes into reserved pages, or when the engine goes idle.
            pub fn take_changes(&mut self) -> Vec<TagChange> {
                self.state.pool.take_changes()
            }

            /// Keeps pages that a transfer names out of reuse until [`Self::drain`], whoever frees them meanwhile.
            ///
            /// # Errors
            /// A page is stale; those before it are held.
            pub fn hold(&mut self, pages: &[PageRef], transfer: TransferId) -> Result<(), KvError> {
                pages.iter().try_for_each(|&page| self.state.pool.hold(page, transfer))
            }

            /// The transfer touches no page any more: it has ended, or its peer is known to be dead.
            pub fn drain(&mut self, transfer: TransferId) {
                self.state.pool.drain(transfer);
            }

            /// Takes a page back into use that a mismatch had put under suspicion.
            ///
            /// # Errors
            /// It is not of this pool or not under suspicion.
            pub fn readmit(&mut self, page: PageId) -> Result<(), KvError> {
                self.state.pool.readmit(page)
            }

            /// Takes every page back into use that is under suspicion, and tells how many. One that is pinned stays so until it is
            /// released, and is free then.
            pub fn readmit_all(&mut self) -> u32 {
                let suspects = self.state.pool.suspects();
                let readmitted = suspects.into_iter().filter(|&page| self.state.pool.readmit(page).is_ok());
                u32::try_from(readmitted.count()).unwrap_or(u32::MAX)
            }
        }
    };
}
pub(crate) use stage_methods;
