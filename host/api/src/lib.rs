//! The HTTP face of a node: the OpenAI API for clients, probes and metrics, and an admin listener of its own.
//!
//! OpenAI's JSON exists only here. It does not know engines, pages, policies or TOML: it asks the node.
//!
//! ```text
//! socket -> door (bounds) -> gate (heads) -> hyper -> guard (path, id, panic) -> access (per route) -> json (checked request) -> node.submit
//!                                                                            frames <- script <- events <-+
//! ```
#![forbid(unsafe_code)]

mod access;
mod admin;
mod body;
mod browser;
mod chunks;
mod door;
mod error;
#[cfg(feature = "fault-injection")]
mod faults;
mod gate;
mod guard;
mod json;
mod media_type;
mod openai;
mod routes;
mod script;
mod server;
mod socket;
mod sse;
mod stall;
mod state;
mod system;
mod trials;

pub use door::SPARE_CONNECTIONS;
pub use error::{ApiError, Retry};
pub use server::{BindError, Running, Server};
pub use state::{Api, ApiOptions};
