//! Core frames as protobuf: bodies are rendered into the session's encoding, and every size is checked against the
//! bound that the core promised (A10).
//!
//! Rendering is total: whatever an object contains, there is a payload, if need be one that says why it has no body.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prost::Message;
use prost_types::value::Kind as ValueKind;
use prost_types::{ListValue, Struct, Timestamp, Value};
use serde::Deserialize;
use sidewatch_core::codec::cursor::Cursor;
use sidewatch_core::epoch::Epoch;
use sidewatch_core::feed::{ChangeKind, Condition, DeleteReason};
use sidewatch_core::frame::{
    self, Encoding, EndReason, Event, FeedDescription, FeedNews, FrameKind, Gap, GapKind, GapReason, Heartbeat, Hold,
    LeadershipNews, Omission, Payload, SessionStarted,
};
use sidewatch_core::invariant;
use sidewatch_core::leadership::{LeaseView, Role};
use sidewatch_core::limits::GRPC_MESSAGE_BYTES_MAX;
use sidewatch_core::resource_version::ResourceVersion;
use sidewatch_core::time::{BootInstant, WallTime};

use crate::delivery::Pulled;
use crate::grpc::pb;

/// Deepest nesting of JSON that is sent as `Struct`. A level of JSON costs three messages (struct, entry, value), six
/// more are around it, and stock decoders stop at 100: a deeper body could not be received at all.
pub const STRUCT_DEPTH_MAX: usize = 30;

const _: () = assert!(6 + 3 * STRUCT_DEPTH_MAX < 100);

/// Who serves: the parts of frames and of the status that the core does not know.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Pod and container incarnation.
    pub name: Arc<str>,
    /// Version of the sidecar.
    pub version: &'static str,
    /// When the process started.
    pub started: WallTime,
    /// UID of the kube-system namespace, set when it is known.
    pub cluster_uid: Arc<OnceLock<Arc<str>>>,
}

/// Renders the frames of one session.
#[derive(Debug)]
pub struct Renderer {
    identity: Identity,
    encoding: Encoding,
    frame_bytes_max: usize,
}

impl Renderer {
    /// A renderer for a session with this encoding and bound.
    pub fn new(identity: Identity, encoding: Encoding, frame_bytes_max: usize) -> Self {
        Self { identity, encoding, frame_bytes_max }
    }

    /// The message that carries the frame.
    ///
    /// # Panics
    /// A10: the frame is larger than the session allows, or an event larger than the core's bound of it.
    pub fn message(&self, pulled: Pulled) -> pb::SubscribeResponse {
        let Pulled { sequence, emitted, frame } = pulled;
        let batch = matches!(frame.kind, FrameKind::Batch(_));
        let frame = pb::Frame {
            sequence,
            epoch: frame.epoch.as_u64(),
            cursor: frame.cursor.as_ref().map(Cursor::encode).unwrap_or_default(),
            emit_time: Some(timestamp(emitted.wall)),
            kind: Some(self.kind(frame.kind, emitted.boot)),
        };
        let frame_bytes = frame.encoded_len();
        invariant!(
            A10,
            !batch || frame_bytes <= self.frame_bytes_max,
            "a batch of {frame_bytes} bytes, allowed are {}",
            self.frame_bytes_max
        );
        let message = pb::SubscribeResponse { frame: Some(frame) };
        let message_bytes = message.encoded_len();
        invariant!(A10, message_bytes <= GRPC_MESSAGE_BYTES_MAX, "a message of {message_bytes} bytes");
        message
    }

