//! The reflector of one list+watch (docs/protocol.md, D.2): raw bytes in, changes in version order out.

pub mod backoff;
pub mod cache;
pub mod relist;

use std::sync::Arc;
use std::time::Duration;

use crate::codec::list_page::ListPage;
use crate::codec::status::Failure;
use crate::codec::watch_event::{ManagedFields, WatchEvent};
use crate::object::{ObjectKey, ObjectState, Uid};
use crate::resource_version::ResourceVersion;

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

// STUBFEED
/// f
#[derive(Debug)]
pub struct Feed {
    spec: Arc<FeedSpec>,
    cache: cache::Snapshot,
}
impl Feed {
    /// n
    pub fn new(spec: Arc<FeedSpec>, _seed: u64) -> Self {
        Self { spec, cache: Default::default() }
    }
    /// s
    pub fn step(&mut self, _now: crate::time::BootInstant, _input: Input, _effects: &mut Vec<Effect>) {
        let _ = &self.spec;
    }
    /// d
    pub fn deadline(&self) -> Option<crate::time::BootInstant> {
        None
    }
    /// i
    pub fn info(&self) -> Option<&ResourceInfo> {
        None
    }
    /// h
    pub fn heard_at(&self) -> Option<crate::time::BootInstant> {
        None
    }
    /// c
    pub fn cache(&self) -> &cache::Snapshot {
        &self.cache
    }
}
