//! Standard output. A reader that has seen enough and closes its end, as `head` does, ends a command well; a full disk ends it with a
//! message. Files that are read whole are bounded here too, and what is written is kept apart from what is read. Knows nothing of what is
//! printed or read.

use std::fmt::Arguments;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::UsageError;

/// A line of a command's result; ends the process where nobody takes it.
macro_rules! say {
    ($($arg:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($arg)*))) };
}
/// A line about what a server does, which goes on whether or not somebody reads it.
macro_rules! tell {
    ($($arg:tt)*) => { $crate::output::try_print(format_args!("{}\n", format_args!($($arg)*))) };
}
pub(crate) use {say, tell};

pub(crate) fn print(text: Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    let Err(error) = stdout.write_fmt(text).and_then(|()| stdout.flush()) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    // What standard error does not take either, nobody hears.
    let _ = writeln!(std::io::stderr(), "error: cannot write to standard output: {error}");
    std::process::exit(1);
}

pub(crate) fn try_print(text: Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_fmt(text).and_then(|()| stdout.flush());
}

/// A file of at most `most_bytes`, which a pipe or device may stand for; `what` it is, for the message.
///
/// # Errors
/// It cannot be read, or is longer.
pub(crate) fn read_bounded(path: &Path, most_bytes: u64, what: &str) -> Result<Vec<u8>> {
    let name = path.display();
    let file = std::fs::File::open(path).with_context(|| format!("cannot open {name}"))?;
    let size = file.metadata().map_or(0, |file| file.len());
    ensure!(size <= most_bytes, "{name}: {size} bytes; {what} has at most {most_bytes}, give a part of it");
    let mut bytes = Vec::new();
    file.take(most_bytes + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {name}"))?;
    ensure!(bytes.len() as u64 <= most_bytes, "{name}: more than {most_bytes} bytes, which is the most that {what} has");
    Ok(bytes)
}

/// Files of a model's directory that are compared; no checkpoint has more.
const MOST_FILES: usize = 10_000;

/// `out`, which an option gives, is not what another one has read: neither that file, nor one in that directory. Links and other
/// names of a file do not hide it.
///
/// # Errors
/// [`UsageError`]: it is.
pub(crate) fn keep_apart(out: (&str, &Path), read: (&str, &Path)) -> Result<()> {
    let identity = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
    let Some(written) = identity(out.1) else { return Ok(()) };
    let entries = std::fs::read_dir(read.1).into_iter().flatten().take(MOST_FILES).filter_map(Result::ok);
    let mut files = std::iter::once(read.1.to_path_buf()).chain(entries.map(|entry| entry.path()));
    let same = files.find(|file| identity(file) == Some(written));
    ensure!(
        same.is_none(),
        UsageError(format!("{} {} is read by {}, and would be overwritten; give another name", out.0, out.1.display(), read.0))
    );
    Ok(())
}