    fn kind(&self, kind: FrameKind, now: BootInstant) -> pb::frame::Kind {
        use pb::frame::Kind;
        match kind {
            FrameKind::SessionStarted(started) => Kind::SessionStarted(self.session_started(started)),
            FrameKind::Batch(events) => {
                invariant!(A10, !events.is_empty(), "a batch without events");
                Kind::Batch(pb::EventBatch { events: events.into_iter().map(|event| self.event(event)).collect() })
            }
            FrameKind::SnapshotBegin { feed, resource_version, object_count } => {
                Kind::SnapshotBegin(pb::SnapshotBegin {
                    feed: feed.name.to_string(),
                    resource_version: resource_version.to_string(),
                    object_count,
                })
            }
            FrameKind::SnapshotEnd { feed, resource_version } => Kind::SnapshotEnd(pb::SnapshotEnd {
                feed: feed.name.to_string(),
                resource_version: resource_version.to_string(),
                // Always safe: everything that exists was sent since the beginning.
                sweep: true,
            }),
            FrameKind::Gap(gap) => Kind::Gap(gap_message(&gap)),
            FrameKind::Leadership(news) => Kind::Leadership(leadership_news(&news, now)),
            FrameKind::Heartbeat(heartbeat) => Kind::Heartbeat(heartbeat_message(&heartbeat, now)),
            FrameKind::FeedStatus(news) => Kind::FeedStatus(feed_status(news)),
            FrameKind::SessionEnding { reason, retry_delay } => Kind::SessionEnding(pb::SessionEnding {
                reason: end_reason(reason).into(),
                retry_delay: Some(duration(retry_delay)),
            }),
        }
    }

    fn session_started(&self, started: SessionStarted) -> pb::SessionStarted {
        pb::SessionStarted {
            session_id: started.session,
            subscription: text(started.subscription.as_ref()),
            server_identity: self.identity.name.to_string(),
            server_version: self.identity.version.to_owned(),
            feeds: started.feeds.iter().map(feed_info).collect(),
            start_cursor: started.start.as_ref().map(position).unwrap_or_default(),
            max_frame_bytes: number32(started.frame_bytes_max),
            max_unacked_events: started.unacked_events_max.unwrap_or(0),
            cluster_uid: text(self.identity.cluster_uid.get()),
        }
    }

    fn event(&self, event: Event) -> pb::Event {
        let bytes_max = event.size_bytes_max(self.encoding);
        let (kind, delete_reason, final_state_unknown) = match event.kind {
            ChangeKind::Added => (pb::EventType::Added, pb::DeleteReason::Unspecified, false),
            ChangeKind::Modified => (pb::EventType::Modified, pb::DeleteReason::Unspecified, false),
            ChangeKind::Deleted { reason, final_state_unknown } => {
                (pb::EventType::Deleted, reason_of_delete(reason), final_state_unknown)
            }
        };
        let message = pb::Event {
            id: event.id(),
            r#type: kind.into(),
            feed: event.feed.name.to_string(),
            object_ref: Some(pb::ObjectRef {
                api_version: event.feed.api_version.to_string(),
                kind: event.feed.kind.to_string(),
                namespace: event.key.namespace.to_string(),
                name: event.key.name.to_string(),
                uid: event.uid.to_string(),
            }),
            resource_version: version(event.resource_version.as_ref()),
            old_resource_version: version(event.old_resource_version.as_ref()),
            object: Some(payload(event.object, self.encoding)),
            old_object: event.old_object.map(|old| payload(old, self.encoding)),
            json_patch: String::new(),
            delete_reason: delete_reason.into(),
            final_state_unknown,
            coalesced: event.coalesced,
            synthesized: event.synthesized,
            in_snapshot: event.in_snapshot,
            redelivered: event.redelivered,
            // A snapshot shows states of which nobody noted when they were learned: no time is better than 1970.
            observe_time: (event.observed != WallTime::default()).then(|| timestamp(event.observed)),
        };
        let bytes = message.encoded_len();
        invariant!(A10, bytes <= bytes_max, "event {} has {bytes} bytes, its bound is {bytes_max}", message.id);
        message
    }
}

