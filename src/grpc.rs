//! The gRPC side.

pub mod pb;
