//! One engine process as its node knows it, over all its lives: whether it takes orders, where it is, what it said last, what it
//! counted. Knows no socket and no sequence.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};

use millrace_core::{PoolId, Stage};
use millrace_engine::{Counters, EngineSnapshot, TokenHistogram};
use millrace_kv::{PrefixDigests, PrefixDirectory, PrefixScope};
use millrace_transfer::Incarnation;
use tokio::sync::{mpsc, watch};

use super::jobs::Errand;
use super::{ProcessFacts, lock};
use crate::control::{Order, Ready, add_counters};

/// One process, whether it lives or not.
pub(crate) struct Member {
    pub(crate) pool: PoolId,
    pub(crate) name: String,
    pub(crate) stage: Stage,
    deployed: String,
    state: Mutex<State>,
    /// The process's facts once it is loaded; the first error before.
    first: watch::Sender<Option<Result<Ready, String>>>,
}

#[derive(Default)]
struct State {
    /// While the process takes orders: the only sender, so that dropping it ends the process's connection, and with it its life.
    orders: Option<mpsc::Sender<Order>>,
    /// Of a life that has been ready.
    incarnation: Option<Incarnation>,
    address: Option<SocketAddr>,
    facts: Option<EngineSnapshot>,
    /// What this life keeps of prompts, as it said last.
    prefixes: Option<PrefixDirectory>,
    /// What earlier lives counted.
    past: Counters,
    past_steps: TokenHistogram,
    starts: u64,
    pid: Option<u32>,
    /// What was not sent because the process was down.
    later: Vec<Errand>,
}

/// A life of the process that is ready.
pub(super) struct Life {
    pub(super) incarnation: Incarnation,
    pub(super) address: SocketAddr,
    /// How it is, if it has said so.
    pub(super) facts: Option<EngineSnapshot>,
}

/// What became of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Taken,
    /// The process takes none: it is down, or on its way there.
    Down,
}

impl State {
    /// A process that does not take an order has lost it, and may not go on without: it gets no more of them, so that its supervisor
    /// ends it and starts another.
    fn send(&mut self, order: Order, pool: &str) -> Sent {
        let Some(orders) = &self.orders else { return Sent::Down };
        if orders.try_send(order).is_ok() {
            return Sent::Taken;
        }
        tracing::error!(pool, "an engine process does not take its orders; it is ended");
        self.orders = None;
        Sent::Down
    }
}

