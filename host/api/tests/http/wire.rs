//! What the bytes of a connection may look like: heads that are refused with an envelope, lengths that say two things, requests sent
//! ahead, clients that are slow. Raw sockets throughout.

use std::time::{Duration, Instant};

use millrace_engine::Hold;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{CHAT, COMPLETIONS, PATIENCE, Rig, get, parse_answers, send};

/// A request for one token, complete.
pub(crate) fn completion(lines: &str, body: &str) -> String {
    format!("POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{lines}\r\n{body}")
}

const BODY: &str = r#"{"prompt":"a","max_tokens":1}"#;

/// Everything that the server sends until it closes.
pub(crate) async fn all(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut received)).await.expect("an end in time").unwrap();
    received
}

pub(crate) fn statuses(received: &[u8]) -> Vec<u16> {
    parse_answers(received).iter().map(|answer| answer.status).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_cannot_be_taken_are_answered_with_an_envelope() {
    let rig = Rig::start("[server]\nmax_header_bytes = 8192\n").await;
    let large = format!("GET /live HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(10_000));
    let endless = format!("GET /live HTTP/1.1\r\nHost: x\r\nX: {}", "y".repeat(3 << 20));
    let many = format!("GET /live HTTP/1.1\r\nHost: x\r\n{}\r\n", "a: b\r\n".repeat(200));
    for (request, status, code) in [
        (large.as_str(), 431, "header_too_large"),
        (&endless, 431, "header_too_large"),
        (&many, 431, "header_too_large"),
        ("GET /live HTTP/1.1\r\nHost : a\r\n\r\n", 400, "malformed_request"),
        ("GET /live HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400, "malformed_request"),
        ("GET /live\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        ("GET /live HTTP/3.0\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed_request"),
        ("\x16\x03\x01\x02\r\n\r\n", 400, "malformed_request"),
        ("REFUSE /head-timeout HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed_request"),
        ("nonsense\r\n\r\n", 400, "malformed_request"),
    ] {
        let answer = send(rig.public, request.as_bytes()).await;
        let shown = &request[..request.len().min(60)];
        assert_eq!((answer.status, answer.error("code").as_str()), (status, code), "{shown:?}");
        assert_eq!(answer.headers["connection"], "close");
        assert_eq!(answer.headers["content-type"], "application/json");
        assert!(answer.headers["x-request-id"].starts_with("req-"));
    }
    let path = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "y".repeat(70_000));
    let wide = Rig::start("[server]\nmax_header_bytes = 1048576\n").await;
    assert_eq!(send(wide.public, path.as_bytes()).await.status, 414);
    assert_eq!(send(rig.admin, b"nonsense\r\n\r\n").await.error("code"), "malformed_request", "on the admin listener too");
    assert!(get(rig.public, "/metrics").await.body.contains("millrace_http_responses_total{class=\"4xx\"} 12"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_length_can_be_read_in_two_ways_is_refused() {
    let rig = Rig::start("").await;
    let smuggled = "0\r\n\r\nGET /live HTTP/1.1\r\nHost: x\r\n\r\n";
    for lines in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 6\r\nContent-Length: 5\r\n",
        "Content-Length: 5, 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5 6\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
    ] {
        let mut stream = TcpStream::connect(rig.public).await.unwrap();
        stream.write_all(completion(lines, smuggled).as_bytes()).await.unwrap();
        let received = all(&mut stream).await;
        assert_eq!(statuses(&received), [400], "one answer and no second request: {lines}");
        assert_eq!(parse_answers(&received)[0].error("code"), "malformed_request", "{lines}");
    }
    let twice = format!("Connection: close\r\nContent-Length: {0}\r\nContent-Length: {0}\r\n", BODY.len());
    assert_eq!(send(rig.public, completion(&twice, BODY).as_bytes()).await.status, 200, "equal lengths are one length");
    rig.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_sent_ahead_are_answered_in_turn_and_a_bad_one_ends_the_connection() {
    let rig = Rig::start("").await;
    let good = completion(&format!("Content-Length: {}\r\n", BODY.len()), BODY);
    let all_at_once = format!("{good}\r\nGET /live HTTP/1.1\r\nHost: x\r\n\r\n{good}BAD\r\n\r\n{good}");
    let mut stream = TcpStream::connect(rig.public).await.unwrap();
    stream.write_all(all_at_once.as_bytes()).await.unwrap();
    let received = all(&mut stream).await;
    assert_eq!(statuses(&received), [200, 200, 200, 400]);
    let answers = parse_answers(&received);
    assert_eq!(answers[0].json()["usage"]["completion_tokens"], 1);
    assert_eq!(answers[3].error("code"), "malformed_request");
    // The same byte by byte.
    let mut stream = TcpStream::connect(rig.public).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in format!("{good}{good}BAD\r\n\r\n").as_bytes() {
        stream.write_all(&[*byte]).await.unwrap();
    }
    assert_eq!(statuses(&all(&mut stream).await), [200, 200, 400]);
    rig.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunked_request_is_the_last_of_its_connection() {
    let rig = Rig::start("").await;
    let chunked = completion("Transfer-Encoding: chunked\r\n", &format!("{:x}\r\n{BODY}\r\n0\r\n\r\n", BODY.len()));
    let mut stream = TcpStream::connect(rig.public).await.unwrap();
    stream.write_all(format!("{chunked}GET /live HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    let answers = parse_answers(&all(&mut stream).await);
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0].status, answers[0].headers["connection"].as_str()), (200, "close"));
    let broken = completion("Transfer-Encoding: chunked\r\n", "zz\r\n");
    let answer = send(rig.public, broken.as_bytes()).await;
    assert_eq!(answer.status, 400);
    assert!(answer.error("message").contains("framed wrongly"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_head_is_answered_with_408_when_its_time_is_over() {
    let rig = Rig::start("[server]\nheader_timeout_ms = 200\n").await;
    let began = Instant::now();
    let answer = send(rig.public, b"GET /live HTTP/1.1\r\nHo").await;
    assert!(began.elapsed() >= Duration::from_millis(200));
    assert_eq!((answer.status, answer.error("code").as_str()), (408, "request_timeout"));
    assert_eq!(answer.headers["x-should-retry"], "false");
    // One that drips is as late as one that stopped.
    let mut stream = TcpStream::connect(rig.public).await.unwrap();
    stream.write_all(b"GET /live HTTP/1.1\r\nHost: x\r\nX: ").await.unwrap();
    let (mut from, mut into) = stream.into_split();
    let dripping = tokio::spawn(async move {
        while into.write_all(b"y").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let mut received = Vec::new();
    tokio::time::timeout(PATIENCE, from.read_to_end(&mut received)).await.expect("an end in time").unwrap();
    assert_eq!(statuses(&received), [408]);
    dripping.await.unwrap();
    // The time of what is sent ahead begins when the answer before it has ended, however long that took.
    let body = json!({"prompt": "once", "temperature": 0, "max_tokens": 480, "ignore_eos": true}).to_string();
    let request = completion(&format!("Content-Length: {}\r\n", body.len()), &body);
    let mut stream = TcpStream::connect(rig.public).await.unwrap();
    stream.write_all(format!("{request}GET /li").as_bytes()).await.unwrap();
    assert_eq!(statuses(&all(&mut stream).await), [200, 408]);
    rig.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_ends_without_an_answer() {
    let rig = Rig::start("[server]\nheader_timeout_ms = 200\n").await;
    for bytes in [&b""[..], b"\r\n\r\n"] {
        let mut silent = TcpStream::connect(rig.public).await.unwrap();
        silent.write_all(bytes).await.unwrap();
        assert_eq!(all(&mut silent).await, b"");
    }
    let mut kept = TcpStream::connect(rig.public).await.unwrap();
    kept.write_all(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert_eq!(statuses(&all(&mut kept).await), [200], "one answer, and none to the silence after it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_ends_within_its_head_gets_no_answer() {
    let rig = Rig::start("").await;
    let mut stream = TcpStream::connect(rig.public).await.unwrap();
    stream.write_all(b"GET /live HTTP/1.1\r\nHo").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(all(&mut stream).await, b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_is_noticed_behind_what_it_sent_ahead() {
    let rig = Rig::start("").await;
    let body = json!({"prompt": "once", "temperature": 0, "max_tokens": 480, "ignore_eos": true}).to_string();
    let long = completion(&format!("Content-Length: {}\r\n", body.len()), &body);
    rig.decode(Hold::Held);
    let mut stream = TcpStream::connect(rig.public).await.unwrap();
    stream.write_all(format!("{long}GET /live HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    rig.runs().await;
    drop(stream);
    rig.settles().await;
    rig.counts("finished_reason=\"abort\"} 1").await;
}

/// The time of bodies is far off, and none of these sends more than it says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_says_it_is_too_large_is_refused_before_it_comes() {
    let rig = Rig::start("[server]\nmax_body_bytes = 4096\nbody_timeout_ms = 600000\n").await;
    let chunked = "Transfer-Encoding: chunked\r\n";
    for (lines, body) in [
        ("Content-Length: 4097\r\n", ""),
        ("Content-Length: 4097\r\n", "{"),
        ("Content-Length: 4097\r\nExpect: 100-continue\r\n", ""),
        ("Content-Length: 18446744073709551613\r\n", ""),
        (chunked, "1001\r\n"),
        (chunked, "ffffffffffffffff\r\n"),
        (chunked, "FFFFFFFFFFFFFFFF"),
        (chunked, "1;x=\"y\"\r\n{\r\nfffffffffffffff0\r\n"),
    ] {
        let mut stream = TcpStream::connect(rig.public).await.unwrap();
        let began = Instant::now();
        stream.write_all(completion(lines, body).as_bytes()).await.unwrap();
        let answers = parse_answers(&all(&mut stream).await);
        assert!(began.elapsed() < Duration::from_secs(4), "at once: {lines}{body}");
        assert_eq!(answers.len(), 1, "{lines}{body}");
        let answer = &answers[0];
        assert_eq!((answer.status, answer.error("code").as_str()), (413, "request_too_large"), "{lines}{body}");
        assert_eq!(answer.headers["connection"], "close", "{lines}{body}");
    }
    let overflow = completion(chunked, "fffffffffffffffff\r\n");
    assert!(matches!(send(rig.public, overflow.as_bytes()).await.status, 400 | 413), "more than a number holds");
    let exact = BODY.len();
    let fits = completion(chunked, &format!("{exact:x}\r\n{BODY}\r\n0\r\na: b\r\n\r\n"));
    assert_eq!(send(rig.public, fits.as_bytes()).await.status, 200);
    rig.settles().await;
}

/// Clients that send all before they read anything, larger than the sockets' buffers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_body_does_not_take_the_answer_along() {
    const BYTES: usize = 12 << 20;
    let rig = Rig::start("[server]\nmax_body_bytes = 4096\n").await;
    let (json, length) = ("application/json", format!("Content-Length: {BYTES}"));
    for (kind, framing, prefix, status) in [
        ("text/plain", length.as_str(), String::new(), 415),
        (json, &length, String::new(), 413),
        (json, "Transfer-Encoding: chunked", format!("{BYTES:x}\r\n"), 413),
    ] {
        let head = format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n{prefix}");
        let mut stream = TcpStream::connect(rig.public).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b' '; BYTES]).await.unwrap();
        assert_eq!(statuses(&all(&mut stream).await), [status], "{kind} {framing}");
    }
}
