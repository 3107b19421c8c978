//! Where a session stands in one feed, and what comes next there (docs/protocol.md, D.4).
//!
//! A place waits, walks a snapshot or reads the journal. Where it goes on is decided by the replica
//! (`replica::takeover`); how events fill a frame is `session::batch`.

use std::sync::Arc;

use crate::feed::cache::Cache;
use crate::frame::{FeedLabel, FrameKind, Gap, GapKind, GapReason};
use crate::journal::{Item, Journal};
use crate::object::ObjectKey;
use crate::resource_version::ResourceVersion;
use crate::session::batch;
use crate::session::batch::Batch;
use crate::session::{FeedView, Open, Progress};

/// Where a session stands in one feed.
#[derive(Debug)]
pub struct Place {
    /// Which feed, in the order of the configuration.
    pub feed: usize,
    /// Everything up to here has been put into frames; none when there is no position yet.
    pub position: Option<ResourceVersion>,
    /// Never decided: the start that was asked for still has to be looked at.
    pub fresh: bool,
    /// Why the next snapshot is a reset, if it is one.
    pub reset: Option<GapReason>,
    stage: Stage,
    /// Events of a group whose last one has not been sent: no cursor reaches them yet.
    group_events: u32,
    group_open: bool,
    snapshot_complete: bool,
    redelivered_before: u64,
    redelivery: Redelivery,
}

/// Which entries somebody may have delivered before this session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Redelivery {
    /// None.
    Never,
    /// Any: the horizon X has not been read yet.
    Unknown,
    /// Those up to the horizon X.
    Through(ResourceVersion),
}

#[derive(Debug)]
enum Stage {
    /// Nothing is decided: the feed has not synced, or this replica may not deliver.
    Waiting,
    /// The state as it was when the snapshot began, up to `passed`.
    Walking { at: ResourceVersion, snapshot: Cache, passed: Option<ObjectKey>, begun: bool, resume_seq: u64 },
    /// The journal, from `seq` on. Entries up to `skip_through` were acked already (E row 33).
    Reading { seq: u64, skip_through: Option<ResourceVersion> },
}

impl Place {
    /// A place whose start has not been looked at.
    pub(super) fn new(feed: usize) -> Self {
        Self {
            feed,
            position: None,
            fresh: true,
            reset: None,
            stage: Stage::Waiting,
            group_events: 0,
            group_open: false,
            snapshot_complete: false,
            redelivered_before: 0,
            redelivery: Redelivery::Never,
        }
    }

    /// Goes on after `position`, at `seq`; see [`Session::read_from`](crate::session::Session::read_from).
    pub(super) fn read_from(
        &mut self,
        position: ResourceVersion,
        seq: u64,
        redelivered_before: u64,
        redelivery: Redelivery,
    ) {
        self.stage = Stage::Reading { seq, skip_through: Some(position.clone()) };
        self.position = Some(position);
        self.fresh = false;
        self.reset = None;
        self.group_events = 0;
        self.group_open = false;
        self.redelivered_before = redelivered_before;
        self.redelivery = redelivery;
    }

    /// Sends the whole state at `at`, then what the journal tells from `resume_seq` on.
    pub(super) fn begin_snapshot(&mut self, at: ResourceVersion, snapshot: Cache, resume_seq: u64) {
        self.stage = Stage::Walking { at, snapshot, passed: None, begun: false, resume_seq };
        self.position = None;
        self.fresh = false;
        self.reset = None;
        self.group_events = 0;
        self.group_open = true;
        self.redelivered_before = 0;
        self.redelivery = Redelivery::Never;
    }

    /// The horizon of the feed has been read.
    pub(super) fn horizon_known(&mut self, horizon: &ResourceVersion) {
        if self.redelivery == Redelivery::Unknown {
            self.redelivery = Redelivery::Through(horizon.clone());
        }
    }

    /// What is acked up to `acked` does not come again (I3). Returns whether the place moved.
    pub(super) fn skip_acked(&mut self, acked: &ResourceVersion) -> bool {
        let Stage::Reading { skip_through, .. } = &mut self.stage else { return false };
        if self.position.as_ref().is_none_or(|position| !acked.is_after(position)) {
            return false;
        }
        *skip_through = Some(acked.clone());
        self.position = Some(acked.clone());
        self.group_events = 0;
        self.group_open = false;
        true
    }

    /// Forgets where it stands.
    pub(super) fn wait(&mut self) {
        self.stage = Stage::Waiting;
        self.group_events = 0;
        self.group_open = false;
    }

    /// Whether the replica has to decide where to go on.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    /// Whether events of a group were sent whose last one was not.
    pub(super) fn in_group(&self) -> bool {
        self.group_events > 0
    }

    /// Whether the end of a snapshot was sent.
    pub(super) fn snapshot_complete(&self) -> bool {
        self.snapshot_complete
    }

    /// First journal entry that is still needed; none when none is.
    pub(super) fn needs_from(&self) -> Option<u64> {
        match &self.stage {
            Stage::Waiting => None,
            Stage::Walking { resume_seq, .. } => Some(*resume_seq),
            Stage::Reading { seq, .. } => Some(*seq),
        }
    }

    /// Events that wait in the snapshot and the journal, before the filter.
    pub(super) fn pending_events(&self, journal: &Journal) -> usize {
        match &self.stage {
            Stage::Waiting => 0,
            Stage::Walking { snapshot, resume_seq, .. } => snapshot.len() + journal.len_from(*resume_seq),
            Stage::Reading { seq, .. } => journal.len_from(*seq),
        }
    }

