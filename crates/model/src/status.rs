//! `metav1.Status` bodies, worded and coded as the API server does.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::resource::Resource;

/// A refused request: everything that its Status body says.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// HTTP status and `code`.
    pub code: u16,
    /// `reason`; empty where the server gives none.
    pub reason: &'static str,
    /// `message`.
    pub message: String,
    /// `details`; left out when absent.
    pub details: Option<Value>,
    /// Token in `metadata.continue` of an expired page.
    pub continue_token: Option<String>,
    /// Seconds of `Retry-After` and `details.retryAfterSeconds`.
    pub retry_after: Option<u32>,
}

impl Failure {
    /// Makes a failure without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Failure {
        Failure { code, reason, message: message.into(), details: None, continue_token: None, retry_after: None }
    }

    /// 400 BadRequest.
    pub fn bad_request(message: impl Into<String>) -> Failure {
        Failure::new(400, "BadRequest", message)
    }

    /// 404 for an object that does not exist.
    pub fn not_found(resource: &Resource, name: &str) -> Failure {
        let message = format!("{} {name:?} not found", resource.qualified());
        Failure { details: Some(details(resource, name)), ..Failure::new(404, "NotFound", message) }
    }

    /// 404 for a path of a known group and version.
    pub fn unknown_path() -> Failure {
        let message = "the server could not find the requested resource";
        Failure { details: Some(json!({})), ..Failure::new(404, "NotFound", message) }
    }

    /// 405.
    pub fn method_not_allowed() -> Failure {
        let message = "the server does not allow this method on the requested resource";
        Failure { details: Some(json!({})), ..Failure::new(405, "MethodNotAllowed", message) }
    }

    /// 409 for a name that is taken.
    pub fn already_exists(resource: &Resource, name: &str) -> Failure {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Failure { details: Some(details(resource, name)), ..Failure::new(409, "AlreadyExists", message) }
    }

    /// 409 for a write that is not based on the newest state.
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Failure {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        Failure { details: Some(details(resource, name)), ..Failure::new(409, "Conflict", message) }
    }

    /// 422 for an object with one bad field; `subject` is the kind or the resource, as the server
    /// words the case in question.
    pub fn invalid_object(subject: &str, mut details: Value, field: &str, cause: &'static str, why: &str) -> Failure {
        let name = details.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        if let Some(map) = details.as_object_mut() {
            if name.is_empty() {
                map.remove("name");
            }
            map.insert("causes".to_owned(), json!([{"reason": cause, "message": why, "field": field}]));
        }
        let message = format!("{subject} {name:?} is invalid: {field}: {why}");
        Failure { details: Some(details), ..Failure::new(422, "Invalid", message) }
    }

    /// 422 for list options that exclude one another.
    pub fn invalid_options(field: &str, cause: &'static str, why: &str) -> Failure {
        let details = json!({"name": "", "group": "meta.k8s.io", "kind": "ListOptions"});
        Failure::invalid_object("ListOptions.meta.k8s.io", details, field, cause, why)
    }

    /// 410 for an exact list of a compacted revision.
    pub fn expired_list() -> Failure {
        Failure::new(410, "Expired", "The resourceVersion for the provided list is too old.")
    }

    /// 410 for a page whose revision is compacted, with a token that continues inconsistently.
    pub fn expired_page(continue_token: String) -> Failure {
        let message = "The provided continue parameter is too old to display a consistent list result. \
            Start again without it, or go on with the token in this response, which shows later pages at a newer state.";
        Failure { continue_token: Some(continue_token), ..Failure::new(410, "Expired", message) }
    }

    /// 410 for a watch that starts before the watch window.
    pub fn expired_watch(requested: u64, oldest: u64) -> Failure {
        Failure::new(410, "Expired", format!("too old resource version: {requested} ({oldest})"))
    }

    /// 504 for a version that the server has not reached.
    pub fn too_large_version(requested: u64, current: u64) -> Failure {
        let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
        let causes = json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
        let details = Some(json!({"causes": causes}));
        Failure { details, retry_after: Some(1), ..Failure::new(504, "Timeout", message) }
    }

    /// 429, as the overloaded or ending server answers.
    pub fn too_many_requests(retry_after: u32) -> Failure {
        let message = "The apiserver is currently overloaded, please try again later.";
        let details = Some(json!({}));
        Failure { details, retry_after: Some(retry_after), ..Failure::new(429, "TooManyRequests", message) }
    }

    /// Renders the Status object.
    pub fn body(&self) -> Bytes {
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".to_owned(), json!(token));
        }
        let mut details = self.details.clone();
        if let (Some(seconds), Some(Value::Object(map))) = (self.retry_after, details.as_mut()) {
            map.insert("retryAfterSeconds".to_owned(), json!(seconds));
        }
        let mut text = format!(
            r#"{{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":{}"#,
            Value::Object(metadata),
            json!(self.message)
        );
        if !self.reason.is_empty() {
            text.push_str(&format!(r#","reason":"{}""#, self.reason));
        }
        if let Some(details) = details {
            text.push_str(&format!(r#","details":{details}"#));
        }
        text.push_str(&format!(r#","code":{}}}"#, self.code));
        Bytes::from(text)
    }
}

/// Returns `details` that name an object of a type.
pub fn details(resource: &Resource, name: &str) -> Value {
    let mut map = Map::new();
    map.insert("name".to_owned(), json!(name));
    if !resource.group.is_empty() {
        map.insert("group".to_owned(), json!(resource.group));
    }
    map.insert("kind".to_owned(), json!(resource.plural));
    Value::Object(map)
}

/// Returns `details` as field validation writes them: with the kind in place of the plural name.
pub fn kind_details(resource: &Resource, name: &str) -> Value {
    let mut value = details(resource, name);
    value["kind"] = json!(resource.kind);
    value
}

/// Renders the Status that answers a completed deletion.
pub fn deleted(resource: &Resource, name: &str, uid: &str) -> Bytes {
    let mut value = details(resource, name);
    value["uid"] = json!(uid);
    Bytes::from(format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Success","details":{value}}}"#
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::Failure;
    use crate::resource::Resource;

    #[test]
    fn a_missing_object_is_named_with_its_group() {
        let lease = Resource::built_in().into_iter().find(|resource| resource.plural == "leases").unwrap();
        let body: Value = serde_json::from_slice(&Failure::not_found(&lease, "a").body()).unwrap();
        assert_eq!(body["message"], r#"leases.coordination.k8s.io "a" not found"#);
        assert_eq!((&body["code"], &body["details"]["group"]), (&404.into(), &"coordination.k8s.io".into()));
    }

    #[test]
    fn retry_seconds_stand_in_the_details() {
        let body: Value = serde_json::from_slice(&Failure::too_large_version(9, 5).body()).unwrap();
        assert_eq!(body["details"]["retryAfterSeconds"], 1);
        assert_eq!(body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    }
}
