//! What is watched: from the keys of feeds to one [`FeedSpec`] per namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use sidewatch_core::feed::FeedSpec;
use sidewatch_core::selector::{FieldSelector, LabelSelector, is_dns_label};

use crate::config::raw::{Node, Origin, Raw, Written, WrittenFeed};
use crate::config::{Config, ManagedFields, Problems, namespace};

/// Feeds of one sidecar: each costs a watch, a cache, and positions in the checkpoint.
const FEEDS_MAX: usize = 256;

/// One resource to watch, in one or several namespaces. Clients select it by its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watch {
    /// Unique in the configuration.
    pub name: Arc<str>,
    /// As the user wrote it: `pods`, `widgets.v1.example.com`.
    pub resource: Arc<str>,
    /// Which namespaces.
    pub scope: Scope,
    /// Checked syntax, empty for none.
    pub label_selector: Arc<str>,
    /// Checked syntax, empty for none.
    pub field_selector: Arc<str>,
    /// What becomes of `metadata.managedFields`.
    pub managed_fields: ManagedFields,
}

/// Which namespaces a watch spans.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The pod's own, or that of the kubeconfig's context: nothing was said.
    Own,
    /// These, at least one, each once.
    Named(Vec<Arc<str>>),
    /// All.
    All,
}

/// One feed of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Feed {
    /// Name of the watch: selects all feeds of it.
    pub watch: Arc<str>,
    /// How the namespace came about.
    pub namespace_choice: NamespaceChoice,
    /// What to list and watch.
    pub spec: FeedSpec,
}

/// How the namespace of a feed came about: a cluster-scoped resource may ignore a default, not a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamespaceChoice {
    /// Nothing was said: the own namespace stands in.
    Default,
    /// The configuration says so.
    Configured,
}

impl Config {
    /// One feed per watch and namespace, in the order of the configuration; `own` is the namespace of the pod or of the
    /// kubeconfig's context. [`super::Pod::namespace`] comes before what the environment says.
    ///
    /// # Errors
    /// When `own` makes two feeds the same: which, and the remedy.
    pub fn feeds(&self, own: &str) -> anyhow::Result<Vec<Feed>> {
        let feeds: Vec<Feed> = self.watches.iter().flat_map(|watch| watch.feeds(own)).collect();
        let mut seen = BTreeMap::new();
        for feed in &feeds {
            if let Some(first) = seen.insert(identity(&feed.spec), &feed.spec.name) {
                anyhow::bail!(
                    "feeds {first} and {} are the same: both watch {} in namespace {own} with the same selectors; \
                     leave one of them out",
                    feed.spec.name,
                    feed.spec.resource
                );
            }
        }
        Ok(feeds)
    }
}

fn identity(spec: &FeedSpec) -> Identity {
    (spec.resource.clone(), spec.namespace.clone(), spec.label_selector.clone(), spec.field_selector.clone())
}

impl Watch {
    fn feeds(&self, own: &str) -> Vec<Feed> {
        let feed = |namespace: Option<Arc<str>>, name: Arc<str>, namespace_choice| Feed {
            watch: self.name.clone(),
            namespace_choice,
            spec: FeedSpec {
                name,
                resource: self.resource.clone(),
                namespace,
                label_selector: self.label_selector.clone(),
                field_selector: self.field_selector.clone(),
                managed_fields: self.managed_fields,
            },
        };
        match &self.scope {
            Scope::Own => vec![feed(Some(own.into()), self.name.clone(), NamespaceChoice::Default)],
            Scope::All => vec![feed(None, self.name.clone(), NamespaceChoice::Configured)],
            Scope::Named(namespaces) if namespaces.len() == 1 => {
                vec![feed(Some(namespaces[0].clone()), self.name.clone(), NamespaceChoice::Configured)]
            }
            Scope::Named(namespaces) => namespaces
                .iter()
                .map(|one| feed(Some(one.clone()), format!("{}@{one}", self.name).into(), NamespaceChoice::Configured))
                .collect(),
        }
    }

