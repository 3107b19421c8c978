//! `SubscribeRequest` → `Open`: every field is parsed and bounded here; behind it, values are trusted.
//!
//! What depends on configuration or state (which feeds there are, whether a position is stored) is the core's to
//! refuse.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sidewatch_core::codec::cursor::Cursor;
use sidewatch_core::filter::{EventTypes, FieldMask, Filter};
use sidewatch_core::frame::Encoding;
use sidewatch_core::limits::{
    BATCH_EVENTS_MAX, FRAME_BYTES_MAX, FRAME_BYTES_MIN, HEARTBEAT_INTERVAL_DEFAULT, HEARTBEAT_INTERVAL_MIN,
};
use sidewatch_core::selector::LabelSelector;
use sidewatch_core::session::{AckRequest, GapPolicy, Open, Start, UpdateDetail};

use crate::grpc::pb;
use crate::grpc::status::{Reason, Refusal};

/// Longest name of a feed or a session: that of a Kubernetes object.
const NAME_BYTES_MAX: usize = 253;
/// Longest DNS label: namespaces and subscriptions.
const LABEL_BYTES_MAX: usize = 63;

/// Parses a request for a session.
///
/// # Errors
/// [`Refusal`] of the first field that breaks its rule.
pub fn open(request: pb::SubscribeRequest) -> Result<Open, Refusal> {
    let payload = request.payload.unwrap_or_default();
    let encoding = encoding(payload.encoding)?;
    let fields = fields(payload.fields, encoding)?;
    let filter = filter(request.filter.unwrap_or_default(), fields.as_ref())?;
    Ok(Open {
        subscription: subscription(&request.subscription)?,
        feeds: request.feeds.iter().map(|name| feed(name)).collect::<Result<_, _>>()?,
        start: start(request.start_mode, &request.cursor)?,
        filter,
        encoding,
        update_detail: update_detail(payload.update_detail)?,
        fields,
        unacked_events_max: (request.max_unacked_events > 0).then_some(request.max_unacked_events),
        frame_bytes_max: frame_bytes_max(request.max_frame_bytes)?,
        batch_events_max: match request.max_batch_events as usize {
            0 => BATCH_EVENTS_MAX,
            // More than the limit is asking for at most more, which fewer satisfies.
            events => events.min(BATCH_EVENTS_MAX),
        },
        batch_delay_max: duration("max_batch_delay", request.max_batch_delay)?,
        heartbeat_interval: heartbeat_interval(request.heartbeat_interval)?,
        gap_policy: gap_policy(request.gap_policy)?,
        end_after_snapshot: request.end_after_snapshot,
        ignore_leadership: request.ignore_leadership,
    })
}

/// Parses an ack. The cursor stays text: the core reads it.
///
/// # Errors
/// [`Refusal`] of the first field that breaks its rule.
pub fn ack(request: pb::AckRequest) -> Result<AckRequest, Refusal> {
    if request.session_id.len() > NAME_BYTES_MAX {
        let rule = "must be a session_id from SessionStarted";
        return Err(Refusal::new(Reason::FieldInvalid, "session_id", &request.session_id, rule));
    }
    Ok(AckRequest {
        subscription: subscription(&request.subscription)?,
        session: (!request.session_id.is_empty()).then_some(request.session_id),
        cursor: request.cursor,
        wait_durable: request.wait_durable,
    })
}

/// A duration field; zero when it is absent.
///
/// # Errors
/// [`Refusal`] when it is negative or not well formed.
pub fn duration(field: &'static str, duration: Option<prost_types::Duration>) -> Result<Duration, Refusal> {
    let Some(duration) = duration else { return Ok(Duration::ZERO) };
    match (u64::try_from(duration.seconds), u32::try_from(duration.nanos)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Ok(Duration::new(seconds, nanos)),
        _ => {
            let value = format!("{} s {} ns", duration.seconds, duration.nanos);
            Err(invalid(field, &value, "must not be negative, with nanos below 1000000000"))
        }
    }
}

