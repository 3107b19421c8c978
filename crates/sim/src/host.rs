//! One replica process: the production machines, put together as the drivers do it, with the model behind them.
//!
//! Two drivers run in a process, and messages between them take time: what the elector announces waits in order, the
//! newest checkpoint and the end of a drain travel the other way. Only the gate is shared: it is closed the moment the
//! elector says so. A process that is stopped takes part in nothing; a process that dies loses everything.

mod requests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sidewatch_core::codec::checkpoint::Checkpoint;
use sidewatch_core::codec::cursor::{Cursor, Fingerprint};
use sidewatch_core::codec::watch_event::ManagedFields;
use sidewatch_core::elector::{self, Elector, Identity, Parameters, Phase};
use sidewatch_core::epoch::Epoch;
use sidewatch_core::feed::FeedSpec;
use sidewatch_core::frame::{Frame, FrameKind, GapKind, SessionId};
use sidewatch_core::gate::Gate;
use sidewatch_core::leadership::{Announcement, Role};
use sidewatch_core::limits::FRAMES_QUEUED_MAX;
use sidewatch_core::replica::{self, AckId, FeedIndex, FeedOptions, Now, Options, Replica};
use sidewatch_core::session::{AckRequest, Open, SessionError};
use sidewatch_core::time::{BootInstant, WallTime};

use crate::checkers::version;
use crate::consumer::FRAMES_IN_FLIGHT_MAX;
use crate::network::{LeaseCall, Owner};
use crate::truth::FEEDS;
use crate::world::{Boot, Event, Heal, LEASE, NAMESPACE, Nanos, World, nanos};

/// How long a drain waits for acks (as the shell's default).
const DRAIN: Duration = Duration::from_secs(5);
/// Steps at one moment after which a machine counts as spinning.
const STEPS_AT_ONCE_MAX: u32 = 2000;

/// The clocks of one host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    base_true: Nanos,
    base_boot: u64,
    /// Millionths by which the boot clock runs at: a million is true.
    rate_ppm: u64,
    /// The machine is stopped: the boot clock stands still.
    stopped: bool,
    /// What the wall clock is off by.
    pub(crate) wall_offset_micros: i64,
}

impl Clock {
    /// Time of the boot clock.
    pub(crate) fn boot(&self, now: Nanos) -> BootInstant {
        let passed = if self.stopped { 0 } else { now.saturating_sub(self.base_true) };
        let passed = u128::from(passed) * u128::from(self.rate_ppm) / 1_000_000;
        BootInstant::from_nanos(self.base_boot + u64::try_from(passed).unwrap_or(u64::MAX))
    }

    /// The boot clock stops, as in a machine that is paused.
    pub(crate) fn stop(&mut self, now: Nanos) {
        if !self.stopped {
            self.base_boot = self.boot(now).as_nanos();
            self.base_true = now;
            self.stopped = true;
        }
    }

    /// It goes on where it stopped; the wall clock has been set right meanwhile.
    pub(crate) fn go_on(&mut self, now: Nanos) {
        if self.stopped {
            self.stopped = false;
            self.base_true = now;
        }
    }

    /// The first moment at which the boot clock shows `instant` or more.
    fn true_time(&self, instant: BootInstant) -> Nanos {
        let ahead = u128::from(instant.as_nanos().saturating_sub(self.base_boot)) * 1_000_000;
        let ahead = ahead.div_ceil(u128::from(self.rate_ppm));
        self.base_true.saturating_add(u64::try_from(ahead).unwrap_or(u64::MAX))
    }
}

/// One host with its pod.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) clock: Clock,
    pod: u64,
    process: Option<Process>,
    /// Stopped: neither steps nor pulls.
    pub(crate) paused: bool,
    /// What came in meanwhile.
    pub(crate) stash: Vec<Event>,
    /// The data path hears the elector late.
    pub(crate) busy: bool,
    /// When the machine was last stopped with its boot clock; emission is not judged strictly around it (I5).
    pub(crate) pause_ended: Option<Nanos>,
    start_planned: bool,
}

