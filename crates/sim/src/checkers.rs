//! One function per promise of docs/protocol.md, D.8, as far as it can be seen from outside: what stores hold, what
//! leaves a sidecar, what is stored in the Lease, compared with what really happened.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use sidewatch_core::codec::checkpoint::Checkpoint;
use sidewatch_core::codec::cursor::Cursor;
use sidewatch_core::codec::lease::LeaseRecord;
use sidewatch_core::elector::Phase;
use sidewatch_core::epoch::Epoch;
use sidewatch_core::feed::{ChangeKind, DeleteReason};
use sidewatch_core::frame::{Event, Gap, GapKind};
use sidewatch_core::object::Uid;
use sidewatch_core::resource_version::ResourceVersion;
use sidewatch_core::session::AckOutcome;

use crate::host::{fingerprints, positions, subscription_name};
use crate::network::LEASES;
use crate::truth::FEEDS;
use crate::world::{ByFeed, LEASE, NAMESPACE, Nanos, World, nanos};

/// How far beyond everything a cursor of the future lies.
pub(crate) const FUTURE: u64 = 1 << 40;
/// Bytes that one journal entry of the objects here is charged with at most.
const ENTRY_BYTES_MAX: usize = 3000;
/// Unacked events of a durable consumer at most.
const UNACKED_EVENTS_MAX: usize = 20;
/// How long after a machine was stopped what it lets out is judged by the store only (I5).
const PAUSE_SHADOW: Duration = Duration::from_secs(60);

/// The promises, in the words of the protocol.
const PROMISES: [(&str, &str); 17] = [
    ("I1", "no missed delete: an object that is dead leaves every store that held it"),
    ("I2", "no silent gap: every revision is delivered, replaced by a coalesced event, or inside an announced gap"),
    ("I3", "no return: nothing at or below the acked position is delivered again"),
    ("I4", "no resurrection: after an acked delete no event of that object"),
    ("I5", "one emitter: epochs do not overlap, and every acquisition raises the epoch"),
    ("I6", "fenced checkpoint: stored positions never decrease within a Lease's life"),
    ("I7", "exact state: at every cursor the store equals the state at that version"),
    ("I8", "old and new: the old state of a modification is the direct predecessor"),
    ("I9", "no invented delete: whatever is reported deleted is dead"),
    ("I10", "no time travel: a snapshot is not older than what was acked or delivered before"),
    ("I11", "bounded memory: journal and queues keep their limits"),
    ("I13", "ack algebra: an ack never passes what was delivered"),
    ("I14", "atomic groups: no cursor points inside a group"),
    ("I15", "convergence: when faults stop, stores equal the API, and a name changes hands by delete, then add"),
    ("I16", "determinism: one seed, one trace"),
    ("I17", "liveness: with the API reachable some replica leads, and lag goes to zero"),
    ("panic", "no machine ever finds its own invariant broken"),
];

/// An object as a store holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Held {
    name: String,
    version: u64,
}

/// What a store holds of one feed.
#[derive(Clone, Default, Debug)]
pub(crate) struct FeedStore {
    held: BTreeMap<Uid, Held>,
    /// The newest version that anything applied here belongs to.
    reached: u64,
    /// Deaths up to here are acked and stored in the Lease.
    buried_through: u64,
    /// etcd went back in time: until everybody has noticed, what is told may be of a time that never was. Only the end
    /// is compared.
    pub(crate) doubt: bool,
}

/// What applications keep, outside of every sidecar.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) epoch: Epoch,
    pub(crate) feeds: [FeedStore; 2],
}

impl Default for Store {
    fn default() -> Self {
        Self { epoch: Epoch::NONE, feeds: Default::default() }
    }
}

impl Store {
    /// An empty store.
    pub(crate) fn new(doubt: bool) -> Self {
        let mut store = Self::default();
        store.feeds.iter_mut().for_each(|feed| feed.doubt = doubt);
        store
    }
}

