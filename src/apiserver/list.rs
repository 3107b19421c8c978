//! Pages of a LIST, and where a resource lives.

use std::fmt::Display;

use sidewatch_core::codec::list_page::{self, ListPage};
use sidewatch_core::codec::status::{Failure, FailureKind};
use sidewatch_core::feed::{FeedSpec, ListMode, ListRequest, ResourceInfo};
use sidewatch_core::limits::{LIST_PAGE_BYTES_MAX, REQUEST_TIMEOUT};

use crate::apiserver::client::{self, Client};

/// Metadata of each object instead of the object, for lists of which only the version is wanted.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// Gets one page and decodes it.
///
/// # Errors
/// When the server refuses, breaks off, does not answer in time, or answers what is not a list.
pub async fn page(
    client: &Client,
    spec: &FeedSpec,
    info: &ResourceInfo,
    list: &ListRequest,
) -> Result<ListPage, Failure> {
    let accept = if list.metadata_only { METADATA } else { client::JSON };
    let path = path_of_list(spec, info, list);
    let body = client.get(&path, accept, REQUEST_TIMEOUT, LIST_PAGE_BYTES_MAX).await?;
    list_page::decode(body, spec.managed_fields)
        .map_err(|error| Failure::new(FailureKind::Undecodable, format!("the list was not understood: {error}")))
}

fn path_of_list(spec: &FeedSpec, info: &ResourceInfo, list: &ListRequest) -> String {
    let mut url = Url::new(spec, info);
    // A continued list must not repeat the version or its match: they are in the token.
    match (&list.mode, &list.continue_token) {
        (_, Some(token)) => url.add("continue", token),
        (ListMode::Consistent, None) => {}
        (ListMode::NotOlderThan(version), None) => {
            url.add("resourceVersion", version);
            url.add("resourceVersionMatch", "NotOlderThan");
        }
        (ListMode::Exact(version), None) => {
            url.add("resourceVersion", version);
            url.add("resourceVersionMatch", "Exact");
        }
    }
    if let Some(limit) = list.limit {
        url.add("limit", limit);
    }
    url.0
}

/// Path and query of a feed's collection, in the making.
pub(crate) struct Url(pub(crate) String);

impl Url {
    /// The collection of `info` in the feed's namespace, with its selectors.
    pub(crate) fn new(spec: &FeedSpec, info: &ResourceInfo) -> Self {
        let mut path = if info.group.is_empty() {
            format!("/api/{}", encode(&info.version))
        } else {
            format!("/apis/{}/{}", encode(&info.group), encode(&info.version))
        };
        if let Some(namespace) = &spec.namespace {
            path.push_str("/namespaces/");
            path.push_str(&encode(namespace));
        }
        path.push('/');
        path.push_str(&encode(&info.resource));
        let mut url = Self(path);
        if !spec.label_selector.is_empty() {
            url.add("labelSelector", &spec.label_selector);
        }
        if !spec.field_selector.is_empty() {
            url.add("fieldSelector", &spec.field_selector);
        }
        url
    }

    /// Adds a parameter.
    pub(crate) fn add(&mut self, name: &str, value: impl Display) {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        self.0.push_str(name);
        self.0.push('=');
        self.0.push_str(&encode(&value.to_string()));
    }
}

/// Percent-encodes a path segment or a query value: everything but the unreserved characters of RFC 3986.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use sidewatch_core::codec::watch_event::ManagedFields;
    use sidewatch_core::resource_version::ResourceVersion;

    use super::*;

    pub(crate) fn spec(namespace: Option<&str>, labels: &str, fields: &str) -> FeedSpec {
        FeedSpec {
            name: "f".into(),
            resource: "pods".into(),
            namespace: namespace.map(Arc::from),
            label_selector: labels.into(),
            field_selector: fields.into(),
            managed_fields: ManagedFields::Drop,
        }
    }

    pub(crate) fn info(group: &str, resource: &str) -> ResourceInfo {
        ResourceInfo {
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            kind: "Pod".into(),
            namespaced: true,
            streaming_list: true,
        }
    }

    fn list(mode: ListMode, continue_token: Option<&str>) -> ListRequest {
        ListRequest { mode, limit: Some(500), continue_token: continue_token.map(Into::into), metadata_only: false }
    }

    #[test]
    fn the_first_page_names_its_version_and_later_pages_only_the_token() {
        let version = || ResourceVersion::from(7);
        let path = |mode, token| path_of_list(&spec(None, "", ""), &info("", "pods"), &list(mode, token));
        assert_eq!(path(ListMode::Consistent, None), "/api/v1/pods?limit=500");
        assert_eq!(
            path(ListMode::NotOlderThan(version()), None),
            "/api/v1/pods?resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=500"
        );
        assert_eq!(
            path(ListMode::Exact(version()), None),
            "/api/v1/pods?resourceVersion=7&resourceVersionMatch=Exact&limit=500"
        );
        assert_eq!(path(ListMode::Exact(version()), Some("a=/")), "/api/v1/pods?continue=a%3D%2F&limit=500");
    }

    #[test]
    fn what_is_not_unreserved_is_encoded() {
        assert_eq!(encode("app=x,env in (a b)&é/"), "app%3Dx%2Cenv%20in%20%28a%20b%29%26%C3%A9%2F");
        assert_eq!(encode("metadata.name-0_~"), "metadata.name-0_~");
    }

    #[test]
    fn namespace_group_and_selectors_are_in_the_url() {
        let spec = spec(Some("shop"), "app in (a,b)", "spec.nodeName=n");
        assert_eq!(
            Url::new(&spec, &info("e.com", "widgets")).0,
            "/apis/e.com/v1/namespaces/shop/widgets?labelSelector=app%20in%20%28a%2Cb%29&fieldSelector=spec.nodeName%3Dn"
        );
    }
}
