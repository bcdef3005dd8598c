//! What is told and carried beside decisions: whole, to the right generation, and harmless where it fails.

use std::sync::{Arc, Mutex};

use crate::{
    Answer, BreakerSettings, BreakerState, Budget, FaultKind, MAX_HANDOVER_BYTES, Plan, Policy, PolicyFault, PolicyInfo,
    SchedulePolicy, ScheduleSlot, Table,
};

/// Runs no row; tells its number as the plan's reason. What it is told is noted.
struct Remembering {
    memory: Vec<u8>,
    told: Arc<Mutex<Vec<u32>>>,
    /// How often it was to get ready anew.
    recovered: Arc<Mutex<u32>>,
    hearing: Option<FaultKind>,
    saving: Option<FaultKind>,
    restoring: Option<FaultKind>,
    hands_over: bool,
}

fn failed(kind: Option<FaultKind>) -> Result<(), PolicyFault> {
    kind.map_or(Ok(()), |kind| Err(PolicyFault { policy: "remembering".into(), kind, detail: "as told".into() }))
}

impl Policy for Remembering {
    fn recover(&mut self) {
        *self.recovered.lock().unwrap() += 1;
    }

    fn observes(&self) -> bool {
        true
    }

    fn observe(&mut self, outcomes: &Table) -> Result<(), PolicyFault> {
        failed(self.hearing)?;
        self.told.lock().unwrap().push(outcomes.rows);
        Ok(())
    }

    fn hands_over(&self) -> bool {
        self.hands_over
    }

    fn save(&mut self) -> Result<Vec<u8>, PolicyFault> {
        failed(self.saving).map(|()| self.memory.clone())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), PolicyFault> {
        failed(self.restoring)?;
        self.memory = saved.to_vec();
        Ok(())
    }

    fn last_call_ns(&self) -> Option<u64> {
        Some(10)
    }
}

impl SchedulePolicy for Remembering {
    fn plan_step(&mut self, _: &Budget, _: &Table, _: &Table) -> Result<Plan, PolicyFault> {
        Ok(Plan { reason: self.memory.len() as u32, ..Plan::default() })
    }
}

const BREAKER: BreakerSettings =
    BreakerSettings { faults_to_open: 2, backoff_us: 100, max_backoff_us: 400, opens_to_roll_back: 2 };

fn remembering(memory: usize) -> Remembering {
    Remembering {
        memory: vec![7; memory],
        told: Arc::default(),
        recovered: Arc::default(),
        hearing: None,
        saving: None,
        restoring: None,
        hands_over: true,
    }
}

fn slot(first: Remembering) -> ScheduleSlot {
    ScheduleSlot::new(Box::new(first), PolicyInfo::native("first"), BREAKER)
}

fn ask(slot: &ScheduleSlot) -> Answer<Plan> {
    let budget = Budget {
        stage: millrace_core::Stage::Decode,
        step: 0,
        tokens: 8,
        sequences: 8,
        free_pages: 1,
        total_pages: 1,
        page_tokens: 16,
        step_us: 0,
        answer_within_us: None,
    };
    slot.plan_step(0, &budget, &Table::new(0), &Table::new(0))
}

fn swap(slot: &ScheduleSlot, next: Remembering) -> u32 {
    slot.swap(Box::new(next), PolicyInfo::native("next"));
    let answer = ask(slot);
    assert_eq!(answer.fault, None, "whatever became of the memory, the new one decides");
    answer.value.reason
}

#[test]
fn a_swap_carries_memory_and_counts_both_calls() {
    let slot = slot(remembering(5));
    assert_eq!(swap(&slot, remembering(0)), 5);
    let status = slot.status();
    assert_eq!((status.handover.calls, status.handover.ok, status.handover.latency.count), (2, 2, 2));
    assert_eq!((status.total.calls, status.swaps, status.last_error), (1, 1, None));
}

