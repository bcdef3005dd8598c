//! The schedule policy where it is asked for in other processes: what is put in force here is put in force there too. Keeps the sources
//! of what may be in force again. It does not know how these processes are reached.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use millrace_policy::{PolicyInfo, ScheduleSlot};
use millrace_policy_wasm::PolicyOptions;

use crate::control::{Component, ScheduleRuns};
use crate::error::SwapError;

/// Beside what compiling may take: until a component has come everywhere and has been tried.
const PATIENCE: Duration = Duration::from_secs(60);

/// One of these processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleIn {
    pub pool: String,
    /// `None`: it is down; when it is back, it gets what is in force here.
    pub runs: Option<ScheduleRuns>,
    /// Why it does not run what is in force here, if it refused that.
    pub refused: Option<String>,
}

/// Processes that ask for a schedule.
pub(crate) trait Elsewhere: Send + Sync {
    /// Has the component loaded by every process that is up, and held there. Tells under what ticket.
    ///
    /// # Errors
    /// A process refuses it, or does not answer; nobody holds it then.
    fn load(&self, component: &Arc<Component>, patience: Duration) -> Result<u64, SwapError>;

    /// In force in every process, and in those to come: what this ticket is of where it is held, or the whole. None: what roll backs
    /// end at. Waits until all have done so.
    ///
    /// # Errors
    /// A process keeps what it has, and why; the others do not.
    fn put(
        &self,
        generation: u64,
        component: Option<Arc<Component>>,
        ticket: Option<u64>,
        patience: Duration,
    ) -> Result<(), SwapError>;

    /// What is held under this ticket will not be put in force.
    fn forget(&self, ticket: u64);

    /// Whether a process refused what is in force, and that is a while ago.
    fn is_due_again(&self) -> bool;

    /// Sends it once more to each of these. Nobody waits for it.
    fn again(&self);

    fn runs(&self) -> Vec<ScheduleIn>;
}

/// See the module.
#[derive(Default)]
pub(super) struct Afar {
    there: OnceLock<Arc<dyn Elsewhere>>,
    /// Of what is in force and of the way back.
    sources: Mutex<Vec<Arc<Component>>>,
    /// The generation of the slot that processes were told last.
    followed: AtomicU64,
}

/// What every process has loaded.
pub(super) struct Held {
    component: Arc<Component>,
    ticket: u64,
}

impl Afar {
    /// From now on. What is in force here is so there.
    pub(super) fn reach(&self, there: Arc<dyn Elsewhere>, slot: &ScheduleSlot) {
        if self.there.set(there).is_ok()
            && let Err(error) = self.follow(slot, Duration::ZERO)
        {
            tracing::debug!(%error, "engine processes are told of the schedule policy; nobody waits for them");
        }
    }

    /// Whether there are such processes.
    pub(super) fn reaches(&self) -> bool {
        self.there.get().is_some()
    }

    /// Notes the source of what the slot starts with.
    pub(super) fn begin_with(&self, source: Vec<u8>, info: &PolicyInfo, options: &PolicyOptions) {
        self.sources().push(Arc::new(component(source.into(), info, options)));
    }

    /// A copy, where there is anybody to send it to.
    pub(super) fn keep(&self, source: &[u8]) -> Option<Arc<[u8]>> {
        self.there.get().map(|_| source.into())
    }

    /// Has the source loaded wherever the schedule is asked for.
    ///
    /// # Errors
    /// As for [`Elsewhere::load`].
    pub(super) fn load(
        &self,
        source: Option<Arc<[u8]>>,
        info: &PolicyInfo,
        options: &PolicyOptions,
    ) -> Result<Option<Held>, SwapError> {
        let Some((there, source)) = self.there.get().zip(source) else { return Ok(None) };
        let component = Arc::new(component(source, info, options));
        let ticket = there.load(&component, patience(options))?;
        Ok(Some(Held { component, ticket }))
    }

