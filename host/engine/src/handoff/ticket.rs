//! A prefilled sequence as another process has to know it, and its bytes: what it is made of, how it is drawn, what was published.
//! Knows no pages and no peer. Whatever is read is checked, since it comes from outside.

use millrace_core::{LaneId, RequestId, SamplingParams, SeqId, TenantId};
use millrace_scheduler::Entry;
use millrace_transfer::{CodecError, Decoder, Encoder};

/// Tokens of a prompt and the answer to it together: with them a ticket is shorter than it may be.
const MAX_TOKENS: usize = 1 << 20;
const MAX_STOP_TOKENS: usize = 1 << 12;

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ticket {
    pub(crate) entry: Entry,
    pub(crate) sampling: SamplingParams,
    pub(crate) first_token: u32,
    /// Prompt tokens that were found in the prefix cache.
    pub(crate) cached_tokens: u32,
    pub(crate) queued_us: u64,
}

/// Why a ticket is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadTicket {
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("token {0} is outside of the vocabulary")]
    Token(u32),
    #[error("{0} is not what a sequence can have")]
    Field(&'static str),
    #[error("prompt and output have {0} tokens together; at most {MAX_TOKENS} go from one process to another")]
    Long(usize),
}

impl Ticket {
    /// # Errors
    /// It has more tokens than the other side would take.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, BadTicket> {
        let Entry { seq, request, tenant, priority, prompt, max_output, stop_tokens, replay, preemptions, .. } = &self.entry;
        let SamplingParams { temperature, top_p, top_k, min_p, seed, .. } = &self.sampling;
        check_length(prompt, replay)?;
        let mut out = Encoder::default();
        out.u64(seq.0).u64(request.0).u32(tenant.0).u32(priority.cast_unsigned()).u32(*max_output).u32(*preemptions);
        out.f32(*temperature).f32(*top_p).u32(*top_k).f32(*min_p).u64(*seed);
        out.u32(self.first_token).u32(self.cached_tokens).u64(self.queued_us);
        out.u32s(prompt).u32s(stop_tokens).u32s(replay);
        Ok(out.finish())
    }

    /// A sequence of `lane`; ids are below `vocab`, times are on the clock of `now_us`.
    pub(crate) fn decode(bytes: &[u8], lane: LaneId, vocab: u32, now_us: u64) -> Result<Self, BadTicket> {
        let mut from = Decoder::new(bytes);
        let (seq, request) = (SeqId(from.u64("the sequence")?), RequestId(from.u64("the request")?));
        let (tenant, priority) = (TenantId(from.u32("the tenant")?), from.u32("the priority")?.cast_signed());
        let (max_output, preemptions) = (from.u32("max_tokens")?, from.u32("the preemptions")?);
        let (temperature, top_p) = (from.f32("the temperature")?, from.f32("top_p")?);
        let (top_k, min_p, seed) = (from.u32("top_k")?, from.f32("min_p")?, from.u64("the seed")?);
        let (first_token, cached_tokens) = (from.u32("the first token")?, from.u32("the cached tokens")?);
        let queued_us = from.u64("the time in the queue")?;
        let prompt = from.u32s(MAX_TOKENS, "the prompt")?;
        let stop_tokens = from.u32s(MAX_STOP_TOKENS, "the stop tokens")?;
        let replay = from.u32s(MAX_TOKENS, "the tokens to replay")?;
        from.finish()?;
        check_length(&prompt, &replay)?;
        if let Some(&token) = prompt.iter().chain(&replay).chain([&first_token]).find(|&&token| token >= vocab) {
            return Err(BadTicket::Token(token));
        }
        let sound = [
            (!prompt.is_empty(), "an empty prompt"),
            (max_output > 0, "max_tokens"),
            (temperature.is_finite() && temperature >= 0.0, "the temperature"),
            (top_p > 0.0 && top_p <= 1.0, "top_p"),
            ((0.0..=1.0).contains(&min_p), "min_p"),
            (replay.len() <= max_output as usize, "more tokens to replay than it may have"),
        ];
        if let Some((_, what)) = sound.into_iter().find(|(holds, _)| !holds) {
            return Err(BadTicket::Field(what));
        }
        let sampling =
            SamplingParams { temperature, top_p, top_k, min_p, seed, max_tokens: max_output, stop_tokens: stop_tokens.clone() };
        let entry = Entry {
            seq,
            request,
            tenant,
            lane,
            priority,
            arrival_us: now_us,
            deadline_us: None,
            prompt: prompt.into(),
            max_output,
            stop_tokens: stop_tokens.into(),
            replay,
            preemptions,
            scope: None,
        };
        Ok(Self { entry, sampling, first_token, cached_tokens, queued_us })
    }
}

