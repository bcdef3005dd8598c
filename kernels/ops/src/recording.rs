//! What a queue has collected since its last submission, with what was collected before a recording began set aside meanwhile. The
//! same for every queue that keeps its operations in a list; knows no operation.

use std::sync::Arc;

use crate::Program;

/// See the module. `T` is what a queue collects, and what its programs hold.
#[derive(Debug, Default)]
pub struct RecordingList<T> {
    collected: T,
    /// What had been collected when the recording began.
    before: Option<T>,
}

impl<T: Default + Send + Sync + 'static> RecordingList<T> {
    /// What was collected since the last [`Self::take`], or since the beginning of a recording.
    pub fn collected(&self) -> &T {
        &self.collected
    }

    pub fn collected_mut(&mut self) -> &mut T {
        &mut self.collected
    }

    /// Everything for a submission; the list is empty afterwards.
    pub fn take(&mut self) -> T {
        std::mem::take(&mut self.collected)
    }

    /// As [`crate::Queue::begin_recording`] has it. Begun twice, it begins anew.
    pub fn begin(&mut self) {
        let before = self.take();
        self.before.get_or_insert(before);
    }

    /// As [`crate::Queue::end_recording`] has it; an empty program where none was begun, and nothing collected is lost then.
    pub fn end(&mut self) -> Program {
        let recorded = match self.before.take() {
            Some(before) => std::mem::replace(&mut self.collected, before),
            None => T::default(),
        };
        Program::new(Arc::new(recorded))
    }

    /// What a program holds. `None`: another kind of queue recorded it.
    pub fn of(program: &Program) -> Option<&T> {
        program.operations().downcast_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type List = RecordingList<Vec<u32>>;

    #[test]
    fn what_was_collected_before_a_recording_is_there_behind_it() {
        let mut list = List::default();
        list.collected_mut().push(1);
        list.begin();
        list.collected_mut().extend([2, 3]);
        let program = list.end();
        assert_eq!((List::of(&program), list.collected()), (Some(&vec![2, 3]), &vec![1]));
        assert_eq!((list.take(), list.take()), (vec![1], vec![]));
    }

    #[test]
    fn a_recording_that_was_not_begun_is_empty_and_one_begun_twice_begins_anew() {
        let mut list = List::default();
        list.collected_mut().push(1);
        assert_eq!(List::of(&list.end()), Some(&vec![]));
        list.begin();
        list.collected_mut().push(2);
        list.begin();
        list.collected_mut().push(3);
        let program = list.end();
        assert_eq!((List::of(&program), list.collected()), (Some(&vec![3]), &vec![1]));
        assert_eq!(RecordingList::<Vec<u8>>::of(&program), None);
    }
}
