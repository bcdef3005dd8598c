//! The two machines of the hand-off against a world that keeps count: random schedules with seeds that replay, and a model check
//! of every schedule of small worlds up to a number of states; and numbers at the end of their range.

mod model;
mod numbers;
mod random;
mod world;
