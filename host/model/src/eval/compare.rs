//! How far two lanes' predictions of the same text are apart. Knows no tokenizer; tokens are ids.

use millrace_core::Stage;

use super::lane::{EvalLane, visit_lanes};
use super::perplexity::{Score, check_finite, surprise};
use super::windows::{Place, Protocol};
use super::{argmax, log_sum_exp};
use crate::ModelError;

/// Tokens that a report names.
pub const WORST_TOKENS: usize = 10;

/// Two lanes over the tokens of one stage, or of both. Divergences are `KL(a || b) = sum of p_a * ln(p_a / p_b)`, in nat.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Divergence {
    pub tokens: usize,
    pub mean: f64,
    pub median: f64,
    /// The smallest divergence that at least 99 % of the tokens do not exceed.
    pub p99: f64,
    pub max: f64,
    /// Share of the tokens for which both lanes' best choice is the same (the lowest id among equals).
    pub same_top: f64,
    pub a: Score,
    pub b: Score,
}

impl Divergence {
    /// Perplexity of b as a multiple of a's.
    pub fn perplexity_ratio(&self) -> f64 {
        self.b.perplexity() / self.a.perplexity()
    }
}

/// A token for which the lanes' predictions are far apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorstToken {
    pub place: Place,
    /// KL(a || b), nat.
    pub divergence: f64,
    /// The text's own, with its probability in a and in b.
    pub actual: Choice,
    /// The best of a.
    pub top_a: Choice,
    /// The best of b.
    pub top_b: Choice,
}

/// A token id with its probability in each lane.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    pub id: u32,
    pub a: f64,
    pub b: f64,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Comparison {
    pub all: Divergence,
    pub prefill: Divergence,
    pub decode: Divergence,
    /// At most [`WORST_TOKENS`], the worst first.
    pub worst: Vec<WorstToken>,
}

/// Runs `ids` through both lanes in lockstep; `progress` is told the number of tokens compared so far. Keeps a divergence per
/// token, and logits of one step alone.
///
/// # Errors
/// As for [`visit_lanes`], and [`ModelError::Evaluation`] where a logit is not finite.
pub fn compare(
    a: EvalLane<'_>,
    b: EvalLane<'_>,
    ids: &[u32],
    protocol: &Protocol,
    progress: &mut dyn FnMut(usize),
) -> Result<Comparison, ModelError> {
    let (mut prefill, mut decode, mut worst) = (Tally::default(), Tally::default(), Vec::new());
    visit_lanes(&[a, b], ids, protocol, &mut |place, rows| {
        let &[a, b] = rows else { return Ok(()) };
        let token = measure(place, (a, b), ids)?;
        let surprises = (surprise(a, ids, place)?, surprise(b, ids, place)?);
        match place.stage {
            Stage::Prefill => prefill.add(&token, surprises),
            Stage::Decode => decode.add(&token, surprises),
        }
        keep_worst(&mut worst, token);
        progress(prefill.divergences.len() + decode.divergences.len());
        Ok(())
    })?;
    let all = prefill.clone().and(&decode);
    Ok(Comparison { all: all.divergence(), prefill: prefill.divergence(), decode: decode.divergence(), worst })
}

/// What the tokens of one stage gave.
#[derive(Debug, Clone, Default)]
struct Tally {
    divergences: Vec<f64>,
    same_top: usize,
    a: Score,
    b: Score,
}

impl Tally {
    fn add(&mut self, token: &WorstToken, (a, b): (f64, f64)) {
        self.divergences.push(token.divergence);
        self.same_top += usize::from(token.top_a.id == token.top_b.id);
        self.a.add(a);
        self.b.add(b);
    }

    fn and(mut self, other: &Self) -> Self {
        self.divergences.extend(&other.divergences);
        self.same_top += other.same_top;
        for (sum, more) in [(&mut self.a, other.a), (&mut self.b, other.b)] {
            sum.tokens += more.tokens;
            sum.nats += more.nats;
        }
        self
    }

    fn divergence(mut self) -> Divergence {
        let tokens = self.divergences.len();
        if tokens == 0 {
            return Divergence::default();
        }
        self.divergences.sort_by(f64::total_cmp);
        // Nearest rank: the smallest value that so many per cent of all do not exceed.
        let rank = |percent: usize| {
            let rank = (tokens * percent).div_ceil(100).clamp(1, tokens);
            self.divergences.get(rank - 1).copied().unwrap_or_default()
        };
        Divergence {
            tokens,
            mean: self.divergences.iter().sum::<f64>() / tokens as f64,
            median: rank(50),
            p99: rank(99),
            max: rank(100),
            same_top: self.same_top as f64 / tokens as f64,
            a: self.a,
            b: self.b,
        }
    }
}

