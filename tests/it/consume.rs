//! Consumers: they drop, come back, replace one another, and send acks that make no sense.

use std::time::Duration;

use tonic::Code;

use crate::support::cluster::Cluster;
use crate::support::consumer::{Consumer, Shared, connect, durable};
use crate::support::history::{History, Verdict};
use crate::support::pb;
use crate::support::pb::event_service_client::EventServiceClient;
use crate::support::sidecar::{Options, Sidecar};

const SOON: Duration = Duration::from_secs(60);
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_drops_in_mid_stream_misses_nothing() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let history = History::start(&admin, "configmaps", CONFIG_MAPS).await;
    let sidecar = Sidecar::start(&cluster, Options::new("app-0", &["configmaps"], &["default"])).await;
    let store = Shared::default();
    let app = Consumer::start("app-0", sidecar.grpc(), durable(), &store);
    store.until("the snapshot", SOON, |store| !store.snapshots.is_empty()).await;
    for number in 0..200 {
        admin.config_map("default", &format!("m{number}"), "1").await;
        if number % 3 == 0 {
            admin.delete(&format!("{CONFIG_MAPS}/m{number}")).await;
        }
        match number % 40 {
            10 => app.reconnect(),
            20 => app.rest(),
            30 => app.follow(sidecar.grpc()),
            _ => {}
        }
    }
    app.follow(sidecar.grpc());
    let (_, truth) = history.list(&admin).await;
    store.until("the store to equal a plain list", SOON, |store| store.versions("configmaps") == truth).await;
    let store = store.lock();
    let mut verdict = Verdict::default();
    history.judge(&store, &mut verdict);
    assert!(verdict.lost.is_empty() && verdict.invented.is_empty(), "{verdict:?}; {}", store.summary());
    assert!(store.disorder.is_empty() && store.later_gaps().next().is_none(), "{:?} {:?}", store.disorder, store.gaps);
    assert!(store.sessions >= 10, "{}", store.sessions);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_is_killed_goes_on_from_the_stored_position() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    admin.config_map("default", "doomed", "1").await;
    let history = History::start(&admin, "configmaps", CONFIG_MAPS).await;
    let sidecar = Sidecar::start(&cluster, Options::new("app-0", &["configmaps"], &["default"])).await;
    let store = Shared::default();
    let app = Consumer::start("app-0", sidecar.grpc(), durable(), &store);
    store.until("the snapshot", SOON, |store| store.story("configmaps", "doomed") == ["added"]).await;
    let epoch = store.lock().epoch;
    let options = sidecar.kill();
    // Nobody of ours watches: only the API server's history, or a sweep, can tell of this.
    admin.delete(&format!("{CONFIG_MAPS}/doomed")).await;
    admin.config_map("default", "born", "1").await;
    let sidecar = Sidecar::start(&cluster, options).await;
    app.follow(sidecar.grpc());
    let (_, truth) = history.list(&admin).await;
    store.until("the store to equal a plain list", SOON, |store| store.versions("configmaps") == truth).await;
    let store = store.lock();
    let mut verdict = Verdict::default();
    history.judge(&store, &mut verdict);
    assert!(verdict.lost.is_empty() && verdict.invented.is_empty(), "{verdict:?}; {}", store.summary());
    assert!(store.epoch > epoch, "every acquisition raises the epoch");
    assert!(store.disorder.is_empty(), "{:?}", store.disorder);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_session_takes_over_and_the_older_is_told() {
    let cluster = Cluster::start().await;
    let sidecar = Sidecar::start(&cluster, Options::new("app-0", &["configmaps"], &["default"])).await;
    let (older, newer) = (Shared::default(), Shared::default());
    let first = Consumer::start("older", sidecar.grpc(), durable(), &older);
    older.until("the snapshot", SOON, |store| !store.snapshots.is_empty()).await;
    let _second = Consumer::start("newer", sidecar.grpc(), durable(), &newer);
    older.until("the end", SOON, |store| store.endings.contains(&pb::EndReason::Superseded)).await;
    // Left alone it would come back and take over in its turn.
    first.rest();
    newer.until("the session", SOON, |store| store.sessions > 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acks_that_make_no_sense_are_refused_with_a_reason() {
    let cluster = Cluster::start().await;
    let sidecar = Sidecar::start(&cluster, Options::new("app-0", &["configmaps"], &["default"])).await;
    let store = Shared::default();
    let _app = Consumer::start("app-0", sidecar.grpc(), durable(), &store);
    store.until("the snapshot", SOON, |store| !store.snapshots.is_empty()).await;
    let mut client = EventServiceClient::new(connect(sidecar.grpc()).await.expect("it listens"));
    let ack = |subscription: &str, cursor: &str| pb::AckRequest {
        subscription: subscription.to_owned(),
        cursor: cursor.to_owned(),
        ..Default::default()
    };
    let garbage = client.ack(ack("app", "no cursor")).await.expect_err("garbage");
    assert_eq!(garbage.code(), Code::InvalidArgument, "{garbage}");
    let unknown = client.ack(ack("nobody", "no cursor")).await.expect_err("an unknown subscription");
    assert!(matches!(unknown.code(), Code::NotFound | Code::InvalidArgument), "{unknown}");
    let request = pb::SubscribeRequest { subscription: "nobody".to_owned(), ..Default::default() };
    // The call is accepted and its stream ends with the refusal; most clients show no difference.
    let mut stream = client.subscribe(request).await.expect("the call is accepted").into_inner();
    let refused = stream.message().await.expect_err("subscriptions are declared");
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
}
