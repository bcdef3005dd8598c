//! What clients may not do, and how they are told.

use std::io::ErrorKind;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{CHAT, COMPLETIONS, Rig, get, post, send};

fn hex(key: &str) -> String {
    Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statuses_and_envelopes() {
    let rig = Rig::start("[server]\nmax_body_bytes = 4096\n").await;
    let ok = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let with = async |headers: &[(&str, &str)], body: &[u8]| post(rig.public, COMPLETIONS, headers, body).await;
    assert_eq!(with(&[], ok.as_bytes()).await.status, 200);
    for kind in ["application/json; charset=utf-8", "application/json;charset=\"UTF-8\"", "application/json; version=1"] {
        assert_eq!(with(&[("content-type", kind)], ok.as_bytes()).await.status, 200, "{kind}");
    }
    assert_eq!(with(&[("content-encoding", "identity")], ok.as_bytes()).await.status, 200);
    for (headers, body, status) in [
        (&[][..], &b""[..], 400),
        (&[], b"\xff", 400),
        (&[], b"{\"model\":\"\\ud800\",\"prompt\":\"a\"}", 400),
        (&[("content-type", "text/plain")], ok.as_bytes(), 415),
        (&[("content-type", "application/json; charset=latin1")], ok.as_bytes(), 415),
        (&[("content-type", "application/json; charset=utf-8; charset=utf-16")], ok.as_bytes(), 415),
        (&[("content-encoding", "gzip")], ok.as_bytes(), 415),
        (&[], &[b' '; 5000], 413),
        (&[], b"{\"model\":\"gpt-4\",\"prompt\":\"a\"}", 404),
    ] {
        let answer = with(headers, body).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(!answer.error("message").is_empty());
        assert_eq!(answer.headers["content-type"], "application/json");
        assert!(answer.headers.contains_key("x-request-id"));
    }
    assert_eq!(get(rig.public, COMPLETIONS).await.error("code"), "method_not_allowed");
    assert_eq!(get(rig.public, "/nothing").await.error("code"), "unknown_url");
    for path in
        ["//v1/models", "/v1/../v1/models", "/V1/models", "/%76%31/models", "/v1/models;x", "/admin/policies", "/admin/status"]
    {
        assert_eq!(get(rig.public, path).await.status, 404, "{path}");
    }
    rig.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wire_tricks_are_refused_and_the_server_lives() {
    let rig = Rig::start("[server]\nmax_body_bytes = 4096\n").await;
    let chunk = "1000\r\n".to_owned() + &" ".repeat(4096) + "\r\n";
    let large = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n"
    );
    assert_eq!(send(rig.public, large.as_bytes()).await.status, 413, "a chunked body is bounded too");
    for request in [
        "GET /live HTTP/1.1\r\nConnection: close\r\n\r\n",
        "GET /live HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let answer = send(rig.public, request.as_bytes()).await;
        assert_eq!(answer.status, 400, "{request}");
        assert!(!answer.error("message").is_empty());
    }
    let trace = send(rig.public, b"TRACE /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert_eq!((trace.status, trace.headers["allow"].as_str()), (405, "GET, HEAD, POST"));
    assert_eq!(get(rig.public, COMPLETIONS).await.headers["allow"], "POST");
    assert_eq!(get(rig.public, "/live").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_lose_their_connection() {
    let rig = Rig::start("[server]\nheader_timeout_ms = 200\nbody_timeout_ms = 300\nmax_connections = 2\n").await;
    let mut silent = TcpStream::connect(rig.public).await.unwrap();
    let mut dripping = TcpStream::connect(rig.public).await.unwrap();
    dripping.write_all(b"GET /live HTTP/1.1\r\nHo").await.unwrap();
    until_lost(&mut silent).await;
    until_lost(&mut dripping).await;
    let half = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    );
    let answer = send(rig.public, half.as_bytes()).await;
    assert_eq!((answer.status, answer.headers["x-should-retry"].as_str()), (408, "false"));
}

/// A connection ends with a reset instead where the server closed it before it had read all that came.
async fn until_lost(stream: &mut TcpStream) {
    match stream.read_to_end(&mut Vec::new()).await {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("neither ended nor reset: {error}"),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_context_and_the_vocabulary_are_bounds() {
    let rig = Rig::start("[limits]\nmax_output_tokens = 100\n").await;
    for (fields, code) in [
        (json!({"prompt": "a".repeat(600)}), "context_length_exceeded"),
        (json!({"prompt": "a".repeat(512)}), "context_length_exceeded"),
        (json!({"prompt": "a".repeat(500), "max_tokens": 13}), "context_length_exceeded"),
        (json!({"prompt": "a", "max_tokens": 1_000_000}), "context_length_exceeded"),
        (json!({"prompt": "a", "max_tokens": 101}), "invalid_value"),
        (json!({"prompt": [255, 256]}), "invalid_value"),
        (json!({"prompt": ""}), "invalid_value"),
        (json!({"prompt": "a", "stop_token_ids": [256]}), "invalid_value"),
    ] {
        let answer = rig.post(COMPLETIONS, &fields).await;
        assert_eq!((answer.status, answer.error("code").as_str()), (400, code), "{}", answer.error("message"));
    }
    for (prompt, asked, told) in [
        (600, 7, "607 tokens (600 in the messages, 7 in the completion)"),
        (500, 13, "513 tokens (500 in the messages, 13 in the completion)"),
        (9, 1_000_000, "1000009 tokens (9 in the messages, 1000000 in the completion)"),
        (9, u32::MAX, "4294967304 tokens (9 in the messages, 4294967295 in the completion)"),
        // Far too long whatever it says, and nobody counts it.
        (5_000, 7, "at least 5007 tokens (at least 5000 in the messages, 7 in the completion)"),
    ] {
        let long = rig.post(COMPLETIONS, &json!({"prompt": "a".repeat(prompt), "max_tokens": asked})).await;
        let wanted = format!("This model's maximum context length is 512 tokens. However, you requested {told}. Please");
        assert!(long.error("message").starts_with(&wanted), "{}", long.error("message"));
        assert_eq!((long.error("param").as_str(), long.error("code").as_str()), ("prompt", "context_length_exceeded"));
    }
    for name in ["max_tokens", "max_completion_tokens"] {
        let over = rig.post(CHAT, &json!({"messages": [{"role": "user", "content": "a"}], name: 101})).await;
        assert_eq!((over.status, over.error("param").as_str()), (400, name), "the name that the client used");
        assert_eq!(over.error("message"), "The request asks for up to 101 tokens; at most 100 are given here.");
        let chat = rig.post(CHAT, &json!({"messages": [{"role": "user", "content": "a"}], name: 900})).await;
        let told = "you requested 919 tokens (19 in the messages, 900 in the completion)";
        assert!(chat.error("message").contains(told), "the template counts: {}", chat.error("message"));
    }
    let fits =
        rig.post(COMPLETIONS, &json!({"prompt": "a".repeat(500), "max_tokens": 12, "ignore_eos": true, "temperature": 0})).await;
    assert_eq!(fits.json()["usage"]["total_tokens"], 512);
    let open_end = json!({"messages": [{"role": "user", "content": "a"}], "ignore_eos": true, "temperature": 0});
    assert_eq!(rig.post(CHAT, &open_end).await.json()["usage"]["completion_tokens"], 100, "what the server gives at most");
    rig.settles().await;
}

/// Lanes that hold less than the model's context: the limit that a client reads is that of the lanes it may use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_told_is_that_of_the_clients_own_lanes() {
    let small = hex("key-small");
    let rig = Rig::start(&format!(
        "[pool.small]\nstage = \"decode\"\nkv = \"bf16\"\npage_tokens = 16\npages = 8\n\
         [lane.two]\nprefill = \"prefill\"\ndecode = \"small\"\n\
         [tenant.small]\nkey_sha256 = \"{small}\"\nallowed_lanes = [\"two\"]\n"
    ))
    .await;
    let body = json!({"prompt": "a".repeat(100), "max_tokens": 100, "ignore_eos": true}).to_string();
    let answer = post(rig.public, COMPLETIONS, &[("authorization", "Bearer key-small")], body.as_bytes()).await;
    assert_eq!((answer.status, answer.error("code").as_str()), (400, "context_length_exceeded"), "{answer:?}");
    let told = "maximum context length is 128 tokens. However, you requested 200 tokens (100 in the messages, 100 in";
    assert!(answer.error("message").contains(told), "{}", answer.error("message"));
    rig.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_open_their_tenant_and_nothing_else() {
    let (a, b, root) = (hex("key-a"), hex("key-b"), hex("key-root"));
    let tenants = format!(
        "[server]\nadmin_key_sha256 = \"{root}\"\n[tenant.a]\nkey_sha256 = \"{a}\"\n[tenant.b]\nkey_sha256 = \"{b}\"\nmax_output_tokens = 2\n"
    );
    let rig = Rig::start(&tenants).await;
    let body = json!({"prompt": "a", "max_tokens": 3, "ignore_eos": true}).to_string();
    let with = async |key: &str| post(rig.public, COMPLETIONS, &[("authorization", key)], body.as_bytes()).await;
    assert_eq!(with("Bearer key-a").await.status, 200);
    assert_eq!(with("bearer key-a").await.status, 200);
    assert_eq!(with("Bearer key-b").await.error("param"), "max_tokens", "the limit of the key's own tenant");
    for wrong in ["Bearer key-c", "Bearer key-root", "Bearer ", "Bearer", "key-a", "Basic key-a", "Bearer  key-a"] {
        let answer = with(wrong).await;
        assert_eq!((answer.status, answer.error("code").as_str()), (401, "invalid_api_key"), "{wrong}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        assert!(!answer.body.contains("key-"));
    }
    assert_eq!(post(rig.public, COMPLETIONS, &[], body.as_bytes()).await.status, 401);
    for path in ["/v1/models", "/v1/models/org/tiny", "/models/", "/v1/chat/completions"] {
        assert_eq!(get(rig.public, path).await.status, 401, "{path}");
    }
    for path in ["/live", "/ready", "/health", "/metrics", "/version"] {
        assert_eq!(get(rig.public, path).await.status, 200, "{path}");
    }
    for path in ["/admin/policies", "/admin/status"] {
        let refused = get(rig.admin, path).await;
        assert_eq!((refused.status, refused.headers["www-authenticate"].as_str()), (401, "Bearer"), "{path}");
        let keyed = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer key-root\r\n\r\n");
        assert_eq!(send(rig.admin, keyed.as_bytes()).await.status, 200, "{path}");
        let tenant = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer key-a\r\n\r\n");
        assert_eq!(send(rig.admin, tenant.as_bytes()).await.status, 401, "{path}");
    }
    assert!(get(rig.public, "/metrics").await.body.contains("millrace_auth_failures_total 16"));
}
