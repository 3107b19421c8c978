//! Virtual time, the queue of events, and everything that exists in one run. All chance is drawn here, from the seed.
//!
//! Time is true time in nanoseconds since the start of the run. Hosts see it through clocks of their own (`host`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use sidewatch_core::elector;
use sidewatch_core::frame::{Frame, SessionId};
use sidewatch_core::prng::Prng;
use sidewatch_core::session::AckRequest;
use sidewatch_model::request::Request;
use sidewatch_model::server::{ApiServer, Options, StreamingList, Widgets};
use sidewatch_model::write::Deletion;

use crate::checkers::{Checks, Store};
use crate::consumer::Consumer;
use crate::faults::{Fault, Profile};
use crate::host::Host;
use crate::network::{Answer, ConnId, End, Network};
use crate::truth::{FEEDS, Truth};

/// True time in nanoseconds.
pub(crate) type Nanos = u64;
/// Names one process of one host; never used twice.
pub(crate) type Boot = u64;

/// Namespace of everything in the simulation.
pub(crate) const NAMESPACE: &str = "sim";
/// Name of the Lease.
pub(crate) const LEASE: &str = "sidewatch";
/// 2026-12-01T12:00:00Z, the wall time at which every run starts.
const WALL_START_MICROS: i64 = 1_796_126_400_000_000;
/// Names of objects: few, so that they are used again and again.
const NAMES: u64 = 9;
/// How far below everything seen a backup lies at least.
const REWIND_REVISIONS_MIN: u64 = 60;
/// How long the world may take to come to rest once the faults are over: a silent watch is given up after 130 s, a
/// back-off is at most 30 s, and a Lease that was disturbed takes some durations.
const REST_MAX: Duration = Duration::from_secs(600);

/// Something that happens at a moment.
#[derive(Debug)]
pub(crate) enum Event {
    /// A machine wants to be asked.
    Wake { host: usize, boot: Boot },
    /// A process starts.
    Start { host: usize },
    /// A process that has been told to end does so.
    Exit { host: usize, boot: Boot },
    /// A request arrives at the server.
    Arrive { conn: ConnId, request: Box<Request> },
    /// An answer arrives at its host.
    Answer { conn: ConnId, answer: Answer },
    /// The shell gives up a request.
    Deadline { conn: ConnId },
    /// A watch looks for news.
    Poll { conn: ConnId, turn: u64 },
    /// Bytes of a watch arrive.
    Chunk { conn: ConnId, bytes: Bytes },
    /// A watch ends, as seen by its host.
    ChunkEnd { conn: ConnId, end: End },
    /// The replica driver takes the next announcement.
    Announce { host: usize, boot: Boot },
    /// The elector's driver takes a message.
    Elector { host: usize, boot: Boot, input: Box<elector::Input> },
    /// A stream looks for a frame.
    Pull { host: usize, boot: Boot, session: SessionId },
    /// The replica driver learns what a stream has pulled.
    Pulled { host: usize, boot: Boot, session: SessionId },
    /// The replica driver learns that a stream is gone.
    Gone { host: usize, boot: Boot, session: SessionId },
    /// An application wants to attach.
    Attach { consumer: usize, generation: u64 },
    /// Its call arrives.
    Open { consumer: usize, generation: u64 },
    /// An ack arrives.
    Ack { consumer: usize, ack: Box<AckRequest> },
    /// A frame has been received and is processed.
    Frame { consumer: usize, generation: u64, frame: Box<Frame> },
    /// A stream ends, as seen by its application.
    StreamEnd { consumer: usize, generation: u64 },
    /// Something is written.
    Churn,
    /// A fault begins.
    Fault(Fault),
    /// A fault ends.
    Heal(Heal),
    /// Bounds are looked at.
    Inspect,
}

