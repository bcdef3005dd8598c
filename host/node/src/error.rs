//! Why a node does not start. Every message names what, and what to do about it.

use std::path::PathBuf;

use millrace_engine::EngineError;
use millrace_model::{CheckpointError, ModelError};
use millrace_ops::BackendError;
use millrace_policy_wasm::{LoadError, PolicyKind};
use millrace_tokenize::TokenizeError;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the configuration has no model; add a [model.NAME] table")]
    NoModel,
    #[error("{}: HOME is not set, so `~` means nothing; write the whole path", .0.display())]
    NoHome(PathBuf),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Agreement(#[from] millrace_model::AgreementError),
    #[error(
        "pool `{pool}`: the tokenizer of {} is not that of {}, so token ids would mean something else; give checkpoints of one \
         model",
        other.display(),
        own.display()
    )]
    Tokenizers { pool: String, own: PathBuf, other: PathBuf },
    #[error("{}: the checkpoint has no tokenizer; serve one that has tokenizer.json or a GGUF vocabulary", .0.display())]
    NoTokenizer(PathBuf),
    #[error("tokenizer: {0}")]
    Tokenizer(#[from] TokenizeError),
    #[error("{}: the chat template {why}; check `chat_template` of the model", path.display())]
    Template { path: PathBuf, why: String },
    #[error("device: {0}")]
    Backend(#[from] BackendError),
    #[error("pool `{0}` is on no device; check its `device`")]
    NoDevice(String),
    #[error("pool `{pool}`: no page of {page_bytes} bytes fits into its memory; raise `memory_mib` or lower `page_tokens`")]
    NoPages { pool: String, page_bytes: usize },
    #[error("the configuration has no {stage} pool `{pool}`")]
    NoSuchPool { pool: String, stage: millrace_core::Stage },
    #[error("the engine process of pool `{pool}`: {why}")]
    Process { pool: String, why: String },
    /// Of an engine process: its engine cannot go on.
    #[error("{0}; this engine process ends, so that the server starts it again")]
    Engineless(&'static str),
    /// Of an engine process.
    #[error("the server's order cannot be read: {0}; is the server another release than this engine process?")]
    Order(String),
    #[error("no thread for policies: {0}; raise the process limit (ulimit -u)")]
    Thread(std::io::Error),
    #[error("the policy engine: {0}")]
    PolicyEngine(#[from] millrace_policy_wasm::EngineError),
    #[error("policy.{kind}: {}: cannot be read: {why}; check `component`", path.display())]
    Component { kind: PolicyKind, path: PathBuf, why: String },
    #[error("policy.record: {}: recordings cannot be kept there: {why}; check `directory`", directory.display())]
    Record { directory: PathBuf, why: String },
    #[error("policy.{kind}: {source}")]
    Policy { kind: PolicyKind, source: LoadError },
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("{0}; the boot nonce of page tags and the scopes of kept prompts need them")]
    Random(String),
}

/// Why an engine did not take a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotTaken {
    #[error("an engine process of lane `{lane}` is down and is being started again; try again in a few seconds")]
    Down { lane: String },
    #[error(transparent)]
    Refused(#[from] millrace_engine::SubmitError),
}

/// Why pages under suspicion stay out of use.
#[derive(Debug, thiserror::Error)]
pub enum ReadmitError {
    #[error("there is no pool `{0}`")]
    UnknownPool(String),
    #[error(transparent)]
    Engine(#[from] millrace_engine::ReadmitError),
}

/// Why a policy in force stays.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    #[error("another policy is being loaded; try again when it is done")]
    Busy,
    #[error("the built-in policy is in force; there is none before it")]
    NothingToRollBackTo,
    #[error("no policy is on trial; put one there first")]
    NothingOnTrial,
    #[error("the trial ended before: {0}; mend the policy and put it on trial again")]
    TrialEnded(String),
    #[error(
        "a trial compares decisions where they are made, and every pool runs as a process of its own; put the policy in force, from \
         where one call rolls it back, or replay a recording with it (`millrace policy replay`)"
    )]
    Elsewhere,
    #[error("the engine process of pool `{pool}` refused the policy, and the one in force stays everywhere: {why}")]
    RefusedIn { pool: String, why: String },
    #[error(
        "the policy is in force, but not yet in the engine process of pool `{pool}`: {why}; it is sent there again, and /admin/policies \
         shows what each process runs; if it stays so, put another one in force or restart that process"
    )]
    Behind { pool: String, why: String },
    #[error(
        "somebody returned to an earlier policy while this one was being loaded, and it was not put in force; upload it once more if it is \
         still wanted"
    )]
    Recalled,
    #[error("the policy was refused and the one in force stays: {0}")]
    Refused(#[from] LoadError),
}
