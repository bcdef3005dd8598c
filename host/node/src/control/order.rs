//! What a node tells an engine process to do.

use std::net::SocketAddr;
use std::sync::Arc;

use millrace_core::{RequestId, SamplingParams, SeqId, TenantId};
use millrace_engine::Replay;
use millrace_kv::PrefixScope;
use millrace_transfer::{CodecError, Decoder, Encoder, Incarnation};

use super::record::Value as _;
use super::schedule::ScheduleOrder;
use super::{MAX_NAME_BYTES, MAX_TOKENS, unknown};

const SUBMIT: u8 = 1;
const ABORT: u8 = 2;
const PEER: u8 = 3;
const PEER_DEAD: u8 = 4;
const READMIT: u8 = 5;
const SCHEDULE: u8 = 6;

const MAX_STOP_TOKENS: usize = 1 << 12;

/// A sequence for a prefill engine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Submission {
    pub(crate) seq: SeqId,
    pub(crate) request: RequestId,
    pub(crate) lane: String,
    pub(crate) tenant: TenantId,
    pub(crate) priority: i32,
    /// From now on, since no two processes share a clock.
    pub(crate) within_us: Option<u64>,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) scope: Option<PrefixScope>,
    pub(crate) sampling: SamplingParams,
    /// Of one that was preempted.
    pub(crate) replay: Replay,
    /// Counted by the node: how often it was submitted before.
    pub(crate) round: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Order {
    Submit(Box<Submission>),
    Abort(SeqId),
    /// Where the decode engine of a lane listens.
    Peer {
        lane: String,
        address: SocketAddr,
    },
    /// That life of the engine at the other end of a lane is over.
    PeerDead {
        lane: String,
        peer: Incarnation,
    },
    /// Takes suspect pages back into use.
    Readmit,
    /// Of its schedule policy.
    Schedule(ScheduleOrder),
}

impl Order {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Submit(submission) => submission.encode(),
            Self::Abort(seq) => Encoder::of_kind(ABORT).u64(seq.0).finish(),
            Self::Peer { lane, address } => Encoder::of_kind(PEER).text(lane).text(&address.to_string()).finish(),
            Self::PeerDead { lane, peer } => Encoder::of_kind(PEER_DEAD).text(lane).incarnation(*peer).finish(),
            Self::Readmit => Encoder::of_kind(READMIT).finish(),
            Self::Schedule(order) => {
                let mut out = Encoder::of_kind(SCHEDULE);
                order.put(&mut out);
                out.finish()
            }
        }
    }

    /// # Errors
    /// The bytes are no order.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut from = Decoder::new(bytes);
        let order = match from.u8("the kind")? {
            SUBMIT => Self::Submit(Box::new(Submission::decode(&mut from)?)),
            ABORT => Self::Abort(SeqId(from.u64("the sequence")?)),
            PEER => {
                let lane = from.text(MAX_NAME_BYTES, "the lane")?;
                let address = from.text(MAX_NAME_BYTES, "the address")?;
                let address = address.parse().map_err(|_| CodecError::Unknown { what: "the address", value: 0 })?;
                Self::Peer { lane, address }
            }
            PEER_DEAD => Self::PeerDead { lane: from.text(MAX_NAME_BYTES, "the lane")?, peer: from.incarnation()? },
            READMIT => Self::Readmit,
            SCHEDULE => Self::Schedule(ScheduleOrder::get(&mut from, "the kind of a schedule's order")?),
            other => return unknown("the kind of an order", other),
        };
        from.finish()?;
        Ok(order)
    }
}

impl Submission {
    fn encode(&self) -> Vec<u8> {
        let Self { seq, request, lane, tenant, priority, within_us, prompt, scope, sampling, replay, round } = self;
        let SamplingParams { temperature, top_p, top_k, min_p, seed, max_tokens, stop_tokens } = sampling;
        let mut out = Encoder::of_kind(SUBMIT);
        out.u64(seq.0).u64(request.0).text(lane).u32(tenant.0).u32(priority.cast_unsigned());
        within_us.put(&mut out);
        out.bytes(scope.map_or(Vec::new(), |scope| scope.0.to_vec()).as_slice());
        out.f32(*temperature).f32(*top_p).u32(*top_k).f32(*min_p).u64(*seed).u32(*max_tokens).u32(replay.preemptions).u32(*round);
        out.u32s(stop_tokens).u32s(&replay.tokens).u32s(prompt);
        out.finish()
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, CodecError> {
        let (seq, request) = (SeqId(from.u64("the sequence")?), RequestId(from.u64("the request")?));
        let lane = from.text(MAX_NAME_BYTES, "the lane")?;
        let (tenant, priority) = (TenantId(from.u32("the tenant")?), from.u32("the priority")?.cast_signed());
        let within_us = Option::get(from, "the deadline")?;
        let scope = <[u8; 32]>::try_from(from.bytes(32, "the scope")?).ok().map(PrefixScope);
        let (temperature, top_p) = (from.f32("the temperature")?, from.f32("top_p")?);
        let (top_k, min_p) = (from.u32("top_k")?, from.f32("min_p")?);
        let (seed, max_tokens, preemptions) = (from.u64("the seed")?, from.u32("max_tokens")?, from.u32("the preemptions")?);
        let round = from.u32("the round")?;
        let stop_tokens = from.u32s(MAX_STOP_TOKENS, "the stop tokens")?;
        let tokens = from.u32s(MAX_TOKENS, "the tokens to replay")?;
        let prompt = from.u32s(MAX_TOKENS, "the prompt")?.into();
        let sampling = SamplingParams { temperature, top_p, top_k, min_p, seed, max_tokens, stop_tokens };
        let replay = Replay { tokens, preemptions };
        Ok(Self { seq, request, lane, tenant, priority, within_us, prompt, scope, sampling, replay, round })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_goes_there_and_back_and_none_that_is_cut() {
        let sampling =
            SamplingParams { temperature: 0.5, top_p: 1.0, top_k: 3, min_p: 0.0, seed: 4, max_tokens: 5, stop_tokens: vec![2] };
        let submission = Submission {
            seq: SeqId(1),
            request: RequestId(2),
            lane: "fast".into(),
            tenant: TenantId(3),
            priority: -1,
            within_us: Some(9),
            prompt: vec![5, 6].into(),
            scope: Some(PrefixScope([7; 32])),
            sampling,
            replay: Replay { tokens: vec![8], preemptions: 1 },
            round: 3,
        };
        let orders = [
            Order::Submit(Box::new(submission)),
            Order::Abort(SeqId(7)),
            Order::Peer { lane: "fast".into(), address: "127.0.0.1:80".parse().unwrap() },
            Order::PeerDead { lane: "fast".into(), peer: Incarnation { epoch: 1, boot: 2 } },
            Order::Readmit,
            Order::Schedule(ScheduleOrder::Base { generation: 1 }),
        ];
        for order in orders {
            let bytes = order.encode();
            assert_eq!(Order::decode(&bytes), Ok(order));
            (0..bytes.len()).for_each(|length| assert!(Order::decode(&bytes[..length]).is_err()));
        }
    }
}