fn subscription(name: &str) -> Result<Option<Arc<str>>, Refusal> {
    if name.is_empty() {
        return Ok(None);
    }
    if !is_dns_label(name) {
        return Err(invalid("subscription", name, "must match [a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"));
    }
    Ok(Some(name.into()))
}

fn feed(name: &str) -> Result<Arc<str>, Refusal> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(invalid("feeds", name, format!("must be names of 1 to {NAME_BYTES_MAX} bytes")));
    }
    Ok(name.into())
}

fn start(mode: i32, cursor: &str) -> Result<Start, Refusal> {
    let mode = known::<pb::StartMode>("start_mode", mode)?;
    if mode == pb::StartMode::Cursor {
        let malformed = |error| Refusal::new(Reason::CursorMalformed, "cursor", cursor, format!("{error}"));
        return Cursor::decode(cursor).map(Start::Cursor).map_err(malformed);
    }
    if !cursor.is_empty() {
        return Err(invalid("cursor", cursor, "needs start_mode = START_MODE_CURSOR"));
    }
    Ok(match mode {
        pb::StartMode::Unspecified => Start::Unspecified,
        pb::StartMode::Stored => Start::Stored,
        pb::StartMode::Snapshot => Start::Snapshot,
        pb::StartMode::Live => Start::Live,
        pb::StartMode::Cursor => unreachable!("handled above"),
    })
}

fn encoding(encoding: i32) -> Result<Encoding, Refusal> {
    Ok(match known::<pb::PayloadEncoding>("payload.encoding", encoding)? {
        pb::PayloadEncoding::Unspecified | pb::PayloadEncoding::Json => Encoding::Json,
        pb::PayloadEncoding::Struct => Encoding::Struct,
        pb::PayloadEncoding::Metadata => Encoding::Metadata,
        pb::PayloadEncoding::None => Encoding::None,
    })
}

fn update_detail(detail: i32) -> Result<UpdateDetail, Refusal> {
    let detail = known::<pb::UpdateDetail>("payload.update_detail", detail)?;
    match detail {
        pb::UpdateDetail::Unspecified | pb::UpdateDetail::NewAndOld => Ok(UpdateDetail::NewAndOld),
        pb::UpdateDetail::New => Ok(UpdateDetail::New),
        pb::UpdateDetail::NewAndPatch | pb::UpdateDetail::Patch => {
            let rule = "not in this release; use UPDATE_DETAIL_NEW_AND_OLD or UPDATE_DETAIL_NEW";
            Err(Refusal::new(Reason::NotImplemented, "payload.update_detail", detail.as_str_name(), rule))
        }
    }
}

fn fields(mask: Option<prost_types::FieldMask>, encoding: Encoding) -> Result<Option<FieldMask>, Refusal> {
    let Some(mask) = mask.filter(|mask| !mask.paths.is_empty()) else { return Ok(None) };
    let refused = |rule: String| Refusal::new(Reason::FieldMaskInvalid, "payload.fields", &mask.paths.join(","), rule);
    match encoding {
        Encoding::Json | Encoding::Struct => {
            FieldMask::parse(&mask.paths).map(Some).map_err(|error| refused(error.to_string()))
        }
        Encoding::Metadata | Encoding::None => {
            Err(refused("needs payload.encoding = PAYLOAD_ENCODING_JSON or PAYLOAD_ENCODING_STRUCT".to_owned()))
        }
    }
}

fn filter(filter: pb::Filter, fields: Option<&FieldMask>) -> Result<Filter, Refusal> {
    if filter.suppress_unchanged && fields.is_none() {
        return Err(invalid("filter.suppress_unchanged", "true", "needs payload.fields"));
    }
    let selector = |text: &str| {
        let refused = |error: &dyn fmt::Display| {
            Refusal::new(Reason::SelectorInvalid, "filter.label_selector", text, error.to_string())
        };
        LabelSelector::parse(text).map_err(|error| refused(&error))
    };
    let labels = (!filter.label_selector.is_empty()).then(|| selector(&filter.label_selector)).transpose()?;
    Ok(Filter {
        namespaces: filter.namespaces.iter().map(|name| namespace(name)).collect::<Result<_, _>>()?,
        labels,
        types: event_types(&filter.types)?,
        suppress_unchanged: filter.suppress_unchanged,
    })
}

