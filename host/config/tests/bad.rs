//! What is wrong with a file is said all at once, with path, line and a hint. Texts in, errors out.

use millrace_config::{ErrorKind, MAX_FILE_BYTES, TenantAccess, load, parse};

/// A file that is right; each case below changes one thing of it.
const GOOD: &str = r#"
[server]
listen = "127.0.0.1:8080"
[model.m]
path = "m.gguf"
[pool.p]
stage = "prefill"
[pool.d]
stage = "decode"
[lane.l]
prefill = "p"
decode = "d"
"#;
const KEY_A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const KEY_OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// `path kind` of every error of a text.
fn found(text: &str) -> Vec<String> {
    match parse(text, "x.toml") {
        Ok(_) => Vec::new(),
        Err(errors) => errors.errors().iter().map(|error| format!("{} {:?}", error.path, error.kind)).collect(),
    }
}

/// `GOOD` with one text replaced, or with lines added at the end where `from` is empty.
fn changed(from: &str, to: &str) -> String {
    if from.is_empty() {
        return format!("{GOOD}{to}\n");
    }
    assert!(GOOD.contains(from), "{from}");
    GOOD.replacen(from, to, 1)
}

#[test]
fn the_good_one_is_good() {
    assert_eq!(found(GOOD), Vec::<String>::new());
    let config = parse(GOOD, "x.toml").unwrap();
    assert_eq!(config.tenants.len(), 1);
    assert_eq!(config.tenants[0].access, TenantAccess::Open);
}

