//! Taking connections: each proves itself in a task of its own, and goes through the door that it asks for. Nothing is waited for
//! before the next one is taken.
//!
//! ```text
//!   accept -> at most so many that prove themselves; one more ends the oldest of them -> the door of its purpose
//! ```
//! So whoever connects and says nothing takes a place only until others want it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep};

use super::{Channel, Endpoint, HandshakeError};

/// Connections that have not proved themselves, or that their door has not taken yet.
pub const MAX_UNPROVEN: usize = 64;
/// After a connection that could not be taken, where there is none to end in its favour.
const PAUSE: Duration = Duration::from_millis(100);
/// Refusals are logged once in so long.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Where channels go, by the purpose that their peers name.
pub type Doors = BTreeMap<String, mpsc::Sender<Channel>>;

/// Why a connection came to nothing.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("cannot take a connection: {0}")]
    Accept(std::io::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("a peer wants `{0}`, which this process does not have")]
    Purpose(String),
    #[error("{MAX_UNPROVEN} connections had not proved themselves when another came; the oldest was ended")]
    Crowd,
}

/// Takes connections until it is dropped.
pub async fn listen(listener: TcpListener, endpoint: Endpoint, doors: Doors) {
    let mut lobby = Lobby { endpoint, doors: Arc::new(doors), proving: JoinSet::new(), order: VecDeque::new() };
    let mut complaints = Complaints::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if lobby.enter(stream) {
                        complaints.hear(&Refused::Crowd);
                    }
                }
                Err(error) => {
                    complaints.hear(&Refused::Accept(error));
                    // Mostly the process has no file left for it: the oldest gives up its own.
                    if !lobby.end_oldest() {
                        sleep(PAUSE).await;
                    }
                }
            },
            Some(ended) = lobby.proving.join_next() => lobby.left(ended, &mut complaints),
        }
    }
}

/// Whoever has not gone through a door yet.
struct Lobby {
    endpoint: Endpoint,
    doors: Arc<Doors>,
    proving: JoinSet<Result<(), Refused>>,
    /// The oldest first.
    order: VecDeque<AbortHandle>,
}

impl Lobby {
    /// True: somebody had to go for it.
    fn enter(&mut self, stream: TcpStream) -> bool {
        self.order.retain(|handle| !handle.is_finished());
        let crowd = self.order.len() >= MAX_UNPROVEN && self.end_oldest();
        self.order.push_back(self.proving.spawn(prove(self.endpoint.clone(), self.doors.clone(), stream)));
        crowd
    }

    fn end_oldest(&mut self) -> bool {
        self.order.retain(|handle| !handle.is_finished());
        self.order.pop_front().map(|oldest| oldest.abort()).is_some()
    }

    fn left(&mut self, ended: Result<Result<(), Refused>, JoinError>, complaints: &mut Complaints) {
        // One that was ended was told of then.
        if let Ok(Err(why)) = ended {
            complaints.hear(&why);
        }
    }
}

async fn prove(endpoint: Endpoint, doors: Arc<Doors>, stream: TcpStream) -> Result<(), Refused> {
    let (channel, purpose) = endpoint.accept(stream).await?;
    let door = doors.get(&purpose).ok_or(Refused::Purpose(purpose))?;
    // Where nobody is behind the door any more, the connection ends, which is all that there is to say.
    let _ = door.send(channel).await;
    Ok(())
}

/// What is logged of refusals: one line for however many there were.
#[derive(Debug, Default)]
struct Complaints {
    /// When the last line was written.
    last: Option<Instant>,
    untold: u64,
}

impl Complaints {
    fn hear(&mut self, why: &Refused) {
        if let Some(untold) = self.due(Instant::now()) {
            tracing::warn!(%why, untold, "a connection is refused; others of the last {} s are counted only", LOG_EVERY.as_secs());
        }
    }

    /// Refusals that were not told before this one, if this one is to be told.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < LOG_EVERY) {
            self.untold += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_says_how_many_there_were() {
        let (mut complaints, began) = (Complaints::default(), Instant::now());
        let told: Vec<_> = (0..250).map(|tenth| complaints.due(began + Duration::from_millis(100 * tenth))).collect();
        let lines: Vec<_> = told.iter().enumerate().filter_map(|(tenth, untold)| Some((tenth, (*untold)?))).collect();
        assert_eq!(lines, [(0, 0), (100, 99), (200, 99)]);
    }
}
