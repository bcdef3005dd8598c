//! The only source of chance: everything that a world does follows from its seed. Knows nothing of what is chosen.

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ 0x5EED_0FA1);
        // Neighbouring seeds part with their first draw.
        rng.next();
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// In `0..bound`; 0 for a bound of 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        // The product of two 32-bit numbers; its high half is below the bound.
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(u32::try_from(len).unwrap_or(u32::MAX)) as usize
    }

    pub(crate) fn one_in(&mut self, bound: u32) -> bool {
        self.below(bound) == 0
    }

    pub(crate) fn per_mille(&mut self, chance: u32) -> bool {
        self.below(1000) < chance
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.index(of.len()))
    }
}

/// A number in which each bit of the state shows.
pub(crate) fn mix(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_and_bounds_hold() {
        let draws = |seed| {
            let mut rng = Rng::new(seed);
            (0..1000).map(|_| rng.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(draws(5), draws(5));
        assert_ne!(draws(5), draws(6));
        assert!((0..10).all(|value| draws(1).iter().filter(|&&drawn| drawn == value).count() > 60));
        assert_eq!((Rng::new(1).below(0), Rng::new(1).index(0)), (0, 0));
        assert_eq!(Rng::new(1).pick::<u8>(&[]), None);
    }
}
