//! HTTP/1.1 and HTTP/2 around the model: requests in, bodies out, faults carried out on the way.
//!
//! The model answers; this file only moves bytes. A watch body is a loop of poll and wait: for a
//! change of the model, or for the moment at which the watch itself has something to say.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::Builder;
use sidewatch_model::request::{JSON, Method, Request, Response};
use sidewatch_model::script::Fault;
use sidewatch_model::status::Failure;
use sidewatch_model::watch::{WatchId, error_line};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::playground::{Handle, lock};

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Largest request body, as the API server's default for JSON.
const REQUEST_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Accepts connections until told to stop, then ends them all.
pub async fn serve(listener: TcpListener, handle: Handle, mut stop: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // Each branch is cancel-safe: nothing is taken unless the branch wins.
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(serve_connection(stream, handle.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
            _ = stop.wait_for(|stopping| *stopping) => break,
        }
    }
    connections.shutdown().await;
}

async fn serve_connection(stream: TcpStream, handle: Handle) {
    // Latency of single events matters more than packets; a refusal of the option changes nothing else.
    let _without_it = stream.set_nodelay(true);
    let tasks = Tasks::default();
    let service = service_fn(move |request| answer(handle.clone(), request));
    // An error here is a connection that broke, often on purpose; the client sees it, and nobody else needs to.
    let _broken = Builder::new(tasks).serve_connection(TokioIo::new(stream), service).await;
}

/// Runs the tasks of one HTTP/2 connection, and ends them with it.
#[derive(Clone, Default)]
struct Tasks {
    set: Arc<Mutex<JoinSet<()>>>,
}

impl<F> Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        let mut set = lock(&self.set);
        while set.try_join_next().is_some() {}
        set.spawn(async {
            task.await;
        });
    }
}

/// A connection that is to break without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection breaks by rule of the script")]
struct Broken;

async fn answer(handle: Handle, request: hyper::Request<Incoming>) -> Result<hyper::Response<Body>, Broken> {
    let mut request = match read(request).await {
        Ok(request) => request,
        Err(failure) => return Ok(complete(failure.code, JSON, failure.body(), None, None)),
    };
    let fault = lock(&handle.shared.script).decide(&request);
    match &fault {
        Some(Fault::Stall) => match pending::<Infallible>().await {},
        Some(Fault::DelayRequest(delay)) => tokio::time::sleep(*delay).await,
        Some(Fault::Stale(revisions)) => request.staleness = *revisions,
        Some(Fault::Answer { status, body, retry_after }) => {
            return Ok(complete(*status, JSON, body.clone(), *retry_after, None));
        }
        _ => {}
    }
    let response = match request.method {
        // Reads change nothing, and a watch body polls at once by itself.
        Method::Get => handle.look(|server, moment| server.handle(moment.now, moment.wall_micros, &request)),
        _ => handle.change(|server, moment| server.handle(moment.now, moment.wall_micros, &request)),
    };
    match &fault {
        Some(Fault::LoseAnswer) => {
            if let Response::Watch(id) = response {
                handle.look(|server, _| server.drop_watch(id));
            }
            return Err(Broken);
        }
        Some(Fault::DelayAnswer(delay)) => tokio::time::sleep(*delay).await,
        _ => {}
    }
    Ok(match response {
        Response::Complete { status, content_type, body, retry_after } => {
            complete(status, content_type, body, retry_after, fault.as_ref())
        }
        Response::Watch(id) => {
            let changes = handle.shared.changes.subscribe();
            respond(200, JSON, None, watch_body(Watching { handle, id, changes, lines: 0 }, fault))
        }
    })
}

async fn read(request: hyper::Request<Incoming>) -> Result<Request, Failure> {
    let (head, body) = request.into_parts();
    let body = http_body_util::Limited::new(body, REQUEST_BYTES_MAX).collect().await.map_err(|_| {
        Failure::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {REQUEST_BYTES_MAX}"))
    })?;
    let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    Ok(Request {
        method: Method::parse(head.method.as_str()),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        accept: text(ACCEPT),
        content_type: text(CONTENT_TYPE),
        body: body.to_bytes(),
        staleness: 0,
    })
}

fn respond(status: u16, content_type: &str, retry_after: Option<u32>, body: Body) -> hyper::Response<Body> {
    let mut builder = hyper::Response::builder().status(status).header(CONTENT_TYPE, content_type);
    if let Some(seconds) = retry_after {
        builder = builder.header(RETRY_AFTER, seconds);
    }
    builder.body(body).unwrap_or_else(|_| {
        // Only a status outside 100 to 999 in a script gets here.
        hyper::Response::new(Full::new(Bytes::from_static(b"bad status in the script")).map_err(never).boxed_unsync())
    })
}

