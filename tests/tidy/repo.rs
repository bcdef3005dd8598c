//! The files of the repository: what git tracks or would track, or all files where git is not at hand. Knows no rule.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::lexer;

/// One file, its path relative to the root with `/` between the parts.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) executable: bool,
}

/// A Rust file and its text without comments and the contents of strings, of the same length and lines.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) code: String,
}

/// Every file, read once.
pub(crate) fn files() -> &'static [File] {
    static FILES: OnceLock<Vec<File>> = OnceLock::new();
    FILES.get_or_init(|| {
        let root = root();
        let mut paths = listed_by_git(&root).unwrap_or_else(|| walked(&root));
        paths.sort();
        paths.dedup();
        let files: Vec<File> = paths.into_iter().filter_map(|path| read(&root, path)).collect();
        assert!(files.iter().any(|file| file.path == "host/core/src/lib.rs"), "{} is not the repository", root.display());
        files
    })
}

/// Every Rust file.
pub(crate) fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let rust = files().iter().filter(|file| file.path.ends_with(".rs"));
        rust.map(|file| {
            let text = String::from_utf8_lossy(&file.bytes).into_owned();
            Source { path: file.path.clone(), code: lexer::code_of(&text), text }
        })
        .collect()
    })
}

/// Text of a file, if it is text.
pub(crate) fn text(file: &File) -> Option<&str> {
    std::str::from_utf8(&file.bytes).ok().filter(|text| !text.contains('\0'))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_path_buf()
}

fn read(root: &Path, path: String) -> Option<File> {
    use std::os::unix::fs::PermissionsExt;
    let full = root.join(&path);
    // A file that git still lists but that was removed, or a link to nowhere, is no file.
    let metadata = full.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some(File { bytes: std::fs::read(&full).ok()?, executable: metadata.permissions().mode() & 0o111 != 0, path })
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").current_dir(root).args(arguments).output().ok().filter(|output| output.status.success())?;
    let listed = String::from_utf8(output.stdout).ok()?;
    Some(listed.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
        .filter(|paths: &Vec<_>| !paths.is_empty())
}

/// As `.gitignore` would have it, nearly.
fn walked(root: &Path) -> Vec<String> {
    const SKIPPED: [&str; 5] = [".git", "target", "node_modules", ".venv", "__pycache__"];
    let mut paths = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
                continue;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(path);
            } else if let Ok(relative) = path.strip_prefix(root) {
                paths.push(relative.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    paths
}

#[test]
fn a_walk_finds_what_git_lists() {
    let Some(listed) = listed_by_git(&root()) else { return };
    let walked = walked(&root());
    let missing: Vec<&String> = listed.iter().filter(|path| root().join(path).is_file() && !walked.contains(path)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
