//! Performs the requests of one feed: each is a task that decodes before it queues its answer, and that ends with it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use sidewatch_core::codec::status::{Failure, FailureKind};
use sidewatch_core::feed::{Effect, FeedSpec, Input, ListRequest, RequestId, ResourceInfo, TypeAnswer, WatchRequest};
use sidewatch_core::limits::REQUEST_TIMEOUT;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tracing::{Instrument, debug_span, error};

use crate::apiserver::client::Client;
use crate::apiserver::watch::{End, Watch};
use crate::apiserver::{discovery, list, watch};

/// What a request of a feed brought.
#[derive(Debug)]
pub struct FeedAnswer {
    /// The feed, by its place in the configuration.
    pub feed: usize,
    /// What its machine takes.
    pub input: Input,
}

/// The requests of one feed. Dropping it ends them all.
pub struct FeedRequests {
    context: Context,
    tasks: JoinSet<RequestId>,
    running: BTreeMap<RequestId, AbortHandle>,
}

/// What each task needs.
#[derive(Clone)]
struct Context {
    client: Client,
    feed: usize,
    spec: Arc<FeedSpec>,
    /// What discovery last made of the feed's resource.
    known: Arc<Mutex<Option<Arc<ResourceInfo>>>>,
    answers: mpsc::Sender<FeedAnswer>,
}

impl fmt::Debug for FeedRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeedRequests").field("feed", &self.context.spec.name).field("running", &self.running).finish()
    }
}

impl FeedRequests {
    /// The requests of the feed `spec`, the `feed_index`-th of the configuration. Answers go to `answers`; a task waits
    /// while that queue is full.
    pub fn new(client: Client, feed_index: usize, spec: Arc<FeedSpec>, answers: mpsc::Sender<FeedAnswer>) -> Self {
        let context = Context { client, feed: feed_index, spec, known: Arc::default(), answers };
        Self { context, tasks: JoinSet::new(), running: BTreeMap::new() }
    }

    /// Starts or cancels a request; other effects are not requests, and nothing is done about them. Must be called
    /// within the runtime.
    pub fn perform(&mut self, effect: &Effect) {
        self.reap();
        let context = self.context.clone();
        match effect {
            Effect::Resolve { request } => self.start(*request, "resolve", context.resolve(*request)),
            Effect::List { request, list } => self.start(*request, "list", context.list(*request, list.clone())),
            Effect::Watch { request, watch } => self.start(*request, "watch", context.watch(*request, watch.clone())),
            Effect::AskType { request } => self.start(*request, "ask-type", context.ask_type(*request)),
            Effect::Cancel { request } => {
                if let Some(task) = self.running.remove(request) {
                    task.abort();
                }
            }
            Effect::Synced { .. }
            | Effect::Changed(_)
            | Effect::Head(_)
            | Effect::Relisted { .. }
            | Effect::Rewound { .. }
            | Effect::TypeRemoved { .. }
            | Effect::Horizon(_)
            | Effect::Moved { .. }
            | Effect::Noted(_) => {}
        }
    }

    /// Requests under way.
    pub fn len(&mut self) -> usize {
        self.reap();
        self.tasks.len()
    }

    /// Whether no request is under way.
    pub fn is_empty(&mut self) -> bool {
        self.len() == 0
    }

    /// Ends all requests and waits until their tasks are gone.
    pub async fn shutdown(mut self) {
        self.tasks.shutdown().await;
    }

    fn start(&mut self, request: RequestId, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let span = debug_span!("feed-request", feed = &*self.context.spec.name, request = request.0, name);
        let task = async move {
            task.await;
            request
        };
        self.running.insert(request, self.tasks.spawn(task.instrument(span)));
    }