/// One stream's progress in one feed.
#[derive(Clone, Default, Debug)]
pub(crate) struct Reading {
    /// Objects of the snapshot under way.
    seen: Option<BTreeSet<Uid>>,
    /// Position from which every revision must be seen (I2).
    base: Option<u64>,
    delivered: Vec<u64>,
    /// Revisions that were passed without an event: the next event of their object has to be a coalesced one.
    owed: BTreeMap<Uid, u64>,
    /// Coalesced events since `base`.
    coalesced: BTreeMap<Uid, u64>,
    /// Announced holes `(from, to]` that are not behind us.
    holes: Vec<(u64, u64)>,
    position: Option<u64>,
}

impl Reading {
    /// What follows may begin elsewhere.
    pub(crate) fn interrupted(&mut self) {
        self.base = None;
        self.delivered.clear();
        self.owed.clear();
        self.coalesced.clear();
        self.position = None;
    }

    /// Leadership has ended in the middle of a snapshot: it may never be completed.
    pub(crate) fn abandon_snapshot(&mut self) {
        self.seen = None;
    }
}

/// What has been found, and what is remembered for later comparisons.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    pub(crate) count: u64,
    pub(crate) exact: u64,
    pub(crate) snapshots: u64,
    pub(crate) acquisitions: u64,
    pub(crate) violations: Vec<String>,
    /// etcd went back in time at least once.
    pub(crate) rewound: bool,
    /// etcd went back in time, and no acquisition by one who was there has followed.
    pub(crate) unsettled: bool,
    lease_uid: Option<Uid>,
    holder: String,
    /// Epoch of the newest acquisition.
    acquired: Epoch,
    /// Revision of each acquisition, by its epoch.
    acquired_at: BTreeMap<Epoch, u64>,
    /// Highest epoch of a frame that has left.
    emitted: Epoch,
    /// Positions in the present Lease; highest ever stored in it.
    stored: BTreeMap<(usize, usize), u64>,
    stored_now: BTreeMap<(usize, usize), u64>,
    stored_ever: BTreeMap<(usize, usize), u64>,
}

impl Checks {
    /// The highest epoch that anybody has had.
    pub(crate) fn newest_epoch(&self) -> Epoch {
        self.emitted.max(self.acquired)
    }
}

/// The number of a version.
pub(crate) fn version(version: &ResourceVersion) -> u64 {
    match version {
        ResourceVersion::Ordered(number) => u64::try_from(*number).unwrap_or(u64::MAX),
        ResourceVersion::Opaque(_) => u64::MAX,
    }
}

fn feed_of(name: &str) -> usize {
    FEEDS.iter().position(|feed| *feed == name).unwrap_or_default()
}

impl World {
    /// A promise is broken.
    pub(crate) fn violate(&mut self, invariant: &str, what: String) {
        let promise = PROMISES.iter().find(|(name, _)| *name == invariant).map_or("", |(_, promise)| promise);
        let at = self.now as f64 / 1e9;
        self.trace(|_| format!("VIOLATION {invariant}: {what}"));
        self.checks.violations.push(format!("{invariant} at {at:.6} s: {what}\n  promised: {promise}"));
    }

