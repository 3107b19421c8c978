//! What exists in each state of the elector, and the pure steps from one value of it to the next.

use std::fmt;
use std::time::Duration;

use crate::codec::lease::LeaseRecord;
use crate::elector::{Identity, RequestId};
use crate::epoch::Epoch;
use crate::leadership::PendingCheckpoint;
use crate::limits;
use crate::resource_version::ResourceVersion;
use crate::time::{BootInstant, WallTime};

/// The states of Rule D.1 by name; `Lost` is passed through within one step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// Not started.
    Idle,
    /// Somebody else leads, or nobody yet.
    Follower,
    /// A write that would make this replica the leader is under way.
    Acquiring,
    /// This replica leads.
    Leading,
    /// This replica holds the Lease, as far as it knows, and could not prove it in time.
    Suspended,
    /// Leadership is gone.
    Lost,
    /// Leadership is being given up in order.
    Releasing,
    /// Over, after an orderly shutdown.
    Ended,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A state with what exists only in it.
#[derive(Debug)]
pub(super) enum State {
    Idle,
    Follower(Candidacy),
    Acquiring(Candidacy, Write, Then),
    /// Frames may leave until the instant.
    Leading(Tenure, BootInstant),
    Suspended(Tenure),
    Releasing(Tenure, After, Stage),
    Ended,
}

impl State {
    pub(super) const fn phase(&self) -> Phase {
        match self {
            Self::Idle => Phase::Idle,
            Self::Follower(_) => Phase::Follower,
            Self::Acquiring(..) => Phase::Acquiring,
            Self::Leading(..) => Phase::Leading,
            Self::Suspended(_) => Phase::Suspended,
            Self::Releasing(..) => Phase::Releasing,
            Self::Ended => Phase::Ended,
        }
    }

    /// Where a watch would go on: none while nothing was read, and in a state that needs no watch.
    pub(super) fn watch_from(&self) -> Option<Option<ResourceVersion>> {
        match self {
            Self::Idle | Self::Ended => None,
            Self::Follower(candidacy) | Self::Acquiring(candidacy, ..) => match &candidacy.sight {
                Sight::Unread => None,
                Sight::Absent { .. } => Some(None),
                Sight::Present { record, .. } => Some(record.resource_version.clone()),
            },
            Self::Leading(tenure, _) | Self::Suspended(tenure) | Self::Releasing(tenure, ..) => {
                Some(tenure.record.resource_version.clone())
            }
        }
    }
}

/// What becomes of an acquisition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    /// The replica leads.
    Lead,
    /// A shutdown came while the write was under way.
    Release,
}

/// What follows a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum After {
    Campaign { cooldown: Duration },
    End,
}

/// How far a release is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Acks are still taken, and the Lease is still renewed.
    Draining { until: BootInstant },
    /// The holder is being cleared.
    Final { give_up: BootInstant },
}

impl Stage {
    pub(super) fn final_from(now: BootInstant) -> Self {
        Self::Final { give_up: now + limits::LEASE_RELEASE_TIMEOUT }
    }

    pub(super) const fn ends_at(self) -> BootInstant {
        match self {
            Self::Draining { until } => until,
            Self::Final { give_up } => give_up,
        }
    }

    /// The same stage, with no more draining than until `limit`.
    pub(super) fn within(self, limit: BootInstant) -> Self {
        match self {
            Self::Draining { until } => Self::Draining { until: until.min(limit) },
            Self::Final { .. } => self,
        }
    }
}

/// The one request for the Lease that is under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Flight {
    pub(super) request: RequestId,
    /// Of a read: the newest version known when it was sent.
    pub(super) known: Option<ResourceVersion>,
}

/// The watch of the Lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Watch {
    Closed { reopen_at: BootInstant, resume: Resume },
    Open { request: RequestId, opened: BootInstant },
}

/// Where the next watch starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resume {
    /// After the version that is known.
    Known,
    /// With the most recent state: the server has forgotten the known version.
    MostRecent,
}

impl Default for Watch {
    fn default() -> Self {
        Self::Closed { reopen_at: BootInstant::default(), resume: Resume::Known }
    }
}

impl Watch {
    pub(super) fn is(&self, request: RequestId) -> bool {
        matches!(self, Self::Open { request: open, .. } if *open == request)
    }

    /// A watch that ended normally goes on at once, unless it did not even live for `interval`.
    pub(super) fn closed(&self, now: BootInstant, interval: Duration) -> Self {
        let reopen_at = match self {
            Self::Open { opened, .. } => now.max(*opened + interval),
            Self::Closed { reopen_at, .. } => *reopen_at,
        };
        Self::Closed { reopen_at, resume: Resume::Known }
    }
}

