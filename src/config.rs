//! The configuration: validated, with units. [`raw`] holds what was written, [`keys`] the table of all keys.
//!
//! Every fault is reported, not only the first, each with its place, the key, the value and the rule.

pub mod address;
#[cfg(test)]
mod document;
mod feeds;
pub mod keys;
pub mod raw;
pub mod units;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sidewatch_core::codec::watch_event::ManagedFields;
use sidewatch_core::limits;
use sidewatch_core::selector::is_dns_label;

use crate::config::address::Address;
use crate::config::raw::{Flags, Node, Origin, Raw, Written};

pub use crate::config::feeds::{Feed, NamespaceChoice, Scope, Watch};

/// The shortest Lease: renewals and their retries must fit in it.
const LEASE_DURATION: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(600));
/// The shortest time between two renewals: a faster leader would load the API server for nothing.
const RETRY_PERIOD_MIN: Duration = limits::CHECKPOINT_INTERVAL_MIN;
/// Longer silences would look like a dead server to clients.
const HEARTBEAT_INTERVAL_MAX: Duration = Duration::from_secs(300);
/// Beyond this the wait would outlast any grace period.
const DRAIN_TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// More journal than this is a unit mistaken.
const JOURNAL_BYTES_MAX: u64 = 64 << 30;
/// More unacked events than this is no limit.
const UNACKED_EVENTS_MAX: u32 = 1_000_000;

const _: () = assert!(limits::JOURNAL_BYTES_DEFAULT == 64 << 20);
const _: () = assert!(limits::UNACKED_EVENTS_MAX_DEFAULT == 1000);

/// The configuration of one sidecar, ready to use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// What is watched; [`Config::feeds`] makes the feeds of it.
    pub watches: Vec<Watch>,
    /// Durable subscriptions, 1 to [`limits::SUBSCRIPTIONS_MAX`].
    pub subscriptions: Vec<Arc<str>>,
    /// Events that a durable subscription may hold unacked, unless the client asks otherwise.
    pub unacked_events_max: u32,
    /// Interval of heartbeats on a quiet stream, unless the client asks otherwise.
    pub heartbeat_interval: Duration,
    /// Memory of the journal over all feeds.
    pub journal_bytes_max: usize,
    /// Whether one replica leads.
    pub election: Election,
    /// This pod.
    pub pod: Pod,
    /// How to reach the API server.
    pub cluster: Cluster,
    /// Where the gRPC services listen; at least one, all local to the pod.
    pub listen: Vec<Address>,
    /// Where probes and metrics are served.
    pub http_listen: SocketAddr,
    /// How long after SIGTERM attached clients may still ack.
    pub drain_timeout: Duration,
    /// Logs.
    pub log: Log,
}

/// Whether one replica leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Election {
    /// Every replica delivers to its application.
    Off,
    /// Only the holder of the Lease delivers.
    On(Lease),
}

/// The Lease and its timings, whose relations hold: `duration` ≥ 1.5 `renew_deadline`, `renew_deadline` ≥ 2.5
/// `retry_period`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.namespace`; none: the pod's own.
    pub namespace: Option<Arc<str>>,
    /// `spec.leaseDurationSeconds`: whole seconds.
    pub duration: Duration,
    /// How long after sending a successful renewal a leader may emit.
    pub renew_deadline: Duration,
    /// Time between two renewals.
    pub retry_period: Duration,
}

/// The identity of this pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pod {
    /// Its name, or the host name.
    pub name: Arc<str>,
    /// Its uid, where the downward API tells it.
    pub uid: Option<Arc<str>>,
    /// Its namespace where configured; none: that of the service account or of the kubeconfig's context.
    pub namespace: Option<Arc<str>>,
}

/// How to reach the API server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cluster {
    /// By the pod's service account, and outside of a pod by the default kubeconfig.
    Inferred,
    /// By a kubeconfig.
    Kubeconfig {
        /// Files to merge; empty: the default one.
        paths: Vec<PathBuf>,
        /// A context of it; none: the current one.
        context: Option<Arc<str>>,
    },
    /// By a bare URL, without credentials.
    Server {
        /// `http://127.0.0.1:8001`, without a slash at its end.
        url: Arc<str>,
    },
}

