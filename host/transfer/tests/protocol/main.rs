//! The two machines of the hand-off against a world that keeps count: random schedules with seeds that replay.

mod random;
mod world;
