//! What owns the machines and does what they want.

pub mod elector;
pub mod feed_watch;
pub mod replica;
