//! Writes: create, replace, patch and delete, with the checks that make them safe.
//!
//! Implements the compare-and-swap that elections rest on (`docs/protocol.md` A.10): a write based on
//! an old resourceVersion is refused, a write that changes nothing makes no revision, and a PUT of a
//! missing Lease creates it whatever resourceVersion it names.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::managed_fields;
use crate::object::State;
use crate::resource::{Resource, ResourceId, Scope};
use crate::server::ApiServer;
use crate::status::{self, Failure};
use crate::time::rfc3339_seconds;

/// How long a bound pod may take to end unless the request says otherwise, in seconds.
const POD_GRACE_SECONDS: i64 = 30;

/// Which part of an object a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything but the status, where the type has a status subresource.
    Main,
    /// The status alone: the `/status` path.
    Status,
    /// Both at once. No real request does this; it spares tests the second write.
    Whole,
}

/// Where an object is.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The type.
    pub id: ResourceId,
    /// The namespace; empty for cluster-scoped types.
    pub namespace: &'a str,
    /// The name; empty for a creation that leaves it to the body.
    pub name: &'a str,
}

/// How a deletion ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deletion {
    /// The object is gone; its last state.
    Done(Arc<State>),
    /// The object is marked and waits for finalizers or the kubelet; its new state.
    Pending(Arc<State>),
}

/// Conditions of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    /// Only the object with this uid.
    pub uid: Option<String>,
    /// Only this version.
    pub resource_version: Option<String>,
    /// Seconds that a bound pod gets.
    pub grace_seconds: Option<i64>,
}

impl DeleteOptions {
    /// Reads the body of a DELETE; anything unknown is ignored.
    pub fn parse(body: &[u8]) -> DeleteOptions {
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        DeleteOptions {
            uid: text("/preconditions/uid"),
            resource_version: text("/preconditions/resourceVersion"),
            grace_seconds: value.get("gracePeriodSeconds").and_then(Value::as_i64),
        }
    }
}

/// Parses the body of a write.
///
/// # Errors
/// 400 for anything but an object of the type.
pub fn parse_object(resource: &Resource, body: &[u8]) -> Result<Map<String, Value>, Failure> {
    let Ok(Value::Object(object)) = serde_json::from_slice(body) else {
        let what = format!("the object provided is unrecognized (must be of type {})", resource.kind);
        return Err(Failure::bad_request(format!("{what}: couldn't get version/kind; json parse error")));
    };
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let (kind, api_version) = (text("kind"), text("apiVersion"));
    let fits =
        (kind.is_empty() || kind == resource.kind) && (api_version.is_empty() || api_version == resource.api_version());
    if !fits {
        let message = format!("{kind} in version {api_version:?} cannot be handled as a {}", resource.kind);
        return Err(Failure::bad_request(message));
    }
    Ok(object)
}

/// Applies a JSON merge patch (RFC 7386).
pub fn merge_patch(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(map) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            map.remove(&key);
        } else {
            merge_patch(map.entry(key).or_insert(Value::Null), value);
        }
    }
}

fn metadata_of(object: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let slot = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("it was made an object just above")
}

fn text_in(object: &Map<String, Value>, key: &str) -> String {
    object.get("metadata").and_then(|metadata| metadata.get(key)).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label =
        |part: &str| part.starts_with(plain) && part.ends_with(plain) && part.chars().all(|c| plain(c) || c == '-');
    text.len() <= 253 && text.split('.').all(label)
}

