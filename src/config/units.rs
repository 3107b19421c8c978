//! Durations and amounts of bytes as people write them, both ways.

use std::time::Duration;

/// Milliseconds of each unit of time, largest first.
const TIME_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
/// Bytes of each unit, in the order in which [`bytes_text`] tries them.
const BYTE_UNITS: [(&str, u64); 6] =
    [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10), ("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)];

/// Reads `15s`, `500ms`, `1m30s`.
///
/// # Errors
/// The rule that the text breaks.
pub fn duration(text: &str) -> Result<Duration, &'static str> {
    const RULE: &str = "must be a whole number with a unit (ms, s, m or h), such as 500ms, 15s or 1m30s";
    let mut rest = text;
    let mut milliseconds: u64 = 0;
    let mut smaller_than = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = rest[..digits].parse().map_err(|_| RULE)?;
        rest = &rest[digits..];
        let letters = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let unit = TIME_UNITS.iter().find(|(name, _)| *name == &rest[..letters]).ok_or(RULE)?.1;
        rest = &rest[letters..];
        if unit >= smaller_than {
            return Err(RULE);
        }
        smaller_than = unit;
        milliseconds = number.checked_mul(unit).and_then(|part| milliseconds.checked_add(part)).ok_or(RULE)?;
    }
    if text.is_empty() { Err(RULE) } else { Ok(Duration::from_millis(milliseconds)) }
}

/// Writes a duration in the form that [`duration()`] reads, to the millisecond.
pub fn duration_text(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (name, unit) in TIME_UNITS {
        if rest >= unit {
            text.push_str(&format!("{}{name}", rest / unit));
            rest %= unit;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Reads `64Mi`, `500M`, `1048576`.
///
/// # Errors
/// The rule that the text breaks.
pub fn bytes(text: &str) -> Result<u64, &'static str> {
    const RULE: &str = "must be a whole number of bytes, or one with Ki, Mi, Gi, k, M or G, such as 64Mi";
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number: u64 = text[..digits].parse().map_err(|_| RULE)?;
    let unit = match &text[digits..] {
        "" => 1,
        suffix => BYTE_UNITS.iter().find(|(name, _)| *name == suffix).ok_or(RULE)?.1,
    };
    number.checked_mul(unit).ok_or(RULE)
}

/// Writes an amount in the form that [`bytes()`] reads.
pub fn bytes_text(bytes: u64) -> String {
    match BYTE_UNITS.iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_are_required_and_in_order() {
        assert_eq!(duration("1m30s").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("0s").unwrap(), Duration::ZERO);
        for text in ["", "15", "s", "1.5s", "-1s", "1s1m", "1s1s", "15 s", "1d", "99999999999999999h"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
        assert_eq!(bytes("64Mi").unwrap(), 64 << 20);
        for text in ["", "Mi", "64mi", "6.4Mi", "64 Mi", "64MiB", "99999999999Gi"] {
            assert!(bytes(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn texts_are_read_back(milliseconds in 0u64..1 << 40, amount in 0u64..1 << 50) {
            let time = Duration::from_millis(milliseconds);
            prop_assert_eq!(duration(&duration_text(time)).unwrap(), time);
            prop_assert_eq!(bytes(&bytes_text(amount)).unwrap(), amount);
        }

        #[test]
        fn any_text_is_answered(text in "\\PC{0,20}") {
            let _ = (duration(&text), bytes(&text));
        }
    }
}
