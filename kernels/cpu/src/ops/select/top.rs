//! The highest of many scores, without sorting and without memory of their number: a radix search for the lowest one that is
//! chosen, then one pass in the order of positions. Knows no keys.

/// Bits of a rank that each of three passes settles, the highest first.
const DIGITS: [u32; 3] = [11, 11, 10];
const BINS: usize = 1 << 11;

/// Writes the indices of the `chosen.len()` highest scores in ascending order; among equal scores the lowest indices are chosen,
/// and NaN counts as lower than any number. There are at least as many scores, and at most 2^32.
pub(super) fn choose(scores: &[f32], chosen: &mut [u32]) {
    let Some(mut wanted) = chosen.len().checked_sub(1) else { return };
    // The chosen score of lowest rank is `wanted` places from the highest among those that share the digits found so far.
    let (mut prefix, mut below) = (0u32, u32::BITS);
    for digits in DIGITS {
        let mut bins = [0usize; BINS];
        let shift = below - digits;
        for score in scores {
            let rank = rank(*score);
            let shares = below == u32::BITS || rank >> below == prefix;
            bins[(rank >> shift) as usize & ((1 << digits) - 1)] += usize::from(shares);
        }
        let mut digit = (1 << digits) - 1;
        while digit > 0 && wanted >= bins[digit] {
            wanted -= bins[digit];
            digit -= 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a digit has at most 11 bits")]
        {
            prefix = prefix << digits | digit as u32;
        }
        below = shift;
    }
    // `wanted + 1` of those with exactly this rank, the first ones, and all of higher rank.
    let (lowest, mut equals) = (prefix, wanted + 1);
    let mut places = chosen.iter_mut();
    for (score, index) in scores.iter().zip(0..) {
        let rank = rank(*score);
        let equal = rank == lowest && equals > 0;
        if rank > lowest || equal {
            equals -= usize::from(equal);
            let Some(place) = places.next() else { return };
            *place = index;
        }
    }
}

/// Orders scores as numbers: both zeros alike, NaN lowest.
#[inline(always)]
fn rank(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    let ordered = bits ^ if bits >> 31 == 0 { 1 << 31 } else { u32::MAX };
    if score.is_nan() { 0 } else { ordered }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By sorting.
    fn expected(scores: &[f32], count: usize) -> Vec<u32> {
        let value = |i: u32| if scores[i as usize].is_nan() { f64::NEG_INFINITY } else { f64::from(scores[i as usize]) };
        let nan = |i: u32| scores[i as usize].is_nan();
        let mut order: Vec<u32> = (0..scores.len() as u32).collect();
        order.sort_by(|a, b| value(*b).partial_cmp(&value(*a)).unwrap().then(nan(*a).cmp(&nan(*b))).then(a.cmp(b)));
        order.truncate(count);
        order.sort_unstable();
        order
    }

    fn check(scores: &[f32]) {
        for count in 0..=scores.len() {
            let mut chosen = vec![u32::MAX; count];
            choose(scores, &mut chosen);
            assert_eq!(chosen, expected(scores, count), "{count} of {scores:?}");
        }
    }

    #[test]
    fn ties_go_to_the_lowest_index_and_nan_is_lowest() {
        check(&[]);
        check(&[f32::NAN]);
        check(&[1.0, 2.0, 2.0, 1.0, 2.0]);
        check(&[0.0, -0.0, 0.0, -1e-45, 1e-45, -0.0]);
        check(&[f32::NAN, f32::NEG_INFINITY, -f32::NAN, f32::INFINITY, f32::MIN, f32::MAX, f32::NEG_INFINITY, f32::NAN]);
        check(&[-3.0; 9]);
    }

    #[test]
    fn many_scores_with_few_and_many_values() {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        for length in [17, 1000, 70_000] {
            for spread in [3u32, 1 << 12, u32::MAX] {
                let scores: Vec<f32> =
                    (0..length).map(|_| f32::from_bits(0x3f80_0000 ^ (next().wrapping_mul(2) % spread))).collect();
                for count in [1, 2, length / 3, length - 1, length] {
                    let mut chosen = vec![u32::MAX; count];
                    choose(&scores, &mut chosen);
                    assert_eq!(chosen, expected(&scores, count), "{count} of {length} with spread {spread}");
                }
            }
        }
    }
}