/// Renders a payload.
fn payload(payload: Payload, encoding: Encoding) -> pb::Payload {
    let json = match payload {
        Payload::Body(json) => json,
        Payload::Omitted { omission, full_size_bytes } => return omitted(omission, full_size_bytes),
    };
    let full_size_bytes = json.len();
    let body = match encoding {
        Encoding::None => Err(Omission::NotRequested),
        Encoding::Json => {
            let text = String::from_utf8(json.into()).expect("bodies are checked to be UTF-8 where they are decoded");
            Ok(pb::payload::Body::Json(text))
        }
        // Nothing but depth beyond a parser's limit makes an object of the API server unreadable here.
        Encoding::Struct => structured(&json).map(pb::payload::Body::Structured).ok_or(Omission::TooLarge),
        Encoding::Metadata => metadata(&json).map(pb::payload::Body::Metadata).ok_or(Omission::Unknown),
    };
    match body {
        Ok(body) => pb::Payload {
            body: Some(body),
            omission: pb::Omission::Unspecified.into(),
            full_size_bytes: number32(full_size_bytes),
        },
        Err(omission) => omitted(omission, full_size_bytes),
    }
}

fn omitted(omission: Omission, full_size_bytes: usize) -> pb::Payload {
    let omission = match omission {
        Omission::NotRequested => pb::Omission::NotRequested,
        Omission::TooLarge => pb::Omission::TooLarge,
        Omission::Evicted => pb::Omission::Evicted,
        Omission::Unknown => pb::Omission::Unknown,
    };
    pb::Payload { body: None, omission: omission.into(), full_size_bytes: number32(full_size_bytes) }
}

/// The body as `Struct`; none when it is nested too deeply or is not an object.
fn structured(json: &[u8]) -> Option<Struct> {
    let value: serde_json::Value = serde_json::from_slice(json).ok()?;
    match struct_value(value, STRUCT_DEPTH_MAX)?.kind? {
        ValueKind::StructValue(object) => Some(object),
        _ => None,
    }
}

/// A JSON value that nests at most `depth_left` levels.
fn struct_value(value: serde_json::Value, depth_left: usize) -> Option<Value> {
    let kind = match value {
        serde_json::Value::Null => ValueKind::NullValue(0),
        serde_json::Value::Bool(truth) => ValueKind::BoolValue(truth),
        // The nearest double; `Struct` has no integers.
        serde_json::Value::Number(number) => ValueKind::NumberValue(number.as_f64()?),
        serde_json::Value::String(text) => ValueKind::StringValue(text),
        serde_json::Value::Array(values) => {
            let depth_left = depth_left.checked_sub(1)?;
            let values = values.into_iter().map(|value| struct_value(value, depth_left)).collect::<Option<_>>()?;
            ValueKind::ListValue(ListValue { values })
        }
        serde_json::Value::Object(fields) => {
            let depth_left = depth_left.checked_sub(1)?;
            let fields = fields
                .into_iter()
                .map(|(name, value)| Some((name, struct_value(value, depth_left)?)))
                .collect::<Option<_>>()?;
            ValueKind::StructValue(Struct { fields })
        }
    };
    Some(Value { kind: Some(kind) })
}

/// `metadata` as far as `ObjectMetadata` has it. What is null or absent is empty.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    generation: Option<i64>,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<Owner>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Owner {
    api_version: Option<String>,
    kind: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    controller: Option<bool>,
}

/// The commonly used part of the body's metadata; none when it has none that can be read.
fn metadata(json: &[u8]) -> Option<pb::ObjectMetadata> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Option<Metadata>,
    }
    let metadata = serde_json::from_slice::<Object>(json).ok()?.metadata.unwrap_or_default();
    let time = |text: Option<String>| text.and_then(|text| WallTime::parse_rfc3339(&text)).map(timestamp);
    Some(pb::ObjectMetadata {
        labels: metadata.labels.unwrap_or_default().into_iter().collect(),
        annotations: metadata.annotations.unwrap_or_default().into_iter().collect(),
        generation: metadata.generation.unwrap_or(0),
        create_time: time(metadata.creation_timestamp),
        deletion_time: time(metadata.deletion_timestamp),
        finalizers: metadata.finalizers.unwrap_or_default(),
        owners: metadata.owner_references.unwrap_or_default().into_iter().map(owner).collect(),
    })
}

