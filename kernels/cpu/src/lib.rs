//! The CPU backend: memory, a worker pool, and every operation of `millrace-ops` in portable Rust and in AVX2 and AVX-512.
//!
//! It does not know models, requests or policies; it runs lists of operations over buffers it made.

mod backend;
mod barrier;
mod isa;
mod kv_block;
pub mod linear;
mod memory;
mod operation_times;
mod ops;
mod philox;
mod pool;
mod queue;
mod shares;
mod simd;
mod strict;
mod task;
mod threads;

pub use backend::{CpuBackend, CpuOptions, MAX_THREADS};
pub use isa::Isa;
pub use linear::CpuCompute;
pub use strict::StrictBackend;
pub use threads::available_threads;
