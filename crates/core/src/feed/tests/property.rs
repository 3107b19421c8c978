//! A small server with a random history and random faults: whatever happens, the changes told add up to the cache, the
//! cache is the server's state at `head`, and no delete is invented (I9, I15).

use std::collections::BTreeMap;

use super::*;

/// One revision: the object that `name` became, or that it was deleted (and which uid).
#[derive(Clone)]
struct Revision {
    name: &'static str,
    uid: u64,
    deleted: bool,
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

struct Server {
    chance: Prng,
    /// Revision r is `log[r - 1]`.
    log: Vec<Revision>,
    /// Watches from below this are 410.
    watch_floor: u64,
    /// Exact lists below this are 410.
    exact_floor: u64,
    uids: u64,
    streaming: bool,
}

type State = BTreeMap<&'static str, (u64, u64)>;

fn text(name: &str, uid: u64, at: u64) -> ObjectState {
    object(&format!("{name}:{uid}:{at}"))
}

impl Server {
    fn head(&self) -> u64 {
        self.log.len() as u64
    }

    fn state(&self, at: u64) -> State {
        let mut state = State::new();
        for (revision, at) in self.log[..at as usize].iter().zip(1..) {
            if revision.deleted {
                state.remove(revision.name);
            } else {
                state.insert(revision.name, (revision.uid, at));
            }
        }
        state
    }

    fn write(&mut self) {
        let name = NAMES[self.chance.below(5) as usize];
        let alive = self.state(self.head()).get(name).map(|(uid, _)| *uid);
        let deleted = alive.is_some() && self.chance.below(3) == 0;
        let uid = alive.unwrap_or_else(|| {
            self.uids += 1;
            self.uids
        });
        self.log.push(Revision { name, uid, deleted });
    }

    fn event(&self, at: u64) -> WatchEvent {
        let revision = &self.log[at as usize - 1];
        let state = text(revision.name, revision.uid, at);
        // What the wire calls it does not matter for an upsert.
        match (revision.deleted, at % 2) {
            (true, _) => WatchEvent::Deleted(state),
            (false, 0) => WatchEvent::Added(state),
            (false, _) => WatchEvent::Modified(state),
        }
    }
}

/// A list or watch that the server has accepted.
struct Stream {
    request: RequestId,
    sent: u64,
    /// Objects of a streaming list that are still to come, and the version of its end.
    initial: Option<Vec<ObjectState>>,
}

struct Run {
    server: Server,
    feed: Feed,
    now: BootInstant,
    stream: Option<Stream>,
    /// Lists with a continue token: state, and objects still to come.
    pages: BTreeMap<String, (u64, Vec<ObjectState>)>,
    requests: Vec<Effect>,
    /// What somebody who only sees the effects knows.
    mirror: State,
    mirror_at: Option<u64>,
    horizon_asked_at: Option<u64>,
}

fn number(version: &ResourceVersion) -> u64 {
    version.to_string().parse().unwrap()
}

fn name_of(key: &ObjectKey) -> &'static str {
    NAMES.into_iter().find(|name| *name == &*key.name).unwrap()
}

impl Run {
    fn new(seed: u64) -> Self {
        let chance = Prng::new(seed);
        let mut server = Server {
            chance,
            log: Vec::new(),
            watch_floor: 0,
            exact_floor: 0,
            uids: 0,
            streaming: seed.is_multiple_of(2),
        };
        for _ in 0..5 {
            server.write();
        }
        Self {
            server,
            feed: Feed::new(spec(""), seed),
            now: BootInstant::from_nanos(0),
            stream: None,
            pages: BTreeMap::new(),
            requests: Vec::new(),
            mirror: State::new(),
            mirror_at: None,
            horizon_asked_at: None,
        }
    }

    fn chance(&mut self, bound: u64) -> u64 {
        self.server.chance.below(bound)
    }

