//! One server with short words for what the tests do to it.

use std::time::Duration;

use serde_json::{Value, json};
use sidewatch_model::request::{Method, Request, Response};
use sidewatch_model::server::{ApiServer, Options, Widgets};
use sidewatch_model::watch::WatchId;

/// Wall time of all tests.
pub(crate) const WALL: i64 = 1_767_225_600_000_000;
/// Path of the ConfigMaps that tests use.
pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A server and its time.
pub(crate) struct World {
    pub(crate) server: ApiServer,
    pub(crate) now: Duration,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(Options { widgets: Widgets::Installed, ..Options::default() })
    }

    pub(crate) fn with(options: Options) -> World {
        World { server: ApiServer::new(options), now: Duration::ZERO }
    }

    pub(crate) fn at(&mut self, seconds: u64) -> &mut World {
        self.now = Duration::from_secs(seconds);
        self
    }

    pub(crate) fn ask(&mut self, request: &Request) -> (u16, Value) {
        match self.server.handle(self.now, WALL, request) {
            Response::Complete { status, body, .. } => (status, serde_json::from_slice(&body).unwrap_or(Value::Null)),
            Response::Watch(id) => panic!("{id:?} in place of an answer"),
        }
    }

    pub(crate) fn get(&mut self, target: &str) -> (u16, Value) {
        self.ask(&Request::get(target))
    }

    pub(crate) fn send(&mut self, method: Method, target: &str, body: Value) -> (u16, Value) {
        self.ask(&Request::new(method, target).with_body(body.to_string()))
    }

    pub(crate) fn watch(&mut self, target: &str) -> WatchId {
        match self.server.handle(self.now, WALL, &Request::get(target)) {
            Response::Watch(id) => id,
            other => panic!("{other:?} in place of a watch"),
        }
    }

    /// Polls once; events as `TYPE name@revision`, and whether the watch is over.
    pub(crate) fn poll(&mut self, id: WatchId) -> (Vec<String>, bool) {
        let output = self.server.poll_watch(id, self.now);
        let shown = |line: &bytes::Bytes| {
            assert!(line.ends_with(b"\n"), "a line has an end");
            let event: Value = serde_json::from_slice(line).unwrap();
            let metadata = &event["object"]["metadata"];
            let kind = event["type"].as_str().unwrap();
            match metadata["name"].as_str() {
                Some(name) => format!("{kind} {name}@{}", metadata["resourceVersion"].as_str().unwrap()),
                None => match metadata["resourceVersion"].as_str() {
                    Some(version) => format!("{kind} @{version}"),
                    None => format!("{kind} {}", event["object"]["code"]),
                },
            }
        };
        (output.lines.iter().map(shown).collect(), output.closed)
    }

    pub(crate) fn create(&mut self, name: &str) -> u64 {
        self.create_with(name, json!({}))
    }

    pub(crate) fn create_with(&mut self, name: &str, labels: Value) -> u64 {
        let object = json!({"metadata": {"name": name, "labels": labels}, "data": {"k": "0"}});
        self.server.create(self.now, WALL, "configmaps", "default", object).unwrap().revision
    }

    pub(crate) fn change(&mut self, name: &str, value: u64) -> u64 {
        let patch = json!({"data": {"k": value.to_string()}});
        self.server.update(self.now, WALL, "configmaps", ("default", name), patch).unwrap().revision
    }

    pub(crate) fn delete(&mut self, name: &str) -> u64 {
        self.server.delete(self.now, WALL, "configmaps", ("default", name)).unwrap();
        self.server.revision()
    }
}

/// Names of the items of a list.
pub(crate) fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}