impl Host {
    /// A host without a process.
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            pod: 0,
            process: None,
            paused: false,
            stash: Vec::new(),
            busy: false,
            pause_ended: None,
            start_planned: true,
        }
    }

    /// The running process.
    pub(crate) fn boot(&self) -> Option<Boot> {
        self.process.as_ref().map(|process| process.boot)
    }

    /// The process, for checks.
    pub(crate) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Whether its elector leads.
    pub(crate) fn leads(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.elector.phase() == Phase::Leading)
    }

    /// When a boot time will be, in true time.
    pub(crate) fn true_time(&self, instant: BootInstant) -> Nanos {
        self.clock.true_time(instant)
    }
}

/// Frames on their way from a session to its stream.
#[derive(Debug)]
struct Queue {
    frames: VecDeque<Frame>,
    /// Set once: how the stream ends.
    end: Option<Option<SessionError>>,
    /// Given up by the machine: nothing is withdrawn from it any more.
    ended: bool,
    consumer: usize,
    generation: u64,
    pull_planned: bool,
    /// Pulled, and not yet told to the machine.
    pulled: usize,
}

/// One start of the sidecar.
#[derive(Debug)]
pub(crate) struct Process {
    boot: Boot,
    elector: Elector,
    gate: Arc<Gate>,
    pub(crate) replica: Replica,
    role: Role,
    announcements: VecDeque<Announcement>,
    announcement_at: Nanos,
    queues: BTreeMap<SessionId, Queue>,
    sessions: u64,
    acks: BTreeMap<AckId, (usize, bool)>,
    next_ack: u64,
    wake_at: Option<Nanos>,
    exiting: bool,
    steps_at: (Nanos, u32),
    /// What this process knows to be acked, by subscription and feed: nothing below is delivered again (I3).
    acked: BTreeMap<(usize, usize), u64>,
    epoch_open: Epoch,
}

/// Fingerprints of the feeds, as the machine makes them.
pub(crate) fn fingerprints() -> [Fingerprint; 2] {
    FEEDS.map(|plural| Fingerprint::of(&[plural, NAMESPACE, "", ""]))
}

/// Name of a durable subscription.
pub(crate) fn subscription_name(number: usize) -> Arc<str> {
    Arc::from(["store", "audit"][number])
}

impl World {
    /// Draws the clock of a host.
    pub(crate) fn draw_clock(&mut self) -> Clock {
        let drift = self.knobs.drift_ppm;
        Clock {
            base_true: 0,
            base_boot: self.chance.below(1 << 50),
            rate_ppm: 1_000_000 - drift + self.chance.below(2 * drift + 1),
            stopped: false,
            wall_offset_micros: self.chance.below(4_000_000) as i64 - 2_000_000,
        }
    }

    fn clocks(&self, host: usize) -> Now {
        let clock = &self.hosts[host].clock;
        let wall = WallTime::from_micros(self.wall_micros() + clock.wall_offset_micros);
        Now { boot: clock.boot(self.now), wall }
    }