/// What is replaced in `GOOD`, by what, and all errors that come of it.
const CASES: &[(&str, &str, &[&str])] = &[
    // keys and types
    ("", "[limit]\nmax_waiting = 1", &["limit UnknownKey"]),
    ("path = ", "pth = \"x\"\npath = ", &["model.m.pth UnknownKey"]),
    ("\"127.0.0.1:8080\"", "8080", &["server.listen WrongType"]),
    ("\"127.0.0.1:8080\"", "\"localhost:8080\"", &["server.listen Impossible"]),
    ("[server]", "[server]\nmax_body_bytes = 1.5", &["server.max_body_bytes WrongType"]),
    ("[server]", "[server]\nmax_body_bytes = -1", &["server.max_body_bytes Impossible"]),
    ("[server]", "[server]\nlog_level = \"loud\"", &["server.log_level Impossible"]),
    ("[server]", "[server]\nlog_level = 3", &["server.log_level WrongType"]),
    ("\"m.gguf\"", "\"\"", &["model.m.path Impossible"]),
    ("path = \"m.gguf\"", "", &["model.m.path Missing"]),
    ("[model.m]", "[model.m]\nname = \"a b\"", &["model.m.name Impossible"]),
    ("", "[device.cpu]\nkind = \"gpu\"", &["device.cpu.kind Impossible"]),
    (
        "",
        "[model.n]\npath = \"n\"\n[pool.p2]\nstage = \"prefill\"\nmodel = \"m\"",
        &["pool.p.model Missing", "pool.d.model Missing", "model.n Conflict", "pool.p2 Conflict"],
    ),
    // pools
    ("stage = \"prefill\"", "stage = \"prefil\"", &["pool.p.stage Impossible"]),
    ("stage = \"prefill\"", "", &["pool.p.stage Missing"]),
    ("stage = \"prefill\"", "stage = \"prefill\"\nrecipe = \"int5\"", &["pool.p.recipe Impossible"]),
    ("stage = \"prefill\"", "stage = \"prefill\"\npage_tokens = 40", &["pool.p.page_tokens Impossible"]),
    ("stage = \"prefill\"", "stage = \"prefill\"\npage_tokens = 64", &["lane.l Conflict"]),
    ("stage = \"decode\"", "stage = \"decode\"\nprocess = true", &["lane.l Conflict"]),
    (
        "[pool.p]\nstage = \"prefill\"\n[pool.d]\n",
        "[device.x]\n[device.y]\n[pool.p]\nstage = \"prefill\"\ndevice = \"x\"\n[pool.d]\ndevice = \"y\"\n",
        &["lane.l Conflict"],
    ),
    ("stage = \"prefill\"", "stage = \"prefill\"\npages = 9\nmemory_mib = 9", &["pool.p.pages Conflict"]),
    ("stage = \"prefill\"", "stage = \"prefill\"\ntags = \"yes\"", &["pool.p.tags WrongType"]),
    ("stage = \"prefill\"", "stage = \"prefill\"\ndevice = \"gpu\"", &["pool.p.device UnknownName"]),
    ("stage = \"decode\"", "stage = \"decode\"\nmax_step_us = 5000", &["pool.d.max_step_us Conflict"]),
    ("stage = \"prefill\"", "stage = \"prefill\"\nmax_step_us = 60000001", &["pool.p.max_step_us Impossible"]),
    ("stage = \"decode\"", "stage = \"decode\"\nprefix_cache = true", &["pool.d.prefix_cache Conflict"]),
    (
        "stage = \"prefill\"",
        "stage = \"prefill\"\nprefix_cache = true\nprefix_tenant_percent = 101",
        &["pool.p.prefix_tenant_percent Impossible"],
    ),
    (
        "stage = \"prefill\"",
        "stage = \"prefill\"\npages = 24\nprefix_cache = true\nprefix_tenant_percent = 4",
        &["pool.p.prefix_cache Conflict"],
    ),
    ("stage = \"prefill\"", "stage = \"prefill\"\nprefix_tenant_percent = 20", &["pool.p.prefix_tenant_percent Conflict"]),
    ("stage = \"decode\"", "stage = \"decode\"\nmax_step_tokens = 8", &["pool.d.max_sequences Conflict"]),
    (
        "path = \"m.gguf\"",
        "path = \"m\"\nmax_model_tokens = 100\n[pool.x]\nstage = \"prefill\"\npages = 2\n[lane.x]\nprefill = \"x\"\ndecode = \"d\"",
        &["pool.x.pages Conflict"],
    ),
    ("", "[pool.spare]\nstage = \"decode\"", &["pool.spare Conflict"]),
    // lanes
    ("prefill = \"p\"", "prefill = \"q\"", &["lane.l.prefill UnknownName"]),
    ("prefill = \"p\"", "prefill = \"d\"", &["lane.l.prefill Conflict"]),
    ("decode = \"d\"", "", &["lane.l.decode Missing"]),
    ("", "[lane.l2]\nprefill = \"p\"\ndecode = \"d\"", &["lane.l2 Conflict"]),
    (
        "",
        "[lane.\"l 2\"]\nprefill = \"p\"\ndecode = \"d\"\nmax_waiting = 0",
        &["lane.\"l 2\" Impossible", "lane.\"l 2\" Conflict", "lane.\"l 2\".max_waiting Impossible"],
    ),
    // policies
    ("", "[policy.route]\ncomponent = \"x.so\"", &["policy.route.component Impossible"]),
    ("", "[policy.rout]\n", &["policy.rout UnknownKey"]),
    ("", "[policy.route]\ncomponent = \"x.wasm\"\nsha256 = \"12\"", &["policy.route.sha256 Impossible"]),
    ("", "[policy.schedule]\nconfig = { a = [nan] }", &["policy.schedule.config Impossible"]),
    ("", "[policy.schedule]\nconfig = 3", &["policy.schedule.config WrongType"]),
    ("", "[policy.schedule]\ncomponent = \"native\"\nconfig = {}", &["policy.schedule.config Conflict"]),
    ("", "[policy.precision]\ndeadline_us = 1", &["policy.precision.deadline_us Impossible"]),
    ("", "[policy.record]\nmax_mib = 64", &["policy.record.max_mib Conflict"]),
    ("", "[policy.record]\ndirectory = \"r\"\nmax_mib = 15", &["policy.record.max_mib Impossible"]),
    ("", "[policy.record]\ndirectory = \"r\"\nmax_mib = 1048577", &["policy.record.max_mib Impossible"]),
    ("", "[policy.route]\nwatch = \"yes\"", &["policy.route.watch WrongType"]),
    // listeners
    ("127.0.0.1:8080", "0.0.0.0:8080", &["server.listen Conflict"]),
    ("127.0.0.1:8080", "127.0.0.1:8081", &["server.admin_listen Conflict"]),
    ("[server]", "[server]\nadmin_listen = \"0.0.0.0:9\"", &["server.admin_listen Conflict"]),
    ("[server]", "[server]\nadmin_key_sha256 = 5", &["server.admin_key_sha256 WrongType"]),
    // limits
    ("", "[limits]\nretry_after_min_ms = 9\nretry_after_max_ms = 8", &["limits.retry_after_min_ms Conflict"]),
    ("", "[limits]\nmax_waiting = 0", &["limits.max_waiting Impossible"]),
    // the same thing twice
    ("", "[lane.l]\nmax_waiting = 5", &[" Duplicate"]),
    ("stage = \"decode\"", "stage = \"decode\"\nstage = \"prefill\"", &[" Duplicate"]),
];

