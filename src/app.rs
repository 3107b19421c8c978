//! Composition root: builds, connects, starts, waits, and ends in order.
//!
//! ```text
//! elector thread ─▶ announcements ─▶ replica driver ─▶ frame queues ─▶ gRPC streams
//!       ▲   └─ gate ─────────────────────────────────────────▲
//!       └──────── checkpoint slot ◀── replica driver ◀── answers of the feeds
//! ```

use std::net::SocketAddr;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use sidewatch_core::codec::status::FailureKind;
use sidewatch_core::elector::{Elector, Identity, Parameters};
use sidewatch_core::gate::Gate;
use sidewatch_core::leadership::{Announcement, LeaseView, Role};
use sidewatch_core::prng::Prng;
use sidewatch_core::replica::{FeedOptions, Options, Replica};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{error, info, warn};

use crate::apiserver::client::{Access, Client, JSON};
use crate::apiserver::lease::LeaseApi;
use crate::clock::Clock;
use crate::config::address::Address;
use crate::config::{Cluster, Config, Election, Feed};
use crate::delivery::Delivery;
use crate::driver::elector;
use crate::driver::elector::{ANNOUNCEMENTS_MAX, COMMANDS_MAX, ControlError, LeaseService, Ports};
use crate::driver::feed_watch::FeedRequests;
use crate::driver::replica::{ANSWERS_QUEUED_MAX, Connections, Control, ReplicaDriver};
use crate::grpc::frames::Identity as ServerIdentity;
use crate::grpc::health::Health;
use crate::grpc::listener::UnixAddress;
use crate::grpc::observe::{Observation, Observer};
use crate::grpc::{Options as GrpcOptions, Server};
use crate::http;
use crate::http::Readiness;
use crate::readiness;
use crate::supervisor::{Spawner, Supervisor};
use crate::telemetry;
use crate::telemetry::metrics::{EPHEMERAL, Metrics};

/// Threads of the data path: one decodes and drives, one encodes.
const DATA_THREADS: usize = 2;
/// How long the release of the Lease may take beyond the drain: a native sidecar has two seconds from SIGTERM to SIGKILL
/// when the pod's grace period is over (docs/protocol.md, A.11).
const RELEASE_PATIENCE: Duration = Duration::from_millis(1500);
/// How long calls and tasks may take to end after that.
const END_PATIENCE: Duration = Duration::from_millis(500);
/// Time between two tries to read the cluster's uid.
const CLUSTER_RETRY: Duration = Duration::from_secs(5);
/// Deadline of one such try, and the largest namespace object that is read.
const CLUSTER_REQUEST: (Duration, usize) = (Duration::from_secs(10), 1 << 20);

/// Runs the sidecar until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start, or when a part of it ended that must not end.
pub fn run(config: Config) -> anyhow::Result<ExitCode> {
    telemetry::init(&config.log)?;
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let mut stop = Stop::listen()?;
        let sidecar = Sidecar::start(&config).await?;
        sidecar.run(&mut stop).await
    });
    runtime.shutdown_timeout(END_PATIENCE);
    result.map(|()| ExitCode::SUCCESS)
}

/// The runtime of the data path.
///
/// # Errors
/// When the system gives no threads.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(DATA_THREADS)
        .thread_name("data")
        .enable_all()
        .build()
        .context("the runtime could not be made")
}

/// The signals that end the process in order.
#[derive(Debug)]
pub struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    /// Begins to listen.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn listen() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the first of them. Cancel-safe.
    pub async fn asked(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// The control thread, as the composition root holds it.
struct ControlThread {
    commands: mpsc::Sender<elector::Command>,
    ended: Pin<Box<dyn Future<Output = Result<(), ControlError>> + Send>>,
}

impl std::fmt::Debug for ControlThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlThread").finish_non_exhaustive()
    }
}

