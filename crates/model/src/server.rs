//! The API server as one value: requests in, answers out, watches to poll.

mod answer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::history::{Compacted, History};
use crate::object::State;
use crate::prng::Prng;
use crate::request::{JSON, Request, Response};
use crate::resource::{Origin, Resource, ResourceId, Scope, widget_definition};
use crate::status::Failure;
use crate::watch::{Watch, WatchId, WatchOutput};
use crate::window::{Change, Window};
use crate::write::{DeleteOptions, Deletion, Part, Place};

/// Shortest life of a watch without `timeoutSeconds`; the longest is twice that (`--min-request-timeout`).
pub const WATCH_TIMEOUT_MIN: Duration = Duration::from_secs(1800);
/// Time between compactions, each to the revision of the one before (`--etcd-compaction-interval`).
pub const COMPACTION_INTERVAL: Duration = Duration::from_secs(300);

/// Whether the sample type exists from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Widgets {
    /// Only built-in types.
    Absent,
    /// `widgets.example.com` is declared.
    Installed,
}

/// Whether the server knows the streaming list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamingList {
    /// As servers since 1.34.
    On,
    /// The gate is off: 422.
    Refused,
    /// As servers that are too old to know the parameter: it has no effect.
    Unknown,
}

/// How a model server is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Seed of uids, generated names and watch lifetimes.
    pub seed: u64,
    /// Revision at which the counter stands before the first object.
    pub first_revision: u64,
    /// Namespaces that exist from the start, besides `default` and `kube-system`.
    pub namespaces: Vec<String>,
    /// The sample type.
    pub widgets: Widgets,
    /// The streaming list.
    pub streaming_list: StreamingList,
    /// Time between compactions; nothing for none but those by hand.
    pub compaction_interval: Option<Duration>,
    /// `gitVersion` of `/version`.
    pub git_version: String,
    /// Wall time of the objects that exist from the start, in microseconds since 1970.
    pub wall_micros: i64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 0,
            first_revision: 100,
            namespaces: Vec::new(),
            widgets: Widgets::Absent,
            streaming_list: StreamingList::On,
            compaction_interval: Some(COMPACTION_INTERVAL),
            git_version: "v1.37.0".to_owned(),
            wall_micros: 1_767_225_600_000_000,
        }
    }
}

/// Whether a type answers requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Served,
    Withdrawn,
}

/// One type with its watch window. Withdrawn types keep their place: ids are never reused.
#[derive(Debug, Clone)]
struct Shelf {
    resource: Arc<Resource>,
    presence: Presence,
    window: Window,
}

/// A model of one API server with its etcd.
///
/// All times are durations since an origin that the caller chooses and must not go back.
#[derive(Debug, Clone)]
pub struct ApiServer {
    options: Options,
    shelves: Vec<Shelf>,
    watches: BTreeMap<WatchId, Watch>,
    watches_started: u64,
    next_compaction: Option<Duration>,
    compact_to: u64,
    now: Duration,
    pub(crate) history: History,
    pub(crate) prng: Prng,
    pub(crate) wall_micros: i64,
}

/// Name under which convenience writes appear in managedFields.
const MANAGER: &str = "model";

impl ApiServer {
    /// Makes a server with its namespaces and, if asked, the sample type.
    pub fn new(options: Options) -> ApiServer {
        let mut server = ApiServer {
            shelves: Vec::new(),
            watches: BTreeMap::new(),
            watches_started: 0,
            next_compaction: options.compaction_interval,
            compact_to: options.first_revision,
            now: Duration::ZERO,
            history: History::new(options.first_revision),
            prng: Prng::new(options.seed),
            wall_micros: options.wall_micros,
            options,
        };
        for resource in Resource::built_in() {
            server.serve(resource);
        }
        let mut namespaces = vec!["default".to_owned(), "kube-system".to_owned()];
        namespaces.extend(server.options.namespaces.iter().cloned());
        let wall = server.wall_micros;
        for name in namespaces {
            let namespace = json!({"metadata": {"name": name}});
            // Two equal names in the options ask for one namespace.
            let _already_there = server.create(Duration::ZERO, wall, "namespaces", "", namespace);
        }
        if server.options.widgets == Widgets::Installed {
            let created = server.create(Duration::ZERO, wall, "customresourcedefinitions", "", widget_definition());
            debug_assert!(created.is_ok(), "the sample definition is valid");
        }
        server
    }

    /// Answers a request. `wall_micros` is what the server's wall clock shows, in microseconds since 1970.
    pub fn handle(&mut self, now: Duration, wall_micros: i64, request: &Request) -> Response {
        self.advance(now, wall_micros);
        match self.answer(request) {
            Ok(response) => response,
            Err(failure) => Response::Complete {
                status: failure.code,
                content_type: JSON,
                body: failure.body(),
                retry_after: failure.retry_after,
            },
        }
    }

