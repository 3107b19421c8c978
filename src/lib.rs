//! The sidecar: I/O shell around `sidewatch-core`.
//!
//! The modules stand in the order in which a newcomer should read them.

pub mod app;

pub mod cli;
pub mod config;

pub mod clock;

pub mod apiserver;
// pub mod driver;

pub mod delivery;
pub mod grpc;

pub mod tail;

pub mod playground;
