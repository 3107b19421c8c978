//! `tail` against a scripted server of the API, over TCP and a Unix socket.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio_stream::Stream;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::{Request, Response};

use super::*;
use crate::grpc::pb::event_service_server::{EventService, EventServiceServer};

/// What one session sends, and how it ends; without an end it stays open.
struct Script {
    frames: Vec<pb::Frame>,
    end: Option<Status>,
}

#[derive(Clone, Default)]
struct Scripted {
    scripts: Arc<Mutex<VecDeque<Script>>>,
    subscribed: Arc<Mutex<Vec<pb::SubscribeRequest>>>,
    acked: Arc<Mutex<Vec<pb::AckRequest>>>,
}

impl Scripted {
    fn new(scripts: impl IntoIterator<Item = Script>) -> Self {
        Self { scripts: Arc::new(Mutex::new(scripts.into_iter().collect())), ..Self::default() }
    }
}

#[tonic::async_trait]
impl EventService for Scripted {
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<pb::SubscribeResponse, Status>> + Send>>;

    async fn subscribe(
        &self,
        request: Request<pb::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        self.subscribed.lock().unwrap().push(request.into_inner());
        let Some(script) = self.scripts.lock().unwrap().pop_front() else {
            return Err(Status::not_found("the script is over"));
        };
        let frames = script.frames.into_iter().map(|frame| Ok(pb::SubscribeResponse { frame: Some(frame) }));
        let sent = tokio_stream::iter(frames);
        let mut end = script.end;
        let rest = futures_util::stream::poll_fn(move |_| match end.take() {
            Some(status) if status.code() == Code::Ok => Poll::Ready(None),
            Some(status) => Poll::Ready(Some(Err(status))),
            None => Poll::Pending,
        });
        Ok(Response::new(Box::pin(tokio_stream::StreamExt::chain(sent, rest))))
    }

    async fn ack(&self, request: Request<pb::AckRequest>) -> Result<Response<pb::AckResponse>, Status> {
        self.acked.lock().unwrap().push(request.into_inner());
        Ok(Response::new(pb::AckResponse::default()))
    }
}

/// Collects what is written; the pipe closes after a number of writes.
#[derive(Clone, Default)]
struct Sink {
    text: Arc<Mutex<Vec<u8>>>,
    writes_left: Option<usize>,
}

impl Sink {
    fn text(&self) -> String {
        String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
    }
}

impl AsyncWrite for Sink {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut std::task::Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.writes_left {
            Some(0) => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Some(left) => *left -= 1,
            None => {}
        }
        self.text.lock().unwrap().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

async fn serve(scripted: &Scripted) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder().add_service(EventServiceServer::new(scripted.clone()));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address.to_string()
}

fn arguments(line: &str) -> Result<TailArgs, clap::Error> {
    #[derive(clap::Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        tail: TailArgs,
    }
    <Line as clap::Parser>::try_parse_from(line.split_whitespace()).map(|line| line.tail)
}

async fn tail(line: &str, out: &Sink, stop: impl Future<Output = ()>) -> (anyhow::Result<()>, String) {
    let arguments = arguments(line).unwrap();
    let tail = Tail {
        arguments: &arguments,
        renderer: Renderer::new(Style::Plain),
        resume: None,
        backoff: BACKOFF.0,
        prng: Prng::new(1),
    };
    let notes = Sink::default();
    let followed = tail.follow(out.clone(), notes.clone(), stop);
    let result = tokio::time::timeout(Duration::from_secs(20), followed).await;
    (result.expect("tail must end within its script"), notes.text())
}

fn started() -> pb::Frame {
    let started = pb::SessionStarted { session_id: "s1".to_owned(), ..pb::SessionStarted::default() };
    pb::Frame { kind: Some(Kind::SessionStarted(started)), ..pb::Frame::default() }
}

