//! The sidecar against a real kube-apiserver. Run by `make it`; each test has a cluster of its own.
//!
//! `agreement` runs the list of `conformance`, which the model has to pass as well. `server` asks the API server itself whether what docs/protocol.md assumes of it is true, `samples` puts the
//! judges themselves to the test. The others start the
//! shipped program and compare what its consumers were told with a plain list and watch.

mod agreement;
mod clients;
mod conformance;
mod consume;
mod election;
mod faults;
mod manifest;
mod samples;
mod server;
mod support;
mod watch;
