//! x
#[path = "../it/support/mod.rs"]
mod support;
fn main() {}
