//! One engine process's life, again and again: start it, connect, tell it and its peers where they are, carry orders and reports,
//! and when it ends, say so to everybody who has something with it.
//!
//! A process is over when it has exited; one that no longer answers is killed first. So nobody is told of an end that is none.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_core::Stage;
use millrace_engine::JobError;
use millrace_transfer::Incarnation;
use millrace_transfer::tcp::{Channel, ChannelError, FrameReader};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::Fleet;
use super::member::{Life, Member};
use crate::control::{Order, Ready, Report};
use crate::engine_process::{Birth, CONTROL};

/// Orders that may wait for one process.
const ORDERS_AHEAD: usize = 1 << 12;
/// Of the line in which a process says where it listens.
const MAX_LINE_BYTES: u64 = 256;
/// From its start until a process listens, and from then until it has let the node in.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Between an end and the next start: none at first, then doubled, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Who lived so long had not failed because it was started.
const HEALTHY: Duration = Duration::from_secs(60);

/// How one life ended.
struct Ended {
    /// Of a life that was ready. Any other had no sequence, and no peer knew it.
    incarnation: Option<Incarnation>,
    why: String,
}

impl Ended {
    fn unready(why: String) -> Self {
        Self { incarnation: None, why }
    }
}

/// Keeps one process running until the fleet stops.
pub(super) async fn supervise(fleet: Arc<Fleet>, row: usize) {
    let member = &fleet.members[row];
    let mut stopping = fleet.stopping.subscribe();
    let mut pause = Duration::ZERO;
    loop {
        let began = Instant::now();
        let epoch = fleet.epoch.fetch_add(1, Ordering::Relaxed);
        let ended = tokio::select! {
            ended = live(&fleet, member, epoch) => ended,
            // Dropping the life kills the process.
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        let at_once = ended.incarnation.is_some() && (pause.is_zero() || began.elapsed() > HEALTHY);
        let after = if at_once { Duration::ZERO } else { (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE) };
        tracing::error!(
            pool = member.name, stage = %member.stage, why = ended.why, start_in_ms = after.as_millis(),
            "an engine process ended; starting it again"
        );
        gone(&fleet, member, &ended);
        member.tell_first(Err(ended.why));
        pause = after.max(FIRST_PAUSE);
        if at_once {
            continue;
        }
        tokio::select! {
            () = sleep(pause) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
    }
}

/// From start to end. The process is dead when this returns.
async fn live(fleet: &Fleet, member: &Member, epoch: u64) -> Ended {
    let (mut child, _stdin, address) = match start(fleet, member, epoch).await {
        Ok(started) => started,
        Err(why) => return Ended::unready(why),
    };
    member.born(child.id());
    let life = async {
        // Whoever else connects to it may be in the way for a moment: that is no reason to end it.
        match fleet.endpoint.connect_within(address, CONTROL, LISTEN_TIMEOUT).await {
            Ok(channel) => carry(fleet, member, channel, address).await,
            Err(error) => Ended::unready(error.to_string()),
        }
    };
    let mut ended = tokio::select! {
        ended = life => ended,
        status = child.wait() => exited(member, status),
    };
    // It may be stopped, or talk nonsense: it must not go on beside the next one.
    let _ = child.start_kill();
    if let Ok(status) = child.wait().await {
        let status = status.to_string();
        if ended.why != status {
            ended.why = format!("{} ({status})", ended.why);
        }
    }
    ended
}

fn exited(member: &Member, status: std::io::Result<std::process::ExitStatus>) -> Ended {
    let why = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    Ended { incarnation: member.incarnation(), why }
}

/// This program as it runs. Its path may name another one by now, or none.
fn program() -> Result<PathBuf, String> {
    let running = Path::new("/proc/self/exe");
    if running.exists() {
        return Ok(running.to_owned());
    }
    std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))
}

