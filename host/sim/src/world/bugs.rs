//! Stale-page bugs that other servers had, each by its mechanism, with the real driver on the fake engine. Those that live in one part
//! have a test there too: `host/kv` (prefix tree, quarantine), `host/scheduler` (steps, drafts, hand-off).
//!
//! Every scene ends as a world does: all answers whole, every page back and blank, nothing seen that must not be.

use millrace_core::PoolId;

use super::World;
use super::scene::{DECODE, PREFILL, scene};
use crate::device::Happening;
use crate::device::machine::Alien;
use crate::device::submission::{Kind, Named, Point};

/// SGLang #24527: decode aborted a request while prefill's writer was in flight; its pages went to another request, which the late write
/// then corrupted. Here the pages that an import names stay its sequence's until the import has passed, and whoever waits for them waits.
#[test]
fn a_late_write_of_an_aborted_request_finds_no_other_in_its_pages() {
    scene([40, 8], |world| {
        let first = world.ask(0, 20, 8);
        world.until(DECODE, Kind::Import);
        world.leave(first);
        // Five pages are the import's; the second needs four of eight.
        let second = world.ask(1, 15, 8);
        world.without(DECODE, 40);
        assert_eq!(
            (world.free(DECODE), world.end_of(second)),
            (2, None),
            "five for the copy's prompt, one for what was to follow"
        );
        world.run_queue(DECODE);
        world.without(DECODE, 3);
        assert!(world.free(DECODE) < 8 || world.end_of(second).is_none());
    });
}

/// SGLang #35049: an abort freed pages under a write in flight, and "the only symptom is a slightly wrong answer". At every leg of the
/// hand-off: a client leaves, another comes at once for the same pages, and its answer is judged token by token.
#[test]
fn whoever_comes_for_the_pages_of_one_who_left_gets_its_own_answer() {
    for (queue, kind) in [(PREFILL, Kind::Step), (PREFILL, Kind::Export), (DECODE, Kind::Import), (DECODE, Kind::Step)] {
        scene([6, 7], |world| {
            let first = world.ask(0, 20, 8);
            world.until(queue, kind);
            world.leave(first);
            let second = world.ask(1, 20, 8);
            world.without(queue, 5);
            world.run_queue(queue);
            world.until(DECODE, Kind::Step);
            assert_eq!(world.end_of(second), None);
        });
    }
}

/// SGLang #38961: a deferred release waited for an acknowledgement, gave up after a time and freed under the writer. However long a copy
/// takes, nothing that it names is free before it has passed.
#[test]
fn no_clock_frees_what_a_copy_names() {
    for (queue, kind) in [(PREFILL, Kind::Export), (DECODE, Kind::Import)] {
        scene([40, 40], |world| {
            let seq = world.ask(0, 20, 8);
            world.until(queue, kind);
            let before = (world.free(PREFILL), world.free(DECODE));
            world.leave(seq);
            for _ in 0..50 {
                world.clock.advance(3_600_000_000);
                world.without(queue, 2);
            }
            assert_eq!((world.free(PREFILL), world.free(DECODE)), before);
            world.run_queue(queue);
            world.without(queue, 3);
            assert!(world.free(DECODE) > before.1, "and then it is");
        });
    }
}

/// SGLang #30233: prefill had given a request up, and decode generated from what had come over until then. A prompt of 75 pages goes over
/// in two batches; the second never comes. Decode must not draw a single token.
#[test]
fn decode_draws_nothing_from_a_part_of_a_prompt() {
    scene([90, 90], |world| {
        let seq = world.ask(0, 300, 8);
        world.until(DECODE, Kind::Import);
        world.run_queue(DECODE);
        world.turn();
        world.until(PREFILL, Kind::Export);
        let to = world.named_first(PREFILL);
        let happening = Happening { point: Point::BeforeExport, to, what: Alien::Intruder { tag: 0 } };
        let ran = world.device.run_next(PREFILL, Vec::new(), Some(happening));
        assert!(ran.happened);
        world.note(PREFILL, happening);
        for _ in 0..20 {
            world.without(usize::MAX, 1);
        }
        assert_eq!(world.end_of(seq), Some("page_mismatch"));
        assert_eq!(world.clients[&seq].tokens.len(), 1, "the token that prefill drew");
        assert_eq!(world.free(DECODE), 90, "what had come over is nobody's");
    });
}

