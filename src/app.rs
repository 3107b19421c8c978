//! Composition root: builds, connects, starts, waits.

use std::process::ExitCode;

use crate::cli::PlaygroundArgs;
use crate::config::Config;

/// Runs the sidecar until it is told to end.
///
/// # Errors
/// When it cannot start.
pub fn run(config: Config) -> anyhow::Result<ExitCode> {
    let _ = config;
    anyhow::bail!("this build cannot run a sidecar: the application is not part of it")
}

/// Runs the playground until it is told to end.
///
/// # Errors
/// When it cannot start.
pub fn playground(arguments: &PlaygroundArgs) -> anyhow::Result<ExitCode> {
    let _ = arguments;
    anyhow::bail!("this build cannot run a playground: the application is not part of it")
}
