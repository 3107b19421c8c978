//! A frame and its parts as plain data: what a session sends, before protobuf (C.8), with the bound of its size.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::codec::cursor::Cursor;
use crate::epoch::Epoch;
use crate::feed::{ChangeKind, Condition, FeedSpec, ResourceInfo};
use crate::leadership::{LeaseView, Role};
use crate::object::{ObjectKey, Uid};
use crate::resource_version::ResourceVersion;
use crate::time::{BootInstant, WallTime};

/// Names one session within this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// Bytes of a frame besides its events and its cursor: sequence, epoch, time, tags, and the message around it.
pub const FRAME_FIXED_BYTES: usize = 128;

/// One unit of the stream. Its sequence number and emit time are stamped where it leaves.
#[derive(Clone, PartialEq, Debug)]
pub struct Frame {
    /// Epoch it belongs to. With a nonzero epoch the frame may leave only while the gate is open for that epoch.
    pub epoch: Epoch,
    /// Where everything up to and including this frame stands; none when no new position is reached.
    pub cursor: Option<Cursor>,
    /// What it carries.
    pub kind: FrameKind,
}

/// What a frame carries.
#[derive(Clone, PartialEq, Debug)]
pub enum FrameKind {
    /// First frame of every session.
    SessionStarted(SessionStarted),
    /// Changes, at least one.
    Batch(Vec<Event>),
    /// The full state of a feed follows.
    SnapshotBegin {
        /// Which feed.
        feed: Arc<FeedLabel>,
        /// State as of this version.
        resource_version: ResourceVersion,
        /// Objects in the cache, before the filter.
        object_count: u64,
    },
    /// The full state is complete.
    SnapshotEnd {
        /// Which feed.
        feed: Arc<FeedLabel>,
        /// State as of this version.
        resource_version: ResourceVersion,
    },
    /// History was lost or skipped.
    Gap(Gap),
    /// The role changed.
    Leadership(LeadershipNews),
    /// Liveness and progress.
    Heartbeat(Heartbeat),
    /// The condition of a feed changed.
    FeedStatus(FeedNews),
    /// Last frame before the stream ends.
    SessionEnding {
        /// Why.
        reason: EndReason,
        /// Reconnect no sooner than this.
        retry_delay: Duration,
    },
}

/// Opens a session.
#[derive(Clone, PartialEq, Debug)]
pub struct SessionStarted {
    /// Text that names the session in acks.
    pub session: String,
    /// Durable subscription, none if ephemeral.
    pub subscription: Option<Arc<str>>,
    /// Feeds of the session.
    pub feeds: Vec<FeedDescription>,
    /// Where it starts; none: from nothing.
    pub start: Option<Cursor>,
    /// Effective limit of a frame.
    pub frame_bytes_max: usize,
    /// Effective limit of unacked events, none for no limit.
    pub unacked_events_max: Option<u32>,
}

/// A feed's definition and what discovery made of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeedDescription {
    /// What was configured.
    pub spec: Arc<FeedSpec>,
    /// What it is; none until discovery has answered.
    pub info: Option<ResourceInfo>,
}

/// The parts of a feed that every event of it repeats.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeedLabel {
    /// Feed name.
    pub name: Arc<str>,
    /// `group/version` of its objects.
    pub api_version: Arc<str>,
    /// Kind of its objects.
    pub kind: Arc<str>,
}

/// One change of one object, for one session.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Which feed.
    pub feed: Arc<FeedLabel>,
    /// What happened.
    pub kind: ChangeKind,
    /// Which object.
    pub key: ObjectKey,
    /// Which incarnation.
    pub uid: Uid,
    /// Version of the change, none if unknown.
    pub resource_version: Option<ResourceVersion>,
    /// Version of the state before, none if unknown.
    pub old_resource_version: Option<ResourceVersion>,
    /// New state, or the last known one.
    pub object: Payload,
    /// State before; none when not asked for or not known.
    pub old_object: Option<Payload>,
    /// States between old and new were skipped.
    pub coalesced: bool,
    /// Derived by comparing states.
    pub synthesized: bool,
    /// Part of a snapshot.
    pub in_snapshot: bool,
    /// May have been delivered before.
    pub redelivered: bool,
    /// When this sidecar learned of it.
    pub observed: WallTime,
}

impl Event {
    /// The id, the same on every replica and in every replay (C.4).
    pub fn id(&self) -> String {
        use crate::feed::DeleteReason::{DeletedOrUnselected, Unselected};
        let (feed, uid) = (&self.feed.name, &self.uid);
        let version = self.resource_version.as_ref().map(ToString::to_string).unwrap_or_default();
        match self.kind {
            ChangeKind::Deleted { reason: DeletedOrUnselected | Unselected, .. } => {
                format!("{feed}/{uid}/left/{version}")
            }
            ChangeKind::Deleted { .. } => format!("{feed}/{uid}/deleted"),
            ChangeKind::Added | ChangeKind::Modified => format!("{feed}/{uid}/{version}"),
        }
    }

    /// An upper bound of the protobuf size in bytes.
    pub fn size_bytes_max(&self, encoding: Encoding) -> usize {
        let text = |version: &Option<ResourceVersion>| version.as_ref().map_or(0, ResourceVersion::text_bytes_max);
        // The version stands in the id too, and so do feed and uid.
        let versions = 2 * text(&self.resource_version) + text(&self.old_resource_version);
        let identity = 2 * (self.feed.name.len() + self.uid.as_str().len())
            + self.key.namespace.len()
            + self.key.name.len()
            + self.feed.api_version.len()
            + self.feed.kind.len();
        let bodies = self.object.size_bytes_max(encoding)
            + self.old_object.as_ref().map_or(0, |old| old.size_bytes_max(encoding));
        EVENT_FIXED_BYTES + versions + identity + bodies
    }
}