fn check_length(prompt: &[u32], replay: &[u32]) -> Result<(), BadTicket> {
    let tokens = prompt.len() + replay.len();
    if tokens <= MAX_TOKENS { Ok(()) } else { Err(BadTicket::Long(tokens)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        let entry = Entry {
            seq: SeqId(9),
            request: RequestId(8),
            tenant: TenantId(1),
            lane: LaneId(0),
            priority: -3,
            arrival_us: 77,
            deadline_us: None,
            prompt: vec![1, 2, 3].into(),
            max_output: 10,
            stop_tokens: vec![0].into(),
            replay: vec![5],
            preemptions: 1,
            scope: None,
        };
        let sampling =
            SamplingParams { temperature: 0.5, top_p: 1.0, top_k: 4, min_p: 0.0, seed: 7, max_tokens: 10, stop_tokens: vec![0] };
        Ticket { entry, sampling, first_token: 5, cached_tokens: 2, queued_us: 1 << 40 }
    }

    #[test]
    fn a_ticket_goes_there_and_back() {
        assert_eq!(Ticket::decode(&ticket().encode().unwrap(), LaneId(0), 6, 77), Ok(ticket()));
    }

    #[test]
    fn what_no_sequence_can_have_is_refused() {
        let decode = |ticket: &Ticket| Ticket::decode(&ticket.encode().unwrap(), LaneId(0), 6, 77);
        assert_eq!(Ticket::decode(&ticket().encode().unwrap(), LaneId(0), 5, 77), Err(BadTicket::Token(5)));
        let mut empty = ticket();
        empty.entry.prompt = Vec::new().into();
        assert_eq!(decode(&empty), Err(BadTicket::Field("an empty prompt")));
        let mut hot = ticket();
        hot.sampling.temperature = f32::NAN;
        assert_eq!(decode(&hot), Err(BadTicket::Field("the temperature")));
        let bytes = ticket().encode().unwrap();
        (0..bytes.len()).for_each(|length| assert!(Ticket::decode(&bytes[..length], LaneId(0), 6, 77).is_err()));
    }
    fn long(prompt: usize, replay: usize) -> Ticket {
        let mut long = ticket();
        (long.entry.prompt, long.entry.replay, long.entry.max_output) = (vec![5; prompt].into(), vec![5; replay], u32::MAX);
        long.sampling.max_tokens = u32::MAX;
        long
    }

    #[test]
    fn the_longest_sequence_fits_into_a_message_and_one_token_more_is_refused_on_both_sides() {
        for (prompt, replay) in [(1 << 20, 0), ((1 << 20) - 7, 7), (1, (1 << 20) - 1)] {
            let whole = long(prompt, replay);
            let bytes = whole.encode().unwrap();
            assert!(bytes.len() < millrace_transfer::MAX_TICKET_BYTES);
            assert_eq!(Ticket::decode(&bytes, LaneId(0), 6, 77), Ok(whole));
            assert_eq!(long(prompt, replay + 1).encode(), Err(BadTicket::Long((1 << 20) + 1)));
        }
        // Whoever does not keep to it is refused where it comes: a token is put before those of the replay, and counted.
        let mut bytes = long(1 << 20, 0).encode().unwrap();
        let count = bytes.len() - 4;
        bytes[count..].copy_from_slice(&1_u32.to_le_bytes());
        bytes.extend_from_slice(&5_u32.to_le_bytes());
        assert_eq!(Ticket::decode(&bytes, LaneId(0), 6, 77), Err(BadTicket::Long((1 << 20) + 1)));
        let long_prompt = [&bytes[..prompt_at()], &((1_u32 << 20) + 1).to_le_bytes()].concat();
        assert_eq!(Ticket::decode(&long_prompt, LaneId(0), 6, 77), Err(BadTicket::Codec(CodecError::Long("the prompt"))));
    }

    /// Where the count of the prompt's tokens is.
    fn prompt_at() -> usize {
        let Ticket { entry, .. } = ticket();
        let behind = 4 * (entry.prompt.len() + 1 + entry.stop_tokens.len() + 1 + entry.replay.len() + 1);
        ticket().encode().unwrap().len() - behind
    }
}
