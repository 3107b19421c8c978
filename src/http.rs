//! The port of probes and metrics: `/livez`, `/readyz`, `/metrics`, and an index at `/`.
//!
//! Its answers come from values that others keep up to date, never from asking them: a stuck data path cannot make a
//! probe hang. Readiness does not depend on leading.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::telemetry::metrics::Metrics;

/// How long a client may take for the head of a request; kubelets and scrapers send it at once.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a request's head that are read: probes send a few hundred.
const HEADER_BYTES_MAX: usize = 16 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 64;
/// Connections served at one time; further ones wait in the backlog of the socket.
const CONNECTIONS_MAX: usize = 64;
/// How long requests under way may take once the server is told to end.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(1);
/// Pause after an accept that failed: it fails at once as long as, say, file descriptors are out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const OPENMETRICS: HeaderValue = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

const INDEX: &str = "\
sidewatch

/livez    200 while this process serves
/readyz   200 when ready, with a line per feed; 503 with the reasons otherwise; does not depend on leading
/metrics  metrics in the text form of OpenMetrics
";

/// What `/readyz` answers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Readiness {
    /// Whether the pod counts as ready.
    pub ready: bool,
    /// One line per feed: why it is ready, degraded, or not ready.
    pub reasons: Vec<String>,
}

/// Binds the port. `[::]` falls back to `0.0.0.0` where the machine has no IPv6.
///
/// # Errors
/// When the address cannot be bound.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && lacks_ipv6(&error) => {
            TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()))).await
        }
        result => result,
    }
}

fn lacks_ipv6(error: &io::Error) -> bool {
    let absent = [rustix::io::Errno::AFNOSUPPORT, rustix::io::Errno::ADDRNOTAVAIL];
    absent.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Serves until `stop` is complete, then lets requests under way finish for a moment. Dropping the future ends all of
/// it at once.
pub async fn serve(
    listener: TcpListener,
    readiness: watch::Receiver<Readiness>,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()> + Send,
) {
    let mut stop = pin!(stop);
    let (stopping, _) = watch::channel(());
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    let told = stopping.subscribe();
                    connections.spawn(connection(stream, readiness.clone(), metrics.clone(), told));
                }
                Err(error) => {
                    tracing::warn!(%error, "the probes' port could not accept");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            },
        }
    }
    drop((listener, stopping));
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_PATIENCE, finished).await.is_err() {
        connections.shutdown().await;
    }
}

/// Serves one connection; `told` errs once the server ends.
async fn connection(
    stream: TcpStream,
    readiness: watch::Receiver<Readiness>,
    metrics: Arc<Metrics>,
    mut told: watch::Receiver<()>,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = answer(request.method(), request.uri().path(), &readiness.borrow(), &metrics);
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_READ_TIMEOUT);
    builder.max_buf_size(HEADER_BYTES_MAX).max_headers(HEADERS_MAX);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let result = tokio::select! {
        result = &mut connection => result,
        _ = told.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection to the probes' port broke");
    }
}

fn answer(method: &Method, path: &str, readiness: &Readiness, metrics: &Metrics) -> Response<Full<Bytes>> {
    let (status, content_type, body) = match (method, path) {
        (&Method::GET | &Method::HEAD, "/livez") => (StatusCode::OK, TEXT, "ok\n".to_owned()),
        (&Method::GET | &Method::HEAD, "/readyz") => {
            let (status, word) = match readiness.ready {
                true => (StatusCode::OK, "ready"),
                false => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
            };
            let lines = [word].into_iter().chain(readiness.reasons.iter().map(String::as_str));
            (status, TEXT, lines.flat_map(|line| [line, "\n"]).collect())
        }
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, OPENMETRICS, metrics.encode()),
        (&Method::GET | &Method::HEAD, "/") => (StatusCode::OK, TEXT, INDEX.to_owned()),
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, TEXT, "not found; see /\n".to_owned()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use sidewatch_core::time::WallTime;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;

    struct Server {
        address: SocketAddr,
        readiness: watch::Sender<Readiness>,
        stop: oneshot::Sender<()>,
        task: JoinHandle<()>,
    }

    async fn server() -> Server {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (readiness, receiver) = watch::channel(Readiness::default());
        let (stop, stopped) = oneshot::channel();
        let metrics = Arc::new(Metrics::new(WallTime::default()));
        let task = tokio::spawn(serve(listener, receiver, metrics, async {
            let _ = stopped.await;
        }));
        Server { address, readiness, stop, task }
    }

    /// Status line, head and body of the answer to a request on a connection of its own.
    async fn ask(address: SocketAddr, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(format!("{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    #[tokio::test]
    async fn probes_answer_from_the_readiness_of_the_moment() {
        let server = server().await;
        let (head, body) = ask(server.address, "GET /livez").await;
        assert!(head.starts_with("HTTP/1.1 200") && body == "ok\n", "{head} {body}");
        server.readiness.send_replace(Readiness { ready: false, reasons: vec!["pods: syncing".to_owned()] });
        let (head, body) = ask(server.address, "GET /readyz").await;
        assert!(head.starts_with("HTTP/1.1 503") && body == "not ready\npods: syncing\n", "{head} {body}");
        server.readiness.send_replace(Readiness { ready: true, reasons: vec!["pods: live".to_owned()] });
        let (head, body) = ask(server.address, "GET /readyz?verbose").await;
        assert!(head.starts_with("HTTP/1.1 200") && body == "ready\npods: live\n", "{head} {body}");
    }

    #[tokio::test]
    async fn metrics_have_their_content_type() {
        let server = server().await;
        let (head, body) = ask(server.address, "GET /metrics").await;
        assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
        assert!(body.contains("sidewatch_build_info") && body.ends_with("# EOF\n"), "{body}");
    }

    #[tokio::test]
    async fn other_paths_and_methods_are_refused() {
        let server = server().await;
        assert!(ask(server.address, "GET /").await.1.contains("/readyz"));
        assert!(ask(server.address, "GET /secret").await.0.starts_with("HTTP/1.1 404"));
        let (head, _) = ask(server.address, "POST /livez").await;
        assert!(head.starts_with("HTTP/1.1 405") && head.contains("allow: GET, HEAD"), "{head}");
        assert_eq!(ask(server.address, "HEAD /livez").await.1, "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_dawdles_is_cut_off() {
        let server = server().await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost:").await.unwrap();
        let began = tokio::time::Instant::now();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(began.elapsed() <= HEADER_READ_TIMEOUT * 2, "{:?}", began.elapsed());
        let huge = format!("GET /{}", "a".repeat(HEADER_BYTES_MAX * 2));
        let (head, _) = ask(server.address, &huge).await;
        assert!(head.starts_with("HTTP/1.1 4"), "{head}");
    }

    #[tokio::test]
    async fn stopping_ends_idle_connections_and_the_port() {
        let server = server().await;
        let mut idle = TcpStream::connect(server.address).await.unwrap();
        idle.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut first = [0; 12];
        idle.read_exact(&mut first).await.unwrap();
        server.stop.send(()).unwrap();
        server.task.await.unwrap();
        let mut rest = Vec::new();
        let _ = idle.read_to_end(&mut rest).await;
        assert!(TcpStream::connect(server.address).await.is_err());
    }

    #[tokio::test]
    async fn the_unspecified_address_can_be_bound_with_or_without_ipv6() {
        let listener = bind("[::]:0".parse().unwrap()).await.unwrap();
        assert_ne!(listener.local_addr().unwrap().port(), 0);
    }
}
