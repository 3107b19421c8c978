//! The server in this process, with the test in the driver's place: what a client sees of frames, acks, errors, the
//! gate and the end.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::stream;
use sidewatch_core::codec::cursor::{Cursor, CursorError, Fingerprint};
use sidewatch_core::epoch::Epoch;
use sidewatch_core::feed::{Condition, FeedSpec};
use sidewatch_core::frame::{
    EndReason, FeedDescription, FeedNews, Frame, FrameKind, Heartbeat, Hold, SessionId, SessionStarted,
};
use sidewatch_core::leadership::{LeaseView, Role};
use sidewatch_core::replica::Now;
use sidewatch_core::resource_version::ResourceVersion;
use sidewatch_core::session::{AckError, AckOutcome, Open, SessionError};
use sidewatch_core::status::{FeedStatus, Status as ReplicaStatus, SubscriptionStatus};
use sidewatch_core::time::{BootInstant, WallTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::{v1, v1alpha};
use tonic_types::StatusExt;

use super::*;
use crate::delivery::{Command, FrameQueue, Inbox, NotLeading, Progress};
use crate::grpc::frames::tests::{event, identity, label};
use crate::grpc::observe::Observation;
use crate::grpc::pb::admin_service_client::AdminServiceClient;
use crate::grpc::pb::event_service_client::EventServiceClient;

/// How long a condition may take before the test fails.
const DEADLINE: Duration = Duration::from_secs(20);

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("{what}: not within {DEADLINE:?}"))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transport {
    Tcp,
    Unix,
}

struct Fixture {
    server: Server,
    inbox: Inbox,
    gate: Arc<AtomicBool>,
    health: watch::Sender<Health>,
    observed: Arc<Mutex<Vec<Observation>>>,
    socket: PathBuf,
    tasks: JoinSet<()>,
}

