//! The only reader of clocks.

use rustix::time::{ClockId, Timespec, clock_gettime};
use sidewatch_core::time::{BootInstant, WallTime};

/// The boot clock, which goes on while the machine is suspended (`std::time::Instant` does not).
pub fn now() -> BootInstant {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(tv_sec).unwrap_or(0), u64::try_from(tv_nsec).unwrap_or(0));
    BootInstant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// The wall clock: for display and for the Lease's timestamps.
pub fn wall() -> WallTime {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Realtime);
    WallTime::from_micros(tv_sec.saturating_mul(1_000_000).saturating_add(tv_nsec / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_does_not_run_backwards_and_the_wall_clock_is_of_this_century() {
        let before = now();
        assert!(now() >= before && before.as_nanos() > 0);
        assert!(wall().to_string().starts_with("20"));
    }
}
