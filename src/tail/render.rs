//! Frames as lines: for people with or without colours, or as JSON.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::grpc::pb;
use crate::grpc::pb::frame::Kind;
use crate::tail::diff;

/// How frames are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Style {
    Color,
    Plain,
    Json,
}

/// Colours of ANSI terminals.
#[derive(Clone, Copy)]
enum Paint {
    Green,
    Yellow,
    Red,
    Cyan,
    Dim,
}

/// Makes lines of frames.
pub(super) struct Renderer {
    style: Style,
}

impl Renderer {
    pub(super) fn new(style: Style) -> Self {
        Self { style }
    }

    /// Whole lines, or nothing for heartbeats and for kinds of frames that are not known.
    pub(super) fn frame(&mut self, frame: &pb::Frame) -> String {
        let Some(kind) = &frame.kind else { return String::new() };
        match self.style {
            Style::Json => json_lines(frame, kind),
            Style::Color | Style::Plain => match kind {
                Kind::Batch(batch) => batch.events.iter().map(|event| self.event(event)).collect(),
                other => self.marker(frame, other),
            },
        }
    }

    fn event(&self, event: &pb::Event) -> String {
        let (word, paint) = match event.r#type() {
            pb::EventType::Added => ("ADDED", Paint::Green),
            pb::EventType::Modified => ("MODIFIED", Paint::Yellow),
            pb::EventType::Deleted => ("DELETED", Paint::Red),
            pb::EventType::Unspecified => ("UNKNOWN", Paint::Dim),
        };
        let mut line = self.paint(Paint::Dim, &clock(event.observe_time.as_ref()));
        let _ = write!(line, " {} {}", self.paint(paint, &format!("{word:<8}")), harmless(&event.feed));
        let object = event.object_ref.clone().unwrap_or_default();
        let slash = if object.namespace.is_empty() { "" } else { "/" };
        let _ = write!(line, " {}{slash}{}", harmless(&object.namespace), harmless(&object.name));
        let version = if event.resource_version.is_empty() { "?" } else { &event.resource_version };
        line.push_str(&self.paint(Paint::Dim, &format!(" rv {}", harmless(version))));
        for note in notes(event) {
            let _ = write!(line, " {note}");
        }
        line.push('\n');
        line
    }

    /// A line about the stream itself; empty for heartbeats.
    fn marker(&self, frame: &pb::Frame, kind: &Kind) -> String {
        let (paint, text) = match kind {
            Kind::Batch(_) | Kind::Heartbeat(_) => return String::new(),
            Kind::SessionStarted(started) => {
                let feeds: Vec<&str> = started.feeds.iter().map(|feed| feed.name.as_str()).collect();
                let subscription = match started.subscription.as_str() {
                    "" => "an ephemeral subscription".to_owned(),
                    name => format!("subscription {name}"),
                };
                let server = format!("{} ({})", started.server_identity, started.server_version);
                (Paint::Dim, format!("session: {subscription} to {} at {server}", feeds.join(", ")))
            }
            Kind::SnapshotBegin(begin) => {
                let (count, version) = (begin.object_count, &begin.resource_version);
                (Paint::Cyan, format!("{}: snapshot at rv {version}, {count} objects", begin.feed))
            }
            Kind::SnapshotEnd(end) => {
                let sweep = if end.sweep { "; what was not listed is gone" } else { "" };
                (Paint::Cyan, format!("{}: in sync at rv {}{sweep}", end.feed, end.resource_version))
            }
            Kind::Gap(gap) => (Paint::Red, gap_text(gap)),
            Kind::Leadership(leadership) => leadership_text(leadership),
            Kind::FeedStatus(status) => {
                let state = word(status.state().as_str_name(), "FEED_STATE_");
                let paint = if status.state() == pb::FeedState::Live { Paint::Green } else { Paint::Yellow };
                (paint, with_detail(format!("{}: {state}", status.feed), &status.detail))
            }
            Kind::SessionEnding(ending) => {
                let reason = word(ending.reason().as_str_name(), "END_REASON_");
                (Paint::Dim, format!("session ends: {reason}"))
            }
        };
        let time = self.paint(Paint::Dim, &clock(frame.emit_time.as_ref()));
        format!("{time} {}\n", self.paint(paint, &format!("── {}", harmless(&text))))
    }

    fn paint(&self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Green => 32,
            Paint::Yellow => 33,
            Paint::Red => 31,
            Paint::Cyan => 36,
            Paint::Dim => 2,
        };
        if self.style == Style::Color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// What is special about an event, and what changed.
