//! A server that answers as it is told, well or badly, on plain sockets. Probes are answered well, so that a script is about the
//! requests that are measured.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// Before the first text of [`Reply::Stream`]; its role comes at once.
pub(crate) const FIRST_TEXT_AFTER: Duration = Duration::from_millis(30);
/// What the client asks of a probe; a script is for requests that ask for another number.
const PROBE_TOKENS: u64 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Role, three chunks with text, comments, usage, `[DONE]`; cut anywhere.
    Stream,
    /// The same, and the server closes the connection, as it says.
    StreamAndClose,
    /// Reasoning alone; a reason to finish, but neither usage nor `[DONE]`.
    Reasoning,
    /// One JSON body.
    Whole,
    /// 429 with OpenAI's envelope.
    Busy,
    /// 403 that repeats the key.
    Echo,
    /// The connection ends after one chunk with text.
    CutWithin,
    /// The connection ends before the answer.
    CutBefore,
    /// Bytes that are no HTTP.
    NoHttp,
    /// Chunked framing whose length is no number.
    BadFraming,
    /// An event that is no JSON.
    BadEvent,
    /// An error in the stream, then `[DONE]`.
    ErrorEvent,
    /// Ends well as HTTP, with no sign that it is complete.
    Unfinished,
    /// `[DONE]` and nothing else.
    Empty,
    /// A line without an end.
    Endless,
    /// Comments without an end, none of them long.
    Flood,
    /// A head that is longer than heads are.
    LongHead,
    /// 500 with a body of a mebibyte.
    LongError,
    /// Nothing, until the client goes.
    Hang,
}

pub(crate) struct Server {
    pub(crate) url: String,
    state: Arc<State>,
}

struct State {
    script: Vec<Reply>,
    next: AtomicUsize,
    connections: AtomicUsize,
    /// Body and Authorization of every request.
    seen: Mutex<Vec<(Value, Option<String>)>>,
}

impl Server {
    /// Answers measured requests with the replies of `script`, in turn and over again.
    pub(crate) fn start(script: &[Reply]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let seen = Mutex::default();
        let state =
            Arc::new(State { script: script.to_vec(), next: AtomicUsize::new(0), connections: AtomicUsize::new(0), seen });
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let state = shared.clone();
                // A client that goes away ends its thread.
                thread::spawn(move || state.serve(stream));
            }
        });
        Self { url, state }
    }

    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn seen(&self) -> Vec<(Value, Option<String>)> {
        self.state.seen.lock().expect("no panic").clone()
    }
}

impl State {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        while let Some((body, key)) = read_request(&mut reader)? {
            let is_probe = body["max_tokens"].as_u64() == Some(PROBE_TOKENS);
            let reply =
                if is_probe { Reply::Stream } else { self.script[self.next.fetch_add(1, Ordering::SeqCst) % self.script.len()] };
            self.seen.lock().expect("no panic").push((body.clone(), key.clone()));
            if !send(&stream, reply, &body, key.as_deref())? {
                break;
            }
        }
        stream.shutdown(std::net::Shutdown::Both)
    }
}

