//! Schedule policies for worlds: the built-in guests, the native one, and each of them out of its mind now and then. Knows no world.
//!
//! A guest's deadline counts real time, which would make a run depend on the machine; here its calls are bounded by fuel, and what comes
//! too late is decided by the seed.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use millrace_core::Clock;
use millrace_policy::{
    BreakerSettings, Budget, FairSchedule, FaultKind as PolicyFaultKind, Plan, Policy, PolicyFault, PolicyInfo, PolicyReport,
    SchedulePolicy, ScheduleSlot, Table,
};
use millrace_policy_wasm::{CallBound, EngineOptions, LoadedPolicy, PolicyEngine, PolicyKind, PolicyOptions, builtin};

use crate::clock::VirtualClock;
use crate::rng::Rng;
use crate::{FaultKind, SimError};

/// Of one call, start and configuration included: far more than the built-in guests take for as many rows as there are here.
const FUEL: u64 = 50_000_000;

/// Every world that runs has one for each of its processes; where one begins again, the next one for a moment beside it. And some to load
/// with.
const MAX_INSTANCES: u32 = (MOST_PROCESSES + 1) * crate::MAX_THREADS as u32 + 4;
/// Of one world.
const MOST_PROCESSES: u32 = 3;

/// A schedule component of the binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guest {
    Fair,
    Fcfs,
    Priority,
}

impl Guest {
    pub const ALL: [Self; 3] = [Self::Fair, Self::Fcfs, Self::Priority];

    /// As `component = "builtin:NAME"` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fair => "fair",
            Self::Fcfs => "fcfs",
            Self::Priority => "priority",
        }
    }

    /// Compiled once a process.
    fn loaded(self) -> Result<&'static LoadedPolicy, SimError> {
        static LOADED: [OnceLock<Result<LoadedPolicy, String>>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
        let loaded = LOADED[self as usize].get_or_init(|| self.load());
        loaded.as_ref().map_err(|error| SimError::Policy(error.clone()))
    }

    fn load(self) -> Result<LoadedPolicy, String> {
        let component = builtin::named(PolicyKind::Schedule, self.name()).ok_or("there is no such component")?;
        let options = PolicyOptions { origin: "built-in".to_owned(), ..PolicyOptions::new(self.name(), PolicyKind::Schedule) };
        engine()?.load(component, PolicyKind::Schedule, &options).map_err(|error| error.to_string())
    }
}

/// One a process.
fn engine() -> Result<&'static PolicyEngine, String> {
    static ENGINE: OnceLock<Result<PolicyEngine, String>> = OnceLock::new();
    let start = || {
        let clock: Arc<dyn Clock> = Arc::new(VirtualClock::default());
        let (max_instances, bound) = (MAX_INSTANCES, CallBound::Fuel(FUEL));
        let options = EngineOptions { max_instances, bound, ..EngineOptions::new(clock) };
        PolicyEngine::new(options).map_err(|error| error.to_string())
    };
    ENGINE.get_or_init(start).as_ref().map_err(Clone::clone)
}

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyChoice {
    /// The fallback that is part of the host: fast.
    Native,
    Guest(Guest),
}

/// Who decides in which worlds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policies {
    /// A guest in one world of eight, the native one in the others.
    Mixed,
    /// One guest or the other.
    Guests,
    Only(PolicyChoice),
}

impl Policies {
    pub(crate) fn choose(self, rng: &mut Rng) -> PolicyChoice {
        let guest = PolicyChoice::Guest(rng.pick(&Guest::ALL).copied().unwrap_or(Guest::Fair));
        let rare = rng.one_in(8);
        match self {
            Self::Guests => guest,
            Self::Mixed if rare => guest,
            Self::Mixed => PolicyChoice::Native,
            Self::Only(choice) => choice,
        }
    }
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
        PolicyChoice::Guest(guest) => {
            let guest = guest.loaded()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As many worlds as may run at a time, each with all of its processes, and each about to begin one of them again.
    #[test]
    fn there_are_instances_for_all_worlds_that_may_run() {
        let (clock, choice) = (Arc::new(VirtualClock::default()), PolicyChoice::Guest(Guest::Fcfs));
        let quiet = Mood { per_mille: 0, faults: Vec::new(), rng: Rng::new(0), done: Vec::new(), answers: 0 };
        let mood: SharedMood = Arc::new(Mutex::new(quiet));
        let count = (MOST_PROCESSES as usize + 1) * crate::MAX_THREADS;
        let slots: Vec<_> = (0..count).map(|_| slot(choice, &mood, &clock)).collect();
        assert_eq!(slots.iter().filter_map(|slot| slot.as_ref().err()).count(), 0);
    }

    #[test]
    fn a_mix_has_each_of_them() {
        let mut rng = Rng::new(4);
        let chosen: Vec<_> = (0..400).map(|_| Policies::Mixed.choose(&mut rng)).collect();
        let of = |choice| chosen.iter().filter(|&&chosen| chosen == choice).count();
        assert!(of(PolicyChoice::Native) > 300);
        assert!(Guest::ALL.into_iter().all(|guest| of(PolicyChoice::Guest(guest)) > 3));
        assert!((0..50).all(|_| Policies::Guests.choose(&mut rng) != PolicyChoice::Native));
    }
}
