//! The configuration as written: one file, the environment and the flags, merged, with the place of every value.
//!
//! Nothing is understood here beyond the shape of the file; [`crate::config`] validates.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::{Deserialize, Serialize};
use serde_saphyr::Spanned;

use crate::config::keys::{KEYS, Key, Shape};

/// Names the file where no flag does.
const CONFIG_VARIABLE: &str = "SIDEWATCH_CONFIG";

/// Where a value was written; later variants win over earlier ones.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// Nowhere: it is the default.
    Default,
    /// In the file.
    File {
        /// The file as given.
        path: Arc<str>,
        /// Counted from 1.
        line: u64,
    },
    /// In an environment variable.
    Variable(&'static str),
    /// In a flag, named without its dashes.
    Flag(&'static str),
}

impl Origin {
    /// Which source it was, for comparing two values: the greater one wins.
    pub fn rank(&self) -> u8 {
        match self {
            Origin::Default => 0,
            Origin::File { .. } => 1,
            Origin::Variable(_) => 2,
            Origin::Flag(_) => 3,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{path}:{line}"),
            Origin::Variable(name) => f.write_str(name),
            Origin::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// One value as written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// The text.
    pub text: String,
    /// Where it stands.
    pub origin: Origin,
}

/// An entry of `feeds` as written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WrittenFeed {
    /// Where the entry begins.
    pub origin: Origin,
    /// `resource`.
    pub resource: Option<Written>,
    /// `name`.
    pub name: Option<Written>,
    /// `namespaces`.
    pub namespaces: Vec<Written>,
    /// `allNamespaces`.
    pub all_namespaces: Option<Written>,
    /// `labelSelector`.
    pub label_selector: Option<Written>,
    /// `fieldSelector`.
    pub field_selector: Option<Written>,
    /// `managedFields`.
    pub managed_fields: Option<Written>,
}

/// All that was written, after precedence: flag over variable over file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Raw {
    values: BTreeMap<&'static str, Vec<Written>>,
    /// Entries of `feeds`.
    pub feeds: Vec<WrittenFeed>,
}

impl Raw {
    /// Reads the file, if one is named, and lays the environment and the flags over it. Empty variables count as unset.
    ///
    /// # Errors
    /// When the file cannot be read, is not YAML, or holds an unknown key: file, line, and what would be right. When a
    /// variable has an unknown name.
    pub fn read(flags: &Flags, environment: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        refuse_unknown_variables(environment)?;
        let variable = |name: &str| environment.get(name).filter(|text| !text.is_empty());
        let named = flags.config.clone().or_else(|| variable(CONFIG_VARIABLE).map(PathBuf::from));
        let mut raw = match named {
            Some(path) => Self::read_file(&path)?,
            None => Self::default(),
        };
        for key in KEYS.iter().filter(|key| key.shape != Shape::FileOnly) {
            if let Some(text) = variable(key.env) {
                let texts = match key.shape {
                    Shape::List => text.split(',').map(|part| part.trim().to_owned()).collect(),
                    _ => vec![text.clone()],
                };
                raw.set(key, texts, &Origin::Variable(key.env));
            }
            if let Some(texts) = flags.values.get(key.name) {
                raw.set(key, texts.clone(), &Origin::Flag(key.flag));
            }
        }
        Ok(raw)
    }

    /// The value of a key, or its default; none when it has neither.
    pub fn one(&self, name: &str) -> Option<Written> {
        self.many(name).into_iter().next()
    }

    /// The values of a list, or the default.
    pub fn many(&self, name: &str) -> Vec<Written> {
        let key = Key::named(name);
        match self.values.get(key.name) {
            Some(written) => written.clone(),
            None if key.default.is_empty() => Vec::new(),
            None => vec![Written { text: key.default.to_owned(), origin: Origin::Default }],
        }
    }

    /// The source that decides a key.
    pub fn rank(&self, name: &str) -> u8 {
        self.values.get(name).and_then(|written| written.first()).map_or(0, |written| written.origin.rank())
    }

    /// Forgets what was written for a key, so that its default holds.
    pub fn unset(&mut self, name: &str) {
        self.values.remove(name);
    }

    fn set(&mut self, key: &'static Key, texts: Vec<String>, origin: &Origin) {
        let written = texts.into_iter().map(|text| Written { text, origin: origin.clone() }).collect();
        self.values.insert(key.name, written);
    }

    fn read_file(path: &Path) -> anyhow::Result<Self> {
        let name: Arc<str> = path.display().to_string().into();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("--config {name}: the file must exist and be readable UTF-8 text"))?;
        let file = parse_file(&text).map_err(|error| anyhow::anyhow!("{}", explain(&name, error.without_snippet())))?;
        Ok(file.into_raw(&name))
    }
}

