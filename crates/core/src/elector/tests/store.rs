//! One Lease as an API server keeps it: compare-and-swap on the version, a new uid after each deletion.

use serde_json::{Value, json};

use crate::codec::lease::LeaseRecord;
use crate::elector::{Input, RequestId};
use crate::time::WallTime;

/// The Lease, or its absence.
#[derive(Default)]
pub(super) struct Store {
    pub(super) version: u64,
    incarnations: u64,
    object: Option<Value>,
}

impl Store {
    pub(super) fn record(&self) -> Option<LeaseRecord> {
        self.object.as_ref().map(|object| LeaseRecord::decode(object.to_string().as_bytes()).unwrap())
    }

    pub(super) fn get(&self, request: RequestId) -> Input {
        match self.record() {
            Some(record) => Input::LeaseObserved { request, record },
            None => Input::LeaseAbsent { request },
        }
    }

    /// 200, 404 or 409.
    pub(super) fn put(&mut self, request: RequestId, record: &LeaseRecord) -> Input {
        match self.record() {
            None => Input::RequestFailed {
                request,
                failure: crate::codec::status::Failure::new(crate::codec::status::FailureKind::NotFound, "not found"),
            },
            Some(stored) if (&stored.uid, &stored.resource_version) != (&record.uid, &record.resource_version) => {
                Input::PutConflict { request }
            }
            Some(_) => {
                self.write(serde_json::from_slice(&record.encode()).unwrap());
                Input::PutOk { request, record: self.record().unwrap() }
            }
        }
    }

    /// 201 or 409. `seconds` is the server's wall clock.
    pub(super) fn create(&mut self, request: RequestId, record: &LeaseRecord, seconds: i64) -> Input {
        if self.object.is_some() {
            return Input::PutConflict { request };
        }
        self.incarnations += 1;
        let mut object: Value = serde_json::from_slice(&record.encode()).unwrap();
        object["metadata"]["uid"] = json!(format!("u{}", self.incarnations));
        object["metadata"]["creationTimestamp"] = json!(WallTime::from_micros(seconds * 1_000_000).to_string());
        self.write(object);
        Input::PutOk { request, record: self.record().unwrap() }
    }

    /// A write by hand, unconditional.
    pub(super) fn edit(&mut self, change: impl FnOnce(&mut Value)) {
        let mut object = self.object.clone().expect("there is a Lease");
        change(&mut object);
        self.write(object);
    }

    /// Deletes the Lease and returns its last state, with the version of the deletion.
    pub(super) fn delete(&mut self) -> Option<LeaseRecord> {
        let object = self.object.take()?;
        self.write(object);
        let last = self.record();
        self.object = None;
        last
    }

    /// A backup with this Lease in it is restored: versions go on from there.
    pub(super) fn restore(&mut self, record: &LeaseRecord) {
        let version = record.resource_version.as_ref().expect("it was stored").to_string();
        self.version = version.parse().expect("versions here are numbers");
        let mut object: Value = serde_json::from_slice(&record.encode()).expect("it was encoded");
        object["metadata"]["resourceVersion"] = json!(version);
        self.object = Some(object);
    }

    fn write(&mut self, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.object = Some(object);
    }
}
