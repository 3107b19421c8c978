//! The control driver: one thread owns the elector, writes the gate, and talks to the Lease.
//!
//! It has its own runtime, so that nothing of the data path can keep it from renewing or from closing the gate. A panic
//! here closes the gate before anything else is told.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::{Either, pending};
use sidewatch_core::codec::lease::LeaseEvent;
use sidewatch_core::codec::status::FailureKind;
use sidewatch_core::elector::{Effect, Elector, Identity, Input, Parameters, RequestId};
use sidewatch_core::gate::Gate;
use sidewatch_core::leadership::{Announcement, PendingCheckpoint};
use sidewatch_core::resource_version::ResourceVersion;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::{debug, info};

use crate::apiserver::client::Client;
use crate::apiserver::lease::{LeaseApi, Shown};
use crate::clock::Clock;
use crate::telemetry::metrics::Metrics;

/// Announcements that wait for the replica driver: some seconds of renewals and observations.
pub const ANNOUNCEMENTS_QUEUED_MAX: usize = 64;
/// Answers that wait for the elector: one request and one watch.
const ANSWERS_QUEUED_MAX: usize = 8;
/// Commands that wait for the elector.
const COMMANDS_QUEUED_MAX: usize = 8;
/// How long the elector sleeps at most: a machine that was suspended is noticed soon after.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// What the rest of the process asks of the elector.
#[derive(Debug)]
enum Command {
    StepDown { cooldown: Duration, drain: Duration },
    Shutdown { drain: Duration },
    Drained,
}

/// Asks the elector for something. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ElectorHandle {
    commands: mpsc::Sender<Command>,
}

impl ElectorHandle {
    /// Gives leadership up in order: after outstanding acks, but after `drain` at the latest.
    pub fn step_down(&self, cooldown: Option<Duration>, drain: Duration) {
        self.command(Command::StepDown { cooldown: cooldown.unwrap_or_default(), drain });
    }

    /// Gives leadership up in order and ends; see [`ElectorThread::ended`].
    pub fn shutdown(&self, drain: Duration) {
        self.command(Command::Shutdown { drain });
    }

    /// The last acks are taken and the last checkpoint lies in the slot.
    pub fn drained(&self) {
        self.command(Command::Drained);
    }

    fn command(&self, command: Command) {
        // Full only when the thread is stuck or gone; its end is noticed elsewhere.
        if self.commands.try_send(command).is_err() {
            debug!("the elector takes no command");
        }
    }
}

/// What the elector is made of.
#[derive(Clone, Debug)]
pub struct Election {
    /// Times.
    pub parameters: Parameters,
    /// Who writes the Lease.
    pub identity: Identity,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Seed of its jitter.
    pub seed: u64,
}

/// The running control thread.
#[derive(Debug)]
pub struct ElectorThread {
    /// Commands for it.
    pub handle: ElectorHandle,
    /// Resolves when the elector has ended: Ok in order, with an error when the thread panicked or could not start.
    pub ended: oneshot::Receiver<Result<(), String>>,
    thread: JoinHandle<()>,
}

impl ElectorThread {
    /// Starts the thread. It makes its own client from `config`, so that Lease calls share no connection with the data.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub fn start(
        election: Election,
        config: kube::Config,
        gate: Arc<Gate>,
        metrics: Arc<Metrics>,
        checkpoints: watch::Receiver<Option<PendingCheckpoint>>,
        announcements: mpsc::Sender<Announcement>,
    ) -> std::io::Result<Self> {
        let (sender, commands) = mpsc::channel(COMMANDS_QUEUED_MAX);
        let (ending, ended) = oneshot::channel();
        let closer = CloseOnDrop(Arc::clone(&gate));
        let thread = std::thread::Builder::new().name("elector".to_owned()).spawn(move || {
            let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _closer = closer;
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.map_err(|error| error.to_string())?.block_on(async {
                    let client = Client::new(config).map_err(|error| format!("{error:#}"))?;
                    let lease = LeaseApi::new(client, &election.namespace, &election.name);
                    ElectorDriver::new(&election, lease, gate, metrics, announcements).run(commands, checkpoints).await;
                    Ok(())
                })
            }));
            let outcome = run.unwrap_or_else(|_| Err("the elector panicked".to_owned()));
            // Nobody listens when the process is ending anyway.
            let _ = ending.send(outcome);
        })?;
        Ok(Self { handle: ElectorHandle { commands: sender }, ended, thread })
    }

    /// Waits for the thread after [`ElectorThread::ended`]. Blocks for as long as its runtime takes to wind up.
    pub fn join(self) {
        // A panic was reported as the outcome already.
        let _ = self.thread.join();
    }
}

