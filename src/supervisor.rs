//! Named tasks, all joined: an end, by return or by panic, is an event that someone must look at.
//!
//! There is one [`Supervisor`], held by whoever decides what an end means, and any number of [`Spawner`]s. Nothing is
//! restarted here and no task outlives the supervisor. Threads come from [`spawn_thread`], and tell their end themselves.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

/// Owner of all tasks; the only one that hears of their ends. Dropping it aborts them.
#[derive(Debug)]
pub struct Supervisor {
    spawner: Spawner,
    /// Ends seen while waiting for a group, kept for [`Supervisor::next_end`].
    seen: VecDeque<TaskEnd>,
}

/// Starts tasks under the supervisor it came from.
#[derive(Clone, Debug)]
pub struct Spawner {
    shared: Arc<Shared>,
}

/// The end of one task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskEnd {
    /// As given to [`Spawner::spawn`].
    pub name: Arc<str>,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a task ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It returned.
    Returned,
    /// It returned an error: its chain of causes.
    Failed(String),
    /// It panicked: the message.
    Panicked(String),
    /// It was aborted by the supervisor.
    Aborted,
}

impl fmt::Display for TaskEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Returned => write!(f, "task {} returned", self.name),
            Outcome::Failed(why) => write!(f, "task {} failed: {why}", self.name),
            Outcome::Panicked(why) => write!(f, "task {} panicked: {why}", self.name),
            Outcome::Aborted => write!(f, "task {} was aborted", self.name),
        }
    }
}

/// Starts a named thread, for what must not share a runtime. Nobody joins it: the body reports its end by itself, by
/// panic too, to whoever decides what that means.
///
/// # Errors
/// When the system gives no thread.
pub fn spawn_thread(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

/// What a task may return: nothing, or a result.
pub trait TaskOutput: Send + 'static {
    /// The outcome it stands for.
    fn into_outcome(self) -> Outcome;
}

impl TaskOutput for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Returned
    }
}

impl<E: fmt::Display + Send + 'static> TaskOutput for Result<(), E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(()) => Outcome::Returned,
            Err(error) => Outcome::Failed(format!("{error:#}")),
        }
    }
}

#[derive(Debug)]
struct Shared {
    tasks: Mutex<Tasks>,
    /// Told on every spawn: an empty set does not wake who waits for it.
    spawned: Notify,
    running: Gauge,
}

#[derive(Debug, Default)]
struct Tasks {
    set: JoinSet<Outcome>,
    running: HashMap<Id, Running>,
    closed: bool,
}

#[derive(Debug)]
struct Running {
    name: Arc<str>,
    abort: AbortHandle,
}

impl Supervisor {
    /// A supervisor without tasks; `running` counts those that have not been joined.
    pub fn new(running: Gauge) -> Self {
        let shared = Shared { tasks: Mutex::default(), spawned: Notify::new(), running };
        Self { spawner: Spawner { shared: Arc::new(shared) }, seen: VecDeque::new() }
    }

    /// A handle that starts tasks under this supervisor.
    pub fn spawner(&self) -> Spawner {
        self.spawner.clone()
    }

    /// Starts a task on the current runtime; see [`Spawner::spawn`].
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn spawn<F>(&self, name: impl Into<Arc<str>>, future: F)
    where
        F: Future + Send + 'static,
        F::Output: TaskOutput,
    {
        self.spawner.spawn(name, future);
    }

    /// Waits for the next end of any task; pending while there is none. Cancel-safe.
    pub async fn next_end(&mut self) -> TaskEnd {
        if let Some(end) = self.seen.pop_front() {
            return end;
        }
        loop {
            // Registered before looking, so that a spawn in between is not missed.
            let shared = self.spawner.shared.clone();
            let spawned = shared.spawned.notified();
            match self.poll_end().await {
                Some(end) => return end,
                None => spawned.await,
            }
        }
    }

    /// Aborts the tasks of a group: those named `group`, and those named `group/…`. Their ends are still events.
    pub fn abort(&self, group: &str) {
        for running in self.spawner.shared.lock().running.values().filter(|running| running.is_in(group)) {
            running.abort.abort();
        }
    }

    /// Waits for all tasks of a group to end; those that still run after `patience` are aborted, and named. Ends seen
    /// on the way, of whatever group, come from [`Supervisor::next_end`] later.
    pub async fn join(&mut self, group: &str, patience: Duration) -> Vec<Arc<str>> {
        let mut impatient = Vec::new();
        let mut patience = pin!(tokio::time::sleep(patience));
        loop {
            let running = self.spawner.shared.names_of(group);
            if running.is_empty() {
                return impatient;
            }
            tokio::select! {
                end = self.poll_end() => self.seen.extend(end),
                () = &mut patience, if impatient.is_empty() => {
                    self.abort(group);
                    impatient = running;
                }
            }
        }
    }

