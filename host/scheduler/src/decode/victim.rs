//! Who gives its pages up when the pool has none left. Reads facts of candidates; changes nothing.

use std::cmp::Reverse;

use millrace_core::SeqId;

/// A running sequence that could be preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) seq: SeqId,
    pub(crate) priority: i32,
    pub(crate) arrival_us: u64,
    /// Was preempted so often that it is spared as long as any other can give.
    pub(crate) protected: bool,
}

/// The policy's first choice that is not protected, else the lowest priority and there the youngest; among protected ones
/// only if there is no other. The oldest of the highest priority is never the host's choice while it has company, so one
/// sequence always gets on, and a policy can take each sequence's pages only until it is protected.
pub(crate) fn choose(candidates: &[Candidate], named: &[SeqId]) -> Option<SeqId> {
    let open = |seq: SeqId| candidates.iter().any(|candidate| candidate.seq == seq && !candidate.protected);
    if let Some(&seq) = named.iter().find(|&&seq| open(seq)) {
        return Some(seq);
    }
    let rank =
        |candidate: &&Candidate| (candidate.protected, candidate.priority, Reverse(candidate.arrival_us), Reverse(candidate.seq));
    candidates.iter().min_by_key(rank).map(|candidate| candidate.seq)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(seq: u64, priority: i32, protected: bool) -> Candidate {
        Candidate { seq: SeqId(seq), priority, arrival_us: seq * 10, protected }
    }

    #[test]
    fn the_policy_comes_first_but_not_past_protection() {
        let all = [candidate(1, 0, true), candidate(2, 0, false), candidate(3, 0, false)];
        assert_eq!(choose(&all, &[SeqId(1), SeqId(9), SeqId(2)]), Some(SeqId(2)));
        assert_eq!(choose(&all, &[SeqId(1)]), Some(SeqId(3)), "youngest");
    }

    #[test]
    fn lowest_priority_then_youngest_and_protected_last() {
        assert_eq!(choose(&[candidate(1, -5, false), candidate(2, 0, false)], &[]), Some(SeqId(1)));
        assert_eq!(choose(&[candidate(1, 9, false), candidate(2, -5, true)], &[]), Some(SeqId(1)));
        assert_eq!(choose(&[candidate(1, 0, true), candidate(2, 0, true)], &[SeqId(1)]), Some(SeqId(2)));
        assert_eq!(choose(&[], &[SeqId(1)]), None);
        let late = Candidate { arrival_us: 99, ..candidate(1, 0, false) };
        assert_eq!(choose(&[late, candidate(2, 0, false)], &[]), Some(SeqId(1)), "young by arrival, whatever its number");
    }
}