/// A running sidecar.
#[derive(Debug)]
pub struct Sidecar {
    supervisor: Supervisor,
    elector: Option<ControlThread>,
    gate: Arc<Gate>,
    control: mpsc::Sender<Control>,
    driver_ended: oneshot::Receiver<()>,
    server: Server,
    http_address: SocketAddr,
    http_stop: oneshot::Sender<()>,
    drain_timeout: Duration,
}

impl Sidecar {
    /// Builds and starts everything. Needs no API server to be reachable; what cannot be reached is retried for ever.
    ///
    /// # Errors
    /// When no cluster is configured, a port or socket cannot be had, or two feeds turn out to be the same.
    pub async fn start(config: &Config) -> anyhow::Result<Self> {
        let clock = Clock;
        let metrics = Arc::new(Metrics::new(clock.wall()));
        let supervisor = Supervisor::new(metrics.tasks.clone());
        let spawner = supervisor.spawner();

        let kube = access(&config.cluster).config().await?;
        let own_namespace = config.pod.namespace.as_deref().unwrap_or(&kube.default_namespace).to_owned();
        let feeds = config.feeds(&own_namespace)?;
        let mut chance = Prng::new(seed()?);
        let identity = identity(config, &mut chance);
        info!(
            version = env!("CARGO_PKG_VERSION"),
            identity = identity.as_str(),
            namespace = own_namespace,
            feeds = feeds.iter().map(|feed| &*feed.spec.name).collect::<Vec<_>>().join(","),
            "start"
        );

        let gate = Arc::new(Gate::default());
        let check = {
            let gate = Arc::clone(&gate);
            move |epoch| gate.check(epoch, clock.boot())
        };
        let (delivery, inbox) = Delivery::new(Arc::new(check), Arc::new(move || clock.now()));
        let (announce, announcements) = mpsc::channel(ANNOUNCEMENTS_MAX);
        let (checkpoints, checkpoint_slot) = watch::channel(None);
        let (status, status_seen) = watch::channel(None);
        let (control, controlled) = mpsc::channel(4);
        let (answers, answered) = mpsc::channel(ANSWERS_QUEUED_MAX);

        let elector = match &config.election {
            Election::Off => {
                let role = Announcement::Role { role: Role::Disabled, lease: LeaseView::default() };
                announce.try_send(role).context("the role could not be told")?;
                None
            }
            Election::On(lease) => {
                let parameters = Parameters::new(lease.duration, lease.renew_deadline, lease.retry_period)?;
                let namespace = lease.namespace.as_deref().unwrap_or(&own_namespace).to_owned();
                let name = lease.name.to_string();
                let elector = Elector::new(parameters, identity.clone(), &namespace, &name, chance.next_u64());
                let (commands, commanded) = mpsc::channel(COMMANDS_MAX);
                let ports = Ports {
                    commands: commanded,
                    checkpoints: checkpoint_slot.clone(),
                    announcements: announce.clone(),
                };
                // Lease calls share no connection with the data.
                let config = kube.clone();
                let connect = move || -> anyhow::Result<Box<dyn LeaseService>> {
                    Ok(Box::new(LeaseApi::new(Client::new(config)?, &namespace, &name)))
                };
                let thread = elector::spawn(elector, Arc::clone(&gate), ports, Arc::clone(&metrics), connect)?;
                Some(ControlThread { commands, ended: Box::pin(thread.ended()) })
            }
        };

        let client = Client::new(kube)?;
        let request = |(index, feed): (usize, &Feed)| {
            FeedRequests::new(client.clone(), index, Arc::new(feed.spec.clone()), answers.clone())
        };
        let connections = Connections {
            inbox,
            announcements,
            control: controlled,
            answers: answered,
            requests: feeds.iter().enumerate().map(request).collect(),
            checkpoints,
            elector: elector.as_ref().map(|elector| elector.commands.clone()),
            status,
        };
        let replica = Replica::new(replica_options(config, &feeds, &identity, &mut chance));
        let driver = ReplicaDriver::new(replica, clock, Arc::clone(&metrics), config.drain_timeout, connections);
        let (driver_ending, driver_ended) = oneshot::channel();
        // With election off nothing else holds the sender, and a closed channel would look like an end.
        let announce_kept = announce;
        spawner.spawn("replica", async move {
            driver.run().await;
            drop(announce_kept);
            let _ = driver_ending.send(());
        });

        let (readiness_told, readiness_seen) = watch::channel(Readiness { ready: false, reasons: Vec::new() });
        let (health_told, health) = watch::channel(Health { ready: false, leader: false });
        spawner.spawn("readiness", readiness::publish(status_seen, readiness_told, health_told, Arc::clone(&metrics)));

        let cluster_uid = Arc::new(OnceLock::new());
        spawner.spawn("cluster", find_cluster(client, control.clone(), Arc::clone(&cluster_uid)));

        let server_identity = ServerIdentity {
            name: identity.as_str().into(),
            version: env!("CARGO_PKG_VERSION"),
            started: clock.wall(),
            cluster_uid,
        };
        let server = serve(config, delivery, health, server_identity, &metrics, &spawner).await?;
        let listener =
            http::bind(config.http_listen).await.with_context(|| format!("http.listen = {}", config.http_listen))?;
        let http_address = listener.local_addr()?;
        info!(listener = "http", address = %http_address, "listening");
        let (http_stop, stopped) = oneshot::channel::<()>();
        spawner.spawn("http", http::serve(listener, readiness_seen, metrics, async { drop(stopped.await) }));
        Ok(Self {
            supervisor,
            elector,
            gate,
            control,
            driver_ended,
            server,
            http_address,
            http_stop,
            drain_timeout: config.drain_timeout,
        })
    }

