//! The elector: who may emit, proved by writes to one Lease (docs/protocol.md, D.1; invariants I5, I6).
//!
//! A pure machine. It never trusts a time that another process wrote: a candidate waits by its own boot clock since it
//! last saw the Lease change, a leader counts from the *sending* of its last successful write. What the checkpoint
//! means is no business of this module; it copies the text.
//!
//! One step has three passes: what passed with time, what the input says, and which requests are due.

mod identity;
mod messages;
mod parameters;
mod state;

use std::mem;
use std::time::Duration;

use crate::codec::lease::LeaseRecord;
use crate::codec::status::{Failure, FailureKind};
use crate::epoch::Epoch;
use crate::invariant;
use crate::leadership::{Announcement, LeaseView, Role};
use crate::limits;
use crate::prng::Prng;
use crate::resource_version::ResourceVersion;
use crate::time::{BootInstant, WallTime};

pub use identity::Identity;
pub use messages::{Effect, Input, RequestId, Why};
pub use parameters::{ParameterError, Parameters, Rule};
pub use state::Phase;
use state::{After, Candidacy, Flight, Next, Resume, Sight, Stage, State, Tenure, Then, Watch, Write};

/// The machine. One Lease, one candidate.
#[derive(Debug)]
pub struct Elector {
    parameters: Parameters,
    identity: Identity,
    namespace: String,
    name: String,
    prng: Prng,
    state: State,
    request_last: u64,
    /// The one GET, PUT or POST under way.
    flight: Option<Flight>,
    watch: Watch,
    local_lock_held: bool,
    /// The highest epoch stored in the Lease, seen or held.
    epoch_seen: Epoch,
    /// The highest epoch held.
    epoch_held: Epoch,
    /// Duration of the Lease when it was last seen, and not shorter than ours.
    lease_seen: Option<Duration>,
    /// When the clocks were last read.
    clocks: Option<(BootInstant, WallTime)>,
    /// What was last announced of the Lease.
    view: LeaseView,
}

impl Elector {
    /// A machine at rest, for the Lease `namespace`/`name`; `seed` drives its jitter.
    pub fn new(parameters: Parameters, identity: Identity, namespace: &str, name: &str, seed: u64) -> Self {
        Self {
            parameters,
            identity,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            prng: Prng::new(seed),
            state: State::Idle,
            request_last: 0,
            flight: None,
            watch: Watch::default(),
            local_lock_held: false,
            epoch_seen: Epoch::NONE,
            epoch_held: Epoch::NONE,
            lease_seen: None,
            clocks: None,
            view: LeaseView::default(),
        }
    }

    /// The phase, for status and metrics.
    pub const fn phase(&self) -> Phase {
        self.state.phase()
    }

    /// When the machine wants [`Input::Tick`]; none when only an answer or a command can move it.
    pub fn deadline(&self) -> Option<BootInstant> {
        let unless_busy = |at: BootInstant| self.flight.is_none().then_some(at);
        let watch = match &self.watch {
            Watch::Closed { reopen_at, .. } => self.state.watch_from().map(|_| *reopen_at),
            Watch::Open { .. } => None,
        };
        let own = match &self.state {
            State::Idle | State::Acquiring(..) | State::Ended => [None, None],
            State::Follower(candidacy) => {
                let at = candidacy.read_at.or_else(|| self.campaign_at(candidacy));
                [None, at.and_then(unless_busy)]
            }
            State::Leading(tenure, until) => [Some(*until), unless_busy(tenure.due_at())],
            State::Suspended(tenure) => [None, unless_busy(tenure.due_at())],
            State::Releasing(tenure, _, stage) => [Some(stage.ends_at()), unless_busy(tenure.due_at())],
        };
        own.into_iter().flatten().chain(watch).min()
    }

    /// Takes one input at `now` of the boot clock and `wall` of the wall clock, and appends what is to be done.
    ///
    /// # Panics
    /// When an acquisition would not raise the epoch (I5).
    pub fn step(&mut self, now: BootInstant, wall: WallTime, input: Input, effects: &mut Vec<Effect>) {
        self.pass_time(now, wall, effects);
        if let Some(asked_at) = self.accepts(&input) {
            if let Input::LeaseObserved { record, .. } = &input
                && self.has_rewound(asked_at.as_ref(), record)
            {
                self.take_rewind(now, record.clone(), effects);
            } else {
                self.take_input(now, input, effects);
            }
        }
        self.send_due(now, wall, effects);
    }

