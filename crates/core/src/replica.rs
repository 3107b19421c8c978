//! Stub.

use std::sync::Arc;

use crate::epoch::Epoch;
use crate::feed;
use crate::frame::{Frame, SessionId};
use crate::leadership::{Announcement, PendingCheckpoint};
use crate::session::{AckError, AckOutcome, AckRequest, Open, SessionError};
use crate::time::{BootInstant, WallTime};

/// Now, twice: for logic and for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// For logic.
    pub boot: BootInstant,
    /// For people.
    pub wall: WallTime,
}

/// Place of a feed in the configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FeedIndex(pub usize);

/// Names one ack that waits for its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AckId(pub u64);

/// What happens to a replica.
#[derive(Clone, PartialEq, Debug)]
pub enum Input {
    /// An answer to a request of a feed.
    Feed {
        /// Which feed.
        feed: FeedIndex,
        /// The answer.
        input: feed::Input,
    },
    /// The uid of the kube-system namespace is known.
    ClusterKnown {
        /// The uid.
        uid: Arc<str>,
    },
    /// The elector has something to say. With election off, `Role::Disabled` comes once at the start.
    Announced(Announcement),
    /// A consumer opened a stream.
    Open {
        /// Names the session; never used twice.
        session: SessionId,
        /// What it asks for.
        open: Box<Open>,
    },
    /// The stream has taken frames out of its queue: there is room for as many more.
    Pulled {
        /// Which session.
        session: SessionId,
        /// How many.
        frames: usize,
    },
    /// The gate has closed, and these frames were still in the queue: the stream will not send them. In order.
    Withdrawn {
        /// Which session.
        session: SessionId,
        /// Oldest first.
        frames: Vec<Frame>,
    },
    /// The stream is gone.
    Closed {
        /// Which session.
        session: SessionId,
    },
    /// A consumer acked.
    Ack {
        /// Names the answer.
        id: AckId,
        /// What was acked.
        ack: AckRequest,
    },
    /// The consumer no longer waits for the answer.
    AckAbandoned {
        /// Which.
        id: AckId,
    },
    /// Deliver nothing more; answer [`Effect::Drained`] when outstanding acks have come or the deadline is over.
    Drain {
        /// Until when acks are waited for.
        until: BootInstant,
    },
    /// The process ends: announce it to every session and end them.
    Shutdown,
    /// Time passed; sent at or after [`Replica::deadline`].
    Tick,
}

/// What a replica wants done.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// A request of a feed (`Resolve`, `List`, `Watch`, `AskType` or `Cancel`), or `Moved` and `Noted` for logs and
    /// metrics. The feed's other effects stay inside.
    Feed {
        /// Which feed.
        feed: FeedIndex,
        /// The effect.
        effect: feed::Effect,
    },
    /// Put a frame into the stream's queue. There is room: at most two more than were pulled.
    Send {
        /// Which session.
        session: SessionId,
        /// The frame.
        frame: Box<Frame>,
    },
    /// End the stream after what is queued: with OK, or with an error.
    End {
        /// Which session.
        session: SessionId,
        /// None ends it with OK.
        error: Option<SessionError>,
    },
    /// Answer an ack.
    Acked {
        /// Which.
        id: AckId,
        /// The answer.
        result: Result<AckOutcome, AckError>,
    },
    /// The newest checkpoint; the elector takes it along with its next write.
    Checkpoint(PendingCheckpoint),
    /// Nothing is outstanding any more, or the time for it is over. The checkpoint sent last is final.
    Drained,
    /// Something to log and count.
    Noted(Note),
}

/// Things that are logged and counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// A gap was announced.
    Gap {
        /// Which feed.
        feed: Arc<str>,
        /// What it means.
        kind: crate::frame::GapKind,
        /// How it came about.
        reason: crate::frame::GapReason,
    },
    /// Events were handed to a session.
    Delivered {
        /// Which feed.
        feed: Arc<str>,
        /// How many.
        events: u64,
        /// How many of them are deletes derived by comparison.
        synthesized_deletes: u64,
    },
    /// Superseded entries were merged to stay within the journal's limit.
    Coalesced {
        /// Which feed.
        feed: Arc<str>,
        /// How many.
        entries: u64,
    },
    /// The checkpoint cannot be used, and why.
    CheckpointUnreadable {
        /// Why.
        why: String,
    },
    /// The checkpoint cannot be written, and why.
    CheckpointUnwritable {
        /// Why.
        why: String,
    },
    /// The epoch that leadership was acquired with.
    Leading {
        /// The epoch.
        epoch: Epoch,
    },
    /// A session began or ended.
    Session {
        /// Its text.
        session: String,
        /// Durable subscription, none if ephemeral.
        subscription: Option<Arc<str>>,
        /// What happened.
        what: SessionEvent,
    },
}

/// What happened to a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionEvent {
    /// It was opened.
    Opened,
    /// Its stream is gone.
    Closed,
    /// A newer one took over its subscription.
    Superseded,
}
