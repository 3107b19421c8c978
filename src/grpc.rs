//! gRPC.

pub mod pb;
pub mod status;
