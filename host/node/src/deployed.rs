//! What of a configuration an engine process runs, as one digest: a process reads the deployment's file again at each start, and must
//! not run anything but what its server was started with. Comments, listeners, keys and what is of other pools do not count.

use millrace_config::Config;
use millrace_core::PoolId;
use sha2::{Digest as _, Sha256};

/// Hex digits that are kept: enough that no edit goes unnoticed by chance.
const DIGITS: usize = 32;

/// Of the pool in that row and whatever its engine is made of.
pub(crate) fn digest(config: &Config, row: usize) -> String {
    let pool = config.pools.get(row);
    let id = PoolId(u32::try_from(row).unwrap_or(u32::MAX));
    let lanes: Vec<_> = config.lanes.iter().filter(|lane| lane.prefill == id || lane.decode == id).collect();
    // The format on the wire is the decode pool's.
    let formats: Vec<_> = lanes.iter().map(|lane| config.precision(lane)).collect();
    let device = pool.and_then(|pool| config.devices.get(pool.device));
    let shares: Vec<_> = config.tenants.iter().map(|tenant| (tenant.weight, tenant.tier)).collect();
    let whole =
        format!("{pool:?} {device:?} {:?} {lanes:?} {formats:?} {shares:?} {:?}", config.models, config.policies.schedule);
    Sha256::digest(whole).iter().flat_map(|byte| [byte >> 4, byte & 15]).take(DIGITS).filter_map(hex).collect()
}

fn hex(digit: u8) -> Option<char> {
    char::from_digit(u32::from(digit), 16)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const TEXT: &str = r#"
[model.m]
name = "m"
path = "m.gguf"

[device.one]
[device.two]

[pool.p]
stage = "prefill"
process = true
device = "one"
recipe = "int8"
pages = 64

[pool.d]
stage = "decode"
process = true
device = "two"
recipe = "int4"
pages = 64

[lane.l]
prefill = "p"
decode = "d"
"#;

    fn of(text: &str) -> String {
        digest(&millrace_config::parse(text, "deploy.toml").unwrap(), 0)
    }

    #[test]
    fn it_changes_with_what_the_engine_is_made_of_and_with_nothing_else() {
        let edits = [
            ("pages = 64\n\n[pool.d]", "pages = 65\n\n[pool.d]"),
            ("[device.one]", "[device.one]\nthreads = 1"),
            ("recipe = \"int8\"", "recipe = \"bf16\""),
            ("path = \"m.gguf\"", "path = \"n.gguf\""),
            ("decode = \"d\"", "decode = \"d\"\nmax_waiting = 3"),
            ("recipe = \"int4\"", "recipe = \"int4\"\nkv = \"fp8\""),
        ];
        for (from, to) in edits {
            let edited = TEXT.replace(from, to);
            assert!(edited != TEXT && of(&edited) != of(TEXT), "{to}");
        }
        let schedule = format!("{TEXT}\n[policy.schedule]\ncomponent = \"builtin:fcfs\"\n");
        assert_ne!(of(&schedule), of(TEXT));
        let elsewhere = [
            TEXT.replace("[device.two]", "# another thread or two\n[device.two]\nthreads = 2"),
            format!("{TEXT}\n[server]\nlog_level = \"warn\"\n"),
        ];
        for text in elsewhere {
            assert_eq!(of(&text), of(TEXT), "{text}");
        }
    }
}
