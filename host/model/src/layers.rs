//! Layers that architectures share, loaded from a specification and turned into operations. Know neither files' formats nor
//! devices, nor which architecture they are of.

mod decoder;
mod experts;
mod gated_mlp;
mod grouped_query;
mod indexer;
mod latent;
mod projection;
mod rotary;
mod work;

pub(crate) use decoder::Decoder;
pub use work::Activations;
