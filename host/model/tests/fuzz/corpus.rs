//! Inputs that are worth mutating, by the kinds of outcome that they had. Knows no format.

use std::collections::BTreeSet;

use super::common::Lcg;

/// More would only make the early ones rare.
const MAX_INPUTS: usize = 512;

/// Unspoilt inputs, and one for every kind of outcome met so far.
pub(crate) struct Corpus {
    inputs: Vec<Vec<u8>>,
    kinds: BTreeSet<String>,
}

impl Corpus {
    pub(crate) fn new() -> Self {
        Self { inputs: Vec::new(), kinds: BTreeSet::new() }
    }

    /// Keeps an input whose errors (none: it was read) are of a new kind; unspoilt ones too, until the first mutation.
    pub(crate) fn meet(&mut self, input: &[u8], errors: &[String]) {
        let kind = errors.iter().map(|error| kind(error)).collect::<Vec<_>>().join("\n");
        let new = self.kinds.insert(kind) || errors.is_empty() && self.kinds.len() == 1;
        if new && self.inputs.len() < MAX_INPUTS {
            self.inputs.push(input.to_vec());
        }
    }

    pub(crate) fn kinds(&self) -> usize {
        self.kinds.len()
    }

    /// Half of the time one of the last to join, else any.
    pub(crate) fn choose(&self, chance: &mut Lcg) -> &[u8] {
        let count = self.inputs.len();
        let at = if chance.below(2) == 0 { count - 1 - chance.below(count.min(8)) } else { chance.below(count) };
        &self.inputs[at]
    }
}

/// An error without its particulars: what is quoted, and digits.
fn kind(error: &str) -> String {
    let mut kind = String::new();
    let mut quoted = false;
    for c in error.chars() {
        match c {
            '`' | '"' => quoted = !quoted,
            _ if quoted => {}
            c if c.is_ascii_digit() => {
                if !kind.ends_with('#') {
                    kind.push('#');
                }
            }
            c => kind.push(c),
        }
    }
    // What the file's bytes were quoted as outside backquotes, and the temporary directory, would make every outcome new.
    kind.split(": ").skip(1).collect::<Vec<_>>().join(": ").chars().take(100).collect()
}
