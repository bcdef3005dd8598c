//! A device whose queues run when the simulator says so, a submission at a time or a part of one, with anything happening in between.
//! In front of either machine. Knows no scheduler, no sequence but by its rows, and no right answer.
//!
//! ```text
//!   driver --enqueue, submit--> held submissions --run_next(with what happens where)--> machine: fake engine | CPU backend
//!   driver <--completed, records--------------------------------------------------------+
//! ```

pub(crate) mod cpu;
pub(crate) mod entry;
pub(crate) mod fake;
pub(crate) mod fake_memory;
pub(crate) mod machine;
mod queue;
pub(crate) mod submission;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_ops::{
    Activations, Backend, BackendError, Buffer, CheckPoint, DeviceDescription, KvCache, Op, Priority, Queue, TensorView, Ticket,
    Upload, Wake, Weight, WeightFormat,
};

use machine::{Alien, Machine, Reader};
use queue::HeldQueue;
use submission::{Kind, Named, Point, Submission};

/// Tags of intruders: higher than any that a pool gives out in a simulation, so that a page's tags rise.
const INTRUDER_TAGS: u64 = 1 << 46;

/// Which of the two ends of a step the device leaves out, to show what is seen then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ChecksLeftOut {
    pub(crate) head: bool,
    pub(crate) tail: bool,
}

/// Something that happens within a submission.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Happening {
    pub(crate) point: Point,
    /// Does not happen to a page that carries another tag by then.
    pub(crate) to: Named,
    pub(crate) what: Alien,
}

/// Somebody who was given a page and has written into it.
#[derive(Debug, Clone)]
struct Intruder {
    queue: usize,
    cache: Option<KvCache>,
    page: u32,
    tag: u64,
    /// The pool handed the page out; its new tag is on its way to the device.
    announced: bool,
}

/// What running a submission came to.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    /// Pages that it named and that were another's at one end of it or the other.
    pub(crate) lost: Vec<u32>,
    /// What was to happen in it happened.
    pub(crate) happened: bool,
}

struct QueueState {
    held: VecDeque<(Ticket, Submission)>,
    machine: Box<dyn Machine>,
    submitted: Ticket,
    completed: Ticket,
    failure: Option<BackendError>,
    wake: Wake,
    /// The last step, which may be run again late.
    last_step: Option<Vec<Op>>,
    /// The pages that its operations are about, once there was one.
    cache: Option<KvCache>,
}

#[derive(Default)]
struct State {
    queues: Vec<QueueState>,
    intruders: Vec<Intruder>,
    intruder_tags: u64,
    left_out: ChecksLeftOut,
    violations: Vec<String>,
    /// The place of the next queue that is made, where it takes another's.
    place: Option<usize>,
}

type MakeMachine = dyn Fn(Priority) -> Box<dyn Machine> + Send + Sync;

/// A backend for one engine; its queues are numbered in the order in which they are made: by the engine's pools.
pub(crate) struct SimBackend {
    memory: Arc<dyn Backend>,
    make: Box<MakeMachine>,
    device: Device,
}

impl SimBackend {
    /// `memory` gives buffers and weights, `make` what runs the operations of a queue.
    pub(crate) fn new(memory: Arc<dyn Backend>, make: Box<MakeMachine>, left_out: ChecksLeftOut) -> Self {
        let device = Device(Arc::new(Mutex::new(State { left_out, ..State::default() })));
        Self { memory, make, device }
    }

    pub(crate) fn device(&self) -> Device {
        self.device.clone()
    }
}