fn notes(event: &pb::Event) -> Vec<String> {
    let mut notes = Vec::new();
    if event.r#type() == pb::EventType::Deleted {
        let reason = word(event.delete_reason().as_str_name(), "DELETE_REASON_");
        if !matches!(event.delete_reason(), pb::DeleteReason::Deleted | pb::DeleteReason::Unspecified) {
            notes.push(format!("({reason})"));
        }
    }
    for (flag, note) in [
        (event.in_snapshot, "(snapshot)"),
        (event.redelivered, "(again)"),
        (event.coalesced, "(coalesced)"),
        (event.synthesized, "(derived)"),
        (event.final_state_unknown, "(final state unknown)"),
    ] {
        if flag {
            notes.push(note.to_owned());
        }
    }
    if let (Some(old), Some(new)) = (json_body(event.old_object.as_ref()), json_body(event.object.as_ref())) {
        let hint = diff::hint(old, new);
        if !hint.is_empty() {
            notes.push(harmless(&hint).into_owned());
        }
    }
    if let Some(payload) = &event.object
        && matches!(payload.omission(), pb::Omission::TooLarge | pb::Omission::Evicted)
    {
        notes.push(format!("(body of {} bytes left out)", payload.full_size_bytes));
    }
    notes
}

fn gap_text(gap: &pb::Gap) -> String {
    let kind = word(gap.kind().as_str_name(), "GAP_KIND_");
    let reason = word(gap.reason().as_str_name(), "GAP_REASON_");
    let (from, to) = (&gap.from_resource_version, &gap.to_resource_version);
    let deletes = if gap.deletes_complete { "all deletes follow" } else { "deletes may be missing" };
    let snapshot = if gap.snapshot_follows { "; a snapshot follows" } else { "" };
    with_detail(format!("{}: gap, {kind} ({reason}), rv {from} to {to}: {deletes}{snapshot}", gap.feed), &gap.detail)
}

fn leadership_text(leadership: &pb::Leadership) -> (Paint, String) {
    let paint = match leadership.state() {
        pb::LeadershipState::Leading | pb::LeadershipState::Disabled => Paint::Green,
        pb::LeadershipState::Standby => Paint::Cyan,
        _ => Paint::Red,
    };
    let mut text = word(leadership.state().as_str_name(), "LEADERSHIP_STATE_");
    if leadership.epoch > 0 {
        let _ = write!(text, ", epoch {}", leadership.epoch);
    }
    if !leadership.holder_identity.is_empty() {
        let _ = write!(text, ", held by {}", leadership.holder_identity);
    }
    (paint, with_detail(text, &leadership.detail))
}

fn with_detail(text: String, detail: &str) -> String {
    if detail.is_empty() { text } else { format!("{text}: {detail}") }
}

/// `GAP_KIND_RESET` as `reset`.
fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase().replace('_', " ")
}

/// Time of day in UTC, as wide when it is not known.
fn clock(time: Option<&prost_types::Timestamp>) -> String {
    let Some(time) = time else { return "--:--:--.---".to_owned() };
    let second = time.seconds.rem_euclid(86_400);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{hour:02}:{minute:02}:{:02}.{:03}", second % 60, time.nanos / 1_000_000)
}

fn json_body(payload: Option<&pb::Payload>) -> Option<&str> {
    match payload?.body.as_ref()? {
        pb::payload::Body::Json(text) => Some(text),
        _ => None,
    }
}

