//! Worlds in which only what a test says happens, on the fake engine and within one process.

use std::sync::Arc;

use millrace_core::SeqId;
use millrace_kv::PrefixScope;
use millrace_scheduler::StageLimits;

use super::{Transport, Transports, World, WorldOptions};
use crate::device::entry::alone;
use crate::device::submission::Kind;
use crate::lab::{EngineKind, Lab, Shape};
use crate::policy::{Policies, PolicyChoice};
use crate::rng::Rng;
use crate::workload::{MAX_OUTPUT, Request, TENANTS};

const IN_PROCESS: Transports = Transports::Only(Transport::InProcess);
const NATIVE: Policies = Policies::Only(PolicyChoice::Native);
pub(super) const PREFILL: usize = 0;
pub(super) const DECODE: usize = 1;

fn shape(pages: [u32; 2], chunk: u32) -> Shape {
    let limits = StageLimits {
        max_step_tokens: 0,
        max_step_us: None,
        max_sequences: 8,
        max_resident: 8,
        max_waiting: 16,
        max_context: 500,
        watermark_pages: 0,
        max_preemptions: 3,
        max_view_rows: 16,
        step_us_hint: 1000,
    };
    Shape { page_tokens: 4, pages, limits, chunk, owner_pages: Some(u32::MAX), max_waiting: 8, weights: [1; TENANTS as usize] }
}

/// A world in which only what the scene says happens; a prompt is one step.
pub(super) fn scene(pages: [u32; 2], play: impl FnOnce(&mut World<'_>)) {
    scene_in_chunks(pages, 512, play);
}

/// As [`scene`], with steps of so many tokens of prompts.
pub(super) fn scene_in_chunks(pages: [u32; 2], chunk: u32, play: impl FnOnce(&mut World<'_>)) {
    let lab = Lab::new(EngineKind::Fake).unwrap();
    let options =
        WorldOptions { faults: [].into(), requests: 0, transport: IN_PROCESS, policy: NATIVE, ..WorldOptions::default() };
    let mut world = World::shaped(&lab, (Rng::new(1), shape(pages, chunk)), &options).unwrap();
    world.quiet = true;
    play(&mut world);
    world.come_to_rest();
    assert_eq!(world.violation, None);
}

impl World<'_> {
    /// Submits a prompt of so many tokens to the first lane, in the scope of its tenant.
    pub(super) fn ask(&mut self, tenant: u32, prompt_tokens: u32, max_output: u32) -> SeqId {
        let prompt: Arc<[u32]> = (0..prompt_tokens).map(|position| (position * 7 + tenant) % 90).collect();
        let request = Request {
            alone: alone(&prompt, MAX_OUTPUT).into(),
            prompt,
            tenant,
            scope: Some(PrefixScope([tenant as u8 + 1; 32])),
            max_output,
            stop_tokens: Vec::new(),
            priority: 0,
            deadline_in_us: None,
            lane: 0,
        };
        let seq = self.submit(request);
        assert!(self.live.contains(&seq));
        seq
    }

    fn next_is(&self, queue: usize, kind: Kind) -> bool {
        self.device.look(queue, |_, next| next.kind == kind) == Some(true)
    }

    /// Turns, with queues running, until this queue is about to run such a submission.
    pub(super) fn until(&mut self, queue: usize, kind: Kind) {
        for _ in 0..200 {
            if self.next_is(queue, kind) {
                return;
            }
            for ready in self.device.ready() {
                self.run_queue(ready);
            }
            self.turn();
        }
        panic!("queue {queue} never comes to {kind:?}");
    }

    /// Turns in which only the other queues run.
    pub(super) fn without(&mut self, queue: usize, turns: u32) {
        for _ in 0..turns {
            for ready in self.device.ready().into_iter().filter(|&ready| ready != queue) {
                self.run_queue(ready);
            }
            self.turn();
        }
    }

    pub(super) fn leave(&mut self, seq: SeqId) {
        self.engine.abort(seq);
        self.end(seq, "aborted");
        self.turn();
    }

    pub(super) fn end_of(&self, seq: SeqId) -> Option<&'static str> {
        self.clients[&seq].end
    }
}
