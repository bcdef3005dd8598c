//! Answers of requests that have the CPU engine to themselves: one at a time, in a pool with room, without faults. The oracle of every
//! world on the CPU.

use std::sync::{Arc, Mutex, PoisonError};

use millrace_core::{LaneId, RequestId, SamplingParams, SeqId, TenantId};
use millrace_engine::{Event, EventSink, Job};
use millrace_scheduler::StageLimits;

use crate::clock::VirtualClock;
use crate::lab::{Lab, Shape};
use crate::policy::{Mood, PolicyChoice, slot};
use crate::rng::Rng;
use crate::workload::{self, MAX_OUTPUT, TENANTS};
use crate::{SimError, model};

/// Turns after which an answer that is not there yet never comes.
const PATIENCE: usize = 10_000;

struct Sink(Arc<Mutex<Vec<Event>>>);

impl EventSink for Sink {
    fn emit(&mut self, event: Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

/// Every prompt of the catalogue with its greedy output.
pub(crate) fn catalogue(lab: &Lab) -> Result<Vec<workload::Answered>, SimError> {
    workload::catalogue().into_iter().map(|prompt| Ok((prompt.clone(), alone(lab, &prompt)?.into()))).collect()
}

fn alone(lab: &Lab, prompt: &Arc<[u32]>) -> Result<Vec<u32>, SimError> {
    let clock = Arc::new(VirtualClock::default());
    let mood = Arc::new(Mutex::new(Mood { per_mille: 0, faults: Vec::new(), rng: Rng::new(0), done: Vec::new(), answers: 0 }));
    let schedule = Arc::new(slot(PolicyChoice::Native, &mood, &clock)?);
    let limits = StageLimits {
        max_step_tokens: model::MAX_TOKENS,
        max_step_us: None,
        max_sequences: 1,
        max_resident: 1,
        max_waiting: 1,
        max_context: model::MAX_TOKENS,
        watermark_pages: 0,
        max_preemptions: 0,
        max_view_rows: 1,
        step_us_hint: 1000,
    };
    let pages = model::MAX_TOKENS / 16;
    let shape = Shape {
        page_tokens: 16,
        pages: [pages; 2],
        limits,
        chunk: model::MAX_TOKENS,
        owner_pages: None,
        max_waiting: 1,
        weights: [1; TENANTS as usize],
    };
    let (mut engine, device) = lab.engine(&shape, None, schedule, (&clock, 1))?;
    let events = Arc::new(Mutex::new(Vec::new()));
    let job = Job {
        seq: SeqId(1),
        request: RequestId(1),
        lane: LaneId(0),
        tenant: TenantId(0),
        priority: 0,
        deadline_us: None,
        prompt: prompt.clone(),
        scope: None,
        sampling: SamplingParams::greedy(MAX_OUTPUT, Vec::new()),
        events: Box::new(Sink(events.clone())),
    };
    engine.handle().submit(job).map_err(|error| SimError::Alone(error.to_string()))?;
    for _ in 0..PATIENCE {
        engine.turn();
        device.ready().into_iter().for_each(|queue| drop(device.run_next(queue, Vec::new(), None)));
        let events = events.lock().unwrap_or_else(PoisonError::into_inner);
        match events.last() {
            Some(Event::Finished(_)) => return Ok(events.iter().filter_map(token).collect()),
            Some(Event::Failed(error)) => return Err(SimError::Alone(error.to_string())),
            _ => {}
        }
    }
    Err(SimError::Alone("it does not end".into()))
}

fn token(event: &Event) -> Option<u32> {
    match event {
        Event::Token(token) => Some(*token),
        _ => None,
    }
}
