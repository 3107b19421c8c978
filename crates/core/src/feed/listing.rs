//! Lists, paged and streaming: from the request to the new cache (D.2, rows Recovering and Listing; Rules 4, 5, 10).

use std::time::Duration;

use crate::codec::list_page::ListPage;
use crate::codec::status::{Failure, FailureKind};
use crate::codec::watch_event::WatchEvent;
use crate::feed::relist::{self, Staged, Stale};
use crate::feed::watching::Watch;
use crate::feed::{
    Condition, DeleteReason, Effect, Feed, ListMode, ListRequest, Note, Phase, Plan, RequestId, WatchRequest,
    WatchStart,
};
use crate::limits::{LIST_PAGE_OBJECTS, STREAMING_LIST_SILENCE_MAX};
use crate::resource_version::ResourceVersion;
use crate::time::BootInstant;

/// Lists in a row that may outlive the history before pages are given up (failure catalogue, row 4).
const LISTS_EXPIRED_MAX: u32 = 3;
/// Answers "version too large" in a row after which any consistent version is asked for.
const VERSIONS_TOO_LARGE_MAX: u32 = 2;

/// Lists in a row that are not older than the cache and hold older objects, before the cache is given up.
const CONTRADICTIONS_MAX: u32 = 2;

/// What a list is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Goal {
    /// The first state.
    First,
    /// The state at C, to watch from there (rung R1 of D.6).
    Recover(ResourceVersion),
    /// What replaces lost history.
    Relist,
    /// A new beginning: what was known means nothing any more (Rule 11).
    Reset,
}

/// A paged list: complete up to the page that `continue_token` names.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) goal: Goal,
    continue_token: Option<String>,
    staged: Staged,
}

impl Listing {
    /// A list without any page.
    pub(super) fn new(goal: Goal) -> Self {
        Self { goal, continue_token: None, staged: Staged::default() }
    }
}

/// A streaming list under way.
#[derive(Debug)]
pub(super) struct Streaming {
    pub(super) request: RequestId,
    pub(super) goal: Goal,
    timeout: Duration,
    started: BootInstant,
    heard: BootInstant,
    staged: Staged,
}

impl Streaming {
    /// When the list is given up.
    pub(super) fn deadline(&self) -> BootInstant {
        self.heard + STREAMING_LIST_SILENCE_MAX
    }
}

impl Feed {
    /// Rule 10. An exact state cannot be streamed.
    pub(super) fn lists_by_streaming(&self, listing: &Listing) -> bool {
        self.streaming && !matches!(listing.goal, Goal::Recover(_))
    }

    /// The request for the page that `listing` stands before.
    pub(super) fn list_request(&self, listing: &Listing) -> ListRequest {
        let mode = match (&listing.goal, self.not_older_than()) {
            (Goal::Recover(version), _) => ListMode::Exact(version.clone()),
            (Goal::Relist, Some(version)) => ListMode::NotOlderThan(version),
            (Goal::First | Goal::Relist | Goal::Reset, _) => ListMode::Consistent,
        };
        ListRequest {
            mode,
            limit: (self.lists_expired < LISTS_EXPIRED_MAX).then_some(LIST_PAGE_OBJECTS),
            continue_token: listing.continue_token.clone(),
            metadata_only: false,
        }
    }

    /// The version that a relist must reach, if the server can be asked for it.
    fn not_older_than(&self) -> Option<ResourceVersion> {
        let asked = self.versions_too_large < VERSIONS_TOO_LARGE_MAX;
        self.head.clone().filter(|head| asked && head.is_ordered())
    }

    /// Opens a watch with `sendInitialEvents`.
    pub(super) fn open_streaming(&mut self, now: BootInstant, goal: Goal, effects: &mut Vec<Effect>) -> Streaming {
        let (request, timeout) = (self.request(), self.watch_timeout());
        let from = if goal == Goal::Relist { self.not_older_than() } else { None };
        self.last_watch_start = Some(now);
        effects.push(Effect::Noted(Note::WatchStart));
        effects
            .push(Effect::Watch { request, watch: WatchRequest { start: WatchStart::InitialEvents(from), timeout } });
        Streaming { request, goal, timeout, started: now, heard: now, staged: Staged::default() }
    }

