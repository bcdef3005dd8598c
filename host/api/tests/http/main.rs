//! The API over real sockets in front of a real node: a tiny checkpoint with random weights, so answers are noise, but every part
//! between the socket and the engine is the one that serves.

mod answers;
mod floods;
mod half_closed;
mod operations;
mod pages;
mod refusals;
mod support;
mod wire;
