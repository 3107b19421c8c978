//! Every metric: one table of names and meanings, and typed handles grouped by owner.
//!
//! Labels come from closed sets: feeds and subscriptions of the configuration, states and reasons of the protocol.
//! Counters end in `_total` on the wire; the table leaves that out.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use sidewatch_core::feed::{Condition, Note};
use sidewatch_core::leadership::Role;
use sidewatch_core::time::WallTime;

/// A gauge of seconds or other fractions.
pub type GaugeF64 = Gauge<f64, AtomicU64>;

/// One metric of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// As on the wire, but for the `_total` of counters.
    pub name: &'static str,
    /// Its labels, empty for none.
    pub labels: &'static [&'static str],
    /// What it tells, without full stop: the text form adds one.
    pub help: &'static str,
}

const fn row(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Row {
    Row { name, labels, help }
}

/// Every metric, by owner.
pub const TABLE: &[Row] = &[
    row("sidewatch_build_info", &["version"], "Version of this sidecar; always 1"),
    row("sidewatch_start_time_seconds", &[], "When this process started, in seconds since 1970"),
    row("sidewatch_tasks", &[], "Tasks that run"),
    row("sidewatch_calls", &["method", "code"], "Calls of the gRPC services that ended, by code"),
    row("sidewatch_queue_depth", &["queue"], "Entries that wait in a queue"),
    row("sidewatch_queue_limit", &["queue"], "Entries that a queue can hold"),
    row("sidewatch_leadership_state", &["state"], "1 for the role of this replica, 0 for the others"),
    row("sidewatch_leadership_epoch", &[], "Epoch of this replica while it leads, else 0"),
    row("sidewatch_leadership_transitions", &["state"], "Changes of the role, by the new one"),
    row("sidewatch_lease_renewals", &[], "Lease writes that extended leadership"),
    row("sidewatch_lease_renewal_failures", &[], "Lease writes that failed or whose answer is unknown"),
    row("sidewatch_lease_request_duration_seconds", &[], "Time from sending a Lease write to its answer"),
    row("sidewatch_lease_remaining_seconds", &[], "How long events may still leave unless the Lease is renewed"),
    row("sidewatch_checkpoint_writes", &[], "Checkpoints stored in the Lease"),
    row("sidewatch_checkpoint_age_seconds", &[], "Time since the last checkpoint was stored"),
    row("sidewatch_checkpoint_bytes", &[], "Size of the last checkpoint"),
    row("sidewatch_feed_condition", &["feed", "condition"], "1 for the condition of the feed, 0 for the others"),
    row("sidewatch_feed_objects", &["feed"], "Objects in the cache"),
    row("sidewatch_feed_cache_bytes", &["feed"], "Bytes of the bodies in the cache"),
    row("sidewatch_feed_head_age_seconds", &["feed"], "Time since the feed last proved to be complete up to a version"),
    row("sidewatch_feed_changes", &["feed"], "Changes taken into the journal"),
    row("sidewatch_feed_synthesized_deletes", &["feed"], "Deletes derived by comparing states"),
    row("sidewatch_feed_relists", &["feed"], "Full lists that replaced lost history"),
    row("sidewatch_feed_watch_starts", &["feed"], "Watches opened"),
    row("sidewatch_feed_expirations", &["feed"], "410 answers in any form: the server no longer had the history"),
    row("sidewatch_feed_undecodable_lines", &["feed"], "Lines of a watch that could not be decoded"),
    row("sidewatch_feed_stale_events", &["feed"], "Events at or below the cached version of their object"),
    row("sidewatch_feed_stale_lists", &["feed"], "Lists older than what was seen before, thrown away"),
    row("sidewatch_journal_bytes", &[], "Memory of the journal"),
    row("sidewatch_journal_limit_bytes", &[], "Memory that the journal may use"),
    row("sidewatch_journal_entries", &[], "Events in the journal"),
    row(
        "sidewatch_sessions",
        &["subscription"],
        "Attached sessions; those without a durable subscription count as `EPHEMERAL`",
    ),
    row("sidewatch_session_frames", &["subscription"], "Frames handed to streams"),
    row("sidewatch_session_events", &["subscription"], "Events handed to streams"),
    row("sidewatch_session_bytes", &["subscription"], "Encoded bytes of frames handed to streams"),
    row("sidewatch_session_coalesced_events", &["subscription"], "Events that stood for several changes"),
    row("sidewatch_session_gaps", &["subscription", "kind", "reason"], "Gaps announced"),
    row("sidewatch_subscription_unacked_events", &["subscription"], "Events delivered and not acked"),
    row("sidewatch_subscription_pending_events", &["subscription"], "Events that wait for delivery"),
    row(
        "sidewatch_subscription_oldest_unacked_age_seconds",
        &["subscription"],
        "Age of the oldest event delivered and not acked",
    ),
    row("sidewatch_subscription_acks", &["subscription"], "Acks that moved the position"),
];

/// All conditions of a feed, with the word of each.
const CONDITIONS: [(Condition, &str); 5] = [
    (Condition::Syncing, "syncing"),
    (Condition::Live, "live"),
    (Condition::Disconnected, "disconnected"),
    (Condition::Forbidden, "forbidden"),
    (Condition::NotServed, "not_served"),
];

/// The word of each role.
const STATES: [&str; 6] = ["disabled", "standby", "leading", "suspended", "releasing", "lost"];

/// Label of sessions without a durable subscription. No durable name can be this: it would not be lower case.
pub const EPHEMERAL: &str = "EPHEMERAL";

type Labels<const N: usize> = [(&'static str, String); N];
type Of<M, const N: usize> = Family<Labels<N>, M>;

/// All metrics of the process. Handles from it are cheap to clone and may be updated from anywhere.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Tasks that run; given to the supervisor.
    pub tasks: Gauge,
    /// Role and Lease.
    pub leadership: LeadershipMetrics,
    /// Checkpoints.
    pub checkpoint: CheckpointMetrics,
    /// The journal.
    pub journal: JournalMetrics,
    calls: Of<Counter, 2>,
    queue_depth: Of<Gauge, 1>,
    queue_limit: Of<Gauge, 1>,
    feed: FeedFamilies,
    session: SessionFamilies,
}

/// Role and Lease, updated by the control driver.
#[derive(Clone, Debug, Default)]
pub struct LeadershipMetrics {
    state: Of<Gauge, 1>,
    transitions: Of<Counter, 1>,
    epoch: Gauge,
    /// Lease writes that extended leadership.
    pub renewals: Counter,
    /// Lease writes that failed or whose answer is unknown.
    pub renewal_failures: Counter,
    /// How long events may still leave, in seconds.
    pub remaining_seconds: GaugeF64,
    request_duration: Option<Histogram>,
}

impl LeadershipMetrics {
    /// The role changed. An extension of the same role and epoch is no transition.
    pub fn role_changed(&self, role: &Role) {
        let (word, epoch) = match role {
            Role::Disabled => ("disabled", None),
            Role::Standby => ("standby", None),
            Role::Leading { epoch, .. } => ("leading", Some(epoch)),
            Role::Suspended { epoch } => ("suspended", Some(epoch)),
            Role::Releasing { epoch } => ("releasing", Some(epoch)),
            Role::Lost { .. } => ("lost", None),
        };
        let labels = [("state", word.to_owned())];
        let same = self.state.get_or_create(&labels).get() == 1;
        self.epoch.set(epoch.map_or(0, |epoch| i64::try_from(epoch.as_u64()).unwrap_or(i64::MAX)));
        if same {
            return;
        }
        for state in STATES {
            self.state.get_or_create(&[("state", state.to_owned())]).set(i64::from(state == word));
        }
        self.transitions.get_or_create(&labels).inc();
    }

    /// A Lease write was answered after this time.
    pub fn lease_answered(&self, after: Duration) {
        if let Some(histogram) = &self.request_duration {
            histogram.observe(after.as_secs_f64());
        }
    }
}

/// Checkpoints, updated by the control driver.
#[derive(Clone, Debug, Default)]
pub struct CheckpointMetrics {
    /// Checkpoints stored.
    pub writes: Counter,
    /// Time since the last one, in seconds.
    pub age_seconds: GaugeF64,
    /// Size of the last one.
    pub bytes: Gauge,
}

/// The journal, updated by the replica driver.
#[derive(Clone, Debug, Default)]
pub struct JournalMetrics {
    /// Memory in use.
    pub bytes: Gauge,
    /// Memory allowed.
    pub limit_bytes: Gauge,
    /// Events kept.
    pub entries: Gauge,
}

/// One queue.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    /// Entries that wait.
    pub depth: Gauge,
    /// Entries that fit.
    pub limit: Gauge,
}

/// One feed, updated by the replica driver.
#[derive(Clone, Debug)]
pub struct FeedMetrics {
    conditions: [(Condition, Gauge); 5],
    /// Objects in the cache.
    pub objects: Gauge,
    /// Bytes of the bodies in the cache.
    pub cache_bytes: Gauge,
    /// Time since the feed last proved to be complete up to a version, in seconds.
    pub head_age_seconds: GaugeF64,
    /// Changes taken into the journal.
    pub changes: Counter,
    /// Deletes derived by comparing states.
    pub synthesized_deletes: Counter,
    relists: Counter,
    watch_starts: Counter,
    expirations: Counter,
    undecodable_lines: Counter,
    stale_events: Counter,
    stale_lists: Counter,
}

impl FeedMetrics {
    /// The condition from here on.
    pub fn set_condition(&self, condition: Condition) {
        for (other, gauge) in &self.conditions {
            gauge.set(i64::from(*other == condition));
        }
    }

    /// Counts what the machine of the feed noted.
    pub fn note(&self, note: Note) {
        match note {
            Note::StaleEvent => &self.stale_events,
            Note::Undecodable => &self.undecodable_lines,
            Note::Expired => &self.expirations,
            Note::Relist => &self.relists,
            Note::StaleList => &self.stale_lists,
            Note::WatchStart => &self.watch_starts,
        }
        .inc();
    }
}

/// One subscription and its sessions, updated by the replica driver and the streams.
#[derive(Clone, Debug)]
pub struct SubscriptionMetrics {
    /// Attached sessions.
    pub sessions: Gauge,
    /// Frames handed to streams.
    pub frames: Counter,
    /// Events handed to streams.
    pub events: Counter,
    /// Encoded bytes of frames handed to streams.
    pub bytes: Counter,
    /// Events that stood for several changes.
    pub coalesced_events: Counter,
    /// Events delivered and not acked.
    pub unacked_events: Gauge,
    /// Events that wait for delivery.
    pub pending_events: Gauge,
    /// Age of the oldest event delivered and not acked, in seconds.
    pub oldest_unacked_age_seconds: GaugeF64,
    /// Acks that moved the position.
    pub acks: Counter,
    name: String,
    gaps: Of<Counter, 3>,
}

impl SubscriptionMetrics {
    /// A gap was announced; the words are those of the protocol's enums in lower case.
    pub fn gap(&self, kind: &'static str, reason: &'static str) {
        let labels = [("subscription", self.name.clone()), ("kind", kind.to_owned()), ("reason", reason.to_owned())];
        self.gaps.get_or_create(&labels).inc();
    }
}

#[derive(Clone, Debug, Default)]
struct FeedFamilies {
    condition: Of<Gauge, 2>,
    objects: Of<Gauge, 1>,
    cache_bytes: Of<Gauge, 1>,
    head_age_seconds: Of<GaugeF64, 1>,
    changes: Of<Counter, 1>,
    synthesized_deletes: Of<Counter, 1>,
    relists: Of<Counter, 1>,
    watch_starts: Of<Counter, 1>,
    expirations: Of<Counter, 1>,
    undecodable_lines: Of<Counter, 1>,
    stale_events: Of<Counter, 1>,
    stale_lists: Of<Counter, 1>,
}

#[derive(Clone, Debug, Default)]
struct SessionFamilies {
    sessions: Of<Gauge, 1>,
    frames: Of<Counter, 1>,
    events: Of<Counter, 1>,
    bytes: Of<Counter, 1>,
    coalesced_events: Of<Counter, 1>,
    gaps: Of<Counter, 3>,
    unacked_events: Of<Gauge, 1>,
    pending_events: Of<Gauge, 1>,
    oldest_unacked_age_seconds: Of<GaugeF64, 1>,
    acks: Of<Counter, 1>,
}

/// Registers under the rows of the table, each of which must be used once.
#[derive(Debug, Default)]
struct Registrar {
    registry: Registry,
    used: usize,
}

impl Registrar {
    /// Registers the next row of the table, whose name is repeated so that a reader sees what goes where.
    fn add(&mut self, name: &str, metric: impl Metric) {
        let row = TABLE.get(self.used).filter(|row| row.name == name);
        let row = row.unwrap_or_else(|| panic!("{name} is not row {} of the table of metrics", self.used));
        self.registry.register(row.name, row.help, metric);
        self.used += 1;
    }
}

impl Metrics {
    /// All metrics at zero, for a process that started at `started`.
    pub fn new(started: WallTime) -> Self {
        let mut registrar = Registrar::default();
        let since_1970 = Duration::from_micros(u64::try_from(started.as_micros()).unwrap_or(0));
        let (tasks, queue_depth, queue_limit) = (Gauge::default(), Of::default(), Of::default());
        let calls: Of<Counter, 2> = Of::default();
        let build: Of<Gauge, 1> = Of::default();
        build.get_or_create(&[("version", env!("CARGO_PKG_VERSION").to_owned())]).set(1);
        registrar.add("sidewatch_build_info", build);
        registrar.add("sidewatch_start_time_seconds", ConstGauge::new(since_1970.as_secs_f64()));
        registrar.add("sidewatch_tasks", tasks.clone());
        registrar.add("sidewatch_calls", calls.clone());
        registrar.add("sidewatch_queue_depth", queue_depth.clone());
        registrar.add("sidewatch_queue_limit", queue_limit.clone());
        let leadership = LeadershipMetrics::register(&mut registrar);
        let checkpoint = CheckpointMetrics::default();
        registrar.add("sidewatch_checkpoint_writes", checkpoint.writes.clone());
        registrar.add("sidewatch_checkpoint_age_seconds", checkpoint.age_seconds.clone());
        registrar.add("sidewatch_checkpoint_bytes", checkpoint.bytes.clone());
        let feed = FeedFamilies::register(&mut registrar);
        let journal = JournalMetrics::default();
        registrar.add("sidewatch_journal_bytes", journal.bytes.clone());
        registrar.add("sidewatch_journal_limit_bytes", journal.limit_bytes.clone());
        registrar.add("sidewatch_journal_entries", journal.entries.clone());
        let session = SessionFamilies::register(&mut registrar);
        assert_eq!(registrar.used, TABLE.len(), "every row of the table of metrics is registered");
        let registry = registrar.registry;
        Self { registry, tasks, leadership, checkpoint, journal, calls, queue_depth, queue_limit, feed, session }
    }

    /// The handles of one feed, all visible at zero from here on.
    pub fn feed(&self, feed: &str) -> FeedMetrics {
        let of = [("feed", feed.to_owned())];
        let families = &self.feed;
        let conditions = CONDITIONS.map(|(condition, word)| {
            let labels = [("feed", feed.to_owned()), ("condition", word.to_owned())];
            (condition, families.condition.get_or_create_owned(&labels))
        });
        FeedMetrics {
            conditions,
            objects: families.objects.get_or_create_owned(&of),
            cache_bytes: families.cache_bytes.get_or_create_owned(&of),
            head_age_seconds: families.head_age_seconds.get_or_create_owned(&of),
            changes: families.changes.get_or_create_owned(&of),
            synthesized_deletes: families.synthesized_deletes.get_or_create_owned(&of),
            relists: families.relists.get_or_create_owned(&of),
            watch_starts: families.watch_starts.get_or_create_owned(&of),
            expirations: families.expirations.get_or_create_owned(&of),
            undecodable_lines: families.undecodable_lines.get_or_create_owned(&of),
            stale_events: families.stale_events.get_or_create_owned(&of),
            stale_lists: families.stale_lists.get_or_create_owned(&of),
        }
    }

    /// The handles of one durable subscription, or of [`EPHEMERAL`] ones together.
    pub fn subscription(&self, name: &str) -> SubscriptionMetrics {
        let of = [("subscription", name.to_owned())];
        let families = &self.session;
        SubscriptionMetrics {
            sessions: families.sessions.get_or_create_owned(&of),
            frames: families.frames.get_or_create_owned(&of),
            events: families.events.get_or_create_owned(&of),
            bytes: families.bytes.get_or_create_owned(&of),
            coalesced_events: families.coalesced_events.get_or_create_owned(&of),
            unacked_events: families.unacked_events.get_or_create_owned(&of),
            pending_events: families.pending_events.get_or_create_owned(&of),
            oldest_unacked_age_seconds: families.oldest_unacked_age_seconds.get_or_create_owned(&of),
            acks: families.acks.get_or_create_owned(&of),
            name: name.to_owned(),
            gaps: families.gaps.clone(),
        }
    }

    /// A call of a gRPC service ended with a code.
    pub fn call_ended(&self, method: &'static str, code: &str) {
        self.calls.get_or_create(&[("method", method.to_owned()), ("code", code.to_owned())]).inc();
    }

    /// The handles of one queue; its limit is set here once.
    pub fn queue(&self, name: &'static str, limit: usize) -> QueueMetrics {
        let of = [("queue", name.to_owned())];
        let queue = QueueMetrics {
            depth: self.queue_depth.get_or_create_owned(&of),
            limit: self.queue_limit.get_or_create_owned(&of),
        };
        queue.limit.set(i64::try_from(limit).unwrap_or(i64::MAX));
        queue
    }

    /// All metrics in the text form of OpenMetrics.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String does not fail");
        text
    }
}

