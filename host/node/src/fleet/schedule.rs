//! The schedule policy in the engine processes: what they are to run, what they say that they do, and who waits for that. A process that
//! comes up gets what is in force; one that does not take an order is ended, as with any other.
//!
//! ```text
//!   load: the component to all that are up -> each holds it, or one refuses: all forget it
//!   put:  what is in force from now on -> Put where it is held, the whole where it is not
//!         refused there -> again after 1 s, 2 s, .. 60 s
//! ```
//! It does not know policies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use millrace_core::PoolId;

use super::member::{Member, Sent};
use super::{Fleet, lock};
use crate::control::{Component, Order, ScheduleOrder, ScheduleReport, ScheduleRuns};
use crate::error::SwapError;
use crate::policies::afar::{Elsewhere, ScheduleIn};

/// No generation of the slot's, which count from 1: on the way from one to another.
const BETWEEN: u64 = 0;
/// What all others run is refused for a reason that passes: a machine that was busy, memory that was short.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const AGAIN_AFTER_AT_MOST: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Default)]
pub(super) struct Schedules(Mutex<State>);

#[derive(Default)]
struct State {
    /// `None`: the node has not said; processes run what they start with.
    wanted: Option<Wanted>,
    tickets: u64,
    /// All who wait for answers, each for its own.
    asks: Vec<Sender<(PoolId, Told)>>,
    said: BTreeMap<PoolId, Said>,
}

#[derive(Clone)]
struct Wanted {
    generation: u64,
    /// `None`: what roll backs end at.
    component: Option<Arc<Component>>,
}

/// By a life.
#[derive(Default)]
struct Said {
    runs: Option<ScheduleRuns>,
    /// Holds what this ticket is of.
    holds: Option<u64>,
    /// The generation that it was last told to run.
    sent: Option<u64>,
    /// The ticket of that.
    brought: Option<u64>,
    refused: Option<String>,
    again: Option<Again>,
}

/// When what was refused is sent once more.
#[derive(Clone, Copy)]
struct Again {
    at: Instant,
    /// How long that is behind the refusal.
    wait: Duration,
}

impl Again {
    fn next(before: Option<Self>) -> Self {
        let wait = before.map_or(AGAIN_AFTER, |again| again.wait.saturating_mul(2).min(AGAIN_AFTER_AT_MOST));
        Self { at: Instant::now() + wait, wait }
    }
}

impl Said {
    fn is_due_again(&self, now: Instant) -> bool {
        self.again.is_some_and(|again| again.at <= now)
    }
}

#[derive(Clone)]
enum Told {
    Holds(u64),
    Refused(u64, String),
    Runs(Option<u64>),
    Gone,
}

impl Schedules {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Takes what a process says.
    pub(super) fn hear(&self, member: &Member, report: ScheduleReport) {
        let mut state = self.state();
        let wanted = state.wanted.as_ref().map(|wanted| wanted.generation);
        let said = state.said.entry(member.pool).or_default();
        let told = match report {
            ScheduleReport::Loaded { ticket } => {
                said.holds = Some(ticket);
                Told::Holds(ticket)
            }
            ScheduleReport::Refused { ticket, why } => {
                tracing::warn!(target: "millrace::audit", pool = member.name, why, "an engine process refuses a schedule policy");
                said.refused = Some(why.clone());
                if said.brought == Some(ticket) {
                    said.again = Some(Again::next(said.again));
                }
                Told::Refused(ticket, why)
            }
            ScheduleReport::Runs(runs) => {
                let generation = runs.generation;
                said.runs = Some(*runs);
                if generation.is_some() && generation == wanted {
                    (said.refused, said.again) = (None, None);
                }
                Told::Runs(generation)
            }
        };
        state.tell(member.pool, told);
    }

    /// A life is over.
    pub(super) fn gone(&self, pool: PoolId) {
        let mut state = self.state();
        state.said.remove(&pool);
        state.tell(pool, Told::Gone);
    }

    /// A life takes orders from now on.
    pub(super) fn up(&self, member: &Member) {
        self.state().bring(member, None);
    }
}

impl State {
    fn tell(&mut self, pool: PoolId, told: Told) {
        // Who does not wait any more is forgotten.
        self.asks.retain(|asks| asks.send((pool, told.clone())).is_ok());
    }

    fn wait(&mut self) -> Receiver<(PoolId, Told)> {
        let (asks, answers) = channel();
        self.asks.push(asks);
        answers
    }

    fn next_ticket(&mut self) -> u64 {
        self.tickets = self.tickets.saturating_add(1);
        self.tickets
    }

    /// Sends what is needed for a process to run what is wanted. False: it is down, or nothing is wanted.
    fn bring(&mut self, member: &Member, held: Option<u64>) -> bool {
        let Some(Wanted { generation, component }) = self.wanted.clone() else { return false };
        let next = self.next_ticket();
        let said = self.said.entry(member.pool).or_default();
        // What it says that it runs is so still only where no order is on its way.
        let is_settled = said.sent.is_none() || said.runs.as_ref().is_some_and(|runs| runs.generation == said.sent);
        let held = said.holds.take().filter(|holds| held == Some(*holds));
        let ticket = held.unwrap_or(next);
        let orders: Vec<ScheduleOrder> = match component {
            None => vec![ScheduleOrder::Base { generation }],
            Some(_) if held.is_some() => vec![ScheduleOrder::Put { ticket, generation }],
            Some(component) if is_settled && said.runs.as_ref().is_some_and(|runs| runs.info.sha256 == component.sha256) => {
                vec![ScheduleOrder::Is { ticket, sha256: component.sha256.clone(), generation }]
            }
            Some(component) => {
                // What it runs is not to be its way back: somebody went back from that, or its file is another by now. Until the
                // other is loaded it runs the built-in.
                let whole = component.orders(ticket, Some(generation));
                std::iter::once(ScheduleOrder::Base { generation: BETWEEN }).chain(whole).collect()
            }
        };
        let taken = send(member, orders);
        if taken && let Some(said) = self.said.get_mut(&member.pool) {
            (said.sent, said.brought) = (Some(generation), Some(ticket));
        }
        taken
    }
}