    /// First pass: deadlines that passed, and a wall clock that ran ahead.
    fn pass_time(&mut self, now: BootInstant, wall: WallTime, effects: &mut Vec<Effect>) {
        let jumped = self.clocks.is_some_and(|(boot, before)| {
            let passed = u64::try_from(wall.as_micros().saturating_sub(before.as_micros())).unwrap_or(0);
            Duration::from_micros(passed) > now.since(boot) + limits::WALL_CLOCK_JUMP
        });
        self.clocks = Some((now, wall));
        self.state = match mem::replace(&mut self.state, State::Ended) {
            // D.1 Leading: the wall clock ran ahead. A write sent before the pause proves nothing after it.
            State::Leading(tenure, _) if jumped => {
                let tenure = self.suspend(tenure, Why::WallClockJumped, effects);
                self.cancel_flight(effects);
                State::Suspended(tenure.after_pause(now))
            }
            // D.1 Leading: now ≥ until.
            State::Leading(tenure, until) if now >= until => {
                State::Suspended(self.suspend(tenure, Why::DeadlinePassed, effects).hurried(now))
            }
            State::Suspended(tenure) if jumped => {
                self.cancel_flight(effects);
                State::Suspended(tenure.after_pause(now))
            }
            State::Acquiring(candidacy, write, then) if jumped => {
                self.cancel_flight(effects);
                let candidacy = candidacy.unsettled(write.before_pause(), now);
                self.back_to_follower(candidacy, then, Why::WallClockJumped, effects)
            }
            State::Follower(mut candidacy) if jumped => {
                candidacy.unsettled = candidacy.unsettled.map(Write::before_pause);
                State::Follower(candidacy)
            }
            // D.1 Releasing: out of time to drain.
            State::Releasing(tenure, after, Stage::Draining { until }) if now >= until => {
                State::Releasing(tenure.hurried(now), after, Stage::final_from(now))
            }
            State::Releasing(tenure, after, Stage::Final { give_up }) if now >= give_up => {
                let sight = Sight::seen(*tenure.record, now);
                self.end_tenure(tenure.epoch, sight, after, Why::ReleaseTimedOut, now, effects)
            }
            state @ (State::Idle
            | State::Follower(_)
            | State::Acquiring(..)
            | State::Leading(..)
            | State::Suspended(_)
            | State::Releasing(..)
            | State::Ended) => state,
        };
    }

    /// Whether the input is a command or the answer to a request that is still wanted, with the version that was known
    /// when the request was sent; an answer frees its request.
    fn accepts(&mut self, input: &Input) -> Option<Option<ResourceVersion>> {
        let request = match input {
            Input::LeaseObserved { request, .. }
            | Input::LeaseAbsent { request }
            | Input::LeaseDeleted { request, .. }
            | Input::PutOk { request, .. }
            | Input::PutConflict { request }
            | Input::RequestFailed { request, .. }
            | Input::WatchClosed { request } => *request,
            Input::Start
            | Input::Checkpoint(_)
            | Input::StepDown { .. }
            | Input::Shutdown { .. }
            | Input::Drained
            | Input::LocalLockHeld
            | Input::LocalLockLost
            | Input::Tick => return Some(None),
        };
        match self.flight.take_if(|flight| flight.request == request) {
            Some(flight) => Some(flight.known),
            None => self.watch.is(request).then_some(None),
        }
    }

    /// Whether a read that was sent when `known` was the newest state found an older one. Such a read is consistent, so
    /// etcd itself went back in time (Rule D.2-11); a watch may merely lag.
    fn has_rewound(&self, known: Option<&ResourceVersion>, record: &LeaseRecord) -> bool {
        known.zip(record.resource_version.as_ref()).is_some_and(|(known, read)| known.is_after(read))
    }

    /// The Lease is what it was in a backup. Whoever held it when that was made counts as a stranger, this replica too:
    /// positions of before mean nothing, and the next epoch is above every one seen.
    fn take_rewind(&mut self, now: BootInstant, record: LeaseRecord, effects: &mut Vec<Effect>) {
        let from = self.state.phase();
        self.state = match mem::replace(&mut self.state, State::Ended) {
            State::Leading(tenure, _) | State::Suspended(tenure) => {
                self.lose(tenure.epoch, Sight::seen(record, now), Why::Rewound, now, effects, from)
            }
            State::Releasing(tenure, after, _) => {
                self.end_tenure(tenure.epoch, Sight::seen(record, now), after, Why::Rewound, now, effects)
            }
            State::Follower(candidacy) => {
                let fresh = self.begin_to_follow(Sight::seen(record, now), candidacy.campaign_after, effects);
                State::Follower(fresh)
            }
            state @ (State::Idle | State::Acquiring(..) | State::Ended) => state,
        };
        effects.push(Effect::Announce(Announcement::Rewound));
    }

