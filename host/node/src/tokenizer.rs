//! The tokenizer that a checkpoint brings along. Knows neither templates nor requests.

use millrace_model::{Checkpoint, TokenizerSource};
use millrace_tokenize::{GgufVocab, Tokenizer};

use crate::error::StartError;

/// `None` where the checkpoint has no tokenizer.
///
/// # Errors
/// What is wrong with the vocabulary or the tokenizer's files.
pub fn tokenizer_of(checkpoint: &Checkpoint) -> Result<Option<Tokenizer>, StartError> {
    Ok(match checkpoint.tokenizer()? {
        TokenizerSource::Gguf(data) => Some(Tokenizer::from_gguf(&GgufVocab {
            model: data.model,
            pre: data.pre,
            tokens: data.tokens,
            token_types: data.token_types,
            merges: data.merges,
            bos: data.bos,
            eos: data.eos,
            unknown: data.unknown,
            add_bos: data.add_bos,
            add_space_prefix: data.add_space_prefix,
        })?),
        TokenizerSource::Files { tokenizer_json, tokenizer_config } => {
            Some(Tokenizer::from_files(&tokenizer_json, tokenizer_config.as_deref())?)
        }
        TokenizerSource::Missing => None,
    })
}
