//! The promise, end to end: while thousands of objects change, leaders are killed and the consumer drops its stream;
//! afterwards nothing is lost, invented or out of order. Run by `make e2e`.
//!
//! Three sidecars watch a real API server. Each has its instance of the application; all three write to one store
//! that refuses old epochs. The oracle is a plain list and watch of the same server by the test itself.
//!
//! `E2E_OBJECTS`, `E2E_CHANGES`, `E2E_LEADER_KILLS`, `E2E_RECONNECTS` set the size.

#[path = "../it/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use support::admin::Admin;
use support::cluster::Cluster;
use support::consumer::{Consumer, Shared, durable};
use support::history::{History, Verdict};
use support::pb::LeadershipState;
use support::sidecar::{Options, Sidecar};
use support::store::Store;

/// Requests at once: more does not make two cores faster.
const WRITERS: u64 = 16;
const REPLICAS: usize = 3;
const NAMESPACE: &str = "load";
const WATCHES: &[&str] = &["configmaps", "widgets.example.com"];
const PATHS: &[(&str, &str)] = &[
    ("configmaps", "/api/v1/namespaces/load/configmaps"),
    ("widgets", "/apis/example.com/v1/namespaces/load/widgets"),
];
/// Every fourth object is a widget.
const WIDGETS_OF: u64 = 4;
/// The first sync may take this long on a busy machine.
const SYNC_MAX: Duration = Duration::from_secs(120);
/// A phase of the load may take this long on a busy machine.
const PHASE_MAX: Duration = Duration::from_secs(600);

struct Size {
    objects: u64,
    changes: u64,
    leader_kills: u64,
    reconnects: u64,
}

impl Size {
    fn from_environment() -> Self {
        let number = |name: &str, default| match std::env::var(name) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: must be a number")),
            Err(_) => default,
        };
        Self {
            objects: number("E2E_OBJECTS", 10_000),
            changes: number("E2E_CHANGES", 20_000),
            leader_kills: number("E2E_LEADER_KILLS", 5),
            reconnects: number("E2E_RECONNECTS", 20),
        }
    }
}

/// The replica that leads: the last word of each sidecar's instance, the highest epoch of those that say so.
fn leader(store: &Store) -> Option<usize> {
    let mut words = BTreeMap::new();
    for (app, leadership) in &store.leadership {
        words.insert(app.as_str(), (leadership.state(), leadership.epoch));
    }
    let leading = words.into_iter().filter(|(_, (state, _))| *state == LeadershipState::Leading);
    let (app, _) = leading.max_by_key(|(_, (_, epoch))| *epoch)?;
    app.rsplit('-').next()?.parse().ok()
}

fn path_of(number: u64) -> &'static str {
    PATHS[usize::from(number.is_multiple_of(WIDGETS_OF))].1
}

fn body_of(number: u64, value: u64) -> serde_json::Value {
    let name = format!("o{number}");
    if number.is_multiple_of(WIDGETS_OF) {
        json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": name }, "spec": { "size": value } })
    } else {
        json!({ "metadata": { "name": name }, "data": { "value": value.to_string() } })
    }
}

/// Runs `work` for each number below `count`, [`WRITERS`] at a time.
async fn each<F>(count: u64, work: impl Fn(u64) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + Send,
{
    let next = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (next, work) = (Arc::clone(&next), work.clone());
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    work(number).await;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("a writer failed");
    }
}

async fn must(admin: &Admin, method: &str, path: &str, body: Option<serde_json::Value>) {
    let answer = admin.send(method, path, body.as_ref()).await.unwrap_or_else(|error| panic!("{error}"));
    assert!((200..300).contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.body);
}

/// One change of an object: mostly an update; every tenth a deletion, and a new object of the same name.
async fn change(admin: &Admin, number: u64, turn: u64) {
    let path = format!("{}/o{number}", path_of(number));
    if turn.is_multiple_of(10) {
        must(admin, "DELETE", &path, None).await;
        must(admin, "POST", path_of(number), Some(body_of(number, turn))).await;
    } else {
        must(admin, "PATCH", &path, Some(body_of(number, turn))).await;
    }
}

