//! From a file to a [`Config`]: reads the text, parses TOML, walks it. Opens nothing that the text names.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::de::DeTable;

use crate::reader::Reader;
use crate::{Config, ConfigErrors, Policies, sections};

/// A deployment of thousands of tenants stays far below this; whatever is larger is another file.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads and checks a file.
///
/// # Errors
/// Everything that is wrong with it: see [`parse`]; besides, the file cannot be read, is over [`MAX_FILE_BYTES`] or is not UTF-8.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    let name = path.display().to_string();
    let unreadable = |what: String, hint: &str| ConfigErrors::of_file(&name, what, hint);
    let open = |error| unreadable(format!("cannot be read: {error}"), "check the path and that this user may read the file");
    let mut bytes = Vec::new();
    // One byte more than allowed, so that a file which grows meanwhile, or a pipe, is bounded as well.
    File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)).map_err(open)?;
    match String::from_utf8(bytes) {
        Ok(text) => parse(&text, &name),
        Err(error) => Err(unreadable(
            format!("is not UTF-8 from byte {}", error.utf8_error().valid_up_to()),
            "a configuration is TOML text; is this another file?",
        )),
    }
}

/// Checks a text. `source_name` is how errors call it; relative paths in the text are joined to its directory.
///
/// # Errors
/// All errors of the text at once, in the order of its lines. If it is no TOML, its syntax errors alone: keys around one cannot be
/// told apart.
pub fn parse(text: &str, source_name: &str) -> Result<Config, ConfigErrors> {
    if text.len() as u64 > MAX_FILE_BYTES {
        let message = format!("is larger than {MAX_FILE_BYTES} bytes");
        return Err(ConfigErrors::of_file(source_name, message, "a configuration is TOML text; is this another file?"));
    }
    let mut reader = Reader::new(text);
    let (root, syntax_errors) = DeTable::parse_recoverable(text);
    let readable = reader.take_syntax_errors(text, &syntax_errors);
    let config = readable.then(|| sections::read(&mut reader, root.get_ref(), source_name));
    let errors = reader.into_errors();
    match config {
        Some(config) if errors.is_empty() => Ok(config),
        _ => Err(ConfigErrors::new(source_name, errors)),
    }
}

/// One table of every kind, so that a walk meets every key.
const ONE_OF_EACH: &str = "[model.x]\n[device.x]\n[pool.x]\n[lane.x]\n[tenant.x]\n";

/// Every key that a configuration may have, `*` standing for a chosen name: `pool.*.recipe`.
pub fn known_keys() -> BTreeSet<String> {
    let mut reader = Reader::new(ONE_OF_EACH);
    let (root, _) = DeTable::parse_recoverable(ONE_OF_EACH);
    sections::read(&mut reader, root.get_ref(), "known keys");
    reader.into_known()
}

/// The policies of a file that says nothing about them.
pub fn default_policies() -> Policies {
    let mut reader = Reader::new("");
    let (root, _) = DeTable::parse_recoverable("");
    sections::read(&mut reader, root.get_ref(), "defaults").policies
}
