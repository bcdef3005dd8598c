//! Someone who sees what a slot was asked and what it answered, for instance to compare another policy. Comes and goes while the slot
//! decides; is called on the thread of the decision and must return at once. It does not know what is decided.

use std::sync::{Arc, PoisonError, RwLock};

pub(crate) struct Witness<F: ?Sized>(RwLock<Option<Arc<F>>>);

impl<F: ?Sized> Witness<F> {
    pub(crate) fn none() -> Self {
        Self(RwLock::new(None))
    }

    pub(crate) fn set(&self, witness: Option<Arc<F>>) {
        let old = {
            let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *held, witness)
        };
        // What it holds goes outside the lock.
        drop(old);
    }

    /// Nobody sees any more, if this one is who does: another that came after it stays.
    pub(crate) fn forget(&self, witness: &Arc<F>) {
        let old = {
            let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
            held.take_if(|held| Arc::ptr_eq(held, witness))
        };
        drop(old);
    }

    pub(crate) fn get(&self) -> Option<Arc<F>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