    /// An event is applied to a store: I4, I8, I9, I15.
    pub(crate) fn apply(&mut self, consumer: usize, event: &Event) {
        self.checks.count += 1;
        let feed = feed_of(&event.feed.name);
        let subject = format!("{} {} {}", event.feed.name, event.key.name, event.id());
        let truth = &self.truth[feed];
        let store_number = self.consumers[consumer].store;
        let reading = &mut self.consumers[consumer].readings[feed];
        let store = &mut self.stores[store_number].feeds[feed];
        let at = event.resource_version.as_ref().map(version);
        let mut broken: Option<(&str, String)> = None;
        if let Some(passed) = reading.owed.remove(&event.uid)
            && !event.coalesced
            && !store.doubt
        {
            broken = Some(("I2", format!("{subject} comes, nothing told of {passed}, and it is not coalesced")));
        }
        match event.kind {
            ChangeKind::Deleted { reason, .. } => {
                let alive = truth.life(&event.uid).is_some_and(|life| life.died.is_none());
                if alive && reason != DeleteReason::Unselected && !store.doubt {
                    broken = Some(("I9", format!("{subject} is alive")));
                }
                store.held.remove(&event.uid);
            }
            ChangeKind::Added | ChangeKind::Modified => {
                let Some(at) = at else {
                    return self.violate("I2", format!("{subject} has no version"));
                };
                let known = truth.life(&event.uid).is_some_and(|life| life.versions.contains(&at));
                let buried = truth.is_dead_at(&event.uid, store.buried_through);
                let old = event.old_resource_version.as_ref().map(version);
                let direct = !event.coalesced && !event.synthesized && !event.in_snapshot;
                let mut others =
                    store.held.iter().filter(|(uid, held)| **uid != event.uid && *held.name == *event.key.name);
                let other = others.next().map(|(uid, _)| uid.clone());
                if store.doubt {
                    // Versions of the time that was taken back mean nothing.
                } else if !known {
                    broken = Some(("I2", format!("{subject} never had version {at}")));
                } else if buried {
                    broken =
                        Some(("I4", format!("{subject} is dead, and that was acked through {}", store.buried_through)));
                } else if old.is_some_and(|old| old >= at)
                    || event.kind == ChangeKind::Modified
                        && direct
                        && old.is_some()
                        && old != truth.predecessor(&event.uid, at)
                {
                    broken = Some(("I8", format!("{subject} names {old:?} as the version before {at}")));
                } else if !event.in_snapshot && at > store.reached && other.is_some() {
                    broken = Some(("I15", format!("{subject} while {other:?} has its name")));
                }
                let name = event.key.name.to_string();
                store.held.insert(event.uid.clone(), Held { name, version: at });
                if let Some(seen) = &mut reading.seen {
                    seen.insert(event.uid.clone());
                }
            }
        }
        if let Some(at) = at {
            store.reached = store.reached.max(at);
            if !event.in_snapshot {
                reading.delivered.push(at);
            }
            if event.coalesced {
                reading.coalesced.insert(event.uid.clone(), at);
            }
        }
        if let Some((invariant, what)) = broken {
            self.violate(invariant, what);
        }
    }

    /// A snapshot begins: I10.
    pub(crate) fn snapshot_begins(&mut self, consumer: usize, epoch: Epoch, feed: &str, at: &ResourceVersion) {
        self.checks.count += 1;
        let (feed, at) = (feed_of(feed), version(at));
        let state = &mut self.consumers[consumer];
        let reading = &mut state.readings[feed];
        *reading = Reading { seen: Some(BTreeSet::new()), ..Reading::default() };
        let durable = state.subscription.is_some();
        let store = &mut self.stores[state.store].feeds[feed];
        let (reached, doubt) = (store.reached, store.doubt);
        let acquired_at = self.checks.acquired_at.get(&epoch).copied().filter(|_| durable).unwrap_or_default();
        store.reached = reached.max(at);
        if !doubt && durable && (at < reached || at < acquired_at) {
            let what =
                format!("snapshot at {at} of {}, but {reached} was reached and {acquired_at} acquired", FEEDS[feed]);
            self.violate("I10", what);
        }
    }

    /// A snapshot is complete: the store is exactly the state at its version (I7, I14).
    pub(crate) fn snapshot_ends(&mut self, consumer: usize, feed: &str, at: &ResourceVersion) {
        self.checks.snapshots += 1;
        let (feed, at) = (feed_of(feed), version(at));
        let state = &mut self.consumers[consumer];
        let store = &mut self.stores[state.store].feeds[feed];
        let reading = &mut state.readings[feed];
        let Some(seen) = reading.seen.take() else {
            return self.violate("I14", format!("a snapshot of {} ends that never began", FEEDS[feed]));
        };
        store.held.retain(|uid, _| seen.contains(uid));
        let held: BTreeMap<_, _> = store.held.iter().map(|(uid, held)| (uid.clone(), held.version)).collect();
        let difference = differences(&held, &self.truth[feed].state_at(at));
        *reading = Reading { base: Some(at), position: None, ..Reading::default() };
        self.checks.count += 1;
        match difference {
            None => store.reached = at,
            Some(_) if store.doubt => {}
            Some(difference) => {
                self.violate("I7", format!("after the snapshot of {} at {at}: {difference}", FEEDS[feed]));
            }
        }
    }