/// Tags, lengths, flags, enums, timestamps and constant words of one event, rounded up.
const EVENT_FIXED_BYTES: usize = 160;
/// The form of bodies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Encoding {
    /// UTF-8 JSON text as the API server sent it.
    #[default]
    Json,
    /// `google.protobuf.Struct`.
    Struct,
    /// The commonly used part of metadata.
    Metadata,
    /// No body.
    None,
}

/// Why a payload has no body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Omission {
    /// The client asked for none.
    NotRequested,
    /// It does not fit into a frame.
    TooLarge,
    /// The journal dropped it to stay within its limit.
    Evicted,
    /// Never known.
    Unknown,
}

/// A body, or the reason why there is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// JSON text, rendered into the session's encoding where it leaves.
    Body(Bytes),
    /// No body.
    Omitted {
        /// Why.
        omission: Omission,
        /// Size of the full body in bytes, 0 if unknown.
        full_size_bytes: usize,
    },
}

impl Payload {
    /// An upper bound of the protobuf size in bytes.
    fn size_bytes_max(&self, encoding: Encoding) -> usize {
        const ENVELOPE_BYTES: usize = 24;
        ENVELOPE_BYTES
            + match (self, encoding) {
                (Self::Omitted { .. }, _) | (Self::Body(_), Encoding::None) => 0,
                (Self::Body(body), Encoding::Json) => body.len(),
                // The shortest JSON for a value or a nesting level is two bytes, the longest protobuf for one is a
                // tag and a length for each of entry, value and list around nine bytes of a double.
                (Self::Body(body), Encoding::Struct) => 12 * body.len(),
                // Labels, annotations, owners: map entries cost two tags and lengths more than in JSON.
                (Self::Body(body), Encoding::Metadata) => 2 * body.len(),
            }
    }
}

/// What a gap means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GapKind {
    /// Intermediate states were lost; the net change follows as events.
    Coalesced,
    /// A snapshot with sweep follows.
    Reset,
    /// Another replica's application handled this interval.
    HandledElsewhere,
    /// Everything before was skipped on request.
    LiveStart,
}

/// How a gap came about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GapReason {
    /// The API server no longer had the history.
    WatchExpired,
    /// The journal reached its limit because the consumer was behind.
    JournalOverflow,
    /// No position is stored, or it lies before all history that can be had.
    ColdStart,
    /// The feed's definition changed, or its type was removed and came back.
    FeedChanged,
    /// Versions went backwards.
    ClusterRewound,
    /// Versions of this type cannot be ordered.
    UnorderedVersions,
    /// The cursor is from another cluster.
    CursorUnknown,
    /// Leadership was elsewhere.
    Failover,
}

/// Announces lost or skipped history of one feed.
#[derive(Clone, PartialEq, Debug)]
pub struct Gap {
    /// Which feed.
    pub feed: Arc<FeedLabel>,
    /// What it means.
    pub kind: GapKind,
    /// How it came about.
    pub reason: GapReason,
    /// Everything up to here was delivered one by one.
    pub from: Option<ResourceVersion>,
    /// Delivery continues after this.
    pub to: Option<ResourceVersion>,
    /// All deletes within the interval are delivered as events.
    pub deletes_complete: bool,
    /// A snapshot of the feed follows.
    pub snapshot_follows: bool,
    /// For people.
    pub detail: &'static str,
}

/// Reports the role.
#[derive(Clone, PartialEq, Debug)]
pub struct LeadershipNews {
    /// The role.
    pub role: Role,
    /// The Lease behind it.
    pub lease: LeaseView,
    /// LEADING: where this epoch resumes the subscription.
    pub resume: Option<Cursor>,
    /// For people.
    pub detail: String,
}

/// What holds delivery back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// Nothing.
    None,
    /// The limit of unacked events is reached.
    Unacked,
    /// This replica does not lead.
    Leadership,
}

/// Liveness and progress.
#[derive(Clone, PartialEq, Debug)]
pub struct Heartbeat {
    /// The role.
    pub role: Role,
    /// Delivered and not acked.
    pub unacked_events: u64,
    /// Waiting to be delivered.
    pub pending_events: u64,
    /// What holds delivery back.
    pub hold: Hold,
    /// Acked and stored in the cluster.
    pub durable: Option<Cursor>,
}

/// The condition of a feed.
#[derive(Clone, PartialEq, Debug)]
pub struct FeedNews {
    /// Feed name.
    pub feed: Arc<str>,
    /// Condition.
    pub condition: Condition,
    /// Since when.
    pub since: WallTime,
    /// For people: the last error.
    pub detail: String,
}

/// Why a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// A newer session took over the subscription.
    Superseded,
    /// The sidecar shuts down.
    Shutdown,
    /// `end_after_snapshot` was set and the snapshot is complete.
    SnapshotComplete,
    /// History is lost, and the consumer asked for the call to fail then.
    HistoryLost,
}

/// How long a validity that ends at `until` still lasts at `now`; none outside leadership.
pub fn valid_for(role: &Role, now: BootInstant) -> Option<Duration> {
    match role {
        Role::Leading { until, .. } => Some(until.since(now)),
        Role::Disabled | Role::Standby | Role::Suspended { .. } | Role::Releasing { .. } | Role::Lost { .. } => None,
    }
}
