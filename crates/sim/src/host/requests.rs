//! Requests as the shell sends them, and answers as it decodes them: everything passes as bytes.

use std::time::Duration;

use bytes::Bytes;
use sidewatch_core::codec::lease::{LeaseEvent, LeaseRecord};
use sidewatch_core::codec::list_page;
use sidewatch_core::codec::status::{self, Failure, FailureKind};
use sidewatch_core::codec::watch_event::{self, ManagedFields};
use sidewatch_core::elector;
use sidewatch_core::feed::{self, ListMode, ListRequest, ResourceInfo, TypeAnswer, WatchRequest, WatchStart};
use sidewatch_core::limits::{REQUEST_TIMEOUT, WATCH_OPEN_TIMEOUT};
use sidewatch_core::replica::{self, FeedIndex};
use sidewatch_core::resource_version::ResourceVersion;
use sidewatch_model::request::{Method, Request, Response};

use crate::network::{Answer, ConnId, End, FeedCall, LeaseCall, Owner};
use crate::truth::FEEDS;
use crate::world::{LEASE, NAMESPACE, World};

/// What a list is asked for when only its version is wanted.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
/// How long the server keeps a watch of the Lease.
const LEASE_WATCH_SECONDS: u64 = 300;

fn leases() -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")
}

/// GET of the Lease.
pub(super) fn read_lease() -> Request {
    Request::get(&format!("{}/{LEASE}", leases()))
}

/// PUT of the Lease.
pub(super) fn put_lease(record: &LeaseRecord) -> Request {
    Request::new(Method::Put, &format!("{}/{LEASE}", leases())).with_body(record.encode())
}

/// POST of the Lease.
pub(super) fn create_lease(record: &LeaseRecord) -> Request {
    Request::new(Method::Post, &leases()).with_body(record.encode())
}

/// WATCH of the Lease.
pub(super) fn watch_lease(after: Option<&ResourceVersion>) -> Request {
    let after = after.map(|after| format!("&resourceVersion={after}")).unwrap_or_default();
    Request::get(&format!(
        "{}?watch=true&fieldSelector=metadata.name%3D{LEASE}&timeoutSeconds={LEASE_WATCH_SECONDS}{after}",
        leases()
    ))
}

fn list(plural: &str, list: &ListRequest, page_objects: u32) -> Request {
    let mut query = Vec::new();
    if let Some(limit) = list.limit {
        query.push(format!("limit={}", limit.min(page_objects)));
    }
    match (&list.continue_token, &list.mode) {
        (Some(token), _) => query.push(format!("continue={}", token.replace('=', "%3D").replace('+', "%2B"))),
        (None, ListMode::Consistent) => {}
        (None, ListMode::NotOlderThan(version)) => {
            query.push(format!("resourceVersion={version}&resourceVersionMatch=NotOlderThan"));
        }
        (None, ListMode::Exact(version)) => {
            query.push(format!("resourceVersion={version}&resourceVersionMatch=Exact"));
        }
    }
    let request = Request::get(&format!("/api/v1/namespaces/{NAMESPACE}/{plural}?{}", query.join("&")));
    if list.metadata_only { request.with_accept(METADATA) } else { request }
}

fn watch(plural: &str, watch: &WatchRequest) -> Request {
    let from = match &watch.start {
        WatchStart::After(version) => format!("&resourceVersion={version}"),
        WatchStart::InitialEvents(version) => {
            let version = version.as_ref().map(|version| format!("&resourceVersion={version}")).unwrap_or_default();
            format!("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan{version}")
        }
    };
    Request::get(&format!(
        "/api/v1/namespaces/{NAMESPACE}/{plural}?watch=true&allowWatchBookmarks=true&timeoutSeconds={}{from}",
        watch.timeout.as_secs()
    ))
}

fn failure(status: u16, body: &[u8], retry_after: Option<u32>) -> Failure {
    status::from_answer(status, body, retry_after.map(|seconds| Duration::from_secs(seconds.into())))
}

