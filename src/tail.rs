//! `sidewatch tail`: follows a subscription for people, and for pipes. An ordinary client of the gRPC API.
//!
//! It reconnects by itself and resumes after the last frame it wrote; it ends on Ctrl-C, when its reader is gone, and on
//! answers that a repetition would not change.

mod diff;
mod render;

use std::future::Future;
use std::io;
use std::io::IsTerminal as _;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use hyper_util::rt::TokioIo;
use sidewatch_core::prng::Prng;
use sidewatch_core::selector::LabelSelector;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::config::address::Address;
use crate::grpc::pb;
use crate::grpc::pb::event_service_client::EventServiceClient;
use crate::grpc::pb::frame::Kind;
use crate::tail::render::{Renderer, Style};

/// Delays between two tries to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Deadline of one ack.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);
/// Heartbeats asked of the server.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// A stream that is silent for this long is dead: three heartbeats and some.
const SILENCE_MAX: Duration = Duration::from_secs(35);

const _: () = assert!(SILENCE_MAX.as_secs() > 3 * HEARTBEAT_INTERVAL.as_secs());

/// Arguments of `tail`.
#[derive(clap::Args, Clone, PartialEq, Eq, Debug)]
pub struct TailArgs {
    /// Where the sidecar listens: IP:PORT or unix:///PATH.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50151", value_parser = Address::parse)]
    pub address: Address,
    /// Durable subscription to follow, in place of its application; without one, an ephemeral subscription.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub subscription: String,
    /// Only these feeds; repeat it or join names by commas.
    #[arg(long = "feed", value_name = "NAME", value_delimiter = ',')]
    pub feeds: Vec<String>,
    /// Only objects of these namespaces; repeat it or join names by commas.
    #[arg(long = "namespace", value_name = "NAMESPACE", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Only objects whose labels match, evaluated by the sidecar.
    #[arg(long, value_name = "SELECTOR", default_value = "", hide_default_value = true, value_parser = label_selector)]
    pub label_selector: String,
    /// Where to begin: snapshot, stored (after the position kept for the subscription), live (only what happens from
    /// now on), or a cursor; without it, stored where there is a position, else snapshot.
    #[arg(long, value_name = "snapshot|stored|live|CURSOR", value_parser = From::parse)]
    pub from: Option<From>,
    /// Ack everything that was written; needs --subscription.
    #[arg(long, requires = "subscription")]
    pub ack: bool,
    /// End when every feed has sent its state.
    #[arg(long)]
    pub once: bool,
    /// Receive events from a replica that does not lead as well; not with --subscription.
    #[arg(long, conflicts_with = "subscription")]
    pub ignore_leadership: bool,
    /// Form of the output; auto is color on a terminal and json elsewhere.
    #[arg(long, value_enum, default_value_t = Output::Auto)]
    pub output: Output,
}

/// Where a session begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum From {
    /// With the state of each feed.
    Snapshot,
    /// After the position kept for the subscription.
    Stored,
    /// With what happens from now on.
    Live,
    /// After this cursor.
    Cursor(String),
}

impl From {
    fn parse(text: &str) -> Result<Self, String> {
        // Shorter than any cursor: a misspelt word is better refused here than by the server.
        const CURSOR_CHARACTERS_MIN: usize = 12;
        match text {
            "snapshot" => Ok(From::Snapshot),
            "stored" => Ok(From::Stored),
            "live" => Ok(From::Live),
            cursor if cursor.len() >= CURSOR_CHARACTERS_MIN => Ok(From::Cursor(cursor.to_owned())),
            _ => Err("must be snapshot, stored, live, or a cursor as frames carry it".to_owned()),
        }
    }
}

/// Form of the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Output {
    /// Color on a terminal, json elsewhere.
    Auto,
    /// For people, with colours.
    Color,
    /// For people, without colours.
    Plain,
    /// One JSON object a line.
    Json,
}

impl Default for TailArgs {
    /// An ephemeral subscription to every feed, at the usual address.
    fn default() -> Self {
        Self {
            address: Address::Tcp(([127, 0, 0, 1], 50151).into()),
            subscription: String::new(),
            feeds: Vec::new(),
            namespaces: Vec::new(),
            label_selector: String::new(),
            from: None,
            ack: false,
            once: false,
            ignore_leadership: false,
            output: Output::Auto,
        }
    }
}