    /// A process starts.
    pub(crate) fn start(&mut self, host: usize) {
        self.hosts[host].start_planned = false;
        if self.hosts[host].process.is_some() {
            return;
        }
        if std::mem::replace(&mut self.checks.unsettled, false) {
            self.delete_lease();
        }
        self.boots += 1;
        let boot = self.boots;
        let pod = format!("uid-{host}-{}", self.hosts[host].pod);
        let identity = Identity::new(&format!("app-{host}"), &pod, &format!("boot-{boot}"));
        let (lease, renew, retry) = self.knobs.lease_seconds;
        let seconds = Duration::from_secs;
        let parameters = Parameters::new(seconds(lease), seconds(renew), seconds(retry)).unwrap_or_default();
        let feed = |plural: &&str| FeedOptions {
            watch: Arc::from(*plural),
            spec: Arc::new(FeedSpec {
                name: Arc::from(*plural),
                resource: Arc::from(*plural),
                namespace: Some(Arc::from(NAMESPACE)),
                label_selector: Arc::from(""),
                field_selector: Arc::from(""),
                managed_fields: ManagedFields::Drop,
            }),
        };
        let options = Options {
            identity: identity.as_str().to_owned(),
            incarnation: 1 + self.chance.below(u64::from(u32::MAX) - 1) as u32,
            seed: self.chance.next_u64(),
            journal_bytes_max: self.knobs.journal_bytes_max,
            unacked_events_max: sidewatch_core::limits::UNACKED_EVENTS_MAX_DEFAULT,
            feeds: FEEDS.iter().map(feed).collect(),
            subscriptions: (0..self.subscriptions).map(subscription_name).collect(),
        };
        let seed = self.chance.next_u64();
        self.trace(|_| format!("host {host} starts as {identity}"));
        self.hosts[host].process = Some(Process {
            boot,
            elector: Elector::new(parameters, identity, NAMESPACE, LEASE, seed),
            gate: Arc::new(Gate::new()),
            replica: Replica::new(options),
            role: Role::Standby,
            announcements: VecDeque::new(),
            announcement_at: 0,
            queues: BTreeMap::new(),
            sessions: 0,
            acks: BTreeMap::new(),
            next_ack: 0,
            wake_at: None,
            exiting: false,
            steps_at: (0, 0),
            acked: BTreeMap::new(),
            epoch_open: Epoch::NONE,
        });
        self.replica_step(host, replica::Input::ClusterKnown { uid: "kube-system-uid".into() });
        self.elector_step(host, elector::Input::LocalLockHeld);
        self.elector_step(host, elector::Input::Start);
        self.wake_consumers(host);
    }

    fn plan_start(&mut self, host: usize, delay: Duration) {
        if !std::mem::replace(&mut self.hosts[host].start_planned, true) {
            self.after(delay, Event::Start { host });
        }
    }

    /// A container, or with it the whole pod, is gone without a word. Another one starts after a while.
    pub(crate) fn kill(&mut self, host: usize, pod: bool) {
        self.trace(|_| format!("host {host} dies{}", if pod { " with its pod" } else { "" }));
        self.end_process(host);
        if pod {
            self.hosts[host].pod += 1;
            self.crash_consumers(host);
        }
        let delay = self.chance.between(Duration::from_millis(100), Duration::from_secs(if pod { 25 } else { 5 }));
        self.plan_start(host, delay);
    }

    fn end_process(&mut self, host: usize) {
        self.hosts[host].process = None;
        self.drop_conns(host);
        self.hosts[host].stash.clear();
        self.streams_broke(host);
    }

    /// SIGTERM: drain, release, end; then another pod starts.
    pub(crate) fn terminate(&mut self, host: usize) {
        if self.hosts[host].process.is_some() && !self.hosts[host].paused {
            self.trace(|_| format!("host {host} gets SIGTERM"));
            self.elector_step(host, elector::Input::Shutdown { drain: DRAIN });
        }
    }

    /// Replaces the pod of `host`, and then that of the next.
    pub(crate) fn terminate_next(&mut self, host: usize) {
        if host < self.hosts.len() && self.faulty {
            self.terminate(host);
            let pause = self.chance.between(Duration::from_secs(1), Duration::from_secs(12));
            self.after(pause, Event::Heal(Heal::Roll { host: host + 1 }));
        }
    }

    /// The administrator asks a replica to give leadership up.
    pub(crate) fn step_down(&mut self, host: usize) {
        if self.hosts[host].process.is_some() && !self.hosts[host].paused {
            let cooldown = self.up_to(Duration::from_secs(20));
            self.elector_step(host, elector::Input::StepDown { cooldown, drain: DRAIN });
        }
    }

    /// The elector has ended: the sessions are told, then the process ends.
    pub(crate) fn exit(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        if !std::mem::replace(&mut process.exiting, true) {
            let boot = process.boot;
            self.replica_step(host, replica::Input::Shutdown);
            return self.after(Duration::from_millis(50), Event::Exit { host, boot });
        }
        self.trace(|_| format!("host {host} ends"));
        self.end_process(host);
        self.hosts[host].pod += 1;
        let delay = self.chance.between(Duration::from_millis(100), Duration::from_secs(5));
        self.plan_start(host, delay);
    }

