//! Tests of packing and products: every tensor format, weight format, instruction set and tile size against f64.

mod case;
mod lookup;
mod packing;
mod products;
mod tensors;
