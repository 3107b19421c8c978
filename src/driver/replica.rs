//! The replica driver: one task owns the replica machine, hands it what happened, and does what it wants.
//!
//! The single writer of the data path: no locks, no other task sees the machine. Its queue of answers is bounded; a
//! feed's task waits when it is full, a consumer never can make it wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sidewatch_core::epoch::Epoch;
use sidewatch_core::feed;
use sidewatch_core::frame::{Frame, GapKind, GapReason, SessionId};
use sidewatch_core::leadership::{Announcement, PendingCheckpoint, Role};
use sidewatch_core::replica::{AckId, Effect, FeedIndex, Input, Note, Now, Replica};
use sidewatch_core::session::{AckError, AckOutcome};
use sidewatch_core::status::Status;
use sidewatch_core::time::BootInstant;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};

use crate::clock::Clock;
use crate::delivery::{COMMANDS_QUEUED_MAX, Command, FrameQueue, Inbox, NotLeading};
use crate::driver::elector::{ANNOUNCEMENTS_MAX, Command as ElectorCommand};
use crate::driver::feed_watch::{FeedAnswer, FeedRequests};
use crate::telemetry::metrics::{EPHEMERAL, Metrics, QueueMetrics};

/// Answers of all feeds that wait for the driver. Each is one request's answer or one read of a watch.
pub const ANSWERS_QUEUED_MAX: usize = 256;
/// Answers handled before anything else is looked at again.
const ANSWERS_AT_ONCE: usize = 32;
/// How often the status that probes and metrics are made of is refreshed while nothing happens.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);

/// What the composition root asks of the driver.
#[derive(Debug)]
pub enum Control {
    /// The uid of the kube-system namespace was read.
    ClusterKnown {
        /// The uid.
        uid: Arc<str>,
    },
    /// The process ends: every session is told and ended, then the driver returns.
    Shutdown,
}

/// Where the driver is connected.
#[derive(Debug)]
pub struct Connections {
    /// From the streams and calls.
    pub inbox: Inbox,
    /// From the elector.
    pub announcements: mpsc::Receiver<Announcement>,
    /// From the composition root.
    pub control: mpsc::Receiver<Control>,
    /// From the feeds' requests.
    pub answers: mpsc::Receiver<FeedAnswer>,
    /// The feeds' requests, in the order of the configuration.
    pub requests: Vec<FeedRequests>,
    /// To the elector: the newest checkpoint.
    pub checkpoints: watch::Sender<Option<PendingCheckpoint>>,
    /// To the elector; none with election off.
    pub elector: Option<mpsc::Sender<ElectorCommand>>,
    /// To probes and metrics.
    pub status: watch::Sender<Option<Arc<Status>>>,
}

/// Owns the replica machine.
#[derive(Debug)]
pub struct ReplicaDriver {
    replica: Replica,
    clock: Clock,
    metrics: Arc<Metrics>,
    drain_timeout: Duration,
    connections: Connections,
    queues: BTreeMap<SessionId, FrameQueue>,
    acks: BTreeMap<AckId, oneshot::Sender<Result<AckOutcome, AckError>>>,
    next_ack: u64,
    role: Role,
    step_down: Option<StepDown>,
    status_at: BootInstant,
    depths: [QueueMetrics; 3],
}

#[derive(Debug)]
struct StepDown {
    epoch: Epoch,
    drain_timeout: Duration,
    /// Resolves when the Lease is released.
    release: oneshot::Receiver<Epoch>,
    answer: oneshot::Sender<Result<Epoch, NotLeading>>,
}

impl ReplicaDriver {
    /// A driver of `replica`. At the end of leadership it waits for outstanding acks for `drain_timeout`.
    pub fn new(
        replica: Replica,
        clock: Clock,
        metrics: Arc<Metrics>,
        drain_timeout: Duration,
        connections: Connections,
    ) -> Self {
        let depths = [
            metrics.queue("answers", ANSWERS_QUEUED_MAX),
            metrics.queue("commands", COMMANDS_QUEUED_MAX),
            metrics.queue("announcements", ANNOUNCEMENTS_MAX),
        ];
        Self {
            depths,
            replica,
            clock,
            metrics,
            drain_timeout,
            connections,
            queues: BTreeMap::new(),
            acks: BTreeMap::new(),
            next_ack: 0,
            role: Role::Standby,
            step_down: None,
            status_at: BootInstant::default(),
        }
    }

