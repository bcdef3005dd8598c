//! From tensors of a checkpoint to weights and vectors on a device: which format, fused how, shared with whom.
//! Does not know any architecture.

mod absorbed;
mod cache;
mod loader;
mod rule;

pub use cache::WeightCache;
pub(crate) use loader::{Stack, WeightLoader};
pub use rule::{Role, weight_format};
