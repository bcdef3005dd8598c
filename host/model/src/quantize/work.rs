//! Runs a plan: workers take pieces of tensors in order, read, convert and write each at its place, so that memory is bounded
//! by the number of workers and the result does not depend on it. Knows no directory and no config.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use super::QuantizeError;
use super::layout::Layout;
use super::plan::{Action, BLOCK, Plan};
use super::report::{Losses, Sums};
use super::source::Source;
use super::worker::Worker;

/// Bytes that are copied at a time; a multiple of every element's size.
pub(super) const COPY_BYTES: u64 = 4 << 20;

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

/// Does the whole plan with `threads` workers and gives what each quantized tensor lost.
///
/// # Errors
/// The first of those that happened, by the place of its tensor; nothing more is started after one.
pub(super) fn run(job: &Job<'_>, threads: usize, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Losses, QuantizeError> {
    let pieces = Pieces::new(job);
    let stop = AtomicBool::new(false);
    let mut losses = Losses::new(job.plan.steps.len());
    let mut failed: Option<(Piece, QuantizeError)> = None;
    let total_bytes = job.plan.steps.iter().map(|step| job.source.tensors.get(step.tensor).map_or(0, |t| t.bytes)).sum();
    let mut done_bytes = 0u64;
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel::<Message>(threads.saturating_mul(4));
        for _ in 0..threads {
            let (sender, pieces, stop) = (sender.clone(), &pieces, &stop);
            scope.spawn(move || work(job, pieces, stop, &sender));
        }
        drop(sender);
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
    });
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