#[test]
fn one_mistake_is_one_error() {
    for (from, to, expected) in CASES {
        assert_eq!(found(&changed(from, to)), *expected, "{from} -> {to}");
    }
}

/// What a file may hold is said, not what one value of it would be.
#[test]
fn a_wrong_boolean_is_told_both_values() {
    let errors = parse(&changed("", "[policy.route]\nwatch = \"yes\""), "x.toml").unwrap_err();
    assert_eq!(errors.errors()[0].hint, "write `watch = true` or `false`");
}

/// The server looks at the file and tells whatever engine asks, in this process or another.
#[test]
fn a_policy_is_watched_wherever_it_is_asked() {
    let both = GOOD.replace("stage = \"prefill\"", "stage = \"prefill\"\nprocess = true");
    let both = both.replace("stage = \"decode\"", "stage = \"decode\"\nprocess = true");
    for kind in ["schedule", "route"] {
        let watched = format!("[policy.{kind}]\ncomponent = \"x.wasm\"\nwatch = true\n");
        assert_eq!(found(&format!("{both}{watched}")), Vec::<String>::new());
        assert_eq!(found(&format!("{GOOD}{watched}")), Vec::<String>::new());
    }
}

#[test]
fn a_recording_is_bounded() {
    for (good, max_mib) in [(true, 16), (false, 15), (true, 1 << 20), (false, (1 << 20) + 1)] {
        let text = format!("{GOOD}[policy.record]\ndirectory = \"r\"\nmax_mib = {max_mib}\n");
        assert_eq!(found(&text).is_empty(), good, "{max_mib}");
    }
}

#[test]
fn tenants_are_checked_against_each_other() {
    let tenant = |rest: &str| changed("", &format!("[tenant.t]\nkey_sha256 = \"{KEY_A}\"\n{rest}"));
    let cases = [
        (tenant(""), vec![]),
        (tenant("weight = 0"), vec!["tenant.t.weight Impossible"]),
        (tenant("tier = \"silver\""), vec!["tenant.t.tier Impossible"]),
        (
            tenant("allowed_lanes = [\"l\", \"k\", 5]"),
            vec!["tenant.t.allowed_lanes[2] WrongType", "tenant.t.allowed_lanes UnknownName"],
        ),
        (tenant("max_output_tokens = 5000"), vec!["tenant.t.max_output_tokens Conflict"]),
        (tenant(&format!("[tenant.u]\nkey_sha256 = \"{KEY_A}\"")), vec!["tenant.u.key_sha256 Conflict"]),
        (tenant(&format!("keys_sha256 = [\"{KEY_A}\"]")), vec!["tenant.t.keys_sha256 Conflict"]),
        (tenant("[tenant.u]\nkeys_sha256 = []"), vec!["tenant.u.keys_sha256 Missing"]),
        (tenant("[tenant.u]"), vec!["tenant.u Missing"]),
        (tenant(&format!("[tenant.u]\nkey_sha256 = \"{KEY_OF_NOTHING}\"")), vec!["tenant.u.key_sha256 Impossible"]),
        (
            tenant("[tenant.u]\nkey_sha256 = \"b\"\n").replace("[pool.p]", "[pool.p]\nzero_freed = \"never\""),
            vec!["pool.p.zero_freed Conflict", "tenant.u.key_sha256 Impossible"],
        ),
        (
            tenant("").replace("[server]", &format!("[server]\nadmin_key_sha256 = \"{KEY_A}\"")),
            vec!["server.admin_key_sha256 Conflict"],
        ),
        (tenant("").replace("127.0.0.1:8080", "0.0.0.0:8080"), vec![]),
    ];
    for (text, expected) in cases {
        assert_eq!(found(&text), expected, "{text}");
    }
    let too_many: Vec<String> = (0..17).map(|n| format!("\"{n:064x}\"")).collect();
    let text = changed("", &format!("[tenant.t]\nkeys_sha256 = [{}]", too_many.join(",")));
    assert_eq!(found(&text), ["tenant.t.keys_sha256 Impossible"]);
}