fn parse_file(text: &str) -> Result<File, serde_saphyr::Error> {
    let blank = text.lines().all(|line| matches!(line.trim(), "" | "---") || line.trim_start().starts_with('#'));
    if blank { Ok(File::default()) } else { serde_saphyr::from_str(text) }
}

/// A misspelt variable would be ignored silently. Those that Kubernetes sets for a Service named `sidewatch…` are let
/// pass: they end in `_SERVICE_HOST`, or have `PORT` in them.
fn refuse_unknown_variables(environment: &BTreeMap<String, String>) -> anyhow::Result<()> {
    let known: Vec<&str> = KEYS.iter().map(|key| key.env).chain([CONFIG_VARIABLE]).collect();
    let of_service = |name: &str| name.ends_with("_SERVICE_HOST") || name.split('_').any(|part| part == "PORT");
    for name in environment.keys().filter(|name| name.starts_with("SIDEWATCH_")) {
        if !known.contains(&name.as_str()) && !of_service(name) {
            match known.iter().map(|known| (distance(name, known), *known)).min() {
                Some((0..=3, nearest)) => anyhow::bail!("{name}: there is no such variable; did you mean {nearest}?"),
                _ => anyhow::bail!("{name}: there is no such variable; `sidewatch run --help` names them all"),
            }
        }
    }
    Ok(())
}

/// An error of the parser as `file:line: what is wrong, what would be right`.
fn explain(path: &str, error: &serde_saphyr::Error) -> String {
    let line = error.location().map_or(1, |location| location.line());
    match error {
        serde_saphyr::Error::SerdeUnknownField { field, expected, .. } => {
            format!("{path}:{line}: {field}: there is no such key here; {}", suggestion(field, expected))
        }
        other => {
            let message = other.render_with_options(serde_saphyr::RenderOptions::default());
            let message = message.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            format!("{path}:{line}: {}", shape(&message).map_or(message.as_str(), |shape| shape))
        }
    }
}

/// What must stand where the parser found something of another shape, in the words of a person who writes YAML.
fn shape(message: &str) -> Option<&'static str> {
    [
        ("expected sequence start", "must be a list, such as [pods] or [app, audit]"),
        ("expected mapping start", "must be keys of its own, such as lease: {name: shop-events}"),
        ("expected string scalar", "must be one value, not a list or keys"),
        ("duplicate mapping key", "a key stands twice here: leave one of them out"),
    ]
    .into_iter()
    .find_map(|(start, told)| message.starts_with(start).then_some(told))
}

/// The nearest key that may stand here, or the place where this one may stand, or all that may.
fn suggestion(field: &str, expected: &[&str]) -> String {
    let elsewhere = KEYS.iter().find(|key| {
        key.name == field || key.name.rsplit('.').next() == Some(field) || (!key.flag.is_empty() && key.flag == field)
    });
    let nearest = expected.iter().map(|key| (distance(&field.to_lowercase(), &key.to_lowercase()), *key)).min();
    match (elsewhere, nearest) {
        (Some(key), _) if !expected.contains(&key.name) => format!("did you mean {}?", key.name),
        (_, Some((0..=3, key))) => format!("did you mean {key}?"),
        _ => format!("these may stand: {}", expected.join(", ")),
    }
}

/// Levenshtein distance: insertions, deletions and replacements of characters.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, character) in left.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, other) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(character != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

