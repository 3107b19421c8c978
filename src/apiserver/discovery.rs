//! From a resource's name as kubectl takes it to group, version, plural and kind; and whether a type is gone for good.
//!
//! One aggregated request each to `/api` and `/apis`; servers that do not know it are asked group by group. A group
//! whose own server is down is remembered as silent, so that its types count as unreachable and not as absent.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use sidewatch_core::codec::status::{Failure, FailureKind};
use sidewatch_core::feed::{FeedSpec, ResourceInfo, TypeAnswer};
use sidewatch_core::limits::REQUEST_TIMEOUT;

use crate::apiserver::client::{Client, JSON};
use crate::apiserver::list::encode;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// Discovery of a large cluster is a few MB.
const BYTES_MAX: usize = 64 << 20;
/// Groups asked at once when there is no aggregated discovery.
const GROUPS_AT_ONCE: usize = 8;
/// The first version (1.x) that serves `sendInitialEvents` by default for good.
const STREAMING_LIST_SINCE: (u32, u32) = (1, 34);

/// Finds the feed's resource. `known` is what an earlier answer made of the name.
///
/// # Errors
/// `NotFound` when no group serves the name; `Unavailable` when a group that may serve it does not answer; `Rejected`
/// when the resource cannot be watched or has no namespaces although one is configured.
pub async fn resolve(client: &Client, spec: &FeedSpec, known: Option<&ResourceInfo>) -> Result<ResourceInfo, Failure> {
    let catalogue = catalogue(client).await?;
    let found = catalogue.find(&spec.resource, known)?;
    if spec.namespace.is_some() && !found.namespaced {
        let message = format!("{} is cluster-scoped: a feed of it must not name a namespace", spec.resource);
        return Err(Failure::new(FailureKind::Rejected, message));
    }
    Ok(ResourceInfo { streaming_list: streaming_list(client).await, ..found })
}

/// Whether the type is gone for good: its definition is not there, and discovery lists it in no version.
pub async fn ask_type(client: &Client, info: &ResourceInfo) -> TypeAnswer {
    if info.group.is_empty() {
        return TypeAnswer::Unknown;
    }
    let name = encode(&format!("{}.{}", info.resource, info.group));
    let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
    match get(client, &path, METADATA).await {
        Ok(_) => TypeAnswer::Present,
        Err(failure) if failure.kind == FailureKind::NotFound => match catalogue(client).await {
            Ok(catalogue) => catalogue.has(info),
            Err(_) => TypeAnswer::Unknown,
        },
        Err(_) => TypeAnswer::Unknown,
    }
}

/// All that is served, in the server's order of preference, core first.
#[derive(Debug, Default)]
struct Catalogue(Vec<Version>);

/// One version of one group.
#[derive(Debug)]
struct Version {
    group: String,
    version: String,
    /// Its server does not answer; what it serves is not known, or from before.
    silent: bool,
    resources: Vec<Resource>,
}

#[derive(Debug)]
struct Resource {
    plural: String,
    singular: String,
    kind: String,
    short_names: Vec<String>,
    namespaced: bool,
    watchable: bool,
}

impl Resource {
    /// How well `name`, in lower case, fits: plural, singular, short name, kind, in this order.
    fn rank(&self, name: &str) -> Option<u8> {
        if self.plural == name {
            Some(0)
        } else if self.singular == name {
            Some(1)
        } else if self.short_names.iter().any(|short| short == name) {
            Some(2)
        } else {
            self.kind.eq_ignore_ascii_case(name).then_some(3)
        }
    }
}