impl ApiServer {
    /// Creates an object.
    ///
    /// # Errors
    /// 400, 404 (namespace), 409 AlreadyExists, 422.
    pub(crate) fn create_object(
        &mut self,
        place: Place<'_>,
        mut object: Map<String, Value>,
        part: Part,
        manager: &str,
    ) -> Result<Arc<State>, Failure> {
        let resource = self.resource(place.id);
        let (namespace, version) = (text_in(&object, "namespace"), text_in(&object, "resourceVersion"));
        if !namespace.is_empty() && namespace != place.namespace {
            let message = "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Failure::bad_request(message));
        }
        if !version.is_empty() && version != "0" {
            return Err(Failure::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        let name = self.name_for(&resource, &object, place.name)?;
        if resource.scope == Scope::Namespaced && !self.namespace_exists(place.namespace) {
            return Err(self.namespace_missing(place.namespace));
        }
        let key = resource.key(place.namespace, &name);
        if self.history.current(place.id, &key).is_some() {
            return Err(Failure::already_exists(&resource, &name));
        }
        let time = rfc3339_seconds(self.wall_micros);
        let uid = self.prng.uid();
        let metadata = metadata_of(&mut object);
        for owned_by_server in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"] {
            metadata.remove(owned_by_server);
        }
        metadata.insert("name".to_owned(), json!(name));
        if resource.scope == Scope::Namespaced {
            metadata.insert("namespace".to_owned(), json!(place.namespace));
        } else {
            metadata.remove("namespace");
        }
        metadata.insert("uid".to_owned(), json!(uid));
        metadata.insert("creationTimestamp".to_owned(), json!(time));
        if resource.counts_generation {
            metadata.insert("generation".to_owned(), json!(1));
        }
        if resource.has_status && part == Part::Main {
            object.remove("status");
        }
        default_fields(&resource, &mut object, &name);
        managed_fields::record(&resource, &mut object, manager, None, &time);
        if resource.plural == "customresourcedefinitions" {
            return self.create_definition(place.id, &key, object);
        }
        Ok(self.commit(place.id, &key, object))
    }

    fn name_for(&mut self, resource: &Resource, object: &Map<String, Value>, path: &str) -> Result<String, Failure> {
        let mut name = text_in(object, "name");
        if name.is_empty() {
            name = path.to_owned();
        }
        let prefix = text_in(object, "generateName");
        if name.is_empty() && !prefix.is_empty() {
            name = format!("{prefix}{}", self.prng.suffix(5));
        }
        let refuse = |cause, why: &str| {
            let details = status::kind_details(resource, &name);
            Failure::invalid_object(&resource.qualified_kind(), details, "metadata.name", cause, why)
        };
        if name.is_empty() {
            return Err(refuse("FieldValueRequired", "Required value: name or generateName is required"));
        }
        if !is_name(&name) {
            let why = format!("Invalid value: {name:?}: it must be a lowercase RFC 1123 subdomain");
            return Err(refuse("FieldValueInvalid", &why));
        }
        Ok(name)
    }

    fn create_definition(
        &mut self,
        id: ResourceId,
        key: &str,
        mut object: Map<String, Value>,
    ) -> Result<Arc<State>, Failure> {
        let declared = Resource::from_definition(&Value::Object(object.clone()));
        let Some(declared) = declared.filter(|declared| declared.qualified() == key) else {
            let resource = self.resource(id);
            let details = status::kind_details(&resource, key);
            let why = "Invalid value: it must be spec.names.plural+\".\"+spec.group, of a type with a storage version";
            let subject = resource.qualified_kind();
            return Err(Failure::invalid_object(&subject, details, "metadata.name", "FieldValueInvalid", why));
        };
        object.insert("status".to_owned(), json!({"conditions": null, "storedVersions": [declared.version]}));
        let created = self.commit(id, key, object.clone());
        let time = rfc3339_seconds(self.wall_micros);
        let condition = |kind: &str, reason: &str| json!({"type": kind, "status": "True", "lastTransitionTime": time, "reason": reason, "message": "accepted"});
        let names = object.get("spec").and_then(|specification| specification.get("names")).cloned();
        object.insert(
            "status".to_owned(),
            json!({
                "conditions": [
                    condition("NamesAccepted", "NoConflicts"),
                    condition("Established", "InitialNamesAccepted"),
                ],
                "acceptedNames": names, "storedVersions": [declared.version],
            }),
        );
        self.serve(declared);
        self.commit(id, key, object);
        Ok(created)
    }

    /// Replaces an object, or its status; creates it where the type allows that. The flag tells
    /// whether it was created.
    ///
    /// # Errors
    /// 400, 404, 409 Conflict, 422.
    pub(crate) fn replace_object(
        &mut self,
        place: Place<'_>,
        mut object: Map<String, Value>,
        part: Part,
        manager: &str,
    ) -> Result<(Arc<State>, bool), Failure> {
        let resource = self.resource(place.id);
        let named = text_in(&object, "name");
        if !named.is_empty() && named != place.name {
            let message =
                format!("the name of the object ({named}) does not match the name on the URL ({})", place.name);
            return Err(Failure::bad_request(message));
        }
        let namespace = text_in(&object, "namespace");
        if !namespace.is_empty() && namespace != place.namespace {
            let message = "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Failure::bad_request(message));
        }
        let key = resource.key(place.namespace, place.name);
        let uid = text_in(&object, "uid");
        let Some(current) = self.history.current(place.id, &key).cloned() else {
            if !resource.creates_on_update || part == Part::Status {
                return Err(Failure::not_found(&resource, place.name));
            }
            if !uid.is_empty() {
                return Err(uid_conflict(&resource, place, &uid, ""));
            }
            metadata_of(&mut object).remove("resourceVersion");
            return Ok((self.create_object(place, object, part, manager)?, true));
        };
        if !uid.is_empty() && uid != current.uid {
            return Err(uid_conflict(&resource, place, &uid, &current.uid));
        }
        let version = text_in(&object, "resourceVersion");
        if (version.is_empty() || version == "0") && !resource.unconditional_update {
            let details = status::details(&resource, place.name);
            let why = "Invalid value: 0: must be specified for an update";
            let subject = resource.qualified();
            return Err(Failure::invalid_object(
                &subject,
                details,
                "metadata.resourceVersion",
                "FieldValueInvalid",
                why,
            ));
        }
        if !version.is_empty() && version != "0" && version != current.revision.to_string() {
            return Err(modified(&resource, place.name));
        }
        Ok((self.store_update(place.id, &key, &current, object, part, manager), false))
    }

    /// Applies a merge patch to an object, or to its status.
    ///
    /// # Errors
    /// 400, 404, 409 Conflict, 422.
    pub(crate) fn patch_object(
        &mut self,
        place: Place<'_>,
        patch: Value,
        part: Part,
        manager: &str,
    ) -> Result<Arc<State>, Failure> {
        let resource = self.resource(place.id);
        let key = resource.key(place.namespace, place.name);
        let Some(current) = self.history.current(place.id, &key).cloned() else {
            return Err(Failure::not_found(&resource, place.name));
        };
        let mut value = Value::Object(current.value());
        merge_patch(&mut value, patch);
        let Value::Object(object) = value else {
            return Err(Failure::bad_request("the patch makes something else of the object"));
        };
        let (version, uid) = (text_in(&object, "resourceVersion"), text_in(&object, "uid"));
        if !version.is_empty() && version != current.revision.to_string() {
            return Err(modified(&resource, place.name));
        }
        for (field, wanted, found) in [("uid", &uid, &current.uid), ("name", &text_in(&object, "name"), &current.name)]
        {
            if wanted != found {
                let details = status::kind_details(&resource, place.name);
                let why = format!("Invalid value: {wanted:?}: field is immutable");
                let (subject, field) = (resource.qualified_kind(), format!("metadata.{field}"));
                return Err(Failure::invalid_object(&subject, details, &field, "FieldValueInvalid", &why));
            }
        }
        Ok(self.store_update(place.id, &key, &current, object, part, manager))
    }

    fn store_update(
        &mut self,
        id: ResourceId,
        key: &str,
        current: &Arc<State>,
        mut object: Map<String, Value>,
        part: Part,
        manager: &str,
    ) -> Arc<State> {
        let resource = self.resource(id);
        let old = current.value();
        if part == Part::Status {
            // The status path changes the status and nothing else.
            let status = object.remove("status");
            object = old.clone();
            object.remove("status");
            object.extend(status.map(|status| ("status".to_owned(), status)));
        } else if resource.has_status && part == Part::Main {
            object.remove("status");
            object.extend(old.get("status").map(|status| ("status".to_owned(), status.clone())));
        }
        let old_metadata = old.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
        let metadata = metadata_of(&mut object);
        for kept in [
            "name",
            "namespace",
            "uid",
            "creationTimestamp",
            "generation",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generateName",
            "resourceVersion",
            "managedFields",
        ] {
            metadata.remove(kept);
            metadata.extend(old_metadata.get(kept).map(|value| (kept.to_owned(), value.clone())));
        }
        default_fields(&resource, &mut object, &current.name);
        object.insert("kind".to_owned(), json!(resource.kind));
        object.insert("apiVersion".to_owned(), json!(resource.api_version()));
        if object == old {
            return current.clone();
        }
        let counted = |object: &Map<String, Value>| {
            let mut object = object.clone();
            object.remove("metadata");
            object
                .remove("status")
                .filter(|_| !resource.has_status)
                .map(|status| object.insert("status".to_owned(), status));
            object
        };
        if resource.counts_generation && counted(&object) != counted(&old) {
            let generation = old_metadata.get("generation").and_then(Value::as_i64).unwrap_or(0) + 1;
            metadata_of(&mut object).insert("generation".to_owned(), json!(generation));
        }
        let subresource = (part == Part::Status).then_some("status");
        managed_fields::record(&resource, &mut object, manager, subresource, &rfc3339_seconds(self.wall_micros));
        let waits = old_metadata.contains_key("deletionTimestamp") && !is_held(&object);
        if waits && old_metadata.get("deletionGracePeriodSeconds") == Some(&json!(0)) {
            // The last finalizer is gone: this write is the deletion.
            self.remove(id, key);
            return current.clone();
        }
        self.commit(id, key, object)
    }

    /// Deletes an object, or marks it when something holds it.
    ///
    /// # Errors
    /// 404, 409 Conflict when a precondition fails.
    pub(crate) fn delete_object(&mut self, place: Place<'_>, options: &DeleteOptions) -> Result<Deletion, Failure> {
        let resource = self.resource(place.id);
        let key = resource.key(place.namespace, place.name);
        let Some(current) = self.history.current(place.id, &key).cloned() else {
            return Err(Failure::not_found(&resource, place.name));
        };
        let refuse = |what: &str, wanted: &str, found: &str| {
            let why =
                format!("the {what} in the precondition ({wanted}) does not match the {what} in record ({found})");
            Err(Failure::conflict(&resource, place.name, &why))
        };
        if let Some(uid) = options.uid.as_ref().filter(|uid| **uid != current.uid) {
            return refuse("UID", uid, &current.uid);
        }
        let revision = current.revision.to_string();
        if let Some(version) = options.resource_version.as_ref().filter(|version| **version != revision) {
            return refuse("ResourceVersion", version, &revision);
        }
        let mut object = current.value();
        let bound = resource.plural == "pods" && object.get("spec").is_some_and(|pod| pod.get("nodeName").is_some());
        let grace = if bound { options.grace_seconds.unwrap_or(POD_GRACE_SECONDS).max(0) } else { 0 };
        if grace == 0 && !is_held(&object) {
            self.remove(place.id, &key);
            return Ok(Deletion::Done(current));
        }
        if object.get("metadata").is_some_and(|metadata| metadata.get("deletionTimestamp").is_some()) {
            return Ok(Deletion::Pending(current));
        }
        let time = rfc3339_seconds(self.wall_micros + grace * 1_000_000);
        let metadata = metadata_of(&mut object);
        metadata.insert("deletionTimestamp".to_owned(), json!(time));
        metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(grace));
        if resource.counts_generation {
            let generation = metadata.get("generation").and_then(Value::as_i64).unwrap_or(0) + 1;
            metadata.insert("generation".to_owned(), json!(generation));
        }
        Ok(Deletion::Pending(self.commit(place.id, &key, object)))
    }

