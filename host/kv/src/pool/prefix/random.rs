//! The prefix tree against its twin under random operations: what can happen to sequences, pages and the tree.

use super::twin::{PAGE_TOKENS, Sequence, World};
use crate::{PageId, PageRef, PrefixOwner, PrefixScope, Prompt, TransferId, pages_for};

/// How often each thing happened over all seeds; one that never did would be a hole in the test.
#[derive(Debug, Default)]
struct Coverage {
    hit_pages: usize,
    adopted: u64,
    evicted: u64,
    forgotten: u64,
    over_quota: u64,
    stale_met: u64,
    shared_twice: u64,
}

impl World {
    fn start(&mut self, coverage: &mut Coverage) {
        let scope = PrefixScope([self.lcg.below(2) as u8; 32]);
        let owner = PrefixOwner(self.lcg.below(3));
        let tokens: Vec<u32> = (0..1 + self.lcg.below(9)).map(|_| self.lcg.below(2)).collect();
        let hit = self.pool.lookup_and_pin(scope, &tokens);
        assert_eq!(hit, self.twin_lookup(scope, &tokens), "the longest run of whole pages, but for the last token");
        let told = self.pool.prefix_directory().map(|directory| directory.hit_tokens(scope, &tokens));
        assert_eq!(told, Some(hit.len() as u32 * PAGE_TOKENS), "readers of the directory are told what a lookup finds");
        coverage.hit_pages += hit.len();
        let cached = hit.len();
        self.sequences.push(Sequence { scope, owner, tokens, table: hit, cached });
        let sequence = self.sequences.last().unwrap();
        let missing = pages_for(sequence.tokens.len() as u32, PAGE_TOKENS) - cached as u32;
        self.make_room(missing, owner);
        match self.pool.allocate(missing) {
            Ok(pages) => self.sequences.last_mut().unwrap().table.extend(pages),
            Err(_) => {
                let sequence = self.sequences.pop().unwrap();
                self.pool.release(&sequence.table, 0).unwrap();
            }
        }
    }

    fn make_room(&mut self, pages: u32, owner: PrefixOwner) {
        let counts = self.pool.counts();
        self.pool.make_room(pages, owner);
        for _ in counts.free + counts.settling..pages {
            if let Some(oldest) = self.twin_oldest(Some(owner)).or_else(|| self.twin_oldest(None)) {
                self.entries.remove(&oldest);
            }
        }
    }

    fn insert(&mut self) {
        let Some(index) = self.pick() else { return };
        let sequence = self.sequences.remove(index);
        let computed = self.lcg.below(sequence.tokens.len() as u32 + 1) as usize;
        // While it is not among the sequences, its pages still are pinned.
        self.sequences.insert(index, sequence);
        let sequence = &self.sequences[index];
        let prompt = Prompt { scope: sequence.scope, owner: sequence.owner, tokens: &sequence.tokens[..computed] };
        let mut table = sequence.table.clone();
        let after_step = self.fence + u64::from(self.lcg.below(2));
        let cached = self.pool.insert(&prompt, &mut table, sequence.cached, after_step).unwrap();
        let sequence = Sequence { tokens: sequence.tokens.clone(), table: sequence.table.clone(), ..*sequence };
        let expected = self.twin_insert(&sequence, computed);
        assert_eq!((&table, cached), (&expected.0, expected.1));
        self.sequences[index] = Sequence { table, cached, ..sequence };
    }

    fn leave(&mut self) {
        let Some(index) = self.pick() else { return };
        let sequence = self.sequences.swap_remove(index);
        let current: Vec<PageRef> = sequence.table.into_iter().filter(|&page| self.pool.is_current(page)).collect();
        self.pool.release(&current, self.fence + u64::from(self.lcg.below(3))).unwrap();
    }

    fn pick(&mut self) -> Option<usize> {
        let count = self.sequences.len() as u32;
        (count > 0).then(|| self.lcg.below(count) as usize)
    }

    fn pick_page(&mut self) -> Option<PageRef> {
        let index = self.pick()?;
        let table = &self.sequences[index].table;
        table.get(self.lcg.below(table.len() as u32) as usize).copied()
    }

