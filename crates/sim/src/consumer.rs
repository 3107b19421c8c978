//! Applications: one per replica and durable subscription, all writing into one outside store, and a few ephemeral ones
//! with a store of their own. They follow the client algorithm (docs/protocol.md, C.6) to the letter.
//!
//! An instance that was replaced no longer writes: whoever attaches takes the store over from the instance before, as
//! a rolling update of an application has to do. The epoch cannot tell two instances beside one leader apart.

use std::time::Duration;

use sidewatch_core::codec::cursor::Cursor;
use sidewatch_core::epoch::Epoch;
use sidewatch_core::filter::Filter;
use sidewatch_core::frame::{Encoding, Frame, FrameKind, SessionId};
use sidewatch_core::leadership::Role;
use sidewatch_core::limits::FRAME_BYTES_MIN;
use sidewatch_core::session::{AckError, AckOutcome, AckRequest, GapPolicy, Open, Start, UpdateDetail};

use crate::checkers::{Reading, Store};
use crate::host::subscription_name;
use crate::world::{Boot, Event, Nanos, World, nanos};

/// Frames that the transport takes before the application has to read.
pub(crate) const FRAMES_IN_FLIGHT_MAX: usize = 3;

/// One application.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) host: usize,
    /// Number of its durable subscription, none if ephemeral.
    pub(crate) subscription: Option<usize>,
    pub(crate) store: usize,
    pub(crate) ignore_leadership: bool,
    /// Grows with each instance and each stream: what belongs to an older one is nobody's.
    pub(crate) generation: u64,
    pub(crate) attached: Option<(Boot, SessionId)>,
    session: Option<String>,
    pub(crate) in_flight: usize,
    received: Nanos,
    /// Needs seconds for a frame.
    pub(crate) slow: bool,
    /// Never reads (I12).
    pub(crate) stalled: bool,
    habits: Habits,
    pub(crate) readings: [Reading; 2],
    /// Cursor of the newest frame processed, for resuming and for acks that were lost.
    kept: Option<String>,
    unconfirmed: bool,
}

/// How an application behaves.
#[derive(Clone, Debug)]
struct Habits {
    frame_time_max: Duration,
    ack_permille: u64,
    ack_delay_max: Duration,
    unacked_events_max: Option<u32>,
    batch_events_max: usize,
    batch_delay_max: Duration,
    heartbeat_interval: Duration,
    names_session: bool,
}

impl Consumer {
    /// From here on it keeps up: a slow one could not work off what has gathered within the time for coming to rest.
    pub(crate) fn hurry(&mut self) {
        self.slow = false;
        self.habits.ack_permille = 1000;
        self.habits.ack_delay_max = self.habits.ack_delay_max.min(Duration::from_millis(30));
        self.habits.frame_time_max = self.habits.frame_time_max.min(Duration::from_millis(5));
    }
}

impl World {
    /// The applications beside one replica.
    pub(crate) fn add_consumers(&mut self, host: usize) {
        for number in 0..self.subscriptions {
            self.add_consumer(host, Some(number), number);
        }
        if self.happens(400) {
            self.stores.push(Store::default());
            let consumer = self.add_consumer(host, None, self.stores.len() - 1);
            let ignore = self.happens(500);
            self.consumers[consumer].ignore_leadership = ignore;
        }
        if self.happens(150) {
            self.stores.push(Store::default());
            let consumer = self.add_consumer(host, None, self.stores.len() - 1);
            self.consumers[consumer].stalled = true;
        }
    }

    fn add_consumer(&mut self, host: usize, subscription: Option<usize>, store: usize) -> usize {
        let habits = Habits {
            frame_time_max: Duration::from_millis([1, 5, 50][self.chance.below(3) as usize]),
            ack_permille: [1000, 600, 150][self.chance.below(3) as usize],
            ack_delay_max: Duration::from_millis([2, 30, 800][self.chance.below(3) as usize]),
            unacked_events_max: [None, Some(1), Some(4), Some(20)][self.chance.below(4) as usize],
            batch_events_max: [1, 2, 5, 256][self.chance.below(4) as usize],
            batch_delay_max: Duration::from_millis([0, 0, 80][self.chance.below(3) as usize]),
            heartbeat_interval: Duration::from_secs(1 + self.chance.below(10)),
            names_session: self.happens(700),
        };
        let unacked_events_max = match subscription {
            // The default of a durable subscription is large; the journal bound has to be known here.
            Some(_) => habits.unacked_events_max.or(Some(20)),
            None => None,
        };
        self.consumers.push(Consumer {
            host,
            subscription,
            store,
            ignore_leadership: false,
            generation: 0,
            attached: None,
            session: None,
            in_flight: 0,
            received: 0,
            slow: false,
            stalled: false,
            habits: Habits { unacked_events_max, ..habits },
            readings: Default::default(),
            kept: None,
            unconfirmed: false,
        });
        self.consumers.len() - 1
    }

