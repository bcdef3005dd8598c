//! An engine process at work for its node: orders in, reports out, until the node goes or the engine cannot go on.

use std::time::Duration;

use millrace_core::{LaneId, PoolId, SeqId};
use millrace_engine::{EngineHandle, Job, JobError, SubmitError};
use millrace_transfer::tcp::{Channel, FrameReader};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::prefixes::Prefixes;
use super::pulse::Pulse;
use super::reports::{Reporter, Reports};
use super::schedule::Desk;
use super::{LaneEnd, Loaded};
use crate::control::{Order, Report, SequenceEvent, Submission};
use crate::error::StartError;

/// Orders that were read and wait to be done.
const ORDERS_AHEAD: usize = 256;
/// How often the node hears how the engine is.
const FACTS_EVERY: Duration = Duration::from_millis(50);

/// See the module.
///
/// # Errors
/// Where loading fails, the engine fails, or the node's orders cannot be read.
pub(super) async fn serve(
    channel: Channel,
    (reports, mut outbox): (Reports, mpsc::Receiver<Report>),
    ends: Vec<LaneEnd>,
    loading: impl Future<Output = Result<Loaded, StartError>>,
) -> Result<(), StartError> {
    let (reader, mut writer) = channel.split();
    let (orders, ordered) = mpsc::channel(ORDERS_AHEAD);
    tokio::select! {
        () = read(reader, orders) => Ok(()),
        _ = writer.carry(&mut outbox, |report: Report, _| report.encode()) => Ok(()),
        ended = work(loading, ends, ordered, reports) => ended,
    }
}

async fn read(mut reader: FrameReader, orders: mpsc::Sender<Vec<u8>>) {
    while let Ok(frame) = reader.next().await {
        if orders.send(frame).await.is_err() {
            return;
        }
    }
}

async fn work(
    loading: impl Future<Output = Result<Loaded, StartError>>,
    ends: Vec<LaneEnd>,
    mut ordered: mpsc::Receiver<Vec<u8>>,
    reports: Reports,
) -> Result<(), StartError> {
    let Loaded { engine, ready, schedule } = loading.await?;
    tracing::info!(incarnation = %ready.incarnation, loading_ms = ready.loading_us / 1000, "the engine is ready");
    // First how it is: from `Ready` on the node may be asked.
    reports.tell(Report::Facts(Box::new(engine.snapshot().as_ref().clone())));
    let mut schedule = Desk::start(schedule, reports.clone()).map_err(StartError::Thread)?;
    reports.tell(Report::Ready(Box::new(ready)));
    let mut prefixes = Prefixes::default();
    let mut facts = interval(FACTS_EVERY);
    facts.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            frame = ordered.recv() => {
                let Some(frame) = frame else { return Ok(()) };
                let order = Order::decode(&frame).map_err(|error| StartError::Order(error.to_string()))?;
                obey(&engine, &ends, order, (&reports, &mut schedule));
            }
            _ = facts.tick() => {
                let snapshot = engine.snapshot();
                reports.tell(Report::Facts(Box::new(snapshot.as_ref().clone())));
                schedule.tell();
                prefixes.tell(&engine, &reports);
                let pulse = Pulse {
                    has_ended: engine.has_ended(),
                    silent_us: engine.now_us().saturating_sub(snapshot.taken_us),
                    healthy: snapshot.pools.iter().all(|pool| pool.healthy),
                    lost_reports: reports.are_lost(),
                };
                if let Some(why) = pulse.trouble() {
                    return Err(StartError::Engineless(why));
                }
            }
        }
    }
}

fn obey(engine: &EngineHandle, ends: &[LaneEnd], order: Order, (reports, schedule): (&Reports, &mut Desk)) {
    let lane_of = |name: &str| known(ends, name);
    match order {
        Order::Submit(submission) => submit(engine, ends, *submission, reports),
        Order::Abort(seq) => engine.abort(seq),
        Order::Peer { lane, address } => {
            lane_of(&lane).into_iter().for_each(|(_, end)| {
                end.peer.send_replace(Some(address));
            });
        }
        Order::PeerDead { lane, peer } => {
            if let Some((lane, end)) = lane_of(&lane) {
                end.peer.send_replace(None);
                engine.peer_dead(lane, peer);
            }
        }
        Order::Schedule(order) => schedule.obey(order),
        Order::Readmit => {
            let (engine, reports) = (engine.clone(), reports.clone());
            tokio::task::spawn_blocking(move || reports.tell(Report::Readmitted(engine.readmit(PoolId(0)).unwrap_or(0))));
        }
    }
}

fn known<'a>(ends: &'a [LaneEnd], name: &str) -> Option<(LaneId, &'a LaneEnd)> {
    let found = (0..).map(LaneId).zip(ends).find(|(_, end)| end.name == name);
    if found.is_none() {
        tracing::error!(lane = name, "the node names a lane that this engine does not have");
    }
    found
}

/// Hands a sequence to the engine; whoever is not taken hears why.
fn submit(engine: &EngineHandle, ends: &[LaneEnd], submission: Submission, reports: &Reports) {
    let seq = submission.seq;
    let refused = match known(ends, &submission.lane) {
        Some((lane, _)) => hand_in(engine, lane, submission, reports).err().map(|error| error.to_string()),
        None => Some(not_here(ends, &submission.lane)),
    };
    refused.into_iter().for_each(|why| reports.tell(failed(seq, why)));
}

fn failed(seq: SeqId, why: String) -> Report {
    Report::Sequence(seq, SequenceEvent::Failed(JobError::Device(why)))
}

fn not_here(ends: &[LaneEnd], lane: &str) -> String {
    let names: Vec<&str> = ends.iter().map(|end| end.name.as_str()).collect();
    format!(
        "this engine process has no lane `{lane}`, only {}; the deployment's file may have changed since the server started",
        names.join(", ")
    )
}

fn hand_in(engine: &EngineHandle, lane: LaneId, submission: Submission, reports: &Reports) -> Result<(), SubmitError> {
    let Submission { seq, request, tenant, priority, within_us, prompt, scope, sampling, replay, round, lane: _ } = submission;
    let events = Box::new(Reporter::of_prefill(seq, round, replay.tokens.len(), reports.clone()));
    let deadline_us = within_us.map(|within_us| engine.now_us().saturating_add(within_us));
    let job = Job { seq, request, lane, tenant, priority, deadline_us, prompt, scope, sampling, events };
    if replay.preemptions > 0 { engine.resume(job, replay) } else { engine.submit(job) }
}

#[cfg(test)]
mod tests;
