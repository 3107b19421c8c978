//! Owners of the machines: they read the clock, call `step`, and pass effects on.

pub mod elector;
