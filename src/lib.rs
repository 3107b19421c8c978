//! The sidecar: I/O shell around `sidewatch-core`.

pub mod clock;

pub mod apiserver;

pub mod driver;
