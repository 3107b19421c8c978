//! Small consistent reads beside the phase: the horizon X (D.6), and whether versions went backwards (Rule D.2-11).

use std::time::Duration;

use crate::codec::status::Failure;
use crate::feed::backoff::Backoff;
use crate::feed::listing::{Goal, Listing, Streaming};
use crate::feed::{Effect, Feed, ListMode, ListRequest, Phase, Plan, RequestId};
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

impl Feed {
    pub(super) fn send_due_probes(&mut self, now: BootInstant, effects: &mut Vec<Effect>) {
        if self.info.is_none() {
            return;
        }
        let floor = self.floor().cloned();
        for probe in [&mut self.horizon, &mut self.rewind].into_iter().flatten() {
            if probe.deadline() > now {
                continue;
            }
            if let Some(request) = probe.request() {
                effects.push(Effect::Cancel { request });
            }
            self.requests += 1;
            let request = RequestId(self.requests);
            probe.sent(now, request, floor.clone());
            effects.push(Effect::List { request, list: newest_version() });
        }
    }

    pub(super) fn on_probe_failed(&mut self, now: BootInstant, request: RequestId, failure: &Failure) {
        let prng = &mut self.prng;
        for probe in [&mut self.horizon, &mut self.rewind].into_iter().flatten().filter(|p| p.awaits(request)) {
            probe.state = ProbeState::Due(now + probe.backoff.next(prng, failure.retry_after));
        }
    }

    /// D.6: X is told, unless it is below what this feed has seen: then it is evidence of a rewind, and read again.
    ///
    /// X counts the writes of every type, so a quiet feed stays below it until a bookmark comes, a minute away. A watch
    /// that is about to end gets one at once: the open one is replaced by a short one.
    pub(super) fn on_horizon(
        &mut self,
        now: BootInstant,
        phase: Phase,
        version: ResourceVersion,
        effects: &mut Vec<Effect>,
    ) -> Phase {
        self.last_heard = Some(now);
        let Some(mut probe) = self.horizon.take() else { return phase };
        if probe.verdict(&version) == Verdict::Fresh {
            effects.push(Effect::Horizon(version.clone()));
            let below = self.head.as_ref().is_some_and(|head| version.is_after(head));
            self.reach = Some(version).filter(|_| below);
            return match phase {
                Phase::Watching(watch) if below => {
                    effects.push(Effect::Cancel { request: watch.request });
                    self.begin(now, Plan::Watch, effects)
                }
                phase => phase,
            };
        } else {
            probe.state = ProbeState::Due(now + probe.backoff.next(&mut self.prng, None));
            self.horizon = Some(probe);
            self.suspect_rewind(now);
        }
        phase
    }

    pub(super) fn suspect_rewind(&mut self, now: BootInstant) {
        if self.rewind.is_none() && self.floor().is_some_and(ResourceVersion::is_ordered) {
            self.rewind = Some(Probe::due(now));
        }
    }

    /// Rule 11: two consistent reads below what was known → everything is read anew.
    pub(super) fn on_rewind_answer(
        &mut self,
        now: BootInstant,
        phase: Phase,
        version: &ResourceVersion,
        effects: &mut Vec<Effect>,
    ) -> Phase {
        self.last_heard = Some(now);
        let Some(mut probe) = self.rewind.take() else { return phase };
        let verdict = probe.verdict(version);
        let request = match (&phase, &verdict) {
            (_, Verdict::Fresh) => return phase,
            // Everything is being read anew already; begun again with each probe, a long list would never end.
            (Phase::Listing(_, Listing { goal: Goal::Reset, .. }), _)
            | (Phase::Streaming(Streaming { goal: Goal::Reset, .. }), _)
            | (Phase::Waiting(_, Plan::List(Listing { goal: Goal::Reset, .. })), _) => return phase,
            (Phase::Listing(sent, _), Verdict::Rewound) => Some(sent.request),
            (Phase::Streaming(streaming), Verdict::Rewound) => Some(streaming.request),
            (Phase::Watching(watch), Verdict::Rewound) => Some(watch.request),
            (Phase::Waiting(_, Plan::List(_) | Plan::Watch), Verdict::Rewound) => None,
            // Not confirmed yet, or the type must be found first.
            (_, Verdict::Below | Verdict::Rewound) => {
                probe.seen = Some(version.clone());
                probe.state = ProbeState::Due(now + SECOND_READ_AFTER);
                self.rewind = Some(probe);
                return phase;
            }
        };
        effects.extend(request.map(|request| Effect::Cancel { request }));
        self.begin(now, Plan::List(Listing::new(Goal::Reset)), effects)
    }

    pub(super) fn drop_probe(&mut self, take: impl Fn(&mut Self) -> Option<Probe>, effects: &mut Vec<Effect>) {
        let request = take(self).and_then(|probe| probe.request());
        effects.extend(request.map(|request| Effect::Cancel { request }));
    }
}