fn measure(place: Place, (a, b): (&[f32], &[f32]), ids: &[u32]) -> Result<WorstToken, ModelError> {
    check_finite(a, place)?;
    check_finite(b, place)?;
    let norms = (log_sum_exp(a), log_sum_exp(b));
    let probability =
        |row: &[f32], id: u32, norm: f64| row.get(id as usize).map_or(0.0, |&logit| (f64::from(logit) - norm).exp());
    let choice = |id| Choice { id, a: probability(a, id, norms.0), b: probability(b, id, norms.1) };
    Ok(WorstToken {
        place,
        divergence: divergence((a, norms.0), (b, norms.1)),
        actual: choice(ids.get(place.token).copied().unwrap_or_default()),
        top_a: choice(argmax(a)),
        top_b: choice(argmax(b)),
    })
}

/// KL(a || b) of two rows of finite logits with the logs of their sums; rounding cannot make it negative.
fn divergence((a, norm_a): (&[f32], f64), (b, norm_b): (&[f32], f64)) -> f64 {
    let term = |(&a, &b): (&f32, &f32)| {
        let (a, b) = (f64::from(a) - norm_a, f64::from(b) - norm_b);
        a.exp() * (a - b)
    };
    a.iter().zip(b).map(term).sum::<f64>().max(0.0)
}

/// Keeps the worst, the worst first; of equals those that came first.
fn keep_worst(worst: &mut Vec<WorstToken>, token: WorstToken) {
    let at = worst.partition_point(|kept| kept.divergence >= token.divergence);
    if at < WORST_TOKENS {
        worst.insert(at, token);
        worst.truncate(WORST_TOKENS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { token: 1, stage: Stage::Decode };

    #[test]
    fn divergence_of_known_distributions() {
        // Bernoulli(1/2) against Bernoulli(1/4): 1/2 ln(1/2 / 1/4) + 1/2 ln(1/2 / 3/4) = 1/2 ln(4/3). A shift changes nothing.
        let (a, b) = ([5.0, 5.0], [0.0, 3f32.ln()]);
        let token = measure(PLACE, (&a, &b), &[0, 0]).unwrap();
        assert!((token.divergence - 0.5 * (4f64 / 3.0).ln()).abs() < 1e-7, "{token:?}");
        assert_eq!((token.top_a.id, token.top_b.id), (0, 1));
        assert!((token.actual.a - 0.5).abs() < 1e-7 && (token.actual.b - 0.25).abs() < 1e-7, "{token:?}");
        let back = measure(PLACE, (&b, &a), &[0, 0]).unwrap();
        let wanted = 0.25 * 0.5f64.ln() + 0.75 * 1.5f64.ln();
        assert!((back.divergence - wanted).abs() < 1e-7, "the other way round it is another number: {back:?}");
        assert_eq!(measure(PLACE, (&b, &b), &[0, 0]).unwrap().divergence, 0.0);
    }

    #[test]
    fn rows_that_are_not_finite_are_refused() {
        let good = [0.0, 1.0];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(measure(PLACE, (&good, &[bad, 0.0]), &[0, 0]).is_err());
            assert!(measure(PLACE, (&[bad, 0.0], &good), &[0, 0]).is_err());
        }
    }

    fn token(divergence: f64) -> WorstToken {
        let choice = Choice { id: 0, a: 0.5, b: 0.5 };
        WorstToken { place: PLACE, divergence, actual: choice, top_a: choice, top_b: choice }
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut tally = Tally::default();
        for value in (1..=200).rev() {
            tally.add(&token(f64::from(value)), (1.0, 2.0));
        }
        let found = tally.divergence();
        assert_eq!((found.median, found.p99, found.max, found.mean), (100.0, 198.0, 200.0, 100.5));
        assert_eq!((found.tokens, found.same_top), (200, 1.0));
        assert!((found.perplexity_ratio() - 1f64.exp()).abs() < 1e-12);
        assert_eq!(Tally::default().divergence(), Divergence::default());
    }

    #[test]
    fn the_worst_are_kept_in_order() {
        let mut worst = Vec::new();
        for value in [3, 1, 15, 2, 9, 14, 4, 5, 6, 7, 8, 10, 11, 12, 13] {
            keep_worst(&mut worst, token(f64::from(value)));
        }
        let kept: Vec<f64> = worst.iter().map(|token| token.divergence).collect();
        assert_eq!(kept, [15.0, 14.0, 13.0, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0, 6.0]);
    }
}
