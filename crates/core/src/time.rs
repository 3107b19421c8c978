//! Time as data: an instant of the boot clock for logic, a wall time for people.
//!
//! Neither type can be asked for "now"; the shell reads `CLOCK_BOOTTIME` once per step and passes it in.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds of the boot clock, which goes on while the machine is suspended and never steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BootInstant(u64);

impl BootInstant {
    /// The instant `nanos` nanoseconds after boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to here; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    /// Saturates at the end of time, so that "never" can be a very long duration.
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for BootInstant {
    type Output = Self;

    /// Saturates at boot.
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Microseconds since the Unix epoch: for display and for the Lease's timestamps, never for logic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WallTime(i64);

impl WallTime {
    /// The time `micros` microseconds after 1970-01-01T00:00:00Z.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970-01-01T00:00:00Z.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Reads an RFC 3339 time in UTC, with any number of fraction digits; none when it is not one.
    ///
    /// Covers what the API server writes (`Time` and `MicroTime`, always `Z`).
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let number = |range: std::ops::Range<usize>| -> Option<i64> {
            let digits = bytes.get(range)?;
            digits.iter().try_fold(0_i64, |n, b| b.is_ascii_digit().then(|| n * 10 + i64::from(b - b'0')))
        };
        let mark = |at: usize, byte: u8| bytes.get(at).is_some_and(|b| b.eq_ignore_ascii_case(&byte));
        let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
        let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
        if !(mark(4, b'-') && mark(7, b'-') && mark(10, b'T') && mark(13, b':') && mark(16, b':')) {
            return None;
        }
        let in_range = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60;
        if !in_range {
            return None;
        }
        let mut at = 19;
        let mut micros = 0;
        if mark(at, b'.') {
            let digits = bytes[at + 1..].iter().take_while(|b| b.is_ascii_digit()).count();
            let kept = digits.min(6);
            micros = number(at + 1..at + 1 + kept)? * 10_i64.pow(6 - kept as u32);
            at += 1 + digits;
            if digits == 0 {
                return None;
            }
        }
        (mark(at, b'Z') && at + 1 == bytes.len()).then(|| {
            let seconds = ((days_from_civil(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
            Self(seconds * 1_000_000 + micros)
        })
    }
}

impl fmt::Display for WallTime {
    /// RFC 3339 in UTC with exactly six fraction digits, the form `MicroTime` demands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0.div_euclid(1_000_000), self.0.rem_euclid(1_000_000));
        let (days, in_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil_from_days(days);
        let (hour, minute, second) = (in_day / 3600, in_day / 60 % 60, in_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

/// Days since 1970-01-01 of a date of the proleptic Gregorian calendar, counted in 400-year cycles from March.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let cycle = year.div_euclid(400);
    let year_of_cycle = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    cycle * 146_097 + year_of_cycle * 365 + year_of_cycle / 4 - year_of_cycle / 100 + day_of_year - 719_468
}

/// The inverse of [`days_from_civil`].
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let cycle = shifted.div_euclid(146_097);
    let day_of_cycle = shifted.rem_euclid(146_097);
    let year_of_cycle = (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_cycle + cycle * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_has_exactly_six_fraction_digits() {
        assert_eq!(WallTime::from_micros(0).to_string(), "1970-01-01T00:00:00.000000Z");
        assert_eq!(WallTime::from_micros(1_796_126_400_000_001).to_string(), "2026-12-01T12:00:00.000001Z");
        assert_eq!(WallTime::from_micros(-1).to_string(), "1969-12-31T23:59:59.999999Z");
    }

    #[test]
    fn wall_time_round_trips_through_text() {
        for micros in (-2_000_000_000_000_000..9_000_000_000_000_000).step_by(7_777_777_777_777) {
            let time = WallTime::from_micros(micros);
            assert_eq!(WallTime::parse_rfc3339(&time.to_string()), Some(time));
        }
    }

    #[test]
    fn wall_time_reads_what_the_server_writes_and_nothing_else() {
        let seconds = WallTime::parse_rfc3339("2026-12-01T12:00:00Z");
        assert_eq!(seconds, WallTime::parse_rfc3339("2026-12-01T12:00:00.000000000Z"));
        assert!(seconds.is_some());
        for text in ["", "2026-12-01", "2026-13-01T12:00:00Z", "2026-12-01T12:00:00", "2026-12-01T12:00:00.Z", "now"] {
            assert_eq!(WallTime::parse_rfc3339(text), None, "{text}");
        }
    }
}
