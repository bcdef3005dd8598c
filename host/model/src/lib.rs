//! Checkpoints and the models in them: reads GGUF files and hub directories, prepares their weights on a device through the
//! [`Backend`](millrace_ops::Backend) trait and turns a step into a list of operations.
//!
//! ```text
//! GGUF file ------+                    +- prepare_weight --> weights, shared by a WeightCache
//!                 +--> Checkpoint --> ModelSpec --> layers
//! hub directory --+    names, bytes    +- forward(step) --> operations on a queue
//! ```
//!
//! It does not know any device, page owner, tag, request, tokenizer or policy: it hands on what a checkpoint says about
//! tokenizing as plain data, and reads no device memory outside [`eval`]. [`plan`] sizes a deployment from a configuration alone.
#![deny(unsafe_code)]

mod agreement;
mod architecture;
mod check;
mod checkpoint;
mod error;
pub mod eval;
mod layers;
pub mod plan;
pub mod quantize;
pub mod spec;
mod weights;

pub use agreement::{AgreementError, Disagreement, TokenizerAgreement, check_agreement};
pub use architecture::{Architecture, Logits, StepShape, known_architectures, load, spec_of, unused_tensors};
pub use checkpoint::{Checkpoint, Config, Flag, GgufVocabData, TokenizerSource};
pub use error::{CheckpointError, ModelError};
pub use layers::Activations;
pub use weights::{Role, WeightCache, weight_format};
