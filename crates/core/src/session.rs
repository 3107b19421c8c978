//! One consumer's stream: which frame comes next (docs/protocol.md, D.4).
//!
//! A session reads journals and snapshots and turns them into frames; it decides nothing about
//! positions. Where each feed starts is decided by the replica (`replica::takeover`) and told by
//! [`Session::read_from`], [`Session::begin_snapshot`] and [`Session::announce`].

pub mod ack;
pub mod batch;
pub mod place;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::cursor::{Cursor, CursorError, Fingerprint};
use crate::epoch::Epoch;
use crate::feed::cache::Cache;
use crate::filter::{FieldMask, Filter};
use crate::frame::{
    Encoding, EndReason, FRAME_FIXED_BYTES, FeedLabel, Frame, FrameKind, Gap, GapKind, GapReason, Heartbeat, Hold,
    LeadershipNews, SessionId, SessionStarted,
};
use crate::invariant;
use crate::journal::Journal;
use crate::leadership::Role;
use crate::limits::FRAMES_QUEUED_MAX;
use crate::resource_version::ResourceVersion;
use crate::session::ack::Unacked;
use crate::session::batch::Batch;
use crate::session::place::{Place, Redelivery};
use crate::time::BootInstant;

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

/// What a session may read of a feed.
#[derive(Clone, Copy, Debug)]
pub struct FeedView<'a> {
    /// Which feed, in the order of the configuration.
    pub index: usize,
    /// Name, version and kind; none until discovery has answered.
    pub label: &'a Arc<FeedLabel>,
    /// Its fingerprint in cursors.
    pub fingerprint: Fingerprint,
    /// What happened.
    pub journal: &'a Journal,
}

/// What a session is told about the replica at each step.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// All feeds of the replica.
    pub feeds: &'a [FeedView<'a>],
    /// Role of the replica.
    pub role: &'a Role,
    /// Hash of the cluster's uid.
    pub cluster: u32,
    /// This process.
    pub incarnation: u32,
}

/// What became of a step: what the replica has to note down for the subscription.
#[derive(Clone, PartialEq, Debug)]
pub enum Progress {
    /// A frame for the stream.
    Frame(Box<Frame>),
    /// Entries of a feed before `seq` were put into frames, and the closed position `position` was reached.
    Sent {
        /// Which feed.
        feed: usize,
        /// First entry not sent.
        seq: u64,
        /// The position; none after the type was removed.
        position: Option<ResourceVersion>,
        /// The end of a snapshot was sent.
        snapshot_end: bool,
    },
    /// A gap was put into a frame.
    Gapped {
        /// Which feed.
        feed: usize,
        /// What it means.
        kind: GapKind,
        /// How it came about.
        reason: GapReason,
    },
    /// Events were put into a frame.
    Delivered {
        /// Which feed.
        feed: usize,
        /// How many.
        events: u64,
        /// How many of them stood for several changes.
        coalesced: u64,
        /// How many of them are deletes derived by comparison.
        synthesized_deletes: u64,
    },
    /// The journal no longer holds what this place needs next.
    Overtaken {
        /// Which feed.
        feed: usize,
    },
    /// The stream is to end.
    Ended(Option<SessionError>),
}

/// Markers that wait for a consumer that does not read, before older news of the same kind are dropped.
const MARKERS_KEPT_MAX: usize = 16;

/// One consumer's stream.
#[derive(Debug)]
pub struct Session {
    /// Its name within the process.
    pub id: SessionId,
    /// Its name in acks.
    pub text: String,
    /// What was asked for.
    pub open: Open,
    /// One per selected feed.
    pub places: Vec<Place>,
    /// Delivered and not acked.
    pub unacked: Unacked,
    room: usize,
    markers: VecDeque<Frame>,
    gated: VecDeque<Frame>,
    turn: usize,
    cursor_moved: bool,
    last_frame_at: BootInstant,
    batch_since: Option<BootInstant>,
    ending: Option<(EndReason, Duration, Option<SessionError>)>,
    ended: bool,
}

impl Session {
    /// A session that has sent nothing and knows no position.
    pub fn new(id: SessionId, text: String, open: Open, feeds: Vec<usize>, now: BootInstant) -> Self {
        Self {
            id,
            text,
            open,
            places: feeds.into_iter().map(Place::new).collect(),
            unacked: Unacked::default(),
            room: FRAMES_QUEUED_MAX,
            markers: VecDeque::new(),
            gated: VecDeque::new(),
            turn: 0,
            cursor_moved: false,
            last_frame_at: now,
            batch_since: None,
            ending: None,
            ended: false,
        }
    }

    /// Durable subscription of the session, none if ephemeral.
    pub fn subscription(&self) -> Option<&Arc<str>> {
        self.open.subscription.as_ref()
    }

