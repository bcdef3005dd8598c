//! Where relative paths of a configuration start. Compares and joins text; looks at no file system.

use std::path::{Path, PathBuf};

/// The directory of the file.
pub(crate) struct Base(PathBuf);

impl Base {
    pub(crate) fn of(source_name: &str) -> Self {
        Self(Path::new(source_name).parent().map(Path::to_path_buf).unwrap_or_default())
    }

    /// Absolute paths and those that start with `~` (which the node expands) stay as they are.
    pub(crate) fn join(&self, text: &str) -> PathBuf {
        if text == "~" || text.starts_with("~/") { PathBuf::from(text) } else { self.0.join(text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_start_at_the_file() {
        let base = Base::of("deploy/site.toml");
        assert_eq!(base.join("a.wasm"), Path::new("deploy/a.wasm"));
        assert_eq!(base.join("/a.wasm"), Path::new("/a.wasm"));
        assert_eq!(base.join("~/a.gguf"), Path::new("~/a.gguf"));
        assert_eq!(base.join("~a.gguf"), Path::new("deploy/~a.gguf"));
        assert_eq!(Base::of("site.toml").join("a.wasm"), Path::new("a.wasm"));
    }
}
