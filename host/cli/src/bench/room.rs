//! How many pages the tests of a run need, and whether the model's context and the machine's memory allow them. Knows numbers only.

use std::fmt;

/// Tokens of a page.
pub(super) const PAGE_TOKENS: usize = 32;
/// Pages beyond what the sequences hold: those that rest until the step that may have touched them has ended.
/// What asks for less in `bench engine`, and in `bench kv`.
pub(super) const LESS_OF_ENGINE: &str = "fewer streams (-b), less depth (-d, -n), shorter prompts (-p) or --kv fp8";
pub(super) const LESS_OF_KV: &str = "a smaller pool (--pool-mib), fewer streams (-b) or less depth (-d, -n)";
const SPARE_PAGES: usize = 8;
const GIB: f64 = (1_u64 << 30) as f64;

/// What the command line asks for. No number is 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) prompts: Vec<usize>,
    pub(super) batches: Vec<usize>,
    pub(super) depths: Vec<usize>,
    pub(super) output: usize,
    pub(super) chunk: usize,
    /// Prompts that prefill keeps beside those it works on; this one may be 0.
    pub(super) kept: usize,
}

/// What the pools have to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Sequences at a time.
    pub(super) streams: u32,
    pub(super) prefill_pages: u32,
    pub(super) decode_pages: u32,
}

/// What that costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) pages_bytes: u64,
    pub(super) logits_bytes: u64,
}

impl Wanted {
    /// The room for every test of the run on a model with so many tokens of context.
    ///
    /// # Errors
    /// What does not fit into the context, and the greatest number that would.
    pub(super) fn room(&self, context: usize) -> Result<Room, String> {
        for &prompt in &self.prompts {
            if prompt >= context {
                let most = context.saturating_sub(1);
                return Err(format!(
                    "-p {prompt}: the prompt and the token drawn after it exceed the model's context of {context} tokens; use at \
                     most -p {most}"
                ));
            }
        }
        for &depth in &self.depths {
            if depth.saturating_add(self.output) > context {
                return Err(self.too_deep(depth, context));
            }
        }
        if self.chunk > context {
            return Err(format!("--chunk {}: no prompt is longer than the model's context of {context} tokens", self.chunk));
        }
        let most = |numbers: &[usize]| numbers.iter().copied().max().unwrap_or(1);
        let (streams, depth) = (most(&self.batches), most(&self.depths));
        // A sequence in decode may begin a page with its next token.
        // A prompt that is only prefilled still has room for itself there, or its lane would refuse it.
        let decode = streams.saturating_mul(pages(depth + self.output) + 1).max(pages(most(&self.prompts) + 1) + 1);
        // Prompts go through prefill one after another where the chunk is full; while one is handed off, the next begins.
        let longest = pages(most(&self.prompts).max(depth) + 1);
        let prefill = self.kept.saturating_add(2).saturating_mul(longest).saturating_add(streams);
        let count = |pages: usize| u32::try_from(pages.saturating_add(SPARE_PAGES));
        let too_many = |_| format!("-b {streams} with -d {depth}: more pages than a pool can number; use fewer streams");
        Ok(Room {
            streams: u32::try_from(streams).map_err(too_many)?,
            prefill_pages: count(prefill).map_err(too_many)?,
            decode_pages: count(decode).map_err(too_many)?,
        })
    }

    fn too_deep(&self, depth: usize, context: usize) -> String {
        let output = self.output;
        let or = match (context.checked_sub(depth), context.checked_sub(output)) {
            (Some(n), Some(d)) if n >= 4 && d >= 1 => format!("use at most -n {n} with this -d, or -d {d} with this -n"),
            (Some(n), _) if n >= 4 => format!("use at most -n {n} with this -d"),
            (_, Some(d)) if d >= 1 => format!("use at most -d {d} with this -n"),
            _ => "use less of both".to_owned(),
        };
        format!(
            "-d {depth} -n {output}: a stream's {depth} tokens and {output} new ones exceed the model's context of {context} tokens; {or}"
        )
    }
}

