//! Long random schedules: any message at any time, connections that break, processes that die, pages that are stolen.

use millrace_transfer::Window;

use crate::world::{Size, World};

/// SplitMix64: a seed replays.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { of.get(self.below(of.len())).cloned() }
    }
}

fn step(world: &mut World, random: &mut Random) {
    match random.below(40) {
        0 => world.disconnect(),
        1 if random.below(6) == 0 => world.kill_sender(),
        2 if random.below(6) == 0 => {
            let told = random.below(2) == 0;
            world.kill_receiver(told);
        }
        3 if world.can_steal() && random.below(4) == 0 => world.steal(),
        4 => world.zombie_hello(),
        5 => {
            let seq = random.below(world.sequences.len());
            if world.can_cancel(seq) {
                world.cancel(seq);
            }
        }
        6..10 => {
            let seq = random.below(world.sequences.len());
            if world.can_offer(seq) {
                world.offer(seq);
            }
        }
        10..15 => random.pick(&world.fetches()).into_iter().for_each(|(transfer, index)| world.fetch(transfer, index)),
        15..20 => random.pick(&world.imports()).into_iter().for_each(|import| world.import(import)),
        20..24 => random.pick(&world.wishes()).into_iter().for_each(|wish| world.reserve(wish)),
        24..32 => {
            let messages: Vec<_> = world.to_decode.iter().cloned().collect();
            random.pick(&messages).into_iter().for_each(|message| world.deliver_to_decode(&message));
        }
        32..39 => {
            let messages: Vec<_> = world.to_prefill.iter().cloned().collect();
            random.pick(&messages).into_iter().for_each(|message| world.deliver_to_prefill(&message));
        }
        _ => {
            if world.can_connect() {
                world.connect();
            }
        }
    }
}

fn run(seed: u64, steps: usize) -> Result<(), String> {
    let mut random = Random(seed);
    let window = Window { slots: 1 + random.below(3) as u32, transfers: 2 + random.below(3) as u32 };
    let size = Size { sequences: 4, pages_each: 1 + random.below(4) as u32, pool_pages: 6, window };
    let mut world = World::new(size);
    for at in 0..steps {
        step(&mut world, &mut random);
        if let Some((rule, why)) = &world.broken {
            return Err(format!("seed {seed}, step {at}: {rule:?}: {why}"));
        }
        if at % 97 == 0 {
            world.must_quiesce().map_err(|why| format!("seed {seed}, step {at}: {why}"))?;
        }
    }
    world.must_quiesce().map_err(|why| format!("seed {seed}, the end: {why}"))
}

#[test]
fn whatever_the_network_does_every_transfer_ends_once_and_right() {
    for seed in 0..1_500 {
        run(seed, 400).unwrap_or_else(|why| panic!("{why}"));
    }
}
