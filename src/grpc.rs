//! gRPC.

pub mod frames;
pub mod pb;
pub mod status;