/// `None` at the end of the connection.
fn read_request(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<(Value, Option<String>)>> {
    let (mut length, mut key, mut line) = (0, None, String::new());
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let Some((name, value)) = line.trim_end().split_once(':') else {
            if line == "\r\n" {
                break;
            }
            assert_eq!(line, "POST /v1/chat/completions HTTP/1.1\r\n");
            continue;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().expect("a length"),
            "authorization" => key = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((serde_json::from_slice(&body).expect("JSON"), key)))
}

/// Whether the connection goes on.
fn send(to: &TcpStream, reply: Reply, body: &Value, key: Option<&str>) -> std::io::Result<bool> {
    match reply {
        Reply::Stream | Reply::StreamAndClose => {
            let close = reply == Reply::StreamAndClose;
            stream_well(to, body, if close { "Connection: close\r\n" } else { "" })?;
            return Ok(!close);
        }
        Reply::Reasoning => {
            let text = event(&json!({"choices": [{"delta": {"content": null, "reasoning_content": "hm"}}]}));
            let end = event(&json!({"choices": [{"delta": {}, "finish_reason": "length"}]}));
            stream(to, &[&text, &text, &end])?;
        }
        Reply::Whole => {
            let message = json!({"choices": [{"message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 50, "completion_tokens": 2}});
            answer(to, "200 OK", &message)?;
        }
        Reply::Busy => answer(to, "429 Too Many Requests", &json!({"error": {"message": "try later"}}))?,
        Reply::Echo => {
            answer(to, "403 Forbidden", &json!({"error": {"message": format!("not with {}", key.unwrap_or("none"))}}))?
        }
        Reply::BadEvent => stream(to, &[&text(), "data: nonsense\n\n", "data: [DONE]\n\n"])?,
        Reply::ErrorEvent => {
            stream(to, &[&text(), &event(&json!({"error": {"message": "out of pages"}})), "data: [DONE]\n\n"])?;
        }
        Reply::Unfinished => stream(to, &[&text()])?,
        Reply::Empty => stream(to, &["data: [DONE]\n\n"])?,
        broken => {
            send_broken(to, broken)?;
            return Ok(false);
        }
    }
    Ok(true)
}

/// What no connection goes on after.
fn send_broken(mut to: &TcpStream, reply: Reply) -> std::io::Result<()> {
    match reply {
        Reply::CutWithin => to.write_all((head("") + &chunk(&text())).as_bytes()),
        Reply::NoHttp => to.write_all(b"220 mail.example ESMTP\r\n\r\n"),
        Reply::BadFraming => to.write_all(format!("{}zz\r\n{}", head(""), text()).as_bytes()),
        // The client goes while these two are written.
        Reply::Endless => endlessly(to, &"x".repeat(1 << 16)),
        Reply::Flood => endlessly(to, &": ping\n\n".repeat(1 << 13)),
        Reply::LongHead => to.write_all(head(&format!("X-Long: {}\r\n", "x".repeat(1 << 20))).as_bytes()),
        Reply::LongError => answer(to, "500 Internal Server Error", &json!({"error": {"message": "long".repeat(1 << 18)}})),
        Reply::Hang => to.read_exact(&mut [0]),
        // `CutBefore`, and what is not broken.
        _ => Ok(()),
    }
}

/// Far more than any client takes.
fn endlessly(mut to: &TcpStream, text: &str) -> std::io::Result<()> {
    to.write_all(head("").as_bytes())?;
    (0..256).try_for_each(|_| to.write_all(chunk(text).as_bytes()))
}

fn stream_well(mut to: &TcpStream, body: &Value, headers: &str) -> std::io::Result<()> {
    let words = body["messages"][0]["content"].as_str().map_or(0, |content| content.split(' ').count());
    let role = event(&json!({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}));
    to.write_all((head(headers) + &chunk(&role)).as_bytes())?;
    thread::sleep(FIRST_TEXT_AFTER);
    // A template of 10 tokens, and words of 2.
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 10 + 2 * words, "completion_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 1}}});
    let rest = [": ping\r\n\r\n", &text(), &text().replace('\n', "\r\n"), &text(), &event(&usage), "data: [DONE]\n\n"].concat();
    let (one, two) = rest.split_at(rest.len() / 3);
    for piece in [one, two] {
        // Cut within an event and within the framing.
        let framed = chunk(piece);
        let (before, after) = framed.split_at(framed.len() / 2);
        to.write_all(before.as_bytes())?;
        thread::sleep(Duration::from_millis(1));
        to.write_all(after.as_bytes())?;
    }
    to.write_all(b"0\r\n\r\n")
}

fn stream(mut to: &TcpStream, events: &[&str]) -> std::io::Result<()> {
    let framed: String = events.iter().map(|event| chunk(event)).collect();
    to.write_all(format!("{}{framed}0\r\n\r\n", head("")).as_bytes())
}

fn answer(mut to: &TcpStream, status: &str, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    let length = body.len();
    to.write_all(
        format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes(),
    )
}

fn head(headers: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n{headers}\r\n")
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

fn text() -> String {
    event(&json!({"choices": [{"delta": {"content": "a"}, "finish_reason": null}]}))
}