/// Text from elsewhere without the control characters that would move a terminal's cursor.
pub(super) fn harmless(text: &str) -> Cow<'_, str> {
    if text.chars().any(char::is_control) {
        Cow::Owned(text.chars().map(|character| if character.is_control() { '\u{fffd}' } else { character }).collect())
    } else {
        Cow::Borrowed(text)
    }
}

fn json_lines(frame: &pb::Frame, kind: &Kind) -> String {
    let Kind::Batch(batch) = kind else {
        return json_marker(frame, kind).map_or_else(String::new, |marker| format!("{marker}\n"));
    };
    let mut lines = String::new();
    let last = batch.events.len().saturating_sub(1);
    for (index, event) in batch.events.iter().enumerate() {
        // The cursor stands for the whole frame: only its last line may carry it.
        let cursor = if index == last { frame.cursor.as_str() } else { "" };
        let line = EventLine::new(event, frame.epoch, cursor);
        lines.push_str(&serde_json::to_string(&line).expect("texts, numbers and JSON that parsed are always JSON"));
        lines.push('\n');
    }
    lines
}

/// One event as JSON; bodies are passed through as they came.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct EventLine<'e> {
    kind: &'static str,
    r#type: String,
    feed: &'e str,
    id: &'e str,
    api_version: &'e str,
    object_kind: &'e str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'e str,
    name: &'e str,
    uid: &'e str,
    #[serde(skip_serializing_if = "str::is_empty")]
    resource_version: &'e str,
    #[serde(skip_serializing_if = "String::is_empty")]
    delete_reason: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    marks: Vec<&'static str>,
    #[serde(skip_serializing_if = "is_zero")]
    epoch: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    cursor: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_object: Option<Box<RawValue>>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl<'e> EventLine<'e> {
    fn new(event: &'e pb::Event, epoch: u64, cursor: &'e str) -> Self {
        let delete_reason = match event.r#type() {
            pb::EventType::Deleted => event.delete_reason().as_str_name().replace("DELETE_REASON_", ""),
            _ => String::new(),
        };
        let marks = [
            (event.in_snapshot, "inSnapshot"),
            (event.redelivered, "redelivered"),
            (event.coalesced, "coalesced"),
            (event.synthesized, "synthesized"),
            (event.final_state_unknown, "finalStateUnknown"),
        ];
        let text = |pick: fn(&pb::ObjectRef) -> &String| event.object_ref.as_ref().map_or("", |object| pick(object));
        Self {
            kind: "event",
            r#type: event.r#type().as_str_name().replace("EVENT_TYPE_", ""),
            feed: &event.feed,
            id: &event.id,
            api_version: text(|object| &object.api_version),
            object_kind: text(|object| &object.kind),
            namespace: text(|object| &object.namespace),
            name: text(|object| &object.name),
            uid: text(|object| &object.uid),
            resource_version: &event.resource_version,
            delete_reason,
            marks: marks.iter().filter(|(set, _)| *set).map(|(_, mark)| *mark).collect(),
            epoch,
            cursor,
            object: json_body(event.object.as_ref()).and_then(one_line),
            old_object: json_body(event.old_object.as_ref()).and_then(one_line),
        }
    }
}

/// The text as it is, unless it is spread over lines; none when it is not JSON.
fn one_line(text: &str) -> Option<Box<RawValue>> {
    if text.contains(['\n', '\r']) {
        let value: Value = serde_json::from_str(text).ok()?;
        return serde_json::value::to_raw_value(&value).ok();
    }
    RawValue::from_string(text.to_owned()).ok()
}