    /// Counts events that were put into a frame. Returns how many an ack of the position covers; none while their group
    /// is open, or when there are none.
    pub(super) fn close_group(&mut self, events: u64) -> Option<u64> {
        self.group_events += events as u32;
        let closed = !self.group_open && self.group_events > 0;
        closed.then(|| u64::from(std::mem::take(&mut self.group_events)))
    }

    /// Puts what comes next in this feed into the batch, or returns the marker that comes before it. A marker is only
    /// returned while the batch is empty: events of other feeds that are in it leave first.
    pub(super) fn advance(
        &mut self,
        open: &Open,
        feed: &FeedView<'_>,
        batch: &mut Batch,
        progress: &mut Vec<Progress>,
    ) -> Option<FrameKind> {
        match &mut self.stage {
            Stage::Waiting => None,
            Stage::Walking { .. } => self.walk(open, feed, batch, progress),
            Stage::Reading { .. } => self.read(open, feed, batch, progress),
        }
    }

    fn walk(
        &mut self,
        open: &Open,
        feed: &FeedView<'_>,
        batch: &mut Batch,
        progress: &mut Vec<Progress>,
    ) -> Option<FrameKind> {
        let Stage::Walking { at, snapshot, passed, begun, resume_seq } = &mut self.stage else { return None };
        if !*begun {
            if !batch.is_empty() {
                return None;
            }
            *begun = true;
            let object_count = snapshot.len() as u64;
            let resource_version = at.clone();
            return Some(FrameKind::SnapshotBegin { feed: feed.label.clone(), resource_version, object_count });
        }
        let mut last = passed.take();
        let mut complete = true;
        for state in snapshot.iter_after(last.clone().as_ref()) {
            if open.filter.matches(state) && !batch.push(batch::event_of_snapshot(open, feed.label, state)) {
                complete = false;
                break;
            }
            last = Some(state.key.clone());
        }
        *passed = last;
        if !complete || !batch.is_empty() {
            return None;
        }
        let (resource_version, seq) = (at.clone(), *resume_seq);
        self.stage = Stage::Reading { seq, skip_through: None };
        self.position = Some(resource_version.clone());
        self.group_open = false;
        self.snapshot_complete = true;
        let position = self.position.clone();
        progress.push(Progress::Sent { feed: self.feed, seq, position, snapshot_end: true });
        Some(FrameKind::SnapshotEnd { feed: feed.label.clone(), resource_version })
    }

    fn read(
        &mut self,
        open: &Open,
        feed: &FeedView<'_>,
        batch: &mut Batch,
        progress: &mut Vec<Progress>,
    ) -> Option<FrameKind> {
        let Stage::Reading { seq, skip_through } = &mut self.stage else { return None };
        if feed.journal.has_dropped(*seq) {
            self.stage = Stage::Waiting;
            progress.push(Progress::Overtaken { feed: self.feed });
            return None;
        }
        let started = (*seq, self.position.clone());
        let mut marker = None;
        for entry in feed.journal.read_from(*seq) {
            let acked = |skip: &ResourceVersion| entry.position.as_ref().is_some_and(|at| skip.reaches(at));
            if skip_through.as_ref().is_some_and(acked) {
                *seq = entry.seq + 1;
                continue;
            }
            match &entry.item {
                Item::Relisted { .. } if !batch.is_empty() => break,
                Item::Relisted { from, to } => marker = Some(gap_of_hole(feed.label, from, to)),
                Item::Changed(recorded) => {
                    if let Some(kind) = open.filter.verdict(&recorded.change, open.fields.as_ref()) {
                        let elsewhere = match &self.redelivery {
                            Redelivery::Never => false,
                            Redelivery::Unknown => true,
                            Redelivery::Through(horizon) => {
                                entry.position.as_ref().is_some_and(|position| horizon.reaches(position))
                            }
                        };
                        let redelivered = elsewhere || entry.seq < self.redelivered_before;
                        if !batch.push(batch::event_of_entry(open, feed.label, entry, recorded, kind, redelivered)) {
                            break;
                        }
                    }
                }
            }
            *seq = entry.seq + 1;
            self.group_open = !entry.closes_group;
            if entry.closes_group {
                self.position.clone_from(&entry.position);
            }
            if marker.is_some() {
                break;
            }
        }
        let caught_up = *seq == feed.journal.end() && !self.group_open;
        if let (true, Some(position), Some(head)) = (caught_up, &self.position, feed.journal.head())
            && (head.is_after(position) || !head.is_ordered())
        {
            self.position = Some(head.clone());
        }
        let reached = (*seq, self.position.clone());
        if reached != started {
            let position = if self.group_open { started.1 } else { reached.1 };
            progress.push(Progress::Sent { feed: self.feed, seq: reached.0, position, snapshot_end: false });
        }
        if let Some(FrameKind::Gap(gap)) = &marker {
            progress.push(Progress::Gapped { feed: self.feed, kind: gap.kind, reason: gap.reason });
        }
        marker
    }

    /// Whether the next thing in this feed is a marker that the events in the batch have to leave before.
    pub(super) fn wants_flush(&self, batch: &Batch, feed: &FeedView<'_>) -> bool {
        let more = match &self.stage {
            Stage::Waiting => false,
            Stage::Walking { .. } => true,
            Stage::Reading { seq, .. } => *seq != feed.journal.end(),
        };
        more && !batch.is_empty()
    }
}

fn gap_of_hole(feed: &Arc<FeedLabel>, from: &ResourceVersion, to: &ResourceVersion) -> FrameKind {
    FrameKind::Gap(Gap {
        feed: feed.clone(),
        kind: GapKind::Coalesced,
        reason: GapReason::WatchExpired,
        from: Some(from.clone()),
        to: Some(to.clone()),
        deletes_complete: true,
        snapshot_follows: false,
        detail: "the API server no longer had this history; the net change follows, with every delete",
    })
}