    fn step(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.feed.step(self.now, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Changed(change) => self.apply(&change),
                Effect::Head(version) => self.advance(number(&version)),
                Effect::Synced { at } | Effect::Rewound { at } => {
                    self.mirror = self.server.state(number(&at));
                    self.mirror_at = Some(number(&at));
                }
                Effect::Relisted { from, to, changes } => {
                    assert_eq!(Some(number(&from)), self.mirror_at);
                    let first_upsert = changes.iter().position(|c| !matches!(c.kind, ChangeKind::Deleted { .. }));
                    for (i, change) in changes.iter().enumerate() {
                        let delete = matches!(change.kind, ChangeKind::Deleted { .. });
                        assert_eq!(delete, first_upsert.is_none_or(|first| i < first), "deletes come first");
                        if delete {
                            let alive = self.server.state(number(&to));
                            let uid: u64 = change.uid.as_str().parse().unwrap();
                            assert!(alive.values().all(|(u, _)| *u != uid), "I9: invented delete of {uid}");
                        }
                        self.apply(change);
                    }
                    self.advance(number(&to));
                }
                Effect::Cancel { request } => {
                    self.requests.retain(|r| request_of(r) != Some(request));
                    self.stream.take_if(|stream| stream.request == request);
                }
                Effect::Resolve { .. } | Effect::List { .. } | Effect::Watch { .. } | Effect::AskType { .. } => {
                    self.requests.push(effect);
                }
                Effect::Horizon(version) => {
                    let asked = self.horizon_asked_at.take().expect("asked");
                    assert!(number(&version) >= asked, "X is read after it was asked for");
                }
                Effect::TypeRemoved { .. } => panic!("the type was never removed"),
                Effect::Moved { from, to, .. } => assert_ne!(from, to),
                Effect::Noted(_) => {}
            }
        }
        let cached: State = self
            .feed
            .cache()
            .iter()
            .map(|o| (name_of(&o.key), (o.uid.as_str().parse().unwrap(), number(&o.resource_version))))
            .collect();
        assert_eq!(cached, self.mirror, "the changes add up to the cache");
        if let Some(head) = self.feed.head() {
            assert_eq!(cached, self.server.state(number(head)), "the cache is the state at head");
            assert_eq!(Some(number(head)), self.mirror_at);
        }
    }

    fn advance(&mut self, to: u64) {
        assert!(self.mirror_at.is_none_or(|at| at <= to), "positions never go back");
        self.mirror_at = Some(to);
    }

    fn apply(&mut self, change: &Change) {
        let name = name_of(&change.key);
        let uid: u64 = change.uid.as_str().parse().unwrap();
        match change.kind {
            ChangeKind::Added => assert!(!self.mirror.contains_key(name), "ADDED of what is there"),
            ChangeKind::Modified => {
                let old = change.old.as_ref().unwrap();
                assert_eq!(self.mirror.get(name), Some(&(uid, number(&old.resource_version))), "I8");
            }
            ChangeKind::Deleted { .. } => {
                assert_eq!(self.mirror.remove(name).map(|(uid, _)| uid), Some(uid), "DELETED of what is not there");
            }
        }
        if !matches!(change.kind, ChangeKind::Deleted { .. }) {
            self.mirror.insert(name, (uid, number(change.resource_version.as_ref().unwrap())));
        }
        if let (Origin::Watched, Some(version)) = (change.origin, &change.resource_version) {
            self.advance(number(version));
        }
    }

    /// The server takes a request, or something takes it away.
    fn answer(&mut self, effect: &Effect, faults: bool) {
        let request = request_of(effect).unwrap();
        if faults && self.chance(4) == 0 {
            let kinds = [
                FailureKind::TooManyRequests,
                FailureKind::Unavailable,
                FailureKind::Transport,
                FailureKind::Forbidden,
                FailureKind::Rejected,
                FailureKind::Undecodable,
                FailureKind::NotFound,
                FailureKind::VersionTooLarge,
            ];
            let kind = kinds[self.chance(kinds.len() as u64) as usize];
            return self.step(Input::Failed { request, failure: Failure::new(kind, "fault") });
        }
        let expired = |request| Input::Failed { request, failure: Failure::new(FailureKind::Expired, "gone") };
        match effect {
            Effect::Resolve { .. } => {
                let info = ResourceInfo {
                    group: "".into(),
                    version: "v1".into(),
                    resource: "pods".into(),
                    kind: "Pod".into(),
                    namespaced: true,
                    streaming_list: self.server.streaming,
                };
                self.step(Input::Resolved { request, info });
            }
            Effect::AskType { .. } => self.step(Input::TypeAnswered { request, answer: TypeAnswer::Present }),
            Effect::List { list, .. } => {
                let (at, mut objects) = match list.continue_token.as_ref().map(|token| self.pages.remove(token)) {
                    Some(Some(page)) => page,
                    Some(None) => return self.step(expired(request)),
                    None => {
                        let at = match &list.mode {
                            ListMode::Exact(version) => number(version),
                            // Faults include a server that is behind: it must not be believed.
                            ListMode::NotOlderThan(_) | ListMode::Consistent
                                if faults && !list.metadata_only && self.chance(6) == 0 =>
                            {
                                self.server.head().saturating_sub(self.chance(12)).max(1)
                            }
                            ListMode::NotOlderThan(_) | ListMode::Consistent => self.server.head(),
                        };
                        if matches!(list.mode, ListMode::Exact(_)) && at < self.server.exact_floor {
                            return self.step(expired(request));
                        }
                        let state = self.server.state(at);
                        (at, state.iter().map(|(name, (uid, rv))| text(name, *uid, *rv)).collect::<Vec<_>>())
                    }
                };
                let more = list.limit.is_some() && objects.len() > 2;
                let rest = if more { objects.split_off(2) } else { Vec::new() };
                let token = format!("{}", request.0);
                if more {
                    self.pages.insert(token.clone(), (at, rest));
                }
                let continue_token = more.then_some(token);
                let page = ListPage { resource_version: ResourceVersion::from(at), continue_token, objects };
                self.step(Input::ListPage { request, page });
            }
            Effect::Watch { watch, .. } => {
                let stream = match &watch.start {
                    WatchStart::After(version) if number(version) < self.server.watch_floor => {
                        return self.step(expired(request));
                    }
                    WatchStart::After(version) => Stream { request, sent: number(version), initial: None },
                    WatchStart::InitialEvents(_) => {
                        let sent = self.server.head();
                        let state = self.server.state(sent);
                        let objects = state.iter().map(|(name, (uid, rv))| text(name, *uid, *rv)).collect();
                        Stream { request, sent, initial: Some(objects) }
                    }
                };
                self.stream = Some(stream);
                self.step(Input::WatchOpened { request });
            }
            other => panic!("{other:?}"),
        }
    }

    /// The open watch moves on, or ends.
    fn stream(&mut self, faults: bool) {
        let Some(mut stream) = self.stream.take() else { return };
        let request = stream.request;
        if faults {
            let input = match self.chance(20) {
                0 => Some(Input::WatchClosed { request }),
                1 => Some(Input::WatchUndecodable { request, message: "fault".into() }),
                2 => Some(Input::WatchEvents {
                    request,
                    events: vec![WatchEvent::Error(Failure::new(FailureKind::Expired, "fault"))],
                }),
                3 => Some(Input::WatchEvents {
                    request,
                    events: vec![WatchEvent::Error(Failure::new(FailureKind::Unavailable, "fault"))],
                }),
                4 => Some(Input::Failed { request, failure: Failure::new(FailureKind::Transport, "fault") }),
                _ => None,
            };
            if let Some(input) = input {
                return self.step(input);
            }
        }
        let mut events = Vec::new();
        if let Some(objects) = &mut stream.initial {
            let now = self.server.chance.below(4) as usize;
            events.extend(objects.drain(..now.min(objects.len())).map(WatchEvent::Added));
        }
        let listing = stream.initial.as_ref().is_some_and(|objects| !objects.is_empty());
        // Changes may come before the end of the initial events, after all objects have.
        while !listing && stream.sent < self.server.head() && self.server.chance.below(3) > 0 {
            stream.sent += 1;
            events.push(self.server.event(stream.sent));
            if self.server.chance.below(8) == 0 {
                // The server repeats itself.
                events.push(self.server.event(stream.sent));
            }
        }
        if !listing && self.server.chance.below(3) == 0 {
            let resource_version = ResourceVersion::from(stream.sent);
            events.push(WatchEvent::Bookmark { resource_version, initial_events_end: stream.initial.take().is_some() });
        }
        self.stream = Some(stream);
        if !events.is_empty() {
            self.step(Input::WatchEvents { request, events });
        }
    }

    fn turn(&mut self, faults: bool) {
        match self.chance(if faults { 10 } else { 4 }) {
            0 | 1 if !self.requests.is_empty() => {
                let which = self.chance(self.requests.len() as u64) as usize;
                let effect = self.requests.remove(which);
                self.answer(&effect, faults);
            }
            2 => self.stream(faults),
            3 => {
                self.now = self.feed.deadline().map_or(self.now, |deadline| deadline.max(self.now));
                self.step(Input::Tick);
            }
            4..6 => self.server.write(),
            6 => {
                self.now = self.now + Duration::from_millis(300);
                self.step(Input::Tick);
            }
            7 if self.chance(4) == 0 => {
                let head = self.server.head();
                self.server.watch_floor = head - self.server.chance.below(3);
                self.server.exact_floor = head.saturating_sub(10);
                self.pages.clear();
            }
            8 if self.chance(4) == 0 => {
                self.horizon_asked_at = Some(self.server.head());
                self.step(Input::ReadHorizon);
            }
            9 if self.chance(8) == 0 => self.step(Input::CheckRewind),
            _ => {}
        }
    }
}

fn request_of(effect: &Effect) -> Option<RequestId> {
    match effect {
        Effect::Resolve { request }
        | Effect::List { request, .. }
        | Effect::Watch { request, .. }
        | Effect::AskType { request } => Some(*request),
        _ => None,
    }
}

fn run(seed: u64) {
    let mut run = Run::new(seed);
    let recover_from = seed.is_multiple_of(3).then(|| ResourceVersion::from(2));
    run.step(Input::Start { recover_from });
    for _ in 0..600 {
        run.turn(true);
    }
    // Faults stop: the feed converges.
    for _ in 0..4000 {
        if run.feed.condition() == Condition::Live && run.mirror_at == Some(run.server.head()) {
            return;
        }
        run.turn(false);
    }
    panic!("no convergence: {:?} {:?} of {}", run.feed.phase, run.mirror_at, run.server.head());
}

#[test]
fn changes_add_up_to_the_servers_state_whatever_happens() {
    for seed in 0..300 {
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}