    /// What was loaded is in force in the slot, so it shall be there.
    ///
    /// # Errors
    /// As for [`Elsewhere::put`].
    pub(super) fn put(&self, held: Option<Held>, slot: &ScheduleSlot) -> Result<(), SwapError> {
        let Some((there, Held { component, ticket })) = self.there.get().zip(held) else { return Ok(()) };
        let status = slot.status();
        if !is(&component, &status.info) {
            // Somebody took it back meanwhile, and has that followed.
            there.forget(ticket);
            return Ok(());
        }
        let mut sources = self.sources();
        sources.retain(|kept| *kept != component && status.way_back.iter().any(|info| is(kept, info)));
        sources.push(component.clone());
        drop(sources);
        self.followed.store(status.generation, Ordering::Relaxed);
        there.put(status.generation, Some(component), Some(ticket), PATIENCE)
    }

    /// It was not put in force after all.
    pub(super) fn forget(&self, held: Option<Held>) {
        if let Some((there, held)) = self.there.get().zip(held) {
            there.forget(held.ticket);
        }
    }

    /// Whether processes were told of another policy last than the slot has in force, or one is to be told once more.
    pub(super) fn is_behind(&self, slot: &ScheduleSlot) -> bool {
        self.there.get().is_some_and(|there| self.is_another(slot) || there.is_due_again())
    }

    fn is_another(&self, slot: &ScheduleSlot) -> bool {
        slot.generation() != self.followed.load(Ordering::Relaxed)
    }

    /// Has it followed that the slot rolled back by itself, and what was refused sent once more; nobody waits for either.
    pub(super) fn catch_up(&self, slot: &ScheduleSlot) {
        let Some(there) = self.there.get() else { return };
        there.again();
        if self.is_another(slot)
            && let Err(error) = self.follow(slot, Duration::ZERO)
        {
            tracing::debug!(%error, "engine processes are told of a roll back; nobody waits for them");
        }
    }

    /// Whatever is in force in the slot shall be so there.
    ///
    /// # Errors
    /// As for [`Elsewhere::put`].
    pub(super) fn follow(&self, slot: &ScheduleSlot, patience: Duration) -> Result<(), SwapError> {
        let Some(there) = self.there.get() else { return Ok(()) };
        let status = slot.status();
        let component = self.sources().iter().rev().find(|kept| is(kept, &status.info)).cloned();
        self.followed.store(status.generation, Ordering::Relaxed);
        there.put(status.generation, component, None, patience)
    }

    /// What has proven itself there is worth returning to, if nobody has trouble with it.
    pub(super) fn vouch(&self, slot: &ScheduleSlot) {
        let generation = slot.generation();
        let all: Vec<ScheduleRuns> = self.runs().into_iter().filter_map(|there| there.runs).collect();
        let well = all.iter().all(|runs| runs.generation == Some(generation) && !runs.failing);
        if well && all.iter().any(|runs| runs.proven) {
            slot.proven_elsewhere(generation);
        }
    }

    /// Empty where the schedule is asked for in this process alone.
    pub(super) fn runs(&self) -> Vec<ScheduleIn> {
        self.there.get().map(|there| there.runs()).unwrap_or_default()
    }

    fn sources(&self) -> MutexGuard<'_, Vec<Arc<Component>>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long to wait for a component that is loaded so.
pub(super) fn patience(options: &PolicyOptions) -> Duration {
    PATIENCE + Duration::from_micros(options.limits.compile_us)
}

fn component(source: Arc<[u8]>, info: &PolicyInfo, options: &PolicyOptions) -> Component {
    let (sha256, origin) = (info.sha256.clone(), info.origin.clone());
    Component { source, sha256, origin, config_json: options.config_json.clone() }
}

fn is(component: &Component, info: &PolicyInfo) -> bool {
    component.sha256 == info.sha256 && component.origin == info.origin
}

#[cfg(test)]
mod tests;
