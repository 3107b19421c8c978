//! A list under way, and the difference between what is cached and what it says (Rules D.2-4 and D.2-5).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::feed::cache::Cache;
use crate::feed::{Change, ChangeKind, DeleteReason, Origin};
use crate::object::{ObjectKey, ObjectState};
use crate::resource_version::ResourceVersion;

/// Objects of a list that is not complete.
#[derive(Clone, Debug, Default)]
pub(super) struct Staged {
    objects: BTreeMap<ObjectKey, Arc<ObjectState>>,
    /// Version of the first page; all others must have it too.
    pub(super) version: Option<ResourceVersion>,
}

/// The list is older than what was seen before; nothing may be concluded from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stale;

impl Staged {
    /// Takes an object, or rather the cached one when it is the same state: a relist of an unchanged cache costs
    /// pointers, not bodies.
    pub(super) fn put(&mut self, object: ObjectState, cache: &Cache) {
        let known = cache
            .get(&object.key)
            .filter(|cached| cached.uid == object.uid && cached.resource_version == object.resource_version);
        let shared = known.cloned().unwrap_or_else(|| Arc::new(object));
        self.objects.insert(shared.key.clone(), shared);
    }

    /// Takes an object away: it was deleted while a streaming list was under way.
    pub(super) fn remove(&mut self, object: &ObjectState) {
        if self.objects.get(&object.key).is_some_and(|staged| staged.uid == object.uid) {
            self.objects.remove(&object.key);
        }
    }

    /// The new cache.
    pub(super) fn into_cache(self) -> Cache {
        self.objects.into_values().collect()
    }
}

/// What happened between `cache` and `staged`: deletes by uid in the order of keys, then upserts by version.
pub(super) fn diff(cache: &Cache, staged: &Staged, gone: DeleteReason) -> Result<Vec<Change>, Stale> {
    let mut changes = Vec::new();
    let mut upserts = Vec::new();
    for cached in cache.iter() {
        match staged.objects.get(&cached.key) {
            None => changes.push(deleted(cached, gone)),
            Some(listed) if listed.uid != cached.uid && cfg!(mutation = "M5") => {}
            Some(listed) if listed.uid != cached.uid => changes.push(deleted(cached, DeleteReason::Replaced)),
            Some(listed) if cached.resource_version.is_after(&listed.resource_version) => return Err(Stale),
            Some(listed) if listed.resource_version == cached.resource_version => {}
            Some(listed) => upserts.push(upserted(listed, Some(cached))),
        }
    }
    for listed in staged.objects.values() {
        if cache.get(&listed.key).is_none_or(|cached| cached.uid != listed.uid) {
            upserts.push(upserted(listed, None));
        }
    }
    upserts.sort_by_key(|change| match change.resource_version {
        Some(ResourceVersion::Ordered(number)) => number,
        // Versions without an order stay in the order of keys.
        Some(ResourceVersion::Opaque(_)) | None => 0,
    });
    changes.append(&mut upserts);
    Ok(changes)
}

/// A delete that nobody saw.
pub(super) fn deleted(cached: &Arc<ObjectState>, reason: DeleteReason) -> Change {
    Change {
        kind: ChangeKind::Deleted { reason, final_state_unknown: true },
        origin: Origin::Synthesized,
        key: cached.key.clone(),
        uid: cached.uid.clone(),
        resource_version: None,
        old: None,
        object: Some(cached.clone()),
    }
}

fn upserted(listed: &Arc<ObjectState>, cached: Option<&Arc<ObjectState>>) -> Change {
    Change {
        kind: if cached.is_some() { ChangeKind::Modified } else { ChangeKind::Added },
        origin: Origin::Synthesized,
        key: listed.key.clone(),
        uid: listed.uid.clone(),
        resource_version: Some(listed.resource_version.clone()),
        old: cached.cloned(),
        object: Some(listed.clone()),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::object::Uid;

    fn object(name: &str, uid: &str, version: u64) -> ObjectState {
        ObjectState {
            key: ObjectKey::new("n", name),
            uid: Uid::from(uid),
            resource_version: ResourceVersion::from(version),
            body: Bytes::from_static(b"{}"),
        }
    }

    fn staged(objects: &[(&str, &str, u64)], cache: &Cache) -> Staged {
        let mut staged = Staged::default();
        for (name, uid, version) in objects {
            staged.put(object(name, uid, *version), cache);
        }
        staged
    }

    fn cache(objects: &[(&str, &str, u64)]) -> Cache {
        staged(objects, &Cache::default()).into_cache()
    }

    #[test]
    fn deletes_come_before_upserts_and_upserts_by_version() {
        let cache = cache(&[("a", "1", 5), ("b", "2", 6), ("c", "3", 7), ("z", "9", 8)]);
        let staged = staged(&[("a", "1", 20), ("b", "4", 10), ("d", "5", 15), ("z", "9", 8)], &cache);
        let changes = diff(&cache, &staged, DeleteReason::Deleted).unwrap();
        let told: Vec<_> = changes.iter().map(|c| (&*c.key.name, c.uid.as_str(), c.kind)).collect();
        let gone = |reason| ChangeKind::Deleted { reason, final_state_unknown: true };
        assert_eq!(
            told,
            [
                ("b", "2", gone(DeleteReason::Replaced)),
                ("c", "3", gone(DeleteReason::Deleted)),
                ("b", "4", ChangeKind::Added),
                ("d", "5", ChangeKind::Added),
                ("a", "1", ChangeKind::Modified),
            ]
        );
    }

    #[test]
    fn an_object_older_than_the_cached_one_condemns_the_list() {
        let cache = cache(&[("a", "1", 5), ("b", "2", 6)]);
        assert_eq!(diff(&cache, &staged(&[("b", "2", 5)], &cache), DeleteReason::Deleted), Err(Stale));
    }

    #[test]
    fn an_unchanged_object_keeps_its_memory() {
        let cache = cache(&[("a", "1", 5)]);
        let relisted = staged(&[("a", "1", 5)], &cache);
        assert_eq!(diff(&cache, &relisted, DeleteReason::Deleted), Ok(Vec::new()));
        let before = cache.iter().next().unwrap();
        assert!(Arc::ptr_eq(before, relisted.into_cache().iter().next().unwrap()));
    }
}
