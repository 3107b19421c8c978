//! What failures do to a feed: its condition, and the time to the next try. They never touch the cache (Rule D.2-6).

use std::time::Duration;

use crate::codec::status::{Failure, FailureKind};
use crate::feed::{Condition, Effect, Feed, Phase, Plan};
use crate::time::BootInstant;

impl Feed {
    /// Waits after `failure` and then does `then`; a type that is not found is looked up first.
    pub(super) fn wait(&mut self, now: BootInstant, failure: &Failure, then: Plan, effects: &mut Vec<Effect>) -> Phase {
        let then = match failure.kind {
            FailureKind::Unauthorized | FailureKind::Forbidden => {
                self.failing = None;
                self.move_to(Condition::Forbidden, &failure.message, effects);
                then
            }
            FailureKind::NotFound => {
                self.failing = None;
                self.move_to(Condition::NotServed, &failure.message, effects);
                Plan::Resolve
            }
            FailureKind::Expired
            | FailureKind::Conflict
            | FailureKind::TooManyRequests
            | FailureKind::Rejected
            | FailureKind::VersionTooLarge
            | FailureKind::Unavailable
            | FailureKind::Timeout
            | FailureKind::Transport
            | FailureKind::Undecodable => {
                let since = self.failing.take().map_or(now, |(since, _)| since);
                self.failing = Some((since, failure.to_string()));
                then
            }
        };
        if matches!(failure.kind, FailureKind::Transport | FailureKind::Timeout | FailureKind::Unavailable) {
            self.suspicious = true;
        }
        let delay = self.backoff.next(&mut self.prng, failure.retry_after);
        self.later(now, delay, then)
    }

    /// Waits for `delay`, and for the next watch to be allowed if one is wanted.
    pub(super) fn later(&self, now: BootInstant, delay: Duration, then: Plan) -> Phase {
        let watches = match &then {
            Plan::Resolve => false,
            Plan::List(listing) => self.lists_by_streaming(listing),
            Plan::Watch => true,
        };
        let allowed = self.watch_allowed_at().filter(|_| watches);
        Phase::Waiting((now + delay).max(allowed.unwrap_or(now)), then)
    }

    /// Changes the condition, and says so if it is another.
    pub(super) fn move_to(&mut self, to: Condition, why: &str, effects: &mut Vec<Effect>) {
        if self.condition != to {
            effects.push(Effect::Moved { from: self.condition, to, why: why.to_owned() });
            self.condition = to;
        }
    }

    /// Failing for a while is told; failing for a moment is not worth a frame (failure catalogue, row 7).
    pub(super) fn tell_when_disconnected(&mut self, now: BootInstant, effects: &mut Vec<Effect>) {
        if self.disconnected_at().is_some_and(|at| at <= now)
            && let Some((_, why)) = self.failing.clone()
        {
            self.move_to(Condition::Disconnected, &why, effects);
        }
    }

    /// The server does what it should: whatever was failing is over.
    pub(super) fn works(&mut self, now: BootInstant) {
        self.last_heard = Some(now);
        self.failing = None;
    }
}

/// The failure of a request that nothing came back for.
pub(super) fn no_answer() -> Failure {
    Failure::new(FailureKind::Timeout, "no answer within the deadline")
}