/// What was given on the command line; its flags are those of the table of keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Flags {
    /// `--config`.
    pub config: Option<PathBuf>,
    values: BTreeMap<&'static str, Vec<String>>,
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("YAML file with the same keys; flags win over variables, variables over the file. [env: SIDEWATCH_CONFIG]");
        KEYS.iter()
            .filter(|key| key.shape != Shape::FileOnly)
            .fold(command.arg(config), |command, key| command.arg(argument(key)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(key: &'static Key) -> Arg {
    let default = if key.default.is_empty() { String::new() } else { format!(" [default: {}]", key.default) };
    let argument = Arg::new(key.name)
        .long(key.flag)
        .value_name(key.unit)
        .help(format!("{} [env: {}]{default}", key.sentence, key.env))
        .long_help(format!("{}\n{}\n[env: {}]{default}", key.sentence, key.bound, key.env));
    match key.shape {
        Shape::List => argument.action(ArgAction::Append).value_delimiter(','),
        Shape::Switch => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
        Shape::One | Shape::FileOnly => argument.action(ArgAction::Set).allow_hyphen_values(key.unit == "SELECTOR"),
    }
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self { config: matches.get_one::<PathBuf>("config").cloned(), values: BTreeMap::new() };
        for key in KEYS.iter().filter(|key| key.shape != Shape::FileOnly) {
            if let Some(texts) = matches.get_many::<String>(key.name) {
                flags.values.insert(key.name, texts.cloned().collect());
            }
        }
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Text with its place in the file.
type Located = Spanned<String>;

/// The file. Everything is text: what it means is decided once, for all three sources.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct File {
    watch: Vec<Located>,
    namespaces: Vec<Located>,
    all_namespaces: Option<Located>,
    label_selector: Option<Located>,
    field_selector: Option<Located>,
    managed_fields: Option<Located>,
    feeds: Vec<Spanned<FileFeed>>,
    subscriptions: Vec<Located>,
    max_unacked_events: Option<Located>,
    heartbeat_interval: Option<Located>,
    journal: FileJournal,
    election: Option<Located>,
    lease: FileLease,
    pod: FilePod,
    kubeconfig: Option<Located>,
    context: Option<Located>,
    server: Option<Located>,
    listen: Vec<Located>,
    http: FileHttp,
    drain_timeout: Option<Located>,
    log: FileLog,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct FileFeed {
    resource: Option<Located>,
    name: Option<Located>,
    namespaces: Vec<Located>,
    all_namespaces: Option<Located>,
    label_selector: Option<Located>,
    field_selector: Option<Located>,
    managed_fields: Option<Located>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct FileJournal {
    limit: Option<Located>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct FileLease {
    name: Option<Located>,
    namespace: Option<Located>,
    duration: Option<Located>,
    renew_deadline: Option<Located>,
    retry_period: Option<Located>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct FilePod {
    name: Option<Located>,
    uid: Option<Located>,
    namespace: Option<Located>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct FileHttp {
    listen: Option<Located>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct FileLog {
    level: Option<Located>,
    format: Option<Located>,
}

impl File {
    fn into_raw(self, path: &Arc<str>) -> Raw {
        let written = |located: Located| Written {
            origin: Origin::File { path: path.clone(), line: located.referenced.line() },
            text: located.value,
        };
        let list = |located: Vec<Located>| -> Vec<Written> { located.into_iter().map(written).collect() };
        let one = |located: Option<Located>| -> Vec<Written> { located.into_iter().map(written).collect() };
        let rows = [
            ("watch", list(self.watch)),
            ("namespaces", list(self.namespaces)),
            ("allNamespaces", one(self.all_namespaces)),
            ("labelSelector", one(self.label_selector)),
            ("fieldSelector", one(self.field_selector)),
            ("managedFields", one(self.managed_fields)),
            ("subscriptions", list(self.subscriptions)),
            ("maxUnackedEvents", one(self.max_unacked_events)),
            ("heartbeatInterval", one(self.heartbeat_interval)),
            ("journal.limit", one(self.journal.limit)),
            ("election", one(self.election)),
            ("lease.name", one(self.lease.name)),
            ("lease.namespace", one(self.lease.namespace)),
            ("lease.duration", one(self.lease.duration)),
            ("lease.renewDeadline", one(self.lease.renew_deadline)),
            ("lease.retryPeriod", one(self.lease.retry_period)),
            ("pod.name", one(self.pod.name)),
            ("pod.uid", one(self.pod.uid)),
            ("pod.namespace", one(self.pod.namespace)),
            ("kubeconfig", one(self.kubeconfig)),
            ("context", one(self.context)),
            ("server", one(self.server)),
            ("listen", list(self.listen)),
            ("http.listen", one(self.http.listen)),
            ("drainTimeout", one(self.drain_timeout)),
            ("log.level", one(self.log.level)),
            ("log.format", one(self.log.format)),
        ];
        let feeds = self.feeds.into_iter().map(|feed| WrittenFeed {
            origin: Origin::File { path: path.clone(), line: feed.referenced.line() },
            resource: feed.value.resource.map(written),
            name: feed.value.name.map(written),
            namespaces: list(feed.value.namespaces),
            all_namespaces: feed.value.all_namespaces.map(written),
            label_selector: feed.value.label_selector.map(written),
            field_selector: feed.value.field_selector.map(written),
            managed_fields: feed.value.managed_fields.map(written),
        });
        Raw { feeds: feeds.collect(), values: rows.into_iter().filter(|(_, values)| !values.is_empty()).collect() }
    }
}

/// A tree of keys that keeps their order, for printing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    /// A value.
    Text(String),
    /// A count.
    Number(u64),
    /// A list.
    List(Vec<Node>),
    /// Keys and what they hold.
    Map(Vec<(String, Node)>),
}

impl Serialize for Node {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Node::Text(text) => serializer.serialize_str(text),
            Node::Number(number) => serializer.serialize_u64(*number),
            Node::List(items) => serializer.collect_seq(items),
            Node::Map(entries) => serializer.collect_map(entries.iter().map(|(key, value)| (key, value))),
        }
    }
}
