//! Stub.

use std::sync::Arc;
use std::time::Duration;

use crate::codec::cursor::{Cursor, CursorError};
use crate::epoch::Epoch;
use crate::filter::{FieldMask, Filter};
use crate::frame::Encoding;

/// What a consumer asks for, parsed and within bounds.
#[derive(Clone, PartialEq, Debug)]
pub struct Open {
    /// Durable subscription, none for an ephemeral one.
    pub subscription: Option<Arc<str>>,
    /// Feeds by name, or by the name of the watch they came from; empty for all.
    pub feeds: Vec<Arc<str>>,
    /// Where to start.
    pub start: Start,
    /// Which events are delivered.
    pub filter: Filter,
    /// How bodies are rendered.
    pub encoding: Encoding,
    /// How much of MODIFIED is sent.
    pub update_detail: UpdateDetail,
    /// Only these fields of the bodies; none for all.
    pub fields: Option<FieldMask>,
    /// Pause delivery at this many unacked events; none: 1000 for a durable subscription, no limit else.
    pub unacked_events_max: Option<u32>,
    /// Upper bound of a frame, within `limits::FRAME_BYTES_MIN..=FRAME_BYTES_MAX`.
    pub frame_bytes_max: usize,
    /// Upper bound of the events in a frame, at least 1.
    pub batch_events_max: usize,
    /// How long an event may wait for others.
    pub batch_delay_max: Duration,
    /// Interval of heartbeats on a quiet stream.
    pub heartbeat_interval: Duration,
    /// What to do when history is lost.
    pub gap_policy: GapPolicy,
    /// End with OK when each feed's snapshot is complete.
    pub end_after_snapshot: bool,
    /// Deliver whatever the role, with epoch 0. Ephemeral subscriptions only.
    pub ignore_leadership: bool,
}

/// Where a session starts.
#[derive(Clone, PartialEq, Debug)]
pub enum Start {
    /// The stored position of a durable subscription that has one, else a snapshot.
    Unspecified,
    /// The stored position.
    Stored,
    /// A position that the client kept.
    Cursor(Cursor),
    /// A snapshot, then what follows.
    Snapshot,
    /// Only what happens from now on.
    Live,
}

/// How much of MODIFIED is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UpdateDetail {
    /// New and old state.
    #[default]
    NewAndOld,
    /// New state.
    New,
}

/// What to do when history is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GapPolicy {
    /// Announce it and go on with what follows from it.
    #[default]
    Continue,
    /// End the call.
    Fail,
}

/// Why a session is refused or ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SessionError {
    /// No feed and no watch has this name.
    #[error("feeds = {name:?}: no such feed; there are {known}")]
    FeedUnknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// Not one of the configured durable subscriptions.
    #[error("subscription = {name:?}: not configured; there are {known}")]
    SubscriptionUnknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// `ignore_leadership` with a durable subscription, or STORED without one.
    #[error("{field}: {rule}")]
    Contradiction {
        /// The field.
        field: &'static str,
        /// What it needs.
        rule: &'static str,
    },
    /// The cursor is of another cluster, with the gap policy FAIL.
    #[error("cursor: made in another cluster")]
    CursorClusterMismatch,
    /// History is lost, with the gap policy FAIL.
    #[error("feed {feed}: history after the start position is lost")]
    HistoryLost {
        /// Which feed.
        feed: String,
    },
    /// A newer session took over the subscription.
    #[error("a newer session took over the subscription")]
    Superseded,
    /// The sidecar shuts down.
    #[error("the sidecar shuts down")]
    ShuttingDown,
}

/// An acknowledgement.
#[derive(Clone, PartialEq, Debug)]
pub struct AckRequest {
    /// Durable subscription; none for an ephemeral session named by `session`.
    pub subscription: Option<Arc<str>>,
    /// Text of the session, none when the client did not say.
    pub session: Option<String>,
    /// The cursor's text.
    pub cursor: String,
    /// Answer only once the position is stored in the cluster.
    pub wait_durable: bool,
}

/// How far acks have been recorded.
#[derive(Clone, PartialEq, Debug)]
pub struct AckOutcome {
    /// Acked position of the subscription.
    pub acked: Cursor,
    /// Acked and stored in the cluster.
    pub durable: Cursor,
    /// Epoch in which the ack was taken.
    pub epoch: Epoch,
}

/// Why an ack is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AckError {
    /// Neither a subscription nor a session was named.
    #[error("subscription: must be set, or session_id for an ephemeral session")]
    Unnamed,
    /// Not one of the configured durable subscriptions.
    #[error("subscription = {name:?}: not configured")]
    SubscriptionUnknown {
        /// The name given.
        name: String,
    },
    /// The text is not a cursor.
    #[error("cursor {0}")]
    Malformed(#[from] CursorError),
    /// The cursor lies beyond what was delivered.
    #[error("cursor: beyond what was delivered to this subscription in this epoch")]
    Ahead,
    /// This replica does not lead.
    #[error("this replica does not lead; {holder:?} does")]
    NotLeader {
        /// Holder of the Lease.
        holder: String,
        /// Highest epoch seen.
        epoch: Epoch,
    },
    /// A newer session has the subscription, or the named session is gone.
    #[error("session_id = {session:?}: superseded or gone")]
    Superseded {
        /// The session named.
        session: String,
    },
}