fn pages(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

impl Cost {
    /// `relief` says which of the command's own options ask for less.
    ///
    /// # Errors
    /// What is needed and what there is, where that is less.
    pub(super) fn check(self, room: Room, available_bytes: u64, relief: &str) -> Result<(), String> {
        if self.pages_bytes.saturating_add(self.logits_bytes) <= available_bytes {
            return Ok(());
        }
        Err(format!("-b {}: {self}, and {:.1} GiB of memory are left; use {relief}", room.streams, available_bytes as f64 / GIB))
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |bytes: u64| bytes as f64 / GIB;
        write!(
            f,
            "the page pools need {:.1} GiB and the streams' logits {:.1} GiB",
            gib(self.pages_bytes),
            gib(self.logits_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(prompt: usize, batch: usize, depth: usize, output: usize) -> Wanted {
        Wanted { prompts: vec![1, prompt], batches: vec![batch, 1], depths: vec![8, depth], output, chunk: 512, kept: 0 }
    }

    #[test]
    fn pools_hold_the_largest_test_and_little_more() {
        let room = wanted(512, 32, 4000, 128).room(8192).unwrap();
        assert_eq!(room.streams, 32);
        // 4128 tokens are 129 pages, and each stream may begin one more.
        assert_eq!(room.decode_pages, 32 * 130 + 8);
        // Two prompts of 4001 tokens, and a page of each stream.
        assert_eq!(room.prefill_pages, 2 * 126 + 32 + 8);
        // 513 tokens are 17 pages, where one stream of 136 needs 6.
        let prompt = Wanted { prompts: vec![512], batches: vec![1], depths: vec![8], output: 128, chunk: 512, kept: 0 };
        assert_eq!(prompt.room(8192).map(|room| room.decode_pages), Ok(18 + 8));
    }

    #[test]
    fn what_exceeds_the_context_says_so_and_what_would_fit() {
        assert!(wanted(8191, 1, 8064, 128).room(8192).is_ok());
        let text = wanted(8192, 1, 8, 128).room(8192).unwrap_err();
        assert!(text.starts_with("-p 8192:") && text.ends_with("context of 8192 tokens; use at most -p 8191"), "{text}");
        let text = wanted(8, 1, 8065, 128).room(8192).unwrap_err();
        assert!(text.contains("context of 8192 tokens; use at most -n 127 with this -d, or -d 8064 with this -n"), "{text}");
        let text = wanted(8, 1, 9000, 128).room(8192).unwrap_err();
        assert!(text.ends_with("use at most -d 8064 with this -n"), "{text}");
        let text = wanted(8, 1, 8, 9000).room(8192).unwrap_err();
        assert!(text.ends_with("use at most -n 8184 with this -d"), "{text}");
        let text = Wanted { chunk: 8193, ..wanted(8, 1, 8, 8) }.room(8192).unwrap_err();
        assert!(text.starts_with("--chunk 8193:"), "{text}");
        assert!(wanted(8, usize::MAX, 8, 8).room(8192).unwrap_err().starts_with("-b 18446744073709551615"));
    }

    #[test]
    fn what_exceeds_the_memory_says_what_is_needed_and_left() {
        let room = Room { streams: 4096, prefill_pages: 1, decode_pages: 1 };
        let cost = Cost { pages_bytes: 90 << 30, logits_bytes: 1 << 30 };
        assert_eq!(cost.check(room, 91 << 30, LESS_OF_ENGINE), Ok(()));
        let text = cost.check(room, 20 << 30, LESS_OF_ENGINE).unwrap_err();
        assert!(
            text.starts_with("-b 4096: the page pools need 90.0 GiB and the streams' logits 1.0 GiB, and 20.0 GiB of memory"),
            "{text}"
        );
        assert!(text.contains("shorter prompts (-p)"), "{text}");
        let text = cost.check(room, 20 << 30, LESS_OF_KV).unwrap_err();
        assert!(text.contains("--pool-mib") && !text.contains("(-p)") && !text.contains("--kv "), "its own options: {text}");
    }
}