impl Fixture {
    async fn start() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let socket = std::env::temp_dir().join(format!("sw-grpc-{}-{count}.sock", std::process::id()));
        let gate = Arc::new(AtomicBool::new(true));
        let checked = Arc::clone(&gate);
        let now = Now { boot: BootInstant::from_nanos(1_000_000_000), wall: WallTime::from_micros(60_000_000) };
        let (delivery, inbox) = Delivery::new(Arc::new(move |_| checked.load(Ordering::SeqCst)), Arc::new(move || now));
        let (health, health_seen) = watch::channel(Health::default());
        let observed = Arc::new(Mutex::new(Vec::new()));
        let observer = Observer::new({
            let observed = Arc::clone(&observed);
            move |observation| observed.lock().unwrap().push(observation)
        });
        let options = Options {
            tcp: vec![([127, 0, 0, 1], 0).into()],
            unix: vec![UnixAddress { path: socket.clone(), mode: 0o600 }],
            identity: identity(),
            shutdown_timeout: DEADLINE,
        };
        let mut tasks = JoinSet::new();
        let spawn = |_, task| {
            tasks.spawn(task);
        };
        let server = Server::start(options, delivery, health_seen, observer, spawn).await.unwrap();
        Self { server, inbox, gate, health, observed, socket, tasks }
    }

    async fn channel(&self, transport: Transport) -> Channel {
        let target = match transport {
            Transport::Tcp => format!("http://{}", self.server.tcp_addresses()[0]),
            Transport::Unix => format!("unix://{}", self.socket.display()),
        };
        within("connect", Endpoint::from_shared(target).unwrap().connect()).await.unwrap()
    }

    async fn events(&self, transport: Transport) -> EventServiceClient<Channel> {
        EventServiceClient::new(self.channel(transport).await)
    }

    async fn command(&mut self) -> Command {
        within("a command", self.inbox.commands.recv()).await.expect("the server holds the sender")
    }

    async fn opened(&mut self) -> (SessionId, Open, FrameQueue) {
        match self.command().await {
            Command::Open { session, open, queue } => (session, *open, queue),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the board has said this of the session, over however many readings.
    async fn board(&mut self, session: SessionId, wanted: Progress) {
        let mut said = Progress::default();
        while said != wanted {
            within(&format!("{wanted:?}, so far {said:?}"), self.inbox.board.changed()).await;
            if let Some(progress) = self.inbox.board.take().get(&session) {
                said.frames += progress.frames;
                said.closed |= progress.closed;
            }
        }
    }

    /// Shuts the server down and waits for its tasks.
    async fn end(self) {
        let Self { server, socket, mut tasks, .. } = self;
        within("the shutdown", server.shutdown()).await;
        while let Some(ended) = within("the tasks", tasks.join_next()).await {
            ended.unwrap();
        }
        assert!(!socket.exists());
        fs::remove_file(socket.with_extension("sock.lock")).unwrap();
    }
}

fn frame(epoch: u64, kind: FrameKind) -> Frame {
    Frame { epoch: Epoch::from_u64(epoch), cursor: None, kind }
}

fn started() -> FrameKind {
    FrameKind::SessionStarted(SessionStarted {
        session: "s-1".to_owned(),
        subscription: None,
        feeds: Vec::new(),
        start: None,
        frame_bytes_max: 20_000,
        unacked_events_max: None,
    })
}

fn cursor(number: u64) -> Cursor {
    Cursor { positions: [(Fingerprint(1), ResourceVersion::from(number))].into(), ..Cursor::default() }
}

async fn next(stream: &mut Streaming<pb::SubscribeResponse>) -> Result<Option<pb::Frame>, Status> {
    let message = within("a frame", stream.message()).await?;
    Ok(message.map(|message| message.frame.expect("every message has a frame")))
}

async fn next_kind(stream: &mut Streaming<pb::SubscribeResponse>) -> (u64, pb::frame::Kind) {
    let frame = next(stream).await.unwrap().expect("not the end");
    (frame.sequence, frame.kind.unwrap())
}

fn reason(status: &Status) -> (Code, String) {
    let info = status.get_details_error_info().expect("every error has an ErrorInfo");
    assert_eq!(info.domain, status::ERROR_DOMAIN);
    (status.code(), info.reason)
}

#[tokio::test]
async fn a_client_gets_frames_in_order_and_its_pulls_are_reported() {
    for transport in [Transport::Tcp, Transport::Unix] {
        let mut f = Fixture::start().await;
        let mut client = f.events(transport).await;
        let request = pb::SubscribeRequest { max_batch_events: 3, ..Default::default() };
        let mut stream = within("subscribe", client.subscribe(request)).await.unwrap().into_inner();
        let (session, open, queue) = f.opened().await;
        assert_eq!(open.batch_events_max, 3);

        queue.push(frame(0, started()));
        queue.push(Frame { cursor: Some(cursor(4)), ..frame(7, FrameKind::Batch(vec![event(r#"{"kind":"Pod"}"#)])) });
        let first = next(&mut stream).await.unwrap().unwrap();
        assert_eq!((first.sequence, first.epoch), (1, 0));
        assert!(matches!(first.kind, Some(pb::frame::Kind::SessionStarted(_))));
        let second = next(&mut stream).await.unwrap().unwrap();
        assert_eq!((second.sequence, second.epoch), (2, 7));
        assert_eq!(Cursor::decode(&second.cursor), Ok(cursor(4)));
        let Some(pb::frame::Kind::Batch(batch)) = second.kind else { panic!("another kind") };
        assert_eq!(batch.events[0].id, "pods/uid-1/42");
        f.board(session, Progress { frames: 2, closed: false }).await;

        queue.end(None);
        assert_eq!(next(&mut stream).await.unwrap(), None);
        f.board(session, Progress { frames: 0, closed: true }).await;
        drop(stream);
        drop(client);
        let observed = f.observed.lock().unwrap().clone();
        assert!(matches!(observed[0], Observation::FrameSent { bytes, .. } if bytes > 0));
        assert_eq!(observed[2], Observation::CallEnded { method: "Subscribe", code: Code::Ok });
        f.end().await;
    }
}

#[tokio::test]
async fn a_client_that_goes_away_closes_its_session() {
    let mut f = Fixture::start().await;
    let mut client = f.events(Transport::Tcp).await;
    let stream = within("subscribe", client.subscribe(pb::SubscribeRequest::default())).await.unwrap();
    let (session, _, queue) = f.opened().await;
    drop(stream);
    f.board(session, Progress { frames: 0, closed: true }).await;
    assert!(queue.is_abandoned());
    drop(client);
    f.end().await;
}

#[tokio::test]
async fn a_closed_gate_withholds_gated_frames_and_gives_them_back() {
    let mut f = Fixture::start().await;
    let mut client = f.events(Transport::Unix).await;
    let mut stream = client.subscribe(pb::SubscribeRequest::default()).await.unwrap().into_inner();
    let (session, _, queue) = f.opened().await;
    queue.push(frame(0, started()));
    assert_eq!(next_kind(&mut stream).await.0, 1);

    f.gate.store(false, Ordering::SeqCst);
    let gated = frame(7, FrameKind::Batch(vec![event("{}")]));
    queue.push(gated.clone());
    let heartbeat =
        Heartbeat { role: Role::Standby, unacked_events: 0, pending_events: 1, hold: Hold::Leadership, durable: None };
    queue.push(frame(0, FrameKind::Heartbeat(heartbeat)));
    assert_eq!(queue.withdraw(), std::slice::from_ref(&gated));
    // What came behind it goes out, without a hole in the sequence.
    let (sequence, kind) = next_kind(&mut stream).await;
    assert!(matches!(kind, pb::frame::Kind::Heartbeat(_)), "{kind:?}");
    assert_eq!(sequence, 2);

    // Offered again in the same epoch: it stays until the gate opens.
    queue.push(gated);
    assert_eq!(queue.len(), 1);
    f.gate.store(true, Ordering::SeqCst);
    queue.wake();
    let (sequence, kind) = next_kind(&mut stream).await;
    assert!(matches!(kind, pb::frame::Kind::Batch(_)), "{kind:?}");
    assert_eq!(sequence, 3);
    f.board(session, Progress { frames: 3, closed: false }).await;
    queue.end(None);
    drop((stream, client));
    f.end().await;
}

#[tokio::test]
async fn a_superseded_session_says_so_and_is_aborted() {
    let mut f = Fixture::start().await;
    let mut client = f.events(Transport::Tcp).await;
    let request = pb::SubscribeRequest { subscription: "billing".to_owned(), ..Default::default() };
    let mut stream = client.subscribe(request).await.unwrap().into_inner();
    let (_, open, queue) = f.opened().await;
    assert_eq!(open.subscription.as_deref(), Some("billing"));
    let retry_delay = Duration::from_millis(1500);
    queue.push(frame(0, FrameKind::SessionEnding { reason: EndReason::Superseded, retry_delay }));
    queue.end(Some(SessionError::Superseded));
    let (_, kind) = next_kind(&mut stream).await;
    let pb::frame::Kind::SessionEnding(ending) = kind else { panic!("{kind:?}") };
    assert_eq!(ending.reason(), pb::EndReason::Superseded);
    assert_eq!(ending.retry_delay, Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }));
    let ended = next(&mut stream).await.unwrap_err();
    assert_eq!(reason(&ended), (Code::Aborted, "SESSION_SUPERSEDED".to_owned()));
    drop((stream, client));
    f.end().await;
}

#[tokio::test]
async fn errors_say_what_to_change() {
    let mut f = Fixture::start().await;
    let mut client = f.events(Transport::Tcp).await;
    let bad = pb::SubscribeRequest { max_frame_bytes: 5, ..Default::default() };
    let refused = client.subscribe(bad).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "FIELD_INVALID".to_owned()));
    assert_eq!(refused.message(), "max_frame_bytes = \"5\": must be 0 or at least 16384");

    let request = pb::SubscribeRequest { feeds: vec!["pos".to_owned()], ..Default::default() };
    let mut stream = client.subscribe(request).await.unwrap().into_inner();
    let (_, _, queue) = f.opened().await;
    queue.end(Some(SessionError::FeedUnknown { name: "pos".to_owned(), known: "pods".to_owned() }));
    let refused = next(&mut stream).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::NotFound, "FEED_UNKNOWN".to_owned()));
    assert_eq!(refused.get_details_error_info().unwrap().metadata["known"], "pods");
    let observed = f.observed.lock().unwrap().clone();
    assert_eq!(observed[0], Observation::CallEnded { method: "Subscribe", code: Code::InvalidArgument });
    drop((stream, client));
    f.end().await;
}

#[tokio::test]
async fn an_ack_is_answered_by_the_driver() {
    let mut f = Fixture::start().await;
    let mut client = f.events(Transport::Unix).await;
    let mut ack = async |answer: Result<AckOutcome, AckError>| {
        let request = pb::AckRequest {
            subscription: "billing".to_owned(),
            cursor: "text".to_owned(),
            wait_durable: true,
            session_id: "s-1".to_owned(),
        };
        let drive = async {
            let Command::Ack { ack, answer: to } = f.command().await else { panic!("another command") };
            assert_eq!((ack.subscription.as_deref(), ack.session.as_deref()), (Some("billing"), Some("s-1")));
            assert!(ack.wait_durable && ack.cursor == "text");
            to.send(answer).unwrap();
        };
        within("the ack", async { tokio::join!(client.ack(request), drive).0 }).await
    };
    let outcome = AckOutcome { acked: cursor(9), durable: Cursor::default(), epoch: Epoch::from_u64(7) };
    let answer = ack(Ok(outcome)).await.unwrap().into_inner();
    let result = answer.result.unwrap();
    assert_eq!(Cursor::decode(&result.acked_cursor), Ok(cursor(9)));
    assert_eq!((result.durable_cursor.as_str(), answer.epoch), ("", 7));

    let elsewhere = AckError::NotLeader { holder: "pod-1".to_owned(), epoch: Epoch::from_u64(8) };
    let refused = ack(Err(elsewhere)).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::FailedPrecondition, "NOT_LEADER".to_owned()));
    assert_eq!(refused.get_details_error_info().unwrap().metadata["holder"], "pod-1");
    let malformed = ack(Err(AckError::Malformed(CursorError::Text))).await.unwrap_err();
    assert_eq!(reason(&malformed), (Code::InvalidArgument, "CURSOR_MALFORMED".to_owned()));
    drop(client);
    f.end().await;
}