impl Catalogue {
    fn find(&self, written: &str, known: Option<&ResourceInfo>) -> Result<ResourceInfo, Failure> {
        let written = written.to_lowercase();
        let mut unwatchable = false;
        let mut silent = false;
        for Name { name, version, group } in readings(&written) {
            let asked = |v: &&Version| version.is_none_or(|w| w == v.version) && group.is_none_or(|w| w == v.group);
            let fits =
                self.0.iter().filter(asked).flat_map(|v| {
                    v.resources.iter().filter_map(move |resource| Some((resource.rank(name)?, v, resource)))
                });
            let (watchable, rest): (Vec<_>, Vec<_>) = fits.partition(|(_, _, resource)| resource.watchable);
            unwatchable |= !rest.is_empty();
            // The first of the best rank: `min_by_key` returns the first of equal ones.
            if let Some((_, v, resource)) = watchable.into_iter().min_by_key(|(rank, _, _)| *rank) {
                return Ok(ResourceInfo {
                    group: v.group.as_str().into(),
                    version: v.version.as_str().into(),
                    resource: resource.plural.as_str().into(),
                    kind: resource.kind.as_str().into(),
                    namespaced: resource.namespaced,
                    streaming_list: false,
                });
            }
            let group = group.or(known.map(|info| &*info.group));
            silent |= self.0.iter().any(|v| v.silent && group == Some(v.group.as_str()));
        }
        let (kind, message) = if silent {
            (FailureKind::Unavailable, format!("the API group of {written} does not answer"))
        } else if unwatchable {
            (FailureKind::Rejected, format!("{written} cannot be listed and watched"))
        } else {
            let groups: Vec<_> = self.0.iter().filter(|v| v.silent).map(|v| v.group.as_str()).collect();
            let silent = if groups.is_empty() { String::new() } else { format!("; silent: {}", groups.join(", ")) };
            (FailureKind::NotFound, format!("the server has no resource {written}{silent}"))
        };
        Err(Failure::new(kind, message))
    }

    /// Whether any version of the group still has the resource.
    fn has(&self, info: &ResourceInfo) -> TypeAnswer {
        let mut versions = self.0.iter().filter(|v| v.group == *info.group);
        if versions.clone().any(|v| v.resources.iter().any(|resource| resource.plural == *info.resource)) {
            TypeAnswer::Present
        } else if versions.any(|v| v.silent) {
            TypeAnswer::Unknown
        } else {
            TypeAnswer::Absent
        }
    }
}

/// A name taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Name<'a> {
    name: &'a str,
    version: Option<&'a str>,
    group: Option<&'a str>,
}

/// How a name can be read, the most exact first: `name.version.group`, then `name.group`; a bare name is just that.
fn readings(written: &str) -> Vec<Name<'_>> {
    let Some((name, rest)) = written.split_once('.') else {
        return vec![Name { name: written, version: None, group: None }];
    };
    let versioned = rest.split_once('.').map(|(version, group)| (Some(version), Some(group)));
    let read = |(version, group)| Name { name, version, group };
    versioned.into_iter().chain([(None, Some(rest))]).map(read).collect()
}

async fn catalogue(client: &Client) -> Result<Catalogue, Failure> {
    let (core, groups) = tokio::join!(get(client, "/api", AGGREGATED), get(client, "/apis", AGGREGATED),);
    let (core, groups): (Answer, Answer) = (decode(&core?)?, decode(&groups?)?);
    let mut versions = core.versions(client, true).await?;
    versions.extend(groups.versions(client, false).await?);
    Ok(Catalogue(versions))
}

async fn get(client: &Client, path: &str, accept: &str) -> Result<Bytes, Failure> {
    client.get(path, accept, REQUEST_TIMEOUT, BYTES_MAX).await
}

fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(body)
        .map_err(|error| Failure::new(FailureKind::Undecodable, format!("discovery was not understood: {error}")))
}

/// `/api` or `/apis`: aggregated (`items`), or a list of what to ask (`versions`, `groups`).
#[derive(Deserialize)]
struct Answer {
    items: Option<Vec<GroupDiscovery>>,
    versions: Option<Vec<String>>,
    groups: Option<Vec<Group>>,
}

#[derive(Deserialize)]
struct GroupDiscovery {
    metadata: Option<Metadata>,
    #[serde(default)]
    versions: Vec<VersionDiscovery>,
}

#[derive(Deserialize)]
struct Metadata {
    name: Option<String>,
}

#[derive(Deserialize)]
struct VersionDiscovery {
    version: String,
    #[serde(default)]
    resources: Vec<ResourceDiscovery>,
    freshness: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery {
    resource: String,
    response_kind: Option<Kind>,
    scope: Option<String>,
    singular_resource: Option<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    short_names: Vec<String>,
}

#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    name: String,
    #[serde(default)]
    versions: Vec<GroupVersion>,
    preferred_version: Option<GroupVersion>,
}

#[derive(Deserialize, PartialEq)]
struct GroupVersion {
    version: String,
}

#[derive(Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<LegacyResource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LegacyResource {
    name: String,
    #[serde(default)]
    singular_name: String,
    #[serde(default)]
    namespaced: bool,
    kind: String,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    short_names: Vec<String>,
}

fn watchable(verbs: &[String]) -> bool {
    ["list", "watch"].iter().all(|verb| verbs.iter().any(|v| v == verb))
}

