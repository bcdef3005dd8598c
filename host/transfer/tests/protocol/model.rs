//! Every order of events in small worlds, with stateright. The properties, in words:
//!
//! - **no page is released too soon**: the sender releases the source of a transfer only when the receiver has committed it or is free
//!   of it, or that life of the receiver is over; the receiver releases no page that is being written.
//! - **committed once and whole**: no sequence is committed twice, and each page of a committed one holds what its source held.
//! - **a tag that moved on protects its page**: nothing lands in a page that was handed on, and its new owner's contents stay.
//! - **another life changes nothing**: a message or hello of an earlier life, or of an earlier connection, leaves both machines as they
//!   were.
//! - **nobody is wrongly accused**: whoever keeps the rules is not called out of order, whatever the network does.
//! - **every transfer ends**: from any state, once nothing fails any more, all transfers end and all pages are free.

use millrace_transfer::{Outcome, PageKey, Stamped, ToDecode, ToPrefill, TransferId, Window};
use stateright::{Checker, Model, Property};

use crate::world::{Rule, Size, World};

// What happens sometimes.
const COMMITTED: &str = "a sequence is committed";
const CANCELLED: &str = "a sequence is cancelled";
const STALE: &str = "a stolen page ends its sequence";
const MOVED_ON: &str = "a sequence is handed to the next life of decode";

/// How often each thing may still go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Troubles {
    disconnects: u8,
    sender_deaths: u8,
    receiver_deaths: u8,
    cancels: u8,
    thefts: u8,
    connects: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    world: World,
    left: Troubles,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Event {
    Connect,
    Disconnect,
    KillSender,
    KillReceiver { told: bool },
    Offer(usize),
    Cancel(usize),
    Steal,
    Fetch(TransferId, u32),
    Import((TransferId, u32, u32, PageKey)),
    Reserve(TransferId),
    ToDecode(Stamped<ToDecode>),
    ToPrefill(Stamped<ToPrefill>),
    ZombieHello,
}

struct HandOffs {
    size: Size,
    troubles: Troubles,
}

fn holds(state: &State, rule: Rule) -> bool {
    state.world.broken.as_ref().is_none_or(|(broken, _)| *broken != rule)
}

impl Model for HandOffs {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        vec![State { world: World::new(self.size), left: self.troubles }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        let (world, left) = (&state.world, state.left);
        if world.broken.is_some() {
            return;
        }
        let sequences = 0..world.sequences.len();
        events.extend((world.can_connect() && left.connects > 0).then_some(Event::Connect));
        events.extend((!world.can_connect() && left.disconnects > 0).then_some(Event::Disconnect));
        events.extend((left.sender_deaths > 0).then_some(Event::KillSender));
        if left.receiver_deaths > 0 {
            events.extend([true, false].map(|told| Event::KillReceiver { told }));
        }
        events.extend((left.thefts > 0 && world.can_steal()).then_some(Event::Steal));
        events.extend(sequences.clone().filter(|&seq| world.can_offer(seq)).map(Event::Offer));
        events.extend(sequences.filter(|&seq| left.cancels > 0 && world.can_cancel(seq)).map(Event::Cancel));
        events.extend(world.fetches().into_iter().map(|(transfer, index)| Event::Fetch(transfer, index)));
        events.extend(world.imports().into_iter().map(Event::Import));
        events.extend(world.wishes().into_iter().map(Event::Reserve));
        events.extend(world.to_decode.iter().cloned().map(Event::ToDecode));
        events.extend(world.to_prefill.iter().cloned().map(Event::ToPrefill));
        events.push(Event::ZombieHello);
    }

