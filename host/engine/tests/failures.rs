//! Queues that fail, and stay failed. The pool whose queue it was is named, once; the sequences of its lanes end and leave every
//! pool; the lanes that do not use it give the right tokens on; whoever comes later hears of it at once.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Faults, Rig, Setup, Stream, expected, log};
use millrace_core::{LaneId, PoolId, Stage};
use millrace_engine::{Hold, JobError};
use millrace_kv::{PrefixOptions, PrefixScope};

const SCOPE: Option<PrefixScope> = Some(PrefixScope([1; 32]));

/// Lane 0 shares its prefill pool with lane 1, which shares its decode pool with lane 2.
const POOLS: &[Stage] = &[Stage::Prefill, Stage::Decode, Stage::Decode, Stage::Prefill];
const LANES: &[[u32; 2]] = &[[0, 1], [0, 2], [3, 2]];

/// Long enough for many of the driver's passes.
const PASSES: Duration = Duration::from_millis(200);

fn setup(name: &'static str) -> Setup {
    let prefixes = Some(PrefixOptions { owner_pages: u32::MAX });
    Setup { name, pools: POOLS, lanes: LANES, chunk: 20, prefixes, ..Setup::default() }
}

/// Errors of a pool in the log.
fn logged() -> impl Fn(&str) -> usize {
    log::listen();
    |pool: &str| log::lines(&["ERROR", &format!("pool={pool:?}")])
}

/// One engine and what happened in it.
struct Scene {
    rig: Rig,
    faults: Arc<Faults>,
    setup: Setup,
    /// Of the prompt that each lane runs, the right tokens.
    tokens: Vec<u32>,
}

const OUTPUT: u32 = 40;

impl Scene {
    fn start(name: &'static str) -> Self {
        let _ = logged();
        let setup = setup(name);
        let (rig, faults) = Rig::failing(setup);
        let tokens = rig.generate(&expected().0, OUTPUT);
        Self { rig, faults, setup, tokens }
    }

    fn submit(&self, lane: u32) -> Stream {
        self.rig.submit_to(LaneId(lane), SCOPE, &expected().0, OUTPUT).unwrap()
    }

    fn submit_all(&self, lanes: &[u32]) -> Vec<Stream> {
        lanes.iter().map(|&lane| self.submit(lane)).collect()
    }

    /// A sequence in the decode pool of each of these lanes, with its first token published; decode pools are held.
    fn decoding(&self, lanes: &[u32]) -> Vec<Stream> {
        let before = self.rig.engine.snapshot().counters.hand_offs;
        (1..=2).for_each(|pool| self.rig.engine.hold(PoolId(pool), Hold::Held));
        let streams = self.submit_all(lanes);
        streams.iter().for_each(|stream| assert_eq!(stream.next(), Ok(self.tokens[0])));
        self.rig.wait_until("all are handed off", |now| now.counters.hand_offs == before + lanes.len() as u64);
        streams
    }

    fn free_all(&self) {
        (1..=2).for_each(|pool| self.rig.engine.hold(PoolId(pool), Hold::Free));
    }

    fn healthy(&self) -> Vec<bool> {
        self.rig.engine.snapshot().pools.iter().map(|pool| pool.healthy).collect()
    }

    fn wait_until_failed(&self, pool: usize) {
        self.rig.wait_until("the pool has failed", |now| !now.pools[pool].healthy);
    }

    /// These end with the error of this pool, once.
    fn assert_failed(&self, streams: &[Stream], pool: usize) {
        for (index, stream) in streams.iter().enumerate() {
            let Err(JobError::Device(why)) = stream.finish() else { panic!("stream {index} ended otherwise") };
            assert!(why.contains(&format!("pool `{}`", self.setup.pool_name(pool))), "{why}");
            assert!(stream.events.recv_timeout(Duration::from_millis(20)).is_err(), "nothing after the end");
        }
    }

