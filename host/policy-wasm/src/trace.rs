//! The lines of a recording: what they hold and how they are written. A file begins with an `init`.

use millrace_policy::MAX_HANDOVER_BYTES;
use serde::{Deserialize, Serialize};

use crate::wire::{Info, Table};

/// Of the format that is written; a reader takes it and the earlier ones, and refuses later ones.
pub(crate) const VERSION: u32 = 2;
/// The first one that holds what is called beside decisions, `feedback` and `handover`.
pub(crate) const VERSION_WITH_BESIDE: u32 = 2;
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
    Beside(Beside),
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
    /// Events of this instance before this one for which there was no room.
    #[serde(default)]
    pub(crate) missed: u64,
}

/// Something was called beside decisions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Beside {
    pub(crate) instance: u64,
    /// What `clock` gave for the length of the call; with the digest it seeds `random`.
    pub(crate) now_us: u64,
    pub(crate) what: What,
    pub(crate) imports: Imports,
    /// What went wrong; a refusal of `restore` is an invalid answer.
    pub(crate) fault: Option<String>,
    pub(crate) took_ns: u64,
    pub(crate) missed: u64,
}

/// What was called, with all columns that the host had, whatever the policy wants.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    Observe(Table),
    /// Nothing: it failed, or gave more than is handed over.
    Save(Option<Memory>),
    Restore(Memory),
}

/// What a policy hands over, bounded as that is; in hexadecimal digits where it is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Memory(pub(crate) Vec<u8>);

impl From<Memory> for String {
    fn from(memory: Memory) -> Self {
        memory.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for Memory {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits = text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()));
        let digits: Option<Vec<u8>> = digits.collect();
        let digits = digits.filter(|digits| digits.len() % 2 == 0 && digits.len() <= 2 * MAX_HANDOVER_BYTES);
        let digits = digits.ok_or("memory that was handed over is no even number of hexadecimal digits, or too long")?;
        Ok(Self(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()))
    }
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
    fn memory_is_written_in_digits_and_no_longer_than_it_may_be() {
        let memory = Memory(vec![0, 10, 255]);
        let text = serde_json::to_string(&memory).expect("text");
        assert_eq!((text.as_str(), serde_json::from_str::<Memory>(&text).expect("memory")), ("\"000aff\"", memory));
        let long = |bytes: usize| serde_json::from_str::<Memory>(&format!("\"{}\"", "ab".repeat(bytes))).is_ok();
        assert_eq!((long(MAX_HANDOVER_BYTES), long(MAX_HANDOVER_BYTES + 1)), (true, false));
        for bad in ["\"abc\"", "\"zz\"", "\"+1\"", "\"é0\"", "7"] {
            assert!(serde_json::from_str::<Memory>(bad).is_err(), "{bad}");
        }
    }

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