fn owner(owner: Owner) -> pb::OwnerRef {
    pb::OwnerRef {
        controller: owner.controller.unwrap_or(false),
        owner: Some(pb::ObjectRef {
            api_version: owner.api_version.unwrap_or_default(),
            kind: owner.kind.unwrap_or_default(),
            // An owner is in the namespace of what it owns, or cluster-scoped; the reference does not say which.
            namespace: String::new(),
            name: owner.name.unwrap_or_default(),
            uid: owner.uid.unwrap_or_default(),
        }),
    }
}

/// A feed's definition.
pub(super) fn feed_info(feed: &FeedDescription) -> pb::FeedInfo {
    let FeedDescription { spec, info } = feed;
    let resource = info.as_ref().map_or(&spec.resource, |info| &info.resource);
    pb::FeedInfo {
        name: spec.name.to_string(),
        group: text(info.as_ref().map(|info| &info.group)),
        version: text(info.as_ref().map(|info| &info.version)),
        resource: resource.to_string(),
        kind: text(info.as_ref().map(|info| &info.kind)),
        namespace: text(spec.namespace.as_ref()),
        label_selector: spec.label_selector.to_string(),
        field_selector: spec.field_selector.to_string(),
    }
}

/// A feed's condition.
pub(super) fn feed_status(news: FeedNews) -> pb::FeedStatus {
    let state = match news.condition {
        Condition::Syncing => pb::FeedState::Syncing,
        Condition::Live => pb::FeedState::Live,
        Condition::Disconnected => pb::FeedState::Disconnected,
        Condition::Forbidden => pb::FeedState::Forbidden,
        Condition::NotServed => pb::FeedState::NotServed,
    };
    pb::FeedStatus {
        feed: news.feed.to_string(),
        state: state.into(),
        since: Some(timestamp(news.since)),
        detail: news.detail,
    }
}

/// The role at `now`, with no more than what role and Lease say.
pub(super) fn leadership(role: &Role, lease: &LeaseView, now: BootInstant) -> pb::Leadership {
    pb::Leadership {
        state: leadership_state(role).into(),
        epoch: role_epoch(role).unwrap_or(lease.epoch_seen).as_u64(),
        holder_identity: lease.holder_identity.clone(),
        lease_transitions: lease.lease_transitions,
        valid_for: frame::valid_for(role, now).map(duration),
        resume_cursor: String::new(),
        detail: String::new(),
    }
}

fn leadership_news(news: &LeadershipNews, now: BootInstant) -> pb::Leadership {
    pb::Leadership {
        resume_cursor: news.resume.as_ref().map(position).unwrap_or_default(),
        detail: news.detail.clone(),
        ..leadership(&news.role, &news.lease, now)
    }
}

fn leadership_state(role: &Role) -> pb::LeadershipState {
    match role {
        Role::Disabled => pb::LeadershipState::Disabled,
        Role::Standby => pb::LeadershipState::Standby,
        Role::Leading { .. } => pb::LeadershipState::Leading,
        // For a consumer both are the same: no events come, the epoch is not over, side effects must stop.
        Role::Suspended { .. } | Role::Releasing { .. } => pb::LeadershipState::Suspended,
        Role::Lost { .. } => pb::LeadershipState::Lost,
    }
}

fn role_epoch(role: &Role) -> Option<Epoch> {
    match role {
        Role::Disabled | Role::Standby => None,
        Role::Leading { epoch, .. } | Role::Suspended { epoch } | Role::Releasing { epoch } | Role::Lost { epoch } => {
            Some(*epoch)
        }
    }
}

