//! The numbers that policies see in the place of sessions: the same for the same session of the same tenant, as long as the process
//! lives. Without the secret of the process nobody finds the session behind a number, not even one who guesses well, so recordings
//! tell nothing about sessions. Knows no request.

use hmac::{Hmac, KeyInit as _, Mac as _};
use millrace_core::TenantId;
use sha2::Sha256;

pub(crate) struct Sessions(Hmac<Sha256>);

impl Sessions {
    /// # Errors
    /// Where the operating system gives no random numbers.
    pub(crate) fn new() -> Result<Self, String> {
        Self::keyed(&crate::ids::secret()?)
    }

    fn keyed(secret: &[u8; 32]) -> Result<Self, String> {
        Hmac::new_from_slice(secret).map(Self).map_err(|error| error.to_string())
    }

    /// Sessions of different tenants never share a number but by chance.
    pub(crate) fn number(&self, tenant: TenantId, session: &str) -> u64 {
        let digest = self.0.clone().chain_update(tenant.0.to_le_bytes()).chain_update(session).finalize().into_bytes();
        digest.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_a_session_in_one_process_alone() {
        let (here, there) = (Sessions::new().expect("a secret"), Sessions::new().expect("a secret"));
        let (one, other) = (TenantId(1), TenantId(2));
        assert_eq!(here.number(one, "chat 7"), here.number(one, "chat 7"));
        assert_ne!(here.number(one, "chat 7"), here.number(other, "chat 7"));
        assert_ne!(here.number(one, "chat 7"), here.number(one, "chat 8"));
        assert_ne!(here.number(one, "chat 7"), there.number(one, "chat 7"), "who guesses the session needs the secret too");
        let keyed = |byte| Sessions::keyed(&[byte; 32]).expect("a key").number(one, "chat 7");
        assert_eq!((keyed(1), keyed(1) == keyed(2)), (keyed(1), false));
    }
}
