//! `[tenant.NAME]`: who is served. Keys are known by their SHA-256 only.

use std::collections::BTreeMap;

use millrace_core::LaneId;

use super::lanes::id_of;
use crate::defaults::{self, MAX_KEYS_PER_TENANT, OPEN_TENANT};
use crate::digest::OF_NOTHING;
use crate::reader::{Section, hint_for, shown};
use crate::{Digest, ErrorKind, Lane, Limits, Tenant, TenantAccess, Tier};

const KIND: &str = "tenant";

pub(super) fn read(root: &mut Section<'_, '_>, lanes: &[Lane], limits: &Limits) -> Vec<Tenant> {
    let mut tenants = Vec::new();
    let mut owners = Owners::new();
    for table in root.named(KIND) {
        let mut section = root.open(KIND, &table);
        let keys = keys(&mut section, &table.name, &mut owners);
        let tenant = Tenant {
            name: table.name.clone(),
            access: TenantAccess::Keys(keys),
            weight: section.count("weight", defaults::WEIGHT),
            tier: section.choice(
                "tier",
                &[("gold", Tier::Gold), ("standard", Tier::Standard), ("bulk", Tier::Bulk)],
                Tier::Standard,
            ),
            max_running: section.count_or_none("max_running", defaults::TENANT_MAX_RUNNING),
            max_waiting: section.count_or_none("max_waiting", defaults::TENANT_MAX_WAITING),
            max_output_tokens: max_output_tokens(&mut section, limits),
            allowed_lanes: allowed_lanes(&mut section, lanes),
            trust_group: section.text("trust_group", "team"),
        };
        section.finish();
        tenants.push(tenant);
    }
    if tenants.is_empty() {
        tenants.push(open_tenant(lanes));
    }
    tenants
}

/// Everybody who reaches the listener. `server` refuses it where that is not this machine alone.
fn open_tenant(lanes: &[Lane]) -> Tenant {
    Tenant {
        name: OPEN_TENANT.to_owned(),
        access: TenantAccess::Open,
        weight: 1,
        tier: Tier::Standard,
        max_running: None,
        max_waiting: None,
        max_output_tokens: None,
        allowed_lanes: (0..lanes.len()).map(id_of).collect(),
        trust_group: None,
    }
}

/// Which tenant has a key.
type Owners = BTreeMap<Digest, String>;

fn keys(section: &mut Section<'_, '_>, tenant: &str, owners: &mut Owners) -> Vec<Digest> {
    let (has_one, has_list) = (section.has("key_sha256"), section.has("keys_sha256"));
    if !has_one && !has_list {
        let message = "has no key, so nobody could be this tenant".to_owned();
        let hint = "make one with `millrace keys new` and write `key_sha256 = \"..\"`";
        section.error_here(ErrorKind::Missing, message, hint);
    }
    let mut keys = Vec::new();
    let one = section.digest("key_sha256");
    keep(section, one.map(|digest| ("key_sha256", digest)), tenant, owners, &mut keys);
    let texts = section.texts("keys_sha256");
    if has_list && !has_one && texts.is_empty() {
        let message = "holds no key, so nobody could be this tenant".to_owned();
        section.error(ErrorKind::Missing, "keys_sha256", message, "make one with `millrace keys new`");
    }
    if texts.len() > MAX_KEYS_PER_TENANT {
        let message = format!("has {} keys, {MAX_KEYS_PER_TENANT} are allowed", texts.len());
        section.error(ErrorKind::Impossible, "keys_sha256", message, "make tenants of the services that share this one");
    }
    for text in texts.iter().take(MAX_KEYS_PER_TENANT) {
        let digest = section.digest_of("keys_sha256", text);
        keep(section, digest.map(|digest| ("keys_sha256", digest)), tenant, owners, &mut keys);
    }
    keys
}

/// Keeps a key that no tenant has yet.
fn keep(
    section: &mut Section<'_, '_>,
    found: Option<(&'static str, Digest)>,
    tenant: &str,
    owners: &mut Owners,
    keys: &mut Vec<Digest>,
) {
    let Some((key, digest)) = found else { return };
    if digest == OF_NOTHING {
        let message = "is the SHA-256 of an empty text".to_owned();
        section.error(
            ErrorKind::Impossible,
            key,
            message,
            "the variable with the key was empty when it was hashed; hash the key itself",
        );
    } else if let Some(owner) = owners.get(&digest) {
        let message = format!("is already a key of tenant `{owner}`");
        section.error(ErrorKind::Conflict, key, message, "a key stands for one tenant; make another with `millrace keys new`");
    } else {
        owners.insert(digest.clone(), tenant.to_owned());
        keys.push(digest);
    }
}

fn max_output_tokens(section: &mut Section<'_, '_>, limits: &Limits) -> Option<u32> {
    let tokens = section.count_or_none("max_output_tokens", defaults::TENANT_MAX_OUTPUT_TOKENS)?;
    if tokens > limits.max_output_tokens {
        let message = format!("{tokens} is above limits.max_output_tokens, {}", limits.max_output_tokens);
        section.error(
            ErrorKind::Conflict,
            "max_output_tokens",
            message,
            "a tenant can only have less; raise the limit or lower this",
        );
    }
    Some(tokens)
}

fn allowed_lanes(section: &mut Section<'_, '_>, lanes: &[Lane]) -> Vec<LaneId> {
    const KEY: &str = "allowed_lanes";
    let names: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
    let mut allowed = Vec::new();
    for text in section.texts(KEY) {
        match names.iter().position(|&name| name == text) {
            Some(row) if !allowed.contains(&id_of(row)) => allowed.push(id_of(row)),
            Some(_) => {}
            None => {
                let message = format!("{} is no lane of this file", shown(&text));
                section.error(ErrorKind::UnknownName, KEY, message, &hint_for(&text, &names));
            }
        }
    }
    if allowed.is_empty() { (0..lanes.len()).map(id_of).collect() } else { allowed }
}