/// Closes the gate when the control thread unwinds, before anybody can be told (E row 42).
#[derive(Debug)]
struct CloseOnDrop(Arc<Gate>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Owns the machine.
#[derive(Debug)]
struct ElectorDriver {
    elector: Elector,
    clock: Clock,
    lease: LeaseApi,
    gate: Arc<Gate>,
    metrics: Arc<Metrics>,
    announcements: mpsc::Sender<Announcement>,
    /// Told and not yet taken, in order; of a run of renewals only the newest is kept.
    backlog: std::collections::VecDeque<Announcement>,
    requests: JoinSet<()>,
    tasks: std::collections::BTreeMap<RequestId, tokio::task::AbortHandle>,
    answers: mpsc::Sender<Input>,
    answered: mpsc::Receiver<Input>,
    ended: bool,
}

impl ElectorDriver {
    fn new(
        election: &Election,
        lease: LeaseApi,
        gate: Arc<Gate>,
        metrics: Arc<Metrics>,
        announcements: mpsc::Sender<Announcement>,
    ) -> Self {
        let Election { parameters, identity, namespace, name, seed } = election;
        let (answers, answered) = mpsc::channel(ANSWERS_QUEUED_MAX);
        Self {
            elector: Elector::new(parameters.clone(), identity.clone(), namespace, name, *seed),
            clock: Clock,
            lease,
            gate,
            metrics,
            announcements,
            backlog: std::collections::VecDeque::new(),
            requests: JoinSet::new(),
            tasks: std::collections::BTreeMap::new(),
            answers,
            answered,
            ended: false,
        }
    }

    async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut checkpoints: watch::Receiver<Option<PendingCheckpoint>>,
    ) {
        let announcements = self.announcements.clone();
        self.step(Input::Start);
        while !self.ended {
            let now = self.clock.boot();
            let sleep = self.elector.deadline().map_or(SLEEP_MAX, |deadline| deadline.since(now).min(SLEEP_MAX));
            let room =
                if self.backlog.is_empty() { Either::Left(pending()) } else { Either::Right(announcements.reserve()) };
            // Every arm is cancel-safe: receivers, a reservation that is given back, a timer.
            let input = tokio::select! {
                room = room => {
                    if let (Ok(permit), Some(announcement)) = (room, self.backlog.pop_front()) {
                        permit.send(announcement);
                    } else {
                        // The replica driver is gone: the process is ending.
                        self.backlog.clear();
                    }
                    continue;
                }
                Some(input) = self.answered.recv() => input,
                command = commands.recv() => match command {
                    Some(Command::StepDown { cooldown, drain }) => Input::StepDown { cooldown, drain },
                    Some(Command::Shutdown { drain }) => Input::Shutdown { drain },
                    Some(Command::Drained) => {
                        // The last checkpoint comes before the release that carries it.
                        self.take_checkpoint(&mut checkpoints);
                        Input::Drained
                    }
                    None => Input::Shutdown { drain: Duration::ZERO },
                },
                Ok(()) = checkpoints.changed() => {
                    self.take_checkpoint(&mut checkpoints);
                    continue;
                }
                Some(_) = self.requests.join_next(), if !self.requests.is_empty() => continue,
                () = tokio::time::sleep(sleep) => Input::Tick,
            };
            self.step(input);
        }
        self.gate.close();
        for announcement in std::mem::take(&mut self.backlog) {
            if self.announcements.send(announcement).await.is_err() {
                break;
            }
        }
        self.requests.shutdown().await;
    }

    fn take_checkpoint(&mut self, checkpoints: &mut watch::Receiver<Option<PendingCheckpoint>>) {
        let newest = checkpoints.borrow_and_update().clone();
        if let Some(checkpoint) = newest {
            self.step(Input::Checkpoint(checkpoint));
        }
    }

    fn step(&mut self, input: Input) {
        let now = self.clock.now();
        let mut effects = Vec::new();
        self.elector.step(now.boot, now.wall, input, &mut effects);
        for effect in effects {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            // The gate first: everything else only tells of it.
            Effect::OpenGate { epoch, until } => self.gate.open(epoch, until),
            Effect::CloseGate => self.gate.close(),
            Effect::Announce(announcement) => self.announce(announcement),
            Effect::Moved { from, to, why } => info!(?from, ?to, ?why, "elector"),
            Effect::GetLease { request, timeout } => {
                let lease = self.lease.clone();
                self.spawn(request, async move {
                    match lease.get(timeout).await {
                        Ok(record) => Input::LeaseObserved { request, record },
                        Err(failure) if failure.kind == FailureKind::NotFound => Input::LeaseAbsent { request },
                        Err(failure) => Input::RequestFailed { request, failure },
                    }
                });
            }
            Effect::PutLease { request, record, timeout } => {
                let (lease, metrics, clock) = (self.lease.clone(), Arc::clone(&self.metrics), self.clock);
                self.spawn(request, async move {
                    let sent = clock.boot();
                    let answer = lease.put(&record, timeout).await;
                    metrics.leadership.lease_answered(clock.boot().since(sent));
                    match &answer {
                        Ok(_) => metrics.leadership.renewals.inc(),
                        Err(_) => metrics.leadership.renewal_failures.inc(),
                    };
                    write_answer(request, answer)
                });
            }
            Effect::CreateLease { request, record, timeout } => {
                let lease = self.lease.clone();
                self.spawn(request, async move { write_answer(request, lease.create(&record, timeout).await) });
            }
            Effect::WatchLease { request, after } => self.watch(request, after),
            Effect::Cancel { request } => {
                if let Some(task) = self.tasks.remove(&request) {
                    task.abort();
                }
            }
            Effect::Released { epoch } => info!(epoch = epoch.as_u64(), "released"),
            Effect::Ended => self.ended = true,
        }
    }

    fn spawn(&mut self, request: RequestId, answer: impl Future<Output = Input> + Send + 'static) {
        let answers = self.answers.clone();
        let task = self.requests.spawn(async move {
            // The driver is gone only when the thread ends.
            let _ = answers.send(answer.await).await;
        });
        self.tasks.retain(|_, task| !task.is_finished());
        self.tasks.insert(request, task);
    }

    fn watch(&mut self, request: RequestId, after: Option<ResourceVersion>) {
        let (lease, answers) = (self.lease.clone(), self.answers.clone());
        let task = self.requests.spawn(async move {
            let end = async {
                let mut watch = lease.watch(after.as_ref()).await?;
                loop {
                    let input = match watch.next().await? {
                        Shown::Closed => return Ok(()),
                        Shown::Event(event) => match *event {
                            LeaseEvent::Observed(record) => Input::LeaseObserved { request, record },
                            LeaseEvent::Deleted(record) => Input::LeaseDeleted { request, record },
                            LeaseEvent::Bookmark | LeaseEvent::Error(_) => continue,
                        },
                    };
                    if answers.send(input).await.is_err() {
                        return Ok(());
                    }
                }
            };
            let input = match end.await {
                Ok(()) => Input::WatchClosed { request },
                Err(failure) => Input::RequestFailed { request, failure },
            };
            let _ = answers.send(input).await;
        });
        self.tasks.insert(request, task);
    }

    /// Queues an announcement without waiting. Of two renewals in a row the older one says nothing any more.
    fn announce(&mut self, announcement: Announcement) {
        use sidewatch_core::leadership::Role;
        match &announcement {
            Announcement::Role { role, .. } => self.metrics.leadership.role_changed(role),
            Announcement::CheckpointStored { .. } => drop(self.metrics.checkpoint.writes.inc()),
            Announcement::Acquired { .. } | Announcement::CheckpointSeen { .. } => {}
        }
        let renewal = |announcement: &Announcement| match announcement {
            Announcement::Role { role: Role::Leading { epoch, .. }, .. } => Some(*epoch),
            _ => None,
        };
        if let Some(last) = self.backlog.back_mut()
            && renewal(last).is_some()
            && renewal(last) == renewal(&announcement)
        {
            *last = announcement;
            return;
        }
        if self.backlog.is_empty() {
            match self.announcements.try_send(announcement) {
                Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
                Err(mpsc::error::TrySendError::Full(announcement)) => self.backlog.push_back(announcement),
            }
        } else {
            self.backlog.push_back(announcement);
        }
    }
}

fn write_answer(
    request: RequestId,
    answer: Result<sidewatch_core::codec::lease::LeaseRecord, sidewatch_core::codec::status::Failure>,
) -> Input {
    match answer {
        Ok(record) => Input::PutOk { request, record },
        Err(failure) if failure.kind == FailureKind::Conflict => Input::PutConflict { request },
        Err(failure) => Input::RequestFailed { request, failure },
    }
}