impl Backend for SimBackend {
    fn describe(&self) -> DeviceDescription {
        self.memory.describe()
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, BackendError> {
        self.memory.allocate(bytes)
    }

    fn prepare_weight(
        &self,
        parts: &[TensorView<'_>],
        format: WeightFormat,
        activations: Activations,
    ) -> Result<Weight, BackendError> {
        self.memory.prepare_weight(parts, format, activations)
    }

    fn queue(&self, priority: Priority, wake: Wake) -> Box<dyn Queue> {
        let mut state = self.device.lock();
        let queue = QueueState {
            held: VecDeque::new(),
            machine: (self.make)(priority),
            submitted: 0,
            completed: 0,
            failure: None,
            wake,
            last_step: None,
            cache: None,
        };
        let index = match state.place.take() {
            Some(index) => {
                state.queues[index] = queue;
                state.intruders.retain(|intruder| intruder.queue != index);
                index
            }
            None => {
                state.queues.push(queue);
                state.queues.len() - 1
            }
        };
        Box::new(HeldQueue::new(self.device.clone(), index))
    }
}

/// The simulator's side of a [`SimBackend`].
#[derive(Clone)]
pub(crate) struct Device(Arc<Mutex<State>>);

impl Device {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues that have a submission to run.
    pub(crate) fn ready(&self) -> Vec<usize> {
        let state = self.lock();
        (0..state.queues.len()).filter(|&queue| !state.queues[queue].held.is_empty()).collect()
    }

    /// Looks at the submission that runs next, with its number.
    pub(crate) fn look<T>(&self, queue: usize, look: impl FnOnce(Ticket, &Submission) -> T) -> Option<T> {
        let state = self.lock();
        let (ticket, next) = state.queues.get(queue)?.held.front()?;
        Some(look(*ticket, next))
    }

    /// Pages that submissions of a queue name which have not run.
    pub(crate) fn named(&self, queue: usize) -> Vec<Named> {
        let state = self.lock();
        state.queues.get(queue).map(|queue| queue.held.iter().flat_map(|(_, next)| next.named()).collect()).unwrap_or_default()
    }

    /// Runs the next submission of a queue, whose rows are `readers`, with what happens in it, and wakes the driver.
    pub(crate) fn run_next(&self, queue: usize, readers: Vec<Reader>, happening: Option<Happening>) -> Ran {
        let mut state = self.lock();
        let Some((ticket, submission)) = state.queues[queue].held.pop_front() else { return Ran::default() };
        let ran = match state.queues[queue].failure {
            Some(_) => Ran::default(),
            None => state.run(queue, &submission, readers, happening),
        };
        let of = &mut state.queues[queue];
        of.completed = ticket;
        of.cache = submission.cache.clone().or(of.cache.take());
        if submission.kind == Kind::Step {
            of.last_step = Some(submission.ops);
        }
        let wake = of.wake.clone();
        drop(state);
        wake();
        ran
    }

    /// The queue fails with the submission that would run next.
    pub(crate) fn fail(&self, queue: usize) {
        let mut state = self.lock();
        let why = "the simulator made it fail".to_owned();
        state.queues[queue].failure.get_or_insert(BackendError::Failed { device: "simulated".into(), why });
    }

    /// The next queue that is made takes the place of this one, whose process is gone with all that it ran.
    pub(crate) fn replace(&self, queue: usize) {
        self.lock().place = Some(queue);
    }

    pub(crate) fn has_failed(&self, queue: usize) -> bool {
        self.lock().queues[queue].failure.is_some()
    }

    /// The pool handed this page out behind its owner's back; who got it writes as soon as the device knows the tag.
    pub(crate) fn expect_intruder(&self, queue: usize, page: u32, tag: u64) {
        self.lock().intruders.push(Intruder { queue, cache: None, page, tag, announced: true });
    }

    /// Writes of the last step that ran come once more, late.
    pub(crate) fn write_late(&self, queue: usize, readers: Vec<Reader>) {
        let mut state = self.lock();
        let Some(ops) = state.queues[queue].last_step.clone() else { return };
        let late: Vec<Op> = ops.into_iter().filter(|op| matches!(op, Op::Upload(_) | Op::WriteKv(_))).collect();
        let verdicts = late.iter().find_map(|op| match op {
            Op::WriteKv(write) => Some(zeros(&write.step.verdicts, write.sequences * 4)),
            _ => None,
        });
        let of = &mut state.queues[queue];
        of.machine.begin(readers);
        let ran = verdicts.map_or(Ok(()), |op| of.machine.run(&[op])).and_then(|()| of.machine.run(&late));
        if let Err(error) = ran {
            of.failure.get_or_insert(error);
        }
        state.look_after_intruders(queue);
        state.collect_violations(queue);
    }

    /// Pages of a queue's pool that hold anything but zeros. None for a queue that never touched one.
    pub(crate) fn written_pages(&self, queue: usize) -> Vec<u32> {
        let state = self.lock();
        let of = &state.queues[queue];
        let Some(cache) = &of.cache else { return Vec::new() };
        let mut bytes = vec![0; cache.layout.page_bytes()];
        let mut written = |page: &u32| {
            let read = of.machine.read(&cache.pages, *page as usize * bytes.len(), &mut bytes);
            read.is_err() || bytes.iter().any(|&byte| byte != 0)
        };
        (0..cache.page_count as u32).filter(|page| written(page)).collect()
    }

    /// What was seen that must not be.
    pub(crate) fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().violations)
    }
}