    /// Runs until [`Control::Shutdown`], or until the composition root is gone.
    pub async fn run(mut self) {
        let mut answers = Vec::with_capacity(ANSWERS_AT_ONCE);
        loop {
            let wait = self.replica.deadline().map_or(STATUS_INTERVAL, |deadline| deadline.since(self.now().boot));
            // Each arm only receives, and receiving is cancel-safe.
            tokio::select! {
                // Roles first: nothing may be made for an epoch that has ended.
                biased;
                Some(announcement) = self.connections.announcements.recv() => self.announced(announcement),
                control = self.connections.control.recv() => match control {
                    Some(Control::ClusterKnown { uid }) => self.step(Input::ClusterKnown { uid }),
                    Some(Control::Shutdown) | None => break,
                },
                Some(command) = self.connections.inbox.commands.recv() => self.command(command),
                () = self.connections.inbox.board.changed() => self.read_board(),
                () = released(&mut self.step_down) => self.answer_step_down(),
                count = self.connections.answers.recv_many(&mut answers, ANSWERS_AT_ONCE), if !self.connections.requests.is_empty() => {
                    if count == 0 {
                        break;
                    }
                    for answer in answers.drain(..) {
                        self.step(Input::Feed { feed: FeedIndex(answer.feed), input: answer.input });
                    }
                }
                () = tokio::time::sleep(wait.min(STATUS_INTERVAL)) => self.tick(),
            }
            self.publish_status();
        }
        self.step(Input::Shutdown);
        // Streams that still hold frames pull them, and find the end behind them.
        self.queues.clear();
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    fn tick(&mut self) {
        let abandoned: Vec<_> = self.acks.iter().filter(|(_, answer)| answer.is_closed()).map(|(id, _)| *id).collect();
        for id in abandoned {
            self.acks.remove(&id);
            self.step(Input::AckAbandoned { id });
        }
        self.step(Input::Tick);
    }

    fn step(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.replica.step(self.now(), input, &mut effects);
        for effect in effects {
            self.perform(effect);
        }
    }

    fn announced(&mut self, announcement: Announcement) {
        let Announcement::Role { role, lease } = announcement else {
            return self.step(Input::Announced(announcement));
        };
        let same_epoch = |epoch: &_| matches!(&self.role, Role::Leading { epoch: known, .. } if known == epoch);
        let renewed = matches!(&role, Role::Leading { epoch, .. } if same_epoch(epoch));
        if !renewed && self.role != role {
            info!(from = ?self.role, to = ?role, holder = lease.holder_identity, transitions = lease.lease_transitions, "role");
        }
        self.role = role.clone();
        // Taken out before the news is made, which is a frame of the new epoch itself, and given back after it.
        let withdrawn = if renewed { Vec::new() } else { self.withdraw_all() };
        self.step(Input::Announced(Announcement::Role { role, lease }));
        for (session, frames) in withdrawn {
            self.step(Input::Withdrawn { session, frames });
        }
        match &self.role {
            Role::Releasing { .. } => {
                let timeout = self.step_down.as_ref().map_or(self.drain_timeout, |step_down| step_down.drain_timeout);
                let until = self.now().boot + timeout;
                self.step(Input::Drain { until });
            }
            Role::Standby | Role::Lost { .. } | Role::Disabled | Role::Leading { .. } | Role::Suspended { .. } => {}
        }
        // The gate may have opened: frames that waited for it can leave.
        self.queues.values().for_each(FrameQueue::wake);
    }

    /// The gate has closed or belongs to another epoch: what was not pulled goes back to its session.
    fn withdraw_all(&self) -> Vec<(SessionId, Vec<Frame>)> {
        let withdrawn = self.queues.iter().map(|(session, queue)| (*session, queue.withdraw()));
        withdrawn.filter(|(_, frames)| !frames.is_empty()).collect()
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Open { queue, .. } if queue.is_abandoned() => {}
            Command::Open { session, open, queue } => {
                self.queues.insert(session, queue);
                self.step(Input::Open { session, open });
            }
            Command::Ack { ack, answer } => {
                let id = AckId(self.next_ack);
                self.next_ack += 1;
                self.acks.insert(id, answer);
                self.step(Input::Ack { id, ack });
            }
            Command::Status { answer } => {
                // Whoever asked may have gone.
                let _ = answer.send(self.replica.status(self.now()));
            }
            Command::StepDown { cooldown, drain_timeout, answer } => match self.role {
                // One at a time: the elector announces the release of the first in a moment.
                Role::Leading { epoch, .. } | Role::Suspended { epoch } if self.step_down.is_none() => {
                    let (released, release) = oneshot::channel();
                    let cooldown = cooldown.unwrap_or_default();
                    self.ask_elector(ElectorCommand::StepDown { cooldown, drain: drain_timeout, answer: released });
                    self.step_down = Some(StepDown { epoch, drain_timeout, release, answer });
                }
                _ => {
                    let lease = self.replica.status(self.now()).lease;
                    let not_leading = NotLeading { holder: lease.holder_identity, epoch: lease.epoch_seen };
                    let _ = answer.send(Err(not_leading));
                }
            },
        }
    }

    /// The Lease is released, or the elector is gone and nothing is led any more either way.
    fn answer_step_down(&mut self) {
        if let Some(step_down) = self.step_down.take() {
            // Whoever asked may have gone.
            let _ = step_down.answer.send(Ok(step_down.epoch));
        }
    }

