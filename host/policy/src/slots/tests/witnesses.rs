//! Who sees decisions, and until when.

use super::*;

fn counting() -> (Arc<ScheduleWitness>, Arc<AtomicU32>) {
    let seen = Arc::new(AtomicU32::new(0));
    let count = seen.clone();
    let witness = move |_: &Budget, _: &Table, _: &Table, _: &Answer<Plan>| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    (Arc::new(witness), seen)
}

/// Whoever is forgotten late takes nothing from who came after.
#[test]
fn only_who_sees_decisions_can_be_forgotten() {
    let (slot, _) = slot(|_| Ok(Plan::default()));
    let ((first, seen_by_first), (second, seen_by_second)) = (counting(), counting());
    let ask = || drop(slot.plan_step(0, &BUDGET, &Table::new(0), &Table::new(0)));
    let seen = || (seen_by_first.load(Ordering::Relaxed), seen_by_second.load(Ordering::Relaxed));
    slot.witnessed_by(first.clone());
    ask();
    slot.witnessed_by(second.clone());
    ask();
    slot.forget_witness(&first);
    ask();
    assert_eq!(seen(), (1, 2));
    slot.forget_witness(&second);
    ask();
    assert_eq!(seen(), (1, 2));
}

/// What a witness keeps of a table is no copy of its columns.
#[test]
fn copies_of_tables_share_their_columns() {
    let table = Table::new(2).with(kind::AGE_US, vec![1, 2]);
    let copy = table.clone();
    assert!(Arc::ptr_eq(&table.columns[0].values, &copy.columns[0].values));
}
