//! The checkpoint that is quantized: where each tensor's bytes lie, what its config says, and readers that hold no mapping, so
//! that memory is bounded by what is read at a time. Knows no rule of what is quantized.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::QuantizeError;
use crate::{Checkpoint, Config};

/// A config.json is a page or two.
const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Files that one reader keeps open.
const MAX_OPEN: usize = 8;

/// Types that tensors are stored in, with the alignment in bytes that readers of a mapped file want.
const TYPES: [(&str, u64); 20] = [
    ("F64", 8),
    ("I64", 8),
    ("U64", 8),
    ("C64", 8),
    ("F32", 4),
    ("I32", 4),
    ("U32", 4),
    ("F16", 2),
    ("BF16", 2),
    ("I16", 2),
    ("U16", 2),
    ("F8_E4M3", 1),
    ("F8_E5M2", 1),
    ("F8_E8M0", 1),
    ("F8_E4M3FNUZ", 1),
    ("F8_E5M2FNUZ", 1),
    ("F4", 1),
    ("I8", 1),
    ("U8", 1),
    ("BOOL", 1),
];

/// How the elements of a tensor are stored, by its safetensors name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ElementType {
    pub(super) name: &'static str,
    pub(super) alignment: u64,
}

impl ElementType {
    pub(super) const F32: Self = Self { name: "F32", alignment: 4 };
    pub(super) const BF16: Self = Self { name: "BF16", alignment: 2 };
    pub(super) const F8_E4M3: Self = Self { name: "F8_E4M3", alignment: 1 };
    pub(super) const I32: Self = Self { name: "I32", alignment: 4 };
    pub(super) const I64: Self = Self { name: "I64", alignment: 8 };

    fn of(name: &str) -> Option<Self> {
        TYPES.iter().find(|(known, _)| *known == name).map(|&(name, alignment)| Self { name, alignment })
    }

    /// Bytes of an element of the types that values are read from.
    pub(super) fn value_bytes(self) -> Option<usize> {
        match self.name {
            "F32" => Some(4),
            "F16" | "BF16" => Some(2),
            "F8_E4M3" => Some(1),
            _ => None,
        }
    }
}

/// One stored tensor.
#[derive(Debug, Clone)]
pub(super) struct SourceTensor {
    pub(super) name: String,
    pub(super) kind: ElementType,
    pub(super) shape: Vec<usize>,
    /// Index into [`Source::files`].
    pub(super) file: usize,
    /// Offset of the first byte in that file.
    pub(super) start: u64,
    pub(super) bytes: u64,
}

impl SourceTensor {
    pub(super) fn matrix(&self) -> Option<(usize, usize)> {
        match self.shape.as_slice() {
            &[rows, cols] if rows > 0 && cols > 0 => Some((rows, cols)),
            _ => None,
        }
    }
}

/// A hub directory that may be quantized.
pub(super) struct Source {
    pub(super) directory: PathBuf,
    pub(super) files: Vec<PathBuf>,
    /// In the order of the files' bytes, so that reading goes forward.
    pub(super) tensors: Vec<SourceTensor>,
    /// `config.json` as it is.
    pub(super) config: Map<String, Value>,
    /// Its matrices are stored in FP8 with 128x128 blocks, except those that were left in floats by intent.
    pub(super) is_fp8: bool,
    /// Bytes of all weight files.
    pub(super) bytes: u64,
}

impl Source {
    /// Reads names, shapes and config; no weights.
    ///
    /// # Errors
    /// [`QuantizeError::Checkpoint`] where it cannot be read, [`QuantizeError::Source`] where it is no hub directory or
    /// quantized in another way than FP8 with 128x128 blocks.
    pub(super) fn open(directory: &Path) -> Result<Self, QuantizeError> {
        let refuse = |found: &str| QuantizeError::Source { path: directory.to_path_buf(), found: found.to_owned() };
        let checkpoint = Checkpoint::open(directory)?;
        if !directory.is_dir() {
            return Err(refuse("a GGUF file"));
        }
        let is_fp8 = is_fp8(checkpoint.config()).map_err(|found| refuse(&found))?;
        let files: Vec<PathBuf> = checkpoint.files().map(Path::to_path_buf).collect();
        let mut tensors = Vec::new();
        for (name, stored) in checkpoint.stored() {
            let path = files.get(stored.file).map_or(directory, PathBuf::as_path);
            if stored.kind.name() == "F8_E4M3" && !is_fp8 {
                let why = "is FP8, but the config names no FP8 with 128x128 blocks; correct the config";
                return Err(QuantizeError::tensor(path, name, why));
            }
            if name.ends_with(".weight_packed") || name.ends_with(".qweight") {
                return Err(QuantizeError::tensor(
                    path,
                    name,
                    "is packed already; quantize the checkpoint that it was made from",
                ));
            }
            let kind = ElementType::of(stored.kind.name());
            let kind =
                kind.ok_or_else(|| QuantizeError::tensor(path, name, "has a type that cannot be copied; remove the tensor"))?;
            let (start, bytes) = (stored.start as u64, stored.bytes as u64);
            tensors.push(SourceTensor {
                name: name.to_owned(),
                kind,
                shape: stored.shape.clone(),
                file: stored.file,
                start,
                bytes,
            });
        }
        tensors.sort_by_key(|tensor| (tensor.file, tensor.start, tensor.bytes));
        let mut bytes = 0u64;
        for file in &files {
            bytes = bytes.saturating_add(file.metadata().map_err(QuantizeError::file(file, "read"))?.len());
        }
        let config = read_config(&directory.join("config.json"))?;
        Ok(Self { directory: directory.to_path_buf(), files, tensors, config, is_fp8, bytes })
    }