    /// A process has started: applications beside it find it.
    pub(crate) fn wake_consumers(&mut self, host: usize) {
        for consumer in 0..self.consumers.len() {
            if self.consumers[consumer].host == host && self.consumers[consumer].attached.is_none() {
                let generation = self.consumers[consumer].generation;
                let delay = self.up_to(Duration::from_secs(1));
                self.after(delay, Event::Attach { consumer, generation });
            }
        }
    }

    fn of_host(&self, host: usize) -> Vec<usize> {
        (0..self.consumers.len()).filter(|consumer| self.consumers[*consumer].host == host).collect()
    }

    /// A pod is gone, and its applications with it; they come back with the next pod.
    pub(crate) fn crash_consumers(&mut self, host: usize) {
        for consumer in self.of_host(host) {
            self.forget_stream(consumer);
            self.lose_memory(consumer);
        }
    }

    /// The process behind the streams of a host is gone.
    pub(crate) fn streams_broke(&mut self, host: usize) {
        for consumer in self.of_host(host) {
            if self.consumers[consumer].attached.is_some() {
                let generation = self.consumers[consumer].generation;
                self.stream_closes(consumer, generation);
            }
        }
    }

    fn forget_stream(&mut self, consumer: usize) {
        let consumer = &mut self.consumers[consumer];
        consumer.generation += 1;
        consumer.attached = None;
        consumer.session = None;
        consumer.in_flight = 0;
        consumer.readings = Default::default();
    }

    fn lose_memory(&mut self, consumer: usize) {
        self.consumers[consumer].kept = None;
        self.consumers[consumer].unconfirmed = false;
        if self.consumers[consumer].subscription.is_none() {
            let store = self.consumers[consumer].store;
            self.stores[store] = Store::new(self.checks.rewound);
        }
    }

    /// An application crashes, and is back after a while.
    pub(crate) fn crash_consumer(&mut self, consumer: usize, back: Duration) {
        self.trace(|_| format!("consumer {consumer} crashes, back after {back:?}"));
        self.leave(consumer);
        self.lose_memory(consumer);
        let generation = self.consumers[consumer].generation;
        self.after(back, Event::Attach { consumer, generation });
    }

    /// Drops the stream; the sidecar learns of it sooner or later.
    fn leave(&mut self, consumer: usize) {
        let host = self.consumers[consumer].host;
        if let Some((boot, session)) = self.consumers[consumer].attached {
            let half_open = self.happens(250);
            let delay = self.up_to(if half_open { Duration::from_secs(30) } else { Duration::from_millis(20) });
            self.after(delay, Event::Gone { host, boot, session });
        }
        self.forget_stream(consumer);
    }

    /// A second instance attaches while the stream of the first is still there.
    pub(crate) fn replace_consumer(&mut self, consumer: usize) {
        self.trace(|_| format!("consumer {consumer} is replaced"));
        let (kept, session) = (self.consumers[consumer].kept.clone(), self.consumers[consumer].session.clone());
        let subscription = self.consumers[consumer].subscription;
        self.leave(consumer);
        self.lose_memory(consumer);
        let generation = self.consumers[consumer].generation;
        let delay = self.up_to(Duration::from_millis(50));
        self.after(delay, Event::Attach { consumer, generation });
        if let (Some(cursor), Some(number), Some(session)) = (kept, subscription, session) {
            // An ack of the first instance, on its way for a while.
            let subscription = Some(subscription_name(number));
            let ack = AckRequest { subscription, session: Some(session), cursor, wait_durable: false };
            let delay = self.up_to(Duration::from_secs(2));
            self.after(delay, Event::Ack { consumer, ack: Box::new(ack) });
        }
    }

    /// An application wants to attach.
    pub(crate) fn attach(&mut self, consumer: usize, generation: u64) {
        let state = &self.consumers[consumer];
        if state.generation != generation || state.attached.is_some() {
            return;
        }
        if self.hosts[state.host].boot().is_some() {
            let delay = self.up_to(Duration::from_millis(5));
            self.after(delay, Event::Open { consumer, generation });
        } else {
            self.attach_later(consumer);
        }
    }

    fn attach_later(&mut self, consumer: usize) {
        let generation = self.consumers[consumer].generation;
        let delay = self.chance.between(Duration::from_millis(200), Duration::from_secs(3));
        self.after(delay, Event::Attach { consumer, generation });
    }

