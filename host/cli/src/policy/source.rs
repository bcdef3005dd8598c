//! The component that a command is about: its bytes, bounded, and which of its decisions is meant. Knows no limits of deployments.

use std::path::Path;

use anyhow::{Context as _, Result};
use millrace_policy_wasm::{Inspection, PolicyKind, inspect};

use super::Kind;
use crate::UsageError;
use crate::output::read_bounded;

/// More than any limit that a deployment may set.
const MAX_BYTES: u64 = 1 << 30;

pub(super) struct Source {
    pub(super) bytes: Vec<u8>,
    pub(super) inspection: Inspection,
}

impl Source {
    /// # Errors
    /// The file cannot be read, or is no component and no core module with component types.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let bytes = read_bounded(path, MAX_BYTES, "a component")?;
        let inspection = inspect(&bytes).with_context(|| path.display().to_string())?;
        Ok(Self { bytes, inspection })
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
