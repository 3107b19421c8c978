//! The sidecar: I/O shell around `sidewatch-core`.
