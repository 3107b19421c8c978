//! A pure model of the Kubernetes API server: one [`server::ApiServer`] value that answers requests.
//!
//! It exists so that lists, watches and leases can be tested without a cluster: the simulator drives
//! it in virtual time, the playground serves it over HTTP, the fault tests let it misbehave by rule.
//! It reads no clock, opens no socket and draws no number that was not seeded; time is the first
//! argument of every call. `tests/conformance` holds it and a real kube-apiserver to the same list.
//!
//! ```text
//! Request ─▶ request (path, query) ─▶ write ─▶ history ─▶ window ─▶ watch ─▶ lines
//!                                   └▶ list, discovery ─▶ Response
//! ```
//!
//! What it is not: it has no admission, no schemas, no access control, one storage version per
//! custom resource, and no controllers besides what the deletion of a namespace needs.

pub mod server;

pub mod request;
pub mod script;

pub mod history;
pub mod list;
pub mod watch;
pub mod window;

pub mod discovery;
pub mod write;

pub mod managed_fields;
pub mod object;
pub mod resource;
pub mod selector;
pub mod status;

pub mod prng;
pub mod time;