    /// A gap is announced.
    pub(crate) fn gap_announced(&mut self, consumer: usize, gap: &Gap) {
        let feed = feed_of(&gap.feed.name);
        let state = &mut self.consumers[consumer];
        let reading = &mut state.readings[feed];
        match gap.kind {
            GapKind::Coalesced => {
                let bound = |version_of: &Option<ResourceVersion>| version_of.as_ref().map_or(0, version);
                reading.holes.push((bound(&gap.from), bound(&gap.to)));
                let store = &mut self.stores[state.store].feeds[feed];
                store.reached = store.reached.max(gap.to.as_ref().map_or(0, version));
            }
            GapKind::Reset | GapKind::HandledElsewhere | GapKind::LiveStart => reading.interrupted(),
        }
    }

    /// A cursor has been reached: I2, I3, I7, I14.
    pub(crate) fn check_cursor(&mut self, consumer: usize, cursor: &Cursor) {
        let coalesces = self.profile.overflows();
        let (host, number) = (self.consumers[consumer].host, self.consumers[consumer].subscription);
        for (feed, at) in positions(cursor) {
            // A late ack of the stream before this one makes what it covers need no telling.
            let acked = number.and_then(|number| self.hosts[host].process()?.acked(number, feed)).unwrap_or_default();
            let state = &mut self.consumers[consumer];
            let reading = &mut state.readings[feed];
            let store = &mut self.stores[state.store].feeds[feed];
            let before = reading.position.replace(at);
            if before == Some(at) {
                continue;
            }
            self.checks.count += 1;
            let truth = &self.truth[feed];
            let mut broken: Option<(&str, String)> = None;
            if reading.seen.is_some() {
                broken = Some(("I14", format!("a cursor names {at} of {} inside a snapshot", FEEDS[feed])));
            } else if before.is_some_and(|before| at < before) && !store.doubt {
                broken = Some(("I3", format!("cursors of {} go back from {before:?} to {at}", FEEDS[feed])));
            } else if !store.doubt && !coalesces && at >= store.reached {
                self.checks.exact += 1;
                let held: BTreeMap<_, _> = store.held.iter().map(|(uid, held)| (uid.clone(), held.version)).collect();
                if let Some(difference) = differences(&held, &truth.state_at(at)) {
                    broken = Some(("I7", format!("at cursor {at} of {}: {difference}", FEEDS[feed])));
                }
            }
            if let (Some(base), false) = (reading.base, store.doubt) {
                let mut delivered: Vec<_> = reading.delivered.iter().copied().filter(|seen| *seen <= at).collect();
                delivered.sort_unstable();
                delivered.dedup();
                let told = |revision: &u64| {
                    let skipped = reading.holes.iter().any(|(from, to)| from < revision && revision <= to);
                    skipped || *revision <= acked || delivered.binary_search(revision).is_ok()
                };
                let passed = truth.revisions(base, at).filter(|(revision, _)| !told(revision));
                let missing: Vec<_> = passed.map(|(revision, uid)| (uid.clone(), revision)).collect();
                if coalesces {
                    let replaced = |(uid, at): &(Uid, u64)| reading.coalesced.get(uid).is_some_and(|by| by > at);
                    let owed: Vec<_> = missing.into_iter().filter(|passed| !replaced(passed)).collect();
                    reading.owed.extend(owed);
                } else if !missing.is_empty() && broken.is_none() {
                    broken = Some((
                        "I2",
                        format!("between {base} and {at} of {} nothing tells of {missing:?}", FEEDS[feed]),
                    ));
                }
            }
            reading.base = Some(at);
            reading.holes.retain(|(_, to)| *to > at);
            reading.coalesced.clear();
            reading.delivered.retain(|seen| *seen > at);
            store.reached = store.reached.max(at);
            if let Some((invariant, what)) = broken {
                self.violate(invariant, what);
            }
        }
    }