    /// Joins group after group in this order, each with the same patience, then aborts and joins what is left.
    /// Returns the names of the tasks that had to be aborted; no task can be started any more.
    pub async fn shutdown(&mut self, order: &[&str], patience: Duration) -> Vec<Arc<str>> {
        let mut impatient = Vec::new();
        for group in order {
            impatient.extend(self.join(group, patience).await);
        }
        let left = {
            let mut tasks = self.spawner.shared.lock();
            tasks.closed = true;
            tasks.set.abort_all();
            tasks.names(|_| true)
        };
        while let Some(end) = self.poll_end().await {
            self.seen.push_back(end);
        }
        impatient.extend(left);
        impatient
    }

    /// The next end that was not seen yet; none when no task runs.
    async fn poll_end(&mut self) -> Option<TaskEnd> {
        let shared = &self.spawner.shared;
        std::future::poll_fn(|context| {
            let mut tasks = shared.lock();
            match tasks.set.poll_join_next_with_id(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Ready(Some(joined)) => {
                    let (id, outcome) = match joined {
                        Ok(returned) => returned,
                        Err(error) => (error.id(), outcome_of(error)),
                    };
                    let running = tasks.running.remove(&id).expect("every task of the set was entered when it began");
                    shared.running.dec();
                    Poll::Ready(Some(TaskEnd { name: running.name, outcome }))
                }
            }
        })
        .await
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let mut tasks = self.spawner.shared.lock();
        tasks.closed = true;
        tasks.set.abort_all();
    }
}

impl Spawner {
    /// Starts a task on the current runtime. Names are paths, `feed-watch/pods`, whose first part is the group; after
    /// the supervisor's shutdown nothing is started.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn spawn<F>(&self, name: impl Into<Arc<str>>, future: F)
    where
        F: Future + Send + 'static,
        F::Output: TaskOutput,
    {
        self.spawn_on(&Handle::current(), name, future);
    }

    /// Starts a task on a given runtime; otherwise as [`Spawner::spawn`].
    pub fn spawn_on<F>(&self, runtime: &Handle, name: impl Into<Arc<str>>, future: F)
    where
        F: Future + Send + 'static,
        F::Output: TaskOutput,
    {
        let mut tasks = self.shared.lock();
        if tasks.closed {
            return;
        }
        let abort = tasks.set.spawn_on(async move { future.await.into_outcome() }, runtime);
        tasks.running.insert(abort.id(), Running { name: name.into(), abort });
        self.shared.running.inc();
        drop(tasks);
        self.shared.spawned.notify_one();
    }

    /// Starts a thread; its end is that of a task of the same name. Aborting ends the task only: a thread must be told
    /// to return by other means.
    ///
    /// # Errors
    /// When the system gives no thread.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn spawn_thread<T: TaskOutput>(
        &self,
        name: impl Into<Arc<str>>,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> std::io::Result<()> {
        let name = name.into();
        let (sender, ended) = oneshot::channel();
        std::thread::Builder::new().name(name.to_string()).spawn(move || {
            let outcome = match std::panic::catch_unwind(AssertUnwindSafe(body)) {
                Ok(returned) => returned.into_outcome(),
                Err(panic) => Outcome::Panicked(message(&*panic)),
            };
            // Nobody listens any more only when the supervisor is gone.
            let _ = sender.send(outcome);
        })?;
        self.spawn(name, async move { ThreadEnd(ended.await.unwrap_or(Outcome::Aborted)) });
        Ok(())
    }
}

/// The outcome of a thread, passed on by the task that waits for it.
struct ThreadEnd(Outcome);