    /// The file that holds a tensor, for messages.
    pub(super) fn file_of(&self, tensor: &SourceTensor) -> &Path {
        self.files.get(tensor.file).map_or(self.directory.as_path(), PathBuf::as_path)
    }
}

/// Whether a config says that it is FP8 with 128x128 blocks, in either of its two layouts; what else it says it is.
fn is_fp8(config: &Config) -> Result<bool, String> {
    let Some(section) = config.value("quantization_config") else { return Ok(false) };
    let text = |key: &str| section.get(key).and_then(Value::as_str).unwrap_or("of no name");
    let is_blocks = |group: &Value| {
        let weights = group.get("weights").and_then(Value::as_object);
        weights.and_then(|weights| weights.get("block_structure")).map(ToString::to_string).as_deref() == Some("[128,128]")
    };
    match text("quant_method") {
        "fp8" => match section.get("weight_block_size").map(ToString::to_string).as_deref() {
            Some("[128,128]") => Ok(true),
            other => Err(format!("FP8 with weight_block_size {}", other.unwrap_or("missing"))),
        },
        "compressed-tensors" if text("format") == "pack-quantized" => {
            Err("INT4 already (compressed-tensors pack-quantized), and quantizing twice loses twice".to_owned())
        }
        "compressed-tensors" if text("format") == "float-quantized" => {
            match section.get("config_groups").and_then(Value::as_object) {
                Some(groups) if !groups.is_empty() && groups.values().all(is_blocks) => Ok(true),
                _ => Err("FP8 without blocks of 128x128 (compressed-tensors float-quantized)".to_owned()),
            }
        }
        "compressed-tensors" => Err(format!("quantized already (compressed-tensors {})", text("format"))),
        other => Err(format!("quantized already ({other})")),
    }
}

fn read_config(path: &Path) -> Result<Map<String, Value>, QuantizeError> {
    use std::io::Read;
    let file = File::open(path).map_err(QuantizeError::file(path, "read"))?;
    let mut text = String::new();
    file.take(MAX_CONFIG_BYTES).read_to_string(&mut text).map_err(QuantizeError::file(path, "read"))?;
    serde_json::from_str(&text).map_err(|error| QuantizeError::File {
        path: path.to_path_buf(),
        action: "read as a JSON object",
        why: error.to_string(),
    })
}

/// Files by index, opened when they are wanted; each worker has its own.
pub(super) struct OpenFiles<'a> {
    paths: &'a [PathBuf],
    open: BTreeMap<usize, File>,
}

impl<'a> OpenFiles<'a> {
    pub(super) fn new(paths: &'a [PathBuf]) -> Self {
        Self { paths, open: BTreeMap::new() }
    }

    /// Reads `into.len()` bytes of a file from `offset`.
    pub(super) fn read(&mut self, file: usize, offset: u64, into: &mut [u8]) -> Result<(), QuantizeError> {
        let (path, file) = self.get(file, |path| File::open(path))?;
        file.read_exact_at(into, offset).map_err(QuantizeError::file(path, "read"))
    }

    /// Writes bytes into a file that exists, at `offset`.
    pub(super) fn write(&mut self, file: usize, offset: u64, bytes: &[u8]) -> Result<(), QuantizeError> {
        let (path, file) = self.get(file, |path| File::options().write(true).open(path))?;
        file.write_all_at(bytes, offset).map_err(QuantizeError::file(path, "written"))
    }

    fn get(&mut self, index: usize, open: fn(&Path) -> std::io::Result<File>) -> Result<(&'a Path, &File), QuantizeError> {
        let path = self.paths.get(index).map_or(Path::new(""), PathBuf::as_path);
        if self.open.len() >= MAX_OPEN && !self.open.contains_key(&index) {
            self.open.clear();
        }
        let file = match self.open.entry(index) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(open(path).map_err(QuantizeError::file(path, "opened"))?)
            }
        };
        Ok((path, file))
    }
}