    /// Second pass: each arm is one row of D.1.
    fn take_input(&mut self, now: BootInstant, input: Input, effects: &mut Vec<Effect>) {
        let from = self.state.phase();
        self.state = match (mem::replace(&mut self.state, State::Ended), input) {
            (State::Idle, Input::Start) => {
                self.moved(from, Phase::Follower, Why::Started, effects);
                self.announce(Role::Standby, effects);
                State::Follower(Candidacy::new(Sight::Unread, 0, now).reading_at(now))
            }
            (state, Input::Start) => state,

            // D.1 Follower: the Lease changed; or it is a write of ours whose answer was lost.
            (State::Follower(candidacy), Input::LeaseObserved { record, .. }) => {
                match candidacy.unsettled.clone().filter(|write| write.acquired(&record, &self.identity)) {
                    Some(write) => self.acquired(record, &write, Why::FoundApplied, now, effects),
                    None => State::Follower(self.follow(candidacy, record, now, effects)),
                }
            }
            // The answer to the write decides, and a conflict is read again.
            (state @ State::Acquiring(..), Input::LeaseObserved { .. }) => state,
            // D.1 Leading, Suspended: GET or watch; still me goes on, anybody else ends it at once.
            (State::Leading(tenure, until), Input::LeaseObserved { record, .. }) => {
                match self.judge(&tenure, &record) {
                    Verdict::Stale => State::Leading(tenure, until),
                    Verdict::Mine => self.hold_on(tenure, Some(until), record, now, effects),
                    Verdict::Lost(why) => self.lose(tenure.epoch, Sight::seen(record, now), why, now, effects, from),
                }
            }
            (State::Suspended(tenure), Input::LeaseObserved { record, .. }) => match self.judge(&tenure, &record) {
                Verdict::Stale => State::Suspended(tenure),
                Verdict::Mine => self.hold_on(tenure, None, record, now, effects),
                Verdict::Lost(why) => self.lose(tenure.epoch, Sight::seen(record, now), why, now, effects, from),
            },
            // D.1 Releasing: a holder is cleared only if it was read as oneself.
            (State::Releasing(tenure, after, stage), Input::LeaseObserved { record, .. }) => {
                match self.judge(&tenure, &record) {
                    Verdict::Stale => State::Releasing(tenure, after, stage),
                    Verdict::Mine => State::Releasing(tenure.observed(record, now), after, stage),
                    Verdict::Lost(why) => {
                        let why = if record.holder_identity.is_empty() { Why::Released } else { why };
                        self.end_tenure(tenure.epoch, Sight::seen(record, now), after, why, now, effects)
                    }
                }
            }
            (state @ (State::Idle | State::Ended), Input::LeaseObserved { .. }) => state,

            // D.1 Follower: 404, seen before or not.
            (State::Follower(candidacy), Input::LeaseAbsent { .. }) => {
                State::Follower(self.forget(candidacy, now, effects))
            }
            (State::Follower(candidacy), Input::LeaseDeleted { record, .. })
                if candidacy.sight.record().is_some_and(|known| known.uid == record.uid) =>
            {
                State::Follower(self.forget(candidacy, now, effects))
            }
            // D.1 Leading, Suspended: 404.
            (State::Leading(tenure, _) | State::Suspended(tenure), Input::LeaseAbsent { .. }) => {
                self.lose(tenure.epoch, Sight::Absent { since: now }, Why::LeaseDeleted, now, effects, from)
            }
            (State::Leading(tenure, _) | State::Suspended(tenure), Input::LeaseDeleted { record, .. })
                if tenure.record.uid == record.uid =>
            {
                self.lose(tenure.epoch, Sight::Absent { since: now }, Why::LeaseDeleted, now, effects, from)
            }
            (State::Releasing(tenure, after, _), Input::LeaseAbsent { .. }) => {
                let sight = Sight::Absent { since: now };
                self.end_tenure(tenure.epoch, sight, after, Why::LeaseDeleted, now, effects)
            }
            (State::Releasing(tenure, after, _), Input::LeaseDeleted { record, .. })
                if tenure.record.uid == record.uid =>
            {
                let sight = Sight::Absent { since: now };
                self.end_tenure(tenure.epoch, sight, after, Why::LeaseDeleted, now, effects)
            }
            (state @ (State::Idle | State::Acquiring(..) | State::Ended), Input::LeaseAbsent { .. }) => state,
            // Of an earlier Lease of this name; or a write is under way, whose answer decides.
            (state, Input::LeaseDeleted { .. }) => state,

            // D.1 Acquiring: 200.
            (State::Acquiring(_, write, Then::Lead), Input::PutOk { record, .. }) => {
                self.acquired(record, &write, Why::Acquired, now, effects)
            }
            (State::Acquiring(_, write, Then::Release), Input::PutOk { record, .. }) => {
                self.note(&record);
                self.moved(from, Phase::Releasing, Why::Shutdown, effects);
                State::Releasing(Tenure::new(record, write.sent, now), After::End, Stage::final_from(now))
            }
            // D.1 Leading, Suspended: 200.
            (State::Leading(tenure, until), Input::PutOk { record, .. }) => {
                self.renewed(tenure, Some(until), record, now, effects)
            }
            (State::Suspended(tenure), Input::PutOk { record, .. }) => self.renewed(tenure, None, record, now, effects),
            // D.1 Releasing: the final write, or a renewal sent while draining.
            (State::Releasing(tenure, after, Stage::Final { .. }), Input::PutOk { record, .. })
                if record.holder_identity.is_empty() =>
            {
                let tenure = self.store(tenure, record, effects);
                let sight = Sight::seen(*tenure.record, now);
                self.end_tenure(tenure.epoch, sight, after, Why::Released, now, effects)
            }
            (State::Releasing(tenure, after, stage), Input::PutOk { record, .. }) => {
                let tenure = self.store(tenure, record, effects);
                match stage {
                    Stage::Draining { .. } => State::Releasing(tenure, after, stage),
                    Stage::Final { .. } => State::Releasing(tenure.hurried(now), after, stage),
                }
            }
            (state @ (State::Idle | State::Follower(_) | State::Ended), Input::PutOk { .. }) => state,

            // D.1 Acquiring: 409, re-read.
            (State::Acquiring(candidacy, write, then), Input::PutConflict { .. }) => {
                // An earlier try with the same precondition may be what this one collided with.
                let candidacy = candidacy.unsettled(write, now);
                self.back_to_follower(candidacy, then, Why::Conflict, effects)
            }
            // D.1 Leading, Suspended: 409 → GET.
            (State::Leading(tenure, until), Input::PutConflict { .. }) => State::Leading(tenure.conflicted(now), until),
            (State::Suspended(tenure), Input::PutConflict { .. }) => State::Suspended(tenure.conflicted(now)),
            (State::Releasing(tenure, after, stage), Input::PutConflict { .. }) => {
                State::Releasing(tenure.conflicted(now), after, stage)
            }
            (state @ (State::Idle | State::Follower(_) | State::Ended), Input::PutConflict { .. }) => state,

            // A watch that failed is opened again; a follower reads meanwhile.
            (State::Follower(candidacy), Input::RequestFailed { request, failure }) if self.watch.is(request) => {
                let at = self.reopen_watch(&failure, now);
                State::Follower(candidacy.reading_at(at))
            }
            (state, Input::RequestFailed { request, failure }) if self.watch.is(request) => {
                self.reopen_watch(&failure, now);
                state
            }
            // A read that failed is tried again.
            (State::Follower(mut candidacy), Input::RequestFailed { failure, .. }) => {
                candidacy.read_at = Some(now + self.retry_delay(&failure));
                State::Follower(candidacy)
            }
            // D.1 Acquiring: timeout, 5xx, 429: GET first, since the write may have been applied.
            (State::Acquiring(candidacy, write, then), Input::RequestFailed { failure, .. }) => {
                let candidacy = candidacy.unsettled(write, now + self.retry_delay(&failure));
                self.back_to_follower(candidacy, then, Why::WriteFailed, effects)
            }
            // D.1 Leading, Suspended: a write answered with 404.
            (State::Leading(tenure, _) | State::Suspended(tenure), Input::RequestFailed { failure, .. })
                if failure.kind == FailureKind::NotFound =>
            {
                self.lose(tenure.epoch, Sight::Absent { since: now }, Why::LeaseDeleted, now, effects, from)
            }
            // Any other failure: GET first; the deadline runs on.
            (State::Leading(tenure, until), Input::RequestFailed { failure, .. }) => {
                State::Leading(tenure.failed(now + self.retry_delay(&failure)), until)
            }
            (State::Suspended(tenure), Input::RequestFailed { failure, .. }) => {
                State::Suspended(tenure.failed(now + self.retry_delay(&failure)))
            }
            (State::Releasing(tenure, after, _), Input::RequestFailed { failure, .. })
                if failure.kind == FailureKind::NotFound =>
            {
                let sight = Sight::Absent { since: now };
                self.end_tenure(tenure.epoch, sight, after, Why::LeaseDeleted, now, effects)
            }
            (State::Releasing(tenure, after, stage), Input::RequestFailed { failure, .. }) => {
                let delay = self.retry_delay(&failure).min(limits::CHECKPOINT_INTERVAL_MIN);
                State::Releasing(tenure.failed(now + delay), after, stage)
            }
            (state @ (State::Idle | State::Ended), Input::RequestFailed { .. }) => state,

            (state, Input::WatchClosed { .. }) => {
                self.watch = self.watch.closed(now, self.parameters.retry_period());
                state
            }

            // D.1 Leading: checkpoint wanted.
            (State::Leading(tenure, until), Input::Checkpoint(pending)) => {
                State::Leading(tenure.offered(pending), until)
            }
            (State::Suspended(tenure), Input::Checkpoint(pending)) => State::Suspended(tenure.offered(pending)),
            (State::Releasing(tenure, after, stage), Input::Checkpoint(pending)) => {
                State::Releasing(tenure.offered(pending), after, stage)
            }
            // A checkpoint of a leadership that is over, or not yet known to its author.
            (
                state @ (State::Idle | State::Follower(_) | State::Acquiring(..) | State::Ended),
                Input::Checkpoint(_),
            ) => state,

            // D.1 Releasing: StepDown.
            (State::Leading(tenure, _) | State::Suspended(tenure), Input::StepDown { cooldown, drain }) => {
                let cooldown = if cooldown.is_zero() { self.default_cooldown() } else { cooldown };
                self.release(tenure, After::Campaign { cooldown }, now + drain, Why::StepDown, from, effects)
            }
            // Already being given up: the one answer comes at its end.
            (state @ State::Releasing(..), Input::StepDown { .. }) => state,
            // Nothing to give up.
            (
                state @ (State::Idle | State::Follower(_) | State::Acquiring(..) | State::Ended),
                Input::StepDown { .. },
            ) => {
                effects.push(Effect::Released { epoch: Epoch::NONE });
                state
            }

            // D.1 Releasing: SIGTERM.
            (State::Leading(tenure, _) | State::Suspended(tenure), Input::Shutdown { drain }) => {
                self.release(tenure, After::End, now + drain, Why::Shutdown, from, effects)
            }
            (State::Releasing(tenure, _, stage), Input::Shutdown { drain }) => {
                State::Releasing(tenure, After::End, stage.within(now + drain))
            }
            // The write under way may make this replica the holder, and then it must release.
            (State::Acquiring(candidacy, write, _), Input::Shutdown { .. }) => {
                State::Acquiring(candidacy, write, Then::Release)
            }
            (State::Idle | State::Follower(_), Input::Shutdown { .. }) => {
                self.end(from, Why::Shutdown, Epoch::NONE, effects)
            }
            (State::Ended, Input::Shutdown { .. }) => State::Ended,

            // D.1 Releasing: drained.
            (State::Releasing(tenure, after, Stage::Draining { .. }), Input::Drained) => {
                State::Releasing(tenure.hurried(now), after, Stage::final_from(now))
            }
            (state, Input::Drained) => state,

            (state, Input::LocalLockHeld) => {
                self.local_lock_held = true;
                state
            }
            (state, Input::LocalLockLost) => {
                self.local_lock_held = false;
                state
            }
            (state, Input::Tick) => state,
        };
    }

