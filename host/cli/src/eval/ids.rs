//! Files of token ids: a JSON list, or a safetensors file with an integer tensor `ids`. Knows no model.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use safetensors::tensor::Dtype;

use crate::UsageError;
use crate::output::read_bounded;

/// An ids file larger than this is a mistake.
const MAX_IDS_FILE_BYTES: u64 = 64 << 20;

/// Ids out of a JSON list or a safetensors file with an integer tensor `ids`.
pub(super) fn read_ids(path: &Path) -> Result<Vec<u32>> {
    let name = path.display();
    let list = path.to_str().is_some_and(|text| text.trim_start().starts_with('['));
    if list && !path.exists() {
        bail!(UsageError(format!("--ids {name}: --ids takes the name of a file that holds the list")));
    }
    let bytes = read_bounded(path, MAX_IDS_FILE_BYTES, "a file of token ids")?;
    let ids = match serde_json::from_slice::<Vec<u32>>(&bytes) {
        Ok(ids) => ids,
        Err(_) if bytes.first().is_some_and(|b| !b.is_ascii_whitespace() && *b != b'[') => safetensors_ids(&bytes)
            .with_context(|| format!("{name}: neither a JSON list of ids nor a safetensors file with an integer tensor `ids`"))?,
        Err(error) => bail!("{name}: not a JSON list of token ids: {error}"),
    };
    ensure!(!ids.is_empty(), "{name}: no ids; at least one is needed");
    Ok(ids)
}

fn safetensors_ids(bytes: &[u8]) -> Result<Vec<u32>> {
    let file = safetensors::SafeTensors::deserialize(bytes)?;
    let tensor = file.tensor("ids")?;
    let data = tensor.data();
    let id = |value: i64| u32::try_from(value).with_context(|| format!("{value} is no token id"));
    match tensor.dtype() {
        Dtype::I64 => data.chunks_exact(8).map(|b| id(i64::from_le_bytes(b.try_into().unwrap_or_default()))).collect(),
        Dtype::I32 => data.chunks_exact(4).map(|b| id(i32::from_le_bytes(b.try_into().unwrap_or_default()).into())).collect(),
        Dtype::U32 => data.chunks_exact(4).map(|b| Ok(u32::from_le_bytes(b.try_into().unwrap_or_default()))).collect(),
        other => bail!("`ids` is {other:?}; I64, I32 or U32 is needed"),
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), bytes).expect("written");
        file
    }

    #[test]
    fn ids_come_from_json_or_safetensors() {
        assert_eq!(read_ids(file(b" [1, 2, 49151]").path()).expect("json"), [1, 2, 49151]);
        let data: Vec<u8> = [7i64, 8].iter().flat_map(|i| i.to_le_bytes()).collect();
        let tensor = TensorView::new(Dtype::I64, vec![2], &data).expect("tensor");
        let bytes = safetensors::serialize([("ids", tensor)], None).expect("serialized");
        assert_eq!(read_ids(file(&bytes).path()).expect("safetensors"), [7, 8]);
    }

    #[test]
    fn a_list_on_the_command_line_is_told_from_a_file() {
        let error = read_ids(Path::new("[1, 2]")).expect_err("no file");
        assert!(format!("{error:#}").contains("--ids takes the name of a file"), "{error:#}");
    }

    #[test]
    fn what_is_no_ids_file_is_an_error_that_names_it() {
        for bytes in [&b""[..], b"[]", b"[-1]", b"[1, \"a\"]", b"{}", b"\x08\0\0\0\0\0\0\0{}      ", b"[4294967296]"] {
            let file = file(bytes);
            let error = read_ids(file.path()).expect_err("no ids");
            assert!(format!("{error:#}").contains(&file.path().display().to_string()), "{error:#}");
        }
    }
}
