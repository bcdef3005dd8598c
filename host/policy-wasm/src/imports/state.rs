//! `millrace:policy/state`: small state of the policy's name.

use super::GuestContext;
use super::bindings::millrace::policy::state::Host;

impl Host for GuestContext {
    fn get(&mut self, key: String) -> Option<Vec<u8>> {
        self.belongings.get(&key)
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), String> {
        self.belongings.set(key, value, &self.limits)
    }
}
