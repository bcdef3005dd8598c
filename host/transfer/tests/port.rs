//! A port between a thread that only looks when its bell rings and a connection: what rings, what is counted, and what is over when a
//! connection is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use millrace_transfer::tcp::{Channel, Endpoint, FrameReader, Port, PortCounters, PortEvent, Secret, Wire, answer};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// For what happens at once.
const SOON: Duration = Duration::from_secs(5);

/// Two sides that know the secret.
async fn pair() -> (Channel, Channel) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let endpoint = Endpoint::new(Secret::new([1; 32])).unwrap();
    let accept = async { endpoint.accept(listener.accept().await.unwrap().0).await.unwrap().0 };
    let (accepted, connected) = tokio::join!(accept, endpoint.connect(address, "lane x"));
    (accepted, connected.unwrap())
}

/// A thread that sleeps until it is rung for.
struct Sleeper {
    port: Port,
    rung: Arc<AtomicU32>,
}

impl Sleeper {
    fn new() -> (Self, Wire) {
        let (port, wire) = Port::new();
        let rung = Arc::new(AtomicU32::new(0));
        let count = rung.clone();
        port.bell().hang(Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        (Self { port, rung }, wire)
    }

    /// Forgets how often it rang.
    fn lie_down(&self) {
        self.rung.store(0, Ordering::SeqCst);
    }

    async fn is_rung(&self) -> bool {
        let began = Instant::now();
        while self.rung.load(Ordering::SeqCst) == 0 && began.elapsed() < SOON {
            sleep(Duration::from_millis(1)).await;
        }
        self.rung.load(Ordering::SeqCst) > 0
    }

    /// The event that it is rung for.
    async fn wakes_to(&mut self) -> PortEvent {
        let began = Instant::now();
        loop {
            assert!(self.is_rung().await && began.elapsed() < SOON, "the bell did not ring");
            self.lie_down();
            if let Some(event) = self.port.take() {
                // What else there is has rung too.
                self.rung.fetch_add(1, Ordering::SeqCst);
                return event;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_rings_the_bell() {
    let (accepted, connected) = pair().await;
    let (mut sleeper, mut wire) = Sleeper::new();
    tokio::spawn(async move { wire.carry(accepted).await });
    assert!(matches!(sleeper.wakes_to().await, PortEvent::Opened));
    let (reader, mut writer) = connected.split();
    for frame in [&[1_u8][..], &[2, 2]] {
        sleeper.lie_down();
        writer.write(frame).await.unwrap();
        writer.flush().await.unwrap();
        assert!(matches!(sleeper.wakes_to().await, PortEvent::Frame(bytes) if bytes == frame));
    }
    sleeper.lie_down();
    drop((reader, writer));
    assert!(matches!(sleeper.wakes_to().await, PortEvent::Closed(_)));
    assert_eq!(sleeper.port.counters(), PortCounters { sent_bytes: 0, received_bytes: 3, connections: 1 });
    assert!(sleeper.port.room() == 0 && !sleeper.port.send(vec![3]), "the connection is over");
}

/// Sends frames until there has been no room for a while.
async fn fill(sleeper: &mut Sleeper, frame: &[u8]) -> usize {
    let (mut sent, mut full) = (0, Instant::now());
    while full.elapsed() < Duration::from_millis(300) {
        let room = sleeper.port.room();
        let taken = sleeper.port.send(frame.to_vec());
        // Room may come between the two.
        assert!(taken || room == 0, "what has room is taken");
        if taken {
            (sent, full) = (sent + 1, Instant::now());
        } else {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(sent < 2_000, "nothing holds it back");
    }
    sent
}

async fn read(reader: &mut FrameReader, frames: usize) {
    for _ in 0..frames {
        timeout(SOON, reader.next()).await.expect("a frame").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_after_there_was_none_rings_the_bell() {
    let (accepted, connected) = pair().await;
    let (mut sleeper, mut wire) = Sleeper::new();
    tokio::spawn(async move { wire.carry(accepted).await });
    assert!(matches!(sleeper.wakes_to().await, PortEvent::Opened));
    let (mut reader, _writer) = connected.split();
    for _ in 0..2 {
        let sent = fill(&mut sleeper, &[7; 100_000]).await;
        sleeper.lie_down();
        read(&mut reader, sent).await;
        assert!(sleeper.is_rung().await && sleeper.port.room() > 0);
    }
    let counters = sleeper.port.counters();
    assert!(counters.sent_bytes > 0 && counters.sent_bytes.is_multiple_of(100_000) && counters.received_bytes == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_ends_a_connection_hears_of_its_end() {
    let (accepted, connected) = pair().await;
    let (mut sleeper, mut wire) = Sleeper::new();
    tokio::spawn(async move { wire.carry(accepted).await });
    assert!(matches!(sleeper.wakes_to().await, PortEvent::Opened));
    sleeper.port.close();
    assert!(matches!(sleeper.wakes_to().await, PortEvent::Closed(_)));
    let (mut reader, _writer) = connected.split();
    assert!(timeout(SOON, reader.next()).await.expect("its peer hears of it too").is_err());
}

/// Whoever comes anew has given its earlier connection up: the thread hears of one end for each beginning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_connection_ends_the_one_before() {
    let (mut sleeper, wire) = Sleeper::new();
    let (door, channels) = mpsc::channel(4);
    tokio::spawn(answer(channels, wire));
    let mut others = Vec::new();
    for round in 0..3 {
        let (accepted, connected) = pair().await;
        others.push(connected.split());
        door.send(accepted).await.unwrap();
        if round > 0 {
            assert!(matches!(sleeper.wakes_to().await, PortEvent::Closed(_)), "round {round}");
        }
        assert!(matches!(sleeper.wakes_to().await, PortEvent::Opened), "round {round}");
        assert!(sleeper.port.send(vec![round]));
        let read = timeout(SOON, others[usize::from(round)].0.next()).await.expect("a frame");
        assert_eq!(read.unwrap(), [round]);
    }
    assert!(timeout(SOON, others[0].0.next()).await.expect("its end").is_err());
    assert_eq!(sleeper.port.counters().connections, 3);
}