    /// Whether the session receives this feed.
    pub fn has_feed(&self, feed: usize) -> bool {
        self.places.iter().any(|place| place.feed == feed)
    }

    /// Whether an event of this feed was sent and no ack has covered it, or none could yet.
    pub fn owes_ack(&self, feed: usize) -> bool {
        let in_group = self.places.iter().any(|place| place.feed == feed && place.in_group());
        in_group || self.unacked.any_of(feed)
    }

    /// Whether the stream has been given its last frame.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether frames with events may be made under this role.
    pub fn may_deliver(&self, role: &Role) -> bool {
        self.open.ignore_leadership || matches!(role, Role::Disabled | Role::Leading { .. })
    }

    /// Says what the session starts with.
    pub fn greet(&mut self, started: SessionStarted) {
        self.mark(FrameKind::SessionStarted(started));
    }

    /// Queues a frame that may leave in any role.
    pub fn mark(&mut self, kind: FrameKind) {
        self.push_marker(Frame { epoch: Epoch::NONE, cursor: None, kind });
    }

    /// A consumer that does not read must not make markers pile up: of many, only the newest of each kind still says
    /// something.
    fn push_marker(&mut self, frame: Frame) {
        if self.markers.len() >= MARKERS_KEPT_MAX {
            let outdated = |kind: &FrameKind| match (kind, &frame.kind) {
                (FrameKind::FeedStatus(old), FrameKind::FeedStatus(new)) => old.feed == new.feed,
                (FrameKind::Leadership(_), FrameKind::Leadership(_)) => true,
                _ => false,
            };
            self.markers.retain(|marker| !outdated(&marker.kind));
        }
        self.markers.push_back(frame);
    }

    /// Queues the news of a role. That this replica leads is told as a frame of the epoch, which raises the consumer's
    /// highest epoch before any event does; all other news may leave when the gate is shut.
    pub fn tell_role(&mut self, news: LeadershipNews) {
        let epoch = self.epoch(&news.role);
        self.push_marker(Frame { epoch, cursor: None, kind: FrameKind::Leadership(news) });
    }

    /// Queues a gap before what follows in its feed.
    pub fn announce(&mut self, gap: Gap, view: &View<'_>, progress: &mut Vec<Progress>, feed: usize) {
        progress.push(Progress::Gapped { feed, kind: gap.kind, reason: gap.reason });
        let epoch = self.epoch(view.role);
        // A reset that has not left yet says nothing beside the one that follows it.
        let resets = |frame: &Frame| matches!(&frame.kind, FrameKind::Gap(old) if old.kind == GapKind::Reset && old.feed.name == gap.feed.name);
        if gap.kind == GapKind::Reset {
            self.gated.retain(|frame| !resets(frame));
        }
        self.gated.push_back(Frame { epoch, cursor: None, kind: FrameKind::Gap(gap) });
    }

    /// Places of this session that wait for a decision.
    pub fn waiting(&self) -> impl Iterator<Item = usize> {
        let waits = |(index, place): (usize, &Place)| place.is_waiting().then_some(index);
        self.places.iter().enumerate().filter_map(waits)
    }

    /// Goes on after `position`, at `seq`. Entries before `redelivered_before` were handed out by this process already.
    pub fn read_from(
        &mut self,
        place: usize,
        position: ResourceVersion,
        seq: u64,
        redelivered_before: u64,
        redelivery: Redelivery,
    ) {
        self.places[place].read_from(position, seq, redelivered_before, redelivery);
        self.cursor_moved = true;
    }

    /// Sends the whole state at `at`, then what the journal tells from `resume_seq` on.
    pub fn begin_snapshot(&mut self, place: usize, at: ResourceVersion, snapshot: Cache, resume_seq: u64) {
        self.places[place].begin_snapshot(at, snapshot, resume_seq);
    }

    /// The subscription was acked up to `acked`, perhaps beyond what this stream has sent: by the stream before it, whose
    /// ack was late. What it covers does not come again (I3).
    pub fn skip_acked(&mut self, feed: usize, acked: &ResourceVersion) {
        for place in self.places.iter_mut().filter(|place| place.feed == feed) {
            self.cursor_moved |= place.skip_acked(acked);
        }
    }

    /// The horizon of a feed has been read.
    pub fn horizon_known(&mut self, feed: usize, horizon: &ResourceVersion) {
        self.places.iter_mut().filter(|place| place.feed == feed).for_each(|place| place.horizon_known(horizon));
    }

    /// Forgets where the place stands; the replica decides anew.
    pub fn wait(&mut self, place: usize) {
        let feed = self.places[place].feed;
        self.unacked.forget(feed);
        self.places[place].wait();
    }

