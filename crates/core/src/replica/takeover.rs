//! Where each subscription goes on when leadership changes, and where a new session starts (D.6).
//!
//! The rungs of the ladder that exist: R0, the journal covers the position; R1, the feed recovered
//! the state and the history since the position at its start (`feed`), after which the journal
//! covers it too; R4, a snapshot with sweep, announced. A position is judged once per epoch: while
//! `head` has not reached the horizon X, a hole may hide births and deaths that the previous leader
//! delivered, and only a reset tells of them. Past X everything delivered came from this journal.

use std::time::Duration;

use crate::codec::checkpoint::{Checkpoint, StoredSubscription};
use crate::feed;
use crate::frame::{EndReason, Gap, GapKind, GapReason, SessionId};
use crate::journal::Coverage;
use crate::leadership::{Announcement, LeaseView, Role};
use crate::replica::{Effect, Note, Now, Replica};
use crate::resource_version::ResourceVersion;
use crate::session::place::Redelivery;
use crate::session::{GapPolicy, Progress, Session, SessionError, Start};
use crate::subscription::{Place, Subscription};

impl Replica {
    pub(super) fn announced(&mut self, now: Now, announcement: Announcement, effects: &mut Vec<Effect>) {
        match announcement {
            Announcement::Role { role, lease } => self.role_changed(now, role, lease, effects),
            Announcement::Acquired { checkpoint } => {
                self.load_checkpoint(checkpoint.as_deref(), effects);
                self.checkpointing.begin_epoch(effects);
                for index in 0..self.feeds.len() {
                    self.feeds[index].horizon = None;
                    self.feeds[index].armed = false;
                }
                self.start_feeds(now, effects);
                for index in 0..self.feeds.len() {
                    self.step_feed(index, now, feed::Input::ReadHorizon, effects);
                }
                for session in self.sessions.values_mut().filter(|session| session.subscription().is_some()) {
                    session.drop_gated();
                    (0..session.places.len()).for_each(|place| session.wait(place));
                }
            }
            Announcement::CheckpointSeen { checkpoint } => {
                if !self.owns_positions() {
                    self.load_checkpoint(checkpoint.as_deref(), effects);
                }
                self.start_feeds(now, effects);
            }
            Announcement::Rewound => self.compare_versions(now, None, effects),
            Announcement::CheckpointStored { generation } => {
                let stored = self.checkpointing.stored(generation, now.boot);
                for (subscription, positions) in self.subscriptions.iter_mut().zip(stored.into_iter().flatten()) {
                    for (place, position) in subscription.places.iter_mut().zip(positions) {
                        place.durable = position;
                    }
                }
                self.answer_stored_acks(effects);
            }
        }
    }

    /// Whether the positions in memory are the newest there are, and not a mirror of what the leader has stored.
    pub(super) fn owns_positions(&self) -> bool {
        match self.role {
            Role::Disabled | Role::Leading { .. } | Role::Suspended { .. } | Role::Releasing { .. } => true,
            Role::Standby | Role::Lost { .. } => false,
        }
    }

