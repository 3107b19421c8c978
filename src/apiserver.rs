//! The Kubernetes API server: requests in, decoded answers out. The only folder that names its client's types.

pub mod client;
pub mod discovery;
pub mod lease;
pub mod list;
pub mod watch;
