//! Checkpoints and the models in them: reads GGUF files and hub directories, prepares their weights on a device through the
//! [`Backend`](millrace_ops::Backend) trait and turns a step into a list of operations.
//!
//! ```text
//! GGUF file ------+                    +- prepare_weight --> weights, shared by a WeightCache
//!                 +--> Checkpoint --> Architecture (Llama ..)
//! hub directory --+    names, bytes    +- forward(step) --> operations on a queue
//! ```
//!
//! It does not know any device, page owner, tag, request, tokenizer or policy: it hands on what a checkpoint says about
//! tokenizing as plain data, and reads no device memory outside [`eval`].
#![deny(unsafe_code)]

mod architecture;
mod checkpoint;
mod error;
pub mod eval;
mod weights;

pub use architecture::llama::{LlamaConfig, LlamaModel, RopeScaling};
pub use architecture::{Activations, Architecture, Logits, ModelFacts, StepShape, facts, known_architectures, load};
pub use checkpoint::{Checkpoint, Config, Flag, GgufVocabData, TokenizerSource};
pub use error::{CheckpointError, ModelError};
pub use weights::{Role, WeightCache, weight_format};