/// The three replicas and their applications.
struct Replicas {
    sidecars: Vec<Option<Sidecar>>,
    apps: Vec<Consumer>,
    store: Shared,
    pods: u64,
    kills: u64,
    reconnects: u64,
}

impl Replicas {
    async fn start(cluster: &Cluster) -> Self {
        let store = Shared::default();
        let mut replicas = Self { sidecars: Vec::new(), apps: Vec::new(), store, pods: 0, kills: 0, reconnects: 0 };
        for place in 0..REPLICAS {
            let sidecar = Sidecar::start(cluster, replicas.options()).await;
            replicas.apps.push(Consumer::start(&format!("app-{place}"), sidecar.grpc(), durable(), &replicas.store));
            replicas.sidecars.push(Some(sidecar));
        }
        replicas
    }

    /// Of a pod that never was.
    fn options(&mut self) -> Options {
        self.pods += 1;
        Options::new(&format!("pod-{}", self.pods), WATCHES, &[NAMESPACE])
    }

    /// Kills the leader; another must lead before a sidecar takes its place: the same pod's, or a new pod's, in turn.
    async fn kill_leader(&mut self, cluster: &Cluster, turn: u64) {
        self.store.until("a leader to kill", Duration::from_secs(60), |store| leader(store).is_some()).await;
        let (place, epoch) = {
            let store = self.store.lock();
            (leader(&store).expect("just seen"), store.epoch)
        };
        let options = self.sidecars[place].take().expect("runs").kill();
        let options = if turn.is_multiple_of(2) { options } else { self.options() };
        if !turn.is_multiple_of(2) {
            self.store.until("the next leader", Duration::from_secs(60), |store| store.epoch > epoch).await;
        }
        let sidecar = Sidecar::start(cluster, options).await;
        self.apps[place].follow(sidecar.grpc());
        self.sidecars[place] = Some(sidecar);
        self.store.until("a leader after the kill", Duration::from_secs(60), |store| store.epoch > epoch).await;
        self.kills += 1;
    }

    /// The application of the leader drops its stream and comes back.
    async fn reconnect(&mut self) {
        self.store.until("a leader to leave", Duration::from_secs(60), |store| leader(store).is_some()).await;
        let (place, sessions) = {
            let store = self.store.lock();
            (leader(&store).expect("just seen"), store.sessions)
        };
        self.apps[place].reconnect();
        self.store
            .until("the application to come back", Duration::from_secs(60), |store| store.sessions > sessions)
            .await;
        self.reconnects += 1;
    }
}