    /// A stopped process goes on: everything that waited for it happens at once, in an order of its own.
    pub(crate) fn resume(&mut self, host: usize) {
        if !std::mem::replace(&mut self.hosts[host].paused, false) {
            return;
        }
        let stash = std::mem::take(&mut self.hosts[host].stash);
        for event in stash {
            self.at(self.now, event);
        }
        if let Some(process) = &mut self.hosts[host].process {
            process.wake_at = None;
        }
        self.plan_wake(host);
        let sessions: Vec<_> =
            self.hosts[host].process.iter().flat_map(|process| process.queues.keys()).copied().collect();
        sessions.into_iter().for_each(|session| self.kick(host, session));
    }

    /// A deadline of a machine has come.
    pub(crate) fn wake(&mut self, host: usize) {
        let now = self.clocks(host);
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        if process.wake_at.is_none_or(|at| at > self.now) {
            return;
        }
        process.wake_at = None;
        let (last, steps) = process.steps_at;
        process.steps_at = if self.now - last < 1_000_000 { (last, steps + 1) } else { (self.now, 0) };
        if steps > STEPS_AT_ONCE_MAX {
            let which = (process.elector.phase(), process.elector.deadline(), process.replica.deadline());
            return self.violate("I17", format!("host {host} spins: {which:?} at {now:?}"));
        }
        let due = |deadline: Option<BootInstant>| deadline.is_some_and(|deadline| deadline <= now.boot);
        let (elector, replica) = (due(process.elector.deadline()), due(process.replica.deadline()));
        if self.chance.below(2) == 0 {
            if elector {
                self.elector_step(host, elector::Input::Tick);
            }
            if replica {
                self.replica_step(host, replica::Input::Tick);
            }
        } else {
            if replica {
                self.replica_step(host, replica::Input::Tick);
            }
            if elector {
                self.elector_step(host, elector::Input::Tick);
            }
        }
        self.plan_wake(host);
    }

    fn plan_wake(&mut self, host: usize) {
        let state = &self.hosts[host];
        let Some(process) = &state.process else { return };
        let Some(deadline) = process.elector.deadline().into_iter().chain(process.replica.deadline()).min() else {
            return;
        };
        let at = state.true_time(deadline).max(self.now);
        if process.wake_at.is_some_and(|planned| planned <= at) {
            return;
        }
        let boot = process.boot;
        if let Some(process) = &mut self.hosts[host].process {
            process.wake_at = Some(at);
        }
        self.at(at, Event::Wake { host, boot });
    }

    /// One step of the elector, and what it wants done.
    pub(crate) fn elector_step(&mut self, host: usize, input: elector::Input) {
        let now = self.clocks(host);
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let boot = process.boot;
        let mut effects = Vec::new();
        process.elector.step(now.boot, now.wall, input, &mut effects);
        for effect in effects {
            self.elector_effect(host, boot, effect);
        }
        self.plan_wake(host);
    }

    fn elector_effect(&mut self, host: usize, boot: Boot, effect: elector::Effect) {
        match effect {
            elector::Effect::GetLease { request, timeout } => {
                self.send(host, Owner::Elector(request, LeaseCall::Read), requests::read_lease(), timeout);
            }
            elector::Effect::PutLease { request, record, timeout } => {
                self.send(host, Owner::Elector(request, LeaseCall::Write), requests::put_lease(&record), timeout);
            }
            elector::Effect::CreateLease { request, record, timeout } => {
                self.send(host, Owner::Elector(request, LeaseCall::Write), requests::create_lease(&record), timeout);
            }
            elector::Effect::WatchLease { request, after } => {
                let call = requests::watch_lease(after.as_ref());
                self.send(host, Owner::Elector(request, LeaseCall::Watch), call, Duration::from_secs(30));
            }
            elector::Effect::Cancel { request } => {
                self.cancel(host, |owner| matches!(owner, Owner::Elector(of, _) if *of == request));
            }
            elector::Effect::OpenGate { epoch, until } => {
                let Some(process) = self.hosts[host].process.as_mut() else { return };
                process.gate.open(epoch, until);
                if std::mem::replace(&mut process.epoch_open, epoch) != epoch {
                    self.trace(|_| format!("host {host} opens the gate for {epoch}"));
                }
                self.mark(&[epoch.as_u64(), until.as_nanos()]);
            }
            elector::Effect::CloseGate => {
                if let Some(process) = &self.hosts[host].process {
                    process.gate.close();
                }
            }
            elector::Effect::Announce(announcement) => {
                let most = if self.hosts[host].busy { Duration::from_millis(1500) } else { Duration::from_millis(3) };
                let at = self.now + nanos(self.up_to(most));
                let Some(process) = self.hosts[host].process.as_mut() else { return };
                process.announcements.push_back(announcement);
                process.announcement_at = process.announcement_at.max(at);
                let at = process.announcement_at;
                self.at(at, Event::Announce { host, boot });
            }
            elector::Effect::Released { .. } => {}
            elector::Effect::Ended => self.after(Duration::from_millis(20), Event::Exit { host, boot }),
            elector::Effect::Moved { from, to, why } => {
                self.mark(&[from as u64, to as u64, why as u64]);
                self.trace(|_| format!("host {host} elector {from} -> {to}: {why:?}"));
            }
        }
    }