    /// Every page that sequences had is back, in every pool, and nobody is left anywhere.
    fn assert_all_back(&self) {
        self.rig.wait_until_empty(0);
        let snapshot = self.rig.engine.snapshot();
        for pool in &snapshot.pools {
            assert_eq!(pool.free_pages + pool.evictable_pages, pool.total_pages, "{pool:?}");
            assert_eq!(pool.evictable_pages, pool.cached_pages, "{pool:?}");
        }
        assert!(snapshot.lanes.iter().all(|lane| (lane.waiting, lane.running) == (0, 0)), "{:?}", snapshot.lanes);
        assert_eq!(self.rig.engine.check_invariants(), Ok(()));
    }

    fn assert_logged(&self, failed: &[usize]) {
        for pool in 0..POOLS.len() {
            assert_eq!(logged()(&self.setup.pool_name(pool)), usize::from(failed.contains(&pool)), "errors of pool {pool}");
        }
    }

    /// Later requests: an answer at once where a pool of the lane has failed, and else the right tokens.
    fn assert_later(&self, failed: &[usize]) {
        for (lane, pools) in LANES.iter().enumerate() {
            let before = self.rig.engine.snapshot().counters.failed;
            let stream = self.submit(lane as u32);
            match pools.iter().map(|&pool| pool as usize).find(|pool| failed.contains(pool)) {
                Some(pool) => {
                    self.assert_failed(&[stream], pool);
                    self.rig.wait_until("it is counted", |now| now.counters.failed == before + 1);
                }
                None => assert_eq!(stream.finish().unwrap(), self.tokens),
            }
        }
    }
}

/// Lets one queue fail while every lane has sequences in prefill and in decode, and looks at all that must follow.
fn one_fails(name: &'static str, pool: usize, operation: &'static str) {
    let scene = Scene::start(name);
    let uses = |lane: u32| LANES[lane as usize].contains(&(pool as u32));
    let decoding = (0..3).zip(scene.decoding(&[0, 1, 2]));
    scene.faults.fail(pool, operation);
    let under_way = (0..9).map(|n| (n % 3, scene.submit(n % 3)));
    let (hit, others): (Vec<_>, Vec<_>) = decoding.chain(under_way).partition(|&(lane, _)| uses(lane));
    // Held pools run no step, so that a copy's error is seen by who waits for the copy.
    if (POOLS[pool], operation) == (Stage::Decode, "sample") {
        scene.free_all();
    }
    scene.wait_until_failed(pool);
    scene.free_all();
    let (hit, others): (Vec<_>, Vec<_>) =
        (hit.into_iter().map(|(_, s)| s).collect(), others.into_iter().map(|(_, s)| s).collect());
    scene.assert_failed(&hit, pool);
    scene.rig.wait_until("all are counted", |now| now.counters.failed == hit.len() as u64);
    finish_right(&scene, others);
    scene.assert_all_back();
    std::thread::sleep(PASSES);
    assert_eq!(scene.healthy(), [0, 1, 2, 3].map(|other| other != pool));
    scene.assert_logged(&[pool]);
    scene.assert_later(&[pool]);
    scene.assert_all_back();
    scene.assert_logged(&[pool]);
}

/// Those that decoded before have published their first token already.
fn finish_right(scene: &Scene, streams: Vec<Stream>) {
    assert!(!streams.is_empty());
    for stream in streams {
        let tokens = stream.finish().unwrap();
        assert!(scene.tokens.ends_with(&tokens) && tokens.len() + 1 >= scene.tokens.len(), "{tokens:?}");
    }
}

#[test]
fn a_prefill_step_fails() {
    one_fails("prefill-step-", 0, "sample");
}

#[test]
fn an_export_fails_and_the_decode_pool_stays() {
    one_fails("export-", 0, "export_pages");
}

#[test]
fn an_import_fails_and_the_prefill_pool_stays() {
    one_fails("import-", 1, "import_pages");
}

#[test]
fn the_records_of_an_import_fail_and_the_prefill_pool_stays() {
    one_fails("verdicts-", 1, "publish_verdicts");
}

#[test]
fn a_decode_step_fails() {
    one_fails("decode-step-", 1, "sample");
}

#[test]
fn a_decode_pool_of_two_lanes_fails() {
    one_fails("shared-decode-", 2, "sample");
}

