//! Raw requests to the API server: who we are is kube's business, what an answer means is ours.
//!
//! Nothing is retried in here: a feed has its back-off, and for Lease calls only the elector may decide about time. A
//! failure carries the server's message, never a header, a body or a credential.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use sidewatch_core::codec::status;
use sidewatch_core::codec::status::{Failure, FailureKind};

/// How long a TCP and TLS connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest `Status` that is read: its message is all that is wanted.
const STATUS_BYTES_MAX: usize = 64 << 10;
/// What we say we are in the audit log.
const USER_AGENT: &str = concat!("sidewatch/", env!("CARGO_PKG_VERSION"));

/// Where the cluster is and who we are there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Access {
    /// The pod's service account inside a cluster, else `$KUBECONFIG` or `~/.kube/config`.
    Inferred,
    /// A kubeconfig.
    Kubeconfig {
        /// Files, merged in this order; empty for the usual ones.
        paths: Vec<PathBuf>,
        /// Context, none for the current one.
        context: Option<Arc<str>>,
    },
    /// A server that asks for no credentials, such as the playground's.
    Server {
        /// `http://HOST:PORT`.
        url: Arc<str>,
    },
}

/// A client of one API server. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    kube: kube::Client,
}

/// A request for [`Client::call`].
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// Method.
    pub method: Method,
    /// Path and query.
    pub uri: &'a str,
    /// Form of the answer that is wanted.
    pub accept: &'a str,
    /// JSON body of a write.
    pub body: Option<Vec<u8>>,
    /// The whole answer must be there by then.
    pub timeout: Duration,
    /// Answers larger than this are given up.
    pub bytes_max: usize,
}

/// JSON, the form of nearly all answers.
pub const JSON: &str = "application/json";

impl Access {
    /// Finds the cluster.
    ///
    /// # Errors
    /// When there is no usable configuration; says where it was looked for.
    pub async fn config(&self) -> anyhow::Result<kube::Config> {
        use anyhow::Context as _;
        let mut config = match self {
            Self::Inferred => {
                kube::Config::infer().await.context("no cluster: neither inside a pod nor a kubeconfig")?
            }
            Self::Kubeconfig { paths, context } => {
                let options = KubeConfigOptions {
                    context: context.as_ref().map(ToString::to_string),
                    ..KubeConfigOptions::default()
                };
                if paths.is_empty() {
                    kube::Config::from_kubeconfig(&options).await.context("kubeconfig")?
                } else {
                    let mut merged = Kubeconfig::default();
                    for path in paths {
                        let file =
                            Kubeconfig::read_from(path).with_context(|| format!("kubeconfig {}", path.display()))?;
                        merged = merged.merge(file).context("kubeconfig files do not fit together")?;
                    }
                    kube::Config::from_custom_kubeconfig(merged, &options).await.context("kubeconfig")?
                }
            }
            Self::Server { url } => kube::Config::new(url.parse().with_context(|| format!("server = {url}"))?),
        };
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // Each request has its own deadline here; a silent watch is found by the feed.
        config.read_timeout = None;
        config.write_timeout = Some(CONNECT_TIMEOUT);
        config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(USER_AGENT)));
        Ok(config)
    }
}

impl Client {
    /// A client with its own connections. Must be called within the runtime that will use it.
    ///
    /// # Errors
    /// When certificates or credentials in the configuration cannot be used.
    pub fn new(config: kube::Config) -> anyhow::Result<Self> {
        Ok(Self { kube: kube::Client::try_from(config)? })
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// [`Failure`] by what to do next; also for every status but 2xx.
    pub async fn call(&self, call: Call<'_>) -> Result<Bytes, Failure> {
        let Call { method, uri, accept, body, timeout, bytes_max } = call;
        let whole = async {
            let response = self.send(method, uri, accept, body).await?;
            read(response, bytes_max).await
        };
        tokio::time::timeout(timeout, whole).await.unwrap_or_else(|_| Err(no_answer(timeout)))
    }

    /// GET with the whole answer read.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn get(&self, uri: &str, accept: &str, timeout: Duration, bytes_max: usize) -> Result<Bytes, Failure> {
        self.call(Call { method: Method::GET, uri, accept, body: None, timeout, bytes_max }).await
    }

    /// Opens a stream: the headers must be there within `timeout`, the body comes as it comes.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn open(&self, uri: &str, accept: &str, timeout: Duration) -> Result<Body, Failure> {
        let sent = self.send(Method::GET, uri, accept, None);
        let response = tokio::time::timeout(timeout, sent).await.unwrap_or_else(|_| Err(no_answer(timeout)))?;
        Ok(response.into_body())
    }

    async fn send(
        &self,
        method: Method,
        uri: &str,
        accept: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Body>, Failure> {
        let request = Request::builder().method(method).uri(uri).header(ACCEPT, accept);
        let request = if body.is_some() { request.header(CONTENT_TYPE, JSON) } else { request };
        let request = request
            .body(Body::from(body.unwrap_or_default()))
            .map_err(|error| Failure::new(FailureKind::Rejected, error.to_string()))?;
        let response = self.kube.send(request).await.map_err(|error| transport(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = Limited::new(response.into_body(), STATUS_BYTES_MAX).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        Err(status::from_answer(code, &body, retry_after.map(Duration::from_secs)))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

async fn read(response: Response<Body>, bytes_max: usize) -> Result<Bytes, Failure> {
    let collected = Limited::new(response.into_body(), bytes_max).collect().await;
    collected.map(http_body_util::Collected::to_bytes).map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            Failure::new(FailureKind::Undecodable, format!("the answer is larger than {bytes_max} bytes"))
        } else {
            Failure::new(FailureKind::Transport, chain(&*error))
        }
    })
}

/// What broke below HTTP, as far as it can be told without saying what was sent.
pub fn transport(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::new(FailureKind::Transport, chain(error))
}

fn no_answer(timeout: Duration) -> Failure {
    Failure::new(FailureKind::Timeout, format!("no answer within {timeout:?}"))
}

/// An error and its causes in one line; a cause that the sentence before quotes already is left out.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let sentence = error.to_string();
        if !text.contains(&sentence) {
            text.push_str(": ");
            text.push_str(&sentence);
        }
        cause = error.source();
    }
    text
}
