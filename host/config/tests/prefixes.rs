//! What a file says of kept prompts: which pools keep them, how many pages a tenant may have, who shares. Reads texts only.

use millrace_config::{Config, parse};

fn config(pool: &str, tenants: &str) -> Config {
    let text = format!(
        "[model.m]\npath = \"m.gguf\"\n[pool.p]\nstage = \"prefill\"\n{pool}\n[pool.d]\nstage = \"decode\"\n[lane.l]\nprefill = \
         \"p\"\ndecode = \"d\"\n{tenants}"
    );
    parse(&text, "x.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

fn pages(pool: &str, tenants: &str) -> Option<u32> {
    let config = config(pool, tenants);
    assert_eq!(config.prefix_pages(&config.pools[1], 100), None, "a decode pool keeps none");
    config.prefix_pages(&config.pools[0], 100)
}

#[test]
fn each_tenant_has_an_equal_share_unless_the_file_says_otherwise() {
    let tenants: String = (1..=3).map(|n| format!("[tenant.t{n}]\nkey_sha256 = \"{}\"\n", n.to_string().repeat(64))).collect();
    assert_eq!(pages("", &tenants), None, "off by default");
    assert_eq!(pages("prefix_cache = false", &tenants), None);
    assert_eq!(pages("prefix_cache = true", ""), Some(100));
    assert_eq!(pages("prefix_cache = true", &tenants), Some(33));
    assert_eq!(pages("prefix_cache = true\nprefix_tenant_percent = 70", &tenants), Some(70));
    let all = config("prefix_cache = true\nprefix_tenant_percent = 100", &tenants);
    assert_eq!(all.prefix_pages(&all.pools[0], u32::MAX), Some(u32::MAX));
}

#[test]
fn groups_are_named_by_their_members() {
    let tenant = |n: u32, group: &str| format!("[tenant.t{n}]\nkey_sha256 = \"{}\"\n{group}\n", n.to_string().repeat(64));
    let config = config("prefix_cache = true", &[tenant(1, "trust_group = \"a\""), tenant(2, "")].concat());
    let groups: Vec<Option<&str>> = config.tenants.iter().map(|tenant| tenant.trust_group.as_deref()).collect();
    assert_eq!(groups, [Some("a"), None]);
    let summary = config.summary();
    assert!(summary.contains("keeps prompts, an equal share for each tenant"), "{summary}");
    assert!(summary.contains("tenant t1 | 1 key(s) | weight 1 | tier standard | shares kept prompts with group a"), "{summary}");
}