    /// Removes a key, and first what lives in it: the objects of a namespace, those of a type.
    fn remove(&mut self, id: ResourceId, key: &str) {
        let plural = self.resource(id).plural.clone();
        if plural == "namespaces" {
            let prefix = format!("{key}/");
            for table in self.namespaced_tables() {
                self.remove_below(table, &prefix);
            }
        }
        if plural == "customresourcedefinitions"
            && let Some(table) = self.declared_by(key)
        {
            self.remove_below(table, "");
            self.withdraw(table);
        }
        self.commit_removal(id, key);
    }

    fn remove_below(&mut self, table: ResourceId, prefix: &str) {
        let revision = self.history.revision();
        let range = self.history.range(table, revision, prefix, "");
        let keys: Vec<String> = range.into_iter().flatten().map(|(key, _)| key.to_owned()).collect();
        for key in keys {
            self.commit_removal(table, &key);
        }
    }
}

/// Tells whether finalizers hold an object.
fn is_held(object: &Map<String, Value>) -> bool {
    let finalizers = object.get("metadata").and_then(|metadata| metadata.get("finalizers")).and_then(Value::as_array);
    finalizers.is_some_and(|finalizers| !finalizers.is_empty())
}

fn modified(resource: &Resource, name: &str) -> Failure {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    Failure::conflict(resource, name, why)
}

fn uid_conflict(resource: &Resource, place: Place<'_>, wanted: &str, found: &str) -> Failure {
    let key = resource.key(place.namespace, place.name);
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{}/{key}, ResourceVersion: 0, \
         AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}",
        resource.plural
    );
    Failure::conflict(resource, place.name, &why)
}

/// Sets what the server sets by itself in new objects.
fn default_fields(resource: &Resource, object: &mut Map<String, Value>, name: &str) {
    match resource.plural.as_str() {
        "namespaces" => {
            let labels = metadata_of(object).entry("labels").or_insert_with(|| json!({}));
            labels["kubernetes.io/metadata.name"] = json!(name);
            object.entry("spec").or_insert_with(|| json!({"finalizers": ["kubernetes"]}));
            object.entry("status").or_insert_with(|| json!({"phase": "Active"}));
        }
        "pods" if resource.group.is_empty() => {
            object.entry("status").or_insert_with(|| json!({"phase": "Pending", "qosClass": "BestEffort"}));
        }
        "deployments" if resource.group == "apps" => {
            object.entry("status").or_insert_with(|| json!({}));
        }
        _ => {}
    }
}