#[test]
fn where_one_of_both_cannot_the_new_one_starts_empty_and_nothing_is_called() {
    for (old, new) in [(false, true), (true, false), (false, false)] {
        let slot = slot(Remembering { hands_over: old, saving: Some(FaultKind::Trap), ..remembering(5) });
        assert_eq!(swap(&slot, Remembering { hands_over: new, ..remembering(0) }), 0);
        assert_eq!(slot.status().handover.calls, 0);
    }
}

#[test]
fn a_handover_that_fails_is_counted_and_holds_nothing_up() {
    for kind in [FaultKind::Trap, FaultKind::Timeout, FaultKind::Memory] {
        let saving = slot(Remembering { saving: Some(kind), ..remembering(5) });
        let restoring = slot(remembering(5));
        assert_eq!(swap(&saving, remembering(0)), 0);
        assert_eq!(swap(&restoring, Remembering { restoring: Some(kind), ..remembering(0) }), 0);
        for (slot, calls, generation) in [(saving, 1, 1), (restoring, 2, 2)] {
            let status = slot.status();
            assert_eq!((status.handover.calls, status.handover.faults.of(kind)), (calls, 1));
            assert!(matches!(status.last_error, Some((told, text)) if told == generation && text.contains("as told")));
            assert_eq!((status.breaker, status.generation), (BreakerState::Closed, 2));
        }
    }
}

#[test]
fn memory_beyond_the_bound_is_not_carried() {
    let fits = slot(remembering(MAX_HANDOVER_BYTES));
    assert_eq!(swap(&fits, remembering(0)), MAX_HANDOVER_BYTES as u32);
    let slot = slot(remembering(MAX_HANDOVER_BYTES + 1));
    assert_eq!(swap(&slot, remembering(0)), 0);
    let status = slot.status();
    assert_eq!(status.handover.faults.of(FaultKind::Invalid), 1);
    assert!(status.last_error.is_some_and(|(_, text)| text.contains("65537 bytes, at most 65536")));
}

#[test]
fn a_roll_back_returns_to_the_memory_that_was_left() {
    let slot = slot(remembering(5));
    assert_eq!(swap(&slot, remembering(0)), 5);
    assert!(slot.roll_back().is_some());
    assert_eq!((ask(&slot).value.reason, slot.status().handover.calls), (5, 2));
}

#[test]
fn outcomes_reach_the_generation_that_decided_and_no_other() {
    let first = remembering(0);
    let told = first.told.clone();
    let slot = slot(first);
    assert_eq!(slot.hears(), Some(1));
    assert_eq!(slot.observe(0, 1, &Table::new(3)), Some(Ok(())));
    assert_eq!(slot.observe(0, 2, &Table::new(4)), None);
    slot.swap(Box::new(remembering(0)), PolicyInfo::native("next"));
    assert_eq!((slot.hears(), slot.observe(0, 1, &Table::new(5))), (Some(2), None));
    assert_eq!(*told.lock().unwrap(), [3]);
    let status = slot.status();
    assert_eq!((status.feedback.calls, status.feedback.ok, status.total.calls), (1, 1, 0));
}

#[test]
fn a_policy_that_cannot_hear_rests_from_it_and_decides_on() {
    let slot = slot(Remembering { hearing: Some(FaultKind::Trap), ..remembering(0) });
    let tell = |now_us| slot.observe(now_us, 1, &Table::new(1));
    assert_eq!((tell(0), tell(0)), (Some(Err(FaultKind::Trap)), Some(Err(FaultKind::Trap))));
    assert_eq!(tell(99), Some(Err(FaultKind::Unavailable)), "spared");
    assert_eq!((tell(100), tell(299)), (Some(Err(FaultKind::Trap)), Some(Err(FaultKind::Unavailable))), "for longer");
    assert_eq!(ask(&slot).fault, None);
    let status = slot.status();
    assert_eq!((status.breaker, status.generation, status.rollbacks), (BreakerState::Closed, 1, 0));
    assert_eq!((status.feedback.faults.of(FaultKind::Trap), status.feedback.faults.of(FaultKind::Unavailable)), (3, 2));
    assert_eq!((status.total.calls, status.total.ok), (1, 1));
}

