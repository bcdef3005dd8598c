//! What tokenizing and templating can fail at. Knows no HTTP status: the host maps [`TokenizeError::is_callers_fault`] once.

use std::path::PathBuf;

/// A failure of a tokenizer, a chat template, or the text given to them.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TokenizeError {
    /// The text is longer than the tokenizer takes. `bytes` is its length in UTF-8.
    #[error("the text has {bytes} bytes, more than the {limit} this model takes; shorten it")]
    TextTooLong { bytes: usize, limit: usize },
    /// The messages hold every private-use character, so none is left to tell their text from the template's.
    #[error("the messages use all of Unicode's private-use characters next to text that spells special tokens; remove some")]
    NoPrivateCharacterLeft,
    /// The vocabulary is of a kind that is not implemented.
    #[error("tokenizer model `{found}` is not supported; known are: {known}")]
    UnsupportedModel { found: String, known: &'static str },
    /// The way of splitting text before BPE is not implemented.
    #[error("pre-tokenizer `{found}` of the GGUF file is not supported; known are: {known}")]
    UnsupportedPreTokenizer { found: String, known: String },
    /// The vocabulary contradicts itself or is beyond a bound.
    #[error("the vocabulary is not usable: {at}: {why}; get the model file again or convert it anew")]
    Vocabulary { at: String, why: String },
    /// A tokenizer file cannot be read or understood.
    #[error("{}: {why}", path.display())]
    File { path: PathBuf, why: String },
    /// The tokenizer failed on a text.
    #[error("the tokenizer failed on this text: {why}")]
    Encode { why: String },
    /// The chat template is not valid.
    #[error("the model's chat template cannot be compiled: {why}; check the model's files")]
    TemplateSyntax { why: String },
    /// The chat template itself refused the messages (`raise_exception`), e.g. because roles must alternate.
    #[error("the model's chat template refuses these messages: {message}")]
    TemplateRefused { message: String },
    /// The chat template failed while running.
    #[error("the model's chat template failed: {why}")]
    TemplateFailed { why: String },
    /// The chat template ran for too many instructions.
    #[error("the model's chat template did not end within {fuel} instructions; send fewer messages or check the template")]
    TemplateOutOfFuel { fuel: u64 },
    /// The rendered prompt is longer than allowed.
    #[error("the rendered chat prompt exceeds {limit} bytes; shorten the messages")]
    TemplateOutputTooLong { limit: usize },
}

impl TokenizeError {
    /// Whether other input from the client would have worked; otherwise the model's files are at fault.
    ///
    /// A template that fails counts as the caller's fault: it does so on messages it was not written for
    /// (a role it does not know, an order it does not take), and a broken template fails on the first use.
    #[must_use]
    pub fn is_callers_fault(&self) -> bool {
        match self {
            Self::TextTooLong { .. }
            | Self::NoPrivateCharacterLeft
            | Self::TemplateRefused { .. }
            | Self::TemplateFailed { .. }
            | Self::TemplateOutOfFuel { .. }
            | Self::TemplateOutputTooLong { .. } => true,
            Self::UnsupportedModel { .. }
            | Self::UnsupportedPreTokenizer { .. }
            | Self::Vocabulary { .. }
            | Self::File { .. }
            | Self::Encode { .. }
            | Self::TemplateSyntax { .. } => false,
        }
    }
}
