//! The state of a replica as people see it: what `GetStatus`, metrics and readiness are made of.

use std::sync::Arc;
use std::time::Duration;

use crate::codec::cursor::Cursor;
use crate::frame::{FeedDescription, FeedNews, Hold};
use crate::leadership::{LeaseView, Role};
use crate::resource_version::ResourceVersion;

/// A replica at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Status {
    /// Role.
    pub role: Role,
    /// The Lease behind it.
    pub lease: LeaseView,
    /// Feeds, in the order of the configuration.
    pub feeds: Vec<FeedStatus>,
    /// Durable subscriptions, then attached ephemeral ones.
    pub subscriptions: Vec<SubscriptionStatus>,
    /// Journal bytes over all feeds.
    pub journal_bytes: usize,
    /// Their limit.
    pub journal_bytes_max: usize,
    /// Cache bytes over all feeds.
    pub cache_bytes: usize,
    /// Time since a checkpoint of ours was last stored; none when never.
    pub checkpoint_age: Option<Duration>,
}

/// One feed.
#[derive(Clone, PartialEq, Debug)]
pub struct FeedStatus {
    /// What it watches.
    pub description: FeedDescription,
    /// Condition.
    pub news: FeedNews,
    /// Whether the cache has been complete once.
    pub synced: bool,
    /// Objects cached.
    pub object_count: u64,
    /// Bytes of the cache.
    pub cache_bytes: usize,
    /// Complete up to this version.
    pub head: Option<ResourceVersion>,
    /// Time since the API server was last heard.
    pub heard_age: Option<Duration>,
    /// Oldest version from which the journal can replay.
    pub journal_floor: Option<ResourceVersion>,
    /// Bytes of the journal.
    pub journal_bytes: usize,
    /// Entries of the journal.
    pub journal_entries: usize,
    /// Entries ever taken into the journal.
    pub changes: u64,
    /// Full relists since start.
    pub relists: u64,
    /// Deletes derived by comparison since start.
    pub synthesized_deletes: u64,
    /// Gaps announced since start.
    pub gaps: u64,
}

/// One subscription.
#[derive(Clone, PartialEq, Debug)]
pub struct SubscriptionStatus {
    /// Name, none if ephemeral.
    pub name: Option<Arc<str>>,
    /// Acked position.
    pub acked: Cursor,
    /// Acked and stored in the cluster.
    pub durable: Cursor,
    /// Text of the attached session, none when no consumer is attached.
    pub session: Option<String>,
    /// Delivered and not acked.
    pub unacked_events: u64,
    /// Waiting to be delivered.
    pub pending_events: u64,
    /// Age of the oldest event not acked.
    pub oldest_unacked_age: Option<Duration>,
    /// What holds it back.
    pub hold: Hold,
}