    /// Where gRPC is served over TCP, with the real ports.
    pub fn grpc_addresses(&self) -> &[SocketAddr] {
        self.server.tcp_addresses()
    }

    /// Where probes and metrics are served, with the real port.
    pub fn http_address(&self) -> SocketAddr {
        self.http_address
    }

    /// Waits for a signal and ends in order: drain, last acks, checkpoint, release, sessions, listeners.
    ///
    /// # Errors
    /// When a part ended that must not end. Nothing of it is restarted in here: the process ends with an error, and its
    /// successor recovers from the checkpoint.
    pub async fn run(mut self, stop: &mut Stop) -> anyhow::Result<()> {
        let fault = loop {
            let elector_ended = async {
                match &mut self.elector {
                    Some(elector) => (&mut elector.ended).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                signal = stop.asked() => {
                    info!(signal, "ending");
                    break None;
                }
                outcome = elector_ended => {
                    self.elector = None;
                    break Some(format!("the elector ended: {outcome:?}"));
                }
                end = self.supervisor.next_end() => {
                    if &*end.name == "cluster" {
                        continue;
                    }
                    break Some(end.to_string());
                }
            }
        };
        if let Some(fault) = &fault {
            // No event may leave while parts are missing.
            self.gate.close();
            error!(fault, "a part ended that must not end");
        }
        self.end(fault.is_none()).await;
        match fault {
            Some(fault) => anyhow::bail!(fault),
            None => Ok(()),
        }
    }

    async fn end(mut self, in_order: bool) {
        if let Some(mut elector) = self.elector.take() {
            let drain = if in_order { self.drain_timeout } else { Duration::ZERO };
            // When it takes no command it has ended, or is stuck: the wait below tells.
            let _ = elector.commands.try_send(elector::Command::Shutdown { drain });
            if tokio::time::timeout(drain + RELEASE_PATIENCE, &mut elector.ended).await.is_err() {
                warn!("the Lease could not be released in time; it expires by itself");
            }
        }
        self.gate.close();
        // The driver tells every session; when it is gone already, nobody is left to be told.
        let _ = self.control.send(Control::Shutdown).await;
        let _ = tokio::time::timeout(END_PATIENCE, &mut self.driver_ended).await;
        self.server.shutdown().await;
        drop(self.http_stop);
        self.supervisor.abort("cluster");
        let late = self.supervisor.shutdown(&["grpc", "http", "replica", "readiness"], END_PATIENCE).await;
        if !late.is_empty() {
            warn!(tasks = late.join(","), "tasks were ended by force");
        }
        info!("ended");
    }
}

fn access(cluster: &Cluster) -> Access {
    match cluster {
        Cluster::Inferred => Access::Inferred,
        Cluster::Kubeconfig { paths, context } => Access::Kubeconfig { paths: paths.clone(), context: context.clone() },
        Cluster::Server { url } => Access::Server { url: url.clone() },
    }
}

/// Chance for this process: boot id, incarnation, jitter.
fn seed() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).context("the system gives no random numbers")?;
    Ok(u64::from_ne_bytes(bytes))
}

