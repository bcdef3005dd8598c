//! The port of an engine process: who connects proves itself, says what for, and is handed to whom that is. Knows no order and no page.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millrace_transfer::tcp::{Channel, Endpoint};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

use super::CONTROL;

/// Connections that may be proving themselves at a time.
const HANDSHAKES: usize = 16;

/// Takes connections and hands them to whom they are for. Strangers cost a handshake.
pub(super) async fn accept(
    listener: TcpListener,
    endpoint: Endpoint,
    control: mpsc::Sender<Channel>,
    doors: BTreeMap<String, mpsc::Sender<Channel>>,
) {
    let (doors, handshakes) = (Arc::new(doors), Arc::new(Semaphore::new(HANDSHAKES)));
    loop {
        let Ok(permit) = handshakes.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot take a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (endpoint, control, doors) = (endpoint.clone(), control.clone(), doors.clone());
        tokio::spawn(async move {
            let accepted = endpoint.accept(stream).await;
            drop(permit);
            match accepted {
                Ok((channel, purpose)) if purpose == CONTROL => {
                    let _ = control.send(channel).await;
                }
                Ok((channel, purpose)) => match doors.get(&purpose) {
                    Some(door) => {
                        let _ = door.send(channel).await;
                    }
                    None => tracing::warn!(purpose, "a peer wants what this engine does not have"),
                },
                Err(error) => tracing::warn!(%error, "a connection is refused"),
            }
        });
    }
}
