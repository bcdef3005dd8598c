//! What an engine process tells its node.

use millrace_core::{FinishReason, SeqId};
use millrace_engine::{EngineSnapshot, Event, JobError, Replay};
use millrace_kv::PrefixDigests;
use millrace_transfer::{CodecError, Decoder, Encoder, Incarnation};

use super::record::Value as _;
use super::schedule::ScheduleReport;
use super::{MAX_TOKENS, Ready, unknown};

const READY: u8 = 1;
const FACTS: u8 = 2;
const READMITTED: u8 = 3;
const SCHEDULE: u8 = 4;
const PREFIXES: u8 = 5;
const PREFILLED: u8 = 11;
const TOKEN: u8 = 12;
const FINISHED: u8 = 13;
const FAILED: u8 = 14;
const HANDED_OVER: u8 = 15;
const PREEMPTED: u8 = 16;

/// Pages of a prefix tree that are told: of 16 tokens, a million tokens.
pub(crate) const MAX_PREFIX_PAGES: usize = 1 << 16;
const MAX_WHY_BYTES: usize = 4 << 10;

/// Of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SequenceEvent {
    Prefilled {
        cached_tokens: u32,
        queued_us: u64,
    },
    /// `index`: which output token it is, from 0. Both engines tell of the first one.
    Token {
        index: u32,
        token: u32,
    },
    Finished(FinishReason),
    Failed(JobError),
    /// This life of the decode engine has it, or had it. `round`: the submission's that this is of, so that what was said of an
    /// earlier one is not taken for the latest.
    HandedOver {
        round: u32,
        to: Incarnation,
    },
    Preempted(Replay),
}

#[derive(Debug, Clone)]
pub(crate) enum Report {
    /// The weights are loaded and the engine runs.
    Ready(Box<Ready>),
    Facts(Box<EngineSnapshot>),
    Readmitted(u32),
    Schedule(ScheduleReport),
    /// What the pool keeps of prompts.
    Prefixes(PrefixDigests),
    Sequence(SeqId, SequenceEvent),
}

impl SequenceEvent {
    /// Of an engine's own event; the caller counts output tokens.
    pub(crate) fn of(event: Event, index: u32) -> Self {
        match event {
            Event::Prefilled { cached_tokens, queued_us } => Self::Prefilled { cached_tokens, queued_us },
            Event::Token(token) => Self::Token { index, token },
            Event::Finished(reason) => Self::Finished(reason),
            Event::Failed(error) => Self::Failed(error),
        }
    }
}

impl Report {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Ready(ready) => {
                let mut out = Encoder::of_kind(READY);
                ready.put(&mut out);
                out.finish()
            }
            Self::Facts(snapshot) => {
                let mut out = Encoder::of_kind(FACTS);
                snapshot.put(&mut out);
                out.finish()
            }
            Self::Readmitted(pages) => Encoder::of_kind(READMITTED).u32(*pages).finish(),
            Self::Schedule(report) => {
                let mut out = Encoder::of_kind(SCHEDULE);
                report.put(&mut out);
                out.finish()
            }
            Self::Prefixes(PrefixDigests { page_tokens, paths }) => {
                let mut out = Encoder::of_kind(PREFIXES);
                out.u32(*page_tokens).u32(u32::try_from(paths.len()).unwrap_or(u32::MAX));
                paths.iter().for_each(|path| path.put(&mut out));
                out.finish()
            }
            Self::Sequence(seq, event) => sequence(*seq, event),
        }
    }

    /// # Errors
    /// The bytes are no report.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut from = Decoder::new(bytes);
        let kind = from.u8("the kind")?;
        let report = match kind {
            READY => Self::Ready(Box::new(Ready::get(&mut from, "what it is")?)),
            FACTS => Self::Facts(Box::new(EngineSnapshot::get(&mut from, "how it is")?)),
            READMITTED => Self::Readmitted(from.u32("the pages")?),
            SCHEDULE => Self::Schedule(ScheduleReport::get(&mut from, "the kind of a schedule's report")?),
            PREFIXES => {
                let page_tokens = from.u32("the tokens of a page")?;
                let count = from.count(MAX_PREFIX_PAGES, size_of::<u64>(), "the pages that are kept")?;
                let paths = (0..count).map(|_| from.u64("a page that is kept")).collect::<Result<_, _>>()?;
                Self::Prefixes(PrefixDigests { page_tokens, paths })
            }
            kind => {
                let seq = SeqId(from.u64("the sequence")?);
                Self::Sequence(seq, sequence_event(kind, &mut from)?)
            }
        };
        from.finish()?;
        Ok(report)
    }
}

