//! Tests of the tokenizer crate from outside, in one binary. Each module says what it holds.

mod bombs;
mod common;
mod hub;
mod roundtrip;
mod smollm2;
mod template;