/// Whether all were taken.
fn send(member: &Member, orders: impl IntoIterator<Item = ScheduleOrder>) -> bool {
    orders.into_iter().all(|order| member.order(Order::Schedule(order)) == Sent::Taken)
}

/// Who is asked for what is of this ticket or a later one.
struct Asked {
    pools: BTreeSet<PoolId>,
    since: u64,
}

/// Waits until each of these has answered with what `end` takes for an end: a good one, or why not. The first that refuses, or does not
/// answer.
fn await_all(
    answers: &Receiver<(PoolId, Told)>,
    Asked { pools: mut asked, since }: Asked,
    patience: Duration,
    end: impl Fn(&Told) -> Option<Result<(), String>>,
) -> Result<(), (PoolId, Option<String>)> {
    let until = Instant::now() + patience;
    let mut refused = None;
    while let Some(&first) = asked.first() {
        let Ok((pool, told)) = answers.recv_timeout(until.saturating_duration_since(Instant::now())) else {
            return Err(refused.unwrap_or((first, None)));
        };
        let ended = match told {
            Told::Refused(ticket, why) if ticket >= since => Some(Err(why)),
            told => end(&told),
        };
        if let Some(ended) = ended.filter(|_| asked.remove(&pool)) {
            refused = refused.or(ended.err().map(|why| (pool, Some(why))));
        }
    }
    refused.map_or(Ok(()), Err)
}

impl Fleet {
    fn named(&self, (pool, why): (PoolId, Option<String>)) -> (String, String) {
        let name = self.member(pool).map(|member| member.name.clone()).unwrap_or_default();
        (name, why.unwrap_or_else(|| "it does not answer in time".to_owned()))
    }
}

impl Elsewhere for Fleet {
    fn load(&self, component: &Arc<Component>, patience: Duration) -> Result<u64, SwapError> {
        let mut state = self.schedules.state();
        let (ticket, answers) = (state.next_ticket(), state.wait());
        let takes = |member: &&Member| send(member, component.orders(ticket, None));
        let pools: BTreeSet<PoolId> = self.members.iter().filter(takes).map(|member| member.pool).collect();
        drop(state);
        let asked = Asked { pools, since: ticket };
        // One that the component has killed would not be the last.
        let end = |told: &Told| match told {
            Told::Holds(of) if *of == ticket => Some(Ok(())),
            Told::Gone => Some(Err("it ended while it loaded the policy".to_owned())),
            _ => None,
        };
        let loaded = await_all(&answers, asked, patience, end);
        loaded.map(|()| ticket).map_err(|refused| {
            self.forget(ticket);
            let (pool, why) = self.named(refused);
            SwapError::RefusedIn { pool, why }
        })
    }

    fn put(
        &self,
        generation: u64,
        component: Option<Arc<Component>>,
        ticket: Option<u64>,
        patience: Duration,
    ) -> Result<(), SwapError> {
        let mut state = self.schedules.state();
        // Two that roll back at once.
        if state.wanted.as_ref().is_some_and(|wanted| wanted.generation > generation) {
            return Ok(());
        }
        // Once more: for those that could not take it before.
        let is_due = |state: &State, member: &Member| {
            let runs = state.said.get(&member.pool).and_then(|said| said.runs.as_ref());
            runs.is_none_or(|runs| runs.generation != Some(generation))
        };
        state.wanted = Some(Wanted { generation, component });
        let answers = state.wait();
        let since = ticket.unwrap_or(state.tickets.saturating_add(1));
        let brought = self.members.iter().filter(|member| is_due(&state, member) && state.bring(member, ticket));
        let pools = brought.map(|member| member.pool).collect();
        drop(state);
        let asked = Asked { pools, since };
        // A life to come gets it.
        let end = |told: &Told| match told {
            Told::Gone => Some(Ok(())),
            Told::Runs(Some(of)) if *of >= generation => Some(Ok(())),
            _ => None,
        };
        await_all(&answers, asked, patience, end).map_err(|refused| {
            let (pool, why) = self.named(refused);
            SwapError::Behind { pool, why }
        })
    }

    fn is_due_again(&self) -> bool {
        let (state, now) = (self.schedules.state(), Instant::now());
        state.said.values().any(|said| said.is_due_again(now))
    }

    fn again(&self) {
        let (mut state, now) = (self.schedules.state(), Instant::now());
        for member in &self.members {
            if state.said.get(&member.pool).is_some_and(|said| said.is_due_again(now)) {
                state.bring(member, None);
                // Not a third time before it has answered.
                state
                    .said
                    .entry(member.pool)
                    .or_default()
                    .again
                    .iter_mut()
                    .for_each(|again| again.at = now + AGAIN_AFTER_AT_MOST);
            }
        }
    }

    fn forget(&self, ticket: u64) {
        for member in &self.members {
            send(member, [ScheduleOrder::Forget { ticket }]);
        }
    }

    fn runs(&self) -> Vec<ScheduleIn> {
        let state = self.schedules.state();
        let of = |member: &Member| {
            let said = state.said.get(&member.pool).filter(|_| member.takes_orders());
            let (runs, refused) = said.map(|said| (said.runs.clone(), said.refused.clone())).unwrap_or_default();
            ScheduleIn { pool: member.name.clone(), runs, refused }
        };
        self.members.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests;