/// What is logged, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Log {
    /// A level, or directives as `tracing_subscriber::EnvFilter` takes them; they parse.
    pub filter: Arc<str>,
    /// Form of a line.
    pub format: LogFormat,
}

/// Form of a log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Config {
    /// Reads file, environment and flags, and validates what they say together.
    ///
    /// # Errors
    /// All faults, one a line: place, key, value, rule.
    pub fn load(flags: &Flags) -> anyhow::Result<Self> {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self::load_with(flags, &std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect())
    }

    /// [`Config::load`] with a given environment.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_with(flags: &Flags, environment: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let mut raw = Raw::read(flags, environment)?;
        let mut problems = Problems::default();
        settle_exclusions(&mut raw, &mut problems);
        let config = Self::validate(&raw, &mut problems);
        match config {
            Some(config) if problems.list.is_empty() => Ok(config),
            _ => Err(problems.into()),
        }
    }

    /// None only when there are problems; where a value is bad, validation goes on without it.
    fn validate(raw: &Raw, problems: &mut Problems) -> Option<Self> {
        let pod_namespace = value(raw, problems, "pod.namespace", namespace);
        let watches = feeds::validate(raw, pod_namespace.as_deref(), problems);
        let subscriptions = subscriptions(raw, problems);
        let unacked_events_max = value(raw, problems, "maxUnackedEvents", |text| {
            let parsed = text.parse().ok().filter(|count| (1..=UNACKED_EVENTS_MAX).contains(count));
            parsed.ok_or_else(|| format!("must be a whole number from 1 to {UNACKED_EVENTS_MAX}"))
        });
        let heartbeat_interval = value(raw, problems, "heartbeatInterval", |text| {
            duration_within(text, limits::HEARTBEAT_INTERVAL_MIN, HEARTBEAT_INTERVAL_MAX)
        });
        let journal_bytes_max = value(raw, problems, "journal.limit", journal_bytes);
        let election = election(raw, problems);
        let pod = Some(Pod {
            name: value(raw, problems, "pod.name", subdomain).unwrap_or_else(host_name),
            uid: value(raw, problems, "pod.uid", uid),
            namespace: pod_namespace,
        });
        let cluster = cluster(raw, problems);
        let listen = listen(raw, problems);
        let http_listen = value(raw, problems, "http.listen", |text| {
            text.parse().map_err(|_| "must be IP:PORT, such as [::]:9151 or 0.0.0.0:9151".to_owned())
        });
        let drain_timeout =
            value(raw, problems, "drainTimeout", |text| duration_within(text, Duration::ZERO, DRAIN_TIMEOUT_MAX));
        let filter = value(raw, problems, "log.level", log_filter);
        let format = value(raw, problems, "log.format", |text| match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err("must be text or json".to_owned()),
        });
        Some(Self {
            watches,
            subscriptions,
            unacked_events_max: unacked_events_max?,
            heartbeat_interval: heartbeat_interval?,
            journal_bytes_max: journal_bytes_max?,
            election: election?,
            pod: pod?,
            cluster: cluster?,
            listen,
            http_listen: http_listen?,
            drain_timeout: drain_timeout?,
            log: Log { filter: filter?, format: format? },
        })
    }

    /// The effective configuration as a file that gives it again. It holds no secrets: none can be configured.
    pub fn to_yaml(&self) -> String {
        let text = |text: &dyn fmt::Display| Node::Text(text.to_string());
        let texts = |items: &[Arc<str>]| Node::List(items.iter().map(|item| Node::Text(item.to_string())).collect());
        let mut entries = Entries::default();
        entries.push("feeds", Node::List(self.watches.iter().map(Watch::to_node).collect()));
        entries.push("subscriptions", texts(&self.subscriptions));
        entries.push("maxUnackedEvents", Node::Number(self.unacked_events_max.into()));
        entries.push("heartbeatInterval", Node::Text(units::duration_text(self.heartbeat_interval)));
        let journal = Node::Text(units::bytes_text(self.journal_bytes_max as u64));
        entries.push("journal", Node::Map(vec![("limit".to_owned(), journal)]));
        match &self.election {
            Election::Off => entries.push("election", text(&"off")),
            Election::On(lease) => {
                entries.push("election", text(&"on"));
                let mut inner = Entries::default();
                inner.push("name", text(&lease.name));
                inner.push_some("namespace", lease.namespace.as_ref());
                inner.push("duration", Node::Text(units::duration_text(lease.duration)));
                inner.push("renewDeadline", Node::Text(units::duration_text(lease.renew_deadline)));
                inner.push("retryPeriod", Node::Text(units::duration_text(lease.retry_period)));
                entries.push("lease", Node::Map(inner.0));
            }
        }
        let mut pod = Entries::default();
        pod.push("name", text(&self.pod.name));
        pod.push_some("uid", self.pod.uid.as_ref());
        pod.push_some("namespace", self.pod.namespace.as_ref());
        entries.push("pod", Node::Map(pod.0));
        match &self.cluster {
            Cluster::Inferred => {}
            Cluster::Kubeconfig { paths, context } => {
                let joined = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":");
                entries.push_some("kubeconfig", Some(&joined).filter(|joined| !joined.is_empty()));
                entries.push_some("context", context.as_ref());
            }
            Cluster::Server { url } => entries.push("server", text(url)),
        }
        entries.push("listen", Node::List(self.listen.iter().map(|address| text(address)).collect()));
        entries.push("http", Node::Map(vec![("listen".to_owned(), text(&self.http_listen))]));
        entries.push("drainTimeout", Node::Text(units::duration_text(self.drain_timeout)));
        let format = match self.log.format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        let log = vec![("level".to_owned(), text(&self.log.filter)), ("format".to_owned(), text(&format))];
        entries.push("log", Node::Map(log));
        serde_saphyr::to_string(&Node::Map(entries.0)).expect("a tree of texts, lists and maps is always YAML")
    }
}

