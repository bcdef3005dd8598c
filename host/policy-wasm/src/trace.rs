//! The lines of a recording: what they hold and how they are written. A file begins with an `init`.

use serde::{Deserialize, Serialize};

use crate::wire::Info;

/// Of the format; a reader refuses others.
pub(crate) const VERSION: u32 = 1;
/// Results of imports that one call may record; a call with more cannot be replayed exactly and says so.
const MAX_IMPORTS: usize = 4_096;
/// Bytes of keys, names and values among them.
const MAX_IMPORT_BYTES: usize = 256 << 10;

/// One line. `A`: what is asked, `R`: what is answered.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event<A, R> {
    Init(Init),
    Call(Call<A, R>),
}

/// An instance began.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Init {
    pub(crate) version: u32,
    /// Names it in what follows.
    pub(crate) instance: u64,
    pub(crate) kind: String,
    pub(crate) sha256: String,
    /// First 8 bytes of the digest, which seed `random` together with the number of the call.
    pub(crate) seed: u64,
    /// The policy's table as JSON.
    pub(crate) config: String,
    pub(crate) now_us: u64,
    pub(crate) imports: Imports,
    /// What `init` told; none: it refused.
    pub(crate) info: Option<Info>,
    /// The file begins later than the instance did.
    pub(crate) continued: bool,
}

/// A decision was asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Call<A, R> {
    pub(crate) instance: u64,
    pub(crate) call: u64,
    /// What `clock` gave for the length of the call.
    pub(crate) now_us: u64,
    /// All columns that the host had, whatever the policy wants.
    pub(crate) facts: A,
    pub(crate) imports: Imports,
    /// As the policy gave it; the host's rules come behind.
    pub(crate) answer: Option<R>,
    /// Why there is none.
    pub(crate) fault: Option<String>,
    pub(crate) took_ns: u64,
}

/// What imports gave, in the order of the calls. Those that give nothing (log, add, set of a gauge) are not here; what `clock` and
/// `random` give follows from the call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Imports {
    pub(crate) results: Vec<Import>,
    /// There were more than are recorded.
    #[serde(default)]
    pub(crate) cut: bool,
    #[serde(skip)]
    bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Import {
    Get { key: String, value: Option<Vec<u8>> },
    Set { key: String, result: Result<(), String> },
    Metric { name: String, result: Result<u32, String> },
}

impl Imports {
    pub(crate) fn push(&mut self, import: Import) {
        let bytes = match &import {
            Import::Get { key, value } => key.len() + value.as_ref().map_or(0, Vec::len),
            Import::Set { key, .. } => key.len(),
            Import::Metric { name, .. } => name.len(),
        };
        if self.results.len() >= MAX_IMPORTS || self.bytes + bytes > MAX_IMPORT_BYTES {
            self.cut = true;
        } else {
            self.bytes += bytes;
            self.results.push(import);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_imports_gave_is_bounded_in_number_and_bytes() {
        let get = |bytes| Import::Get { key: "k".into(), value: Some(vec![0; bytes]) };
        let mut many = Imports::default();
        (0..=MAX_IMPORTS).for_each(|_| many.push(get(0)));
        assert_eq!((many.results.len(), many.cut), (MAX_IMPORTS, true));
        let mut large = Imports::default();
        (0..5).for_each(|_| large.push(get(60_000)));
        assert_eq!((large.results.len(), large.cut), (4, true));
    }
}