/// The end of a fault that lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heal {
    /// A host's link works again in a direction.
    Link { host: usize, up: bool, down: bool },
    /// The server can be reached again.
    Outage,
    /// Requests are no longer refused.
    Storm,
    /// Lists are fresh again.
    StaleLists,
    /// Answers come quickly again.
    Slow { host: usize },
    /// A stopped process goes on.
    Resume { host: usize },
    /// A stopped machine goes on.
    MachineResume { host: usize },
    /// A consumer is as fast as before.
    ConsumerSlow { consumer: usize },
    /// Announcements are heard at once again.
    Busy { host: usize },
    /// The backup is restored, once everybody has seen more than it holds.
    Restore,
    /// The next pod of a rolling update is replaced.
    Roll { host: usize },
}

#[derive(Debug)]
struct Entry {
    at: Nanos,
    sequence: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// Whether the trace is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tracing {
    /// Only its hash is kept.
    Hash,
    /// Every line is printed.
    Print,
}

/// What a run has shown.
#[derive(Debug)]
pub(crate) struct Report {
    /// Hash of the trace (I16).
    pub(crate) hash: u64,
    /// Comparisons made.
    pub(crate) checks: u64,
    /// Promises broken.
    pub(crate) violations: Vec<String>,
    /// True time at the end.
    pub(crate) lasted: Duration,
    /// Events handled.
    pub(crate) events: u64,
    /// Acquisitions of the Lease.
    pub(crate) acquisitions: u64,
    /// Snapshots that stores took whole.
    pub(crate) snapshots: u64,
    /// Comparisons of a store with the exact state at a cursor.
    pub(crate) exact: u64,
}

/// One run.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Nanos,
    queue: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
    events: u64,
    pub(crate) chance: Prng,
    pub(crate) profile: Profile,
    pub(crate) server: ApiServer,
    pub(crate) network: Network,
    pub(crate) hosts: Vec<Host>,
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) stores: Vec<Store>,
    pub(crate) truth: [Truth; 2],
    pub(crate) checks: Checks,
    pub(crate) subscriptions: usize,
    pub(crate) boots: Boot,
    /// Whether faults still happen.
    pub(crate) faulty: bool,
    /// Revisions that a backup may have been taken at.
    backup: u64,
    churn_max: Duration,
    /// Nothing is written before, so that a restored etcd stays below what was seen for a while.
    quiet_until: Nanos,
    pub(crate) knobs: Knobs,
    hash: u64,
    tracing: Tracing,
}

/// Settings that a seed draws once for a whole run.
#[derive(Clone, Debug)]
pub(crate) struct Knobs {
    /// Lease duration, renew deadline and retry period in seconds.
    pub(crate) lease_seconds: (u64, u64, u64),
    /// How many millionths a host's boot clock may run fast or slow.
    pub(crate) drift_ppm: u64,
    /// Limit of a replica's journals in bytes.
    pub(crate) journal_bytes_max: usize,
    /// Objects in a page of a list.
    pub(crate) page_objects: u32,
    /// Whether discovery says that the server knows streaming lists.
    pub(crate) says_streaming: bool,
}

