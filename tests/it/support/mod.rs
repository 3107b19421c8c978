//! What the tests against a real API server are made of: a cluster, an admin, sidecars, consumers.
//!
//! Nothing here uses sidewatch's code: the generated API apart, the tests see what a user sees.

// `it` and `e2e` share this folder; neither uses all of it.
#![allow(dead_code)]

pub(crate) mod admin;
pub(crate) mod cluster;
pub(crate) mod consumer;
pub(crate) mod history;
pub(crate) mod link;
pub(crate) mod process;
pub(crate) mod sidecar;
pub(crate) mod store;

/// The API as its clients have it, compiled from `proto/` and not taken from the sidecar's own modules.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub(crate) mod pb {
    tonic::include_proto!("sidewatch.v1");
}

use std::future::Future;
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(50);

/// Waits until `condition` holds. Panics at the deadline with what was waited for and the state that `condition` last told.
pub(crate) async fn wait_for<F>(what: &str, deadline: Duration, mut condition: impl FnMut() -> F)
where
    F: Future<Output = Result<(), String>>,
{
    let begin = Instant::now();
    loop {
        match condition().await {
            Ok(()) => return,
            Err(state) => assert!(begin.elapsed() < deadline, "waited {deadline:?} for {what}; now: {state}"),
        }
        tokio::time::sleep(POLL).await;
    }
}

/// `Ok` when `holds`, else the state for the message.
pub(crate) fn check(holds: bool, state: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(state()) }
}