    /// Forgets what was made and has not left: leadership is gone and nothing of it may leave later.
    pub fn drop_gated(&mut self) {
        self.gated.clear();
        self.unacked = Unacked::default();
        self.batch_since = None;
    }

    /// Takes back frames that the stream had not pulled when the gate closed, in order. Those of `epoch` may still leave
    /// in it; heartbeats and news are stale by then.
    pub fn withdraw(&mut self, frames: Vec<Frame>, epoch: Epoch) {
        self.pulled(frames.len());
        for frame in frames.into_iter().rev() {
            let stale = matches!(frame.kind, FrameKind::Heartbeat(_) | FrameKind::Leadership(_));
            if frame.epoch == epoch && !stale {
                self.gated.push_front(frame);
            }
        }
    }

    /// The stream has pulled frames.
    pub fn pulled(&mut self, frames: usize) {
        self.room += frames;
        invariant!(I11, self.room <= FRAMES_QUEUED_MAX, "room for {} frames in session {}", self.room, self.text);
    }

    /// Ends the stream after the frames that are queued already. The first reason stays.
    pub fn end(&mut self, reason: EndReason, retry_delay: Duration, error: Option<SessionError>) {
        if self.ending.is_none() {
            self.ending = Some((reason, retry_delay, error));
            self.gated.clear();
        }
    }

    /// First journal entry that a place still needs; none when it needs none.
    pub fn needs_from(&self, feed: usize) -> Option<u64> {
        self.places.iter().find(|place| place.feed == feed)?.needs_from()
    }

    /// Events that wait in snapshots and journals, before the filter.
    pub fn pending_events(&self, view: &View<'_>) -> u64 {
        let pending = self.places.iter().map(|place| place.pending_events(view.feeds[place.feed].journal));
        pending.sum::<usize>() as u64
    }

    /// What holds delivery back.
    pub fn hold(&self, role: &Role) -> Hold {
        if !self.may_deliver(role) {
            Hold::Leadership
        } else if self.open.unacked_events_max.is_some_and(|max| self.unacked.events() >= u64::from(max)) {
            Hold::Unacked
        } else {
            Hold::None
        }
    }

    /// The position of everything put into frames so far. A place that waits has none: what it had before may name frames
    /// that were withdrawn and never left.
    pub fn cursor(&self, view: &View<'_>) -> Cursor {
        let decided = self.places.iter().filter(|place| !place.is_waiting());
        let positions = decided.filter_map(|place| Some((view.feeds[place.feed].fingerprint, place.position.clone()?)));
        Cursor {
            cluster: view.cluster,
            epoch: self.epoch(view.role),
            incarnation: view.incarnation,
            positions: positions.collect(),
        }
    }

    /// When the session wants to be asked again although nothing happens.
    pub fn deadline(&self, role: &Role) -> Option<BootInstant> {
        if self.room == 0 || self.ended {
            return None;
        }
        let heartbeat = self.last_frame_at + self.open.heartbeat_interval;
        // What is held back waits for an input, not for a time.
        let batch = self.batch_since.filter(|_| self.hold(role) == Hold::None);
        let batch = batch.map(|since| since + self.open.batch_delay_max);
        Some(batch.map_or(heartbeat, |batch| batch.min(heartbeat)))
    }

    /// Makes the frames there is room for.
    pub fn fill(&mut self, view: &View<'_>, durable: Option<&Cursor>, now: BootInstant, progress: &mut Vec<Progress>) {
        while self.room > 0 && !self.ended {
            let Some(frame) = self.next_frame(view, durable, now, progress) else { break };
            self.room -= 1;
            self.last_frame_at = now;
            progress.push(Progress::Frame(Box::new(frame)));
        }
    }

    fn next_frame(
        &mut self,
        view: &View<'_>,
        durable: Option<&Cursor>,
        now: BootInstant,
        progress: &mut Vec<Progress>,
    ) -> Option<Frame> {
        if let Some(frame) = self.markers.pop_front() {
            return Some(frame);
        }
        if let Some((reason, retry_delay, error)) = self.ending.take() {
            self.ended = true;
            // The end follows its frame: the caller sees the frame first.
            progress.push(Progress::Frame(Box::new(Frame {
                epoch: Epoch::NONE,
                cursor: None,
                kind: FrameKind::SessionEnding { reason, retry_delay },
            })));
            progress.push(Progress::Ended(error));
            return None;
        }
        if self.may_deliver(view.role) {
            if let Some(frame) = self.gated.pop_front() {
                return Some(frame);
            }
            if self.hold(view.role) == Hold::None
                && let Some(frame) = self.next_events(view, now, progress)
            {
                return Some(frame);
            }
        }
        self.heartbeat(view, durable, now)
    }

