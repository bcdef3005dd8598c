//! Headers of safetensors files: `length: u64, JSON of that length, data`. Knows no names' meaning and no config.
//!
//! ```text
//! {"__metadata__": {..}, NAME: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ..}
//! ```
//! Offsets count from the end of the header; tensors cover the data without holes or overlaps.
//! Source: the format's description in the safetensors project. Read here rather than by that project's crate because its
//! errors do not name the tensor and a name that appears twice passes.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::file::MappedFile;
use super::stored::{StoredTensor, StoredType};
use crate::CheckpointError;

/// Bytes of the header's length.
const PREFIX: usize = 8;
/// The format allows 100 MB; the largest models stay under a third of that.
const MAX_HEADER: usize = 64 << 20;
/// More tensors than any model has.
const MAX_TENSORS: usize = 1 << 20;
const MAX_NAME: usize = 1024;
const MAX_DIMENSIONS: usize = 8;

/// Reads and checks the header of `file`, the checkpoint's file number `index`.
///
/// # Errors
/// [`CheckpointError::Damaged`], naming the tensor where one is to blame.
pub(super) fn read_header(file: &MappedFile, index: usize) -> Result<BTreeMap<String, StoredTensor>, CheckpointError> {
    let damaged = |at: usize, why: String| CheckpointError::damaged_at(file.path(), "safetensors header", at, why);
    let Some((prefix, rest)) = file.bytes().split_first_chunk::<PREFIX>() else {
        return Err(damaged(0, format!("its length takes {PREFIX} bytes, the file holds {}", file.len())));
    };
    let claimed = u64::from_le_bytes(*prefix);
    let header = usize::try_from(claimed).ok().filter(|&n| n <= MAX_HEADER).and_then(|n| rest.split_at_checked(n));
    let Some((header, data)) = header else {
        let why = format!("it claims {claimed} bytes, the file has {} more and {MAX_HEADER} are allowed", rest.len());
        return Err(damaged(0, why));
    };
    let parsed = serde_json::from_slice(header).map_err(|error| {
        let (at, why) = placed(header, &error);
        damaged(PREFIX.saturating_add(at), why)
    });
    let Header { mut tensors } = parsed?;
    tensors.sort_by_key(|(_, info)| info.offsets);
    let data_start = file.len().saturating_sub(data.len());
    check_cover(file, &tensors, data_start)?;
    let mut entries = BTreeMap::new();
    for (name, Info { kind, shape, offsets: [begin, end], .. }) in tensors {
        let start = data_start.saturating_add(begin);
        let tensor = StoredTensor { file: index, start, bytes: end.saturating_sub(begin), kind, shape, rotary_pairs: None };
        entries.insert(name, tensor);
    }
    Ok(entries)
}

/// Where in `json` an error is, and the error without that place.
fn placed(json: &[u8], error: &serde_json::Error) -> (usize, String) {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let why = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text).to_owned();
    if why.contains("EOF while") {
        return (json.len(), why);
    }
    let lines = json.split_inclusive(|&byte| byte == b'\n').take(line.saturating_sub(1));
    let before: usize = lines.map(<[u8]>::len).sum();
    // A column counts the bytes up to the one to blame, that one included; but for a bracket that was only looked at.
    let opened = why.contains("invalid type: sequence") || why.contains("invalid type: map");
    (before.saturating_add(if opened { column } else { column.saturating_sub(1) }), why)
}

/// Checks that each tensor has the bytes its shape needs and that together they are the file's data, in their order.
/// `data_start`: where in the file the data begins, from which offsets count.
fn check_cover(file: &MappedFile, tensors: &[(String, Info)], data_start: usize) -> Result<(), CheckpointError> {
    let held = file.len().saturating_sub(data_start);
    let wrong = |name: &str, begin: usize, why: String| {
        let (path, what) = (file.path(), format!("tensor `{name}`"));
        // A place beyond the end is none.
        match begin <= held {
            true => CheckpointError::damaged_at(path, what, data_start.saturating_add(begin), why),
            false => CheckpointError::damaged(path, what, why),
        }
    };
    let mut covered = 0;
    let mut before = "";
    for (name, info) in tensors {
        let [begin, end] = info.offsets;
        let claims = end.checked_sub(begin);
        let needs = info.bytes();
        if claims.is_none() || claims != needs {
            let needs = needs.map_or_else(|| "no whole number of bytes that fits".to_owned(), |bytes| format!("{bytes} bytes"));
            let (kind, shape) = (info.kind.name(), &info.shape);
            let why = format!("its data_offsets are {begin} to {end}, {kind} with shape {shape:?} needs {needs}");
            return Err(wrong(name, begin, why));
        }
        if end > held {
            let why = format!("its data_offsets are {begin} to {end}, the file holds {held} bytes of data");
            return Err(wrong(name, begin, why));
        }
        if begin < covered {
            let why = format!("its data_offsets begin at {begin}, within `{before}`, whose end at {covered}");
            return Err(wrong(name, begin, why));
        }
        if begin > covered {
            let why = format!("its data_offsets begin at {begin}, not at {covered}: nothing may lie between tensors");
            return Err(wrong(name, covered, why));
        }
        (covered, before) = (end, name);
    }
    if covered != held {
        let why = format!("the header describes {covered} bytes of data, the file holds {held}");
        return Err(CheckpointError::damaged_at(file.path(), "tensor data", data_start.saturating_add(covered), why));
    }
    Ok(())
}

