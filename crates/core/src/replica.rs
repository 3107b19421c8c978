//! One replica: feeds, journals, subscriptions and sessions, put together (docs/protocol.md, D.4 to D.6).
//!
//! ```text
//! Input::Feed ──▶ feed ──▶ journal ──▶ session ──▶ Effect::Send
//! Input::Ack  ──▶ subscription ──▶ Effect::Checkpoint
//! Input::Announced ──▶ takeover: where does each subscription go on?
//! ```
//!
//! [`Replica::step`] handles one input and then settles: positions are judged, waiting places
//! decided, frames made where there is room, journals trimmed, the checkpoint written.

mod checkpointing;
mod delivery;
mod pressure;
mod report;
mod takeover;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::codec::cursor::{Cursor, Fingerprint};
use crate::epoch::Epoch;
use crate::feed::{self, Condition, Feed, FeedSpec, ResourceInfo};
use crate::frame::{
    EndReason, FeedDescription, FeedLabel, FeedNews, Frame, FrameKind, GapReason, LeadershipNews, SessionId,
    SessionStarted,
};
use crate::journal::Journal;
use crate::leadership::{Announcement, LeaseView, PendingCheckpoint, Role};
use crate::replica::checkpointing::Checkpointing;
use crate::resource_version::ResourceVersion;
use crate::session::{AckError, AckOutcome, AckRequest, FeedView, GapPolicy, Open, Session, SessionError, Start, View};
use crate::subscription::Subscription;
use crate::time::{BootInstant, WallTime};

/// What a replica is made of.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Identity of this process, as in the Lease.
    pub identity: String,
    /// Tells this process from every other in cursors; chance, not zero.
    pub incarnation: u32,
    /// Seed of all chance in the feeds.
    pub seed: u64,
    /// Limit of all journals together, in bytes.
    pub journal_bytes_max: usize,
    /// Limit of unacked events of a durable subscription that asks for none.
    pub unacked_events_max: u32,
    /// Feeds, in the order of the configuration.
    pub feeds: Vec<FeedOptions>,
    /// Names of the durable subscriptions.
    pub subscriptions: Vec<Arc<str>>,
}