impl World {
    /// Makes the world of a seed.
    pub(crate) fn new(seed: u64, profile: Profile, tracing: Tracing) -> Self {
        let mut chance = Prng::new(seed ^ 0x5eed_0000_0000);
        let streaming_list =
            [StreamingList::On, StreamingList::Refused, StreamingList::Unknown][chance.below(3) as usize];
        let says_streaming = streaming_list == StreamingList::On || chance.below(2) == 0;
        let server = ApiServer::new(Options {
            seed,
            first_revision: 100 + chance.below(1000),
            namespaces: vec![NAMESPACE.to_owned()],
            widgets: Widgets::Absent,
            streaming_list,
            compaction_interval: None,
            wall_micros: WALL_START_MICROS,
            ..Options::default()
        });
        let hosts_len = [1, 2, 2, 3, 3, 3, 4][chance.below(7) as usize];
        let lease_seconds = if chance.below(2) == 0 { (15, 10, 2) } else { (6, 4, 1) };
        let knobs = Knobs {
            lease_seconds,
            drift_ppm: if profile == Profile::Lease { 150_000 } else { 20_000 },
            journal_bytes_max: if profile.overflows() { 3000 + chance.below(12_000) as usize } else { 8 << 20 },
            page_objects: [2, 3, 500][chance.below(3) as usize],
            says_streaming,
        };
        let subscriptions = 1 + chance.below(2) as usize;
        let mut world = Self {
            now: 0,
            queue: BinaryHeap::new(),
            sequence: 0,
            events: 0,
            profile,
            server,
            network: Network::new(hosts_len),
            hosts: Vec::new(),
            consumers: Vec::new(),
            stores: (0..subscriptions).map(|_| Store::default()).collect(),
            truth: [Truth::default(), Truth::default()],
            checks: Checks::default(),
            subscriptions,
            boots: 0,
            faulty: profile != Profile::Calm,
            backup: 0,
            quiet_until: 0,
            churn_max: Duration::from_millis(200 + chance.below(3000)),
            knobs,
            hash: 0xcbf2_9ce4_8422_2325,
            tracing,
            chance,
        };
        for _ in 0..world.chance.below(12) {
            world.churn();
        }
        world.backup = world.server.revision();
        for host in 0..hosts_len {
            let clock = world.draw_clock();
            world.hosts.push(Host::new(clock));
            let at = world.chance.between(Duration::ZERO, Duration::from_secs(4));
            world.after(at, Event::Start { host });
            world.add_consumers(host);
        }
        world
    }

    /// Runs to the end.
    pub(crate) fn run(mut self) -> Report {
        let span = self.chance.between(Duration::from_secs(20), Duration::from_secs(90));
        for (at, fault) in self.profile.schedule(&mut self.chance, span) {
            self.after(at, Event::Fault(fault));
        }
        self.after(Duration::from_secs(1), Event::Churn);
        self.after(Duration::from_secs(2), Event::Inspect);
        self.run_until(nanos(span));
        self.end_faults();
        let begun = self.now;
        loop {
            let until = self.now + nanos(Duration::from_secs(2));
            self.run_until(until);
            let open = self.open_ends();
            if open.is_empty() || !self.checks.violations.is_empty() {
                break;
            }
            if self.now - begun > nanos(REST_MAX) {
                self.not_at_rest(&open);
                break;
            }
        }
        if self.checks.violations.is_empty() {
            self.check_end();
        }
        Report {
            hash: self.hash,
            checks: self.checks.count,
            violations: std::mem::take(&mut self.checks.violations),
            lasted: Duration::from_nanos(self.now),
            events: self.events,
            acquisitions: self.checks.acquisitions,
            snapshots: self.checks.snapshots,
            exact: self.checks.exact,
        }
    }

    fn run_until(&mut self, until: Nanos) {
        while self.queue.peek().is_some_and(|Reverse(entry)| entry.at <= until) {
            let Some(Reverse(entry)) = self.queue.pop() else { break };
            self.now = self.now.max(entry.at);
            self.events += 1;
            self.dispatch(entry.event);
            if !self.checks.violations.is_empty() {
                return;
            }
        }
        self.now = self.now.max(until);
    }