fn zeros(to: &Buffer, bytes: usize) -> Op {
    Op::Upload(Upload { to: to.clone(), offset: 0, bytes: vec![0; bytes] })
}

impl State {
    fn run(&mut self, queue: usize, submission: &Submission, readers: Vec<Reader>, happening: Option<Happening>) -> Ran {
        self.queues[queue].machine.begin(readers);
        let at = happening.map(|happening| (submission.index(happening.point), happening));
        let mut cuts = vec![submission.ops.len()];
        cuts.extend(at.map(|(index, _)| index));
        let judges = submission.kind != Kind::Tags && (!self.intruders.is_empty() || happening.is_some());
        if judges {
            cuts.extend(submission.judged_at());
        }
        if self.intruders.iter().any(|intruder| intruder.announced && intruder.queue == queue) {
            let applied = submission.ops.iter().enumerate().filter(|(_, op)| matches!(op, Op::ApplyTags(_)));
            cuts.extend(applied.map(|(index, _)| index + 1));
        }
        cuts.sort_unstable();
        cuts.dedup();
        let (mut from, mut ran) = (0, Ran::default());
        for to in cuts {
            let outcome = self.run_span(queue, &submission.ops[from..to]);
            if let Err(error) = outcome {
                self.queues[queue].failure.get_or_insert(error);
                return ran;
            }
            self.let_intruders_in(queue, submission);
            // Behind the tail check nothing is judged; in front of it, what happens there is.
            let happens = at.filter(|&(index, happening)| index == to && !behind(happening.point));
            if let (Some((_, happening)), Some(cache)) = (happens, &submission.cache) {
                ran.happened = self.let_happen(queue, cache, happening);
            }
            if judges && submission.judged_at().contains(&to) {
                self.judge(queue, submission, &mut ran);
            }
            from = to;
        }
        let happens = at.filter(|&(_, happening)| behind(happening.point));
        if let (Some((_, happening)), Some(cache)) = (happens, &submission.cache) {
            ran.happened = self.let_happen(queue, cache, happening);
        }
        self.look_after_intruders(queue);
        self.collect_violations(queue);
        ran
    }

    /// Operations as they are, but for the checks that are left out.
    fn run_span(&mut self, queue: usize, ops: &[Op]) -> Result<(), BackendError> {
        let ChecksLeftOut { head, tail } = self.left_out;
        let left_out = |op: &Op| match op {
            Op::CheckTags(check) => head && check.point == CheckPoint::Head || tail && check.point == CheckPoint::Tail,
            _ => false,
        };
        let machine = &mut self.queues[queue].machine;
        if !head && !tail || !ops.iter().any(left_out) {
            return machine.run(ops);
        }
        let kept: Vec<Op> = ops.iter().filter(|op| !left_out(op)).cloned().collect();
        machine.run(&kept)
    }

    fn judge(&self, queue: usize, submission: &Submission, ran: &mut Ran) {
        let Some(cache) = &submission.cache else { return };
        let lost = submission.named().filter(|named| self.tag(queue, cache, named.page) != Some(named.tag));
        ran.lost.extend(lost.map(|named| named.page));
    }

