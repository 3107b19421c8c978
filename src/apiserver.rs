//! The API server: requests out, inputs in. The only folder that names kube and k8s-openapi.

pub mod client;
pub mod discovery;
pub mod list;
pub mod watch;
