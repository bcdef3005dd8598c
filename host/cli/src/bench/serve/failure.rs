//! How a request fails, and how many failed how. Knows nothing of how requests are sent.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

/// Characters of a server's own words that a report shows.
const MAX_MESSAGE_CHARS: usize = 240;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// No connection could be made.
    Connect,
    /// Not done within the time that a request has.
    Timeout,
    /// Answered with this status, which is none of 2xx.
    Status(u16),
    /// The connection ended before the answer.
    Cut,
    /// What came is no HTTP.
    Http,
    /// What came within the answer is no event or no JSON.
    Malformed,
    /// The answer, begun as a success, tells of an error.
    ErrorEvent,
    /// The stream ended with neither `[DONE]` nor a reason to finish.
    Unfinished,
    /// Ended well, with no text and no tokens.
    Empty,
    /// Longer than an answer to this request can be.
    TooLarge,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Status(status) => return write!(f, "status_{status}"),
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Cut => "cut",
            Self::Http => "http",
            Self::Malformed => "malformed",
            Self::ErrorEvent => "error_event",
            Self::Unfinished => "unfinished",
            Self::Empty => "empty",
            Self::TooLarge => "too_large",
        })
    }
}

/// A request that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) kind: Kind,
    pub(super) message: String,
}

impl Failed {
    pub(super) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The message may be a server's words: it is cut, and control characters are replaced.
    pub(super) fn shown(&self) -> String {
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        self.message.trim().chars().take(MAX_MESSAGE_CHARS).map(printable).collect()
    }
}

/// Failures by kind, each with the first message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally(BTreeMap<Kind, (u64, String)>);

impl Tally {
    pub(super) fn add(&mut self, failed: &Failed) {
        self.0.entry(failed.kind).or_insert_with(|| (0, failed.shown())).0 += 1;
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (kind, (count, message)) in other.0 {
            self.0.entry(kind).or_insert((0, message)).0 += count;
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.0.values().map(|(count, _)| count).sum()
    }

    /// `3 x status_429: try later`, one for each kind.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(kind, (count, message))| format!("{count} x {kind}: {message}"))
    }

    pub(super) fn json(&self) -> Value {
        let kinds = self.0.iter();
        let kinds = kinds.map(|(kind, (count, example))| json!({"kind": kind.to_string(), "count": count, "example": example}));
        json!({"total": self.total(), "kinds": kinds.collect::<Vec<_>>()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_kind_with_their_first_message() {
        let mut one = Tally::default();
        one.add(&Failed::new(Kind::Cut, "first"));
        one.add(&Failed::new(Kind::Status(429), "busy"));
        one.add(&Failed::new(Kind::Cut, "second"));
        let mut other = Tally::default();
        other.add(&Failed::new(Kind::Cut, "third"));
        other.add(&Failed::new(Kind::Status(500), "oops"));
        one.merge(other);
        assert_eq!(one.total(), 5);
        assert_eq!(one.lines().collect::<Vec<_>>(), ["1 x status_429: busy", "1 x status_500: oops", "3 x cut: first"]);
        assert_eq!(one.json()["kinds"][2], json!({"kind": "cut", "count": 3, "example": "first"}));
    }

    #[test]
    fn messages_are_cut_and_printable() {
        let failed = Failed::new(Kind::Http, format!("\r\n\u{1b}[31m{}", "é".repeat(1_000)));
        assert_eq!(failed.shown().chars().count(), MAX_MESSAGE_CHARS);
        assert!(!failed.shown().contains(char::is_control));
    }
}
