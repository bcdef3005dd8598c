//! How a schedule policy comes into engine processes while they run: what the node says of it, and what they answer. Components come in
//! parts, so that no frame is long; how they are loaded is in the configuration, which both sides have.
//!
//! ```text
//!   Offer, Part ..  -> loads and holds it ->  Loaded | Refused
//!   Put             -> swaps              ->  Runs | Refused
//!   Base            -> the built-in       ->  Runs
//!   Is              -> counts it so       ->  Runs | Refused
//! ```

use std::ops::Range;
use std::sync::Arc;

use millrace_policy::PolicyInfo;
use millrace_transfer::{CodecError, Decoder, Encoder};

use super::record::{Value, record};
use super::{MAX_NAME_BYTES, unknown};

/// Of a component in one frame.
pub(crate) const PART_BYTES: usize = 1 << 20;
const MAX_CONFIG_BYTES: usize = 1 << 20;
/// A path, or why something is refused.
const MAX_TEXT_BYTES: usize = 4 << 10;

const OFFER: u8 = 1;
const PART: u8 = 2;
const PUT: u8 = 3;
const BASE: u8 = 4;
const FORGET: u8 = 5;
const IS: u8 = 6;

const LOADED: u8 = 1;
const REFUSED: u8 = 2;
const RUNS: u8 = 3;

/// A component, and what a process needs beside it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Component {
    pub(crate) source: Arc<[u8]>,
    pub(crate) sha256: String,
    pub(crate) origin: String,
    pub(crate) config_json: String,
}

/// `ticket` counts what the node offers, `generation` what it puts in force.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ScheduleOrder {
    /// A component follows.
    Offer(Offer),
    Part {
        ticket: u64,
        part: Part,
    },
    Put {
        ticket: u64,
        generation: u64,
    },
    /// Back to what roll backs end at.
    Base {
        generation: u64,
    },
    /// Will not be put in force.
    Forget {
        ticket: u64,
    },
    /// What has this digest and is in force already is of this generation.
    Is {
        ticket: u64,
        sha256: String,
        generation: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) ticket: u64,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
    pub(crate) origin: String,
    pub(crate) config_json: String,
    /// To be put in force as soon as it is loaded.
    pub(crate) put_as: Option<u64>,
}

/// A piece of a component; where it is sent, the whole is shared.
#[derive(Clone)]
pub(crate) struct Part {
    whole: Arc<[u8]>,
    range: Range<usize>,
}

/// What an engine process answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScheduleReport {
    Loaded { ticket: u64 },
    Refused { ticket: u64, why: String },
    Runs(Box<ScheduleRuns>),
}

/// The schedule policy in force in an engine process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleRuns {
    /// As the node counts. `None`: it is not what the node put in force last; the process rolled back by itself.
    pub generation: Option<u64>,
    pub info: PolicyInfo,
    pub proven: bool,
    /// Its breaker is not closed.
    pub failing: bool,
    /// These three since the process began.
    pub calls: u64,
    pub fallbacks: u64,
    pub faults: u64,
}

impl Component {
    /// All orders that bring it into a process.
    pub(crate) fn orders(&self, ticket: u64, put_as: Option<u64>) -> impl Iterator<Item = ScheduleOrder> + '_ {
        let offer = Offer {
            ticket,
            bytes: self.source.len() as u64,
            sha256: self.sha256.clone(),
            origin: self.origin.clone(),
            config_json: self.config_json.clone(),
            put_as,
        };
        let part = move |from: usize| {
            let range = from..from.saturating_add(PART_BYTES).min(self.source.len());
            ScheduleOrder::Part { ticket, part: Part { whole: self.source.clone(), range } }
        };
        std::iter::once(ScheduleOrder::Offer(offer)).chain((0..self.source.len()).step_by(PART_BYTES).map(part))
    }
}

impl Part {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.whole.get(self.range.clone()).unwrap_or_default()
    }
}

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Part({} bytes)", self.bytes().len())
    }
}

record!(ScheduleRuns { generation, info, proven, failing, calls, fallbacks, faults });

impl Value for PolicyInfo {
    fn put(&self, out: &mut Encoder) {
        let Self { name, version, sha256, origin } = self;
        [name, version, sha256].into_iter().for_each(|text| text.put(out));
        out.text(cut(origin));
    }

    fn get(from: &mut Decoder<'_>, _what: &'static str) -> Result<Self, CodecError> {
        Ok(Self {
            name: from.text(MAX_NAME_BYTES, "the policy's name")?,
            version: from.text(MAX_NAME_BYTES, "the policy's version")?,
            sha256: from.text(MAX_NAME_BYTES, "the digest")?,
            origin: from.text(MAX_TEXT_BYTES, "the origin")?,
        })
    }
}

