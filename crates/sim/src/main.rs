//! Deterministic simulation of the shipped state machines against the model of the API server.
//!
//! ```text
//! sidewatch-sim --seeds 1000             many seeds, profiles in turn
//! sidewatch-sim --seed 7 --profile crash one run
//! sidewatch-sim --seed 7 --trace         what happens in it
//! ```
//!
//! One seed gives one run, always the same. Reading order: `world`, `network`, `host`, `consumer`, `faults`, `checkers`.

mod checkers;
mod consumer;
mod faults;
mod host;
mod mutations;
mod network;
#[cfg(test)]
mod tests;
mod truth;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::faults::Profile;
use crate::world::{Report, Tracing, World};

/// Of so many runs one is done twice, to compare the traces (I16).
const TWICE_EVERY: u64 = 16;
/// Failing seeds that are described; the others are counted.
const FAILURES_SHOWN_MAX: usize = 10;

/// What the command line asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Arguments {
    from: u64,
    seeds: u64,
    profile: Option<Profile>,
    tracing: Tracing,
}

fn arguments(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments { from: 0, seeds: 100, profile: None, tracing: Tracing::Hash };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{word} = {text:?}: not a number"));
        match word.as_str() {
            "--seed" => {
                arguments.from = number(value()?)?;
                arguments.seeds = 1;
            }
            "--seeds" => arguments.seeds = number(value()?)?,
            "--from" => arguments.from = number(value()?)?,
            "--profile" => {
                let name = value()?;
                let known = Profile::ALL.map(|profile| profile.to_string()).join(", ");
                let profile = Profile::parse(&name).ok_or(format!("--profile = {name:?}: there are {known}"))?;
                arguments.profile = Some(profile);
            }
            "--trace" => arguments.tracing = Tracing::Print,
            _ => return Err(format!("{word:?} is not known: --seed, --seeds, --from, --profile, --trace")),
        }
    }
    Ok(arguments)
}

/// The profile of a seed when none is asked for.
fn profile_of(seed: u64) -> Profile {
    Profile::ALL[(seed % Profile::ALL.len() as u64) as usize]
}

/// One run; an invariant that a machine finds broken is a violation like any other.
fn run(seed: u64, profile: Profile, tracing: Tracing) -> Report {
    let run = || World::new(seed, profile, tracing).run();
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Report {
            hash: 0,
            checks: 0,
            violations: vec![format!("panic: {}", text.unwrap_or_default())],
            lasted: Duration::ZERO,
            events: 0,
            acquisitions: 0,
            snapshots: 0,
            exact: 0,
        }
    })
}

/// Sums over all runs.
#[derive(Default, Debug)]
struct Totals {
    runs: u64,
    checks: u64,
    events: u64,
    acquisitions: u64,
    snapshots: u64,
    exact: u64,
    lasted: Duration,
    violations: u64,
    failures: usize,
}

impl Totals {
    fn add(&mut self, report: &Report) {
        self.runs += 1;
        self.checks += report.checks;
        self.events += report.events;
        self.acquisitions += report.acquisitions;
        self.snapshots += report.snapshots;
        self.exact += report.exact;
        self.lasted += report.lasted;
        self.violations += report.violations.len() as u64;
    }
}

fn main() -> ExitCode {
    let arguments = match arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    // A broken invariant is reported with its seed, not where it is found.
    std::panic::set_hook(Box::new(|_| ()));
    let begun = Instant::now();
    let mut totals = Totals::default();
    for seed in arguments.from..arguments.from + arguments.seeds {
        let profile = arguments.profile.unwrap_or_else(|| profile_of(seed));
        let mut report = run(seed, profile, arguments.tracing);
        if seed.is_multiple_of(TWICE_EVERY) && report.violations.is_empty() && arguments.tracing == Tracing::Hash {
            let again = run(seed, profile, Tracing::Hash);
            if again.hash != report.hash {
                report.violations.push("I16: two runs of one seed differ\n  promised: one seed, one trace".to_owned());
            }
        }
        totals.add(&report);
        if !report.violations.is_empty() {
            totals.failures += 1;
            if totals.failures <= FAILURES_SHOWN_MAX {
                println!("seed {seed}, profile {profile}:");
                report.violations.iter().for_each(|violation| println!("  {violation}"));
                println!("  replay: cargo run --release -p sidewatch-sim -- --seed {seed} --profile {profile}");
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "runs {} ({:.0} per second), failing {}, simulated {:.1} h, events {}, acquisitions {}, snapshots {}, exact states {}",
        totals.runs,
        totals.runs as f64 / seconds,
        totals.failures,
        totals.lasted.as_secs_f64() / 3600.0,
        totals.events,
        totals.acquisitions,
        totals.snapshots,
        totals.exact,
    );
    println!("result: sim seeds={} checks={} violations={}", totals.runs, totals.checks, totals.violations);
    if totals.violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