    /// A page: kept, followed by the next, or the last, which makes the new cache.
    pub(super) fn on_page(
        &mut self,
        now: BootInstant,
        mut listing: Listing,
        page: ListPage,
        effects: &mut Vec<Effect>,
    ) -> Phase {
        self.works(now);
        if self.head.is_none() {
            self.move_to(Condition::Syncing, "the list is answered", effects);
        }
        // Rule 4: all pages from one version.
        if listing.staged.version.get_or_insert_with(|| page.resource_version.clone()) != &page.resource_version {
            return self.on_list_expired(now, listing.goal, effects);
        }
        for object in page.objects {
            listing.staged.put(object, &self.cache);
        }
        if page.continue_token.is_some() {
            listing.continue_token = page.continue_token;
            return self.begin(now, Plan::List(listing), effects);
        }
        match self.complete(&listing.goal, listing.staged, page.resource_version, effects) {
            Ok(()) => self.begin(now, Plan::Watch, effects),
            Err(Stale) => self.on_stale_list(now, listing.goal, effects),
        }
    }

    /// Events of a streaming list; after its end bookmark those of a watch.
    pub(super) fn on_streaming_events(
        &mut self,
        now: BootInstant,
        mut streaming: Streaming,
        events: Vec<WatchEvent>,
        effects: &mut Vec<Effect>,
    ) -> Phase {
        streaming.heard = now;
        let mut events = events.into_iter();
        while let Some(event) = events.next() {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => streaming.staged.put(object, &self.cache),
                WatchEvent::Deleted(object) => streaming.staged.remove(&object),
                WatchEvent::Bookmark { initial_events_end: false, .. } => {
                    // Rule 10: the end comes before any other bookmark. This server sends a plain watch, whose events
                    // would keep a list waiting that never ends.
                    effects.push(Effect::Cancel { request: streaming.request });
                    self.streaming = false;
                    return self.begin(now, Plan::List(Listing::new(streaming.goal)), effects);
                }
                WatchEvent::Error(failure) => {
                    effects.push(Effect::Cancel { request: streaming.request });
                    return self.on_streaming_failed(now, streaming.goal, &failure, effects);
                }
                WatchEvent::Bookmark { resource_version, initial_events_end: true } => {
                    self.works(now);
                    if self.complete(&streaming.goal, streaming.staged, resource_version, effects) == Err(Stale) {
                        effects.push(Effect::Cancel { request: streaming.request });
                        return self.on_stale_list(now, streaming.goal, effects);
                    }
                    self.move_to(Condition::Live, "the watch is open", effects);
                    let watch = Watch::after_list(streaming.request, streaming.started, streaming.timeout, now);
                    let rest: Vec<_> = events.collect();
                    if rest.is_empty() {
                        return Phase::Watching(watch);
                    }
                    return self.on_watch_events(now, watch, rest, effects);
                }
            }
        }
        self.works(now);
        Phase::Streaming(streaming)
    }

    /// The list says `version`, whole: makes it the cache, or refuses it as older than what is known (Rules 4, 5, 11).
    fn complete(
        &mut self,
        goal: &Goal,
        staged: Staged,
        version: ResourceVersion,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Stale> {
        let below = self.floor().is_some_and(|floor| floor.is_after(&version));
        if below && *goal != Goal::Reset {
            return Err(Stale);
        }
        match (goal, self.head.clone()) {
            (Goal::Reset, _) => effects.push(Effect::Rewound { at: version.clone() }),
            (Goal::Relist, Some(from)) => {
                let gone =
                    if self.spec.has_selector() { DeleteReason::DeletedOrUnselected } else { DeleteReason::Deleted };
                let changes = relist::diff(&self.cache, &staged, gone).inspect_err(|Stale| self.contradictions += 1)?;
                effects.push(Effect::Noted(Note::Relist));
                effects.push(Effect::Relisted { from, to: version.clone(), changes });
            }
            (Goal::First | Goal::Recover(_) | Goal::Relist, _) => effects.push(Effect::Synced { at: version.clone() }),
        }
        self.cache = staged.into_cache();
        self.head = Some(version);
        self.recover_from = None;
        self.lists_expired = 0;
        self.versions_too_large = 0;
        self.contradictions = 0;
        self.watches_empty = 0;
        self.stuck_at = None;
        // A consistent list has just shown what a probe would ask for.
        self.drop_probe(|feed| feed.rewind.take(), effects);
        self.suspicious = false;
        Ok(())
    }

    /// Rules 4 and 11: nothing is concluded from a stale list; it is asked again, and beside it whether time went back.
    fn on_stale_list(&mut self, now: BootInstant, goal: Goal, effects: &mut Vec<Effect>) -> Phase {
        effects.push(Effect::Noted(Note::StaleList));
        self.suspect_rewind(now);
        let goal = match goal {
            Goal::Recover(_) => Goal::First,
            // New lists with objects older than the cached ones: versions went back and have passed `head` again since.
            Goal::Relist if self.contradictions >= CONTRADICTIONS_MAX => Goal::Reset,
            goal => goal,
        };
        self.list_again_later(now, goal, "the list is older than what was seen before".into(), effects)
    }

    /// Discards what there is of a list and begins it anew after a delay.
    pub(super) fn list_again_later(
        &mut self,
        now: BootInstant,
        goal: Goal,
        why: String,
        effects: &mut Vec<Effect>,
    ) -> Phase {
        let failure = Failure::new(FailureKind::Undecodable, why);
        self.wait(now, &failure, Plan::List(Listing::new(goal)), effects)
    }

    /// 410 in a list: an exact state is lost for good; other lists begin anew, without the token of the answer, which
    /// would go on from a later state and make ghosts of what was deleted between (Rule 4).
    fn on_list_expired(&mut self, now: BootInstant, goal: Goal, effects: &mut Vec<Effect>) -> Phase {
        effects.push(Effect::Noted(Note::Expired));
        if let Goal::Recover(_) = goal {
            return self.begin(now, Plan::List(Listing::new(Goal::First)), effects);
        }
        self.lists_expired += 1;
        if self.lists_expired + 1 == LISTS_EXPIRED_MAX {
            // Pages take longer than the history lasts: another route, if there is one.
            self.streaming = self.info.as_ref().is_some_and(|info| info.streaming_list);
        } else if self.lists_expired >= LISTS_EXPIRED_MAX {
            self.streaming = false;
        }
        self.list_again_later(now, goal, "the list took longer than the history lasts".into(), effects)
    }

    /// A page failed.
    pub(super) fn on_list_failed(
        &mut self,
        now: BootInstant,
        listing: Listing,
        failure: &Failure,
        effects: &mut Vec<Effect>,
    ) -> Phase {
        match (failure.kind, &listing.goal) {
            (FailureKind::Expired, _) => self.on_list_expired(now, listing.goal, effects),
            (FailureKind::Rejected, Goal::Recover(_)) => {
                self.begin(now, Plan::List(Listing::new(Goal::First)), effects)
            }
            (FailureKind::VersionTooLarge, _) => self.on_version_too_large(now, listing.goal, failure, effects),
            // The pages so far are good; go on where it failed.
            (
                FailureKind::TooManyRequests
                | FailureKind::Unavailable
                | FailureKind::Timeout
                | FailureKind::Transport
                | FailureKind::Unauthorized
                | FailureKind::Forbidden,
                _,
            ) => self.wait(now, failure, Plan::List(listing), effects),
            (FailureKind::Rejected | FailureKind::NotFound | FailureKind::Conflict | FailureKind::Undecodable, _) => {
                self.wait(now, failure, Plan::List(Listing::new(listing.goal)), effects)
            }
        }
    }

    /// A streaming list failed: by status, by an ERROR event, or by its connection.
    pub(super) fn on_streaming_failed(
        &mut self,
        now: BootInstant,
        goal: Goal,
        failure: &Failure,
        effects: &mut Vec<Effect>,
    ) -> Phase {
        match failure.kind {
            FailureKind::Expired => self.on_list_expired(now, goal, effects),
            // Rule 10: the gate is off, or the server is older than it says.
            FailureKind::Rejected => {
                self.streaming = false;
                self.begin(now, Plan::List(Listing::new(goal)), effects)
            }
            FailureKind::VersionTooLarge => self.on_version_too_large(now, goal, failure, effects),
            FailureKind::Undecodable => {
                self.streaming = false;
                self.wait(now, failure, Plan::List(Listing::new(goal)), effects)
            }
            FailureKind::Unauthorized
            | FailureKind::Forbidden
            | FailureKind::NotFound
            | FailureKind::Conflict
            | FailureKind::TooManyRequests
            | FailureKind::Unavailable
            | FailureKind::Timeout
            | FailureKind::Transport => self.wait(now, failure, Plan::List(Listing::new(goal)), effects),
        }
    }

    /// The server has not caught up with what was seen of another, or time went back (Rule 11).
    fn on_version_too_large(
        &mut self,
        now: BootInstant,
        goal: Goal,
        failure: &Failure,
        effects: &mut Vec<Effect>,
    ) -> Phase {
        self.versions_too_large += 1;
        self.suspect_rewind(now);
        self.wait(now, failure, Plan::List(Listing::new(goal)), effects)
    }
}