impl World {
    /// Sends what a feed asks for.
    pub(super) fn feed_effect(&mut self, host: usize, index: usize, effect: feed::Effect) {
        let plural = FEEDS[index];
        match effect {
            feed::Effect::Resolve { request } => {
                let call = Request::get("/api/v1");
                self.send(host, Owner::Feed(index, request, FeedCall::Resolve), call, REQUEST_TIMEOUT);
            }
            feed::Effect::List { request, list: wanted } => {
                let call = list(plural, &wanted, self.knobs.page_objects);
                self.send(host, Owner::Feed(index, request, FeedCall::List), call, REQUEST_TIMEOUT);
            }
            feed::Effect::Watch { request, watch: wanted } => {
                let call = watch(plural, &wanted);
                self.send(host, Owner::Feed(index, request, FeedCall::Watch), call, WATCH_OPEN_TIMEOUT);
            }
            feed::Effect::AskType { request } => {
                // Built-in types have no definition that could be asked for.
                let input = feed::Input::TypeAnswered { request, answer: TypeAnswer::Unknown };
                self.replica_step(host, replica::Input::Feed { feed: FeedIndex(index), input });
            }
            feed::Effect::Cancel { request } => {
                self.cancel(host, |owner| matches!(owner, Owner::Feed(of, id, _) if (*of, *id) == (index, request)));
            }
            feed::Effect::Moved { from, to, why } => {
                self.mark(&[from as u64, to as u64]);
                self.trace(|_| format!("host {host} feed {plural} {from:?} -> {to:?}: {why}"));
            }
            feed::Effect::Noted(note) => self.trace(|_| format!("host {host} feed {plural} notes {note:?}")),
            feed::Effect::Synced { .. }
            | feed::Effect::Changed(_)
            | feed::Effect::Head(_)
            | feed::Effect::Relisted { .. }
            | feed::Effect::Rewound { .. }
            | feed::Effect::TypeRemoved { .. }
            | feed::Effect::Horizon(_) => {
                self.violate("I16", format!("host {host}: the replica let out what it should keep: {effect:?}"));
            }
        }
    }

    fn tell_feed(&mut self, host: usize, feed: usize, input: feed::Input) {
        self.replica_step(host, replica::Input::Feed { feed: FeedIndex(feed), input });
    }

    /// An answer of the server or the transport, decoded for the machine that waits for it.
    pub(crate) fn take_answer(&mut self, host: usize, owner: Owner, answer: Answer) {
        match (owner, answer) {
            (Owner::Elector(request, _), Answer::Failed(failure)) => {
                self.elector_step(host, elector::Input::RequestFailed { request, failure });
            }
            (Owner::Elector(request, call), Answer::Http(Response::Complete { status, body, retry_after, .. })) => {
                let input = match (call, status) {
                    (LeaseCall::Read, 200) => match LeaseRecord::decode(&body) {
                        Ok(record) => elector::Input::LeaseObserved { request, record },
                        Err(error) => undecodable(request, error.to_string()),
                    },
                    (LeaseCall::Read, 404) => elector::Input::LeaseAbsent { request },
                    (LeaseCall::Write, 200 | 201) => match LeaseRecord::decode(&body) {
                        Ok(record) => elector::Input::PutOk { request, record },
                        Err(error) => undecodable(request, error.to_string()),
                    },
                    (LeaseCall::Write, 409) => elector::Input::PutConflict { request },
                    (LeaseCall::Read | LeaseCall::Write | LeaseCall::Watch, _) => {
                        elector::Input::RequestFailed { request, failure: failure(status, &body, retry_after) }
                    }
                };
                self.elector_step(host, input);
            }
            (Owner::Feed(feed, request, _), Answer::Failed(failure)) => {
                self.tell_feed(host, feed, feed::Input::Failed { request, failure });
            }
            (Owner::Feed(feed, request, call), Answer::Http(Response::Complete { status, body, retry_after, .. })) => {
                let input = match (call, status) {
                    (FeedCall::Resolve, 200) => self.resolved(feed, request, &body),
                    (FeedCall::List, 200) => match list_page::decode(body, ManagedFields::Drop) {
                        Ok(page) => feed::Input::ListPage { request, page },
                        Err(error) => feed::Input::Failed {
                            request,
                            failure: Failure::new(FailureKind::Undecodable, error.to_string()),
                        },
                    },
                    (FeedCall::Resolve | FeedCall::List | FeedCall::Watch, _) => {
                        feed::Input::Failed { request, failure: failure(status, &body, retry_after) }
                    }
                };
                self.tell_feed(host, feed, input);
            }
            (Owner::Elector(..) | Owner::Feed(..), Answer::Http(Response::Watch(_))) => {}
        }
    }