#[tokio::test]
async fn an_ack_that_nobody_waits_for_is_seen_by_the_driver() {
    let mut f = Fixture::start().await;
    let client = f.events(Transport::Tcp).await;
    let request = pb::AckRequest { subscription: "billing".to_owned(), wait_durable: true, ..Default::default() };
    let mut calls = JoinSet::new();
    calls.spawn({
        let mut client = client.clone();
        async move { client.ack(request).await.map(drop) }
    });
    let Command::Ack { mut answer, .. } = f.command().await else { panic!("another command") };
    calls.abort_all();
    within("the call's end", answer.closed()).await;
    drop((calls, client));
    f.end().await;
}

#[tokio::test]
async fn a_shutdown_ends_sessions_with_unavailable_and_then_the_server() {
    let mut f = Fixture::start().await;
    let mut client = f.events(Transport::Tcp).await;
    let mut stream = client.subscribe(pb::SubscribeRequest::default()).await.unwrap().into_inner();
    let (_, _, queue) = f.opened().await;
    let mut health = HealthClient::new(f.channel(Transport::Unix).await);
    let mut watching = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(within("health", watching.message()).await.unwrap().unwrap().status(), ServingStatus::Serving);

    let retry_delay = Duration::from_secs(1);
    queue.push(frame(0, FrameKind::SessionEnding { reason: EndReason::Shutdown, retry_delay }));
    queue.end(Some(SessionError::ShuttingDown));
    // The open watch and the idle connections do not hold the shutdown up.
    f.end().await;
    let (_, kind) = next_kind(&mut stream).await;
    assert!(matches!(kind, pb::frame::Kind::SessionEnding(_)), "{kind:?}");
    let ended = next(&mut stream).await.unwrap_err();
    assert_eq!(reason(&ended), (Code::Unavailable, "SHUTTING_DOWN".to_owned()));
    assert_eq!(ended.get_details_retry_info().unwrap().retry_delay, Some(status::RETRY_DELAY));
    assert_eq!(within("health", watching.message()).await.unwrap().unwrap().status(), ServingStatus::NotServing);
}

