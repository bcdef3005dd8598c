//! What the gate asks of a connection beside its bytes. Knows no HTTP.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection that can be asked whether it has failed: reading does not tell once the other side has ended its stream.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// What has gone wrong since the last question.
    fn fault(&self) -> Option<io::Error>;
}

impl Socket for TcpStream {
    fn fault(&self) -> Option<io::Error> {
        self.take_error().unwrap_or_else(Some)
    }
}
