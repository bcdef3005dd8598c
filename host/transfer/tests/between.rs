//! Somebody in between who ends both TLS sessions himself, with certificates of his own, and carries on whatever he hears. He lacks the
//! secret, and a proof is of one session, so neither side takes him for the other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use millrace_transfer::tcp::{Channel, Endpoint, HandshakeError, Secret};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// What either side says first.
const VERSION: &[u8] = b"MILLRACE\x01\x00";
const PROOF_BYTES: usize = 32;
const PURPOSE: &str = "control";
/// For what ends at once where the attacker is seen.
const LONG: Duration = Duration::from_secs(5);

fn honest() -> Endpoint {
    Endpoint::new(Secret::new([1; 32])).unwrap()
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// The honest side that listens, once.
async fn victim(listener: TcpListener) -> Result<(Channel, String), HandshakeError> {
    honest().accept(listener.accept().await.unwrap().0).await
}

/// Listens with a certificate of his own.
async fn end_session_of(listener: TcpListener) -> server::TlsStream<TcpStream> {
    let made = rcgen::generate_simple_self_signed(["millrace.internal".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config)).accept(listener.accept().await.unwrap().0).await.unwrap()
}

/// Connects to whoever is there.
async fn begin_session_with(address: SocketAddr) -> client::TlsStream<TcpStream> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("millrace.internal").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is off".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The whole first message of a side that connects.
async fn read_hello(stream: &mut server::TlsStream<TcpStream>) -> Vec<u8> {
    let mut hello = vec![0; VERSION.len() + PROOF_BYTES + 1 + PURPOSE.len()];
    stream.read_exact(&mut hello).await.unwrap();
    hello
}

/// Every byte is carried on, in both directions: the proofs are the honest sides' own, but of other sessions.
#[tokio::test]
async fn a_proof_that_is_carried_on_is_worth_nothing() {
    let ((victim_listens, victim_at), (between, between_at)) = (listen().await, listen().await);
    let carry = async {
        let mut from = end_session_of(between).await;
        let mut to = begin_session_with(victim_at).await;
        let _ = timeout(LONG, copy_bidirectional(&mut from, &mut to)).await;
    };
    let client = honest();
    let (accepted, connected, ()) = tokio::join!(victim(victim_listens), client.connect(between_at, PURPOSE), carry);
    assert!(matches!(accepted, Err(HandshakeError::Secret)), "the listening side sees that the proof is of another session");
    assert!(matches!(connected, Err(HandshakeError::Broken(_))), "the connecting side never hears a proof");
}

/// A proof that was heard before, said again in a new session.
#[tokio::test]
async fn a_proof_that_was_recorded_is_worth_nothing() {
    let ((victim_listens, victim_at), (between, between_at)) = (listen().await, listen().await);
    let record = async {
        let mut from = end_session_of(between).await;
        from.write_all(VERSION).await.unwrap();
        let hello = read_hello(&mut from).await;
        drop(from);
        let mut to = begin_session_with(victim_at).await;
        to.write_all(&hello).await.unwrap();
        let mut said = Vec::new();
        let _ = timeout(LONG, to.read_to_end(&mut said)).await;
        said
    };
    let client = honest();
    let (accepted, connected, said) = tokio::join!(victim(victim_listens), client.connect(between_at, PURPOSE), record);
    assert!(matches!(accepted, Err(HandshakeError::Secret)) && connected.is_err());
    assert_eq!(said, VERSION, "the listening side proves nothing to him");
}

/// Whoever listens in the place of an engine: with a proof that he made up, and with the client's own sent back.
#[tokio::test]
async fn a_false_proof_of_the_listening_side_is_refused() {
    for sends_back in [false, true] {
        let (between, between_at) = listen().await;
        let pretend = async {
            let mut from = end_session_of(between).await;
            from.write_all(VERSION).await.unwrap();
            let hello = read_hello(&mut from).await;
            let own = &hello[VERSION.len()..VERSION.len() + PROOF_BYTES];
            let proof = if sends_back { own.to_vec() } else { vec![0x5a; PROOF_BYTES] };
            from.write_all(&proof).await.unwrap();
            let _ = timeout(LONG, from.read_to_end(&mut Vec::new())).await;
        };
        let client = honest();
        let (connected, ()) = tokio::join!(client.connect(between_at, PURPOSE), pretend);
        assert!(matches!(connected, Err(HandshakeError::Secret)), "sent back: {sends_back}");
    }
}

/// The same ways of the attacker with an honest proof, lest the others fail for another reason.
#[tokio::test]
async fn the_attackers_tools_do_carry_an_honest_exchange() {
    let (listener, address) = listen().await;
    let client = honest();
    let (accepted, connected) = tokio::join!(victim(listener), client.connect(address, PURPOSE));
    assert!(accepted.is_ok_and(|(_, purpose)| purpose == PURPOSE) && connected.is_ok());
    // His own session is one, as far as TLS goes: the honest side tells its version in it.
    let (listener, address) = listen().await;
    let look = async {
        let mut to = begin_session_with(address).await;
        let mut said = [0; VERSION.len()];
        to.read_exact(&mut said).await.unwrap();
        assert_eq!(said, VERSION);
    };
    let (accepted, ()) = tokio::join!(victim(listener), look);
    assert!(matches!(accepted, Err(HandshakeError::Broken(_))));
}

/// Whoever says something else first is told apart from a Millrace of another release, by either side.
#[tokio::test]
async fn another_release_and_a_stranger_are_told_apart() {
    let is_stranger = |error: &HandshakeError| matches!(error, HandshakeError::Stranger);
    let is_release = |error: &HandshakeError| matches!(error, HandshakeError::Version(2));
    for (first, is_other) in [(b"MILLRACF\x01\x00", false), (b"MILLRACE\x02\x00", true)] {
        let expected = |error: &HandshakeError| if is_other { is_release(error) } else { is_stranger(error) };
        let first = first.as_slice();
        let (listener, address) = listen().await;
        let speak = async {
            let mut to = begin_session_with(address).await;
            to.write_all(&[first, &[0; PROOF_BYTES + 1]].concat()).await.unwrap();
            let _ = timeout(LONG, to.read_to_end(&mut Vec::new())).await;
        };
        let (accepted, ()) = tokio::join!(victim(listener), speak);
        assert!(accepted.is_err_and(|error| expected(&error)), "{first:?}");
        let (between, between_at) = listen().await;
        let speak = async {
            let mut from = end_session_of(between).await;
            from.write_all(first).await.unwrap();
            let _ = timeout(LONG, from.read_to_end(&mut Vec::new())).await;
        };
        let client = honest();
        // No more tries are made, because none would end otherwise.
        let (connected, ()) = tokio::join!(client.connect_within(between_at, PURPOSE, LONG), speak);
        assert!(connected.is_err_and(|error| expected(&error)), "{first:?}");
    }
}
