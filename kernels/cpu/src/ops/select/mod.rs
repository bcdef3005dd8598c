//! SelectTokens: the positions with the highest index scores of each row. This file checks arguments and knows the rows that need
//! no scores; `plain` (reference) and `blocked` (vectors) have the scores, `top` the choice. Knows no model.
//!
//! Rows that see no more tokens than they may choose get all of them, and no key is read. So do rows of flagged sequences, up to
//! the limit: their lines stay valid though nobody reads them.

mod blocked;
mod plain;
mod top;

use millrace_ops::{BackendError, PlaneKind, SelectTokens};

use self::blocked::BlockedSelect;
use self::plain::PlainSelect;
use crate::memory::Region;
use crate::ops::selection::Lines;
use crate::ops::step::{Cache, Step};
use crate::pool::Compute;
use crate::task::{Arguments, Task, product};

/// A selection with its arguments checked.
struct Checked {
    arguments: Arguments,
    cache: Cache,
    step: Step,
    plane: usize,
    layer: usize,
    queries: Region,
    head_weights: Region,
    heads: usize,
    lines: Lines,
    rows: usize,
}

/// A row and where it stands.
#[derive(Clone, Copy)]
struct Row {
    sequence: usize,
    row: usize,
    position: usize,
}

impl Checked {
    fn new(arguments: Arguments, op: SelectTokens) -> Result<Self, BackendError> {
        let SelectTokens { cache, step, plane, layer, queries, head_weights, heads, selection, rows, sequences } = op;
        let cache = Cache::new(arguments, cache)?;
        let layout = cache.plane(arguments, plane, layer)?;
        arguments.require(layout.kind == PlaneKind::IndexKeys && layout.heads == 1, || {
            format!("plane {plane} must be index keys of one head, and is {:?} of {}", layout.kind, layout.heads)
        })?;
        arguments.require(heads > 0, || "no heads".into())?;
        let queries = arguments.region("queries", queries, product(&[rows, heads, layout.width, 4]))?;
        let head_weights = arguments.region("head_weights", head_weights, product(&[rows, heads, 4]))?;
        let lines = Lines::new(arguments, selection, rows)?;
        for input in [&queries, &head_weights, &cache.pages] {
            arguments.distinct(input, &lines.tokens)?;
        }
        let step = Step::new(arguments, &step, sequences)?;
        Ok(Self { arguments, cache, step, plane, layer, queries, head_weights, heads, lines, rows })
    }

    fn width(&self) -> usize {
        self.cache.layout.planes[self.plane].width
    }

    /// Checks the step's inputs.
    fn check(&self) -> Result<(), BackendError> {
        let Self { arguments, cache, step, rows, .. } = self;
        step.check(*arguments, *rows, cache.layout.page_tokens)?;
        let last = |segment: &millrace_ops::Segment| u64::from(segment.start) + u64::from(segment.rows);
        let fits = step.segments().iter().all(|segment| last(segment) <= u64::from(u32::MAX));
        arguments.require(fits, || "positions do not fit into 32 bits".into())
    }

    fn row(&self, sequence: usize, index: usize) -> Row {
        let segment = self.step.segments()[sequence];
        Row { sequence, row: segment.first_row as usize + index, position: segment.start as usize + index }
    }

    /// Whether a choice is to be made for a row.
    fn is_scored(&self, row: Row) -> bool {
        self.lines.count(row.position) <= row.position && !self.step.flagged(row.sequence)
    }

    /// The same; and if none is to be made, writes the row's line.
    ///
    /// # Safety
    /// The row belongs to this worker.
    unsafe fn needs_scores(&self, row: Row) -> bool {
        if self.is_scored(row) {
            return true;
        }
        // SAFETY: this function's condition.
        let line = unsafe { self.lines.line_mut(row.row, row.position) };
        for (token, position) in line.iter_mut().zip(0..) {
            *token = position;
        }
        false
    }

    /// `[heads, width]`
    ///
    /// # Safety
    /// Nobody writes the queries while the slice lives.
    unsafe fn queries(&self, row: usize) -> &[f32] {
        let floats = self.heads * self.width();
        // SAFETY: this function's condition.
        unsafe { self.queries.items(row * floats, floats) }
    }

    /// `[heads]`
    ///
    /// # Safety
    /// Nobody writes the weights while the slice lives.
    unsafe fn head_weights(&self, row: usize) -> &[f32] {
        // SAFETY: this function's condition.
        unsafe { self.head_weights.items(row * self.heads, self.heads) }
    }
}

/// Checks a selection and picks its form.
pub(crate) fn lower(arguments: Arguments, op: SelectTokens, compute: Compute) -> Result<Box<dyn Task>, BackendError> {
    let checked = Checked::new(arguments, op)?;
    Ok(match compute.lanes() {
        None => Box::new(PlainSelect::new(checked)),
        Some(_) => Box::new(BlockedSelect::new(checked)),
    })
}
