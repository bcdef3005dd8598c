//! The schedule policy in the engine processes: what they are to run, what they say that they do, and who waits for that. A process that
//! comes up gets what is in force; one that does not take an order is ended, as with any other.
//!
//! ```text
//!   load: the component to all that are up -> each holds it, or one refuses: all forget it
//!   put:  what is in force from now on -> Put where it is held, the whole where it is not
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

/// See the module.
#[derive(Default)]
pub(super) struct Schedules(Mutex<State>);

#[derive(Default)]
struct State {
    /// `None`: the node has not said; processes run what they start with.
    wanted: Option<Wanted>,
    tickets: u64,
    /// Who waits for answers.
    asks: Option<Sender<(PoolId, Told)>>,
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
    refused: Option<String>,
}

enum Told {
    Holds(u64),
    /// 0: of no ticket.
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
                Told::Refused(ticket, why)
            }
            ScheduleReport::Runs(runs) => {
                let generation = runs.generation;
                said.runs = Some(*runs);
                if generation.is_some() && generation == wanted {
                    said.refused = None;
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
        // Nobody may wait any more.
        self.asks.take_if(|asks| asks.send((pool, told)).is_err());
    }

    fn wait(&mut self) -> Receiver<(PoolId, Told)> {
        let (asks, answers) = channel();
        self.asks = Some(asks);
        answers
    }

    fn next_ticket(&mut self) -> u64 {
        self.tickets = self.tickets.saturating_add(1);
        self.tickets
    }

    /// Sends what is needed for a process to run what is wanted. False: it is down, or nothing is wanted.
    fn bring(&mut self, member: &Member, held: Option<u64>) -> bool {
        let Some(Wanted { generation, component }) = self.wanted.clone() else { return false };
        let said = self.said.entry(member.pool).or_default();
        let orders: Vec<ScheduleOrder> = match component {
            None => vec![ScheduleOrder::Base { generation }],
            Some(_) if held.is_some() && held == said.holds => {
                held.into_iter().map(|ticket| ScheduleOrder::Put { ticket, generation }).collect()
            }
            Some(component) if said.runs.as_ref().is_some_and(|runs| runs.info.sha256 == component.sha256) => {
                vec![ScheduleOrder::Is { sha256: component.sha256.clone(), generation }]
            }
            Some(component) => {
                let ticket = self.next_ticket();
                component.orders(ticket, Some(generation)).collect()
            }
        };
        send(member, orders)
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

/// Waits until each of these has answered with what `is_done` takes for an end. The first that refuses, or does not answer.
fn await_all(
    answers: &Receiver<(PoolId, Told)>,
    Asked { pools: mut asked, since }: Asked,
    patience: Duration,
    is_done: impl Fn(&Told) -> bool,
) -> Result<(), (PoolId, Option<String>)> {
    let until = Instant::now() + patience;
    let mut refused = None;
    while let Some(&first) = asked.first() {
        let Ok((pool, told)) = answers.recv_timeout(until.saturating_duration_since(Instant::now())) else {
            return Err(refused.unwrap_or((first, None)));
        };
        match told {
            Told::Refused(ticket, why) if (ticket == 0 || ticket >= since) && asked.remove(&pool) => {
                refused = refused.or(Some((pool, Some(why))));
            }
            told if matches!(told, Told::Gone) || is_done(&told) => {
                asked.remove(&pool);
            }
            _ => {}
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
        let loaded = await_all(&answers, asked, patience, |told| matches!(told, Told::Holds(of) if *of == ticket));
        loaded.map(|()| ticket).map_err(|refused| {
            for member in &self.members {
                send(member, [ScheduleOrder::Forget { ticket }]);
            }
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
        if state.wanted.as_ref().is_some_and(|wanted| wanted.generation >= generation) {
            return Ok(());
        }
        state.wanted = Some(Wanted { generation, component });
        let answers = state.wait();
        let since = ticket.unwrap_or(state.tickets.saturating_add(1));
        let pools = self.members.iter().filter(|member| state.bring(member, ticket)).map(|member| member.pool).collect();
        drop(state);
        let asked = Asked { pools, since };
        let done = |told: &Told| matches!(told, Told::Runs(Some(of)) if *of >= generation);
        await_all(&answers, asked, patience, done).map_err(|refused| {
            let (pool, why) = self.named(refused);
            SwapError::Behind { pool, why }
        })
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
