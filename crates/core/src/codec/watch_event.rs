//! One line of a watch → the event and the object's metadata; the body stays bytes.

use bytes::Bytes;

use crate::codec::json_scan::{Metadata, Object, Scanner};
use crate::codec::status::{self, Failure};
use crate::object::ObjectState;
use crate::resource_version::ResourceVersion;

/// One event of a watch, as the server sent it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchEvent {
    /// ADDED: also every object of a streaming list.
    Added(ObjectState),
    /// MODIFIED.
    Modified(ObjectState),
    /// DELETED: the last state, with the version of the deletion.
    Deleted(ObjectState),
    /// BOOKMARK: all changes up to this version have been sent.
    Bookmark {
        /// The version.
        resource_version: ResourceVersion,
        /// Annotated `k8s.io/initial-events-end: "true"`: the streaming list is complete.
        initial_events_end: bool,
    },
    /// ERROR: a `Status` inside the stream, after which nothing follows.
    Error(Failure),
}

/// Whether `metadata.managedFields`, often half of an object, is kept in the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ManagedFields {
    /// Cut out of the body.
    #[default]
    Drop,
    /// Left as the server sent it.
    Keep,
}

/// Why a line was not understood. The line itself is not quoted: it may hold a Secret.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} at byte {offset}")]
pub struct DecodeError {
    /// What was expected and not found.
    pub what: &'static str,
    /// Where in the line or page.
    pub offset: usize,
}