impl TaskOutput for ThreadEnd {
    fn into_outcome(self) -> Outcome {
        self.0
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Tasks> {
        // Nothing between lock and unlock panics half way: the tasks themselves run without it.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names_of(&self, group: &str) -> Vec<Arc<str>> {
        self.lock().names(|running| running.is_in(group))
    }
}

impl Tasks {
    fn names(&self, wanted: impl Fn(&Running) -> bool) -> Vec<Arc<str>> {
        // The order of the map is not seen: sorted right below.
        let mut names: Vec<Arc<str>> =
            self.running.values().filter(|running| wanted(running)).map(|running| running.name.clone()).collect();
        names.sort();
        names
    }
}

impl Running {
    fn is_in(&self, group: &str) -> bool {
        self.name.strip_prefix(group).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

fn outcome_of(error: JoinError) -> Outcome {
    match error.try_into_panic() {
        Ok(panic) => Outcome::Panicked(message(&*panic)),
        Err(_) => Outcome::Aborted,
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::{Instant, sleep};

    use super::*;

    fn end(name: &str, outcome: Outcome) -> TaskEnd {
        TaskEnd { name: name.into(), outcome }
    }

    #[tokio::test(start_paused = true)]
    async fn every_end_is_an_event_with_its_name() {
        let running = Gauge::default();
        let mut supervisor = Supervisor::new(running.clone());
        supervisor.spawn("returns", async {});
        supervisor.spawn("fails", async {
            sleep(Duration::from_secs(1)).await;
            Err::<(), _>("no luck")
        });
        supervisor.spawn("panics", async {
            sleep(Duration::from_secs(2)).await;
            if Instant::now().elapsed() < Duration::MAX {
                panic!("at the disco");
            }
        });
        assert_eq!(running.get(), 3);
        assert_eq!(supervisor.next_end().await, end("returns", Outcome::Returned));
        assert_eq!(supervisor.next_end().await, end("fails", Outcome::Failed("no luck".to_owned())));
        assert_eq!(supervisor.next_end().await, end("panics", Outcome::Panicked("at the disco".to_owned())));
        assert_eq!(running.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_without_tasks_sees_one_that_starts_later() {
        let mut supervisor = Supervisor::new(Gauge::default());
        let spawner = supervisor.spawner();
        let late = async move {
            sleep(Duration::from_secs(5)).await;
            spawner.spawn("late", async {});
            pending::<()>().await;
        };
        let seen = tokio::select! {
            seen = supervisor.next_end() => seen,
            () = late => unreachable!("it waits for ever"),
        };
        assert_eq!(seen, end("late", Outcome::Returned));
    }

    #[tokio::test(start_paused = true)]
    async fn joining_a_group_waits_then_aborts_and_keeps_every_end() {
        let mut supervisor = Supervisor::new(Gauge::default());
        supervisor.spawn("grpc/stream-1", sleep(Duration::from_secs(1)));
        supervisor.spawn("grpc/stuck", pending::<()>());
        supervisor.spawn("grpcish", pending::<()>());
        supervisor.spawn("other", sleep(Duration::from_secs(2)));
        let began = Instant::now();
        let aborted = supervisor.join("grpc", Duration::from_secs(10)).await;
        assert_eq!(began.elapsed(), Duration::from_secs(10));
        assert_eq!(aborted, ["grpc/stuck".into()]);
        assert_eq!(supervisor.next_end().await, end("grpc/stream-1", Outcome::Returned));
        assert_eq!(supervisor.next_end().await, end("other", Outcome::Returned));
        assert_eq!(supervisor.next_end().await, end("grpc/stuck", Outcome::Aborted));
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_goes_in_order_and_leaves_nothing() {
        let running = Gauge::default();
        let mut supervisor = Supervisor::new(running.clone());
        for name in ["http", "grpc/a", "feed-watch/pods", "forgotten"] {
            supervisor.spawn(name, pending::<()>());
        }
        supervisor.spawn("quick", async {});
        let spawner = supervisor.spawner();
        let began = Instant::now();
        let aborted = supervisor.shutdown(&["grpc", "feed-watch", "quick"], Duration::from_secs(2)).await;
        assert_eq!(began.elapsed(), Duration::from_secs(4));
        assert_eq!(aborted, ["grpc/a", "feed-watch/pods", "forgotten", "http"].map(Arc::from));
        assert_eq!(running.get(), 0);
        spawner.spawn("too-late", pending::<()>());
        assert_eq!(running.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_the_supervisor_ends_its_tasks() {
        let (sender, dropped) = oneshot::channel::<()>();
        let supervisor = Supervisor::new(Gauge::default());
        supervisor.spawn("holds", async move {
            pending::<()>().await;
            drop(sender);
        });
        drop(supervisor);
        assert!(dropped.await.is_err());
    }

    #[tokio::test]
    async fn the_end_of_a_thread_is_an_event() {
        let mut supervisor = Supervisor::new(Gauge::default());
        supervisor.spawner().spawn_thread("control", || -> () { panic!("out of control") }).unwrap();
        assert_eq!(supervisor.next_end().await, end("control", Outcome::Panicked("out of control".to_owned())));
    }
}
