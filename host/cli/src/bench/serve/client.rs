//! One client: a connection that is kept, one request at a time, and what came of it. Knows HTTP; knows no load and no report.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::CONTENT_TYPE;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::answer::{Answer, Sample, whole};
use super::chunk;
use super::endpoint::Endpoint;
use super::failure::{Failed, Kind};

/// Of a response's head, and of what is read at once.
const MAX_BUFFER_BYTES: usize = 64 << 10;
/// Of a chunk, on average: what it says around a token is a few hundred bytes.
const CHUNK_BYTES: usize = 1 << 10;
/// Of a body, for what is in no chunk with text.
const SPARE_BYTES: usize = 1 << 20;
/// Chunks with text for each token asked for: servers may send less than a token at a time, but not endlessly.
const CHUNKS_PER_TOKEN: u32 = 16;
const SPARE_CHUNKS: u32 = 1_024;
/// Of the body of an error.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// How long the end of a body may come after `[DONE]`, if the connection is to be used again.
const LINGER: Duration = Duration::from_secs(1);

/// How long an answer can be.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Chunks with text.
    chunks: u32,
    bytes: usize,
}

impl Limits {
    fn of(max_tokens: u32) -> Self {
        let chunks = max_tokens.saturating_mul(CHUNKS_PER_TOKEN).saturating_add(SPARE_CHUNKS);
        Self { chunks, bytes: (chunks as usize).saturating_mul(CHUNK_BYTES).saturating_add(SPARE_BYTES) }
    }
}

type Connection = SendRequest<String>;

pub(super) struct Client {
    endpoint: Arc<Endpoint>,
    /// From the request before, where it ended well.
    connection: Option<Connection>,
}

impl Client {
    pub(super) fn new(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint, connection: None }
    }

    /// Sends `body`, which asks for `max_tokens`, and reads the answer. Time runs from here, connecting included.
    pub(super) async fn ask(&mut self, body: String, max_tokens: u32) -> Result<Sample, Failed> {
        let limits = Limits::of(max_tokens);
        let exchange = Exchange { endpoint: &self.endpoint, began: Instant::now(), connection: self.connection.take(), limits };
        let Ok((connection, result)) = timeout(self.endpoint.timeout, exchange.run(body)).await else {
            return Err(Failed::new(Kind::Timeout, format!("not done within {} s", self.endpoint.timeout.as_secs_f64())));
        };
        self.connection = connection;
        result.map_err(|failed| Failed { message: self.endpoint.without_key(&failed.message), ..failed })
    }
}

/// One request on its way.
struct Exchange<'a> {
    endpoint: &'a Endpoint,
    began: Instant,
    connection: Option<Connection>,
    limits: Limits,
}

