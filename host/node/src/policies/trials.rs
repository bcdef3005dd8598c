//! Trials: a policy beside the one in force, its answers compared and never used, until it is put in force or given up.

use std::sync::{Arc, MutexGuard, PoisonError};

use millrace_config::Digest;
use millrace_policy::PolicyInfo;
use millrace_policy_wasm::{LoadError, PolicyKind, PolicyOptions};

use super::{Policies, option_of};
use crate::error::SwapError;
use crate::shadow::{Shadow, ShadowReport};

/// A trial, and the source of its policy where engine processes may want it.
pub(super) struct OnTrial {
    shadow: Shadow,
    source: Option<Arc<[u8]>>,
}

impl Policies {
    /// Puts a component on trial beside the policy in force; one that was on trial is given up. Compiling it takes seconds: not for
    /// the runtime's threads.
    ///
    /// # Errors
    /// As for [`Policies::replace`].
    pub fn start_shadow(&self, kind: PolicyKind, source: &[u8], pinned: Option<&Digest>) -> Result<ShadowReport, SwapError> {
        let _one = self.alone()?;
        self.reachable(kind)?;
        let name = format!("{kind} (shadow)");
        let options = PolicyOptions { name, record: None, ..self.uploaded(kind, pinned) };
        let started = || -> Result<Shadow, LoadError> {
            // A trial changes nothing of the policy in force, and knows nothing of the trial before it.
            let loaded = self.engine.load_apart(source, kind, &options)?;
            // The slot has one witness, which goes with its trial; so the old one goes first.
            drop(self.take_shadow(kind));
            Shadow::start(loaded, self.slots.clone())
        };
        match started() {
            Ok(shadow) => {
                let report = shadow.report();
                log_trial(kind, &report.candidate, "policy on trial");
                let source = self.afar.keep(source).filter(|_| kind == PolicyKind::Schedule);
                self.shadows()[place(kind)] = Some(OnTrial { shadow, source });
                Ok(report)
            }
            Err(error) => {
                tracing::warn!(target: "millrace::audit", %kind, %error, "policy refused for a trial");
                Err(SwapError::Refused(error))
            }
        }
    }

    /// How the trial goes, if there is one.
    pub fn shadow(&self, kind: PolicyKind) -> Option<ShadowReport> {
        self.shadows()[place(kind)].as_ref().map(|trial| trial.shadow.report())
    }

    /// Gives a trial up and tells how it went.
    ///
    /// # Errors
    /// There is none.
    pub fn stop_shadow(&self, kind: PolicyKind) -> Result<ShadowReport, SwapError> {
        let shadow = self.take_shadow(kind).ok_or(SwapError::NothingOnTrial)?;
        let report = shadow.report();
        log_trial(kind, &report.candidate, "policy's trial given up");
        Ok(report)
    }

    /// Puts the policy on trial in force, with the state of the policy's name, and returns who was.
    ///
    /// # Errors
    /// There is none or it ended, another is being loaded, or no instance starts; the trial stays as it is then.
    pub fn activate(&self, kind: PolicyKind) -> Result<PolicyInfo, SwapError> {
        let _one = self.alone()?;
        let recalls = self.recalls(kind);
        let (loaded, source) = {
            let shadows = self.shadows();
            let OnTrial { shadow, source } = shadows[place(kind)].as_ref().ok_or(SwapError::NothingOnTrial)?;
            if let Some(why) = shadow.report().ended {
                return Err(SwapError::TrialEnded(why));
            }
            (self.engine.renamed(shadow.loaded(), option_of(&self.options, kind)), source.clone())
        };
        let put = self.told(kind, "policy replaced by the one on trial", self.put(&loaded, source, recalls));
        if matches!(put, Ok(_) | Err(SwapError::Behind { .. })) {
            drop(self.take_shadow(kind));
        }
        put
    }

    fn shadows(&self) -> MutexGuard<'_, [Option<OnTrial>; 3]> {
        self.shadows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_shadow(&self, kind: PolicyKind) -> Option<Shadow> {
        self.shadows()[place(kind)].take().map(|trial| trial.shadow)
    }
}

/// In the order of [`PolicyKind::ALL`].
fn place(kind: PolicyKind) -> usize {
    match kind {
        PolicyKind::Precision => 0,
        PolicyKind::Route => 1,
        PolicyKind::Schedule => 2,
    }
}

fn log_trial(kind: PolicyKind, info: &PolicyInfo, what: &str) {
    tracing::info!(target: "millrace::audit", %kind, policy = info.name, version = info.version, sha256 = info.sha256, "{what}");
}

#[cfg(test)]
mod tests;
