//! Code made from `proto/sidewatch/v1/sidewatch.proto`; the comments are there.
#![allow(missing_docs, unreachable_pub, clippy::all)]

tonic::include_proto!("sidewatch.v1");