/// One feed of a replica.
#[derive(Clone, PartialEq, Debug)]
pub struct FeedOptions {
    /// Name of the watch it came from: selects all feeds of that watch.
    pub watch: Arc<str>,
    /// What it lists and watches.
    pub spec: Arc<FeedSpec>,
}

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
    /// The gate has closed, and these frames were still in the queue: the stream will not send them. In order, and after
    /// the role that closed it was announced: before that, they would be sent again at once.
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
        /// Durable subscription, none if ephemeral.
        subscription: Option<Arc<str>>,
        /// What it means.
        kind: crate::frame::GapKind,
        /// How it came about.
        reason: crate::frame::GapReason,
    },
    /// Events were handed to a session.
    Delivered {
        /// Which feed.
        feed: Arc<str>,
        /// Durable subscription, none if ephemeral.
        subscription: Option<Arc<str>>,
        /// How many.
        events: u64,
        /// How many of them stood for several changes.
        coalesced: u64,
        /// How many of them are deletes derived by comparison.
        synthesized_deletes: u64,
    },
    /// An ack moved the position of a subscription.
    Acked {
        /// Which.
        subscription: Arc<str>,
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

/// One replica.
#[derive(Debug)]
pub struct Replica {
    options: Options,
    cluster: u32,
    role: Role,
    lease: LeaseView,
    feeds: Vec<Slot>,
    fingerprints: Vec<Fingerprint>,
    subscriptions: Vec<Subscription>,
    sessions: BTreeMap<SessionId, Session>,
    checkpointing: Checkpointing,
    started: bool,
    drain: Option<BootInstant>,
    shutting_down: bool,
}

/// A feed and what belongs to it.
#[derive(Debug)]
struct Slot {
    feed: Feed,
    description: FeedDescription,
    watch: Arc<str>,
    label: Arc<FeedLabel>,
    journal: Journal,
    synced: bool,
    horizon: Option<ResourceVersion>,
    /// Nothing that an earlier leader delivered can be unknown here any more: `head` has reached X without a hole.
    armed: bool,
    news: FeedNews,
    counts: Counts,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    relists: u64,
    synthesized_deletes: u64,
    gaps: u64,
}

impl Replica {
    /// A replica that has heard of nothing yet. Its feeds start with the first announcement.
    pub fn new(options: Options) -> Self {
        let fingerprints: Vec<_> = options.feeds.iter().map(|feed| fingerprint(&feed.spec)).collect();
        let feeds = options.feeds.iter().enumerate().map(|(index, feed)| Slot::new(feed, options.seed, index as u64));
        let feeds: Vec<_> = feeds.collect();
        let subscription = |name: &Arc<str>| {
            let mut subscription = Subscription::new(name.clone(), fingerprints.len());
            subscription.load(None, &fingerprints);
            subscription
        };
        let subscriptions = options.subscriptions.iter().map(subscription).collect();
        Self {
            cluster: 0,
            role: Role::Standby,
            lease: LeaseView::default(),
            feeds,
            fingerprints,
            subscriptions,
            sessions: BTreeMap::new(),
            checkpointing: Checkpointing::default(),
            started: false,
            drain: None,
            shutting_down: false,
            options,
        }
    }

    /// Handles one input.
    pub fn step(&mut self, now: Now, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Feed { feed, input } => self.step_feed(feed.0, now, input, effects),
            Input::ClusterKnown { uid } => self.cluster = Fingerprint::of(&["cluster", &uid]).0,
            Input::Announced(announcement) => self.announced(now, announcement, effects),
            Input::Open { session, open } => self.open(now, session, *open, effects),
            Input::Pulled { session, frames } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.pulled(frames);
                }
            }
            Input::Withdrawn { session, frames } => {
                // Only the same epoch may send them later.
                let resumable = matches!(self.role, Role::Leading { .. } | Role::Suspended { .. });
                let epoch = if resumable { self.epoch() } else { Epoch::NONE };
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.withdraw(frames, epoch);
                }
            }
            Input::Closed { session } => self.close(session, SessionEvent::Closed, effects),
            Input::Ack { id, ack } => self.ack(id, ack, effects),
            Input::AckAbandoned { id } => self.checkpointing.abandon(id),
            Input::Drain { until } => self.drain = Some(until),
            Input::Shutdown => self.shut_down(),
            Input::Tick => self.tick(now, effects),
        }
        self.settle(now, effects);
    }

    /// When [`Input::Tick`] is wanted.
    pub fn deadline(&self) -> Option<BootInstant> {
        let feeds = self.feeds.iter().filter_map(|slot| slot.feed.deadline());
        let sessions = self.sessions.values().filter_map(|session| session.deadline(&self.role));
        let writes = matches!(self.role, Role::Leading { .. } | Role::Releasing { .. });
        let rest = [self.checkpointing.deadline().filter(|_| writes), self.drain];
        feeds.chain(sessions).chain(rest.into_iter().flatten()).min()
    }

    /// The feeds, for those who perform their requests.
    pub fn feed(&self, feed: FeedIndex) -> &Feed {
        &self.feeds[feed.0].feed
    }

    fn tick(&mut self, now: Now, effects: &mut Vec<Effect>) {
        for index in 0..self.feeds.len() {
            if self.feeds[index].feed.deadline().is_some_and(|deadline| deadline <= now.boot) {
                self.step_feed(index, now, feed::Input::Tick, effects);
            }
        }
    }

    fn start_feeds(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        for index in 0..self.feeds.len() {
            // C of Rule D.6: from here every subscription that has a position can go on.
            let acked = self.subscriptions.iter().filter_map(|subscription| subscription.places[index].acked.as_ref());
            let lowest = acked.reduce(|a, b| if a.is_after(b) { b } else { a });
            let recover_from = lowest.filter(|lowest| lowest.is_ordered()).cloned();
            self.step_feed(index, now, feed::Input::Start { recover_from }, effects);
        }
    }

    fn step_feed(&mut self, index: usize, now: Now, input: feed::Input, effects: &mut Vec<Effect>) {
        let mut of_feed = Vec::new();
        self.feeds[index].feed.step(now.boot, input, &mut of_feed);
        self.feeds[index].relabel();
        for effect in of_feed {
            self.feed_effect(index, now, effect, effects);
        }
    }

    fn feed_effect(&mut self, index: usize, now: Now, effect: feed::Effect, effects: &mut Vec<Effect>) {
        let slot = &mut self.feeds[index];
        match effect {
            feed::Effect::Synced { at } => {
                let again = std::mem::replace(&mut slot.synced, true);
                slot.journal.reset(at);
                if again {
                    self.void_positions(index, GapReason::FeedChanged);
                }
            }
            feed::Effect::Changed(change) => slot.journal.append(change, now.wall),
            feed::Effect::Head(head) => {
                slot.journal.advance(head);
                self.follow_head(index);
            }
            feed::Effect::Relisted { from, to, changes } => {
                slot.counts.relists += 1;
                self.hole_opened(index, &from, &to);
                self.feeds[index].journal.relist(from, to, changes, now.wall);
            }
            feed::Effect::Rewound { at } => {
                // It may be the first that is heard of the feed: the cluster is behind the stored position.
                slot.synced = true;
                slot.journal.reset(at.clone());
                slot.horizon = Some(at);
                self.void_positions(index, GapReason::ClusterRewound);
                self.compare_versions(now, Some(index), effects);
            }
            feed::Effect::TypeRemoved { changes } => slot.journal.remove_type(changes, now.wall),
            feed::Effect::Horizon(horizon) => {
                for session in self.sessions.values_mut() {
                    session.horizon_known(index, &horizon);
                }
                slot.horizon = Some(horizon);
            }
            feed::Effect::Moved { to, ref why, .. } => {
                let news = FeedNews { condition: to, since: now.wall, detail: why.clone(), ..slot.news.clone() };
                slot.news = news.clone();
                for session in self.sessions.values_mut().filter(|session| session.has_feed(index)) {
                    session.mark(FrameKind::FeedStatus(news.clone()));
                }
                effects.push(Effect::Feed { feed: FeedIndex(index), effect });
            }
            feed::Effect::Resolve { .. }
            | feed::Effect::List { .. }
            | feed::Effect::Watch { .. }
            | feed::Effect::AskType { .. }
            | feed::Effect::Cancel { .. }
            | feed::Effect::Noted(_) => effects.push(Effect::Feed { feed: FeedIndex(index), effect }),
        }
    }

    fn open(&mut self, now: Now, id: SessionId, mut open: Open, effects: &mut Vec<Effect>) {
        if open.subscription.is_some() {
            open.unacked_events_max.get_or_insert(self.options.unacked_events_max);
        }
        let feeds = match self.admit(&open) {
            Ok(feeds) => feeds,
            Err(error) => return effects.push(Effect::End { session: id, error: Some(error) }),
        };
        let text = format!("{:08x}-{}", self.options.incarnation, id.0);
        if let Some(name) = open.subscription.clone() {
            self.supersede(&name, id, effects);
        }
        let start = self.start_cursor(&open, &feeds);
        let mut session = Session::new(id, text.clone(), open, feeds, now.boot);
        session.greet(SessionStarted {
            session: text.clone(),
            subscription: session.open.subscription.clone(),
            feeds: session.places.iter().map(|place| self.feeds[place.feed].description.clone()).collect(),
            start,
            frame_bytes_max: session.open.frame_bytes_max,
            unacked_events_max: session.open.unacked_events_max,
        });
        session.tell_role(self.role_news(&session));
        for place in &session.places.iter().map(|place| place.feed).collect::<Vec<_>>() {
            let news = &self.feeds[*place].news;
            if news.condition != Condition::Live {
                session.mark(FrameKind::FeedStatus(news.clone()));
            }
        }
        let subscription = session.open.subscription.clone();
        self.sessions.insert(id, session);
        effects.push(Effect::Noted(Note::Session { session: text, subscription, what: SessionEvent::Opened }));
    }

    /// The feeds that the request selects.
    fn admit(&self, open: &Open) -> Result<Vec<usize>, SessionError> {
        if self.shutting_down {
            return Err(SessionError::ShuttingDown);
        }
        if let Some(name) = &open.subscription {
            if !self.options.subscriptions.contains(name) {
                let known = join(self.options.subscriptions.iter());
                return Err(SessionError::SubscriptionUnknown { name: name.to_string(), known });
            }
            if open.ignore_leadership {
                let rule = "needs an ephemeral subscription: one consumer of a durable one exists in the cluster";
                return Err(SessionError::Contradiction { field: "ignore_leadership", rule });
            }
        } else if open.start == Start::Stored {
            let rule = "STORED needs a durable subscription: set `subscription`";
            return Err(SessionError::Contradiction { field: "start_mode", rule });
        }
        if open.end_after_snapshot && open.start == Start::Live {
            let rule = "has no snapshot to end after with start_mode = LIVE";
            return Err(SessionError::Contradiction { field: "end_after_snapshot", rule });
        }
        if let (Start::Cursor(cursor), GapPolicy::Fail) = (&open.start, open.gap_policy)
            && self.is_of_other_cluster(cursor)
        {
            return Err(SessionError::CursorClusterMismatch);
        }
        if open.feeds.is_empty() {
            return Ok((0..self.feeds.len()).collect());
        }
        let mut selected = Vec::new();
        for name in &open.feeds {
            let named = |slot: &Slot| slot.description.spec.name == *name || slot.watch == *name;
            let matching = self.feeds.iter().enumerate().filter_map(|(index, slot)| named(slot).then_some(index));
            let before = selected.len();
            selected.extend(matching);
            if selected.len() == before {
                let known = join(self.feeds.iter().map(|slot| &slot.description.spec.name));
                return Err(SessionError::FeedUnknown { name: name.to_string(), known });
            }
        }
        selected.sort_unstable();
        selected.dedup();
        Ok(selected)
    }

    fn start_cursor(&self, open: &Open, feeds: &[usize]) -> Option<Cursor> {
        match (&open.start, &open.subscription) {
            (Start::Cursor(cursor), _) => Some(cursor.clone()),
            (Start::Unspecified | Start::Stored, Some(name)) => {
                let subscription = self.subscriptions.iter().find(|subscription| subscription.name == *name)?;
                let mut positions = subscription.positions(&self.fingerprints, |place| &place.acked);
                positions.retain(|fingerprint, _| feeds.iter().any(|feed| self.fingerprints[*feed] == *fingerprint));
                (!positions.is_empty()).then(|| self.cursor_at(positions))
            }
            _ => None,
        }
    }

    fn supersede(&mut self, name: &str, by: SessionId, effects: &mut Vec<Effect>) {
        let Some(subscription) = self.subscriptions.iter_mut().find(|subscription| *subscription.name == *name) else {
            return;
        };
        let older = subscription.session.replace(by);
        if let Some(session) = older.and_then(|older| self.sessions.get_mut(&older)) {
            session.end(EndReason::Superseded, std::time::Duration::ZERO, Some(SessionError::Superseded));
            let (session, subscription) = (session.text.clone(), session.open.subscription.clone());
            effects.push(Effect::Noted(Note::Session { session, subscription, what: SessionEvent::Superseded }));
        }
    }

    fn close(&mut self, id: SessionId, what: SessionEvent, effects: &mut Vec<Effect>) {
        let Some(session) = self.sessions.remove(&id) else { return };
        for subscription in self.subscriptions.iter_mut().filter(|subscription| subscription.session == Some(id)) {
            subscription.session = None;
        }
        let subscription = session.open.subscription.clone();
        effects.push(Effect::Noted(Note::Session { session: session.text, subscription, what }));
    }

    fn shut_down(&mut self) {
        const RETRY_DELAY: std::time::Duration = std::time::Duration::from_secs(1);
        self.shutting_down = true;
        for session in self.sessions.values_mut() {
            session.end(EndReason::Shutdown, RETRY_DELAY, Some(SessionError::ShuttingDown));
        }
    }

    fn role_news(&self, session: &Session) -> LeadershipNews {
        let resume = session.open.subscription.as_ref().filter(|_| matches!(self.role, Role::Leading { .. }));
        let subscription = resume.and_then(|name| self.subscriptions.iter().find(|known| known.name == *name));
        LeadershipNews {
            role: self.role.clone(),
            lease: self.lease.clone(),
            resume: subscription
                .map(|subscription| self.cursor_at(subscription.positions(&self.fingerprints, |place| &place.acked))),
            detail: match &self.role {
                Role::Disabled => "leader election is off: every replica delivers to its own consumer".to_owned(),
                Role::Standby if self.lease.holder_identity.is_empty() => "nobody holds the Lease yet".to_owned(),
                Role::Standby => format!("{} holds the Lease", self.lease.holder_identity),
                Role::Leading { .. } => "this replica delivers".to_owned(),
                Role::Suspended { .. } => "the Lease could not be renewed in time; stop side effects".to_owned(),
                Role::Releasing { .. } => "leadership is being given up; stop side effects".to_owned(),
                Role::Lost { .. } => "another replica may lead; stop side effects".to_owned(),
            },
        }
    }

    fn cursor_at(&self, positions: crate::codec::cursor::Positions) -> Cursor {
        Cursor { cluster: self.cluster, epoch: self.epoch(), incarnation: self.options.incarnation, positions }
    }

    fn epoch(&self) -> Epoch {
        match self.role {
            Role::Leading { epoch, .. }
            | Role::Suspended { epoch }
            | Role::Releasing { epoch }
            | Role::Lost { epoch } => epoch,
            Role::Disabled | Role::Standby => Epoch::NONE,
        }
    }

    fn is_of_other_cluster(&self, cursor: &Cursor) -> bool {
        cursor.cluster != 0 && self.cluster != 0 && cursor.cluster != self.cluster
    }
}

