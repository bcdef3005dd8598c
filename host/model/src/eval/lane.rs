//! Runs a text through one lane or several in lockstep: prefill, hand-off and decode as a deployment has them, each stage with
//! its own model and KV format. Knows windows and steps, not what is made of the logits.

use millrace_core::KvFormat;
use millrace_ops::Backend;

use super::hand_over::HandOver;
use super::session::{Session, SessionShape, refuse};
use super::windows::{Place, Protocol, Step, Window, steps};
use crate::{Architecture, Logits, ModelError};

/// One stage: a loaded model, of its own recipe and maybe its own checkpoint, and the format of its pages.
#[derive(Clone, Copy)]
pub struct EvalStage<'a> {
    pub model: &'a dyn Architecture,
    pub kv: KvFormat,
}

/// A prefill stage and a decode stage on one device.
#[derive(Clone, Copy)]
pub struct EvalLane<'a> {
    /// That both models were loaded on.
    pub backend: &'a dyn Backend,
    pub prefill: EvalStage<'a>,
    /// Of the same model; unused where the protocol decodes nothing.
    pub decode: EvalStage<'a>,
}

/// Receives each scored place with its row of logits in every lane.
pub type PlaceVisitor<'v> = dyn FnMut(Place, &[&[f32]]) -> Result<(), ModelError> + 'v;

/// Calls `visit` for every place that `protocol` scores in `ids`, with the logits `[vocab]` of each lane, in the lanes' order.
/// Holds the logits of one step per lane: `max(chunk, batch) * vocab` floats.
///
/// # Errors
/// [`ModelError`] where sizes, ids or the pair of KV formats cannot be run, a backend fails, or `visit` says so.
pub fn visit_lanes(
    lanes: &[EvalLane<'_>],
    ids: &[u32],
    protocol: &Protocol,
    visit: &mut PlaceVisitor<'_>,
) -> Result<(), ModelError> {
    let vocab = check(lanes, ids, protocol)?;
    let mut windows: Vec<Window> = protocol.windows(ids.len()).collect();
    let mut runs = lanes.iter().map(|lane| LaneRun::new(lane, &windows, protocol)).collect::<Result<Vec<_>, _>>()?;
    for batch in windows.chunks_mut(protocol.batch) {
        for step in steps(batch, protocol.chunk) {
            let places = places(&step, batch);
            let wanted = places.iter().any(Option::is_some);
            let logits =
                runs.iter_mut().map(|run| run.step(&step, batch, (ids, wanted))).collect::<Result<Vec<_>, ModelError>>()?;
            let scored = places.iter().enumerate().filter_map(|(row, place)| place.map(|place| (row, place)));
            for (row, place) in scored {
                let rows: Vec<&[f32]> = logits.iter().filter_map(|logits| logits.chunks_exact(vocab).nth(row)).collect();
                visit(place, &rows)?;
            }
        }
    }
    Ok(())
}

/// The vocabulary that all models share.
fn check(lanes: &[EvalLane<'_>], ids: &[u32], protocol: &Protocol) -> Result<usize, ModelError> {
    if let Some(problem) = protocol.problem() {
        return refuse(&problem);
    }
    if protocol.scored_tokens(ids.len()) == 0 {
        return refuse(&format!("{} token ids; nothing follows from fewer than 2", ids.len()));
    }
    let models: Vec<_> = lanes.iter().flat_map(|lane| [lane.prefill.model, lane.decode.model]).collect();
    let vocab = models.first().map_or(0, |model| model.vocab());
    if let Some(other) = models.iter().find(|model| model.vocab() != vocab) {
        let other = other.vocab();
        return refuse(&format!("vocabularies of {vocab} and {other} tokens; only checkpoints of one model can be compared"));
    }
    match ids.iter().chain(&protocol.lead).find(|&&id| id as usize >= vocab) {
        Some(&id) => Err(ModelError::UnknownToken { id, vocab }),
        None => Ok(vocab),
    }
}

/// What each row of a step's logits predicts.
fn places(step: &Step, batch: &[Window]) -> Vec<Option<Place>> {
    match step {
        Step::Prefill { window, rows } => {
            let window = batch.get(*window);
            rows.clone().map(|row| window.and_then(|window| window.scored(row))).collect()
        }
        Step::HandOver { .. } => Vec::new(),
        Step::Decode { windows, round } => {
            batch.iter().take(*windows).map(|window| window.scored(window.prefill_rows() + round)).collect()
        }
    }
}

/// A lane's pools, one window in prefill and a batch in decode.
struct LaneRun<'a> {
    prefill: Session<'a>,
    decode: Option<(Session<'a>, HandOver)>,
}

impl<'a> LaneRun<'a> {
    fn new(lane: &EvalLane<'a>, windows: &[Window], protocol: &Protocol) -> Result<Self, ModelError> {
        let longest = |rows: fn(&Window) -> usize| windows.iter().map(rows).max().unwrap_or(0);
        let (page_tokens, tokens) = (protocol.page_tokens, longest(Window::prefill_rows));
        let rows = protocol.chunk.min(tokens);
        let shape = SessionShape { kv: lane.prefill.kv, page_tokens, sequences: 1, tokens, rows };
        let prefill = Session::new(lane.prefill.model, lane.backend, shape)?;
        let decode = match longest(Window::decode_rows) {
            0 => None,
            _ => {
                let (sequences, tokens) = (protocol.batch.min(windows.len()), longest(Window::rows));
                let shape = SessionShape { kv: lane.decode.kv, page_tokens, sequences, tokens, rows: sequences };
                let session = Session::new(lane.decode.model, lane.backend, shape)?;
                let hand_over = HandOver::new(&prefill, &session, lane.backend)?;
                Some((session, hand_over))
            }
        };
        Ok(Self { prefill, decode })
    }

    /// The logits of a step's rows; none where none are wanted.
    fn step(&mut self, step: &Step, batch: &[Window], (text, wanted): (&[u32], bool)) -> Result<Vec<f32>, ModelError> {
        match step {
            Step::Prefill { window, rows } => {
                let Some(window) = batch.get(*window) else { return Ok(Vec::new()) };
                if rows.start == 0 {
                    self.prefill.begin(0);
                }
                let logits = if wanted { Logits::All } else { Logits::None };
                self.prefill.step(&[&window.ids(text, rows.clone())], logits)
            }
            Step::HandOver { window: index } => {
                let (Some((decode, hand_over)), Some(window)) = (&mut self.decode, batch.get(*index)) else {
                    return Ok(Vec::new());
                };
                decode.begin(*index);
                hand_over.carry((&mut self.prefill, 0), (decode, *index), window.prefill_rows())?;
                Ok(Vec::new())
            }
            Step::Decode { windows, round } => {
                let Some((decode, _)) = &mut self.decode else { return Ok(Vec::new()) };
                let ids: Vec<Vec<u32>> = batch
                    .iter()
                    .take(*windows)
                    .map(|window| window.ids(text, window.prefill_rows() + round..window.prefill_rows() + round + 1))
                    .collect();
                let ids: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
                decode.step(&ids, Logits::Last { count: ids.len() })
            }
        }
    }
}
