//! How well a lane predicts a text. Knows no other lane.

use millrace_core::Stage;

use super::lane::{EvalLane, visit_lanes};
use super::log_sum_exp;
use super::session::refuse;
use super::windows::{Place, Protocol};
use crate::ModelError;

/// What a number of tokens cost in nat: the sum of `-ln p(token | those before it)`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Score {
    pub tokens: usize,
    pub nats: f64,
}

impl Score {
    /// `exp(nats / tokens)`; 1 of no tokens.
    pub fn perplexity(&self) -> f64 {
        self.nats_per_token().exp()
    }

    pub fn bits_per_token(&self) -> f64 {
        self.nats_per_token() / std::f64::consts::LN_2
    }

    fn nats_per_token(&self) -> f64 {
        self.nats / self.tokens.max(1) as f64
    }

    pub(super) fn add(&mut self, nats: f64) {
        self.tokens += 1;
        self.nats += nats;
    }
}

/// A text's score, and the parts of it that each stage gave.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Perplexity {
    pub all: Score,
    pub prefill: Score,
    pub decode: Score,
}

impl Perplexity {
    fn add(&mut self, stage: Stage, nats: f64) {
        self.all.add(nats);
        match stage {
            Stage::Prefill => self.prefill.add(nats),
            Stage::Decode => self.decode.add(nats),
        }
    }
}

/// Scores `ids` in `lane`; `progress` is told the number of tokens scored so far.
///
/// # Errors
/// As for [`visit_lanes`], and [`ModelError::Evaluation`] where a logit is not finite.
pub fn perplexity(
    lane: EvalLane<'_>,
    ids: &[u32],
    protocol: &Protocol,
    progress: &mut dyn FnMut(usize),
) -> Result<Perplexity, ModelError> {
    let mut result = Perplexity::default();
    visit_lanes(&[lane], ids, protocol, &mut |place, rows| {
        let row = rows.first().copied().unwrap_or_default();
        let nats = surprise(row, ids, place)?;
        result.add(place.stage, nats);
        progress(result.all.tokens);
        Ok(())
    })?;
    Ok(result)
}

/// `-ln p` of the token that a row of logits was to predict.
pub(super) fn surprise(row: &[f32], ids: &[u32], place: Place) -> Result<f64, ModelError> {
    check_finite(row, place)?;
    let logit = ids.get(place.token).and_then(|&id| row.get(id as usize)).copied().unwrap_or(f32::NEG_INFINITY);
    Ok(log_sum_exp(row) - f64::from(logit))
}

/// # Errors
/// [`ModelError::Evaluation`] where a logit is NaN or infinite: no statistic of such a row means anything.
pub(super) fn check_finite(row: &[f32], place: Place) -> Result<(), ModelError> {
    match row.iter().position(|logit| !logit.is_finite()) {
        None => Ok(()),
        Some(id) => refuse(&format!(
            "{} gave a logit that is not finite for token id {id}, predicting token {} of the text; the checkpoint or this \
             precision of it is broken, try reference compute and another recipe",
            place.stage, place.token
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perplexity_is_that_of_a_fair_choice() {
        let score = Score { tokens: 3, nats: 3.0 * 8f64.ln() };
        assert!((score.perplexity() - 8.0).abs() < 1e-12);
        assert!((score.bits_per_token() - 3.0).abs() < 1e-12);
        assert_eq!(Score::default().perplexity(), 1.0);
    }

    #[test]
    fn a_surprise_is_minus_the_log_of_the_softmax() {
        let place = Place { token: 1, stage: Stage::Decode };
        // softmax([ln 1, ln 3]) = [1/4, 3/4].
        let row = [0.0, 3f32.ln()];
        assert!((surprise(&row, &[0, 0], place).unwrap() - 4f64.ln()).abs() < 1e-7);
        assert!((surprise(&row, &[0, 1], place).unwrap() - (4f64 / 3.0).ln()).abs() < 1e-7);
        let error = surprise(&[0.0, f32::NAN], &[0, 0], place).unwrap_err().to_string();
        assert!(error.contains("decode") && error.contains("token 1"), "{error}");
    }
}
