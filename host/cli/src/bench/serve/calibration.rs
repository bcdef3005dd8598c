//! How many words make a prompt of the wanted tokens, from what the server counted for other lengths. Pure; sends nothing.
//!
//! A prompt of w words has about a + b w tokens: a is the chat template's, b the vocabulary's. The first probe gives the ratio,
//! from the second on the line through the last two is followed.

/// More would find nothing that these do not.
pub(super) const MAX_PROBES: usize = 4;

/// What a server counted for a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) words: usize,
    pub(super) tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask what a prompt of so many words has.
    Probe(usize),
    /// Use so many words.
    Words(usize),
}

/// What to do for prompts of `wanted` tokens after these probes.
pub(super) fn next(probes: &[Probe], wanted: usize) -> Next {
    let Some(last) = probes.last() else {
        // A word is at least a token; what the template adds is unknown, and the context may be little longer than wanted.
        return Next::Probe((wanted / 2).max(1));
    };
    let best = probes.iter().min_by_key(|probe| probe.tokens.abs_diff(wanted)).map_or(last.words, |probe| probe.words);
    let words = estimate(probes, *last, wanted).clamp(1, wanted.max(1));
    let is_near = last.tokens.abs_diff(wanted) <= (wanted / 100).max(1);
    if is_near || probes.len() >= MAX_PROBES || probes.iter().any(|probe| probe.words == words) {
        return Next::Words(best);
    }
    Next::Probe(words)
}

fn estimate(probes: &[Probe], last: Probe, wanted: usize) -> usize {
    let at = |probe: Probe| (probe.words as f64, probe.tokens as f64);
    let (x, y) = at(last);
    let slope = probes.iter().rev().skip(1).copied().map(at).find(|before| before.0 != x).map(|(x0, y0)| (y - y0) / (x - x0));
    let words = match slope {
        Some(slope) if slope > 0.0 => x + (wanted as f64 - y) / slope,
        _ => x * wanted as f64 / y.max(1.0),
    };
    words.round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words found against a server that counts so, and the probes it took.
    fn calibrate(wanted: usize, count: impl Fn(usize) -> usize) -> (usize, usize) {
        let mut probes = Vec::new();
        loop {
            match next(&probes, wanted) {
                Next::Words(words) => return (words, probes.len()),
                Next::Probe(words) => probes.push(Probe { words, tokens: count(words) }),
            }
            assert!(probes.len() <= MAX_PROBES);
        }
    }

    #[test]
    fn the_wanted_tokens_are_met_whatever_template_and_vocabulary() {
        for wanted in [1, 16, 64, 240, 1_000, 32_000] {
            for template in [0, 5, 38, 120] {
                for per_word in [1.0, 1.07, 1.4, 3.0] {
                    let count = |words: usize| template + (words as f64 * per_word).round() as usize;
                    let (words, probes) = calibrate(wanted, count);
                    let (found, reachable) = (count(words), count(1).max(wanted));
                    let slack = (per_word / 2.0).ceil() as usize + wanted / 100;
                    assert!(
                        found.abs_diff(reachable) <= slack,
                        "{wanted}: {found} with {template} + {per_word} w, {probes} probes"
                    );
                }
            }
        }
    }

    #[test]
    fn a_server_that_counts_oddly_ends_it_all_the_same() {
        for odd in [0, 1, 240, usize::MAX] {
            let (words, _) = calibrate(240, |_| odd);
            assert!((1..=240).contains(&words), "{odd}: {words}");
        }
        let (words, _) = calibrate(240, |words| 1_000 - words);
        assert!((1..=240).contains(&words));
        // A counted length that does not grow with the prompt at first.
        let (words, _) = calibrate(240, |words| words.max(150));
        assert_eq!(words, 240);
    }
}
