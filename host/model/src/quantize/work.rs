//! Runs a plan: workers take pieces of tensors in order, read, convert and write each at its place, so that memory is bounded
//! by the number of workers and the result does not depend on it. Knows no directory and no config.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, Scope};

use super::QuantizeError;
use super::layout::Layout;
use super::plan::{Action, BLOCK, Plan};
use super::report::{Losses, Sums};
use super::source::Source;
use super::worker::Worker;

/// Bytes that are copied at a time; a multiple of every element's size.
pub(super) const COPY_BYTES: u64 = 4 << 20;

/// What Rust gives a thread by default; pieces lie on the heap.
const STACK_BYTES: usize = 2 << 20;

/// What workers share.
pub(super) struct Job<'a> {
    pub(super) source: &'a Source,
    pub(super) plan: &'a Plan,
    pub(super) layout: &'a Layout,
    /// Of the shards.
    pub(super) paths: &'a [std::path::PathBuf],
}

/// A part of a step: number of the step, number of the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece {
    pub(super) step: usize,
    pub(super) part: usize,
}

/// How far a run is.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Bytes of source tensors that are done, of all.
    pub done_bytes: u64,
    pub total_bytes: u64,
    /// The tensor that was worked on last.
    pub tensor: &'a str,
}

type Message = Result<(Piece, Sums, u64), (Piece, QuantizeError)>;

/// How many workers there are to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Workers {
    count: usize,
    stack_bytes: usize,
}

impl Workers {
    pub(super) fn new(count: usize) -> Self {
        Self { count, stack_bytes: STACK_BYTES }
    }

    /// Starts them, or as many as the system gives: fewer do the same, later.
    ///
    /// # Errors
    /// [`QuantizeError::Threads`] where there is none.
    fn start<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        body: impl Fn() + Clone + Send + 'scope,
    ) -> Result<(), QuantizeError> {
        for started in 0..self.count {
            let thread = Builder::new().name("quantize".to_owned()).stack_size(self.stack_bytes);
            match thread.spawn_scoped(scope, body.clone()) {
                Ok(_) => {}
                Err(error) if started == 0 => return Err(QuantizeError::Threads { why: error.to_string() }),
                Err(_) => break,
            }
        }
        Ok(())
    }
}

/// Does the whole plan and gives what each quantized tensor lost.
///
/// # Errors
/// The first of those that happened, by the place of its tensor; nothing more is started after one.
pub(super) fn run(job: &Job<'_>, workers: Workers, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Losses, QuantizeError> {
    let pieces = Pieces::new(job);
    let stop = AtomicBool::new(false);
    let mut losses = Losses::new(job.plan.steps.len());
    let mut failed: Option<(Piece, QuantizeError)> = None;
    let total_bytes = job.plan.steps.iter().map(|step| job.source.tensors.get(step.tensor).map_or(0, |t| t.bytes)).sum();
    let mut done_bytes = 0u64;
    let (known, stopped) = (&pieces, &stop);
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel::<Message>(workers.count.saturating_mul(4));
        workers.start(scope, move || work(job, known, stopped, &sender))?;
        for message in receiver {
            match message {
                Ok((piece, sums, bytes)) => {
                    losses.add(piece.step, piece.part, pieces.parts_of(piece.step), sums);
                    done_bytes = done_bytes.saturating_add(bytes);
                    let tensor = job.plan.steps.get(piece.step).and_then(|step| job.source.tensors.get(step.tensor));
                    progress(Progress { done_bytes, total_bytes, tensor: tensor.map_or("", |tensor| &tensor.name) });
                }
                Err((piece, error)) => {
                    stop.store(true, Ordering::Relaxed);
                    if failed.as_ref().is_none_or(|(first, _)| piece < *first) {
                        failed = Some((piece, error));
                    }
                }
            }
        }
        Ok::<(), QuantizeError>(())
    })?;
    match failed {
        Some((_, error)) => Err(error),
        None => Ok(losses),
    }
}

fn work(job: &Job<'_>, pieces: &Pieces<'_>, stop: &AtomicBool, sender: &SyncSender<Message>) {
    let mut worker = Worker::new(job);
    while !stop.load(Ordering::Relaxed)
        && let Some(piece) = pieces.next()
    {
        let message = worker.run(piece).map(|(sums, bytes)| (piece, sums, bytes)).map_err(|error| (piece, error));
        // The receiver outlives every worker; were it gone, nobody would want the rest.
        if sender.send(message).is_err() {
            return;
        }
    }
}

/// The pieces of all steps, handed out in order.
struct Pieces<'a> {
    job: &'a Job<'a>,
    next: Mutex<Piece>,
}

impl<'a> Pieces<'a> {
    fn new(job: &'a Job<'a>) -> Self {
        Self { job, next: Mutex::new(Piece { step: 0, part: 0 }) }
    }

    /// Rows of a matrix in blocks, other bytes in runs; a tensor without bytes has none.
    fn parts_of(&self, step: usize) -> usize {
        let step = self.job.plan.steps.get(step);
        let tensor = step.and_then(|step| Some((step.action, self.job.source.tensors.get(step.tensor)?)));
        let Some((action, tensor)) = tensor else { return 0 };
        match action {
            Action::Copy => usize::try_from(tensor.bytes.div_ceil(COPY_BYTES)).unwrap_or(usize::MAX),
            Action::Fp8 | Action::Int4 { .. } => tensor.matrix().map_or(0, |(rows, _)| rows.div_ceil(BLOCK)),
        }
    }

    fn next(&self) -> Option<Piece> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        while next.part >= self.parts_of(next.step) {
            if next.step >= self.job.plan.steps.len() {
                return None;
            }
            *next = Piece { step: next.step.saturating_add(1), part: 0 };
        }
        let piece = *next;
        next.part = next.part.saturating_add(1);
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{QuantizeOptions, QuantizedFormat};
    use super::*;

    /// A stack that no address space holds: the system refuses the thread, as it does where threads or memory are used up.
    #[test]
    fn no_worker_is_an_error() {
        let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/llama-bf16");
        let format = QuantizedFormat::Fp8Block;
        let options = QuantizeOptions { format, preset: None, keep: Vec::new(), shard_bytes: 1 << 30, threads: 2, report: None };
        let source = Source::open(&fixture).unwrap();
        let plan = Plan::new(&source, &options).unwrap();
        let layout = Layout::new(&plan, options.shard_bytes).unwrap();
        let job = Job { source: &source, plan: &plan, layout: &layout, paths: &[] };
        let workers = Workers { count: 2, stack_bytes: 1 << 47 };
        let error = run(&job, workers, &mut |_| panic!("nothing is done")).err().unwrap();
        assert!(matches!(error, QuantizeError::Threads { .. }), "{error}");
        assert!(error.to_string().starts_with("no thread can be started to work with: "), "{error}");
    }
}
