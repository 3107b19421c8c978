//! One state of one object: its JSON text, and the few fields that lists and watches look at.
//!
//! The text is made once, when the state is written. Lists cut the leading `kind` and `apiVersion`
//! off, deletions put another resourceVersion in: both work on byte positions kept beside the text,
//! so that no event parses JSON again.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::resource::{Origin, Resource};

/// How an object is rendered, by the Accept header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The whole object.
    Full,
    /// `PartialObjectMetadata`: kind, apiVersion and metadata.
    Metadata,
}

/// An immutable state of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Revision of the write that made this state.
    pub revision: u64,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Labels, for selectors.
    pub labels: BTreeMap<String, String>,
    /// Values of the fields that selectors of this type may name.
    pub fields: Vec<(&'static str, String)>,
    /// JSON text with kind and apiVersion.
    text: Bytes,
    /// Where the item of a list begins in `text`, behind kind and apiVersion; 0: the text is the item.
    item_from: usize,
    /// Where `metadata` stands in `text`.
    metadata: Range<usize>,
    /// Where the digits of the resourceVersion stand in `text`.
    version: Range<usize>,
}

/// Order of metadata keys in the text of built-in types.
const METADATA_ORDER: [&str; 14] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

impl State {
    /// Renders an object whose metadata is complete but for the resourceVersion.
    pub fn encode(resource: &Resource, mut object: Map<String, Value>, revision: u64) -> State {
        object.insert("kind".to_owned(), Value::from(resource.kind.as_str()));
        object.insert("apiVersion".to_owned(), Value::from(resource.api_version()));
        let mut metadata = match object.remove("metadata") {
            Some(Value::Object(map)) => map,
            _ => Map::new(),
        };
        metadata.insert("resourceVersion".to_owned(), Value::from(revision.to_string()));
        let text_of = |key: &str| metadata.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (namespace, name, uid) = (text_of("namespace"), text_of("name"), text_of("uid"));
        let labels = metadata.get("labels").and_then(Value::as_object).map(text_map).unwrap_or_default();
        let fields = selectable(resource, &object, &namespace, &name);

        let mut writer = Writer::default();
        let mut item_from = 0;
        writer.text.push(b'{');
        match resource.origin {
            Origin::BuiltIn => {
                for key in ["kind", "apiVersion"] {
                    if let Some(value) = object.remove(key) {
                        writer.member(key, &value);
                    }
                }
                writer.text.push(b',');
                item_from = writer.text.len();
                writer.fresh = true;
                writer.metadata(&mut metadata, &METADATA_ORDER);
                for (key, value) in &object {
                    writer.member(key, value);
                }
            }
            Origin::Custom => {
                // Custom resources are plain maps in the server, so their keys come out sorted.
                let (before, after): (Vec<_>, Vec<_>) = object.iter().partition(|(key, _)| key.as_str() < "metadata");
                for (key, value) in before {
                    writer.member(key, value);
                }
                writer.metadata(&mut metadata, &[]);
                for (key, value) in after {
                    writer.member(key, value);
                }
            }
        }
        writer.text.push(b'}');
        let Writer { text, metadata, version, .. } = writer;
        State { revision, namespace, name, uid, labels, fields, text: Bytes::from(text), item_from, metadata, version }
    }

    /// Returns the whole object as JSON text.
    pub fn text(&self) -> Bytes {
        self.text.clone()
    }

    /// Parses the text back into a value, for writes that are based on it.
    pub fn value(&self) -> Map<String, Value> {
        match serde_json::from_slice(&self.text) {
            Ok(Value::Object(map)) => map,
            _ => Map::new(),
        }
    }

    /// Appends the object as an item of a list: without kind and apiVersion for built-in types.
    pub fn write_item(&self, form: Form, out: &mut Vec<u8>) {
        match form {
            Form::Metadata => self.write(form, self.revision, out),
            Form::Full if self.item_from == 0 => out.extend_from_slice(&self.text),
            Form::Full => {
                out.push(b'{');
                out.extend_from_slice(&self.text[self.item_from..]);
            }
        }
    }

    /// Appends the object with the resourceVersion given, as a watch event shows it.
    pub fn write(&self, form: Form, revision: u64, out: &mut Vec<u8>) {
        let range = match form {
            Form::Full => 0..self.text.len(),
            Form::Metadata => {
                out.extend_from_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#);
                self.metadata.clone()
            }
        };
        out.extend_from_slice(&self.text[range.start..self.version.start]);
        out.extend_from_slice(revision.to_string().as_bytes());
        out.extend_from_slice(&self.text[self.version.end..range.end]);
        if form == Form::Metadata {
            out.push(b'}');
        }
    }

