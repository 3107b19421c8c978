//! Random schedules: electors with clocks of different speed against one store, with slow, lost and late messages,
//! partitions, freezes, crashes, edits and deletions. Gates never overlap, epochs grow, stored checkpoints never go
//! back, and somebody leads when the faults stop.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::store::Store;
use crate::codec::lease::LeaseRecord;
use crate::codec::status::{Failure, FailureKind};
use crate::elector::{Effect, Elector, Identity, Input, Parameters, RequestId};
use crate::epoch::Epoch;
use crate::gate::Gate;
use crate::leadership::{Announcement, PendingCheckpoint, Role};
use crate::prng::Prng;
use crate::time::{BootInstant, WallTime};

/// Nanoseconds of true time.
type Nanos = u64;
const SECOND: Nanos = 1_000_000_000;
const FAULTS_END: Nanos = 240 * SECOND;
const END: Nanos = 300 * SECOND;

#[derive(Clone, Debug)]
enum Request {
    Get,
    Put(LeaseRecord),
    Create(LeaseRecord),
}

#[derive(Debug)]
enum Event {
    /// A request reaches the store.
    Arrive { request: RequestId, what: Request },
    /// Something reaches a node.
    Deliver(Input),
    /// The request's own deadline.
    Expire(RequestId),
    /// The deadline, unless a later step has set another.
    Wake(u64),
    /// A fault, or a command, or nothing.
    Chance,
}

struct Node {
    elector: Elector,
    gate: Gate,
    boots: u32,
    /// Of the boot clock, in thousandths.
    speed_permille: u64,
    wall_offset_micros: i64,
    frozen_until: Nanos,
    cut_off_until: Nanos,
    watch: Option<RequestId>,
    watch_delivered_at: Nanos,
    wakes: u64,
    epoch: Epoch,
    generation: u64,
}

impl Node {
    fn boot(&self, at: Nanos) -> BootInstant {
        BootInstant::from_nanos(at * self.speed_permille / 1000 + SECOND)
    }

    fn is_open(&self, at: Nanos) -> bool {
        self.gate.check(self.epoch, self.boot(at))
    }
}

struct World {
    seed: u64,
    prng: Prng,
    now: Nanos,
    nodes: Vec<Node>,
    store: Store,
    /// By time and order of planning; the node, its boot, and what happens.
    queue: BTreeMap<(Nanos, u64), (usize, u32, Event)>,
    planned: u64,
    opened: Vec<Epoch>,
    stored: (Epoch, u64),
    deleted_at: Nanos,

    takeovers: usize,
}

fn elector(node: usize, boot: u32, seed: u64) -> Elector {
    let identity = Identity::new(&format!("pod-{node}"), &format!("uid-{node}"), &format!("boot-{boot}"));
    Elector::new(Parameters::default(), identity, "shop", "orders", seed ^ (node as u64) << 8 ^ u64::from(boot))
}

impl World {
    fn new(seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let count = 2 + usize::try_from(prng.below(2)).unwrap();
        let nodes = (0..count)
            .map(|node| Node {
                elector: elector(node, 0, seed),
                gate: Gate::new(),
                boots: 0,
                speed_permille: 900 + prng.below(400),
                wall_offset_micros: i64::try_from(prng.below(7_200_000_000)).unwrap() - 3_600_000_000,
                frozen_until: 0,
                cut_off_until: 0,
                watch: None,
                watch_delivered_at: 0,
                wakes: 0,
                epoch: Epoch::NONE,
                generation: 0,
            })
            .collect();
        let mut world = Self {
            seed,
            prng,
            now: 0,
            nodes,
            store: Store::default(),
            queue: BTreeMap::new(),
            planned: 0,
            opened: Vec::new(),
            stored: (Epoch::NONE, 0),
            deleted_at: 0,

            takeovers: 0,
        };
        for node in 0..count {
            world.step(node, Input::Start);
        }
        world.plan(0, 0, Event::Chance);
        world
    }

    fn run(mut self) -> usize {
        while let Some(((at, _), (node, boot, event))) = self.queue.pop_first() {
            if at > END {
                break;
            }
            self.now = at;
            assert!(self.planned < 100_000, "seed {}: something goes round in circles", self.seed);
            if let Event::Chance = event {
                if at < FAULTS_END {
                    self.chance();
                    let next = at + self.prng.below(2 * SECOND);
                    self.plan(next, 0, Event::Chance);
                }
            } else if let Event::Arrive { request, what } = event {
                self.arrive(node, boot, request, &what);
            } else if self.nodes[node].boots == boot {
                let thaw = self.nodes[node].frozen_until;
                if at < thaw {
                    self.plan(thaw, node, event);
                } else {
                    self.happen(node, event);
                }
            }
            self.check();
        }
        let leaders = self.nodes.iter().filter(|node| node.is_open(self.now)).count();
        assert_eq!(leaders, 1, "seed {}: nobody leads although the faults have stopped", self.seed);
        self.takeovers
    }