    fn tell_elector(&mut self, host: usize, input: elector::Input) {
        let Some(boot) = self.hosts[host].boot() else { return };
        let delay = self.up_to(Duration::from_millis(3));
        self.after(delay, Event::Elector { host, boot, input: Box::new(input) });
    }

    /// The replica driver takes the next announcement.
    pub(crate) fn take_announcement(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let Some(announcement) = process.announcements.pop_front() else { return };
        let Announcement::Role { role, lease } = announcement else {
            if let Announcement::Acquired { checkpoint } = &announcement {
                process.acked = acked_in(checkpoint.as_deref());
            }
            return self.replica_step(host, replica::Input::Announced(announcement));
        };
        let same = |epoch: &Epoch| matches!(&process.role, Role::Leading { epoch: known, .. } if known == epoch);
        let renewed = matches!(&role, Role::Leading { epoch, .. } if same(epoch));
        process.role = role.clone();
        self.replica_step(host, replica::Input::Announced(Announcement::Role { role: role.clone(), lease }));
        if !renewed {
            self.withdraw_all(host);
        }
        if matches!(role, Role::Releasing { .. }) {
            let until = self.clocks(host).boot + DRAIN;
            self.replica_step(host, replica::Input::Drain { until });
        }
        let sessions: Vec<_> =
            self.hosts[host].process.iter().flat_map(|process| process.queues.keys()).copied().collect();
        sessions.into_iter().for_each(|session| self.kick(host, session));
    }

    fn withdraw_all(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let mut withdrawn = Vec::new();
        for (session, queue) in process.queues.iter_mut().filter(|(_, queue)| !queue.ended) {
            let frames = std::mem::take(&mut queue.frames);
            let (gated, free): (VecDeque<_>, VecDeque<_>) =
                frames.into_iter().partition(|frame| frame.epoch != Epoch::NONE);
            queue.frames = free;
            if !gated.is_empty() {
                withdrawn.push((*session, Vec::from(gated)));
            }
        }
        for (session, frames) in withdrawn {
            self.replica_step(host, replica::Input::Withdrawn { session, frames });
        }
    }

    /// One step of the replica machine, and what it wants done.
    pub(crate) fn replica_step(&mut self, host: usize, input: replica::Input) {
        let now = self.clocks(host);
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let mut effects = Vec::new();
        process.replica.step(now, input, &mut effects);
        for effect in effects {
            self.replica_effect(host, effect);
        }
        self.plan_wake(host);
    }