    /// As an entry of `feeds` in a file.
    pub(super) fn to_node(&self) -> Node {
        let mut entries = vec![
            ("name".to_owned(), Node::Text(self.name.to_string())),
            ("resource".to_owned(), Node::Text(self.resource.to_string())),
        ];
        match &self.scope {
            Scope::Own => {}
            Scope::Named(namespaces) => {
                let names = namespaces.iter().map(|one| Node::Text(one.to_string())).collect();
                entries.push(("namespaces".to_owned(), Node::List(names)));
            }
            Scope::All => entries.push(("allNamespaces".to_owned(), Node::Text("true".to_owned()))),
        }
        for (key, selector) in [("labelSelector", &self.label_selector), ("fieldSelector", &self.field_selector)] {
            if !selector.is_empty() {
                entries.push((key.to_owned(), Node::Text(selector.to_string())));
            }
        }
        let managed_fields = match self.managed_fields {
            ManagedFields::Drop => "drop",
            ManagedFields::Keep => "keep",
        };
        entries.push(("managedFields".to_owned(), Node::Text(managed_fields.to_owned())));
        Node::Map(entries)
    }
}

/// All watches, those of `watch` first. Faulty ones are left out and reported.
pub(super) fn validate(raw: &Raw, own: Option<&str>, problems: &mut Problems) -> Vec<Watch> {
    let shared = Shared {
        scope: scope(&raw.many("namespaces"), raw.one("allNamespaces").as_ref(), "namespaces", problems),
        label_selector: label_selector(raw.one("labelSelector").as_ref(), "labelSelector", problems),
        field_selector: field_selector(raw.one("fieldSelector").as_ref(), "fieldSelector", problems),
        managed_fields: managed_fields(raw.one("managedFields").as_ref(), "managedFields", problems),
    };
    let mut accepted = Accepted::default();
    for written in raw.many("watch") {
        match resource(&written.text) {
            Err(rule) => problems.add("watch", &written, rule),
            Ok(resource) => {
                let watch = Watch {
                    name: resource.clone(),
                    resource,
                    scope: shared.scope.clone().unwrap_or(Scope::Own),
                    label_selector: shared.label_selector.clone(),
                    field_selector: shared.field_selector.clone(),
                    managed_fields: shared.managed_fields.unwrap_or_default(),
                };
                accepted.add(watch, ("watch".to_owned(), written), own, problems);
            }
        }
    }
    for (index, feed) in raw.feeds.iter().enumerate() {
        own_settings(feed, &format!("feeds[{index}]"), &shared, &mut accepted, own, problems);
    }
    if raw.many("watch").is_empty() && raw.feeds.is_empty() {
        problems.add_missing(None, "watch", "nothing is watched: name a resource, for example --watch pods");
    }
    accepted.watches
}

/// What the keys outside of `feeds` say.
struct Shared {
    scope: Option<Scope>,
    label_selector: Arc<str>,
    field_selector: Arc<str>,
    managed_fields: Option<ManagedFields>,
}

fn own_settings(
    feed: &WrittenFeed,
    place: &str,
    shared: &Shared,
    accepted: &mut Accepted,
    own: Option<&str>,
    problems: &mut Problems,
) {
    let key = |name: &str| format!("{place}.{name}");
    let scope = scope(&feed.namespaces, feed.all_namespaces.as_ref(), &key("namespaces"), problems);
    let label_selector = label_selector(feed.label_selector.as_ref(), &key("labelSelector"), problems);
    let field_selector = field_selector(feed.field_selector.as_ref(), &key("fieldSelector"), problems);
    let managed_fields = managed_fields(feed.managed_fields.as_ref(), &key("managedFields"), problems);
    let Some(written) = &feed.resource else {
        let rule = "needed: what to list and watch, for example resource: pods";
        return problems.add_missing(Some(&feed.origin), &key("resource"), rule);
    };
    let resource = match resource(&written.text) {
        Ok(resource) => resource,
        Err(rule) => return problems.add(&key("resource"), written, rule),
    };
    let (name, named_by) = match &feed.name {
        None => (resource.clone(), (key("resource"), written.clone())),
        Some(name) if is_name(&name.text) => (name.text.as_str().into(), (key("name"), name.clone())),
        Some(name) => {
            let rule = "the name of a feed has 1 to 63 lower case letters, digits, dashes and dots, \
                        and begins and ends with a letter or digit";
            return problems.add(&key("name"), name, rule);
        }
    };
    let watch = Watch {
        name,
        resource,
        scope: scope.or_else(|| shared.scope.clone()).unwrap_or(Scope::Own),
        label_selector,
        field_selector,
        managed_fields: managed_fields.or(shared.managed_fields).unwrap_or_default(),
    };
    accepted.add(watch, named_by, own, problems);
}

/// The watches so far, and where each name and each feed was written first.
#[derive(Default)]
struct Accepted {
    watches: Vec<Watch>,
    names: BTreeMap<Arc<str>, Origin>,
    feeds: BTreeMap<Identity, Origin>,
}

