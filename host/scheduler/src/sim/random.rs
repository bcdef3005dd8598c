//! Thousands of small random worlds. Every sequence must end once with the tokens that it has alone, whoever shares the
//! device; every page must come back; invariants hold after everything that happens. A seed replays a failure.

use std::collections::BTreeMap;

use millrace_core::SeqId;
use millrace_kv::{PrefixCounters, PrefixOptions};

use super::policy::Temper;
use super::world::{End, World};
use super::{Lcg, entry, limits, stemmed};
use crate::{Entry, Neighbours, StageCounters, StepCost, SubmitError};

/// How often each thing happened over all seeds; one that never did would be a hole in the test.
#[derive(Default)]
struct Coverage {
    ends: BTreeMap<End, u32>,
    prefill: StageCounters,
    decode: StageCounters,
    too_long: u32,
    replayed_twice: u32,
    prefixes: PrefixCounters,
    hits: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Faults {
    None,
    /// Stolen pages, spoiled outcomes.
    Device,
}

struct Run {
    world: World,
    plan_ahead: bool,
    faults: Faults,
    /// Prompts come in scopes and begin alike.
    sharing: bool,
    next_seq: u64,
    arrivals: u32,
}

impl Run {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut lcg = Lcg(seed.wrapping_mul(0x9E37_79B9));
        let mut bounds = limits();
        bounds.max_resident = 2 + lcg.below(6);
        bounds.max_waiting = 3 + lcg.below(8);
        bounds.max_context = 24 + lcg.below(30);
        bounds.watermark_pages = lcg.below(3);
        bounds.max_view_rows = 2 + lcg.below(12);
        bounds.max_step_us = lcg.one_in(2).then_some(1_000);
        let mut world = World::new(bounds, 6 + lcg.below(12), 6 + lcg.below(12), seed);
        world.temper = [Temper::Orderly, Temper::Random, Temper::Random, Temper::Garbage, Temper::Idle][lcg.below(5) as usize];
        if faults == Faults::Device {
            world.fault_per_mille = 5 + lcg.below(20);
        }
        let (plan_ahead, arrivals) = (lcg.one_in(2), 4 + lcg.below(12));
        let sharing = !lcg.one_in(6);
        let owner_pages = if lcg.one_in(3) { lcg.below(8) } else { u32::MAX };
        world.prefill.cache_prefixes(PrefixOptions { owner_pages });
        Self { world, plan_ahead, faults, sharing, next_seq: 1, arrivals }
    }

    fn arrival(&mut self) -> Entry {
        let lcg = &mut self.world.lcg;
        let prompt = if lcg.one_in(12) { 60 } else { 1 + lcg.below(30) };
        let mut entry = entry(self.next_seq, prompt, 1 + lcg.below(24));
        entry.priority = lcg.below(3) as i32 - 1;
        entry.arrival_us = self.world.now_us;
        entry.deadline_us = lcg.one_in(4).then(|| self.world.now_us + u64::from(lcg.below(60)));
        if self.sharing && !lcg.one_in(6) {
            let stem = (lcg.below(2), prompt - lcg.below(prompt.min(9) + 1));
            entry = stemmed(entry, 1 + lcg.below(2) as u8, stem);
        }
        entry.stop_tokens = (0..lcg.below(4)).map(|_| lcg.below(97)).collect::<Vec<u32>>().into();
        self.next_seq += 1;
        entry
    }

    fn anything(&mut self, coverage: &mut Coverage) {
        let world = &mut self.world;
        match world.lcg.below(20) {
            0 | 1 if self.arrivals > 0 => {
                self.arrivals -= 1;
                let entry = self.arrival();
                if let Err(SubmitError::TooLong { .. }) = self.world.submit(entry) {
                    coverage.too_long += 1;
                }
            }
            2 if world.lcg.one_in(4) => {
                // Also sequences that ended long ago or never were.
                let seq = SeqId(u64::from(world.lcg.below(self.next_seq as u32 + 2)));
                world.abort(seq);
            }
            3 => world.expire(),
            4 if self.faults == Faults::Device && world.lcg.one_in(3) => {
                let nth = world.lcg.below(8) as usize;
                if let Some(seq) = world.live().into_iter().nth(nth) {
                    world.steal(seq);
                }
            }
            5 if world.lcg.one_in(3) => world.return_theft(),
            6 if world.lcg.one_in(6) => world.readmit_all(),
            6 if world.lcg.one_in(60) => world.prefill.forget_prefixes(),
            7 | 8 => world.commit_prefill(),
            9 | 10 => world.commit_decode(),
            11 | 12 if self.plan_ahead || world.prefill.in_flight().is_none() => {
                // From two tokens in the step's time to more than fit into any step.
                let cost = |lcg: &mut Lcg| StepCost {
                    fixed_us: lcg.below(500),
                    token_ns: 1 << lcg.below(20),
                    largest_tokens: 1 + lcg.below(16),
                };
                let cost = world.lcg.one_in(2).then(|| cost(&mut world.lcg));
                world.prefill.set_step_cost(cost);
                tell_neighbours(world);
                world.plan_prefill();
            }
            13 | 14 if self.plan_ahead || world.decode.in_flight().is_none() => world.plan_decode(),
            // A draft survives until its step can begin.
            15 if world.prefill.in_flight().is_none() => {
                tell_neighbours(world);
                world.dispatch_prefill();
            }
            16 if world.decode.in_flight().is_none() => world.dispatch_decode(),
            _ => {
                let index = world.lcg.below(4) as usize;
                world.hand_off(index);
            }
        }
        self.world.now_us += 1;
        self.world.check();
    }