fn sequence(seq: SeqId, event: &SequenceEvent) -> Vec<u8> {
    let begin = |kind| {
        let mut out = Encoder::of_kind(kind);
        out.u64(seq.0);
        out
    };
    match event {
        SequenceEvent::Prefilled { cached_tokens, queued_us } => begin(PREFILLED).u32(*cached_tokens).u64(*queued_us).finish(),
        SequenceEvent::Token { index, token } => begin(TOKEN).u32(*index).u32(*token).finish(),
        SequenceEvent::Finished(reason) => begin(FINISHED).u8(u8::from(*reason == FinishReason::Stop)).finish(),
        SequenceEvent::Failed(error) => {
            let (code, why) = match error {
                JobError::PageMismatch => (0, ""),
                JobError::NotFinite => (1, ""),
                JobError::DeadlinePassed => (2, ""),
                JobError::ShuttingDown => (3, ""),
                JobError::Device(why) => (4, why.as_str()),
                JobError::HandOff(why) => (5, why.as_str()),
            };
            let why = why.get(..why.floor_char_boundary(MAX_WHY_BYTES)).unwrap_or_default();
            begin(FAILED).u8(code).text(why).finish()
        }
        SequenceEvent::HandedOver { round, to } => begin(HANDED_OVER).u32(*round).incarnation(*to).finish(),
        SequenceEvent::Preempted(again) => begin(PREEMPTED).u32(again.preemptions).u32s(&again.tokens).finish(),
    }
}

fn sequence_event(kind: u8, from: &mut Decoder<'_>) -> Result<SequenceEvent, CodecError> {
    Ok(match kind {
        PREFILLED => {
            let cached_tokens = from.u32("the cached tokens")?;
            SequenceEvent::Prefilled { cached_tokens, queued_us: from.u64("the time in the queue")? }
        }
        TOKEN => SequenceEvent::Token { index: from.u32("the index")?, token: from.u32("the token")? },
        FINISHED => SequenceEvent::Finished(if from.flag("the reason")? { FinishReason::Stop } else { FinishReason::Length }),
        FAILED => {
            let code = from.u8("the error")?;
            let why = from.text(MAX_WHY_BYTES, "the reason")?;
            SequenceEvent::Failed(match code {
                0 => JobError::PageMismatch,
                1 => JobError::NotFinite,
                2 => JobError::DeadlinePassed,
                3 => JobError::ShuttingDown,
                4 => JobError::Device(why),
                5 => JobError::HandOff(why),
                other => return unknown("the error", other),
            })
        }
        HANDED_OVER => SequenceEvent::HandedOver { round: from.u32("the round")?, to: from.incarnation()? },
        PREEMPTED => {
            let preemptions = from.u32("the preemptions")?;
            SequenceEvent::Preempted(Replay { tokens: from.u32s(MAX_TOKENS, "the tokens to replay")?, preemptions })
        }
        other => return unknown("the kind of a report", other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_of_a_sequence_goes_there_and_back() {
        let failed = |error| SequenceEvent::Failed(error);
        let events = [
            SequenceEvent::Prefilled { cached_tokens: 1, queued_us: 2 },
            SequenceEvent::Token { index: 3, token: 4 },
            SequenceEvent::Finished(FinishReason::Stop),
            SequenceEvent::Finished(FinishReason::Length),
            failed(JobError::PageMismatch),
            failed(JobError::NotFinite),
            failed(JobError::DeadlinePassed),
            failed(JobError::ShuttingDown),
            failed(JobError::Device("x".into())),
            failed(JobError::HandOff("y".into())),
            SequenceEvent::HandedOver { round: 6, to: Incarnation { epoch: 7, boot: 8 } },
            SequenceEvent::Preempted(Replay { tokens: vec![1, 2], preemptions: 3 }),
        ];
        for event in events {
            let bytes = Report::Sequence(SeqId(5), event.clone()).encode();
            assert!(matches!(Report::decode(&bytes), Ok(Report::Sequence(SeqId(5), back)) if back == event));
            (0..bytes.len()).for_each(|length| assert!(Report::decode(&bytes[..length]).is_err()));
        }
    }

    #[test]
    fn what_a_pool_keeps_of_prompts_goes_there_and_back_and_is_bounded() {
        let told = |paths: Vec<u64>| Report::Prefixes(PrefixDigests { page_tokens: 16, paths });
        let bytes = told(vec![3, u64::MAX]).encode();
        let back = Report::decode(&bytes);
        assert!(matches!(&back, Ok(Report::Prefixes(digests)) if digests.paths == [3, u64::MAX]), "{back:?}");
        (0..bytes.len()).for_each(|length| assert!(Report::decode(&bytes[..length]).is_err()));
        assert!(Report::decode(&told(vec![0; MAX_PREFIX_PAGES]).encode()).is_ok());
        assert!(Report::decode(&told(vec![0; MAX_PREFIX_PAGES + 1]).encode()).is_err());
    }
}
