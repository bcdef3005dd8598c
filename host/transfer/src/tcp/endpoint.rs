//! Making a connection: TLS, then both proofs of the secret. Whoever cannot prove it costs a handshake and nothing else.
//!
//! ```text
//!   listens  -> magic, version
//!   connects -> magic, version, proof(session), purpose
//!   listens  -> proof(session)
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::secret::{PROOF_BYTES, Side};
use super::{Channel, Secret, tls};

/// From a connection to the last proof; two round trips on a slow link take a tenth of it.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Of [`Endpoint::connect_within`].
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

const MAGIC: [u8; 8] = *b"MILLRACE";
/// Of this exchange and of the frames behind it.
const VERSION: u16 = 1;
const SESSION_LABEL: &[u8] = b"EXPORTER-millrace-session";

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("cannot connect: {0}")]
    Unreachable(std::io::Error),
    #[error("the handshake broke off: {0}")]
    Broken(std::io::Error),
    #[error("the handshake took longer than {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Late,
    #[error("what answers is no Millrace engine")]
    Stranger,
    #[error("the peer speaks version {0} of the transport, this side version {VERSION}; run the same release on both sides")]
    Version(u16),
    #[error("the peer does not know this deployment's secret")]
    Secret,
    #[error("TLS cannot be set up: {0}")]
    Settings(String),
}

impl HandshakeError {
    /// Whether the same peer may answer otherwise in a moment.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Broken(_) | Self::Late => true,
            Self::Stranger | Self::Version(_) | Self::Secret | Self::Settings(_) => false,
        }
    }
}

/// One process's end of connections, whichever side begins them.
#[derive(Clone)]
pub struct Endpoint {
    secret: Secret,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Endpoint {
    /// # Errors
    /// Where TLS cannot be set up.
    pub fn new(secret: Secret) -> Result<Self, HandshakeError> {
        Ok(Self { secret, acceptor: TlsAcceptor::from(tls::server()?), connector: TlsConnector::from(tls::client()?) })
    }

    /// Connects and says what for.
    ///
    /// # Errors
    /// Where nobody is there, it takes too long, or the peer does not prove the secret.
    pub async fn connect(&self, to: impl ToSocketAddrs, purpose: &str) -> Result<Channel, HandshakeError> {
        timeout(HANDSHAKE_TIMEOUT, self.open(to, purpose)).await.map_err(|_| HandshakeError::Late)?
    }

    /// Like [`Self::connect`], again and again for so long where it may help: others may crowd the peer, or it may not listen yet.
    ///
    /// # Errors
    /// The last try's.
    pub async fn connect_within(&self, to: SocketAddr, purpose: &str, patience: Duration) -> Result<Channel, HandshakeError> {
        let began = Instant::now();
        loop {
            match self.connect(to, purpose).await {
                Err(error) if error.may_pass() && began.elapsed() < patience => sleep(BETWEEN_TRIES).await,
                connected => return connected,
            }
        }
    }

    /// Takes a connection, and tells what the peer wants it for.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub async fn accept(&self, stream: TcpStream) -> Result<(Channel, String), HandshakeError> {
        timeout(HANDSHAKE_TIMEOUT, self.answer(stream)).await.map_err(|_| HandshakeError::Late)?
    }

    async fn open(&self, to: impl ToSocketAddrs, purpose: &str) -> Result<Channel, HandshakeError> {
        let stream = TcpStream::connect(to).await.map_err(HandshakeError::Unreachable)?;
        stream.set_nodelay(true).map_err(HandshakeError::Broken)?;
        let name = ServerName::try_from(tls::SERVER_NAME).map_err(|error| HandshakeError::Settings(error.to_string()))?;
        let stream = self.connector.connect(name, stream).await.map_err(HandshakeError::Broken)?;
        let session = session(stream.get_ref().1)?;
        let mut stream = TlsStream::from(stream);
        expect_version(&mut stream).await?;
        let mut hello = version().to_vec();
        hello.extend_from_slice(&self.secret.prove(Side::Connects, &session));
        let purpose = purpose.get(..purpose.floor_char_boundary(usize::from(u8::MAX))).unwrap_or_default();
        hello.push(u8::try_from(purpose.len()).unwrap_or(0));
        hello.extend_from_slice(purpose.as_bytes());
        say(&mut stream, &hello).await?;
        self.expect_proof(&mut stream, Side::Listens, &session).await?;
        Ok(Channel::new(stream))
    }

    async fn answer(&self, stream: TcpStream) -> Result<(Channel, String), HandshakeError> {
        stream.set_nodelay(true).map_err(HandshakeError::Broken)?;
        let stream = self.acceptor.accept(stream).await.map_err(HandshakeError::Broken)?;
        let session = session(stream.get_ref().1)?;
        let mut stream = TlsStream::from(stream);
        say(&mut stream, &version()).await?;
        expect_version(&mut stream).await?;
        self.expect_proof(&mut stream, Side::Connects, &session).await?;
        let length = stream.read_u8().await.map_err(HandshakeError::Broken)?;
        let mut purpose = vec![0; usize::from(length)];
        stream.read_exact(&mut purpose).await.map_err(HandshakeError::Broken)?;
        let purpose = String::from_utf8(purpose).map_err(|_| HandshakeError::Stranger)?;
        say(&mut stream, &self.secret.prove(Side::Listens, &session)).await?;
        Ok((Channel::new(stream), purpose))
    }

    async fn expect_proof(
        &self,
        stream: &mut TlsStream<TcpStream>,
        side: Side,
        session: &[u8; 32],
    ) -> Result<(), HandshakeError> {
        let mut proof = [0; PROOF_BYTES];
        stream.read_exact(&mut proof).await.map_err(HandshakeError::Broken)?;
        if self.secret.verify(side, session, &proof) { Ok(()) } else { Err(HandshakeError::Secret) }
    }
}

fn version() -> [u8; 10] {
    let mut bytes = [0; 10];
    let (magic, version) = bytes.split_at_mut(MAGIC.len());
    magic.copy_from_slice(&MAGIC);
    version.copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

async fn say(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) -> Result<(), HandshakeError> {
    stream.write_all(bytes).await.map_err(HandshakeError::Broken)?;
    stream.flush().await.map_err(HandshakeError::Broken)
}

async fn expect_version(stream: &mut TlsStream<TcpStream>) -> Result<(), HandshakeError> {
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic).await.map_err(HandshakeError::Broken)?;
    if magic != MAGIC {
        return Err(HandshakeError::Stranger);
    }
    match stream.read_u16_le().await.map_err(HandshakeError::Broken)? {
        VERSION => Ok(()),
        other => Err(HandshakeError::Version(other)),
    }
}

/// What only the two ends of this TLS session know.
fn session<D>(connection: &rustls::ConnectionCommon<D>) -> Result<[u8; 32], HandshakeError> {
    connection.export_keying_material([0; 32], SESSION_LABEL, None).map_err(|error| HandshakeError::Settings(error.to_string()))
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Endpoint")
    }
}