impl LeadershipMetrics {
    fn register(registrar: &mut Registrar) -> Self {
        // Lease requests take milliseconds, and are given up after 5 s.
        let histogram = Histogram::new(exponential_buckets(0.002, 2.5, 9));
        let metrics = Self { request_duration: Some(histogram.clone()), ..Self::default() };
        registrar.add("sidewatch_leadership_state", metrics.state.clone());
        registrar.add("sidewatch_leadership_epoch", metrics.epoch.clone());
        registrar.add("sidewatch_leadership_transitions", metrics.transitions.clone());
        registrar.add("sidewatch_lease_renewals", metrics.renewals.clone());
        registrar.add("sidewatch_lease_renewal_failures", metrics.renewal_failures.clone());
        registrar.add("sidewatch_lease_request_duration_seconds", histogram);
        registrar.add("sidewatch_lease_remaining_seconds", metrics.remaining_seconds.clone());
        for state in STATES {
            metrics.state.get_or_create(&[("state", state.to_owned())]).set(0);
            metrics.transitions.get_or_create(&[("state", state.to_owned())]).inc_by(0);
        }
        metrics
    }
}

impl FeedFamilies {
    fn register(registrar: &mut Registrar) -> Self {
        let families = Self::default();
        registrar.add("sidewatch_feed_condition", families.condition.clone());
        registrar.add("sidewatch_feed_objects", families.objects.clone());
        registrar.add("sidewatch_feed_cache_bytes", families.cache_bytes.clone());
        registrar.add("sidewatch_feed_head_age_seconds", families.head_age_seconds.clone());
        registrar.add("sidewatch_feed_changes", families.changes.clone());
        registrar.add("sidewatch_feed_synthesized_deletes", families.synthesized_deletes.clone());
        registrar.add("sidewatch_feed_relists", families.relists.clone());
        registrar.add("sidewatch_feed_watch_starts", families.watch_starts.clone());
        registrar.add("sidewatch_feed_expirations", families.expirations.clone());
        registrar.add("sidewatch_feed_undecodable_lines", families.undecodable_lines.clone());
        registrar.add("sidewatch_feed_stale_events", families.stale_events.clone());
        registrar.add("sidewatch_feed_stale_lists", families.stale_lists.clone());
        families
    }
}

