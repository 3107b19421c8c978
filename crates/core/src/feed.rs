//! The reflector of one list+watch (docs/protocol.md, D.2): raw bytes in, changes in version order out.

pub mod backoff;
pub mod cache;
mod failing;
mod listing;
mod relist;
mod resolving;
mod rewind;
#[cfg(test)]
mod tests;
mod watching;

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::list_page::ListPage;
use crate::codec::status::Failure;
use crate::codec::watch_event::{ManagedFields, WatchEvent};
use crate::feed::backoff::Backoff;
use crate::feed::cache::Cache;
use crate::feed::listing::{Listing, Streaming};
use crate::feed::rewind::Probe;
use crate::feed::watching::Watch;
use crate::limits::{ANSWER_GRACE, DISCONNECTED_AFTER, REQUEST_TIMEOUT};
use crate::object::{ObjectKey, ObjectState, Uid};
use crate::prng::Prng;
use crate::resource_version::ResourceVersion;
use crate::time::BootInstant;

/// What a feed lists and watches, after validation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeedSpec {
    /// Name in events, status and metrics: `pods`, or `pods@shop` where one watch spans several namespaces.
    pub name: Arc<str>,
    /// The resource as the user wrote it, the way kubectl takes it: `pods`, `deploy`, `widgets.v1.example.com`.
    pub resource: Arc<str>,
    /// One namespace, or all (and for cluster-scoped resources) none.
    pub namespace: Option<Arc<str>>,
    /// Server-side label selector, empty for none.
    pub label_selector: Arc<str>,
    /// Server-side field selector, empty for none.
    pub field_selector: Arc<str>,
    /// What becomes of `metadata.managedFields`.
    pub managed_fields: ManagedFields,
}

impl FeedSpec {
    /// Whether the server drops objects by selector, so that DELETED may mean "no longer selected" (Rule D.2-12).
    pub fn has_selector(&self) -> bool {
        !self.label_selector.is_empty() || !self.field_selector.is_empty()
    }
}

/// What discovery made of the resource's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceInfo {
    /// API group, empty for core.
    pub group: Arc<str>,
    /// API version within the group.
    pub version: Arc<str>,
    /// Plural name, as in URLs.
    pub resource: Arc<str>,
    /// Kind of one object.
    pub kind: Arc<str>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// The server answers `sendInitialEvents` (WatchList, on by default since 1.34).
    pub streaming_list: bool,
}

impl ResourceInfo {
    /// `group/version`, or the bare version for core: `apiVersion` of the objects.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_string() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// Names one request of one feed; answers to an older one change nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RequestId(pub u64);

/// Which state a LIST asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListMode {
    /// The most recent, by a consistent read (resourceVersion unset).
    Consistent,
    /// At least this version.
    NotOlderThan(ResourceVersion),
    /// Exactly this version; 410 when it is compacted.
    Exact(ResourceVersion),
}

/// One page of a LIST.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListRequest {
    /// Which state; only on the first page.
    pub mode: ListMode,
    /// At most this many objects, none for all in one answer.
    pub limit: Option<u32>,
    /// `continue` of the page before.
    pub continue_token: Option<String>,
    /// Only the list's metadata is wanted: for reading the horizon X, or probing a rewind.
    pub metadata_only: bool,
}

/// Where a WATCH starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchStart {
    /// All changes after this version.
    After(ResourceVersion),
    /// `sendInitialEvents`: every object, the end bookmark, then changes. At least this version, or the most recent.
    InitialEvents(Option<ResourceVersion>),
}

/// A WATCH.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchRequest {
    /// Where it starts.
    pub start: WatchStart,
    /// `timeoutSeconds`; the client gives up a little later by itself.
    pub timeout: Duration,
}

/// Whether the type is really gone, asked of `customresourcedefinitions`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TypeAnswer {
    /// The definition is not there (404).
    Absent,
    /// It is there.
    Present,
    /// It could not be asked (403, network), or the type is not a custom one.
    Unknown,
}

