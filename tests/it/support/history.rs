//! What really happened: a plain list and watch of the API server, by the test itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::task::JoinHandle;

use super::admin::Admin;
use super::pb;
use super::store::{Store, version};

/// Every state of every object of one resource, from a list on.
#[derive(Default, Debug)]
pub(crate) struct Record {
    /// The version of the list.
    pub(crate) start: u128,
    /// The versions at which each uid was created or changed, the list's included.
    pub(crate) states: BTreeMap<String, BTreeSet<u128>>,
    /// The version at which each uid was deleted.
    pub(crate) deaths: BTreeMap<String, u128>,
    /// The version up to which the record is complete.
    pub(crate) head: u128,
}

/// A running record.
pub(crate) struct History {
    /// Plural resource.
    pub(crate) resource: String,
    path: String,
    record: Arc<Mutex<Record>>,
    task: JoinHandle<()>,
}

impl Drop for History {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the store did not get right.
#[derive(Default, Debug)]
pub(crate) struct Verdict {
    /// Changes that were neither delivered nor announced as skipped.
    pub(crate) lost: Vec<String>,
    /// Events of changes that never were.
    pub(crate) invented: Vec<String>,
}

impl History {
    /// Lists `path` and records its changes from there.
    pub(crate) async fn start(admin: &Admin, resource: &str, path: &str) -> Self {
        let list = admin.get(path).await;
        let mut record = Record { start: version(text(&list["metadata"]["resourceVersion"])), ..Default::default() };
        for item in list["items"].as_array().into_iter().flatten() {
            let meta = &item["metadata"];
            record
                .states
                .entry(text(&meta["uid"]).to_owned())
                .or_default()
                .insert(version(text(&meta["resourceVersion"])));
        }
        record.head = record.start;
        let record = Arc::new(Mutex::new(record));
        let task = tokio::spawn(follow(admin.clone(), path.to_owned(), Arc::clone(&record)));
        Self { resource: resource.to_owned(), path: path.to_owned(), record, task }
    }

    /// A record that is complete, for the tests of the judges.
    pub(crate) fn of(resource: &str, record: Record) -> Self {
        let task = tokio::spawn(async {});
        Self { resource: resource.to_owned(), path: String::new(), record: Arc::new(Mutex::new(record)), task }
    }

    /// Uid and version of everything that exists, by a plain list.
    pub(crate) async fn list(&self, admin: &Admin) -> (u128, BTreeMap<String, u128>) {
        let list = admin.get(&self.path).await;
        let items = list["items"].as_array().into_iter().flatten().map(|item| {
            let meta = &item["metadata"];
            (text(&meta["uid"]).to_owned(), version(text(&meta["resourceVersion"])))
        });
        (version(text(&list["metadata"]["resourceVersion"])), items.collect())
    }

    /// The newest version that the record has seen.
    pub(crate) fn head(&self) -> u128 {
        assert!(!self.task.is_finished(), "the test's own watch of {} ended", self.path);
        self.record.lock().expect("the recorder did not panic").head
    }

    /// Compares what the store applied with what happened.
    pub(crate) fn judge(&self, store: &Store, verdict: &mut Verdict) {
        let record = self.record.lock().expect("the recorder did not panic");
        let resource = &self.resource;
        let mut states: BTreeMap<&str, BTreeSet<u128>> = BTreeMap::new();
        let mut coalesced: BTreeMap<&str, BTreeSet<u128>> = BTreeMap::new();
        let mut deaths: BTreeSet<&str> = BTreeSet::new();
        for event in store.applied.iter().filter(|event| event.resource == *resource) {
            if event.kind == pb::EventType::Deleted {
                deaths.insert(&event.uid);
                if !record.deaths.contains_key(&event.uid) {
                    verdict.invented.push(format!("{resource} {} {}: deleted, but it lives", event.name, event.uid));
                }
                continue;
            }
            states.entry(&event.uid).or_default().insert(event.version);
            if event.coalesced {
                coalesced.entry(&event.uid).or_default().insert(event.version);
            }
            if !record.states.get(&event.uid).is_some_and(|known| known.contains(&event.version)) {
                verdict.invented.push(format!("{resource} {} {} at {}", event.name, event.uid, event.version));
            }
        }
        let first = store.snapshots.iter().find(|(of, _)| of == resource).map_or(0, |(_, at)| *at);
        let gaps = |at: u128| {
            store.gaps.iter().filter(move |(of, gap)| {
                of == resource && version(&gap.from_resource_version) < at && at <= version(&gap.to_resource_version)
            })
        };
        let announced = |at: u128| at <= first || gaps(at).next().is_some();
        for (uid, known) in &record.states {
            for at in known {
                let delivered = states.get(uid.as_str()).is_some_and(|states| states.contains(at));
                let replaced = coalesced.get(uid.as_str()).is_some_and(|later| later.range(at..).next().is_some());
                if !delivered && !replaced && !announced(*at) {
                    verdict.lost.push(format!("{resource} {uid} at {at}"));
                }
            }
        }
        for (uid, at) in &record.deaths {
            // A gap that promises all deletes excuses only those of objects that nobody was told of.
            let born = record.states.get(uid).and_then(|known| known.first().copied()).unwrap_or(0);
            let excused = *at <= first
                || gaps(*at).any(|(_, gap)| !gap.deletes_complete || born > version(&gap.from_resource_version));
            if !deaths.contains(uid.as_str()) && !excused {
                verdict.lost.push(format!("{resource} {uid}: its deletion at {at}"));
            }
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

async fn follow(admin: Admin, path: String, record: Arc<Mutex<Record>>) {
    loop {
        let head = record.lock().expect("not poisoned").head;
        let query = format!("{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds=3000&resourceVersion={head}");
        let Ok(mut watch) = admin.watch(&query).await else { return };
        while let Some(event) = watch.next().await {
            let meta = &event["object"]["metadata"];
            let (uid, at) = (text(&meta["uid"]).to_owned(), version(text(&meta["resourceVersion"])));
            let mut record = record.lock().expect("not poisoned");
            match text(&event["type"]) {
                "ADDED" | "MODIFIED" => {
                    record.states.entry(uid).or_default().insert(at);
                }
                "DELETED" => {
                    record.deaths.insert(uid, at);
                }
                "BOOKMARK" => {}
                _ => return,
            }
            record.head = record.head.max(at);
        }
    }
}