#[tokio::test]
async fn without_a_driver_everything_is_unavailable() {
    let mut f = Fixture::start().await;
    let mut client = f.events(Transport::Tcp).await;
    let mut admin = AdminServiceClient::new(f.channel(Transport::Tcp).await);
    let mut stream = client.subscribe(pb::SubscribeRequest::default()).await.unwrap().into_inner();
    drop(f.opened().await);
    let (_, inbox) = Delivery::new(Arc::new(|_| true), Arc::new(|| unreachable!("nothing is stamped")));
    drop(std::mem::replace(&mut f.inbox, inbox));
    let unavailable = (Code::Unavailable, "SHUTTING_DOWN".to_owned());
    assert_eq!(reason(&next(&mut stream).await.unwrap_err()), unavailable);
    let subscribed = client.subscribe(pb::SubscribeRequest::default()).await;
    assert_eq!(reason(&subscribed.unwrap_err()), unavailable);
    assert_eq!(reason(&client.ack(pb::AckRequest::default()).await.unwrap_err()), unavailable);
    assert_eq!(reason(&admin.get_status(pb::GetStatusRequest {}).await.unwrap_err()), unavailable);
    assert_eq!(reason(&admin.step_down(pb::StepDownRequest::default()).await.unwrap_err()), unavailable);
    drop((stream, client, admin));
    f.end().await;
}

