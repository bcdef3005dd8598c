//! Turns ids into text one at a time and never shows half a character. Knows no prompt and no stop strings.

use std::sync::Arc;

use crate::Tokenizer;
use crate::token_table::TokenKind;

/// The text of one sequence of generated ids.
///
/// All text handed out, `finish` included, joined, is the lossy UTF-8 decoding of all bytes of the ids (special tokens skipped):
/// each maximal invalid part becomes one U+FFFD. A character whose bytes come in several tokens is shown with the last of them.
/// The prompt is never part of it, so nothing of a prompt that ends inside a character can leak.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// The start of a character: at most 3 bytes between calls.
    pending: Vec<u8>,
}

impl Detokenizer {
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, pending: Vec::new() }
    }

    /// The text that this id completes; may be empty. Special tokens and ids outside of the vocabulary have no text.
    pub fn push(&mut self, id: u32) -> String {
        if self.tokenizer.token_kind(id) != TokenKind::Text {
            return String::new();
        }
        self.pending.extend_from_slice(self.tokenizer.token_bytes(id).unwrap_or_default());
        self.take_complete()
    }

    /// No more ids come: what is left of an unfinished character, as U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }

    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        // Chunks are valid text followed by one maximal invalid part, empty only at the very end.
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            rest = rest.get(chunk.valid().len()..).unwrap_or_default();
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                break;
            }
            if invalid.len() == rest.len() && may_continue(invalid) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            rest = rest.get(invalid.len()..).unwrap_or_default();
        }
        let kept = rest.len();
        let start = self.pending.len().saturating_sub(kept);
        self.pending.drain(..start);
        text
    }
}

/// Whether further bytes could make a character of these.
fn may_continue(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}