/// Keys and values in the order of pushing.
#[derive(Default)]
struct Entries(Vec<(String, Node)>);

impl Entries {
    fn push(&mut self, key: &str, node: Node) {
        self.0.push((key.to_owned(), node));
    }

    fn push_some<T: fmt::Display>(&mut self, key: &str, value: Option<T>) {
        if let Some(value) = value {
            self.push(key, Node::Text(value.to_string()));
        }
    }
}

/// Everything that is wrong with a configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Problems {
    list: Vec<String>,
}

impl Problems {
    fn add(&mut self, key: &str, written: &Written, rule: impl fmt::Display) {
        let Written { text, origin } = written;
        // What stands before an @ in a URL may be a password.
        let text = match (text.split_once("://"), text.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
            _ => text.clone(),
        };
        let place = match origin {
            Origin::Default => String::new(),
            origin => format!("{origin}: "),
        };
        self.list.push(format!("{place}{key} = {text}: {rule}"));
    }

    fn add_missing(&mut self, place: Option<&Origin>, key: &str, rule: impl fmt::Display) {
        let place = place.map(|origin| format!("{origin}: ")).unwrap_or_default();
        self.list.push(format!("{place}{key}: {rule}"));
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.list.join("\n"))
    }
}

impl std::error::Error for Problems {}

/// Of two keys that exclude each other, the one from the stronger source holds; from the same source both is a fault.
fn settle_exclusions(raw: &mut Raw, problems: &mut Problems) {
    let said_no = raw.one("allNamespaces").is_some_and(|written| written.text == "false");
    for (left, right) in [("namespaces", "allNamespaces"), ("server", "kubeconfig"), ("server", "context")] {
        let (of_left, of_right) = (raw.rank(left), raw.rank(right));
        if of_left == 0 || of_right == 0 || (right == "allNamespaces" && said_no) {
            continue;
        }
        match of_left.cmp(&of_right) {
            std::cmp::Ordering::Less => raw.unset(left),
            std::cmp::Ordering::Greater => raw.unset(right),
            std::cmp::Ordering::Equal => {
                let written = raw.one(right).expect("its rank says that it was written");
                problems.add(right, &written, format!("excludes {left}: give one of the two"));
            }
        }
    }
}

/// The value of a key, or its default; none when it has neither, and when it is bad, which is then a problem.
fn value<T>(raw: &Raw, problems: &mut Problems, key: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
    let written = raw.one(key)?;
    parse(&written.text).map_err(|rule| problems.add(key, &written, rule)).ok()
}

fn duration_within(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let duration = units::duration(text)?;
    if (least..=most).contains(&duration) {
        return Ok(duration);
    }
    Err(format!("must be from {} to {}", units::duration_text(least), units::duration_text(most)))
}

