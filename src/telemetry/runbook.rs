//! `docs/operations.md`, made from the table of metrics and the advice below. `UPDATE_EXPECT=1 cargo test runbook`
//! rewrites it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sidewatch_core::time::WallTime;

use crate::telemetry::metrics::{Metrics, TABLE};

const HEAD: &str = "\
# Operations

<!-- Made from src/telemetry/metrics.rs and src/telemetry/runbook.rs by `UPDATE_EXPECT=1 cargo test runbook`; edit them there. -->

What a sidecar tells about itself, and what to do about it. `/metrics` is served at `http.listen` beside `/livez` and
`/readyz`; every key is in [configuration.md](configuration.md), and what is promised meanwhile is in
[guarantees.md](guarantees.md).

## Look first

1. `/readyz` names each feed that is not complete, with the reason: a type that is not served, a missing right, a list
   that has not ended. Readiness does not depend on leadership.
2. `sidewatch tail` shows the stream as a consumer gets it, gaps and news of leadership included. Without
   `--subscription` it moves no position; with it, it takes the place of the application.
3. `sidewatch.v1.AdminService/GetStatus` shows the role, the holder of the Lease, and where each feed and each
   subscription stands.
4. The log has one line for each change of a phase. ERROR: a person must act; WARN: unusual, and still promised.

## Alerts

| alert | expression | what it means |
| --- | --- | --- |
| nobody delivers | `max(sidewatch_leadership_state{state=\"leading\"}) == 0` for 1 min | no replica holds the Lease, or none can renew it |
| history was lost | `increase(sidewatch_session_gaps_total{kind=\"reset\",reason!=\"cold_start\"}[10m]) > 0` | a consumer gets a snapshot and has to sweep; the reason is a label. `cold_start` is left out: every new subscription begins with it |
| a consumer is stuck | `sidewatch_subscription_oldest_unacked_age_seconds > 300` | it takes events and does not ack them |
| a feed stands still | `sidewatch_feed_head_age_seconds > 300` | nothing proves that the cache is complete |
| the journal is nearly full | `sidewatch_journal_bytes / sidewatch_journal_limit_bytes > 0.8` | a consumer is behind; at the limit detail goes first, then history, announced |

Aggregate over the replicas of one set of pods; only the leader delivers. With `election` off there is no leader to miss.

## Every metric

Labels are from closed sets and never hold names of objects.

| metric | labels | what it tells | what to do |
| --- | --- | --- | --- |
";

