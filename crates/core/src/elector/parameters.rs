//! The times of the election, with the relations that make it safe (docs/protocol.md, D.1 and F).

use std::fmt;
use std::time::Duration;

use crate::limits;

/// The times of the election. Made by [`Parameters::new`] only, so the relations hold wherever one is seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameters {
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
    candidate_jitter: Duration,
}

/// A time of the election that breaks a rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field} = {value:?}: {rule}")]
pub struct ParameterError {
    /// Which field.
    pub field: &'static str,
    /// Its value.
    pub value: Duration,
    /// The rule it breaks.
    pub rule: Rule,
}

/// What must hold of the times of the election.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Shorter times than a second leave no room for a request.
    AtLeastOneSecond,
    /// `spec.leaseDurationSeconds` is a whole number.
    WholeSeconds,
    /// Two clocks may differ in speed by this ratio before two leaders overlap.
    OneAndAHalfRenewDeadlines(Duration),
    /// Two tries must fail before the deadline does.
    TwoAndAHalfRetryPeriods(Duration),
    /// More would slow the takeover without any use.
    AtMostTheRetryPeriod(Duration),
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeastOneSecond => f.write_str("must be at least 1s"),
            Self::WholeSeconds => f.write_str("must be a whole number of seconds, at most 2147483647"),
            Self::OneAndAHalfRenewDeadlines(deadline) => {
                write!(f, "must be at least 1.5 times the renew deadline ({deadline:?})")
            }
            Self::TwoAndAHalfRetryPeriods(period) => {
                write!(f, "must be at least 2.5 times the retry period ({period:?})")
            }
            Self::AtMostTheRetryPeriod(period) => write!(f, "must be at most the retry period ({period:?})"),
        }
    }
}

impl Parameters {
    /// Checks the times: `lease_duration` L, `renew_deadline` D and `retry_period` P of Rule D.1.
    ///
    /// # Errors
    /// The first field that breaks a rule.
    pub fn new(
        lease_duration: Duration,
        renew_deadline: Duration,
        retry_period: Duration,
    ) -> Result<Self, ParameterError> {
        let second = Duration::from_secs(1);
        let fail = |field, value, rule| Err(ParameterError { field, value, rule });
        let fields =
            [("lease_duration", lease_duration), ("renew_deadline", renew_deadline), ("retry_period", retry_period)];
        for (field, value) in fields {
            if value < second {
                return fail(field, value, Rule::AtLeastOneSecond);
            }
        }
        if lease_duration.subsec_nanos() != 0 || i32::try_from(lease_duration.as_secs()).is_err() {
            return fail("lease_duration", lease_duration, Rule::WholeSeconds);
        }
        if 2 * lease_duration.as_nanos() < 3 * renew_deadline.as_nanos() {
            return fail("lease_duration", lease_duration, Rule::OneAndAHalfRenewDeadlines(renew_deadline));
        }
        if 2 * renew_deadline.as_nanos() < 5 * retry_period.as_nanos() {
            return fail("renew_deadline", renew_deadline, Rule::TwoAndAHalfRetryPeriods(retry_period));
        }
        // Enough to part a handful of candidates, little against the wait of L itself.
        let candidate_jitter = retry_period * 3 / 10;
        Ok(Self { lease_duration, renew_deadline, retry_period, candidate_jitter })
    }

    /// The same times with another bound of the candidates' jitter (default 0.3 P).
    ///
    /// # Errors
    /// When it is longer than the retry period.
    pub fn with_candidate_jitter(self, candidate_jitter: Duration) -> Result<Self, ParameterError> {
        if candidate_jitter > self.retry_period {
            let rule = Rule::AtMostTheRetryPeriod(self.retry_period);
            return Err(ParameterError { field: "candidate_jitter", value: candidate_jitter, rule });
        }
        Ok(Self { candidate_jitter, ..self })
    }

    /// L: how long candidates wait after the last change of the Lease.
    pub const fn lease_duration(&self) -> Duration {
        self.lease_duration
    }

    /// D: how long after *sending* a successful renewal a leader may emit.
    pub const fn renew_deadline(&self) -> Duration {
        self.renew_deadline
    }

    /// P: time between two renewals.
    pub const fn retry_period(&self) -> Duration {
        self.retry_period
    }

    /// Candidates wait up to this long more, each another time, before they write.
    pub const fn candidate_jitter(&self) -> Duration {
        self.candidate_jitter
    }
}

impl Default for Parameters {
    fn default() -> Self {
        Self::new(limits::LEASE_DURATION_DEFAULT, limits::RENEW_DEADLINE_DEFAULT, limits::RETRY_PERIOD_DEFAULT)
            .expect("the relations of the defaults are asserted in limits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lease: u64, renew: u64, retry: u64) -> Result<Parameters, ParameterError> {
        Parameters::new(Duration::from_millis(lease), Duration::from_millis(renew), Duration::from_millis(retry))
    }

    #[test]
    fn each_rule_names_field_value_and_bound() {
        assert!(check(15_000, 10_000, 2_000).is_ok());
        assert!(check(6_000, 4_000, 1_000).is_ok());
        let text = |result: Result<Parameters, ParameterError>| result.unwrap_err().to_string();
        assert_eq!(text(check(15_000, 10_000, 900)), "retry_period = 900ms: must be at least 1s");
        assert_eq!(
            text(check(15_500, 10_000, 2_000)),
            "lease_duration = 15.5s: must be a whole number of seconds, at most 2147483647"
        );
        assert_eq!(
            text(check(15_000, 20_000, 2_000)),
            "lease_duration = 15s: must be at least 1.5 times the renew deadline (20s)"
        );
        assert_eq!(
            text(check(15_000, 10_000, 5_000)),
            "renew_deadline = 10s: must be at least 2.5 times the retry period (5s)"
        );
        let jitter = Parameters::default().with_candidate_jitter(Duration::from_secs(3));
        assert_eq!(text(jitter), "candidate_jitter = 3s: must be at most the retry period (2s)");
    }
}
