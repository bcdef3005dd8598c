//! Mutations: bytes, numbers, ranges, and for JSON its numbers and words. Knows where a safetensors file keeps the length of
//! its header; nothing else of any format.

use super::common::Lcg;

/// How an input is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Numbers in bytes.
    Binary,
    /// JSON, whole.
    Text,
    /// `length: u64`, JSON of that length, bytes.
    HeadedText,
}

/// Inputs grow no larger.
const MAX_BYTES: usize = 256 << 10;
/// Numbers that overflow, wrap, or are one too large for something.
const NUMBERS: [u64; 18] = [
    0,
    1,
    2,
    7,
    8,
    31,
    32,
    33,
    127,
    255,
    65_535,
    1 << 20,
    1 << 26,
    (1 << 31) - 1,
    u32::MAX as u64,
    1 << 61,
    (1 << 63) - 1,
    u64::MAX,
];
/// What a header or config is made of.
const WORDS: [&str; 40] = [
    "F32",
    "BF16",
    "F16",
    "F8_E4M3",
    "I32",
    "I64",
    "U8",
    "I8",
    "F4",
    "[]",
    "{}",
    "null",
    "true",
    "-1",
    "0.5",
    "1e999",
    "18446744073709551616",
    "\"Linear\"",
    "\"re:.*\"",
    "\"re:(a|b\"",
    "\"re:((a{99}){99}){99}\"",
    "\"lm_head\"",
    "\"fp8\"",
    "\"compressed-tensors\"",
    "\"pack-quantized\"",
    "\"float-quantized\"",
    "\"mixed-precision\"",
    "\"channel\"",
    "\"tensor\"",
    "\"block\"",
    "[128,128]",
    "\"int\"",
    "\"float\"",
    "_scale",
    "_scale_inv",
    "_packed",
    "_shape",
    "_zero_point",
    "\u{1F600}",
    "[[[[[[[[",
];

/// Changes `input` in one place or range; `other` is another input to take bytes from.
pub(crate) fn once(input: &mut Vec<u8>, other: &[u8], kind: Kind, chance: &mut Lcg) {
    if input.is_empty() {
        input.extend(other);
        return;
    }
    let structured = match kind {
        Kind::Binary => false,
        Kind::Text => chance.below(3) > 0,
        Kind::HeadedText => chance.below(4) > 0,
    };
    if structured {
        text(input, kind, chance)
    } else {
        bytes(input, other, kind, chance)
    }
    input.truncate(MAX_BYTES);
}

/// Where mutations do most: the header.
fn place(input: &[u8], kind: Kind, chance: &mut Lcg) -> usize {
    let header = match kind {
        Kind::Text => input.len(),
        Kind::HeadedText => text_range(input, kind).end,
        // What the small GGUF files need for theirs.
        Kind::Binary => 2200,
    };
    let limit = if chance.below(8) == 0 { input.len() } else { header.clamp(1, input.len()) };
    chance.below(limit)
}

fn bytes(input: &mut Vec<u8>, other: &[u8], kind: Kind, chance: &mut Lcg) {
    let at = place(input, kind, chance);
    let longest = 1 << chance.below(9);
    let length = 1 + chance.below(longest);
    let end = (at + length).min(input.len());
    match chance.below(9) {
        0 => input[at] ^= 1 << chance.below(8),
        1 => input[at] = chance.next() as u8,
        2 => input[at] = [0, 0xff, 0x7f, 0x80][chance.below(4)],
        3 | 4 => {
            let number = NUMBERS[chance.below(NUMBERS.len())].wrapping_add(chance.next() % 3).to_le_bytes();
            let width = [4, 8][chance.below(2)].min(input.len() - at);
            input[at..at + width].copy_from_slice(&number[..width]);
        }
        5 => _ = input.drain(at..end),
        6 => {
            let copied = input[at..end].to_vec();
            input.splice(at..at, copied);
        }
        7 => {
            let from = chance.below(other.len().max(1));
            let taken = other[from.min(other.len())..(from + length).min(other.len())].to_vec();
            input.splice(at..end, taken);
        }
        _ => input.truncate(at),
    }
}

fn text_range(input: &[u8], kind: Kind) -> std::ops::Range<usize> {
    match input.first_chunk::<8>() {
        Some(prefix) if kind == Kind::HeadedText => {
            let length = usize::try_from(u64::from_le_bytes(*prefix)).unwrap_or(usize::MAX);
            8..length.saturating_add(8).min(input.len())
        }
        _ => 0..input.len(),
    }
}

/// Replaces a number or a word of JSON, or repeats a stretch between commas.
fn text(input: &mut Vec<u8>, kind: Kind, chance: &mut Lcg) {
    let range = text_range(input, kind);
    if range.is_empty() {
        return;
    }
    let from = range.start + chance.below(range.len());
    let is_word = |b: &u8| b.is_ascii_alphanumeric() || b"._-+".contains(b);
    let digits = chance.below(2) == 0;
    let begins = |b: &u8| if digits { b.is_ascii_digit() } else { is_word(b) };
    let Some(start) = input[from..range.end].iter().position(begins).map(|at| from + at) else { return };
    let end = input[start..range.end].iter().position(|b| !is_word(b)).map_or(range.end, |at| start + at);
    match chance.below(6) {
        0 | 1 => {
            let number = NUMBERS[chance.below(NUMBERS.len())].to_string();
            input.splice(start..end, number.into_bytes());
        }
        2 | 3 => {
            let word = WORDS[chance.below(WORDS.len())];
            input.splice(start..end, word.bytes());
        }
        4 => {
            // One off.
            let last = end - 1;
            input[last] = if input[last].is_ascii_digit() { b'0' + (input[last] - b'0' + 1) % 10 } else { input[last] ^ 1 };
        }
        _ => {
            let stop = input[start..range.end].iter().position(|&b| b == b',').map_or(range.end, |at| start + at + 1);
            let copied = input[start..stop].to_vec();
            input.splice(start..start, copied);
        }
    }
}

/// Most of the time makes a header's length true again, so that what is behind that check is reached.
pub(crate) fn repair(input: &mut [u8], kind: Kind, chance: &mut Lcg) {
    if kind != Kind::HeadedText || input.len() < 16 || chance.below(8) == 0 {
        return;
    }
    // The JSON ends at its last brace before the data; in a damaged one, anywhere.
    let end = input[8..].windows(2).position(|pair| pair == b"}}").map_or(8, |at| at + 2);
    input[..8].copy_from_slice(&(end as u64).to_le_bytes());
}
