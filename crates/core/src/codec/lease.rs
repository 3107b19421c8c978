//! Lease JSON ↔ the fields that the election reads and writes.
//!
//! A record keeps the whole object as the server sent it and changes only what is ours, so that unknown
//! fields, foreign labels, annotations, owner references and finalizers survive every write. Implements the
//! Lease part of `docs/protocol.md`, A.10 and D.5; what the fields mean is decided in [`crate::elector`].

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::epoch::Epoch;
use crate::object::Uid;
use crate::resource_version::ResourceVersion;
use crate::time::WallTime;

/// Annotation with the epoch of the present holder, in decimal.
pub const EPOCH_ANNOTATION: &str = "sidewatch.dev/epoch";
/// Annotation with the text of the checkpoint.
pub const CHECKPOINT_ANNOTATION: &str = "sidewatch.dev/checkpoint";

/// Why a Lease was not understood. The object itself is not quoted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LeaseError {
    /// Not JSON, or cut off.
    #[error("not JSON: {0}")]
    Json(String),
    /// A field that every stored Lease has is missing or has another type.
    #[error("{0} is missing or has an unexpected type")]
    Field(&'static str),
    /// A watch event of a type that does not exist.
    #[error("unknown type of watch event")]
    EventType,
}

/// One Lease: the fields of the election, and everything else kept as it came.
#[derive(Clone, PartialEq, Debug)]
pub struct LeaseRecord {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`, none before the server has created it.
    pub uid: Option<Uid>,
    /// `metadata.resourceVersion`, none before the server has created it: the precondition of a write.
    pub resource_version: Option<ResourceVersion>,
    /// `metadata.creationTimestamp` in seconds since the Unix epoch, 0 when there is none.
    pub created_seconds: i64,
    /// `spec.holderIdentity`, empty when nobody holds it.
    pub holder_identity: String,
    /// `spec.leaseDurationSeconds`; written as whole seconds.
    pub lease_duration: Option<Duration>,
    /// `spec.acquireTime`: for people.
    pub acquire_time: Option<WallTime>,
    /// `spec.renewTime`: for people, and to tell one's own writes apart.
    pub renew_time: Option<WallTime>,
    /// `spec.leaseTransitions`, 0 when there is none.
    pub lease_transitions: i32,
    /// `spec.preferredHolder` of coordinated leader election.
    pub preferred_holder: Option<String>,
    /// `spec.strategy` of coordinated leader election; read only.
    pub strategy: Option<String>,
    /// The annotation [`EPOCH_ANNOTATION`]; [`Epoch::NONE`] when it is missing, no number, or beyond belief.
    pub stored_epoch: Epoch,
    /// The annotation [`CHECKPOINT_ANNOTATION`].
    pub checkpoint: Option<String>,
    /// The object as the server sent it.
    object: Value,
}

impl LeaseRecord {
    /// A Lease that does not exist yet and that nobody holds.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: None,
            resource_version: None,
            created_seconds: 0,
            holder_identity: String::new(),
            lease_duration: None,
            acquire_time: None,
            renew_time: None,
            lease_transitions: 0,
            preferred_holder: None,
            strategy: None,
            stored_epoch: Epoch::NONE,
            checkpoint: None,
            object: json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": { "namespace": namespace, "name": name },
            }),
        }
    }

    /// Reads a Lease as the API server stores it.
    ///
    /// # Errors
    /// When the bytes are no JSON object with the metadata that every stored object has.
    pub fn decode(body: &[u8]) -> Result<Self, LeaseError> {
        let object = serde_json::from_slice(body).map_err(|error| LeaseError::Json(error.to_string()))?;
        Self::from_object(object)
    }

    fn from_object(object: Value) -> Result<Self, LeaseError> {
        let metadata = &object["metadata"];
        let spec = &object["spec"];
        let required = |key: &str, path| metadata[key].as_str().ok_or(LeaseError::Field(path));
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let time = |value: &Value| value.as_str().and_then(WallTime::parse_rfc3339);
        let annotation = |key: &str| metadata["annotations"][key].as_str();
        Ok(Self {
            namespace: required("namespace", "metadata.namespace")?.to_owned(),
            name: required("name", "metadata.name")?.to_owned(),
            uid: Some(Uid::from(required("uid", "metadata.uid")?)),
            resource_version: Some(ResourceVersion::parse(required("resourceVersion", "metadata.resourceVersion")?)),
            created_seconds: time(&metadata["creationTimestamp"])
                .map_or(0, |created| created.as_micros().div_euclid(1_000_000)),
            holder_identity: text(&spec["holderIdentity"]).unwrap_or_default(),
            lease_duration: spec["leaseDurationSeconds"].as_u64().map(Duration::from_secs),
            acquire_time: time(&spec["acquireTime"]),
            renew_time: time(&spec["renewTime"]),
            lease_transitions: spec["leaseTransitions"].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0),
            preferred_holder: text(&spec["preferredHolder"]),
            strategy: text(&spec["strategy"]),
            stored_epoch: annotation(EPOCH_ANNOTATION)
                .and_then(|epoch| epoch.parse().ok())
                .map_or(Epoch::NONE, Epoch::stored),
            checkpoint: annotation(CHECKPOINT_ANNOTATION).map(str::to_owned),
            object,
        })
    }

    /// The epoch of the present holder: what creation time and transitions say, or what was stored, if that is higher
    /// (Rule D.1).
    pub fn epoch(&self) -> Epoch {
        Epoch::acquire(self.created_seconds, self.lease_transitions, Epoch::NONE, Epoch::NONE).max(self.stored_epoch)
    }

    /// The body of a PUT or POST: the object as it came, with our fields on top and without `managedFields`.
    pub fn encode(&self) -> Vec<u8> {
        let mut object = self.object.clone();
        let metadata = member(&mut object, "metadata");
        // The server keeps its own account of field owners; sent back, ours would only be stale.
        metadata.remove("managedFields");
        let annotations = [
            (EPOCH_ANNOTATION, (self.stored_epoch != Epoch::NONE).then(|| self.stored_epoch.to_string())),
            (CHECKPOINT_ANNOTATION, self.checkpoint.clone()),
        ];
        for (key, text) in annotations.into_iter().filter_map(|(key, text)| Some((key, text?))) {
            let all = metadata.entry("annotations").or_insert_with(|| json!({}));
            as_map(all).insert(key.to_owned(), Value::String(text));
        }
        let spec = member(&mut object, "spec");
        spec.insert("holderIdentity".to_owned(), json!(self.holder_identity));
        spec.insert("leaseTransitions".to_owned(), json!(self.lease_transitions));
        let optional = [
            ("leaseDurationSeconds", self.lease_duration.map(|duration| json!(duration.as_secs()))),
            ("acquireTime", self.acquire_time.map(|time| json!(time.to_string()))),
            ("renewTime", self.renew_time.map(|time| json!(time.to_string()))),
        ];
        for (key, value) in optional.into_iter().filter_map(|(key, value)| Some((key, value?))) {
            spec.insert(key.to_owned(), value);
        }
        match &self.preferred_holder {
            Some(holder) => spec.insert("preferredHolder".to_owned(), json!(holder)),
            None => spec.remove("preferredHolder"),
        };
        object.to_string().into_bytes()
    }
}

/// The member `key` of `object` as a map; what has another type is replaced, since the server would refuse it.
fn member<'a>(object: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    as_map(as_map(object).entry(key).or_insert_with(|| json!({})))
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("the line above made it an object")
}

/// One event of a watch of the Lease.
#[derive(Clone, PartialEq, Debug)]
pub enum LeaseEvent {
    /// ADDED or MODIFIED.
    Observed(LeaseRecord),
    /// DELETED: the last state, with the version of the deletion.
    Deleted(LeaseRecord),
    /// BOOKMARK: nothing happened.
    Bookmark,
    /// ERROR: the watch is over, and this is the body of the `Status` that says why.
    Error(Vec<u8>),
}

impl LeaseEvent {
    /// Reads one line of a watch, without its line end.
    ///
    /// # Errors
    /// When the line is not one event around a Lease.
    pub fn decode(line: &[u8]) -> Result<Self, LeaseError> {
        let mut event: Value = serde_json::from_slice(line).map_err(|error| LeaseError::Json(error.to_string()))?;
        let object = event["object"].take();
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => LeaseRecord::from_object(object).map(Self::Observed),
            Some("DELETED") => LeaseRecord::from_object(object).map(Self::Deleted),
            Some("BOOKMARK") => Ok(Self::Bookmark),
            Some("ERROR") => Ok(Self::Error(object.to_string().into_bytes())),
            Some(_) | None => Err(LeaseError::EventType),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: &str = r#"{
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "namespace": "shop", "name": "orders", "uid": "u-1", "resourceVersion": "42",
            "creationTimestamp": "2026-12-01T12:00:00Z",
            "labels": { "team": "blue" },
            "annotations": { "note": "by hand", "sidewatch.dev/epoch": "7", "sidewatch.dev/checkpoint": "abc" },
            "ownerReferences": [ { "kind": "Deployment", "name": "orders", "uid": "u-0", "apiVersion": "apps/v1" } ],
            "finalizers": [ "example.com/keep" ],
            "managedFields": [ { "manager": "someone" } ]
        },
        "spec": {
            "holderIdentity": "a_1_x", "leaseDurationSeconds": 15, "leaseTransitions": 3,
            "acquireTime": "2026-12-01T12:00:00.000001Z", "renewTime": "2026-12-01T12:00:05.500000Z",
            "strategy": "OldestEmulationVersion", "preferredHolder": "b", "futureField": { "deep": [ 1, 2 ] }
        }
    }"#;

    #[test]
    fn the_fields_of_the_election_are_read() {
        let record = LeaseRecord::decode(STORED.as_bytes()).unwrap();
        assert_eq!((record.namespace.as_str(), record.name.as_str()), ("shop", "orders"));
        assert_eq!(record.resource_version, Some(ResourceVersion::from(42)));
        assert_eq!(record.created_seconds, 1_796_126_400);
        assert_eq!(record.holder_identity, "a_1_x");
        assert_eq!(record.lease_duration, Some(Duration::from_secs(15)));
        assert_eq!(record.lease_transitions, 3);
        assert_eq!(record.preferred_holder.as_deref(), Some("b"));
        assert_eq!(record.stored_epoch, Epoch::from_u64(7));
        assert_eq!(record.checkpoint.as_deref(), Some("abc"));
        assert_eq!(record.epoch().as_u64(), (1_796_126_400 << 20) + 3);
    }

    #[test]
    fn a_write_keeps_everything_that_is_not_ours() {
        let record = LeaseRecord::decode(STORED.as_bytes()).unwrap();
        let mut expected: Value = serde_json::from_str(STORED).unwrap();
        expected["metadata"].as_object_mut().unwrap().remove("managedFields");
        assert_eq!(serde_json::from_slice::<Value>(&record.encode()).unwrap(), expected);

        let mut renewed = record;
        renewed.renew_time = Some(WallTime::from_micros(0));
        renewed.checkpoint = Some("def".to_owned());
        renewed.preferred_holder = None;
        expected["spec"]["renewTime"] = json!("1970-01-01T00:00:00.000000Z");
        expected["spec"].as_object_mut().unwrap().remove("preferredHolder");
        expected["metadata"]["annotations"][CHECKPOINT_ANNOTATION] = json!("def");
        assert_eq!(serde_json::from_slice::<Value>(&renewed.encode()).unwrap(), expected);
    }

    #[test]
    fn a_new_lease_has_no_precondition() {
        let mut record = LeaseRecord::new("shop", "orders");
        record.holder_identity = "a_1_x".to_owned();
        record.lease_duration = Some(Duration::from_secs(15));
        let body: Value = serde_json::from_slice(&record.encode()).unwrap();
        assert_eq!(body["metadata"], json!({ "namespace": "shop", "name": "orders" }));
        assert_eq!(
            body["spec"],
            json!({ "holderIdentity": "a_1_x", "leaseDurationSeconds": 15, "leaseTransitions": 0 })
        );
    }

    #[test]
    fn nulls_and_nonsense_in_optional_fields_read_as_absent() {
        let body = br#"{"metadata":{"namespace":"n","name":"l","uid":"u","resourceVersion":"1",
            "annotations":{"sidewatch.dev/epoch":"many"}},
            "spec":{"holderIdentity":null,"leaseTransitions":99999999999,"renewTime":"soon"}}"#;
        let record = LeaseRecord::decode(body).unwrap();
        assert_eq!((record.holder_identity.as_str(), record.lease_transitions), ("", 0));
        assert_eq!((record.renew_time, record.stored_epoch), (None, Epoch::NONE));
    }

    #[test]
    fn what_is_no_lease_is_refused_without_quoting_it() {
        for body in [&b""[..], b"[]", b"{}", br#"{"metadata":{"namespace":"n","name":"l","uid":"u"}}"#, b"\xff"] {
            let error = LeaseRecord::decode(body).unwrap_err();
            assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn watch_events_are_told_apart() {
        let line = |kind: &str| format!(r#"{{"type":"{kind}","object":{STORED}}}"#).into_bytes();
        assert!(matches!(LeaseEvent::decode(&line("ADDED")), Ok(LeaseEvent::Observed(_))));
        assert!(matches!(LeaseEvent::decode(&line("MODIFIED")), Ok(LeaseEvent::Observed(_))));
        assert!(matches!(LeaseEvent::decode(&line("DELETED")), Ok(LeaseEvent::Deleted(_))));
        assert!(matches!(LeaseEvent::decode(&line("BOOKMARK")), Ok(LeaseEvent::Bookmark)));
        assert!(matches!(LeaseEvent::decode(&line("ERROR")), Ok(LeaseEvent::Error(_))));
        assert_eq!(LeaseEvent::decode(&line("GONE")), Err(LeaseError::EventType));
    }
}
