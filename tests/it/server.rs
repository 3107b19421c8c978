//! What docs/protocol.md assumes of the API server (section A), asked of a real one.

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::store::version;

fn rv(object: &Value) -> u128 {
    version(object["metadata"]["resourceVersion"].as_str().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_has_a_version_of_its_own_and_a_place_in_the_order() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let path = "/api/v1/namespaces/default/configmaps";
    let before = rv(&admin.get(path).await);
    let mut watch = admin.watch(&format!("{path}?watch=true&resourceVersion={before}")).await.expect("a watch");
    let made = admin.config_map("default", "a", "1").await;
    let changed = admin.patch(&format!("{path}/a"), json!({ "data": { "value": "2" } })).await;
    admin.delete(&format!("{path}/a")).await;
    let mut events = Vec::new();
    for _ in 0..3 {
        events.push(watch.next().await.expect("an event"));
    }
    let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap_or_default()).collect();
    assert_eq!(types, ["ADDED", "MODIFIED", "DELETED"]);
    assert_eq!(rv(&events[0]["object"]), rv(&made));
    assert_eq!(rv(&events[1]["object"]), rv(&changed));
    assert!(rv(&events[2]["object"]) > rv(&changed), "the deletion's own version: {}", events[2]);
    assert_eq!(events[2]["object"]["metadata"]["uid"], made["metadata"]["uid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_without_a_version_is_at_least_as_new_as_the_last_write() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    for number in 0..50 {
        let made = admin.config_map("default", &format!("m{number}"), "1").await;
        let list = admin.get("/api/v1/configmaps?limit=1").await;
        assert!(rv(&list) >= rv(&made), "the horizon X would be too low: list {} after write {}", rv(&list), rv(&made));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exact_list_shows_the_past_until_it_is_compacted() {
    let mut cluster = Cluster::start().await;
    let uncached = cluster.add_server(&["--watch-cache=false"]).await;
    let admin = cluster.admin().await;
    let second = crate::support::admin::Admin::new(cluster.kubeconfig_of(uncached)).await;
    let made = admin.config_map("default", "a", "1").await;
    admin.patch("/api/v1/namespaces/default/configmaps/a", json!({ "data": { "value": "2" } })).await;
    let past =
        format!("/api/v1/namespaces/default/configmaps?resourceVersion={}&resourceVersionMatch=Exact", rv(&made));
    for client in [&admin, &second] {
        let list = client.get(&past).await;
        assert_eq!(list["items"][0]["data"]["value"], "1", "{list}");
    }
    admin.config_map("default", "b", "1").await;
    cluster.compact();
    let gone = second.try_get(&past).await.expect("an answer");
    assert_eq!((gone.status, &gone.body["reason"]), (410, &json!("Expired")), "{}", gone.body);
    // The watch from a compacted version fails inside of the stream.
    let path = format!("/api/v1/namespaces/default/configmaps?watch=true&resourceVersion={}", rv(&made));
    let mut watch = second.watch(&path).await.expect("HTTP 200");
    let event = watch.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)), "{event}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_has_forgotten_its_watch_window() {
    let mut cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let made = admin.config_map("default", "a", "1").await;
    admin.config_map("default", "b", "1").await;
    admin.install_widgets().await;
    cluster.kill_server(0);
    cluster.start_server(0).await;
    let path = format!("/api/v1/namespaces/default/configmaps?watch=true&resourceVersion={}", rv(&made));
    let mut watch = cluster.admin().await.watch(&path).await.expect("HTTP 200");
    let event = watch.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)), "{event}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_leaves_a_selector_arrives_as_deleted() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let path = "/api/v1/namespaces/default/configmaps";
    let before = rv(&admin.get(path).await);
    let query = format!("{path}?watch=true&labelSelector=app%3Dtest&resourceVersion={before}");
    let mut watch = admin.watch(&query).await.expect("a watch");
    admin.config_map("default", "a", "1").await;
    let left = admin.patch(&format!("{path}/a"), json!({ "metadata": { "labels": { "app": "other" } } })).await;
    assert_eq!(watch.next().await.expect("an event")["type"], "ADDED");
    let event = watch.next().await.expect("an event");
    assert_eq!((event["type"].as_str(), rv(&event["object"])), (Some("DELETED"), rv(&left)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_compared_and_swapped() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = admin.create(leases, json!({ "metadata": { "name": "app" }, "spec": { "holderIdentity": "a" } })).await;
    let path = format!("{leases}/app");
    let first = admin.send("PUT", &path, Some(&lease)).await.expect("an answer");
    assert_eq!(first.status, 200);
    let mut stale = lease.clone();
    stale["spec"]["holderIdentity"] = json!("b");
    // The first write changed nothing, so the version stands; one that does makes the other stale.
    let mut changed = lease;
    changed["spec"]["holderIdentity"] = json!("c");
    assert_eq!(admin.send("PUT", &path, Some(&changed)).await.expect("an answer").status, 200);
    assert_eq!(admin.send("PUT", &path, Some(&stale)).await.expect("an answer").status, 409);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streaming_list_ends_with_a_marked_bookmark() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    admin.config_map("default", "a", "1").await;
    let path = "/api/v1/namespaces/default/configmaps?watch=true&sendInitialEvents=true\
                &resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = admin.watch(path).await.expect("a watch");
    assert_eq!(watch.next().await.expect("an event")["type"], "ADDED");
    let end = watch.next().await.expect("an event");
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true", "{end}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_expires_and_a_right_ends() {
    use std::time::Duration;
    let cluster = Cluster::start().await;
    let uid = cluster.service_account("reader", "default", &["default"]).await;
    let file = cluster.folder().join("token");
    std::fs::write(&file, cluster.token("default", "reader", &uid, Duration::from_secs(5))).expect("can be written");
    let reader = crate::support::admin::Admin::new(&cluster.kubeconfig_with_token("reader", &file)).await;
    let path = "/api/v1/namespaces/default/configmaps";
    crate::support::wait_for("the role to be known", Duration::from_secs(20), || async {
        let answer = reader.try_get(path).await?;
        crate::support::check(answer.status == 200, || format!("{} {}", answer.status, answer.body))
    })
    .await;
    assert_eq!(reader.try_get("/api/v1/namespaces/kube-system/configmaps").await.expect("an answer").status, 403);
    crate::support::wait_for("the token to expire", Duration::from_secs(40), || async {
        let answer = reader.try_get(path).await?;
        crate::support::check(answer.status == 401, || format!("{} {}", answer.status, answer.body))
    })
    .await;
}
