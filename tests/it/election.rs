//! Election: one leader, its death, its orderly end, its pause; always with a growing epoch.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::cluster::Cluster;
use crate::support::consumer::{Consumer, Shared, durable};
use crate::support::history::{History, Verdict};
use crate::support::link::Link;
use crate::support::pb;
use crate::support::pb::LeadershipState::{Leading, Lost, Suspended};
use crate::support::sidecar::{Options, Sidecar};
use crate::support::store::Store;

const SOON: Duration = Duration::from_secs(60);
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The instance that was last told that its sidecar leads, unless it was told otherwise since.
fn leader(store: &Store) -> Option<String> {
    let mut state = std::collections::BTreeMap::new();
    for (app, leadership) in &store.leadership {
        state.insert(app, (leadership.state(), leadership.epoch));
    }
    let leading = state.into_iter().filter(|(_, (state, _))| *state == Leading);
    leading.max_by_key(|(_, (_, epoch))| *epoch).map(|(app, _)| app.clone())
}

/// Three replicas, each with its instance of the application, all writing to one store.
struct Replicas {
    sidecars: Vec<Option<Sidecar>>,
    apps: Vec<Consumer>,
    store: Shared,
}

impl Replicas {
    async fn start(cluster: &Cluster) -> Self {
        let store = Shared::default();
        let (mut sidecars, mut apps) = (Vec::new(), Vec::new());
        for number in 0..3 {
            let pod = format!("app-{number}");
            let sidecar = Sidecar::start(cluster, Options::new(&pod, &["configmaps"], &["default"])).await;
            apps.push(Consumer::start(&pod, sidecar.grpc(), durable(), &store));
            sidecars.push(Some(sidecar));
        }
        let begun = |store: &Store| leader(store).is_some() && !store.snapshots.is_empty() && !store.durable.is_empty();
        store.until("a leader and a stored position", SOON, begun).await;
        Self { sidecars, apps, store }
    }

    /// The number of the replica that leads.
    fn leader(&self) -> usize {
        let name = leader(&self.store.lock()).expect("a leader");
        name.trim_start_matches("app-").parse().expect("our names end in a number")
    }

    /// Waits for a leader of a higher epoch than `epoch`.
    async fn next_leader(&self, epoch: u64) {
        self.store.until("the next leader", SOON, |store| store.epoch > epoch && leader(store).is_some()).await;
    }
}