    /// Joins the tasks that have ended. One that panicked has not answered; its machine gives the request up by itself.
    fn reap(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            match ended {
                Ok(request) => drop(self.running.remove(&request)),
                Err(failure) if failure.is_panic() => {
                    error!(feed = &*self.context.spec.name, %failure, "a request's task panicked");
                    self.running.retain(|_, task| task.id() != failure.id());
                }
                Err(_) => {}
            }
        }
    }
}

impl Context {
    async fn answer(&self, input: Input) {
        // The driver is gone only when the process ends.
        let _ = self.answers.send(FeedAnswer { feed: self.feed, input }).await;
    }

    fn known(&self) -> Option<Arc<ResourceInfo>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn resolve(self, request: RequestId) {
        let known = self.known();
        let resolved = timeout(REQUEST_TIMEOUT, discovery::resolve(&self.client, &self.spec, known.as_deref())).await;
        let input = match resolved.unwrap_or_else(|_| Err(too_late())) {
            Ok(info) => {
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(info.clone()));
                Input::Resolved { request, info }
            }
            Err(failure) => Input::Failed { request, failure },
        };
        self.answer(input).await;
    }

    async fn list(self, request: RequestId, list: ListRequest) {
        let input = match self.known() {
            None => Input::Failed { request, failure: unresolved() },
            Some(info) => {
                let page = timeout(REQUEST_TIMEOUT, list::page(&self.client, &self.spec, &info, &list)).await;
                match page.unwrap_or_else(|_| Err(too_late())) {
                    Ok(page) => Input::ListPage { request, page },
                    Err(failure) => Input::Failed { request, failure },
                }
            }
        };
        self.answer(input).await;
    }

    async fn ask_type(self, request: RequestId) {
        let answer = match self.known() {
            None => TypeAnswer::Unknown,
            Some(info) => {
                timeout(REQUEST_TIMEOUT, discovery::ask_type(&self.client, &info)).await.unwrap_or(TypeAnswer::Unknown)
            }
        };
        self.answer(Input::TypeAnswered { request, answer }).await;
    }

    async fn watch(self, request: RequestId, watch: WatchRequest) {
        let Some(info) = self.known() else {
            return self.answer(Input::Failed { request, failure: unresolved() }).await;
        };
        let open = match watch::open(&self.client, &self.spec, &info, &watch).await {
            Ok(open) => open,
            Err(failure) => return self.answer(Input::Failed { request, failure }).await,
        };
        self.answer(Input::WatchOpened { request }).await;
        // A server that does not keep to `timeoutSeconds` is left as if it had.
        let end = timeout(watch::lifetime(&watch), self.follow(request, open)).await.unwrap_or(End::Closed);
        let input = match end {
            End::Closed => Input::WatchClosed { request },
            End::Undecodable(message) => Input::WatchUndecodable { request, message },
            End::Failed(failure) => Input::Failed { request, failure },
        };
        self.answer(input).await;
    }

    async fn follow(&self, request: RequestId, mut open: Watch) -> End {
        loop {
            match open.next().await {
                Ok(events) => self.answer(Input::WatchEvents { request, events }).await,
                Err(end) => return end,
            }
        }
    }
}

fn too_late() -> Failure {
    Failure::new(FailureKind::Timeout, "no answer within the deadline")
}

