//! The control driver: owns the elector and writes the gate, on a thread and a runtime of its own.
//!
//! It waits for nothing of the data path: announcements that are not taken wait here, the newest renewal in place of
//! older ones. Nothing but this thread opens the gate, and however the thread ends, the gate is closed first.

mod backlog;
mod service;

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt};
use sidewatch_core::codec::lease::{LeaseEvent, LeaseRecord};
use sidewatch_core::codec::status::{Failure, FailureKind};
use sidewatch_core::elector::{Effect, Elector, Input, Phase, RequestId};
use sidewatch_core::epoch::Epoch;
use sidewatch_core::gate::Gate;
use sidewatch_core::leadership::{Announcement, PendingCheckpoint};
use sidewatch_core::resource_version::ResourceVersion;
use sidewatch_core::time::{BootInstant, WallTime};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::info;

use crate::clock::Clock;
use crate::supervisor;
use crate::telemetry::metrics::Metrics;
use backlog::Backlog;

/// Capacity of the channel of commands: each is one act of a person or of the shutdown.
pub const COMMANDS_MAX: usize = 16;
/// Capacity of the channel of announcements; more wait in the driver.
pub const ANNOUNCEMENTS_MAX: usize = 64;
/// Longest sleep of a leader. Timers of the runtime stand still while the machine is suspended, and a wall clock that
/// ran ahead is seen only by looking.
const LEADER_LOOK: Duration = Duration::from_millis(200);
/// Longest sleep of everybody else.
const LOOK: Duration = Duration::from_secs(1);

/// What others ask of the elector.
#[derive(Debug)]
pub enum Command {
    /// Give leadership up in order, then campaign again.
    StepDown {
        /// No campaign for this long; zero for twice the retry period.
        cooldown: Duration,
        /// Longest wait for [`Command::Drained`].
        drain: Duration,
        /// The epoch given up, [`Epoch::NONE`] when this replica did not lead; sent when the release is done.
        answer: oneshot::Sender<Epoch>,
    },
    /// Give leadership up in order, and end.
    Shutdown {
        /// Longest wait for [`Command::Drained`].
        drain: Duration,
    },
    /// The last acks are taken, and the last checkpoint lies in its slot.
    Drained,
    /// This process holds the lock that two starts in one pod cannot both hold.
    LocalLockHeld,
    /// It does not.
    LocalLockLost,
}

/// The Lease, as the driver reaches it. Every answer is awaited under the deadline of its effect.
pub trait LeaseService: Send {
    /// Reads the most recent state; none when there is no Lease.
    fn get(&self, timeout: Duration) -> BoxFuture<'static, Result<Option<LeaseRecord>, Failure>>;
    /// Writes under the precondition of uid and version.
    fn put(&self, record: LeaseRecord, timeout: Duration) -> BoxFuture<'static, Result<LeaseRecord, Failure>>;
    /// Creates.
    fn create(&self, record: LeaseRecord, timeout: Duration) -> BoxFuture<'static, Result<LeaseRecord, Failure>>;
    /// Watches after a version, or from the most recent state on. A watch that cannot be opened is one error.
    fn watch(&self, after: Option<ResourceVersion>) -> BoxStream<'static, Result<LeaseEvent, Failure>>;
}

/// The driver's ends of its channels.
#[derive(Debug)]
pub struct Ports {
    /// Commands; when all senders are gone, the driver shuts down.
    pub commands: mpsc::Receiver<Command>,
    /// The slot of the newest checkpoint.
    pub checkpoints: watch::Receiver<Option<PendingCheckpoint>>,
    /// To the replica driver.
    pub announcements: mpsc::Sender<Announcement>,
}