    /// The call of an application arrives at its sidecar.
    pub(crate) fn open(&mut self, consumer: usize, generation: u64) {
        let state = &mut self.consumers[consumer];
        if state.generation != generation || state.attached.is_some() {
            return;
        }
        let start = match (&state.kept, state.subscription) {
            (Some(cursor), None) => Cursor::decode(cursor).map_or(Start::Unspecified, Start::Cursor),
            (None, _) | (_, Some(_)) => Start::Unspecified,
        };
        let habits = state.habits.clone();
        let open = Open {
            subscription: state.subscription.map(subscription_name),
            feeds: Vec::new(),
            start,
            filter: Filter::default(),
            encoding: Encoding::Json,
            update_detail: UpdateDetail::NewAndOld,
            fields: None,
            unacked_events_max: habits.unacked_events_max,
            frame_bytes_max: FRAME_BYTES_MIN,
            batch_events_max: habits.batch_events_max,
            batch_delay_max: habits.batch_delay_max,
            heartbeat_interval: habits.heartbeat_interval,
            gap_policy: GapPolicy::Continue,
            end_after_snapshot: false,
            ignore_leadership: state.ignore_leadership,
        };
        state.readings = Default::default();
        state.received = self.now;
        let host = state.host;
        match self.open_session(host, consumer, open) {
            Some(attached) => self.consumers[consumer].attached = Some(attached),
            None => self.attach_later(consumer),
        }
    }

    /// A frame has left its sidecar.
    pub(crate) fn deliver(&mut self, consumer: usize, generation: u64, frame: Frame) {
        if self.consumers[consumer].generation != generation {
            return;
        }
        let slow = self.consumers[consumer].slow;
        let most = if slow { Duration::from_secs(4) } else { self.consumers[consumer].habits.frame_time_max };
        let at = self.now + nanos(self.up_to(most));
        let state = &mut self.consumers[consumer];
        state.in_flight += 1;
        state.received = state.received.max(at);
        let at = state.received;
        self.at(at, Event::Frame { consumer, generation, frame: Box::new(frame) });
    }

    /// The stream has ended behind the frames that are on their way.
    pub(crate) fn stream_closes(&mut self, consumer: usize, generation: u64) {
        let at = self.now + nanos(self.up_to(Duration::from_millis(100)));
        let at = at.max(self.consumers[consumer].received);
        self.at(at, Event::StreamEnd { consumer, generation });
    }

    /// An application sees its stream end, and reconnects.
    pub(crate) fn stream_ended(&mut self, consumer: usize, generation: u64) {
        if self.consumers[consumer].generation != generation {
            return;
        }
        self.forget_stream(consumer);
        if self.consumers[consumer].subscription.is_none() && self.happens(500) {
            self.lose_memory(consumer);
        }
        self.attach_later(consumer);
    }

    /// An application processes a frame (C.6).
    pub(crate) fn consume(&mut self, consumer: usize, generation: u64, frame: Frame) {
        if self.consumers[consumer].generation != generation {
            return;
        }
        self.consumers[consumer].in_flight -= 1;
        if let Some((_, session)) = self.consumers[consumer].attached {
            self.kick(self.consumers[consumer].host, session);
        }
        let store = self.consumers[consumer].store;
        self.mark(&[frame.epoch.as_u64(), consumer as u64]);
        if frame.epoch != Epoch::NONE {
            if frame.epoch < self.stores[store].epoch {
                return self.trace(|_| format!("store {store} refuses a frame of {}", frame.epoch));
            }
            self.stores[store].epoch = frame.epoch;
        }
        self.trace(|_| format!("consumer {consumer} of store {store} takes {}", brief(&frame)));
        match frame.kind {
            FrameKind::SessionStarted(started) => self.consumers[consumer].session = Some(started.session),
            FrameKind::Batch(events) => events.iter().for_each(|event| self.apply(consumer, event)),
            FrameKind::SnapshotBegin { feed, resource_version, .. } => {
                self.snapshot_begins(consumer, frame.epoch, &feed.name, &resource_version);
            }
            FrameKind::SnapshotEnd { feed, resource_version } => {
                self.snapshot_ends(consumer, &feed.name, &resource_version);
            }
            FrameKind::Gap(gap) => self.gap_announced(consumer, &gap),
            FrameKind::Leadership(news) => {
                let ended = matches!(news.role, Role::Lost { .. } | Role::Standby);
                let ended = ended && !self.consumers[consumer].ignore_leadership;
                for reading in &mut self.consumers[consumer].readings {
                    reading.interrupted();
                    if ended {
                        reading.abandon_snapshot();
                    }
                }
            }
            FrameKind::Heartbeat(_) => self.ack_again(consumer),
            FrameKind::FeedStatus(_) | FrameKind::SessionEnding { .. } => {}
        }
        if let Some(cursor) = frame.cursor {
            self.check_cursor(consumer, &cursor);
            self.consumers[consumer].kept = Some(cursor.encode());
            self.consumers[consumer].unconfirmed = true;
            let habits = &self.consumers[consumer].habits;
            let (permille, delay) = (habits.ack_permille, habits.ack_delay_max);
            // Thinned out: the next one covers it, and a late one comes in any case.
            let most = if self.happens(permille) { delay } else { Duration::from_secs(3) };
            let delay = self.up_to(most);
            self.send_ack(consumer, delay);
        }
    }