    fn replica_effect(&mut self, host: usize, effect: replica::Effect) {
        match effect {
            replica::Effect::Feed { feed: FeedIndex(feed), effect } => self.feed_effect(host, feed, effect),
            replica::Effect::Send { session, frame } => {
                self.check_made(host, session, &frame);
                let Some(process) = self.hosts[host].process.as_mut() else { return };
                let Some(queue) = process.queues.get_mut(&session) else { return };
                queue.frames.push_back(*frame);
                let queued = queue.frames.len();
                if queued > FRAMES_QUEUED_MAX {
                    self.violate("I11", format!("host {host} has {queued} frames queued for {session:?}"));
                }
                self.kick(host, session);
            }
            replica::Effect::End { session, error } => {
                let Some(process) = self.hosts[host].process.as_mut() else { return };
                if let Some(queue) = process.queues.get_mut(&session) {
                    queue.end.get_or_insert(error);
                    queue.ended = true;
                }
                self.kick(host, session);
            }
            replica::Effect::Acked { id, result } => {
                let Some(process) = self.hosts[host].process.as_mut() else { return };
                let Some((consumer, durable)) = process.acks.remove(&id) else { return };
                if let (Ok(outcome), Some(number)) = (&result, self.consumers[consumer].subscription) {
                    for (feed, fingerprint) in fingerprints().iter().enumerate() {
                        match outcome.acked.positions.get(fingerprint) {
                            Some(position) => process.acked.insert((number, feed), version(position)),
                            None => process.acked.remove(&(number, feed)),
                        };
                    }
                    if durable {
                        self.check_durable(number, &outcome.durable);
                    }
                }
                self.ack_answered(consumer, result);
            }
            replica::Effect::Checkpoint(pending) => {
                self.mark(&[pending.generation, pending.text.len() as u64]);
                self.tell_elector(host, elector::Input::Checkpoint(pending));
            }
            replica::Effect::Drained => self.tell_elector(host, elector::Input::Drained),
            replica::Effect::Noted(note) => self.trace(|_| format!("host {host} notes {note:?}")),
        }
    }

    /// A frame was made: what the machine promises about it.
    fn check_made(&mut self, host: usize, session: SessionId, frame: &Frame) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let Some(queue) = process.queues.get(&session) else { return };
        let Some(number) = self.consumers[queue.consumer].subscription else { return };
        let feed_of = |name: &str| FEEDS.iter().position(|feed| *feed == name).unwrap_or_default();
        let mut returned = None;
        match &frame.kind {
            FrameKind::Gap(gap) if gap.kind == GapKind::Reset => {
                process.acked.remove(&(number, feed_of(&gap.feed.name)));
            }
            FrameKind::Batch(events) => {
                for event in events.iter().filter(|event| !event.synthesized && !event.in_snapshot) {
                    let acked = process.acked.get(&(number, feed_of(&event.feed.name)));
                    let at = event.resource_version.as_ref().map(version);
                    if acked.zip(at).is_some_and(|(acked, at)| at <= *acked) {
                        returned =
                            Some(format!("{} of {} comes again though {acked:?} was acked", event.id(), event.key));
                    }
                }
            }
            _ => {}
        }
        self.checks.count += 1;
        if let Some(returned) = returned {
            self.violate("I3", format!("host {host}: {returned}"));
        }
    }

    /// Plans the next pull of a stream, if there is something to pull and room for it.
    pub(crate) fn kick(&mut self, host: usize, session: SessionId) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let boot = process.boot;
        let Some(queue) = process.queues.get_mut(&session) else { return };
        let consumer = &self.consumers[queue.consumer];
        let same = consumer.generation == queue.generation;
        let reads = if same {
            !consumer.stalled && consumer.in_flight < FRAMES_IN_FLIGHT_MAX
        } else {
            queue.generation % 2 == 0
        };
        let something = !queue.frames.is_empty() || queue.end.is_some();
        if reads && something && !std::mem::replace(&mut queue.pull_planned, true) {
            let delay = self.up_to(Duration::from_micros(800));
            self.after(delay, Event::Pull { host, boot, session });
        }
    }

    /// A stream pulls: the gate is asked at this moment.
    pub(crate) fn pull(&mut self, host: usize, session: SessionId) {
        let now = self.clocks(host).boot;
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let boot = process.boot;
        let gate = process.gate.clone();
        let may_leave = |frame: &Frame| frame.epoch == Epoch::NONE || gate.check(frame.epoch, now);
        let Some(queue) = process.queues.get_mut(&session) else { return };
        queue.pull_planned = false;
        if matches!(queue.end, Some(Some(_))) {
            queue.frames.retain(&may_leave);
        }
        let (consumer, generation) = (queue.consumer, queue.generation);
        let Some(frame) = queue.frames.pop_front_if(|frame| may_leave(frame)) else {
            if queue.frames.is_empty() && queue.end.is_some() {
                process.queues.remove(&session);
                self.stream_closes(consumer, generation);
            }
            return;
        };
        queue.pulled += 1;
        let delay = self.up_to(Duration::from_millis(2));
        self.after(delay, Event::Pulled { host, boot, session });
        if frame.epoch != Epoch::NONE {
            self.check_emitted(host, frame.epoch);
        }
        self.deliver(consumer, generation, frame);
        self.kick(host, session);
    }

    /// The machine learns what was pulled.
    pub(crate) fn pulled(&mut self, host: usize, session: SessionId) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        let frames = process.queues.get_mut(&session).map_or(0, |queue| std::mem::take(&mut queue.pulled));
        if frames > 0 {
            self.replica_step(host, replica::Input::Pulled { session, frames });
        }
    }

    /// The machine learns that a stream is gone.
    pub(crate) fn stream_gone(&mut self, host: usize, session: SessionId) {
        let Some(process) = self.hosts[host].process.as_mut() else { return };
        process.queues.remove(&session);
        self.replica_step(host, replica::Input::Closed { session });
    }

    /// A call to open a stream arrives. Returns the process and the session, none when nobody answers.
    pub(crate) fn open_session(&mut self, host: usize, consumer: usize, open: Open) -> Option<(Boot, SessionId)> {
        let generation = self.consumers[consumer].generation;
        let process = self.hosts[host].process.as_mut().filter(|process| !process.exiting)?;
        process.sessions += 1;
        let (boot, session) = (process.boot, SessionId(process.sessions));
        let queue = Queue {
            frames: VecDeque::new(),
            end: None,
            ended: false,
            consumer,
            generation,
            pull_planned: false,
            pulled: 0,
        };
        process.queues.insert(session, queue);
        self.trace(|_| format!("host {host} opens {session:?} for consumer {consumer}: {:?}", open.subscription));
        self.replica_step(host, replica::Input::Open { session, open: Box::new(open) });
        Some((boot, session))
    }

    /// An ack arrives. Returns false when nobody is there.
    pub(crate) fn take_ack(&mut self, host: usize, consumer: usize, ack: AckRequest) -> bool {
        let Some(process) = self.hosts[host].process.as_mut() else { return false };
        let id = AckId(process.next_ack);
        process.next_ack += 1;
        process.acks.insert(id, (consumer, ack.wait_durable));
        self.replica_step(host, replica::Input::Ack { id, ack });
        true
    }
}