/// What a person does about each metric, in the order of the table.
const ADVICE: &[(&str, &str)] = &[
    ("sidewatch_build_info", "Versions may differ while a rollout lasts; look into it when they still do afterwards."),
    ("sidewatch_start_time_seconds", "When it moves, the container was restarted: the log of the one before says why."),
    ("sidewatch_tasks", "Grows with sessions and falls with them; if it only grows, report it with the log."),
    (
        "sidewatch_calls",
        "Look at codes other than `Ok` and `Cancelled`; [protocol.md](protocol.md#c5-errors) says what the client has to do.",
    ),
    (
        "sidewatch_queue_depth",
        "Near its limit for minutes means that the process lacks CPU: raise the request or the limit of the container.",
    ),
    ("sidewatch_queue_limit", "A constant; compare the depth with it."),
    (
        "sidewatch_leadership_state",
        "Over all replicas one is `leading`. `suspended` is a leader that cannot renew: look at the renewals. None for \
         longer than the duration of the Lease: look at the Lease, at the rights on it, and at the API server.",
    ),
    ("sidewatch_leadership_epoch", "Two leaders at once with one epoch cannot be; report it if you see it."),
    (
        "sidewatch_leadership_transitions",
        "A few with each rollout. More: look at failed renewals, at the latency of the API server and at CPU throttling.",
    ),
    (
        "sidewatch_lease_renewals",
        "One in each retry period on the leader; none while a replica says `leading` is a fault.",
    ),
    (
        "sidewatch_lease_renewal_failures",
        "Single ones are repeated in time. A row of them ends leadership: look at the API server and at `update` on the Lease.",
    ),
    (
        "sidewatch_lease_request_duration_seconds",
        "When it nears the renew deadline, leadership flaps: mend the API server, or lengthen the three times of the Lease.",
    ),
    (
        "sidewatch_lease_remaining_seconds",
        "On the leader it stays near the renew deadline. If it dips towards zero, the next failed renewal stops delivery.",
    ),
    ("sidewatch_checkpoint_writes", "Grows while consumers ack. Acks without it: no renewal goes through."),
    (
        "sidewatch_checkpoint_age_seconds",
        "How much is delivered again after a crash. Harmless while nothing is acked; else look at the renewals.",
    ),
    (
        "sidewatch_checkpoint_bytes",
        "Annotations of an object hold 256 KiB. Far below it with 16 subscriptions; if it grows, remove unused ones.",
    ),
    (
        "sidewatch_feed_condition",
        "`forbidden`: grant `list` and `watch`. `not_served`: install the type, or correct the name. `disconnected`: look \
         at the API server. The cache is kept, and no delete is made up meanwhile.",
    ),
    ("sidewatch_feed_objects", "When it jumps, a selector or a namespace is missing from the configuration."),
    (
        "sidewatch_feed_cache_bytes",
        "The larger part of the memory. Narrow the feed by selectors, or give the container more.",
    ),
    (
        "sidewatch_feed_head_age_seconds",
        "Bookmarks come about once a minute. Minutes without one: look at the condition of the feed and at the API server.",
    ),
    ("sidewatch_feed_changes", "The rate that consumers have to keep up with."),
    (
        "sidewatch_feed_synthesized_deletes",
        "Follows relists: the objects were deleted while no watch was open. Their last state is unknown.",
    ),
    (
        "sidewatch_feed_relists",
        "One at each loss of history. Many: changes outrun the watch cache of the API server, or it is restarted often.",
    ),
    (
        "sidewatch_feed_watch_starts",
        "One in about 5 minutes for each feed. Many: a proxy or the API server ends watches early.",
    ),
    ("sidewatch_feed_expirations", "Each costs a relist; see there."),
    (
        "sidewatch_feed_undecodable_lines",
        "Should be 0. The watch is opened again, then listed; find out what stands between sidecar and API server, and report it.",
    ),
    ("sidewatch_feed_stale_events", "Dropped, and harmless; many of them point at an aggregated API server."),
    (
        "sidewatch_feed_stale_lists",
        "An API server lags behind the others, or etcd was restored: [guarantees.md](guarantees.md) says what to do after a restore.",
    ),
    (
        "sidewatch_journal_bytes",
        "Find the subscription with pending events: it is behind, or its application is away. Raise `journal.limit` for \
         longer absences.",
    ),
    ("sidewatch_journal_limit_bytes", "A constant, from `journal.limit`; compare the bytes with it."),
    ("sidewatch_journal_entries", "Read it together with the bytes."),
    (
        "sidewatch_sessions",
        "1 for a durable subscription on the leader. 0 for long: the application is not connected, look at its log.",
    ),
    ("sidewatch_session_frames", "With the events: how full frames are."),
    ("sidewatch_session_events", "Compare with the rate of changes; a filter makes it smaller."),
    (
        "sidewatch_session_bytes",
        "The traffic to the application; a field mask, or old states left out, makes it smaller.",
    ),
    (
        "sidewatch_session_coalesced_events",
        "The consumer sees the last of several states because it was behind. Make it faster, or raise `journal.limit`.",
    ),
    (
        "sidewatch_session_gaps",
        "`reset` is history that was lost, by reason: `journal_overflow`, see the journal; `cold_start`, a new \
         subscription or too long an outage; `cluster_rewound`, a restore; `feed_changed`, a new configuration.",
    ),
    (
        "sidewatch_subscription_unacked_events",
        "At the bound delivery pauses: the application does not ack, or acks too seldom.",
    ),
    ("sidewatch_subscription_pending_events", "If it only grows, the application is too slow, or is not there."),
    (
        "sidewatch_subscription_oldest_unacked_age_seconds",
        "Look at the application: it took an event and has not finished with it.",
    ),
    (
        "sidewatch_subscription_acks",
        "None while events are delivered: the application never acks, and will get all of it again.",
    ),
];

/// The name on the wire by the name in the table: counters end in `_total`.
fn wire_names() -> BTreeMap<String, String> {
    // A metric with labels appears with its first use.
    let metrics = Metrics::new(WallTime::default());
    metrics.feed("pods");
    metrics.subscription("app").gap("reset", "cold_start");
    metrics.queue("answers", 1);
    metrics.call_ended("Ack", "Ok");
    let text = metrics.encode();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types
        .map(|(name, kind)| (name.to_owned(), format!("{name}{}", if kind == "counter" { "_total" } else { "" })))
        .collect()
}

fn document() -> String {
    let mut text = HEAD.to_owned();
    let wire = wire_names();
    for (row, (_, advice)) in TABLE.iter().zip(ADVICE) {
        let labels = row.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        let name = wire.get(row.name).map_or(row.name, String::as_str);
        let _ = writeln!(text, "| `{name}` | {labels} | {}. | {advice} |", row.help);
    }
    text
}

#[test]
fn the_advice_has_the_rows_of_the_table() {
    let advised: Vec<&str> = ADVICE.iter().map(|(name, _)| *name).collect();
    let told: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
    assert_eq!(advised, told);
}

#[test]
fn the_document_agrees_with_the_table() {
    expect_test::expect_file![concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md")].assert_eq(&document());
}

#[test]
fn the_alerts_name_metrics_as_they_are_on_the_wire() {
    let wire = wire_names();
    let words = HEAD.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    for word in words.filter(|word| word.starts_with("sidewatch_")) {
        assert!(wire.values().any(|name| name == word), "{word} is no metric");
    }
}