/// What happens to a feed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Begin: from a position of the checkpoint, or afresh.
    Start {
        /// C of Rule D.6: the lowest position acked by a durable subscription.
        recover_from: Option<ResourceVersion>,
    },
    /// Discovery knows the resource.
    Resolved {
        /// The request answered.
        request: RequestId,
        /// What it is.
        info: ResourceInfo,
    },
    /// A page arrived.
    ListPage {
        /// The request answered.
        request: RequestId,
        /// The page.
        page: ListPage,
    },
    /// The server accepted the watch (HTTP 200); nothing is promised by it.
    WatchOpened {
        /// The request answered.
        request: RequestId,
    },
    /// Events arrived, in the order of the stream.
    WatchEvents {
        /// The watch.
        request: RequestId,
        /// At least one event.
        events: Vec<WatchEvent>,
    },
    /// A line of the watch could not be decoded; the watch is over.
    WatchUndecodable {
        /// The watch.
        request: RequestId,
        /// What was wrong, without content.
        message: String,
    },
    /// The stream ended without an error.
    WatchClosed {
        /// The watch.
        request: RequestId,
    },
    /// A request failed, or an open watch broke.
    Failed {
        /// The request.
        request: RequestId,
        /// Why.
        failure: Failure,
    },
    /// Answer to [`Effect::AskType`].
    TypeAnswered {
        /// The request answered.
        request: RequestId,
        /// The answer.
        answer: TypeAnswer,
    },
    /// Leadership was acquired: read the horizon X (Rule D.6).
    ReadHorizon,
    /// A version of the same etcd was seen to fall elsewhere (another feed, the Lease): compare (Rule D.2-11).
    CheckRewind,
    /// Time passed; sent at or after [`Feed::deadline`].
    Tick,
}

/// What a feed wants done, or says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Find the resource by discovery.
    Resolve {
        /// Names the request.
        request: RequestId,
    },
    /// Get a page.
    List {
        /// Names the request.
        request: RequestId,
        /// The page wanted.
        list: ListRequest,
    },
    /// Open a watch.
    Watch {
        /// Names the request.
        request: RequestId,
        /// The watch wanted.
        watch: WatchRequest,
    },
    /// Ask whether the type's definition exists.
    AskType {
        /// Names the request.
        request: RequestId,
    },
    /// Give up a request or close a watch; its answers are no longer wanted.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// The cache holds exactly the state at `at`, for the first time or after a reset; changes follow from there.
    Synced {
        /// Version of the state; the journal is complete from here.
        at: ResourceVersion,
    },
    /// One change, in version order (Rule D.2-1). Its position is its version.
    Changed(Change),
    /// Everything up to here has been seen (a bookmark).
    Head(ResourceVersion),
    /// History `(from, to]` was lost and replaced by the difference of two states (Rule D.2-5): deletes first, then
    /// upserts by version. The whole group has the position `to`; it may be empty.
    Relisted {
        /// Complete up to here.
        from: ResourceVersion,
        /// Version of the new list.
        to: ResourceVersion,
        /// The difference.
        changes: Vec<Change>,
    },
    /// Versions went backwards (Rule D.2-11): the cache was replaced by the list at `at`, and no earlier position of
    /// this feed means anything any more.
    Rewound {
        /// Version of the new list.
        at: ResourceVersion,
    },
    /// The type is confirmed gone (Rule D.2-7): deletes of all that was cached; positions end here.
    TypeRemoved {
        /// One delete per object that was cached.
        changes: Vec<Change>,
    },
    /// X of Rule D.6.
    Horizon(ResourceVersion),
    /// The condition changed, for status, metrics and frames.
    Moved {
        /// Condition before.
        from: Condition,
        /// Condition from here on.
        to: Condition,
        /// For people.
        why: String,
    },
    /// Something was dropped or survived that people should be able to count.
    Noted(Note),
}

