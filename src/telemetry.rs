//! Logs: the subscriber. Metrics are in [`metrics`].

pub mod metrics;
#[cfg(test)]
mod runbook;

use std::io::IsTerminal as _;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{Log, LogFormat};

/// Sends logs to standard error from here on, in colour when that is a terminal. Called once, by `main`'s side of the
/// application, before anything logs.
///
/// # Errors
/// When the filter does not parse, which validation excludes, or when a subscriber is already there.
pub fn init(log: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&*log.filter).with_context(|| format!("log.level = {}", log.filter))?;
    // The client logs each connection that cannot be made as an error; what we make of it is logged as a feed's state.
    let quiet = "kube_client=off".parse().context("a directive of ours")?;
    let filter = if log.filter.contains("kube_client") { filter } else { filter.add_directive(quiet) };
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let result = match log.format {
        LogFormat::Text => subscriber.with_ansi(std::io::stderr().is_terminal()).finish().try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).with_current_span(false).finish().try_init(),
    };
    result.context("logs can be set up once only")
}