    fn check(&self) {
        let open: Vec<usize> = (0..self.nodes.len()).filter(|node| self.nodes[*node].is_open(self.now)).collect();
        assert!(open.len() <= 1, "seed {}, {} ns: gates of {open:?} are open (I5)", self.seed, self.now);
    }

    fn plan(&mut self, at: Nanos, node: usize, event: Event) {
        self.planned += 1;
        self.queue.insert((at, self.planned), (node, self.nodes[node].boots, event));
    }

    /// Mostly milliseconds, sometimes seconds.
    fn delay(&mut self) -> Nanos {
        match self.prng.below(20) {
            0 if self.now < FAULTS_END => self.prng.below(12 * SECOND),
            _ => self.prng.below(SECOND / 50),
        }
    }

    fn is_lost(&mut self, node: usize) -> bool {
        self.now < self.nodes[node].cut_off_until || (self.now < FAULTS_END && self.prng.below(30) == 0)
    }

    fn happen(&mut self, node: usize, event: Event) {
        match event {
            Event::Deliver(input) => {
                if let Input::LeaseObserved { request, .. } | Input::LeaseDeleted { request, .. } = input
                    && Some(request) == self.nodes[node].watch
                    && self.prng.below(50) == 0
                {
                    self.nodes[node].watch = None;
                    return self.step(node, Input::WatchClosed { request });
                }
                self.step(node, input);
            }
            Event::Expire(request) => {
                let failure = Failure::new(FailureKind::Timeout, "no answer");
                self.step(node, Input::RequestFailed { request, failure });
            }
            Event::Wake(wakes) if wakes == self.nodes[node].wakes => self.step(node, Input::Tick),
            Event::Wake(_) => {}
            Event::Arrive { .. } | Event::Chance => unreachable!("handled by run"),
        }
    }

    fn arrive(&mut self, node: usize, boot: u32, request: RequestId, what: &Request) {
        let version = self.store.version;
        let seconds = 1_000_000 + i64::try_from(self.now / SECOND).unwrap();
        let answer = match what {
            Request::Get => self.store.get(request),
            Request::Put(record) => self.store.put(request, record),
            Request::Create(record) => self.store.create(request, record, seconds),
        };
        if self.store.version != version {
            self.changed();
        }
        if self.nodes[node].boots == boot && !self.is_lost(node) {
            let at = self.now + self.delay();
            self.plan(at, node, Event::Deliver(answer));
        }
    }

    /// A change of the Lease goes to all watches, in order, with delays; and what is stored is checked.
    fn changed(&mut self) {
        let Some(record) = self.store.record() else { return };
        if let Some((epoch, generation)) = record.checkpoint.as_deref().and_then(|text| text.split_once('/')) {
            let stored = (Epoch::from_u64(epoch.parse().unwrap()), generation.parse().unwrap());
            assert!(stored >= self.stored, "seed {}: checkpoint {stored:?} after {:?} (I6)", self.seed, self.stored);
            self.stored = stored;
        }
        self.publish(|request| Input::LeaseObserved { request, record: record.clone() });
    }

    fn publish(&mut self, input: impl Fn(RequestId) -> Input) {
        for node in 0..self.nodes.len() {
            if let Some(request) = self.nodes[node].watch {
                let at = (self.now + self.delay()).max(self.nodes[node].watch_delivered_at);
                self.nodes[node].watch_delivered_at = at;
                if at >= self.nodes[node].cut_off_until {
                    self.plan(at, node, Event::Deliver(input(request)));
                }
            }
        }
    }

    fn step(&mut self, node: usize, input: Input) {
        let mut effects = Vec::new();
        let state = &mut self.nodes[node];
        let boot = state.boot(self.now);
        let wall = i64::try_from(self.now / 1000).unwrap() + state.wall_offset_micros;
        state.elector.step(boot, WallTime::from_micros(wall), input, &mut effects);
        for effect in effects {
            self.perform(node, effect);
        }
        if let Some(deadline) = self.nodes[node].elector.deadline() {
            let state = &mut self.nodes[node];
            state.wakes += 1;
            let wake = Event::Wake(state.wakes);
            let at = deadline.as_nanos().saturating_sub(SECOND) * 1000 / state.speed_permille + 1;
            self.plan(at.max(self.now + 1), node, wake);
        }
    }

