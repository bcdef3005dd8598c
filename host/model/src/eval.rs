//! Runs token ids through models and hands back numbers: logits, greedy continuations, log-probabilities, perplexities, and how
//! far two precisions are apart. For evaluation and tests; it owns small page pools of its own and reads device memory, which
//! serving never does. Knows no tokenizer.

mod compare;
mod hand_over;
mod lane;
mod perplexity;
mod session;
mod windows;

use millrace_core::KvFormat;
use millrace_ops::Backend;

use crate::{Architecture, Logits, ModelError};
pub use compare::{Choice, Comparison, Divergence, WORST_TOKENS, WorstToken, compare};
pub use lane::{EvalLane, EvalStage, PlaceVisitor, visit_lanes};
pub use perplexity::{Perplexity, Score, perplexity};
use session::{Session, SessionShape};
pub use windows::{Place, Protocol};

/// How to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvalOptions {
    pub kv: KvFormat,
    /// Tokens of a page, a multiple of 16.
    pub page_tokens: usize,
    /// Rows of one step, at least 1.
    pub chunk: usize,
}

impl Default for EvalOptions {
    fn default() -> Self {
        Self { kv: KvFormat::F32, page_tokens: 32, chunk: 128 }
    }
}

impl EvalOptions {
    /// One sequence of at most `tokens` tokens.
    fn session<'a>(self, model: &'a dyn Architecture, backend: &dyn Backend, tokens: usize) -> Result<Session<'a>, ModelError> {
        let Self { kv, page_tokens, chunk } = self;
        Session::new(model, backend, SessionShape { kv, page_tokens, sequences: 1, tokens, rows: chunk.min(tokens.max(1)) })
    }
}

/// Logits of every position, `[ids.len(), vocab]`.
///
/// # Errors
/// [`ModelError`] where ids are empty, too many or unknown, or the backend fails.
pub fn logits(
    model: &dyn Architecture,
    backend: &dyn Backend,
    ids: &[u32],
    options: EvalOptions,
) -> Result<Vec<f32>, ModelError> {
    let mut out = Vec::new();
    visit_logits(model, backend, ids, options, &mut |_, row| out.extend_from_slice(row))?;
    Ok(out)
}

/// The `count` most likely tokens after `ids`, each given those before it; ties go to the lowest id. Does not stop at
/// end-of-sequence tokens.
///
/// # Errors
/// As for [`logits`].
pub fn greedy(
    model: &dyn Architecture,
    backend: &dyn Backend,
    ids: &[u32],
    count: usize,
    options: EvalOptions,
) -> Result<Vec<u32>, ModelError> {
    let total = ids.len().saturating_add(count.saturating_sub(1));
    let mut session = options.session(model, backend, total)?;
    let mut last = Vec::new();
    let mut chunks = ids.chunks(options.chunk).peekable();
    while let Some(chunk) = chunks.next() {
        let wanted = if chunks.peek().is_some() { Logits::None } else { Logits::Last { count: 1 } };
        last = finite(session.step(&[chunk], wanted)?)?;
    }
    let mut out = Vec::new();
    while out.len() < count {
        let next = argmax(&last);
        out.push(next);
        if out.len() < count {
            last = finite(session.step(&[&[next]], Logits::Last { count: 1 })?)?;
        }
    }
    Ok(out)
}

/// Natural log-probability of each id given those before it: `ids.len() - 1` numbers. Their negated mean is the log of the
/// perplexity.
///
/// # Errors
/// As for [`logits`].
pub fn token_log_probabilities(
    model: &dyn Architecture,
    backend: &dyn Backend,
    ids: &[u32],
    options: EvalOptions,
) -> Result<Vec<f32>, ModelError> {
    let mut out = Vec::new();
    visit_logits(model, backend, ids, options, &mut |position, row| {
        if let Some(target) = ids.get(position + 1).and_then(|&id| row.get(id as usize)) {
            out.push((f64::from(*target) - log_sum_exp(row)) as f32);
        }
    })?;
    Ok(out)
}

/// Calls `visit` with each position and its logits, in order, holding those of one chunk at a time.
///
/// # Errors
/// As for [`logits`].
pub fn visit_logits(
    model: &dyn Architecture,
    backend: &dyn Backend,
    ids: &[u32],
    options: EvalOptions,
    visit: &mut dyn FnMut(usize, &[f32]),
) -> Result<(), ModelError> {
    let mut session = options.session(model, backend, ids.len())?;
    let mut position = 0;
    for chunk in ids.chunks(options.chunk) {
        let logits = finite(session.step(&[chunk], Logits::All)?)?;
        for row in logits.chunks_exact(model.vocab()) {
            visit(position, row);
            position += 1;
        }
    }
    Ok(())
}

/// Refuses logits that are not numbers: nothing that is computed from them means anything.
fn finite(logits: Vec<f32>) -> Result<Vec<f32>, ModelError> {
    match logits.iter().find(|logit| !logit.is_finite()) {
        None => Ok(logits),
        Some(logit) => {
            let why = format!("the model gave {logit} for a logit; its weights are damaged, or this precision cannot hold them");
            Err(ModelError::Evaluation { why })
        }
    }
}

/// Index of the largest logit, the lowest of equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &logit) in (0u32..).zip(logits) {
        if logit > best.1 {
            best = (id, logit);
        }
    }
    best.0
}

/// `ln(sum(exp(logits)))`, in f64.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + logits.iter().map(|&l| (f64::from(l) - largest).exp()).sum::<f64>().ln()
}
