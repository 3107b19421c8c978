//! Owns the machines: receives inputs, calls `step`, passes effects to channels.

pub mod feed_watch;