fn journal_bytes(text: &str) -> Result<usize, String> {
    let bytes = units::bytes(text)?;
    if (limits::JOURNAL_BYTES_MIN as u64..=JOURNAL_BYTES_MAX).contains(&bytes) {
        return usize::try_from(bytes).map_err(|_| "is more than this machine can address".to_owned());
    }
    let least = units::bytes_text(limits::JOURNAL_BYTES_MIN as u64);
    Err(format!("must be from {least} to {}", units::bytes_text(JOURNAL_BYTES_MAX)))
}

fn namespace(text: &str) -> Result<Arc<str>, String> {
    if is_dns_label(text) {
        return Ok(text.into());
    }
    Err("a namespace has 1 to 63 lower case letters, digits and dashes, and no dash at its ends".to_owned())
}

fn subdomain(text: &str) -> Result<Arc<str>, String> {
    if text.len() <= 253 && text.split('.').all(is_dns_label) {
        return Ok(text.into());
    }
    Err("must be a DNS subdomain: at most 253 lower case letters, digits, dashes and dots".to_owned())
}

fn uid(text: &str) -> Result<Arc<str>, String> {
    if (1..=63).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Ok(text.into());
    }
    Err("must be the uid of the pod: 1 to 63 letters, digits and dashes".to_owned())
}

fn log_filter(text: &str) -> Result<Arc<str>, String> {
    let rule = "must be error, warn, info, debug, trace or off, or directives such as info,sidewatch::driver=debug";
    let levels = ["error", "warn", "info", "debug", "trace", "off"];
    // A lone word is taken as a target by the filter's grammar, which would log nothing else: refused here.
    let plain = |part: &str| part.contains('=') || levels.contains(&part.to_lowercase().as_str());
    if !text.split(',').all(|part| plain(part.trim())) || tracing_subscriber::EnvFilter::try_new(text).is_err() {
        return Err(rule.to_owned());
    }
    Ok(text.into())
}

fn subscriptions(raw: &Raw, problems: &mut Problems) -> Vec<Arc<str>> {
    let mut names: Vec<Arc<str>> = Vec::new();
    for written in raw.many("subscriptions") {
        if !is_dns_label(&written.text) {
            let rule =
                "a subscription's name has 1 to 63 lower case letters, digits and dashes, and no dash at its ends";
            problems.add("subscriptions", &written, rule);
        } else if names.iter().any(|name| **name == written.text) {
            problems.add("subscriptions", &written, "is there twice: name each subscription once");
        } else if names.len() == limits::SUBSCRIPTIONS_MAX {
            problems.add("subscriptions", &written, format!("is one too many: at most {}", limits::SUBSCRIPTIONS_MAX));
        } else {
            names.push(written.text.into());
        }
    }
    names
}

fn election(raw: &Raw, problems: &mut Problems) -> Option<Election> {
    let on = value(raw, problems, "election", |text| match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err("must be on or off".to_owned()),
    });
    let name = value(raw, problems, "lease.name", subdomain);
    let namespace = value(raw, problems, "lease.namespace", namespace);
    let timings = timings(raw, problems);
    if on == Some(false) {
        return Some(Election::Off);
    }
    if raw.one("lease.name").is_none() {
        let remedy = "needed while election is on: the same name in every replica of the application, \
                      for example --lease shop-events; or --election off";
        problems.add_missing(None, "lease.name", remedy);
    }
    let [duration, renew_deadline, retry_period] = timings?;
    Some(Election::On(Lease { name: name?, namespace, duration, renew_deadline, retry_period }))
}

