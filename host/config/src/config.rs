//! What a deployment is, as plain data. Names are resolved to rows, defaults are filled in, every range was checked.
//! Knows no TOML and makes no value: see `sections`.
//!
//! ```text
//! Config ── models ◄──┐
//!        ── devices ◄─┴── pools ◄── lanes ◄── tenants (allowed lanes)
//!        ── policies (route, schedule, precision)
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;

use millrace_core::{Compute, KvFormat, LaneId, PoolId, Precision, Stage, StagePrecision, StageRecipe};

use crate::Digest;

/// One deployment. Rows are in the order of the file; `PoolId`, `LaneId` and `TenantId` are row numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where the text came from, as errors name it.
    pub source: String,
    pub server: Server,
    /// Exactly one for now.
    pub models: Vec<Model>,
    /// At least one.
    pub devices: Vec<Device>,
    /// At least two.
    pub pools: Vec<Pool>,
    /// At least one.
    pub lanes: Vec<Lane>,
    pub policies: Policies,
    /// At least one: a file without tenants has the open tenant `default`.
    pub tenants: Vec<Tenant>,
    pub limits: Limits,
}

/// `[server]`: the listeners and what one connection may take.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    pub listen: SocketAddr,
    pub admin_listen: SocketAddr,
    pub admin: AdminAccess,
    pub max_body_bytes: u64,
    pub max_header_bytes: u32,
    /// From accepting a connection, or the end of the last request on it, to the end of the next request's headers.
    pub header_timeout_ms: u64,
    /// From the end of the headers to the end of the body.
    pub body_timeout_ms: u64,
    /// From the end of the body to the last token.
    pub request_timeout_ms: u64,
    /// On the public listener.
    pub max_connections: u32,
    pub max_admin_connections: u32,
    /// Sites whose pages may use the public listener, as browsers write them: `https://chat.example.com`.
    pub allowed_origins: Vec<String>,
    /// How long running requests may go on after SIGTERM.
    pub drain_timeout_ms: u64,
    pub log_format: LogFormat,
    pub log_level: LogLevel,
}

/// Who may use the admin listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminAccess {
    /// Anyone who reaches it; it listens on loopback.
    Open,
    /// Who shows the key with this SHA-256.
    Key(Digest),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// `[model.TABLE]`: one checkpoint and how clients call it.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Name of the table; pools refer to it.
    pub table: String,
    /// The id that clients send and that `/v1/models` lists.
    pub name: String,
    /// A GGUF file or a hub directory. Relative paths were joined to the directory of the file; a leading `~` is left as it is.
    pub path: PathBuf,
    /// Context of one sequence in tokens; `None`: the model's own.
    pub max_model_tokens: Option<u32>,
    /// A file with a chat template in place of the checkpoint's.
    pub chat_template: Option<PathBuf>,
}

/// `[device.NAME]`: where pools live.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    pub name: String,
    pub kind: DeviceKind,
    /// Worker threads; `None`: all that the process may use.
    pub threads: Option<u32>,
    pub compute: Compute,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    Cpu,
}

/// `[pool.NAME]`: an engine's page pool with its recipe on its device.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    pub name: String,
    pub stage: Stage,
    /// Its engine runs as a process of its own, which the node starts and watches.
    pub process: bool,
    /// Row of `Config::devices`.
    pub device: usize,
    /// Row of `Config::models`.
    pub model: usize,
    /// Another checkpoint of the same model that this pool's weights come from; `None`: the model's own.
    pub checkpoint: Option<PathBuf>,
    pub recipe: StageRecipe,
    pub kv: KvFormat,
    pub size: PoolSize,
    /// Tokens of one page; a multiple of 16.
    pub page_tokens: u32,
    /// Tokens of one step over all its sequences.
    pub max_step_tokens: u32,
    /// Longest time of a step, of prefill pools only; `None`: tokens alone bound it.
    pub max_step_us: Option<u32>,
    pub max_sequences: u32,
    pub zero_freed: ZeroFreed,
    /// Page tags are written and checked.
    pub tags: bool,
    /// The pages of prompts are kept for others that begin alike; of prefill pools only.
    pub prefix_cache: bool,
    /// Pages of this pool that one tenant may have kept so, in percent; `None`: an equal share.
    pub prefix_tenant_percent: Option<u32>,
}

/// How many pages a pool has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolSize {
    Pages(u32),
    /// As many whole pages as fit.
    MemoryMib(u32),
}

/// Whether the bytes of a freed page are overwritten before another sequence gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZeroFreed {
    /// Where the deployment has more than one tenant.
    Auto,
    Always,
    /// Only accepted with one tenant.
    Never,
}

/// `[lane.NAME]`: a prefill pool and a decode pool between which the hand-off is allowed.
#[derive(Debug, Clone, PartialEq)]
pub struct Lane {
    pub name: String,
    pub prefill: PoolId,
    pub decode: PoolId,
    /// Sequences that may wait for this lane.
    pub max_waiting: u32,
    /// Measured divergence of its precision from the unquantized model, in millionths of a nat; `None`: nobody said.
    pub kl_micronat: Option<u32>,
}