    /// An ack was taken: it may not lie in the future (I13).
    pub(crate) fn check_ack(&mut self, outcome: &AckOutcome) {
        self.checks.count += 1;
        if let Some((feed, at)) = positions(&outcome.acked).find(|(_, at)| *at >= FUTURE) {
            self.violate("I13", format!("an ack of {at} of {} was taken", FEEDS[feed]));
        }
    }

    /// An ack was answered as durable: it is in the Lease, or was (I6).
    pub(crate) fn check_durable(&mut self, number: usize, durable: &Cursor) {
        self.checks.count += 1;
        let doubt = self.stores[number].feeds.iter().any(|feed| feed.doubt);
        let missing = positions(durable)
            .filter(|_| !doubt)
            .find(|(feed, at)| self.checks.stored_ever.get(&(number, *feed)).is_none_or(|stored| stored < at));
        if let Some((feed, at)) = missing {
            self.violate("I6", format!("{at} of {} was called durable and never stored", FEEDS[feed]));
        }
    }

    /// A frame with an epoch leaves a sidecar (I5).
    pub(crate) fn check_emitted(&mut self, host: usize, epoch: Epoch) {
        self.checks.count += 1;
        let newest = self.checks.emitted.max(epoch);
        let older = std::mem::replace(&mut self.checks.emitted, newest) > epoch;
        let shadow = |ended: Nanos| self.now - ended < nanos(PAUSE_SHADOW);
        if older && !self.hosts[host].pause_ended.is_some_and(shadow) {
            self.violate("I5", format!("host {host} lets a frame of {epoch} out after one of {newest}"));
        }
    }

    /// The Lease was written: I1 and I6 for what it stores, I5 for who holds it.
    pub(crate) fn lease_written(&mut self) {
        let Some(state) = self.server.state("leases", NAMESPACE, LEASE) else { return };
        let revision = state.revision;
        let Ok(record) = LeaseRecord::decode(&state.text()) else {
            return self.violate("I6", "the Lease cannot be read".to_owned());
        };
        self.checks.count += 1;
        self.mark(&[record.epoch().as_u64(), revision]);
        if self.checks.lease_uid != record.uid {
            self.checks.lease_uid.clone_from(&record.uid);
            self.checks.stored.clear();
            self.checks.holder.clear();
        }
        if record.holder_identity != self.checks.holder {
            self.checks.holder.clone_from(&record.holder_identity);
            if record.holder_identity.starts_with("app-") {
                self.checks.acquisitions += 1;
                self.checks.unsettled = false;
                let (before, epoch) = (self.checks.acquired, record.epoch());
                self.checks.acquired = epoch;
                self.checks.acquired_at.insert(epoch, revision);
                self.trace(|_| format!("LEASE {} acquires {epoch} @{revision}", record.holder_identity));
                if epoch <= before {
                    self.violate("I5", format!("{} acquired {epoch} after {before}", record.holder_identity));
                }
            }
        }
        let Some(Ok(checkpoint)) = record.checkpoint.as_deref().map(Checkpoint::decode) else {
            self.checks.stored_now.clear();
            return;
        };
        let mut now = ByFeed::new();
        for number in 0..self.subscriptions {
            let Some(stored) = checkpoint.subscriptions.get(&*subscription_name(number)) else { continue };
            for (feed, fingerprint) in fingerprints().iter().enumerate() {
                let Some(at) = stored.positions.get(fingerprint).map(version) else { continue };
                now.insert(number * 2 + feed, at);
                self.check_stored(number, feed, at);
            }
        }
        self.checks.stored_now = now.into_iter().map(|(key, at)| ((key / 2, key % 2), at)).collect();
    }

