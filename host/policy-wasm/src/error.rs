//! Why a policy was not loaded, and how to mend it. Texts are for operators and authors.

use millrace_policy::FaultKind;

use crate::PolicyKind;

/// The engine could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error(
        "the Wasm engine does not start on this machine: {detail}; raise the address space (ulimit -v) or lower max_instances"
    )]
    Wasm { detail: String },
    #[error("cannot start the {thread} thread of the Wasm engine: {detail}; raise the process limit (ulimit -u)")]
    Thread { thread: &'static str, detail: String },
}

/// A policy was refused; the one in force stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("the component has {bytes} bytes, the limit is {limit}; strip it, or raise the policy's component size limit")]
    TooLarge { bytes: usize, limit: usize },
    #[error("the component's sha256 is {found}, pinned is {expected}; check where the file came from, or pin the new digest")]
    Digest { expected: String, found: String },
    #[error("not WebAssembly: begins with {found}; give the .wasm file that the toolchain wrote")]
    NotWasm { found: String },
    #[error("precompiled code is never accepted from outside; give the .wasm component that it was made from")]
    Precompiled,
    #[error(
        "a core module without component types; build it against wit/ with wit-bindgen or a component toolchain, \
         or embed the world with `wasm-tools component embed`"
    )]
    CoreModule,
    #[error("a component already, of which nothing is to be built; look at it with `millrace policy check`")]
    Componentized,
    #[error("the core module does not make a component: {detail}; rebuild it with a wit-bindgen that fits wit/")]
    Componentize { detail: String },
    #[error("does not compile: {detail}")]
    Compile { detail: String },
    #[error(
        "compiling took longer than {limit_ms} ms and was given up; make the component smaller, or raise the compile time limit"
    )]
    CompileTime { limit_ms: u64 },
    #[error("{running} components were being compiled all the time that this one may take; try again when they are done")]
    CompileBusy { running: usize },
    #[error(
        "needs `{name}`, this host has millrace:policy@{host}; build the policy against the host's wit/, \
         or take a host that has that version"
    )]
    Version { name: String, host: &'static str },
    #[error("imports `{import}`, which is not granted; add `{grant}` to the policy's grants, or build it without")]
    NotGranted { import: String, grant: String },
    #[error(
        "imports `{import}`, which no policy gets: there are no files, network, environment or wall clock; build it without, \
         or with WASI stubbed out (for example --stub-wasi)"
    )]
    UnknownImport { import: String },
    #[error("is no {kind} policy: exports no `{missing}` (it exports {found}); build it for the world {kind}-policy")]
    World { kind: PolicyKind, missing: String, found: String },
    #[error("{interfaces} have other types than in this host's wit/: {detail}; rebuild the policy against wit/")]
    Types { interfaces: String, detail: String },
    #[error("needs {needed} bytes of memory to start, the limit is {limit}; raise the policy's memory limit")]
    Memory { needed: u64, limit: u64 },
    #[error("{phase} failed: {kind}: {detail}")]
    Fault { phase: &'static str, kind: FaultKind, detail: String },
    #[error("the policy finds fault with its configuration: {}", .0.join("; "))]
    Config(Vec<String>),
    #[error("the policy refuses to start: {0}")]
    Init(String),
    #[error("`init` told a {field} that cannot be used: {detail}")]
    Info { field: &'static str, detail: String },
    #[error("a trial decision went wrong: {detail}; answers must keep to the rules in wit/{kind}.wit")]
    Smoke { kind: PolicyKind, detail: String },
    #[error("is a {is} policy, asked for was {asked}")]
    Kind { is: PolicyKind, asked: PolicyKind },
}