fn identity(config: &Config, chance: &mut Prng) -> Identity {
    let boot_id = format!("{:016x}", chance.next_u64());
    let uid = config.pod.uid.as_deref().unwrap_or("unknown");
    Identity::new(&config.pod.name, uid, &boot_id)
}

fn replica_options(config: &Config, feeds: &[Feed], identity: &Identity, chance: &mut Prng) -> Options {
    let feed = |feed: &Feed| FeedOptions { watch: feed.watch.clone(), spec: Arc::new(feed.spec.clone()) };
    Options {
        identity: identity.as_str().to_owned(),
        incarnation: (chance.next_u64() >> 32) as u32 | 1,
        seed: chance.next_u64(),
        journal_bytes_max: config.journal_bytes_max,
        unacked_events_max: config.unacked_events_max,
        feeds: feeds.iter().map(feed).collect(),
        subscriptions: config.subscriptions.clone(),
    }
}

async fn serve(
    config: &Config,
    delivery: Delivery,
    health: watch::Receiver<Health>,
    identity: ServerIdentity,
    metrics: &Arc<Metrics>,
    spawner: &Spawner,
) -> anyhow::Result<Server> {
    let mut options = GrpcOptions { tcp: Vec::new(), unix: Vec::new(), identity, shutdown_timeout: END_PATIENCE };
    for address in &config.listen {
        match address {
            Address::Tcp(address) => options.tcp.push(*address),
            Address::Unix { path, mode } => options.unix.push(UnixAddress { path: path.clone(), mode: *mode }),
        }
    }
    let counted = Arc::clone(metrics);
    let observer = Observer::new(move |observation| match observation {
        Observation::FrameSent { subscription, bytes } => {
            let of_subscription = counted.subscription(subscription.as_deref().unwrap_or(EPHEMERAL));
            of_subscription.frames.inc();
            of_subscription.bytes.inc_by(bytes as u64);
        }
        Observation::CallEnded { method, code } => counted.call_ended(method, &format!("{code:?}")),
    });
    let server = Server::start(options, delivery, health, observer, |name, task| spawner.spawn(name, task)).await?;
    Ok(server)
}

/// Reads the uid of the kube-system namespace, which tells clusters apart. Without the right to, cursors say so.
async fn find_cluster(client: Client, control: mpsc::Sender<Control>, known: Arc<OnceLock<Arc<str>>>) {
    #[derive(serde::Deserialize)]
    struct Namespace {
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    struct Metadata {
        uid: Arc<str>,
    }
    let (timeout, bytes_max) = CLUSTER_REQUEST;
    loop {
        match client.get("/api/v1/namespaces/kube-system", JSON, timeout, bytes_max).await {
            Ok(body) => {
                if let Ok(namespace) = serde_json::from_slice::<Namespace>(&body) {
                    let uid = namespace.metadata.uid;
                    let _ = known.set(uid.clone());
                    let _ = control.send(Control::ClusterKnown { uid }).await;
                }
                return;
            }
            Err(failure) if matches!(failure.kind, FailureKind::Forbidden | FailureKind::NotFound) => {
                info!(why = failure.message, "the cluster's uid cannot be read; cursors do not tell clusters apart");
                return;
            }
            Err(_) => tokio::time::sleep(CLUSTER_RETRY).await,
        }
    }
}
