//! The only reader of clocks. Everything else is given the time.

use sidewatch_core::replica::Now;
use sidewatch_core::time::{BootInstant, WallTime};

/// Reads the boot clock, which goes on while the machine is suspended, and the wall clock, for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// Both clocks, at this moment.
    pub fn now(self) -> Now {
        Now { boot: self.boot(), wall: self.wall() }
    }

    /// `CLOCK_BOOTTIME`. `std::time::Instant` does not count suspension (rust-lang/rust#87906).
    pub fn boot(self) -> BootInstant {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // Both parts are never negative on this clock.
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        BootInstant::from_nanos(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
    }

    /// `CLOCK_REALTIME`.
    pub fn wall(self) -> WallTime {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        WallTime::from_micros(time.tv_sec * 1_000_000 + time.tv_nsec / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_goes_forward_and_the_wall_clock_is_of_this_century() {
        let clock = Clock;
        let (first, second) = (clock.boot(), clock.boot());
        assert!(BootInstant::default() < first && first <= second);
        let year_2020 = WallTime::parse_rfc3339("2020-01-01T00:00:00Z");
        assert!(Some(clock.wall()) > year_2020);
    }
}
