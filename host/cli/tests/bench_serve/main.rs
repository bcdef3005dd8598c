//! `millrace bench serve` against a server that answers well and badly: what is counted, measured, printed and refused.

mod server;

use std::collections::BTreeSet;
use std::process::{Command, Output};

use serde_json::Value;
use server::{FIRST_TEXT_AFTER, Reply, Server};

const KEY: &str = "mr_0123456789abcdef";

fn bench(server: &Server, args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(["bench", "serve", "--url", &server.url, "--model", "org/m", "--prompt-tokens", "50", "--max-tokens", "6"]);
    command.args(args.split_whitespace()).env("MILLRACE_API_KEY", KEY).output().expect("the binary runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(output)))
}

fn count(kinds: &Value, kind: &str) -> u64 {
    let kinds = kinds["kinds"].as_array().expect("kinds").iter();
    kinds.filter(|entry| entry["kind"] == kind).filter_map(|entry| entry["count"].as_u64()).sum()
}

#[test]
fn good_answers_are_measured_over_connections_that_are_kept() {
    let server = Server::start(&[Reply::Stream]);
    let output = bench(&server, "--concurrency 1,3 --requests 9 --repeats 2 --ttft-ms 60000 --itl-ms 60000 --json");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let value = json(&output);
    assert_eq!((&value["calibrated"], &value["prompt_words"], &value["repeats"]), (&true.into(), &20.into(), &2.into()));
    let results = value["results"].as_array().expect("results");
    assert_eq!(results.iter().map(|level| level["concurrency"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(3)]);
    for level in results {
        assert_eq!((&level["requests"], &level["failures"]["total"]), (&18.into(), &0.into()));
        assert_eq!((&level["output_tokens"], &level["output_tokens_from"]), (&(18 * 6).into(), &"usage".into()));
        assert_eq!((&level["prompt_tokens"], &level["cached_tokens"]), (&50.0.into(), &18.into()));
        let number = |path: &str| level.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {level}"));
        // The role came at once; text could not be there before it was sent.
        assert!(number("/ttft_ms/p50/min") >= FIRST_TEXT_AFTER.as_secs_f64() * 1e3, "{level}");
        assert!(number("/e2e_ms/p50/median") >= number("/ttft_ms/p50/median"));
        assert!(number("/output_tokens_per_second/median") > number("/requests_per_second/median"));
        assert!(number("/client_cpu_seconds/median") > 0.0 && number("/client_cpu_seconds/max") < number("/wall_seconds/max"));
        assert_eq!(number("/goodput/share/median"), 1.0);
        for name in ["itl_ms", "tpot_ms"] {
            assert!(number(&format!("/{name}/p99/max")) >= number(&format!("/{name}/p50/min")));
        }
    }
    assert_eq!(server.connections(), 1 + 1 + 3, "one for the probes, then one for each client");
}

#[test]
fn connections_are_fresh_where_that_is_asked_for() {
    let server = Server::start(&[Reply::Stream]);
    let output = bench(&server, "--concurrency 2 --requests 6 --repeats 1 --warm-up 0 --fresh-connections --json");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(json(&output)["results"][0]["failures"]["total"], 0);
    assert_eq!(server.connections(), server.seen().len(), "one for each request, probes included");
}

#[test]
fn every_request_is_another_prompt_with_all_that_is_promised() {
    let server = Server::start(&[Reply::StreamAndClose]);
    let output = bench(&server, "--concurrency 2 --requests 8 --repeats 1 --seed 3 --json");
    assert_eq!(output.status.code(), Some(0), "a connection that the server closes is replaced: {}", text(&output));
    let seen = server.seen();
    let mut first_words = BTreeSet::new();
    for (body, key) in &seen {
        let content = body["messages"][0]["content"].as_str().expect("text");
        first_words.insert(content.split(' ').next().map(str::to_owned));
        assert_eq!((&body["model"], &body["stream"], &body["ignore_eos"]), (&"org/m".into(), &true.into(), &true.into()));
        assert_eq!((&body["temperature"], &body["stream_options"]["include_usage"]), (&0.into(), &true.into()));
        assert_eq!(key.as_deref(), Some(format!("Bearer {KEY}").as_str()));
    }
    assert_eq!(first_words.len(), seen.len());
    let asked: Vec<u64> = seen.iter().filter_map(|(body, _)| body["max_tokens"].as_u64()).collect();
    assert_eq!(asked.iter().filter(|&&tokens| tokens == 6).count(), 2 + 8, "a warm-up of as many as clients, then the repeat");
}

/// Each with the kind that it counts as.
const BAD: [(Reply, &str); 14] = [
    (Reply::Busy, "status_429"),
    (Reply::Echo, "status_403"),
    (Reply::CutWithin, "cut"),
    (Reply::CutBefore, "cut"),
    (Reply::NoHttp, "http"),
    (Reply::BadFraming, "http"),
    (Reply::BadEvent, "malformed"),
    (Reply::ErrorEvent, "error_event"),
    (Reply::Unfinished, "unfinished"),
    (Reply::Empty, "empty"),
    (Reply::Endless, "too_large"),
    (Reply::Flood, "too_large"),
    (Reply::LongHead, "too_large"),
    (Reply::LongError, "status_500"),
];

#[test]
fn failures_end_no_level_and_are_counted_by_kind() {
    let good = [Reply::Stream, Reply::Whole, Reply::Reasoning];
    let script: Vec<Reply> = BAD.iter().map(|(reply, _)| *reply).chain(good).collect();
    let server = Server::start(&script);
    let args = format!("--concurrency 3 --requests {} --repeats 2 --warm-up 0 --json", script.len());
    let output = bench(&server, &args);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("28 requests failed"), "{}", text(&output));
    let level = &json(&output)["results"][0];
    assert_eq!((&level["requests"], &level["failures"]["total"]), (&34.into(), &28.into()), "{level}");
    for (_, kind) in BAD {
        let expected = 2 * BAD.iter().filter(|(_, other)| *other == kind).count() as u64;
        assert_eq!(count(&level["failures"], kind), expected, "{kind} in {}", level["failures"]);
    }
    let examples = level["failures"].to_string();
    for words in ["try later", "out of pages", "nonsense", "not with Bearer (the API key)"] {
        assert!(examples.contains(words), "{words} in {examples}");
    }
    assert!(!text(&output).contains(KEY) && text(&output).len() < 10_000);
    // 6 by usage, 2 by usage, 2 by chunks; of each two.
    assert_eq!((&level["output_tokens"], &level["output_tokens_from"]), (&20.into(), &"mixed".into()));
    assert_eq!((&level["whole_answers"], &level["short_answers"]), (&2.into(), &2.into()));
}

#[test]
fn a_request_has_its_time_and_no_more() {
    let server = Server::start(&[Reply::Hang]);
    let output = bench(&server, "--concurrency 2 --requests 2 --repeats 1 --warm-up 0 --timeout-s 1 --json");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let failures = &json(&output)["results"][0]["failures"];
    assert_eq!((&failures["total"], count(failures, "timeout")), (&2.into(), 2), "{failures}");
    assert!(failures.to_string().contains("not done within 1 s"), "{failures}");
}

#[test]
fn a_level_without_a_good_answer_has_no_latencies() {
    let server = Server::start(&[Reply::Busy]);
    let output = bench(&server, "--concurrency 2 --requests 4 --repeats 1 --warm-up 3 --json");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let level = &json(&output)["results"][0];
    assert_eq!((&level["failures"]["total"], &level["warm_up_failures"]["total"]), (&4.into(), &3.into()));
    assert_eq!(level["requests_per_second"]["median"], 0.0);
    assert!(level["ttft_ms"].is_null() && level["e2e_ms"].is_null() && level["prompt_tokens"].is_null());
    let output = bench(&server, "--concurrency 2 --requests 4 --repeats 1");
    assert_eq!(output.status.code(), Some(1));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("2 clients: 1 x 4 requests, 4 failed"), "{table}");
    assert!(table.contains("failed: 4 x status_429: try later") && table.contains("failed in warm-up: 2 x"), "{table}");
}

#[test]
fn the_table_has_a_line_for_each_figure() {
    let server = Server::start(&[Reply::Stream]);
    let output = bench(&server, "--concurrency 1 --requests 2 --repeats 2 --ttft-ms 60000");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    for label in ["1 client: 2 x 2 requests, 0 failed, prompts of 50 tokens", "requests/s", "output tokens/s", "good requests/s"]
    {
        assert!(table.contains(label), "{label} in {table}");
    }
    for label in ["TTFT", "ITL", "TPOT", "end to end"] {
        let line = table.lines().find(|line| line.trim_start().starts_with(label)).expect("a line");
        assert_eq!(line.matches("..").count(), 3, "{line}");
    }
    assert!(table.contains("client CPU") && !table.contains("note:"), "{table}");
}

#[test]
fn a_server_that_is_not_there_is_told_without_results() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    let output = command.args(["bench", "serve", "--url", &format!("http://{gone}"), "--model", "m"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "{}", text(&output));
    assert!(text(&output).contains("nothing is measured: connect: "), "{}", text(&output));
}
