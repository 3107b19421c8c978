//! The sidecar: I/O shell around `sidewatch-core`.

pub mod delivery;
pub mod grpc;
