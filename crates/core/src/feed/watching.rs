//! The watch: events to changes (Rules D.2-1 to 3), its lifetime (Rules 8 and 9), and what ends it.

use std::sync::Arc;
use std::time::Duration;

use crate::codec::status::{Failure, FailureKind};
use crate::codec::watch_event::WatchEvent;
use crate::feed::listing::{Goal, Listing};
use crate::feed::{
    Change, ChangeKind, Condition, DeleteReason, Effect, Feed, Note, Origin, Phase, Plan, RequestId, WatchRequest,
    WatchStart,
};
use crate::limits::{
    ANSWER_GRACE, BACKOFF_RESET_MIN, WATCH_END_GRACE, WATCH_OPEN_TIMEOUT, WATCH_SILENCE_MAX, WATCH_START_INTERVAL_MIN,
    WATCH_TIMEOUT, WATCH_TIMEOUT_TO_HORIZON,
};
use crate::object::ObjectState;
use crate::resource_version::ResourceVersion;
use crate::time::BootInstant;

/// Watches in a row that end at once and empty before a list is asked for a better position.
const WATCHES_EMPTY_MAX: u32 = 3;

/// One watch, opened or being opened.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) request: RequestId,
    started: BootInstant,
    timeout: Duration,
    opened: Option<BootInstant>,
    heard: BootInstant,
    /// Anything came: an event or a bookmark.
    lively: bool,
    /// Bookmarks came, so that silence means something (Rule 9).
    bookmarks: bool,
}

impl Watch {
    /// The watch that a streaming list turns into.
    pub(super) fn after_list(request: RequestId, started: BootInstant, timeout: Duration, now: BootInstant) -> Self {
        let (opened, lively) = (Some(now), true);
        Self { request, started, timeout, opened, heard: now, lively, bookmarks: true }
    }

    /// When something is to be done about it; `health` is how long it must be open to count as healthy, if that is of
    /// interest.
    pub(super) fn deadline(&self, health: Option<Duration>) -> BootInstant {
        let healthy_at = self.opened.zip(health).map(|(opened, health)| opened + health);
        self.over_at().min(healthy_at.unwrap_or(self.over_at()))
    }

    /// Whether the server has accepted it.
    pub(super) fn is_open(&self) -> bool {
        self.opened.is_some()
    }

    fn over_at(&self) -> BootInstant {
        let end = self.started + self.timeout + WATCH_END_GRACE + ANSWER_GRACE;
        match self.opened {
            None => end.min(self.started + WATCH_OPEN_TIMEOUT + ANSWER_GRACE),
            Some(_) if self.bookmarks => end.min(self.heard + WATCH_SILENCE_MAX),
            Some(_) => end,
        }
    }
}

impl Feed {
    /// Draws `timeoutSeconds`, in whole seconds (Rule 8); short while `head` has to reach the horizon.
    pub(super) fn watch_timeout(&mut self) -> Duration {
        let reached = |to: &ResourceVersion, head: &ResourceVersion| head.reaches(to) || !head.is_ordered();
        self.reach.take_if(|to| self.head.as_ref().is_none_or(|head| reached(to, head)));
        if self.reach.is_some() {
            return WATCH_TIMEOUT_TO_HORIZON;
        }
        let (shortest, longest) = WATCH_TIMEOUT;
        Duration::from_secs(self.prng.between(shortest, longest).as_secs())
    }

    /// When the next watch may start: never more than one per interval; none if at any time.
    pub(super) fn watch_allowed_at(&self) -> Option<BootInstant> {
        self.last_watch_start.map(|last| last + WATCH_START_INTERVAL_MIN)
    }

    /// How long the watch must be open to count as healthy, if anything depends on it.
    pub(super) fn health_wanted(&self) -> Option<Duration> {
        let wanted = !self.backoff.is_rested() || self.failing.is_some();
        wanted.then(|| self.backoff.last().max(BACKOFF_RESET_MIN))
    }

    /// Opens a watch at `head`.
    pub(super) fn open_watch(&mut self, now: BootInstant, effects: &mut Vec<Effect>) -> Watch {
        let (request, timeout) = (self.request(), self.watch_timeout());
        let head = self.head.clone();
        crate::invariant!(I2, head.is_some(), "a watch starts where the cache stands");
        self.last_watch_start = Some(now);
        effects.push(Effect::Noted(Note::WatchStart));
        effects.extend(
            head.map(|head| Effect::Watch { request, watch: WatchRequest { start: WatchStart::After(head), timeout } }),
        );
        let (opened, heard) = (None, now);
        Watch { request, started: now, timeout, opened, heard, lively: false, bookmarks: false }
    }

    /// HTTP 200. After a disconnection it proves little: then the first event, or some time, makes the feed live.
    pub(super) fn on_watch_opened(&mut self, now: BootInstant, mut watch: Watch, effects: &mut Vec<Effect>) -> Watch {
        watch.opened = Some(now);
        watch.heard = now;
        self.last_heard = Some(now);
        if self.condition != Condition::Disconnected {
            self.move_to(Condition::Live, "the watch is open", effects);
        }
        if self.suspicious {
            // A restored etcd makes the server restart; a watch from a version above its own is silent (Rule 11).
            self.suspicious = false;
            self.suspect_rewind(now);
        }
        watch
    }