/// Resource, namespace, label selector and field selector: two feeds that agree in them are the same.
type Identity = (Arc<str>, Option<Arc<str>>, Arc<str>, Arc<str>);

impl Accepted {
    fn add(&mut self, watch: Watch, named_by: (String, Written), own: Option<&str>, problems: &mut Problems) {
        let (key, written) = named_by;
        // A namespace is never empty: the empty one stands for an own namespace that is not known yet.
        for feed in watch.feeds(own.unwrap_or_default()) {
            let spec = feed.spec;
            let identity = identity(&spec);
            if let Some(first) = self.feeds.insert(identity, written.origin.clone()) {
                let rule = format!(
                    "is watched twice with the same namespace and selectors (first at {first}): leave one of them out"
                );
                return problems.add(&key, &written, rule);
            }
        }
        if let Some(first) = self.names.insert(watch.name.clone(), written.origin.clone()) {
            let rule = format!("is already the name of a feed (at {first}): give one of them another name in feeds");
            return problems.add(&key, &written, rule);
        }
        if self.feeds.len() > FEEDS_MAX {
            let rule = format!("makes more than {FEEDS_MAX} feeds: watch fewer namespaces, or all of them in one feed");
            return problems.add(&key, &written, rule);
        }
        self.watches.push(watch);
    }
}

/// None when nothing is said.
fn scope(names: &[Written], all: Option<&Written>, key: &str, problems: &mut Problems) -> Option<Scope> {
    match all.map(|written| (written, written.text.as_str())) {
        Some((written, "true")) if key.starts_with("feeds[") && !names.is_empty() => {
            problems.add(
                &key.replace("namespaces", "allNamespaces"),
                written,
                "excludes namespaces: give one of the two",
            );
        }
        Some((_, "true")) => return Some(Scope::All),
        None | Some((_, "false")) => {}
        Some((written, _)) => {
            problems.add(&key.replace("namespaces", "allNamespaces"), written, "must be true or false");
        }
    }
    let mut namespaces: Vec<Arc<str>> = Vec::new();
    for written in names {
        match namespace(&written.text) {
            Err(rule) => problems.add(key, written, format!("{rule}; all of them are watched by allNamespaces")),
            Ok(namespace) if namespaces.contains(&namespace) => {
                problems.add(key, written, "is there twice: name each namespace once");
            }
            Ok(namespace) => namespaces.push(namespace),
        }
    }
    (!namespaces.is_empty()).then_some(Scope::Named(namespaces))
}

fn label_selector(written: Option<&Written>, key: &str, problems: &mut Problems) -> Arc<str> {
    selector(written, key, "label", |text| LabelSelector::parse(text).map(|_| ()), problems)
}

fn field_selector(written: Option<&Written>, key: &str, problems: &mut Problems) -> Arc<str> {
    selector(written, key, "field", |text| FieldSelector::parse(text).map(|_| ()), problems)
}

fn selector<E: std::fmt::Display>(
    written: Option<&Written>,
    key: &str,
    kind: &str,
    check: impl Fn(&str) -> Result<(), E>,
    problems: &mut Problems,
) -> Arc<str> {
    let Some(written) = written else { return "".into() };
    if let Err(error) = check(&written.text) {
        problems.add(key, written, format!("is not a {kind} selector: {error}"));
    }
    written.text.trim().into()
}

fn managed_fields(written: Option<&Written>, key: &str, problems: &mut Problems) -> Option<ManagedFields> {
    let written = written?;
    match written.text.as_str() {
        "drop" => Some(ManagedFields::Drop),
        "keep" => Some(ManagedFields::Keep),
        _ => {
            problems.add(key, written, "must be drop or keep");
            None
        }
    }
}

/// `pods`, `deploy`, `widgets.example.com`, `widgets.v1.example.com`.
fn resource(text: &str) -> Result<Arc<str>, String> {
    if text.len() <= 253 && text.split('.').all(is_dns_label) {
        return Ok(text.into());
    }
    let lower = text.to_lowercase();
    if lower != text && lower.split('.').all(is_dns_label) {
        return Err(format!("resources are written in lower case: {lower}"));
    }
    Err("must be a resource as kubectl takes it: pods, deploy, widgets.example.com or widgets.v1.example.com"
        .to_owned())
}

fn is_name(text: &str) -> bool {
    text.len() <= 63 && text.split('.').all(is_dns_label)
}
