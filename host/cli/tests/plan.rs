//! `millrace plan` as an operator meets it: the production case in both outputs, exit codes, messages.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/configs").join(name)
}

/// Eight H200s.
fn plan(config: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.arg("plan").arg("--config").arg(config).args(["--gpus", "8", "--gpu-memory", "140.4"]).args(more);
    command.output().expect("the binary runs")
}

fn report(name: &str, more: &[&str]) -> String {
    let output = plan(&example(name), more);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn json(name: &str, more: &[&str]) -> Value {
    serde_json::from_str(&report(name, &[more, &["--json"]].concat())).expect("one JSON object")
}

/// The words of the first line that starts with these.
fn line<'a>(report: &'a str, start: &[&str]) -> Vec<&'a str> {
    let mut lines = report.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.find(|words| words.starts_with(start)).unwrap_or_else(|| panic!("no line {start:?} in\n{report}"))
}

#[test]
fn kimis_pool_holds_twice_the_tokens_in_fp8() {
    let report = report("kimi-k2.6.json", &["--kv-pool", "44.9", "--prefill", "int4-g32:kimi"]);
    let row = line(&report, &["int4-g32:kimi", "44.90"]);
    assert_eq!(row[2..8], ["10,719", "686,016", "21,439", "1,372,096", "18,824", "1,204,736"], "{report}");
    assert_eq!(line(&report, &["int4-g32:kimi"])[1..3], ["553.40", "69.17"], "{report}");
    assert!(report.contains("1026.4 billion") && report.contains("61 layers x 576 x 1 B"), "{report}");
}

#[test]
fn glm_in_both_precisions_does_not_fit() {
    let report = report("glm-5.2.json", &[]);
    // Without MTP, MTP, with MTP, per GPU.
    assert_eq!(line(&report, &["fp8:glm"])[1..5], ["694.38", "9.34", "703.72", "87.97"], "{report}");
    assert_eq!(line(&report, &["int4-g32:kimi"])[1..5], ["414.34", "5.60", "419.94", "52.49"], "{report}");
    assert_eq!(line(&report, &["usable"])[1], "1,123.20", "{report}");
    assert_eq!(line(&report, &["both", "stages"])[2..5], ["do", "not", "fit:"], "{report}");
    assert!(report.contains("743.4 billion without MTP") && report.contains("753.3 billion with MTP"), "{report}");
    let object = json("glm-5.2.json", &[]);
    assert_eq!(object["together"]["fits"], false);
    assert_eq!(object["together"]["weights_bytes_two_processes"], 755_617_140_416u64 + 450_903_271_424);
    assert_eq!((&object["model"]["parameters"], &object["model"]["mtp_layers"]), (&743_377_019_904u64.into(), &1.into()));
}

#[test]
fn json_holds_what_the_report_says() {
    let object = json("kimi-k2.6.json", &["--kv-pool", "44.9", "--decode-kv", "fp8-656", "--no-mtp"]);
    assert_eq!(object["decode"]["capacity"]["tokens"], 18_824 * 64);
    assert_eq!(object["prefill"]["recipe"], "fp8:glm");
    assert_eq!(
        (&object["host"]["mtp_counted"], &object["host"]["pool_bytes_per_gpu"]),
        (&false.into(), &48_211_007_897u64.into())
    );
    let recipes = object["recipes"].as_array().expect("recipes");
    let stored = recipes.iter().find(|row| row["recipe"] == "int4-g32:kimi").expect("the stored recipe");
    assert_eq!(stored["weights"]["bytes"], 594_205_351_936u64);
    assert!(stored["weights"]["formula"].as_str().is_some_and(|formula| formula.contains("x 0.5 B")), "{stored}");
    let tokens: Vec<&Value> = stored["capacities"].as_array().expect("capacities").iter().map(|row| &row["tokens"]).collect();
    assert_eq!(tokens, [686_016, 1_372_096, 1_204_736]);
    assert!(!object["unknowns"].as_array().expect("unknowns").is_empty());
}

#[test]
fn what_cannot_be_planned_exits_with_2_and_says_why() {
    let glm = example("glm-5.2.json");
    let unknown = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(unknown.path(), r#"{"architectures": ["MambaForCausalLM"]}"#).expect("written");
    let cases: [(&Path, &[&str], &str); 8] = [
        (Path::new("/nowhere/config.json"), &[], "/nowhere/config.json: cannot be read"),
        (unknown.path(), &[], "use a checkpoint of one of: LlamaForCausalLM"),
        (&example("README.md"), &[], "JSON object"),
        (&glm, &["--page-tokens", "65"], "65 tokens is no multiple of 16"),
        (&glm, &["--kv-pool", "0"], "write 140.4"),
        (&glm, &["--prefill", "int4"], "use int4-g32"),
        (&glm, &["--decode", "fp8:all"], "kimi (routed experts alone)"),
        (&glm, &["--decode-kv", "int4"], "use bf16, fp8 or fp8-656"),
    ];
    for (config, more, named) in cases {
        let output = plan(config, more);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {message}");
        assert!(message.contains(named), "{named} in {message}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_directory_stands_for_the_config_in_it() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/qwen3_moe-int4");
    let output = plan(&model, &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("2 KV heads") && text.contains("quantization_config (compressed-tensors) is not read"), "{text}");
}
