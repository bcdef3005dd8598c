//! What the state machines tell the engine. After the event that ends a sequence here, the scheduler does not know it.

use millrace_core::{FinishReason, SeqId};
use millrace_kv::PageRef;

use crate::Entry;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrefillEvent {
    /// The whole prompt is in the pages, which stay held until `release_handed_off` or `abort`. Others may read them too, so
    /// whoever takes them over only reads.
    Prefilled {
        entry: Entry,
        /// Without meaning for a replayed entry, whose first token is `entry.replay[0]`.
        first_token: u32,
        /// The first token ended the sequence: no hand-off is needed. `Stop`: it is not part of the output.
        finished: Option<FinishReason>,
        pages: Vec<PageRef>,
        /// Prompt tokens; the last page may be part full.
        tokens: u32,
        /// Of these: those that were found in the prefix tree when the prompt got its first pages, and not computed.
        cached_tokens: u32,
    },
    /// Ends it: a page of its table did not carry its tag.
    Stale { seq: SeqId },
    /// Ends it: its logits held NaN or infinity.
    NotFinite { seq: SeqId },
    /// Ends it: its deadline passed before its first step.
    Expired { seq: SeqId },
    /// Ends it: the pool lost so many pages to suspicion that its prompt can never fit.
    NoRoom { seq: SeqId },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeEvent {
    /// The next output token.
    Token { seq: SeqId, token: u32 },
    /// Ends it. A stop token is not an output token, so no `Token` came for it.
    Finished { seq: SeqId, reason: FinishReason },
    /// Ends it: a page of its table did not carry its tag.
    Stale { seq: SeqId },
    /// Ends it: its logits held NaN or infinity.
    NotFinite { seq: SeqId },
    /// Ends its stay here; submit it to prefill again.
    Preempted(Entry),
}