/// vLLM #52234: the producer had reused the pages that a consumer asked for, and the answer was the one to the prompt before, with status
/// 200. Whatever moment a page changes hands at on its way, the request that named it ends as such, and decode is never given another's.
#[test]
fn a_reused_page_is_never_handed_on() {
    let moments = [
        (PREFILL, Kind::Export, Point::BeforeExport),
        (DECODE, Kind::Import, Point::BeforeImport),
        (DECODE, Kind::Import, Point::BehindImport),
    ];
    for (queue, kind, point) in moments {
        scene([40, 40], |world| {
            let (seq, other) = (world.ask(0, 20, 8), world.ask(1, 20, 8));
            world.until(queue, kind);
            let to = world.named_first(queue);
            let owner = world.engine.readers(PoolId(queue as u32), millrace_kv::PageId(to.page));
            let happening = Happening { point, to, what: Alien::Intruder { tag: 0 } };
            assert!(world.device.run_next(queue, Vec::new(), Some(happening)).happened);
            world.note(queue, happening);
            for _ in 0..60 {
                world.without(usize::MAX, 1);
            }
            for seq in [seq, other] {
                let expected = if owner.contains(&seq) { "page_mismatch" } else { "length" };
                assert_eq!(world.end_of(seq), Some(expected), "{point:?}");
            }
        });
    }
}

/// vLLM #52360: pages were freed while an asynchronous store still read them, and the wrong bytes went on under a content key. The copy
/// here is the export; what frees is the abort of the only sequence that pins the pages, with another in need of every page.
#[test]
fn an_export_reads_what_it_named() {
    scene([6, 40], |world| {
        let first = world.ask(0, 20, 8);
        world.until(PREFILL, Kind::Export);
        let named = world.device.named(PREFILL);
        world.leave(first);
        let second = world.ask(1, 20, 8);
        world.without(PREFILL, 20);
        // The check of every turn would have seen a page that was handed out; the export itself finds its tags.
        assert_eq!((world.device.named(PREFILL), world.end_of(second)), (named, None));
        world.run_queue(PREFILL);
        world.see_device();
        world.turn();
    });
}

/// vLLM #45357: step n+1 wrote blocks of a request that had ended in step n, when a receiver of the other stage had them. Here the
/// receiver is a hand-off that needs the pages, and the step is held for as long as anybody likes.
#[test]
fn a_running_step_keeps_its_pages_from_the_next_hand_off() {
    scene([40, 6], |world| {
        let first = world.ask(0, 16, 8);
        world.until(DECODE, Kind::Step);
        world.leave(first);
        let second = world.ask(1, 16, 8);
        for _ in 0..30 {
            world.without(DECODE, 1);
            assert!(world.free(DECODE) <= 1, "five pages are the step's");
        }
        assert_eq!(world.end_of(second), None);
    });
}

/// vLLM #37164: a lookup found pages that nobody held, and another request of the same pass took them before they were pinned. Two
/// prompts at once: one finds the tree's pages, the other needs every page there is.
#[test]
fn pages_that_were_found_are_not_taken_in_the_same_pass() {
    scene([8, 40], |world| {
        // The second tenant was served more, so the first goes first.
        for (tenant, prompt_tokens, output) in [(1, 7, 25), (0, 20, 2)] {
            let seq = world.ask(tenant, prompt_tokens, output);
            while world.end_of(seq).is_none() {
                world.without(usize::MAX, 1);
            }
        }
        let hit = world.ask(0, 20, 8);
        let hungry = world.ask(1, 31, 8);
        for _ in 0..100 {
            world.without(usize::MAX, 1);
        }
        assert_eq!((world.end_of(hit), world.end_of(hungry)), (Some("length"), Some("length")));
        assert!(world.tally.prefix_hits > 0);
    });
}

/// vLLM #47728: pages were freed by what was scheduled instead of by what was computed. A step's outcome never comes (its queue fails):
/// what it was to compute is not there, and nothing of it is in the tree for the next prompt.
#[test]
fn what_was_scheduled_and_never_computed_is_not_kept() {
    scene([40, 40], |world| {
        let first = world.ask(0, 20, 8);
        world.until(PREFILL, Kind::Step);
        assert_eq!(world.engine.pages(PoolId(0)).unwrap().cached_pages(), 0, "scheduled, not computed");
        world.device.fail(PREFILL);
        world.run_queue(PREFILL);
        world.without(usize::MAX, 3);
        assert_eq!(world.end_of(first), Some("device"));
        let pages = world.engine.pages(PoolId(0)).unwrap();
        assert_eq!((pages.cached_pages(), pages.counts().free), (0, 40));
    });
}

impl World<'_> {
    fn free(&self, pool: usize) -> u32 {
        self.engine.pages(PoolId(pool as u32)).unwrap().counts().free
    }

    fn named_first(&self, queue: usize) -> Named {
        self.device.named(queue)[0]
    }
}
