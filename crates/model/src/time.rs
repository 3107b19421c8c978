//! Wall time as text. The model is told the time; it never asks for it.

/// Formats microseconds since 1970 as RFC 3339 with whole seconds, the form of `creationTimestamp`.
pub fn rfc3339_seconds(micros: i64) -> String {
    let seconds = micros.div_euclid(1_000_000);
    let (days, second_of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Turns days since 1970 into year, month and day of the Gregorian calendar. The year is taken to
/// begin in March, so that the leap day is its last one.
fn civil_date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::rfc3339_seconds;

    #[test]
    fn dates_around_leap_days_are_right() {
        assert_eq!(rfc3339_seconds(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339_seconds(951_782_400_999_999), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339_seconds(1_772_323_199_000_000), "2026-02-28T23:59:59Z");
        assert_eq!(rfc3339_seconds(1_772_323_200_000_000), "2026-03-01T00:00:00Z");
    }
}