    fn ask_elector(&self, command: ElectorCommand) {
        let Some(elector) = &self.connections.elector else { return };
        if elector.try_send(command).is_err() {
            warn!("the elector takes no command");
        }
    }

    fn read_board(&mut self) {
        for (session, progress) in self.connections.inbox.board.take() {
            if progress.closed {
                self.queues.remove(&session);
                self.step(Input::Closed { session });
            } else if progress.frames > 0 {
                self.step(Input::Pulled { session, frames: progress.frames });
            }
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Feed { feed, effect } => self.perform_feed(feed, effect),
            Effect::Send { session, frame } => {
                if let Some(queue) = self.queues.get(&session) {
                    queue.push(*frame);
                }
            }
            // The queue stays until the board says that the stream is gone: what is queued is still to be pulled.
            Effect::End { session, error } => {
                if let Some(queue) = self.queues.get(&session) {
                    queue.end(error);
                }
            }
            Effect::Acked { id, result } => {
                if let Some(answer) = self.acks.remove(&id) {
                    let _ = answer.send(result);
                }
            }
            Effect::Checkpoint(checkpoint) => {
                self.metrics.checkpoint.bytes.set(i64::try_from(checkpoint.text.len()).unwrap_or(i64::MAX));
                self.connections.checkpoints.send_replace(Some(checkpoint));
            }
            Effect::Drained => self.ask_elector(ElectorCommand::Drained),
            Effect::Noted(note) => self.note(note),
        }
    }

    fn perform_feed(&mut self, feed: FeedIndex, effect: feed::Effect) {
        let name = &self.replica.feed(feed).spec().name;
        match effect {
            feed::Effect::Moved { from, to, why } => info!(feed = %name, ?from, ?to, why, "feed"),
            feed::Effect::Noted(note) => self.metrics.feed(name).note(note),
            request => self.connections.requests[feed.0].perform(&request),
        }
    }

    fn note(&self, note: Note) {
        match &note {
            Note::Gap { feed, subscription, kind, reason } => {
                let subscription = subscription.as_deref().unwrap_or(EPHEMERAL);
                warn!(feed = %feed, subscription, ?kind, ?reason, "gap");
                self.metrics.subscription(subscription).gap(kind_word(*kind), reason_word(*reason));
            }
            Note::Coalesced { feed, entries } => warn!(feed = %feed, entries, "journal over its limit: updates merged"),
            Note::CheckpointUnreadable { why } => warn!(why, "checkpoint cannot be used: subscriptions are reset"),
            Note::CheckpointUnwritable { why } => warn!(why, "checkpoint cannot be written"),
            Note::Leading { epoch } => info!(epoch = epoch.as_u64(), "leading"),
            Note::Session { session, subscription, what } => {
                info!(session, subscription = subscription.as_deref().unwrap_or_default(), ?what, "session");
            }
            Note::Delivered { feed, subscription, events, coalesced, synthesized_deletes } => {
                let of_subscription = self.metrics.subscription(subscription.as_deref().unwrap_or(EPHEMERAL));
                of_subscription.events.inc_by(*events);
                of_subscription.coalesced_events.inc_by(*coalesced);
                self.metrics.feed(feed).synthesized_deletes.inc_by(*synthesized_deletes);
            }
            Note::Acked { subscription } => drop(self.metrics.subscription(subscription).acks.inc()),
        }
    }

    fn publish_status(&mut self) {
        let now = self.now();
        if now.boot.since(self.status_at) >= STATUS_INTERVAL || self.connections.status.borrow().is_none() {
            self.status_at = now.boot;
            let waiting = [
                self.connections.answers.len(),
                self.connections.inbox.commands.len(),
                self.connections.announcements.len(),
            ];
            for (queue, waiting) in self.depths.iter().zip(waiting) {
                queue.depth.set(i64::try_from(waiting).unwrap_or(i64::MAX));
            }
            self.connections.status.send_replace(Some(Arc::new(self.replica.status(now))));
        }
    }
}

/// Waits until the Lease that somebody asked to give up is released; for ever when nobody asked.
async fn released(step_down: &mut Option<StepDown>) {
    match step_down {
        // An error means that the elector is gone.
        Some(step_down) => _ = (&mut step_down.release).await,
        None => std::future::pending().await,
    }
}

fn kind_word(kind: GapKind) -> &'static str {
    match kind {
        GapKind::Coalesced => "coalesced",
        GapKind::Reset => "reset",
        GapKind::HandledElsewhere => "handled_elsewhere",
        GapKind::LiveStart => "live_start",
    }
}

fn reason_word(reason: GapReason) -> &'static str {
    match reason {
        GapReason::WatchExpired => "watch_expired",
        GapReason::JournalOverflow => "journal_overflow",
        GapReason::ColdStart => "cold_start",
        GapReason::FeedChanged => "feed_changed",
        GapReason::ClusterRewound => "cluster_rewound",
        GapReason::UnorderedVersions => "unordered_versions",
        GapReason::CursorUnknown => "cursor_unknown",
        GapReason::Failover => "failover",
    }
}