    fn role_changed(&mut self, now: Now, role: Role, lease: LeaseView, effects: &mut Vec<Effect>) {
        let renewed = matches!((&self.role, &role), (Role::Leading { epoch, .. }, Role::Leading { epoch: same, .. }) if epoch == same);
        let told = renewed && self.lease == lease;
        let owned = self.owns_positions();
        self.role = role;
        self.lease = lease;
        if told {
            return;
        }
        if owned && !self.owns_positions() {
            self.leadership_ended(effects);
        }
        match self.role {
            Role::Disabled => {
                self.feeds.iter_mut().for_each(|slot| slot.armed = true);
                self.start_feeds(now, effects);
            }
            Role::Leading { epoch, .. } => effects.push(Effect::Noted(Note::Leading { epoch })),
            Role::Standby | Role::Suspended { .. } | Role::Releasing { .. } | Role::Lost { .. } => {}
        }
        let news: Vec<_> = self.sessions.iter().map(|(id, session)| (*id, self.role_news(session))).collect();
        for (id, news) in news {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.tell_role(news);
            }
        }
    }

    /// Nothing that was made may leave any more, and nobody is left whose ack could be stored.
    fn leadership_ended(&mut self, effects: &mut Vec<Effect>) {
        let holder = self.lease.holder_identity.clone();
        self.checkpointing.refuse_waiting(&holder, self.lease.epoch_seen, effects);
        for session in self.sessions.values_mut().filter(|session| !session.open.ignore_leadership) {
            session.drop_gated();
            for place in 0..session.places.len() {
                // What was made and never left is lost to an ephemeral session; a durable one resumes at its ack.
                session.places[place].reset = Some(GapReason::Failover);
                if session.subscription().is_none() {
                    // It was put into frames up to here, which is more than left: nothing certain can be said.
                    session.places[place].position = None;
                }
                session.wait(place);
            }
        }
        self.drain = None;
    }

    fn load_checkpoint(&mut self, text: Option<&str>, effects: &mut Vec<Effect>) {
        let checkpoint = match text.map(Checkpoint::decode) {
            None => Checkpoint::default(),
            Some(Ok(checkpoint))
                if checkpoint.cluster != 0 && self.cluster != 0 && checkpoint.cluster != self.cluster =>
            {
                let why = "it was written in another cluster".to_owned();
                effects.push(Effect::Noted(Note::CheckpointUnreadable { why }));
                Checkpoint::default()
            }
            Some(Ok(checkpoint)) => checkpoint,
            Some(Err(error)) => {
                effects.push(Effect::Noted(Note::CheckpointUnreadable { why: error.to_string() }));
                Checkpoint::default()
            }
        };
        for subscription in &mut self.subscriptions {
            let stored: Option<&StoredSubscription> = checkpoint.subscriptions.get(&*subscription.name);
            subscription.load(stored, &self.fingerprints);
        }
        self.checkpointing.keep_unknown(checkpoint);
    }

    /// Versions were seen to fall: every feed but the one that saw it asks whether its own did (Rule D.2-11).
    pub(super) fn compare_versions(&mut self, now: Now, seen_by: Option<usize>, effects: &mut Vec<Effect>) {
        for index in (0..self.feeds.len()).filter(|index| Some(*index) != seen_by) {
            self.step_feed(index, now, feed::Input::CheckRewind, effects);
        }
    }

    /// All positions of a feed mean nothing any more.
    pub(super) fn void_positions(&mut self, feed: usize, reason: GapReason) {
        if self.owns_positions() {
            for subscription in &mut self.subscriptions {
                subscription.places[feed].give_up(reason);
            }
            self.checkpointing.positions_moved();
        }
        self.restart_places(feed, reason, |_| true);
    }

    /// A relist is about to open the hole `(from, to]`. It tells the net change from the state at `from`: whoever stands
    /// inside, because another replica brought it there, would miss what was born before it and died in the hole.
    pub(super) fn hole_opened(&mut self, feed: usize, from: &ResourceVersion, to: &ResourceVersion) {
        let inside = |position: &Option<ResourceVersion>| {
            position.as_ref().is_some_and(|position| position.is_after(from) && !position.reaches(to))
        };
        let (owned, armed) = (self.owns_positions(), self.feeds[feed].armed);
        let mut given_up = Vec::new();
        for subscription in self.subscriptions.iter_mut().filter(|_| owned) {
            let place = &mut subscription.places[feed];
            // Before X is reached, another leader may have delivered anything of the hole to those behind it too.
            let behind = place.acked.as_ref().is_some_and(|acked| !acked.reaches(to));
            let misses_some = if armed || cfg!(mutation = "M2") { inside(&place.acked) } else { behind };
            if misses_some {
                place.give_up(GapReason::WatchExpired);
                given_up.push(subscription.name.clone());
            }
        }
        if !given_up.is_empty() {
            self.checkpointing.positions_moved();
        }
        self.restart_places(feed, GapReason::WatchExpired, |session| match session.subscription() {
            Some(name) => given_up.contains(name),
            None => session.places.iter().any(|place| place.feed == feed && inside(&place.position)),
        });
    }

    /// Sends the places of a feed back to waiting, in the sessions that are meant.
    fn restart_places(&mut self, feed: usize, reason: GapReason, meant: impl Fn(&Session) -> bool) {
        for session in self.sessions.values_mut() {
            if !meant(session) {
                continue;
            }
            for place in 0..session.places.len() {
                if session.places[place].feed == feed {
                    session.places[place].reset = Some(reason);
                    session.places[place].position = None;
                    session.wait(place);
                }
            }
        }
    }

    /// Judges positions that were taken over, as soon as their feed has a journal (Rule D.6: covered).
    pub(super) fn judge(&mut self) {
        if !self.owns_positions() {
            return;
        }
        for (index, slot) in self.feeds.iter_mut().enumerate() {
            if !slot.synced {
                continue;
            }
            let reached = |horizon: &ResourceVersion| slot.journal.head().is_some_and(|head| head.reaches(horizon));
            // Versions without an order never reach anything: X is known, and positions of earlier epochs are void.
            slot.armed |= slot.horizon.as_ref().is_some_and(|horizon| !horizon.is_ordered() || reached(horizon));
            for subscription in &mut self.subscriptions {
                let place = &mut subscription.places[index];
                let Some(acked) = place.acked.as_ref().filter(|_| place.unjudged) else { continue };
                let verdict = if acked.is_ordered() { slot.journal.coverage(acked) } else { Coverage::Unordered };
                place.unjudged = false;
                match verdict {
                    Coverage::Complete => {}
                    Coverage::Holed => place.give_up(GapReason::WatchExpired),
                    Coverage::Lost => place.give_up(GapReason::ColdStart),
                    Coverage::Unordered => place.give_up(GapReason::UnorderedVersions),
                }
                if place.acked.is_none() {
                    self.checkpointing.positions_moved();
                }
            }
        }
    }

    /// Decides waiting places of sessions that may deliver.
    pub(super) fn plan(&mut self, progress: &mut Vec<Progress>, id: SessionId) {
        let Some(mut session) = self.sessions.remove(&id) else { return };
        if session.may_deliver(&self.role) && !session.has_ended() {
            self.give_up_unselected(&session);
            for place in session.waiting().collect::<Vec<_>>() {
                if !self.feeds[session.places[place].feed].synced {
                    continue;
                }
                if session.subscription().is_some() {
                    self.plan_durable(&mut session, place, progress);
                } else {
                    self.plan_ephemeral(&mut session, place, progress);
                }
            }
        }
        self.sessions.insert(id, session);
    }

    /// A session without a feed gives up the subscription's place in it: nobody would ack it, and it would hold the
    /// journal for ever.
    fn give_up_unselected(&mut self, session: &Session) {
        let of_session = |subscription: &&mut Subscription| subscription.session == Some(session.id);
        let Some(subscription) = self.subscriptions.iter_mut().find(of_session) else { return };
        for (feed, place) in subscription.places.iter_mut().enumerate() {
            if place.acked.is_some() && !session.has_feed(feed) {
                place.give_up(GapReason::ColdStart);
                self.checkpointing.positions_moved();
            }
        }
    }

    fn plan_durable(&mut self, session: &mut Session, place: usize, progress: &mut Vec<Progress>) {
        let feed = session.places[place].feed;
        let Some(number) = self.subscriptions.iter().position(|known| Some(&known.name) == session.subscription())
        else {
            return;
        };
        if session.places[place].fresh {
            self.apply_start(number, feed, &session.open.start.clone());
        }
        let slot = &self.feeds[feed];
        let stored = &mut self.subscriptions[number].places[feed];
        let view_feeds = super::views(&self.feeds, &self.fingerprints);
        let view = super::view(&view_feeds, &self.role, self.cluster, self.options.incarnation);
        if let Some(acked) = stored.acked.clone() {
            let covered = match slot.journal.coverage(&acked) {
                Coverage::Complete => true,
                Coverage::Holed => slot.armed,
                Coverage::Lost | Coverage::Unordered => false,
            };
            if let Some(seq) = slot.journal.seq_after(&acked).filter(|_| covered) {
                let handled_elsewhere = session.places[place].position.as_ref().filter(|before| acked.is_after(before));
                if let Some(before) = handled_elsewhere.cloned() {
                    session.announce(handled_elsewhere_gap(slot, before, acked.clone()), &view, progress, feed);
                }
                if session.open.start == Start::Live && session.places[place].fresh {
                    session.announce(live_start_gap(slot, acked.clone()), &view, progress, feed);
                }
                let redelivery = match (&self.role, &slot.horizon) {
                    (Role::Disabled, _) => Redelivery::Never,
                    (_, Some(horizon)) => Redelivery::Through(horizon.clone()),
                    (_, None) => Redelivery::Unknown,
                };
                let sent_before = stored.sent_seq;
                return session.read_from(place, acked, seq, sent_before, redelivery);
            }
            stored.give_up(GapReason::JournalOverflow);
            self.checkpointing.positions_moved();
        }
        // A reset snapshot taken before X would go back in time (I10).
        if slot.armed || cfg!(mutation = "M12") {
            let reason = self.subscriptions[number].places[feed].reset;
            self.start_snapshot(session, place, reason, progress);
        }
    }

    /// A new session of a durable subscription may ask for another start than the stored position.
    fn apply_start(&mut self, number: usize, feed: usize, start: &Start) {
        let head = self.feeds[feed].journal.head().cloned();
        let fingerprint = self.fingerprints[feed];
        let place = &mut self.subscriptions[number].places[feed];
        match start {
            Start::Unspecified | Start::Stored => return,
            Start::Snapshot => *place = Place { durable: place.durable.take(), ..Place::default() },
            Start::Live => {
                *place =
                    Place { acked: head.clone(), delivered: head, durable: place.durable.take(), ..Place::default() };
            }
            Start::Cursor(cursor) => {
                let foreign = self.cluster != 0 && cursor.cluster != 0 && cursor.cluster != self.cluster;
                let kept = cursor.positions.get(&fingerprint).filter(|_| !foreign).cloned();
                let own = cursor.incarnation == self.options.incarnation;
                let covered = kept.filter(|position| match self.feeds[feed].journal.coverage(position) {
                    Coverage::Complete => true,
                    Coverage::Holed => own,
                    Coverage::Lost | Coverage::Unordered => false,
                });
                let reason = if foreign { GapReason::CursorUnknown } else { GapReason::ColdStart };
                match covered {
                    Some(position) => {
                        *place = Place {
                            acked: Some(position.clone()),
                            delivered: Some(position),
                            durable: place.durable.take(),
                            sent_seq: place.sent_seq,
                            ..Place::default()
                        };
                    }
                    None => place.give_up(reason),
                }
            }
        }
        self.checkpointing.positions_moved();
    }

    fn plan_ephemeral(&mut self, session: &mut Session, place: usize, progress: &mut Vec<Progress>) {
        let feed = session.places[place].feed;
        let slot = &self.feeds[feed];
        let view_feeds = super::views(&self.feeds, &self.fingerprints);
        let view = super::view(&view_feeds, &self.role, self.cluster, self.options.incarnation);
        let (true, None) = (session.places[place].fresh, session.places[place].reset) else {
            let reason = session.places[place].reset;
            return self.start_snapshot(session, place, reason, progress);
        };
        let (reason, start) = match session.open.start.clone() {
            Start::Unspecified | Start::Stored | Start::Snapshot => (None, None),
            Start::Live => {
                let Some(head) = slot.journal.head().cloned() else { return };
                session.announce(live_start_gap(slot, head.clone()), &view, progress, feed);
                let end = slot.journal.end();
                return session.read_from(place, head, end, 0, Redelivery::Never);
            }
            Start::Cursor(cursor) if self.is_of_other_cluster(&cursor) => (Some(GapReason::CursorUnknown), None),
            Start::Cursor(cursor) => {
                let own = cursor.incarnation == self.options.incarnation;
                match cursor.positions.get(&self.fingerprints[feed]) {
                    None => (None, None),
                    Some(position) => match slot.journal.coverage(position) {
                        Coverage::Complete => (None, Some(position.clone())),
                        Coverage::Holed if own => (None, Some(position.clone())),
                        Coverage::Holed | Coverage::Lost => (Some(GapReason::ColdStart), None),
                        Coverage::Unordered => (Some(GapReason::UnorderedVersions), None),
                    },
                }
            }
        };
        match start.and_then(|position| Some((slot.journal.seq_after(&position)?, position))) {
            Some((seq, position)) => session.read_from(place, position, seq, 0, Redelivery::Never),
            None => self.start_snapshot(session, place, reason, progress),
        }
    }

    /// R4, or a first snapshot when there is no reason for a gap.
    fn start_snapshot(
        &self,
        session: &mut Session,
        place: usize,
        reason: Option<GapReason>,
        progress: &mut Vec<Progress>,
    ) {
        let feed = session.places[place].feed;
        let slot = &self.feeds[feed];
        let Some(at) = slot.journal.head().cloned() else { return };
        if let Some(reason) = reason {
            if session.open.gap_policy == GapPolicy::Fail {
                let error = SessionError::HistoryLost { feed: slot.label.name.to_string() };
                return session.end(EndReason::HistoryLost, Duration::ZERO, Some(error));
            }
            let view_feeds = super::views(&self.feeds, &self.fingerprints);
            let view = super::view(&view_feeds, &self.role, self.cluster, self.options.incarnation);
            let from = session.places[place].position.clone();
            session.announce(reset_gap(slot, reason, from, at.clone()), &view, progress, feed);
        }
        session.begin_snapshot(place, at, slot.feed.cache().snapshot(), slot.journal.end());
    }
}

