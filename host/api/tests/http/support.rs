//! A deployment in a temporary directory, and a client that sends bytes as they are.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_api::{Api, ApiOptions, Running, Server};
use millrace_config::{AdminAccess, Config};
use millrace_core::PoolId;
use millrace_engine::Hold;
use millrace_node::Node;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Nothing here takes so long on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";

/// Lanes `one` and `two` with the same precision, native policies.
const DEPLOYMENT: &str = r#"
[model.tiny]
name = "org/tiny"
path = "model"
[device.cpu]
kind = "cpu"
threads = 1
[pool.prefill]
stage = "prefill"
kv = "bf16"
page_tokens = 16
pages = 64
[pool.decode]
stage = "decode"
kv = "bf16"
page_tokens = 16
pages = 64
[lane.one]
prefill = "prefill"
decode = "decode"
max_waiting = 8
[policy.precision]
component = "native"
[policy.route]
component = "native"
[policy.schedule]
component = "native"
"#;

/// A server in this process.
pub(crate) struct Rig {
    pub(crate) api: Api,
    pub(crate) node: Node,
    pub(crate) running: Running,
    pub(crate) public: SocketAddr,
    pub(crate) admin: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Rig {
    /// `extra` is more TOML.
    pub(crate) async fn start(extra: &str) -> Self {
        Self::deploy(&format!("{DEPLOYMENT}{extra}")).await
    }

    /// Native policies, but for a component that plans the steps, with a table that no other policy knows.
    pub(crate) async fn scheduled_by(component: &Path) -> Self {
        let native = "[policy.schedule]\ncomponent = \"native\"";
        assert!(DEPLOYMENT.contains(native));
        let named = format!("[policy.schedule]\ncomponent = \"{}\"\nconfig = {{ own = 1 }}", component.display());
        Self::deploy(&DEPLOYMENT.replace(native, &named)).await
    }

    async fn deploy(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        write_checkpoint(&directory.path().join("model"));
        let file = directory.path().join("deploy.toml");
        let config = millrace_config::parse(text, &file.display().to_string()).unwrap_or_else(|e| panic!("{e}"));
        let api = Api::new(options(&config)).unwrap();
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(api.clone(), loopback, loopback).await.unwrap();
        let (public, admin) = (server.public_addr().unwrap(), server.admin_addr().unwrap());
        let running = server.start();
        assert_eq!(get(public, "/ready").await.status, 503, "no node, not ready");
        assert_eq!(get(public, "/live").await.status, 200, "no node, alive");
        assert_eq!(get(public, "/health").await.error("code"), "model_loading");
        let node = tokio::task::spawn_blocking(move || Node::start(&config)).await.unwrap().unwrap_or_else(|e| panic!("{e}"));
        api.serve(node.clone());
        Self { api, node, running, public, admin, _directory: directory }
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        post(self.public, path, &[], body.to_string().as_bytes()).await
    }

    /// Whether the pool that prefills may begin steps; without them no request goes on from here.
    pub(crate) fn prefill(&self, hold: Hold) {
        self.node.engine().hold(PoolId(0), hold);
    }

    /// Whether the pool that decodes may begin steps; without them a request has its first token and not its second.
    pub(crate) fn decode(&self, hold: Hold) {
        self.node.engine().hold(PoolId(1), hold);
    }

    /// Waits until a sequence holds pages: before that, a client that leaves takes nothing along.
    pub(crate) async fn runs(&self) {
        let busy = || self.node.engine().snapshot().pools.iter().any(|pool| pool.pinned_pages > 0);
        eventually("a sequence holds pages", busy).await;
    }

    /// Waits until `/metrics` holds a line. Counts follow pages: a request's task ends after the engine has let go.
    pub(crate) async fn counts(&self, line: &str) {
        let scraping = async {
            while !get(self.public, "/metrics").await.body.contains(line) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, scraping).await.is_ok(), "did not come true: {line}");
    }

    /// Waits until no request and no page is in use.
    pub(crate) async fn settles(&self) {
        let idle = || {
            let pools = self.node.engine().snapshot();
            self.node.in_flight() == 0 && pools.pools.iter().all(|pool| pool.pinned_pages == 0 && pool.quarantined_pages == 0)
        };
        eventually("requests and pages are gone", idle).await;
    }
}

/// Waits until something is so.
pub(crate) async fn eventually(what: &str, so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "did not come true: {what}");
}

fn options(config: &Config) -> ApiOptions {
    let server = &config.server;
    ApiOptions {
        max_body_bytes: usize::try_from(server.max_body_bytes).unwrap(),
        max_header_bytes: usize::try_from(server.max_header_bytes).unwrap(),
        header_timeout: Duration::from_millis(server.header_timeout_ms),
        body_timeout: Duration::from_millis(server.body_timeout_ms),
        write_timeout: Duration::from_secs(5),
        max_connections: usize::try_from(server.max_connections).unwrap(),
        max_admin_connections: usize::try_from(server.max_admin_connections).unwrap(),
        allowed_origins: server.allowed_origins.clone(),
        max_component_bytes: 1 << 20,
        admin_key: match &server.admin {
            AdminAccess::Open => None,
            AdminAccess::Key(digest) => Some(digest.clone()),
        },
    }
}

