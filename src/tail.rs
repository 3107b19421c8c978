//! `sidewatch tail`: follows a subscription for people.

use std::process::ExitCode;

/// Arguments of `tail`.
#[derive(clap::Args, Clone, Debug)]
pub struct TailArgs {}

/// Follows.
///
/// # Errors
/// Always.
pub fn run(_: &TailArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not part of this build")
}
