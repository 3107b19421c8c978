//! The playground: a model API server on a loopback port, with objects that come and go.
//!
//! It is the shell around `sidewatch-model` for `sidewatch playground`, for tests that need a server
//! and for faults that a real one does not show on demand. What it is not: an API server for
//! anybody else. It asks for no credentials, and it belongs on loopback.

pub mod http;
pub mod life;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use sidewatch_model::script::{Rule, Script};
use sidewatch_model::server::{self, ApiServer, Widgets};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::playground::life::Life;

/// How a playground is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The server.
    pub server: server::Options,
    /// Objects that come, change and go; nothing for a server that only its clients change.
    pub life: Option<life::Options>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            server: server::Options { widgets: Widgets::Installed, ..server::Options::default() },
            life: None,
        }
    }
}

/// Time as the model takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Since the playground's start.
    pub now: Duration,
    /// Microseconds since 1970.
    pub wall_micros: i64,
}

/// A shared hold on the model behind a playground.
#[derive(Debug, Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: Mutex<ApiServer>,
    script: Mutex<Script>,
    /// Counts calls that may have changed the model, so that watch bodies wake up.
    changes: watch::Sender<u64>,
    origin: Instant,
    wall_micros: i64,
}

impl Handle {
    /// Makes a hold on a new server whose time begins at this call.
    pub fn new(options: server::Options) -> Handle {
        let shared = Shared {
            wall_micros: options.wall_micros,
            server: Mutex::new(ApiServer::new(options)),
            script: Mutex::new(Script::default()),
            changes: watch::Sender::new(0),
            origin: Instant::now(),
        };
        Handle { shared: Arc::new(shared) }
    }

    /// Runs something on the model and wakes the watches.
    pub fn change<R>(&self, act: impl FnOnce(&mut ApiServer, Moment) -> R) -> R {
        let result = act(&mut lock(&self.shared.server), self.moment());
        self.shared.changes.send_modify(|changes| *changes += 1);
        result
    }

    /// Runs something on the model that changes nothing for watches.
    pub fn look<R>(&self, act: impl FnOnce(&mut ApiServer, Moment) -> R) -> R {
        act(&mut lock(&self.shared.server), self.moment())
    }

    /// Adds a fault rule.
    pub fn add_fault(&self, rule: Rule) {
        lock(&self.shared.script).push(rule);
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        lock(&self.shared.script).clear();
    }

    /// Returns the time in the model's terms.
    pub fn moment(&self) -> Moment {
        let now = self.shared.origin.elapsed();
        let micros = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        Moment { now, wall_micros: self.shared.wall_micros.saturating_add(micros) }
    }
}

/// Takes a lock whose holder may have panicked: the model is a value, and a test that fails while it
/// holds the lock should not hide behind a second panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running playground. Dropping it ends its tasks at once; `stop` also waits for them.
#[derive(Debug)]
pub struct Playground {
    address: SocketAddr,
    handle: Handle,
    stopping: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Playground {
    /// Binds the listener and starts to serve.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start(options: Options) -> anyhow::Result<Playground> {
        let listener = TcpListener::bind(options.listen)
            .await
            .with_context(|| format!("playground listen address {}", options.listen))?;
        let address = listener.local_addr().context("playground listen address")?;
        let handle = Handle::new(options.server);
        let (stopping, stop) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(http::serve(listener, handle.clone(), stop.clone()));
        if let Some(options) = options.life {
            let life = handle.change(|server, moment| Life::begin(options, server, moment));
            tasks.spawn(life::run(life, handle.clone(), stop));
        }
        Ok(Playground { address, handle, stopping, tasks })
    }

    /// Returns the URL of the server, without a slash at its end.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the hold on the model.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Restarts the API server: watches end, their window is empty.
    pub fn restart(&self) {
        self.handle.change(|server, moment| server.restart(moment.now));
    }

    /// Waits until a task ends by itself, which none should.
    pub async fn ended(&mut self) {
        self.tasks.join_next().await;
    }

    /// Ends all connections and tasks, and waits for them.
    pub async fn stop(mut self) {
        self.stopping.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}
