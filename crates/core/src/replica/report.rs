//! The replica as people see it.

use crate::replica::{Now, Replica, views};
use crate::session::Session;
use crate::status::{FeedStatus, Status, SubscriptionStatus};

impl Replica {
    /// The state at this moment.
    pub fn status(&self, now: Now) -> Status {
        Status {
            role: self.role.clone(),
            lease: self.lease.clone(),
            feeds: (0..self.feeds.len()).map(|feed| self.feed_status(feed, now)).collect(),
            subscriptions: self.subscription_statuses(now),
            journal_bytes: self.journal_bytes(),
            journal_bytes_max: self.options.journal_bytes_max,
            cache_bytes: self.feeds.iter().map(|slot| slot.feed.cache().bytes_in_use()).sum(),
            checkpoint_age: self.checkpointing.stored_age(now.boot),
        }
    }

    fn feed_status(&self, feed: usize, now: Now) -> FeedStatus {
        let slot = &self.feeds[feed];
        FeedStatus {
            description: slot.description.clone(),
            news: slot.news.clone(),
            synced: slot.synced,
            object_count: slot.feed.cache().len() as u64,
            cache_bytes: slot.feed.cache().bytes_in_use(),
            head: slot.journal.head().cloned(),
            heard_age: slot.feed.last_heard().map(|heard| now.boot.since(heard)),
            journal_floor: slot.journal.floor().cloned(),
            journal_bytes: slot.journal.bytes(),
            journal_entries: slot.journal.len(),
            changes: slot.journal.end(),
            relists: slot.counts.relists,
            synthesized_deletes: slot.counts.synthesized_deletes,
            gaps: slot.counts.gaps,
        }
    }

    fn subscription_statuses(&self, now: Now) -> Vec<SubscriptionStatus> {
        let feeds = views(&self.feeds, &self.fingerprints);
        let view = super::view(&feeds, &self.role, self.cluster, self.options.incarnation);
        let attached = |session: Option<&Session>| {
            (
                session.map(|session| session.text.clone()),
                session.map_or(0, |session| session.unacked.events()),
                session.map_or(0, |session| session.pending_events(&view)),
                session.and_then(|session| session.unacked.oldest_age(now.boot)),
                session.map_or(crate::frame::Hold::None, |session| session.hold(&self.role)),
            )
        };
        let durable = self.subscriptions.iter().map(|subscription| {
            let of_session = subscription.session.and_then(|id| self.sessions.get(&id));
            let (session, unacked_events, pending_events, oldest_unacked_age, hold) = attached(of_session);
            SubscriptionStatus {
                name: Some(subscription.name.clone()),
                acked: self.cursor_at(subscription.positions(&self.fingerprints, |place| &place.acked)),
                durable: self.cursor_at(subscription.positions(&self.fingerprints, |place| &place.durable)),
                session,
                unacked_events,
                pending_events,
                oldest_unacked_age,
                hold,
            }
        });
        let ephemeral = self.sessions.values().filter(|session| session.subscription().is_none()).map(|of_session| {
            let (session, unacked_events, pending_events, oldest_unacked_age, hold) = attached(Some(of_session));
            SubscriptionStatus {
                name: None,
                acked: of_session.cursor(&view),
                durable: crate::codec::cursor::Cursor::default(),
                session,
                unacked_events,
                pending_events,
                oldest_unacked_age,
                hold,
            }
        });
        durable.chain(ephemeral).collect()
    }
}
