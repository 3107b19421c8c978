//! Golden scripts of the replica: a small server answers its feeds at once, consumers are played by the script.
//!
//! A script in `testdata/replica` has commands at the left margin and what happened below them, indented.
//! `UPDATE_EXPECT=1` rewrites what is below; commit a rewrite only if every line can be explained. Commands:
//!
//! ```text
//! replica [journal=BYTES] [feeds=a,b]     a new process on the same cluster; first line of every script
//! seen | seen none                        the Lease was read as a standby: the stored checkpoint, or none
//! acquire EPOCH | renew | suspend | resume | lose | standby | disabled | releasing
//! add NAME… | mod NAME… | del NAME…       the cluster changes; name.feed for another feed than the first
//! hold | release                          watches are silent and the horizon unanswered; all arrives
//! expire                                  watches end and their history is gone: 410 at every older version
//! compact                                 exact lists of older versions are gone too
//! bookmark                                every watch says how far it is
//! open ID [subscription] [KEY=VALUE…]     start=snapshot|live|stored|CURSOR_OF_ID max= batch= bytes= fail end ignore
//! stall ID | pull ID                      the stream takes nothing; takes all that is there
//! withdraw ID                             the gate closed before the stream took what is queued
//! ack ID [BACK] [durable] [session=ID]    the cursor of its newest frame, or of one BACK frames before
//! close ID | drain SECONDS | shutdown
//! stored                                  the elector wrote the newest checkpoint
//! tick SECONDS
//! show
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use expect_test::expect_file;

use super::*;
use crate::codec::list_page::ListPage;
use crate::codec::status::{Failure, FailureKind};
use crate::codec::watch_event::{ManagedFields, WatchEvent};
use crate::feed::{ListMode, ListRequest, RequestId, WatchRequest, WatchStart};
use crate::filter::Filter;
use crate::frame::{Encoding, Event, GapKind};
use crate::limits;
use crate::object::{ObjectKey, ObjectState, Uid};
use crate::session::UpdateDetail;

/// One feed's resource type in the cluster: its history since the beginning.
#[derive(Default)]
struct Type {
    history: Vec<WatchEvent>,
    versions: Vec<u64>,
    watch_from: u64,
    exact_from: u64,
    watch: Option<(RequestId, u64)>,
    horizon: Option<RequestId>,
}

#[derive(Default)]
struct Cluster {
    version: u64,
    types: Vec<Type>,
    alive: BTreeMap<(usize, String), Uid>,
    checkpoint: Option<String>,
}

struct Script {
    cluster: Cluster,
    replica: Replica,
    now: Now,
    held: bool,
    inputs: VecDeque<Input>,
    queued: BTreeMap<SessionId, Vec<Frame>>,
    stalled: Vec<SessionId>,
    cursors: BTreeMap<SessionId, Vec<Cursor>>,
    texts: BTreeMap<SessionId, String>,
    pending: Option<PendingCheckpoint>,
    acks: u64,
    out: String,
}

