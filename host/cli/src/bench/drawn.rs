//! Numbers that look drawn and are the same everywhere: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
//! generators", 2014). Knows not what they are for.

/// A sequence of them.
#[derive(Debug, Clone)]
pub(super) struct Drawn(u64);

impl Drawn {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        let number = from(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        number
    }

    /// Below `end`, which is not 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// The one that follows from `at`.
pub(super) fn from(at: u64) -> u64 {
    let mut z = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation with seed 0.
    #[test]
    fn the_sequence_is_the_published_one() {
        let mut drawn = Drawn::new(0);
        assert_eq!([drawn.next(), drawn.next()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }
}
