//! What was delivered and not acked: the window that holds delivery back.

use std::collections::VecDeque;
use std::time::Duration;

use crate::resource_version::ResourceVersion;
use crate::time::BootInstant;

/// Frames with events that reached a position and are not acked, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Unacked {
    frames: VecDeque<Mark>,
    events: u64,
}

/// One frame: acked as soon as every position it reached is.
#[derive(Clone, Debug)]
struct Mark {
    reached: Vec<(usize, ResourceVersion)>,
    events: u64,
    sent_at: BootInstant,
}

impl Unacked {
    /// Notes a frame that reached positions (feed, version) after `events` events.
    ///
    /// Events of a group count when the group closes: before that there is no cursor a client could ack, and holding
    /// delivery back would hold it for ever.
    pub fn sent(&mut self, reached: Vec<(usize, ResourceVersion)>, events: u64, sent_at: BootInstant) {
        if events > 0 {
            self.events += events;
            self.frames.push_back(Mark { reached, events, sent_at });
        }
    }

    /// Forgets every frame from the front that `acked` covers: given a feed, its acked position.
    pub fn acked<'a>(&mut self, acked: impl Fn(usize) -> Option<&'a ResourceVersion>) {
        let covered = |mark: &Mark| {
            mark.reached.iter().all(|(feed, position)| acked(*feed).is_some_and(|acked| acked.reaches(position)))
        };
        while self.frames.front().is_some_and(covered) {
            self.events -= self.frames.pop_front().map_or(0, |mark| mark.events);
        }
    }

    /// Forgets a feed: its positions were given up, and no ack can cover what was sent of it.
    pub fn forget(&mut self, feed: usize) {
        for mark in &mut self.frames {
            mark.reached.retain(|(reached, _)| *reached != feed);
        }
        self.frames.retain(|mark| !mark.reached.is_empty());
        self.events = self.frames.iter().map(|mark| mark.events).sum();
    }

    /// Events delivered and not acked.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Whether a frame of this feed is still to be acked.
    pub fn any_of(&self, feed: usize) -> bool {
        self.frames.iter().any(|mark| mark.reached.iter().any(|(reached, _)| *reached == feed))
    }

    /// Age of the oldest frame that is not acked.
    pub fn oldest_age(&self, now: BootInstant) -> Option<Duration> {
        self.frames.front().map(|mark| now.since(mark.sent_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_covers_every_frame_up_to_it() {
        let now = BootInstant::from_nanos(5);
        let mut unacked = Unacked::default();
        unacked.sent(vec![(0, 10_u64.into())], 3, BootInstant::from_nanos(1));
        unacked.sent(vec![(0, 12_u64.into()), (1, 7_u64.into())], 2, BootInstant::from_nanos(2));
        unacked.sent(vec![(1, 9_u64.into())], 1, BootInstant::from_nanos(3));
        assert_eq!((unacked.events(), unacked.oldest_age(now)), (6, Some(Duration::from_nanos(4))));
        let (twelve, seven) = (ResourceVersion::from(12), ResourceVersion::from(7));
        unacked.acked(|feed| (feed == 0).then_some(&twelve));
        assert_eq!(unacked.events(), 3, "the second frame waits for its other feed");
        unacked.acked(|feed| Some(if feed == 0 { &twelve } else { &seven }));
        assert_eq!((unacked.events(), unacked.any_of(0), unacked.any_of(1)), (1, false, true));
    }

    #[test]
    fn a_feed_that_was_given_up_is_owed_no_ack() {
        let mut unacked = Unacked::default();
        unacked.sent(vec![(0, 10_u64.into())], 3, BootInstant::default());
        unacked.sent(vec![(0, 12_u64.into()), (1, 7_u64.into())], 2, BootInstant::default());
        unacked.forget(0);
        assert_eq!((unacked.events(), unacked.any_of(0), unacked.any_of(1)), (2, false, true));
        unacked.acked(|feed| (feed == 1).then_some(&ResourceVersion::Ordered(7)));
        assert_eq!(unacked.events(), 0);
    }

    #[test]
    fn a_frame_without_events_needs_no_ack() {
        let mut unacked = Unacked::default();
        unacked.sent(vec![(0, 10_u64.into())], 0, BootInstant::default());
        assert_eq!((unacked.events(), unacked.any_of(0)), (0, false));
    }
}