    /// Returns the object in a form, as the answer to a GET.
    pub fn render(&self, form: Form) -> Bytes {
        match form {
            Form::Full => self.text(),
            Form::Metadata => {
                let mut out = Vec::with_capacity(self.metadata.len() + 80);
                self.write(form, self.revision, &mut out);
                Bytes::from(out)
            }
        }
    }
}

/// Writes JSON members and remembers where metadata and resourceVersion went.
struct Writer {
    text: Vec<u8>,
    fresh: bool,
    metadata: Range<usize>,
    version: Range<usize>,
}

impl Default for Writer {
    fn default() -> Self {
        Writer { text: Vec::with_capacity(1024), fresh: true, metadata: 0..0, version: 0..0 }
    }
}

impl Writer {
    fn key(&mut self, key: &str) {
        if !self.fresh {
            self.text.push(b',');
        }
        self.fresh = false;
        self.text.extend_from_slice(Value::from(key).to_string().as_bytes());
        self.text.push(b':');
    }

    fn member(&mut self, key: &str, value: &Value) {
        self.key(key);
        self.text.extend_from_slice(value.to_string().as_bytes());
    }

    fn metadata(&mut self, metadata: &mut Map<String, Value>, order: &[&str]) {
        self.key("metadata");
        let from = self.text.len();
        self.text.push(b'{');
        self.fresh = true;
        for key in order {
            if let Some(value) = metadata.remove(*key) {
                self.metadata_member(key, &value);
            }
        }
        for (key, value) in &*metadata {
            self.metadata_member(key, value);
        }
        self.text.push(b'}');
        self.metadata = from..self.text.len();
        self.fresh = false;
    }

    fn metadata_member(&mut self, key: &str, value: &Value) {
        self.member(key, value);
        if key == "resourceVersion" {
            let end = self.text.len() - 1;
            let digits = value.as_str().map_or(0, str::len);
            self.version = end - digits..end;
        }
    }
}

/// Returns the entries of a JSON map whose values are texts.
pub fn text_map(map: &Map<String, Value>) -> BTreeMap<String, String> {
    map.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn selectable(
    resource: &Resource,
    object: &Map<String, Value>,
    namespace: &str,
    name: &str,
) -> Vec<(&'static str, String)> {
    let read = |path: &'static str| {
        let value = match path {
            "metadata.name" => name.to_owned(),
            "metadata.namespace" => namespace.to_owned(),
            _ => {
                let (top, field) = path.split_once('.').unwrap_or((path, ""));
                match object.get(top).and_then(|part| part.get(field)) {
                    Some(Value::String(text)) => text.clone(),
                    Some(Value::Bool(flag)) => flag.to_string(),
                    _ if path == "spec.hostNetwork" => "false".to_owned(),
                    _ => String::new(),
                }
            }
        };
        (path, value)
    };
    resource.field_paths().iter().copied().map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Form, State};
    use crate::resource::{Resource, widget_definition};

    fn object(value: Value) -> serde_json::Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn config_map() -> State {
        let resource = Resource::built_in().into_iter().find(|resource| resource.plural == "configmaps").unwrap();
        let value = json!({"data": {"k": "\"resourceVersion\":\"1\""}, "metadata": {"uid": "u", "namespace": "n", "name": "a"}});
        State::encode(&resource, object(value), 41)
    }

    #[test]
    fn built_in_items_have_no_kind_and_watch_objects_do() {
        let state = config_map();
        let mut item = Vec::new();
        state.write_item(Form::Full, &mut item);
        let item = String::from_utf8(item).unwrap();
        assert!(
            item.starts_with(r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"41"}"#),
            "{item}"
        );
        assert!(state.text().starts_with(br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":"#));
    }

    #[test]
    fn another_version_is_put_in_and_nothing_else_moves() {
        let mut out = Vec::new();
        config_map().write(Form::Full, 1000, &mut out);
        let value: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["metadata"]["resourceVersion"], "1000");
        assert_eq!(value["data"]["k"], "\"resourceVersion\":\"1\"");
    }

    #[test]
    fn custom_items_keep_kind_and_sorted_keys() {
        let resource = Resource::from_definition(&widget_definition()).unwrap();
        let state = State::encode(&resource, object(json!({"metadata": {"name": "w"}, "spec": {}, "alpha": 1})), 7);
        let mut item = Vec::new();
        state.write_item(Form::Full, &mut item);
        let text = r#"{"alpha":1,"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","resourceVersion":"7"},"spec":{}}"#;
        assert_eq!(String::from_utf8(item).unwrap(), text);
    }

    #[test]
    fn the_metadata_form_has_metadata_alone() {
        let value: Value = serde_json::from_slice(&config_map().render(Form::Metadata)).unwrap();
        assert_eq!(value["kind"], "PartialObjectMetadata");
        assert_eq!(value["metadata"]["name"], "a");
        assert_eq!(value.get("data"), None);
    }
}
