//! `millrace keys new`: a fresh API key, shown once, and the line of TOML that lets it in. Keys are never stored.

use clap::Subcommand;
use sha2::{Digest as _, Sha256};

use crate::Failure;
use crate::output::say;

/// Says at a glance, and to scanners for leaked secrets, what this is.
const PREFIX: &str = "mr_";
/// 256 bits: out of reach for guessing, so a plain SHA-256 of it can be stored.
const KEY_BYTES: usize = 32;

#[derive(Subcommand)]
pub(crate) enum Keys {
    /// Make a key for a tenant and print it with its line of TOML. The key is shown this once.
    New {
        /// Name of the tenant's table.
        tenant: String,
    },
}

impl Keys {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Self::New { tenant } = self;
        check_name(&tenant)?;
        let key = new_key()?;
        say!("{}", describe(&tenant, &key));
        Ok(())
    }
}

/// A name that is a bare TOML key, so that what is printed can be pasted.
fn check_name(tenant: &str) -> Result<(), Failure> {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if tenant.is_empty() || tenant.len() > 64 || !tenant.chars().all(bare) {
        return Err(Failure::Usage("a tenant's name has 1 to 64 letters, digits, `-` or `_`".to_owned()));
    }
    Ok(())
}

fn new_key() -> Result<String, Failure> {
    let mut secret = [0_u8; KEY_BYTES];
    getrandom::fill(&mut secret).map_err(|e| anyhow::anyhow!("the operating system gave no random bytes: {e}"))?;
    Ok(format!("{PREFIX}{}", hex(&secret)))
}

fn describe(tenant: &str, key: &str) -> String {
    let digest = hex(&Sha256::digest(key));
    format!("key (shown this once): {key}\n\n[tenant.{tenant}]\nkey_sha256 = \"{digest}\"")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_lets_the_key_in() {
        let key = new_key().ok().unwrap();
        assert_eq!(key.len(), PREFIX.len() + 2 * KEY_BYTES);
        let text = describe("acme", &key);
        assert_eq!(text.matches(&key).count(), 1);
        let toml = text.split_once("\n\n").unwrap().1;
        assert!(toml.starts_with("[tenant.acme]\n") && toml.contains(&hex(&Sha256::digest(&key))));
        assert_ne!(key, new_key().ok().unwrap());
    }

    #[test]
    fn odd_names_are_refused() {
        for name in ["", "a b", "a.b", "\"", "ä", &"x".repeat(65)] {
            assert!(matches!(check_name(name), Err(Failure::Usage(_))), "{name}");
        }
        assert!(check_name("team-1_x").is_ok());
    }
}
