//! Where a quantization reads and writes: refuses places that lie in each other or cannot be written, before any work is done.
//! Knows no tensor.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::QuantizeError;
use super::destination::names;

/// Links that are followed on the way to a file that is not there.
const MAX_LINKS: usize = 40;

/// Checks that neither of source, destination and report lies within another, whatever links lead there.
///
/// # Errors
/// [`QuantizeError::Place`] with the one that has to change, [`QuantizeError::Option`] for a destination without a name.
pub(super) fn check(source: &Path, destination: &Path, report: Option<&Path>) -> Result<(), QuantizeError> {
    let (done, partial) = names(destination)?;
    let made = [real(&done, MAX_LINKS), real(&partial, MAX_LINKS)];
    // A source that is not there is told when it is opened.
    if let Ok(source) = source.canonicalize() {
        for made in &made {
            let why = match (made.starts_with(&source), source.starts_with(made)) {
                (true, true) => "is the source itself",
                (true, false) => "lies in the source",
                (false, true) => "holds the source",
                (false, false) => continue,
            };
            let instead = "name a new directory beside it";
            return Err(QuantizeError::Place { what: "destination", path: destination.to_path_buf(), why, instead });
        }
    }
    let Some(report) = report else { return Ok(()) };
    let refuse = |why| QuantizeError::Place { what: "report", path: report.to_path_buf(), why, instead: "name a file elsewhere" };
    let place = real(report, MAX_LINKS);
    if made.iter().any(|made| place.starts_with(made)) {
        return Err(refuse("lies in the directory that is made"));
    }
    if source.canonicalize().is_ok_and(|source| place.starts_with(source)) {
        return Err(refuse("lies in the source"));
    }
    Ok(())
}

/// A path without links. Its end need not be there; what cannot be followed stays as it is.
fn real(path: &Path, links: usize) -> PathBuf {
    if let Ok(path) = path.canonicalize() {
        return path;
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (fs::read_link(path), path.file_name()) {
        (Ok(target), _) if links > 0 => real(&parent.join(target), links - 1),
        (_, Some(name)) if parent != path => real(parent, links).join(name),
        _ => path.to_path_buf(),
    }
}

/// The file of the report, opened before the work so that it can be written after it; a new one goes again where there is none.
pub(super) struct ReportFile {
    path: PathBuf,
    file: File,
    /// To be removed unless it is written.
    is_new: bool,
}

impl ReportFile {
    /// # Errors
    /// [`QuantizeError::Place`] where the file cannot be opened for writing. What it holds stays until it is written.
    pub(super) fn open(path: &Path) -> Result<Self, QuantizeError> {
        let is_new = path.symlink_metadata().is_err();
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| QuantizeError::ReportFile { path: path.to_path_buf(), why: error.to_string() })?;
        Ok(Self { path: path.to_path_buf(), file, is_new })
    }

    /// Writes the report of the complete `destination`.
    ///
    /// # Errors
    /// [`QuantizeError::ReportLost`].
    pub(super) fn write(mut self, text: &str, destination: &Path) -> Result<(), QuantizeError> {
        self.is_new = false;
        // Pipes and devices have no length.
        let is_file = self.file.metadata().is_ok_and(|metadata| metadata.is_file());
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        emptied.and_then(|()| self.file.write_all(text.as_bytes())).map_err(|error| QuantizeError::ReportLost {
            path: self.path.clone(),
            destination: destination.to_path_buf(),
            why: error.to_string(),
        })
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if self.is_new {
            // Where this fails, an empty file stays.
            _ = fs::remove_file(&self.path);
        }
    }
}
