//! Lists and watches: built-in types, a custom type, namespaces, selectors; compared with plain lists.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::consumer::{Consumer, Shared};
use crate::support::pb;
use crate::support::sidecar::{Options, Sidecar};
use crate::support::{check, wait_for};

const SOON: Duration = Duration::from_secs(60);

fn pair(namespace: &str, name: &str) -> (String, String) {
    (namespace.to_owned(), name.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn built_in_and_custom_types_of_two_namespaces_arrive_with_their_changes() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    admin.install_widgets().await;
    for namespace in ["a", "b", "other"] {
        cluster.namespace(namespace).await;
        admin.config_map(namespace, "before", "1").await;
    }
    admin.widget("a", "wheel", 1).await;
    let options = Options::alone("one", &["configmaps", "widgets.example.com"], &["a", "b"]);
    let sidecar = Sidecar::start(&cluster, options).await;
    let store = Shared::default();
    let _app = Consumer::start("app", sidecar.grpc(), pb::SubscribeRequest::default(), &store);
    store
        .until("the snapshot", SOON, |store| {
            store.names("configmaps") == [pair("a", "before"), pair("b", "before")].into()
                && store.names("widgets") == [pair("a", "wheel")].into()
                && store.snapshots.len() >= 2
        })
        .await;

    admin.config_map("b", "after", "1").await;
    admin.patch("/api/v1/namespaces/b/configmaps/after", json!({ "data": { "value": "2" } })).await;
    admin.delete("/api/v1/namespaces/b/configmaps/after").await;
    admin.patch("/apis/example.com/v1/namespaces/a/widgets/wheel", json!({ "spec": { "size": 2 } })).await;
    admin.config_map("other", "unseen", "1").await;
    admin.config_map("a", "last", "1").await;
    store
        .until("the changes", SOON, |store| {
            store.story("configmaps", "last") == ["added"] && store.story("widgets", "wheel") == ["added", "modified"]
        })
        .await;
    let store = store.lock();
    assert_eq!(store.story("configmaps", "after"), ["added", "modified", "deleted"]);
    assert!(store.story("configmaps", "unseen").is_empty(), "another namespace");
    assert_eq!(store.names("configmaps"), [pair("a", "before"), pair("a", "last"), pair("b", "before")].into());
    let (_, wheel) = store.objects("widgets").next().expect("held");
    let body: Value = serde_json::from_str(wheel.json.as_deref().expect("JSON is the default")).expect("JSON");
    assert_eq!(body["spec"]["size"], 2);
    assert!(store.disorder.is_empty() && store.gaps.is_empty() && store.duplicates == 0, "{}", store.summary());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_leaves_the_filter_is_deleted_for_that_subscription() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    admin.config_map("default", "kept", "1").await;
    let sidecar = Sidecar::start(&cluster, Options::alone("one", &["configmaps"], &["default"])).await;
    let (filtered, all) = (Shared::default(), Shared::default());
    let filter = pb::Filter { label_selector: "app=test".to_owned(), ..Default::default() };
    let request = pb::SubscribeRequest { filter: Some(filter), ..Default::default() };
    let _one = Consumer::start("filtered", sidecar.grpc(), request, &filtered);
    let _two = Consumer::start("all", sidecar.grpc(), pb::SubscribeRequest::default(), &all);
    for store in [&filtered, &all] {
        store.until("the snapshot", SOON, |store| store.names("configmaps").contains(&pair("default", "kept"))).await;
    }
    let path = "/api/v1/namespaces/default/configmaps/kept";
    admin.patch(path, json!({ "metadata": { "labels": { "app": "other" } } })).await;
    filtered.until("it to leave", SOON, |store| store.story("configmaps", "kept") == ["added", "deleted"]).await;
    assert_eq!(filtered.lock().applied.last().map(|event| event.reason), Some(pb::DeleteReason::Unselected));
    admin.patch(path, json!({ "metadata": { "labels": { "app": "test" } } })).await;
    filtered
        .until("it to return", SOON, |store| store.story("configmaps", "kept") == ["added", "deleted", "added"])
        .await;
    all.until("plain updates", SOON, |store| store.story("configmaps", "kept") == ["added", "modified", "modified"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_type_that_is_defined_later_is_waited_for_and_holds_nothing_else_up() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    admin.config_map("default", "here", "1").await;
    let options = Options::alone("one", &["configmaps", "widgets.example.com"], &["default"]);
    let sidecar = Sidecar::start(&cluster, options).await;
    let store = Shared::default();
    let _app = Consumer::start("app", sidecar.grpc(), pb::SubscribeRequest::default(), &store);
    store.until("the other feed", SOON, |store| store.names("configmaps").contains(&pair("default", "here"))).await;
    sidecar.ready().await;
    admin.install_widgets().await;
    admin.widget("default", "wheel", 1).await;
    store
        .until("the widget", Duration::from_secs(120), |store| {
            store.names("widgets") == [pair("default", "wheel")].into()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_http_listener_tells_health_and_metrics() {
    let cluster = Cluster::start().await;
    let sidecar = Sidecar::start(&cluster, Options::alone("one", &["configmaps"], &["default"])).await;
    sidecar.ready().await;
    wait_for("the pages", SOON, || async {
        let (live, _) = sidecar.page("/livez").await?;
        let (status, metrics) = sidecar.page("/metrics").await?;
        check((live, status) == (200, 200) && metrics.contains("sidewatch_"), || format!("{live} {status} {metrics}"))
    })
    .await;
}
