//! Keeping a connection: the side that connects tries again until there is one, the side that listens takes the newest.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::{Channel, Endpoint, HandshakeError, Wire};

/// Between two tries, at first; doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A connection that lasted so long was of use: behind it the pause is the first again. One that ends earlier may have been refused
/// by what is spoken on it, which this does not know, and the next one may be too.
const OF_USE: Duration = Duration::from_secs(2);

/// Keeps a port connected to wherever its peer is, until the port or `peer` is gone. What the peer is asked for is `purpose`.
pub async fn dial(endpoint: Endpoint, purpose: String, mut peer: watch::Receiver<Option<SocketAddr>>, mut wire: Wire) {
    let mut pause = FIRST_PAUSE;
    let mut told = None;
    while !wire.is_closed() {
        let Some(address) = *peer.borrow_and_update() else {
            if peer.changed().await.is_err() {
                return;
            }
            continue;
        };
        let connection = async {
            match endpoint.connect(address, &purpose).await {
                Ok(channel) => {
                    let began = Instant::now();
                    wire.carry(channel).await;
                    Ok(began.elapsed() >= OF_USE)
                }
                Err(error) => Err(error),
            }
        };
        let ended = tokio::select! {
            ended = connection => ended,
            changed = peer.changed() => {
                wire.give_up().await;
                if changed.is_err() {
                    return;
                }
                pause = FIRST_PAUSE;
                continue;
            }
        };
        pause = if matches!(ended, Ok(true)) { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        tell_once(&mut told, &purpose, address, ended.as_ref().err());
        sleep(pause).await;
    }
}

/// The same trouble is logged once, however often it comes.
fn tell_once(told: &mut Option<String>, purpose: &str, address: SocketAddr, failed: Option<&HandshakeError>) {
    let trouble = failed.map(ToString::to_string);
    if trouble != *told
        && let Some(why) = &trouble
    {
        tracing::warn!(purpose, %address, why, "cannot connect to the peer engine; trying again");
    }
    *told = trouble;
}

/// Carries the newest of the channels that a listener hands over, until it hands over no more. An older one ends: whoever is there
/// anew has given it up.
pub async fn answer(mut channels: mpsc::Receiver<Channel>, mut wire: Wire) {
    let mut next = channels.recv().await;
    while let Some(channel) = next {
        next = tokio::select! {
            newer = channels.recv() => {
                wire.give_up().await;
                newer
            }
            () = wire.carry(channel) => channels.recv().await,
        };
    }
}
