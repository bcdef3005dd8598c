//! What a world judges, and what it asks of the driver beside right answers: played scene by scene.

use millrace_core::{FinishReason, PoolId, SeqId};
use millrace_engine::{Event, JobError};

use super::World;
use super::scene::{DECODE, PREFILL, scene, scene_in_chunks};
use crate::device::submission::Kind;

/// What the world says to an end that its client did not deserve.
fn told(world: &mut World<'_>, seq: SeqId, event: Event) -> Option<String> {
    super::lock(&world.mailbox).push((seq, event));
    world.hear();
    world.violation.take()
}

/// A page that was under suspicion once excuses nobody who came later.
#[test]
fn a_suspicion_that_is_over_excuses_nothing() {
    scene([40, 40], |world| {
        let first = world.ask(0, 20, 8);
        world.until(DECODE, Kind::Step);
        assert!(world.take_away(PoolId(1), first, 0));
        world.without(usize::MAX, 4);
        assert_eq!((world.end_of(first), &world.violation), (Some("page_mismatch"), &None));
        world.engine.return_stolen();
        world.engine.readmit_all();
        world.without(usize::MAX, 3);
        for end in [Event::Finished(FinishReason::Length), Event::Failed(JobError::HandOff("no page".into()))] {
            let later = world.ask(0, 20, 8);
            assert!(told(world, later, end.clone()).is_some(), "{end:?}");
            world.leave(later);
        }
    });
}

/// While it lasts, it does.
#[test]
fn a_suspicion_excuses_those_that_it_takes_pages_from() {
    scene([40, 40], |world| {
        let (first, other) = (world.ask(0, 20, 8), world.ask(1, 20, 28));
        world.until(DECODE, Kind::Step);
        assert!(world.take_away(PoolId(1), first, 0));
        while world.end_of(first).is_none() && world.violation.is_none() {
            world.without(usize::MAX, 1);
        }
        assert_eq!((world.end_of(first), world.end_of(other)), (Some("page_mismatch"), None));
        assert_eq!(told(world, other, Event::Finished(FinishReason::Length)), None);
        world.engine.abort(other);
    });
}

/// Whoever comes while a step runs is asked for in the next one: the plan that was made for it before is made again. Otherwise a tenant
/// that was served least waits for two steps of others.
#[test]
fn who_comes_during_a_step_is_in_the_next_one() {
    scene_in_chunks([40, 40], 8, |world| {
        let long = world.ask(0, 60, 2);
        world.until(PREFILL, Kind::Step);
        let newcomer = world.ask(1, 8, 2);
        world.turn();
        world.run_queue(PREFILL);
        world.turn();
        let next = world.engine.running(PoolId(0)).map(|step| step.rows);
        assert_eq!(next, Some(vec![newcomer]), "the first one, {long}, had a step already");
    });
}
