//! Requests for the one Lease: GET, PUT, POST, and the watch of it. Each has a hard deadline, none is retried here.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::Method;
use http_body_util::BodyExt;
use sidewatch_core::codec::lease::{LeaseEvent, LeaseRecord};
use sidewatch_core::codec::lines::Lines;
use sidewatch_core::codec::status;
use sidewatch_core::codec::status::{Failure, FailureKind};
use sidewatch_core::limits::{WATCH_END_GRACE, WATCH_TIMEOUT};
use sidewatch_core::resource_version::ResourceVersion;
use tokio::time::{Sleep, sleep};

use crate::apiserver::client::{Call, Client, JSON, transport};

/// A Lease with its annotations: 256 KiB of those, and room for what others have written.
const LEASE_BYTES_MAX: usize = 2 << 20;
/// How long the server may take to accept a watch.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// The Lease that is contended for.
#[derive(Clone, Debug)]
pub struct LeaseApi {
    client: Client,
    collection: String,
    object: String,
    name: String,
}

impl LeaseApi {
    /// The Lease `namespace`/`name`, reached through `client`.
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        let collection = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        let object = format!("{collection}/{name}");
        Self { client, collection, object, name: name.to_owned() }
    }

    /// Reads it, most recent state; none when there is no such Lease.
    ///
    /// # Errors
    /// Any other [`Failure`], `timeout` included.
    pub async fn get(&self, timeout: Duration) -> Result<Option<LeaseRecord>, Failure> {
        match self.client.get(&self.object, JSON, timeout, LEASE_BYTES_MAX).await {
            Ok(body) => decode(&body).map(Some),
            Err(failure) if failure.kind == FailureKind::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Writes it; the record's uid and version are the precondition.
    ///
    /// # Errors
    /// [`Failure`]; `Conflict` when somebody else wrote first.
    pub async fn put(&self, record: &LeaseRecord, timeout: Duration) -> Result<LeaseRecord, Failure> {
        self.write(Method::PUT, &self.object, record, timeout).await
    }

    /// Creates it.
    ///
    /// # Errors
    /// [`Failure`]; `Conflict` when it exists.
    pub async fn create(&self, record: &LeaseRecord, timeout: Duration) -> Result<LeaseRecord, Failure> {
        self.write(Method::POST, &self.collection, record, timeout).await
    }

    async fn write(
        &self,
        method: Method,
        uri: &str,
        record: &LeaseRecord,
        timeout: Duration,
    ) -> Result<LeaseRecord, Failure> {
        let body = Some(record.encode());
        decode(&self.client.call(Call { method, uri, accept: JSON, body, timeout, bytes_max: LEASE_BYTES_MAX }).await?)
    }

    /// Opens a watch of it, after a version or from its present state.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept it.
    pub async fn watch(&self, after: Option<&ResourceVersion>) -> Result<LeaseWatch, Failure> {
        let after = after.map(|version| format!("&resourceVersion={version}")).unwrap_or_default();
        let (name, timeout) = (&self.name, WATCH_TIMEOUT.0.as_secs());
        let query = format!(
            "?watch=true&fieldSelector=metadata.name%3D{name}&allowWatchBookmarks=true&timeoutSeconds={timeout}{after}"
        );
        let body = self.client.open(&format!("{}{query}", self.collection), JSON, OPEN_TIMEOUT).await?;
        let give_up = Box::pin(sleep(WATCH_TIMEOUT.0 + WATCH_END_GRACE));
        Ok(LeaseWatch { chunks: Box::pin(body.into_data_stream()), lines: Lines::new(LEASE_BYTES_MAX), give_up })
    }
}

/// An open watch of the Lease.
pub struct LeaseWatch {
    chunks: Pin<Box<dyn futures_util::Stream<Item = Result<Bytes, kube::Error>> + Send>>,
    lines: Lines,
    give_up: Pin<Box<Sleep>>,
}

impl LeaseWatch {
    /// The next event; none when the watch has ended. Cancel-safe: a chunk that was read stays.
    ///
    /// # Errors
    /// [`Failure`] when the stream broke, went on for longer than was asked for, or a line was not understood; the watch
    /// is over then.
    pub async fn next(&mut self) -> Result<Option<LeaseEvent>, Failure> {
        loop {
            let line = self.lines.next_line().map_err(|error| undecodable(&error))?;
            if let Some(line) = line {
                return match LeaseEvent::decode(&line).map_err(|error| undecodable(&error))? {
                    LeaseEvent::Error(body) => Err(status::in_stream(&body)),
                    event => Ok(Some(event)),
                };
            }
            // Cancel-safe: both are polled by reference.
            let chunk = tokio::select! {
                biased;
                chunk = self.chunks.next() => chunk,
                () = &mut self.give_up => {
                    return Err(Failure::new(FailureKind::Timeout, "the server did not end the watch"));
                }
            };
            match chunk {
                Some(Ok(chunk)) => self.lines.push(chunk),
                Some(Err(error)) => return Err(transport(&error)),
                None => return Ok(None),
            }
        }
    }
}

impl std::fmt::Debug for LeaseWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseWatch").finish_non_exhaustive()
    }
}

fn decode(body: &[u8]) -> Result<LeaseRecord, Failure> {
    LeaseRecord::decode(body).map_err(|error| undecodable(&error))
}

fn undecodable(error: &dyn std::error::Error) -> Failure {
    Failure::new(FailureKind::Undecodable, format!("the Lease was not understood: {error}"))
}
