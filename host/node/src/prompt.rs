//! From what the client sent to token ids, and how many may follow. Runs before anything is asked of a policy or an engine.

use std::sync::Arc;

use millrace_tokenize::TokenizeError;

use crate::node::Inner;
use crate::request::{ContextLength, Prompt, RequestError, TokenCount};

/// A prompt of so many times the model's context is refused without being counted.
const COUNTED_CONTEXTS: u32 = 4;

impl Prompt {
    /// The field of the request that holds it, as errors name it.
    pub(crate) fn param(&self) -> &'static str {
        match self {
            Self::Chat(_) => "messages",
            Self::Text(_) | Self::Tokens(_) => "prompt",
        }
    }

    fn text_bytes(&self) -> usize {
        match self {
            Self::Chat(messages) => messages.iter().map(|m| m.content.len()).fold(0, usize::saturating_add),
            Self::Text(text) => text.len(),
            Self::Tokens(_) => 0,
        }
    }
}

impl Inner {
    /// Token ids of a prompt that `completion` tokens (at least one) are to follow. Takes time in proportion to its length: not for
    /// the runtime's threads.
    ///
    /// # Errors
    /// Where it cannot be rendered or holds ids outside the vocabulary, is empty, or is too long for the model.
    pub(crate) fn encode(&self, prompt: &Prompt, completion: Option<u32>) -> Result<Arc<[u32]>, RequestError> {
        let completion = completion.unwrap_or(1);
        let param = prompt.param();
        // No token stands for more bytes than the longest one, so a text can be far too long before it is looked at.
        let at_least = token_count(prompt.text_bytes().div_ceil(self.longest_token_bytes.max(1)));
        if at_least >= self.model.context_tokens.saturating_mul(COUNTED_CONTEXTS) {
            return Err(self.too_long(TokenCount::AtLeast(at_least), completion));
        }
        let refused = |error: TokenizeError| match error.is_callers_fault() {
            true => RequestError::Field { param, message: error.to_string() },
            false => RequestError::Internal(error.to_string()),
        };
        let ids = match prompt {
            Prompt::Chat(messages) => {
                let template = self.template.as_ref().ok_or_else(|| RequestError::Field {
                    param,
                    message: "This model has no chat template; use the completions endpoint.".to_owned(),
                })?;
                self.tokenizer.encode_chat(template, messages).map_err(refused)?
            }
            Prompt::Text(text) => self.tokenizer.encode(text).map_err(refused)?,
            Prompt::Tokens(ids) => {
                self.check_ids(param, ids)?;
                ids.clone()
            }
        };
        if ids.is_empty() {
            let message = match prompt {
                Prompt::Chat(_) => "This model's chat template makes nothing of these messages; tell the operator.".to_owned(),
                Prompt::Text(_) | Prompt::Tokens(_) => format!("`{param}` is empty: there is nothing to go on from."),
            };
            return Err(RequestError::Field { param, message });
        }
        self.check_prompt(ids.len(), completion)?;
        if let Some(limit) = self.limits.max_prompt_tokens.filter(|limit| ids.len() > *limit as usize) {
            let message = format!("The prompt has {} tokens; this server takes at most {limit}.", ids.len());
            return Err(RequestError::Field { param, message });
        }
        Ok(ids.into())
    }

    /// # Errors
    /// Where an id is outside the vocabulary.
    pub(crate) fn check_ids(&self, param: &'static str, ids: &[u32]) -> Result<(), RequestError> {
        let vocab = self.tokenizer.vocab_size();
        match ids.iter().find(|id| **id as usize >= vocab) {
            None => Ok(()),
            Some(id) => {
                let message =
                    format!("`{param}` holds the token id {id}, but the vocabulary ends at {}.", vocab.saturating_sub(1));
                Err(RequestError::Field { param, message })
            }
        }
    }

    /// How many tokens may follow a prompt.
    ///
    /// # Errors
    /// Where the context or the tenant's limit does not hold what was asked for.
    pub(crate) fn output_tokens(&self, tenant: usize, prompt: usize, asked: Option<u32>) -> Result<u32, RequestError> {
        let room = self.check_prompt(prompt, asked.unwrap_or(1))?;
        let limit = self.output_limits.get(tenant).copied().unwrap_or(self.limits.max_output_tokens);
        match asked {
            None => Ok(room.min(limit).max(1)),
            Some(asked) if asked <= limit => Ok(asked),
            Some(asked) => {
                let message = format!("The request asks for up to {asked} tokens; at most {limit} are given here.");
                Err(RequestError::Field { param: "max_tokens", message })
            }
        }
    }

    /// Room after a prompt of so many tokens.
    fn check_prompt(&self, prompt: usize, completion: u32) -> Result<u32, RequestError> {
        let prompt = token_count(prompt);
        match self.model.context_tokens.checked_sub(prompt) {
            Some(room) if room >= completion.max(1) => Ok(room),
            _ => Err(self.too_long(TokenCount::Exactly(prompt), completion)),
        }
    }

    fn too_long(&self, prompt: TokenCount, completion: u32) -> RequestError {
        let limit = self.model.context_tokens;
        RequestError::ContextLength(ContextLength { limit, prompt, completion: completion.max(1) })
    }
}

/// A number of tokens as messages and policies have it.
pub(crate) fn token_count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