/// A frame about the stream itself; none for heartbeats.
fn json_marker(frame: &pb::Frame, kind: &Kind) -> Option<Value> {
    let mut value = match kind {
        Kind::Batch(_) | Kind::Heartbeat(_) => return None,
        Kind::SessionStarted(started) => json!({
            "kind": "sessionStarted",
            "sessionId": started.session_id,
            "subscription": started.subscription,
            "server": started.server_identity,
            "serverVersion": started.server_version,
            "feeds": started.feeds.iter().map(|feed| &feed.name).collect::<Vec<_>>(),
        }),
        Kind::SnapshotBegin(begin) => json!({
            "kind": "snapshotBegin",
            "feed": begin.feed,
            "resourceVersion": begin.resource_version,
            "objectCount": begin.object_count,
        }),
        Kind::SnapshotEnd(end) => json!({
            "kind": "snapshotEnd",
            "feed": end.feed,
            "resourceVersion": end.resource_version,
            "sweep": end.sweep,
        }),
        Kind::Gap(gap) => json!({
            "kind": "gap",
            "feed": gap.feed,
            "gap": gap.kind().as_str_name().replace("GAP_KIND_", ""),
            "reason": gap.reason().as_str_name().replace("GAP_REASON_", ""),
            "from": gap.from_resource_version,
            "to": gap.to_resource_version,
            "deletesComplete": gap.deletes_complete,
            "snapshotFollows": gap.snapshot_follows,
            "detail": gap.detail,
        }),
        Kind::Leadership(leadership) => json!({
            "kind": "leadership",
            "state": leadership.state().as_str_name().replace("LEADERSHIP_STATE_", ""),
            "epoch": leadership.epoch,
            "holder": leadership.holder_identity,
            "validForSeconds": super::duration(leadership.valid_for.as_ref()).as_secs_f64(),
            "detail": leadership.detail,
        }),
        Kind::FeedStatus(status) => json!({
            "kind": "feedStatus",
            "feed": status.feed,
            "state": status.state().as_str_name().replace("FEED_STATE_", ""),
            "detail": status.detail,
        }),
        Kind::SessionEnding(ending) => json!({
            "kind": "sessionEnding",
            "reason": ending.reason().as_str_name().replace("END_REASON_", ""),
        }),
    };
    if !frame.cursor.is_empty() {
        let fields: &mut Map<String, Value> = value.as_object_mut().expect("every marker above is an object");
        fields.insert("cursor".to_owned(), Value::String(frame.cursor.clone()));
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn event(kind: pb::EventType) -> pb::Event {
        pb::Event {
            id: "pods/u1/124".to_owned(),
            r#type: kind.into(),
            feed: "pods".to_owned(),
            object_ref: Some(pb::ObjectRef {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                namespace: "shop".to_owned(),
                name: "web-1".to_owned(),
                uid: "u1".to_owned(),
            }),
            resource_version: "124".to_owned(),
            observe_time: Some(prost_types::Timestamp { seconds: 86_400 + 3_661, nanos: 5_000_000 }),
            ..pb::Event::default()
        }
    }

    fn body(json: &str) -> Option<pb::Payload> {
        Some(pb::Payload { body: Some(pb::payload::Body::Json(json.to_owned())), ..pb::Payload::default() })
    }

    fn frames() -> Vec<pb::Frame> {
        let modified = pb::Event {
            object: body("{\"status\":{\"phase\":\"Running\"}}"),
            old_object: body("{\"status\":{\"phase\":\"Pend\\u001bing\"}}"),
            ..event(pb::EventType::Modified)
        };
        let deleted = pb::Event {
            delete_reason: pb::DeleteReason::TypeRemoved.into(),
            synthesized: true,
            resource_version: String::new(),
            ..event(pb::EventType::Deleted)
        };
        let gap = pb::Gap {
            feed: "pods".to_owned(),
            kind: pb::GapKind::Reset.into(),
            reason: pb::GapReason::ColdStart.into(),
            from_resource_version: "1".to_owned(),
            to_resource_version: "9".to_owned(),
            snapshot_follows: true,
            detail: "odd\x1b[2Jdetail".to_owned(),
            ..pb::Gap::default()
        };
        let leadership = pb::Leadership {
            state: pb::LeadershipState::Leading.into(),
            epoch: 42,
            holder_identity: "web-0".to_owned(),
            ..pb::Leadership::default()
        };
        let kinds = [
            Kind::Leadership(leadership),
            Kind::SnapshotEnd(pb::SnapshotEnd {
                feed: "pods".to_owned(),
                resource_version: "9".to_owned(),
                sweep: true,
            }),
            Kind::Batch(pb::EventBatch { events: vec![event(pb::EventType::Added), modified, deleted] }),
            Kind::Gap(gap),
            Kind::Heartbeat(pb::Heartbeat::default()),
        ];
        kinds
            .into_iter()
            .map(|kind| pb::Frame { cursor: "c1".to_owned(), kind: Some(kind), ..pb::Frame::default() })
            .collect()
    }

    fn rendered(style: Style) -> String {
        let mut renderer = Renderer::new(style);
        frames().iter().map(|frame| renderer.frame(frame)).collect()
    }

    #[test]
    fn people_read_one_line_per_event_and_marker() {
        expect![[r#"
            --:--:--.--- ── leading, epoch 42, held by web-0
            --:--:--.--- ── pods: in sync at rv 9; what was not listed is gone
            01:01:01.005 ADDED    pods shop/web-1 rv 124
            01:01:01.005 MODIFIED pods shop/web-1 rv 124 status.phase: "Pend\u001bing" → "Running"
            01:01:01.005 DELETED  pods shop/web-1 rv ? (type removed) (derived)
            --:--:--.--- ── pods: gap, reset (cold start), rv 1 to 9: deletes may be missing; a snapshot follows: odd�[2Jdetail
        "#]].assert_eq(&rendered(Style::Plain));
    }

    #[test]
    fn pipes_get_one_object_per_line() {
        let text = rendered(Style::Json);
        for line in text.lines() {
            serde_json::from_str::<Value>(line).unwrap();
        }
        expect![[r#"
            {"cursor":"c1","detail":"","epoch":42,"holder":"web-0","kind":"leadership","state":"LEADING","validForSeconds":0.0}
            {"cursor":"c1","feed":"pods","kind":"snapshotEnd","resourceVersion":"9","sweep":true}
            {"kind":"event","type":"ADDED","feed":"pods","id":"pods/u1/124","apiVersion":"v1","objectKind":"Pod","namespace":"shop","name":"web-1","uid":"u1","resourceVersion":"124"}
            {"kind":"event","type":"MODIFIED","feed":"pods","id":"pods/u1/124","apiVersion":"v1","objectKind":"Pod","namespace":"shop","name":"web-1","uid":"u1","resourceVersion":"124","object":{"status":{"phase":"Running"}},"oldObject":{"status":{"phase":"Pend\u001bing"}}}
            {"kind":"event","type":"DELETED","feed":"pods","id":"pods/u1/124","apiVersion":"v1","objectKind":"Pod","namespace":"shop","name":"web-1","uid":"u1","deleteReason":"TYPE_REMOVED","marks":["synthesized"],"cursor":"c1"}
            {"cursor":"c1","deletesComplete":false,"detail":"odd\u001b[2Jdetail","feed":"pods","from":"1","gap":"RESET","kind":"gap","reason":"COLD_START","snapshotFollows":true,"to":"9"}
        "#]].assert_eq(&text);
    }

    #[test]
    fn colours_are_closed_and_foreign_escapes_are_not_passed_on() {
        let text = rendered(Style::Color);
        assert_eq!(text.matches("\x1b[").count(), 2 * text.matches("\x1b[0m").count());
        assert!(!text.contains("\x1b[2J"));
    }

    #[test]
    fn bodies_over_several_lines_are_put_on_one() {
        let spread = pb::Event { object: body("{\n \"a\": 1\n}"), ..event(pb::EventType::Added) };
        let kind = Some(Kind::Batch(pb::EventBatch { events: vec![spread] }));
        let text = Renderer::new(Style::Json).frame(&pb::Frame { kind, ..pb::Frame::default() });
        assert_eq!(text.lines().count(), 1);
        assert!(text.contains("\"object\":{\"a\":1}"), "{text}");
    }
}