impl Member {
    /// `deployed`: what of the deployment it is to run, as [`crate::deployed`] tells.
    pub(super) fn new(pool: PoolId, name: String, stage: Stage, deployed: String) -> Self {
        Self { pool, name, stage, deployed, state: Mutex::default(), first: watch::channel(None).0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn order(&self, order: Order) -> Sent {
        self.state().send(order, &self.name)
    }

    /// Sends what is to be sent. Where the process is down, a sequence is kept until it is back, one errand for each; an abort has
    /// nothing to end there.
    pub(super) fn run(&self, errand: Errand) {
        let mut state = self.state();
        if state.send(errand.order(), &self.name) == Sent::Down && matches!(errand, Errand::Submit(..)) {
            state.later.retain(|kept| kept.seq() != errand.seq());
            state.later.push(errand);
        }
    }

    /// A place for one more order. `None`: there is none, or the process is down.
    pub(super) fn room(&self) -> Option<mpsc::OwnedPermit<Order>> {
        let orders = self.state().orders.clone();
        orders.and_then(|orders| orders.try_reserve_owned().ok())
    }

    pub(super) fn takes_orders(&self) -> bool {
        self.state().orders.is_some()
    }

    /// A process was started; it is not loaded yet.
    pub(super) fn born(&self, pid: Option<u32>) {
        let mut state = self.state();
        (state.starts, state.pid) = (state.starts.saturating_add(1), pid);
    }

    /// It is loaded and has said how it is. Returns what waited for that.
    pub(super) fn up(&self, life: Life, orders: mpsc::Sender<Order>) -> Vec<Errand> {
        let mut state = self.state();
        (state.orders, state.incarnation, state.address) = (Some(orders), Some(life.incarnation), Some(life.address));
        state.facts = life.facts;
        std::mem::take(&mut state.later)
    }

    /// What a loaded process says of itself from time to time.
    pub(super) fn say(&self, facts: EngineSnapshot) {
        self.state().facts = Some(facts);
    }

    /// What it keeps of prompts.
    pub(super) fn keeps(&self, digests: &PrefixDigests) {
        let directory = PrefixDirectory::told(digests);
        self.state().prefixes = Some(directory);
    }

    /// Tokens at the beginning of a prompt that it keeps within this scope, as it said last; none where it has said nothing or is down.
    pub(super) fn prefix_hit_tokens(&self, scope: PrefixScope, prompt: &[u32]) -> Option<u32> {
        let directory = self.state().prefixes.clone()?;
        Some(directory.hit_tokens(scope, prompt))
    }

    pub(super) fn incarnation(&self) -> Option<Incarnation> {
        self.state().incarnation
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.state().address
    }

    /// It is dead. What it counted stays counted; its lanes and pools stay known as they were last, and count as down.
    pub(super) fn down(&self) {
        let mut state = self.state();
        (state.orders, state.address, state.pid, state.incarnation) = (None, None, None, None);
        state.prefixes = None;
        let State { facts: Some(facts), past, past_steps, .. } = &mut *state else { return };
        add_counters(past, &std::mem::take(&mut facts.counters));
        *past_steps = past_steps.plus(&std::mem::take(&mut facts.step_tokens));
        facts.links.clear();
    }

    /// What it said of itself last, with what earlier lives counted, and whether it is up.
    pub(super) fn facts(&self) -> Option<(EngineSnapshot, bool)> {
        let state = self.state();
        let mut facts = state.facts.clone()?;
        add_counters(&mut facts.counters, &state.past);
        facts.step_tokens = facts.step_tokens.plus(&state.past_steps);
        Some((facts, state.orders.is_some()))
    }

    pub(super) fn process(&self) -> ProcessFacts {
        let state = self.state();
        let (pool, stage) = (self.name.clone(), self.stage);
        ProcessFacts { pool, stage, up: state.orders.is_some(), starts: state.starts, pid: state.pid }
    }

    /// What came of the first start: later ones change nothing about it.
    pub(super) fn tell_first(&self, outcome: Result<Ready, String>) {
        self.first.send_if_modified(|first| {
            let unknown = first.is_none();
            if unknown {
                *first = Some(outcome);
            }
            unknown
        });
    }

    /// What the process said of its pool when it came up first.
    pub(super) fn first(&self) -> Option<Ready> {
        self.first.borrow().as_ref().and_then(|told| told.as_ref().ok().cloned())
    }

    /// Whether a life that has loaded is what the first one was, and what this server was configured for: requests were, and are,
    /// admitted for that.
    ///
    /// # Errors
    /// What differs, and what to do.
    pub(super) fn agrees(&self, ready: &Ready, file: &str) -> Result<(), String> {
        if ready.deployed != self.deployed {
            return Err(format!(
                "the deployment's file {file} changed: what it says of pool `{}`, its model, device, lanes, tenants or schedule \
                 policy is not what this server runs; put it back as it was, or restart the server to run what it says now",
                self.name
            ));
        }
        let Some(what) = self.first().and_then(|first| first.differs(ready)) else { return Ok(()) };
        Err(format!(
            "pool `{}` is not what it was when this server started, since {what}; was its checkpoint replaced? Put it back as it \
             was, or restart the server",
            self.name
        ))
    }

    /// Waits until the first start has come to something.
    ///
    /// # Errors
    /// Why it did not come up.
    pub(super) async fn first_told(&self) -> Result<(), String> {
        let mut first = self.first.subscribe();
        let told = first.wait_for(Option::is_some).await.map_err(|_| "its supervisor is gone".to_owned())?;
        match told.as_ref() {
            Some(Err(why)) => Err(why.clone()),
            _ => Ok(()),
        }
    }
}
