//! The command: parse, load, run, exit code.

use std::process::ExitCode;

use clap::Parser as _;
use sidewatch::cli::{Cli, Command, RunArgs};
use sidewatch::config::Config;
use sidewatch::{app, playground, tail};

/// Status when the configuration or the command line is invalid, as clap has it.
const INVALID: u8 = 2;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(arguments) => run(&arguments),
        Command::Playground(arguments) => playground::command::run(&arguments),
        Command::Tail(arguments) => tail::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("sidewatch: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(arguments: &RunArgs) -> anyhow::Result<ExitCode> {
    match Config::load(&arguments.flags) {
        Err(error) => {
            eprintln!("{error:#}");
            Ok(ExitCode::from(INVALID))
        }
        Ok(config) if arguments.check => {
            print!("{}", config.to_yaml());
            Ok(ExitCode::SUCCESS)
        }
        Ok(config) => app::run(config),
    }
}
