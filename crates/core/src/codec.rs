//! Bytes from outside, and back: what the API server sends, what the Lease holds, what a client keeps.
//!
//! Decoding never panics and never guesses: what cannot be understood is an error that says where.

pub mod checkpoint;
pub mod cursor;
mod json_scan;
pub mod lease;
pub mod lines;
pub mod list_page;
pub mod status;
pub mod watch_event;