/// Pinned pages of the two pools of lane 0.
fn pinned(scene: &Scene) -> [u32; 2] {
    let snapshot = scene.rig.engine.snapshot();
    [0, 1].map(|pool: usize| snapshot.pools[pool].pinned_pages)
}

/// 48 tokens of prompt.
const PROMPT_PAGES: u32 = 3;

#[test]
fn an_export_that_runs_keeps_its_pages_when_the_decode_pool_fails() {
    let scene = Scene::start("slow-export-");
    let mut streams = scene.decoding(&[0]);
    scene.faults.stall(0, "export_pages");
    streams.push(scene.submit(0));
    scene.rig.wait_until("the export runs", |_| scene.faults.is_stalled(0));
    scene.faults.fail(1, "sample");
    scene.free_all();
    scene.assert_failed(&streams, 1);
    std::thread::sleep(PASSES);
    let kept = pinned(&scene);
    assert!(kept[0] >= PROMPT_PAGES && kept[1] >= PROMPT_PAGES, "the export names them: {kept:?}");
    scene.faults.release(0);
    scene.assert_all_back();
    assert_eq!(scene.healthy(), [true, false, true, true]);
    scene.assert_later(&[1]);
    scene.assert_logged(&[1]);
}

#[test]
fn an_import_that_runs_keeps_its_pages_when_the_prefill_pool_fails() {
    let scene = Scene::start("slow-import-");
    scene.faults.stall(1, "import_pages");
    let importing = scene.submit(0);
    scene.rig.wait_until("the import runs", |_| scene.faults.is_stalled(1));
    scene.faults.fail(0, "sample");
    let later = scene.submit(0);
    scene.assert_failed(&[importing, later], 0);
    std::thread::sleep(PASSES);
    let kept = pinned(&scene);
    assert!(kept[0] >= PROMPT_PAGES && kept[1] >= PROMPT_PAGES, "the import names them: {kept:?}");
    scene.faults.release(1);
    scene.assert_all_back();
    assert_eq!(scene.healthy(), [false, true, true, true]);
    scene.assert_later(&[0]);
    scene.assert_logged(&[0]);
}

#[test]
fn a_step_that_runs_keeps_its_pages_when_the_other_pool_fails() {
    let scene = Scene::start("slow-step-");
    let mut streams = scene.decoding(&[0]);
    scene.faults.stall(1, "sample");
    scene.free_all();
    scene.rig.wait_until("the step runs", |_| scene.faults.is_stalled(1));
    scene.faults.fail(0, "sample");
    streams.push(scene.submit(0));
    scene.assert_failed(&streams, 0);
    std::thread::sleep(PASSES);
    let decode = scene.rig.engine.snapshot().pools[1].clone();
    assert!(decode.quarantined_pages >= PROMPT_PAGES && decode.pinned_pages == 0, "the step may touch them: {decode:?}");
    scene.faults.release(1);
    scene.assert_all_back();
    assert_eq!(scene.healthy(), [false, true, true, true]);
    scene.assert_logged(&[0]);
}

/// The export runs when the decode pool fails, and fails in its turn: each error is its own pool's.
#[test]
fn both_pools_of_a_lane_fail_one_after_the_other() {
    let scene = Scene::start("both-");
    let mut streams = scene.decoding(&[0]);
    scene.faults.stall(0, "export_pages");
    scene.faults.fail(0, "export_pages");
    streams.push(scene.submit(0));
    scene.rig.wait_until("the export runs", |_| scene.faults.is_stalled(0));
    scene.faults.fail(1, "sample");
    scene.free_all();
    scene.assert_failed(&streams, 1);
    scene.wait_until_failed(1);
    let others = scene.submit_all(&[1, 1, 2]);
    assert_eq!(scene.healthy(), [true, false, true, true], "the export has not been seen to fail");
    scene.faults.release(0);
    scene.wait_until_failed(0);
    scene.assert_failed(&others[..2], 0);
    assert_eq!(others[2].finish().unwrap(), scene.tokens);
    scene.assert_all_back();
    assert_eq!(scene.healthy(), [false, false, true, true]);
    scene.assert_later(&[0, 1]);
    scene.assert_logged(&[0, 1]);
}
