//! Frames out, acks in: what sessions report is noted down for their subscriptions.

use std::cmp::Ordering;

use crate::codec::cursor::Cursor;
use crate::frame::{GapReason, SessionId};
use crate::journal::Coverage;
use crate::leadership::Role;
use crate::replica::{AckId, Effect, Note, Now, Replica, SessionEvent};
use crate::resource_version::ResourceVersion;
use crate::session::place::Place;
use crate::session::{AckError, AckOutcome, AckRequest, Progress};

impl Replica {
    /// Brings everything to rest after an input.
    pub(super) fn settle(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.judge();
        self.relieve_pressure(effects);
        for id in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.serve(id, now, effects);
        }
        self.shed_acked();
        self.finish_drain(now, effects);
        self.write_checkpoint_when_due(now, effects);
    }

    /// Makes the frames that a session has room for. A place that was overtaken is decided anew, once.
    fn serve(&mut self, id: SessionId, now: Now, effects: &mut Vec<Effect>) {
        for _ in 0..2 {
            let mut progress = Vec::new();
            self.plan(&mut progress, id);
            let durable = self.durable_cursor(id);
            let Some(session) = self.sessions.get_mut(&id) else { return };
            let feeds = super::views(&self.feeds, &self.fingerprints);
            let view = super::view(&feeds, &self.role, self.cluster, self.options.incarnation);
            session.fill(&view, durable.as_ref(), now.boot, &mut progress);
            if !self.note_progress(id, progress, effects) {
                return;
            }
        }
    }

    /// Returns whether a place has to be decided anew.
    fn note_progress(&mut self, id: SessionId, progress: Vec<Progress>, effects: &mut Vec<Effect>) -> bool {
        let mut overtaken = false;
        let mut touched = Vec::new();
        let number = self.subscription_of(id);
        let name = self.sessions.get(&id).and_then(|session| session.subscription().cloned());
        for progress in progress {
            match progress {
                Progress::Frame(frame) => effects.push(Effect::Send { session: id, frame }),
                Progress::Ended(error) => {
                    effects.push(Effect::End { session: id, error });
                    self.close(id, SessionEvent::Closed, effects);
                }
                Progress::Sent { feed, seq, position, snapshot_end } => {
                    if let Some(number) = number {
                        let place = &mut self.subscriptions[number].places[feed];
                        place.sent_seq = place.sent_seq.max(seq);
                        if position.is_none() && place.delivered.is_some() {
                            place.reset = Some(GapReason::FeedChanged);
                        }
                        if snapshot_end {
                            place.resets_at.clone_from(&position);
                        }
                        // An earlier session of this epoch may have come further, and its acks are as good.
                        let further = |known: &ResourceVersion, new: &ResourceVersion| {
                            known.order(new) != Some(Ordering::Greater)
                        };
                        let passed = position.clone();
                        if place
                            .delivered
                            .as_ref()
                            .zip(position.as_ref())
                            .is_none_or(|(known, new)| further(known, new))
                        {
                            place.delivered = position;
                        }
                        touched.push((feed, passed));
                    }
                }
                Progress::Gapped { feed, kind, reason } => {
                    self.feeds[feed].counts.gaps += 1;
                    let feed = self.feeds[feed].label.name.clone();
                    effects.push(Effect::Noted(Note::Gap { feed, subscription: name.clone(), kind, reason }));
                }
                Progress::Delivered { feed, events, coalesced, synthesized_deletes } => {
                    self.feeds[feed].counts.synthesized_deletes += synthesized_deletes;
                    let feed = self.feeds[feed].label.name.clone();
                    let subscription = name.clone();
                    let note = Note::Delivered { feed, subscription, events, coalesced, synthesized_deletes };
                    effects.push(Effect::Noted(note));
                }
                Progress::Overtaken { feed } => {
                    overtaken = true;
                    let reason = GapReason::JournalOverflow;
                    if let Some(number) = number {
                        self.subscriptions[number].places[feed].give_up(reason);
                        self.checkpointing.positions_moved();
                    }
                    self.overtake(id, feed);
                }
            }
        }
        if let Some(number) = number {
            touched.into_iter().for_each(|(feed, passed)| self.pass_unowed(number, id, feed, passed));
        }
        overtaken
    }

    /// Where nothing is outstanding, what the session has passed counts as acked (D.4): the filter dropped it, or it was
    /// a bookmark. What an earlier session was sent beyond that has still to be acked.
    fn pass_unowed(&mut self, number: usize, id: SessionId, feed: usize, passed: Option<ResourceVersion>) {
        if self.sessions.get(&id).is_none_or(|session| session.owes_ack(feed)) {
            return;
        }
        let place = &mut self.subscriptions[number].places[feed];
        if let (Some(acked), Some(passed)) = (&place.acked, passed)
            && (passed.is_after(acked) || (!passed.is_ordered() && passed != *acked))
        {
            place.acked = Some(passed);
            self.checkpointing.positions_moved();
        }
    }

    /// A bookmark moved the head: subscriptions without a consumer that have acked everything move along, so that their
    /// position does not fall out of the history while nothing happens.
    pub(super) fn follow_head(&mut self, feed: usize) {
        if !matches!(self.role, Role::Leading { .. } | Role::Disabled) {
            return;
        }
        let journal = &self.feeds[feed].journal;
        for subscription in self.subscriptions.iter_mut().filter(|subscription| subscription.session.is_none()) {
            let place = &mut subscription.places[feed];
            let Some(acked) = place.acked.as_ref().filter(|_| !place.unjudged) else { continue };
            // No entries after it means nothing if they were dropped.
            let covered = journal.coverage(acked) != Coverage::Lost;
            let passed_all = covered && journal.seq_after(acked).is_some_and(|seq| journal.len_from(seq) == 0);
            if passed_all && journal.head().is_some_and(|head| head.is_after(acked)) {
                place.acked = journal.head().cloned();
                self.checkpointing.positions_moved();
            }
        }
    }

    pub(super) fn ack(&mut self, id: AckId, ack: AckRequest, effects: &mut Vec<Effect>) {
        let wait_durable = ack.wait_durable;
        match self.take_ack(&ack, effects) {
            Ok(Some(number)) => {
                let waits = wait_durable && self.role != Role::Disabled && self.checkpointing.wait(id, number);
                if !waits {
                    effects.push(Effect::Acked { id, result: Ok(self.ack_outcome(number)) });
                }
            }
            Ok(None) => {
                let acked = Cursor::decode(&ack.cursor).unwrap_or_default();
                let outcome = AckOutcome { acked, durable: Cursor::default(), epoch: self.epoch() };
                effects.push(Effect::Acked { id, result: Ok(outcome) });
            }
            Err(error) => effects.push(Effect::Acked { id, result: Err(error) }),
        }
    }

    /// Returns the number of the durable subscription that was acked, none for an ephemeral session.
    fn take_ack(&mut self, ack: &AckRequest, effects: &mut Vec<Effect>) -> Result<Option<usize>, AckError> {
        let cursor = Cursor::decode(&ack.cursor)?;
        let Some(name) = &ack.subscription else {
            return self.take_ephemeral_ack(ack.session.as_deref().ok_or(AckError::Unnamed)?, &cursor).map(|()| None);
        };
        let number = self.subscriptions.iter().position(|subscription| subscription.name == *name);
        let number = number.ok_or_else(|| AckError::SubscriptionUnknown { name: name.to_string() })?;
        if !self.owns_positions() {
            let holder = self.lease.holder_identity.clone();
            return Err(AckError::NotLeader { holder, epoch: self.lease.epoch_seen });
        }
        let attached = self.subscriptions[number].session.and_then(|id| self.sessions.get(&id));
        if let Some(session) = ack.session.as_ref().filter(|text| attached.is_none_or(|session| session.text != **text))
        {
            return Err(AckError::Superseded { session: session.clone() });
        }
        if self.is_of_other_cluster(&cursor) {
            return Err(AckError::Ahead);
        }
        let subscription = &mut self.subscriptions[number];
        let moved = subscription.ack(&cursor.positions, &self.fingerprints).map_err(|_| AckError::Ahead)?;
        if moved {
            self.checkpointing.positions_moved();
            effects.push(Effect::Noted(Note::Acked { subscription: subscription.name.clone() }));
        }
        let places = &subscription.places;
        if let Some(session) = subscription.session.and_then(|id| self.sessions.get_mut(&id)) {
            session.unacked.acked(|feed| places[feed].acked.as_ref());
            for (feed, place) in places.iter().enumerate() {
                place.acked.iter().for_each(|acked| session.skip_acked(feed, acked));
            }
        }
        Ok(Some(number))
    }

    fn take_ephemeral_ack(&mut self, text: &str, cursor: &Cursor) -> Result<(), AckError> {
        let fingerprints = &self.fingerprints;
        let session = self.sessions.values_mut().find(|session| session.text == text);
        let session = session.ok_or_else(|| AckError::Superseded { session: text.to_owned() })?;
        // Without a position, as during a snapshot, an older cursor covers nothing and is no error.
        let ahead = |place: &Place| match (cursor.positions.get(&fingerprints[place.feed]), &place.position) {
            (Some(acked), Some(sent)) => acked.is_after(sent),
            (None, _) | (_, None) => false,
        };
        if session.places.iter().any(ahead) {
            return Err(AckError::Ahead);
        }
        session.unacked.acked(|feed| cursor.positions.get(&fingerprints[feed]));
        Ok(())
    }

    pub(super) fn ack_outcome(&self, number: usize) -> AckOutcome {
        let subscription = &self.subscriptions[number];
        AckOutcome {
            acked: self.cursor_at(subscription.positions(&self.fingerprints, |place| &place.acked)),
            durable: self.cursor_at(subscription.positions(&self.fingerprints, |place| &place.durable)),
            epoch: self.epoch(),
        }
    }

    /// Leadership is being given up: done when no ack is owed any more, or when the time for it is over.
    fn finish_drain(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let Some(until) = self.drain else { return };
        let owed =
            self.sessions.values().any(|session| session.subscription().is_some() && session.unacked.events() > 0);
        if !owed || until <= now.boot {
            self.drain = None;
            if matches!(self.role, Role::Leading { .. } | Role::Suspended { .. } | Role::Releasing { .. }) {
                self.write_checkpoint(now, true, effects);
            }
            effects.push(Effect::Drained);
        }
    }

    fn subscription_of(&self, id: SessionId) -> Option<usize> {
        self.subscriptions.iter().position(|subscription| subscription.session == Some(id))
    }

    fn durable_cursor(&self, id: SessionId) -> Option<Cursor> {
        let subscription = &self.subscriptions[self.subscription_of(id)?];
        Some(self.cursor_at(subscription.positions(&self.fingerprints, |place| &place.durable)))
    }
}
