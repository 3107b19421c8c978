//! The sidecar: I/O shell around `sidewatch-core`.

pub mod playground;
