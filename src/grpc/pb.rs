//! Code generated from proto/ by build.rs, and the descriptor set behind reflection.

// The comments of the .proto become the documentation; the service modules around them have none.
#![allow(missing_docs, unreachable_pub, clippy::all)]

tonic::include_proto!("sidewatch.v1");

/// The compiled `.proto` files, with what they import.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sidewatch.v1.bin"));