    fn resolved(&self, feed: usize, request: feed::RequestId, body: &[u8]) -> feed::Input {
        let lists = |body: &[u8]| {
            let answer: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
            let resources = answer["resources"].as_array().cloned().unwrap_or_default();
            resources.into_iter().find(|resource| resource["name"] == FEEDS[feed])
        };
        match lists(body) {
            Some(resource) => feed::Input::Resolved {
                request,
                info: ResourceInfo {
                    group: "".into(),
                    version: "v1".into(),
                    resource: FEEDS[feed].into(),
                    kind: resource["kind"].as_str().unwrap_or_default().into(),
                    namespaced: true,
                    streaming_list: self.knobs.says_streaming,
                },
            },
            None => {
                feed::Input::Failed { request, failure: Failure::new(FailureKind::NotFound, "the type is not served") }
            }
        }
    }

    /// The server accepted a watch.
    pub(crate) fn watch_opened(&mut self, host: usize, owner: Owner) {
        if let Owner::Feed(feed, request, _) = owner {
            self.tell_feed(host, feed, feed::Input::WatchOpened { request });
        }
    }

    /// Bytes of a watch.
    pub(crate) fn chunk(&mut self, id: ConnId, bytes: Bytes) {
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        let (host, owner) = (conn.host, conn.owner);
        if !std::mem::replace(&mut conn.opened, true) {
            self.watch_opened(host, owner);
        }
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        conn.lines.push(bytes);
        let mut lines = Vec::new();
        while let Ok(Some(line)) = conn.lines.next_line() {
            lines.push(line);
        }
        match owner {
            Owner::Elector(request, _) => {
                for line in lines {
                    self.lease_line(host, request, &line);
                }
            }
            Owner::Feed(feed, request, _) => self.feed_lines(host, feed, request, lines),
        }
    }

    fn lease_line(&mut self, host: usize, request: elector::RequestId, line: &[u8]) {
        let input = match LeaseEvent::decode(line) {
            Ok(LeaseEvent::Observed(record)) => elector::Input::LeaseObserved { request, record },
            Ok(LeaseEvent::Deleted(record)) => elector::Input::LeaseDeleted { request, record },
            Ok(LeaseEvent::Bookmark) => return,
            Ok(LeaseEvent::Error(body)) => elector::Input::RequestFailed { request, failure: status::in_stream(&body) },
            Err(error) => undecodable(request, error.to_string()),
        };
        let over = matches!(input, elector::Input::RequestFailed { .. });
        if over {
            self.cancel(host, |owner| matches!(owner, Owner::Elector(of, _) if *of == request));
        }
        self.elector_step(host, input);
    }

    fn feed_lines(&mut self, host: usize, feed: usize, request: feed::RequestId, lines: Vec<Bytes>) {
        let mut events = Vec::new();
        let mut broken = None;
        for line in lines {
            match watch_event::decode(line, ManagedFields::Drop) {
                Ok(event) => events.push(event),
                Err(error) => {
                    broken = Some(error.to_string());
                    break;
                }
            }
        }
        if !events.is_empty() {
            self.tell_feed(host, feed, feed::Input::WatchEvents { request, events });
        }
        if let Some(message) = broken {
            self.cancel(host, |owner| matches!(owner, Owner::Feed(of, id, _) if (*of, *id) == (feed, request)));
            self.tell_feed(host, feed, feed::Input::WatchUndecodable { request, message });
        }
    }

    /// The end of a watch.
    pub(crate) fn chunk_end(&mut self, id: ConnId, end: End) {
        let Some(conn) = self.network.conns.remove(&id) else { return };
        let failure = || Failure::new(FailureKind::Transport, "connection reset");
        self.trace(|_| format!("host {} {:?} ends: {end:?}", conn.host, conn.owner));
        match (conn.owner, end) {
            (Owner::Elector(request, _), End::Eof) => {
                self.elector_step(conn.host, elector::Input::WatchClosed { request });
            }
            (Owner::Elector(request, _), End::Reset) => {
                self.elector_step(conn.host, elector::Input::RequestFailed { request, failure: failure() });
            }
            (Owner::Feed(feed, request, _), End::Eof) => {
                self.tell_feed(conn.host, feed, feed::Input::WatchClosed { request });
            }
            (Owner::Feed(feed, request, _), End::Reset) => {
                self.tell_feed(conn.host, feed, feed::Input::Failed { request, failure: failure() });
            }
            (Owner::Elector(..) | Owner::Feed(..), End::Silent) => {}
        }
    }
}

fn undecodable(request: elector::RequestId, why: String) -> elector::Input {
    elector::Input::RequestFailed { request, failure: Failure::new(FailureKind::Undecodable, why) }
}