/// Things that are counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Note {
    /// An event at or below the cached version of its object (Rule D.2-1).
    StaleEvent,
    /// A line that could not be decoded (Rule D.2-6).
    Undecodable,
    /// A 410 in any form.
    Expired,
    /// A full list that replaced lost history.
    Relist,
    /// A list older than what was seen before, thrown away (Rule D.2-4).
    StaleList,
    /// A watch was opened.
    WatchStart,
}

/// The condition of a feed as people see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// First list or recovery under way.
    Syncing,
    /// Watching.
    Live,
    /// Not connected; retrying. State is kept, no deletes are inferred.
    Disconnected,
    /// 401 or 403; retrying. State is kept, no deletes are inferred.
    Forbidden,
    /// 404: the type is not served. State is kept until its removal is confirmed.
    NotServed,
}

/// Why an object is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeleteReason {
    /// Deleted in the cluster.
    Deleted,
    /// Deleted, or no longer matched by the feed's selector: the API does not tell.
    DeletedOrUnselected,
    /// No longer matched by the subscription's filter.
    Unselected,
    /// Another object took the name while the feed was not watching.
    Replaced,
    /// The type itself was removed.
    TypeRemoved,
}

/// What happened to an object. Derived from the cache, not from the wire (Rule D.2-3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// It was not cached.
    Added,
    /// It was.
    Modified,
    /// It is gone.
    Deleted {
        /// Why.
        reason: DeleteReason,
        /// The last known state may be older than the state at deletion.
        final_state_unknown: bool,
    },
}

/// How a change became known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Seen on a watch.
    Watched,
    /// Derived by comparing states.
    Synthesized,
}

/// One change of one object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// How it became known.
    pub origin: Origin,
    /// Which object.
    pub key: ObjectKey,
    /// Which incarnation.
    pub uid: Uid,
    /// Version of the change; of a deletion that was not seen: none.
    pub resource_version: Option<ResourceVersion>,
    /// State before: of MODIFIED the previous one, none otherwise.
    pub old: Option<Arc<ObjectState>>,
    /// New state, or for a delete the last known one.
    pub object: Option<Arc<ObjectState>>,
}

/// The reflector of one feed. See [`Feed::step`].
#[derive(Debug)]
pub struct Feed {
    spec: Arc<FeedSpec>,
    info: Option<ResourceInfo>,
    prng: Prng,
    requests: u64,
    phase: Phase,
    cache: Cache,
    /// All changes up to here are in the cache; none before the first list.
    head: Option<ResourceVersion>,
    /// C, until the first list is complete: also a version below which no list is believed.
    recover_from: Option<ResourceVersion>,
    condition: Condition,
    backoff: Backoff,
    /// Since when the server has not been answering usefully, and what it said last.
    failing: Option<(BootInstant, String)>,
    /// Since when discovery and the definition have said that the type is absent, without a contrary answer.
    absent_since: Option<BootInstant>,
    /// Whether streaming lists are worth a try on this server.
    streaming: bool,
    /// Lists in a row that outlived the history they were read from.
    lists_expired: u32,
    /// Answers in a row that the version asked for is too large.
    versions_too_large: u32,
    /// Lists in a row that are new and hold objects older than the cached ones.
    contradictions: u32,
    /// Watches in a row that ended at once and empty.
    watches_empty: u32,
    /// Where an event could not be understood, or the server could not send it.
    stuck_at: Option<ResourceVersion>,
    last_watch_start: Option<BootInstant>,
    last_heard: Option<BootInstant>,
    horizon: Option<Probe>,
    rewind: Option<Probe>,
    /// The connection broke: the server that answers next may have another past.
    suspicious: bool,
    /// X, until `head` has reached it: watches are short, because the server sends a bookmark before each ends.
    reach: Option<ResourceVersion>,
}