    fn doubt(&mut self) {
        match self.lcg.below(6) {
            0 => {
                let Some(page) = self.pick_page() else { return };
                self.pool.suspect(page).unwrap();
                self.suspects.insert(page.page);
                self.twin_forget_page(page.page);
            }
            1 => {
                // One that may be in the tree alone, or free.
                let page = PageId(self.lcg.below(self.pool.counts().total));
                let known = self.entries.values().map(|cached| cached.page).find(|known| known.page == page);
                let Some(known) = known else { return };
                self.pool.suspect(known).unwrap();
                self.suspects.insert(page);
                self.twin_forget_page(page);
            }
            2 => {
                for page in std::mem::take(&mut self.suspects) {
                    self.pool.readmit(page).unwrap();
                }
            }
            3 if self.lcg.below(4) == 0 => {
                self.pool.forget_all().unwrap();
                let all: Vec<PageId> = self.entries.values().map(|cached| cached.page.page).collect();
                all.into_iter().for_each(|page| self.twin_forget_page(page));
            }
            _ => {
                let Some(page) = self.pick_page() else { return };
                self.pool.forget(&[page]).unwrap();
                self.twin_forget_page(page.page);
            }
        }
    }

    fn steal(&mut self) {
        let Some(page) = self.pick_page().filter(|&page| self.pool.is_current(page)) else { return };
        let stolen = self.pool.force_reassign(page.page).unwrap();
        self.thieves.push(stolen);
    }

    fn return_stolen(&mut self) {
        let Some(page) = self.thieves.pop() else { return };
        let current = self.pool.is_current(page);
        if current {
            self.pool.release(&[page], 0).unwrap();
            // Its node, if it still has one, is of nobody's page.
            self.twin_forget_page(page.page);
        }
        // The victims' references are stale for good.
        for sequence in &mut self.sequences {
            if let Some(at) = sequence.table.iter().position(|own| own.page == page.page && own.tag < page.tag) {
                let lost = sequence.table.split_off(at);
                let current: Vec<PageRef> = lost.into_iter().filter(|&page| self.pool.is_current(page)).collect();
                self.pool.release(&current, 0).unwrap();
                sequence.tokens.truncate(at * PAGE_TOKENS as usize);
                sequence.cached = sequence.cached.min(at);
            }
        }
    }

    fn hold_or_drain(&mut self) {
        let transfer = TransferId(u64::from(self.lcg.below(3)));
        match self.pick_page().filter(|&page| self.pool.is_current(page)) {
            Some(page) if self.lcg.below(2) == 0 => {
                self.pool.hold(page, transfer).unwrap();
                self.holds.insert((transfer, page.page));
            }
            _ => {
                self.pool.drain(transfer);
                self.holds.retain(|&(other, _)| other != transfer);
            }
        }
    }

    fn anything(&mut self, coverage: &mut Coverage) {
        match self.lcg.below(20) {
            0..=4 => self.start(coverage),
            5..=9 => self.insert(),
            10..=13 => self.leave(),
            14 | 15 => {
                self.fence += u64::from(self.lcg.below(3));
                self.pool.fence(self.fence);
            }
            16 => self.hold_or_drain(),
            17 => self.doubt(),
            18 if self.lcg.below(2) == 0 => self.steal(),
            18 => self.return_stolen(),
            _ => {
                let (pages, owner) = (self.lcg.below(5), PrefixOwner(self.lcg.below(3)));
                self.make_room(pages, owner);
            }
        }
        coverage.shared_twice += self.compare();
    }
}

#[test]
fn random_operations_agree_with_the_twin() {
    let mut coverage = Coverage::default();
    for seed in 0..400 {
        let mut world = World::new(seed);
        (0..250).for_each(|_| world.anything(&mut coverage));
        let counters = world.pool.prefix_counters();
        coverage.adopted += counters.adopted;
        coverage.evicted += counters.evicted;
        coverage.forgotten += counters.forgotten;
        coverage.over_quota += counters.over_quota;
        coverage.stale_met += world.stale_met;
        while !world.thieves.is_empty() {
            world.return_stolen();
        }
        while !world.sequences.is_empty() {
            world.leave();
        }
        world.pool.forget_all().unwrap();
        (0..3).for_each(|transfer| world.pool.drain(TransferId(transfer)));
        world.pool.fence(u64::MAX);
        for page in world.pool.suspects() {
            world.pool.readmit(page).unwrap();
        }
        world.pool.check_invariants().unwrap();
        assert_eq!(world.pool.counts().free, world.pool.counts().total, "a page leaked (seed {seed})");
    }
    let Coverage { hit_pages, adopted, evicted, forgotten, over_quota, stale_met, shared_twice } = coverage;
    assert!(hit_pages > 2_000 && shared_twice > 1_000, "{coverage:?}");
    assert!(adopted > 80 && evicted > 1_000 && forgotten > 1_000, "{coverage:?}");
    assert!(over_quota > 500 && stale_met > 20, "{coverage:?}");
}
