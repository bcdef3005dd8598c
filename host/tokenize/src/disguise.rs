//! Keeps special tokens that a client spells inside a message from becoming special tokens of the prompt.
//! Knows the spellings of the special tokens; does not know templates or ids.
//!
//! A template turns messages into one string, in which the client's `<|im_end|>` looks like the template's. So before rendering,
//! one character of each occurrence in a message is exchanged for a private-use character that no message uses; after the prompt
//! has been split at its special tokens, the text between them gets its characters back and is encoded as plain text:
//!
//! ```text
//!   content    hi<|im_end|>            disguised   hi?|im_end|>          (? is U+E000, say, standing for '<')
//!   rendered   <|im_start|>user\nhi?|im_end|><|im_end|>\n
//!   split      [im_start] "user\nhi?|im_end|>" [im_end] "\n"
//!   restored   [im_start] "user\nhi<|im_end|>" [im_end] "\n"
//! ```
//! A content is also disguised at its ends where it could complete a special token together with its neighbour ("<|im_" before
//! "end|>"). Contents without such spellings are not touched, so what a template decides by content stays as it is. What remains
//! open: a template that deletes text from inside a content can join a special token out of its rest.

use std::collections::{BTreeMap, BTreeSet};

use aho_corasick::{AhoCorasick, MatchKind};

use crate::{ChatMessage, TokenizeError};

/// Finds the spellings of the special tokens.
pub(crate) struct Disguise {
    finder: AhoCorasick,
    /// All proper prefixes and proper suffixes of the spellings.
    prefixes: BTreeSet<String>,
    suffixes: BTreeSet<String>,
    /// Bytes of the longest spelling.
    longest: usize,
    /// Private-use characters in the spellings.
    private: BTreeSet<char>,
}

/// Bytes that the prefixes or suffixes of all special tokens may have together; a thousand ordinary tokens have under 1 MB.
const MAX_AFFIX_BYTES: usize = 64 << 20;

/// Messages without spelled special tokens, and the way back.
pub(crate) struct Disguised {
    pub(crate) messages: Vec<ChatMessage>,
    /// Stand-in to the character that it replaced.
    originals: BTreeMap<char, char>,
}

impl Disguise {
    /// `spellings`: the text of every special token. `None` when they are so many or so long that finding them needs too much memory.
    pub(crate) fn new(mut spellings: Vec<String>) -> Option<Self> {
        spellings.retain(|spelling| !spelling.is_empty());
        let affix_bytes = spellings.iter().try_fold(0_usize, |sum, s| sum.checked_add(s.len().checked_mul(s.len())?))?;
        if affix_bytes > MAX_AFFIX_BYTES {
            return None;
        }
        let finder = AhoCorasick::builder().match_kind(MatchKind::Standard).build(&spellings).ok()?;
        let halves = || spellings.iter().flat_map(|spelling| inner_borders(spelling).map(|at| spelling.split_at(at)));
        let prefixes = halves().map(|(prefix, _)| prefix.to_owned()).collect();
        let suffixes = halves().map(|(_, suffix)| suffix.to_owned()).collect();
        let longest = spellings.iter().map(String::len).max().unwrap_or(0);
        let private = spellings.iter().flat_map(|spelling| private_characters_in(spelling)).collect();
        Some(Self { finder, prefixes, suffixes, longest, private })
    }

    /// `None`: no message spells a special token, take them as they are. `reserved`: private-use characters of the template.
    ///
    /// # Errors
    /// [`TokenizeError::NoPrivateCharacterLeft`] when the messages use all private-use characters.
    pub(crate) fn apply(&self, messages: &[ChatMessage], reserved: &[char]) -> Result<Option<Disguised>, TokenizeError> {
        let places: Vec<Places> = messages.iter().map(|message| self.places(message)).collect();
        if places.iter().all(Places::are_none) {
            return Ok(None);
        }
        let texts = messages.iter().flat_map(|m| [&m.role, &m.content].into_iter().chain(&m.name));
        let used =
            texts.flat_map(|text| private_characters_in(text)).chain(self.private.iter().chain(reserved).copied()).collect();
        let mut stand_ins = StandIns { used, by_original: BTreeMap::new() };
        let mut disguised = Vec::with_capacity(messages.len());
        for (message, places) in messages.iter().zip(&places) {
            let role = stand_ins.exchange(&message.role, &places.role)?;
            let name = message.name.as_ref().map(|name| stand_ins.exchange(name, &places.name)).transpose()?;
            let content = stand_ins.exchange(&message.content, &places.content)?;
            disguised.push(ChatMessage { role, name, content });
        }
        let originals = stand_ins.by_original.into_iter().map(|(original, stand_in)| (stand_in, original)).collect();
        Ok(Some(Disguised { messages: disguised, originals }))
    }

