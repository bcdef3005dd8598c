//! `bench tags` and `bench prefix` on a tiny model: the shape of what they print and every count, no time.
#![cfg(feature = "tags")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

/// 512 tokens of context.
fn model() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/llama-tied-bf16");
    path.to_str().expect("UTF-8").to_owned()
}

fn bench(kind: &str, args: &[&str]) -> Output {
    let stages = ["-t", "2", "--prefill-weights", "bf16", "--decode-weights", "bf16", "--kv", "bf16"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(["bench", kind, "-m", &model()]).args(stages).args(args).output().expect("the binary runs")
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn object(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", message(output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// A program that stands for a build without tags.
fn baseline(directory: &Path, name: &str, script: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a program");
    path
}

const SMALL: [&str; 8] = ["-b", "1,3", "-d", "8,70", "-n", "5", "-r", "2"];

fn is_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

fn is_interval(value: &Value) -> bool {
    let number = |name: &str| value[name].as_f64();
    let Some(((low, median), high)) = number("low").zip(number("median")).zip(number("high")) else { return false };
    low <= median && median <= high
}

/// Fields and counts of a row; `out`: whether tags compiled out were measured too.
fn expect_row(row: &Value, (batch, context, pages): (u64, u64, u64), out: bool) {
    assert_eq!((&row["batch"], &row["context"], &row["pages"]), (&json!(batch), &json!(context), &json!(pages)), "{row}");
    assert_eq!((&row["output"], &row["rounds"]), (&json!(5), &json!(2)), "{row}");
    let ways = if out { &["on", "off", "out"][..] } else { &["on", "off"] };
    for way in ways {
        assert!(is_positive(&row[way]["tokens_per_second"]["median"]) && is_positive(&row[way]["itl_p95_us"]["median"]), "{row}");
    }
    for name in ["ns_per_page", "checks_share_percent"] {
        assert!(is_positive(&row[name]), "{name} of {row}");
    }
    let costs = [row, &row["on_against_out"], &row["off_against_out"]];
    for (index, cost) in costs.into_iter().enumerate() {
        let known = index == 0 || out;
        for name in ["throughput_overhead_percent", "itl_p95_overhead_percent"] {
            assert_eq!(is_interval(&cost[name]), known, "{name} of {row}");
        }
    }
}

const ROWS: [(u64, u64, u64); 4] = [(1, 8, 1), (1, 70, 3), (3, 8, 3), (3, 70, 9)];

#[test]
fn bench_tags_has_a_row_for_every_batch_and_context() {
    let value = object(&bench("tags", &[&SMALL[..], &["--json"]].concat()));
    let rows = value["results"].as_array().expect("results");
    assert_eq!(rows.len(), ROWS.len());
    rows.iter().zip(ROWS).for_each(|(row, want)| expect_row(row, want, false));
    assert!(value["method"].as_str().is_some_and(|method| method.contains("bootstrap")), "{value}");

    let output = bench("tags", &SMALL);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}", message(&output));
    assert!(text.contains("without --baseline nothing is known of tags compiled out"), "{text}");
    for (batch, context, _) in ROWS {
        assert_eq!(text.matches(&format!("\n| {batch} | {context} | ")).count(), 1, "{text}");
    }
}

/// The binary itself, taken for one without tags: what is said between the two is under test, not what it costs.
#[test]
fn bench_tags_runs_a_second_binary_by_turns() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = format!("'{}' \"$@\" | sed -u 's/\"page_tags\":true/\"page_tags\":false/'", env!("CARGO_BIN_EXE_millrace"));
    let path = baseline(directory.path(), "without-tags", &script);
    let value = object(&bench("tags", &[&SMALL[..], &["--json", "--baseline", path.to_str().expect("UTF-8")]].concat()));
    let rows = value["results"].as_array().expect("results");
    assert_eq!(rows.len(), ROWS.len());
    rows.iter().zip(ROWS).for_each(|(row, want)| expect_row(row, want, true));
}

#[test]
fn a_baseline_that_ends_or_talks_nonsense_fails_the_run_and_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let hello = r#"echo '{"page_tags":false,"protocol":1}'"#;
    for (name, more, why) in [
        ("ends", "", "ended before its answer"),
        ("is-not-ready", r#"; echo '{"redy":1}'; cat"#, "was to be ready and said"),
        ("dies", r#"; echo '{"ready":"x"}'; read line; exit 3"#, "ended before its answer"),
        ("lies", r#"; echo '{"ready":"x"}'; read line; echo '{"tokens_per_second":"many"}'; cat"#, "gave no figures but"),
        ("is-long", r#"; head -c 10000 /dev/zero | tr '\0' x; cat"#, "said `xxxx"),
    ] {
        let path = baseline(directory.path(), name, &format!("{hello}{more}"));
        let output = bench("tags", &[&SMALL[..], &["--baseline", path.to_str().expect("UTF-8")]].concat());
        assert_eq!(output.status.code(), Some(1), "{name}: {}", message(&output));
        assert!(message(&output).contains(why), "{name}: {}", message(&output));
    }
}

#[test]
fn a_worker_runs_only_what_it_has_room_for() {
    for (asked, why) in [("3 8 5", ""), ("4 8 5", "no room"), ("1 71 5", "no room"), ("1 8 3", "no room"), ("1 8", "is no test")]
    {
        let script = format!(
            "echo '{asked}' | '{}' bench tags --worker -m '{}' -t 1 -b 1,3 -d 8,70 -n 5 --decode-weights bf16 --prefill-weights bf16 --kv bf16",
            env!("CARGO_BIN_EXE_millrace"),
            model()
        );
        let output = Command::new("/bin/sh").args(["-c", &script]).output().expect("a shell");
        let lines: Vec<Value> =
            String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines[0], json!({"page_tags": true, "protocol": 1}));
        assert!(lines[1]["ready"].is_string(), "{lines:?}");
        assert_eq!(output.status.code(), Some(i32::from(!why.is_empty())), "{asked}: {}", message(&output));
        assert!(message(&output).contains(why), "{asked}: {}", message(&output));
        assert_eq!(lines.len(), if why.is_empty() { 3 } else { 2 }, "{lines:?}");
    }
}

#[test]
fn bench_prefix_computes_as_much_beside_another_tenants_prompt() {
    // A prefix of whole pages, and one of two pages and six tokens.
    for (prefix, shared) in [("64", 64), ("70", 64)] {
        let value = object(&bench("prefix", &["-p", prefix, "-e", "8", "-r", "2", "--chunk", "16", "--json"]));
        let whole = prefix.parse::<u64>().expect("a number") + 8;
        let cases = value["results"].as_array().expect("results");
        let names: Vec<&str> = cases.iter().filter_map(|case| case["case"].as_str()).collect();
        assert_eq!(names, ["first", "owner", "other", "again"]);
        for (case, (computed, cached)) in cases.iter().zip([(whole, 0), (whole, 0), (whole, 0), (whole - shared, shared)]) {
            assert_eq!(case["counts"], json!([{"computed_tokens": computed, "cached_tokens": cached, "times": 3}]), "{value}");
            assert!(is_positive(&case["ttft_ms"]["median"]), "{case}");
        }
        assert_eq!(value["isolated"], json!(true));
        assert!(is_positive(&value["ttft_ms"]["with_hit"]["median"]) && is_positive(&value["ttft_ms"]["without_hit"]["median"]));
    }
    let output = bench("prefix", &["-p", "64", "-e", "8", "-r", "1"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}", message(&output));
    assert!(text.contains("| another tenant, the owner's is in the tree | 72 / 0 |"), "{text}");
    assert!(text.contains("| the owner again, another end | 8 / 64 |") && text.contains("TTFT without a hit"), "{text}");
}
