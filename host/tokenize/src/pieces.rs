//! Cuts long text into pieces that can be tokenized one after the other with the same ids as the whole.
//! Knows the borders that byte-level pre-tokenizers respect; does not know any vocabulary.
//!
//! The regular expressions of pre-tokenizers need memory and backtracking in proportion to the longest run they match, and the
//! engine gives up beyond a million steps. So text is cut where every supported expression starts a new word anyway:
//!
//! ```text
//!   letter or digit | space   letter or digit       "one| two"
//!   no white space    newline | letter              "one.\n|two"
//!   letter | U+3002 or U+FF0C   letter              Chinese and Japanese write no spaces
//! ```
//! Text without any such border for [`HARD_BYTES`] is cut at a character, so the ids of such a run may differ from those of an
//! unbounded tokenizer. Ordinary text has a border every few bytes.

/// Pieces aim at this length in bytes.
pub(crate) const AIM_BYTES: usize = 64 << 10;
/// No piece is longer than this.
pub(crate) const HARD_BYTES: usize = 256 << 10;

/// The pieces of `text` in order; joined they are `text`, and each but the last is at least `aim` and at most `hard` bytes long
/// (`hard >= 4`, the longest character).
pub(crate) fn pieces(text: &str, aim: usize, hard: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, tail) = rest.split_at(piece_end(rest, aim, hard));
        rest = tail;
        Some(piece)
    })
}

fn piece_end(text: &str, aim: usize, hard: usize) -> usize {
    if text.len() <= aim {
        return text.len();
    }
    let last = hard.min(text.len());
    let first = text.floor_char_boundary(aim.max(1));
    let border = text
        .get(first..last)
        .or_else(|| text.get(first..text.floor_char_boundary(last)))
        .and_then(|window| window.char_indices().map(|(offset, _)| first + offset).find(|&at| at > 0 && is_border(text, at)));
    match border {
        Some(at) => at,
        None if text.len() <= hard => text.len(),
        None => text.floor_char_boundary(hard),
    }
}

/// Whether every supported pre-tokenizer starts a new word at byte `at` of `text`, a character boundary.
fn is_border(text: &str, at: usize) -> bool {
    let (Some(left), Some(right)) = (text.get(..at), text.get(at..)) else { return false };
    let (mut left, mut right) = (left.chars().rev(), right.chars());
    let (Some(before), Some(after)) = (left.next(), right.next()) else { return false };
    match (before, after) {
        (_, ' ') => before.is_alphanumeric() && right.next().is_some_and(char::is_alphanumeric),
        ('\n', _) => after.is_alphabetic() && left.next().is_some_and(|character| !character.is_whitespace()),
        (_, '\u{3002}' | '\u{FF0C}') => before.is_alphabetic() && right.next().is_some_and(char::is_alphabetic),
        _ => false,
    }
}

/// Texts with a border at the byte given: a pre-tokenizer that joins one of them must get its text in one piece.
pub(crate) const PROBES: [(&str, usize); 6] =
    [("ab cd", 2), ("Ab Cd", 2), ("a1 2b", 2), ("ab.\ncd", 4), ("漢 字", 3), ("漢字\u{3002}漢", 6)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_borders() {
        for (text, at) in PROBES {
            assert!(is_border(text, at), "{text:?}");
        }
        for (text, at) in [("ab  cd", 2), ("ab  cd", 3), ("ab\n\ncd", 4), ("ab \ncd", 4), ("ab' cd", 3), ("ab", 0), ("ab", 2)] {
            assert!(!is_border(text, at), "{text:?} at {at}");
        }
    }

    #[test]
    fn pieces_join_to_the_text_and_keep_their_bounds() {
        let words = ["a", "bc ", " ", "\n", "漢字", "\u{3002}", "😀", "x\n", "12", "\u{301}"];
        let mut state = 7_u64;
        for round in 0..400 {
            let mut text = String::new();
            for _ in 0..round {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push_str(words[(state >> 33) as usize % words.len()]);
            }
            for (aim, hard) in [(1, 4), (1, 64), (8, 16), (16, 1000)] {
                let cut: Vec<&str> = pieces(&text, aim, hard).collect();
                assert_eq!(cut.concat(), text);
                assert!(cut.iter().all(|piece| !piece.is_empty() && piece.len() <= hard), "{cut:?}");
            }
        }
    }

    #[test]
    fn runs_without_borders_are_cut_at_the_hard_bound() {
        let lengths: Vec<usize> = pieces(&"漢".repeat(100), 10, 100).map(str::len).collect();
        assert_eq!(lengths, [99, 99, 99, 3]);
        assert_eq!(pieces(&"a".repeat(50), 10, 100).count(), 1);
    }
}