/// Decodes one line of a watch body, without its line end.
///
/// # Errors
/// When the line is not one JSON object of a known event type around an object with metadata.
pub fn decode(line: Bytes, managed_fields: ManagedFields) -> Result<WatchEvent, DecodeError> {
    let mut scanner = Scanner::new(&line)?;
    let (mut kind, mut object) = (None, None);
    scanner.members(|scanner, key| {
        match scanner.known(key, &["type", "object"]) {
            Some(0) => kind = scanner.string_or_null()?,
            Some(_) => object = Some(scanner.object(|scanner, _| scanner.skip_value())?),
            None => scanner.skip_value()?,
        }
        Ok(())
    })?;
    scanner.end()?;
    let kind = kind.ok_or(DecodeError { what: "an event without type", offset: 0 })?;
    let object: Object = object.ok_or(DecodeError { what: "an event without object", offset: 0 })?;
    let state = || scanner.state(&object, managed_fields, None);
    match scanner.known(kind, &["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]) {
        Some(0) => state().map(WatchEvent::Added),
        Some(1) => state().map(WatchEvent::Modified),
        Some(2) => state().map(WatchEvent::Deleted),
        Some(3) => bookmark(&scanner, object.metadata),
        Some(_) => Ok(WatchEvent::Error(status::in_stream(&line[object.span]))),
        None => Err(DecodeError { what: "an event of unknown type", offset: 0 }),
    }
}

fn bookmark(scanner: &Scanner<'_>, metadata: Metadata) -> Result<WatchEvent, DecodeError> {
    let version = match metadata.resource_version {
        Some(text) => scanner.decode(text)?,
        None => return Err(DecodeError { what: "a bookmark without metadata.resourceVersion", offset: 0 }),
    };
    let end = |span| scanner.has_member(span, "k8s.io/initial-events-end", "true");
    Ok(WatchEvent::Bookmark {
        resource_version: ResourceVersion::parse(&version),
        initial_events_end: metadata.annotations.is_some_and(end),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::codec::list_page;
    use crate::codec::status::FailureKind;

    fn decode_text(text: &str) -> Result<WatchEvent, DecodeError> {
        decode(Bytes::copy_from_slice(text.as_bytes()), ManagedFields::Drop)
    }

    fn body(event: WatchEvent) -> Bytes {
        match event {
            WatchEvent::Added(o) | WatchEvent::Modified(o) | WatchEvent::Deleted(o) => o.body,
            other => panic!("no body: {other:?}"),
        }
    }

    #[test]
    fn managed_fields_are_cut_wherever_they_stand() {
        let identity = r#""name":"a","uid":"u","resourceVersion":"5""#;
        let managed = r#""managedFields":[{"f:x":{}}]"#;
        for metadata in [
            format!("{managed},{identity}"),
            format!("{identity},{managed}"),
            format!(r#" {managed} , {managed} ,{identity}"#),
            format!(r#"{identity} , {managed} , {managed} "#),
            format!(r#""name":"a" , {managed} ,"uid":"u","resourceVersion":"5""#),
            format!(r#"{identity},"managed\u0046ields":null"#),
        ] {
            let line = format!(r#"{{"object":{{"metadata":{{{metadata}}}}},"type":"ADDED"}}"#);
            let body: Value = serde_json::from_slice(&body(decode_text(&line).expect(&line))).expect(&line);
            let expected = serde_json::json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "5"}});
            assert_eq!(body, expected, "{line}");
        }
    }

    #[test]
    fn the_last_of_two_equal_keys_counts() {
        let line = r#"{"type":"DELETED","object":{"metadata":{"name":"x"},"metadata":{"name":"b","name":"a",
            "uid":"u","resourceVersion":"5"}},"type":"ADDED"}"#;
        match decode_text(line) {
            Ok(WatchEvent::Added(object)) => assert_eq!(&*object.key.name, "a"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bookmarks_tell_the_end_of_the_initial_events() {
        let bookmark = |annotations: &str| {
            decode_text(&format!(
                r#"{{"type":"BOOKMARK","object":{{"kind":"Pod","metadata":{{"resourceVersion":"9"{annotations}}}}}}}"#
            ))
        };
        let expected = |initial_events_end| {
            Ok(WatchEvent::Bookmark { resource_version: ResourceVersion::from(9), initial_events_end })
        };
        assert_eq!(bookmark(""), expected(false));
        assert_eq!(bookmark(r#","annotations":{"a":1,"k8s.io/initial-events-end":"true"}"#), expected(true));
        assert_eq!(bookmark(r#","annotations":{"k8s.io/initial-events-end":"false"}"#), expected(false));
        assert_eq!(bookmark(r#","annotations":null"#), expected(false));
    }

    #[test]
    fn an_error_event_is_a_failure() {
        let line = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
            "message":"too old resource version: 1 (5)","reason":"Expired","code":410}}"#;
        match decode_text(line) {
            Ok(WatchEvent::Error(failure)) => assert_eq!(failure.kind, FailureKind::Expired),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_not_an_event_is_refused() {
        let object = r#"{"metadata":{"name":"a","uid":"u","resourceVersion":"5"}}"#;
        for line in [
            "",
            "{}",
            "null",
            r#"{"type":"ADDED"}"#,
            r#"{"type":"ADDED","object":null}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":"a","uid":"u"}}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":1,"uid":"u","resourceVersion":"5"}}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":"\ud800","uid":"u","resourceVersion":"5"}}}"#,
            &format!(r#"{{"type":"RENAMED","object":{object}}}"#),
            &format!(r#"{{"type":"ADDED","object":{object}}} {{}}"#),
            &format!(r#"{{"type":"ADDED","object":{object}"#),
        ] {
            assert!(decode_text(line).is_err(), "{line}");
        }
        assert!(decode(Bytes::from_static(b"{\"type\":\"\xff\"}"), ManagedFields::Drop).is_err());
        assert!(decode_text(&format!(r#"{{"type":"ADDED","object":{object}}}"#)).is_ok());
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            // Exact in binary: serde_json reads others back with an error in the last place.
            any::<i32>().prop_map(|n| Value::from(f64::from(n) / 64.0)),
            text().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                members(inner).prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    /// Keys that matter, keys that do not, and text that needs escapes.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            prop::sample::select(vec!["metadata", "name", "managedFields", "items", "kind", "type", "a b"])
                .prop_map(String::from),
            any::<String>(),
        ]
    }

    fn members(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Vec<(String, Value)>> {
        prop::collection::vec((text(), value), 0..4)
    }

    /// Writes `value` with white space, an order of keys and escapes that follow from `style`.
    fn write(value: &Value, style: &mut crate::prng::Prng, out: &mut String) {
        let space = |style: &mut crate::prng::Prng, out: &mut String| {
            if style.below(4) == 0 {
                out.push_str([" ", "\t", "\r", "  "][style.below(4) as usize]);
            }
        };
        space(style, out);
        match value {
            Value::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                if style.below(2) == 0 {
                    members.reverse();
                }
                out.push('{');
                for (i, (key, value)) in members.into_iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { "," });
                    space(style, out);
                    write_text(key, style, out);
                    space(style, out);
                    out.push(':');
                    write(value, style, out);
                }
                out.push('}');
            }
            Value::Array(elements) => {
                out.push('[');
                for (i, element) in elements.iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { "," });
                    write(element, style, out);
                }
                out.push(']');
            }
            Value::String(text) => write_text(text, style, out),
            other => out.push_str(&other.to_string()),
        }
        space(style, out);
    }

    fn write_text(text: &str, style: &mut crate::prng::Prng, out: &mut String) {
        if style.below(3) > 0 {
            return out.push_str(&Value::from(text).to_string());
        }
        out.push('"');
        for unit in text.encode_utf16() {
            out.push_str(&format!("\\u{unit:04x}"));
        }
        out.push('"');
    }

    fn object(
        metadata: &[(String, Value)],
        name: &str,
        namespace: &str,
        version: u32,
        rest: &[(String, Value)],
    ) -> Value {
        let mut metadata: serde_json::Map<_, _> = metadata.iter().cloned().collect();
        metadata.insert("name".into(), name.into());
        metadata.insert("namespace".into(), namespace.into());
        metadata.insert("uid".into(), "u".into());
        metadata.insert("resourceVersion".into(), version.to_string().into());
        metadata.remove("continue");
        let mut object: serde_json::Map<_, _> = rest.iter().cloned().collect();
        object.insert("metadata".into(), metadata.into());
        object.insert("kind".into(), "Pod".into());
        object.insert("apiVersion".into(), "v1".into());
        object.into()
    }

    proptest! {
        #[test]
        fn a_well_formed_event_is_understood_as_serde_json_does(
            metadata in members(json()), rest in members(json()), name in "[a-z\"\\\\é😀]{1,8}", namespace in any::<String>(),
            version in 1_u32.., kind in 0..3_usize, seed in any::<u64>(),
        ) {
            let mut object = object(&metadata, &name, &namespace, version, &rest);
            let event = serde_json::json!({"type": (["ADDED", "MODIFIED", "DELETED"][kind]), "object": object});
            let mut line = String::new();
            write(&event, &mut crate::prng::Prng::new(seed), &mut line);
            for managed_fields in [ManagedFields::Keep, ManagedFields::Drop] {
                let decoded = decode(line.clone().into(), managed_fields);
                let (found, state) = match decoded {
                    Ok(WatchEvent::Added(state)) => (0, state),
                    Ok(WatchEvent::Modified(state)) => (1, state),
                    Ok(WatchEvent::Deleted(state)) => (2, state),
                    other => panic!("{other:?} from {line}"),
                };
                prop_assert_eq!(found, kind);
                prop_assert_eq!((&*state.key.namespace, &*state.key.name), (&*namespace, &*name));
                prop_assert_eq!(&state.resource_version, &ResourceVersion::from(u64::from(version)));
                if managed_fields == ManagedFields::Drop {
                    object["metadata"].as_object_mut().unwrap().remove("managedFields");
                }
                prop_assert_eq!(serde_json::from_slice::<Value>(&state.body).unwrap(), object.clone());
            }
        }

        #[test]
        fn a_list_is_understood_as_serde_json_does(
            metadata in members(json()), rest in members(json()), seed in any::<u64>(), count in 0..4_usize,
        ) {
            let object = object(&metadata, "a", "n", 5, &rest);
            let mut items = vec![object.clone(); count];
            for item in &mut items {
                item.as_object_mut().unwrap().remove("kind");
                item.as_object_mut().unwrap().remove("apiVersion");
            }
            let list = serde_json::json!({
                "kind": "PodList", "apiVersion": "v1", "items": items,
                "metadata": {"resourceVersion": "7", "continue": "next"},
            });
            let mut text = String::new();
            write(&list, &mut crate::prng::Prng::new(seed), &mut text);
            let page = list_page::decode(text.into(), ManagedFields::Keep).unwrap();
            prop_assert_eq!(page.continue_token.as_deref(), Some("next"));
            prop_assert_eq!(page.objects.len(), count);
            for state in page.objects {
                prop_assert_eq!(serde_json::from_slice::<Value>(&state.body).unwrap(), object.clone());
            }
        }

        #[test]
        fn what_is_accepted_after_damage_still_parses(
            metadata in members(json()), rest in members(json()), seed in any::<u64>(),
        ) {
            let mut style = crate::prng::Prng::new(seed);
            let object = object(&metadata, "a", "n", 5, &rest);
            let mut line = String::new();
            write(&serde_json::json!({"type": "ADDED", "object": object}), &mut style, &mut line);
            let mut bytes = line.into_bytes();
            for _ in 0..=style.below(2) {
                let at = style.below(bytes.len() as u64) as usize;
                match style.below(3) {
                    0 => drop(bytes.remove(at)),
                    1 => bytes[at] = b"{}[],:\"\\0e-x \xff\x01"[style.below(15) as usize],
                    _ => bytes.insert(at, b"{}[],:\"\\0e-x \xff\x01"[style.below(15) as usize]),
                }
            }
            let whole = serde_json::from_slice::<serde::de::IgnoredAny>(&bytes);
            match decode(bytes.into(), ManagedFields::Drop) {
                Ok(WatchEvent::Added(state)) => {
                    prop_assert!(whole.is_ok());
                    prop_assert!(serde_json::from_slice::<serde::de::IgnoredAny>(&state.body).is_ok());
                    if let Ok(body) = serde_json::from_slice::<Value>(&state.body) {
                        prop_assert_eq!(&body["metadata"]["name"], &*state.key.name);
                        prop_assert_eq!(&body["metadata"]["uid"], state.uid.as_str());
                        prop_assert_eq!(&body["metadata"]["resourceVersion"], &state.resource_version.to_string());
                    }
                }
                Ok(other) => prop_assert!(false, "became {other:?}"),
                Err(_) => {}
            }
        }
    }
}