    /// Third pass: the watch, and at most one request for the Lease.
    fn send_due(&mut self, now: BootInstant, wall: WallTime, effects: &mut Vec<Effect>) {
        self.open_watch(now, effects);
        if self.flight.is_some() {
            return;
        }
        self.state = match mem::replace(&mut self.state, State::Ended) {
            State::Follower(candidacy) if candidacy.read_at.is_some() => {
                if candidacy.read_at <= Some(now) {
                    let known = candidacy.sight.record().and_then(|record| record.resource_version.clone());
                    self.send_get(known, limits::LEASE_REQUEST_TIMEOUT, effects);
                }
                State::Follower(candidacy)
            }
            // D.1 Follower: expired, vacant, absent for long enough, or held by an earlier start of this pod.
            State::Follower(candidacy) if self.campaign_at(&candidacy).is_some_and(|at| now >= at) => {
                self.campaign(candidacy, now, wall, effects)
            }
            // D.1 Leading: renew tick or checkpoint, one PUT in flight.
            State::Leading(tenure, until) if now >= tenure.due_at() => {
                let timeout = until.since(now).max(limits::LEASE_REQUEST_TIMEOUT_MIN);
                State::Leading(self.renew(tenure, timeout, now, wall, effects), until)
            }
            State::Suspended(tenure) if now >= tenure.due_at() => {
                State::Suspended(self.renew(tenure, limits::LEASE_REQUEST_TIMEOUT, now, wall, effects))
            }
            State::Releasing(tenure, after, stage) if now >= tenure.due_at() => {
                // Not shorter, or the last moments would be filled with requests that cannot be answered.
                let timeout = stage.ends_at().since(now).max(limits::CHECKPOINT_INTERVAL_MIN);
                let tenure = match stage {
                    Stage::Draining { .. } => {
                        self.renew(tenure, timeout.max(limits::LEASE_RELEASE_TIMEOUT), now, wall, effects)
                    }
                    Stage::Final { .. } => {
                        let (record, write) = tenure.release(now, wall);
                        self.send(tenure, record, write, timeout, effects)
                    }
                };
                State::Releasing(tenure, after, stage)
            }
            state @ (State::Idle
            | State::Follower(_)
            | State::Acquiring(..)
            | State::Leading(..)
            | State::Suspended(_)
            | State::Releasing(..)
            | State::Ended) => state,
        };
    }