/// Element types and the bits of an element.
const TYPES: [(&str, StoredType, usize); 21] = [
    ("F32", StoredType::F32, 32),
    ("F16", StoredType::F16, 16),
    ("BF16", StoredType::Bf16, 16),
    ("F8_E4M3", StoredType::F8E4m3, 8),
    ("I32", StoredType::I32, 32),
    ("I64", StoredType::I64, 64),
    ("I8", StoredType::I8, 8),
    ("BOOL", StoredType::Other("BOOL"), 8),
    ("U8", StoredType::Other("U8"), 8),
    ("I16", StoredType::Other("I16"), 16),
    ("U16", StoredType::Other("U16"), 16),
    ("U32", StoredType::Other("U32"), 32),
    ("U64", StoredType::Other("U64"), 64),
    ("F64", StoredType::Other("F64"), 64),
    ("C64", StoredType::Other("C64"), 64),
    ("F8_E5M2", StoredType::Other("F8_E5M2"), 8),
    ("F8_E8M0", StoredType::Other("F8_E8M0"), 8),
    ("F8_E4M3FNUZ", StoredType::Other("F8_E4M3FNUZ"), 8),
    ("F8_E5M2FNUZ", StoredType::Other("F8_E5M2FNUZ"), 8),
    ("F4", StoredType::Other("F4"), 4),
    ("F6", StoredType::Other("F6"), 6),
];

/// One tensor as the header describes it.
struct Info {
    kind: StoredType,
    bits: usize,
    shape: Vec<usize>,
    offsets: [usize; 2],
}

impl Info {
    fn bytes(&self) -> Option<usize> {
        let elements = self.shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n))?;
        let bits = elements.checked_mul(self.bits)?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

/// Names and tensors in the file's order.
struct Header {
    tensors: Vec<(String, Info)>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut tensors = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if name.len() > MAX_NAME || tensors.len() >= MAX_TENSORS {
                let why = format!("more than {MAX_TENSORS} tensors, or a name of more than {MAX_NAME} bytes");
                return Err(A::Error::custom(why));
            }
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("tensor `{name}` appears twice")));
            }
            let info = map.next_value::<Info>().map_err(|why| A::Error::custom(format!("tensor `{name}`: {why}")))?;
            tensors.push((name, info));
        }
        Ok(Header { tensors })
    }
}

impl<'de> Deserialize<'de> for Info {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InfoVisitor)
    }
}

struct InfoVisitor;

impl<'de> Visitor<'de> for InfoVisitor {
    type Value = Info;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Info, A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "dtype" => dtype = Some(map.next_value::<String>()?),
                "shape" => shape = Some(map.next_value::<Sizes>()?.0),
                "data_offsets" => offsets = Some(map.next_value::<[usize; 2]>()?),
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        let (Some(dtype), Some(shape), Some(offsets)) = (dtype, shape, offsets) else {
            return Err(A::Error::custom("dtype, shape or data_offsets is missing"));
        };
        // The two 6-bit types differ in nothing that matters here.
        let name = if dtype.starts_with("F6_") { "F6" } else { dtype.as_str() };
        let Some(&(_, kind, bits)) = TYPES.iter().find(|(known, ..)| *known == name) else {
            let short: String = dtype.chars().take(40).collect();
            return Err(A::Error::custom(format!("dtype `{short}` does not exist")));
        };
        Ok(Info { kind, bits, shape, offsets })
    }
}

/// A shape of bounded length.
struct Sizes(Vec<usize>);

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(SizesVisitor)
    }
}

struct SizesVisitor;

impl<'de> Visitor<'de> for SizesVisitor {
    type Value = Sizes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Sizes, A::Error> {
        let mut sizes = Vec::new();
        while let Some(size) = list.next_element()? {
            if sizes.len() == MAX_DIMENSIONS {
                return Err(A::Error::custom(format!("a shape of more than {MAX_DIMENSIONS} dimensions")));
            }
            sizes.push(size);
        }
        Ok(Sizes(sizes))
    }
}
