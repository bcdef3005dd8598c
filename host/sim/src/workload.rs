//! Requests, and the answers that they have alone. Knows no engine but the two ways of answering.

use std::sync::Arc;

use millrace_core::FinishReason;
use millrace_kv::PrefixScope;

use crate::device::entry::{POISON, alone};
use crate::rng::Rng;

/// Output tokens that a request asks for at most.
pub(crate) const MAX_OUTPUT: u32 = 28;
pub(crate) const TENANTS: u32 = 3;
/// Prompts of the catalogue: few, because each is run alone first.
const CATALOGUE: usize = 40;
const LONGEST_CATALOGUED: u32 = 70;

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) prompt: Arc<[u32]>,
    /// Its output alone, as if nothing ended it: [`MAX_OUTPUT`] tokens.
    pub(crate) alone: Arc<[u32]>,
    pub(crate) tenant: u32,
    pub(crate) scope: Option<PrefixScope>,
    pub(crate) max_output: u32,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) priority: i32,
    /// From its submission.
    pub(crate) deadline_in_us: Option<u64>,
    pub(crate) lane: u32,
}

impl Request {
    /// The whole answer and why it ends, where prompt and output may come to so many tokens.
    pub(crate) fn answer(&self, max_context: u32) -> (&[u32], FinishReason) {
        let room = max_context.saturating_sub(self.prompt.len() as u32).max(1);
        let length = self.max_output.min(room) as usize;
        let tokens = &self.alone[..length.min(self.alone.len())];
        match tokens.iter().position(|token| self.stop_tokens.contains(token)) {
            Some(stop) => (&tokens[..stop], FinishReason::Stop),
            None => (tokens, FinishReason::Length),
        }
    }
}

/// A prompt, and the output that it has alone.
pub(crate) type Answered = (Arc<[u32]>, Arc<[u32]>);

/// Where prompts come from.
#[derive(Debug, Clone)]
pub(crate) enum Prompts {
    /// Made up as they are wanted; the fake engine's answers follow from them at once.
    Free,
    Catalogue(Vec<Answered>),
}

/// Prompts of a catalogue, half of them beginning alike.
pub(crate) fn catalogue() -> Vec<Arc<[u32]>> {
    let mut rng = Rng::new(77);
    (0..CATALOGUE).map(|_| prompt(&mut rng, LONGEST_CATALOGUED)).collect()
}

/// Begins like others do more often than not.
fn prompt(rng: &mut Rng, longest: u32) -> Arc<[u32]> {
    let length = 1 + if rng.one_in(4) { rng.below(longest) } else { rng.below(longest / 2) };
    let stem = rng.below(3);
    let shared = if rng.one_in(3) { 0 } else { length - rng.below(length.min(6)) };
    let common = (0..shared).map(|position| (stem * 17 + position * 5) % POISON);
    let own = (shared..length).map(|_| rng.below(POISON)).collect::<Vec<u32>>();
    common.chain(own).collect()
}

impl Prompts {
    pub(crate) fn request(&self, rng: &mut Rng, longest: u32, lanes: u32) -> Request {
        let (prompt, alone) = match self {
            Self::Free => {
                let prompt = prompt(rng, longest);
                let alone = alone(&prompt, MAX_OUTPUT).into();
                (prompt, alone)
            }
            Self::Catalogue(all) => rng.pick(all).cloned().unwrap_or_else(|| (Arc::from([1]), Arc::from([]))),
        };
        let tenant = rng.below(TENANTS);
        // A tenant's prompts are in its own scope; some are in none.
        let scope = (!rng.one_in(5)).then(|| PrefixScope([tenant as u8 + 1; 32]));
        Request {
            prompt,
            alone,
            tenant,
            scope,
            max_output: 1 + rng.below(MAX_OUTPUT),
            stop_tokens: (0..rng.below(3)).map(|_| rng.below(POISON)).collect(),
            priority: rng.below(3) as i32 - 1,
            deadline_in_us: rng.one_in(4).then(|| u64::from(rng.below(400_000))),
            lane: rng.below(lanes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_where_it_would_alone() {
        let mut rng = Rng::new(3);
        let request = Request { max_output: 9, stop_tokens: Vec::new(), ..Prompts::Free.request(&mut rng, 20, 1) };
        let prompt = request.prompt.len() as u32;
        assert_eq!(request.answer(1000), (&request.alone[..9], FinishReason::Length));
        assert_eq!(request.answer(prompt + 4), (&request.alone[..4], FinishReason::Length));
        let stopped = Request { stop_tokens: vec![request.alone[2]], ..request.clone() };
        let at = request.alone.iter().position(|token| *token == request.alone[2]).unwrap();
        assert_eq!(stopped.answer(1000), (&request.alone[..at], FinishReason::Stop));
    }

    #[test]
    fn prompts_begin_alike_and_are_the_seeds() {
        let all = catalogue();
        assert!(all.iter().all(|prompt| !prompt.is_empty() && prompt.len() <= LONGEST_CATALOGUED as usize));
        let alike = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let pairs = all.iter().enumerate().flat_map(|(i, a)| all[i + 1..].iter().map(move |b| alike(a, b)));
        assert!(pairs.filter(|&shared| shared >= 16).count() > 20);
        assert_eq!(all, catalogue());
    }
}