fn state(name: &str, uid: &Uid, version: u64) -> ObjectState {
    ObjectState {
        key: ObjectKey::new("n", name),
        uid: uid.clone(),
        resource_version: version.into(),
        body: Bytes::from(format!(r#"{{"metadata":{{"name":"{name}"}},"pad":"{}"}}"#, "x".repeat(200))),
    }
}

impl Cluster {
    fn change(&mut self, what: &str, target: &str) {
        let (name, feed) = target.split_once('.').unwrap_or((target, "a"));
        let feed = usize::from(feed.as_bytes()[0] - b'a');
        self.version += 1;
        let key = (feed, name.to_owned());
        let uid = match what {
            "add" => Uid::from(&*format!("{name}{}", self.version)),
            _ => self.alive.get(&key).expect("the object exists").clone(),
        };
        let state = state(name, &uid, self.version);
        let event = match what {
            "add" => WatchEvent::Added(state),
            "mod" => WatchEvent::Modified(state),
            _ => WatchEvent::Deleted(state),
        };
        if what == "del" {
            self.alive.remove(&key)
        } else {
            self.alive.insert(key, uid)
        };
        self.types[feed].history.push(event);
        self.types[feed].versions.push(self.version);
    }

    fn page(&self, feed: usize, at: u64) -> ListPage {
        let mut objects = BTreeMap::new();
        for (event, version) in self.types[feed].history.iter().zip(&self.types[feed].versions) {
            if *version <= at {
                match event {
                    WatchEvent::Added(state) | WatchEvent::Modified(state) => {
                        objects.insert(state.key.clone(), state.clone());
                    }
                    WatchEvent::Deleted(state) => drop(objects.remove(&state.key)),
                    WatchEvent::Bookmark { .. } | WatchEvent::Error(_) => {}
                }
            }
        }
        ListPage { resource_version: at.into(), continue_token: None, objects: objects.into_values().collect() }
    }
}

fn number(version: &ResourceVersion) -> u64 {
    version.to_string().parse().expect("a number")
}

impl Script {
    fn play(text: &str) -> String {
        let mut script = Self {
            cluster: Cluster { version: 10, ..Cluster::default() },
            replica: replica(0, usize::MAX, 1),
            now: Now { boot: BootInstant::from_nanos(1_000_000_000), wall: WallTime::default() },
            held: false,
            inputs: VecDeque::new(),
            queued: BTreeMap::new(),
            stalled: Vec::new(),
            cursors: BTreeMap::new(),
            texts: BTreeMap::new(),
            pending: None,
            acks: 0,
            out: String::new(),
        };
        for line in text.lines().filter(|line| !line.starts_with("    ")) {
            script.say(line);
            if !line.is_empty() && !line.starts_with('#') {
                let words: Vec<&str> = line.split(' ').collect();
                script.command(words[0], &words[1..]);
                script.run();
            }
        }
        script.out
    }

    fn say(&mut self, line: impl AsRef<str>) {
        writeln!(self.out, "{}", line.as_ref()).expect("a string takes it");
    }

    fn tell(&mut self, line: impl std::fmt::Display) {
        writeln!(self.out, "    {line}").expect("a string takes it");
    }

    fn command(&mut self, command: &str, words: &[&str]) {
        let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(&format!("{key}=")[..]));
        let id = || SessionId(words[0].parse().expect("a session's number"));
        match command {
            "replica" => {
                let feeds = value("feeds").map_or(1, |feeds| feeds.split(',').count());
                let journal = value("journal").map_or(1 << 20, |bytes| bytes.parse().expect("bytes"));
                self.cluster.types.resize_with(feeds, Type::default);
                self.cluster.types.iter_mut().for_each(|feed| (feed.watch, feed.horizon) = (None, None));
                self.replica = replica(feeds, journal, self.replica.options.incarnation + 1);
                self.queued.clear();
                self.pending = None;
            }
            "seen" => {
                let checkpoint = self.cluster.checkpoint.clone().filter(|_| words.is_empty());
                self.announce(Announcement::CheckpointSeen { checkpoint });
            }
            "acquire" => {
                let checkpoint = self.cluster.checkpoint.clone();
                self.announce(Announcement::Acquired { checkpoint });
                self.lead(words[0].parse().expect("an epoch"));
            }
            "renew" | "resume" => self.lead(self.replica.epoch().as_u64()),
            "suspend" => self.role(Role::Suspended { epoch: self.replica.epoch() }),
            "releasing" => self.role(Role::Releasing { epoch: self.replica.epoch() }),
            "lose" => self.role(Role::Lost { epoch: self.replica.epoch() }),
            "standby" => self.role(Role::Standby),
            "disabled" => self.role(Role::Disabled),
            "add" | "mod" | "del" => words.iter().for_each(|target| self.cluster.change(command, target)),
            "hold" => self.held = true,
            "release" => self.held = false,
            "expire" => {
                let version = self.cluster.version;
                for index in 0..self.cluster.types.len() {
                    let of_type = &mut self.cluster.types[index];
                    of_type.watch_from = version;
                    if let Some((request, _)) = of_type.watch.take() {
                        let input = feed::Input::WatchClosed { request };
                        self.inputs.push_back(Input::Feed { feed: FeedIndex(index), input });
                    }
                }
            }
            "compact" => {
                let version = self.cluster.version;
                self.cluster.types.iter_mut().for_each(|of_type| of_type.exact_from = version);
            }
            "bookmark" => {
                self.cluster.version += 1;
                for index in 0..self.cluster.types.len() {
                    let Some((request, _)) = self.cluster.types[index].watch else { continue };
                    let resource_version = self.cluster.version.into();
                    let events = vec![WatchEvent::Bookmark { resource_version, initial_events_end: false }];
                    let input = feed::Input::WatchEvents { request, events };
                    self.inputs.push_back(Input::Feed { feed: FeedIndex(index), input });
                }
            }
            "open" => {
                let open = self.open(words);
                self.inputs.push_back(Input::Open { session: id(), open: Box::new(open) });
            }
            "stall" => self.stalled.push(id()),
            "pull" => self.stalled.retain(|stalled| *stalled != id()),
            "withdraw" => {
                let queued = self.queued.remove(&id()).unwrap_or_default();
                let (frames, free) = queued.into_iter().partition(|frame| frame.epoch != Epoch::NONE);
                self.queued.insert(id(), free);
                self.inputs.push_back(Input::Withdrawn { session: id(), frames });
            }
            "ack" => {
                let back: usize = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(0);
                let cursors = self.cursors.get(&id()).expect("it has sent a cursor");
                let ack = AckRequest {
                    subscription: Some("app".into()).filter(|_| !words.contains(&"ephemeral")),
                    session: value("session").map(|id| self.texts[&SessionId(id.parse().expect("a number"))].clone()),
                    cursor: cursors[cursors.len() - 1 - back].encode(),
                    wait_durable: words.contains(&"durable"),
                };
                self.acks += 1;
                self.inputs.push_back(Input::Ack { id: AckId(self.acks), ack });
            }
            "close" => self.inputs.push_back(Input::Closed { session: id() }),
            "drain" => {
                let until = self.now.boot + Duration::from_secs(words[0].parse().expect("seconds"));
                self.inputs.push_back(Input::Drain { until });
            }
            "shutdown" => self.inputs.push_back(Input::Shutdown),
            "stored" => {
                if let Some(PendingCheckpoint { generation, text, .. }) = self.pending.clone() {
                    self.cluster.checkpoint = Some(text);
                    self.announce(Announcement::CheckpointStored { generation });
                }
            }
            "tick" => {
                let until = self.now.boot + Duration::from_secs(words[0].parse().expect("seconds"));
                while let Some(next) = self.replica.deadline().filter(|next| *next <= until) {
                    self.now.boot = next.max(self.now.boot);
                    self.inputs.push_back(Input::Tick);
                    self.run();
                }
                self.now.boot = until;
            }
            "show" => self.show(),
            unknown => panic!("no such command: {unknown}"),
        }
    }

    fn announce(&mut self, announcement: Announcement) {
        self.inputs.push_back(Input::Announced(announcement));
    }

    fn role(&mut self, role: Role) {
        let lease = LeaseView { holder_identity: "me".to_owned(), ..LeaseView::default() };
        self.announce(Announcement::Role { role, lease });
    }

    fn lead(&mut self, epoch: u64) {
        let until = self.now.boot + Duration::from_secs(10);
        self.role(Role::Leading { epoch: Epoch::from_u64(epoch), until });
    }

    fn open(&self, words: &[&str]) -> Open {
        let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(&format!("{key}=")[..]));
        let start = match value("start") {
            None => Start::Unspecified,
            Some("snapshot") => Start::Snapshot,
            Some("live") => Start::Live,
            Some("stored") => Start::Stored,
            Some(of) => {
                Start::Cursor(self.cursors[&SessionId(of.parse().expect("a number"))].last().expect("one").clone())
            }
        };
        Open {
            subscription: words.contains(&"app").then(|| "app".into()),
            feeds: value("feeds").map(|feeds| feeds.split(',').map(Into::into).collect()).unwrap_or_default(),
            start,
            filter: Filter::default(),
            encoding: Encoding::Json,
            update_detail: UpdateDetail::NewAndOld,
            fields: None,
            unacked_events_max: value("max").map(|max| max.parse().expect("a number")),
            frame_bytes_max: value("bytes").map_or(limits::FRAME_BYTES_MAX, |max| max.parse().expect("bytes")),
            batch_events_max: value("batch").map_or(limits::BATCH_EVENTS_MAX, |max| max.parse().expect("a number")),
            batch_delay_max: Duration::ZERO,
            heartbeat_interval: limits::HEARTBEAT_INTERVAL_DEFAULT,
            gap_policy: if words.contains(&"fail") { GapPolicy::Fail } else { GapPolicy::Continue },
            end_after_snapshot: words.contains(&"end"),
            ignore_leadership: words.contains(&"ignore"),
        }
    }

    /// Until nothing happens any more.
    fn run(&mut self) {
        loop {
            while let Some(input) = self.inputs.pop_front() {
                let mut effects = Vec::new();
                self.replica.step(self.now, input, &mut effects);
                effects.into_iter().for_each(|effect| self.perform(effect));
            }
            if !self.held {
                self.deliver_watches();
            }
            for (session, frames) in std::mem::take(&mut self.queued) {
                if self.stalled.contains(&session) {
                    self.queued.insert(session, frames);
                    continue;
                }
                self.inputs.push_back(Input::Pulled { session, frames: frames.len() });
                for frame in frames {
                    self.tell_frame(session, &frame);
                }
            }
            if self.inputs.is_empty() {
                return;
            }
        }
    }

    fn deliver_watches(&mut self) {
        for index in 0..self.cluster.types.len() {
            let version = self.cluster.version;
            let of_type = &mut self.cluster.types[index];
            if let Some((request, from)) = &mut of_type.watch {
                let news = of_type.history.iter().zip(&of_type.versions).filter(|(_, version)| **version > *from);
                let events: Vec<_> = news.map(|(event, _)| event.clone()).collect();
                let last = of_type.versions.last().copied().unwrap_or(0);
                if !events.is_empty() {
                    *from = last;
                    let input = feed::Input::WatchEvents { request: *request, events };
                    self.inputs.push_back(Input::Feed { feed: FeedIndex(index), input });
                }
            }
            if let Some(request) = of_type.horizon.take() {
                let page = ListPage { resource_version: version.into(), continue_token: None, objects: Vec::new() };
                let input = feed::Input::ListPage { request, page };
                self.inputs.push_back(Input::Feed { feed: FeedIndex(index), input });
            }
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Feed { feed, effect } => self.perform_feed(feed, effect),
            Effect::Send { session, frame } => self.queued.entry(session).or_default().push(*frame),
            Effect::End { session, error } => {
                // What is queued leaves before the end.
                for frame in self.queued.remove(&session).unwrap_or_default() {
                    self.tell_frame(session, &frame);
                }
                self.tell(format_args!(
                    "{} ends: {}",
                    session.0,
                    error.map_or("ok".to_owned(), |error| error.to_string())
                ));
            }
            Effect::Acked { id, result } => match result {
                Ok(outcome) => self.tell(format_args!(
                    "ack {}: acked {} durable {}",
                    id.0,
                    at(&outcome.acked),
                    at(&outcome.durable)
                )),
                Err(error) => self.tell(format_args!("ack {}: {error}", id.0)),
            },
            Effect::Checkpoint(pending) => {
                let text = pending.text.split_once("\"clean\"").expect("a checkpoint").1;
                self.tell(format_args!("checkpoint {} clean{text}", pending.generation));
                self.pending = Some(pending);
            }
            Effect::Drained => self.tell("drained"),
            Effect::Noted(Note::Coalesced { entries, .. }) => self.tell(format_args!("merged {entries}")),
            Effect::Noted(Note::CheckpointUnreadable { why } | Note::CheckpointUnwritable { why }) => self.tell(why),
            Effect::Noted(_) => {}
        }
    }

    fn perform_feed(&mut self, feed: FeedIndex, effect: feed::Effect) {
        let input = match effect {
            feed::Effect::Resolve { request } => Some(feed::Input::Resolved { request, info: info(feed.0) }),
            feed::Effect::List { request, list } => self.list(feed.0, request, &list),
            feed::Effect::Watch { request, watch } => self.watch(feed.0, request, &watch),
            feed::Effect::Cancel { request } => {
                let of_type = &mut self.cluster.types[feed.0];
                of_type.watch = of_type.watch.filter(|(watch, _)| *watch != request);
                None
            }
            _ => None,
        };
        self.inputs.extend(input.map(|input| Input::Feed { feed, input }));
    }

    fn list(&mut self, feed: usize, request: RequestId, list: &ListRequest) -> Option<feed::Input> {
        if list.metadata_only {
            self.cluster.types[feed].horizon = Some(request);
            return None;
        }
        let at = match &list.mode {
            ListMode::Exact(version) if number(version) < self.cluster.types[feed].exact_from => {
                let failure = Failure::new(FailureKind::Expired, "compacted");
                return Some(feed::Input::Failed { request, failure });
            }
            ListMode::Exact(version) => number(version),
            ListMode::Consistent | ListMode::NotOlderThan(_) => self.cluster.version,
        };
        Some(feed::Input::ListPage { request, page: self.cluster.page(feed, at) })
    }

    fn watch(&mut self, feed: usize, request: RequestId, watch: &WatchRequest) -> Option<feed::Input> {
        let WatchStart::After(version) = &watch.start else { panic!("streaming lists are not offered") };
        let of_type = &mut self.cluster.types[feed];
        if number(version) < of_type.watch_from {
            let events = vec![WatchEvent::Error(Failure::new(FailureKind::Expired, "too old"))];
            return Some(feed::Input::WatchEvents { request, events });
        }
        of_type.watch = Some((request, number(version)));
        Some(feed::Input::WatchOpened { request })
    }

    fn tell_frame(&mut self, session: SessionId, frame: &Frame) {
        if let Some(cursor) = &frame.cursor {
            self.cursors.entry(session).or_default().push(cursor.clone());
        }
        let kind = match &frame.kind {
            FrameKind::SessionStarted(started) => {
                self.texts.insert(session, started.session.clone());
                format!("started from {}", started.start.as_ref().map_or("nothing".to_owned(), at))
            }
            FrameKind::Batch(events) => events.iter().map(event).collect::<Vec<_>>().join(" "),
            FrameKind::SnapshotBegin { resource_version, object_count, .. } => {
                format!("snapshot of {object_count} at {resource_version}")
            }
            FrameKind::SnapshotEnd { resource_version, .. } => format!("snapshot end at {resource_version}"),
            FrameKind::Gap(gap) => gap_text(gap),
            FrameKind::Leadership(news) => {
                format!("{:?}", news.role).split(' ').next().unwrap_or_default().to_lowercase()
            }
            FrameKind::Heartbeat(beat) => format!("heartbeat unacked {} hold {:?}", beat.unacked_events, beat.hold),
            FrameKind::FeedStatus(news) => format!("feed {} {:?}", news.feed, news.condition),
            FrameKind::SessionEnding { reason, .. } => format!("ending {reason:?}"),
        };
        let cursor = frame.cursor.as_ref().map_or(String::new(), |cursor| format!(" | {}", at(cursor)));
        let epoch = if frame.epoch == Epoch::NONE { String::new() } else { format!("[{}] ", frame.epoch) };
        self.tell(format_args!("{} {epoch}{kind}{cursor}", session.0));
    }

    fn show(&mut self) {
        for slot in &self.replica.feeds {
            let text = |version: Option<&ResourceVersion>| version.map_or("-".to_owned(), ToString::to_string);
            let (floor, head) = (text(slot.journal.floor()), text(slot.journal.head()));
            let line = format!("{}: journal ({floor}, {head}] {} entries", slot.label.name, slot.journal.len());
            writeln!(self.out, "    {line}").expect("a string takes it");
        }
        for subscription in &self.replica.subscriptions {
            let acked = |place: &crate::subscription::Place| {
                place.acked.as_ref().map_or_else(|| format!("reset {:?}", place.reset), ToString::to_string)
            };
            let places: Vec<_> = subscription.places.iter().map(acked).collect();
            writeln!(self.out, "    {}: {}", subscription.name, places.join(" ")).expect("a string takes it");
        }
    }
}