/// What a feed is doing.
#[derive(Debug)]
enum Phase {
    /// Not started.
    Idle,
    /// Asking discovery for the resource.
    Resolving(Sent),
    /// Asking whether the type is really gone.
    Asking(Sent),
    /// Reading pages.
    Listing(Sent, Listing),
    /// Reading a streaming list.
    Streaming(Streaming),
    /// Watching, or opening a watch.
    Watching(Watch),
    /// Waiting before the next try.
    Waiting(BootInstant, Plan),
}

/// A request under way, given up at `until`.
#[derive(Clone, Copy, Debug)]
struct Sent {
    request: RequestId,
    until: BootInstant,
}

/// What comes after waiting.
#[derive(Debug)]
enum Plan {
    Resolve,
    /// Begin a list, or go on with one at the page that failed.
    List(Listing),
    /// Watch from `head`.
    Watch,
}

impl Feed {
    /// A feed that waits for [`Input::Start`]. Its jitter follows from `seed`.
    pub fn new(spec: Arc<FeedSpec>, seed: u64) -> Self {
        Self {
            spec,
            info: None,
            prng: Prng::new(seed),
            requests: 0,
            phase: Phase::Idle,
            cache: Cache::default(),
            head: None,
            recover_from: None,
            condition: Condition::Syncing,
            backoff: Backoff::default(),
            failing: None,
            absent_since: None,
            streaming: false,
            lists_expired: 0,
            versions_too_large: 0,
            contradictions: 0,
            watches_empty: 0,
            stuck_at: None,
            last_watch_start: None,
            last_heard: None,
            horizon: None,
            rewind: None,
            suspicious: false,
            reach: None,
        }
    }

    /// What is listed and watched.
    pub fn spec(&self) -> &Arc<FeedSpec> {
        &self.spec
    }

    /// What discovery made of it; none before its first answer.
    pub fn info(&self) -> Option<&ResourceInfo> {
        self.info.as_ref()
    }

    /// The condition, as told by the newest [`Effect::Moved`].
    pub fn condition(&self) -> Condition {
        self.condition
    }

    /// The version that the cache stands for; none before the first list and after the type was removed.
    pub fn head(&self) -> Option<&ResourceVersion> {
        self.head.as_ref()
    }

    /// The objects at [`Feed::head`].
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// When the server last said anything about this feed: a page, an event, a bookmark, an accepted watch.
    pub fn last_heard(&self) -> Option<BootInstant> {
        self.last_heard
    }

    /// When [`Input::Tick`] is wanted; an earlier or later one does no harm. None before the start.
    pub fn deadline(&self) -> Option<BootInstant> {
        let phase = match &self.phase {
            Phase::Idle => return None,
            Phase::Resolving(sent) | Phase::Asking(sent) | Phase::Listing(sent, _) => sent.until,
            Phase::Streaming(streaming) => streaming.deadline(),
            Phase::Watching(watch) => watch.deadline(self.health_wanted()),
            Phase::Waiting(until, _) => *until,
        };
        let probes = [&self.horizon, &self.rewind].into_iter().flatten();
        let probes = probes.filter(|_| self.info.is_some()).map(Probe::deadline);
        probes.chain(self.disconnected_at()).chain([phase]).min()
    }

