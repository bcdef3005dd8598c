//! Why a simulation cannot be set up. What goes wrong in one is a violation, not an error.

#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error(
        "cannot write the simulated model's checkpoint into a temporary directory: {0}; set TMPDIR to a place with 1 MB of room"
    )]
    Checkpoint(std::io::Error),
    #[error(transparent)]
    Endless(#[from] crate::Endless),
    #[error(transparent)]
    Model(#[from] millrace_model::ModelError),
    #[error(transparent)]
    Backend(#[from] millrace_ops::BackendError),
    #[error(transparent)]
    Engine(#[from] millrace_engine::EngineError),
    #[error("a request that has the engine to itself gets no answer: {0}")]
    Alone(String),
    #[error("the built-in schedule policy does not load: {0}")]
    Policy(String),
    #[error("the world of seed {seed} cannot be built: {source}")]
    World { seed: u64, source: Box<SimError> },
}
