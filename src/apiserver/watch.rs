//! One WATCH: body bytes to batches of events. Reads no further than what has been handed on.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use kube::client::Body;
use sidewatch_core::codec::lines::Lines;
use sidewatch_core::codec::status::{Failure, FailureKind};
use sidewatch_core::codec::watch_event::{self, ManagedFields, WatchEvent};
use sidewatch_core::feed::{FeedSpec, ResourceInfo, WatchRequest, WatchStart};
use sidewatch_core::limits::{WATCH_END_GRACE, WATCH_LINE_BYTES_MAX, WATCH_OPEN_TIMEOUT};

use crate::apiserver::client::{self, Client};
use crate::apiserver::list::Url;

/// An open watch.
#[derive(Debug)]
pub struct Watch {
    body: Body,
    lines: Lines,
    managed_fields: ManagedFields,
    /// What ended the watch, found behind events that had to be handed on first.
    end: Option<End>,
}

/// How a watch ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The server closed it; or an ERROR event was handed on, after which nothing follows.
    Closed,
    /// A line was not understood.
    Undecodable(String),
    /// The connection broke.
    Failed(Failure),
}

/// Opens a watch: done when the server has accepted it.
///
/// # Errors
/// When the server refuses, cannot be reached, or does not answer in time.
pub async fn open(
    client: &Client,
    spec: &FeedSpec,
    info: &ResourceInfo,
    watch: &WatchRequest,
) -> Result<Watch, Failure> {
    let path = path_of_watch(spec, info, watch);
    let body = client.open(&path, client::JSON, WATCH_OPEN_TIMEOUT).await?;
    Ok(Watch::new(body, spec.managed_fields))
}

/// How long a watch may last: what was asked of the server, and a little.
pub fn lifetime(watch: &WatchRequest) -> Duration {
    watch.timeout + WATCH_END_GRACE
}

fn path_of_watch(spec: &FeedSpec, info: &ResourceInfo, watch: &WatchRequest) -> String {
    let mut url = Url::new(spec, info);
    url.add("watch", true);
    url.add("allowWatchBookmarks", true);
    url.add("timeoutSeconds", watch.timeout.as_secs());
    match &watch.start {
        WatchStart::After(version) => url.add("resourceVersion", version),
        WatchStart::InitialEvents(version) => {
            url.add("sendInitialEvents", true);
            url.add("resourceVersionMatch", "NotOlderThan");
            if let Some(version) = version {
                url.add("resourceVersion", version);
            }
        }
    }
    url.0
}

impl Watch {
    /// The watch whose events are in `body`.
    fn new(body: Body, managed_fields: ManagedFields) -> Self {
        Self { body, lines: Lines::new(WATCH_LINE_BYTES_MAX), managed_fields, end: None }
    }

    /// The events of the next chunk that has any, at least one. Cancel-safe only in that the watch is dropped with it.
    ///
    /// # Errors
    /// [`End`] when nothing more comes.
    pub async fn next(&mut self) -> Result<Vec<WatchEvent>, End> {
        loop {
            if let Some(end) = self.end.take() {
                return Err(end);
            }
            let chunk = match self.body.frame().await {
                None => return Err(self.closed()),
                Some(Err(error)) => return Err(End::Failed(client::transport(&error))),
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            };
            let events = self.decode(chunk);
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }

    /// The events of a chunk; what ends the watch is kept for the next call.
    fn decode(&mut self, chunk: Bytes) -> Vec<WatchEvent> {
        let mut events = Vec::new();
        self.lines.push(chunk);
        loop {
            let line = match self.lines.next_line() {
                Ok(Some(line)) => line,
                Ok(None) => return events,
                Err(error) => {
                    self.end = Some(End::Undecodable(error.to_string()));
                    return events;
                }
            };
            match watch_event::decode(line, self.managed_fields) {
                Ok(event) => {
                    let over = matches!(event, WatchEvent::Error(_));
                    events.push(event);
                    if over {
                        self.end = Some(End::Closed);
                        return events;
                    }
                }
                Err(error) => {
                    self.end = Some(End::Undecodable(error.to_string()));
                    return events;
                }
            }
        }
    }

    /// The body is over: between two events, or within one.
    fn closed(&mut self) -> End {
        match self.lines.rest() {
            None => End::Closed,
            Some(_) => End::Failed(Failure::new(FailureKind::Transport, "the watch broke off within an event")),
        }
    }
}

#[cfg(test)]
mod tests {
    use sidewatch_core::resource_version::ResourceVersion;

    use super::*;
    use crate::apiserver::list::tests::{info, spec};

    fn line(name: &str) -> String {
        format!(
            "{{\"type\":\"ADDED\",\"object\":{{\"metadata\":{{\"name\":\"{name}\",\"uid\":\"u\",\"resourceVersion\":\"5\"}}}}}}\n"
        )
    }

    async fn read(body: &str) -> (usize, End) {
        let mut watch = Watch::new(Body::from(body.as_bytes().to_vec()), ManagedFields::Drop);
        let mut count = 0;
        loop {
            match watch.next().await {
                Ok(events) => count += events.len(),
                Err(end) => return (count, end),
            }
        }
    }

    #[tokio::test]
    async fn events_before_the_end_are_handed_on_first() {
        let two = line("a") + &line("b");
        assert_eq!(read("").await, (0, End::Closed));
        assert_eq!(read(&two).await, (2, End::Closed));
        assert!(
            matches!(read(&(two.clone() + "{\"type\"")).await, (2, End::Failed(f)) if f.kind == FailureKind::Transport)
        );
        assert!(matches!(read(&(two.clone() + "nonsense\n" + &two)).await, (2, End::Undecodable(_))));
        let error = "{\"type\":\"ERROR\",\"object\":{\"code\":410}}\n";
        assert_eq!(read(&(two.clone() + error + &two)).await, (3, End::Closed));
    }

    #[test]
    fn the_url_says_where_the_watch_starts() {
        let path = |start| {
            let watch = WatchRequest { start, timeout: Duration::from_secs(250) };
            path_of_watch(&spec(None, "a=b", ""), &info("", "pods"), &watch)
        };
        let base = "/api/v1/pods?labelSelector=a%3Db&watch=true&allowWatchBookmarks=true&timeoutSeconds=250";
        let version = || ResourceVersion::from(7);
        assert_eq!(path(WatchStart::After(version())), format!("{base}&resourceVersion=7"));
        let initial = format!("{base}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
        assert_eq!(path(WatchStart::InitialEvents(None)), initial);
        assert_eq!(path(WatchStart::InitialEvents(Some(version()))), format!("{initial}&resourceVersion=7"));
    }
}