/// A file with a mistake in every section: all are listed, in the order of the lines.
#[test]
fn all_mistakes_come_at_once() {
    let text = "\
[server]
listen = \"0.0.0.0:80\"
max_conections = 5
[model.m]
chat_template = 1
[pool.p]
stage = \"prefill\"
recepie = \"int8\"
kv = \"fp9\"
[pool.d]
stage = \"decode\"
max_sequences = 0
[lane.l]
prefill = \"pp\"
decode = \"d\"
[policy.route]
component = \"x.wasm\"
memory_mib = 100000
";
    let errors = parse(text, "deploy.toml").unwrap_err();
    let expected = "\
deploy.toml: 9 errors in the configuration
  line 2, server.listen: 0.0.0.0:80 can be reached from other machines, and without tenants everybody is served
      hint: listen on 127.0.0.1 or add a [tenant.NAME] with key_sha256
  line 3, server.max_conections: unknown key `max_conections`
      hint: did you mean `max_connections`?
  line 4, model.m.path: `path` is missing and has no default
      hint: write `path = \"model.gguf\"`
  line 5, model.m.chat_template: is an integer, not a string
      hint: write `chat_template = \"template.jinja\"`
  line 8, pool.p.recepie: unknown key `recepie`
      hint: did you mean `recipe`?
  line 9, pool.p.kv: `fp9` is not one of bf16, fp8, f32
      hint: did you mean `fp8`?
  line 12, pool.d.max_sequences: `0` is out of range
      hint: use 1 to 65536; the default is 64
  line 14, lane.l.prefill: `pp` names nothing in this file
      hint: did you mean `p`?
  line 18, policy.route.memory_mib: `100000` is out of range
      hint: use 1 to 4096; the default is 64";
    assert_eq!(errors.to_string(), expected);
}

#[test]
fn an_empty_file_says_what_it_needs() {
    assert_eq!(found(""), ["model Missing", "pool Missing", "lane Missing"]);
}

#[test]
fn every_syntax_error_is_listed() {
    let errors = parse("a = \nb = 'x\n[t\n", "x.toml").unwrap_err();
    let lines: Vec<Option<u32>> = errors.errors().iter().map(|error| error.line).collect();
    assert!(errors.errors().iter().all(|error| error.kind == ErrorKind::Syntax), "{errors}");
    assert_eq!(lines, [Some(1), Some(2), Some(3)], "{errors}");
}

#[test]
fn no_error_shows_a_key_or_a_digest() {
    let secret = "sk-abcdefghijklmnop";
    let text = changed("", &format!("[tenant.t]\nkey_sha256 = \"{secret}\"\nkey = \"{secret}\"\nkeys_sha256 = [\"{secret}\"]"));
    let errors = parse(&text, "x.toml").unwrap_err();
    assert!(errors.total() >= 3 && !errors.to_string().contains(secret), "{errors}");

    let text = changed("", &format!("[tenant.t]\nkey_sha256 = \"{KEY_A}\"\n"));
    let config = parse(&text, "x.toml").unwrap();
    for shown in [config.summary(), format!("{config:?}")] {
        assert!(!shown.to_lowercase().contains(&KEY_A[..8]), "{shown}");
        assert!(shown.contains("127.0.0.1:8080"), "{shown}");
    }
}

#[test]
fn many_errors_are_cut_and_counted() {
    let unknown: String = (0..1000).map(|n| format!("zz{n} = 1\n")).collect();
    let errors = parse(&format!("{unknown}{GOOD}"), "x.toml").unwrap_err();
    assert_eq!((errors.total(), errors.errors().len()), (1000, 200));
    assert!(errors.to_string().ends_with("and 800 more"));
}

#[test]
fn files_that_are_no_configuration_are_refused_unread() {
    let directory = std::env::temp_dir().join(format!("millrace-config-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let at_limit = format!("{GOOD}#{}", "x".repeat(MAX_FILE_BYTES as usize - GOOD.len() - 1));
    let over_limit = format!("{at_limit}x");
    for (name, bytes, wanted) in [
        ("limit.toml", at_limit.into_bytes(), None),
        ("large.toml", over_limit.into_bytes(), Some("larger than")),
        ("binary.toml", vec![b'a', 0xff], Some("not UTF-8 from byte 1")),
    ] {
        let path = directory.join(name);
        std::fs::write(&path, bytes).unwrap();
        match (load(&path), wanted) {
            (Ok(config), None) => assert_eq!(config.models[0].path, directory.join("m.gguf")),
            (Err(errors), Some(wanted)) => assert!(errors.to_string().contains(wanted), "{errors}"),
            (other, _) => panic!("{name}: {other:?}"),
        }
    }
    let errors = load(&directory.join("absent.toml")).unwrap_err();
    assert_eq!(errors.errors()[0].kind, ErrorKind::Unreadable);
    std::fs::remove_dir_all(&directory).unwrap();
}