/// Lease duration, renew deadline and retry period, when they fit together (docs/protocol.md, D.1).
fn timings(raw: &Raw, problems: &mut Problems) -> Option<[Duration; 3]> {
    let read = |text: &str| units::duration(text).map_err(str::to_owned);
    let duration = value(raw, problems, "lease.duration", |text| {
        let duration = duration_within(text, LEASE_DURATION.0, LEASE_DURATION.1)?;
        match duration.subsec_nanos() {
            0 => Ok(duration),
            _ => Err("must be whole seconds: the Lease counts in them".to_owned()),
        }
    });
    let renew_deadline = value(raw, problems, "lease.renewDeadline", read);
    let retry_period = value(raw, problems, "lease.retryPeriod", |text| match read(text)? {
        period if period < RETRY_PERIOD_MIN => {
            Err(format!("must be at least {}", units::duration_text(RETRY_PERIOD_MIN)))
        }
        period => Ok(period),
    });
    let (duration, renew_deadline, retry_period) = (duration?, renew_deadline?, retry_period?);
    let blame = |stronger: &str, weaker: &str| if raw.rank(stronger) >= raw.rank(weaker) { 0 } else { 1 };
    let mut fit = true;
    if 3 * renew_deadline > 2 * duration {
        fit = false;
        if blame("lease.renewDeadline", "lease.duration") == 0 {
            let most = units::duration_text(duration * 2 / 3);
            let rule = format!("must be at most 2/3 of lease.duration ({}): {most}", units::duration_text(duration));
            problems.add("lease.renewDeadline", &raw.one("lease.renewDeadline")?, rule);
        } else {
            let least =
                units::duration_text(Duration::from_secs((renew_deadline * 3 / 2).as_millis().div_ceil(1000) as u64));
            let deadline = units::duration_text(renew_deadline);
            let rule = format!("must be at least 1.5 times lease.renewDeadline ({deadline}): {least}");
            problems.add("lease.duration", &raw.one("lease.duration")?, rule);
        }
    }
    if 5 * retry_period > 2 * renew_deadline {
        fit = false;
        if blame("lease.retryPeriod", "lease.renewDeadline") == 0 {
            let most = units::duration_text(renew_deadline * 2 / 5);
            let rule = format!(
                "must be at most 2/5 of lease.renewDeadline ({}): {most}",
                units::duration_text(renew_deadline)
            );
            problems.add("lease.retryPeriod", &raw.one("lease.retryPeriod")?, rule);
        } else {
            let least = units::duration_text(retry_period * 5 / 2);
            let period = units::duration_text(retry_period);
            let rule = format!("must be at least 2.5 times lease.retryPeriod ({period}): {least}");
            problems.add("lease.renewDeadline", &raw.one("lease.renewDeadline")?, rule);
        }
    }
    fit.then_some([duration, renew_deadline, retry_period])
}

fn cluster(raw: &Raw, problems: &mut Problems) -> Option<Cluster> {
    if raw.one("server").is_some() {
        return Some(Cluster::Server { url: value(raw, problems, "server", server_url)? });
    }
    let context = raw.one("context").map(|written| Arc::from(written.text));
    let paths: Vec<PathBuf> = match raw.one("kubeconfig") {
        Some(written) => written.text.split(':').filter(|path| !path.is_empty()).map(PathBuf::from).collect(),
        None if context.is_none() => return Some(Cluster::Inferred),
        None => Vec::new(),
    };
    Some(Cluster::Kubeconfig { paths, context })
}

fn server_url(text: &str) -> Result<Arc<str>, String> {
    let rule = "must be http:// or https:// and a host, such as http://127.0.0.1:8001";
    let uri: http::Uri = text.parse().map_err(|_| rule.to_owned())?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.query().is_some() {
        return Err(rule.to_owned());
    }
    match uri.authority() {
        Some(authority) if !authority.as_str().contains('@') => Ok(text.trim_end_matches('/').into()),
        Some(_) => Err("must not hold credentials: use a kubeconfig for them".to_owned()),
        None => Err(rule.to_owned()),
    }
}

fn listen(raw: &Raw, problems: &mut Problems) -> Vec<Address> {
    let mut seen = BTreeSet::new();
    let mut addresses = Vec::new();
    for written in raw.many("listen") {
        match Address::parse(&written.text) {
            Err(rule) => problems.add("listen", &written, rule),
            Ok(address) if !address.is_local() => {
                let rule = "must be a loopback address (127.0.0.1 or [::1]) or a Unix socket: \
                            the services have no authentication, so only this pod may reach them";
                problems.add("listen", &written, rule);
            }
            Ok(address) if !seen.insert(address.clone()) => {
                problems.add("listen", &written, "is there twice: name each address once");
            }
            Ok(address) => addresses.push(address),
        }
    }
    addresses
}

/// The host name, which is the pod's name in a pod without a `hostname` of its own.
fn host_name() -> Arc<str> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "unnamed".into(),
        name => name.to_lowercase().into(),
    }
}

#[cfg(test)]
mod tests;
