//! Small consistent reads beside the phase: the horizon X (D.6), and whether versions went backwards (Rule D.2-11).

use std::time::Duration;

use crate::feed::backoff::Backoff;
use crate::feed::{ListMode, ListRequest, RequestId};
use crate::limits::{ANSWER_GRACE, REQUEST_TIMEOUT};
use crate::resource_version::ResourceVersion;
use crate::time::BootInstant;

/// Time between the two reads that must agree before versions count as rewound.
pub(super) const SECOND_READ_AFTER: Duration = Duration::from_secs(1);

/// A read of the newest version, repeated until it is answered.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub(super) state: ProbeState,
    /// The highest version known when the request was sent; a watch may have gone further by the time of the answer.
    pub(super) floor: Option<ResourceVersion>,
    /// A first answer below the floor.
    pub(super) seen: Option<ResourceVersion>,
    pub(super) backoff: Backoff,
}

/// Where a probe stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProbeState {
    /// To be sent.
    Due(BootInstant),
    /// Sent, and given up at `until`.
    Sent { request: RequestId, until: BootInstant },
}

/// What an answer means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The version is not below what was known.
    Fresh,
    /// It is, for the first time: ask again.
    Below,
    /// It is, twice in a row and not falling.
    Rewound,
}

impl Probe {
    /// A probe that is due at `at`.
    pub(super) fn due(at: BootInstant) -> Self {
        Self { state: ProbeState::Due(at), floor: None, seen: None, backoff: Backoff::default() }
    }

    /// Whether `request` is the one under way.
    pub(super) fn awaits(&self, request: RequestId) -> bool {
        matches!(self.state, ProbeState::Sent { request: sent, .. } if sent == request)
    }

    /// When something is to be done.
    pub(super) const fn deadline(&self) -> BootInstant {
        match self.state {
            ProbeState::Due(at) => at,
            ProbeState::Sent { until, .. } => until,
        }
    }

    /// The request under way.
    pub(super) const fn request(&self) -> Option<RequestId> {
        match self.state {
            ProbeState::Due(_) => None,
            ProbeState::Sent { request, .. } => Some(request),
        }
    }

    /// Marks the probe as sent.
    pub(super) fn sent(&mut self, now: BootInstant, request: RequestId, floor: Option<ResourceVersion>) {
        self.state = ProbeState::Sent { request, until: now + REQUEST_TIMEOUT + ANSWER_GRACE };
        self.floor = floor;
    }

    /// What `version`, the answer, says about a rewind.
    pub(super) fn verdict(&self, version: &ResourceVersion) -> Verdict {
        let below = self.floor.as_ref().is_some_and(|floor| floor.is_after(version));
        match &self.seen {
            _ if !below => Verdict::Fresh,
            Some(seen) if version.reaches(seen) => Verdict::Rewound,
            Some(_) | None => Verdict::Below,
        }
    }
}

/// The request of a probe: one object's metadata, by a consistent read.
pub(super) fn newest_version() -> ListRequest {
    ListRequest { mode: ListMode::Consistent, limit: Some(1), continue_token: None, metadata_only: true }
}
