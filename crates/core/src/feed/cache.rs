//! Stub.
use crate::object::{ObjectKey, ObjectState};
use std::sync::Arc;
/// s
#[derive(Clone, Debug, Default)]
pub struct Snapshot(std::collections::BTreeMap<ObjectKey, Arc<ObjectState>>);
impl Snapshot {
    /// objects
    pub fn after<'a>(&'a self, key: Option<&ObjectKey>) -> impl Iterator<Item = &'a Arc<ObjectState>> {
        use std::ops::Bound::*;
        self.0.range((key.map_or(Unbounded, |k| Excluded(k.clone())), Unbounded)).map(|(_, v)| v)
    }
    /// n
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// s
    pub fn snapshot(&self) -> Snapshot {
        self.clone()
    }
    /// b
    pub fn bytes(&self) -> usize {
        0
    }
}
