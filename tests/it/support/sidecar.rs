//! One sidecar: the shipped program, as the pod would run it.

use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::cluster::Cluster;
use super::process::Process;
use super::{check, wait_for};

/// How long a sidecar may take to listen: it does so before it has reached the API server.
const LISTEN_MAX: Duration = Duration::from_secs(30);

/// What a sidecar is started with.
#[derive(Clone)]
pub(crate) struct Options {
    /// The pod's name; also names the log.
    pub(crate) pod: String,
    /// What to watch, as on the command line.
    pub(crate) watch: Vec<String>,
    /// Where; none: everywhere.
    pub(crate) namespaces: Vec<String>,
    /// The Lease; none: election is off.
    pub(crate) lease: Option<String>,
    /// Where the Lease is.
    pub(crate) lease_namespace: String,
    /// Durable subscriptions.
    pub(crate) subscriptions: Vec<String>,
    /// More arguments.
    pub(crate) more: Vec<String>,
}

impl Options {
    /// A sidecar of the pod `pod` that takes part in the election for the Lease `app` in `default`, with times short
    /// enough for a test: a dead leader is replaced after six seconds.
    pub(crate) fn new(pod: &str, watch: &[&str], namespaces: &[&str]) -> Self {
        let own = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        Self {
            pod: pod.to_owned(),
            watch: own(watch),
            namespaces: own(namespaces),
            lease: Some("app".to_owned()),
            lease_namespace: "default".to_owned(),
            subscriptions: vec!["app".to_owned()],
            more: own(&["--lease-duration", "6s", "--lease-renew-deadline", "4s", "--lease-retry-period", "1s"]),
        }
    }

    /// Without election.
    pub(crate) fn alone(pod: &str, watch: &[&str], namespaces: &[&str]) -> Self {
        let options = Self::new(pod, watch, namespaces);
        Self { lease: None, subscriptions: Vec::new(), more: Vec::new(), ..options }
    }

    /// With one more argument.
    pub(crate) fn with(mut self, argument: &str, value: &str) -> Self {
        self.more.extend([argument.to_owned(), value.to_owned()]);
        self
    }

    fn arguments(&self, kubeconfig: &Path) -> Vec<String> {
        let mut arguments: Vec<String> =
            ["run", "--log-format", "json", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
                .iter()
                .map(|text| (*text).to_owned())
                .collect();
        let mut add = |name: &str, value: &str| arguments.extend([name.to_owned(), value.to_owned()]);
        add("--kubeconfig", &kubeconfig.display().to_string());
        add("--pod-name", &self.pod);
        add("--pod-uid", &format!("uid-of-{}", self.pod));
        for watch in &self.watch {
            add("--watch", watch);
        }
        for namespace in &self.namespaces {
            add("--namespace", namespace);
        }
        for subscription in &self.subscriptions {
            add("--subscription", subscription);
        }
        match &self.lease {
            Some(lease) => {
                add("--lease", lease);
                add("--lease-namespace", &self.lease_namespace);
            }
            None => add("--election", "off"),
        }
        if self.namespaces.is_empty() {
            arguments.push("--all-namespaces".to_owned());
        }
        arguments.extend(self.more.iter().cloned());
        arguments
    }
}

/// A running sidecar. Dropping it ends it; its log is printed when the test fails.
pub(crate) struct Sidecar {
    /// What it was started with.
    pub(crate) options: Options,
    process: Process,
    grpc: String,
    http: String,
}

impl Sidecar {
    /// Starts a sidecar with the admin's rights and returns when it listens.
    pub(crate) async fn start(cluster: &Cluster, options: Options) -> Self {
        let kubeconfig = cluster.kubeconfig().to_owned();
        Self::start_as(cluster, options, &kubeconfig).await
    }

    /// As [`Self::start`], with the rights of this kubeconfig.
    pub(crate) async fn start_as(cluster: &Cluster, options: Options, kubeconfig: &Path) -> Self {
        let arguments = options.arguments(kubeconfig);
        Self::start_with(cluster, options, &arguments).await
    }

    /// As [`Self::start`], with just these arguments; of the options only the pod's name counts.
    pub(crate) async fn start_with(cluster: &Cluster, options: Options, arguments: &[String]) -> Self {
        // A log of its own for each start: the addresses of an earlier one must not be found.
        let log = format!("sidecar-{}-{}", options.pod, std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos());
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidewatch"));
        command.args(arguments).env("RUST_BACKTRACE", "1");
        let mut process = Process::start(&log, cluster.folder(), &mut command);
        let (mut grpc, mut http) = (String::new(), String::new());
        wait_for("the sidecar to listen", LISTEN_MAX, || {
            let output = process.output();
            grpc = address(&output, "grpc").unwrap_or_default();
            http = address(&output, "http").unwrap_or_default();
            let ended = process.ended();
            async move {
                assert!(ended.is_none(), "the sidecar ended with {}:\n{output}", ended.expect("just seen"));
                check(address(&output, "grpc").is_some() && address(&output, "http").is_some(), || output)
            }
        })
        .await;
        Self { options, process, grpc, http }
    }

    /// Where it serves gRPC: `host:port`.
    pub(crate) fn grpc(&self) -> &str {
        &self.grpc
    }

    /// Where it serves probes and metrics: `host:port`.
    pub(crate) fn http(&self) -> &str {
        &self.http
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Ends it at once, as the kernel does when memory is short.
    pub(crate) fn kill(mut self) -> Options {
        self.process.kill();
        self.options.clone()
    }

    /// Ends it as the kubelet does; returns how it ended and what it logged.
    pub(crate) fn terminate(mut self, deadline: Duration) -> (ExitStatus, String) {
        self.process.signal(Signal::TERM);
        let status = self.process.wait(deadline);
        (status, self.process.output())
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        self.process.output()
    }

    /// The status and the body of a page of its HTTP listener.
    pub(crate) async fn page(&self, path: &str) -> Result<(u16, String), String> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let fails = |error: std::io::Error| format!("http://{}{path}: {error}", self.http);
        let mut stream = tokio::net::TcpStream::connect(&self.http).await.map_err(fails)?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.http);
        stream.write_all(request.as_bytes()).await.map_err(fails)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.map_err(fails)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| answer.clone())?;
        Ok((status, answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned()))
    }

    /// Waits until its readiness page says so.
    pub(crate) async fn ready(&self) {
        wait_for("the sidecar to be ready", Duration::from_secs(60), || async {
            let (status, body) = self.page("/readyz").await?;
            check(status == 200, || format!("{status} {body}"))
        })
        .await;
    }
}

/// The address in the line `{"message":"listening","listener":NAME,"address":…}` of the log.
fn address(log: &str, listener: &str) -> Option<String> {
    log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|line| {
        let fields = if line["message"].is_string() { &line } else { &line["fields"] };
        let ours = fields["message"] == "listening" && fields["listener"] == listener;
        ours.then(|| fields["address"].as_str().map(str::to_owned)).flatten()
    })
}