fn at(cursor: &Cursor) -> String {
    let positions: Vec<_> = cursor.positions.values().map(ToString::to_string).collect();
    if positions.is_empty() { "nothing".to_owned() } else { positions.join(",") }
}

fn event(event: &Event) -> String {
    let sign = match event.kind {
        feed::ChangeKind::Added => "+",
        feed::ChangeKind::Modified => "~",
        feed::ChangeKind::Deleted { .. } => "-",
    };
    let flags: String = [
        (event.redelivered, 'r'),
        (event.coalesced, 'c'),
        (event.synthesized, 's'),
        (!event.in_snapshot && matches!(event.object, crate::frame::Payload::Omitted { .. }), 'o'),
    ]
    .into_iter()
    .filter_map(|(set, flag)| set.then_some(flag))
    .collect();
    let version = event.resource_version.as_ref().map_or("?".to_owned(), ToString::to_string);
    format!("{sign}{}@{version}{flags}", event.key.name)
}

fn gap_text(gap: &crate::frame::Gap) -> String {
    let text = |version: &Option<ResourceVersion>| version.as_ref().map_or("?".to_owned(), ToString::to_string);
    let deletes = if gap.deletes_complete { " deletes complete" } else { "" };
    let follows = if gap.kind == GapKind::Reset { ", snapshot follows" } else { "" };
    format!("gap {:?} {:?} ({}, {}]{deletes}{follows}", gap.kind, gap.reason, text(&gap.from), text(&gap.to))
}

