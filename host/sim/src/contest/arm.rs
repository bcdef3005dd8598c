//! One arm: requests come when they come, one device runs one submission at a time, and the clock goes from one such moment to the next.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use millrace_core::{Clock, LaneId, PoolId, RequestId, SamplingParams, SeqId, TenantId};
use millrace_engine::{Event, EventSink, Job, SteppedEngine};
use millrace_kv::PrefixScope;

use super::door::{Door, Quota};
use super::price::price_us;
use super::{ArmReport, EVERY_US, MEASURED, OUTPUT_TOKENS, Percentiles, measured_prompt, rival_prompt, shape};
use crate::SimError;
use crate::clock::VirtualClock;
use crate::device::Device;
use crate::device::entry::alone;
use crate::device::machine::Reader;
use crate::lab::{Lab, POOLS};
use crate::policy::{Mood, PolicyChoice, slot};
use crate::rng::Rng;
use crate::workload::TENANTS;

const MEASURED_TENANT: usize = 0;
const RIVAL: usize = 1;

#[derive(Debug, Clone, Copy)]
pub(super) struct Arm {
    pub(super) name: &'static str,
    pub(super) policy: PolicyChoice,
    /// `None`: it is away.
    pub(super) rival_every_us: Option<u64>,
    /// Tokens of each of its answers.
    pub(super) rival_output: u32,
    /// Of each tenant.
    pub(super) quota: Quota,
    /// Pages that a tenant may have in the prefix tree.
    pub(super) owner_pages: u32,
    /// Shares of tokens.
    pub(super) weights: [u32; TENANTS as usize],
}

struct Asked {
    prompt: Arc<[u32]>,
    at_us: u64,
}

struct Inside {
    tenant: usize,
    asked: Asked,
    tokens: usize,
    answer: Vec<u32>,
}

#[derive(Default)]
struct Counts {
    ttft_us: Vec<u64>,
    answered: [u32; 2],
    refused: [u32; 2],
    hits: u32,
}

type Mailbox = Arc<Mutex<Vec<(SeqId, u64, Event)>>>;

struct Sink(SeqId, Mailbox, Arc<VirtualClock>);

impl EventSink for Sink {
    fn emit(&mut self, event: Event) {
        self.1.lock().unwrap_or_else(PoisonError::into_inner).push((self.0, self.2.now_us(), event));
    }
}

struct Running<'a> {
    arm: &'a Arm,
    rng: Rng,
    clock: Arc<VirtualClock>,
    engine: SteppedEngine,
    device: Device,
    doors: [Door<Asked>; 2],
    inside: BTreeMap<SeqId, Inside>,
    mailbox: Mailbox,
    next_seq: u64,
    /// When each asks next, and how often the first one still does.
    asks_us: [Option<u64>; 2],
    left: u32,
    /// Queues in the order in which what they hold was submitted.
    line: VecDeque<usize>,
    /// What runs, and when it ends.
    runs: Option<(usize, u64)>,
    counts: Counts,
}

pub(super) fn run(lab: &Lab, seed: u64, arm: &Arm) -> Result<ArmReport, SimError> {
    let clock = Arc::new(VirtualClock::default());
    let mood = Mood { per_mille: 0, faults: Vec::new(), rng: Rng::new(0), done: Vec::new(), answers: 0 };
    let schedule = Arc::new(slot(arm.policy, &Arc::new(Mutex::new(mood)), &clock)?);
    let (engine, device) = lab.engine(&shape(arm), None, schedule, (&clock, 1))?;
    let now_us = clock.now_us();
    let mut running = Running {
        arm,
        rng: Rng::new(seed),
        clock,
        engine,
        device,
        doors: [Door::new(arm.quota), Door::new(arm.quota)],
        inside: BTreeMap::new(),
        mailbox: Mailbox::default(),
        next_seq: 1,
        // The rival has filled what it can when the first one comes.
        asks_us: [Some(now_us + 20 * EVERY_US.0), arm.rival_every_us.map(|_| now_us)],
        left: MEASURED,
        line: VecDeque::new(),
        runs: None,
        counts: Counts::default(),
    };
    running.live()?;
    let Counts { ttft_us, answered, refused, hits } = running.counts;
    Ok(ArmReport {
        name: arm.name,
        ttft_us: Percentiles::of(ttft_us),
        answered: answered[MEASURED_TENANT],
        refused: refused[MEASURED_TENANT],
        prefix_hits: hits,
        rival_answered: answered[RIVAL],
        rival_refused: refused[RIVAL],
    })
}