fn label_selector(text: &str) -> Result<String, String> {
    LabelSelector::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Follows until Ctrl-C, SIGTERM, a closed pipe, or with `--once` the end of the snapshot.
///
/// # Errors
/// When the server refuses for good: unknown names, a bad cursor, a subscription taken over.
pub fn run(arguments: &TailArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let result = runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let stop = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        follow_until(arguments, stop).await
    });
    // A write to a pipe that nobody reads may still block its thread.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

/// Follows on the present runtime, to standard output, until `stop` is complete; otherwise as [`run`].
///
/// # Errors
/// As [`run`].
pub async fn follow_until(arguments: &TailArgs, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    let style = match arguments.output {
        Output::Auto if std::io::stdout().is_terminal() => Style::Color,
        Output::Auto | Output::Json => Style::Json,
        Output::Color => Style::Color,
        Output::Plain => Style::Plain,
    };
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).context("drawing the seed of the back-off")?;
    let tail = Tail {
        arguments,
        renderer: Renderer::new(style),
        resume: None,
        backoff: BACKOFF.0,
        prng: Prng::new(u64::from_le_bytes(seed)),
    };
    tail.follow(tokio::io::stdout(), tokio::io::stderr(), stop).await
}

/// One run of `tail` over any number of sessions.
struct Tail<'a> {
    arguments: &'a TailArgs,
    renderer: Renderer,
    /// Cursor of the last frame written.
    resume: Option<String>,
    backoff: Duration,
    prng: Prng,
}

/// Why a session ended.
#[derive(Debug)]
enum End {
    /// All that was asked for has been written.
    Complete,
    /// Nobody reads the output.
    ReaderGone,
    /// The server's answer will not change.
    Refused(String),
    /// Worth another try, no sooner than after the delay.
    Lost(String, Duration),
}

