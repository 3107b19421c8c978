//! Requests and answers as plain values, and what their paths and queries mean.

use std::time::Duration;

use bytes::Bytes;

use crate::object::Form;
use crate::watch::WatchId;

/// The verbs that the model knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Read, list or watch.
    Get,
    /// Create.
    Post,
    /// Replace.
    Put,
    /// Merge patch.
    Patch,
    /// Delete one object or a collection.
    Delete,
    /// Anything else.
    Other,
}

impl Method {
    /// Reads a verb of HTTP.
    pub fn parse(text: &str) -> Method {
        match text {
            "GET" => Method::Get,
            "POST" => Method::Post,
            "PUT" => Method::Put,
            "PATCH" => Method::Patch,
            "DELETE" => Method::Delete,
            _ => Method::Other,
        }
    }
}

/// One request, without transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The verb.
    pub method: Method,
    /// The path, as sent.
    pub path: String,
    /// The query, as sent, without the question mark.
    pub query: String,
    /// The Accept header; empty means JSON.
    pub accept: String,
    /// The Content-Type header; only PATCH looks at it, and only when it is not empty.
    pub content_type: String,
    /// The body.
    pub body: Bytes,
    /// Answers reads as of this many revisions ago, as a lagging replica would. 0 is a healthy server.
    pub staleness: u64,
}

impl Request {
    /// Makes a request without body; `target` is a path with an optional query.
    pub fn new(method: Method, target: &str) -> Request {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Request {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            accept: String::new(),
            content_type: String::new(),
            body: Bytes::new(),
            staleness: 0,
        }
    }

    /// Makes a GET.
    pub fn get(target: &str) -> Request {
        Request::new(Method::Get, target)
    }

    /// Adds a body.
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Request {
        self.body = body.into();
        self
    }

    /// Adds an Accept header.
    pub fn with_accept(mut self, accept: &str) -> Request {
        self.accept = accept.to_owned();
        self
    }
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// An answer that is complete.
    Complete {
        /// HTTP status.
        status: u16,
        /// Content-Type header.
        content_type: &'static str,
        /// The body.
        body: Bytes,
        /// Seconds of a Retry-After header.
        retry_after: Option<u32>,
    },
    /// HTTP 200 and a body of lines that does not end yet: poll the watch.
    Watch(WatchId),
}

/// Content type of everything but texts and aggregated discovery.
pub const JSON: &str = "application/json";
/// Content type of the answers that are not objects.
pub const TEXT: &str = "text/plain; charset=utf-8";

impl Response {
    /// Makes a JSON answer.
    pub fn json(status: u16, body: Bytes) -> Response {
        Response::Complete { status, content_type: JSON, body, retry_after: None }
    }

    /// Makes a text answer.
    pub fn text(status: u16, body: &'static str) -> Response {
        Response::Complete { status, content_type: TEXT, body: Bytes::from_static(body.as_bytes()), retry_after: None }
    }
}

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `/version`.
    Version,
    /// `/healthz`, `/livez`, `/readyz`.
    Health,
    /// `/api`.
    CoreVersions,
    /// `/apis`.
    Groups,
    /// `/apis/GROUP`.
    Group(String),
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    GroupVersion(String, String),
    /// A collection, an object or one of its subresources.
    Resource(ResourcePath),
    /// Nothing that any server has.
    Unknown,
}

/// The parts of a path below group and version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourcePath {
    /// Group; empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Namespace, where the path has one.
    pub namespace: Option<String>,
    /// Plural name of the type.
    pub plural: String,
    /// Name of an object.
    pub name: Option<String>,
    /// Subresource, such as `status`.
    pub subresource: Option<String>,
}

impl Target {
    /// Takes a path apart.
    pub fn parse(path: &str) -> Target {
        let parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["version"] => Target::Version,
            ["healthz" | "livez" | "readyz", ..] => Target::Health,
            ["api"] => Target::CoreVersions,
            ["apis"] => Target::Groups,
            ["apis", group] => Target::Group((*group).to_owned()),
            ["api", version] => Target::GroupVersion(String::new(), (*version).to_owned()),
            ["apis", group, version] => Target::GroupVersion((*group).to_owned(), (*version).to_owned()),
            ["api", version, rest @ ..] => resource_path("", version, rest),
            ["apis", group, version, rest @ ..] => resource_path(group, version, rest),
            _ => Target::Unknown,
        }
    }
}

fn resource_path(group: &str, version: &str, rest: &[&str]) -> Target {
    // `namespaces/NAME/status` is a subresource of the namespace; other third parts are types inside it.
    let (namespace, rest) = match rest {
        ["namespaces", _, "status" | "finalize"] => (None, rest),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
        _ => (None, rest),
    };
    let [plural, names @ ..] = rest else { return Target::Unknown };
    if names.len() > 2 {
        return Target::Unknown;
    }
    let at = |index: usize| names.get(index).map(|text| (*text).to_owned());
    Target::Resource(ResourcePath {
        group: group.to_owned(),
        version: version.to_owned(),
        namespace,
        plural: (*plural).to_owned(),
        name: at(0),
        subresource: at(1),
    })
}