impl Slot {
    fn new(options: &FeedOptions, seed: u64, index: u64) -> Self {
        let spec = options.spec.clone();
        let feed = Feed::new(spec.clone(), seed ^ index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let label = FeedLabel { name: spec.name.clone(), api_version: "".into(), kind: "".into() };
        let news = FeedNews {
            feed: spec.name.clone(),
            condition: Condition::Syncing,
            since: WallTime::default(),
            detail: String::new(),
        };
        Self {
            feed,
            description: FeedDescription { spec, info: None },
            watch: options.watch.clone(),
            label: Arc::new(label),
            journal: Journal::default(),
            synced: false,
            horizon: None,
            armed: false,
            news,
            counts: Counts::default(),
        }
    }

    /// Takes over what discovery has found.
    fn relabel(&mut self) {
        let info: Option<&ResourceInfo> = self.feed.info();
        if let Some(info) = info.filter(|info| self.description.info.as_ref() != Some(info)) {
            self.description.info = Some(info.clone());
            self.label = Arc::new(FeedLabel {
                name: self.label.name.clone(),
                api_version: info.api_version().into(),
                kind: info.kind.clone(),
            });
        }
    }
}

/// What the sessions may read of the feeds.
fn views<'a>(feeds: &'a [Slot], fingerprints: &[Fingerprint]) -> Vec<FeedView<'a>> {
    let view = |(index, (slot, fingerprint)): (usize, (&'a Slot, &Fingerprint))| FeedView {
        index,
        label: &slot.label,
        fingerprint: *fingerprint,
        journal: &slot.journal,
    };
    feeds.iter().zip(fingerprints).enumerate().map(view).collect()
}

/// What a session is told at each step.
fn view<'a>(feeds: &'a [FeedView<'a>], role: &'a Role, cluster: u32, incarnation: u32) -> View<'a> {
    View { feeds, role, cluster, incarnation }
}

/// A feed's definition, independent of the API version and known before discovery has answered.
fn fingerprint(spec: &FeedSpec) -> Fingerprint {
    let resource = spec.resource.to_ascii_lowercase();
    let namespace = spec.namespace.as_deref().unwrap_or_default();
    Fingerprint::of(&[&resource, namespace, &spec.label_selector, &spec.field_selector])
}

fn join<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> String {
    let names: Vec<&str> = names.map(|name| &**name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
