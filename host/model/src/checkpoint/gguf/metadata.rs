//! GGUF metadata: typed key-value pairs. Lists stay in the file and are decoded on demand. Knows no key's meaning.
//!
//! ```text
//! pair   = key: string, type: u32, value
//! string = length: u64, bytes
//! list   = element type: u32, count: u64, elements
//! ```
//! Source: the GGUF specification, version 3 (version 2 is the same for little-endian files).

use std::collections::BTreeMap;

use super::reader::Cursor;
use crate::CheckpointError;

/// More pairs than any model has; real files hold a few dozen.
const MAX_PAIRS: usize = 65_536;
/// Where a file says how many pairs it has.
const PAIR_COUNT_AT: usize = 16;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum MetaValue {
    Unsigned(u64),
    Signed(i64),
    Real(f64),
    Flag(bool),
    Text(String),
    List(List),
}

/// Where a list's elements lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct List {
    pub(super) element: u32,
    pub(super) count: usize,
    pub(super) start: usize,
}

/// Type codes of the specification.
pub(super) mod code {
    pub(in super::super) const U32: u32 = 4;
    pub(in super::super) const I32: u32 = 5;
    pub(in super::super) const TEXT: u32 = 8;
    pub(in super::super) const LIST: u32 = 9;
}

pub(super) type Metadata = BTreeMap<String, MetaValue>;

/// Reads `count` pairs. Lists are checked to lie inside the file and skipped.
pub(super) fn read_pairs(cursor: &mut Cursor<'_>, count: usize) -> Result<Metadata, CheckpointError> {
    if count > MAX_PAIRS {
        return Err(cursor.damaged("count of metadata pairs", PAIR_COUNT_AT, format!("{count} is more than {MAX_PAIRS}")));
    }
    let mut pairs = Metadata::new();
    for _ in 0..count {
        let at = cursor.at();
        let key = cursor.string("metadata key")?.to_owned();
        let kind = cursor.u32("metadata type")?;
        let value = if kind == code::LIST { MetaValue::List(skip_list(cursor)?) } else { read_value(cursor, kind)? };
        if pairs.contains_key(&key) {
            return Err(cursor.damaged("metadata key", at, format!("`{key}` appears twice")));
        }
        pairs.insert(key, value);
    }
    Ok(pairs)
}

fn read_value(cursor: &mut Cursor<'_>, kind: u32) -> Result<MetaValue, CheckpointError> {
    let what = "metadata value";
    // The type is read already.
    let kind_at = cursor.at().saturating_sub(size_of::<u32>());
    Ok(match kind {
        0 => MetaValue::Unsigned(u64::from(u8::from_le_bytes(cursor.array(what)?))),
        1 => MetaValue::Signed(i64::from(i8::from_le_bytes(cursor.array(what)?))),
        2 => MetaValue::Unsigned(u64::from(u16::from_le_bytes(cursor.array(what)?))),
        3 => MetaValue::Signed(i64::from(i16::from_le_bytes(cursor.array(what)?))),
        code::U32 => MetaValue::Unsigned(u64::from(cursor.u32(what)?)),
        code::I32 => MetaValue::Signed(i64::from(i32::from_le_bytes(cursor.array(what)?))),
        6 => MetaValue::Real(f64::from(f32::from_le_bytes(cursor.array(what)?))),
        7 => MetaValue::Flag(cursor.array::<1>(what)? != [0]),
        code::TEXT => MetaValue::Text(cursor.string(what)?.to_owned()),
        10 => MetaValue::Unsigned(cursor.u64(what)?),
        11 => MetaValue::Signed(i64::from_le_bytes(cursor.array(what)?)),
        12 => MetaValue::Real(f64::from_le_bytes(cursor.array(what)?)),
        other => return Err(cursor.damaged("metadata type", kind_at, format!("{other} is no type"))),
    })
}

fn skip_list(cursor: &mut Cursor<'_>) -> Result<List, CheckpointError> {
    let kind_at = cursor.at();
    let element = cursor.u32("list type")?;
    let count_at = cursor.at();
    let count = cursor.size("list length")?;
    let start = cursor.at();
    let width = match element {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        code::TEXT => {
            // Ends at the end of the file at the latest: each string takes eight bytes or more.
            for _ in 0..count {
                cursor.string_bytes("string of a list")?;
            }
            return Ok(List { element, count, start });
        }
        code::LIST => return Err(cursor.damaged("list type", kind_at, "lists of lists are not part of any model's metadata")),
        other => return Err(cursor.damaged("list type", kind_at, format!("{other} is no type"))),
    };
    let too_large = || cursor.damaged("list length", count_at, format!("{count} is too large"));
    let bytes = count.checked_mul(width).ok_or_else(too_large)?;
    cursor.take(bytes, "list")?;
    Ok(List { element, count, start })
}

impl MetaValue {
    pub(super) fn unsigned(&self) -> Option<u64> {
        match self {
            Self::Unsigned(n) => Some(*n),
            Self::Signed(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    pub(super) fn real(&self) -> Option<f64> {
        if let Self::Real(number) = self { Some(*number) } else { None }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}