#[tokio::test]
async fn there_is_a_most_of_sessions() {
    let mut f = Fixture::start().await;
    let mut client = f.events(Transport::Tcp).await;
    let (mut streams, mut queues) = (Vec::new(), Vec::new());
    for _ in 0..events::SESSIONS_MAX {
        streams.push(client.subscribe(pb::SubscribeRequest::default()).await.unwrap());
        queues.push(f.opened().await.2);
    }
    let refused = client.subscribe(pb::SubscribeRequest::default()).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::ResourceExhausted, "TOO_MANY_SUBSCRIPTIONS".to_owned()));
    drop((streams, queues, client));
    f.end().await;
}

#[tokio::test]
async fn the_status_has_feeds_and_subscriptions() {
    let mut f = Fixture::start().await;
    let mut admin = AdminServiceClient::new(f.channel(Transport::Tcp).await);
    let call = admin.get_status(pb::GetStatusRequest {});
    let drive = async {
        let Command::Status { answer } = f.command().await else { panic!("another command") };
        answer.send(replica_status()).unwrap();
    };
    let answer = within("status", async { tokio::join!(call, drive).0 }).await.unwrap().into_inner();
    let leadership = answer.leadership.unwrap();
    assert_eq!((leadership.epoch, leadership.holder_identity.as_str()), (7, "pod-1"));
    assert_eq!(leadership.valid_for, Some(prost_types::Duration { seconds: 2, nanos: 0 }));
    assert_eq!((answer.feeds[0].object_count, answer.feeds[0].resource_version.as_str()), (3, "42"));
    assert_eq!(answer.feeds[0].status.as_ref().unwrap().state(), pb::FeedState::Live);
    let subscription = &answer.subscriptions[0];
    assert_eq!((subscription.name.as_str(), subscription.attached), ("billing", true));
    assert_eq!(Cursor::decode(&subscription.acked_cursor), Ok(cursor(5)));
    assert_eq!(subscription.hold(), pb::DeliveryHold::Unacked);
    assert_eq!((answer.journal_bytes, answer.journal_limit_bytes, answer.cache_bytes), (10, 20, 30));
    assert_eq!(answer.checkpoint_time, Some(prost_types::Timestamp { seconds: 50, nanos: 0 }));
    assert_eq!(answer.start_time, Some(prost_types::Timestamp { seconds: 5, nanos: 0 }));
    drop(admin);
    f.end().await;
}

