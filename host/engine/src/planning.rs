//! The driver's part of a step before it runs: asking for a plan, turning it into a step, handing that to the device. What is
//! decided is the policy's and the scheduler's; here is the clock that they do not know.

use millrace_policy::{Budget, Table};
use millrace_scheduler::{Draft, Neighbours};

use crate::driver::Driver;
use crate::pool::{Pool, Scheduler};

/// A policy gets so long even where a running step leaves less: two ticks of the clock that interrupts policies, and enough for an
/// interpreted one with a step's worth of rows. A step shorter than this would otherwise leave no policy a chance.
const LEAST_ANSWER_US: u64 = 1_000;

/// How long a policy may take that is asked now, beside its own limit: until the first of the running steps is expected to end,
/// since nothing is launched while it thinks; at least [`LEAST_ANSWER_US`]. None: nothing runs that it could hold up, or nobody
/// knows how long it will.
fn answer_within_us(now_us: u64, expected_ends_us: impl Iterator<Item = u64>) -> Option<u32> {
    let left_us = expected_ends_us.min()?.saturating_sub(now_us);
    Some(u32::try_from(left_us.max(LEAST_ANSWER_US)).unwrap_or(u32::MAX))
}

impl Driver {
    /// Launches the planned step of an idle pool, then plans the one after it.
    pub(crate) fn launch(&mut self, index: usize) {
        if !self.pools[index].is_healthy() {
            return;
        }
        if self.pools[index].runner.is_busy() {
            return self.plan_again(index);
        }
        let draft = match self.pools[index].draft.take() {
            Some(draft) => Some(draft),
            None => self.plan(index),
        };
        self.pools[index].draft_is_old = false;
        self.tell_neighbours(index);
        let now_us = self.shared.clock.now_us();
        let Some(plan) = draft.and_then(|draft| self.pools[index].dispatch(draft)) else {
            return self.pools[index].settle();
        };
        let pool = &mut self.pools[index];
        for row in &plan.rows {
            self.jobs.started(row.seq, now_us);
        }
        let jobs = &self.jobs;
        self.ledger.charge(&plan);
        self.counters.tag_checks += pool.runner.launch(&plan, now_us, |row| jobs.sampling(plan.rows[row].seq));
        pool.steps += 1;
        pool.last_rows = u32::try_from(plan.rows.len()).unwrap_or(u32::MAX);
        pool.phases.launch_us += self.shared.clock.now_us().saturating_sub(now_us);
        self.pools[index].draft = self.plan(index);
    }

    /// Whoever came while a step runs has a say in the next one: a plan that was made without him is made again, while there is time.
    fn plan_again(&mut self, index: usize) {
        if std::mem::take(&mut self.pools[index].draft_is_old) {
            self.pools[index].draft = self.plan(index);
        }
    }

    fn plan(&mut self, index: usize) -> Option<Draft> {
        let now_us = self.shared.clock.now_us();
        self.heed_swap();
        self.tell_neighbours(index);
        let (schedule, tenants) = (&self.schedule, self.ledger.table());
        let answer_within_us = answer_within_us(now_us, self.pools.iter().filter_map(|pool| pool.expected_end_us()));
        let (clock, mut policy_us) = (&self.shared.clock, 0);
        let mut call = |budget: &Budget, rows: &Table, tenants: &Table| {
            let asked_us = clock.now_us();
            let answer = schedule.plan_step(now_us, &Budget { answer_within_us, ..*budget }, rows, tenants).value;
            policy_us += clock.now_us().saturating_sub(asked_us);
            answer
        };
        let draft = self.pools[index].plan(now_us, &mut call, &tenants);
        let phases = &mut self.pools[index].phases;
        phases.plan_us += self.shared.clock.now_us().saturating_sub(now_us);
        phases.policy_us += policy_us;
        match &mut self.pools[index].scheduler {
            Scheduler::Prefill(s) => s.take_events().into_iter().for_each(|event| self.hear_prefill(index, event, now_us)),
            Scheduler::Decode(s) => s.take_events().into_iter().for_each(|event| self.hear_decode(event, now_us)),
        }
        draft
    }

    /// Tells a prefill pool whether sequences of other pools wait for its device: those that decode there, or wait for their prefill.
    fn tell_neighbours(&mut self, index: usize) {
        let device = self.pools[index].device;
        let waits = |pool: &Pool| pool.device == device && pool.is_healthy() && pool.has_sequences();
        let waiting = self.pools.iter().enumerate().any(|(other, pool)| other != index && waits(pool));
        if let Scheduler::Prefill(scheduler) = &mut self.pools[index].scheduler {
            scheduler.set_neighbours(if waiting { Neighbours::Waiting } else { Neighbours::Idle });
        }
    }

    /// What an earlier policy said of further steps does not bind the one in force.
    fn heed_swap(&mut self) {
        let generation = self.schedule.generation();
        if std::mem::replace(&mut self.schedule_generation, generation) != generation {
            self.pools.iter_mut().for_each(Pool::forget_order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::answer_within_us;

    fn within(now_us: u64, ends_us: &[u64]) -> Option<u32> {
        answer_within_us(now_us, ends_us.iter().copied())
    }

    #[test]
    fn a_policy_has_until_the_first_running_step_ends() {
        assert_eq!(within(10_000, &[45_000, 18_000, 90_000]), Some(8_000));
    }

    #[test]
    fn where_nothing_runs_its_own_limit_holds() {
        assert_eq!(within(10_000, &[]), None);
    }

    #[test]
    fn a_step_that_is_short_or_overdue_leaves_the_least() {
        assert_eq!(within(10_000, &[10_300]), Some(1_000));
        assert_eq!(within(10_000, &[9_000]), Some(1_000));
        assert_eq!(within(0, &[u64::MAX]), Some(u32::MAX));
    }
}