    /// Takes one input and appends what is to be done, in order. Each arm is a row of the table in D.2; an answer to a
    /// request that is not under way changes nothing.
    pub fn step(&mut self, now: BootInstant, input: Input, effects: &mut Vec<Effect>) {
        let phase = mem::replace(&mut self.phase, Phase::Idle);
        self.phase = match (phase, input) {
            (Phase::Idle, Input::Start { recover_from }) => {
                self.recover_from = recover_from;
                self.begin(now, Plan::Resolve, effects)
            }
            (phase, Input::Start { .. }) => phase,

            // Resolving: discovery ok → Recovering(C), Listing, or back to the watch that a 404 interrupted.
            (Phase::Resolving(sent), Input::Resolved { request, info }) if sent.request == request => {
                let plan = self.resolved(now, info, effects);
                self.begin(now, plan, effects)
            }
            (phase, Input::Resolved { .. }) => phase,

            // Listing: pages, the last one applies the difference (Rules 4, 5).
            (Phase::Listing(sent, listing), Input::ListPage { request, page }) if sent.request == request => {
                self.on_page(now, listing, page, effects)
            }
            (phase, Input::ListPage { request, page }) if awaits(&self.horizon, request) => {
                self.on_horizon(now, phase, page.resource_version, effects)
            }
            (phase, Input::ListPage { request, page }) if awaits(&self.rewind, request) => {
                self.on_rewind_answer(now, phase, &page.resource_version, effects)
            }
            (phase, Input::ListPage { .. }) => phase,

            // Watching: the server accepted; events; bookmarks; a streaming list is a watch until its end bookmark.
            (Phase::Watching(watch), Input::WatchOpened { request }) if watch.request == request => {
                Phase::Watching(self.on_watch_opened(now, watch, effects))
            }
            (Phase::Streaming(streaming), Input::WatchOpened { request }) if streaming.request == request => {
                self.last_heard = Some(now);
                Phase::Streaming(streaming)
            }
            (phase, Input::WatchOpened { .. }) => phase,
            (Phase::Watching(watch), Input::WatchEvents { request, events }) if watch.request == request => {
                self.on_watch_events(now, watch, events, effects)
            }
            (Phase::Streaming(streaming), Input::WatchEvents { request, events }) if streaming.request == request => {
                self.on_streaming_events(now, streaming, events, effects)
            }
            (phase, Input::WatchEvents { .. }) => phase,

            // Undecodable line → reopen at head, twice → Listing (Rule 1: never go past what was not understood).
            (Phase::Watching(watch), Input::WatchUndecodable { request, message }) if watch.request == request => {
                self.on_undecodable(now, message, effects)
            }
            (Phase::Streaming(s), Input::WatchUndecodable { request, message }) if s.request == request => {
                effects.push(Effect::Noted(Note::Undecodable));
                self.streaming = false;
                self.list_again_later(now, s.goal, message, effects)
            }
            (phase, Input::WatchUndecodable { .. }) => phase,

            // EOF → reopen at head (Rule 8); at once and empty → a failure, a few in a row → Listing.
            (Phase::Watching(watch), Input::WatchClosed { request }) if watch.request == request => {
                self.on_watch_ended(now, &watch, effects)
            }
            (Phase::Streaming(s), Input::WatchClosed { request }) if s.request == request => {
                self.streaming = false;
                self.list_again_later(now, s.goal, "the streaming list ended early".into(), effects)
            }
            (phase, Input::WatchClosed { .. }) => phase,

            // Failures never produce deletes (Rule 6).
            (Phase::Resolving(sent), Input::Failed { request, failure }) if sent.request == request => {
                self.on_resolve_failed(now, &failure, effects)
            }
            (Phase::Asking(sent), Input::Failed { request, failure }) if sent.request == request => {
                self.absent_since = None;
                self.wait(now, &failure, Plan::Resolve, effects)
            }
            (Phase::Listing(sent, listing), Input::Failed { request, failure }) if sent.request == request => {
                self.on_list_failed(now, listing, &failure, effects)
            }
            (Phase::Streaming(s), Input::Failed { request, failure }) if s.request == request => {
                self.on_streaming_failed(now, s.goal, &failure, effects)
            }
            (Phase::Watching(watch), Input::Failed { request, failure }) if watch.request == request => {
                self.on_watch_failed(now, &failure, effects)
            }
            (phase, Input::Failed { request, failure }) => {
                self.on_probe_failed(now, request, &failure);
                phase
            }

            // Rule 7: absent, and absent still after the confirmation time → the objects are gone.
            (Phase::Asking(sent), Input::TypeAnswered { request, answer }) if sent.request == request => {
                self.on_type_answer(now, answer, effects);
                Phase::Waiting(now + self.backoff.next(&mut self.prng, None), Plan::Resolve)
            }
            (phase, Input::TypeAnswered { .. }) => phase,

            // D.6: X must be read after the acquiring write, so a request under way does not count.
            (phase, Input::ReadHorizon) => {
                self.drop_probe(|feed| feed.horizon.take(), effects);
                self.horizon = Some(Probe::due(now));
                phase
            }

            // Rule 11.
            (phase, Input::CheckRewind) => {
                self.suspect_rewind(now);
                phase
            }

            (Phase::Waiting(until, plan), Input::Tick) if until <= now => self.begin(now, plan, effects),
            (Phase::Resolving(sent), Input::Tick) if sent.until <= now => {
                effects.push(Effect::Cancel { request: sent.request });
                self.on_resolve_failed(now, &failing::no_answer(), effects)
            }
            (Phase::Asking(sent), Input::Tick) if sent.until <= now => {
                effects.push(Effect::Cancel { request: sent.request });
                self.absent_since = None;
                self.wait(now, &failing::no_answer(), Plan::Resolve, effects)
            }
            (Phase::Listing(sent, listing), Input::Tick) if sent.until <= now => {
                effects.push(Effect::Cancel { request: sent.request });
                self.on_list_failed(now, listing, &failing::no_answer(), effects)
            }
            (Phase::Streaming(streaming), Input::Tick) if streaming.deadline() <= now => {
                // Rule 10: a server that does not know streaming lists sends a plain watch, without the end bookmark.
                effects.push(Effect::Cancel { request: streaming.request });
                self.streaming = false;
                self.begin(now, Plan::List(Listing::new(streaming.goal)), effects)
            }
            // Rules 8 and 9: first byte, silence, end.
            (Phase::Watching(watch), Input::Tick) => self.on_watch_tick(now, watch, effects),
            (phase, Input::Tick) => phase,
        };
        self.send_due_probes(now, effects);
        self.tell_when_disconnected(now, effects);
    }

