//! Request bodies: JSON text in, checked requests out. Everything that a client can get wrong is found here or in the node;
//! it knows no connection and no engine.

mod chat;
mod completion;
mod fields;
mod options;
mod unsupported;

#[cfg(test)]
mod tests;

pub(crate) use chat::parse_chat;
pub(crate) use completion::parse_completion;
pub(crate) use options::{Limits, Parsed, Stream, Usage};
