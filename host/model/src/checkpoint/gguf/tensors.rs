//! The tensor directory of a GGUF file: names, shapes, types, offsets, all checked against the file.
//!
//! ```text
//! entry = name: string, dimensions: u32, [u64; dimensions] innermost first, type: u32, offset: u64 from the data's start
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use super::names::{has_rotary_rows, hub_name};
use super::reader::Cursor;
use crate::CheckpointError;
use crate::checkpoint::stored::{StoredTensor, StoredType};

/// More tensors than any model has.
const MAX_TENSORS: usize = 1 << 20;
const MAX_NAME: usize = 256;
/// Where a file says how many tensors it has.
const TENSOR_COUNT_AT: usize = 8;
const MAX_DIMENSIONS: u32 = 4;

/// One directory entry before the data's start is known.
pub(super) struct Entry {
    name: String,
    shape: Vec<usize>,
    kind: StoredType,
    bytes: usize,
    offset: usize,
    /// Where the name and the offset are written in the file.
    name_at: usize,
    offset_at: usize,
}

pub(super) fn read_entries(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<Entry>, CheckpointError> {
    if count == 0 || count > MAX_TENSORS {
        return Err(cursor.damaged("count of tensors", TENSOR_COUNT_AT, format!("{count} is not between 1 and {MAX_TENSORS}")));
    }
    // Grows with what was really read; `count` is only the file's word.
    let mut entries = Vec::new();
    for _ in 0..count {
        entries.push(read_entry(cursor)?);
    }
    Ok(entries)
}

fn read_entry(cursor: &mut Cursor<'_>) -> Result<Entry, CheckpointError> {
    let name_at = cursor.at();
    let name = cursor.string("tensor name")?;
    if name.len() > MAX_NAME {
        return Err(cursor.damaged("tensor name", name_at, format!("{} bytes are more than {MAX_NAME}", name.len())));
    }
    let dimensions_at = cursor.at();
    let dimensions = cursor.u32("tensor dimensions")?;
    if dimensions == 0 || dimensions > MAX_DIMENSIONS {
        let why = format!("`{name}` has {dimensions}, not 1 to {MAX_DIMENSIONS}");
        return Err(cursor.damaged("tensor dimensions", dimensions_at, why));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        let at = cursor.at();
        let length = cursor.size("tensor dimension")?;
        if length == 0 {
            return Err(cursor.damaged("tensor dimension", at, format!("`{name}` has one of 0")));
        }
        shape.push(length);
    }
    let kind = stored_type(cursor, name)?;
    let offset_at = cursor.at();
    let offset = cursor.size("tensor offset")?;
    let row = shape.first().and_then(|&cols| kind.row_bytes(cols));
    let Some(bytes) = row.and_then(|row| shape.iter().skip(1).try_fold(row, |bytes, &n| bytes.checked_mul(n))) else {
        let why = format!("`{name}` cannot have shape {shape:?} in {}", kind.name());
        return Err(cursor.damaged("tensor dimensions", dimensions_at, why));
    };
    shape.reverse();
    Ok(Entry { name: name.to_owned(), shape, kind, bytes, offset, name_at, offset_at })
}

fn stored_type(cursor: &mut Cursor<'_>, tensor: &str) -> Result<StoredType, CheckpointError> {
    let at = cursor.at();
    let code = cursor.u32("tensor type")?;
    let name = match code {
        0 => return Ok(StoredType::F32),
        1 => return Ok(StoredType::F16),
        2 => return Ok(StoredType::Q4_0),
        3 => return Ok(StoredType::Q4_1),
        8 => return Ok(StoredType::Q8_0),
        30 => return Ok(StoredType::Bf16),
        6 => "Q5_0",
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "the K-quant Q2_K",
        11 => "the K-quant Q3_K",
        12 => "the K-quant Q4_K",
        13 => "the K-quant Q5_K",
        14 => "the K-quant Q6_K",
        15 => "the K-quant Q8_K",
        16..=23 | 29 => "an IQ quant",
        24..=28 => "an integer or f64 type",
        31..=33 | 36..=38 => "a repacked type that GGUF no longer has",
        34 | 35 => "a ternary quant",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        other => return Err(cursor.damaged("tensor type", at, format!("`{tensor}` has type {other}, which does not exist"))),
    };
    let what = format!("tensor `{tensor}` in {name}");
    Err(CheckpointError::unsupported(cursor.path(), what, "use a GGUF file in Q4_0, Q4_1, Q8_0, F16, BF16 or F32"))
}

/// Places every entry in the file under its hub name. `rotary_head`: rows of a head of q and k, where their rotary pairs lie
/// side by side.
pub(super) fn place(
    cursor: &Cursor<'_>,
    entries: Vec<Entry>,
    data: &Data,
    rotary_head: Option<usize>,
) -> Result<BTreeMap<String, StoredTensor>, CheckpointError> {
    let path = cursor.path();
    let mut placed = BTreeMap::new();
    for entry in entries {
        let Entry { name, shape, kind, bytes, offset, name_at, offset_at } = entry;
        if !offset.is_multiple_of(data.alignment) {
            let why = format!("`{name}` begins at {offset}, no multiple of the alignment {}", data.alignment);
            return Err(cursor.damaged("tensor offset", offset_at, why));
        }
        let start = data.start.checked_add(offset);
        let end = start.and_then(|s| s.checked_add(bytes)).filter(|&end| end <= data.end);
        let (Some(start), Some(_)) = (start, end) else {
            let why =
                format!("`{name}` claims {bytes} bytes at {offset}, the file holds {}", data.end.saturating_sub(data.start));
            return Err(cursor.damaged("tensor offset", offset_at, why));
        };
        let name = hub_name(&name).unwrap_or(name);
        let rotary_pairs = rotary_head.filter(|_| has_rotary_rows(&name));
        if let (Some(head), Some(rows)) = (rotary_pairs, shape.first())
            && !(head.is_multiple_of(2) && rows.is_multiple_of(head))
        {
            return Err(CheckpointError::tensor(path, &name, format!("has {rows} rows, which heads of {head} do not divide")));
        }
        let tensor = StoredTensor { file: 0, start, bytes, kind, shape, rotary_pairs };
        if placed.contains_key(&name) {
            return Err(cursor.damaged("tensor name", name_at, format!("`{name}` appears twice")));
        }
        placed.insert(name, tensor);
    }
    check_apart(path, &placed)?;
    Ok(placed)
}

/// Checks that no two tensors share bytes.
fn check_apart(path: &Path, placed: &BTreeMap<String, StoredTensor>) -> Result<(), CheckpointError> {
    let mut order: Vec<(usize, usize, &str)> =
        placed.iter().map(|(name, tensor)| (tensor.start, tensor.start.saturating_add(tensor.bytes), name.as_str())).collect();
    order.sort_unstable();
    for pair in order.windows(2) {
        if let [(_, end, first), (start, _, second)] = pair
            && start < end
        {
            let why = format!("`{second}` begins at {start} and overlaps `{first}`, which ends at {end}");
            return Err(CheckpointError::damaged_at(path, "tensor data", *start, why));
        }
    }
    Ok(())
}

/// Where tensor data lies in the file.
pub(super) struct Data {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) alignment: usize,
}
