//! Faults between the sidecar and the API server: nothing is lost, and no delete is made up.

use std::time::Duration;

use serde_json::json;

use crate::support::cluster::Cluster;
use crate::support::consumer::{Consumer, Shared, durable};
use crate::support::history::{History, Verdict};
use crate::support::link::Link;
use crate::support::pb::FeedState;
use crate::support::pb::GapKind;
use crate::support::sidecar::{Options, Sidecar};
use crate::support::store::Store;

const SOON: Duration = Duration::from_secs(90);
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn has(name: &'static str) -> impl Fn(&Store) -> bool {
    move |store| store.names("configmaps").contains(&("default".to_owned(), name.to_owned()))
}

fn lacks(name: &'static str) -> impl Fn(&Store) -> bool {
    move |store| !has(name)(store)
}

/// The store equals a plain list, and nothing was lost, made up or disordered on the way.
async fn assert_faithful(history: &History, store: &Shared, cluster: &Cluster) {
    let (_, truth) = history.list(&cluster.admin().await).await;
    store.until("the store to equal a plain list", SOON, |store| store.versions("configmaps") == truth).await;
    let store = store.lock();
    let mut verdict = Verdict::default();
    history.judge(&store, &mut verdict);
    assert!(verdict.lost.is_empty() && verdict.invented.is_empty(), "{verdict:?}; {}", store.summary());
    assert!(store.disorder.is_empty(), "{:?}", store.disorder);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_the_server_ends_is_reopened_without_a_gap() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let history = History::start(&admin, "configmaps", CONFIG_MAPS).await;
    let (link, kubeconfig) = Link::start(cluster.kubeconfig(), "over-link").await;
    let options = Options::alone("one", &["configmaps"], &["default"]);
    let sidecar = Sidecar::start_as(&cluster, options, &kubeconfig).await;
    let store = Shared::default();
    let _app = Consumer::start("app", sidecar.grpc(), Default::default(), &store);
    admin.config_map("default", "kept", "1").await;
    store.until("the first object", SOON, has("kept")).await;
    for (gone, made) in [("kept", "one"), ("one", "two"), ("two", "three")] {
        link.cut();
        admin.delete(&format!("{CONFIG_MAPS}/{gone}")).await;
        admin.config_map("default", made, "1").await;
        store.until("the change behind the cut", SOON, |store| has(made)(store) && lacks(gone)(store)).await;
    }
    assert_faithful(&history, &store, &cluster).await;
    assert!(store.lock().gaps.is_empty(), "a closed watch loses nothing: {:?}", store.lock().gaps);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_restarts_loses_no_delete() {
    let mut cluster = Cluster::start().await;
    let other = cluster.add_server(&[]).await;
    let admin = cluster.admin().await;
    for name in ["kept", "doomed", "replaced"] {
        admin.config_map("default", name, "1").await;
    }
    // The record follows the server that stays.
    let steady = crate::support::admin::Admin::new(cluster.kubeconfig_of(other)).await;
    let history = History::start(&steady, "configmaps", CONFIG_MAPS).await;
    let sidecar = Sidecar::start(&cluster, Options::new("app-0", &["configmaps"], &["default"])).await;
    let store = Shared::default();
    let _app = Consumer::start("app-0", sidecar.grpc(), durable(), &store);
    store.until("the snapshot", SOON, has("doomed")).await;
    cluster.kill_server(0);
    steady.delete(&format!("{CONFIG_MAPS}/doomed")).await;
    steady.delete(&format!("{CONFIG_MAPS}/replaced")).await;
    steady.config_map("default", "replaced", "2").await;
    steady.config_map("default", "born", "1").await;
    cluster.start_server(0).await;
    store.until("what happened meanwhile", SOON, |store| lacks("doomed")(store) && has("born")(store)).await;
    assert_faithful(&history, &store, &cluster).await;
    let store = store.lock();
    assert_eq!(store.story("configmaps", "replaced"), ["added", "deleted", "added"], "two objects, two lives");
    assert!(store.later_gaps().all(|gap| gap.kind() == GapKind::Coalesced && gap.deletes_complete), "{:?}", store.gaps);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compacted_history_is_an_announced_gap_with_every_delete() {
    let mut cluster = Cluster::start().await;
    // Without a watch cache a compaction is felt at once.
    let uncached = cluster.add_server(&["--watch-cache=false"]).await;
    let admin = cluster.admin().await;
    for name in ["kept", "doomed"] {
        admin.config_map("default", name, "1").await;
    }
    let history = History::start(&admin, "configmaps", CONFIG_MAPS).await;
    let (link, kubeconfig) = Link::start(cluster.kubeconfig_of(uncached), "over-link").await;
    let options = Options::alone("one", &["configmaps"], &["default"]);
    let sidecar = Sidecar::start_as(&cluster, options, &kubeconfig).await;
    let store = Shared::default();
    let _app = Consumer::start("app", sidecar.grpc(), Default::default(), &store);
    store.until("the snapshot", SOON, has("doomed")).await;
    // Long enough for the sidecar to have missed it all: nothing comes through until history is gone.
    link.silence();
    admin.delete(&format!("{CONFIG_MAPS}/doomed")).await;
    admin.config_map("default", "passed", "1").await;
    admin.delete(&format!("{CONFIG_MAPS}/passed")).await;
    admin.config_map("default", "born", "1").await;
    cluster.compact();
    link.cut();
    link.restore();
    store.until("what happened meanwhile", SOON, |store| lacks("doomed")(store) && has("born")(store)).await;
    assert_faithful(&history, &store, &cluster).await;
    let store = store.lock();
    let (_, gap) = store.gaps.first().expect("what was skipped is announced");
    assert_eq!((gap.kind(), gap.deletes_complete), (GapKind::Coalesced, true));
    assert_eq!(store.story("configmaps", "doomed"), ["added", "deleted"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_taken_away_makes_no_deletes_and_heals() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    admin.config_map("default", "kept", "1").await;
    let history = History::start(&admin, "configmaps", CONFIG_MAPS).await;
    let uid = cluster.service_account("sidewatch", "default", &["default"]).await;
    let token = cluster.folder().join("token");
    std::fs::write(&token, cluster.token("default", "sidewatch", &uid, Duration::from_secs(3600)))
        .expect("can be written");
    let kubeconfig = cluster.kubeconfig_with_token("as-sidewatch", &token);
    let (link, kubeconfig) = Link::start(&kubeconfig, "as-sidewatch-over-link").await;
    let options = Options::new("app-0", &["configmaps"], &["default"]);
    let sidecar = Sidecar::start_as(&cluster, options, &kubeconfig).await;
    let store = Shared::default();
    let _app = Consumer::start("app-0", sidecar.grpc(), durable(), &store);
    store.until("the snapshot", SOON, has("kept")).await;

    let role = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/sidewatch-read";
    let rules = admin.get(role).await["rules"].clone();
    admin.patch(role, json!({ "rules": [] })).await;
    // A running watch outlives the right; the next one does not.
    link.cut();
    store
        .until("it to be told", SOON, |store| store.statuses.iter().any(|(_, state)| *state == FeedState::Forbidden))
        .await;
    assert!(has("kept")(&store.lock()), "a missing right deletes nothing");
    admin.delete(&format!("{CONFIG_MAPS}/kept")).await;
    admin.config_map("default", "born", "1").await;
    admin.patch(role, json!({ "rules": rules })).await;
    store.until("what happened meanwhile", SOON, |store| lacks("kept")(store) && has("born")(store)).await;
    assert_faithful(&history, &store, &cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_expires_is_read_again_from_its_file() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    admin.config_map("default", "kept", "1").await;
    let history = History::start(&admin, "configmaps", CONFIG_MAPS).await;
    let uid = cluster.service_account("sidewatch", "default", &["default"]).await;
    let file = cluster.folder().join("token");
    let write =
        |seconds| std::fs::write(&file, cluster.token("default", "sidewatch", &uid, Duration::from_secs(seconds)));
    write(15).expect("can be written");
    let kubeconfig = cluster.kubeconfig_with_token("as-sidewatch", &file);
    let (link, kubeconfig) = Link::start(&kubeconfig, "as-sidewatch-over-link").await;
    let options = Options::new("app-0", &["configmaps"], &["default"]);
    let sidecar = Sidecar::start_as(&cluster, options, &kubeconfig).await;
    let store = Shared::default();
    let _app = Consumer::start("app-0", sidecar.grpc(), durable(), &store);
    store.until("the snapshot", SOON, has("kept")).await;
    let reader = crate::support::admin::Admin::new(&cluster.kubeconfig_with_token("probe", &file)).await;
    crate::support::wait_for("the token to expire", SOON, || async {
        let answer = reader.try_get(CONFIG_MAPS).await?;
        crate::support::check(answer.status == 401, || format!("{} {}", answer.status, answer.body))
    })
    .await;
    // As the kubelet does: the file changes, the process goes on.
    write(3600).expect("can be written");
    link.cut();
    admin.delete(&format!("{CONFIG_MAPS}/kept")).await;
    admin.config_map("default", "born", "1").await;
    let longest = Duration::from_secs(180);
    store.until("what happened meanwhile", longest, |store| lacks("kept")(store) && has("born")(store)).await;
    assert_faithful(&history, &store, &cluster).await;
}