/// Starts the program itself with other arguments, and reads where it listens.
async fn start(fleet: &Fleet, member: &Member, epoch: u64) -> Result<(Child, ChildStdin, SocketAddr), String> {
    let mut child = Command::new(program()?)
        .arg0(std::env::args_os().next().unwrap_or_else(|| "millrace".into()))
        .args(["engine", &member.stage.to_string(), "-c", &fleet.config_file, "--pool", &member.name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Signals of a terminal are the node's: it lets requests end before the engines do.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("cannot start it: {error}"))?;
    let (mut stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or("it has no standard streams")?;
    let birth = Birth { secret: fleet.secret.clone(), epoch };
    stdin.write_all(birth.line().as_bytes()).await.map_err(|error| format!("cannot tell it the secret: {error}"))?;
    stdin.flush().await.map_err(|error| error.to_string())?;
    let mut lines = BufReader::new(stdout.take(MAX_LINE_BYTES)).lines();
    let line = timeout(LISTEN_TIMEOUT, lines.next_line()).await.map_err(|_| "it does not say where it listens".to_owned())?;
    let line = line.map_err(|error| error.to_string())?.ok_or("it ended before it listened; its log says why")?;
    let address = line.strip_prefix("listening ").and_then(|address| address.parse().ok());
    Ok((child, stdin, address.ok_or_else(|| format!("it says {line:?} where its address was due"))?))
}

/// Orders out, reports in, until the connection ends.
async fn carry(fleet: &Fleet, member: &Member, channel: Channel, address: SocketAddr) -> Ended {
    let (mut reader, mut writer) = channel.split();
    let (orders, mut ordered) = mpsc::channel(ORDERS_AHEAD);
    let reading = read(fleet, member, &mut reader, (orders, address));
    let writing = writer.carry(&mut ordered, |order: Order, _| order.encode());
    let why = tokio::select! {
        why = reading => why,
        why = writing => match why {
            // The member has given up its end of the queue.
            ChannelError::Ended => "it does not take its orders as fast as they come".to_owned(),
            other => other.to_string(),
        },
    };
    Ended { incarnation: member.incarnation(), why }
}

async fn read(
    fleet: &Fleet,
    member: &Member,
    reader: &mut FrameReader,
    (orders, address): (mpsc::Sender<Order>, SocketAddr),
) -> String {
    // Until the process is ready. From then on the member has the only sender, so that giving it up ends this connection.
    let mut orders = Some(orders);
    let mut facts = None;
    loop {
        let frame = match reader.next().await {
            Ok(frame) => frame,
            Err(error) => return error.to_string(),
        };
        match Report::decode(&frame) {
            Ok(Report::Ready(ready)) => {
                if let Err(why) = member.agrees(&ready, &fleet.config_file) {
                    return why;
                }
                let Some(orders) = orders.take() else { return "it says twice that it is ready".to_owned() };
                let life = Life { incarnation: ready.incarnation, address, facts: facts.take() };
                up(fleet, member, *ready, (life, orders));
            }
            // Of a life that may not become ready, how the one before was is worth more.
            Ok(Report::Facts(first)) if orders.is_some() => facts = Some(*first),
            Ok(Report::Facts(facts)) => member.say(*facts),
            Ok(Report::Readmitted(pages)) => {
                tracing::info!(target: "millrace::audit", pool = member.name, pages, "suspect pages readmitted");
            }
            Ok(Report::Prefixes(digests)) => member.keeps(&digests),
            Ok(Report::Schedule(report)) => fleet.schedules.hear(member, report),
            Ok(Report::Sequence(seq, event)) => {
                fleet.ask(|jobs| jobs.hear(member.pool, seq, event));
            }
            Err(error) => return format!("its report cannot be read: {error}"),
        }
    }
}

/// The process is loaded: it takes orders from now on, and its peers learn where it is.
fn up(fleet: &Fleet, member: &Member, ready: Ready, (life, orders): (Life, mpsc::Sender<Order>)) {
    tracing::info!(
        pool = member.name,
        stage = %member.stage,
        incarnation = %ready.incarnation,
        loading_ms = ready.loading_us / 1000,
        "an engine process is ready"
    );
    let address = life.address;
    let later = member.up(life, orders);
    for lane in fleet.lanes.iter().flatten() {
        let decode_at = if lane.decode == member.pool {
            Some(address)
        } else if lane.prefill == member.pool {
            fleet.member(lane.decode).and_then(Member::address)
        } else {
            None
        };
        if let Some(address) = decode_at {
            tell(fleet, lane.prefill, Order::Peer { lane: lane.name.clone(), address });
        }
    }
    fleet.schedules.up(member);
    fleet.ask(|jobs| later.into_iter().flat_map(|errand| jobs.kept(errand)).collect());
    member.tell_first(Ok(ready));
}

/// The process is dead: its peers learn that, and its sequences end or begin anew. One that was never ready had neither.
fn gone(fleet: &Fleet, member: &Member, ended: &Ended) {
    member.down();
    fleet.schedules.gone(member.pool);
    let Some(peer) = ended.incarnation else { return };
    for lane in fleet.lanes.iter().flatten() {
        let other = match member.stage {
            Stage::Prefill if lane.prefill == member.pool => lane.decode,
            Stage::Decode if lane.decode == member.pool => lane.prefill,
            _ => continue,
        };
        tell(fleet, other, Order::PeerDead { lane: lane.name.clone(), peer });
    }
    let why = JobError::Device(format!("the engine process of pool `{}` ended: {}", member.name, ended.why));
    fleet.ask(|jobs| jobs.lost(member.pool, peer.epoch, &why));
}

/// A process that is down hears it when it is up; one that does not take it is ended.
fn tell(fleet: &Fleet, pool: millrace_core::PoolId, order: Order) {
    if let Some(member) = fleet.member(pool) {
        member.order(order);
    }
}

#[cfg(test)]
mod tests;
