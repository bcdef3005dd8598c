//! More connections than a listener takes: who has an answer all the same, and that each listener has a bound of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{COMPLETIONS, PATIENCE, Rig, get, post};

/// Connections that say nothing.
async fn silent(to: SocketAddr, count: usize) -> Vec<TcpStream> {
    let connects = (0..count).map(|_| TcpStream::connect(to));
    futures_util::future::join_all(connects).await.into_iter().map(Result::unwrap).collect()
}

const BODY: &[u8] = br#"{"prompt":"a","max_tokens":1}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_and_operators_are_answered_while_clients_hold_every_connection() {
    let rig = Rig::start("[server]\nmax_connections = 4\nheader_timeout_ms = 600000\n").await;
    let mut held = silent(rig.public, 4).await;
    let began = Instant::now();
    for round in 0..3 {
        for path in ["/live", "/ready", "/health", "/metrics", "/version"] {
            let answer = get(rig.public, path).await;
            assert_eq!((answer.status, answer.headers["connection"].as_str()), (200, "close"), "{path}");
        }
        let refused = post(rig.public, COMPLETIONS, &[], BODY).await;
        assert_eq!((refused.status, refused.error("code").as_str()), (429, "too_many_connections"));
        assert_eq!((refused.headers["retry-after"].as_str(), refused.headers["connection"].as_str()), ("1", "close"));
        for path in ["/live", "/admin/status", "/admin/policies"] {
            assert_eq!(get(rig.admin, path).await.status, 200, "{path}");
        }
        // Many more than the spare ones: the newest takes the place of the oldest.
        held.extend(silent(rig.public, 100 * (round + 1)).await);
    }
    assert!(began.elapsed() < PATIENCE, "nobody waited for a timeout");
    let counted = "millrace_http_spare_connections_total";
    let line = |text: &str| text.lines().find_map(|l| l.strip_prefix(counted)?.trim().parse::<f64>().ok());
    assert!(line(&get(rig.public, "/metrics").await.body).is_some_and(|count| count > 300.0));
    drop(held);
    rig.counts("millrace_ready 1").await;
    let served = async {
        while post(rig.public, COMPLETIONS, &[], BODY).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, served).await.is_ok(), "places are given back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_that_hold_every_connection_keep_neither_clients_nor_probes_out() {
    let rig = Rig::start("[server]\nmax_admin_connections = 2\nheader_timeout_ms = 600000\n").await;
    let held = silent(rig.admin, 40).await;
    assert_eq!(get(rig.admin, "/live").await.status, 200);
    assert_eq!(get(rig.admin, "/metrics").await.status, 200);
    assert_eq!(get(rig.admin, "/admin/status").await.error("code"), "too_many_connections");
    assert_eq!(post(rig.public, COMPLETIONS, &[], BODY).await.status, 200);
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spare_connection_has_one_request_and_little_time() {
    let rig = Rig::start("[server]\nmax_connections = 1\nheader_timeout_ms = 600000\n").await;
    let _held = silent(rig.public, 1).await;
    let mut spare = TcpStream::connect(rig.public).await.unwrap();
    let probe = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n";
    spare.write_all(&[&probe[..], probe].concat()).await.unwrap();
    let mut received = Vec::new();
    spare.read_to_end(&mut received).await.unwrap();
    assert_eq!(String::from_utf8(received).unwrap().matches("HTTP/1.1 200").count(), 1);
    let mut slow = TcpStream::connect(rig.public).await.unwrap();
    slow.write_all(b"GET /live HTTP/1.1\r\nHo").await.unwrap();
    let mut received = Vec::new();
    tokio::time::timeout(PATIENCE, slow.read_to_end(&mut received)).await.expect("an end in time").unwrap();
    assert!(received.starts_with(b"HTTP/1.1 408"));
}
