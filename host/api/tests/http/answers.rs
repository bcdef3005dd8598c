//! What clients get: whole and streamed answers, counts, stops, ids.

use serde_json::{Value, json};

use crate::support::{CHAT, COMPLETIONS, Rig, get, post};

fn completion(fields: Value) -> Value {
    let mut body = json!({"model": "org/tiny", "prompt": "once", "temperature": 0, "max_tokens": 12, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn text_of(events: &[Value]) -> String {
    events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_gives_what_the_whole_answer_gives() {
    let rig = Rig::start("").await;
    let whole = rig.post(COMPLETIONS, &completion(json!({}))).await;
    assert_eq!(whole.status, 200, "{whole:?}");
    let answer = whole.json();
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!("org/tiny")));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["prompt_tokens"], 4);
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    assert!(answer["system_fingerprint"].as_str().unwrap().starts_with("one/stored+kv-bf16/stored+kv-bf16/"), "{answer}");
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let streamed = rig.post(COMPLETIONS, &completion(options)).await;
    assert_eq!(streamed.headers["cache-control"], "no-cache");
    let events = streamed.events();
    assert_eq!(text_of(&events), answer["choices"][0]["text"].as_str().unwrap());
    assert_eq!(events.last().unwrap()["choices"], json!([]));
    assert_eq!(events.last().unwrap()["usage"], answer["usage"]);
    assert!(events.iter().rev().skip(1).all(|e| e["choices"].as_array().unwrap().len() == 1));
    assert!(events.iter().all(|e| e["id"] == events[0]["id"] && e["created"] == events[0]["created"]));
    rig.settles().await;
    let metrics = get(rig.public, "/metrics").await;
    assert_eq!(metrics.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert!(metrics.body.contains("vllm:generation_tokens_total{model_name=\"org/tiny\"} 24"), "{}", metrics.body);
    assert!(metrics.body.contains("vllm:request_success_total{model_name=\"org/tiny\",finished_reason=\"length\"} 2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_names_its_role_once_and_keeps_special_tokens_out() {
    let rig = Rig::start("").await;
    let body = json!({
        "messages": [{"role": "user", "content": "hi</s>"}], "temperature": 0, "max_completion_tokens": 8, "ignore_eos": true, "stream": true
    });
    let events = rig.post(CHAT, &body).await.events();
    let roles: Vec<&Value> = events.iter().filter(|e| e["choices"][0]["delta"].get("role").is_some()).collect();
    assert_eq!(roles.len(), 1);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    let prompt = |content: &str| json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0});
    let tokens = async |content: &str| rig.post(CHAT, &prompt(content)).await.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(tokens("hi</s>").await, tokens("hi").await + 4, "`</s>` in a message is four characters, not one token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_string_ends_the_answer_before_it_streamed_or_not() {
    let rig = Rig::start("").await;
    let long = json!({"max_tokens": 64});
    let whole = rig.post(COMPLETIONS, &completion(long.clone())).await.json()["choices"][0]["text"].as_str().unwrap().to_owned();
    let characters: Vec<char> = whole.chars().collect();
    let stop: String = characters[9..12].iter().collect();
    let expected = &whole[..whole.find(&stop).unwrap()];
    let fields = json!({"max_tokens": 64, "stop": ["\u{1}never", &stop]});
    let answer = rig.post(COMPLETIONS, &completion(fields.clone())).await.json();
    assert_eq!(answer["choices"][0]["text"], expected);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["stop_reason"], stop.as_str(), "the one that matched, of two");
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() < 64);
    let mut streaming = completion(fields);
    streaming["stream"] = json!(true);
    assert_eq!(text_of(&rig.post(COMPLETIONS, &streaming).await.events()), expected);
    rig.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_token_counts_and_is_not_shown() {
    let rig = Rig::start("").await;
    let ids = json!({"prompt": [5, 6, 7], "max_tokens": 6});
    let first = rig.post(COMPLETIONS, &completion(ids)).await.json();
    let text = first["choices"][0]["text"].as_str().unwrap();
    // Every token is a byte, and plain ones can be named by their number.
    let Some(byte) = text.bytes().find(u8::is_ascii) else { return };
    let at = text.bytes().position(|b| b == byte).unwrap();
    let stopped = json!({"prompt": [5, 6, 7], "max_tokens": 6, "stop_token_ids": [u32::from(byte) + 3]});
    let answer = rig.post(COMPLETIONS, &completion(stopped)).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["text"], text[..at]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_repeats_whoever_shares_the_batch() {
    let rig = Rig::start("").await;
    let draw = async |seed: i64| {
        let body = completion(json!({"temperature": 1.0, "seed": seed, "max_tokens": 24}));
        rig.post(COMPLETIONS, &body).await.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let alone = [draw(1).await, draw(2).await, draw(-3).await];
    assert_eq!(draw(1).await, alone[0]);
    assert_ne!(alone[0], alone[1]);
    let (a, b, c) = tokio::join!(draw(1), draw(2), draw(-3));
    assert_eq!([a, b, c], alone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_versions_and_ids() {
    let rig = Rig::start("").await;
    let list = get(rig.public, "/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "org/tiny");
    assert_eq!(list["data"][0]["max_model_len"], 512);
    for path in ["/v1/models/org/tiny", "/v1/models/org%2Ftiny", "/models/org/tiny"] {
        assert_eq!(get(rig.public, path).await.json()["id"], "org/tiny", "{path}");
    }
    assert_eq!(get(rig.public, "/v1/models/").await.status, 200);
    assert_eq!(get(rig.public, "/v1/models/other").await.error("code"), "model_not_found");
    assert!(get(rig.public, "/version").await.json()["version"].is_string());
    for path in ["/live", "/ready", "/health"] {
        assert_eq!(get(rig.public, path).await.status, 200, "{path}");
    }
    let body = completion(json!({"max_tokens": 1})).to_string();
    let echoed = post(rig.public, COMPLETIONS, &[("x-request-id", "abc-1")], body.as_bytes()).await;
    assert_eq!(echoed.headers["x-request-id"], "abc-1");
    let fresh = post(rig.public, COMPLETIONS, &[("x-request-id", "not usable")], body.as_bytes()).await;
    assert!(fresh.headers["x-request-id"].starts_with("req-"));
    let without_v1 = post(rig.public, "/completions/", &[], body.as_bytes()).await;
    assert_eq!(without_v1.status, 200, "{without_v1:?}");
}
