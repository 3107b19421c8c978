//! The API server as one value: requests in, answers out, watches to poll.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::discovery::{self, Root};
use crate::history::{Compacted, History};
use crate::list::{self, Source};
use crate::object::{Form, State};
use crate::prng::Prng;
use crate::request::{JSON, Method, Query, Request, ResourcePath, Response, Target, Wanted, negotiate};
use crate::resource::{Origin, Resource, ResourceId, Scope, widget_definition};
use crate::selector::Selector;
use crate::status::{self, Failure};
use crate::watch::{View, Watch, WatchId, WatchOutput};
use crate::window::{Change, Window};
use crate::write::{self, DeleteOptions, Deletion, Part, Place};

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

    fn answer(&mut self, request: &Request) -> Result<Response, Failure> {
        let wanted = negotiate(&request.accept);
        let served: Vec<&Resource> = self.served().collect();
        let root = match Target::parse(&request.path) {
            Target::Resource(path) => return self.answer_resource(request, &path, wanted),
            Target::Version => return Ok(Response::json(200, discovery::version(&self.options.git_version))),
            Target::Health => return Ok(Response::text(200, "ok")),
            Target::Unknown => None,
            Target::CoreVersions if wanted == Wanted::AggregatedDiscovery => {
                let body = discovery::aggregated(&served, Root::Core);
                return Ok(Response::Complete {
                    status: 200,
                    content_type: discovery::AGGREGATED,
                    body,
                    retry_after: None,
                });
            }
            Target::Groups if wanted == Wanted::AggregatedDiscovery => {
                let body = discovery::aggregated(&served, Root::Named);
                return Ok(Response::Complete {
                    status: 200,
                    content_type: discovery::AGGREGATED,
                    body,
                    retry_after: None,
                });
            }
            Target::CoreVersions => Some(discovery::core_versions()),
            Target::Groups => Some(discovery::groups(&served)),
            Target::Group(group) => discovery::group(&served, &group),
            Target::GroupVersion(group, version) => discovery::group_version(&served, &group, &version),
        };
        Ok(root.map_or_else(|| Response::text(404, "404 page not found\n"), |body| Response::json(200, body)))
    }

    fn answer_resource(&mut self, request: &Request, path: &ResourcePath, wanted: Wanted) -> Result<Response, Failure> {
        let group_exists =
            self.served().any(|resource| resource.group == path.group && resource.version == path.version);
        if !group_exists {
            return Ok(Response::text(404, "404 page not found\n"));
        }
        let id = self.lookup(&path.group, &path.version, &path.plural).ok_or_else(Failure::unknown_path)?;
        let resource = self.resource(id);
        let part = match path.subresource.as_deref() {
            None => Part::Main,
            Some("status") if resource.has_status => Part::Status,
            Some(_) => return Err(Failure::unknown_path()),
        };
        let form = match wanted {
            Wanted::Objects(form) => form,
            Wanted::AggregatedDiscovery | Wanted::Unacceptable => {
                let message = "only the following media types are accepted: application/json";
                return Err(Failure { details: Some(json!({})), ..Failure::new(406, "NotAcceptable", message) });
            }
        };
        if resource.scope == Scope::Cluster && path.namespace.is_some() {
            return Err(Failure::unknown_path());
        }
        let namespace = path.namespace.as_deref();
        let misplaced = resource.scope == Scope::Namespaced && namespace.is_none();
        let query = Query::parse(&request.query);
        let manager = match query.get("fieldManager") {
            "" => MANAGER,
            manager => manager,
        };
        let place =
            Place { id, namespace: namespace.unwrap_or_default(), name: path.name.as_deref().unwrap_or_default() };
        match (request.method, &path.name) {
            (Method::Get, None) if query.flag("watch") == Some(true) => {
                let view = self.view(&resource, id, namespace, &query, form)?;
                self.start_watch(view, &query).map(Response::Watch)
            }
            (Method::Get, None) => {
                let newest = self.newest_shown(request.staleness);
                let source = Source { history: &self.history, resource: &resource, id, newest };
                list::list(source, namespace, &query, form).map(|body| Response::json(200, body))
            }
            (_, Some(_)) if misplaced => Err(Failure::unknown_path()),
            (Method::Get, Some(name)) => self.read(place, &resource, name, form, request.staleness),
            (Method::Post, None) if !misplaced => {
                let object = write::parse_object(&resource, &request.body)?;
                let state = self.create_object(place, object, part, manager)?;
                Ok(Response::json(201, state.render(form)))
            }
            (Method::Put, Some(_)) => {
                let object = write::parse_object(&resource, &request.body)?;
                let (state, created) = self.replace_object(place, object, part, manager)?;
                Ok(Response::json(if created { 201 } else { 200 }, state.render(form)))
            }
            (Method::Patch, Some(_)) => {
                if !matches!(request.content_type.as_str(), "" | "application/merge-patch+json") {
                    let message = "415: Unsupported Media Type";
                    let failure = Failure::new(415, "UnsupportedMediaType", message);
                    return Err(Failure { details: Some(json!({})), ..failure });
                }
                let patch = serde_json::from_slice(&request.body)
                    .map_err(|_| Failure::bad_request("error decoding patch: it is no JSON"))?;
                let state = self.patch_object(place, patch, part, manager)?;
                Ok(Response::json(200, state.render(form)))
            }
            (Method::Delete, Some(name)) => {
                let mut options = DeleteOptions::parse(&request.body);
                if let Ok(Some(seconds)) = query.number("gracePeriodSeconds") {
                    options.grace_seconds = Some(seconds);
                }
                Ok(match self.delete_object(place, &options)? {
                    // Pods answer with themselves; other types with a Status.
                    Deletion::Done(state) if resource.plural == "pods" => Response::json(200, state.render(form)),
                    Deletion::Done(state) => Response::json(200, status::deleted(&resource, name, &state.uid)),
                    Deletion::Pending(state) => Response::json(200, state.render(form)),
                })
            }
            (Method::Delete, None) if !misplaced && resource.plural != "namespaces" => {
                self.delete_collection(place, &resource, &query, form)
            }
            _ => Err(Failure::method_not_allowed()),
        }
    }

    fn read(
        &self,
        place: Place<'_>,
        resource: &Resource,
        name: &str,
        form: Form,
        staleness: u64,
    ) -> Result<Response, Failure> {
        let key = resource.key(place.namespace, name);
        let newest = self.newest_shown(staleness);
        let mut range =
            self.history.range(place.id, newest, &key, &key).map_err(|Compacted| Failure::expired_list())?;
        let state = range.next().filter(|(found, _)| *found == key).map(|(_, state)| state);
        let state = state.ok_or_else(|| Failure::not_found(resource, name))?;
        Ok(Response::json(200, state.render(form)))
    }

    fn delete_collection(
        &mut self,
        place: Place<'_>,
        resource: &Resource,
        query: &Query,
        form: Form,
    ) -> Result<Response, Failure> {
        let view = self.view(resource, place.id, Some(place.namespace), query, form)?;
        let prefix = resource.key(place.namespace, "");
        let range = self.history.range(place.id, self.history.revision(), &prefix, "");
        let chosen: Vec<Arc<State>> = range
            .into_iter()
            .flatten()
            .filter(|(_, state)| view.shows(state))
            .map(|(_, state)| state.clone())
            .collect();
        let mut items = Vec::new();
        for state in chosen {
            if !items.is_empty() {
                items.push(b',');
            }
            self.delete_object(Place { name: &state.name, ..place }, &DeleteOptions::default())?;
            state.write_item(form, &mut items);
        }
        Ok(Response::json(200, list::envelope(resource, form, self.revision(), None, None, &items)))
    }

    fn view(
        &self,
        resource: &Resource,
        id: ResourceId,
        namespace: Option<&str>,
        query: &Query,
        form: Form,
    ) -> Result<View, Failure> {
        let selector = Selector::parse(resource, query.get("labelSelector"), query.get("fieldSelector"))?;
        Ok(View { resource: id, namespace: namespace.map(str::to_owned), selector, form })
    }

    fn start_watch(&mut self, view: View, query: &Query) -> Result<WatchId, Failure> {
        let streaming = self.streaming_list(query)?;
        let version = list::parse_version(query.get("resourceVersion")).map_err(|why| Failure::new(500, "", why))?;
        let lifetime = query.timeout().unwrap_or_else(|| {
            let minimum = WATCH_TIMEOUT_MIN.as_millis() as u64;
            Duration::from_millis(minimum + self.prng.below(minimum))
        });
        let deadline = self.now + lifetime;
        let window = &self.shelves[view.resource.0].window;
        let current = self.history.revision();
        let bookmarks = query.flag("allowWatchBookmarks") == Some(true);
        let mut watch = match version.filter(|version| *version > 0) {
            Some(version) if streaming && version > current => {
                Watch::failed(view, Failure::too_large_version(version, current))
            }
            Some(version) if !streaming => match window.position_after(version) {
                Ok(next) => Watch::new(view, version, next, deadline),
                Err(oldest) => Watch::failed(view, Failure::expired_watch(version, oldest.saturating_sub(1))),
            },
            _ => {
                let states = self.history.range(view.resource, current, "", "").into_iter().flatten();
                let states = states.map(|(_, state)| state.clone());
                let watch = Watch::new(view.clone(), current, window.end(), deadline).with_initial(states);
                if streaming && bookmarks { watch.with_initial_end(current) } else { watch }
            }
        };
        if bookmarks {
            watch = watch.with_bookmarks(self.now);
        }
        self.watches_started += 1;
        let id = WatchId(self.watches_started);
        self.watches.insert(id, watch);
        Ok(id)
    }

    /// Tells whether a watch asks for a streaming list, and gets one.
    fn streaming_list(&self, query: &Query) -> Result<bool, Failure> {
        let forbidden = |field: &str, why: &str| {
            Err(Failure::invalid_options(field, "FieldValueForbidden", &format!("Forbidden: {why}")))
        };
        let matching = query.get("resourceVersionMatch");
        let flag = match self.options.streaming_list {
            StreamingList::Unknown => return Ok(false),
            StreamingList::On | StreamingList::Refused => query.flag("sendInitialEvents"),
        };
        match (flag, matching) {
            (None, "") => Ok(false),
            (None, _) => {
                let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                forbidden("resourceVersionMatch", why)
            }
            (Some(_), _) if self.options.streaming_list == StreamingList::Refused => {
                let why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                forbidden("sendInitialEvents", why)
            }
            (Some(flag), "NotOlderThan") => Ok(flag),
            (Some(_), _) => {
                let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                forbidden("resourceVersionMatch", why)
            }
        }
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