    fn tag(&self, queue: usize, cache: &KvCache, page: u32) -> Option<u64> {
        let mut bytes = [0; 8];
        self.queues[queue].machine.read(&cache.tags, page as usize * 8, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Whom the pool gave a page to writes into it once the device knows.
    fn let_intruders_in(&mut self, queue: usize, submission: &Submission) {
        if !self.intruders.iter().any(|intruder| intruder.announced && intruder.queue == queue) {
            return;
        }
        let applied = submission.ops.iter().find_map(|op| match op {
            Op::ApplyTags(apply) => Some(apply.cache.clone()),
            _ => None,
        });
        let Some(cache) = applied else { return };
        let mut intruders = std::mem::take(&mut self.intruders);
        for intruder in intruders.iter_mut().filter(|intruder| intruder.announced && intruder.queue == queue) {
            let carried = self.tag(queue, &cache, intruder.page).unwrap_or(u64::MAX);
            // One that gave its page back before the device knew it is not in the list any more: another tag came instead.
            intruder.announced = carried < intruder.tag;
            if carried == intruder.tag {
                intruder.cache = Some(cache.clone());
                self.put(queue, &cache, intruder.page, Alien::Intruder { tag: intruder.tag });
            }
        }
        intruders.retain(|intruder| intruder.announced || intruder.cache.is_some());
        self.intruders = intruders;
    }

    /// False where the page is another's already: what is nobody's to read can harm nobody.
    fn let_happen(&mut self, queue: usize, cache: &KvCache, happening: Happening) -> bool {
        let Happening { to: Named { page, tag }, what, .. } = happening;
        if self.tag(queue, cache, page) != Some(tag) {
            return false;
        }
        if what == Alien::NotFinite {
            self.put(queue, cache, page, what);
            return true;
        }
        self.intruder_tags += 1;
        let tag = (INTRUDER_TAGS + self.intruder_tags) | (tag & (0xffff << 48));
        let upload = Upload { to: cache.tags.clone(), offset: page as usize * 8, bytes: tag.to_le_bytes().to_vec() };
        self.interfere(queue, upload);
        self.put(queue, cache, page, Alien::Intruder { tag });
        self.intruders.push(Intruder { queue, cache: Some(cache.clone()), page, tag, announced: false });
        true
    }

    fn put(&mut self, queue: usize, cache: &KvCache, page: u32, what: Alien) {
        let bytes = self.queues[queue].machine.alien(cache, page, what);
        let upload = Upload { to: cache.pages.clone(), offset: page as usize * cache.layout.page_bytes(), bytes };
        self.interfere(queue, upload);
    }

    fn interfere(&mut self, queue: usize, upload: Upload) {
        if let Err(error) = self.queues[queue].machine.run(&[Op::Upload(upload)]) {
            self.queues[queue].failure.get_or_insert(error);
        }
    }

    /// Intruders whose page got another tag are gone; what the others wrote must be there.
    fn look_after_intruders(&mut self, queue: usize) {
        let mut intruders = std::mem::take(&mut self.intruders);
        intruders.retain(|intruder| {
            let Some(cache) = intruder.cache.as_ref().filter(|_| intruder.queue == queue) else { return true };
            if self.tag(queue, cache, intruder.page) != Some(intruder.tag) {
                return false;
            }
            let wrote = self.queues[queue].machine.alien(cache, intruder.page, Alien::Intruder { tag: intruder.tag });
            let mut bytes = vec![0; wrote.len()];
            let read = self.queues[queue].machine.read(&cache.pages, intruder.page as usize * wrote.len(), &mut bytes);
            let whole = read.is_ok() && bytes == wrote;
            if !whole {
                self.violations.push(format!("page {} was overwritten by who had lost it", intruder.page));
            }
            whole
        });
        self.intruders = intruders;
    }

    fn collect_violations(&mut self, queue: usize) {
        let seen = self.queues[queue].machine.take_violations();
        self.violations.extend(seen);
    }
}

fn behind(point: Point) -> bool {
    matches!(point, Point::BehindTail | Point::BehindExport | Point::BehindImport)
}