fn replica_status() -> ReplicaStatus {
    let spec = FeedSpec {
        name: label().name.clone(),
        resource: "pods".into(),
        namespace: None,
        label_selector: "".into(),
        field_selector: "".into(),
        managed_fields: Default::default(),
    };
    let feed = FeedStatus {
        description: FeedDescription { spec: Arc::new(spec), info: None },
        news: FeedNews {
            feed: "pods".into(),
            condition: Condition::Live,
            since: WallTime::from_micros(1),
            detail: String::new(),
        },
        synced: true,
        object_count: 3,
        cache_bytes: 30,
        head: Some(ResourceVersion::from(42)),
        heard_age: None,
        journal_floor: None,
        journal_bytes: 10,
        journal_entries: 1,
        changes: 9,
        relists: 1,
        synthesized_deletes: 2,
        gaps: 0,
    };
    let subscription = SubscriptionStatus {
        name: Some("billing".into()),
        acked: cursor(5),
        durable: cursor(4),
        session: Some("s-1".to_owned()),
        unacked_events: 1,
        pending_events: 2,
        oldest_unacked_age: Some(Duration::from_secs(3)),
        hold: Hold::Unacked,
    };
    ReplicaStatus {
        role: Role::Leading { epoch: Epoch::from_u64(7), until: BootInstant::from_nanos(3_000_000_000) },
        lease: LeaseView { holder_identity: "pod-1".to_owned(), lease_transitions: 4, epoch_seen: Epoch::from_u64(7) },
        feeds: vec![feed],
        subscriptions: vec![subscription],
        journal_bytes: 10,
        journal_bytes_max: 20,
        cache_bytes: 30,
        checkpoint_age: Some(Duration::from_secs(10)),
    }
}

#[tokio::test]
async fn leadership_is_given_up_by_the_driver() {
    let mut f = Fixture::start().await;
    let mut admin = AdminServiceClient::new(f.channel(Transport::Tcp).await);
    let mut step_down = async |answer: Result<Epoch, NotLeading>| {
        let request =
            pb::StepDownRequest { cooldown: None, drain_timeout: Some(prost_types::Duration { seconds: 2, nanos: 0 }) };
        let drive = async {
            let Command::StepDown { cooldown, drain_timeout, answer: to } = f.command().await else {
                panic!("another command")
            };
            assert_eq!((cooldown, drain_timeout), (None, Duration::from_secs(2)));
            to.send(answer).unwrap();
        };
        within("step down", async { tokio::join!(admin.step_down(request), drive).0 }).await
    };
    assert_eq!(step_down(Ok(Epoch::from_u64(7))).await.unwrap().into_inner().epoch, 7);
    let elsewhere = NotLeading { holder: "pod-1".to_owned(), epoch: Epoch::from_u64(8) };
    let refused = step_down(Err(elsewhere)).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::FailedPrecondition, "NOT_LEADER".to_owned()));
    let negative = prost_types::Duration { seconds: -1, nanos: 0 };
    let bad = pb::StepDownRequest { cooldown: Some(negative), drain_timeout: None };
    assert_eq!(reason(&admin.step_down(bad).await.unwrap_err()).1, "FIELD_INVALID");
    let long =
        pb::StepDownRequest { cooldown: None, drain_timeout: Some(prost_types::Duration { seconds: 3601, nanos: 0 }) };
    assert_eq!(reason(&admin.step_down(long).await.unwrap_err()).1, "FIELD_INVALID");
    drop(admin);
    f.end().await;
}

