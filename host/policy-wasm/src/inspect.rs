//! What a file is, without running or compiling any of it: format, digest, imports, exports, which decisions it makes.
//! It does not judge; see `load`.

use sha2::{Digest as _, Sha256};
use wit_bindgen_core::wit_parser::{Resolve, WorldItem, WorldKey};
use wit_component::{DecodedWasm, decode};

use crate::compile::{Format, componentize, format_of, sheltered};
use crate::fault::one_line;
use crate::optional::INTERFACES;
use crate::{LoadError, PolicyKind};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// Of the file as it is.
    pub bytes: usize,
    /// Of the file as it is, 64 hex digits: what a deployment pins.
    pub sha256: String,
    /// False: a core module that carries component types; the host makes a component of it.
    pub is_component: bool,
    pub imports: Vec<Interface>,
    pub exports: Vec<Interface>,
    /// Decisions that it exports.
    pub kinds: Vec<PolicyKind>,
}

/// One import or export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// `millrace:policy/log@0.1.0`
    pub name: String,
    /// Its functions, in order; for a bare function none.
    pub functions: Vec<String>,
}

impl Inspection {
    /// Imports that have functions; the others are types alone.
    pub fn called(&self) -> impl Iterator<Item = &Interface> {
        self.imports.iter().filter(|import| !import.functions.is_empty())
    }

    /// Optional interfaces, `feedback` and `handover`, that it exports.
    #[must_use]
    pub fn optional(&self) -> Vec<&'static str> {
        INTERFACES.into_iter().filter(|wanted| self.exports.iter().any(|export| export.is(wanted))).collect()
    }
}

impl Interface {
    /// Whether it is this interface, in any version.
    #[must_use]
    pub fn is(&self, interface: &str) -> bool {
        self.name.split('@').next() == Some(interface)
    }
}

/// Reads a component, or a core module with component types.
///
/// # Errors
/// It is neither, or damaged.
pub fn inspect(source: &[u8]) -> Result<Inspection, LoadError> {
    let format = format_of(source)?;
    let made;
    let component = match format {
        Format::Component => source,
        Format::Core => {
            made = componentize(source)?;
            &made
        }
    };
    let damaged = |detail: String| LoadError::Compile { detail: one_line(&detail) };
    let decoded = sheltered("parser", || decode(component)).map_err(damaged)?;
    let decoded = decoded.map_err(|error| damaged(format!("{error:#}")))?;
    let DecodedWasm::Component(resolve, world) = decoded else {
        return Err(damaged("a WIT package in binary form, which holds types and no code".to_owned()));
    };
    let Some(world) = resolve.worlds.get(world) else { return Err(damaged("no world".to_owned())) };
    let list = |items: &mut dyn Iterator<Item = (&WorldKey, &WorldItem)>| -> Vec<Interface> {
        items.filter_map(|(key, item)| interface(&resolve, key, item)).collect()
    };
    let (imports, exports) = (list(&mut world.imports.iter()), list(&mut world.exports.iter()));
    let kinds = PolicyKind::ALL.into_iter().filter(|kind| exports.iter().any(|export| export.is(kind.interface()))).collect();
    let sha256 = hex(&Sha256::digest(source));
    Ok(Inspection { bytes: source.len(), sha256, is_component: format == Format::Component, imports, exports, kinds })
}

/// Types are no import that anybody could refuse.
fn interface(resolve: &Resolve, key: &WorldKey, item: &WorldItem) -> Option<Interface> {
    let name = one_line(&resolve.name_world_key(key));
    let functions = match item {
        WorldItem::Interface { id, .. } => resolve.interfaces.get(*id)?.functions.keys().map(|name| one_line(name)).collect(),
        WorldItem::Function(_) => Vec::new(),
        WorldItem::Type { .. } => return None,
    };
    Some(Interface { name, functions })
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).filter_map(|digit| char::from_digit(u32::from(digit), 16)).collect()
}