    /// When a candidate writes; none while it has read nothing.
    fn campaign_at(&self, candidacy: &Candidacy) -> Option<BootInstant> {
        let retry = self.parameters.retry_period();
        let share = |most: Duration| most * candidacy.jitter_permille / 1000;
        let at = match &candidacy.sight {
            Sight::Unread => return None,
            Sight::Absent { since } => {
                let wait = self.lease_seen.map_or(limits::LEASE_CREATE_DELAY, |l| l.max(limits::LEASE_CREATE_DELAY));
                *since + wait + share(self.parameters.candidate_jitter())
            }
            Sight::Present { record, since } => {
                let released = record.lease_duration.is_none_or(|l| l <= limits::LEASE_DURATION_RELEASED);
                let wait = match self.reason_to_campaign(record) {
                    Why::EarlierStart => Duration::ZERO,
                    Why::Vacant if released => share(limits::LEASE_RELEASED_JITTER),
                    // Holder and duration can be edited by hand, and then whoever held the Lease before may still lead
                    // for as long as ours say (I5). A release tells by its duration that nobody does.
                    _ => {
                        let duration = record.lease_duration.unwrap_or_default().max(self.parameters.lease_duration());
                        duration + share(self.parameters.candidate_jitter())
                    }
                };
                // The one that is preferred goes first.
                let courtesy = if self.prefers_another(record) { 2 * retry } else { Duration::ZERO };
                *since + wait + courtesy
            }
        };
        Some(at.max(candidacy.campaign_after))
    }

    /// Why a candidate may write, once its wait is over.
    fn reason_to_campaign(&self, record: &LeaseRecord) -> Why {
        if record.resource_version.is_none() {
            Why::LeaseAbsent
        } else if record.holder_identity.is_empty() {
            Why::Vacant
        } else if self.local_lock_held && self.identity.is_earlier_start(&record.holder_identity) {
            Why::EarlierStart
        } else {
            Why::LeaseExpired
        }
    }

    /// Writes the Lease to become its holder.
    fn campaign(&mut self, candidacy: Candidacy, now: BootInstant, wall: WallTime, effects: &mut Vec<Effect>) -> State {
        let mut record = match candidacy.sight.record() {
            Some(known) => known.clone(),
            None => LeaseRecord::new(&self.namespace, &self.name),
        };
        let why = self.reason_to_campaign(&record);
        let precondition = record.resource_version.clone();
        record.stored_epoch = if precondition.is_some() {
            record.lease_transitions = record.lease_transitions.saturating_add(1);
            Epoch::acquire(record.created_seconds, record.lease_transitions, record.stored_epoch, self.epoch_seen)
        } else {
            // The server will set the creation time; until then only what was seen is a floor.
            Epoch::acquire(0, 0, Epoch::NONE, self.epoch_seen)
        };
        record.holder_identity = self.identity.as_str().to_owned();
        record.lease_duration = Some(self.parameters.lease_duration());
        record.acquire_time = Some(wall);
        record.renew_time = Some(wall);
        // Whoever was preferred had its chance (`campaign_at`); left in, it would depose every leader at once.
        record.preferred_holder = None;
        // An earlier try that may still be applied cannot be told from this one: the first counts.
        let earlier = candidacy.unsettled.as_ref().filter(|write| write.precondition == precondition);
        let write = Write {
            sent: earlier.map_or(now, |write| write.sent),
            precondition,
            stored_epoch: record.stored_epoch,
            renew_time: wall,
            generation: None,
        };
        let timeout = limits::LEASE_REQUEST_TIMEOUT.min(self.parameters.renew_deadline());
        self.moved(Phase::Follower, Phase::Acquiring, why, effects);
        let request = self.take_off(None);
        effects.push(match write.precondition {
            Some(_) => Effect::PutLease { request, record, timeout },
            None => Effect::CreateLease { request, record, timeout },
        });
        State::Acquiring(candidacy, write, Then::Lead)
    }