#[test]
fn faults_are_told_with_their_generation_but_not_that_nobody_was_there() {
    let heard: Arc<Mutex<Vec<(u64, FaultKind)>>> = Arc::default();
    let log = heard.clone();
    let first = Remembering { hearing: Some(FaultKind::Timeout), saving: Some(FaultKind::Trap), ..remembering(5) };
    let slot = slot(first).telling_faults_to(move |generation, fault| log.lock().unwrap().push((generation, fault.kind)));
    slot.observe(0, 1, &Table::new(1));
    swap(&slot, Remembering { hearing: Some(FaultKind::Unavailable), ..remembering(0) });
    slot.observe(0, 2, &Table::new(1));
    assert_eq!(*heard.lock().unwrap(), [(1, FaultKind::Timeout), (1, FaultKind::Trap)]);
}

/// Each fault has a fresh instance prepared, and is the slot's last error; not being ready is neither.
#[test]
fn a_policy_that_fails_beside_decisions_gets_ready_anew() {
    for (kind, fresh) in [(FaultKind::Trap, true), (FaultKind::Unavailable, false)] {
        let hearing = Remembering { hearing: Some(kind), ..remembering(0) };
        let saving = Remembering { saving: Some(kind), ..remembering(0) };
        let (by_hearing, by_saving) = (hearing.recovered.clone(), saving.recovered.clone());
        let hearing = slot(hearing);
        assert_eq!(hearing.observe(0, 1, &Table::new(1)), Some(Err(kind)));
        assert_eq!(*by_hearing.lock().unwrap(), u32::from(fresh));
        assert_eq!(hearing.status().last_error.map(|(generation, _)| generation), fresh.then_some(1));
        let feedback = hearing.status().feedback;
        assert_eq!((feedback.calls, feedback.faults.of(kind), feedback.latency.count), (1, 1, u64::from(fresh)));
        let saving = slot(saving);
        swap(&saving, remembering(0));
        assert_eq!(*by_saving.lock().unwrap(), u32::from(fresh));
    }
}

/// Two faults in a row make it rest; two with a good call in between do not.
#[test]
fn a_policy_that_hears_well_again_begins_anew() {
    struct Sometimes(u32);
    impl Policy for Sometimes {
        fn observes(&self) -> bool {
            true
        }

        fn observe(&mut self, _: &Table) -> Result<(), PolicyFault> {
            self.0 += 1;
            failed((self.0 % 2 == 1).then_some(FaultKind::Trap))
        }
    }
    impl SchedulePolicy for Sometimes {
        fn plan_step(&mut self, _: &Budget, _: &Table, _: &Table) -> Result<Plan, PolicyFault> {
            Ok(Plan::default())
        }
    }
    let slot = ScheduleSlot::new(Box::new(Sometimes(0)), PolicyInfo::native("sometimes"), BREAKER);
    for _ in 0..5 {
        assert_eq!(slot.observe(0, 1, &Table::new(1)), Some(Err(FaultKind::Trap)));
        assert_eq!(slot.observe(0, 1, &Table::new(1)), Some(Ok(())));
    }
}

#[test]
fn what_does_not_want_to_hear_is_not_told() {
    struct Deaf;
    impl Policy for Deaf {
        fn observe(&mut self, _: &Table) -> Result<(), PolicyFault> {
            failed(Some(FaultKind::Trap))
        }
    }
    impl SchedulePolicy for Deaf {
        fn plan_step(&mut self, _: &Budget, _: &Table, _: &Table) -> Result<Plan, PolicyFault> {
            Ok(Plan::default())
        }
    }
    let slot = ScheduleSlot::new(Box::new(Deaf), PolicyInfo::native("deaf"), BREAKER);
    assert_eq!((slot.hears(), slot.observe(0, 1, &Table::new(1)), slot.status().feedback.calls), (None, None, 0));
}