    /// The next frame with events, or the marker that has to come before them; none when nothing is pending.
    fn next_events(&mut self, view: &View<'_>, now: BootInstant, progress: &mut Vec<Progress>) -> Option<Frame> {
        if self.waits_for_more(view, now) {
            return None;
        }
        // Whatever has waited is looked at here; it may turn out to be nothing for this session.
        self.batch_since = None;
        let mut batch = self.empty_batch(view);
        let mut marker = None;
        let (mut reached, mut acked_by_it) = (Vec::new(), 0);
        let count = self.places.len();
        for index in (0..count).map(|step| (self.turn + step) % count) {
            let place = &mut self.places[index];
            let feed = &view.feeds[place.feed];
            let before = batch.len();
            let moved = place.position.clone();
            marker = place.advance(&self.open, feed, &mut batch, progress);
            self.cursor_moved |= place.position != moved;
            let (events, coalesced, synthesized_deletes) = batch.count_from(before);
            if events > 0 {
                progress.push(Progress::Delivered { feed: place.feed, events, coalesced, synthesized_deletes });
            }
            if let Some(closed) = place.close_group(events) {
                acked_by_it += closed;
                reached.extend(place.position.clone().map(|position| (place.feed, position)));
            }
            if marker.is_some() || batch.is_full() {
                // Whoever filled the frame goes last next time.
                self.turn = (index + 1) % count;
                break;
            }
            if place.wants_flush(&batch, feed) {
                // It has a marker to send as soon as these events have left.
                self.turn = index;
                break;
            }
        }
        if self.open.subscription.is_some() || self.open.unacked_events_max.is_some() {
            self.unacked.sent(reached, acked_by_it, now);
        }
        let kind = match marker {
            Some(kind) => kind,
            None if batch.is_empty() => return None,
            None => FrameKind::Batch(batch.into_events()),
        };
        let complete = self.places.iter().all(Place::snapshot_complete);
        let cursor = self.moved_cursor(view);
        let frame = Frame { epoch: self.epoch(view.role), cursor, kind };
        if self.open.end_after_snapshot && complete {
            self.end(EndReason::SnapshotComplete, Duration::ZERO, None);
        }
        Some(frame)
    }

    fn empty_batch(&self, view: &View<'_>) -> Batch {
        let positions = self
            .places
            .iter()
            .filter_map(|place| place.position.as_ref().or_else(|| view.feeds[place.feed].journal.head()));
        let envelope_bytes = FRAME_FIXED_BYTES + Cursor::text_bytes_max(positions);
        let window = self.open.unacked_events_max.map_or(usize::MAX, |max| {
            (u64::from(max).saturating_sub(self.unacked.events())).try_into().unwrap_or(usize::MAX)
        });
        let bytes_max = self.open.frame_bytes_max.saturating_sub(envelope_bytes);
        Batch::new(bytes_max, self.open.batch_events_max.min(window.max(1)), self.open.encoding)
    }

    /// Whether events are left waiting for others, as the consumer asked for.
    fn waits_for_more(&mut self, view: &View<'_>, now: BootInstant) -> bool {
        if self.open.batch_delay_max.is_zero() {
            return false;
        }
        let pending = self.pending_events(view);
        if pending == 0 || pending >= self.open.batch_events_max as u64 {
            return false;
        }
        now < *self.batch_since.get_or_insert(now) + self.open.batch_delay_max
    }

    fn heartbeat(&mut self, view: &View<'_>, durable: Option<&Cursor>, now: BootInstant) -> Option<Frame> {
        if now < self.last_frame_at + self.open.heartbeat_interval {
            return None;
        }
        let beat = Heartbeat {
            role: view.role.clone(),
            unacked_events: self.unacked.events(),
            pending_events: self.pending_events(view),
            hold: self.hold(view.role),
            durable: durable.cloned(),
        };
        let may_deliver = self.may_deliver(view.role);
        let epoch = if may_deliver { self.epoch(view.role) } else { Epoch::NONE };
        let cursor = if may_deliver { self.moved_cursor(view) } else { None };
        Some(Frame { epoch, cursor, kind: FrameKind::Heartbeat(beat) })
    }

    fn epoch(&self, role: &Role) -> Epoch {
        match role {
            Role::Leading { epoch, .. } if !self.open.ignore_leadership => *epoch,
            _ => Epoch::NONE,
        }
    }

    /// The cursor, if it has moved since the last one that was given out.
    fn moved_cursor(&mut self, view: &View<'_>) -> Option<Cursor> {
        std::mem::take(&mut self.cursor_moved).then(|| self.cursor(view))
    }
}
