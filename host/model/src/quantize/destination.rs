//! The directory that is written: beside its final name until it is complete. Knows no tensor.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::QuantizeError;
use super::layout::Shard;

/// A tokenizer is a few tens of megabytes at most.
const MAX_SMALL_FILE_BYTES: u64 = 64 << 20;
/// Weights and what describes them; everything else that is small goes with the model.
const WEIGHT_FILES: [&str; 11] = ["safetensors", "bin", "pt", "pth", "ckpt", "gguf", "h5", "msgpack", "onnx", "npz", "partial"];

/// An unfinished checkpoint, removed again unless it is finished.
pub(super) struct Destination {
    path: PathBuf,
    /// `DESTINATION.partial`.
    partial: PathBuf,
    finished: bool,
}

impl Destination {
    /// Makes the directory to write into, after checking that there is room for `bytes`.
    ///
    /// # Errors
    /// [`QuantizeError::Exists`] where the destination or its unfinished form exists, [`QuantizeError::Space`],
    /// [`QuantizeError::File`].
    pub(super) fn create(path: &Path, bytes: u64) -> Result<Self, QuantizeError> {
        let (path, partial) = names(path)?;
        if path.symlink_metadata().is_ok() {
            return Err(QuantizeError::Exists { path, instead: "name a new directory, or remove this one first".to_owned() });
        }
        check_space(&path, bytes)?;
        if let Err(error) = fs::create_dir(&partial) {
            if error.kind() == std::io::ErrorKind::AlreadyExists {
                let instead = "another run writes it, or one was killed; if none runs, remove it".to_owned();
                return Err(QuantizeError::Exists { path: partial, instead });
            }
            return Err(QuantizeError::file(&partial, "created")(error));
        }
        Ok(Self { path, partial, finished: false })
    }

    /// Makes each shard's file with its header and its full size.
    pub(super) fn create_shards(&self, shards: &[Shard]) -> Result<Vec<PathBuf>, QuantizeError> {
        let create = |shard: &Shard| {
            let path = self.partial.join(&shard.name);
            let written = File::create_new(&path).and_then(|mut file| {
                file.write_all(&shard.header)?;
                file.set_len(shard.bytes)
            });
            written.map_err(QuantizeError::file(&path, "written")).map(|()| path)
        };
        shards.iter().map(create).collect()
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), QuantizeError> {
        let path = self.partial.join(name);
        fs::write(&path, text).map_err(QuantizeError::file(&path, "written"))
    }

    pub(super) fn copy(&self, files: &[PathBuf]) -> Result<(), QuantizeError> {
        for file in files {
            if let Some(name) = file.file_name() {
                let to = self.partial.join(name);
                fs::copy(file, &to).map_err(QuantizeError::file(&to, "written"))?;
            }
        }
        Ok(())
    }

    /// Waits until everything is on the disk, then gives the directory its name.
    pub(super) fn finish(mut self) -> Result<(), QuantizeError> {
        let partial = self.partial.clone();
        for entry in fs::read_dir(&partial).map_err(QuantizeError::file(&partial, "read"))? {
            let path = entry.map_err(QuantizeError::file(&partial, "read"))?.path();
            sync(&path)?;
        }
        sync(&partial)?;
        fs::rename(&partial, &self.path).map_err(QuantizeError::file(&self.path, "given its name"))?;
        self.finished = true;
        sync(parent(&self.path))
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if !self.finished {
            // Where this fails too, the name says what it is, and the next run names it.
            _ = fs::remove_dir_all(&self.partial);
        }
    }
}

/// What goes with the weights: regular files of the source's top, of a bounded size, that are no weights and not replaced.
/// The second list is of those that are too large.
pub(super) fn small_files(source: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), QuantizeError> {
    let mut small = Vec::new();
    let mut large = Vec::new();
    for entry in fs::read_dir(source).map_err(QuantizeError::file(source, "read"))? {
        let path = entry.map_err(QuantizeError::file(source, "read"))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let extension = name.rsplit('.').next().unwrap_or_default();
        let replaced = name == "config.json" || name.ends_with(".index.json") || name.starts_with('.');
        // The hub's cache holds links, so what counts is what they lead to.
        let Some(metadata) = path.metadata().ok().filter(fs::Metadata::is_file) else { continue };
        if !replaced && !WEIGHT_FILES.contains(&extension) {
            if metadata.len() <= MAX_SMALL_FILE_BYTES { small.push(path) } else { large.push(path) }
        }
    }
    small.sort();
    large.sort();
    Ok((small, large))
}