    fn perform(&mut self, node: usize, effect: Effect) {
        let (request, what, timeout) = match effect {
            Effect::GetLease { request, timeout } => (request, Request::Get, timeout),
            Effect::PutLease { request, record, timeout } => (request, Request::Put(record), timeout),
            Effect::CreateLease { request, record, timeout } => (request, Request::Create(record), timeout),
            Effect::WatchLease { request, after } => {
                self.nodes[node].watch = Some(request);
                if let Some(record) = self.store.record().filter(|record| record.resource_version != after) {
                    let at = self.now + self.delay();
                    self.plan(at, node, Event::Deliver(Input::LeaseObserved { request, record }));
                }
                return;
            }
            Effect::Cancel { .. } | Effect::Moved { .. } | Effect::Released { .. } | Effect::Ended => return,
            Effect::OpenGate { epoch, until } => {
                if !self.opened.contains(&epoch) {
                    let highest = self.opened.iter().max().copied().unwrap_or_default();
                    assert!(epoch > highest, "seed {}: epoch {epoch} opens after {highest} (I5)", self.seed);
                    self.opened.push(epoch);
                    self.takeovers += 1;
                }
                self.nodes[node].epoch = epoch;
                return self.nodes[node].gate.open(epoch, until);
            }
            Effect::CloseGate => return self.nodes[node].gate.close(),
            Effect::Announce(Announcement::Role { role: Role::Releasing { .. }, .. }) => {
                let at = self.now + self.delay();
                return self.plan(at, node, Event::Deliver(Input::Drained));
            }
            Effect::Announce(_) => return,
        };
        let deadline = u64::try_from(timeout.as_nanos()).unwrap() * 1000 / self.nodes[node].speed_permille;
        self.plan(self.now + deadline, node, Event::Expire(request));
        if !self.is_lost(node) {
            let at = self.now + self.delay();
            self.plan(at, node, Event::Arrive { request, what });
        }
    }

    fn chance(&mut self) {
        let node = usize::try_from(self.prng.below(self.nodes.len() as u64)).unwrap();
        let until = self.now + self.prng.below(30 * SECOND);
        match self.prng.below(40) {
            0 => self.nodes[node].frozen_until = until,
            1 | 2 => self.nodes[node].cut_off_until = until,
            3 => {
                let step = i64::try_from(self.prng.below(7_200_000_000)).unwrap() - 3_600_000_000;
                self.nodes[node].wall_offset_micros += step;
            }
            4 => self.restart(node),
            5 if self.store.record().is_some() => {
                self.store.edit(|object| object["metadata"]["labels"]["note"] = json!("by hand"));
                self.changed();
            }
            6 if self.store.record().is_some() => {
                let preferred = format!("pod-{node}_uid-{node}_boot-{}", self.nodes[node].boots);
                self.store.edit(|object| object["spec"]["preferredHolder"] = json!(preferred));
                self.changed();
            }
            7 if self.store.record().is_some() => {
                self.store.edit(|object| object["spec"]["holderIdentity"] = json!("somebody"));
                self.changed();
            }
            8 => self.delete(),
            9 => {
                let cooldown = Duration::from_secs(self.prng.below(8));
                self.when_awake(node, Input::StepDown { cooldown, drain: Duration::from_secs(2) });
            }
            10..20 => {
                let state = &mut self.nodes[node];
                state.generation += 1;
                let (epoch, generation) = (state.epoch, state.generation);
                let text = format!("{epoch}/{generation}");
                self.when_awake(node, Input::Checkpoint(PendingCheckpoint { epoch, generation, text }));
            }
            _ => {}
        }
    }

    fn when_awake(&mut self, node: usize, input: Input) {
        let at = self.now.max(self.nodes[node].frozen_until);
        self.plan(at, node, Event::Deliver(input));
    }

    /// The process dies, its gate with it, and starts again in the same pod.
    fn restart(&mut self, node: usize) {
        if self.now < self.deleted_at + 30 * SECOND {
            return;
        }
        let state = &mut self.nodes[node];
        state.boots += 1;
        state.elector = elector(node, state.boots, self.seed);
        state.gate = Gate::new();
        (state.watch, state.frozen_until) = (None, 0);
        self.step(node, Input::LocalLockHeld);
        self.step(node, Input::Start);
    }

    /// Who has never seen the Lease creates it after two seconds (Rule D.1), which is safe only if nobody leads: the
    /// schedule deletes only a Lease that all have seen. Nor can a creation tell that the Lease came and went while its
    /// author was cut off: one deletion within two lease durations.
    fn delete(&mut self) {
        let spaced = self.deleted_at == 0 || self.now > self.deleted_at + 60 * SECOND;
        let all_saw_it = self.nodes.iter().all(|node| node.elector.lease_seen.is_some());
        let Some(record) = (spaced && all_saw_it).then(|| self.store.delete()).flatten() else { return };
        self.deleted_at = self.now;
        // The checkpoint is gone with it; its successor starts with a reset.
        self.stored.1 = 0;
        self.publish(|request| Input::LeaseDeleted { request, record: record.clone() });
    }
}

#[test]
fn gates_never_overlap_and_epochs_grow() {
    let takeovers: usize = (0..150).map(|seed| World::new(seed).run()).sum();
    assert!(takeovers > 500, "the schedules are too tame: {takeovers} takeovers");
}
