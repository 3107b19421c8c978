//! `metav1.Status` and HTTP status codes, sorted by what the caller does next.

use std::fmt;
use std::time::Duration;

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
