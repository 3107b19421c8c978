//! `metav1.Status` and HTTP status codes, sorted by what the caller does next.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

/// Why a request or a stream failed, by what the caller does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// 410: the history asked for is gone (`Expired`, or `Gone` before 1.18).
    Expired,
    /// 401: the credentials were refused.
    Unauthorized,
    /// 403: a right is missing.
    Forbidden,
    /// 404: the object or the type does not exist.
    NotFound,
    /// 409: somebody else wrote first, or the object exists already.
    Conflict,
    /// 429: too many requests, or the server is shutting down.
    TooManyRequests,
    /// 400, 405, 406, 415 or 422: this form of the request is not understood.
    Rejected,
    /// 504 with the cause `ResourceVersionTooLarge`: the server has not caught up with the version asked for.
    VersionTooLarge,
    /// 5xx, or anything else that a later try may mend.
    Unavailable,
    /// No answer within the deadline, or a stream that went silent.
    Timeout,
    /// The connection could not be made or broke.
    Transport,
    /// The answer could not be decoded.
    Undecodable,
}

/// A failure with what the server said about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What to do next.
    pub kind: FailureKind,
    /// For people: the server's message or the transport's. Holds no body and no credential.
    pub message: String,
    /// The server's wish: not before this long.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure without a wish for the next try.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

/// The fields of a `metav1.Status` that matter.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    message: Option<String>,
    code: Option<u16>,
    details: Option<Details>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    causes: Option<Vec<Cause>>,
    retry_after_seconds: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Cause {
    reason: Option<String>,
}

/// Characters of a message that are kept: enough for people, too few for a body.
const MESSAGE_CHARS_MAX: usize = 400;

/// The failure behind an HTTP answer that is not 2xx: its code, its body (a Status or anything), and `Retry-After`.
pub fn from_answer(code: u16, body: &[u8], retry_after: Option<Duration>) -> Failure {
    let status = serde_json::from_slice(body).unwrap_or_default();
    failure(code, status, retry_after)
}

/// The failure inside an ERROR event: the Status is its object.
pub fn in_stream(status: &[u8]) -> Failure {
    let status: Status = serde_json::from_slice(status).unwrap_or_default();
    failure(status.code.unwrap_or_default(), status, None)
}

fn failure(code: u16, status: Status, retry_after: Option<Duration>) -> Failure {
    let details = status.details.unwrap_or_default();
    let causes = details.causes.unwrap_or_default();
    let too_large = causes.iter().any(|cause| cause.reason.as_deref() == Some("ResourceVersionTooLarge"));
    let kind = match code {
        401 => FailureKind::Unauthorized,
        403 => FailureKind::Forbidden,
        404 => FailureKind::NotFound,
        409 => FailureKind::Conflict,
        410 => FailureKind::Expired,
        429 => FailureKind::TooManyRequests,
        400 | 405 | 406 | 415 | 422 => FailureKind::Rejected,
        504 if too_large => FailureKind::VersionTooLarge,
        _ => FailureKind::Unavailable,
    };
    let message = match status.message {
        Some(message) if !message.is_empty() => message.chars().take(MESSAGE_CHARS_MAX).collect(),
        _ => format!("the server answered with code {code}"),
    };
    let wish = details.retry_after_seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    Failure { kind, message, retry_after: retry_after.or(wish) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_by_what_to_do_next() {
        for (code, kind) in [
            (400, FailureKind::Rejected),
            (401, FailureKind::Unauthorized),
            (403, FailureKind::Forbidden),
            (404, FailureKind::NotFound),
            (405, FailureKind::Rejected),
            (406, FailureKind::Rejected),
            (409, FailureKind::Conflict),
            (410, FailureKind::Expired),
            (415, FailureKind::Rejected),
            (422, FailureKind::Rejected),
            (429, FailureKind::TooManyRequests),
            (500, FailureKind::Unavailable),
            (503, FailureKind::Unavailable),
            (504, FailureKind::Unavailable),
            (302, FailureKind::Unavailable),
        ] {
            assert_eq!(from_answer(code, b"", None).kind, kind, "{code}");
        }
    }

    #[test]
    fn a_version_too_large_is_told_by_its_cause() {
        let body =
            br#"{"kind":"Status","message":"Timeout: Too large resource version: 9, current: 5","reason":"Timeout",
            "details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],
            "retryAfterSeconds":1},"code":504}"#;
        let failure = from_answer(504, body, None);
        assert_eq!(failure.kind, FailureKind::VersionTooLarge);
        assert_eq!(failure.retry_after, Some(Duration::from_secs(1)));
        assert_eq!(in_stream(body).kind, FailureKind::VersionTooLarge);
    }

    #[test]
    fn the_header_wins_over_the_body_and_a_body_of_any_kind_is_tolerated() {
        let seconds = Some(Duration::from_secs(7));
        let body = br#"{"details":{"retryAfterSeconds":1}}"#;
        assert_eq!(from_answer(429, body, seconds).retry_after, seconds);
        for body in [&b"<html>"[..], b"null", b"{\"details\":null,\"message\":null}", b"[1]", b"\xff"] {
            let failure = from_answer(503, body, None);
            assert_eq!(failure.message, "the server answered with code 503");
        }
        let long = format!(r#"{{"message":"{}"}}"#, "é".repeat(1000));
        assert_eq!(from_answer(500, long.as_bytes(), None).message.chars().count(), MESSAGE_CHARS_MAX);
    }
}