impl Answer {
    async fn versions(self, client: &Client, core: bool) -> Result<Vec<Version>, Failure> {
        if let Some(items) = self.items {
            return Ok(items.into_iter().flat_map(GroupDiscovery::versions).collect());
        }
        let asked: Vec<(String, String)> = match (core, self.versions, self.groups) {
            (true, Some(versions), _) => versions.into_iter().map(|version| (String::new(), version)).collect(),
            (false, _, Some(groups)) => groups.into_iter().flat_map(Group::versions).collect(),
            _ => return Err(Failure::new(FailureKind::Undecodable, "discovery answered neither of its forms")),
        };
        let one_by_one = asked.into_iter().map(|(group, version)| legacy(client, group, version));
        Ok(stream::iter(one_by_one).buffered(GROUPS_AT_ONCE).collect().await)
    }
}

impl GroupDiscovery {
    fn versions(self) -> impl Iterator<Item = Version> {
        let group = self.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
        self.versions.into_iter().map(move |version| Version {
            group: group.clone(),
            version: version.version,
            silent: version.freshness.as_deref() == Some("Stale"),
            resources: version.resources.into_iter().map(ResourceDiscovery::resource).collect(),
        })
    }
}

impl ResourceDiscovery {
    fn resource(self) -> Resource {
        Resource {
            plural: self.resource,
            singular: self.singular_resource.unwrap_or_default(),
            kind: self.response_kind.and_then(|kind| kind.kind).unwrap_or_default(),
            short_names: self.short_names,
            namespaced: self.scope.as_deref() == Some("Namespaced"),
            watchable: watchable(&self.verbs),
        }
    }
}

impl Group {
    /// Group and version, the preferred one first.
    fn versions(self) -> Vec<(String, String)> {
        let Self { name, versions, preferred_version } = self;
        let rest = versions.into_iter().filter(|version| Some(version) != preferred_version.as_ref());
        let rest: Vec<_> = rest.collect();
        preferred_version.into_iter().chain(rest).map(|version| (name.clone(), version.version)).collect()
    }
}

/// One version of one group, asked by itself. A group that does not answer does not stand in the way of the others.
async fn legacy(client: &Client, group: String, version: String) -> Version {
    let path = if group.is_empty() {
        format!("/api/{}", encode(&version))
    } else {
        format!("/apis/{}/{}", encode(&group), encode(&version))
    };
    let list = get(client, &path, JSON).await.and_then(|body| decode::<ResourceList>(&body));
    let (silent, resources) = match list {
        Ok(list) => (false, list.resources),
        Err(failure) => (failure.kind != FailureKind::NotFound, Vec::new()),
    };
    let whole = resources.into_iter().filter(|resource| !resource.name.contains('/'));
    let resources = whole.map(|resource| Resource {
        plural: resource.name,
        singular: resource.singular_name,
        kind: resource.kind,
        short_names: resource.short_names,
        namespaced: resource.namespaced,
        watchable: watchable(&resource.verbs),
    });
    Version { resources: resources.collect(), group, version, silent }
}

#[derive(Deserialize)]
struct ServerVersion {
    major: String,
    minor: String,
}

/// Whether the server's version is one that serves streaming lists by default; not when it does not say.
async fn streaming_list(client: &Client) -> bool {
    let version = get(client, "/version", JSON).await.and_then(|body| decode(&body));
    version.is_ok_and(|version: ServerVersion| version.number() >= Some(STREAMING_LIST_SINCE))
}