/// Why the control driver ended other than by a shutdown. The gate is closed by then.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The client of the Lease could not be made.
    #[error("the client of the Lease cannot be made")]
    Connect(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The runtime could not be made.
    #[error("the control runtime cannot be made")]
    Runtime(#[source] std::io::Error),
    /// Announcements were not taken for too long.
    #[error("the replica driver does not take announcements")]
    NotTaken,
    /// An invariant was broken, or something else panicked.
    #[error("the control driver panicked: {0}")]
    Panicked(String),
}

/// The running control thread.
#[derive(Debug)]
pub struct Control {
    ended: oneshot::Receiver<Result<(), ControlError>>,
}

impl Control {
    /// Waits for the end of the thread.
    ///
    /// # Errors
    /// When it ended by anything but [`Command::Shutdown`]; the gate was closed before this returns.
    pub async fn ended(self) -> Result<(), ControlError> {
        self.ended.await.unwrap_or_else(|_| Err(ControlError::Panicked("no report".to_owned())))
    }
}

/// Starts the control thread. `connect` is called inside its runtime, so that the Lease client lives there.
///
/// # Errors
/// When the thread cannot be made.
pub fn spawn<E>(
    elector: Elector,
    gate: Arc<Gate>,
    ports: Ports,
    metrics: Arc<Metrics>,
    connect: impl FnOnce() -> Result<Box<dyn LeaseService>, E> + Send + 'static,
) -> std::io::Result<Control>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (report, ended) = oneshot::channel();
    let control = move || {
        let run = AssertUnwindSafe(|| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ControlError::Runtime)?;
            runtime.block_on(async {
                let service = connect().map_err(|error| ControlError::Connect(error.into()))?;
                let clocks = Box::new(|| (Clock.boot(), Clock.wall()));
                Driver::new(elector, Arc::clone(&gate), ports, service, metrics, clocks).run().await
            })
        });
        let result = panic::catch_unwind(run);
        // Before anybody hears of the end.
        gate.close();
        let result = result.unwrap_or_else(|panic| Err(ControlError::Panicked(panic_message(&*panic))));
        // Nobody may be waiting any more.
        let _ = report.send(result);
    };
    supervisor::spawn_thread("control", control)?;
    Ok(Control { ended })
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}

