//! Discovery: which groups, versions and types there are, in the plain and the aggregated form.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::resource::{Origin, Resource, Scope};

/// Content type of aggregated discovery.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Renders `/version`.
pub fn version(git_version: &str) -> Bytes {
    let mut numbers = git_version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    render(json!({
        "major": major, "minor": minor, "gitVersion": git_version, "gitCommit": "unknown", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "none", "platform": "model",
    }))
}

/// Renders `/api`.
pub fn core_versions() -> Bytes {
    render(json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "model"}],
    }))
}

/// Renders `/apis`.
pub fn groups(resources: &[&Resource]) -> Bytes {
    let groups: Vec<Value> =
        group_versions(resources).iter().map(|(group, version)| group_value(group, version)).collect();
    render(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
}

/// Renders `/apis/GROUP`; nothing when the group has no type.
pub fn group(resources: &[&Resource], name: &str) -> Option<Bytes> {
    let versions = group_versions(resources);
    let (group, version) = versions.iter().find(|(group, _)| group == name)?;
    let mut value = group_value(group, version);
    value["kind"] = json!("APIGroup");
    value["apiVersion"] = json!("v1");
    Some(render(value))
}

fn group_value(group: &str, version: &str) -> Value {
    let group_version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({"name": group, "versions": [group_version], "preferredVersion": group_version})
}

/// Renders the types of one version; nothing when there is none.
pub fn group_version(resources: &[&Resource], group: &str, version: &str) -> Option<Bytes> {
    let mut entries = Vec::new();
    for resource in resources.iter().filter(|resource| resource.group == group && resource.version == version) {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "kind": resource.kind,
            "namespaced": resource.scope == Scope::Namespaced, "verbs": verbs(resource),
        });
        names_into(&mut entry, resource);
        entries.push(entry);
        if resource.has_status {
            entries.push(json!({
                "name": format!("{}/status", resource.plural), "singularName": "", "kind": resource.kind,
                "namespaced": resource.scope == Scope::Namespaced, "verbs": ["get", "patch", "update"],
            }));
        }
    }
    if entries.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let list =
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries});
    Some(render(list))
}

/// Which part of aggregated discovery is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// `/api`: the core group.
    Core,
    /// `/apis`: all others.
    Named,
}

/// Renders `/api` or `/apis` in the aggregated form.
pub fn aggregated(resources: &[&Resource], root: Root) -> Bytes {
    let groups = match root {
        Root::Core => vec![(String::new(), "v1".to_owned())],
        Root::Named => group_versions(resources),
    };
    let mut items = Vec::new();
    for (group, version) in groups {
        let mut entries = Vec::new();
        for resource in resources.iter().filter(|resource| resource.group == group && resource.version == version) {
            // Only custom types name group and version here; built-in ones leave them empty.
            let kind = match resource.origin {
                Origin::BuiltIn => json!({"group": "", "version": "", "kind": resource.kind}),
                Origin::Custom => json!({"group": group, "version": version, "kind": resource.kind}),
            };
            let scope = if resource.scope == Scope::Namespaced { "Namespaced" } else { "Cluster" };
            let mut entry = json!({
                "resource": resource.plural, "responseKind": kind, "scope": scope,
                "singularResource": resource.singular, "verbs": verbs(resource),
            });
            names_into(&mut entry, resource);
            if resource.has_status {
                let verbs = ["get", "patch", "update"];
                entry["subresources"] = json!([{"subresource": "status", "responseKind": kind, "verbs": verbs}]);
            }
            entries.push(entry);
        }
        let mut metadata = Map::new();
        if !group.is_empty() {
            metadata.insert("name".to_owned(), json!(group));
        }
        let versions = json!([{"version": version, "resources": entries, "freshness": "Current"}]);
        items.push(json!({"metadata": metadata, "versions": versions}));
    }
    render(json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    }))
}

fn names_into(entry: &mut Value, resource: &Resource) {
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
}

fn verbs(resource: &Resource) -> &'static [&'static str] {
    match resource.plural.as_str() {
        "namespaces" => &["create", "delete", "get", "list", "patch", "update", "watch"],
        _ => &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
    }
}

/// Returns the named groups in the order in which their first types were declared.
fn group_versions(resources: &[&Resource]) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for resource in resources.iter().filter(|resource| !resource.group.is_empty()) {
        if !found.iter().any(|(group, _)| *group == resource.group) {
            found.push((resource.group.clone(), resource.version.clone()));
        }
    }
    found
}

fn render(value: Value) -> Bytes {
    Bytes::from(value.to_string())
}