impl Value for ScheduleOrder {
    fn put(&self, out: &mut Encoder) {
        match self {
            Self::Offer(Offer { ticket, bytes, sha256, origin, config_json, put_as }) => {
                out.u8(OFFER).u64(*ticket).u64(*bytes).text(sha256).text(cut(origin)).text(config_json);
                put_as.put(out);
            }
            Self::Part { ticket, part } => {
                out.u8(PART).u64(*ticket).bytes(part.bytes());
            }
            Self::Put { ticket, generation } => {
                out.u8(PUT).u64(*ticket).u64(*generation);
            }
            Self::Base { generation } => {
                out.u8(BASE).u64(*generation);
            }
            Self::Forget { ticket } => {
                out.u8(FORGET).u64(*ticket);
            }
            Self::Is { ticket, sha256, generation } => {
                out.u8(IS).u64(*ticket).text(sha256).u64(*generation);
            }
        }
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        Ok(match from.u8(what)? {
            OFFER => Self::Offer(Offer {
                ticket: from.u64("the ticket")?,
                bytes: from.u64("the component's size")?,
                sha256: from.text(MAX_NAME_BYTES, "the digest")?,
                origin: from.text(MAX_TEXT_BYTES, "the origin")?,
                config_json: from.text(MAX_CONFIG_BYTES, "the policy's table")?,
                put_as: Option::get(from, "the generation")?,
            }),
            PART => {
                let ticket = from.u64("the ticket")?;
                let whole: Arc<[u8]> = from.bytes(PART_BYTES, "a part of a component")?.into();
                let range = 0..whole.len();
                Self::Part { ticket, part: Part { whole, range } }
            }
            PUT => Self::Put { ticket: from.u64("the ticket")?, generation: from.u64("the generation")? },
            BASE => Self::Base { generation: from.u64("the generation")? },
            FORGET => Self::Forget { ticket: from.u64("the ticket")? },
            IS => Self::Is {
                ticket: from.u64("the ticket")?,
                sha256: from.text(MAX_NAME_BYTES, "the digest")?,
                generation: from.u64("the generation")?,
            },
            other => return unknown(what, other),
        })
    }
}

impl Value for ScheduleReport {
    fn put(&self, out: &mut Encoder) {
        match self {
            Self::Loaded { ticket } => {
                out.u8(LOADED).u64(*ticket);
            }
            Self::Refused { ticket, why } => {
                out.u8(REFUSED).u64(*ticket).text(cut(why));
            }
            Self::Runs(runs) => {
                out.u8(RUNS);
                runs.put(out);
            }
        }
    }

    fn get(from: &mut Decoder<'_>, what: &'static str) -> Result<Self, CodecError> {
        Ok(match from.u8(what)? {
            LOADED => Self::Loaded { ticket: from.u64("the ticket")? },
            REFUSED => Self::Refused { ticket: from.u64("the ticket")?, why: from.text(MAX_TEXT_BYTES, "the reason")? },
            RUNS => Self::Runs(Box::new(ScheduleRuns::get(from, "what runs")?)),
            other => return unknown(what, other),
        })
    }
}

fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_TEXT_BYTES)).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn component(source: &[u8]) -> Component {
        let (origin, config_json) = ("uploaded".to_owned(), "{}".to_owned());
        Component { source: source.into(), sha256: crate::policies::tests::sha256(source), origin, config_json }
    }

    pub(crate) fn runs(generation: Option<u64>, sha256: &str) -> ScheduleRuns {
        let info = PolicyInfo { sha256: sha256.to_owned(), ..PolicyInfo::native("n") };
        ScheduleRuns { generation, info, proven: true, failing: false, calls: 3, fallbacks: 2, faults: 1 }
    }

    fn whole(value: &impl Value) -> Vec<u8> {
        let mut out = Encoder::default();
        value.put(&mut out);
        out.finish()
    }

    #[test]
    fn what_is_said_of_a_schedule_goes_there_and_back_and_nothing_that_is_cut() {
        let rest = [
            ScheduleOrder::Put { ticket: 4, generation: 5 },
            ScheduleOrder::Base { generation: 6 },
            ScheduleOrder::Forget { ticket: 7 },
            ScheduleOrder::Is { ticket: 9, sha256: "s".into(), generation: 8 },
        ];
        for order in component(b"abc").orders(3, Some(4)).chain(component(b"abc").orders(3, None)).chain(rest) {
            let bytes = whole(&order);
            assert_eq!(ScheduleOrder::get(&mut Decoder::new(&bytes), "it"), Ok(order));
            (0..bytes.len()).for_each(|length| assert!(ScheduleOrder::get(&mut Decoder::new(&bytes[..length]), "it").is_err()));
        }
        let reports = [
            ScheduleReport::Loaded { ticket: 1 },
            ScheduleReport::Refused { ticket: 2, why: "no".into() },
            ScheduleReport::Runs(Box::new(runs(Some(3), "s"))),
        ];
        for report in reports {
            let bytes = whole(&report);
            assert_eq!(ScheduleReport::get(&mut Decoder::new(&bytes), "it"), Ok(report));
            (0..bytes.len()).for_each(|length| assert!(ScheduleReport::get(&mut Decoder::new(&bytes[..length]), "it").is_err()));
        }
    }

    #[test]
    fn parts_are_bounded_and_are_the_whole() {
        let source: Vec<u8> = (0..=u8::MAX).cycle().take(2 * PART_BYTES + 5).collect();
        let component = component(&source);
        let parts: Vec<Vec<u8>> = component
            .orders(1, None)
            .filter_map(|order| if let ScheduleOrder::Part { part, .. } = order { Some(part.bytes().to_vec()) } else { None })
            .collect();
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [PART_BYTES, PART_BYTES, 5]);
        assert_eq!(parts.concat(), source);
        let mut long = Encoder::of_kind(PART);
        long.u64(1).bytes(&vec![0; PART_BYTES + 1]);
        assert!(ScheduleOrder::get(&mut Decoder::new(&long.finish()), "it").is_err());
    }
}
