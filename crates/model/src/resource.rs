//! Resource types: the built-in ones and those that custom resource definitions bring.

use serde_json::Value;

/// Position of a resource type in the model's table; stable for the life of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub usize);

/// Whether objects of a type live in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every object has a namespace.
    Namespaced,
    /// Objects have only a name.
    Cluster,
}

/// Who serves a type. It shows in the order of JSON keys, in list items and in status texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Compiled into the API server.
    BuiltIn,
    /// Declared by a CustomResourceDefinition.
    Custom,
}

/// One resource type as discovery shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: String,
    /// Served version.
    pub version: String,
    /// Plural name, as in paths.
    pub plural: String,
    /// Singular name.
    pub singular: String,
    /// Kind of one object.
    pub kind: String,
    /// Short names for people.
    pub short_names: Vec<String>,
    /// Categories, such as `all`.
    pub categories: Vec<String>,
    /// Namespaced or not.
    pub scope: Scope,
    /// Built in or custom.
    pub origin: Origin,
    /// Whether `/status` exists and the main path therefore ignores `.status`.
    pub has_status: bool,
    /// Whether `metadata.generation` counts changes of the specification.
    pub counts_generation: bool,
    /// Whether a PUT to a missing name creates the object.
    pub creates_on_update: bool,
    /// Whether a PUT may leave out `metadata.resourceVersion`.
    pub unconditional_update: bool,
}

impl Resource {
    /// Returns the types that every model serves.
    pub fn built_in() -> Vec<Resource> {
        let core =
            |plural: &str, singular: &str, kind: &str, short: &str| Resource::plain("", plural, singular, kind, short);
        vec![
            Resource { scope: Scope::Cluster, has_status: true, ..core("namespaces", "namespace", "Namespace", "ns") },
            Resource {
                scope: Scope::Cluster,
                has_status: true,
                counts_generation: true,
                unconditional_update: false,
                ..Resource::plain(
                    "apiextensions.k8s.io",
                    "customresourcedefinitions",
                    "customresourcedefinition",
                    "CustomResourceDefinition",
                    "crd",
                )
            },
            core("configmaps", "configmap", "ConfigMap", "cm"),
            Resource {
                has_status: true,
                counts_generation: true,
                categories: vec!["all".to_owned()],
                ..core("pods", "pod", "Pod", "po")
            },
            Resource {
                has_status: true,
                counts_generation: true,
                categories: vec!["all".to_owned()],
                ..Resource::plain("apps", "deployments", "deployment", "Deployment", "deploy")
            },
            Resource {
                creates_on_update: true,
                unconditional_update: false,
                ..Resource::plain("coordination.k8s.io", "leases", "lease", "Lease", "")
            },
        ]
    }

    fn plain(group: &str, plural: &str, singular: &str, kind: &str, short: &str) -> Resource {
        Resource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            plural: plural.to_owned(),
            singular: singular.to_owned(),
            kind: kind.to_owned(),
            short_names: if short.is_empty() { Vec::new() } else { vec![short.to_owned()] },
            categories: Vec::new(),
            scope: Scope::Namespaced,
            origin: Origin::BuiltIn,
            has_status: false,
            counts_generation: false,
            creates_on_update: false,
            unconditional_update: true,
        }
    }

    /// Reads the type that a CustomResourceDefinition declares, in its storage version.
    ///
    /// Returns nothing when a name, the group or a version is missing.
    pub fn from_definition(definition: &Value) -> Option<Resource> {
        let specification = definition.get("spec")?;
        let names = specification.get("names")?;
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let texts = |key: &str| -> Vec<String> {
            let list = names.get(key).and_then(Value::as_array);
            list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let versions = specification.get("versions")?.as_array()?;
        let storage = versions.iter().find(|version| version.get("storage") == Some(&Value::Bool(true)))?;
        let kind = text(names, "kind")?;
        Some(Resource {
            group: text(specification, "group")?,
            version: text(storage, "name")?,
            plural: text(names, "plural")?,
            singular: text(names, "singular").unwrap_or_else(|| kind.to_lowercase()),
            kind,
            short_names: texts("shortNames"),
            categories: texts("categories"),
            scope: if text(specification, "scope")? == "Cluster" { Scope::Cluster } else { Scope::Namespaced },
            origin: Origin::Custom,
            has_status: storage.pointer("/subresources/status").is_some(),
            counts_generation: true,
            creates_on_update: false,
            unconditional_update: false,
        })
    }

    /// Returns the `apiVersion` of objects: `v1` or `group/version`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns the name used in status texts: `configmaps` or `leases.coordination.k8s.io`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Returns the kind as validation errors write it: `ConfigMap` or `Lease.coordination.k8s.io`.
    pub fn qualified_kind(&self) -> String {
        if self.group.is_empty() { self.kind.clone() } else { format!("{}.{}", self.kind, self.group) }
    }

    /// Returns the storage key of an object; its byte order is the order of lists, as in etcd.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        match self.scope {
            Scope::Namespaced => format!("{namespace}/{name}"),
            Scope::Cluster => name.to_owned(),
        }
    }

    /// Returns the dotted paths that field selectors of this type may name, in the order of the
    /// error text.
    pub fn field_paths(&self) -> &'static [&'static str] {
        match (self.group.as_str(), self.plural.as_str()) {
            ("", "pods") => &POD_FIELDS,
            ("", "namespaces") => &["metadata.name", "status.phase"],
            _ => &["metadata.name", "metadata.namespace"],
        }
    }
}

/// Field selectors of pods, besides which only name and namespace exist elsewhere.
const POD_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "spec.hostNetwork",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.phase",
    "status.podIP",
];

/// Returns the definition of the sample type: `widgets.example.com`, kind Widget, short name `wd`.
pub fn widget_definition() -> Value {
    serde_json::json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {
                "plural": "widgets", "singular": "widget", "kind": "Widget",
                "listKind": "WidgetList", "shortNames": ["wd"],
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::{Resource, Scope, widget_definition};

    #[test]
    fn a_definition_yields_the_type_of_its_storage_version() {
        let widget = Resource::from_definition(&widget_definition()).unwrap();
        assert_eq!(
            (widget.api_version().as_str(), widget.qualified().as_str()),
            ("example.com/v1", "widgets.example.com")
        );
        assert_eq!((widget.scope, widget.short_names.as_slice()), (Scope::Namespaced, ["wd".to_owned()].as_slice()));
    }

    #[test]
    fn a_definition_without_storage_version_yields_nothing() {
        let mut definition = widget_definition();
        definition["spec"]["versions"][0]["storage"] = false.into();
        assert_eq!(Resource::from_definition(&definition), None);
    }
}
