//! `[limits]`: what one request may ask for.

use crate::defaults;
use crate::reader::Section;
use crate::{ErrorKind, Limits, Model};

pub(super) fn read(section: &mut Section<'_, '_>, models: &[Model]) -> Limits {
    let limits = Limits {
        max_waiting: section.count("max_waiting", defaults::MAX_WAITING),
        max_prompt_tokens: section.count_or_none("max_prompt_tokens", defaults::MAX_PROMPT_TOKENS),
        max_output_tokens: section.count("max_output_tokens", defaults::MAX_OUTPUT_TOKENS),
        max_stop_strings: section.count("max_stop_strings", defaults::MAX_STOP_STRINGS),
        max_stop_bytes: section.count("max_stop_bytes", defaults::MAX_STOP_BYTES),
        retry_after_min_ms: section.number("retry_after_min_ms", defaults::RETRY_AFTER_MIN_MS),
        retry_after_max_ms: section.number("retry_after_max_ms", defaults::RETRY_AFTER_MAX_MS),
    };
    if limits.retry_after_min_ms > limits.retry_after_max_ms {
        let message = format!("{} is above retry_after_max_ms, {}", limits.retry_after_min_ms, limits.retry_after_max_ms);
        section.error(ErrorKind::Conflict, "retry_after_min_ms", message, "lower it or raise retry_after_max_ms");
    }
    let context = models.first().and_then(|model| model.max_model_tokens);
    if let Some((prompt, context)) = limits.max_prompt_tokens.zip(context).filter(|(prompt, context)| prompt >= context) {
        let message = format!("{prompt} leaves no token for an answer in the model's max_model_tokens, {context}");
        section.error(
            ErrorKind::Conflict,
            "max_prompt_tokens",
            message,
            "lower it, or leave it out to use what the context leaves",
        );
    }
    section.finish();
    limits
}
