//! Philox4x32-10, a counter-based generator: the same key and counter give the same numbers on every device, in any order.
//! Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). Knows no sampling.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        let (low, high) = (|product: u64| product as u32, |product: u64| (product >> 32) as u32);
        counter = [high(second) ^ counter[1] ^ key[0], low(second), high(first) ^ counter[3] ^ key[1], low(first)];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

/// A number in [0, 1) that `seed` and `position` alone determine: the high 53 of the first 64 bits of counter
/// `[position, 0, 0, 0]` under the key `seed`.
pub(crate) fn uniform(seed: u64, position: u32) -> f64 {
    let words = philox([position, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(words[1]) << 32 | u64::from(words[0]);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authors_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn numbers_are_in_range_and_differ_by_seed_and_position() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..20u64 {
            for position in 0..20 {
                let number = uniform(seed << 40, position);
                assert!((0.0..1.0).contains(&number));
                assert!(seen.insert(number.to_bits()));
            }
        }
    }
}