    /// Yields the lines of a watch that are due. A watch that is closed or unknown is closed.
    pub fn poll_watch(&mut self, id: WatchId, now: Duration) -> WatchOutput {
        self.advance(now, self.wall_micros);
        let Some(watch) = self.watches.get_mut(&id) else {
            return WatchOutput { lines: Vec::new(), closed: true };
        };
        let shelf = &self.shelves[watch.resource().0];
        let output = watch.poll(&shelf.resource, &shelf.window, self.history.revision(), now);
        if output.closed {
            self.watches.remove(&id);
        }
        output
    }

    /// Returns when a poll can yield something, if no write comes before: `now` when lines are
    /// waiting or the watch is over.
    pub fn next_wake(&self, id: WatchId, now: Duration) -> Duration {
        match self.watches.get(&id) {
            Some(watch) => watch.next_wake(&self.shelves[watch.resource().0].window, now),
            None => now,
        }
    }

    /// Forgets a watch whose client is gone.
    pub fn drop_watch(&mut self, id: WatchId) {
        self.watches.remove(&id);
    }

    /// Returns how many watches run.
    pub fn watches_len(&self) -> usize {
        self.watches.len()
    }

    /// Restarts the API server on the same etcd: watches end, watch windows are empty.
    pub fn restart(&mut self, now: Duration) {
        self.advance(now, self.wall_micros);
        self.watches.clear();
        for shelf in &mut self.shelves {
            shelf.window = Window::new(self.history.revision());
        }
    }

    /// Compacts etcd: exact reads and page tokens of older revisions end. Watch windows stay, as in
    /// the real server.
    pub fn compact(&mut self, revision: u64) {
        self.history.compact(revision);
    }

    /// Restores etcd from a backup taken at a revision, and restarts.
    ///
    /// # Errors
    /// When that revision is compacted; nothing changes then.
    pub fn rewind_to(&mut self, now: Duration, revision: u64) -> Result<(), Compacted> {
        self.advance(now, self.wall_micros);
        self.history.rewind(revision)?;
        self.compact_to = self.compact_to.min(revision);
        let definitions = self.states("customresourcedefinitions");
        let declared: Vec<String> = definitions.iter().map(|state| state.name.clone()).collect();
        for shelf in self.shelves.iter_mut().filter(|shelf| shelf.resource.origin == Origin::Custom) {
            let exists = declared.contains(&shelf.resource.qualified());
            shelf.presence = if exists { Presence::Served } else { Presence::Withdrawn };
        }
        self.restart(now);
        Ok(())
    }

    /// Returns the newest revision.
    pub fn revision(&self) -> u64 {
        self.history.revision()
    }

    /// Returns the revision up to which etcd is compacted.
    pub fn compacted(&self) -> u64 {
        self.history.compacted()
    }

    /// Returns the newest states of a type by its plural name, in key order; empty for unknown types.
    pub fn states(&self, plural: &str) -> Vec<Arc<State>> {
        let Some(id) = self.find(plural) else { return Vec::new() };
        let range = self.history.range(id, self.history.revision(), "", "");
        range.into_iter().flatten().map(|(_, state)| state.clone()).collect()
    }

    /// Returns the newest state of one object.
    pub fn state(&self, plural: &str, namespace: &str, name: &str) -> Option<&Arc<State>> {
        let id = self.find(plural)?;
        self.history.current(id, &self.shelves[id.0].resource.key(namespace, name))
    }

    /// Creates an object, status included, as tests and generated life do.
    ///
    /// # Errors
    /// As a POST.
    pub fn create(
        &mut self,
        now: Duration,
        wall_micros: i64,
        plural: &str,
        namespace: &str,
        object: Value,
    ) -> Result<Arc<State>, Failure> {
        self.advance(now, wall_micros);
        let id = self.find(plural).ok_or_else(Failure::unknown_path)?;
        self.create_object(Place { id, namespace, name: "" }, into_map(object), Part::Whole, MANAGER)
    }

    /// Merges a patch into an object, status included.
    ///
    /// # Errors
    /// As a PATCH.
    pub fn update(
        &mut self,
        now: Duration,
        wall_micros: i64,
        plural: &str,
        (namespace, name): (&str, &str),
        patch: Value,
    ) -> Result<Arc<State>, Failure> {
        self.advance(now, wall_micros);
        let id = self.find(plural).ok_or_else(Failure::unknown_path)?;
        self.patch_object(Place { id, namespace, name }, patch, Part::Whole, MANAGER)
    }

    /// Deletes an object without grace.
    ///
    /// # Errors
    /// As a DELETE.
    pub fn delete(
        &mut self,
        now: Duration,
        wall_micros: i64,
        plural: &str,
        (namespace, name): (&str, &str),
    ) -> Result<Deletion, Failure> {
        self.advance(now, wall_micros);
        let id = self.find(plural).ok_or_else(Failure::unknown_path)?;
        let options = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
        self.delete_object(Place { id, namespace, name }, &options)
    }