/// The machine asks for nothing before it has been told what the resource is.
fn unresolved() -> Failure {
    Failure::new(FailureKind::NotFound, "the resource has not been looked up")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use sidewatch_core::codec::watch_event::{ManagedFields, WatchEvent};
    use sidewatch_core::feed::{ListMode, WatchStart};
    use sidewatch_core::resource_version::ResourceVersion;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::apiserver::client::Access;

    const POD: &str = r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"5"}}"#;

    /// A server that answers by path, without knowing any rule.
    struct Server {
        url: String,
        tasks: JoinSet<()>,
        /// Connections whose watch is being held open.
        open: Arc<AtomicUsize>,
    }

    impl Server {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let open = Arc::new(AtomicUsize::new(0));
            let mut tasks = JoinSet::new();
            let held = open.clone();
            tasks.spawn(async move {
                let mut connections = JoinSet::new();
                while let Ok((connection, _)) = listener.accept().await {
                    connections.spawn(serve(connection, held.clone()));
                }
            });
            Self { url, tasks, open }
        }
    }

    async fn serve(mut connection: TcpStream, open: Arc<AtomicUsize>) {
        let mut request = Vec::new();
        loop {
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                let mut chunk = [0; 1024];
                match connection.read(&mut chunk).await {
                    Ok(0) | Err(_) => return,
                    Ok(count) => request.extend_from_slice(&chunk[..count]),
                }
            }
            let path = String::from_utf8_lossy(&std::mem::take(&mut request)).split(' ').nth(1).unwrap().to_owned();
            if path.contains("watch=true") {
                let event = format!("{{\"type\":\"ADDED\",\"object\":{POD}}}\n");
                let two = format!("{event}{event}");
                let (first, second) = two.split_at(event.len() + 10);
                let _ = connection.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
                let _ = connection.write_all(first.as_bytes()).await;
                let _ = connection.flush().await;
                let _ = connection.write_all(second.as_bytes()).await;
                if path.contains("resourceVersion=7") {
                    return;
                }
                open.fetch_add(1, Ordering::SeqCst);
                let _ = connection.read(&mut [0; 1]).await;
                open.fetch_sub(1, Ordering::SeqCst);
                return;
            }
            let (code, body) = answer(&path);
            let head = format!("HTTP/1.1 {code} X\r\nRetry-After: 3\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = connection.write_all(head.as_bytes()).await;
            let _ = connection.write_all(body.as_bytes()).await;
        }
    }

    /// Discovery without its aggregated form, with one group that is down.
    fn answer(path: &str) -> (u16, String) {
        let resource = |name: &str, kind: &str| {
            format!(
                r#"{{"resources":[{{"name":"{name}","singularName":"","namespaced":true,"kind":"{kind}","verbs":["list","watch"]}},
                {{"name":"{name}/status","singularName":"","namespaced":true,"kind":"{kind}","verbs":["get"]}}]}}"#
            )
        };
        match path {
            "/api" => (200, r#"{"kind":"APIVersions","versions":["v1"]}"#.into()),
            "/apis" => (
                200,
                r#"{"kind":"APIGroupList","groups":[{"name":"down.io","versions":[{"version":"v1"}]},
                {"name":"e.com","versions":[{"version":"v1"}]}]}"#
                    .into(),
            ),
            "/api/v1" => (200, resource("pods", "Pod")),
            "/apis/e.com/v1" => (200, resource("widgets", "Widget")),
            "/version" => (200, r#"{"major":"1","minor":"33"}"#.into()),
            "/api/v1/pods?limit=500" => (
                200,
                format!(
                    r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"9"}},"items":[{POD}]}}"#
                ),
            ),
            _ => (503, "<html>".into()),
        }
    }

    async fn requests(server: &Server, resource: &str) -> (FeedRequests, mpsc::Receiver<FeedAnswer>) {
        let access = Access::Server { url: server.url.as_str().into() };
        let client = Client::new(access.config().await.unwrap()).unwrap();
        let (answers, received) = mpsc::channel(8);
        let spec = FeedSpec {
            name: "pods".into(),
            resource: resource.into(),
            namespace: None,
            label_selector: "".into(),
            field_selector: "".into(),
            managed_fields: ManagedFields::Drop,
        };
        (FeedRequests::new(client, 3, Arc::new(spec), answers), received)
    }

    async fn next(received: &mut mpsc::Receiver<FeedAnswer>) -> Input {
        let answer = timeout(Duration::from_secs(20), received.recv()).await.expect("an answer in time").unwrap();
        assert_eq!(answer.feed, 3);
        answer.input
    }

    async fn resolved(requests: &mut FeedRequests, received: &mut mpsc::Receiver<FeedAnswer>) -> ResourceInfo {
        requests.perform(&Effect::Resolve { request: RequestId(1) });
        match next(received).await {
            Input::Resolved { request: RequestId(1), info } => info,
            other => panic!("{other:?}"),
        }
    }

    fn watch(request: u64, after: u64) -> Effect {
        let start = WatchStart::After(ResourceVersion::from(after));
        Effect::Watch { request: RequestId(request), watch: WatchRequest { start, timeout: Duration::from_secs(250) } }
    }

    #[tokio::test]
    async fn requests_are_answered_under_their_ids() {
        let server = Server::start().await;
        let (mut requests, mut received) = requests(&server, "pods").await;
        let info = resolved(&mut requests, &mut received).await;
        assert_eq!((&*info.resource, info.streaming_list), ("pods", false));

        let list = |limit| ListRequest {
            mode: ListMode::Consistent,
            limit: Some(limit),
            continue_token: None,
            metadata_only: false,
        };
        requests.perform(&Effect::List { request: RequestId(2), list: list(500) });
        assert!(matches!(next(&mut received).await,
            Input::ListPage { request: RequestId(2), page } if page.objects.len() == 1));
        requests.perform(&Effect::List { request: RequestId(3), list: list(1) });
        match next(&mut received).await {
            Input::Failed { request: RequestId(3), failure } => {
                assert_eq!(failure.kind, FailureKind::Unavailable);
                assert_eq!(failure.retry_after, Some(Duration::from_secs(3)));
            }
            other => panic!("{other:?}"),
        }
        requests.perform(&Effect::AskType { request: RequestId(4) });
        let unknown = Input::TypeAnswered { request: RequestId(4), answer: TypeAnswer::Unknown };
        assert_eq!(next(&mut received).await, unknown);
        drop(server.tasks);
    }

    #[tokio::test]
    async fn a_watch_tells_its_opening_its_events_and_its_end() {
        let server = Server::start().await;
        let (mut requests, mut received) = requests(&server, "pods").await;
        resolved(&mut requests, &mut received).await;
        requests.perform(&watch(2, 7));
        assert_eq!(next(&mut received).await, Input::WatchOpened { request: RequestId(2) });
        let mut count = 0;
        loop {
            match next(&mut received).await {
                Input::WatchEvents { request: RequestId(2), events } => {
                    assert!(events.iter().all(|event| matches!(event, WatchEvent::Added(_))));
                    count += events.len();
                }
                Input::WatchClosed { request: RequestId(2) } => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(count, 2);
    }

    #[tokio::test]
    async fn cancel_and_drop_close_the_connection() {
        let server = Server::start().await;
        let (mut requests, mut received) = requests(&server, "pods").await;
        resolved(&mut requests, &mut received).await;
        let open = async |want: usize| {
            let reached = async {
                while server.open.load(Ordering::SeqCst) != want {
                    tokio::task::yield_now().await;
                }
            };
            let state = || server.open.load(Ordering::SeqCst);
            timeout(Duration::from_secs(20), reached).await.unwrap_or_else(|_| panic!("{} open", state()));
        };
        requests.perform(&watch(2, 8));
        open(1).await;
        requests.perform(&Effect::Cancel { request: RequestId(2) });
        open(0).await;
        requests.perform(&watch(3, 8));
        open(1).await;
        drop(requests);
        open(0).await;
    }

    #[tokio::test]
    async fn without_aggregated_discovery_a_group_that_is_down_breaks_no_other() {
        let server = Server::start().await;
        let (mut requests, mut received) = requests(&server, "widgets").await;
        assert_eq!(&*resolved(&mut requests, &mut received).await.group, "e.com");
        let (mut requests, mut received) = self::requests(&server, "things.down.io").await;
        requests.perform(&Effect::Resolve { request: RequestId(1) });
        assert!(matches!(next(&mut received).await,
            Input::Failed { failure, .. } if failure.kind == FailureKind::Unavailable));
    }
}