impl Exchange<'_> {
    /// The connection comes back where it can be used again.
    async fn run(mut self, body: String) -> (Option<Connection>, Result<Sample, Failed>) {
        let (connection, response) = match self.send(self.endpoint.request(body)).await {
            Ok(sent) => sent,
            Err(failed) => return (None, Err(failed)),
        };
        let status = response.status();
        let media_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let is_json = media_type.trim_start().to_ascii_lowercase().starts_with("application/json");
        let mut body = response.into_body();
        let (is_over, result) = if !status.is_success() {
            let (is_over, bytes) = read_error(&mut body).await;
            (is_over, Err(Failed::new(Kind::Status(status.as_u16()), chunk::error_message(&bytes))))
        } else if is_json {
            self.read_whole(&mut body).await
        } else {
            self.read_stream(&mut body).await
        };
        (is_over.then_some(connection), result)
    }

    /// Over the kept connection, or over a new one where the server has closed that.
    async fn send(&mut self, mut request: Request<String>) -> Result<(Connection, Response<Incoming>), Failed> {
        if let Some(mut kept) = self.connection.take()
            && kept.ready().await.is_ok()
        {
            match kept.try_send_request(request).await {
                Ok(response) => return Ok((kept, response)),
                // Not a byte of it was sent.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(broken(error.error(), "before the answer")),
                },
            }
        }
        let mut fresh = connect(self.endpoint).await?;
        let response = fresh.send_request(request).await.map_err(|error| broken(&error, "before the answer"))?;
        Ok((fresh, response))
    }

    async fn read_stream(&self, body: &mut Incoming) -> (bool, Result<Sample, Failed>) {
        let mut answer = Answer::new(self.limits.chunks);
        let mut bytes = 0;
        while !answer.is_settled() {
            let frame = match body.frame().await {
                None => break,
                Some(Err(error)) => return (false, Err(broken(&error, "within the answer"))),
                Some(Ok(frame)) => frame,
            };
            let Ok(data) = frame.into_data() else { continue };
            bytes += data.len();
            if bytes > self.limits.bytes {
                return (false, Err(self.too_large()));
            }
            answer.push(&data, self.elapsed_us());
        }
        let result = answer.finish(self.elapsed_us());
        let is_over = result.is_ok() && ends(body).await;
        (is_over, result)
    }

    async fn read_whole(&self, body: &mut Incoming) -> (bool, Result<Sample, Failed>) {
        match collect(body, self.limits.bytes).await {
            (bytes, Ok(true)) => (true, whole(&bytes, self.elapsed_us())),
            (_, Ok(false)) => (false, Err(self.too_large())),
            (_, Err(error)) => (false, Err(broken(&error, "within the answer"))),
        }
    }

    fn too_large(&self) -> Failed {
        Failed::new(Kind::TooLarge, format!("a body of more than {} bytes", self.limits.bytes))
    }

    fn elapsed_us(&self) -> u32 {
        u32::try_from(self.began.elapsed().as_micros()).unwrap_or(u32::MAX)
    }
}

async fn connect(endpoint: &Endpoint) -> Result<Connection, Failed> {
    let stream = TcpStream::connect(endpoint.addresses.as_slice()).await;
    let stream = stream.map_err(|error| Failed::new(Kind::Connect, error.to_string()))?;
    // Requests are written at once; where it cannot be set they only wait.
    let _ = stream.set_nodelay(true);
    let handshake = Builder::new().max_buf_size(MAX_BUFFER_BYTES).handshake(TokioIo::new(stream)).await;
    let (connection, driver) = handshake.map_err(|error| broken(&error, "while connecting"))?;
    // Ends with the connection; what breaks it, the request hears as well.
    tokio::spawn(driver);
    Ok(connection)
}

fn broken(error: &hyper::Error, when: &str) -> Failed {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    let is_no_http = error.is_parse() || invalid_chunk(error);
    let kind = if error.is_parse_too_large() {
        Kind::TooLarge
    } else if is_no_http {
        Kind::Http
    } else {
        Kind::Cut
    };
    Failed::new(kind, format!("{when}: {error}{cause}"))
}

/// The length of a chunk is no number, or its end is missing.
fn invalid_chunk(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| matches!(cause.kind(), std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData))
}

/// Whether the body was read to its end, and its beginning. An error that is cut off is shown as far as it came.
async fn read_error(body: &mut Incoming) -> (bool, Vec<u8>) {
    let (bytes, outcome) = collect(body, MAX_ERROR_BYTES).await;
    (outcome.unwrap_or(false), bytes)
}

/// Up to `most` bytes, as far as they come, and whether that is all.
async fn collect(body: &mut Incoming, most: usize) -> (Vec<u8>, Result<bool, hyper::Error>) {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return (bytes, Err(error)),
        };
        let Ok(data) = frame.into_data() else { continue };
        let fits = data.len().min(most - bytes.len());
        bytes.extend_from_slice(&data[..fits]);
        if fits < data.len() {
            return (bytes, Ok(false));
        }
    }
    (bytes, Ok(true))
}

/// Whether the body ends now, as it should behind the last event; blank lines may follow.
async fn ends(body: &mut Incoming) -> bool {
    let rest = async { collect(body, MAX_BUFFER_BYTES).await.1.unwrap_or(false) };
    timeout(LINGER, rest).await.unwrap_or(false)
}