    /// Plans an event for a moment.
    pub(crate) fn at(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse(Entry { at, sequence: self.sequence, event }));
    }

    /// Plans an event for some time from here.
    pub(crate) fn after(&mut self, delay: Duration, event: Event) {
        self.at(self.now + nanos(delay), event);
    }

    /// Draws a duration up to `most`.
    pub(crate) fn up_to(&mut self, most: Duration) -> Duration {
        self.chance.between(Duration::ZERO, most)
    }

    /// Draws whether something with a chance of `permille` in a thousand happens.
    pub(crate) fn happens(&mut self, permille: u64) -> bool {
        self.chance.below(1000) < permille
    }

    /// Wall time of the server.
    pub(crate) fn wall_micros(&self) -> i64 {
        WALL_START_MICROS + i64::try_from(self.now / 1000).unwrap_or(i64::MAX)
    }

    /// Takes numbers into the hash of the trace.
    pub(crate) fn mark(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.hash = (self.hash ^ number).wrapping_mul(0x100_0000_01b3).rotate_left(17);
        }
    }

    /// Prints a line of the trace, if it is printed at all.
    pub(crate) fn trace(&self, line: impl FnOnce(&Self) -> String) {
        if self.tracing == Tracing::Print {
            println!("{:>12.6} {}", self.now as f64 / 1e9, line(self));
        }
    }

    fn dispatch(&mut self, event: Event) {
        let number = event.number();
        self.mark(&[self.now, number]);
        // A stopped process takes part in nothing; what comes in waits for it.
        let event = match self.host_of(&event) {
            Some((host, boot)) if self.hosts[host].boot() != Some(boot) => return,
            Some((host, _)) if self.hosts[host].paused => return self.hosts[host].stash.push(event),
            Some(_) | None => event,
        };
        match event {
            Event::Wake { host, .. } => self.wake(host),
            Event::Start { host } => self.start(host),
            Event::Exit { host, .. } => self.exit(host),
            Event::Arrive { conn, request } => self.arrive(conn, *request),
            Event::Answer { conn, answer } => self.answered(conn, answer),
            Event::Deadline { conn } => self.deadline(conn),
            Event::Poll { conn, turn } => self.poll(conn, turn),
            Event::Chunk { conn, bytes } => self.chunk(conn, bytes),
            Event::ChunkEnd { conn, end } => self.chunk_end(conn, end),
            Event::Announce { host, .. } => self.take_announcement(host),
            Event::Elector { host, input, .. } => self.elector_step(host, *input),
            Event::Pull { host, session, .. } => self.pull(host, session),
            Event::Pulled { host, session, .. } => self.pulled(host, session),
            Event::Gone { host, session, .. } => self.stream_gone(host, session),
            Event::Attach { consumer, generation } => self.attach(consumer, generation),
            Event::Open { consumer, generation } => self.open(consumer, generation),
            Event::Ack { consumer, ack } => self.ack_arrives(consumer, *ack),
            Event::Frame { consumer, generation, frame } => self.consume(consumer, generation, *frame),
            Event::StreamEnd { consumer, generation } => self.stream_ended(consumer, generation),
            Event::Churn => {
                if self.quiet_until <= self.now {
                    self.churn();
                }
                let most = self.churn_max;
                let pause = self.up_to(most);
                if self.faulty || self.profile == Profile::Calm && self.now < nanos(Duration::from_secs(60)) {
                    self.after(pause, Event::Churn);
                }
            }
            Event::Fault(fault) => {
                if self.faulty {
                    self.trace(|_| format!("FAULT {fault:?}"));
                    self.inflict(fault);
                }
            }
            Event::Heal(heal) => self.heal(heal),
            Event::Inspect => {
                self.inspect();
                self.after(Duration::from_secs(3), Event::Inspect);
            }
        }
    }

    fn host_of(&self, event: &Event) -> Option<(usize, Boot)> {
        match event {
            Event::Wake { host, boot }
            | Event::Exit { host, boot }
            | Event::Announce { host, boot }
            | Event::Elector { host, boot, .. }
            | Event::Pull { host, boot, .. }
            | Event::Pulled { host, boot, .. }
            | Event::Gone { host, boot, .. } => Some((*host, *boot)),
            Event::Answer { conn, .. }
            | Event::Deadline { conn }
            | Event::Chunk { conn, .. }
            | Event::ChunkEnd { conn, .. } => self.network.conns.get(conn).map(|conn| (conn.host, conn.boot)),
            Event::Open { consumer, .. } | Event::Ack { consumer, .. } => {
                let host = self.consumers[*consumer].host;
                self.hosts[host].boot().map(|boot| (host, boot))
            }
            Event::Start { .. }
            | Event::Arrive { .. }
            | Event::Poll { .. }
            | Event::Attach { .. }
            | Event::Frame { .. }
            | Event::StreamEnd { .. }
            | Event::Churn
            | Event::Fault(_)
            | Event::Heal(_)
            | Event::Inspect => None,
        }
    }

    /// Writes something: an object is made, changed, or deleted, and sometimes made again under the same name.
    pub(crate) fn churn(&mut self) {
        let feed = usize::from(self.chance.below(4) == 0);
        let (plural, now, wall) = (FEEDS[feed], Duration::from_nanos(self.now), self.wall_micros());
        let name = format!("{}-{}", ["p", "c"][feed], self.chance.below(NAMES));
        let exists = self.server.state(plural, NAMESPACE, &name).is_some();
        let drawn = self.chance.below(10);
        if !exists {
            let label = ["web", "db"][self.chance.below(2) as usize];
            let object = json!({"metadata": {"name": name, "labels": {"app": label}}, "spec": {}});
            if let Ok(state) = self.server.create(now, wall, plural, NAMESPACE, object) {
                self.truth[feed].wrote(&state.uid, state.revision);
                self.trace(|_| format!("server  + {plural}/{name} {} @{}", state.uid, state.revision));
            }
        } else if drawn < 5 {
            // A patch that changes nothing makes no revision.
            let patch = json!({"metadata": {"annotations": {"n": self.chance.next_u64().to_string()}}});
            if let Ok(state) = self.server.update(now, wall, plural, (NAMESPACE, &name), patch) {
                self.truth[feed].wrote(&state.uid, state.revision);
                self.trace(|_| format!("server  ~ {plural}/{name} {} @{}", state.uid, state.revision));
            }
        } else {
            if let Ok(Deletion::Done(state)) = self.server.delete(now, wall, plural, (NAMESPACE, &name)) {
                let revision = self.server.revision();
                self.truth[feed].deleted(&state.uid, revision);
                self.trace(|_| format!("server  - {plural}/{name} {} @{revision}", state.uid));
            }
            if drawn < 7 {
                let object = json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {}});
                if let Ok(state) = self.server.create(now, wall, plural, NAMESPACE, object) {
                    self.truth[feed].wrote(&state.uid, state.revision);
                    self.trace(|_| format!("server  + {plural}/{name} {} @{}", state.uid, state.revision));
                }
            }
        }
        self.touch(feed);
    }

    fn any_host(&mut self) -> usize {
        self.chance.below(self.hosts.len() as u64) as usize
    }

    fn any_consumer(&mut self) -> usize {
        self.chance.below(self.consumers.len() as u64) as usize
    }

    fn leader_or_any(&mut self) -> usize {
        let leader = (0..self.hosts.len()).find(|host| self.hosts[*host].leads());
        let any = self.any_host();
        leader.unwrap_or(any)
    }

    /// A fault begins.
    fn inflict(&mut self, fault: Fault) {
        let short = self.chance.between(Duration::from_millis(100), Duration::from_secs(8));
        let long = self.chance.between(Duration::from_secs(1), Duration::from_secs(40));
        let any = self.any_host();
        let mostly_leader = if self.happens(600) { self.leader_or_any() } else { any };
        match fault {
            Fault::WatchClosed => {
                self.end_watches(None, |world| if world.happens(700) { End::Eof } else { End::Reset })
            }
            Fault::WatchExpired => self.end_watches_with_error(410),
            Fault::WatchError => {
                let code = [500, 504, 429][self.chance.below(3) as usize];
                self.end_watches_with_error(code);
            }
            Fault::ServerRestart => self.restart_server(),
            Fault::Compaction => {
                let back = self.chance.below(30);
                let revision = self.server.revision().saturating_sub(back);
                self.server.compact(revision);
            }
            Fault::Undecodable => self.network.garble += 1,
            Fault::Storm | Fault::Unauthorized => {
                self.network.storm = Some(if fault == Fault::Storm { [429, 503] } else { [401, 403] });
                self.after(short, Event::Heal(Heal::Storm));
            }
            Fault::Outage => {
                self.network.outage = true;
                self.end_watches(None, |world| if world.happens(700) { End::Reset } else { End::Silent });
                self.after(long, Event::Heal(Heal::Outage));
            }
            Fault::HalfOpen => self.end_watches(Some(any), |_| End::Silent),
            Fault::Rewind => {
                // Versions tell of a restored backup only as long as they are below what was seen. A real one lies
                // thousands of revisions back; here some history is made first, and has time to arrive.
                if self.quiet_until <= self.now {
                    (0..3 * REWIND_REVISIONS_MIN).for_each(|_| self.churn());
                    self.after(Duration::from_secs(4), Event::Heal(Heal::Restore));
                }
            }
            Fault::StaleLists => {
                self.network.staleness = 1 + self.chance.below(12);
                self.after(short, Event::Heal(Heal::StaleLists));
            }
            Fault::ConsumerCrash => {
                let consumer = self.any_consumer();
                let back = self.up_to(Duration::from_secs(3));
                self.crash_consumer(consumer, back);
            }
            Fault::ConsumerAbsent => {
                let consumer = self.any_consumer();
                self.crash_consumer(consumer, long);
            }
            Fault::ConsumerSlow => {
                let consumer = self.any_consumer();
                self.consumers[consumer].slow = true;
                self.after(long, Event::Heal(Heal::ConsumerSlow { consumer }));
            }
            Fault::TwoConsumers => {
                let consumer = self.any_consumer();
                self.replace_consumer(consumer);
            }
            Fault::ContainerKilled => self.kill(mostly_leader, false),
            Fault::PodKilled => self.kill(any, true),
            Fault::LeaderKilled => {
                let host = self.leader_or_any();
                self.kill(host, true);
            }
            Fault::AllKilled => {
                for host in 0..self.hosts.len() {
                    self.kill(host, true);
                }
            }
            Fault::Drained => self.terminate(mostly_leader),
            Fault::RollingUpdate => self.terminate_next(0),
            Fault::StepDown => {
                let host = self.leader_or_any();
                self.step_down(host);
            }
            Fault::Partition => self.cut(mostly_leader, true, true, long),
            Fault::PartitionUp => self.cut(mostly_leader, true, false, long),
            Fault::PartitionDown => self.cut(mostly_leader, false, true, long),
            Fault::Slow => {
                self.network.links[mostly_leader].slow = true;
                self.after(long, Event::Heal(Heal::Slow { host: mostly_leader }));
            }
            Fault::Frozen => {
                if !std::mem::replace(&mut self.hosts[mostly_leader].paused, true) {
                    self.after(long, Event::Heal(Heal::Resume { host: mostly_leader }));
                }
            }
            Fault::MachinePaused => {
                if !self.hosts[mostly_leader].paused {
                    self.hosts[mostly_leader].paused = true;
                    self.hosts[mostly_leader].clock.stop(self.now);
                    self.after(long, Event::Heal(Heal::MachineResume { host: mostly_leader }));
                }
            }
            Fault::WallClockStep => {
                let step = [3_600_000_000, -3_600_000_000, 5_000_000][self.chance.below(3) as usize];
                self.hosts[mostly_leader].clock.wall_offset_micros += step;
            }
            Fault::LeaseDeleted => self.delete_lease(),
            Fault::LeaseEdited => self.edit_lease(),
            Fault::Busy => {
                self.hosts[mostly_leader].busy = true;
                self.after(short, Event::Heal(Heal::Busy { host: mostly_leader }));
            }
            Fault::Burst => {
                for _ in 0..10 + self.chance.below(60) {
                    self.churn();
                }
            }
        }
    }

    /// A fault ends.
    fn heal(&mut self, heal: Heal) {
        self.trace(|_| format!("HEAL  {heal:?}"));
        match heal {
            Heal::Link { host, up, down } => self.mend(host, up, down),
            Heal::Outage => self.network.outage = false,
            Heal::Storm => self.network.storm = None,
            Heal::StaleLists => self.network.staleness = 0,
            Heal::Slow { host } => self.network.links[host].slow = false,
            Heal::Resume { host } => self.resume(host),
            Heal::MachineResume { host } => {
                self.hosts[host].clock.go_on(self.now);
                self.hosts[host].pause_ended = Some(self.now);
                self.resume(host);
            }
            Heal::ConsumerSlow { consumer } => self.consumers[consumer].slow = false,
            Heal::Busy { host } => self.hosts[host].busy = false,
            Heal::Restore => self.restore_backup(),
            Heal::Roll { host } => self.terminate_next(host),
        }
    }

    /// No faults from here on: everything that is down comes back.
    fn end_faults(&mut self) {
        self.trace(|_| "FAULTS END".to_owned());
        self.faulty = false;
        self.network.outage = false;
        self.network.storm = None;
        self.network.staleness = 0;
        self.network.garble = 0;
        for host in 0..self.hosts.len() {
            self.network.links[host].slow = false;
            self.hosts[host].busy = false;
            self.mend(host, true, true);
            while self.network.links[host].is_cut() {
                self.mend(host, true, true);
            }
            if self.hosts[host].paused {
                self.hosts[host].clock.go_on(self.now);
                self.hosts[host].pause_ended = Some(self.now);
                self.resume(host);
            }
        }
        self.consumers.iter_mut().for_each(Consumer::hurry);
    }

    fn restore_backup(&mut self) {
        let newest = self.truth.iter().map(Truth::newest).min().unwrap_or_default();
        let oldest = self.server.compacted().max(self.backup);
        let latest = newest.saturating_sub(REWIND_REVISIONS_MIN);
        if latest < oldest || !self.faulty || self.quiet_until > self.now {
            return;
        }
        let revision = oldest + self.chance.below(latest - oldest + 1);
        self.quiet_until = self.now + nanos(Duration::from_secs(35));
        if self.server.rewind_to(Duration::from_nanos(self.now), revision).is_ok() {
            self.trace(|_| format!("server  rewound to {revision}"));
            self.truth.iter_mut().for_each(|truth| truth.rewind(revision));
            self.rewound();
            // The documented procedure, so that epochs go on rising though nobody remembers them (D.9). Without it they do
            // as long as those who saw the higher ones are there; see `start`.
            let newest = self.checks.newest_epoch();
            let remember = |host: &Host| host.process().is_some_and(|process| process.epoch_seen() >= newest);
            let remembered = self.hosts.iter().all(remember);
            if self.happens(500) || !remembered {
                self.delete_lease();
            } else {
                self.checks.unsettled = true;
            }
            // A server that is stopped for a restore is missed by the shell's pings, if it does not say so itself.
            self.end_watches(None, |_| End::Reset);
        }
    }
}

