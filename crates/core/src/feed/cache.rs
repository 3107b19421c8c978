//! The current state of a feed: objects by key, shared with journal and frames; a snapshot costs nothing.

use std::ops::Bound;
use std::sync::Arc;

use immutable_chunkmap::map::MapM;

use crate::object::{ObjectKey, ObjectState};

/// Objects in the order of their keys. Cloning is O(1) and the clone never changes.
#[derive(Clone, Default, Debug)]
pub struct Cache {
    objects: MapM<ObjectKey, Arc<ObjectState>>,
    bytes: usize,
}

impl Cache {
    /// The state as it is, unaffected by later changes, in O(1).
    pub fn snapshot(&self) -> Self {
        self.clone()
    }

    /// The object at `key`.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<ObjectState>> {
        self.objects.get(key)
    }

    /// Objects in the order of their keys, from the one after `after`, or from the first.
    pub fn iter_after<'a>(&'a self, after: Option<&'a ObjectKey>) -> impl Iterator<Item = &'a Arc<ObjectState>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.objects.range::<ObjectKey, _>((from, Bound::Unbounded)).map(|(_, object)| object)
    }

    /// All objects in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ObjectState>> {
        self.iter_after(None)
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the objects keep in memory ([`ObjectState::size_bytes`]).
    pub const fn bytes_in_use(&self) -> usize {
        self.bytes
    }

    /// Puts an object in place; returns the one that was there.
    pub(super) fn insert(&mut self, object: Arc<ObjectState>) -> Option<Arc<ObjectState>> {
        self.bytes += object.size_bytes();
        let before = self.objects.insert_cow(object.key.clone(), object);
        self.bytes -= before.as_ref().map_or(0, |object| object.size_bytes());
        before
    }

    /// Takes an object away.
    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Arc<ObjectState>> {
        let before = self.objects.remove_cow(key);
        self.bytes -= before.as_ref().map_or(0, |object| object.size_bytes());
        before
    }
}

impl FromIterator<Arc<ObjectState>> for Cache {
    fn from_iter<I: IntoIterator<Item = Arc<ObjectState>>>(objects: I) -> Self {
        let mut bytes = 0;
        let counted = objects.into_iter().map(|object| {
            bytes += object.size_bytes();
            (object.key.clone(), object)
        });
        Self { objects: MapM::new().insert_many(counted), bytes }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::object::Uid;
    use crate::resource_version::ResourceVersion;

    fn object(name: &str, body: &'static str) -> Arc<ObjectState> {
        Arc::new(ObjectState {
            key: ObjectKey::new("n", name),
            uid: Uid::from("u"),
            resource_version: ResourceVersion::from(1),
            body: Bytes::from_static(body.as_bytes()),
        })
    }

    fn names<'a>(objects: impl Iterator<Item = &'a Arc<ObjectState>>) -> Vec<&'a str> {
        objects.map(|object| &*object.key.name).collect()
    }

    #[test]
    fn a_snapshot_does_not_see_later_changes() {
        let mut cache = Cache::default();
        cache.insert(object("a", "1"));
        let snapshot = cache.snapshot();
        cache.insert(object("b", "1"));
        cache.remove(&ObjectKey::new("n", "a"));
        assert_eq!((names(snapshot.iter()), names(cache.iter())), (vec!["a"], vec!["b"]));
    }

    #[test]
    fn iteration_goes_on_after_a_key_that_may_be_gone() {
        let cache: Cache = ["d", "a", "c"].map(|name| object(name, "")).into_iter().collect();
        assert_eq!(names(cache.iter()), ["a", "c", "d"]);
        assert_eq!(names(cache.iter_after(Some(&ObjectKey::new("n", "b")))), ["c", "d"]);
        assert_eq!(names(cache.iter_after(Some(&ObjectKey::new("n", "c")))), ["d"]);
    }

    #[test]
    fn bytes_follow_every_change() {
        let mut cache: Cache = [object("a", "123")].into_iter().collect();
        let one = cache.bytes_in_use();
        assert_eq!(one, object("a", "123").size_bytes());
        cache.insert(object("a", "12345"));
        assert_eq!(cache.bytes_in_use(), one + 2);
        cache.remove(&ObjectKey::new("n", "a"));
        cache.remove(&ObjectKey::new("n", "a"));
        assert_eq!(cache.bytes_in_use(), 0);
    }
}