    fn finish(mut self, coverage: &mut Coverage) {
        for _ in 0..400 {
            self.anything(coverage);
        }
        while !self.world.thefts.is_empty() {
            self.world.return_theft();
        }
        self.world.fault_per_mille = 0;
        // Pages may come under suspicion by what was injected before, until all of that has come out.
        let mut turns = 0;
        while !self.world.live().is_empty() {
            self.world.readmit_all();
            self.world.turn();
            turns += 1;
            assert!(turns < 20_000, "no progress: {:?}", self.world.live());
        }
        self.world.readmit_all();
        self.world.quiesce();
        coverage.add(&self.world);
    }
}

/// Others come and go between a plan and its dispatch.
fn tell_neighbours(world: &mut World) {
    let waiting = world.lcg.one_in(2);
    world.prefill.set_neighbours(if waiting { Neighbours::Waiting } else { Neighbours::Idle });
}

impl Coverage {
    fn add(&mut self, world: &World) {
        for client in world.clients.values() {
            *self.ends.entry(client.end.unwrap()).or_default() += 1;
        }
        for (sum, of) in [(&mut self.prefill, world.prefill.counters()), (&mut self.decode, world.decode.counters())] {
            sum.steps += of.steps;
            sum.stale_rows += of.stale_rows;
            sum.preemptions += of.preemptions;
            sum.page_mismatches += of.page_mismatches;
            sum.not_finite += of.not_finite;
            sum.plans_reused += of.plans_reused;
            sum.policy_overruled += of.policy_overruled;
            sum.policy_rows_ignored += of.policy_rows_ignored;
        }
        let prefixes = world.prefill.pool().prefix_counters();
        self.prefixes.adopted += prefixes.adopted;
        self.prefixes.evicted += prefixes.evicted;
        self.prefixes.forgotten += prefixes.forgotten;
        self.prefixes.over_quota += prefixes.over_quota;
        self.hits += world.hits;
        self.replayed_twice += u32::from(world.decode.counters().preemptions > 1);
    }
}

fn run_seeds(seeds: std::ops::Range<u64>, faults: Faults) -> Coverage {
    let mut coverage = Coverage::default();
    for seed in seeds {
        let one = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Run::new(seed, faults).finish(&mut coverage)));
        if let Err(panic) = one {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
    coverage
}

#[test]
fn random_worlds_without_faults() {
    let coverage = run_seeds(0..1200, Faults::None);
    assert!(coverage.ends[&End::Length] > 1000 && coverage.ends[&End::Stopped] > 200);
    assert!([End::Aborted, End::Expired, End::Refused, End::NoRoom].iter().all(|end| coverage.ends[end] > 50));
    assert!(![End::Stale, End::NotFinite].iter().any(|end| coverage.ends.contains_key(end)));
    assert!(coverage.decode.preemptions > 500 && coverage.replayed_twice > 50, "{}", coverage.decode.preemptions);
    assert!(coverage.prefill.preemptions > 50, "{}", coverage.prefill.preemptions);
    assert!(coverage.prefill.stale_rows > 50 && coverage.decode.stale_rows > 50 && coverage.too_long > 50);
    assert!(coverage.prefill.plans_reused > 500 && coverage.decode.plans_reused > 500);
    assert!(coverage.prefill.policy_overruled > 50 && coverage.decode.policy_overruled > 50);
    let PrefixCounters { adopted, evicted, over_quota, .. } = coverage.prefixes;
    assert!(coverage.hits > 500 && adopted > 50, "{} {:?}", coverage.hits, coverage.prefixes);
    assert!(evicted > 500 && over_quota > 50, "{:?}", coverage.prefixes);
    assert!(coverage.prefill.policy_rows_ignored > 50 && coverage.decode.policy_rows_ignored > 50);
}

#[test]
fn random_worlds_with_faults_harm_only_whom_they_hit() {
    let coverage = run_seeds(10_000..11_000, Faults::Device);
    assert!(coverage.ends[&End::Stale] > 200 && coverage.ends[&End::NotFinite] > 50);
    assert!(coverage.prefill.page_mismatches > 50 && coverage.decode.page_mismatches > 200);
    assert!(coverage.ends[&End::Length] > 1000);
    assert!(coverage.hits > 300 && coverage.prefixes.forgotten > 200, "{} {:?}", coverage.hits, coverage.prefixes);
}

#[test]
fn a_seed_replays() {
    let trace = |seed| {
        let mut run = Run::new(seed, Faults::Device);
        let mut coverage = Coverage::default();
        (0..400).for_each(|_| run.anything(&mut coverage));
        let clients = run.world.clients.values();
        clients.map(|client| (client.tokens.clone(), client.end)).collect::<Vec<_>>()
    };
    assert!((0..20).all(|seed| trace(seed) == trace(seed)));
    assert!((0..20).any(|seed| trace(seed) != trace(seed + 1)));
}