/// The load of one phase, the drops of the stream and the death of the leader, all at once.
async fn phase(replicas: &mut Replicas, cluster: &Cluster, admin: &Admin, size: &Size, turn: u64) {
    let phases = size.leader_kills.max(1);
    let share = |whole: u64| whole / phases + u64::from(turn < whole % phases);
    let (changes, reconnects) = (share(size.changes), share(size.reconnects));
    let done = Arc::new(AtomicU64::new(0));
    let load = {
        let (admin, done, objects) = (admin.clone(), Arc::clone(&done), size.objects);
        // One object is changed by one writer at a time: neighbours in number are apart by the count of objects.
        tokio::spawn(each(changes, move |number| {
            let (admin, done) = (admin.clone(), Arc::clone(&done));
            async move {
                change(&admin, (number * 7 + turn * 13) % objects, number + turn).await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        }))
    };
    for drop in 0..reconnects {
        let due = changes * (drop + 1) / (reconnects + 1);
        support::wait_for("the load to go on", PHASE_MAX, || {
            let now = done.load(Ordering::Relaxed);
            let failed = load.is_finished() && now < changes;
            async move {
                assert!(!failed, "the load ended early");
                support::check(now >= due, || format!("{now} of {changes} changes"))
            }
        })
        .await;
        replicas.reconnect().await;
        if drop == reconnects / 2 && turn < size.leader_kills {
            replicas.kill_leader(cluster, turn).await;
        }
    }
    if reconnects == 0 && turn < size.leader_kills {
        replicas.kill_leader(cluster, turn).await;
    }
    tokio::time::timeout(PHASE_MAX, load)
        .await
        .expect("the load of a phase takes minutes at most")
        .expect("the load failed");
}

async fn run(size: &Size) -> bool {
    let begin = Instant::now();
    let tell = |what: &str| eprintln!("e2e: {:>4} s: {what}", begin.elapsed().as_secs());
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    cluster.namespace(NAMESPACE).await;
    admin.install_widgets().await;
    let writer = admin.clone();
    each(size.objects, move |number| {
        let admin = writer.clone();
        async move { must(&admin, "POST", path_of(number), Some(body_of(number, 0))).await }
    })
    .await;
    tell("the objects are there");

    let mut histories = Vec::new();
    for (resource, path) in PATHS {
        histories.push(History::start(&admin, resource, path).await);
    }
    let mut replicas = Replicas::start(&cluster).await;
    let mut truths = Vec::new();
    for history in &histories {
        truths.push((history.resource.clone(), history.list(&admin).await.1));
    }
    let in_sync = |truths: &[(String, BTreeMap<String, u128>)], store: &Store| {
        truths.iter().all(|(resource, truth)| store.versions(resource) == *truth)
    };
    replicas.store.until("all objects to be synced", SYNC_MAX, |store| in_sync(&truths, store)).await;
    tell("the objects are synced");

    for turn in 0..size.leader_kills.max(1) {
        phase(&mut replicas, &cluster, &admin, size, turn).await;
        tell(&format!("phase {} is over: {}", turn + 1, replicas.store.lock().summary()));
    }

    truths.clear();
    for history in &histories {
        let (at, truth) = history.list(&admin).await;
        let newest = truth.values().copied().max().unwrap_or(0).min(at);
        support::wait_for("the test's own watch", PHASE_MAX, || {
            let head = history.head();
            async move { support::check(head >= newest, || format!("{head} of {newest}")) }
        })
        .await;
        truths.push((history.resource.clone(), truth));
    }
    let deadline = Instant::now() + Duration::from_secs(120);
    while !in_sync(&truths, &replicas.store.lock()) && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    report(size, &histories, &truths, &replicas)
}

/// Prints what was found, and the result as the last line; whether it is what was promised.
fn report(
    size: &Size,
    histories: &[History],
    truths: &[(String, BTreeMap<String, u128>)],
    replicas: &Replicas,
) -> bool {
    let store = &*replicas.store.lock();
    let mut verdict = Verdict::default();
    for history in histories {
        history.judge(store, &mut verdict);
    }
    // Where the store and a plain list differ in the end, a change was lost, or came in an order that undid another.
    for (resource, truth) in truths {
        let held = store.versions(resource);
        let missing = truth.iter().filter(|(uid, at)| held.get(*uid) != Some(*at));
        verdict.lost.extend(
            missing.map(|(uid, at)| format!("{resource} {uid}: the store holds {:?}, true is {at}", held.get(uid))),
        );
        let ghosts = held.keys().filter(|uid| !truth.contains_key(*uid));
        verdict.lost.extend(ghosts.map(|uid| format!("{resource} {uid}: the store holds what is deleted")));
    }
    for (what, findings) in [("lost", &verdict.lost), ("invented", &verdict.invented), ("disordered", &store.disorder)]
    {
        for finding in findings.iter().take(10) {
            eprintln!("e2e: {what}: {finding}");
        }
    }
    for (resource, gap) in &store.gaps {
        eprintln!("e2e: a gap of {resource}: {gap:?}");
    }
    eprintln!("e2e: {}", store.summary());
    println!(
        "result: e2e objects={} changes={} leader_kills={} reconnects={} lost={} invented={} disordered={} duplicates={}",
        size.objects,
        size.changes,
        replicas.kills,
        replicas.reconnects,
        verdict.lost.len(),
        verdict.invented.len(),
        store.disorder.len(),
        store.duplicates
    );
    let done = replicas.kills == size.leader_kills && replicas.reconnects == size.reconnects;
    done && verdict.lost.is_empty() && verdict.invented.is_empty() && store.disorder.is_empty()
}

fn main() -> ExitCode {
    let size = Size::from_environment();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    if runtime.block_on(run(&size)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