/// Closes the gate when the driver goes away, by return or by panic.
struct CloseOnDrop(Arc<Gate>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

type Clocks = Box<dyn Fn() -> (BootInstant, WallTime) + Send>;

struct Driver {
    elector: Elector,
    gate: CloseOnDrop,
    ports: Ports,
    service: Box<dyn LeaseService>,
    clocks: Clocks,
    metrics: Arc<Metrics>,
    /// When the write under way was sent.
    write_sent: Option<BootInstant>,
    flight: Option<(RequestId, BoxFuture<'static, Input>)>,
    watch: Option<(RequestId, BoxStream<'static, Result<LeaseEvent, Failure>>)>,
    backlog: Backlog,
    step_downs: Vec<oneshot::Sender<Epoch>>,
    ended: bool,
}

/// What the driver woke up for.
enum Happened {
    Command(Option<Command>),
    Answer(Input),
    Watch(RequestId, Option<Result<LeaseEvent, Failure>>),
    Checkpoint,
    Room,
    Time,
}

impl Driver {
    fn new(
        elector: Elector,
        gate: Arc<Gate>,
        ports: Ports,
        service: Box<dyn LeaseService>,
        metrics: Arc<Metrics>,
        clocks: Clocks,
    ) -> Self {
        Self {
            metrics,
            write_sent: None,
            elector,
            gate: CloseOnDrop(gate),
            ports,
            service,
            clocks,
            flight: None,
            watch: None,
            backlog: Backlog::default(),
            step_downs: Vec::new(),
            ended: false,
        }
    }

    async fn run(mut self) -> Result<(), ControlError> {
        self.step(Input::Start)?;
        let (mut commands_open, mut checkpoints_open) = (true, true);
        while !self.ended {
            let sleep = tokio::time::sleep(self.sleep());
            // Each arm is cancel-safe: channels lose nothing, and flight and watch are polled by reference.
            let happened = tokio::select! {
                biased;
                input = answer(&mut self.flight), if self.flight.is_some() => Happened::Answer(input),
                command = self.ports.commands.recv(), if commands_open => Happened::Command(command),
                (request, item) = next(&mut self.watch), if self.watch.is_some() => Happened::Watch(request, item),
                changed = self.ports.checkpoints.changed(), if checkpoints_open => {
                    checkpoints_open = changed.is_ok();
                    Happened::Checkpoint
                }
                permit = self.ports.announcements.reserve(), if !self.backlog.is_empty() => {
                    // A receiver that is gone is noticed by whoever watches over it, not here.
                    if let (Ok(permit), Some(first)) = (permit, self.backlog.pop()) {
                        permit.send(first);
                    }
                    Happened::Room
                }
                () = sleep => Happened::Time,
            };
            match happened {
                Happened::Answer(input) => {
                    self.flight = None;
                    self.measure(&input);
                    self.step(input)?;
                }
                Happened::Command(Some(command)) => self.obey(command)?,
                Happened::Command(None) => {
                    commands_open = false;
                    self.step(Input::Shutdown { drain: Duration::ZERO })?;
                }
                Happened::Watch(request, item) => self.watched(request, item)?,
                Happened::Checkpoint => self.take_checkpoint()?,
                Happened::Room => {}
                Happened::Time => self.step(Input::Tick)?,
            }
        }
        // The last role is worth a moment, but not more.
        while let Some(announcement) = self.backlog.pop() {
            let sending = self.ports.announcements.send(announcement);
            if !matches!(tokio::time::timeout(LEADER_LOOK, sending).await, Ok(Ok(()))) {
                break;
            }
        }
        Ok(())
    }

    /// Until the machine's deadline, but never so long that a pause of the machine goes unnoticed.
    fn sleep(&self) -> Duration {
        let longest = if self.elector.phase() == Phase::Leading { LEADER_LOOK } else { LOOK };
        let (now, _) = (self.clocks)();
        self.elector.deadline().map_or(longest, |deadline| deadline.since(now).min(longest))
    }

    fn obey(&mut self, command: Command) -> Result<(), ControlError> {
        match command {
            Command::StepDown { cooldown, drain, answer } => {
                self.step_downs.push(answer);
                self.step(Input::StepDown { cooldown, drain })
            }
            Command::Shutdown { drain } => self.step(Input::Shutdown { drain }),
            Command::Drained => {
                // The last checkpoint was put into its slot before this was sent.
                self.take_checkpoint()?;
                self.step(Input::Drained)
            }
            Command::LocalLockHeld => self.step(Input::LocalLockHeld),
            Command::LocalLockLost => self.step(Input::LocalLockLost),
        }
    }

    fn take_checkpoint(&mut self) -> Result<(), ControlError> {
        let pending = self.ports.checkpoints.borrow_and_update().clone();
        pending.map_or(Ok(()), |pending| self.step(Input::Checkpoint(pending)))
    }

    fn watched(&mut self, request: RequestId, item: Option<Result<LeaseEvent, Failure>>) -> Result<(), ControlError> {
        let input = match item {
            Some(Ok(LeaseEvent::Observed(record))) => Input::LeaseObserved { request, record },
            Some(Ok(LeaseEvent::Deleted(record))) => Input::LeaseDeleted { request, record },
            Some(Ok(LeaseEvent::Bookmark | LeaseEvent::Error(_))) => return Ok(()),
            Some(Err(failure)) => {
                self.watch = None;
                Input::RequestFailed { request, failure }
            }
            None => {
                self.watch = None;
                Input::WatchClosed { request }
            }
        };
        self.step(input)
    }

    /// Counts the answer to a write, and the time it took.
    fn measure(&mut self, input: &Input) {
        let Some(sent) = self.write_sent.take() else { return };
        let leadership = &self.metrics.leadership;
        match input {
            Input::PutOk { .. } => leadership.renewals.inc(),
            _ => leadership.renewal_failures.inc(),
        };
        leadership.lease_answered((self.clocks)().0.since(sent));
    }

    fn step(&mut self, input: Input) -> Result<(), ControlError> {
        let (now, wall) = (self.clocks)();
        let mut effects = Vec::new();
        self.elector.step(now, wall, input, &mut effects);
        effects.into_iter().try_for_each(|effect| self.perform(effect))
    }

    fn perform(&mut self, effect: Effect) -> Result<(), ControlError> {
        match effect {
            Effect::GetLease { request, timeout } => {
                let answer = within(timeout, self.service.get(timeout));
                self.flight = Some((request, Box::pin(async move { read_input(request, answer.await) })));
            }
            Effect::PutLease { request, record, timeout } => {
                self.write_sent = Some((self.clocks)().0);
                let answer = within(timeout, self.service.put(record, timeout));
                self.flight = Some((request, Box::pin(async move { write_input(request, answer.await) })));
            }
            Effect::CreateLease { request, record, timeout } => {
                let answer = within(timeout, self.service.create(record, timeout));
                self.flight = Some((request, Box::pin(async move { write_input(request, answer.await) })));
            }
            Effect::WatchLease { request, after } => self.watch = Some((request, self.service.watch(after))),
            Effect::Cancel { request } => {
                self.flight.take_if(|(flight, _)| *flight == request);
                self.watch.take_if(|(watch, _)| *watch == request);
            }
            Effect::OpenGate { epoch, until } => self.gate.0.open(epoch, until),
            Effect::CloseGate => self.gate.0.close(),
            Effect::Announce(announcement) => {
                match &announcement {
                    Announcement::Role { role, .. } => self.metrics.leadership.role_changed(role),
                    Announcement::CheckpointStored { .. } => _ = self.metrics.checkpoint.writes.inc(),
                    Announcement::Acquired { .. } | Announcement::CheckpointSeen { .. } | Announcement::Rewound => {}
                }
                let waiting = if self.backlog.is_empty() {
                    match self.ports.announcements.try_send(announcement) {
                        Ok(()) => None,
                        Err(error) => Some(error.into_inner()),
                    }
                } else {
                    Some(announcement)
                };
                if waiting.is_some_and(|announcement| self.backlog.push(announcement).is_err()) {
                    return Err(ControlError::NotTaken);
                }
            }
            Effect::Released { epoch } => {
                for answer in self.step_downs.drain(..) {
                    // The caller may have gone away.
                    let _ = answer.send(epoch);
                }
            }
            Effect::Ended => self.ended = true,
            Effect::Moved { from, to, why } => info!(machine = "elector", %from, %to, ?why),
        }
        Ok(())
    }
}

async fn answer(flight: &mut Option<(RequestId, BoxFuture<'static, Input>)>) -> Input {
    match flight {
        Some((_, answer)) => answer.await,
        None => std::future::pending().await,
    }
}

type WatchStream = BoxStream<'static, Result<LeaseEvent, Failure>>;

async fn next(watch: &mut Option<(RequestId, WatchStream)>) -> (RequestId, Option<Result<LeaseEvent, Failure>>) {
    match watch {
        Some((request, stream)) => (*request, stream.next().await),
        None => std::future::pending().await,
    }
}

/// The hard deadline of a request, whatever the service does about it.
async fn within<T>(timeout: Duration, answer: BoxFuture<'static, Result<T, Failure>>) -> Result<T, Failure> {
    let late = |_| Err(Failure::new(FailureKind::Timeout, format!("no answer within {timeout:?}")));
    tokio::time::timeout(timeout, answer).await.unwrap_or_else(late)
}

fn read_input(request: RequestId, answer: Result<Option<LeaseRecord>, Failure>) -> Input {
    match answer {
        Ok(Some(record)) => Input::LeaseObserved { request, record },
        Ok(None) => Input::LeaseAbsent { request },
        Err(failure) => Input::RequestFailed { request, failure },
    }
}

fn write_input(request: RequestId, answer: Result<LeaseRecord, Failure>) -> Input {
    match answer {
        Ok(record) => Input::PutOk { request, record },
        Err(failure) if failure.kind == FailureKind::Conflict => Input::PutConflict { request },
        Err(failure) => Input::RequestFailed { request, failure },
    }
}

#[cfg(test)]
mod tests;
