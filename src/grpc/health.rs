//! `grpc.health.v1`: "" while the process serves, `sidewatch.v1.ready` while it can do its work, `sidewatch.v1.leader`
//! while it leads.
//!
//! Written over one watched value, so that there is no second copy of the truth; and so that its streams end at a
//! shutdown, which would otherwise wait for every client that watches.

use std::pin::Pin;

use futures_util::{Stream, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::grpc::status;

/// Names that [`HealthService`] answers for: the process, readiness, leadership.
pub const SERVICE_NAMES: [&str; 3] = ["", "sidewatch.v1.ready", "sidewatch.v1.leader"];

/// What the process says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Health {
    /// Every feed has synced, and the role is known.
    pub ready: bool,
    /// This replica leads and may emit.
    pub leader: bool,
}

/// Serves `grpc.health.v1.Health`.
#[derive(Clone, Debug)]
pub struct HealthService {
    health: watch::Receiver<Health>,
    shutdown: watch::Receiver<bool>,
}

impl HealthService {
    /// A service that says what `health` holds, until `shutdown` turns true.
    pub fn new(health: watch::Receiver<Health>, shutdown: watch::Receiver<bool>) -> Self {
        Self { health, shutdown }
    }

    fn serving(&mut self, service: &str) -> ServingStatus {
        let health = *self.health.borrow_and_update();
        let live = !*self.shutdown.borrow_and_update();
        let serving = match service {
            "" => live,
            "sidewatch.v1.ready" => live && health.ready,
            "sidewatch.v1.leader" => live && health.leader,
            _ => return ServingStatus::ServiceUnknown,
        };
        if serving { ServingStatus::Serving } else { ServingStatus::NotServing }
    }

    /// Waits until the answer may be another. An error: the sender is gone, it will not change any more.
    async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        tokio::select! {
            changed = self.health.changed() => changed,
            changed = self.shutdown.changed() => changed,
        }
    }
}

#[tonic::async_trait]
impl health_server::Health for HealthService {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        match self.clone().serving(&service) {
            ServingStatus::ServiceUnknown => Err(status::health_service_unknown(&service)),
            serving => Ok(Response::new(HealthCheckResponse { status: serving.into() })),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// The answer at once and at each change; SERVICE_UNKNOWN for a name that is not served, as the health protocol
    /// wants it.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let watcher = Watcher { health: self.clone(), service: request.into_inner().service, said: None };
        Ok(Response::new(Box::pin(stream::unfold(Some(watcher), Watcher::next))))
    }
}

/// One client that watches one name.
struct Watcher {
    health: HealthService,
    service: String,
    said: Option<ServingStatus>,
}

impl Watcher {
    async fn next(watcher: Option<Self>) -> Option<(Result<HealthCheckResponse, Status>, Option<Self>)> {
        let mut watcher = watcher?;
        loop {
            let serving = watcher.health.serving(&watcher.service);
            if watcher.said != Some(serving) {
                watcher.said = Some(serving);
                return Some((Ok(HealthCheckResponse { status: serving.into() }), Some(watcher)));
            }
            if *watcher.health.shutdown.borrow() || watcher.health.changed().await.is_err() {
                return Some((Err(status::shutting_down()), None));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use tonic_health::pb::health_server::Health as _;

    use super::*;

    fn fixture() -> (watch::Sender<Health>, watch::Sender<bool>, HealthService) {
        let (health, health_seen) = watch::channel(Health::default());
        let (shutdown, shutdown_seen) = watch::channel(false);
        (health, shutdown, HealthService::new(health_seen, shutdown_seen))
    }

    fn request(service: &str) -> Request<HealthCheckRequest> {
        Request::new(HealthCheckRequest { service: service.to_owned() })
    }

    async fn check(service: &HealthService, name: &str) -> ServingStatus {
        service.check(request(name)).await.unwrap().into_inner().status()
    }

    #[tokio::test]
    async fn each_name_says_its_own() {
        let (health, shutdown, service) = fixture();
        assert_eq!(check(&service, "").await, ServingStatus::Serving);
        assert_eq!(check(&service, "sidewatch.v1.ready").await, ServingStatus::NotServing);
        health.send_replace(Health { ready: true, leader: false });
        assert_eq!(check(&service, "sidewatch.v1.ready").await, ServingStatus::Serving);
        assert_eq!(check(&service, "sidewatch.v1.leader").await, ServingStatus::NotServing);
        health.send_replace(Health { ready: true, leader: true });
        assert_eq!(check(&service, "sidewatch.v1.leader").await, ServingStatus::Serving);
        assert_eq!(service.check(request("other")).await.unwrap_err().code(), tonic::Code::NotFound);
        shutdown.send_replace(true);
        for name in SERVICE_NAMES {
            assert_eq!(check(&service, name).await, ServingStatus::NotServing, "{name:?}");
        }
    }

    #[tokio::test]
    async fn a_watch_says_each_change_once_and_ends_at_shutdown() {
        let (health, shutdown, service) = fixture();
        let mut watch = service.watch(request("sidewatch.v1.leader")).await.unwrap().into_inner();
        let mut next = async || watch.next().await.map(|item| item.map(|answer| answer.status()).map_err(|e| e.code()));
        assert_eq!(next().await, Some(Ok(ServingStatus::NotServing)));
        health.send_replace(Health { ready: true, leader: false });
        health.send_replace(Health { ready: true, leader: true });
        assert_eq!(next().await, Some(Ok(ServingStatus::Serving)));
        shutdown.send_replace(true);
        assert_eq!(next().await, Some(Ok(ServingStatus::NotServing)));
        assert_eq!(next().await, Some(Err(tonic::Code::Unavailable)));
        assert_eq!(next().await, None);
    }

    #[tokio::test]
    async fn a_watch_of_an_unknown_name_stays_open() {
        let (_health, _shutdown, service) = fixture();
        let mut watch = service.watch(request("other")).await.unwrap().into_inner();
        assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);
    }
}
