//! One row's experts: scores, groups, the best of what is left, and their weights. Knows no other row and no buffer.
//!
//! Scores are f32, computed in f64: one definition for every instruction set, at a cost that is nothing beside the experts'
//! products. By the definition of softmax, one NaN among a row's logits makes all its scores NaN: the row is lost and shows it.
//! Source: DeepSeek-V3 Technical Report, section 2.1.2.

use millrace_ops::{RouteRule, RouteScoring};

/// What is no longer, or not at all, to be chosen: below everything that [`comparable`] gives.
const OUT: f32 = f32::NEG_INFINITY;

/// Chooses rows' experts, one row after the other.
pub(super) struct Chooser<'a> {
    rule: &'a RouteRule,
    bias: Option<&'a [f32]>,
    scores: &'a mut [f32],
    /// What experts are compared by; [`OUT`] where they are not to be chosen.
    merits: &'a mut [f32],
    group_merits: &'a mut [f32],
}

impl<'a> Chooser<'a> {
    /// `scratch` has [`Self::scratch_floats`]; `bias` one value per expert. The rule fits the experts.
    pub(super) fn new(rule: &'a RouteRule, bias: Option<&'a [f32]>, experts: usize, scratch: &'a mut [f32]) -> Self {
        let (scores, rest) = scratch.split_at_mut(experts);
        let (merits, group_merits) = rest.split_at_mut(experts);
        Self { rule, bias, scores, merits, group_merits }
    }

    pub(super) fn scratch_floats(experts: usize, rule: &RouteRule) -> usize {
        2 * experts + rule.groups
    }

    /// Fills `ids` and `weights`, which are as many as experts are wanted, from one logit per expert.
    pub(super) fn choose(&mut self, logits: &[f32], ids: &mut [u32], weights: &mut [f32]) {
        score(self.rule.scoring, logits, self.scores);
        for (i, (merit, score)) in self.merits.iter_mut().zip(self.scores.iter()).enumerate() {
            *merit = comparable(score + self.bias.map_or(0.0, |bias| bias[i]));
        }
        if self.rule.top_groups < self.rule.groups {
            self.leave_out_groups();
        }
        for (id, weight) in ids.iter_mut().zip(weights.iter_mut()) {
            let best = take_best(self.merits);
            *weight = self.scores[best];
            #[expect(clippy::cast_possible_truncation, reason = "the number of experts has a bound far below 2^32")]
            {
                *id = best as u32;
            }
        }
        self.weigh(weights);
    }

    /// Takes the experts of all but the best groups out of the choice.
    fn leave_out_groups(&mut self) {
        let size = self.merits.len() / self.rule.groups;
        for (merit, members) in self.group_merits.iter_mut().zip(self.merits.chunks_exact(size)) {
            let (mut first, mut second) = (OUT, OUT);
            for &member in members {
                if member > first {
                    (first, second) = (member, first);
                } else if member > second {
                    second = member;
                }
            }
            *merit = comparable(if size == 1 { first } else { first + second });
        }
        for _ in 0..self.rule.top_groups {
            take_best(self.group_merits);
        }
        for (merit, members) in self.group_merits.iter().zip(self.merits.chunks_exact_mut(size)) {
            if *merit != OUT {
                members.fill(OUT);
            }
        }
    }