    /// A position is in the Lease: nothing at or below it may be missing from the store.
    fn check_stored(&mut self, number: usize, feed: usize, at: u64) {
        let before = self.checks.stored.insert((number, feed), at);
        let ever = self.checks.stored_ever.entry((number, feed)).or_default();
        *ever = at.max(*ever);
        let store = &mut self.stores[number].feeds[feed];
        if before == Some(at) || store.doubt {
            return;
        }
        self.checks.count += 1;
        store.buried_through = store.buried_through.max(at);
        let truth = &self.truth[feed];
        let ghost = store.held.keys().find(|uid| truth.is_dead_at(uid, at)).cloned();
        let alive = truth.state_at(at);
        let missing = alive.keys().find(|uid| {
            let dies_later = truth.life(uid).is_some_and(|life| life.died.is_some());
            !store.held.contains_key(*uid) && !dies_later
        });
        let missing = missing.cloned().filter(|_| !self.profile.overflows());
        if before.is_some_and(|before| at < before) {
            self.violate("I6", format!("stored position of {} falls from {before:?} to {at}", FEEDS[feed]));
        } else if let Some(uid) = ghost {
            self.violate("I1", format!("{at} of {} is acked, and the store still holds {uid}", FEEDS[feed]));
        } else if let Some(uid) = missing {
            self.violate("I2", format!("{at} of {} is acked, and the store lacks {uid}", FEEDS[feed]));
        }
    }

    /// Somebody deletes the Lease (E row 29).
    pub(crate) fn delete_lease(&mut self) {
        let (now, wall) = (Duration::from_nanos(self.now), self.wall_micros());
        if self.server.delete(now, wall, "leases", NAMESPACE_AND_LEASE).is_ok() {
            self.trace(|_| "LEASE deleted by hand".to_owned());
            self.checks.lease_uid = None;
            self.checks.stored.clear();
            self.checks.stored_now.clear();
            self.checks.holder.clear();
        }
        self.touch(LEASES);
    }

