//! A deployment as one TOML file, read into plain typed data. The only crate that knows TOML.
//!
//! It reads the text and nothing else: no model, component or port is opened or looked for, so `check` costs nothing and a
//! wrong file is refused before anything starts. Every error is reported at once, each with the key's path, its line, what is
//! wrong and what to do.
//!
//! It does not know what a model or a component contains, what HTTP is, or how an engine is built from its output.

#![forbid(unsafe_code)]

mod config;
pub mod defaults;
mod digest;
mod error;
mod json;
mod load;
mod reader;
mod sections;
mod suggest;
mod summary;

pub use config::{
    AdminAccess, Breaker, Component, Config, Device, DeviceKind, Lane, Limits, LogFormat, LogLevel, Model, Policies,
    PolicyRecord, PolicySource, PolicySpec, Pool, PoolSize, Server, Tenant, TenantAccess, Tier, ZeroFreed,
};
pub use defaults::BUILTINS;
pub use digest::Digest;
pub use error::{ConfigError, ConfigErrors, ErrorKind};
pub use load::{MAX_FILE_BYTES, default_policies, known_keys, load, parse};
