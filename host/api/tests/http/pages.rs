//! What web pages can make a browser send, and what becomes of it.

use std::net::SocketAddr;

use sha2::{Digest as _, Sha256};

use crate::support::{Answer, CHAT, COMPLETIONS, Rig, get, post, send};

const BODY: &[u8] = br#"{"prompt":"a","max_tokens":1}"#;
const EVIL: (&str, &str) = ("Origin", "https://evil.example");
const CHAT_SITE: (&str, &str) = ("Origin", "https://chat.example");

async fn with(to: SocketAddr, headers: &[(&str, &str)]) -> Answer {
    post(to, COMPLETIONS, headers, BODY).await
}

/// What a browser sends before a request of this kind.
async fn preflight(to: SocketAddr, origin: &str) -> Answer {
    let request = format!(
        "OPTIONS {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: authorization,content-type,x-stainless-lang\r\n\r\n"
    );
    send(to, request.as_bytes()).await
}

/// The three types that a page may send to any site without a preflight, and none at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_not_said_to_be_json_is_refused() {
    let rig = Rig::start("").await;
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp", "json", ""]
    {
        let answer = with(rig.public, &[("Content-Type", kind)]).await;
        assert_eq!((answer.status, answer.error("code").as_str()), (415, "unsupported_media_type"), "{kind}");
        assert!(answer.error("message").contains("-H 'Content-Type: application/json'"), "tells what to do with curl -d");
    }
    for lines in ["", "Content-Type: text/plain\r\nContent-Type: application/json\r\n"] {
        let head =
            format!("POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n", BODY.len());
        let answer = send(rig.public, &[format!("{head}{lines}\r\n").as_bytes(), BODY].concat()).await;
        assert_eq!(answer.status, 415, "{lines:?}");
    }
    for kind in ["application/json", "Application/JSON ; charset=utf-8", "application/problem+json"] {
        assert_eq!(with(rig.public, &[("Content-Type", kind)]).await.status, 200, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_sites_get_nothing_from_a_server_without_keys() {
    let rig = Rig::start("").await;
    for headers in [
        &[EVIL][..],
        &[("Origin", "null")],
        &[("Origin", "http://127.0.0.1:3000")],
        &[("Sec-Fetch-Site", "cross-site")],
        &[("Sec-Fetch-Site", "same-site")],
    ] {
        let answer = with(rig.public, headers).await;
        assert_eq!((answer.status, answer.error("code").as_str()), (403, "forbidden"), "{headers:?}");
        assert!(answer.error("message").contains("server.allowed_origins"));
        assert!(!answer.headers.contains_key("access-control-allow-origin"));
    }
    // A name that was resolved to this machine (DNS rebinding): origin and host agree.
    let rebound = "GET /v1/models HTTP/1.1\r\nHost: evil.example:8080\r\nConnection: close\r\n\r\n";
    assert_eq!(send(rig.public, rebound.as_bytes()).await.status, 403);
    assert_eq!(with(rig.public, &[("Origin", "http://localhost"), ("Sec-Fetch-Site", "same-origin")]).await.status, 200);
    assert_eq!(preflight(rig.public, EVIL.1).await.status, 403);
    assert_eq!(get(rig.public, "/live").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_an_allowed_origin_may_ask_and_read() {
    let rig = Rig::start("[server]\nallowed_origins = [\"https://chat.example\", \"http://localhost:3000\"]\n").await;
    let answer = with(rig.public, &[CHAT_SITE, ("Sec-Fetch-Site", "cross-site")]).await;
    assert_eq!((answer.status, answer.headers["access-control-allow-origin"].as_str()), (200, CHAT_SITE.1));
    assert!(answer.headers["access-control-expose-headers"].contains("retry-after"));
    let asked = preflight(rig.public, CHAT_SITE.1).await;
    assert_eq!((asked.status, asked.headers["access-control-allow-origin"].as_str()), (200, CHAT_SITE.1));
    assert!(asked.headers["access-control-allow-methods"].contains("POST"));
    assert!(asked.headers["access-control-allow-headers"].contains("x-stainless-lang"));
    assert!(!preflight(rig.public, EVIL.1).await.headers.contains_key("access-control-allow-origin"));
    assert_eq!(with(rig.public, &[EVIL]).await.status, 403);
    assert_eq!(with(rig.public, &[]).await.status, 200, "tools name no origin");
    assert!(
        !preflight(rig.admin, CHAT_SITE.1).await.headers.contains_key("access-control-allow-origin"),
        "clients' listener only"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_keys_are_asked_for_the_key_decides() {
    let digest: String = Sha256::digest("key-a").iter().map(|byte| format!("{byte:02x}")).collect();
    let rig = Rig::start(&format!("[tenant.a]\nkey_sha256 = \"{digest}\"\n")).await;
    let key = ("Authorization", "Bearer key-a");
    assert_eq!(with(rig.public, &[EVIL, key]).await.status, 200);
    assert_eq!(with(rig.public, &[EVIL]).await.status, 401);
    assert_eq!(with(rig.public, &[("Content-Type", "text/plain"), key]).await.status, 415);
}