fn added(name: &str, cursor: &str) -> pb::Frame {
    let object_ref = Some(pb::ObjectRef { name: name.to_owned(), ..pb::ObjectRef::default() });
    let event =
        pb::Event { r#type: pb::EventType::Added.into(), feed: "pods".to_owned(), object_ref, ..Default::default() };
    let kind = Some(Kind::Batch(pb::EventBatch { events: vec![event] }));
    pb::Frame { kind, cursor: cursor.to_owned(), ..pb::Frame::default() }
}

#[tokio::test]
async fn a_broken_stream_is_resumed_after_the_last_frame_written() {
    let scripted = Scripted::new([
        Script { frames: vec![started(), added("a", "cursor-a")], end: Some(Status::unavailable("restarting")) },
        Script { frames: vec![started(), added("b", "")], end: Some(Status::aborted("taken over")) },
    ]);
    let address = serve(&scripted).await;
    let out = Sink::default();
    let (result, notes) = tail(&format!("--address {address} --from live"), &out, pending()).await;
    assert!(result.unwrap_err().to_string().contains("taken over"));
    assert!(notes.contains("restarting; connecting again in 0."), "{notes}");
    let text = out.text();
    assert!(text.contains("ADDED    pods a") && text.contains("ADDED    pods b"), "{text}");
    let subscribed = scripted.subscribed.lock().unwrap();
    assert_eq!(subscribed[0].start_mode(), pb::StartMode::Live);
    assert_eq!((subscribed[1].start_mode(), &*subscribed[1].cursor), (pb::StartMode::Cursor, "cursor-a"));
}

#[tokio::test]
async fn a_refusal_in_place_of_the_first_frame_is_final() {
    let refused = Status::not_found("subscription = \"nope\": not configured; there are app");
    let scripted = Scripted::new([Script { frames: vec![], end: Some(refused) }]);
    let address = serve(&scripted).await;
    let (result, notes) =
        tail(&format!("--address {address} --subscription nope --once"), &Sink::default(), pending()).await;
    assert!(result.unwrap_err().to_string().contains("there are app"));
    assert_eq!((notes.as_str(), scripted.subscribed.lock().unwrap().len()), ("", 1));
}

#[tokio::test]
async fn what_was_written_is_acked_in_its_session() {
    let scripted = Scripted::new([Script {
        frames: vec![started(), added("a", "cursor-a"), added("b", ""), added("c", "cursor-c")],
        end: Some(Status::aborted("enough")),
    }]);
    let address = serve(&scripted).await;
    let (result, _) = tail(&format!("--address {address} --subscription app --ack"), &Sink::default(), pending()).await;
    assert!(result.is_err());
    let acked = scripted.acked.lock().unwrap();
    assert_eq!(acked.iter().map(|ack| &*ack.cursor).collect::<Vec<_>>(), ["cursor-a", "cursor-c"]);
    assert!(acked.iter().all(|ack| ack.session_id == "s1" && ack.subscription == "app"));
}

#[tokio::test]
async fn a_frame_that_was_not_written_is_not_acked_and_a_closed_pipe_is_a_clean_end() {
    let scripted = Scripted::new([Script { frames: vec![added("a", "cursor-a"), added("b", "cursor-b")], end: None }]);
    let address = serve(&scripted).await;
    let out = Sink { writes_left: Some(1), ..Sink::default() };
    let (result, _) = tail(&format!("--address {address} --subscription app --ack"), &out, pending()).await;
    result.unwrap();
    let acked = scripted.acked.lock().unwrap();
    assert_eq!(acked.iter().map(|ack| &*ack.cursor).collect::<Vec<_>>(), ["cursor-a"]);
}

#[tokio::test]
async fn a_stop_ends_an_open_session() {
    let scripted = Scripted::new([Script { frames: vec![started()], end: None }]);
    let address = serve(&scripted).await;
    let (sender, stopped) = oneshot::channel::<()>();
    let out = Sink::default();
    let (line, watched) = (format!("--address {address}"), out.clone());
    let stopper = async move {
        while watched.text().is_empty() {
            tokio::task::yield_now().await;
        }
        drop(sender);
    };
    let ((result, _), ()) = tokio::join!(
        tail(&line, &out, async {
            let _ = stopped.await;
        }),
        stopper
    );
    result.unwrap();
}

#[tokio::test]
async fn once_ends_with_the_stream_and_filters_are_passed_on() {
    let scripted = Scripted::new([Script { frames: vec![started()], end: Some(Status::ok("")) }]);
    let address = serve(&scripted).await;
    let line = format!("--address {address} --once --feed pods,nodes --namespace shop --label-selector app=web");
    tail(&line, &Sink::default(), pending()).await.0.unwrap();
    let subscribed = scripted.subscribed.lock().unwrap();
    assert!(subscribed[0].end_after_snapshot);
    assert_eq!(subscribed[0].feeds, ["pods", "nodes"]);
    let filter = subscribed[0].filter.as_ref().unwrap();
    assert_eq!((&filter.namespaces[..], &*filter.label_selector), (&["shop".to_owned()][..], "app=web"));
}

#[tokio::test]
async fn unix_sockets_are_followed() {
    let scripted = Scripted::new([Script { frames: vec![added("a", "")], end: Some(Status::not_found("over")) }]);
    let path = std::env::temp_dir().join(format!("sidewatch-tail-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let server = tonic::transport::Server::builder().add_service(EventServiceServer::new(scripted.clone()));
    tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    let out = Sink::default();
    let (result, _) = tail(&format!("--address unix://{}", path.display()), &out, pending()).await;
    let _ = std::fs::remove_file(&path);
    assert!(result.is_err() && out.text().contains("pods a"), "{}", out.text());
}

#[tokio::test(start_paused = true)]
async fn an_absent_server_is_tried_again_with_growing_delays() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let stop = tokio::time::sleep(Duration::from_secs(15));
    let (result, notes) = tail(&format!("--address {closed}"), &Sink::default(), stop).await;
    result.unwrap();
    let tries = notes.lines().count();
    assert!((5..=12).contains(&tries), "{notes}");
    assert!(notes.contains("refused"), "{notes}");
}

#[test]
fn arguments_that_cannot_be_together_are_refused() {
    for line in
        ["--ack", "--subscription app --ignore-leadership", "--from nowhere", "--label-selector a=b=c", "--address x"]
    {
        assert!(arguments(line).is_err(), "{line}");
    }
    assert_eq!(arguments("").unwrap().from, None);
    assert_eq!(arguments("--from AZxAZxAZxAZxA").unwrap().from, Some(From::Cursor("AZxAZxAZxAZxA".to_owned())));
}