fn reset_gap(slot: &super::Slot, reason: GapReason, from: Option<ResourceVersion>, to: ResourceVersion) -> Gap {
    let detail = match reason {
        GapReason::ColdStart => "no stored position, or it lies before all history that can be had",
        GapReason::JournalOverflow => "the consumer was so far behind that the journal reached its limit",
        GapReason::WatchExpired => "history that another leader may have delivered is gone",
        GapReason::FeedChanged => "the type was removed and came back",
        GapReason::ClusterRewound => "versions went backwards: the cluster was restored from a backup",
        GapReason::UnorderedVersions => "versions of this type have no order",
        GapReason::CursorUnknown => "the cursor was made in another cluster",
        GapReason::Failover => "leadership was elsewhere",
    };
    Gap {
        feed: slot.label.clone(),
        kind: GapKind::Reset,
        reason,
        from,
        to: Some(to),
        deletes_complete: false,
        snapshot_follows: true,
        detail,
    }
}

fn handled_elsewhere_gap(slot: &super::Slot, from: ResourceVersion, to: ResourceVersion) -> Gap {
    Gap {
        feed: slot.label.clone(),
        kind: GapKind::HandledElsewhere,
        reason: GapReason::Failover,
        from: Some(from),
        to: Some(to),
        deletes_complete: true,
        snapshot_follows: false,
        detail: "another replica's consumer handled this interval",
    }
}

fn live_start_gap(slot: &super::Slot, at: ResourceVersion) -> Gap {
    Gap {
        feed: slot.label.clone(),
        kind: GapKind::LiveStart,
        reason: GapReason::ColdStart,
        from: None,
        to: Some(at),
        deletes_complete: false,
        snapshot_follows: false,
        detail: "everything before was skipped on request",
    }
}
