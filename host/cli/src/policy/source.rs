//! The component that a command is about: its bytes, bounded, and which of its decisions is meant. Knows no limits of deployments.

use std::path::Path;

use anyhow::{Context as _, Result};
use millrace_policy_wasm::{Inspection, PolicyKind, builtin, inspect};

use super::Kind;
use crate::UsageError;
use crate::output::read_bounded;

/// More than any limit that a deployment may set.
const MAX_BYTES: u64 = 1 << 30;

pub(super) struct Source {
    pub(super) bytes: Vec<u8>,
    pub(super) inspection: Inspection,
    /// Of the binary.
    pub(super) is_builtin: bool,
}

impl Source {
    /// A file, or by `builtin:NAME` a policy of the binary.
    ///
    /// # Errors
    /// The file cannot be read, or is no component and no core module with component types; there is no such built-in.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let named = path.to_str().and_then(|name| name.strip_prefix("builtin:"));
        let bytes = match named {
            Some(named) => built_in(named)?.to_vec(),
            None => read_file(path, "a component")?,
        };
        let inspection = quietly(|| inspect(&bytes)).with_context(|| path.display().to_string())?;
        Ok(Self { bytes, inspection, is_builtin: named.is_some() })
    }

    /// The decision that was asked for, or the only one that there is.
    ///
    /// # Errors
    /// It exports several and none was named, or none at all.
    pub(super) fn kind(&self, asked: Option<Kind>) -> Result<PolicyKind> {
        if let Some(kind) = asked {
            return Ok(kind.into());
        }
        match self.inspection.kinds.as_slice() {
            [kind] => Ok(*kind),
            [] => {
                let found: Vec<&str> = self.inspection.exports.iter().map(|export| export.name.as_str()).collect();
                let found = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
                anyhow::bail!(
                    "makes no decision: it exports {found}; build it for the world route-policy, schedule-policy or precision-policy"
                )
            }
            several => {
                let names: Vec<String> = several.iter().map(ToString::to_string).collect();
                Err(UsageError(format!("it makes several decisions, {}; name one with --kind", names.join(", "))).into())
            }
        }
    }
}

/// The whole of a regular file; nothing waits for a pipe here, which a deployment could not name either.
pub(super) fn read_file(path: &Path, what: &str) -> Result<Vec<u8>> {
    let name = path.display();
    let is_file = std::fs::metadata(path).with_context(|| format!("cannot open {name}"))?.is_file();
    anyhow::ensure!(is_file, "{name}: no regular file; for {what} give the file that the toolchain wrote");
    read_bounded(path, MAX_BYTES, what)
}

/// By its own name, or by its kind for the first of that.
fn built_in(named: &str) -> Result<&'static [u8]> {
    let of_kind = PolicyKind::ALL.into_iter().find(|kind| kind.to_string() == named).map(builtin::component);
    let own = || builtin::NAMED.iter().find(|(_, name, _)| *name == named).map(|(_, _, component)| *component);
    of_kind.or_else(own).ok_or_else(|| {
        let names: Vec<&str> = builtin::NAMED.iter().map(|(_, name, _)| *name).collect();
        UsageError(format!("builtin:{named} is no built-in policy; use builtin: with {}", names.join(", "))).into()
    })
}

/// Reads what may be hostile. A parser that panics on it is answered with an error; that the panic is told too helps nobody.
pub(super) fn quietly<T>(read: impl FnOnce() -> T) -> T {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let read = read();
    std::panic::set_hook(hook);
    read
}
