//! The other end of a port without a connection, for whoever plays the network himself: what is sent is taken out, what is to come is
//! put in, and nothing happens in between. Knows no runtime and no message.

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use super::port::{Event, FRAMES_AHEAD};
use super::{ChannelError, Port, Wire};

/// See the module. One connection at a time, as the port has it.
pub struct ByHand {
    wire: Wire,
    frames: Option<mpsc::Receiver<Vec<u8>>>,
}

/// What a port has to send.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    Frame(Vec<u8>),
    /// Nothing now.
    Nothing,
    /// Its side has ended the connection, or there is none.
    Ended,
}

impl ByHand {
    pub fn new() -> (Port, Self) {
        let (port, wire) = Port::new();
        (port, Self { wire, frames: None })
    }

    /// A peer is there. False: the port has not read what came before, so try again.
    pub fn open(&mut self) -> bool {
        let (outbound, frames) = mpsc::channel(FRAMES_AHEAD);
        let told = self.wire.events.try_send(Event::Opened(outbound)).is_ok();
        if told {
            self.frames = Some(frames);
        }
        told
    }

    pub fn take(&mut self) -> Sent {
        match self.frames.as_mut().map(mpsc::Receiver::try_recv) {
            Some(Ok(frame)) => Sent::Frame(frame),
            Some(Err(TryRecvError::Empty)) => Sent::Nothing,
            Some(Err(TryRecvError::Disconnected)) | None => Sent::Ended,
        }
    }

    /// The frame comes back where the port has as many to read as it may: that holds a peer back.
    ///
    /// # Errors
    /// The frame.
    pub fn deliver(&mut self, frame: Vec<u8>) -> Result<(), Vec<u8>> {
        self.wire.events.try_send(Event::Frame(frame)).map_err(|error| match error.into_inner() {
            Event::Frame(frame) => frame,
            Event::Opened(_) | Event::Closed(_) => Vec::new(),
        })
    }

    /// The connection is over, and what was on it lost. False: as for [`Self::open`].
    pub fn close(&mut self) -> bool {
        let told = self.wire.events.try_send(Event::Closed(ChannelError::Gone)).is_ok();
        if told {
            self.frames = None;
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::super::PortEvent;
    use super::*;

    #[test]
    fn frames_go_both_ways_as_long_as_there_is_a_connection() {
        let (mut port, mut hand) = ByHand::new();
        assert!(!port.send(vec![1]), "nobody is there");
        assert_eq!(hand.take(), Sent::Ended);
        assert!(hand.open());
        assert!(matches!(port.take(), Some(PortEvent::Opened)));
        assert!(port.send(vec![1]));
        assert_eq!((hand.take(), hand.take()), (Sent::Frame(vec![1]), Sent::Nothing));
        assert_eq!(hand.deliver(vec![2]), Ok(()));
        assert!(matches!(port.take(), Some(PortEvent::Frame(frame)) if frame == [2]));
        assert!(port.send(vec![3]) && hand.close());
        assert_eq!(hand.take(), Sent::Ended, "what was on it is lost");
        assert!(matches!(port.take(), Some(PortEvent::Closed(_))));
        assert!(!port.send(vec![4]));
    }

    #[test]
    fn a_port_that_does_not_read_holds_its_peer_back() {
        let (mut port, mut hand) = ByHand::new();
        assert!(hand.open());
        let taken = (0..1000).take_while(|&frame| hand.deliver(vec![frame as u8]).is_ok()).count();
        assert_eq!(taken, FRAMES_AHEAD - 1);
        assert!(!hand.close() && !hand.open());
        let _ = port.take();
        assert!(hand.close());
    }

    #[test]
    fn a_port_that_ends_a_connection_is_noticed() {
        let (mut port, mut hand) = ByHand::new();
        assert!(hand.open());
        let _ = port.take();
        port.close();
        assert_eq!(hand.take(), Sent::Ended);
    }
}