impl Tail<'_> {
    async fn follow(
        mut self,
        mut out: impl AsyncWrite + Unpin,
        mut notes: impl AsyncWrite + Unpin,
        stop: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        let mut stop = pin!(stop);
        loop {
            // Dropping the session half way is safe: nothing is followed after a stop.
            let end = tokio::select! {
                () = &mut stop => return Ok(()),
                end = self.session(&mut out) => end,
            };
            let (why, at_least) = match end {
                End::Complete | End::ReaderGone => return Ok(()),
                End::Refused(why) => anyhow::bail!(why),
                End::Lost(why, at_least) => (why, at_least),
            };
            let delay = self.prng.between(self.backoff / 2, self.backoff).max(at_least);
            self.backoff = (self.backoff * 2).min(BACKOFF.1);
            let note = format!("sidewatch: {why}; connecting again in {:.1} s\n", delay.as_secs_f64());
            // Notes are a courtesy: without their reader the events still matter.
            let _ = notes.write_all(note.as_bytes()).await;
            let _ = notes.flush().await;
            tokio::select! {
                () = &mut stop => return Ok(()),
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    async fn session(&mut self, out: &mut (impl AsyncWrite + Unpin)) -> End {
        let channel = match connect(&self.arguments.address).await {
            Ok(channel) => channel,
            Err(error) => return End::Lost(format!("{}: {}", self.arguments.address, causes(&error)), Duration::ZERO),
        };
        let mut client = EventServiceClient::new(channel);
        let opened = tokio::time::timeout(SILENCE_MAX, client.subscribe(self.request())).await;
        let mut frames = match opened {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return refusal(&status),
            Err(_) => return End::Lost("no answer".to_owned(), Duration::ZERO),
        };
        let mut session_id = String::new();
        let mut at_least = Duration::ZERO;
        loop {
            let frame = match tokio::time::timeout(SILENCE_MAX, frames.message()).await {
                Err(_) => return End::Lost(format!("nothing came for {} s", SILENCE_MAX.as_secs()), at_least),
                // Before the first frame an error is the answer to the request, on whichever way it comes.
                Ok(Err(status)) if session_id.is_empty() => return refusal(&status),
                Ok(Err(status)) => return lost(&status, at_least),
                Ok(Ok(None)) if self.arguments.once => return End::Complete,
                Ok(Ok(None)) => return End::Lost("the server ended the stream".to_owned(), at_least),
                Ok(Ok(Some(response))) => response.frame.unwrap_or_default(),
            };
            self.backoff = BACKOFF.0;
            match &frame.kind {
                Some(Kind::SessionStarted(started)) => session_id = started.session_id.clone(),
                Some(Kind::SessionEnding(ending)) => at_least = duration(ending.retry_delay.as_ref()),
                _ => {}
            }
            let text = self.renderer.frame(&frame);
            if let Err(end) = write(out, &text).await {
                return end;
            }
            if frame.cursor.is_empty() {
                continue;
            }
            if self.arguments.ack
                && let Err(end) = self.ack(&mut client, &frame.cursor, &session_id).await
            {
                return end;
            }
            self.resume = Some(frame.cursor);
        }
    }

    fn request(&self) -> pb::SubscribeRequest {
        let (start_mode, cursor) = match (&self.resume, &self.arguments.from) {
            (Some(cursor), _) | (None, Some(From::Cursor(cursor))) => (pb::StartMode::Cursor, cursor.clone()),
            (None, Some(From::Snapshot)) => (pb::StartMode::Snapshot, String::new()),
            (None, Some(From::Stored)) => (pb::StartMode::Stored, String::new()),
            (None, Some(From::Live)) => (pb::StartMode::Live, String::new()),
            (None, None) => (pb::StartMode::Unspecified, String::new()),
        };
        let filter = pb::Filter {
            namespaces: self.arguments.namespaces.clone(),
            label_selector: self.arguments.label_selector.clone(),
            ..pb::Filter::default()
        };
        pb::SubscribeRequest {
            subscription: self.arguments.subscription.clone(),
            feeds: self.arguments.feeds.clone(),
            start_mode: start_mode.into(),
            cursor,
            filter: (filter != pb::Filter::default()).then_some(filter),
            heartbeat_interval: Some(prost_types::Duration { seconds: HEARTBEAT_INTERVAL.as_secs() as i64, nanos: 0 }),
            end_after_snapshot: self.arguments.once,
            ignore_leadership: self.arguments.ignore_leadership,
            ..pb::SubscribeRequest::default()
        }
    }

    async fn ack(&self, client: &mut EventServiceClient<Channel>, cursor: &str, session_id: &str) -> Result<(), End> {
        let request = pb::AckRequest {
            subscription: self.arguments.subscription.clone(),
            cursor: cursor.to_owned(),
            wait_durable: false,
            session_id: session_id.to_owned(),
        };
        match tokio::time::timeout(ACK_TIMEOUT, client.ack(request)).await {
            Ok(Ok(_)) => Ok(()),
            // Leadership ended meanwhile: the next leader delivers what is not acked again.
            Ok(Err(status)) if status.code() == Code::FailedPrecondition => Ok(()),
            Ok(Err(status)) => Err(refusal(&status)),
            Err(_) => Err(End::Lost("no answer to an ack".to_owned(), Duration::ZERO)),
        }
    }
}

async fn write(out: &mut (impl AsyncWrite + Unpin), text: &str) -> Result<(), End> {
    if text.is_empty() {
        return Ok(());
    }
    let written = async {
        out.write_all(text.as_bytes()).await?;
        out.flush().await
    };
    written.await.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => End::ReaderGone,
        _ => End::Refused(format!("writing the output: {error}")),
    })
}

async fn connect(address: &Address) -> Result<Channel, tonic::transport::Error> {
    let endpoint = match address {
        Address::Tcp(address) => Endpoint::from_shared(format!("http://{address}"))?,
        // The name is not resolved: the connector below knows where to go.
        Address::Unix { .. } => Endpoint::from_static("http://localhost"),
    };
    let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT);
    match address {
        Address::Tcp(_) => endpoint.connect().await,
        Address::Unix { path, .. } => {
            let path = path.clone();
            let connector = tower::service_fn(move |_| {
                let path = path.clone();
                async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
            });
            endpoint.connect_with_connector(connector).await
        }
    }
}

/// The innermost cause: what stands above it says only that the transport failed.
fn causes(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// What an answer with an error means for the next try.
fn refusal(status: &Status) -> End {
    match status.code() {
        Code::InvalidArgument
        | Code::NotFound
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::PermissionDenied
        | Code::Unauthenticated => End::Refused(describe(status)),
        _ => lost(status, Duration::ZERO),
    }
}

/// How a stream that was open broke.
fn lost(status: &Status, at_least: Duration) -> End {
    match status.code() {
        Code::Aborted | Code::OutOfRange | Code::InvalidArgument => End::Refused(describe(status)),
        _ => End::Lost(describe(status), at_least),
    }
}

fn describe(status: &Status) -> String {
    format!("{}: {}", status.code(), render::harmless(status.message()))
}

fn duration(duration: Option<&prost_types::Duration>) -> Duration {
    duration.and_then(|duration| Duration::try_from(*duration).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