impl SessionFamilies {
    fn register(registrar: &mut Registrar) -> Self {
        let families = Self::default();
        registrar.add("sidewatch_sessions", families.sessions.clone());
        registrar.add("sidewatch_session_frames", families.frames.clone());
        registrar.add("sidewatch_session_events", families.events.clone());
        registrar.add("sidewatch_session_bytes", families.bytes.clone());
        registrar.add("sidewatch_session_coalesced_events", families.coalesced_events.clone());
        registrar.add("sidewatch_session_gaps", families.gaps.clone());
        registrar.add("sidewatch_subscription_unacked_events", families.unacked_events.clone());
        registrar.add("sidewatch_subscription_pending_events", families.pending_events.clone());
        registrar.add("sidewatch_subscription_oldest_unacked_age_seconds", families.oldest_unacked_age_seconds.clone());
        registrar.add("sidewatch_subscription_acks", families.acks.clone());
        families
    }
}

#[cfg(test)]
mod tests {
    use sidewatch_core::epoch::Epoch;
    use sidewatch_core::time::BootInstant;

    use super::*;

    fn all_used() -> Metrics {
        let metrics = Metrics::new(WallTime::from_micros(1_700_000_000_000_000));
        metrics.feed("pods");
        metrics.subscription("app").gap("reset", "cold_start");
        metrics.queue("replica", 1024);
        metrics.call_ended("Ack", "Ok");
        metrics
    }

