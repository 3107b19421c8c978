//! What probes, the health service and gauges are made of: the status of the replica, looked at from outside.

use std::sync::Arc;

use sidewatch_core::feed::Condition;
use sidewatch_core::leadership::Role;
use sidewatch_core::status::{FeedStatus, Status};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::grpc::health::Health;
use crate::http::Readiness;
use crate::telemetry::metrics::{EPHEMERAL, Metrics};

/// Publishes what each new status means, until the replica driver is gone.
pub async fn publish(
    mut status: watch::Receiver<Option<Arc<Status>>>,
    readiness: watch::Sender<Readiness>,
    health: watch::Sender<Health>,
    metrics: Arc<Metrics>,
) {
    while status.changed().await.is_ok() {
        let Some(status) = status.borrow_and_update().clone() else { continue };
        let judged = judge(&status);
        let leader = matches!(status.role, Role::Leading { .. } | Role::Disabled);
        health.send_replace(Health { ready: judged.ready, leader });
        readiness.send_replace(judged);
        measure(&status, &metrics);
    }
}

/// Ready when every feed has been complete once, or is degraded in a way that waiting for would not mend: a type that
/// is not served, a missing right. Independent of the role.
pub fn judge(status: &Status) -> Readiness {
    let ready = status.feeds.iter().all(is_ready);
    Readiness { ready, reasons: status.feeds.iter().map(line).collect() }
}

fn is_ready(feed: &FeedStatus) -> bool {
    feed.synced || matches!(feed.news.condition, Condition::NotServed | Condition::Forbidden)
}

fn line(feed: &FeedStatus) -> String {
    let name = &feed.description.spec.name;
    let condition = match feed.news.condition {
        Condition::Syncing => "syncing",
        Condition::Live => "live",
        Condition::Disconnected => "disconnected",
        Condition::Forbidden => "forbidden",
        Condition::NotServed => "not served",
    };
    let objects = feed.object_count;
    match (is_ready(feed), feed.news.condition) {
        (true, Condition::Live) => format!("{name}: {condition}, {objects} objects"),
        (true, _) => format!("{name}: ready but {condition}: {}", feed.news.detail),
        (false, _) => format!("{name}: not ready, {condition}: {}", feed.news.detail),
    }
}

fn measure(status: &Status, metrics: &Metrics) {
    metrics.journal.bytes.set(gauge(status.journal_bytes));
    metrics.journal.limit_bytes.set(gauge(status.journal_bytes_max));
    metrics.journal.entries.set(gauge(status.feeds.iter().map(|feed| feed.journal_entries).sum()));
    if let Some(age) = status.checkpoint_age {
        metrics.checkpoint.age_seconds.set(age.as_secs_f64());
    }
    let remaining = sidewatch_core::frame::valid_for(&status.role, Clock.boot());
    metrics.leadership.remaining_seconds.set(remaining.unwrap_or_default().as_secs_f64());
    for feed in &status.feeds {
        let of_feed = metrics.feed(&feed.description.spec.name);
        of_feed.set_condition(feed.news.condition);
        of_feed.objects.set(gauge(usize::try_from(feed.object_count).unwrap_or(usize::MAX)));
        of_feed.changes.inc_by(feed.changes.saturating_sub(of_feed.changes.get()));
        of_feed.cache_bytes.set(gauge(feed.cache_bytes));
        if let Some(age) = feed.heard_age {
            of_feed.head_age_seconds.set(age.as_secs_f64());
        }
    }
    let ephemeral = status.subscriptions.iter().filter(|subscription| subscription.name.is_none()).count();
    metrics.subscription(EPHEMERAL).sessions.set(gauge(ephemeral));
    for subscription in &status.subscriptions {
        let Some(name) = &subscription.name else { continue };
        let of_subscription = metrics.subscription(name);
        of_subscription.sessions.set(i64::from(subscription.session.is_some()));
        of_subscription.unacked_events.set(i64::try_from(subscription.unacked_events).unwrap_or(i64::MAX));
        of_subscription.pending_events.set(i64::try_from(subscription.pending_events).unwrap_or(i64::MAX));
        let age = subscription.oldest_unacked_age.unwrap_or_default();
        of_subscription.oldest_unacked_age_seconds.set(age.as_secs_f64());
    }
}

fn gauge(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