impl ServerVersion {
    fn number(&self) -> Option<(u32, u32)> {
        // Some distributions write a minor of `34+`.
        let minor: String = self.minor.chars().take_while(char::is_ascii_digit).collect();
        Some((self.major.parse().ok()?, minor.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(plural: &str, singular: &str, kind: &str, short: &str) -> Resource {
        Resource {
            plural: plural.into(),
            singular: singular.into(),
            kind: kind.into(),
            short_names: vec![short.into()],
            namespaced: true,
            watchable: true,
        }
    }

    fn version(group: &str, version: &str, resources: Vec<Resource>) -> Version {
        Version { group: group.into(), version: version.into(), silent: false, resources }
    }

    fn catalogue() -> Catalogue {
        let metrics = Resource { watchable: false, ..resource("pods", "pod", "PodMetrics", "") };
        let silent = Version { silent: true, ..version("down.io", "v1", Vec::new()) };
        Catalogue(vec![
            version("", "v1", vec![resource("pods", "pod", "Pod", "po"), resource("events", "event", "Event", "ev")]),
            version("apps", "v1", vec![resource("deployments", "deployment", "Deployment", "deploy")]),
            version("events.k8s.io", "v1", vec![resource("events", "event", "Event", "ev")]),
            version("metrics.k8s.io", "v1beta1", vec![metrics]),
            version("e.com", "v2", vec![resource("widgets", "widget", "Widget", "po")]),
            version("e.com", "v1", vec![resource("widgets", "widget", "Widget", "po")]),
            silent,
        ])
    }

    fn found(name: &str) -> String {
        match catalogue().find(name, None) {
            Ok(info) => format!("{}/{}", info.api_version(), info.resource),
            Err(failure) => format!("{:?}", failure.kind),
        }
    }

    #[test]
    fn names_are_read_as_kubectl_does() {
        for (name, expected) in [
            ("pods", "v1/pods"),
            ("pod", "v1/pods"),
            ("po", "v1/pods"),
            ("Pod", "v1/pods"),
            ("deploy", "apps/v1/deployments"),
            ("deployments.apps", "apps/v1/deployments"),
            ("deploy.v1.apps", "apps/v1/deployments"),
            ("events", "v1/events"),
            ("events.events.k8s.io", "events.k8s.io/v1/events"),
            ("events.v1.events.k8s.io", "events.k8s.io/v1/events"),
            ("events.v1.", "v1/events"),
            ("widgets", "e.com/v2/widgets"),
            ("widgets.e.com", "e.com/v2/widgets"),
            ("widgets.v1.e.com", "e.com/v1/widgets"),
            ("widgets.v3.e.com", "NotFound"),
            ("gadgets", "NotFound"),
            ("pods.metrics.k8s.io", "Rejected"),
            ("things.down.io", "Unavailable"),
        ] {
            assert_eq!(found(name), expected, "{name}");
        }
    }

    #[test]
    fn a_type_known_to_be_of_a_silent_group_is_unreachable_and_not_absent() {
        let known = ResourceInfo {
            group: "down.io".into(),
            version: "v1".into(),
            resource: "things".into(),
            kind: "Thing".into(),
            namespaced: true,
            streaming_list: false,
        };
        assert_eq!(catalogue().find("things", None).unwrap_err().kind, FailureKind::NotFound);
        assert_eq!(catalogue().find("things", Some(&known)).unwrap_err().kind, FailureKind::Unavailable);
        assert_eq!(catalogue().has(&known), TypeAnswer::Unknown);
        let widgets =
            |resource: &str| ResourceInfo { group: "e.com".into(), resource: resource.into(), ..known.clone() };
        assert_eq!(catalogue().has(&widgets("widgets")), TypeAnswer::Present);
        assert_eq!(catalogue().has(&widgets("gadgets")), TypeAnswer::Absent);
    }

    #[test]
    fn both_forms_of_aggregated_discovery_are_read() {
        let body = br#"{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":"apps"},"versions":[{"version":"v1",
            "freshness":"Current","resources":[{"resource":"deployments","responseKind":{"group":"","kind":"Deployment"},
            "scope":"Namespaced","singularResource":"deployment","verbs":["list","watch"],"shortNames":["deploy"],
            "subresources":[{"subresource":"scale"}]}]}]}]}"#;
        let answer: Answer = decode(body).unwrap();
        let versions: Vec<_> = answer.items.unwrap().into_iter().flat_map(GroupDiscovery::versions).collect();
        let info = Catalogue(versions).find("deploy", None).unwrap();
        assert_eq!((&*info.group, &*info.kind, info.namespaced), ("apps", "Deployment", true));
    }

    #[test]
    fn the_preferred_version_of_a_group_comes_first() {
        let group: Group = decode(
            br#"{"name":"g","versions":[{"version":"v2"},{"version":"v1"}],"preferredVersion":{"version":"v1"}}"#,
        )
        .unwrap();
        let versions: Vec<_> = group.versions().into_iter().map(|(_, version)| version).collect();
        assert_eq!(versions, ["v1", "v2"]);
    }

    #[test]
    fn streaming_lists_need_a_version_that_says_so() {
        let number = |major: &str, minor: &str| ServerVersion { major: major.into(), minor: minor.into() }.number();
        assert!(number("1", "34+") >= Some(STREAMING_LIST_SINCE));
        assert!(number("1", "33") < Some(STREAMING_LIST_SINCE));
        assert!(number("", "") < Some(STREAMING_LIST_SINCE));
    }
}
