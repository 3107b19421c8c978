//! What happens to the elector, and what it wants done.

use std::time::Duration;

use crate::codec::lease::LeaseRecord;
use crate::codec::status::Failure;
use crate::elector::Phase;
use crate::epoch::Epoch;
use crate::leadership::{Announcement, PendingCheckpoint};
use crate::resource_version::ResourceVersion;
use crate::time::BootInstant;

/// Names one request for the Lease; answers to an older one change nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RequestId(pub u64);

/// What happens to the elector.
#[derive(Clone, PartialEq, Debug)]
pub enum Input {
    /// Begin to campaign.
    Start,
    /// The Lease as a GET returned it, or as a watch showed it (ADDED, MODIFIED).
    LeaseObserved {
        /// The GET answered, or the watch.
        request: RequestId,
        /// The Lease.
        record: LeaseRecord,
    },
    /// A GET found no Lease (404).
    LeaseAbsent {
        /// The request answered.
        request: RequestId,
    },
    /// The watch showed the deletion of the Lease.
    LeaseDeleted {
        /// The watch.
        request: RequestId,
        /// The last state, with the version of the deletion.
        record: LeaseRecord,
    },
    /// A PUT or POST succeeded.
    PutOk {
        /// The request answered.
        request: RequestId,
        /// The Lease as stored.
        record: LeaseRecord,
    },
    /// A PUT or POST was refused: somebody else wrote first (409).
    PutConflict {
        /// The request answered.
        request: RequestId,
    },
    /// Any other failure of a GET, PUT, POST or watch, the request's own deadline included.
    RequestFailed {
        /// The request.
        request: RequestId,
        /// Why.
        failure: Failure,
    },
    /// The watch ended without an error.
    WatchClosed {
        /// The watch.
        request: RequestId,
    },
    /// A checkpoint waits to be stored.
    Checkpoint(PendingCheckpoint),
    /// Give leadership up in order, then campaign again.
    StepDown {
        /// No campaign for this long; zero means twice the retry period.
        cooldown: Duration,
        /// Longest wait for [`Input::Drained`].
        drain: Duration,
    },
    /// Give leadership up in order, and end.
    Shutdown {
        /// Longest wait for [`Input::Drained`].
        drain: Duration,
    },
    /// The last acks are taken and the last checkpoint has been given.
    Drained,
    /// This process holds the lock that two starts in one pod cannot both hold.
    LocalLockHeld,
    /// It does not.
    LocalLockLost,
    /// Time passed; sent at or after [`Elector::deadline`](crate::elector::Elector::deadline).
    Tick,
}

/// What the elector wants done, or says.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Read the Lease, most recent state.
    GetLease {
        /// Names the request.
        request: RequestId,
        /// Hard deadline of the request.
        timeout: Duration,
    },
    /// Write the Lease; the record's uid and version are the precondition.
    PutLease {
        /// Names the request.
        request: RequestId,
        /// What to write.
        record: LeaseRecord,
        /// Hard deadline of the request.
        timeout: Duration,
    },
    /// Create the Lease.
    CreateLease {
        /// Names the request.
        request: RequestId,
        /// What to write.
        record: LeaseRecord,
        /// Hard deadline of the request.
        timeout: Duration,
    },
    /// Watch the Lease by name.
    WatchLease {
        /// Names the request.
        request: RequestId,
        /// Changes after the version of this state; none for the most recent state first.
        after: Option<ResourceVersion>,
    },
    /// Give up a request or close a watch; its answers are no longer wanted.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// Let frames of `epoch` pass before `until`.
    OpenGate {
        /// The fencing token.
        epoch: Epoch,
        /// Deadline.
        until: BootInstant,
    },
    /// Let nothing pass. Comes before every other effect of the same change.
    CloseGate,
    /// Tell the replica machine.
    Announce(Announcement),
    /// An orderly end of a leadership is done: the answer to [`Input::StepDown`] and [`Input::Shutdown`].
    Released {
        /// The epoch given up; [`Epoch::NONE`] when there was none.
        epoch: Epoch,
    },
    /// The machine has ended after [`Input::Shutdown`]; nothing follows.
    Ended,
    /// The phase changed, for logs, metrics and the simulator's trace.
    Moved {
        /// Phase before.
        from: Phase,
        /// Phase from here on.
        to: Phase,
        /// Why.
        why: Why,
    },
}

/// Why the phase changed: a closed set, so that logs can be counted and looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The machine began.
    Started,
    /// Nobody holds the Lease.
    Vacant,
    /// The Lease did not change for its whole duration.
    LeaseExpired,
    /// An earlier start of this very pod holds the Lease, and it is gone.
    EarlierStart,
    /// There is no Lease.
    LeaseAbsent,
    /// A write made this replica the leader.
    Acquired,
    /// A write turned out to have been applied although its answer was lost.
    FoundApplied,
    /// Somebody else wrote first.
    Conflict,
    /// A write failed; whether it was applied is to be read.
    WriteFailed,
    /// No renewal was sent and answered in time.
    DeadlinePassed,
    /// The wall clock ran ahead of the boot clock: the machine may have been paused.
    WallClockJumped,
    /// A renewal succeeded.
    Renewed,
    /// The Lease names another holder.
    OtherHolder,
    /// The Lease has another uid: it was deleted and created again.
    LeaseReplaced,
    /// The Lease is gone.
    LeaseDeleted,
    /// A consistent read found an older state of the Lease: etcd was restored from a backup.
    Rewound,
    /// The Lease prefers another holder.
    PreferredHolder,
    /// [`Input::StepDown`].
    StepDown,
    /// [`Input::Shutdown`].
    Shutdown,
    /// The final write succeeded.
    Released,
    /// The final write did not succeed in time; candidates must wait.
    ReleaseTimedOut,
    /// The campaign goes on after a loss.
    CampaignAgain,
}
