//! Keeps all journals together within their limit (Rule D.3): acked history goes first, then detail, then, announced, the
//! place of the reader that is furthest behind. The watch is never slowed.

use std::ops::Range;

use crate::frame::{GapReason, SessionId};
use crate::journal::Journal;
use crate::replica::{Effect, Note, Replica};

/// Share of the limit that acked history may use: it lets ephemeral consumers resume by cursor.
const HISTORY_SHARE: usize = 8;

/// One way to make a journal smaller, given the entries that were sent: returns how many entries it merged away.
type Relief = fn(&mut Journal, &[Range<u64>]) -> u64;

/// Who still needs the front of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reader {
    Subscription(usize),
    Session(SessionId),
}

impl Replica {
    /// Drops history that every reader has passed, beyond the share that is kept for latecomers.
    pub(super) fn shed_acked(&mut self) {
        let kept = self.options.journal_bytes_max / HISTORY_SHARE / self.feeds.len().max(1);
        for feed in 0..self.feeds.len() {
            if self.feeds[feed].journal.bytes() > kept {
                let needed = self.readers(feed).map(|(seq, _)| seq).min();
                let journal = &mut self.feeds[feed].journal;
                journal.shed_to(needed.unwrap_or(journal.end()), kept);
            }
        }
    }

    /// Brings the journals back under their limit.
    pub(super) fn relieve_pressure(&mut self, effects: &mut Vec<Effect>) {
        let limit = self.options.journal_bytes_max;
        if self.journal_bytes() <= limit {
            return;
        }
        // Some room below the limit, so that the work is not repeated with each event.
        let target = limit - limit / 8;
        for feed in 0..self.feeds.len() {
            let needed = self.readers(feed).map(|(seq, _)| seq).min();
            let journal = &mut self.feeds[feed].journal;
            journal.trim_to(needed.unwrap_or(journal.end()));
        }
        let steps: [Relief; 3] = [
            |journal, sent| journal.coalesce(sent),
            |journal, sent| {
                journal.strip_old(sent);
                0
            },
            |journal, sent| {
                journal.reduce_tombstones(sent);
                0
            },
        ];
        for step in steps {
            for feed in self.largest_first() {
                if self.journal_bytes() <= target {
                    return;
                }
                let sent: Vec<_> = self.sent_ranges(feed);
                let entries = step(&mut self.feeds[feed].journal, &sent);
                if entries > 0 {
                    let feed = self.feeds[feed].label.name.clone();
                    effects.push(Effect::Noted(Note::Coalesced { feed, entries }));
                }
            }
        }
        for feed in self.largest_first() {
            while self.journal_bytes() > target && self.give_up_the_last(feed) {}
        }
    }

    /// Gives up the place of the reader furthest behind that has not been sent everything. Returns whether there was one.
    ///
    /// A reader at the end holds nothing. What was sent and not acked stays, and with it the session that sends it again:
    /// it would only begin anew at the ack.
    fn give_up_the_last(&mut self, feed: usize) -> bool {
        let end = self.feeds[feed].journal.end();
        let has_position = |id: &SessionId| {
            let attached = self.subscriptions.iter().find(|subscription| subscription.session == Some(*id));
            attached.is_some_and(|subscription| subscription.places[feed].held().is_some())
        };
        let behind = self.readers(feed).filter(|(seq, reader)| {
            *seq < end
                && match reader {
                    Reader::Subscription(number) => self.subscriptions[*number].places[feed].sent_seq < end,
                    Reader::Session(id) => !has_position(id),
                }
        });
        let Some((_, last)) = behind.min_by_key(|(seq, _)| *seq) else { return false };
        let standby = !self.owns_positions();
        match last {
            // The leader's positions are only mirrored here: what this replica cannot cover shows at a takeover.
            Reader::Subscription(number) => {
                let place = &mut self.subscriptions[number].places[feed];
                place.give_up(GapReason::JournalOverflow);
                let id = self.subscriptions[number].session;
                if !standby {
                    self.checkpointing.positions_moved();
                }
                id.into_iter().for_each(|id| self.overtake(id, feed));
            }
            Reader::Session(id) => self.overtake(id, feed),
        }
        let needed = self.readers(feed).map(|(seq, _)| seq).min();
        let journal = &mut self.feeds[feed].journal;
        journal.trim_to(needed.unwrap_or(journal.end()));
        true
    }

    /// The place of a session is decided anew, after a reset.
    pub(super) fn overtake(&mut self, id: SessionId, feed: usize) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        for place in 0..session.places.len() {
            if session.places[place].feed == feed {
                session.places[place].reset = Some(GapReason::JournalOverflow);
                session.wait(place);
            }
        }
    }

    /// The first entry that each reader of a feed still needs.
    fn readers(&self, feed: usize) -> impl Iterator<Item = (u64, Reader)> + '_ {
        let journal = &self.feeds[feed].journal;
        let subscriptions = self.subscriptions.iter().enumerate().filter_map(move |(number, subscription)| {
            Some((subscription.places[feed].needs_from(journal)?, Reader::Subscription(number)))
        });
        let sessions = self
            .sessions
            .iter()
            .filter_map(move |(id, session)| Some((session.needs_from(feed)?, Reader::Session(*id))));
        subscriptions.chain(sessions)
    }

    fn sent_ranges(&self, feed: usize) -> Vec<Range<u64>> {
        let journal = &self.feeds[feed].journal;
        self.subscriptions.iter().filter_map(|subscription| subscription.places[feed].sent(journal)).collect()
    }

    fn largest_first(&self) -> Vec<usize> {
        let mut feeds: Vec<usize> = (0..self.feeds.len()).collect();
        feeds.sort_by_key(|feed| std::cmp::Reverse(self.feeds[*feed].journal.bytes()));
        feeds
    }

    pub(super) fn journal_bytes(&self) -> usize {
        self.feeds.iter().map(|slot| slot.journal.bytes()).sum()
    }
}