    /// Somebody edits the Lease (E row 30).
    pub(crate) fn edit_lease(&mut self) {
        let any = self.chance.below(self.hosts.len() as u64);
        let note = |value: Value| json!({"metadata": {"annotations": value}});
        let patch = match self.chance.below(8) {
            0 => note(json!({"note": self.now.to_string()})),
            1 => json!({"spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 5}}),
            2 => note(json!({"sidewatch.dev/checkpoint": "{\"version\":1,"})),
            3 => note(json!({"sidewatch.dev/checkpoint": null})),
            4 => json!({"spec": {"preferredHolder": format!("app-{any}_uid-{any}-0_boot-{}", any + 1)}}),
            5 => note(json!({"sidewatch.dev/epoch": null})),
            6 => json!({"spec": {"holderIdentity": ""}}),
            _ => note(json!({"sidewatch.dev/checkpoint": "{\"version\":99}"})),
        };
        let (now, wall) = (Duration::from_nanos(self.now), self.wall_micros());
        self.trace(|_| format!("LEASE edited by hand: {patch}"));
        if self.server.update(now, wall, "leases", NAMESPACE_AND_LEASE, patch).is_ok() {
            self.lease_written();
        }
        self.touch(LEASES);
    }

    /// etcd went back in time: comparisons begin anew with the next snapshots.
    pub(crate) fn rewound(&mut self) {
        self.checks.rewound = true;
        for feed in self.stores.iter_mut().flat_map(|store| &mut store.feeds) {
            feed.doubt = true;
            feed.buried_through = 0;
        }
        for reading in self.consumers.iter_mut().flat_map(|consumer| &mut consumer.readings) {
            reading.interrupted();
        }
        self.checks.stored.clear();
        self.checks.stored_ever.clear();
        self.checks.stored_now.clear();
        self.checks.acquired_at.clear();
        self.checks.holder.clear();
        self.checks.lease_uid = None;
        // Without a survivor that has seen it, an epoch can repeat (docs/protocol.md, D.9).
        self.checks.acquired = Epoch::NONE;
    }

    /// Bounds of memory (I11).
    pub(crate) fn inspect(&mut self) {
        let more = ENTRY_BYTES_MAX * (1 + UNACKED_EVENTS_MAX * self.subscriptions);
        let limit = self.knobs.journal_bytes_max + more;
        for host in 0..self.hosts.len() {
            let Some(process) = self.hosts[host].process() else { continue };
            let now = sidewatch_core::replica::Now { boot: Default::default(), wall: Default::default() };
            let bytes = process.replica.status(now).journal_bytes;
            self.checks.count += 1;
            self.mark(&[bytes as u64]);
            if bytes > limit {
                self.violate("I11", format!("journals of host {host} hold {bytes} bytes, more than {limit}"));
            }
        }
    }

    /// What is not at rest yet.
    pub(crate) fn open_ends(&self) -> Vec<(&'static str, String)> {
        let mut open = Vec::new();
        let leader = self.hosts.iter().position(|host| host.process().is_some_and(|p| p.phase() == Phase::Leading));
        if leader.is_none() {
            open.push(("I17", "nobody leads".to_owned()));
        }
        for (number, store) in self.stores.iter().enumerate() {
            let durable = number < self.subscriptions;
            let owner = self.consumers.iter().find(|consumer| consumer.store == number);
            let applies = durable
                || owner.is_some_and(|owner| {
                    !owner.stalled
                        && owner.attached.is_some()
                        && (owner.ignore_leadership || leader == Some(owner.host))
                });
            if !applies {
                continue;
            }
            for (feed, plural) in FEEDS.iter().enumerate() {
                let held = store.feeds[feed].held.iter().map(|(uid, held)| (uid.clone(), held.version)).collect();
                if let Some(difference) = differences(&held, &self.truth[feed].state_at(u64::MAX)) {
                    open.push(("I15", format!("{plural} in store {number}: {difference}")));
                }
                let stored = self.checks.stored_now.get(&(number, feed)).copied();
                let newest = self.truth[feed].newest();
                if durable && stored.is_none_or(|stored| stored < newest) {
                    open.push((
                        "I17",
                        format!("{plural} of subscription {number} is acked at {stored:?}, not at {newest}"),
                    ));
                }
            }
        }
        open
    }

    /// The world did not come to rest.
    pub(crate) fn not_at_rest(&mut self, open: &[(&'static str, String)]) {
        for host in 0..self.hosts.len() {
            let Some(process) = self.hosts[host].process() else { continue };
            let now = sidewatch_core::replica::Now { boot: Default::default(), wall: Default::default() };
            let status = process.replica.status(now);
            self.trace(|_| format!("host {host} at the end: {:?} {status:#?}", process.phase()));
        }
        let all: Vec<_> = open.iter().map(|(_, what)| what.as_str()).collect();
        let invariant = open.first().map_or("I17", |(invariant, _)| invariant);
        self.violate(invariant, all.join("; "));
    }

    /// Everything is at rest: the stores are what the API is (I1, I15), by the server's own account.
    pub(crate) fn check_end(&mut self) {
        for (feed, plural) in FEEDS.iter().enumerate() {
            let server: BTreeMap<_, _> = self
                .server
                .states(plural)
                .iter()
                .map(|state| (Uid::from(state.uid.as_str()), state.revision))
                .collect();
            self.checks.count += 1;
            if let Some(difference) = differences(&server, &self.truth[feed].state_at(u64::MAX)) {
                self.violate("I15", format!("the simulation's own account of {plural} is wrong: {difference}"));
            }
        }
    }
}

const NAMESPACE_AND_LEASE: (&str, &str) = (NAMESPACE, LEASE);

fn differences(held: &BTreeMap<Uid, u64>, truth: &BTreeMap<Uid, u64>) -> Option<String> {
    if held == truth {
        return None;
    }
    let dead: Vec<_> = held.keys().filter(|uid| !truth.contains_key(*uid)).map(ToString::to_string).collect();
    let lacking: Vec<_> = truth.keys().filter(|uid| !held.contains_key(*uid)).map(ToString::to_string).collect();
    let other = held.iter().filter_map(|(uid, at)| Some((uid, at, truth.get(uid)?)));
    let other: Vec<_> =
        other.filter(|(_, at, real)| at != real).map(|(uid, at, real)| format!("{uid} {at}≠{real}")).collect();
    Some(format!("dead {dead:?}, lacking {lacking:?}, other versions {other:?}"))
}
