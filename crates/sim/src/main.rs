//! Deterministic simulation of the shipped state machines.
fn main() {}
