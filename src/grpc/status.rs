//! Every error that leaves: code, `ErrorInfo` reason and metadata, and a retry delay where waiting helps (C.5).
//!
//! No other file makes a `tonic::Status`.

use std::collections::HashMap;
use std::time::Duration;

use sidewatch_core::session::{AckError, SessionError};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::delivery::NotLeading;

/// `ErrorInfo.domain` of all our errors.
pub const ERROR_DOMAIN: &str = "sidewatch.v1";

/// How long a client should wait before it asks again while the sidecar shuts down or is full: about the time of a
/// container's restart.
pub const RETRY_DELAY: Duration = Duration::from_secs(1);

/// `ErrorInfo.reason`: public words, never changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// A field has a value that its rule forbids; metadata `field`, `value`, `rule`.
    FieldInvalid,
    /// A cursor that is not one of ours.
    CursorMalformed,
    /// A label selector that does not parse.
    SelectorInvalid,
    /// A field mask that does not parse.
    FieldMaskInvalid,
    /// No such feed.
    FeedUnknown,
    /// No such durable subscription.
    SubscriptionUnknown,
    /// A health check of a name that is not served.
    ServiceUnknown,
    /// This replica does not lead; metadata `holder`, `epoch`.
    NotLeader,
    /// An ack of something that was not delivered.
    CursorAhead,
    /// The cursor is of another cluster.
    CursorClusterMismatch,
    /// A newer session has the subscription, or the session is gone.
    SessionSuperseded,
    /// History is lost and the client wanted the call to fail then.
    HistoryLost,
    /// There are as many sessions as this sidecar serves.
    TooManySubscriptions,
    /// The sidecar shuts down.
    ShuttingDown,
    /// An option that this release does not have; metadata `field`, `value`.
    NotImplemented,
}

impl Reason {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FieldInvalid => "FIELD_INVALID",
            Self::CursorMalformed => "CURSOR_MALFORMED",
            Self::SelectorInvalid => "SELECTOR_INVALID",
            Self::FieldMaskInvalid => "FIELD_MASK_INVALID",
            Self::FeedUnknown => "FEED_UNKNOWN",
            Self::SubscriptionUnknown => "SUBSCRIPTION_UNKNOWN",
            Self::ServiceUnknown => "SERVICE_UNKNOWN",
            Self::NotLeader => "NOT_LEADER",
            Self::CursorAhead => "CURSOR_AHEAD",
            Self::CursorClusterMismatch => "CURSOR_CLUSTER_MISMATCH",
            Self::SessionSuperseded => "SESSION_SUPERSEDED",
            Self::HistoryLost => "HISTORY_LOST",
            Self::TooManySubscriptions => "TOO_MANY_SUBSCRIPTIONS",
            Self::ShuttingDown => "SHUTTING_DOWN",
            Self::NotImplemented => "NOT_IMPLEMENTED",
        }
    }

    /// The code that goes with the reason.
    pub const fn code(self) -> Code {
        match self {
            Self::FieldInvalid | Self::CursorMalformed | Self::SelectorInvalid | Self::FieldMaskInvalid => {
                Code::InvalidArgument
            }
            Self::FeedUnknown | Self::SubscriptionUnknown | Self::ServiceUnknown => Code::NotFound,
            Self::NotLeader | Self::CursorAhead | Self::CursorClusterMismatch => Code::FailedPrecondition,
            Self::SessionSuperseded => Code::Aborted,
            Self::HistoryLost => Code::OutOfRange,
            Self::TooManySubscriptions => Code::ResourceExhausted,
            Self::ShuttingDown => Code::Unavailable,
            Self::NotImplemented => Code::Unimplemented,
        }
    }

    /// How long to wait before asking again; none when waiting does not help.
    const fn retry_delay(self) -> Option<Duration> {
        match self {
            Self::TooManySubscriptions | Self::ShuttingDown => Some(RETRY_DELAY),
            Self::FieldInvalid
            | Self::CursorMalformed
            | Self::SelectorInvalid
            | Self::FieldMaskInvalid
            | Self::FeedUnknown
            | Self::SubscriptionUnknown
            | Self::ServiceUnknown
            | Self::NotLeader
            | Self::CursorAhead
            | Self::CursorClusterMismatch
            | Self::SessionSuperseded
            | Self::HistoryLost
            | Self::NotImplemented => None,
        }
    }
}

/// A request field that was refused: which, its value, and the rule it breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Why, as a word.
    pub reason: Reason,
    /// Path of the field within the request, in the spelling of the `.proto`.
    pub field: &'static str,
    /// The value as text, shortened.
    pub value: String,
    /// What the field needs.
    pub rule: String,
}

/// Longest value of a request that is sent back.
const VALUE_CHARS_MAX: usize = 80;
/// Longest rule: it may quote the request, and goes out four times.
const RULE_CHARS_MAX: usize = 300;
/// Longest text of an error, and of each entry of its metadata: both travel in HTTP trailers, of which some clients
/// take no more than 8 KiB.
const TEXT_CHARS_MAX: usize = 800;

