//! Every default and the range it lies in, each with its reason. `examples/reference.toml` shows the same values.
//! Knows no section and reads nothing.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

/// A number's default and the least and greatest value that are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounded {
    pub default: u64,
    pub min: u64,
    pub max: u64,
}

const fn bounded(default: u64, min: u64, max: u64) -> Bounded {
    assert!(min <= default && default <= max, "a default lies in its own range");
    Bounded { default, min, max }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SECOND_MS: u64 = 1000;
const HOUR_MS: u64 = 3600 * SECOND_MS;

// === server ===

/// Loopback: a fresh install must not serve the network before somebody has given it tenants.
pub const LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080));

/// A listener of its own, so that no mistake in the routes of the public one can reach an admin action.
pub const ADMIN_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8081));

/// 4 MiB. A prompt of 128k tokens is about 0.5 MiB of text and at worst 3 MiB when JSON escapes every character; a larger
/// body can only be refused later, after it cost memory and tokenizing.
pub const MAX_BODY_BYTES: Bounded = bounded(4 * MIB, KIB, GIB);

/// 32 KiB. An API key, a trace context and a proxy's own headers stay below 8 KiB; HTTP libraries default to some 400 KiB for
/// each connection, which is memory that anyone may take.
pub const MAX_HEADER_BYTES: Bounded = bounded(32 * KIB, 8 * KIB, MIB);

/// 10 s. Enough for a slow mobile link, short enough that a client that sends a header byte by byte gives its connection back.
pub const HEADER_TIMEOUT_MS: Bounded = bounded(10 * SECOND_MS, 100, HOUR_MS);

/// 30 s: 4 MiB over 1.1 Mbit/s. HTTP libraries have no such limit, so a body could otherwise drip for ever.
pub const BODY_TIMEOUT_MS: Bounded = bounded(30 * SECOND_MS, 100, HOUR_MS);

/// 10 min, what the OpenAI SDKs wait for: nobody reads an answer that comes later, so its pages go to somebody else.
pub const REQUEST_TIMEOUT_MS: Bounded = bounded(600 * SECOND_MS, 100, 24 * HOUR_MS);

/// 1024: the file descriptor limit that many systems start with is 1024 or more, and at 32 KiB of headers each this is 32 MiB.
pub const MAX_CONNECTIONS: Bounded = bounded(1024, 1, 1 << 20);

/// 32: operators, probes and scrapers are few. A bound of its own, so that no flood of clients keeps them out.
pub const MAX_ADMIN_CONNECTIONS: Bounded = bounded(32, 1, 1 << 16);

/// Each request with an origin is compared with all of them.
pub const MAX_ALLOWED_ORIGINS: usize = 64;

/// 25 s: below the 30 s that Kubernetes grants between SIGTERM and SIGKILL, with room for the last writes.
pub const DRAIN_TIMEOUT_MS: Bounded = bounded(25 * SECOND_MS, 0, HOUR_MS);

// === model ===

/// 0: the model's own context. A smaller value bounds the pages that one sequence may hold.
pub const MAX_MODEL_TOKENS: Bounded = bounded(0, 0, 1 << 24);

// === device ===

/// 0: all threads that affinity and the container's quota leave. More threads than cores make kernels wait for each other.
pub const THREADS: Bounded = bounded(0, 0, 4096);

// === pool ===

/// 512 MiB: 23k tokens of a 135M model in BF16, which fits beside the model on a small machine. A deployment sets its own.
pub const POOL_MEMORY_MIB: Bounded = bounded(512, 1, 1 << 22);

/// 0: as many pages as `memory_mib` holds. A number is for tests and for comparing formats at equal capacity.
pub const POOL_PAGES: Bounded = bounded(0, 0, 1 << 28);

/// 32 tokens. Smaller pages share more of a prefix and waste less at the end of a sequence (16 on average here), larger ones
/// make fewer table entries and tag checks. Kernels read 16 tokens as one vector, hence the multiple.
pub const PAGE_TOKENS: Bounded = bounded(32, 16, 512);

/// What `page_tokens` is a multiple of.
pub const PAGE_TOKENS_MULTIPLE: u32 = 16;

/// 512: large enough for full matrix tiles in prefill, small enough that decode steps get between two chunks.
pub const MAX_STEP_TOKENS: Bounded = bounded(512, 1, 1 << 20);

/// 100 ms, the longest pause that a reader hardly notices: on a CPU no other step runs meanwhile, so this is what a long prompt adds to
/// everybody's gap between tokens. 0: no bound in time.
pub const MAX_STEP_US: Bounded = bounded(100_000, 0, 60_000_000);

/// 64 sequences: where decode of small models stops gaining from a larger batch on a CPU.
pub const MAX_SEQUENCES: Bounded = bounded(64, 1, 1 << 16);

/// 0: an equal share for each tenant, so that none can push another's out. More lets a tenant use what others leave.
pub const PREFIX_TENANT_PERCENT: Bounded = bounded(0, 0, 100);

// === lane ===

/// 256 waiting sequences. At a second each the last one would wait four minutes; beyond that a quick 429 is kinder.
pub const LANE_MAX_WAITING: Bounded = bounded(256, 1, 1 << 20);