    /// Takes note of the time and compacts when that is due. It runs before every write, so the
    /// revision at a missed tick is the one found here.
    fn advance(&mut self, now: Duration, wall_micros: i64) {
        self.now = self.now.max(now);
        self.wall_micros = wall_micros;
        let (Some(mut next), Some(interval)) = (self.next_compaction, self.options.compaction_interval) else { return };
        while next <= self.now && !interval.is_zero() {
            self.history.compact(self.compact_to);
            self.compact_to = self.history.revision();
            next += interval;
        }
        self.next_compaction = Some(next);
    }

    fn newest_shown(&self, staleness: u64) -> u64 {
        self.history.revision().saturating_sub(staleness).max(self.history.compacted())
    }

    fn served(&self) -> impl Iterator<Item = &Resource> {
        let served = self.shelves.iter().filter(|shelf| shelf.presence == Presence::Served);
        served.map(|shelf| shelf.resource.as_ref())
    }

    fn lookup(&self, group: &str, version: &str, plural: &str) -> Option<ResourceId> {
        let fits =
            |resource: &Resource| resource.group == group && resource.version == version && resource.plural == plural;
        let found = self.shelves.iter().position(|shelf| shelf.presence == Presence::Served && fits(&shelf.resource));
        found.map(ResourceId)
    }

    fn find(&self, plural: &str) -> Option<ResourceId> {
        let served = |shelf: &Shelf| shelf.presence == Presence::Served && shelf.resource.plural == plural;
        self.shelves.iter().position(served).map(ResourceId)
    }

    /// Returns a type by its id.
    pub(crate) fn resource(&self, id: ResourceId) -> Arc<Resource> {
        self.shelves[id.0].resource.clone()
    }

    /// Begins to serve a type, or serves it again.
    pub(crate) fn serve(&mut self, resource: Resource) {
        let known = self.shelves.iter_mut().find(|shelf| shelf.resource.qualified() == resource.qualified());
        let window = Window::new(self.history.revision());
        let shelf = Shelf { resource: Arc::new(resource), presence: Presence::Served, window };
        match known {
            Some(place) => *place = shelf,
            None => {
                let id = self.history.add_table();
                debug_assert_eq!(id.0, self.shelves.len(), "tables and shelves are added together");
                self.shelves.push(shelf);
            }
        }
    }

    /// Ends a type and its watches.
    pub(crate) fn withdraw(&mut self, id: ResourceId) {
        self.shelves[id.0].presence = Presence::Withdrawn;
        self.watches.retain(|_, watch| watch.resource() != id);
    }

    /// Returns the type that a definition declares, by the definition's name.
    pub(crate) fn declared_by(&self, definition: &str) -> Option<ResourceId> {
        let declared =
            |shelf: &Shelf| shelf.resource.origin == Origin::Custom && shelf.resource.qualified() == definition;
        self.shelves.iter().position(declared).map(ResourceId)
    }

    /// Returns the types whose objects live in namespaces.
    pub(crate) fn namespaced_tables(&self) -> Vec<ResourceId> {
        let namespaced = |shelf: &Shelf| shelf.resource.scope == Scope::Namespaced;
        (0..self.shelves.len()).filter(|index| namespaced(&self.shelves[*index])).map(ResourceId).collect()
    }

    /// Tells whether a namespace exists.
    pub(crate) fn namespace_exists(&self, name: &str) -> bool {
        self.find("namespaces").is_some_and(|id| self.history.current(id, name).is_some())
    }

    /// 404 for a namespace.
    pub(crate) fn namespace_missing(&self, name: &str) -> Failure {
        match self.find("namespaces") {
            Some(id) => Failure::not_found(&self.shelves[id.0].resource, name),
            None => Failure::unknown_path(),
        }
    }

    /// Writes the next revision and shows it to watches.
    pub(crate) fn commit(&mut self, id: ResourceId, key: &str, object: Map<String, Value>) -> Arc<State> {
        let revision = self.history.revision() + 1;
        let state = Arc::new(State::encode(&self.shelves[id.0].resource, object, revision));
        self.record(id, key, Some(state.clone()));
        state
    }

    /// Deletes a key, which is a revision too.
    pub(crate) fn commit_removal(&mut self, id: ResourceId, key: &str) {
        self.record(id, key, None);
    }

    fn record(&mut self, id: ResourceId, key: &str, after: Option<Arc<State>>) {
        let before = self.history.current(id, key).cloned();
        let revision = self.history.commit(id, key, after.clone());
        self.shelves[id.0].window.push(Arc::new(Change { revision, at: self.now, before, after }));
    }
}

fn into_map(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
