//! Clients of the API server: raw requests in, bytes or a [`Failure`] out. No retries; the machines decide on those.
//!
//! A client belongs to the runtime in which it was made, because its connections are driven there. The control driver
//! and the data path therefore make one each, and a busy data path cannot delay a renewal.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize;
use sidewatch_core::codec::status::{Failure, FailureKind};
use sidewatch_core::limits;

/// How the API server is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Access {
    /// By the service account of the pod.
    InCluster,
    /// By a kubeconfig.
    Kubeconfig {
        /// The file; none for `$KUBECONFIG` or `~/.kube/config`.
        path: Option<PathBuf>,
        /// The context; none for the current one.
        context: Option<String>,
    },
    /// By this URL, without credentials: the playground.
    Plain(Uri),
}

/// Why no client could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The pod has no service account, or it is not mounted.
    #[error("no access from within a cluster")]
    InCluster(#[source] kube::config::InClusterError),
    /// The kubeconfig cannot be read or lacks something.
    #[error("kubeconfig is not usable")]
    Kubeconfig(#[source] kube::config::KubeconfigError),
    /// TLS or credentials could not be prepared.
    #[error("client cannot be prepared")]
    Client(#[source] kube::Error),
}

/// Everything that a client is made of.
#[derive(Clone, Debug)]
pub struct Settings(kube::Config);

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for a request to be written.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence of a connection: longer than the longest watch, whose own silence is measured elsewhere.
const READ_TIMEOUT: Duration = Duration::from_secs(limits::WATCH_TIMEOUT.1.as_secs() + 10);
/// An error's body is read up to here; a `Status` is far smaller.
const ERROR_BODY_BYTES_MAX: usize = 64 << 10;

impl Settings {
    /// Reads kubeconfig or service account; connects to nothing.
    ///
    /// # Errors
    /// When they are missing or incomplete.
    pub async fn load(access: &Access) -> Result<Self, ConnectError> {
        let mut config = match access {
            Access::InCluster => kube::Config::incluster().map_err(ConnectError::InCluster)?,
            Access::Kubeconfig { path, context } => {
                let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
                let loaded = match path {
                    Some(path) => {
                        let file = Kubeconfig::read_from(path).map_err(ConnectError::Kubeconfig)?;
                        kube::Config::from_custom_kubeconfig(file, &options).await
                    }
                    None => kube::Config::from_kubeconfig(&options).await,
                };
                loaded.map_err(ConnectError::Kubeconfig)?
            }
            Access::Plain(url) => kube::Config::new(url.clone()),
        };
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.write_timeout = Some(WRITE_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        // Else the time that a connection lay idle would count as silence of the next answer.
        config.reset_reader_on_write = true;
        Ok(Self(config))
    }

    /// The namespace of the service account or of the kubeconfig's context.
    pub fn default_namespace(&self) -> &str {
        &self.0.default_namespace
    }

    /// Makes a client that lives in the present runtime; it connects at its first request.
    ///
    /// # Errors
    /// When TLS or credentials cannot be prepared.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn client(&self) -> Result<Client, ConnectError> {
        kube::Client::try_from(self.0.clone()).map(Client).map_err(ConnectError::Client)
    }
}

/// A client: cheap to clone, bound to the runtime it was made in.
#[derive(Clone)]
pub struct Client(kube::Client);

impl Client {
    /// Sends a request and returns the answer once its head is there and says success. Without a deadline of its own.
    ///
    /// # Errors
    /// When there is no answer, or another one than 2xx.
    pub async fn send(&self, request: Request<Vec<u8>>) -> Result<Response<Body>, Failure> {
        let response = self.0.send(request.map(Body::from)).await.map_err(failure_from_error)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        // A body that cannot be read takes nothing from what the code says.
        let body = Limited::new(body, ERROR_BODY_BYTES_MAX).collect().await.map(|all| all.to_bytes());
        Err(failure_from_response(head.status, &head.headers, &body.unwrap_or_default()))
    }

    /// Sends a request and returns the whole body.
    ///
    /// # Errors
    /// As [`Client::send`]; `Timeout` when `timeout` passes first; `Undecodable` when the body is longer than
    /// `bytes_max`; `Transport` when it breaks off.
    pub async fn fetch(
        &self,
        request: Request<Vec<u8>>,
        bytes_max: usize,
        timeout: Duration,
    ) -> Result<Bytes, Failure> {
        let whole = async {
            let body = self.send(request).await?.into_body();
            match Limited::new(body, bytes_max).collect().await {
                Ok(all) => Ok(all.to_bytes()),
                Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                    Err(Failure::new(FailureKind::Undecodable, format!("the answer is longer than {bytes_max} bytes")))
                }
                Err(error) => Err(Failure::new(FailureKind::Transport, error.to_string())),
            }
        };
        let late = || Failure::new(FailureKind::Timeout, format!("no answer within {timeout:?}"));
        tokio::time::timeout(timeout, whole).await.unwrap_or_else(|_| Err(late()))
    }
}

/// The parts of a `metav1.Status` that a caller acts on.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    message: String,
    reason: String,
    code: u16,
    details: Option<Details>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    retry_after_seconds: u64,
    causes: Vec<Cause>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Cause {
    reason: String,
}

/// What an answer other than 2xx means.
pub(crate) fn failure_from_response(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Failure {
    let parsed: Status = serde_json::from_slice(body).unwrap_or_default();
    let header = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok()).map(Duration::from_secs);
    failure(status.as_u16(), parsed, header)
}

/// What a `Status` within a stream means.
pub(crate) fn failure_from_status(body: &[u8]) -> Failure {
    match serde_json::from_slice::<Status>(body) {
        Ok(status) => failure(status.code, status, None),
        Err(_) => Failure::new(FailureKind::Undecodable, "an error event without a Status"),
    }
}

fn failure(code: u16, status: Status, header: Option<Duration>) -> Failure {
    let details = status.details.unwrap_or_default();
    let too_large = details.causes.iter().any(|cause| cause.reason == "ResourceVersionTooLarge");
    let kind = match (code, status.reason.as_str()) {
        (410, _) | (_, "Expired" | "Gone") => FailureKind::Expired,
        (401, _) => FailureKind::Unauthorized,
        (403, _) => FailureKind::Forbidden,
        (404, _) => FailureKind::NotFound,
        (409, _) => FailureKind::Conflict,
        (429, _) => FailureKind::TooManyRequests,
        (400 | 405 | 406 | 415 | 422, _) => FailureKind::Rejected,
        (504, _) if too_large => FailureKind::VersionTooLarge,
        _ => FailureKind::Unavailable,
    };
    let asked = (details.retry_after_seconds > 0).then(|| Duration::from_secs(details.retry_after_seconds));
    let message = if status.message.is_empty() { format!("HTTP {code}") } else { status.message };
    Failure { kind, message, retry_after: header.or(asked) }
}

/// What the lack of an answer means. Of credentials nothing is quoted.
fn failure_from_error(error: kube::Error) -> Failure {
    match error {
        kube::Error::Auth(_) => Failure::new(FailureKind::Unauthorized, "credentials could not be loaded"),
        kube::Error::Api(status) => {
            failure(status.code, Status { message: status.message, reason: status.reason, ..Status::default() }, None)
        }
        kube::Error::Service(error) => {
            let mut causes = vec![error.to_string()];
            let mut source = error.source();
            while let Some(cause) = source {
                causes.push(cause.to_string());
                source = cause.source();
            }
            causes.dedup();
            Failure::new(FailureKind::Transport, causes.join(": "))
        }
        error => Failure::new(FailureKind::Transport, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_sorted_by_what_to_do_next() {
        let kind = |code: u16, body: &str| {
            failure_from_response(StatusCode::from_u16(code).unwrap(), &HeaderMap::new(), body.as_bytes()).kind
        };
        assert_eq!(kind(410, ""), FailureKind::Expired);
        assert_eq!(kind(409, r#"{"reason":"AlreadyExists"}"#), FailureKind::Conflict);
        assert_eq!(kind(422, "{}"), FailureKind::Rejected);
        assert_eq!(kind(503, "not json"), FailureKind::Unavailable);
        let too_large = r#"{"details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
        assert_eq!(kind(504, too_large), FailureKind::VersionTooLarge);
        assert_eq!(kind(504, "{}"), FailureKind::Unavailable);
        assert_eq!(failure_from_status(br#"{"code":410,"reason":"Expired"}"#).kind, FailureKind::Expired);
    }

    #[test]
    fn the_servers_wish_is_read_from_header_or_body() {
        let mut headers = HeaderMap::new();
        let body = br#"{"message":"slow down","details":{"retryAfterSeconds":3}}"#;
        let failure = failure_from_response(StatusCode::TOO_MANY_REQUESTS, &headers, body);
        assert_eq!(failure.retry_after, Some(Duration::from_secs(3)));
        assert_eq!(failure.to_string(), "TooManyRequests: slow down");
        headers.insert(RETRY_AFTER, "7".parse().unwrap());
        let failure = failure_from_response(StatusCode::TOO_MANY_REQUESTS, &headers, body);
        assert_eq!(failure.retry_after, Some(Duration::from_secs(7)));
    }
}
