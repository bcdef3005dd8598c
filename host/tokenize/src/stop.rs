//! Finds stop strings in streamed text and holds back what may become one. Knows no tokens: text comes in any cuts.
//!
//! The match that is complete first ends the stream; of those complete at the same byte, the one that starts first. So the result
//! does not depend on how the text was cut. Matching is Knuth-Morris-Pratt, one automaton per stop string: time per byte does not
//! grow with the length of the stop strings, and what is held back is the longest suffix that starts one of them.

/// What may be shown after a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text that no longer can be part of a stop string; may be empty.
    pub text: String,
    /// A stop string is complete; the text before it has been handed out, the rest is dropped.
    pub stopped: bool,
}

/// The stop strings of one sequence and what they hold back.
#[derive(Debug, Clone)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    /// Text handed in but not out: at most the longest stop string less one byte between calls.
    held: String,
    /// The pattern that was complete.
    stopped: Option<usize>,
}

impl StopStrings {
    /// Empty strings are ignored (they would stop before the first character). Memory is about 5 bytes per byte of stop string,
    /// time per byte of text is proportional to their number: the caller bounds both.
    #[must_use]
    pub fn new(stops: Vec<String>) -> Self {
        let patterns = stops.into_iter().filter(|stop| !stop.is_empty()).map(|stop| Pattern::new(stop.into_bytes())).collect();
        Self { patterns, held: String::new(), stopped: None }
    }

    /// Takes the next text of the stream. After a stop, everything is dropped and `stopped` stays true.
    pub fn push(&mut self, text: &str) -> StopOutcome {
        if self.stopped.is_some() {
            return StopOutcome { text: String::new(), stopped: true };
        }
        let seen = self.held.len();
        self.held.push_str(text);
        for (offset, &byte) in text.as_bytes().iter().enumerate() {
            let complete =
                self.patterns.iter_mut().enumerate().filter_map(|(index, pattern)| Some((pattern.advance(byte)?, index)));
            if let Some((length, index)) = complete.max() {
                // Stop strings and text are valid UTF-8, so a match starts and ends between characters.
                self.held.truncate((seen + offset + 1).saturating_sub(length));
                self.stopped = Some(index);
                return StopOutcome { text: std::mem::take(&mut self.held), stopped: true };
            }
        }
        let hold = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len().saturating_sub(hold));
        StopOutcome { text: std::mem::replace(&mut self.held, kept), stopped: false }
    }

    /// The stop string that was found.
    #[must_use]
    pub fn matched(&self) -> Option<&str> {
        // They came as text.
        self.patterns.get(self.stopped?).and_then(|pattern| std::str::from_utf8(&pattern.bytes).ok())
    }

    /// The stream ended without a stop: hands out what was held back. Empty after a stop.
    pub fn flush(&mut self) -> String {
        self.patterns.iter_mut().for_each(|pattern| pattern.matched = 0);
        std::mem::take(&mut self.held)
    }
}

#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// `borders[i]`: length of the longest proper prefix of `bytes` that ends at `i`.
    borders: Vec<u32>,
    /// How many bytes of the pattern the text ends with.
    matched: usize,
}

impl Pattern {
    fn new(bytes: Vec<u8>) -> Self {
        let mut borders = Vec::with_capacity(bytes.len());
        borders.push(0);
        let mut pattern = Self { bytes, borders, matched: 0 };
        for index in 1..pattern.bytes.len() {
            let byte = pattern.bytes.get(index).copied().unwrap_or_default();
            pattern.follow(byte);
            pattern.borders.push(u32::try_from(pattern.matched).unwrap_or(u32::MAX));
        }
        pattern.matched = 0;
        pattern
    }

    /// The longest prefix of the pattern that the text ends with once `byte` is added.
    fn follow(&mut self, byte: u8) {
        while self.matched > 0 && self.bytes.get(self.matched) != Some(&byte) {
            self.matched = self.borders.get(self.matched - 1).map_or(0, |&border| border as usize);
        }
        if self.bytes.get(self.matched) == Some(&byte) {
            self.matched += 1;
        }
    }

    /// The pattern's length when `byte` completes it.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        self.follow(byte);
        (self.matched == self.bytes.len()).then_some(self.bytes.len())
    }
}

#[cfg(test)]
#[path = "stop/tests.rs"]
mod tests;