/// A write that was sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Write {
    /// When it was sent, or the first of several that cannot be told apart was: leadership counts from here (I5).
    pub(super) sent: BootInstant,
    /// Version it was conditional on; none for a creation.
    pub(super) precondition: Option<ResourceVersion>,
    /// Epoch it wrote.
    pub(super) stored_epoch: Epoch,
    /// Time it wrote.
    pub(super) renew_time: WallTime,
    /// Checkpoint it carried.
    pub(super) generation: Option<u64>,
}

impl Write {
    /// Whether `record` is what this acquiring write made. The identity alone would not do: an old copy of the Lease,
    /// restored by hand, names its holder too, but it cannot hold an epoch that was above everything seen.
    pub(super) fn acquired(&self, record: &LeaseRecord, me: &Identity) -> bool {
        record.holder_identity == me.as_str() && record.stored_epoch == self.stored_epoch
    }

    /// Whether `record`, which is held by this replica, is what this renewal made.
    fn renewed(&self, record: &LeaseRecord) -> bool {
        record.renew_time == Some(self.renew_time) && record.resource_version != self.precondition
    }

    /// The same write when the boot clock may have stood still since: it proves nothing about time.
    pub(super) fn before_pause(self) -> Self {
        Self { sent: BootInstant::default(), ..self }
    }
}

/// What a candidate has seen of the Lease.
#[derive(Clone, Debug)]
pub(super) enum Sight {
    /// Nothing yet.
    Unread,
    /// It did not exist when it was first looked for.
    Absent { since: BootInstant },
    /// It has looked like this since it was first seen so.
    Present { record: Box<LeaseRecord>, since: BootInstant },
}

impl Sight {
    pub(super) fn seen(record: LeaseRecord, since: BootInstant) -> Self {
        Self::Present { record: Box::new(record), since }
    }

    pub(super) fn record(&self) -> Option<&LeaseRecord> {
        match self {
            Self::Unread | Self::Absent { .. } => None,
            Self::Present { record, .. } => Some(record),
        }
    }
}

/// A follower's view, and its plans.
#[derive(Clone, Debug)]
pub(super) struct Candidacy {
    pub(super) sight: Sight,
    /// This replica's share of the candidate jitter for the present sight, in thousandths.
    pub(super) jitter_permille: u32,
    /// End of the cool-down.
    pub(super) campaign_after: BootInstant,
    /// When the Lease is to be read; nothing is written before.
    pub(super) read_at: Option<BootInstant>,
    /// An acquiring write that may have been applied, or may still be.
    pub(super) unsettled: Option<Write>,
}

impl Candidacy {
    pub(super) const fn new(sight: Sight, jitter_permille: u32, campaign_after: BootInstant) -> Self {
        Self { sight, jitter_permille, campaign_after, read_at: None, unsettled: None }
    }

    pub(super) fn reading_at(self, at: BootInstant) -> Self {
        Self { read_at: Some(self.read_at.map_or(at, |earlier| earlier.min(at))), ..self }
    }

    /// After an acquiring write that did not succeed, as far as is known.
    ///
    /// A creation has no precondition: the Lease may have come and gone again meanwhile, so its absence counts from
    /// the next 404.
    pub(super) fn unsettled(self, write: Write, read_at: BootInstant) -> Self {
        let sight = if write.precondition.is_none() { Sight::Unread } else { self.sight };
        Self { sight, unsettled: Some(write), read_at: Some(read_at), ..self }
    }

    /// After a 404. A conditional write cannot be applied any more; a creation still can.
    pub(super) fn absent(self, now: BootInstant) -> Self {
        let since = match self.sight {
            Sight::Absent { since } => since,
            Sight::Unread | Sight::Present { .. } => now,
        };
        let unsettled = self.unsettled.filter(|write| write.precondition.is_none());
        Self { sight: Sight::Absent { since }, read_at: None, unsettled, ..self }
    }
}

/// What a holder of the Lease knows.
#[derive(Clone, Debug)]
pub(super) struct Tenure {
    pub(super) epoch: Epoch,
    /// The Lease as last read or written.
    pub(super) record: Box<LeaseRecord>,
    pub(super) next: Next,
    /// When the last write was sent.
    pub(super) last_sent: BootInstant,
    /// The last write, while it is under way or its outcome is unknown.
    pub(super) write: Option<Write>,
    /// Conflicts since the last successful write.
    conflicts: u32,
    /// The newest checkpoint of this epoch.
    checkpoint: Option<PendingCheckpoint>,
    stored_generation: Option<u64>,
}

/// What a holder does next, when no request is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Write {
        at: BootInstant,
    },
    /// The outcome of a write is unknown, or the version is.
    Read {
        at: BootInstant,
    },
}

