//! Clients that say their last word with their request and go on listening, and those that are gone without more than that.

use std::time::Duration;

use millrace_engine::Hold;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{COMPLETIONS, PATIENCE, Rig, parse_answers, post_bytes};
use crate::wire::{all, completion, statuses};

/// What no machine does within a test's patience if it decodes; in all of these it is held.
fn long(streaming: bool) -> String {
    json!({"prompt": "once", "temperature": 0, "max_tokens": 480, "ignore_eos": true, "stream": streaming}).to_string()
}

/// Sends bytes and closes the writing half.
async fn last_word(rig: &Rig, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(rig.public).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_last_word_is_answered() {
    let rig = Rig::start("").await;
    let body = json!({"prompt": "once", "temperature": 0, "max_tokens": 12, "ignore_eos": true, "stream": true});
    let expected = rig.post(COMPLETIONS, &body).await.body;
    let text = |streamed: &str| -> String {
        let events = streamed.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
        events.filter_map(|event: serde_json::Value| Some(event["choices"][0]["text"].as_str()?.to_owned())).collect()
    };
    for streaming in [false, true] {
        let mut body = body.clone();
        body["stream"] = json!(streaming);
        let body = body.to_string();
        let chunk = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        let length = format!("Content-Length: {}\r\n", body.len());
        let old = format!("POST {COMPLETIONS} HTTP/1.0\r\nContent-Type: application/json\r\n{length}\r\n{body}");
        for request in [
            completion(&length, &body),
            completion(&format!("{length}Connection: close\r\n"), &body),
            completion("Transfer-Encoding: chunked\r\n", &chunk),
            completion(&format!("{length}Expect: 100-continue\r\n"), &body),
            old,
        ] {
            let mut received = all(&mut last_word(&rig, request.as_bytes()).await).await;
            let interim = b"HTTP/1.1 100 Continue\r\n\r\n";
            if received.starts_with(interim) {
                received.drain(..interim.len());
            }
            let answers = parse_answers(&received);
            assert_eq!((answers.len(), answers[0].status), (1, 200), "{request}");
            let answer = &answers[0];
            let said =
                if streaming { text(&answer.body) } else { answer.json()["choices"][0]["text"].as_str().unwrap().to_owned() };
            assert_eq!(said, text(&expected), "{request}");
        }
    }
    let one = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let one = completion(&format!("Content-Length: {}\r\n", one.len()), &one);
    let several = format!("{one}{one}GET /live HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(statuses(&all(&mut last_word(&rig, several.as_bytes()).await).await), [200, 200, 200], "sent ahead");
    rig.settles().await;
}

/// The answer's first byte comes before the server has it: a client that is gone would reset the connection. The rest of it follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_takes_long_comes_whole() {
    let rig = Rig::start("").await;
    for (streaming, lines) in [(false, ""), (true, ""), (false, "chunked"), (false, "Expect: 100-continue\r\n")] {
        // Neither answer begins without a first token.
        rig.prefill(Hold::Held);
        let body = long(streaming);
        let request = match lines {
            "chunked" => completion("Transfer-Encoding: chunked\r\n", &format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())),
            lines => completion(&format!("{lines}Content-Length: {}\r\n", body.len()), &body),
        };
        let mut stream = last_word(&rig, request.as_bytes()).await;
        let mut received = vec![0; 1];
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut received)).await.expect("a byte in time").unwrap();
        // A few further looks.
        tokio::time::sleep(Duration::from_millis(50)).await;
        rig.prefill(Hold::Free);
        received.extend(all(&mut stream).await);
        let answer = received.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(&received);
        assert_eq!(statuses(answer), [200], "{streaming} {lines}");
        let answer = &parse_answers(answer)[0];
        let done = if streaming {
            answer.body.ends_with("data: [DONE]\n\n")
        } else {
            answer.json()["usage"]["completion_tokens"] == 480
        };
        assert!(done, "{answer:?}");
    }
    rig.settles().await;
}

/// They looked as if they listened: nothing but their last word told, until they were gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_gone_after_its_last_word_is_noticed() {
    let rig = Rig::start("").await;
    rig.decode(Hold::Held);
    let body = long(false);
    for request in
        [post_bytes(COMPLETIONS, &[], body.as_bytes()), post_bytes(COMPLETIONS, &[("Expect", "100-continue")], body.as_bytes())]
    {
        let mut stream = last_word(&rig, &request).await;
        rig.runs().await;
        let mut byte = [0; 1];
        stream.read_exact(&mut byte).await.unwrap();
        assert_eq!((&byte, rig.node.in_flight()), (b"H", 1), "it listens, so its request goes on");
        drop(stream);
        rig.settles().await;
    }
    rig.counts("finished_reason=\"abort\"} 2").await;
}
