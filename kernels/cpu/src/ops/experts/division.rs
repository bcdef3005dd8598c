//! How a product over many experts is divided: every expert's panels in chunks of about equal cost, whatever the routing.
//! Knows numbers of slots and panels; no weight and no thread.

/// What reading a panel costs, in rows of activations multiplied by it.
const READ_ROWS: usize = 4;
/// Chunks per worker, so that a slow one does not hold up the rest.
const TURNS: usize = 4;
/// Kernels take two or four panels at a time.
const PANELS_AT_ONCE: usize = 4;

/// The division of one step's slots.
pub(super) struct Division<'a> {
    starts: &'a [u32],
    panels: usize,
    /// What one item should cost.
    cost: usize,
}

impl<'a> Division<'a> {
    /// `starts`: rising, one more than there are experts. `panels`: of each expert.
    pub(super) fn new(starts: &'a [u32], panels: usize, workers: usize) -> Self {
        let rows = starts.windows(2).map(slots_of).filter(|slots| *slots > 0).map(|slots| slots + READ_ROWS).sum::<usize>();
        let turns = if workers <= 1 { 1 } else { workers * TURNS };
        Self { starts, panels, cost: rows * panels / turns }
    }

    /// First slot of an expert, and how many it has.
    pub(super) fn slots(&self, expert: usize) -> (usize, usize) {
        (self.starts[expert] as usize, slots_of(&self.starts[expert..expert + 2]))
    }

    /// Panels of one item of an expert, the last of its items excepted.
    pub(super) fn chunk(&self, expert: usize) -> usize {
        let (_, slots) = self.slots(expert);
        (self.cost / (slots + READ_ROWS)).next_multiple_of(PANELS_AT_ONCE).max(PANELS_AT_ONCE)
    }

    /// Items of an expert; none where it has no slots.
    pub(super) fn items(&self, expert: usize) -> usize {
        let (_, slots) = self.slots(expert);
        if slots == 0 { 0 } else { self.panels.div_ceil(self.chunk(expert)) }
    }

    /// Items of all experts.
    pub(super) fn total(&self) -> usize {
        (0..self.starts.len() - 1).map(|expert| self.items(expert)).sum()
    }
}

fn slots_of(pair: &[u32]) -> usize {
    (pair[1] - pair[0]) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(slots: &[u32]) -> Vec<u32> {
        let sums = slots.iter().scan(0, |sum, slots| {
            *sum += slots;
            Some(*sum)
        });
        std::iter::once(0).chain(sums).collect()
    }

    #[test]
    fn one_row_at_eight_experts_feeds_every_worker() {
        let mut slots = vec![0; 64];
        for expert in [3, 7, 8, 20, 21, 40, 62, 63] {
            slots[expert] = 1;
        }
        let starts = starts(&slots);
        for workers in [2, 8, 16, 32] {
            let division = Division::new(&starts, 96, workers);
            let total = division.total();
            assert!(total >= 2 * workers, "{total} items for {workers} workers");
            assert_eq!((division.items(0), division.items(4), division.slots(20)), (0, 0, (3, 1)));
        }
        assert_eq!(Division::new(&starts, 96, 1).total(), 8, "one worker takes experts whole");
    }

    #[test]
    fn no_item_costs_much_more_than_its_share() {
        for slots in [vec![500, 1, 1, 0, 2, 1, 30, 1], vec![9; 60], vec![0, 0, 77], vec![1, 400]] {
            let starts = starts(&slots);
            let (panels, workers) = (128, 4);
            let division = Division::new(&starts, panels, workers);
            let rows: usize = slots.iter().filter(|n| **n > 0).map(|n| *n as usize + READ_ROWS).sum();
            for expert in 0..slots.len() {
                let cost = division.chunk(expert).min(panels) * (slots[expert] as usize + READ_ROWS);
                let least = PANELS_AT_ONCE * (slots[expert] as usize + READ_ROWS);
                assert!(cost <= rows * panels / (workers * TURNS) + least, "{slots:?}: expert {expert}");
            }
        }
    }

    #[test]
    fn nothing_to_do_is_no_items() {
        assert_eq!(Division::new(&[0, 0, 0], 10, 3).total(), 0);
    }
}