impl Tenure {
    pub(super) fn new(record: LeaseRecord, sent: BootInstant, next_write: BootInstant) -> Self {
        Self {
            epoch: record.epoch(),
            record: Box::new(record),
            next: Next::Write { at: next_write },
            last_sent: sent,
            write: None,
            conflicts: 0,
            checkpoint: None,
            stored_generation: None,
        }
    }

    /// When the next request is due. A waiting checkpoint brings a write forward (Rule D.5).
    pub(super) fn due_at(&self) -> BootInstant {
        let waiting = self.checkpoint.as_ref().map(|pending| pending.generation) > self.stored_generation;
        match self.next {
            Next::Read { at } => at,
            Next::Write { at } if waiting => at.min(self.last_sent + limits::CHECKPOINT_INTERVAL_MIN),
            Next::Write { at } => at,
        }
    }

    /// The next request as soon as possible.
    pub(super) fn hurried(mut self, now: BootInstant) -> Self {
        self.next = match self.next {
            Next::Read { .. } => Next::Read { at: now },
            Next::Write { .. } => Next::Write { at: now },
        };
        self
    }

    /// The machine may have been paused: what was sent before proves nothing.
    pub(super) fn after_pause(mut self, now: BootInstant) -> Self {
        self.write = None;
        self.next = Next::Write { at: now };
        self
    }

    /// After a 409: read at once, and more slowly when a fresh version was refused again.
    pub(super) fn conflicted(mut self, now: BootInstant) -> Self {
        let delay = if self.conflicts == 0 { Duration::ZERO } else { limits::CHECKPOINT_INTERVAL_MIN };
        self.conflicts += 1;
        self.write = None;
        self.next = Next::Read { at: now + delay };
        self
    }

    /// After a write of unknown outcome, or a read that failed.
    pub(super) fn failed(mut self, read_at: BootInstant) -> Self {
        self.next = Next::Read { at: read_at };
        self
    }

    /// The Lease was read, and is still held by this replica.
    pub(super) fn observed(mut self, record: LeaseRecord, now: BootInstant) -> Self {
        *self.record = record;
        if matches!(self.next, Next::Read { .. }) {
            self.next = Next::Write { at: now };
        }
        self
    }

    /// The last write, when `record` shows that it was applied.
    pub(super) fn applied(&self, record: &LeaseRecord) -> Option<&Write> {
        self.write.as_ref().filter(|write| write.renewed(record))
    }

    /// The last write succeeded: with the generation of the checkpoint that it stored, if that is news.
    pub(super) fn stored(mut self, record: LeaseRecord, interval: Duration) -> (Self, Option<u64>) {
        *self.record = record;
        self.conflicts = 0;
        self.next = Next::Write { at: self.last_sent + interval };
        let generation = self.write.take().and_then(|write| write.generation);
        let news = generation.filter(|_| generation > self.stored_generation);
        self.stored_generation = self.stored_generation.max(generation);
        (self, news)
    }

    /// Takes a checkpoint of this epoch, the newest only; one of another epoch must not reach the Lease (I6).
    pub(super) fn offered(mut self, pending: PendingCheckpoint) -> Self {
        let newest = self.checkpoint.as_ref().is_none_or(|known| known.generation < pending.generation);
        if pending.epoch == self.epoch && newest {
            self.checkpoint = Some(pending);
        }
        self
    }

    /// The record of a renewal, and the write that sends it.
    pub(super) fn renewal(
        &self,
        me: &Identity,
        duration: Duration,
        now: BootInstant,
        wall: WallTime,
    ) -> (LeaseRecord, Write) {
        let mut record = LeaseRecord::clone(&self.record);
        record.holder_identity = me.as_str().to_owned();
        record.lease_duration = Some(duration);
        self.signed(record, now, wall)
    }

    /// The record of the final write: nobody holds the Lease, and it expires at once.
    pub(super) fn release(&self, now: BootInstant, wall: WallTime) -> (LeaseRecord, Write) {
        let mut record = LeaseRecord::clone(&self.record);
        record.holder_identity = String::new();
        record.lease_duration = Some(limits::LEASE_DURATION_RELEASED);
        self.signed(record, now, wall)
    }

    fn signed(&self, mut record: LeaseRecord, now: BootInstant, wall: WallTime) -> (LeaseRecord, Write) {
        record.stored_epoch = self.epoch;
        record.renew_time = Some(wall);
        if let Some(pending) = &self.checkpoint {
            record.checkpoint = Some(pending.text.clone());
        }
        let write = Write {
            sent: now,
            precondition: record.resource_version.clone(),
            stored_epoch: self.epoch,
            renew_time: wall,
            generation: self.checkpoint.as_ref().map(|pending| pending.generation),
        };
        (record, write)
    }
}
