//! The digest that names a checkpoint's weights and configuration. Does not know what it is used for.
//!
//! It is SHA-256 over: the configuration's values (keys sorted); the size of every file; of every tensor its hub name, type,
//! shape and place; and 256 bytes from the middle of at most 1,024 tensors, evenly chosen. That tells apart architectures,
//! quantizations, versions and fine-tunes of a model at the cost of reading a quarter of a megabyte. It is *not* a proof
//! that two files are equal: someone who edits weights between the sampled bytes keeps the digest.

use sha2::{Digest as _, Sha256};

use super::config::Config;
use super::stored::TensorTable;

const SAMPLED_TENSORS: usize = 1024;
const SAMPLE_BYTES: usize = 256;

/// 64 hexadecimal digits.
pub(super) fn digest(config: &Config, table: &TensorTable) -> String {
    let mut hash = Sha256::new();
    // Every variable-length part goes in after its length, so that no two inputs run together.
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(b"millrace checkpoint 1");
    part(config.architecture().as_bytes());
    part(config.canonical().as_bytes());
    for file in &table.files {
        part(&(file.len() as u64).to_le_bytes());
    }
    let every = table.entries.len().div_ceil(SAMPLED_TENSORS).max(1);
    for (i, (name, tensor)) in table.entries.iter().enumerate() {
        part(name.as_bytes());
        part(tensor.kind.name().as_bytes());
        let place = [tensor.file, tensor.start, tensor.bytes, tensor.rotary_pairs.unwrap_or(0)];
        for number in place.iter().chain(&tensor.shape) {
            part(&(*number as u64).to_le_bytes());
        }
        if i.is_multiple_of(every)
            && let Ok(bytes) = table.bytes(name, tensor)
        {
            let from = bytes.len().saturating_sub(SAMPLE_BYTES) / 2;
            part(bytes.get(from..from.saturating_add(SAMPLE_BYTES)).unwrap_or(bytes));
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