impl Refusal {
    /// A refusal of `field`, which has `value` and breaks `rule`.
    pub fn new(reason: Reason, field: &'static str, value: &str, rule: impl Into<String>) -> Self {
        Self { reason, field, value: shortened(value, VALUE_CHARS_MAX), rule: shortened(&rule.into(), RULE_CHARS_MAX) }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let Refusal { reason, field, value, rule } = refusal;
        let message = format!("{field} = {value:?}: {rule}");
        let mut details = details(reason, &[("field", field), ("value", &value), ("rule", &rule)]);
        details.add_bad_request_violation(field, rule);
        Self::with_error_details(reason.code(), message, details)
    }
}

/// The end of a session that the core refused or ended.
pub fn session_ended(error: &SessionError) -> Status {
    let message = error.to_string();
    match error {
        SessionError::FeedUnknown { name, known } => {
            refuse(Reason::FeedUnknown, message, &[("field", "feeds"), ("value", name), ("known", known)])
        }
        SessionError::SubscriptionUnknown { name, known } => {
            let metadata = [("field", "subscription"), ("value", name), ("known", known)];
            refuse(Reason::SubscriptionUnknown, message, &metadata)
        }
        SessionError::Contradiction { field, rule } => {
            refuse(Reason::FieldInvalid, message, &[("field", field), ("rule", rule)])
        }
        SessionError::CursorClusterMismatch => refuse(Reason::CursorClusterMismatch, message, &[("field", "cursor")]),
        SessionError::HistoryLost { feed } => refuse(Reason::HistoryLost, message, &[("feed", feed)]),
        SessionError::Superseded => refuse(Reason::SessionSuperseded, message, &[]),
        SessionError::ShuttingDown => shutting_down(),
    }
}

/// An ack that the core refused.
pub fn ack_refused(error: &AckError) -> Status {
    let message = error.to_string();
    match error {
        AckError::Unnamed => {
            let rule = "must be set, or session_id for an ephemeral session";
            refuse(Reason::FieldInvalid, message, &[("field", "subscription"), ("rule", rule)])
        }
        AckError::SubscriptionUnknown { name } => {
            refuse(Reason::SubscriptionUnknown, message, &[("field", "subscription"), ("value", name)])
        }
        AckError::Malformed(_) => refuse(Reason::CursorMalformed, message, &[("field", "cursor")]),
        AckError::Ahead => refuse(Reason::CursorAhead, message, &[("field", "cursor")]),
        AckError::NotLeader { holder, epoch } => {
            refuse(Reason::NotLeader, message, &[("holder", holder), ("epoch", &epoch.to_string())])
        }
        AckError::Superseded { session } => {
            refuse(Reason::SessionSuperseded, message, &[("field", "session_id"), ("value", session)])
        }
    }
}

/// A StepDown on a replica that does not lead.
pub fn not_leading(error: &NotLeading) -> Status {
    let epoch = error.epoch.to_string();
    refuse(Reason::NotLeader, error.to_string(), &[("holder", &error.holder), ("epoch", &epoch)])
}

/// A health check of a name that is not served.
pub fn health_service_unknown(service: &str) -> Status {
    let rule = "must be \"\", sidewatch.v1.ready or sidewatch.v1.leader";
    Refusal::new(Reason::ServiceUnknown, "service", service, rule).into()
}

/// The sidecar shuts down: nothing more is served.
pub fn shutting_down() -> Status {
    refuse(Reason::ShuttingDown, "the sidecar shuts down".to_owned(), &[])
}

/// There are `sessions_max` sessions already.
pub fn too_many_sessions(sessions_max: usize) -> Status {
    let message = format!("{sessions_max} sessions are open, which is the most this sidecar serves");
    refuse(Reason::TooManySubscriptions, message, &[("sessions_max", &sessions_max.to_string())])
}

fn refuse(reason: Reason, message: String, metadata: &[(&str, &str)]) -> Status {
    Status::with_error_details(reason.code(), shortened(&message, TEXT_CHARS_MAX), details(reason, metadata))
}

fn details(reason: Reason, metadata: &[(&str, &str)]) -> ErrorDetails {
    let metadata: HashMap<String, String> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), shortened(value, TEXT_CHARS_MAX))).collect();
    let mut details = ErrorDetails::with_error_info(reason.as_str(), ERROR_DOMAIN, metadata);
    if let Some(delay) = reason.retry_delay() {
        details.set_retry_info(Some(delay));
    }
    details
}

