//! Within what prompts share pages: one scope per tenant, or per trust group of tenants, and lane. Knows no tokens and no pages.
//!
//! ```text
//!   scope = SHA-256( secret of this process | who: tenant or group | prefill pool | weights | recipe | KV layout )
//!           each field with its kind and length before it, so that no two lists of fields read alike
//! ```
//! Who is asking comes from the API key, never from a request. The secret makes scopes useless outside of this process.

use millrace_config::{Config, Tenant};
use millrace_core::{LaneId, TenantId};
use millrace_kv::PrefixScope;
use sha2::{Digest as _, Sha256};

use crate::ids::secret;
use crate::start::KnownPool;

/// The scopes of all tenants in all lanes.
#[derive(Debug)]
pub(crate) struct Scopes {
    /// Per tenant, per lane; `None`: its prefill pool keeps no prompts.
    rows: Vec<Vec<Option<PrefixScope>>>,
}

/// What must be the same for the same tokens to have the same keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Numerics {
    pool: u32,
    weights: String,
    recipe: String,
    layout: String,
    keeps: bool,
}

impl Scopes {
    /// `pools` are in the order of the configuration.
    ///
    /// # Errors
    /// Where the operating system gives no random numbers.
    pub(crate) fn new(config: &Config, pools: &[KnownPool]) -> Result<Self, String> {
        let secret = secret()?;
        let numerics = |(pool, row): (&KnownPool, u32)| Numerics {
            pool: row,
            weights: pool.weights.clone(),
            recipe: pool.recipe.clone(),
            layout: pool.layout.clone(),
            keeps: pool.keeps_prompts,
        };
        let numerics: Vec<Numerics> = pools.iter().zip(0..).map(numerics).collect();
        Ok(Self::of_pools(config, &secret, &numerics))
    }

    /// Those of one tenant in one lane.
    pub(crate) fn of(&self, tenant: TenantId, lane: LaneId) -> Option<PrefixScope> {
        self.rows.get(tenant.0 as usize)?.get(lane.0 as usize).copied().flatten()
    }

    fn of_pools(config: &Config, secret: &[u8; 32], pools: &[Numerics]) -> Self {
        let lanes = |tenant: &Tenant| {
            let scope = |lane: &millrace_config::Lane| {
                pools.get(lane.prefill.0 as usize).filter(|pool| pool.keeps).map(|pool| scope(secret, tenant, pool))
            };
            config.lanes.iter().map(scope).collect()
        };
        Self { rows: config.tenants.iter().map(lanes).collect() }
    }
}

fn scope(secret: &[u8; 32], tenant: &Tenant, pool: &Numerics) -> PrefixScope {
    let who = match &tenant.trust_group {
        Some(group) => (b'g', group.as_bytes()),
        None => (b't', tenant.name.as_bytes()),
    };
    let row = pool.pool.to_le_bytes();
    let fields: [(u8, &[u8]); 5] =
        [who, (b'p', &row), (b'w', pool.weights.as_bytes()), (b'r', pool.recipe.as_bytes()), (b'l', pool.layout.as_bytes())];
    let mut hash = Sha256::new().chain_update(secret);
    for (kind, bytes) in fields {
        hash.update([kind]);
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    PrefixScope(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tenants a and b alone, c and d in a group, one that is called like the group.
    const DEPLOYMENT: &str = r#"
[model.m]
path = "m.gguf"
[pool.p]
stage = "prefill"
prefix_cache = true
[pool.q]
stage = "prefill"
[pool.d]
stage = "decode"
[lane.l]
prefill = "p"
decode = "d"
[lane.k]
prefill = "q"
decode = "d"
"#;

    fn config() -> Config {
        let tenants = [("a", ""), ("b", ""), ("c", "team"), ("d", "team"), ("team", "")];
        let mut text = DEPLOYMENT.to_owned();
        for (row, (name, group)) in tenants.into_iter().enumerate() {
            text.push_str(&format!("[tenant.{name}]\nkey_sha256 = \"{}\"\n", row.to_string().repeat(64)));
            if !group.is_empty() {
                text.push_str(&format!("trust_group = \"{group}\"\n"));
            }
        }
        millrace_config::parse(&text, "x.toml").unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn pools() -> Vec<Numerics> {
        let pool = |pool, keeps| Numerics { pool, weights: "w".into(), recipe: "bf16".into(), layout: "kv".into(), keeps };
        vec![pool(0, true), pool(1, false), pool(2, false)]
    }

    #[test]
    fn tenants_are_apart_unless_they_are_in_one_group() {
        let scopes = Scopes::of_pools(&config(), &[7; 32], &pools());
        let of = |tenant| scopes.of(TenantId(tenant), LaneId(0)).unwrap();
        assert_eq!(of(2), of(3));
        let apart = std::collections::BTreeSet::from([of(0), of(1), of(2), of(4)]);
        assert_eq!(apart.len(), 4, "also the tenant that is called like a group");
        assert_eq!(scopes.of(TenantId(0), LaneId(1)), None, "that pool keeps nothing");
        assert_eq!((scopes.of(TenantId(5), LaneId(0)), scopes.of(TenantId(0), LaneId(2))), (None, None));
    }

    #[test]
    fn what_changes_numbers_or_the_process_changes_the_scope() {
        let own = pools().remove(0);
        let tenant = &config().tenants[0];
        let mut seen = std::collections::BTreeSet::from([scope(&[7; 32], tenant, &own)]);
        let others = [
            Numerics { pool: 1, ..own.clone() },
            Numerics { weights: "x".into(), ..own.clone() },
            Numerics { recipe: "fp8".into(), ..own.clone() },
            Numerics { layout: "kv2".into(), ..own.clone() },
            // The same bytes in a row, parted elsewhere.
            Numerics { weights: "wr".into(), recipe: "bf16".into(), ..own.clone() },
            Numerics { weights: "".into(), recipe: "wbf16".into(), ..own.clone() },
        ];
        assert!(others.iter().all(|other| seen.insert(scope(&[7; 32], tenant, other))));
        assert!(seen.insert(scope(&[8; 32], tenant, &own)));
        assert!(!seen.insert(scope(&[7; 32], tenant, &own)), "and nothing else does");
    }
}