fn namespace(name: &str) -> Result<Arc<str>, Refusal> {
    if is_dns_label(name) {
        Ok(name.into())
    } else {
        Err(invalid("filter.namespaces", name, "must be names of namespaces: [a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"))
    }
}

fn event_types(types: &[i32]) -> Result<EventTypes, Refusal> {
    if types.is_empty() {
        return Ok(EventTypes::default());
    }
    let mut wanted = EventTypes { added: false, modified: false, deleted: false };
    for number in types {
        match known::<pb::EventType>("filter.types", *number)? {
            pb::EventType::Added => wanted.added = true,
            pb::EventType::Modified => wanted.modified = true,
            pb::EventType::Deleted => wanted.deleted = true,
            pb::EventType::Unspecified => {
                return Err(invalid("filter.types", "EVENT_TYPE_UNSPECIFIED", "must be ADDED, MODIFIED or DELETED"));
            }
        }
    }
    Ok(wanted)
}

fn frame_bytes_max(bytes: u32) -> Result<usize, Refusal> {
    match bytes as usize {
        0 => Ok(FRAME_BYTES_MAX),
        bytes if bytes < FRAME_BYTES_MIN => {
            Err(invalid("max_frame_bytes", &bytes.to_string(), format!("must be 0 or at least {FRAME_BYTES_MIN}")))
        }
        // A client that would take more gets less; `SessionStarted` says how much.
        bytes => Ok(bytes.min(FRAME_BYTES_MAX)),
    }
}

fn heartbeat_interval(interval: Option<prost_types::Duration>) -> Result<Duration, Refusal> {
    match duration("heartbeat_interval", interval)? {
        Duration::ZERO => Ok(HEARTBEAT_INTERVAL_DEFAULT),
        interval if interval < HEARTBEAT_INTERVAL_MIN => {
            let rule = format!("must be 0 or at least {HEARTBEAT_INTERVAL_MIN:?}");
            Err(invalid("heartbeat_interval", &format!("{interval:?}"), rule))
        }
        interval => Ok(interval),
    }
}

fn gap_policy(policy: i32) -> Result<GapPolicy, Refusal> {
    Ok(match known::<pb::GapPolicy>("gap_policy", policy)? {
        pb::GapPolicy::Unspecified | pb::GapPolicy::Continue => GapPolicy::Continue,
        pb::GapPolicy::Fail => GapPolicy::Fail,
    })
}

/// The enum value of this number. An unknown one is refused: to ignore a wish would be to break a promise.
fn known<E: TryFrom<i32>>(field: &'static str, number: i32) -> Result<E, Refusal> {
    E::try_from(number).map_err(|_| invalid(field, &number.to_string(), "is not a value this sidecar knows"))
}

/// RFC 1123 label, as namespaces have it.
fn is_dns_label(name: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.len() <= LABEL_BYTES_MAX
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
}