    /// D.1 Acquiring: 200, or a read that shows the same.
    fn acquired(
        &mut self,
        record: LeaseRecord,
        write: &Write,
        why: Why,
        now: BootInstant,
        effects: &mut Vec<Effect>,
    ) -> State {
        let from = if why == Why::Acquired { Phase::Acquiring } else { Phase::Follower };
        let epoch = record.epoch();
        invariant!(I5, epoch > self.epoch_held, "epoch {epoch} was acquired after {}", self.epoch_held);
        self.epoch_held = epoch;
        self.note(&record);
        // The deadline counts from sending: a slow answer must not lengthen leadership (I5).
        let counted_from = if cfg!(mutation = "deadline") { now } else { write.sent };
        let until = counted_from + self.parameters.renew_deadline();
        let checkpoint = record.checkpoint.clone();
        let tenure = Tenure::new(record, write.sent, write.sent + self.parameters.retry_period());
        let (state, phase, role) = if now < until {
            effects.push(Effect::OpenGate { epoch, until });
            (State::Leading(tenure, until), Phase::Leading, Role::Leading { epoch, until })
        } else {
            (State::Suspended(tenure), Phase::Suspended, Role::Suspended { epoch })
        };
        self.moved(from, phase, why, effects);
        effects.push(Effect::Announce(Announcement::Acquired { checkpoint }));
        self.announce(role, effects);
        state
    }

    /// D.1 Leading, Suspended: 200. `until` is the deadline so far, none when suspended.
    fn renewed(
        &mut self,
        tenure: Tenure,
        until: Option<BootInstant>,
        record: LeaseRecord,
        now: BootInstant,
        effects: &mut Vec<Effect>,
    ) -> State {
        // The deadline counts from sending: a slow answer must not lengthen leadership (I5).
        let sent = tenure.write.as_ref().map(|write| write.sent);
        let sent = sent.map(|sent| if cfg!(mutation = "deadline") { now } else { sent });
        let extended = sent.map(|sent| sent + self.parameters.renew_deadline()).max(until);
        let (epoch, suspended) = (tenure.epoch, until.is_none());
        let tenure = self.store(tenure, record, effects);
        match extended.filter(|until| now < *until) {
            Some(until) => {
                effects.push(Effect::OpenGate { epoch, until });
                if suspended {
                    self.moved(Phase::Suspended, Phase::Leading, Why::Renewed, effects);
                }
                self.announce(Role::Leading { epoch, until }, effects);
                self.lead_unless_another_is_preferred(tenure, until, now, effects)
            }
            // Proved too late to emit; the next write is due at once.
            None => State::Suspended(tenure),
        }
    }

    /// Still the holder, as read: an earlier write may turn out to have been applied.
    fn hold_on(
        &mut self,
        tenure: Tenure,
        until: Option<BootInstant>,
        record: LeaseRecord,
        now: BootInstant,
        effects: &mut Vec<Effect>,
    ) -> State {
        // A write under way brings its own answer.
        if self.flight.is_none() && tenure.applied(&record).is_some() {
            return self.renewed(tenure, until, record, now, effects);
        }
        self.note(&record);
        let tenure = tenure.observed(record, now);
        match until {
            Some(until) => self.lead_unless_another_is_preferred(tenure, until, now, effects),
            None => State::Suspended(tenure),
        }
    }

    /// D.1 Leading: `preferredHolder` set to another.
    fn lead_unless_another_is_preferred(
        &mut self,
        tenure: Tenure,
        until: BootInstant,
        now: BootInstant,
        effects: &mut Vec<Effect>,
    ) -> State {
        if !self.prefers_another(&tenure.record) {
            return State::Leading(tenure, until);
        }
        let after = After::Campaign { cooldown: self.default_cooldown() };
        let drained_by = now + limits::LEASE_REQUEST_TIMEOUT;
        self.release(tenure, after, drained_by, Why::PreferredHolder, Phase::Leading, effects)
    }

    /// Ends emission; what remains is either renewed or lost.
    fn suspend(&mut self, tenure: Tenure, why: Why, effects: &mut Vec<Effect>) -> Tenure {
        effects.push(Effect::CloseGate);
        self.moved(Phase::Leading, Phase::Suspended, why, effects);
        self.announce(Role::Suspended { epoch: tenure.epoch }, effects);
        tenure
    }

    /// Begins an orderly release: nothing new leaves, acks are still taken.
    fn release(
        &mut self,
        tenure: Tenure,
        after: After,
        drained_by: BootInstant,
        why: Why,
        from: Phase,
        effects: &mut Vec<Effect>,
    ) -> State {
        effects.push(Effect::CloseGate);
        self.moved(from, Phase::Releasing, why, effects);
        self.announce(Role::Releasing { epoch: tenure.epoch }, effects);
        State::Releasing(tenure, after, Stage::Draining { until: drained_by })
    }

