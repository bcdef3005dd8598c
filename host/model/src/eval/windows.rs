//! How a text is cut into windows, and the steps that run a batch of them. Plain arithmetic; knows neither models nor devices.

use std::ops::Range;

use millrace_core::Stage;

/// How a text is run and what of it is scored.
///
/// ```text
/// text      0 . . . . . . . . . . . . . . . . . . . . . N
/// window 0  [ prefill        | decode step by step ]
/// window 1           [ prefill        | decode step by step ]      begins `stride` tokens later
/// ```
/// - Window i holds the text's tokens `i * stride .. min(i * stride + window, N)`; the first that reaches N is the last. Each is
///   a sequence of its own: it knows nothing of the text before it.
/// - Its first `prefill` tokens go through the prefill stage in chunks; then their pages are handed to the decode stage, where
///   the rest goes one token per step, each the text's own whatever the model would have said (teacher-forced), `batch` windows
///   side by side. The row that predicts the first token after the prefill part is prefill's, as in serving.
/// - A window's last token is predicted, never run.
/// - A token is scored in the first window that predicts it from some token before it. With `stride == window` those are all
///   but the first of each window; with a smaller stride all but the text's first, each with at least `window - stride` tokens
///   before it (those of the first window aside).
/// - `lead` (a beginning-of-sequence token) is put before every window but the first, which has the text's own if the text has
///   one. It counts to no size above, and what is predicted from it alone is not scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    /// Tokens of a window, at least 2.
    pub window: usize,
    /// Tokens of a window that go through prefill, at least 1; as many as `window`: nothing is decoded.
    pub prefill: usize,
    /// Tokens from one window's beginning to the next one's, 1 to `window`.
    pub stride: usize,
    /// Windows in decode at once.
    pub batch: usize,
    pub lead: Option<u32>,
    /// Tokens of a page, a multiple of 16.
    pub page_tokens: usize,
    /// Rows of a prefill step; so many rows of logits are held at once.
    pub chunk: usize,
}

/// Which token of the text a row of logits predicts, and who computed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index in the text.
    pub token: usize,
    pub stage: Stage,
}

/// One window. Row r is its r-th token that is run, the lead included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    start: usize,
    /// Tokens of the text.
    tokens: usize,
    lead: Option<u32>,
    /// First token of the text that is scored here.
    scored_from: usize,
    prefill: usize,
}

/// One step of a batch of windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Rows of one window through prefill; row 0 begins a sequence.
    Prefill { window: usize, rows: Range<usize> },
    /// The pages of a window's prefill rows to decode.
    HandOver { window: usize },
    /// One row of each of the first `windows` windows: the `round`-th after their prefill rows.
    Decode { windows: usize, round: usize },
}

impl Protocol {
    /// One window over `tokens` tokens, all prefill: what a model says of a text that fits its context.
    pub fn whole(tokens: usize) -> Self {
        let window = tokens.max(2);
        Self { window, prefill: window, stride: window, batch: 1, lead: None, page_tokens: 32, chunk: 128 }
    }

    /// Tokens of a text of `tokens` tokens that are scored.
    pub fn scored_tokens(&self, tokens: usize) -> usize {
        self.windows(tokens).map(|window| window.start + window.tokens - window.scored_from).sum()
    }

    /// Why nothing can be run this way.
    pub(super) fn problem(&self) -> Option<String> {
        let Self { window, prefill, stride, batch, chunk, .. } = *self;
        match () {
            () if window < 2 => Some(format!("a window of {window} tokens; one predicts the next, so 2 are the least")),
            () if !(1..=window).contains(&prefill) => {
                Some(format!("a prefill part of {prefill} tokens; 1 to the window's {window}"))
            }
            () if !(1..=window).contains(&stride) => Some(format!("a stride of {stride} tokens; 1 to the window's {window}")),
            () if batch == 0 || chunk == 0 => Some("batch and chunk start at 1".to_owned()),
            () => None,
        }
    }

    /// Windows that score something.
    pub(super) fn windows(&self, tokens: usize) -> impl Iterator<Item = Window> + use<> {
        let Self { window, stride, prefill, lead, .. } = *self;
        let behind = tokens.saturating_sub(window).div_ceil(stride.max(1));
        (0..=behind).filter_map(move |index| {
            let start = index * stride;
            let covered = if index == 0 { 0 } else { start - stride + window };
            let scored_from = covered.max(start + 1);
            let lead = lead.filter(|_| index > 0);
            let held = window.min(tokens - start);
            (scored_from < start + held).then_some(Window { start, tokens: held, lead, scored_from, prefill })
        })
    }
}

impl Window {
    /// Tokens that are run.
    pub(super) fn rows(&self) -> usize {
        self.lead_rows() + self.tokens - 1
    }

    pub(super) fn prefill_rows(&self) -> usize {
        self.rows().min(self.prefill + self.lead_rows())
    }

    pub(super) fn decode_rows(&self) -> usize {
        self.rows() - self.prefill_rows()
    }

    /// The tokens of some rows.
    pub(super) fn ids(&self, text: &[u32], rows: Range<usize>) -> Vec<u32> {
        let lead = self.lead_rows();
        let id = |row: usize| match self.lead {
            Some(id) if row == 0 => Some(id),
            _ => text.get(self.start + row - lead).copied(),
        };
        rows.filter_map(id).collect()
    }

