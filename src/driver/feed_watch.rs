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