    /// D.1 Lost: the gate is closed before anything else, then a new campaign begins.
    fn lose(
        &mut self,
        epoch: Epoch,
        sight: Sight,
        why: Why,
        now: BootInstant,
        effects: &mut Vec<Effect>,
        from: Phase,
    ) -> State {
        effects.push(Effect::CloseGate);
        self.cancel_flight(effects);
        self.note_sight(&sight);
        self.moved(from, Phase::Lost, why, effects);
        self.announce(Role::Lost { epoch }, effects);
        self.moved(Phase::Lost, Phase::Follower, Why::CampaignAgain, effects);
        State::Follower(self.begin_to_follow(sight, now, effects))
    }

    /// The end of a release, successful or not.
    fn end_tenure(
        &mut self,
        epoch: Epoch,
        sight: Sight,
        after: After,
        why: Why,
        now: BootInstant,
        effects: &mut Vec<Effect>,
    ) -> State {
        self.cancel_flight(effects);
        match after {
            After::Campaign { cooldown } => {
                self.moved(Phase::Releasing, Phase::Follower, why, effects);
                effects.push(Effect::Released { epoch });
                State::Follower(self.begin_to_follow(sight, now + cooldown, effects))
            }
            After::End => {
                self.note_sight(&sight);
                self.end(Phase::Releasing, why, epoch, effects)
            }
        }
    }

    /// The end of everything.
    fn end(&mut self, from: Phase, why: Why, epoch: Epoch, effects: &mut Vec<Effect>) -> State {
        self.cancel_flight(effects);
        if let Watch::Open { request, .. } = self.watch {
            effects.push(Effect::Cancel { request });
            self.watch = Watch::default();
        }
        self.moved(from, Phase::Ended, why, effects);
        self.announce(Role::Standby, effects);
        effects.extend([Effect::Released { epoch }, Effect::Ended]);
        State::Ended
    }

    /// After an acquiring write that did not make this replica the leader, as far as it knows.
    fn back_to_follower(&mut self, candidacy: Candidacy, then: Then, why: Why, effects: &mut Vec<Effect>) -> State {
        match then {
            Then::Lead => {
                self.moved(Phase::Acquiring, Phase::Follower, why, effects);
                State::Follower(candidacy)
            }
            Then::Release => self.end(Phase::Acquiring, why, Epoch::NONE, effects),
        }
    }

    /// A follower with a fresh sight.
    fn begin_to_follow(&mut self, sight: Sight, campaign_after: BootInstant, effects: &mut Vec<Effect>) -> Candidacy {
        let checkpoint = sight.record().map(|record| record.checkpoint.clone());
        self.note_sight(&sight);
        self.announce(Role::Standby, effects);
        if let Some(checkpoint) = checkpoint {
            effects.push(Effect::Announce(Announcement::CheckpointSeen { checkpoint }));
        }
        Candidacy::new(sight, self.draw_jitter(), campaign_after)
    }

    /// D.1 Follower: the wait begins anew whenever `(uid, resourceVersion)` changes.
    fn follow(
        &mut self,
        mut candidacy: Candidacy,
        record: LeaseRecord,
        now: BootInstant,
        effects: &mut Vec<Effect>,
    ) -> Candidacy {
        candidacy.read_at = None;
        if let Some(known) = candidacy.sight.record() {
            let same = known.uid == record.uid && known.resource_version == record.resource_version;
            if same || is_older(&record, known) {
                return candidacy;
            }
        }
        let before = self.view.clone();
        self.note(&record);
        if self.view != before {
            self.announce(Role::Standby, effects);
        }
        effects.push(Effect::Announce(Announcement::CheckpointSeen { checkpoint: record.checkpoint.clone() }));
        candidacy.jitter_permille = self.draw_jitter();
        candidacy.sight = Sight::seen(record, now);
        // Its precondition does not hold any more.
        candidacy.unsettled = None;
        candidacy
    }

    /// D.1 Follower: 404. The wait counts from the first one.
    fn forget(&mut self, candidacy: Candidacy, now: BootInstant, effects: &mut Vec<Effect>) -> Candidacy {
        let candidacy = candidacy.absent(now);
        let before = self.view.clone();
        self.note_sight(&candidacy.sight);
        if self.view != before {
            self.announce(Role::Standby, effects);
        }
        candidacy
    }

    /// What a state of the Lease, read by its holder, means.
    fn judge(&self, tenure: &Tenure, record: &LeaseRecord) -> Verdict {
        if is_older(record, &tenure.record) {
            Verdict::Stale
        } else if record.uid != tenure.record.uid {
            Verdict::Lost(Why::LeaseReplaced)
        } else if record.holder_identity != self.identity.as_str() || record.stored_epoch > tenure.epoch {
            Verdict::Lost(Why::OtherHolder)
        } else {
            Verdict::Mine
        }
    }

    /// Remembers what every later acquisition must exceed, and what people are told.
    fn note(&mut self, record: &LeaseRecord) {
        self.epoch_seen = self.epoch_seen.max(record.epoch());
        let duration = record.lease_duration.unwrap_or_default().max(self.parameters.lease_duration());
        self.lease_seen = Some(duration);
        self.view = LeaseView {
            holder_identity: record.holder_identity.clone(),
            lease_transitions: record.lease_transitions,
            epoch_seen: self.epoch_seen,
        };
    }

    fn note_sight(&mut self, sight: &Sight) {
        match sight {
            Sight::Present { record, .. } => self.note(record),
            Sight::Absent { .. } => self.view = LeaseView { epoch_seen: self.epoch_seen, ..LeaseView::default() },
            Sight::Unread => {}
        }
    }

