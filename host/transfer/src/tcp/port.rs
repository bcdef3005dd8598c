//! Where a thread that never waits meets connections that do: bounded queues of frames in both directions, and a bell.
//!
//! ```text
//!   thread: Port::take, Port::send  <- frames, at most so many ->  Wire::carry(channel): tasks of the runtime
//! ```
//! One connection follows the other; what was queued for one is never sent on the next.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::{Channel, ChannelError, FrameReader};

/// Frames that may wait in either direction: with parts of pages, 16 MiB.
pub(super) const FRAMES_AHEAD: usize = 64;

/// Wakes the thread that reads a port. Rung before it is hung, it is silent.
#[derive(Clone, Default)]
pub struct Bell(Arc<OnceLock<Arc<dyn Fn() + Send + Sync>>>);

impl Bell {
    /// What it does; only the first call counts.
    pub fn hang(&self, ring: Arc<dyn Fn() + Send + Sync>) {
        let _ = self.0.set(ring);
    }

    fn ring(&self) {
        if let Some(ring) = self.0.get() {
            ring();
        }
    }
}

/// What happened on a port.
#[derive(Debug)]
pub enum PortEvent {
    /// A peer that knows the secret is there; nothing was said yet.
    Opened,
    Frame(Vec<u8>),
    Closed(ChannelError),
}

pub(super) enum Event {
    Opened(mpsc::Sender<Vec<u8>>),
    Frame(Vec<u8>),
    Closed(ChannelError),
}

/// Bytes of frames since start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortCounters {
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub connections: u64,
}

#[derive(Debug, Default)]
struct Counting {
    sent: AtomicU64,
    received: AtomicU64,
    connections: AtomicU64,
}

/// The thread's end.
pub struct Port {
    events: mpsc::Receiver<Event>,
    outbound: Option<mpsc::Sender<Vec<u8>>>,
    counting: Arc<Counting>,
    bell: Bell,
}

/// The runtime's end.
pub struct Wire {
    pub(super) events: mpsc::Sender<Event>,
    counting: Arc<Counting>,
    bell: Bell,
}

impl Port {
    pub fn new() -> (Self, Wire) {
        let (to_thread, events) = mpsc::channel(FRAMES_AHEAD);
        let (bell, counting) = (Bell::default(), Arc::<Counting>::default());
        let wire = Wire { events: to_thread, counting: counting.clone(), bell: bell.clone() };
        (Self { events, outbound: None, counting, bell }, wire)
    }

    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// The next event, if there is one.
    pub fn take(&mut self) -> Option<PortEvent> {
        Some(match self.events.try_recv().ok()? {
            Event::Opened(outbound) => {
                self.outbound = Some(outbound);
                PortEvent::Opened
            }
            Event::Frame(bytes) => PortEvent::Frame(bytes),
            Event::Closed(why) => {
                self.outbound = None;
                PortEvent::Closed(why)
            }
        })
    }

    /// Frames that [`Self::send`] takes now. The bell rings when there is room after there was none.
    pub fn room(&self) -> usize {
        self.outbound.as_ref().map_or(0, mpsc::Sender::capacity)
    }

    /// False: there is no connection, or no room.
    pub fn send(&mut self, frame: Vec<u8>) -> bool {
        let Some(outbound) = &self.outbound else { return false };
        match outbound.try_send(frame) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => false,
            Err(TrySendError::Closed(_)) => {
                self.outbound = None;
                false
            }
        }
    }

    /// Ends the connection, for a peer that breaks the protocol. `Closed` follows.
    pub fn close(&mut self) {
        self.outbound = None;
    }

    pub fn counters(&self) -> PortCounters {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counting { sent, received, connections } = self.counting.as_ref();
        PortCounters { sent_bytes: of(sent), received_bytes: of(received), connections: of(connections) }
    }
}

impl Wire {
    /// Carries frames until the connection ends, on either side's wish.
    pub async fn carry(&mut self, channel: Channel) {
        let (outbound, mut frames) = mpsc::channel(FRAMES_AHEAD);
        self.counting.connections.fetch_add(1, Ordering::Relaxed);
        self.tell(Event::Opened(outbound)).await;
        let (reader, mut writer) = channel.split();
        let count = |frame: Vec<u8>, waiting: usize| {
            self.counting.sent.fetch_add(frame.len() as u64, Ordering::Relaxed);
            // There is room again.
            if waiting + 1 >= FRAMES_AHEAD {
                self.bell.ring();
            }
            frame
        };
        let (written, read) = (writer.carry(&mut frames, count), self.read(reader));
        let ended = tokio::select! {
            error = written => error,
            error = read => error,
        };
        self.tell(Event::Closed(ended)).await;
    }

    /// Tells the thread that the connection is over whose [`Self::carry`] was dropped.
    pub async fn give_up(&mut self) {
        self.tell(Event::Closed(ChannelError::Ended)).await;
    }

    /// Whether the thread is gone.
    pub fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    async fn read(&self, mut reader: FrameReader) -> ChannelError {
        loop {
            match reader.next().await {
                Ok(frame) => {
                    self.counting.received.fetch_add(frame.len() as u64, Ordering::Relaxed);
                    self.tell(Event::Frame(frame)).await;
                }
                Err(error) => return error,
            }
        }
    }

    /// Waits while the thread has as much to read as it may: that is what holds the peer back.
    async fn tell(&self, event: Event) {
        // A thread that is gone wants no events.
        let _ = self.events.send(event).await;
        self.bell.ring();
    }
}
