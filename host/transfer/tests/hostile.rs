//! Peers that are none, or mean harm: each costs its own connection within a bound of time, and the next one is served.

use std::time::{Duration, Instant};

use millrace_transfer::tcp::{Channel, ChannelError, Endpoint, HANDSHAKE_TIMEOUT, HandshakeError, Port, PortEvent, Secret};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

fn endpoint(secret: u8) -> Endpoint {
    Endpoint::new(Secret::new([secret; 32])).unwrap()
}

async fn listen() -> (TcpListener, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// What the listening side makes of a peer that does `attack`.
async fn accepted<F: Future<Output = ()>>(attack: impl FnOnce(TcpStream) -> F) -> Result<(Channel, String), HandshakeError> {
    let (listener, address) = listen().await;
    let attacker = async { attack(TcpStream::connect(address).await.unwrap()).await };
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        endpoint(1).accept(stream).await
    };
    tokio::select! {
        (accepted, ()) = async { tokio::join!(server, attacker) } => accepted,
        () = tokio::time::sleep(HANDSHAKE_TIMEOUT + Duration::from_secs(3)) => panic!("a stranger holds a connection for too long"),
    }
}

/// A connection of two sides that know the secret.
async fn pair() -> (Channel, Channel) {
    let (listener, address) = listen().await;
    let (one, other) = (endpoint(1), endpoint(1));
    let accept = async { one.accept(listener.accept().await.unwrap().0).await.unwrap() };
    let (accepted, connected) = tokio::join!(accept, other.connect(address, "lane x"));
    assert_eq!(accepted.1, "lane x");
    (accepted.0, connected.unwrap())
}

#[tokio::test]
async fn garbage_is_no_handshake() {
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &[22, 3, 1, 255, 255]] {
        let sent = |mut stream: TcpStream| async move {
            let _ = stream.write_all(garbage).await;
            let _ = stream.shutdown().await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        };
        assert!(matches!(accepted(sent).await, Err(HandshakeError::Broken(_))));
    }
}

#[tokio::test]
async fn whoever_says_nothing_or_one_byte_at_a_time_is_late() {
    let began = Instant::now();
    let drip = |mut stream: TcpStream| async move {
        // The beginning of a record, for longer than a handshake may take.
        for byte in [22_u8, 3, 1, 0, 200].into_iter().chain(std::iter::repeat_n(0, 20)) {
            if stream.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    assert!(matches!(accepted(drip).await, Err(HandshakeError::Late)));
    assert!(began.elapsed() < HANDSHAKE_TIMEOUT + Duration::from_secs(4));
}

#[tokio::test]
async fn whoever_listens_and_says_nothing_is_late() {
    let (listener, address) = listen().await;
    let client = endpoint(1);
    let held = tokio::spawn(async move { listener.accept().await.unwrap() });
    let connected = tokio::time::timeout(HANDSHAKE_TIMEOUT + Duration::from_secs(3), client.connect(address, "control"));
    assert!(matches!(connected.await, Ok(Err(HandshakeError::Late))));
    drop(held.await);
}

/// What a purpose may be is cut at a character, never within one.
#[tokio::test]
async fn a_purpose_is_cut_to_what_the_other_side_takes() {
    for (purpose, taken) in [("x".repeat(255), "x".repeat(255)), ("é".repeat(200), "é".repeat(127))] {
        let (listener, address) = listen().await;
        let (one, other) = (endpoint(1), endpoint(1));
        let accept = async { one.accept(listener.accept().await.unwrap().0).await.unwrap().1 };
        let (asked, connected) = tokio::join!(accept, other.connect(address, &purpose));
        assert!(asked == taken && connected.is_ok());
    }
}

#[tokio::test]
async fn another_secret_is_refused_on_both_sides() {
    let (listener, address) = listen().await;
    let server = endpoint(1);
    let accept = async { server.accept(listener.accept().await.unwrap().0).await };
    let wrong = endpoint(2);
    let (accepted, connected) = tokio::join!(accept, wrong.connect(address, "control"));
    assert!(matches!(accepted, Err(HandshakeError::Secret)));
    assert!(connected.is_err(), "the listening side proves nothing to a stranger");
}

#[tokio::test]
async fn a_frame_that_is_too_long_ends_the_connection() {
    let (accepted, connected) = pair().await;
    let (mut reader, _writer) = accepted.split();
    let (_reader, mut writer) = connected.split();
    let whole = vec![7; millrace_transfer::MAX_FRAME_BYTES];
    let write = async {
        writer.write(&whole).await.unwrap();
        writer.flush().await.unwrap();
        let longer = vec![7; millrace_transfer::MAX_FRAME_BYTES + 1];
        assert!(matches!(writer.write(&longer).await, Err(ChannelError::TooLong(_))), "nor is one sent");
    };
    let (read, ()) = tokio::join!(reader.next(), write);
    assert_eq!(read.unwrap().len(), whole.len());
}

/// Back-pressure: a thread that does not take frames holds its peer back at a bound, and loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_is_held_back_at_a_bound() {
    let (accepted, connected) = pair().await;
    let (mut slow, mut slow_wire) = Port::new();
    let (mut fast, mut fast_wire) = Port::new();
    tokio::spawn(async move { slow_wire.carry(accepted).await });
    tokio::spawn(async move { fast_wire.carry(connected).await });
    let opened = async |port: &mut Port| {
        while !matches!(port.take(), Some(PortEvent::Opened)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    opened(&mut fast).await;
    opened(&mut slow).await;
    let frame = |number: u32| [&number.to_le_bytes()[..], &[0; 100_000]].concat();
    let (mut sent, mut idle) = (0_u32, 0);
    while idle < 100 {
        if fast.send(frame(sent)) {
            (sent, idle) = (sent + 1, 0);
        } else {
            idle += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(sent < 2_000, "nothing holds it back");
    }
    let mut taken = 0;
    while taken < sent {
        match slow.take() {
            Some(PortEvent::Frame(bytes)) => {
                assert_eq!(bytes[..4], taken.to_le_bytes());
                taken += 1;
            }
            Some(other) => panic!("{other:?}"),
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    assert!(fast.send(frame(sent)), "and there is room again");
    assert_eq!(slow.counters().received_bytes, u64::from(sent) * 100_004);
}