    fn weigh(&self, weights: &mut [f32]) {
        if self.rule.normalize {
            let sum: f32 = weights.iter().sum();
            let sum = if self.rule.scoring == RouteScoring::Sigmoid { sum + 1e-20 } else { sum };
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        weights.iter_mut().for_each(|weight| *weight *= self.rule.scale);
    }
}

/// NaN, and what else is below all finite numbers, as the lowest of them.
fn comparable(merit: f32) -> f32 {
    if merit > f32::MIN { merit } else { f32::MIN }
}

/// Takes the first of the highest merits out of the choice; its place. At least one is left.
fn take_best(merits: &mut [f32]) -> usize {
    let mut best = (0, OUT);
    for (i, &merit) in merits.iter().enumerate() {
        if merit > best.1 {
            best = (i, merit);
        }
    }
    merits[best.0] = OUT;
    best.0
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is wanted")]
fn score(scoring: RouteScoring, logits: &[f32], scores: &mut [f32]) {
    match scoring {
        RouteScoring::Sigmoid => {
            for (score, logit) in scores.iter_mut().zip(logits) {
                *score = (1.0 / (1.0 + (-f64::from(*logit)).exp())) as f32;
            }
        }
        RouteScoring::Softmax => {
            // The largest that is a number; NaN comes back in by the sum.
            let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let mut sum = 0.0;
            for (score, logit) in scores.iter_mut().zip(logits) {
                let power = (f64::from(*logit) - largest).exp();
                sum += power;
                *score = power as f32;
            }
            scores.iter_mut().for_each(|score| *score = (f64::from(*score) / sum) as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: RouteRule = RouteRule { scoring: RouteScoring::Sigmoid, groups: 1, top_groups: 1, normalize: false, scale: 1.0 };

    fn choose(rule: RouteRule, logits: &[f32], bias: Option<&[f32]>, top_k: usize) -> (Vec<u32>, Vec<f32>) {
        let mut scratch = vec![f32::NAN; Chooser::scratch_floats(logits.len(), &rule)];
        let (mut ids, mut weights) = (vec![u32::MAX; top_k], vec![0.0; top_k]);
        Chooser::new(&rule, bias, logits.len(), &mut scratch).choose(logits, &mut ids, &mut weights);
        (ids, weights)
    }

    #[test]
    fn ties_go_to_the_lowest_and_nan_comes_last() {
        let (ids, _) = choose(RULE, &[0.5, f32::NAN, 2.0, 0.5, f32::NEG_INFINITY, 2.0], None, 4);
        assert_eq!(ids, [2, 5, 0, 3]);
        let (ids, weights) = choose(RULE, &[0.5, f32::NAN, f32::INFINITY, f32::NAN], None, 4);
        assert_eq!(ids, [2, 0, 1, 3]);
        assert!(weights[0] == 1.0 && weights[1].is_finite() && weights[2].is_nan() && weights[3].is_nan());
        let bias = [f32::NAN, f32::NEG_INFINITY, 0.0];
        assert_eq!(choose(RULE, &[9.0, 9.0, -9.0], Some(&bias), 3).0, [2, 0, 1]);
    }

    #[test]
    fn a_softmax_of_what_is_no_number_is_none() {
        let rule = RouteRule { scoring: RouteScoring::Softmax, ..RULE };
        for bad in [[1.0, f32::NAN, 3.0], [1.0, f32::INFINITY, 3.0], [f32::NEG_INFINITY; 3]] {
            let (ids, weights) = choose(rule, &bad, None, 2);
            assert_eq!(ids, [0, 1], "{bad:?}");
            assert!(weights.iter().all(|weight| weight.is_nan()), "{bad:?}");
        }
        let (ids, weights) = choose(rule, &[f32::NEG_INFINITY, 0.0, 200.0], None, 3);
        assert_eq!((ids, weights), (vec![2, 0, 1], vec![1.0, 0.0, 0.0]), "scores too small for f32 are equal");
        assert_eq!(choose(rule, &[f32::NEG_INFINITY, 0.0, 80.0], None, 3).0, [2, 1, 0]);
    }

    #[test]
    fn groups_are_compared_by_their_two_best() {
        // Sums of the two best: 4, 5, 5; the bias stands for itself, since all scores are 0.5.
        let bias = [4.0, 0.0, -9.0, 2.0, 3.0, 2.0, 1.0, 4.0, 0.0];
        let rule = RouteRule { groups: 3, top_groups: 1, ..RULE };
        assert_eq!(choose(rule, &[0.0; 9], Some(&bias), 3).0, [4, 3, 5], "the first of equal groups");
        let rule = RouteRule { groups: 3, top_groups: 2, ..RULE };
        assert_eq!(choose(rule, &[0.0; 9], Some(&bias), 3).0, [7, 4, 3]);
        let rule = RouteRule { groups: 9, top_groups: 2, ..RULE };
        assert_eq!(choose(rule, &[0.0; 9], Some(&bias), 2).0, [0, 7], "a group of one counts by its only score");
    }

    #[test]
    fn groups_without_a_number_are_the_last_but_not_lost() {
        let logits = [f32::NAN, f32::NAN, 1.0, f32::NAN, -5.0, -6.0];
        let rule = RouteRule { groups: 3, top_groups: 1, ..RULE };
        assert_eq!(choose(rule, &logits, None, 2).0, [4, 5]);
        let rule = RouteRule { groups: 3, top_groups: 3, ..RULE };
        assert_eq!(choose(rule, &logits, None, 6).0, [2, 4, 5, 0, 1, 3]);
        let rule = RouteRule { groups: 3, top_groups: 2, ..RULE };
        assert_eq!(choose(rule, &[f32::NAN; 6], None, 4).0, [0, 1, 2, 3]);
    }

    #[test]
    fn weights_are_scores_without_bias_normalized_then_scaled() {
        let logits = [0.0, 0.0, 3.0f32.ln(), -1000.0];
        let bias = [0.0, 1.0, 0.0, 2.0];
        let rule = RouteRule { scale: 2.0, normalize: true, ..RULE };
        let (ids, weights) = choose(rule, &logits, Some(&bias), 2);
        assert_eq!((ids, weights), (vec![3, 1], vec![0.0, 2.0]));
        let (ids, weights) = choose(rule, &logits, Some(&bias), 1);
        assert_eq!((ids, weights), (vec![3], vec![0.0]), "0 over 1e-20 is 0");
        let rule = RouteRule { scoring: RouteScoring::Softmax, normalize: false, scale: 10.0, ..RULE };
        let (ids, weights) = choose(rule, &logits, None, 2);
        assert_eq!(ids, [2, 0]);
        assert!((weights[0] - 6.0).abs() < 1e-5 && (weights[1] - 2.0).abs() < 1e-5, "{weights:?}");
    }
}