fn invalid(field: &'static str, value: &str, rule: impl Into<String>) -> Refusal {
    Refusal::new(Reason::FieldInvalid, field, value, rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> pb::SubscribeRequest {
        pb::SubscribeRequest::default()
    }

    fn refused(request: pb::SubscribeRequest) -> (Reason, &'static str) {
        let refusal = open(request).expect_err("must be refused");
        assert!(!refusal.rule.is_empty());
        (refusal.reason, refusal.field)
    }

    #[test]
    fn an_empty_request_has_the_documented_defaults() {
        let open = open(request()).unwrap();
        assert_eq!(open.subscription, None);
        assert!(open.feeds.is_empty());
        assert_eq!(open.start, Start::Unspecified);
        assert_eq!(open.filter, Filter::default());
        assert_eq!((open.encoding, open.update_detail), (Encoding::Json, UpdateDetail::NewAndOld));
        assert_eq!((open.fields, open.unacked_events_max), (None, None));
        assert_eq!((open.frame_bytes_max, open.batch_events_max), (FRAME_BYTES_MAX, BATCH_EVENTS_MAX));
        assert_eq!((open.batch_delay_max, open.heartbeat_interval), (Duration::ZERO, HEARTBEAT_INTERVAL_DEFAULT));
        assert_eq!(open.gap_policy, GapPolicy::Continue);
        assert!(!open.end_after_snapshot && !open.ignore_leadership);
    }

    #[test]
    fn every_field_arrives() {
        let cursor = Cursor { cluster: 5, ..Cursor::default() };
        let open = open(pb::SubscribeRequest {
            subscription: "billing".to_owned(),
            feeds: vec!["pods".to_owned(), "pods@shop".to_owned()],
            start_mode: pb::StartMode::Cursor.into(),
            cursor: cursor.encode(),
            payload: Some(pb::PayloadOptions {
                encoding: pb::PayloadEncoding::Struct.into(),
                update_detail: pb::UpdateDetail::New.into(),
                fields: Some(prost_types::FieldMask { paths: vec!["spec.replicas".to_owned()] }),
            }),
            filter: Some(pb::Filter {
                namespaces: vec!["shop".to_owned()],
                label_selector: "app=web".to_owned(),
                types: vec![pb::EventType::Added.into(), pb::EventType::Deleted.into()],
                suppress_unchanged: true,
            }),
            max_unacked_events: 7,
            max_frame_bytes: 20_000,
            max_batch_delay: Some(prost_types::Duration { seconds: 0, nanos: 5_000_000 }),
            max_batch_events: 3,
            heartbeat_interval: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
            gap_policy: pb::GapPolicy::Fail.into(),
            end_after_snapshot: true,
            ignore_leadership: true,
        })
        .unwrap();
        assert_eq!(open.subscription.as_deref(), Some("billing"));
        assert_eq!(open.feeds, ["pods".into(), "pods@shop".into()] as [Arc<str>; 2]);
        assert_eq!(open.start, Start::Cursor(cursor));
        assert_eq!((open.encoding, open.update_detail), (Encoding::Struct, UpdateDetail::New));
        assert_eq!(open.fields, FieldMask::parse(&["spec.replicas".to_owned()]).ok());
        assert_eq!(open.filter.namespaces, ["shop".into()].into());
        assert_eq!(open.filter.labels, LabelSelector::parse("app=web").ok());
        assert_eq!(open.filter.types, EventTypes { added: true, modified: false, deleted: true });
        assert!(open.filter.suppress_unchanged);
        assert_eq!((open.unacked_events_max, open.frame_bytes_max), (Some(7), 20_000));
        assert_eq!((open.batch_events_max, open.batch_delay_max), (3, Duration::from_millis(5)));
        assert_eq!((open.heartbeat_interval, open.gap_policy), (Duration::from_secs(1), GapPolicy::Fail));
        assert!(open.end_after_snapshot && open.ignore_leadership);
    }

    #[test]
    fn a_bad_field_is_refused_by_name() {
        let payload = |payload| pb::SubscribeRequest { payload: Some(payload), ..request() };
        let filter = |filter| pb::SubscribeRequest { filter: Some(filter), ..request() };
        let mask = |path: &str| Some(prost_types::FieldMask { paths: vec![path.to_owned()] });
        let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let cases = [
            (pb::SubscribeRequest { subscription: "Billing".into(), ..request() }, "subscription"),
            (pb::SubscribeRequest { subscription: "a".repeat(64), ..request() }, "subscription"),
            (pb::SubscribeRequest { feeds: vec![String::new()], ..request() }, "feeds"),
            (pb::SubscribeRequest { start_mode: 99, ..request() }, "start_mode"),
            (pb::SubscribeRequest { cursor: "AAAA".into(), ..request() }, "cursor"),
            (pb::SubscribeRequest { max_frame_bytes: 100, ..request() }, "max_frame_bytes"),
            (pb::SubscribeRequest { max_batch_delay: seconds(-1), ..request() }, "max_batch_delay"),
            (pb::SubscribeRequest { gap_policy: -1, ..request() }, "gap_policy"),
            (
                pb::SubscribeRequest {
                    heartbeat_interval: Some(prost_types::Duration { seconds: 0, nanos: 999_999_999 }),
                    ..request()
                },
                "heartbeat_interval",
            ),
            (payload(pb::PayloadOptions { encoding: 3, ..Default::default() }), "payload.encoding"),
            (payload(pb::PayloadOptions { update_detail: 9, ..Default::default() }), "payload.update_detail"),
            (filter(pb::Filter { namespaces: vec!["a_b".into()], ..Default::default() }), "filter.namespaces"),
            (filter(pb::Filter { types: vec![0], ..Default::default() }), "filter.types"),
            (filter(pb::Filter { types: vec![9], ..Default::default() }), "filter.types"),
            (filter(pb::Filter { suppress_unchanged: true, ..Default::default() }), "filter.suppress_unchanged"),
        ];
        for (request, field) in cases {
            assert_eq!(refused(request), (Reason::FieldInvalid, field));
        }
        let cursor = pb::SubscribeRequest { start_mode: pb::StartMode::Cursor.into(), ..request() };
        assert_eq!(refused(cursor), (Reason::CursorMalformed, "cursor"));
        let selector = filter(pb::Filter { label_selector: "a!!".into(), ..Default::default() });
        assert_eq!(refused(selector), (Reason::SelectorInvalid, "filter.label_selector"));
        let fields = payload(pb::PayloadOptions { fields: mask("spec..x"), ..Default::default() });
        assert_eq!(refused(fields), (Reason::FieldMaskInvalid, "payload.fields"));
        let encoding = pb::PayloadEncoding::None.into();
        let fields = payload(pb::PayloadOptions { fields: mask("spec"), encoding, ..Default::default() });
        assert_eq!(refused(fields), (Reason::FieldMaskInvalid, "payload.fields"));
        let update_detail = pb::UpdateDetail::Patch.into();
        let patch = payload(pb::PayloadOptions { update_detail, ..Default::default() });
        assert_eq!(refused(patch), (Reason::NotImplemented, "payload.update_detail"));
    }

    #[test]
    fn more_than_the_limits_is_the_limits() {
        let open = open(pb::SubscribeRequest {
            max_frame_bytes: u32::MAX,
            max_batch_events: u32::MAX,
            max_unacked_events: u32::MAX,
            ..request()
        })
        .unwrap();
        assert_eq!((open.frame_bytes_max, open.batch_events_max), (FRAME_BYTES_MAX, BATCH_EVENTS_MAX));
        assert_eq!(open.unacked_events_max, Some(u32::MAX));
    }

    #[test]
    fn an_ack_names_a_subscription_a_session_or_both() {
        let ack = |subscription: &str, session: &str| {
            ack(pb::AckRequest {
                subscription: subscription.to_owned(),
                cursor: "text".to_owned(),
                wait_durable: true,
                session_id: session.to_owned(),
            })
        };
        let both = ack("billing", "s-1").unwrap();
        assert_eq!((both.subscription.as_deref(), both.session.as_deref()), (Some("billing"), Some("s-1")));
        assert!(both.wait_durable && both.cursor == "text");
        let neither = ack("", "").unwrap();
        assert_eq!((neither.subscription, neither.session), (None, None));
        assert_eq!(ack("-", "").unwrap_err().field, "subscription");
        assert_eq!(ack("", &"s".repeat(999)).unwrap_err().field, "session_id");
    }
}