impl Process {
    /// What it knows to be acked.
    pub(crate) fn acked(&self, subscription: usize, feed: usize) -> Option<u64> {
        self.acked.get(&(subscription, feed)).copied()
    }

    /// The highest epoch its replica machine has heard of.
    pub(crate) fn epoch_seen(&self) -> Epoch {
        let now = Now { boot: BootInstant::default(), wall: WallTime::default() };
        self.replica.status(now).lease.epoch_seen
    }

    /// The phase of the elector.
    pub(crate) fn phase(&self) -> Phase {
        self.elector.phase()
    }
}

/// The positions of a checkpoint that is taken over.
fn acked_in(text: Option<&str>) -> BTreeMap<(usize, usize), u64> {
    let mut acked = BTreeMap::new();
    let Some(Ok(checkpoint)) = text.map(Checkpoint::decode) else { return acked };
    for (name, stored) in &checkpoint.subscriptions {
        let number = usize::from(**name == *subscription_name(1));
        for (feed, fingerprint) in fingerprints().iter().enumerate() {
            if let Some(position) = stored.positions.get(fingerprint) {
                acked.insert((number, feed), version(position));
            }
        }
    }
    acked
}

/// The positions of a cursor by feed.
pub(crate) fn positions(cursor: &Cursor) -> impl Iterator<Item = (usize, u64)> {
    let at = |(feed, fingerprint)| Some((feed, version(cursor.positions.get(&fingerprint)?)));
    fingerprints().into_iter().enumerate().filter_map(at)
}
