//! The watch window of one type: the ring of recent events that a watch can resume from.
//!
//! Implements `docs/protocol.md` A.3: the window is the API server's watch cache and not etcd's
//! history. The ring doubles while it is full of young events, halves when its newest quarter alone
//! spans more than enough, and is empty after every start of the server.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::object::State;

/// Lower bound of the ring, in events (apiserver watch cache).
pub const CAPACITY_MIN: usize = 100;
/// Upper bound of the ring, in events (apiserver watch cache).
pub const CAPACITY_MAX: usize = 102_400;
/// Age up to which events are worth growing for: bookmark period of 60 s plus 15 s.
pub const FRESH_FOR: Duration = Duration::from_secs(75);

/// One write, as watches see it.
#[derive(Debug, Clone)]
pub struct Change {
    /// Revision of the write.
    pub revision: u64,
    /// Model time of the write.
    pub at: Duration,
    /// State before; nothing for a creation.
    pub before: Option<Arc<State>>,
    /// State after; nothing for a deletion.
    pub after: Option<Arc<State>>,
}

/// The ring of one type.
#[derive(Debug, Clone)]
pub struct Window {
    events: VecDeque<Arc<Change>>,
    capacity: usize,
    /// Number of events that left the ring; the sequence number of the first one inside.
    removed: u64,
    /// Revision at which the ring was begun.
    begun_at: u64,
}

impl Window {
    /// Begins an empty ring at the revision of the server's first list.
    pub fn new(revision: u64) -> Window {
        Window { events: VecDeque::new(), capacity: CAPACITY_MIN, removed: 0, begun_at: revision }
    }

    /// Appends a write; may drop the oldest ones.
    pub fn push(&mut self, change: Arc<Change>) {
        self.resize(change.at);
        while self.events.len() >= self.capacity {
            self.events.pop_front();
            self.removed += 1;
        }
        self.events.push_back(change);
    }

    fn resize(&mut self, now: Duration) {
        if self.events.len() < self.capacity {
            return;
        }
        let age = |event: &Arc<Change>| now.saturating_sub(event.at);
        if self.events.front().is_some_and(|oldest| age(oldest) < FRESH_FOR) {
            self.capacity = (self.capacity * 2).min(CAPACITY_MAX);
        } else if self.events.get(self.events.len() - self.capacity / 4).is_some_and(|event| age(event) > FRESH_FOR) {
            self.capacity = (self.capacity / 2).max(CAPACITY_MIN);
        }
    }

    /// Returns how many events the ring may hold at present.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the lowest revision whose event is certainly inside.
    pub fn oldest(&self) -> u64 {
        match self.events.front() {
            Some(first) if self.removed > 0 => first.revision,
            _ => self.begun_at + 1,
        }
    }

    /// Returns the sequence number of the first event after a revision.
    ///
    /// # Errors
    /// With the oldest revision that is still inside, when events after `revision` may be missing.
    pub fn position_after(&self, revision: u64) -> Result<u64, u64> {
        if revision + 1 < self.oldest() {
            return Err(self.oldest());
        }
        Ok(self.removed + self.events.partition_point(|event| event.revision <= revision) as u64)
    }

    /// Returns the sequence number that the next event will have.
    pub fn end(&self) -> u64 {
        self.removed + self.events.len() as u64
    }

    /// Returns the event with a sequence number.
    ///
    /// # Errors
    /// When that event has left the ring.
    pub fn get(&self, sequence: u64) -> Result<Option<&Arc<Change>>, Overtaken> {
        let index = sequence.checked_sub(self.removed).ok_or(Overtaken)?;
        Ok(self.events.get(index as usize))
    }
}

/// A reader so slow that the ring went past it. The server closes such a watch without a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overtaken;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{CAPACITY_MAX, Change, Overtaken, Window};

    fn push(window: &mut Window, revision: u64, at_secs: u64) {
        let at = Duration::from_secs(at_secs);
        window.push(Arc::new(Change { revision, at, before: None, after: None }));
    }

    #[test]
    fn an_empty_window_resumes_from_its_beginning_only() {
        let window = Window::new(10);
        assert_eq!(window.position_after(9), Err(11));
        assert_eq!(window.position_after(10), Ok(0));
        assert_eq!(window.position_after(99), Ok(0));
    }

    #[test]
    fn a_full_ring_of_young_events_doubles_and_loses_nothing() {
        let mut window = Window::new(0);
        (1..=101).for_each(|revision| push(&mut window, revision, revision / 2));
        assert_eq!(window.capacity(), 200);
        assert_eq!(window.position_after(0), Ok(0));
    }

    #[test]
    fn a_full_ring_of_old_events_drops_the_oldest() {
        let mut window = Window::new(0);
        (1..=100).for_each(|revision| push(&mut window, revision, 0));
        push(&mut window, 101, 75);
        assert_eq!(window.capacity(), 100);
        assert_eq!((window.oldest(), window.position_after(0)), (2, Err(2)));
        assert_eq!(window.position_after(1), Ok(1));
        assert_eq!(window.get(0).err(), Some(Overtaken));
    }

    #[test]
    fn a_ring_whose_newest_quarter_is_old_halves() {
        let mut window = Window::new(0);
        (1..=150).for_each(|revision| push(&mut window, revision, 0));
        assert_eq!(window.capacity(), 200);
        (151..=200).for_each(|revision| push(&mut window, revision, 100));
        push(&mut window, 201, 174);
        assert_eq!(window.capacity(), 200, "the newest quarter spans less than 75 s");
        (202..=260).for_each(|revision| push(&mut window, revision, 200));
        push(&mut window, 261, 300);
        assert_eq!((window.capacity(), window.oldest()), (100, 162));
    }

    #[test]
    fn the_ring_has_an_upper_bound() {
        let mut window = Window::new(0);
        (1..=CAPACITY_MAX as u64 + 1).for_each(|revision| push(&mut window, revision, 1));
        assert_eq!((window.capacity(), window.oldest()), (CAPACITY_MAX, 2));
    }

    #[test]
    fn positions_are_found_between_revisions() {
        let mut window = Window::new(0);
        for revision in [3, 7, 9] {
            push(&mut window, revision, 0);
        }
        assert_eq!(
            (window.position_after(3), window.position_after(6), window.position_after(9)),
            (Ok(1), Ok(1), Ok(3))
        );
        assert_eq!((window.end(), window.get(3).unwrap().is_none()), (3, true));
    }
}
