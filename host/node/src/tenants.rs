//! Who is asking: API keys to tenants, by the SHA-256 of the key.
//!
//! Every configured digest is compared on every call, each in constant time, so the time tells nothing about which digests exist
//! or how much of one was right. Keys are never kept or logged. It does not know headers.

use millrace_config::{Digest, Tenant, TenantAccess};
use millrace_core::TenantId;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// The tenants' digests, or one open tenant.
#[derive(Debug)]
pub struct KeyRing {
    /// Served without a key.
    open: Option<TenantId>,
    keys: Vec<(Digest, TenantId)>,
}

impl KeyRing {
    /// Rows become tenant ids.
    pub fn new(tenants: &[Tenant]) -> Self {
        let mut ring = Self { open: None, keys: Vec::new() };
        for (tenant, id) in tenants.iter().zip(0..).map(|(t, row)| (t, TenantId(row))) {
            match &tenant.access {
                TenantAccess::Open => ring.open = Some(id),
                TenantAccess::Keys(digests) => ring.keys.extend(digests.iter().map(|d| (d.clone(), id))),
            }
        }
        ring
    }

    /// Whether requests are served without a key.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The tenant of a key. `None` as a key is a request without one.
    pub fn tenant(&self, key: Option<&[u8]>) -> Option<TenantId> {
        if let Some(open) = self.open {
            return Some(open);
        }
        let digest = Sha256::digest(key.filter(|key| !key.is_empty())?);
        let (mut found, mut tenant) = (Choice::from(0), 0_u32);
        for (wanted, id) in &self.keys {
            let same = wanted.as_bytes().as_slice().ct_eq(digest.as_slice());
            tenant = u32::conditional_select(&tenant, &id.0, same);
            found |= same;
        }
        bool::from(found).then_some(TenantId(tenant))
    }
}

/// Whether a key has a digest, in constant time.
pub fn key_matches(key: &[u8], wanted: &Digest) -> bool {
    Sha256::digest(key).as_slice().ct_eq(wanted.as_bytes().as_slice()).into()
}

#[cfg(test)]
mod tests {
    use millrace_config::Tier;

    use super::*;

    fn digest(key: &str) -> Digest {
        Digest::from_bytes(Sha256::digest(key).into())
    }

    fn tenant(name: &str, access: TenantAccess) -> Tenant {
        Tenant {
            name: name.to_owned(),
            access,
            weight: 1,
            tier: Tier::Standard,
            max_running: None,
            max_waiting: None,
            max_output_tokens: None,
            allowed_lanes: Vec::new(),
            trust_group: None,
        }
    }

    #[test]
    fn a_key_names_its_tenant_and_nothing_else_does() {
        let ring = KeyRing::new(&[
            tenant("a", TenantAccess::Keys(vec![digest("one"), digest("two")])),
            tenant("b", TenantAccess::Keys(vec![digest("three")])),
        ]);
        assert_eq!(ring.tenant(Some(b"one")), Some(TenantId(0)));
        assert_eq!(ring.tenant(Some(b"two")), Some(TenantId(0)));
        assert_eq!(ring.tenant(Some(b"three")), Some(TenantId(1)));
        for wrong in [None, Some(&b""[..]), Some(b"One"), Some(b"one "), Some(b"threee"), Some(&[0xff, 0xfe])] {
            assert_eq!(ring.tenant(wrong), None, "{wrong:?}");
        }
        assert!(key_matches(b"one", &digest("one")) && !key_matches(b"on", &digest("one")));
    }

    #[test]
    fn an_open_tenant_needs_no_key() {
        let ring = KeyRing::new(&[tenant("default", TenantAccess::Open)]);
        assert_eq!(ring.tenant(None), Some(TenantId(0)));
        assert_eq!(ring.tenant(Some(b"anything")), Some(TenantId(0)));
    }
}
