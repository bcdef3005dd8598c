//! `millrace:policy/state`: small state of the policy's name.

use super::GuestContext;
use super::bindings::millrace::policy::state::Host;
use crate::trace::Import;

impl Host for GuestContext {
    fn get(&mut self, key: String) -> Option<Vec<u8>> {
        let recorded = self.journal.replayed(|import| match import {
            Import::Get { key: then, value } if *then == key => Some(value.clone()),
            _ => None,
        });
        if let Some(value) = recorded {
            return value;
        }
        let value = self.belongings.get(&key);
        self.journal.note(|| Import::Get { key, value: value.clone() });
        value
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), String> {
        let recorded = self.journal.replayed(|import| match import {
            Import::Set { key: then, result } if *then == key => Some(result.clone()),
            _ => None,
        });
        let own = self.belongings.set(key.clone(), value, &self.limits);
        let result = recorded.unwrap_or(own);
        self.journal.note(|| Import::Set { key, result: result.clone() });
        result
    }
}