fn never(impossible: Infallible) -> io::Error {
    match impossible {}
}

fn complete(
    status: u16,
    content_type: &str,
    body: Bytes,
    retry_after: Option<u32>,
    fault: Option<&Fault>,
) -> hyper::Response<Body> {
    let body = match fault.and_then(Cut::of) {
        Some(cut) => cut_body(stream::iter([body]), cut),
        None => Full::new(body).map_err(never).boxed_unsync(),
    };
    respond(status, content_type, retry_after, body)
}

/// Where a body is cut, and what follows.
#[derive(Debug, Clone, Copy)]
struct Cut {
    after_bytes: u64,
    then: Then,
}

#[derive(Debug, Clone, Copy)]
enum Then {
    Stall,
    Break,
    End,
}

impl Cut {
    fn of(fault: &Fault) -> Option<Cut> {
        let (after_bytes, then) = match fault {
            Fault::StallAfter(bytes) => (*bytes, Then::Stall),
            Fault::ResetAfter(bytes) => (*bytes, Then::Break),
            Fault::TruncateAfter(bytes) => (*bytes, Then::End),
            _ => return None,
        };
        Some(Cut { after_bytes, then })
    }
}

/// Passes so many bytes on, then stalls, breaks or ends.
fn cut_body(chunks: impl stream::Stream<Item = Bytes> + Send + 'static, cut: Cut) -> Body {
    let state = (Box::pin(chunks), cut.after_bytes);
    let frames = stream::unfold(state, move |(mut chunks, left)| async move {
        if left > 0 {
            let mut chunk = next(chunks.as_mut()).await?;
            chunk.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            let left = left - chunk.len() as u64;
            return Some((Ok(Frame::data(chunk)), (chunks, left)));
        }
        match cut.then {
            Then::Stall => pending().await,
            Then::Break => {
                // The bytes before the break should arrive: what is written in one go with it may not.
                tokio::task::yield_now().await;
                Some((Err(io::Error::from(io::ErrorKind::ConnectionReset)), (chunks, left)))
            }
            Then::End => None,
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

async fn next<S: stream::Stream>(mut stream: Pin<&mut S>) -> Option<S::Item> {
    std::future::poll_fn(|context| stream.as_mut().poll_next(context)).await
}

/// An open watch: the model forgets it when the body is dropped.
struct Watching {
    handle: Handle,
    id: WatchId,
    changes: watch::Receiver<u64>,
    lines: u64,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.handle.look(|server, _| server.drop_watch(self.id));
    }
}

/// What a watch body does next.
enum Step {
    Send(Bytes),
    Last(Bytes),
    Wait(std::time::Duration),
}

impl Watching {
    fn step(&mut self, fault: Option<&Fault>) -> Step {
        self.changes.mark_unchanged();
        let (mut output, wait) = self.handle.look(|server, moment| {
            let output = server.poll_watch(self.id, moment.now);
            (output, server.next_wake(self.id, moment.now).saturating_sub(moment.now))
        });
        if let Some(Fault::ErrorEvent { after_lines, failure }) = fault {
            let room = usize::try_from(after_lines.saturating_sub(self.lines)).unwrap_or(usize::MAX);
            if output.lines.len() >= room {
                output.lines.truncate(room);
                output.lines.push(error_line(failure));
                output.closed = true;
            }
        }
        self.lines += output.lines.len() as u64;
        let bytes = match output.lines.as_slice() {
            [line] => line.clone(),
            lines => Bytes::from(lines.concat()),
        };
        match (output.closed, bytes.is_empty()) {
            (true, _) => Step::Last(bytes),
            (false, false) => Step::Send(bytes),
            (false, true) => Step::Wait(wait),
        }
    }
}

fn watch_body(watching: Watching, fault: Option<Fault>) -> Body {
    let cut = fault.as_ref().and_then(Cut::of);
    let chunks = stream::unfold(Some((watching, fault)), |state| async {
        let (mut watching, fault) = state?;
        loop {
            match watching.step(fault.as_ref()) {
                Step::Send(bytes) => return Some((bytes, Some((watching, fault)))),
                Step::Last(bytes) => return Some((bytes, None)),
                Step::Wait(wait) => {
                    tokio::select! {
                        // Both are cancel-safe; an error of the channel cannot be, the handle holds its sender.
                        _ = watching.changes.changed() => {}
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
    });
    match cut {
        Some(cut) => cut_body(chunks, cut),
        None => {
            let frames = stream::unfold(Box::pin(chunks), |mut chunks| async move {
                let chunk = next(chunks.as_mut()).await?;
                Some((Ok(Frame::data(chunk)), chunks))
            });
            StreamBody::new(frames).boxed_unsync()
        }
    }
}
