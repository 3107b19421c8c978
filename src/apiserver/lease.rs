//! The Lease by name: GET, PUT, POST and watch, each with a hard deadline.

use std::time::Duration;

use bytes::{Buf, BytesMut};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use sidewatch_core::codec::lease::{LeaseEvent, LeaseRecord};
use sidewatch_core::codec::status::{Failure, FailureKind};
use sidewatch_core::limits;
use sidewatch_core::resource_version::ResourceVersion;

use crate::apiserver::client::{Client, failure_from_status};

/// A Lease holds 48 KiB of checkpoint and what others wrote, 256 KiB of annotations at most; this is far above both.
const LEASE_BYTES_MAX: usize = 2 << 20;
/// How long the server keeps the watch open.
const WATCH_TIMEOUT: Duration = Duration::from_secs(240);
/// How much later the watch is given up from this side.
const WATCH_GRACE: Duration = Duration::from_secs(10);

/// The Lease `namespace`/`name` behind a client.
#[derive(Clone)]
pub struct LeaseApi {
    client: Client,
    collection: String,
    name: String,
}

impl LeaseApi {
    /// The Lease `namespace`/`name`; both are DNS labels and need no escaping in a URL.
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        let collection = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        Self { client, collection, name: name.to_owned() }
    }

    /// Reads the most recent state; none when there is no such Lease.
    ///
    /// # Errors
    /// Any other failure, `timeout` included.
    pub async fn get(&self, timeout: Duration) -> Result<Option<LeaseRecord>, Failure> {
        match self.call(Method::GET, &format!("{}/{}", self.collection, self.name), Vec::new(), timeout).await {
            Ok(record) => Ok(Some(record)),
            Err(failure) if failure.kind == FailureKind::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Writes the Lease under the precondition of its uid and version, and returns it as stored.
    ///
    /// # Errors
    /// `Conflict` when somebody else wrote first; any other failure, `timeout` included.
    pub async fn put(&self, record: &LeaseRecord, timeout: Duration) -> Result<LeaseRecord, Failure> {
        self.call(Method::PUT, &format!("{}/{}", self.collection, self.name), record.encode(), timeout).await
    }

    /// Creates the Lease and returns it as stored.
    ///
    /// # Errors
    /// `Conflict` when it exists; any other failure, `timeout` included.
    pub async fn create(&self, record: &LeaseRecord, timeout: Duration) -> Result<LeaseRecord, Failure> {
        self.call(Method::POST, &self.collection, record.encode(), timeout).await
    }

    /// Watches the Lease after a version, or from its most recent state on.
    ///
    /// # Errors
    /// When the watch cannot be opened.
    pub async fn watch(&self, after: Option<&ResourceVersion>) -> Result<LeaseWatch, Failure> {
        let mut path = format!(
            "{}?watch=1&fieldSelector=metadata.name%3D{}&timeoutSeconds={}",
            self.collection,
            self.name,
            WATCH_TIMEOUT.as_secs()
        );
        if let Some(version) = after {
            path.push_str(&format!("&resourceVersion={version}"));
        }
        let opening = self.client.send(request(Method::GET, &path, Vec::new())?);
        let response = tokio::time::timeout(limits::LEASE_REQUEST_TIMEOUT, opening).await;
        let body = response.map_err(|_| late(limits::LEASE_REQUEST_TIMEOUT))??.into_body();
        let give_up = tokio::time::Instant::now() + WATCH_TIMEOUT + WATCH_GRACE;
        Ok(LeaseWatch { body, line: BytesMut::new(), give_up })
    }

    async fn call(&self, method: Method, path: &str, body: Vec<u8>, timeout: Duration) -> Result<LeaseRecord, Failure> {
        let answer = self.client.fetch(request(method, path, body)?, LEASE_BYTES_MAX, timeout).await?;
        LeaseRecord::decode(&answer).map_err(undecodable)
    }
}

/// An open watch.
pub struct LeaseWatch {
    body: Body,
    line: BytesMut,
    give_up: tokio::time::Instant,
}

impl LeaseWatch {
    /// The next event; none when the watch has ended. After an error or the end there is nothing more.
    ///
    /// # Errors
    /// When the stream breaks, sends what is no event, or sends an ERROR event.
    pub async fn next(&mut self) -> Result<Option<LeaseEvent>, Failure> {
        loop {
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let line = self.line.split_to(end);
                self.line.advance(1);
                if line.is_empty() {
                    continue;
                }
                return match LeaseEvent::decode(&line).map_err(undecodable)? {
                    LeaseEvent::Error(status) => Err(failure_from_status(&status)),
                    event @ (LeaseEvent::Observed(_) | LeaseEvent::Deleted(_) | LeaseEvent::Bookmark) => {
                        Ok(Some(event))
                    }
                };
            }
            if self.line.len() > LEASE_BYTES_MAX {
                return Err(Failure::new(FailureKind::Undecodable, "a line of the watch is too long"));
            }
            match tokio::time::timeout_at(self.give_up, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        self.line.extend_from_slice(data);
                    }
                }
                Ok(Some(Err(error))) => return Err(Failure::new(FailureKind::Transport, error.to_string())),
                Ok(None) => return Ok(None),
                Err(_) => return Err(late(WATCH_TIMEOUT + WATCH_GRACE)),
            }
        }
    }
}

fn request(method: Method, path: &str, body: Vec<u8>) -> Result<Request<Vec<u8>>, Failure> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .header(http::header::ACCEPT, "application/json")
        .body(body)
        .map_err(|error| Failure::new(FailureKind::Rejected, error.to_string()))
}

fn late(timeout: Duration) -> Failure {
    Failure::new(FailureKind::Timeout, format!("no answer within {timeout:?}"))
}

fn undecodable(error: impl std::fmt::Display) -> Failure {
    Failure::new(FailureKind::Undecodable, error.to_string())
}
