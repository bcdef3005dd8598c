//! The two machines of the hand-off against a world that keeps count: random schedules with seeds that replay, and a model check
//! of every schedule of small worlds up to a number of states.

mod model;
mod random;
mod world;