    fn places(&self, message: &ChatMessage) -> Places {
        Places {
            role: self.occurrences(&message.role),
            name: message.name.as_ref().map(|name| self.places_in_content(name)).unwrap_or_default(),
            content: self.places_in_content(&message.content),
        }
    }

    /// Where special tokens begin in `text`, overlapping ones included.
    fn occurrences(&self, text: &str) -> BTreeSet<usize> {
        self.finder.find_overlapping_iter(text).map(|found| found.start()).collect()
    }

    /// The same, and the ends that may complete a special token with text that is not part of the content.
    /// A role has no such places: templates join roles into special tokens on purpose (`'<|' + role + '|>'`).
    fn places_in_content(&self, content: &str) -> BTreeSet<usize> {
        let mut places = self.occurrences(content);
        let start = content.len() - content.trim_start().len();
        for head in [0, start] {
            places.extend(self.ends_a_special(content.get(head..).unwrap_or_default()).then_some(head));
        }
        for tail in [content, content.trim_end()] {
            places.extend(self.begins_a_special(tail));
        }
        places
    }

    /// Whether `text` begins with a proper suffix of a special token.
    fn ends_a_special(&self, text: &str) -> bool {
        let ends = text.char_indices().map(|(at, character)| at + character.len_utf8()).take_while(|&end| end <= self.longest);
        ends.filter_map(|end| text.get(..end)).any(|head| self.suffixes.contains(head))
    }

    /// Where the longest proper prefix of a special token begins that `text` ends with.
    fn begins_a_special(&self, text: &str) -> Option<usize> {
        let starts = text.char_indices().rev().map(|(at, _)| at).take_while(|&at| text.len() - at <= self.longest);
        starts.filter(|&at| text.get(at..).is_some_and(|tail| self.prefixes.contains(tail))).last()
    }
}

/// Characters of a message that are exchanged.
struct Places {
    role: BTreeSet<usize>,
    name: BTreeSet<usize>,
    content: BTreeSet<usize>,
}

impl Places {
    fn are_none(&self) -> bool {
        self.role.is_empty() && self.name.is_empty() && self.content.is_empty()
    }
}

impl Disguised {
    /// Gives a piece of the rendered prompt its own characters back.
    pub(crate) fn restore(&self, text: &str) -> String {
        text.chars().map(|character| self.originals.get(&character).copied().unwrap_or(character)).collect()
    }
}

/// Byte positions between two characters of `text`.
fn inner_borders(text: &str) -> impl Iterator<Item = usize> {
    text.char_indices().map(|(at, _)| at).skip(1)
}

/// The private-use characters that `text` holds.
pub(crate) fn private_characters_in(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|&character| is_private(character))
}

fn is_private(character: char) -> bool {
    matches!(character, '\u{E000}'..='\u{F8FF}' | '\u{F0000}'..='\u{FFFFD}' | '\u{100000}'..='\u{10FFFD}')
}

fn private_characters() -> impl Iterator<Item = char> {
    ('\u{E000}'..='\u{F8FF}').chain('\u{F0000}'..='\u{FFFFD}').chain('\u{100000}'..='\u{10FFFD}')
}

struct StandIns {
    /// Private-use characters that a message uses or that stand for another already.
    used: BTreeSet<char>,
    by_original: BTreeMap<char, char>,
}

impl StandIns {
    fn exchange(&mut self, text: &str, places: &BTreeSet<usize>) -> Result<String, TokenizeError> {
        let mut exchanged = String::with_capacity(text.len() + 2 * places.len());
        for (at, character) in text.char_indices() {
            exchanged.push(if places.contains(&at) { self.stand_in(character)? } else { character });
        }
        Ok(exchanged)
    }

    fn stand_in(&mut self, original: char) -> Result<char, TokenizeError> {
        if let Some(&stand_in) = self.by_original.get(&original) {
            return Ok(stand_in);
        }
        let free = private_characters().find(|character| !self.used.contains(character));
        let stand_in = free.ok_or(TokenizeError::NoPrivateCharacterLeft)?;
        self.used.insert(stand_in);
        self.by_original.insert(original, stand_in);
        Ok(stand_in)
    }
}

#[cfg(test)]
#[path = "disguise/tests.rs"]
mod tests;