    #[test]
    fn every_row_appears_with_its_labels_and_nothing_else_does() {
        let text = all_used().encode();
        for row in TABLE {
            assert!(text.contains(&format!("# HELP {} {}.\n", row.name, row.help)), "{}", row.name);
            let sample = text.lines().find(|line| {
                let rest = line.strip_prefix(row.name).and_then(|rest| rest.strip_prefix("_total").or(Some(rest)));
                rest.is_some_and(|rest| rest.starts_with(['{', ' ', '_']))
            });
            let sample = sample.unwrap_or_else(|| panic!("{} has no sample", row.name));
            for label in row.labels {
                assert!(sample.contains(&format!("{label}=\"")), "{sample} lacks {label}");
            }
        }
        assert_eq!(text.lines().filter(|line| line.starts_with("# TYPE ")).count(), TABLE.len());
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_role_is_one_of_all_and_an_extension_is_no_transition() {
        let metrics = all_used();
        let leading = |until| Role::Leading { epoch: Epoch::from_u64(7), until: BootInstant::from_nanos(until) };
        for role in [Role::Standby, leading(1), leading(2)] {
            metrics.leadership.role_changed(&role);
        }
        let text = metrics.encode();
        assert!(text.contains("sidewatch_leadership_state{state=\"leading\"} 1\n"), "{text}");
        assert!(text.contains("sidewatch_leadership_state{state=\"standby\"} 0\n"), "{text}");
        assert!(text.contains("sidewatch_leadership_transitions_total{state=\"leading\"} 1\n"), "{text}");
        assert!(text.contains("sidewatch_leadership_epoch 7\n"), "{text}");
    }

    #[test]
    fn notes_and_conditions_reach_their_feed() {
        let metrics = all_used();
        let feed = metrics.feed("pods");
        feed.set_condition(Condition::Forbidden);
        feed.set_condition(Condition::Live);
        feed.note(Note::Expired);
        let text = metrics.encode();
        assert!(text.contains("sidewatch_feed_condition{feed=\"pods\",condition=\"live\"} 1\n"), "{text}");
        assert!(text.contains("sidewatch_feed_condition{feed=\"pods\",condition=\"forbidden\"} 0\n"), "{text}");
        assert!(text.contains("sidewatch_feed_expirations_total{feed=\"pods\"} 1\n"), "{text}");
    }
}