    /// Sends what `plan` asks for, or waits until a watch may be started again.
    fn begin(&mut self, now: BootInstant, plan: Plan, effects: &mut Vec<Effect>) -> Phase {
        match plan {
            Plan::Resolve => {
                let request = self.request();
                effects.push(Effect::Resolve { request });
                Phase::Resolving(sent(now, request))
            }
            Plan::List(listing) if self.lists_by_streaming(&listing) => match self.watch_allowed_at() {
                Some(at) if at > now => Phase::Waiting(at, Plan::List(listing)),
                _ => Phase::Streaming(self.open_streaming(now, listing.goal, effects)),
            },
            Plan::List(listing) => {
                let request = self.request();
                effects.push(Effect::List { request, list: self.list_request(&listing) });
                Phase::Listing(sent(now, request), listing)
            }
            Plan::Watch => match self.watch_allowed_at() {
                Some(at) if at > now => Phase::Waiting(at, Plan::Watch),
                _ => Phase::Watching(self.open_watch(now, effects)),
            },
        }
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    /// The version below which no consistent answer can be: that of the cache, or C before there is one.
    fn floor(&self) -> Option<&ResourceVersion> {
        self.head.as_ref().or(self.recover_from.as_ref())
    }

    fn disconnected_at(&self) -> Option<BootInstant> {
        let (since, _) = self.failing.as_ref()?;
        if matches!(&self.phase, Phase::Watching(watch) if watch.is_open()) {
            return None;
        }
        (self.condition != Condition::Disconnected).then(|| *since + DISCONNECTED_AFTER)
    }
}

fn awaits(probe: &Option<Probe>, request: RequestId) -> bool {
    probe.as_ref().is_some_and(|probe| probe.awaits(request))
}

fn sent(now: BootInstant, request: RequestId) -> Sent {
    Sent { request, until: now + REQUEST_TIMEOUT + ANSWER_GRACE }
}
