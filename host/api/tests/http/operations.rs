//! Clients that leave, queues that fill, policies that change, servers that end.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use millrace_engine::Hold;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{COMPLETIONS, PATIENCE, Rig, eventually, get, post, post_bytes};

/// A long answer that streams.
fn long(fields: Value) -> Value {
    let mut body = json!({"prompt": "once", "temperature": 0, "max_tokens": 480, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// Sends a request and reads what comes first.
async fn open(rig: &Rig, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(rig.public).await.unwrap();
    stream.write_all(&post_bytes(COMPLETIONS, &[], body.to_string().as_bytes())).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_takes_its_sequence_along() {
    let rig = Rig::start("").await;
    // None of them can end by itself.
    rig.decode(Hold::Held);
    for streaming in [true, false] {
        let mut stream = open(&rig, &long(json!({"stream": streaming}))).await;
        if streaming {
            let mut first = [0; 16];
            stream.read_exact(&mut first).await.unwrap();
        } else {
            rig.runs().await;
        }
        drop(stream);
        rig.settles().await;
    }
    rig.counts("finished_reason=\"abort\"} 2").await;
    rig.decode(Hold::Free);
    assert_eq!(rig.post(COMPLETIONS, &long(json!({"max_tokens": 2}))).await.status, 200);
}

/// One that leaves before an engine has its request: it is counted all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_while_it_waits_leaves_nothing() {
    let rig = Rig::start("").await;
    rig.prefill(Hold::Held);
    for streaming in [true, false] {
        let stream = open(&rig, &long(json!({"stream": streaming}))).await;
        eventually("the request is in", || rig.node.in_flight() == 1).await;
        drop(stream);
        rig.settles().await;
    }
    rig.counts("finished_reason=\"abort\"} 2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_refuses_with_a_time() {
    let rig = Rig::start("[limits]\nmax_waiting = 2\n").await;
    let bodies: Vec<Value> =
        (0..24).map(|i| long(json!({"prompt": format!("{i:03} {}", "x".repeat(300)), "max_tokens": 4}))).collect();
    // The first to be answered are refused: nobody else can be.
    rig.prefill(Hold::Held);
    let mut asking: FuturesUnordered<_> = bodies.iter().map(|body| rig.post(COMPLETIONS, body)).collect();
    let mut answers = vec![asking.next().await.unwrap()];
    assert_eq!(answers[0].status, 429, "{answers:?}");
    rig.prefill(Hold::Free);
    answers.extend(asking.collect::<Vec<_>>().await);
    let refused: Vec<_> = answers.iter().filter(|a| a.status == 429).collect();
    assert!(answers.iter().all(|a| matches!(a.status, 200 | 429)), "{answers:?}");
    assert!(!refused.is_empty() && refused.len() < answers.len());
    for answer in refused {
        assert!(answer.headers["retry-after"].parse::<u64>().unwrap() >= 1);
        assert_eq!(answer.error("type"), "rate_limit_error");
    }
    rig.settles().await;
    assert_eq!(rig.post(COMPLETIONS, &long(json!({"max_tokens": 1}))).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_over_its_time_is_ended() {
    // The client's own time, and the server's where that is shorter.
    for (server_ms, fields) in [
        (100, json!({"stream": true})),
        (600_000, json!({"stream": true, "deadline_ms": 100})),
        (100, json!({"stream": true, "deadline_ms": 80_000_000})),
    ] {
        let rig = Rig::start(&format!("[server]\nrequest_timeout_ms = {server_ms}\n")).await;
        rig.decode(Hold::Held);
        let late = rig.post(COMPLETIONS, &long(fields)).await;
        // A machine that has the first token in time begins to stream.
        if late.status == 200 {
            let events = late.events();
            assert_eq!(events.last().unwrap()["error"]["code"], "deadline_exceeded", "{events:?}");
        } else {
            assert!(matches!(late.status, 503 | 504), "{late:?}");
        }
        rig.settles().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_lets_requests_end_and_takes_no_new_ones() {
    let rig = Rig::start("").await;
    rig.decode(Hold::Held);
    let mut stream = open(&rig, &long(json!({"stream": true}))).await;
    let mut start = vec![0; 16];
    stream.read_exact(&mut start).await.unwrap();
    let (public, api, engine) = (rig.public, rig.api.clone(), rig.node.engine().clone());
    let draining = tokio::spawn(rig.running.drain(PATIENCE));
    eventually("the drain has begun", || api.is_draining()).await;
    let refused = post(public, COMPLETIONS, &[], long(json!({})).to_string().as_bytes()).await;
    assert_eq!((refused.status, refused.error("code").as_str()), (503, "server_draining"));
    assert_eq!(refused.headers["retry-after"], "5");
    assert_eq!(get(public, "/ready").await.status, 503);
    assert_eq!(get(public, "/live").await.status, 200);
    engine.hold(millrace_core::PoolId(1), Hold::Free);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    let text = String::from_utf8_lossy(&rest);
    assert!(text.contains("\"finish_reason\":\"length\"") && text.contains("data: [DONE]"), "{text}");
    draining.await.unwrap();
    assert!(TcpStream::connect(public).await.is_err(), "the port is free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_without_time_ends_what_runs() {
    let rig = Rig::start("").await;
    rig.decode(Hold::Held);
    let body = long(json!({"stream": true}));
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(open(&rig, &body).await);
    }
    eventually("the requests are in", || rig.node.in_flight() == 4).await;
    rig.running.drain(Duration::ZERO).await;
    for mut stream in streams {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        let text = String::from_utf8_lossy(&rest);
        // Before the first byte as a status, after it as an event.
        assert!(text.contains("server_draining"), "{text}");
    }
    assert_eq!(rig.node.in_flight(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_component_is_refused_and_changes_nothing() {
    let rig = Rig::start("").await;
    let before = get(rig.admin, "/admin/policies").await.json();
    assert_eq!(before["policies"].as_array().unwrap().len(), 3);
    for (body, headers) in [
        (&b""[..], &[][..]),
        (b"not wasm", &[]),
        (b"\0asm\x01\0\0\0", &[]),
        (b"\0asm\x01\0\0\0", &[("x-sha256", "00")]),
        (b"\0asm\x01\0\0\0", &[("x-sha256", "0000000000000000000000000000000000000000000000000000000000000000")]),
    ] {
        let answer = post(rig.admin, "/admin/policies/route", headers, body).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(!answer.error("message").is_empty());
    }
    assert_eq!(post(rig.admin, "/admin/policies/route", &[], &vec![0; 2 << 20]).await.status, 413);
    assert_eq!(post(rig.admin, "/admin/policies/other", &[], b"x").await.status, 404);
    assert_eq!(post(rig.admin, "/admin/policies/route/rollback", &[], b"").await.status, 409);
    assert_eq!(get(rig.admin, "/admin/policies").await.json(), before);
    let status = get(rig.admin, "/admin/status").await.json();
    assert_eq!((&status["ready"], &status["lanes"][0]["name"]), (&json!(true), &json!("one")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_built_in_component_replaces_the_native_policy_and_goes_again() {
    let rig = Rig::start("").await;
    let component = millrace_node::builtin_component(millrace_node::PolicyKind::Schedule);
    let answer = post(rig.admin, "/admin/policies/schedule", &[("content-type", "application/wasm")], component).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let changed = answer.json();
    assert_eq!((&changed["was"]["origin"], &changed["now"]["origin"]), (&json!("native"), &json!("uploaded")));
    assert_eq!(changed["generation"], 2);
    assert_eq!(rig.post(COMPLETIONS, &long(json!({"max_tokens": 8}))).await.status, 200);
    let calls =
        |slots: &Value| slots["policies"].as_array().unwrap().iter().find(|p| p["kind"] == "schedule").unwrap()["calls"].clone();
    assert!(calls(&get(rig.admin, "/admin/policies").await.json()).as_u64().unwrap() > 0);
    let back = post(rig.admin, "/admin/policies/schedule/rollback", &[], b"").await.json();
    assert_eq!(back["now"]["origin"], "native");
}

/// Each roll back goes one further back, past what never served; `builtin` goes all the way at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_way_back_ends_at_the_built_in() {
    let rig = Rig::start("").await;
    let component = millrace_node::builtin_component(millrace_node::PolicyKind::Schedule);
    let upload = async || post(rig.admin, "/admin/policies/schedule", &[], component).await;
    let press = async |what: &str| post(rig.admin, &format!("/admin/policies/schedule/{what}"), &[], b"").await;
    let slot = async || {
        let slots = get(rig.admin, "/admin/policies").await.json();
        slots["policies"].as_array().unwrap().iter().find(|p| p["kind"] == "schedule").unwrap().clone()
    };
    let origins = |slot: &Value| -> Vec<String> {
        slot["way_back"].as_array().unwrap().iter().map(|p| p["origin"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(upload().await.status, 200);
    assert_eq!(slot().await["proven"], false);
    // More steps than a policy needs to prove itself.
    assert_eq!(rig.post(COMPLETIONS, &long(json!({"max_tokens": 64}))).await.status, 200);
    assert_eq!(slot().await["proven"], true);
    for _ in 0..2 {
        assert_eq!(upload().await.status, 200);
    }
    let third = slot().await;
    assert_eq!((&third["generation"], origins(&third)), (&json!(4), vec!["uploaded".to_owned(), "native".to_owned()]));
    let back = press("rollback").await.json();
    assert_eq!((&back["now"]["origin"], &back["generation"]), (&json!("uploaded"), &json!(5)));
    assert_eq!(slot().await["proven"], true, "the first of the three, not the second, which was never called");
    assert_eq!(press("rollback").await.json()["now"]["origin"], "native");
    assert_eq!(press("rollback").await.status, 409);
    assert_eq!(upload().await.status, 200);
    for _ in 0..2 {
        let returned = press("builtin").await;
        assert_eq!((returned.status, &returned.json()["now"]["origin"]), (200, &json!("native")));
        assert_eq!(slot().await["generation"], 8);
    }
    assert_eq!(post(rig.admin, "/admin/policies/other/builtin", &[], b"").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_configured_component_is_the_built_in_one() {
    let guest = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/dist/reverse-schedule.wasm");
    let rig = Rig::scheduled_by(&guest).await;
    let slots = get(rig.admin, "/admin/policies").await.json();
    let slot = slots["policies"].as_array().unwrap().iter().find(|p| p["kind"] == "schedule").unwrap();
    assert_eq!((&slot["name"], &slot["way_back"][0]["origin"]), (&json!("test-guest"), &json!("built-in")));
    let back = post(rig.admin, "/admin/policies/schedule/rollback", &[], b"").await.json();
    assert_eq!((&back["was"]["name"], &back["now"]["origin"]), (&json!("test-guest"), &json!("built-in")));
    assert_eq!(rig.post(COMPLETIONS, &long(json!({"max_tokens": 8}))).await.status, 200);
    let slots = get(rig.admin, "/admin/policies").await.json();
    let slot = slots["policies"].as_array().unwrap().iter().find(|p| p["kind"] == "schedule").unwrap();
    assert!(slot["calls"].as_u64().unwrap() > 0 && slot["fallbacks"] == 0, "{slot}");
}

/// A page under suspicion takes a fault to make; the end-to-end tests do. Here is what an operator sees without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_tell_their_suspect_pages_and_readmit_them() {
    let rig = Rig::start("").await;
    let pools = get(rig.admin, "/admin/pools").await.json();
    let suspects: Vec<(&Value, &Value)> =
        pools["pools"].as_array().unwrap().iter().map(|pool| (&pool["name"], &pool["suspect_pages"])).collect();
    assert_eq!(suspects, [(&json!("prefill"), &json!(0)), (&json!("decode"), &json!(0))]);
    let answer = post(rig.admin, "/admin/pools/decode/readmit", &[], b"").await;
    assert_eq!((answer.status, answer.json()), (200, json!({"pool": "decode", "readmitted": 0})));
    assert_eq!(post(rig.admin, "/admin/pools/other/readmit", &[], b"").await.status, 404);
    assert_eq!(get(rig.public, "/admin/pools").await.status, 404, "not for clients");
}