/// At most the first `chars_max` characters, with a mark where something was cut.
fn shortened(text: &str, chars_max: usize) -> String {
    let mut kept: String = text.chars().take(chars_max).collect();
    if kept.len() < text.len() {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use sidewatch_core::codec::cursor::CursorError;
    use sidewatch_core::epoch::Epoch;

    use super::*;

    fn info(status: &Status) -> (Code, String, HashMap<String, String>) {
        let info = status.get_details_error_info().expect("every error has an ErrorInfo");
        assert_eq!(info.domain, ERROR_DOMAIN);
        (status.code(), info.reason, info.metadata)
    }

    #[test]
    fn every_session_error_has_its_code_and_reason() {
        let unknown = || ("a".to_owned(), "b, c".to_owned());
        let (name, known) = unknown();
        let cases = [
            (SessionError::FeedUnknown { name, known }, Code::NotFound, "FEED_UNKNOWN"),
            (
                SessionError::SubscriptionUnknown { name: unknown().0, known: unknown().1 },
                Code::NotFound,
                "SUBSCRIPTION_UNKNOWN",
            ),
            (SessionError::Contradiction { field: "f", rule: "r" }, Code::InvalidArgument, "FIELD_INVALID"),
            (SessionError::CursorClusterMismatch, Code::FailedPrecondition, "CURSOR_CLUSTER_MISMATCH"),
            (SessionError::HistoryLost { feed: "pods".to_owned() }, Code::OutOfRange, "HISTORY_LOST"),
            (SessionError::Superseded, Code::Aborted, "SESSION_SUPERSEDED"),
            (SessionError::ShuttingDown, Code::Unavailable, "SHUTTING_DOWN"),
        ];
        for (error, code, reason) in cases {
            let (got_code, got_reason, _) = info(&session_ended(&error));
            assert_eq!((got_code, got_reason.as_str()), (code, reason), "{error:?}");
        }
    }

    #[test]
    fn every_ack_error_has_its_code_and_reason() {
        let name = "a".to_owned();
        let cases = [
            (AckError::Unnamed, Code::InvalidArgument, "FIELD_INVALID"),
            (AckError::SubscriptionUnknown { name: name.clone() }, Code::NotFound, "SUBSCRIPTION_UNKNOWN"),
            (AckError::Malformed(CursorError::Checksum), Code::InvalidArgument, "CURSOR_MALFORMED"),
            (AckError::Ahead, Code::FailedPrecondition, "CURSOR_AHEAD"),
            (AckError::NotLeader { holder: name.clone(), epoch: Epoch::NONE }, Code::FailedPrecondition, "NOT_LEADER"),
            (AckError::Superseded { session: name }, Code::Aborted, "SESSION_SUPERSEDED"),
        ];
        for (error, code, reason) in cases {
            let (got_code, got_reason, _) = info(&ack_refused(&error));
            assert_eq!((got_code, got_reason.as_str()), (code, reason), "{error:?}");
        }
    }

    #[test]
    fn a_refusal_names_field_value_and_rule() {
        let status =
            Status::from(Refusal::new(Reason::SelectorInvalid, "filter.label_selector", "a in", "needs a set"));
        assert_eq!(status.message(), "filter.label_selector = \"a in\": needs a set");
        let (code, reason, metadata) = info(&status);
        assert_eq!((code, reason.as_str()), (Code::InvalidArgument, "SELECTOR_INVALID"));
        assert_eq!(metadata["field"], "filter.label_selector");
        assert_eq!(metadata["value"], "a in");
        assert_eq!(metadata["rule"], "needs a set");
        let violations = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(violations[0].field, "filter.label_selector");
    }

    #[test]
    fn a_long_value_is_shortened_between_characters() {
        let refusal = Refusal::new(Reason::FieldInvalid, "f", &"ü".repeat(500), "r");
        assert_eq!(refusal.value.chars().count(), VALUE_CHARS_MAX + 1);
    }

    #[test]
    fn a_rule_that_quotes_the_request_fits_into_trailers() {
        let status = Status::from(Refusal::new(Reason::SelectorInvalid, "f", "v", "x".repeat(100_000)));
        assert!(status.message().len() + status.details().len() < 4 << 10);
    }

    #[test]
    fn a_long_list_of_names_fits_into_trailers() {
        let known = (0..500).map(|number| format!("feed-{number}")).collect::<Vec<_>>().join(", ");
        let status = session_ended(&SessionError::FeedUnknown { name: "x".repeat(253), known });
        assert!(status.message().len() + status.details().len() < 4 << 10);
    }

    #[test]
    fn a_leader_elsewhere_is_named() {
        let error = NotLeading { holder: "pod-1".to_owned(), epoch: Epoch::from_u64(9) };
        let (_, _, metadata) = info(&not_leading(&error));
        assert_eq!((metadata["holder"].as_str(), metadata["epoch"].as_str()), ("pod-1", "9"));
    }

    #[test]
    fn waiting_helps_at_shutdown_and_when_full() {
        for status in [shutting_down(), too_many_sessions(3)] {
            assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(RETRY_DELAY));
        }
        assert!(session_ended(&SessionError::Superseded).get_details_retry_info().is_none());
    }
}