fn heartbeat_message(heartbeat: &Heartbeat, now: BootInstant) -> pb::Heartbeat {
    pb::Heartbeat {
        leadership: leadership_state(&heartbeat.role).into(),
        valid_for: frame::valid_for(&heartbeat.role, now).map(duration),
        unacked_events: heartbeat.unacked_events,
        pending_events: heartbeat.pending_events,
        hold: hold(heartbeat.hold).into(),
        durable_cursor: heartbeat.durable.as_ref().map(position).unwrap_or_default(),
    }
}

fn gap_message(gap: &Gap) -> pb::Gap {
    let kind = match gap.kind {
        GapKind::Coalesced => pb::GapKind::Coalesced,
        GapKind::Reset => pb::GapKind::Reset,
        GapKind::HandledElsewhere => pb::GapKind::HandledElsewhere,
        GapKind::LiveStart => pb::GapKind::LiveStart,
    };
    let reason = match gap.reason {
        GapReason::WatchExpired => pb::GapReason::WatchExpired,
        GapReason::JournalOverflow => pb::GapReason::JournalOverflow,
        GapReason::ColdStart => pb::GapReason::ColdStart,
        GapReason::FeedChanged => pb::GapReason::FeedChanged,
        GapReason::ClusterRewound => pb::GapReason::ClusterRewound,
        GapReason::UnorderedVersions => pb::GapReason::UnorderedVersions,
        GapReason::CursorUnknown => pb::GapReason::CursorUnknown,
        GapReason::Failover => pb::GapReason::Failover,
    };
    pb::Gap {
        feed: gap.feed.name.to_string(),
        kind: kind.into(),
        reason: reason.into(),
        from_resource_version: version(gap.from.as_ref()),
        to_resource_version: version(gap.to.as_ref()),
        deletes_complete: gap.deletes_complete,
        snapshot_follows: gap.snapshot_follows,
        detail: gap.detail.to_owned(),
    }
}

/// What holds delivery back.
pub(super) fn hold(hold: Hold) -> pb::DeliveryHold {
    match hold {
        Hold::None => pb::DeliveryHold::Unspecified,
        Hold::Unacked => pb::DeliveryHold::Unacked,
        Hold::Leadership => pb::DeliveryHold::Leadership,
    }
}

fn reason_of_delete(reason: DeleteReason) -> pb::DeleteReason {
    match reason {
        DeleteReason::Deleted => pb::DeleteReason::Deleted,
        DeleteReason::DeletedOrUnselected => pb::DeleteReason::DeletedOrUnselected,
        DeleteReason::Unselected => pb::DeleteReason::Unselected,
        DeleteReason::Replaced => pb::DeleteReason::Replaced,
        DeleteReason::TypeRemoved => pb::DeleteReason::TypeRemoved,
    }
}

fn end_reason(reason: EndReason) -> pb::EndReason {
    match reason {
        EndReason::Superseded => pb::EndReason::Superseded,
        EndReason::Shutdown => pb::EndReason::Shutdown,
        EndReason::SnapshotComplete => pb::EndReason::SnapshotComplete,
        EndReason::HistoryLost => pb::EndReason::HistoryLost,
    }
}

/// The text of a position; empty when it names no feed.
pub(super) fn position(cursor: &Cursor) -> String {
    if cursor.positions.is_empty() { String::new() } else { cursor.encode() }
}

/// The text of a version, empty when it is not known.
pub(super) fn version(version: Option<&ResourceVersion>) -> String {
    version.map(ToString::to_string).unwrap_or_default()
}