    fn next_state(&self, before: &State, event: Event) -> Option<State> {
        let mut state = before.clone();
        let (world, left) = (&mut state.world, &mut state.left);
        match event {
            Event::Connect => {
                left.connects -= 1;
                world.connect();
            }
            Event::Disconnect => {
                left.disconnects -= 1;
                world.disconnect();
            }
            Event::KillSender => {
                left.sender_deaths -= 1;
                world.kill_sender();
            }
            Event::KillReceiver { told } => {
                left.receiver_deaths -= 1;
                world.kill_receiver(told);
            }
            Event::Offer(seq) => world.offer(seq),
            Event::Cancel(seq) => {
                left.cancels -= 1;
                world.cancel(seq);
            }
            Event::Steal => {
                left.thefts -= 1;
                world.steal();
            }
            Event::Fetch(transfer, index) => world.fetch(transfer, index),
            Event::Import(import) => world.import(import),
            Event::Reserve(transfer) => world.reserve(transfer),
            Event::ToDecode(message) => world.deliver_to_decode(&message),
            Event::ToPrefill(message) => world.deliver_to_prefill(&message),
            Event::ZombieHello => world.zombie_hello(),
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no page is released too soon", |_, state| holds(state, Rule::ReleasedTooSoon)),
            Property::always("committed once and whole", |_, state| holds(state, Rule::Committed)),
            Property::always("a tag that moved on protects its page", |_, state| holds(state, Rule::TagMovedOn)),
            Property::always("another life changes nothing", |_, state| holds(state, Rule::Stale)),
            Property::always("nobody is wrongly accused", |_, state| holds(state, Rule::Order)),
            Property::always("every transfer ends", |_, state: &State| state.world.must_quiesce().is_ok()),
            // The model reaches what it is about.
            Property::sometimes(COMMITTED, |_, state: &State| {
                state.world.known_ends(|how| matches!(how, Outcome::Committed(_))) > 0
            }),
            Property::sometimes(CANCELLED, |_, state: &State| state.world.known_ends(|how| *how == Outcome::Cancelled) > 0),
            Property::sometimes(STALE, |_, state: &State| state.world.known_ends(|how| *how == Outcome::StaleTarget) > 0),
            Property::sometimes(MOVED_ON, |_, state: &State| state.world.moved_on()),
        ]
    }
}

/// Breadth first: every schedule up to some length.
fn check(size: Size, troubles: Troubles, states: usize) {
    let checker = HandOffs { size, troubles }.checker().threads(2).target_state_count(states).spawn_bfs().join();
    println!("{} states, {} of them different", checker.state_count(), checker.unique_state_count());
    for (property, path) in checker.discoveries() {
        let broken = path.last_state().world.broken.clone();
        let why = broken.or_else(|| path.last_state().world.must_quiesce().err().map(|why| (Rule::Order, why)));
        let example = [COMMITTED, CANCELLED, STALE, MOVED_ON].contains(&property);
        assert!(example, "`{property}` does not hold: {why:?} after {:?}", path.into_actions());
    }
    // Each example is found where its trouble may come, and in no other world.
    let Troubles { cancels, thefts, receiver_deaths, .. } = troubles;
    for (example, due) in [(COMMITTED, true), (CANCELLED, cancels > 0), (STALE, thefts > 0), (MOVED_ON, receiver_deaths > 0)] {
        assert_eq!(checker.discovery(example).is_some(), due, "{example}: too few states to get there, or too much goes wrong");
    }
}

const NONE: Troubles = Troubles { disconnects: 0, sender_deaths: 0, receiver_deaths: 0, cancels: 0, thefts: 0, connects: 1 };

fn size(sequences: u8, pages_each: u32) -> Size {
    Size { sequences, pages_each, pool_pages: 2, window: Window { slots: 1, transfers: 2 } }
}

#[test]
fn one_sequence_of_two_pages_and_a_connection_that_breaks() {
    check(size(1, 2), Troubles { disconnects: 1, connects: 2, cancels: 1, ..NONE }, 60_000);
}

#[test]
fn one_sequence_and_processes_that_die() {
    check(size(1, 1), Troubles { sender_deaths: 1, receiver_deaths: 1, connects: 3, ..NONE }, 60_000);
}

#[test]
fn one_sequence_and_a_page_that_is_stolen() {
    check(size(1, 2), Troubles { thefts: 1, cancels: 1, ..NONE }, 60_000);
}

#[test]
fn two_sequences_that_share_a_slot() {
    check(size(2, 1), Troubles { cancels: 1, ..NONE }, 60_000);
}
