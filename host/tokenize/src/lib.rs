//! Text to ids and back: tokenizers (GGUF vocabularies, the hub's files), chat templates, incremental detokenizing, stop strings.
//!
//! Everything here runs on text from clients, so all of it is bounded: text length, template instructions and output, time per byte.
//! Encoding is plain blocking work (about 2 MB/s); run it off the async threads. It does not know HTTP, requests or models.
//!
//! ```text
//!   messages -> ChatTemplate -> Tokenizer::encode_chat -> ids -> (engine) -> ids -> Detokenizer -> StopStrings -> text
//!   prompt   ---------------->  Tokenizer::encode -------^
//! ```
#![forbid(unsafe_code)]

mod alphabet;
mod assemble;
mod detokenizer;
mod dialect;
mod disguise;
mod error;
mod gguf;
mod hub;
mod pieces;
mod stop;
mod template;
mod token_table;
mod tokenizer;

pub use detokenizer::Detokenizer;
pub use error::TokenizeError;
pub use gguf::GgufVocab;
pub use stop::{StopOutcome, StopStrings};
pub use template::{ChatMessage, ChatTemplate};
pub use tokenizer::{DEFAULT_MAX_TEXT_BYTES, Tokenizer};
