//! From a request to its answer: the table of paths and verbs, and how a watch begins.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::discovery::{self, Root};
use crate::history::Compacted;
use crate::list::{self, Source};
use crate::object::{Form, State};
use crate::request::{Method, Query, Request, ResourcePath, Response, Target, Wanted, negotiate};
use crate::resource::{Resource, ResourceId, Scope};
use crate::selector::Selector;
use crate::server::{ApiServer, MANAGER, StreamingList, WATCH_TIMEOUT_MIN};
use crate::status::{self, Failure};
use crate::watch::{View, Watch, WatchId};
use crate::write::{self, DeleteOptions, Deletion, Part, Place};

impl ApiServer {
    pub(super) fn answer(&mut self, request: &Request) -> Result<Response, Failure> {
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
            watch = watch.with_bookmarks(self.now, window.newest());
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
}