/// The tiny tied Llama with a tokenizer whose tokens are bytes.
fn write_checkpoint(to: &Path) {
    let from = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/llama-bf16");
    std::fs::create_dir(to).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    std::fs::write(to.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    let template = "{% for m in messages %}{% if m.role == 'forbidden' %}{{ raise_exception('no') }}{% endif %}<s>{{ m.role }}:{{ m.content }}\n{% endfor %}<s>assistant:";
    std::fs::write(to.join("chat_template.jinja"), template).unwrap();
    let config = json!({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": false});
    std::fs::write(to.join("tokenizer_config.json"), config.to_string()).unwrap();
}

/// Three special tokens, then the bytes 0 to 252 in the byte-level alphabet. The last three bytes occur in no UTF-8.
fn tokenizer() -> Value {
    let mut vocab = serde_json::Map::new();
    let mut added = Vec::new();
    for (id, special) in ["<pad>", "<s>", "</s>"].into_iter().enumerate() {
        vocab.insert(special.to_owned(), id.into());
        added.push(json!({
            "id": id, "content": special, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true
        }));
    }
    let mut shifted = 0;
    for byte in 0..253_u32 {
        let printable = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let code = if printable { byte } else { 256 + shifted };
        shifted += u32::from(!printable);
        vocab.insert(char::from_u32(code).unwrap().to_string(), (byte + 3).into());
    }
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []
        }
    })
}

/// One HTTP answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// A field of the error envelope, which must have all four.
    pub(crate) fn error(&self, field: &str) -> String {
        let body = self.json();
        let error = body["error"].as_object().unwrap_or_else(|| panic!("no envelope: {self:?}"));
        let keys: Vec<&str> = error.keys().map(String::as_str).collect();
        assert_eq!(keys, ["code", "message", "param", "type"], "{self:?}");
        error[field].as_str().unwrap_or_default().to_owned()
    }

    /// The JSON of every event; checks the framing and the end.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        assert!(self.headers["content-type"].starts_with("text/event-stream"), "{self:?}");
        let frames = self.body.strip_suffix("data: [DONE]\n\n").unwrap_or_else(|| panic!("no end: {self:?}"));
        let parse = |frame: &str| serde_json::from_str(frame.strip_prefix("data: ").unwrap()).unwrap();
        frames.split_terminator("\n\n").map(parse).collect()
    }
}

pub(crate) async fn get(to: SocketAddr, path: &str) -> Answer {
    send(to, format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()).await
}

pub(crate) async fn post(to: SocketAddr, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    send(to, &post_bytes(path, headers, body)).await
}

/// A request as bytes; `Content-Type` is JSON's unless `headers` names another.
pub(crate) fn post_bytes(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
        head.push_str("Content-Type: application/json\r\n");
    }
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    [format!("{head}\r\n").as_bytes(), body].concat()
}

/// Sends bytes and reads until the server closes.
pub(crate) async fn send(to: SocketAddr, bytes: &[u8]) -> Answer {
    let exchange = async {
        let (mut from, mut into) = TcpStream::connect(to).await.unwrap().into_split();
        let bytes = bytes.to_vec();
        // A server that has heard enough may close while more is sent.
        let writing = tokio::spawn(async move {
            let _ = into.write_all(&bytes).await;
            into
        });
        let mut received = Vec::new();
        from.read_to_end(&mut received).await.unwrap();
        drop(writing);
        received
    };
    let received = tokio::time::timeout(PATIENCE, exchange).await.expect("an answer in time");
    parse(&received)
}

fn parse(received: &[u8]) -> Answer {
    let mut answers = parse_answers(received);
    assert_eq!(answers.len(), 1, "{}", String::from_utf8_lossy(received));
    answers.remove(0)
}

/// All answers of a connection. One without a length lasts to the end.
pub(crate) fn parse_answers(mut received: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while !received.is_empty() {
        let end =
            received.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(received)));
        let head = std::str::from_utf8(&received[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let split =
            |line: &str| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).unwrap();
        let headers: BTreeMap<String, String> = lines.map(split).collect();
        let body = &received[end + 4..];
        let length = headers.get("content-length").map_or(body.len(), |v| v.parse().unwrap());
        let (body, rest) = body.split_at(length);
        received = rest;
        let chunked = headers.get("transfer-encoding").is_some_and(|v| v == "chunked");
        let body = if chunked { unchunk(body) } else { body.to_vec() };
        answers.push(Answer { status, headers, body: String::from_utf8(body).unwrap() });
    }
    answers
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
    }
    body
}
