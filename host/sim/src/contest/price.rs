//! What work costs, in virtual time: a small model on two cores, as the README measures one. Knows no scheduler.

use crate::device::submission::{Kind, Submission};

/// Of a step, whatever is in it.
const STEP_US: u64 = 2_000;
/// Of a prompt's token: some 3,300 of them a second.
const PREFILL_TOKEN_US: u64 = 300;
/// Of a sequence in a decode step: one stream has some 350 tokens a second, 32 have 1,100.
const DECODE_ROW_US: u64 = 850;
/// Of a copy, and of each page in it.
const COPY_US: u64 = 50;
const PAGE_US: u64 = 5;

/// `decodes`: the queue is a decode pool's.
pub(super) fn price_us(submission: &Submission, decodes: bool) -> u64 {
    let pages = submission.named().count() as u64;
    match submission.kind {
        Kind::Step => STEP_US + u64::from(submission.tokens) * if decodes { DECODE_ROW_US } else { PREFILL_TOKEN_US },
        Kind::Export | Kind::Import => COPY_US + pages * PAGE_US,
        Kind::Tags => COPY_US,
    }
}
