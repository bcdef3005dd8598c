//! From a bound in time to a number of tokens: how large the next prefill step may be. Pure: what steps cost is measured elsewhere.
//!
//! ```text
//!   tokens = (max_step_us - fixed_us) / time per token, in whole pages
//!            at most twice what recent steps had: a cost that was measured on small steps says little about large ones
//!            at least one page, at most max_step_tokens
//! ```
//!
//! The bound in time is for those whom the step keeps waiting; where it keeps nobody, the limit in tokens alone holds.

use crate::StageLimits;

/// Pages of a step before anything was measured.
const FIRST_STEP_PAGES: u32 = 4;

/// What recent steps of a pool cost: `fixed_us + token_ns / 1000 * tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepCost {
    pub fixed_us: u32,
    pub token_ns: u32,
    /// Tokens of the largest of these steps.
    pub largest_tokens: u32,
}

/// Whether work outside of a pool waits while a step of it has the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Neighbours {
    /// There is none.
    Idle,
    #[default]
    Waiting,
}

/// Tokens of the next step. `cost` is none before the first.
pub(crate) fn step_tokens(limits: &StageLimits, page_tokens: u32, cost: Option<StepCost>, neighbours: Neighbours) -> u32 {
    let most = limits.max_step_tokens;
    let (Some(max_step_us), Neighbours::Waiting) = (limits.max_step_us, neighbours) else { return most };
    let Some(cost) = cost else { return FIRST_STEP_PAGES.saturating_mul(page_tokens).min(most) };
    let left_ns = u64::from(max_step_us.saturating_sub(cost.fixed_us)) * 1_000;
    let fits = u32::try_from(left_ns / u64::from(cost.token_ns.max(1))).unwrap_or(u32::MAX);
    let known = cost.largest_tokens.max(page_tokens).saturating_mul(2);
    let tokens = fits.min(known);
    (tokens - tokens % page_tokens.max(1)).clamp(page_tokens.min(most), most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::limits;

    /// A pool of pages of 16 tokens and steps of at most 512 tokens and 100 ms.
    fn tokens(cost: Option<(u32, u32, u32)>) -> u32 {
        let limits = StageLimits { max_step_tokens: 512, max_step_us: Some(100_000), ..limits() };
        let cost = cost.map(|(fixed_us, token_ns, largest_tokens)| StepCost { fixed_us, token_ns, largest_tokens });
        step_tokens(&limits, 16, cost, Neighbours::Waiting)
    }

    #[test]
    fn as_many_tokens_as_fit_into_the_time_in_whole_pages() {
        // 100 ms at 1 ms a token, at 0.3 ms a token, and at 0.3 ms beside 20 ms that every step takes.
        assert_eq!(tokens(Some((0, 1_000_000, 128))), 96);
        assert_eq!(tokens(Some((0, 300_000, 512))), 320);
        assert_eq!(tokens(Some((20_000, 300_000, 512))), 256);
    }

    #[test]
    fn never_less_than_a_page_and_never_more_than_the_limit() {
        assert_eq!(tokens(Some((0, 90_000_000, 16))), 16, "a token takes 90 ms");
        assert_eq!(tokens(Some((200_000, 1, 512))), 16, "the fixed part alone is over the bound");
        assert_eq!(tokens(Some((u32::MAX, u32::MAX, 0))), 16);
        assert_eq!(tokens(Some((0, 0, u32::MAX))), 512);
        let tight = StageLimits { max_step_tokens: 10, max_step_us: Some(1), ..limits() };
        assert_eq!(step_tokens(&tight, 16, None, Neighbours::Waiting), 10);
        let dear = StepCost { fixed_us: 9, token_ns: 9, largest_tokens: 9 };
        assert_eq!(step_tokens(&tight, 16, Some(dear), Neighbours::Waiting), 10, "a limit below a page holds");
    }

    #[test]
    fn what_was_never_measured_is_approached() {
        assert_eq!(tokens(None), 64);
        // 1 us a token would allow all 512.
        let steps = [64, 128, 256].map(|largest| tokens(Some((0, 1_000, largest))));
        assert_eq!(steps, [128, 256, 512]);
        assert_eq!(tokens(Some((0, 1_000, 1))), 32);
    }

    #[test]
    fn without_a_bound_in_time_tokens_alone_hold() {
        let limits = |max_step_us| StageLimits { max_step_tokens: 512, max_step_us, ..limits() };
        let dear = StepCost { fixed_us: u32::MAX, token_ns: u32::MAX, largest_tokens: 1 };
        for (max_step_us, neighbours) in [(None, Neighbours::Waiting), (None, Neighbours::Idle), (Some(1), Neighbours::Idle)] {
            let tokens = |cost| step_tokens(&limits(max_step_us), 16, cost, neighbours);
            assert_eq!((tokens(None), tokens(Some(dear))), (512, 512), "{max_step_us:?} {neighbours:?}");
        }
    }
}