    fn ack_again(&mut self, consumer: usize) {
        if self.consumers[consumer].unconfirmed {
            self.send_ack(consumer, Duration::from_millis(1));
        }
    }

    fn send_ack(&mut self, consumer: usize, delay: Duration) {
        let state = &self.consumers[consumer];
        let Some(cursor) = state.kept.clone() else { return };
        let session = state.session.clone().filter(|_| state.habits.names_session || state.subscription.is_none());
        let subscription = state.subscription.map(subscription_name);
        let ack = AckRequest { subscription, session, cursor, wait_durable: self.happens(100) };
        if self.happens(10) {
            let mut wrong = ack.clone();
            wrong.cursor = self.wrong_cursor(&ack.cursor);
            self.after(delay, Event::Ack { consumer, ack: Box::new(wrong) });
        }
        self.after(delay, Event::Ack { consumer, ack: Box::new(ack) });
    }

    /// A cursor that was never given out: garbage, or of the future (E row 20).
    fn wrong_cursor(&mut self, cursor: &str) -> String {
        let mut future = Cursor::decode(cursor).unwrap_or_default();
        if self.happens(300) || future.positions.is_empty() {
            return "bm90IGEgY3Vyc29y".to_owned();
        }
        for position in future.positions.values_mut() {
            *position = (crate::checkers::version(position) + crate::checkers::FUTURE).into();
        }
        future.encode()
    }

    /// An ack arrives at the sidecar.
    pub(crate) fn ack_arrives(&mut self, consumer: usize, ack: AckRequest) {
        let host = self.consumers[consumer].host;
        self.take_ack(host, consumer, ack);
    }

    /// An ack was answered.
    pub(crate) fn ack_answered(&mut self, consumer: usize, result: Result<AckOutcome, AckError>) {
        match result {
            Ok(outcome) => {
                if self.consumers[consumer].subscription.is_some() {
                    self.check_ack(&outcome);
                }
                let state = &mut self.consumers[consumer];
                let kept = state.kept.as_deref().and_then(|kept| Cursor::decode(kept).ok()).unwrap_or_default();
                let reached = |(feed, at): (&_, &sidewatch_core::resource_version::ResourceVersion)| {
                    outcome.acked.positions.get(feed).is_some_and(|acked| acked.reaches(at))
                };
                if kept.positions.iter().all(reached) {
                    state.unconfirmed = false;
                }
            }
            Err(error) => self.trace(|_| format!("consumer {consumer}: ack refused: {error}")),
        }
    }
}

/// A frame in one line of the trace.
fn brief(frame: &Frame) -> String {
    let kind = match &frame.kind {
        FrameKind::Batch(events) => {
            let events = events.iter().map(|event| {
                let marks = [
                    event.redelivered.then_some(" again"),
                    event.synthesized.then_some(" synthesized"),
                    event.coalesced.then_some(" coalesced"),
                    event.in_snapshot.then_some(" in snapshot"),
                ];
                let marks: String = marks.into_iter().flatten().collect();
                let old = event.old_resource_version.as_ref().map(|old| format!("<{old}")).unwrap_or_default();
                format!("{:?} {}{old} {}{marks}", event.kind, event.id(), event.key.name)
            });
            events.collect::<Vec<_>>().join(", ")
        }
        FrameKind::Gap(gap) => format!("Gap {:?} {:?} {:?}-{:?}", gap.kind, gap.reason, gap.from, gap.to),
        FrameKind::SnapshotBegin { feed, resource_version, .. } => {
            format!("SnapshotBegin {} {resource_version}", feed.name)
        }
        FrameKind::SnapshotEnd { feed, resource_version } => format!("SnapshotEnd {} {resource_version}", feed.name),
        FrameKind::SessionStarted(started) => format!("SessionStarted {}", started.session),
        FrameKind::Leadership(news) => format!("Leadership {:?}", news.role),
        FrameKind::Heartbeat(beat) => format!("Heartbeat {:?} {}", beat.hold, beat.pending_events),
        FrameKind::FeedStatus(news) => format!("FeedStatus {} {:?}", news.feed, news.condition),
        FrameKind::SessionEnding { reason, .. } => format!("SessionEnding {reason:?}"),
    };
    let cursor = frame.cursor.as_ref().map(|cursor| {
        let at: Vec<_> = crate::host::positions(cursor).map(|(feed, at)| format!("{feed}:{at}")).collect();
        at.join(" ")
    });
    format!("[{}] {kind} cursor {cursor:?}", frame.epoch)
}