impl Running<'_> {
    /// Until the measured tenant has asked everything and has its answers.
    fn live(&mut self) -> Result<(), SimError> {
        while self.left > 0 || self.inside.values().any(|inside| inside.tenant == MEASURED_TENANT) {
            self.ask();
            self.let_in()?;
            // What a finished copy lets begin is submitted in the turn behind it.
            for _ in 0..2 {
                self.engine.turn();
                self.hear()?;
                self.let_in()?;
            }
            self.start();
            self.go_on()?;
        }
        Ok(())
    }

    fn ask(&mut self) {
        let now_us = self.clock.now_us();
        for tenant in [MEASURED_TENANT, RIVAL] {
            let Some(at_us) = self.asks_us[tenant].filter(|&at| at <= now_us) else { continue };
            let prompt = if tenant == RIVAL { rival_prompt(&mut self.rng) } else { measured_prompt(&mut self.rng) };
            if !self.doors[tenant].knock(Asked { prompt: prompt.into(), at_us }) {
                self.counts.refused[tenant] += 1;
            }
            self.asks_us[tenant] = match self.arm.rival_every_us {
                Some(every_us) if tenant == RIVAL => Some(at_us + every_us),
                _ => {
                    self.left -= 1;
                    (self.left > 0).then(|| at_us + EVERY_US.0 + u64::from(self.rng.below(EVERY_US.1)))
                }
            };
        }
    }

    fn let_in(&mut self) -> Result<(), SimError> {
        for tenant in [MEASURED_TENANT, RIVAL] {
            while let Some(asked) = self.doors[tenant].open() {
                let seq = SeqId(self.next_seq);
                self.next_seq += 1;
                let output = if tenant == RIVAL { self.arm.rival_output } else { OUTPUT_TOKENS };
                let job = Job {
                    seq,
                    request: RequestId(seq.0),
                    lane: LaneId(0),
                    tenant: TenantId(tenant as u32),
                    priority: 0,
                    deadline_us: None,
                    prompt: asked.prompt.clone(),
                    scope: Some(PrefixScope([tenant as u8 + 1; 32])),
                    sampling: SamplingParams::greedy(output, Vec::new()),
                    events: Box::new(Sink(seq, self.mailbox.clone(), self.clock.clone())),
                };
                let answer = alone(&asked.prompt, output);
                self.engine.handle().submit(job).map_err(|error| SimError::Alone(error.to_string()))?;
                self.inside.insert(seq, Inside { tenant, asked, tokens: 0, answer });
            }
        }
        Ok(())
    }

    fn hear(&mut self) -> Result<(), SimError> {
        let events = std::mem::take(&mut *self.mailbox.lock().unwrap_or_else(PoisonError::into_inner));
        for (seq, at_us, event) in events {
            let Some(inside) = self.inside.get_mut(&seq) else { continue };
            let (tenant, wrong) = (inside.tenant, |what: String| Err(SimError::Alone(format!("sequence {seq}: {what}"))));
            match event {
                Event::Prefilled { cached_tokens, .. } => {
                    self.counts.hits += u32::from(tenant == MEASURED_TENANT && cached_tokens > 0);
                }
                Event::Token(token) => {
                    if inside.answer.get(inside.tokens) != Some(&token) {
                        return wrong(format!("token {token} as its number {}", inside.tokens));
                    }
                    inside.tokens += 1;
                    if inside.tokens == 1 {
                        self.doors[tenant].waits_no_longer();
                        if tenant == MEASURED_TENANT {
                            self.counts.ttft_us.push(at_us - inside.asked.at_us);
                        }
                    }
                }
                Event::Finished(_) if inside.tokens == inside.answer.len() => {
                    self.inside.remove(&seq);
                    self.doors[tenant].leaves();
                    self.counts.answered[tenant] += 1;
                }
                other => return wrong(format!("{other:?} behind {} tokens", inside.tokens)),
            }
        }
        Ok(())
    }

    /// The device takes what was submitted first.
    fn start(&mut self) {
        for queue in self.device.ready() {
            if !self.line.contains(&queue) && self.runs.is_none_or(|(running, _)| running != queue) {
                self.line.push_back(queue);
            }
        }
        if self.runs.is_some() {
            return;
        }
        let Some(queue) = self.line.pop_front() else { return };
        let decodes = POOLS[queue] == millrace_core::Stage::Decode;
        let price = self.device.look(queue, |_, next| price_us(next, decodes)).unwrap_or(0);
        self.runs = Some((queue, self.clock.now_us() + price));
    }

    /// To the next moment at which anything happens.
    fn go_on(&mut self) -> Result<(), SimError> {
        let ends_us = self.runs.map(|(_, at)| at);
        let next_us = self.asks_us.into_iter().flatten().chain(ends_us).min();
        let Some(next_us) = next_us else { return Err(SimError::Alone("nothing happens any more".into())) };
        self.clock.advance(next_us.saturating_sub(self.clock.now_us()));
        if let Some((queue, _)) = self.runs.take_if(|(_, at)| *at <= next_us) {
            let readers = self.readers(queue);
            self.device.run_next(queue, readers, None);
            if let Some(what) = self.device.take_violations().into_iter().next() {
                return Err(SimError::Alone(what));
            }
        }
        Ok(())
    }

    fn readers(&self, queue: usize) -> Vec<Reader> {
        let ticket = self.device.look(queue, |ticket, _| ticket);
        let running = self.engine.running(PoolId(queue as u32)).filter(|running| Some(running.ticket) == ticket);
        let tenant = |seq: &SeqId| self.inside.get(seq).map_or(u32::MAX - 1, |inside| inside.tenant as u32);
        let reader = |seq: SeqId| Reader { seq, tenant: TenantId(tenant(&seq)) };
        running.map(|running| running.rows.into_iter().map(reader).collect()).unwrap_or_default()
    }
}
