//! Files of a checkpoint: mapped or read whole, with every access checked against the file's size. Knows no format.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::CheckpointError;

/// A read-only mapping of a regular file.
///
/// Nobody may shorten the file while it is mapped: the operating system then ends the process that touches what is gone.
/// Replace a checkpoint by renaming a new file over the old one, never by writing into it.
pub(crate) struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// # Errors
    /// [`CheckpointError::Unreadable`], [`CheckpointError::NotACheckpoint`] where it is no regular file,
    /// [`CheckpointError::Damaged`] where it is empty.
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let file = open_regular(path)?;
        let length = file.metadata().map_err(|e| CheckpointError::unreadable(path, &e))?.len();
        if length == 0 {
            return Err(CheckpointError::damaged(path, "file", "it is empty"));
        }
        #[expect(unsafe_code, reason = "the one mapping of this crate")]
        // SAFETY: the mapping is read-only and `file` is a regular file (checked by `open_regular` on the same descriptor),
        // so its bytes are only ever seen as `&[u8]`, for which every value is valid. That nobody shortens or rewrites the
        // file meanwhile is the documented condition on this type; no parsed size is trusted twice without a bound check.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| CheckpointError::unreadable(path, &e))?;
        Ok(Self { path: path.to_path_buf(), map })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }
}

/// The whole of a text file of at most `limit` bytes.
///
/// # Errors
/// As for [`MappedFile::open`], and [`CheckpointError::Damaged`] where it is longer or no UTF-8.
pub(crate) fn read_text(path: &Path, limit: usize) -> Result<String, CheckpointError> {
    let file = open_regular(path)?;
    let mut bytes = Vec::new();
    // One byte more than allowed tells "too long" from "just fits", whatever the size that the file system claims.
    let read = file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(|e| CheckpointError::unreadable(path, &e))?;
    if read > limit {
        return Err(CheckpointError::damaged(path, "file", format!("it is longer than the {limit} bytes allowed")));
    }
    let wrong = |at: usize| CheckpointError::damaged_at(path, "text", at, "it is no UTF-8");
    String::from_utf8(bytes).map_err(|e| wrong(e.utf8_error().valid_up_to()))
}

/// Opens a file only if it is a regular one: opening a FIFO would wait for its writer, a device might never end.
fn open_regular(path: &Path) -> Result<File, CheckpointError> {
    let refuse = |found: &str| CheckpointError::NotACheckpoint { path: path.to_path_buf(), found: found.to_owned() };
    let before = std::fs::metadata(path).map_err(|e| CheckpointError::unreadable(path, &e))?;
    if before.is_dir() {
        return Err(refuse("a directory where a file is expected"));
    }
    if !before.is_file() {
        return Err(refuse("neither a regular file nor a directory (a FIFO, socket or device)"));
    }
    let file = File::open(path).map_err(|e| CheckpointError::unreadable(path, &e))?;
    let after = file.metadata().map_err(|e| CheckpointError::unreadable(path, &e))?;
    if after.is_file() { Ok(file) } else { Err(refuse("no regular file any more")) }
}