async fn assert_nothing_lost(history: &History, store: &Shared, cluster: &Cluster) {
    let admin = cluster.admin().await;
    let (_, truth) = history.list(&admin).await;
    store.until("the store to equal a plain list", SOON, |store| store.versions("configmaps") == truth).await;
    let mut verdict = Verdict::default();
    history.judge(&store.lock(), &mut verdict);
    let store = store.lock();
    assert!(verdict.lost.is_empty() && verdict.invented.is_empty(), "{verdict:?}; {}", store.summary());
    assert!(store.disorder.is_empty(), "{:?}", store.disorder);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_three_replicas_exactly_one_leads_and_its_death_loses_nothing() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    admin.config_map("default", "doomed", "1").await;
    let history = History::start(&admin, "configmaps", CONFIG_MAPS).await;
    let mut replicas = Replicas::start(&cluster).await;
    let leading = replicas.leader();
    let told: Vec<String> = {
        let store = replicas.store.lock();
        store
            .leadership
            .iter()
            .filter(|(_, leadership)| leadership.state() == Leading)
            .map(|(app, _)| app.clone())
            .collect()
    };
    assert!(told.iter().all(|app| *app == format!("app-{leading}")), "one leader: {told:?}");

    // Deleted and created while nobody leads.
    let epoch = replicas.store.lock().epoch;
    replicas.sidecars[leading].take().expect("runs").kill();
    admin.delete(&format!("{CONFIG_MAPS}/doomed")).await;
    admin.config_map("default", "orphan", "1").await;
    admin.delete(&format!("{CONFIG_MAPS}/orphan")).await;
    admin.config_map("default", "born", "1").await;
    replicas.next_leader(epoch).await;
    assert_ne!(replicas.leader(), leading);
    assert_nothing_lost(&history, &replicas.store, &cluster).await;
    let store = replicas.store.lock();
    assert_eq!(store.story("configmaps", "doomed").last(), Some(&"deleted"));
    assert_eq!(store.story("configmaps", "orphan"), ["added", "deleted"], "the standbys watched all the time");
    assert!(store.later_gaps().next().is_none(), "a warm standby has no gap: {:?}", store.gaps);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_end_hands_over_at_once() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let history = History::start(&admin, "configmaps", CONFIG_MAPS).await;
    let mut replicas = Replicas::start(&cluster).await;
    let (leading, epoch) = (replicas.leader(), replicas.store.lock().epoch);
    let begin = Instant::now();
    let sidecar = replicas.sidecars[leading].take().expect("runs");
    let (status, log) = sidecar.terminate(Duration::from_secs(20));
    assert!(status.success(), "{status}: {log}");
    replicas.next_leader(epoch).await;
    // The Lease lasts six seconds: less means that it was released.
    assert!(begin.elapsed() < Duration::from_secs(5), "took {:?}", begin.elapsed());
    admin.config_map("default", "after", "1").await;
    assert_nothing_lost(&history, &replicas.store, &cluster).await;
    assert!(replicas.store.lock().endings.contains(&pb::EndReason::Shutdown));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_frozen_finds_itself_fenced() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let history = History::start(&admin, "configmaps", CONFIG_MAPS).await;
    let replicas = Replicas::start(&cluster).await;
    let (leading, epoch) = (replicas.leader(), replicas.store.lock().epoch);
    replicas.sidecars[leading].as_ref().expect("runs").signal(Signal::STOP);
    admin.config_map("default", "meanwhile", "1").await;
    replicas.next_leader(epoch).await;
    replicas.sidecars[leading].as_ref().expect("runs").signal(Signal::CONT);
    let name = format!("app-{leading}");
    replicas
        .store
        .until("the old leader to know", SOON, |store| {
            let last = store.leadership.iter().rev().find(|(app, _)| *app == name);
            last.is_some_and(|(_, leadership)| leadership.state() != Leading)
        })
        .await;
    assert_nothing_lost(&history, &replicas.store, &cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_the_api_server_is_suspended_and_goes_on_in_the_same_epoch() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let history = History::start(&admin, "configmaps", CONFIG_MAPS).await;
    let (link, kubeconfig) = Link::start(cluster.kubeconfig(), "over-link").await;
    let options = Options::new("app-0", &["configmaps"], &["default"]);
    let sidecar = Sidecar::start_as(&cluster, options, &kubeconfig).await;
    let store = Shared::default();
    let _app = Consumer::start("app-0", sidecar.grpc(), durable(), &store);
    store.until("leadership", SOON, |store| leader(store).is_some() && !store.snapshots.is_empty()).await;
    let epoch = store.lock().epoch;
    link.silence();
    admin.config_map("default", "meanwhile", "1").await;
    let last = |store: &Store| store.leadership.last().map(|(_, leadership)| leadership.state());
    store.until("suspension", SOON, |store| matches!(last(store), Some(Suspended | Lost))).await;
    assert!(store.lock().story("configmaps", "meanwhile").is_empty());
    link.restore();
    link.cut();
    store.until("leadership again", SOON, |store| last(store) == Some(Leading)).await;
    assert_nothing_lost(&history, &store, &cluster).await;
    assert_eq!(store.lock().epoch, epoch, "nobody else took the Lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_lease_raises_the_epoch_and_resets() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let history = History::start(&admin, "configmaps", CONFIG_MAPS).await;
    let replicas = Replicas::start(&cluster).await;
    let epoch = replicas.store.lock().epoch;
    admin.delete("/apis/coordination.k8s.io/v1/namespaces/default/leases/app").await;
    replicas.next_leader(epoch).await;
    admin.config_map("default", "after", "1").await;
    assert_nothing_lost(&history, &replicas.store, &cluster).await;
    // Every instance stays attached through all of it.
    assert_eq!(replicas.apps.len(), 3);
}
