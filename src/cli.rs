//! The command line as typed. What the keys of `run` mean is decided in [`crate::config`].

use std::net::SocketAddr;

use clap::{Args, Parser, Subcommand};

use crate::config::raw::Flags;
use crate::tail::TailArgs;

/// The Kubernetes watch as a sidecar: leader election, lossless list and watch, and a gRPC stream for any language.
#[derive(Parser, Debug)]
#[command(name = "sidewatch", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Watch resources and serve their changes to the application in the same pod.
    ///
    /// Every key can also stand in a YAML file (--config) or in the environment; flags win over the environment, and
    /// the environment over the file. Ends with status 2 when the configuration is invalid.
    Run(Box<RunArgs>),
    /// Try sidewatch without a cluster: a make-believe API server with objects that change, and a sidecar on it.
    Playground(PlaygroundArgs),
    /// Follow a subscription of a running sidecar: coloured on a terminal, one JSON object a line in a pipe.
    Tail(TailArgs),
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Validate, print the effective configuration as YAML, and end: status 0 when it is valid, 2 when not.
    #[arg(long)]
    pub check: bool,
    /// Keys of the configuration.
    #[command(flatten)]
    pub flags: Flags,
}

/// Arguments of `playground`.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct PlaygroundArgs {
    /// Where the make-believe API server listens.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8001")]
    pub server_listen: SocketAddr,
    /// Where the gRPC services of the sidecar listen.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50151")]
    pub listen: SocketAddr,
    /// Where probes and metrics are served.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9151")]
    pub http_listen: SocketAddr,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::config::keys::{KEYS, Shape};

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_names_every_flag_variable_and_default() {
        let mut command = Cli::command();
        let run = command.find_subcommand_mut("run").unwrap();
        let help = run.render_help().to_string();
        for key in KEYS.iter().filter(|key| key.shape != Shape::FileOnly) {
            assert!(help.contains(&format!("--{}", key.flag)), "{}", key.flag);
            assert!(help.contains(key.env), "{}", key.env);
            assert!(help.contains(key.default), "{}", key.default);
        }
    }
}