#[tokio::test]
async fn health_follows_the_process() {
    let f = Fixture::start().await;
    let mut client = HealthClient::new(f.channel(Transport::Tcp).await);
    let mut check = async |service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        client.check(request).await.map(|answer| answer.into_inner().status())
    };
    assert_eq!(check("").await.unwrap(), ServingStatus::Serving);
    assert_eq!(check("sidewatch.v1.ready").await.unwrap(), ServingStatus::NotServing);
    f.health.send_replace(Health { ready: true, leader: true });
    assert_eq!(check("sidewatch.v1.ready").await.unwrap(), ServingStatus::Serving);
    assert_eq!(check("sidewatch.v1.leader").await.unwrap(), ServingStatus::Serving);
    assert_eq!(reason(&check("x").await.unwrap_err()), (Code::NotFound, "SERVICE_UNKNOWN".to_owned()));
    drop(client);
    f.end().await;
}

#[tokio::test]
async fn reflection_lists_every_service_in_both_versions() {
    let f = Fixture::start().await;
    let channel = f.channel(Transport::Unix).await;
    let v1_names: Vec<String> = {
        use v1::server_reflection_request::MessageRequest::ListServices;
        let request =
            v1::ServerReflectionRequest { host: String::new(), message_request: Some(ListServices(String::new())) };
        let mut client = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
        let mut answers = client.server_reflection_info(stream::iter([request])).await.unwrap().into_inner();
        match answers.message().await.unwrap().unwrap().message_response {
            Some(v1::server_reflection_response::MessageResponse::ListServicesResponse(list)) => {
                list.service.into_iter().map(|service| service.name).collect()
            }
            other => panic!("{other:?}"),
        }
    };
    let alpha_names: Vec<String> = {
        use v1alpha::server_reflection_request::MessageRequest::ListServices;
        let request = v1alpha::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(ListServices(String::new())),
        };
        let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel.clone());
        let mut answers = client.server_reflection_info(stream::iter([request])).await.unwrap().into_inner();
        match answers.message().await.unwrap().unwrap().message_response {
            Some(v1alpha::server_reflection_response::MessageResponse::ListServicesResponse(list)) => {
                list.service.into_iter().map(|service| service.name).collect()
            }
            other => panic!("{other:?}"),
        }
    };
    for names in [v1_names, alpha_names] {
        for wanted in ["sidewatch.v1.EventService", "sidewatch.v1.AdminService", "grpc.health.v1.Health"] {
            assert!(names.iter().any(|name| name == wanted), "{wanted} in {names:?}");
        }
    }
    drop(channel);
    f.end().await;
}

/// Frame types of HTTP/2 by stream, from raw bytes, until a frame with END_STREAM or a reset of the stream.
async fn frame_types(connection: &mut UnixStream, stream: u32) -> Vec<u8> {
    let mut types = Vec::new();
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        connection.read_exact(&mut vec![0; length]).await.unwrap();
        if u32::from_be_bytes([head[5], head[6], head[7], head[8]]) == stream {
            types.push(head[3]);
            let end_stream = matches!(head[3], 0 | 1) && head[4] & 1 == 1;
            if end_stream || head[3] == 3 {
                return types;
            }
        }
    }
}

#[tokio::test]
async fn the_path_of_the_socket_as_authority_is_accepted() {
    let f = Fixture::start().await;
    let mut connection = UnixStream::connect(&f.socket).await.unwrap();
    let path = "/grpc.health.v1.Health/Check";
    let mut block = vec![0x83, 0x86, 0x44, path.len() as u8];
    block.extend(path.bytes());
    for (name, value) in
        BTreeMap::from([(":authority", "run%2Fapp%2Fs.sock"), ("content-type", "application/grpc"), ("te", "trailers")])
    {
        block.push(0x40);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend(text.bytes());
        }
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    bytes.extend([0, 0, block.len() as u8, 1, 4, 0, 0, 0, 1]);
    bytes.extend(block);
    // An empty message, and the end of the stream.
    bytes.extend([0, 0, 5, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    connection.write_all(&bytes).await.unwrap();
    // Headers, the message, trailers: not a reset.
    assert_eq!(within("the answer", frame_types(&mut connection, 1)).await, [1, 0, 1]);
    drop(connection);
    f.end().await;
}
