//! Requests to the API server; the only folder that names Kubernetes client types.

pub mod client;
pub mod lease;
