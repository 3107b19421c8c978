//! The simulation as a test: a few seeds of each profile, every seed that ever failed, and one trace for one seed.

use super::*;

/// Seeds per profile: seconds in all, even without optimization.
const SEEDS: u64 = 2;

fn assert_promises(seed: u64, profile: Profile) {
    let report = run(seed, profile, Tracing::Hash);
    let replay = format!("cargo run --release -p sidewatch-sim -- --seed {seed} --profile {profile} --trace");
    assert!(report.violations.is_empty(), "{}\nreplay: {replay}", report.violations.join("\n"));
    assert!(report.checks > 0, "seed {seed} of {profile} checks nothing");
}

#[test]
fn every_profile_keeps_the_promises() {
    for profile in Profile::ALL {
        (0..SEEDS).for_each(|seed| assert_promises(seed, profile));
    }
}

/// Lines of `testdata/seeds.txt`: profile, seed, and behind a `#` what it showed.
#[test]
fn seeds_that_failed_once_keep_the_promises() {
    let mut replayed = 0;
    for line in include_str!("../testdata/seeds.txt").lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (profile, seed) = line.split_once(' ').expect("profile and seed");
        assert_promises(seed.trim().parse().expect("a number"), Profile::parse(profile).expect("a profile"));
        replayed += 1;
    }
    assert!(replayed > 0);
}

#[test]
fn one_seed_gives_one_trace() {
    for profile in [Profile::Mixed, Profile::Lease, Profile::Rewind] {
        assert_eq!(run(3, profile, Tracing::Hash).hash, run(3, profile, Tracing::Hash).hash, "{profile}");
    }
    assert_ne!(run(3, Profile::Mixed, Tracing::Hash).hash, run(4, Profile::Mixed, Tracing::Hash).hash);
}

#[test]
fn the_command_line_is_read() {
    let read = |text: &str| arguments(text.split_whitespace().map(str::to_owned));
    let one = Arguments { from: 7, seeds: 1, profile: Some(Profile::Crash), tracing: Tracing::Print };
    assert_eq!(read("--seed 7 --profile crash --trace"), Ok(one));
    for wrong in ["--seed", "--seed x", "--profile storm", "seeds"] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}
