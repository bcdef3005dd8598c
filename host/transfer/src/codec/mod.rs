//! Messages as bytes: fixed-width integers, little endian, and runs of bytes with their length before them. One byte says what a
//! message is; whatever does not read to its last byte is refused. Knows no socket.
//!
//! Nothing is allocated beyond the bytes that are there: a length is compared with what is left before it is believed.

mod hello;
mod messages;
mod reading;
#[cfg(test)]
mod tests;
mod writing;

pub use reading::Decoder;
pub use writing::Encoder;

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("the message ends within {0}")]
    Short(&'static str),
    #[error("{0} is longer than it may be")]
    Long(&'static str),
    #[error("{what} is {value}, which means nothing")]
    Unknown { what: &'static str, value: u64 },
    #[error("{0} is not UTF-8")]
    Text(&'static str),
    #[error("{0} bytes follow the end of the message")]
    Trailing(usize),
}