/// `[policy.*]`: the three decisions.
#[derive(Debug, Clone, PartialEq)]
pub struct Policies {
    pub route: PolicySpec,
    pub schedule: PolicySpec,
    pub precision: PolicySpec,
    /// How long the route may hold one request, all holds together.
    pub max_held_ms: u64,
    /// `None`: nothing is recorded.
    pub record: Option<PolicyRecord>,
}

/// One policy and its limits.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicySpec {
    pub source: PolicySource,
    /// The `config` table as a JSON object, `{}` where there is none.
    pub config_json: String,
    /// One call.
    pub deadline_us: u64,
    /// Making an instance and its `init` or `check-config`.
    pub init_deadline_ms: u64,
    /// Linear memory of one instance.
    pub memory_mib: u32,
    /// Size of the component's file.
    pub max_component_mib: u32,
    pub compile_timeout_ms: u64,
    pub log_lines_per_s: u32,
    /// Whether a component file that changes is put in force.
    pub watch: bool,
    pub breaker: Breaker,
}

/// `[policy.record]`: where decisions are written down, to be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRecord {
    /// Made if it is not there; a relative path was joined to the directory of the TOML file.
    pub directory: PathBuf,
    /// Of each policy's files together.
    pub max_mib: u32,
}

/// What answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicySource {
    /// A component that is embedded in the binary, by name; see `defaults::BUILTINS`.
    Builtin(&'static str),
    /// The host's own fallback, without Wasm.
    Native,
    Component(Component),
}

/// A component's file; a relative path was joined to the directory of the TOML file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    pub path: PathBuf,
    /// The file is refused if it has another digest.
    pub sha256: Option<Digest>,
}

/// When a policy that faults is left alone, and for how long at first (it doubles with each further fault).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breaker {
    /// Faults in a row.
    pub faults: u32,
    pub backoff_ms: u64,
}

/// `[tenant.NAME]`: who is served and with what share.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    pub name: String,
    pub access: TenantAccess,
    /// Share of the tokens under contention, relative to the other tenants.
    pub weight: u32,
    pub tier: Tier,
    /// Sequences at a time; `None`: no limit of its own.
    pub max_running: Option<u32>,
    pub max_waiting: Option<u32>,
    /// Output tokens of one request; `None`: `Limits::max_output_tokens`.
    pub max_output_tokens: Option<u32>,
    /// Never empty: every lane where the file names none.
    pub allowed_lanes: Vec<LaneId>,
    /// Tenants of one group share kept prompts; `None`: with nobody.
    pub trust_group: Option<String>,
}

/// How a tenant is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantAccess {
    /// Everyone; only where every listener is on loopback and there is no other tenant.
    Open,
    /// SHA-256 of its API keys, at least one; two while a key is being replaced.
    Keys(Vec<Digest>),
}

/// Orders tenants for the precision policy; gold is the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    Bulk,
    Standard,
    Gold,
}

/// `[limits]`: what one request may ask for and how many may wait.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Requests that were admitted and have no lane or step yet, over all lanes.
    pub max_waiting: u32,
    /// `None`: what the model's context leaves.
    pub max_prompt_tokens: Option<u32>,
    /// More is refused; a request that names none gets at most so many.
    pub max_output_tokens: u32,
    pub max_stop_strings: u32,
    /// Of one stop string.
    pub max_stop_bytes: u32,
    /// Bounds of the Retry-After that an overload answer carries.
    pub retry_after_min_ms: u64,
    pub retry_after_max_ms: u64,
}

impl Config {
    /// Recipe and KV format of a lane's stages; `None` if the lane names no pool of this configuration.
    pub fn precision(&self, lane: &Lane) -> Option<Precision> {
        let of = |pool: PoolId| -> Option<StagePrecision> {
            let pool = self.pools.get(usize::try_from(pool.0).ok()?)?;
            Some(StagePrecision { recipe: pool.recipe, kv: pool.kv })
        };
        Some(Precision { prefill: of(lane.prefill)?, decode: of(lane.decode)? })
    }

    /// Whether freed pages of a pool are overwritten, with `auto` resolved.
    pub fn zeroes_freed(&self, pool: &Pool) -> bool {
        match pool.zero_freed {
            ZeroFreed::Always => true,
            ZeroFreed::Never => false,
            ZeroFreed::Auto => self.tenants.len() > 1,
        }
    }

    /// Of a pool of so many pages: those that each tenant may have kept for prompts to come; `None`: the pool keeps none.
    pub fn prefix_pages(&self, pool: &Pool, pages: u32) -> Option<u32> {
        pool.prefix_cache.then(|| pool.prefix_share(pages, self.tenants.len()))
    }
}

impl Pool {
    /// Of so many pages: those that each of the tenants may have kept.
    pub(crate) fn prefix_share(&self, pages: u32, tenants: usize) -> u32 {
        let share = match self.prefix_tenant_percent {
            Some(percent) => u64::from(pages) * u64::from(percent) / 100,
            None => u64::from(pages) / tenants.max(1) as u64,
        };
        u32::try_from(share).unwrap_or(u32::MAX)
    }
}

impl LogLevel {
    /// As log filters spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}
