//! A listener that strangers crowd: whoever knows the secret gets in at once, and nobody else holds more than a place for a while.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use millrace_transfer::tcp::{Channel, Doors, Endpoint, HANDSHAKE_TIMEOUT, HandshakeError, MAX_UNPROVEN, Secret, listen};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

fn endpoint(secret: u8) -> Endpoint {
    Endpoint::new(Secret::new([secret; 32])).unwrap()
}

/// A listener with one door, and who comes through it.
async fn listener() -> (SocketAddr, mpsc::Receiver<Channel>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (door, channels) = mpsc::channel(1);
    tokio::spawn(listen(listener, endpoint(1), Doors::from([("control".to_owned(), door)])));
    (address, channels)
}

async fn silent(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        streams.push(TcpStream::connect(address).await.unwrap());
    }
    streams
}

/// Whether the other side has ended it.
async fn is_over(stream: &mut TcpStream) -> bool {
    matches!(tokio::time::timeout(Duration::from_millis(20), stream.read_u8()).await, Ok(Err(_)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_peer_gets_in_at_once_however_many_say_nothing() {
    let (address, mut channels) = listener().await;
    let _crowd = silent(address, 120).await;
    let began = Instant::now();
    let connected = endpoint(1).connect(address, "control").await;
    assert!(connected.is_ok() && channels.recv().await.is_some());
    assert!(began.elapsed() < Duration::from_secs(1), "it took {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_go_when_too_many_have_not_proved_themselves() {
    let (address, _channels) = listener().await;
    let mut crowd = silent(address, MAX_UNPROVEN + 10).await;
    for _ in 0..200 {
        if is_over(&mut crowd[9]).await {
            break;
        }
    }
    for (at, stream) in crowd.iter_mut().enumerate().filter(|&(at, _)| !(14..70).contains(&at)) {
        assert_eq!(is_over(stream).await, at < 10, "connection {at} of {}", MAX_UNPROVEN + 10);
    }
}

/// They take no place either once they are told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_refused_leaves_the_door_to_others() {
    let (address, mut channels) = listener().await;
    for _ in 0..2 * MAX_UNPROVEN {
        let _ = endpoint(2).connect(address, "control").await;
    }
    let elsewhere = endpoint(1).connect(address, "lane nowhere").await.unwrap();
    let (mut reader, _writer) = elsewhere.split();
    assert!(reader.next().await.is_err(), "there is no such door");
    assert!(endpoint(1).connect(address, "control").await.is_ok() && channels.recv().await.is_some());
}

/// Nor does anybody who is still at it have to go for those that are over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_was_refused_is_none_of_the_crowd() {
    let (address, _channels) = listener().await;
    let (mut slow, began) = (silent(address, 1).await, Instant::now());
    for _ in 0..MAX_UNPROVEN + 10 {
        let mut stranger = TcpStream::connect(address).await.unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let _ = stranger.read_to_end(&mut Vec::new()).await;
    }
    // Its own time may be over on a machine that is very slow.
    assert!(!is_over(&mut slow[0]).await || began.elapsed() > HANDSHAKE_TIMEOUT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_crowded_is_tried_again_for_a_while() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        // The first are ended before they can prove anything.
        for _ in 0..3 {
            drop(listener.accept().await);
        }
        while let Ok((stream, _)) = listener.accept().await {
            let _ = endpoint(1).accept(stream).await;
        }
    });
    let patience = Duration::from_secs(20);
    assert!(endpoint(1).connect_within(address, "control", patience).await.is_ok());
    let (began, patience) = (Instant::now(), Duration::from_millis(300));
    let nobody = endpoint(1).connect_within("127.0.0.1:1".parse().unwrap(), "control", patience).await;
    assert!(matches!(nobody, Err(HandshakeError::Unreachable(_))));
    assert!((patience..Duration::from_secs(10)).contains(&began.elapsed()), "{:?}", began.elapsed());
}
