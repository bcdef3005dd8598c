//! A side that connects and is turned away behind the handshake, again and again: it comes back, but not in a flood.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use millrace_transfer::tcp::{Channel, Endpoint, Port, PortEvent, Secret, dial};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

fn endpoint() -> Endpoint {
    Endpoint::new(Secret::new([1; 32])).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_turned_away_every_time_comes_back_ever_later() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (door, mut channels) = mpsc::channel::<Channel>(64);
    let taken = Arc::new(AtomicU32::new(0));
    let count = taken.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (channel, _) = endpoint().accept(stream).await.unwrap();
            count.fetch_add(1, Ordering::Relaxed);
            let _ = door.send(channel).await;
        }
    });
    let (mut port, wire) = Port::new();
    let (_peer, at) = watch::channel(Some(address));
    tokio::spawn(dial(endpoint(), "lane x".into(), at, wire));
    tokio::spawn(async move {
        // The thread behind the port, which reads what comes.
        loop {
            while let Some(PortEvent::Opened | PortEvent::Closed(_) | PortEvent::Frame(_)) = port.take() {}
            sleep(Duration::from_millis(5)).await;
        }
    });
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        drop(channels.recv().await);
    }
    let turned_away = taken.load(Ordering::Relaxed);
    assert!((4..=14).contains(&turned_away), "{turned_away} connections in three seconds");
    // One that lasts is of use: when it breaks, the next comes at once.
    let good = channels.recv().await.unwrap();
    sleep(Duration::from_millis(2_200)).await;
    let broke = Instant::now();
    drop(good);
    assert!(channels.recv().await.is_some());
    assert!(broke.elapsed() < Duration::from_millis(250), "{:?}", broke.elapsed());
}