/// The destination without a slash at its end, and its unfinished form.
pub(super) fn names(path: &Path) -> Result<(PathBuf, PathBuf), QuantizeError> {
    let Some(name) = path.file_name() else {
        let allowed = "is no name of a directory that can be made".to_owned();
        return Err(QuantizeError::Option { option: "destination", found: path.display().to_string(), allowed });
    };
    let mut partial = name.to_owned();
    partial.push(".partial");
    Ok((path.with_file_name(name), path.with_file_name(partial)))
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn check_space(path: &Path, needed: u64) -> Result<(), QuantizeError> {
    let parent = parent(path);
    let space =
        rustix::fs::statvfs(parent).map_err(|error| QuantizeError::file(parent, "asked for its free space")(error.into()))?;
    let available = space.f_bavail.saturating_mul(space.f_frsize);
    if needed > available {
        return Err(QuantizeError::Space { path: parent.to_path_buf(), needed, available });
    }
    Ok(())
}

fn sync(path: &Path) -> Result<(), QuantizeError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(QuantizeError::file(path, "written to the disk"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_its_name_only_when_it_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let destination = Destination::create(&path, 10).unwrap();
        destination.write("config.json", "{}").unwrap();
        assert!(!path.exists() && folder.path().join("out.partial/config.json").exists());
        let error = Destination::create(&path, 10).err().unwrap().to_string();
        assert!(error.contains("out.partial: exists already; another run"), "{error}");
        destination.finish().unwrap();
        assert!(path.join("config.json").exists() && !folder.path().join("out.partial").exists());
        let error = Destination::create(&path, 10).err().unwrap().to_string();
        assert!(error.contains("out: exists already; name a new directory"), "{error}");
        let unfinished = Destination::create(&folder.path().join("other/"), 10).unwrap();
        assert!(folder.path().join("other.partial").is_dir());
        drop(unfinished);
        assert!(!folder.path().join("other.partial").exists() && !folder.path().join("other").exists());
    }

    #[test]
    fn what_cannot_be_made_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let error = Destination::create(&folder.path().join("out"), u64::MAX).err().unwrap().to_string();
        assert!(error.contains("18446744073709551615 bytes are needed"), "{error}");
        let error = Destination::create(&folder.path().join("none/out"), 1).err().unwrap().to_string();
        assert!(error.contains("none: cannot be asked for its free space"), "{error}");
        for path in ["/", "..", ""] {
            assert!(matches!(Destination::create(Path::new(path), 1), Err(QuantizeError::Option { .. })), "{path}");
        }
    }

    #[test]
    fn small_files_go_with_the_weights() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| fs::write(folder.path().join(name), "x").unwrap();
        for name in ["tokenizer.json", "LICENSE", "modeling_x.py", "chat_template.jinja", "tiktoken.model"] {
            write(name);
        }
        for name in ["config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", ".gitattributes"] {
            write(name);
        }
        fs::create_dir(folder.path().join("figures")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("tokenizer.json"), folder.path().join("linked.json")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("nowhere"), folder.path().join("broken.json")).unwrap();
        File::create(folder.path().join("large.json")).unwrap().set_len(MAX_SMALL_FILE_BYTES + 1).unwrap();
        File::create(folder.path().join("largest.json")).unwrap().set_len(MAX_SMALL_FILE_BYTES).unwrap();
        let names = |paths: Vec<PathBuf>| -> Vec<String> {
            paths.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        let (small, large) = small_files(folder.path()).unwrap();
        let wanted = [
            "LICENSE",
            "chat_template.jinja",
            "largest.json",
            "linked.json",
            "modeling_x.py",
            "tiktoken.model",
            "tokenizer.json",
        ];
        assert_eq!(names(small), wanted);
        assert_eq!(names(large), ["large.json"]);
    }
}
