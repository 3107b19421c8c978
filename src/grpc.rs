//! The gRPC server: services over the seam to the driver, on every configured listener.
//!
//! The only folder that names tonic and prost. It knows nothing of Kubernetes and decides nothing about delivery: it
//! parses requests, renders frames, and lets a frame go when [`crate::delivery`] hands it out.

pub mod admin;
pub mod authority;
pub mod events;
pub mod frames;
pub mod health;
pub mod listener;
pub mod observe;
pub mod open;
pub mod pb;
pub mod status;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use sidewatch_core::limits::GRPC_MESSAGE_BYTES_MAX;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use tonic::service::Routes;
use tonic::transport::server::Connected;
use tonic_health::pb::health_server::HealthServer;
use tracing::{error, warn};

use crate::delivery::Delivery;
use crate::grpc::admin::Admin;
use crate::grpc::events::Events;
use crate::grpc::frames::Identity;
use crate::grpc::health::{Health, HealthService};
use crate::grpc::listener::{ListenError, Tcp, Unix, UnixAddress};
use crate::grpc::observe::Observer;
use crate::grpc::pb::admin_service_server::AdminServiceServer;
use crate::grpc::pb::event_service_server::EventServiceServer;

/// Time between two pings of a connection. A consumer that lives answers without the application's help.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a ping may stay unanswered: longer than the pauses of garbage collectors and blocked event loops.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Streams on one connection: the sessions and calls of one application.
const STREAMS_PER_CONNECTION_MAX: u32 = 128;
/// Headers of one request: an odd `:authority`, a user agent, some tracing metadata.
const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;
/// The largest request: a cursor of 64 KiB, names of feeds, a selector.
const REQUEST_BYTES_MAX: usize = 256 << 10;

/// What the server serves where.
#[derive(Clone, Debug)]
pub struct Options {
    /// TCP addresses. It is for the configuration to keep them to the loopback.
    pub tcp: Vec<SocketAddr>,
    /// Unix sockets.
    pub unix: Vec<UnixAddress>,
    /// Who serves.
    pub identity: Identity,
    /// How long [`Server::shutdown`] waits for calls to end.
    pub shutdown_timeout: Duration,
}

/// A task of the server.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The server while it serves. Dropping it shuts it down without waiting.
pub struct Server {
    tcp_addresses: Vec<SocketAddr>,
    shutdown: watch::Sender<bool>,
    /// One per listener; ends with its task.
    listeners: Vec<oneshot::Receiver<()>>,
}

impl Server {
    /// Binds every listener, then starts one task per listener with `spawn`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ListenError`] of the first listener that cannot be opened; nothing is served then.
    pub async fn start(
        options: Options,
        delivery: Delivery,
        health: watch::Receiver<Health>,
        observer: Observer,
        mut spawn: impl FnMut(&'static str, Task),
    ) -> Result<Self, ListenError> {
        let Options { tcp, unix, identity, shutdown_timeout } = options;
        let mut tcp_bound = Vec::new();
        for address in tcp {
            tcp_bound.push(Tcp::bind(address).await?);
        }
        let unix_bound = unix.iter().map(Unix::bind).collect::<Result<Vec<_>, _>>()?;

        let (shutdown, shutdown_seen) = watch::channel(false);
        let routes = routes(delivery, identity, HealthService::new(health, shutdown_seen.clone()), observer);
        let tcp_addresses = tcp_bound.iter().map(Tcp::address).collect();
        let mut listeners = Vec::new();
        let mut serve = |name, serving: Task| {
            let (ended, end) = oneshot::channel();
            listeners.push(end);
            spawn(
                name,
                Box::pin(async move {
                    serving.await;
                    // Nobody waits when the server was dropped.
                    let _ = ended.send(());
                }),
            );
        };
        for tcp in tcp_bound {
            let serving = serve_connections(tcp.incoming(), routes.clone(), shutdown_seen.clone(), shutdown_timeout);
            serve("grpc/tcp", Box::pin(serving));
        }
        for unix in unix_bound {
            let serving = serve_connections(unix.incoming(), routes.clone(), shutdown_seen.clone(), shutdown_timeout);
            serve("grpc/unix", Box::pin(serving));
        }
        Ok(Self { tcp_addresses, shutdown, listeners })
    }

    /// The TCP addresses with their real ports, in the order of the options.
    pub fn tcp_addresses(&self) -> &[SocketAddr] {
        &self.tcp_addresses
    }

    /// Accepts nothing more and waits until the calls have ended, but not longer than the timeout. To be called when
    /// the driver has ended the sessions; until then, acks and new sessions are served.
    pub async fn shutdown(self) {
        self.shutdown.send_replace(true);
        for listener in self.listeners {
            // An error means that the task is gone, which is an end too.
            let _ = listener.await;
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("tcp_addresses", &self.tcp_addresses).finish_non_exhaustive()
    }
}

/// Every service, with reflection in the two versions that clients speak.
fn routes(delivery: Delivery, identity: Identity, health: HealthService, observer: Observer) -> Routes {
    let events = EventServiceServer::new(Events::new(delivery.clone(), identity.clone(), observer.clone()))
        .max_decoding_message_size(REQUEST_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let admin = AdminServiceServer::new(Admin::new(delivery, identity, observer))
        .max_decoding_message_size(REQUEST_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let descriptors = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(pb::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let readable = "descriptors are made at build time and read by the tests";
    Routes::new(events)
        .add_service(admin)
        .add_service(HealthServer::new(health))
        .add_service(descriptors().build_v1().expect(readable))
        .add_service(descriptors().build_v1alpha().expect(readable))
}

/// Serves one listener until the shutdown, and then until its calls have ended or their time is over.
async fn serve_connections<S>(
    incoming: impl Stream<Item = io::Result<S>>,
    routes: Routes,
    mut shutdown: watch::Receiver<bool>,
    shutdown_timeout: Duration,
) where
    S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    // A sender that is gone is a shutdown too.
    let mut stop = shutdown.clone();
    let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
    let serving = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, stopped);
    let overtime = async {
        drop(shutdown.wait_for(|stop| *stop).await);
        sleep(shutdown_timeout).await;
    };
    tokio::select! {
        served = serving => {
            if let Err(error) = served {
                error!(%error, "gRPC listener failed");
            }
        }
        () = overtime => warn!(timeout = ?shutdown_timeout, "calls left open at shutdown"),
    }
}

#[cfg(test)]
mod tests;
