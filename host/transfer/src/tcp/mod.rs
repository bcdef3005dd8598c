//! TCP between engine processes: TLS 1.3, a shared secret that both sides prove to have, frames with a bound, keep-alives and
//! timeouts. Knows no message: it carries runs of bytes.
//!
//! ```text
//!   connect -> TLS -> each side proves the secret for this very session -> frames until one side goes
//! ```
//! Certificates are made for each life of a process and prove nothing; the proof is a keyed hash of the secret over what only the
//! two ends of the TLS session know (RFC 5705), so neither a recorded handshake nor somebody in between is worth anything.

mod by_hand;
mod channel;
mod dial;
mod endpoint;
mod listen;
mod port;
mod secret;
mod tls;

pub use by_hand::{ByHand, Sent};
pub use channel::{Channel, ChannelError, FrameReader, FrameWriter};
pub use dial::{answer, dial};
pub use endpoint::{Endpoint, HANDSHAKE_TIMEOUT, HandshakeError};
pub use listen::{Doors, MAX_UNPROVEN, listen};
pub use port::{Bell, Port, PortCounters, PortEvent, Wire};
pub use secret::Secret;
