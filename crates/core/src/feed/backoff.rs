//! Delays between tries: exponential, with full jitter, and the server's wish as a lower bound (D.2, row Backoff).

use std::time::Duration;

use crate::limits::{BACKOFF, RETRY_AFTER_MAX};
use crate::prng::Prng;

/// The delays of one feed, or of one probe.
#[derive(Clone, Debug, Default)]
pub struct Backoff {
    failures: u32,
    last: Duration,
}

impl Backoff {
    /// Counts a failure and draws the delay before the next try. `retry_after` comes on top of which the jitter is
    /// drawn: it is a lower bound, and the many that got the same wish must not return together.
    pub fn next(&mut self, prng: &mut Prng, retry_after: Option<Duration>) -> Duration {
        let (first, longest) = BACKOFF;
        let ceiling = first.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures = self.failures.saturating_add(1);
        self.last = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX) + prng.between(Duration::ZERO, ceiling);
        self.last
    }

    /// Counts a failure whose remedy may start at once when nothing failed before it; else as [`Backoff::next`].
    pub fn next_unless_rested(&mut self, prng: &mut Prng) -> Duration {
        let rested = self.is_rested();
        let delay = self.next(prng, None);
        if rested { Duration::ZERO } else { delay }
    }

    /// Whether nothing has failed since the last reset.
    pub const fn is_rested(&self) -> bool {
        self.failures == 0
    }

    /// The newest delay drawn, zero when rested.
    pub const fn last(&self) -> Duration {
        self.last
    }

    /// Health was long enough: the next delay is the first again.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_start_again_after_a_reset() {
        let mut prng = Prng::new(1);
        let highest = |failures: u32, prng: &mut Prng| {
            (0..2000).map(|_| Backoff { failures, last: Duration::ZERO }.next(prng, None)).max().unwrap()
        };
        for (failures, ceiling) in [(0, 0.8), (1, 1.6), (2, 3.2), (5, 25.6), (6, 30.0), (1000, 30.0)] {
            let drawn = highest(failures, &mut prng).as_secs_f64();
            assert!(drawn <= ceiling && drawn > ceiling * 0.98, "{failures}: {drawn}");
        }
        let mut backoff = Backoff::default();
        backoff.next(&mut prng, None);
        assert!(!backoff.is_rested());
        backoff.reset();
        assert!(backoff.is_rested() && backoff.last() == Duration::ZERO);
    }

    #[test]
    fn the_wish_of_the_server_is_a_lower_bound_within_reason() {
        let mut prng = Prng::new(1);
        for _ in 0..100 {
            let delay = Backoff::default().next(&mut prng, Some(Duration::from_secs(7)));
            assert!(delay >= Duration::from_secs(7) && delay <= Duration::from_millis(7800));
        }
        assert!(Backoff::default().next(&mut prng, Some(Duration::MAX)) <= RETRY_AFTER_MAX + BACKOFF.0);
    }
}
