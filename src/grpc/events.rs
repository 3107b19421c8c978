//! `EventService`: a stream of frames per session, and acks.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Response, Status};

use crate::delivery::{Delivery, Frames};
use crate::grpc::frames::{Identity, Renderer, position};
use crate::grpc::observe::{Observation, Observer};
use crate::grpc::pb;
use crate::grpc::pb::event_service_server::EventService;
use crate::grpc::{open, status};

/// Sessions served at the same time. Each may hold two frames of 4 MiB; an application needs a handful.
pub const SESSIONS_MAX: usize = 64;

/// Serves `EventService`.
pub struct Events {
    delivery: Delivery,
    identity: Identity,
    observer: Observer,
    sessions: Arc<Semaphore>,
}

impl Events {
    /// The service over this seam.
    pub fn new(delivery: Delivery, identity: Identity, observer: Observer) -> Self {
        Self { delivery, identity, observer, sessions: Arc::new(Semaphore::new(SESSIONS_MAX)) }
    }

    async fn open(&self, request: pb::SubscribeRequest) -> Result<SessionStream, Status> {
        let open = open::open(request)?;
        let permit =
            Arc::clone(&self.sessions).try_acquire_owned().map_err(|_| status::too_many_sessions(SESSIONS_MAX))?;
        let subscription = open.subscription.clone();
        let renderer = Renderer::new(self.identity.clone(), open.encoding, open.frame_bytes_max);
        let frames = self.delivery.open(open).await.map_err(|_| status::shutting_down())?;
        Ok(SessionStream { frames, renderer, observer: self.observer.clone(), subscription, _permit: permit })
    }

    async fn record(&self, request: pb::AckRequest) -> Result<pb::AckResponse, Status> {
        let ack = open::ack(request)?;
        let answer = self.delivery.ack(ack).await.map_err(|_| status::shutting_down())?;
        let outcome = answer.map_err(|error| status::ack_refused(&error))?;
        let result =
            pb::AckResult { acked_cursor: position(&outcome.acked), durable_cursor: position(&outcome.durable) };
        Ok(pb::AckResponse { result: Some(result), epoch: outcome.epoch.as_u64() })
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.sessions.available_permits();
        f.debug_struct("Events").field("sessions", &(SESSIONS_MAX - free)).finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl EventService for Events {
    type SubscribeStream = SessionStream;

    async fn subscribe(
        &self,
        request: Request<pb::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        match self.open(request.into_inner()).await {
            Ok(stream) => Ok(Response::new(stream)),
            Err(refused) => {
                self.observer.observe(Observation::CallEnded { method: "Subscribe", code: refused.code() });
                Err(refused)
            }
        }
    }

    async fn ack(&self, request: Request<pb::AckRequest>) -> Result<Response<pb::AckResponse>, Status> {
        let answer = self.record(request.into_inner()).await;
        self.observer.observe(Observation::call_ended("Ack", &answer));
        answer.map(Response::new)
    }
}

/// The frames of one session as messages. Dropped by tonic when the client goes away, which closes the session.
pub struct SessionStream {
    frames: Frames,
    renderer: Renderer,
    observer: Observer,
    subscription: Option<Arc<str>>,
    /// Frees the session's place.
    _permit: OwnedSemaphorePermit,
}

impl Stream for SessionStream {
    type Item = Result<pb::SubscribeResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (item, observation) = match ready!(self.frames.poll_next(cx)) {
            Some(Ok(pulled)) => {
                let message = self.renderer.message(pulled);
                let observation =
                    Observation::FrameSent { subscription: self.subscription.clone(), bytes: message.encoded_len() };
                (Some(Ok(message)), observation)
            }
            Some(Err(error)) => {
                let ended = status::session_ended(&error);
                let observation = Observation::CallEnded { method: "Subscribe", code: ended.code() };
                (Some(Err(ended)), observation)
            }
            None => (None, Observation::CallEnded { method: "Subscribe", code: tonic::Code::Ok }),
        };
        self.observer.observe(observation);
        Poll::Ready(item)
    }
}

impl fmt::Debug for SessionStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.frames.fmt(f)
    }
}
