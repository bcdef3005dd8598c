//! Schedule policies for worlds: the built-in guest, the native one, and either of them out of its mind now and then. Knows no world.
//!
//! A guest's own deadline counts real time, which would make a run depend on the machine; here it is a minute, and what comes too late
//! is decided by the seed.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use millrace_core::Clock;
use millrace_policy::{
    BreakerSettings, Budget, FairSchedule, FaultKind as PolicyFaultKind, Plan, Policy, PolicyFault, PolicyInfo, PolicyReport,
    SchedulePolicy, ScheduleSlot, Table,
};
use millrace_policy_wasm::{EngineOptions, LoadedPolicy, PolicyEngine, PolicyKind, builtin};

use crate::clock::VirtualClock;
use crate::rng::Rng;
use crate::{FaultKind, SimError};

const MINUTE_US: u64 = 60_000_000;

/// Compiled once a process.
fn guest() -> Result<&'static LoadedPolicy, SimError> {
    static GUEST: OnceLock<Result<LoadedPolicy, String>> = OnceLock::new();
    let load = || {
        let clock: Arc<dyn Clock> = Arc::new(VirtualClock::default());
        let engine = PolicyEngine::new(EngineOptions::new(clock)).map_err(|error| error.to_string())?;
        let mut options = builtin::options(PolicyKind::Schedule);
        options.limits.deadline_us = MINUTE_US;
        options.limits.setup_us = MINUTE_US;
        engine.load(builtin::SCHEDULE, PolicyKind::Schedule, &options).map_err(|error| error.to_string())
    };
    GUEST.get_or_init(load).as_ref().map_err(|error| SimError::Policy(error.clone()))
}

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyChoice {
    /// The fallback that is part of the host: fast.
    Native,
    /// The built-in component.
    Guest,
}

/// What a policy is to do wrong from now on, and what it did.
#[derive(Debug)]
pub(crate) struct Mood {
    /// Of 1,000 answers, so many go wrong in one of these ways.
    pub(crate) per_mille: u32,
    pub(crate) faults: Vec<FaultKind>,
    pub(crate) rng: Rng,
    pub(crate) done: Vec<FaultKind>,
    pub(crate) answers: u64,
}

pub(crate) type SharedMood = Arc<Mutex<Mood>>;

/// A slot as a server has it, with a policy that follows its mood.
pub(crate) fn slot(choice: PolicyChoice, mood: &SharedMood, clock: &Arc<VirtualClock>) -> Result<ScheduleSlot, SimError> {
    let (inner, info): (Box<dyn SchedulePolicy>, PolicyInfo) = match choice {
        PolicyChoice::Native => (Box::new(FairSchedule), PolicyInfo::native("fair")),
        PolicyChoice::Guest => {
            let guest = guest()?;
            (guest.schedule().map_err(|error| SimError::Policy(error.to_string()))?, guest.info().clone())
        }
    };
    let moody = Moody { inner, mood: mood.clone(), clock: clock.clone() };
    Ok(ScheduleSlot::new(Box::new(moody), info, BreakerSettings { backoff_us: 20_000, ..BreakerSettings::default() }))
}

struct Moody {
    inner: Box<dyn SchedulePolicy>,
    mood: SharedMood,
    clock: Arc<VirtualClock>,
}

impl Policy for Moody {
    fn report(&self) -> PolicyReport {
        self.inner.report()
    }
}

impl SchedulePolicy for Moody {
    fn plan_step(&mut self, budget: &Budget, rows: &Table, tenants: &Table) -> Result<Plan, PolicyFault> {
        let fault = |kind| Err(PolicyFault { policy: "moody".into(), kind, detail: "the seed says so".into() });
        let mut mood = self.mood.lock().unwrap_or_else(PoisonError::into_inner);
        let Mood { per_mille, faults, rng, done, answers } = &mut *mood;
        *answers += 1;
        let wrong = if rng.per_mille(*per_mille) { rng.pick(faults).copied() } else { None };
        done.extend(wrong);
        match wrong {
            Some(FaultKind::PolicyTrap) => fault(PolicyFaultKind::Trap),
            Some(FaultKind::PolicyTimeout) => {
                self.clock.advance(u64::from(rng.below(20_000)));
                fault(if rng.one_in(2) { PolicyFaultKind::Timeout } else { PolicyFaultKind::Late })
            }
            Some(FaultKind::PolicyGarbage) => {
                let mut numbers =
                    || -> Vec<u32> { (0..rng.below(6)).map(|_| rng.next() as u32 >> rng.below(33).min(31)).collect() };
                Ok(Plan { run: numbers(), tokens: numbers(), preempt: numbers(), valid_steps: u32::MAX, reason: 1 })
            }
            Some(FaultKind::PolicyIdle) => Ok(Plan { valid_steps: rng.below(6), ..Plan::default() }),
            _ => {
                drop(mood);
                // What a running step leaves is virtual time, which a guest does not have.
                self.inner.plan_step(&Budget { answer_within_us: None, ..*budget }, rows, tenants)
            }
        }
    }
}