fn info(feed: usize) -> ResourceInfo {
    ResourceInfo {
        group: "".into(),
        version: "v1".into(),
        resource: name(feed),
        kind: "Thing".into(),
        namespaced: true,
        streaming_list: false,
    }
}

fn name(feed: usize) -> Arc<str> {
    ["a", "b", "c"][feed].into()
}

fn replica(feeds: usize, journal_bytes_max: usize, incarnation: u32) -> Replica {
    let feed = |feed| FeedOptions {
        watch: name(feed),
        spec: Arc::new(FeedSpec {
            name: name(feed),
            resource: name(feed),
            namespace: None,
            label_selector: "".into(),
            field_selector: "".into(),
            managed_fields: ManagedFields::Drop,
        }),
    };
    Replica::new(Options {
        identity: "me".to_owned(),
        incarnation,
        seed: 7,
        journal_bytes_max,
        unacked_events_max: limits::UNACKED_EVENTS_MAX_DEFAULT,
        feeds: (0..feeds).map(feed).collect(),
        subscriptions: vec!["app".into()],
    })
}

/// Every script in `testdata/replica`, compared with what the machine does.
#[test]
fn scripts_tell_what_the_replica_does() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/replica");
    let mut scripts: Vec<_> = std::fs::read_dir(folder).expect("the folder is there").collect();
    assert!(scripts.len() >= 10, "scripts are missing");
    scripts.sort_by_key(|script| script.as_ref().map(std::fs::DirEntry::file_name).ok());
    for script in scripts {
        let path = script.expect("readable").path();
        let text = std::fs::read_to_string(&path).expect("readable");
        expect_file![path].assert_eq(&Script::play(&text));
    }
}