/// No default: only a measurement tells. 100 nat are more than any model is apart from any other.
pub const LANE_KL_MICRONAT: Bounded = bounded(0, 0, 100_000_000);

// === policy ===

/// 5 ms. A request is routed once and waits for it, so this is far below the time to a first token and far above the 0.2 ms
/// that the built-in takes.
pub const ROUTE_DEADLINE_US: Bounded = bounded(5000, 100, 1_000_000);

/// 2 ms. A plan is made while the step before it runs, and the engine cuts this to what that step leaves; interpreted guests need
/// 0.7 ms for 256 rows.
pub const SCHEDULE_DEADLINE_US: Bounded = bounded(2000, 100, 1_000_000);

/// 5 ms, as for routing: once per request.
pub const PRECISION_DEADLINE_US: Bounded = bounded(5000, 100, 1_000_000);

/// 1 s: off the hot path, and guests with an interpreter inside initialise it here.
pub const INIT_DEADLINE_MS: Bounded = bounded(SECOND_MS, 1, 60 * SECOND_MS);

/// 64 MiB: what a Python guest needs; guests in Rust or C use two.
pub const POLICY_MEMORY_MIB: Bounded = bounded(64, 1, 4096);

/// 64 MiB: components with an interpreter inside are 10 to 40 MiB. Compiling takes memory in proportion.
pub const MAX_COMPONENT_MIB: Bounded = bounded(64, 1, 1024);

/// 2 min: the largest components take tens of seconds on two cores, and nothing waits for them.
pub const COMPILE_TIMEOUT_MS: Bounded = bounded(120 * SECOND_MS, 100, HOUR_MS);

/// 20 lines: a log that a person reads; a policy that logs each call would write thousands.
pub const LOG_LINES_PER_S: Bounded = bounded(20, 0, 10_000);

/// 64 MiB for each policy: some minutes of a busy schedule, hours of the others. At least 16, so that a file of half of it holds the
/// largest call and how its instances began.
pub const RECORD_MIB: Bounded = bounded(64, 16, 1 << 20);

/// 3 faults in a row are no accident, and cost at most three deadlines.
pub const BREAKER_FAULTS: Bounded = bounded(3, 1, 1000);

/// 1 s at first, doubled with each further fault.
pub const BREAKER_BACKOFF_MS: Bounded = bounded(SECOND_MS, 1, HOUR_MS);

/// Half a minute: a route that still holds a request then keeps it from being served at all.
pub const MAX_HELD_MS: Bounded = bounded(30 * SECOND_MS, 1, HOUR_MS);

/// Components in the binary, by kind; the first is what `"builtin"` means. A test of the node compares this with what there is.
pub const BUILTINS: [(&str, &[&str]); 3] = [
    ("route", &["tenant", "affinity", "least-loaded"]),
    ("schedule", &["fair", "fcfs", "priority"]),
    ("precision", &["tier", "pressure"]),
];

/// Bytes of a policy's `config` as JSON: what every instance copies and parses when it starts.
pub const MAX_POLICY_CONFIG_BYTES: usize = 64 << 10;

// === tenant ===

/// 1: equal shares.
pub const WEIGHT: Bounded = bounded(1, 1, 1000);

/// 0: no limit of its own beside the pools'.
pub const TENANT_MAX_RUNNING: Bounded = bounded(0, 0, 1 << 20);

/// 0: no limit of its own beside `limits.max_waiting`.
pub const TENANT_MAX_WAITING: Bounded = bounded(0, 0, 1 << 20);

/// 0: `limits.max_output_tokens`.
pub const TENANT_MAX_OUTPUT_TOKENS: Bounded = bounded(0, 0, 1 << 24);

/// Keys of one tenant: two while one replaces the other, some more for services that share a tenant.
pub const MAX_KEYS_PER_TENANT: usize = 16;

/// The tenant of a deployment that names none.
pub const OPEN_TENANT: &str = "default";

// === limits ===

/// 512: two lanes of 256. Each waiting request holds its prompt, so this bounds memory as well as waiting time.
pub const MAX_WAITING: Bounded = bounded(512, 1, 1 << 20);

/// 0: what the model's context leaves.
pub const MAX_PROMPT_TOKENS: Bounded = bounded(0, 0, 1 << 24);

/// 4096: more than chat answers need. A client that names no number gets at most so many, so a model that never stops cannot
/// hold its pages for the whole context.
pub const MAX_OUTPUT_TOKENS: Bounded = bounded(4096, 1, 1 << 24);

/// 4, as in the OpenAI API.
pub const MAX_STOP_STRINGS: Bounded = bounded(4, 0, 64);

/// 256 bytes: output is held back by up to the longest stop string, so a long one delays the stream.
pub const MAX_STOP_BYTES: Bounded = bounded(256, 1, 4096);

/// 500 ms: the SDKs' own first pause.
pub const RETRY_AFTER_MIN_MS: Bounded = bounded(500, 1, HOUR_MS);

/// 60 s: the SDKs ignore longer ones.
pub const RETRY_AFTER_MAX_MS: Bounded = bounded(60 * SECOND_MS, 1, HOUR_MS);
