//! What is logged of connections that come to nothing: once, however often they come, and again when it is something else.

use std::fmt::{Debug, Write as _};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_transfer::tcp::{Doors, Endpoint, MAX_UNPROVEN, Port, Secret, dial, listen};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Metadata, Subscriber};

/// The log of one test's thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// From now on, as long as the guard lives.
    fn begin() -> (Self, DefaultGuard) {
        let log = Self::default();
        (log.clone(), set_default(log))
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Once there are so many, and a while later.
    async fn at_least(&self, lines: usize) -> Vec<String> {
        let began = Instant::now();
        while self.lines().len() < lines && began.elapsed() < Duration::from_secs(5) {
            sleep(Duration::from_millis(5)).await;
        }
        sleep(Duration::from_millis(700)).await;
        self.lines()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("millrace")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

fn endpoint(secret: u8) -> Endpoint {
    Endpoint::new(Secret::new([secret; 32])).unwrap()
}

/// A listener with one door, whose channels end at once.
async fn doorway() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (door, mut channels) = mpsc::channel(1);
    tokio::spawn(async move { while channels.recv().await.is_some() {} });
    tokio::spawn(listen(listener, endpoint(1), Doors::from([("control".to_owned(), door)])));
    address
}

#[tokio::test]
async fn a_peer_that_cannot_be_reached_is_told_once_for_each_reason() {
    let (log, _guard) = Log::begin();
    // Nobody listens there, and nobody can.
    let (refused, nowhere) = ("127.0.0.1:1".parse().unwrap(), "255.255.255.255:9".parse().unwrap());
    let (peer, at) = watch::channel(Some(refused));
    let (_port, wire) = Port::new();
    tokio::spawn(dial(endpoint(1), "lane x".into(), at, wire));
    for (told, address) in [(1, refused), (2, nowhere), (3, refused)] {
        peer.send(Some(address)).unwrap();
        let lines = log.at_least(told).await;
        let last = lines.last().map_or("", String::as_str);
        assert!(lines.len() == told && last.starts_with("WARN") && last.contains("cannot connect"), "{lines:?}");
        assert!(last.contains("lane x") && last.contains(&address.to_string()), "{lines:?}");
    }
}

#[tokio::test]
async fn a_trouble_that_comes_back_after_it_was_over_is_told_again() {
    let (log, _guard) = Log::begin();
    // Not where other tests get their ports, so that nobody else comes to listen here.
    let first = TcpListener::bind("127.0.0.7:0").await.unwrap();
    let address = first.local_addr().unwrap();
    let (_peer, at) = watch::channel(Some(address));
    let (_port, wire) = Port::new();
    tokio::spawn(dial(endpoint(1), "lane x".into(), at, wire));
    let take_one = async |listener: TcpListener| {
        let (stream, _) = listener.accept().await.unwrap();
        drop(listener);
        assert!(endpoint(1).accept(stream).await.is_ok());
    };
    take_one(first).await;
    let lines = log.at_least(1).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    take_one(TcpListener::bind(address).await.unwrap()).await;
    let lines = log.at_least(2).await;
    assert!(lines.len() == 2 && lines[0] == lines[1], "{lines:?}");
}

#[tokio::test]
async fn refusals_are_told_once_in_ten_seconds_with_how_many_there_were() {
    let (log, _guard) = Log::begin();
    let address = doorway().await;
    let began = Instant::now();
    for _ in 0..10 {
        assert!(endpoint(2).connect(address, "control").await.is_err());
    }
    let lines = log.at_least(1).await;
    assert!(lines.len() == 1 && lines[0].contains("secret") && lines[0].contains("untold=0 "), "{lines:?}");
    sleep(Duration::from_millis(10_500).saturating_sub(began.elapsed())).await;
    assert!(endpoint(2).connect(address, "control").await.is_err());
    let lines = log.at_least(2).await;
    assert!(lines.len() == 2 && lines[1].contains("untold=9 "), "{lines:?}");
}

#[tokio::test]
async fn a_door_that_is_not_there_is_told() {
    let (log, _guard) = Log::begin();
    let address = doorway().await;
    assert!(endpoint(1).connect(address, "lane nowhere").await.is_ok());
    let lines = log.at_least(1).await;
    assert!(lines.len() == 1 && lines[0].contains("`lane nowhere`"), "{lines:?}");
}

#[tokio::test]
async fn a_crowd_is_told_when_somebody_has_to_go_for_it() {
    let (log, _guard) = Log::begin();
    let address = doorway().await;
    let mut crowd = Vec::new();
    for _ in 0..MAX_UNPROVEN {
        crowd.push(TcpStream::connect(address).await.unwrap());
    }
    assert_eq!(log.at_least(0).await, Vec::<String>::new(), "there is a place for each of them");
    crowd.push(TcpStream::connect(address).await.unwrap());
    let lines = log.at_least(1).await;
    assert!(lines.len() == 1 && lines[0].contains("had not proved themselves"), "{lines:?}");
}