    /// Takes over the answer of a successful write.
    fn store(&mut self, tenure: Tenure, record: LeaseRecord, effects: &mut Vec<Effect>) -> Tenure {
        self.note(&record);
        let (tenure, generation) = tenure.stored(record, self.parameters.retry_period());
        if let Some(generation) = generation {
            effects.push(Effect::Announce(Announcement::CheckpointStored { generation }));
        }
        tenure
    }

    /// The holder's next request: a read if something is unknown, else a renewal.
    fn renew(
        &mut self,
        tenure: Tenure,
        remaining: Duration,
        now: BootInstant,
        wall: WallTime,
        effects: &mut Vec<Effect>,
    ) -> Tenure {
        let (record, write) = tenure.renewal(&self.identity, self.parameters.lease_duration(), now, wall);
        self.send(tenure, record, write, remaining, effects)
    }

    fn send(
        &mut self,
        mut tenure: Tenure,
        record: LeaseRecord,
        write: Write,
        remaining: Duration,
        effects: &mut Vec<Effect>,
    ) -> Tenure {
        let timeout = remaining.min(limits::LEASE_REQUEST_TIMEOUT);
        match tenure.next {
            Next::Read { .. } => self.send_get(tenure.record.resource_version.clone(), timeout, effects),
            Next::Write { .. } => {
                tenure.last_sent = write.sent;
                tenure.write = Some(write);
                let request = self.take_off(None);
                effects.push(Effect::PutLease { request, record, timeout });
            }
        }
        tenure
    }

    fn send_get(&mut self, known: Option<ResourceVersion>, timeout: Duration, effects: &mut Vec<Effect>) {
        let request = self.take_off(known);
        effects.push(Effect::GetLease { request, timeout });
    }

    /// Names the one request for the Lease that is under way from here on.
    fn take_off(&mut self, known: Option<ResourceVersion>) -> RequestId {
        let request = self.next_request();
        self.flight = Some(Flight { request, known });
        request
    }

    fn next_request(&mut self) -> RequestId {
        self.request_last += 1;
        RequestId(self.request_last)
    }

    fn cancel_flight(&mut self, effects: &mut Vec<Effect>) {
        effects.extend(self.flight.take().map(|Flight { request, .. }| Effect::Cancel { request }));
    }

    fn open_watch(&mut self, now: BootInstant, effects: &mut Vec<Effect>) {
        let (Watch::Closed { reopen_at, resume }, Some(known)) = (&self.watch, self.state.watch_from()) else {
            return;
        };
        if now >= *reopen_at {
            let after = known.filter(|_| *resume == Resume::Known);
            let request = self.next_request();
            self.watch = Watch::Open { request, opened: now };
            effects.push(Effect::WatchLease { request, after });
        }
    }

    /// Plans the next watch after a failed one, and tells when.
    fn reopen_watch(&mut self, failure: &Failure, now: BootInstant) -> BootInstant {
        let reopen_at = now + self.retry_delay(failure).max(self.parameters.retry_period() / 2);
        let resume = if failure.kind == FailureKind::Expired { Resume::MostRecent } else { Resume::Known };
        self.watch = Watch::Closed { reopen_at, resume };
        reopen_at
    }

    /// How long to wait after a failure: not at all where waiting was the failure or where a read decides, else with
    /// jitter and as long as the server asks, within bounds that leave a leader its tries.
    fn retry_delay(&mut self, failure: &Failure) -> Duration {
        let retry = self.parameters.retry_period();
        match failure.kind {
            FailureKind::Timeout | FailureKind::NotFound | FailureKind::Conflict => Duration::ZERO,
            FailureKind::Expired
            | FailureKind::Unauthorized
            | FailureKind::Forbidden
            | FailureKind::TooManyRequests
            | FailureKind::Rejected
            | FailureKind::VersionTooLarge
            | FailureKind::Unavailable
            | FailureKind::Transport
            | FailureKind::Undecodable => {
                let asked = failure.retry_after.unwrap_or_default().min(2 * retry);
                self.prng.between(retry / 2, retry).max(asked)
            }
        }
    }

    fn draw_jitter(&mut self) -> u32 {
        u32::try_from(self.prng.below(1001)).unwrap_or(0)
    }

    fn prefers_another(&self, record: &LeaseRecord) -> bool {
        record.preferred_holder.as_ref().is_some_and(|preferred| preferred != self.identity.as_str())
    }

    fn default_cooldown(&self) -> Duration {
        2 * self.parameters.retry_period()
    }

    fn moved(&self, from: Phase, to: Phase, why: Why, effects: &mut Vec<Effect>) {
        effects.push(Effect::Moved { from, to, why });
    }

    fn announce(&self, role: Role, effects: &mut Vec<Effect>) {
        effects.push(Effect::Announce(Announcement::Role { role, lease: self.view.clone() }));
    }
}

/// What a state of the Lease says about this replica's leadership.
enum Verdict {
    /// Older than what is known.
    Stale,
    /// This replica holds it.
    Mine,
    /// It does not.
    Lost(Why),
}

/// Whether `record` is an earlier state than `known`, as a lagging watch may still show.
fn is_older(record: &LeaseRecord, known: &LeaseRecord) -> bool {
    match (&known.resource_version, &record.resource_version) {
        (Some(known), Some(read)) => known.is_after(read),
        (None, _) | (_, None) => false,
    }
}

#[cfg(test)]
mod tests;