/// The text, empty when there is none.
pub(super) fn text(text: Option<&Arc<str>>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

/// A wall time.
pub(super) fn timestamp(time: WallTime) -> Timestamp {
    let micros = time.as_micros();
    let nanos = micros.rem_euclid(1_000_000) * 1000;
    Timestamp { seconds: micros.div_euclid(1_000_000), nanos: nanos as i32 }
}

/// A duration; the longest that protobuf can say when it is longer.
pub(super) fn duration(duration: Duration) -> prost_types::Duration {
    const SECONDS_MAX: i64 = 315_576_000_000;
    match i64::try_from(duration.as_secs()) {
        Ok(seconds) if seconds < SECONDS_MAX => {
            prost_types::Duration { seconds, nanos: duration.subsec_nanos() as i32 }
        }
        _ => prost_types::Duration { seconds: SECONDS_MAX, nanos: 0 },
    }
}

/// A size or count; `u32::MAX` when it is more.
fn number32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use sidewatch_core::codec::cursor::Fingerprint;
    use sidewatch_core::codec::watch_event::ManagedFields;
    use sidewatch_core::feed::{FeedSpec, ResourceInfo};
    use sidewatch_core::frame::{FeedLabel, Frame};
    use sidewatch_core::limits::{FRAME_BYTES_MAX, FRAME_BYTES_MIN};
    use sidewatch_core::object::{ObjectKey, Uid};
    use sidewatch_core::replica::Now;

    use super::*;

    pub(in crate::grpc) fn identity() -> Identity {
        let cluster_uid = Arc::new(OnceLock::new());
        cluster_uid.set("cluster-uid".into()).expect("set once");
        Identity { name: "shop/web-0".into(), version: "1.2.3", started: WallTime::from_micros(5_000_000), cluster_uid }
    }

    pub(in crate::grpc) fn label() -> Arc<FeedLabel> {
        Arc::new(FeedLabel { name: "pods".into(), api_version: "v1".into(), kind: "Pod".into() })
    }

    pub(in crate::grpc) fn event(body: &str) -> Event {
        Event {
            feed: label(),
            kind: ChangeKind::Added,
            key: ObjectKey::new("shop", "web-0"),
            uid: Uid::from("uid-1"),
            resource_version: Some(ResourceVersion::from(42)),
            old_resource_version: None,
            object: Payload::Body(Bytes::copy_from_slice(body.as_bytes())),
            old_object: None,
            coalesced: false,
            synthesized: false,
            in_snapshot: false,
            redelivered: false,
            observed: WallTime::from_micros(1_500_000),
        }
    }

    fn renderer(encoding: Encoding) -> Renderer {
        Renderer::new(identity(), encoding, FRAME_BYTES_MAX)
    }

    fn pulled(kind: FrameKind) -> Pulled {
        let now = Now { boot: BootInstant::from_nanos(2_000_000_000), wall: WallTime::from_micros(1_500_000) };
        Pulled { sequence: 3, emitted: now, frame: Frame { epoch: Epoch::from_u64(7), cursor: None, kind } }
    }

    fn rendered(encoding: Encoding, kind: FrameKind) -> pb::frame::Kind {
        renderer(encoding).message(pulled(kind)).frame.unwrap().kind.unwrap()
    }

    fn body(encoding: Encoding, json: &str) -> pb::Payload {
        match rendered(encoding, FrameKind::Batch(vec![event(json)])) {
            pb::frame::Kind::Batch(batch) => batch.events[0].object.clone().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_frame_carries_sequence_epoch_and_time_of_the_pull() {
        let frame = renderer(Encoding::Json).message(pulled(FrameKind::Batch(vec![event("{}")]))).frame.unwrap();
        assert_eq!((frame.sequence, frame.epoch, frame.cursor.as_str()), (3, 7, ""));
        assert_eq!(frame.emit_time, Some(Timestamp { seconds: 1, nanos: 500_000_000 }));
    }

    #[test]
    fn json_is_sent_as_it_came() {
        let json = r#"{"b":1.0,"a":9007199254740993,"ü":"\u00fc"}"#;
        let payload = body(Encoding::Json, json);
        assert_eq!(payload.body, Some(pb::payload::Body::Json(json.to_owned())));
        assert_eq!(payload.full_size_bytes as usize, json.len());
    }

    #[test]
    fn struct_keeps_huge_integers_as_doubles() {
        let payload = body(Encoding::Struct, r#"{"n":123456789012345678901234567890,"z":null,"l":[true,"t"]}"#);
        let Some(pb::payload::Body::Structured(object)) = payload.body else { panic!("no struct") };
        assert_eq!(object.fields["n"].kind, Some(ValueKind::NumberValue(1.234_567_890_123_456_8e29)));
        assert_eq!(object.fields["z"].kind, Some(ValueKind::NullValue(0)));
    }

    #[test]
    fn struct_of_the_greatest_depth_can_be_decoded_and_a_deeper_one_is_omitted() {
        let nested = |depth: usize| format!("{}{}", r#"{"a":"#.repeat(depth - 1) + "{}", "}".repeat(depth - 1));
        let kind = FrameKind::Batch(vec![event(&nested(STRUCT_DEPTH_MAX))]);
        let message = renderer(Encoding::Struct).message(pulled(kind));
        let decoded = pb::SubscribeResponse::decode(message.encode_to_vec().as_slice());
        assert_eq!(decoded.expect("within the decoder's limit"), message);
        for depth in [STRUCT_DEPTH_MAX + 1, 500] {
            let payload = body(Encoding::Struct, &nested(depth));
            assert_eq!((payload.body, payload.omission), (None, pb::Omission::TooLarge as i32));
        }
    }

    #[test]
    fn metadata_has_the_common_part() {
        let payload = body(
            Encoding::Metadata,
            r#"{"kind":"Pod","metadata":{"labels":{"app":"web"},"annotations":null,"generation":3,
                "creationTimestamp":"1970-01-01T00:00:09Z","finalizers":["f"],"unknown":{"x":1},
                "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"rs","uid":"u","controller":true}]},
                "spec":{"deep":[1,2,3]}}"#,
        );
        let Some(pb::payload::Body::Metadata(metadata)) = payload.body else { panic!("no metadata") };
        assert_eq!(metadata.labels["app"], "web");
        assert_eq!((metadata.generation, metadata.annotations.len()), (3, 0));
        assert_eq!(metadata.create_time, Some(Timestamp { seconds: 9, nanos: 0 }));
        assert_eq!(metadata.finalizers, ["f"]);
        assert!(metadata.owners[0].controller);
        assert_eq!(metadata.owners[0].owner.as_ref().unwrap().name, "rs");
    }

    #[test]
    fn a_body_that_is_not_wanted_is_marked() {
        let payload = body(Encoding::None, "{}");
        assert_eq!((payload.body, payload.omission), (None, pb::Omission::NotRequested as i32));
        assert_eq!(payload.full_size_bytes, 2);
    }

    #[test]
    fn a_session_starts_with_who_serves_and_what_was_agreed() {
        let spec = FeedSpec {
            name: "pods".into(),
            resource: "po".into(),
            namespace: Some("shop".into()),
            label_selector: "app=web".into(),
            field_selector: "".into(),
            managed_fields: ManagedFields::Drop,
        };
        let info = ResourceInfo {
            group: "".into(),
            version: "v1".into(),
            resource: "pods".into(),
            kind: "Pod".into(),
            namespaced: true,
            streaming_list: true,
        };
        let unresolved = FeedDescription { spec: Arc::new(spec.clone()), info: None };
        let resolved = FeedDescription { spec: Arc::new(spec), info: Some(info) };
        let positions = [(Fingerprint(1), ResourceVersion::from(4))].into();
        let started = SessionStarted {
            session: "s-1".to_owned(),
            subscription: Some("billing".into()),
            feeds: vec![unresolved, resolved],
            start: Some(Cursor { positions, ..Cursor::default() }),
            frame_bytes_max: FRAME_BYTES_MIN,
            unacked_events_max: Some(9),
        };
        let pb::frame::Kind::SessionStarted(message) =
            rendered(Encoding::Json, FrameKind::SessionStarted(started.clone()))
        else {
            panic!("another kind")
        };
        assert_eq!(message.server_identity, "shop/web-0");
        assert_eq!((message.cluster_uid.as_str(), message.server_version.as_str()), ("cluster-uid", "1.2.3"));
        assert_eq!((message.feeds[0].resource.as_str(), message.feeds[0].kind.as_str()), ("po", ""));
        assert_eq!((message.feeds[1].resource.as_str(), message.feeds[1].kind.as_str()), ("pods", "Pod"));
        assert_eq!(Cursor::decode(&message.start_cursor).ok(), started.start);
        assert_eq!((message.max_frame_bytes as usize, message.max_unacked_events), (FRAME_BYTES_MIN, 9));
    }

    #[test]
    fn validity_is_what_is_left_at_emission() {
        let role = Role::Leading { epoch: Epoch::from_u64(7), until: BootInstant::from_nanos(5_000_000_000) };
        let news = LeadershipNews { role, lease: LeaseView::default(), resume: None, detail: String::new() };
        let pb::frame::Kind::Leadership(message) = rendered(Encoding::Json, FrameKind::Leadership(news)) else {
            panic!("another kind")
        };
        assert_eq!(message.valid_for, Some(prost_types::Duration { seconds: 3, nanos: 0 }));
        assert_eq!((message.state, message.epoch), (pb::LeadershipState::Leading as i32, 7));
        assert_eq!(message.resume_cursor, "");
    }

    #[test]
    fn outside_leadership_the_epoch_is_the_highest_seen_and_nothing_is_valid() {
        let lease = LeaseView { epoch_seen: Epoch::from_u64(6), ..LeaseView::default() };
        let message = leadership(&Role::Standby, &lease, BootInstant::default());
        assert_eq!((message.epoch, message.valid_for), (6, None));
    }

    #[test]
    fn durations_and_times_survive_their_extremes() {
        assert_eq!(duration(Duration::MAX).seconds, 315_576_000_000);
        assert_eq!(timestamp(WallTime::from_micros(-1)), Timestamp { seconds: -1, nanos: 999_999_000 });
    }

    #[test]
    #[should_panic(expected = "invariant A10 broken")]
    fn a_batch_beyond_the_sessions_bound_is_refused() {
        let renderer = Renderer::new(identity(), Encoding::Json, FRAME_BYTES_MIN);
        let body = format!(r#"{{"a":"{}"}}"#, "x".repeat(FRAME_BYTES_MIN));
        renderer.message(pulled(FrameKind::Batch(vec![event(&body)])));
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            (0..10_i64).prop_map(Into::into),
            ".{0,6}".prop_map(Into::into),
        ];
        leaf.prop_recursive(40, 64, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                proptest::collection::btree_map(".{0,3}", inner, 0..6)
                    .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// `Renderer::event` checks the bound itself.
        #[test]
        fn every_object_is_rendered_within_its_bound(content in json(), labels in
            proptest::collection::btree_map(".{0,3}", ".{0,3}", 0..9)) {
            let object = serde_json::json!({ "metadata": { "labels": labels, "finalizers": ["", "a"],
                "generation": -1, "ownerReferences": [{}, {"uid": "u"}] }, "": content });
            for encoding in [Encoding::Json, Encoding::Struct, Encoding::Metadata, Encoding::None] {
                let mut event = event(&object.to_string());
                event.old_object = Some(event.object.clone());
                let message = renderer(encoding).message(pulled(FrameKind::Batch(vec![event])));
                let decoded = pb::SubscribeResponse::decode(message.encode_to_vec().as_slice());
                prop_assert_eq!(decoded.expect("decodes"), message);
            }
        }

        #[test]
        fn any_text_as_a_body_is_rendered(text in ".{0,60}") {
            for encoding in [Encoding::Json, Encoding::Struct, Encoding::Metadata, Encoding::None] {
                body(encoding, &text);
            }
        }
    }
}
