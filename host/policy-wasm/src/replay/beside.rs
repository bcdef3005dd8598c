//! What is called beside decisions, in a replay: the same component hears and hands over what it did then; another one hears it too, and
//! is given memory that may not be its own, which it may refuse as it would in a host. It does not know decisions.

use millrace_policy::FaultKind;

use super::{Asked, Difference, Replay, Replayed, is_of_time};
use crate::fault::one_line;
use crate::instance::{Fault, Instance};
use crate::optional::{accepted, bounded};
use crate::trace::{Beside, Memory, What};
use crate::wire;
use crate::worlds::World;

/// Of memory that is shown in a difference.
const MAX_SHOWN_DIGITS: usize = 256;

impl<W: World> Replay<'_, W> {
    pub(super) fn beside(&mut self, line: u64, beside: Beside) {
        self.report.beside.calls += 1;
        let comparable = !beside.imports.cut && !beside.fault.as_deref().is_some_and(is_of_time) && self.exports(&beside.what);
        let exactly = self.exactly();
        let Some(replayed) = self.instances.get_mut(&beside.instance) else {
            self.report.beside.skipped += 1;
            return;
        };
        replayed.used = line;
        self.report.missed += beside.missed;
        let (Some(instance), true) = (&mut replayed.instance, comparable) else {
            self.report.beside.skipped += 1;
            return;
        };
        instance.aside_at(beside.now_us, replayed.seed);
        instance.replay_imports(beside.imports);
        let now = once_more(instance, &beside.what, &replayed.wants);
        self.report.other_imports += instance.diverged_imports();
        if now.is_err() {
            // As in a host: an instance that failed is not asked again.
            replayed.instance = None;
        }
        let refused = matches!(now, Err((FaultKind::Invalid, _))) && matches!(beside.what, What::Restore(_));
        if refused && !exactly {
            self.begin_anew(beside.instance);
            self.report.beside.skipped += 1;
            return;
        }
        let agreed = match (&now, &beside.fault) {
            (Ok(saved), None) => !exactly || saved.as_ref() == then(&beside.what),
            (Err((kind, _)), Some(fault)) => *fault == kind.to_string(),
            _ => false,
        };
        if agreed {
            self.report.beside.agreed += 1;
            return;
        }
        self.report.beside.differed += 1;
        let recorded = beside.fault.unwrap_or_else(|| shown(then(&beside.what)));
        let replayed = now.map_or_else(|(kind, detail)| format!("{kind}: {}", one_line(&detail)), |saved| shown(saved.as_ref()));
        self.differs(Difference { line, asked: asked(&beside.what), recorded, replayed });
    }

    fn exports(&self, what: &What) -> bool {
        let exports = self.loaded.prepared.exports.optional;
        match what {
            What::Observe(_) => exports.observes(),
            What::Save(_) | What::Restore(_) => exports.hands_over(),
        }
    }

    /// As a host does with a policy that refused another's memory: it starts empty.
    fn begin_anew(&mut self, number: u64) {
        let begun = self.instances.get_mut(&number).and_then(|replayed| replayed.begun.take());
        let started = begun.and_then(|init| self.start(init).ok());
        if let (Some(Replayed { instance, .. }), Some((fresh, _))) = (self.instances.get_mut(&number), started) {
            *instance = Some(fresh);
        }
    }
}

/// What was saved, if that was asked for.
fn once_more<W: World>(instance: &mut Instance<W>, what: &What, wants: &[u32]) -> Result<Option<Memory>, Fault> {
    let setup_us = instance.setup_us();
    match what {
        What::Observe(outcomes) => {
            let mut outcomes = outcomes.clone();
            wire::narrow(&mut outcomes, wants);
            instance.observe(outcomes, setup_us).map(|()| None)
        }
        What::Save(_) => instance.save(setup_us).and_then(bounded).map(|saved| Some(Memory(saved))),
        What::Restore(memory) => instance.restore(&memory.0, setup_us).and_then(accepted).map(|()| None),
    }
}

fn then(what: &What) -> Option<&Memory> {
    match what {
        What::Save(saved) => saved.as_ref(),
        What::Observe(_) | What::Restore(_) => None,
    }
}

fn asked(what: &What) -> Asked {
    match what {
        What::Observe(_) => Asked::Feedback,
        What::Save(_) => Asked::Save,
        What::Restore(_) => Asked::Restore,
    }
}

/// Memory in hexadecimal digits, or that nothing went wrong.
fn shown(saved: Option<&Memory>) -> String {
    let Some(memory) = saved else { return "ok".to_owned() };
    let digits = String::from(memory.clone());
    let end = if digits.len() > MAX_SHOWN_DIGITS { ".." } else { "" };
    format!("{} bytes, {}{end}", memory.0.len(), digits.chars().take(MAX_SHOWN_DIGITS).collect::<String>())
}