    /// What a row predicts, where that is scored.
    pub(super) fn scored(&self, row: usize) -> Option<Place> {
        let token = self.start + row + 1 - self.lead_rows();
        let stage = if row < self.prefill_rows() { Stage::Prefill } else { Stage::Decode };
        (token >= self.scored_from).then_some(Place { token, stage })
    }

    fn lead_rows(&self) -> usize {
        usize::from(self.lead.is_some())
    }
}

/// Orders a batch so that the windows that decode longest come first, and gives its steps.
pub(super) fn steps(batch: &mut [Window], chunk: usize) -> Vec<Step> {
    batch.sort_by_key(|window| std::cmp::Reverse(window.decode_rows()));
    let mut steps = Vec::new();
    for (window, size) in batch.iter().enumerate() {
        let rows = size.prefill_rows();
        let chunks = (0..rows).step_by(chunk).map(|from| from..rows.min(from + chunk));
        steps.extend(chunks.map(|rows| Step::Prefill { window, rows }));
        if size.decode_rows() > 0 {
            steps.push(Step::HandOver { window });
        }
    }
    let rounds = batch.first().map_or(0, Window::decode_rows);
    let running = |round: usize| batch.iter().take_while(|window| window.decode_rows() > round).count();
    steps.extend((0..rounds).map(|round| Step::Decode { windows: running(round), round }));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol(window: usize, prefill: usize, stride: usize) -> Protocol {
        Protocol { window, prefill, stride, batch: 2, lead: None, page_tokens: 16, chunk: 3 }
    }

    /// (token, stage) of everything that is scored, in the text's order, and the context that each had.
    fn scored(protocol: &Protocol, tokens: usize) -> Vec<(usize, Stage, usize)> {
        let places = protocol.windows(tokens).flat_map(|window| {
            (0..window.rows()).filter_map(move |row| window.scored(row).map(|p| (p.token, p.stage, p.token - window.start)))
        });
        let mut places: Vec<_> = places.collect();
        places.sort_by_key(|place| place.0);
        assert_eq!(places.len(), protocol.scored_tokens(tokens));
        places
    }

    #[test]
    fn windows_side_by_side_leave_out_the_first_token_of_each() {
        let places = scored(&protocol(4, 2, 4), 9);
        let tokens: Vec<usize> = places.iter().map(|place| place.0).collect();
        // The window of token 8 has nothing to predict.
        assert_eq!(tokens, [1, 2, 3, 5, 6, 7]);
        let decoded: Vec<usize> = places.iter().filter(|place| place.1 == Stage::Decode).map(|place| place.0).collect();
        assert_eq!(decoded, [3, 7], "tokens 0 and 1 are run by prefill, which predicts 1 and 2");
    }

    #[test]
    fn a_smaller_stride_scores_every_token_once_with_enough_before_it() {
        for (window, stride) in [(8, 3), (8, 1), (5, 4), (2, 1)] {
            for tokens in 2..40 {
                let places = scored(&protocol(window, 1, stride), tokens);
                assert!(places.iter().map(|place| place.0).eq(1..tokens), "{window} {stride} {tokens}: {places:?}");
                let enough = |place: &(usize, Stage, usize)| place.2 >= (window - stride).min(place.0);
                assert!(places.iter().all(enough), "{window} {stride} {tokens}: {places:?}");
            }
        }
    }

    #[test]
    fn a_lead_changes_what_is_run_but_not_what_is_scored() {
        let plain = protocol(4, 2, 4);
        let led = Protocol { lead: Some(7), ..plain };
        assert_eq!(scored(&plain, 10), scored(&led, 10));
        let text: Vec<u32> = (100..110).collect();
        let runs: Vec<Vec<u32>> = led.windows(10).map(|window| window.ids(&text, 0..window.rows())).collect();
        assert_eq!(runs, [vec![100, 101, 102], vec![7, 104, 105, 106], vec![7, 108]]);
    }

    #[test]
    fn a_batch_keeps_the_longest_running_windows_in_front() {
        let mut batch: Vec<Window> = protocol(8, 4, 8).windows(14).collect();
        batch.reverse();
        let steps = steps(&mut batch, 3);
        let decode = |windows, round| Step::Decode { windows, round };
        assert_eq!(
            steps[..3],
            [Step::Prefill { window: 0, rows: 0..3 }, Step::Prefill { window: 0, rows: 3..4 }, Step::HandOver { window: 0 }]
        );
        assert_eq!(steps[6..], [decode(2, 0), decode(1, 1), decode(1, 2)]);
        assert_eq!((batch[0].decode_rows(), batch[1].decode_rows()), (3, 1));
    }

    #[test]
    fn sizes_that_run_nothing_are_said() {
        let told = |p: Protocol| p.problem().unwrap_or_default();
        assert!(told(protocol(1, 1, 1)).contains("window of 1"));
        assert!(told(protocol(4, 5, 4)).contains("prefill part of 5"));
        assert!(told(protocol(4, 0, 4)).contains("prefill part of 0"));
        assert!(told(protocol(4, 4, 5)).contains("stride of 5"));
        assert!(told(Protocol { batch: 0, ..protocol(4, 4, 4) }).contains("batch"));
        assert_eq!(protocol(4, 4, 4).problem(), None);
        assert_eq!(protocol(4, 4, 4).scored_tokens(0) + protocol(4, 4, 4).scored_tokens(1), 0);
    }
}