impl Event {
    /// A number for the hash of the trace.
    fn number(&self) -> u64 {
        match self {
            Self::Wake { host, .. } => *host as u64,
            Self::Start { host } => 100 + *host as u64,
            Self::Exit { host, .. } => 200 + *host as u64,
            Self::Arrive { conn, .. } => 0x300_0000 + conn.0,
            Self::Answer { conn, .. } => 0x400_0000 + conn.0,
            Self::Deadline { conn } => 0x500_0000 + conn.0,
            Self::Poll { conn, .. } => 0x600_0000 + conn.0,
            Self::Chunk { conn, bytes } => 0x700_0000 + conn.0 + bytes.len() as u64,
            Self::ChunkEnd { conn, .. } => 0x800_0000 + conn.0,
            Self::Announce { host, .. } => 300 + *host as u64,
            Self::Elector { host, .. } => 400 + *host as u64,
            Self::Pull { session, .. } => 0x900_0000 + session.0,
            Self::Pulled { session, .. } => 0xa00_0000 + session.0,
            Self::Gone { session, .. } => 0xb00_0000 + session.0,
            Self::Attach { consumer, .. } => 500 + *consumer as u64,
            Self::Open { consumer, .. } => 600 + *consumer as u64,
            Self::Ack { consumer, .. } => 700 + *consumer as u64,
            Self::Frame { consumer, .. } => 800 + *consumer as u64,
            Self::StreamEnd { consumer, .. } => 900 + *consumer as u64,
            Self::Churn => 1000,
            Self::Fault(_) => 1001,
            Self::Heal(_) => 1002,
            Self::Inspect => 1003,
        }
    }
}

/// A duration in nanoseconds.
pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Positions by something, for checks.
pub(crate) type ByFeed<T> = BTreeMap<usize, T>;