    /// Events in the order of the stream, until one ends the watch.
    pub(super) fn on_watch_events(
        &mut self,
        now: BootInstant,
        mut watch: Watch,
        events: Vec<WatchEvent>,
        effects: &mut Vec<Effect>,
    ) -> Phase {
        watch.opened.get_or_insert(now);
        watch.heard = now;
        for event in events {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => self.upsert(object, effects),
                WatchEvent::Deleted(object) => self.delete(object, effects),
                WatchEvent::Bookmark { resource_version, .. } => {
                    watch.bookmarks = true;
                    let head = self.head.as_ref();
                    if head.is_some_and(|head| head.is_after(&resource_version)) {
                        self.suspect_rewind(now);
                    } else if head != Some(&resource_version) {
                        effects.push(Effect::Head(resource_version.clone()));
                        self.head = Some(resource_version);
                    }
                }
                WatchEvent::Error(failure) => {
                    effects.push(Effect::Cancel { request: watch.request });
                    return self.on_error_event(now, &failure, effects);
                }
            }
            watch.lively = true;
            self.watches_empty = 0;
            self.works(now);
            self.move_to(Condition::Live, "events arrive", effects);
        }
        Phase::Watching(watch)
    }

    /// ADDED or MODIFIED: which of the two follows from the cache (Rule 3).
    fn upsert(&mut self, object: ObjectState, effects: &mut Vec<Effect>) {
        let cached = self.cache.get(&object.key).cloned();
        let behind = |known: &_| object.resource_version.order(known).is_some_and(|order| order.is_lt());
        let repeated = |cached: &Arc<ObjectState>| {
            cached.uid == object.uid && cached.resource_version.reaches(&object.resource_version)
        };
        if self.head.as_ref().is_some_and(behind) || cached.as_ref().is_some_and(repeated) {
            // Rule 1.
            return effects.push(Effect::Noted(Note::StaleEvent));
        }
        let same = cached.filter(|cached| {
            let same = cached.uid == object.uid;
            if !same {
                // Rule 2: the name has a new owner, and nobody saw the old one go.
                let change = crate::feed::relist::deleted(cached, DeleteReason::Replaced);
                effects.push(Effect::Changed(Change {
                    resource_version: Some(object.resource_version.clone()),
                    ..change
                }));
            }
            same
        });
        let version = object.resource_version.clone();
        let object = Arc::new(object);
        effects.push(Effect::Changed(Change {
            kind: if same.is_some() { ChangeKind::Modified } else { ChangeKind::Added },
            origin: Origin::Watched,
            key: object.key.clone(),
            uid: object.uid.clone(),
            resource_version: Some(version.clone()),
            old: same,
            object: Some(object.clone()),
        }));
        self.cache.insert(object);
        self.head = Some(version);
    }

    /// DELETED, with the last state and the version of the deletion.
    fn delete(&mut self, object: ObjectState, effects: &mut Vec<Effect>) {
        let behind = |known: &_| object.resource_version.order(known).is_some_and(|order| order.is_lt());
        let cached = self.cache.get(&object.key).cloned();
        let version = object.resource_version.clone();
        let change = match cached {
            _ if self.head.as_ref().is_some_and(behind) => None,
            Some(cached) if cached.uid == object.uid && behind(&cached.resource_version) => None,
            Some(cached) if cached.uid == object.uid => {
                let gone = self.spec.has_selector();
                // Rule 12.
                let reason = if gone { DeleteReason::DeletedOrUnselected } else { DeleteReason::Deleted };
                Some(Change {
                    kind: ChangeKind::Deleted { reason, final_state_unknown: false },
                    origin: Origin::Watched,
                    key: object.key.clone(),
                    uid: object.uid.clone(),
                    resource_version: Some(version.clone()),
                    old: None,
                    object: Some(Arc::new(object)),
                })
            }
            // The name belonged to another when it was deleted: ours was gone before that, unseen.
            Some(cached) => Some(Change {
                resource_version: Some(version.clone()),
                ..crate::feed::relist::deleted(&cached, DeleteReason::Replaced)
            }),
            None => {
                // Nothing that anybody was told of; but the position counts.
                effects.push(Effect::Noted(Note::StaleEvent));
                if self.head.as_ref() != Some(&version) {
                    effects.push(Effect::Head(version.clone()));
                    self.head = Some(version);
                }
                return;
            }
        };
        match change {
            // Rule 1.
            None => effects.push(Effect::Noted(Note::StaleEvent)),
            Some(change) => {
                self.cache.remove(&change.key);
                self.head = Some(version);
                effects.push(Effect::Changed(change));
            }
        }
    }

    /// An ERROR event. 410 → Listing; what the server asks to wait for is waited for; anything else is tried again
    /// once at the same `head`, and then a list goes around it.
    fn on_error_event(&mut self, now: BootInstant, failure: &Failure, effects: &mut Vec<Effect>) -> Phase {
        match failure.kind {
            FailureKind::Rejected | FailureKind::Unavailable | FailureKind::Conflict | FailureKind::Undecodable => {
                self.reopen_once_then_relist(now, failure, effects)
            }
            FailureKind::Expired
            | FailureKind::Unauthorized
            | FailureKind::Forbidden
            | FailureKind::NotFound
            | FailureKind::TooManyRequests
            | FailureKind::VersionTooLarge
            | FailureKind::Timeout
            | FailureKind::Transport => self.on_watch_failed(now, failure, effects),
        }
    }

    /// A watch could not be opened, or broke.
    pub(super) fn on_watch_failed(&mut self, now: BootInstant, failure: &Failure, effects: &mut Vec<Effect>) -> Phase {
        match failure.kind {
            FailureKind::Expired => {
                effects.push(Effect::Noted(Note::Expired));
                let delay = self.backoff.next_unless_rested(&mut self.prng);
                self.relist_after(now, delay, effects)
            }
            FailureKind::VersionTooLarge => {
                self.suspect_rewind(now);
                self.wait(now, failure, Plan::Watch, effects)
            }
            FailureKind::Rejected => self.reopen_once_then_relist(now, failure, effects),
            FailureKind::Undecodable => self.on_undecodable(now, failure.message.clone(), effects),
            FailureKind::Unauthorized
            | FailureKind::Forbidden
            | FailureKind::NotFound
            | FailureKind::Conflict
            | FailureKind::TooManyRequests
            | FailureKind::Unavailable
            | FailureKind::Timeout
            | FailureKind::Transport => self.wait(now, failure, Plan::Watch, effects),
        }
    }

    /// A line that was not understood: what follows it may not be taken, or its change would be lost.
    pub(super) fn on_undecodable(&mut self, now: BootInstant, message: String, effects: &mut Vec<Effect>) -> Phase {
        effects.push(Effect::Noted(Note::Undecodable));
        self.reopen_once_then_relist(now, &Failure::new(FailureKind::Undecodable, message), effects)
    }

    fn reopen_once_then_relist(&mut self, now: BootInstant, failure: &Failure, effects: &mut Vec<Effect>) -> Phase {
        let again = self.stuck_at.is_some() && self.stuck_at == self.head;
        self.stuck_at = if again { None } else { self.head.clone() };
        let then = if again { Plan::List(Listing::new(Goal::Relist)) } else { Plan::Watch };
        self.wait(now, failure, then, effects)
    }

    fn relist_after(&mut self, now: BootInstant, delay: Duration, effects: &mut Vec<Effect>) -> Phase {
        let plan = Plan::List(Listing::new(Goal::Relist));
        if delay.is_zero() { self.begin(now, plan, effects) } else { self.later(now, delay, plan) }
    }

    /// EOF: normal, unless the watch was over before it began.
    pub(super) fn on_watch_ended(&mut self, now: BootInstant, watch: &Watch, effects: &mut Vec<Effect>) -> Phase {
        let lasted = now.since(watch.started);
        if watch.lively || lasted >= BACKOFF_RESET_MIN {
            if !watch.lively && lasted >= WATCH_SILENCE_MAX {
                // Not even a bookmark: usual for events, but also how a rewound server looks (Rule 11).
                self.suspect_rewind(now);
            }
            return self.begin(now, Plan::Watch, effects);
        }
        self.watches_empty += 1;
        let failure = Failure::new(FailureKind::Conflict, "the watch ended at once");
        if self.watches_empty < WATCHES_EMPTY_MAX {
            return self.wait(now, &failure, Plan::Watch, effects);
        }
        self.watches_empty = 0;
        self.wait(now, &failure, Plan::List(Listing::new(Goal::Relist)), effects)
    }

    /// Time passed on a watch.
    pub(super) fn on_watch_tick(&mut self, now: BootInstant, watch: Watch, effects: &mut Vec<Effect>) -> Phase {
        if watch.over_at() <= now {
            effects.push(Effect::Cancel { request: watch.request });
            return if watch.opened.is_none() {
                let failure = Failure::new(FailureKind::Timeout, "no answer to the watch");
                self.wait(now, &failure, Plan::Watch, effects)
            } else if now.since(watch.started) >= watch.timeout {
                // Rule 8: the server forgot to end it.
                self.on_watch_ended(now, &watch, effects)
            } else {
                // Rule 9: half open; nothing is lost by opening another one.
                let failure = Failure::new(FailureKind::Timeout, "the watch went silent");
                self.wait(now, &failure, Plan::Watch, effects)
            };
        }
        let open_for = watch.opened.map(|opened| now.since(opened));
        if let (Some(open_for), Some(wanted)) = (open_for, self.health_wanted())
            && open_for >= wanted
        {
            self.backoff.reset();
            self.failing = None;
            self.move_to(Condition::Live, "the watch stays open", effects);
        }
        Phase::Watching(watch)
    }
}