/// Decoded query parameters; of several with one name the first counts.
#[derive(Debug, Clone, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Parses a query string.
    pub fn parse(text: &str) -> Query {
        let pair = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decode(&name.replace('+', " ")), decode(&value.replace('+', " ")))
        };
        Query { pairs: text.split('&').filter(|part| !part.is_empty()).map(pair).collect() }
    }

    /// Returns a parameter; empty when it is absent.
    pub fn get(&self, name: &str) -> &str {
        self.pairs.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Reads a flag; nothing when it is absent.
    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.get(name) {
            "" => None,
            text => Some(matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")),
        }
    }

    /// Reads a whole number.
    ///
    /// # Errors
    /// With the text that is none.
    pub fn number(&self, name: &str) -> Result<Option<i64>, String> {
        match self.get(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| text.to_owned()),
        }
    }

    /// Returns the time after which the client wants its watch to end.
    pub fn timeout(&self) -> Option<Duration> {
        let seconds = self.number("timeoutSeconds").ok().flatten()?;
        u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }
}

/// Resolves percent escapes; bytes that make no UTF-8 become replacement characters.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let escaped = (bytes[index] == b'%').then(|| text.get(index + 1..index + 3)).flatten();
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                index += 3;
            }
            None => {
                out.push(bytes[index]);
                index += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// What an Accept header asks of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Objects in a form.
    Objects(Form),
    /// Aggregated discovery.
    AggregatedDiscovery,
    /// Nothing that the model can write.
    Unacceptable,
}

/// Chooses the first media type of an Accept header that the model can write.
pub fn negotiate(accept: &str) -> Wanted {
    if accept.trim().is_empty() {
        return Wanted::Objects(Form::Full);
    }
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let mut transform = None;
        for part in parts {
            if let Some(kind) = part.strip_prefix("as=") {
                transform = Some(kind);
            }
        }
        match (media, transform) {
            ("application/json" | "*/*" | "application/*", None) => return Wanted::Objects(Form::Full),
            ("application/json", Some("PartialObjectMetadata" | "PartialObjectMetadataList")) => {
                return Wanted::Objects(Form::Metadata);
            }
            ("application/json", Some("APIGroupDiscoveryList"))
                if range.contains("v=v2") && !range.contains("v2beta1") =>
            {
                return Wanted::AggregatedDiscovery;
            }
            _ => {}
        }
    }
    Wanted::Unacceptable
}

#[cfg(test)]
mod tests {
    use super::{Query, ResourcePath, Target, Wanted, negotiate};
    use crate::object::Form;

    fn path(text: &str) -> ResourcePath {
        match Target::parse(text) {
            Target::Resource(path) => path,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn paths_name_collections_objects_and_subresources() {
        let object = path("/apis/apps/v1/namespaces/n/deployments/d/status");
        assert_eq!((object.group.as_str(), object.namespace.as_deref()), ("apps", Some("n")));
        assert_eq!((object.name.as_deref(), object.subresource.as_deref()), (Some("d"), Some("status")));
        assert_eq!(path("/api/v1/pods").namespace, None);
    }

    #[test]
    fn a_namespace_is_an_object_and_a_place() {
        assert_eq!(
            (path("/api/v1/namespaces/n").plural.as_str(), path("/api/v1/namespaces/n").namespace),
            ("namespaces", None)
        );
        assert_eq!(path("/api/v1/namespaces/n/status").subresource.as_deref(), Some("status"));
        assert_eq!(path("/api/v1/namespaces/n/pods").namespace.as_deref(), Some("n"));
    }

    #[test]
    fn queries_are_decoded() {
        let query = Query::parse("labelSelector=a%3Db%2Cc&watch=1&x=1+2&bad=%zz");
        assert_eq!((query.get("labelSelector"), query.flag("watch"), query.flag("gone")), ("a=b,c", Some(true), None));
        assert_eq!((query.get("x"), query.get("bad")), ("1 2", "%zz"));
        assert_eq!(Query::parse("limit=x").number("limit"), Err("x".to_owned()));
    }

    #[test]
    fn the_first_media_type_that_can_be_written_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(negotiate(table), Wanted::Objects(Form::Full));
        let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
        assert_eq!(negotiate(partial), Wanted::Objects(Form::Metadata));
        let discovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        assert_eq!(negotiate(discovery), Wanted::AggregatedDiscovery);
        assert_eq!(negotiate("application/vnd.kubernetes.protobuf"), Wanted::Unacceptable);
    }
}
