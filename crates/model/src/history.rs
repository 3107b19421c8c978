//! One log of revisions over all types, like etcd: the newest state, and every state back to the
//! compaction.
//!
//! Implements the storage half of `docs/protocol.md` A.2 and A.3: one counter for all types, exact
//! reads of the past as long as they are not compacted, and the jump back of a restored backup.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::object::State;
use crate::resource::ResourceId;

/// A read of a revision that compaction has removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted;

/// A state of one key, or its absence, since a revision.
#[derive(Debug, Clone)]
struct Version {
    revision: u64,
    state: Option<Arc<State>>,
}

/// All versions of the objects of one type, by key.
#[derive(Debug, Clone, Default)]
struct Table {
    keys: BTreeMap<Arc<str>, Vec<Version>>,
    live_len: usize,
}

/// The log and the tables that it implies.
#[derive(Debug, Clone)]
pub struct History {
    revision: u64,
    compacted: u64,
    log: VecDeque<(u64, ResourceId, Arc<str>)>,
    tables: Vec<Table>,
}

impl History {
    /// Starts an empty history whose counter stands at `revision`.
    pub fn new(revision: u64) -> History {
        History { revision, compacted: 0, log: VecDeque::new(), tables: Vec::new() }
    }

    /// Adds a table for one more type.
    pub fn add_table(&mut self) -> ResourceId {
        self.tables.push(Table::default());
        ResourceId(self.tables.len() - 1)
    }

    /// Returns the newest revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the revision up to which the past is gone; 0 before the first compaction.
    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Returns the newest state of a key.
    pub fn current(&self, resource: ResourceId, key: &str) -> Option<&Arc<State>> {
        self.tables[resource.0].keys.get(key)?.last()?.state.as_ref()
    }

    /// Returns how many objects of a type exist.
    pub fn live_len(&self, resource: ResourceId) -> usize {
        self.tables[resource.0].live_len
    }

    /// Writes the next revision: a new state of a key, or its deletion. Returns the revision, which
    /// the state must carry already.
    pub fn commit(&mut self, resource: ResourceId, key: &str, state: Option<Arc<State>>) -> u64 {
        self.revision += 1;
        let table = &mut self.tables[resource.0];
        let shared = match table.keys.get_key_value(key) {
            Some((shared, _)) => shared.clone(),
            None => Arc::from(key),
        };
        let versions = table.keys.entry(shared.clone()).or_default();
        let was_live = versions.last().is_some_and(|version| version.state.is_some());
        table.live_len = table.live_len + usize::from(state.is_some()) - usize::from(was_live);
        versions.push(Version { revision: self.revision, state });
        self.log.push_back((self.revision, resource, shared));
        self.revision
    }

    /// Iterates over the objects of a type as of a revision, in key order, from `start` on and below
    /// `prefix`.
    ///
    /// # Errors
    /// When the revision is compacted.
    pub fn range<'a>(
        &'a self,
        resource: ResourceId,
        revision: u64,
        prefix: &'a str,
        start: &str,
    ) -> Result<impl Iterator<Item = (&'a str, &'a Arc<State>)>, Compacted> {
        if revision < self.compacted {
            return Err(Compacted);
        }
        let from = if start > prefix { start } else { prefix };
        let keys = self.tables[resource.0].keys.range::<str, _>((Bound::Included(from), Bound::Unbounded));
        let below = keys.take_while(move |(key, _)| key.starts_with(prefix));
        Ok(below.filter_map(move |(key, versions)| {
            let version = versions.iter().rev().find(|version| version.revision <= revision)?;
            Some((key.as_ref(), version.state.as_ref()?))
        }))
    }

    /// Forgets every state that was superseded at or before a revision. Later calls with a lower
    /// revision change nothing; a revision of the future is cut to the newest.
    pub fn compact(&mut self, revision: u64) {
        let revision = revision.min(self.revision);
        if revision <= self.compacted {
            return;
        }
        self.compacted = revision;
        while let Some((_, resource, key)) = self.log.pop_front_if(|entry| entry.0 <= revision) {
            let table = &mut self.tables[resource.0];
            let Some(versions) = table.keys.get_mut(&key) else { continue };
            let keep = versions.iter().rposition(|version| version.revision <= revision).unwrap_or(0);
            versions.drain(..keep);
            if versions.first().is_some_and(|version| version.revision <= revision && version.state.is_none()) {
                versions.remove(0);
            }
            if versions.is_empty() {
                table.keys.remove(&key);
            }
        }
    }

    /// Goes back to an older revision, as an etcd restored from a backup does: later writes are gone
    /// and their numbers will be used again.
    ///
    /// # Errors
    /// When the revision is compacted; nothing changes then.
    pub fn rewind(&mut self, revision: u64) -> Result<(), Compacted> {
        if revision < self.compacted {
            return Err(Compacted);
        }
        while let Some((_, resource, key)) = self.log.pop_back_if(|entry| entry.0 > revision) {
            let table = &mut self.tables[resource.0];
            let Some(versions) = table.keys.get_mut(&key) else { continue };
            let was_live = versions.last().is_some_and(|version| version.state.is_some());
            versions.retain(|version| version.revision <= revision);
            let is_live = versions.last().is_some_and(|version| version.state.is_some());
            table.live_len = table.live_len + usize::from(is_live) - usize::from(was_live);
            if versions.is_empty() {
                table.keys.remove(&key);
            }
        }
        self.revision = self.revision.min(revision);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::{Compacted, History};
    use crate::object::State;
    use crate::resource::{Resource, ResourceId};

    fn state(name: &str, revision: u64) -> Option<Arc<State>> {
        let value = json!({"metadata": {"name": name}});
        Some(Arc::new(State::encode(&Resource::built_in()[0], value.as_object().unwrap().clone(), revision)))
    }

    fn names(history: &History, table: ResourceId, revision: u64) -> Result<Vec<String>, Compacted> {
        let range = history.range(table, revision, "", "")?;
        Ok(range.map(|(key, state)| format!("{key}@{}", state.revision)).collect())
    }

    /// Revisions 1: a, 2: b, 3: a again, 4: b deleted, 5: c.
    fn sample() -> (History, ResourceId) {
        let mut history = History::new(0);
        let table = history.add_table();
        history.commit(table, "a", state("a", 1));
        history.commit(table, "b", state("b", 2));
        history.commit(table, "a", state("a", 3));
        history.commit(table, "b", None);
        history.commit(table, "c", state("c", 5));
        (history, table)
    }

    #[test]
    fn the_past_is_read_exactly() {
        let (history, table) = sample();
        assert_eq!(names(&history, table, 2).unwrap(), ["a@1", "b@2"]);
        assert_eq!(names(&history, table, 3).unwrap(), ["a@3", "b@2"]);
        assert_eq!(names(&history, table, 4).unwrap(), ["a@3"]);
        assert_eq!(history.live_len(table), 2);
    }

    #[test]
    fn compaction_keeps_its_own_revision_and_hides_older_ones() {
        let (mut history, table) = sample();
        history.compact(3);
        assert_eq!(names(&history, table, 2), Err(Compacted));
        assert_eq!(names(&history, table, 3).unwrap(), ["a@3", "b@2"]);
        history.compact(2);
        assert_eq!(history.compacted(), 3, "compaction never goes back");
        history.compact(99);
        assert_eq!(
            (history.compacted(), names(&history, table, 5).unwrap()),
            (5, vec!["a@3".to_owned(), "c@5".to_owned()])
        );
    }

    #[test]
    fn compaction_drops_the_memory_of_deleted_keys() {
        let (mut history, table) = sample();
        history.compact(5);
        assert_eq!(history.tables[table.0].keys.len(), 2);
        assert!(history.log.is_empty());
    }

    #[test]
    fn a_rewind_restores_state_and_counter() {
        let (mut history, table) = sample();
        history.rewind(3).unwrap();
        assert_eq!((history.revision(), history.live_len(table)), (3, 2));
        assert_eq!(names(&history, table, 3).unwrap(), ["a@3", "b@2"]);
        assert_eq!(history.commit(table, "d", state("d", 4)), 4);
        history.compact(4);
        assert_eq!(history.rewind(3), Err(Compacted));
    }

    #[test]
    fn a_range_begins_at_start_and_ends_with_the_prefix() {
        let mut history = History::new(0);
        let table = history.add_table();
        for (index, key) in ["n-x/a", "n/a", "n/b", "o/a"].into_iter().enumerate() {
            history.commit(table, key, state(key, index as u64 + 1));
        }
        let keys: Vec<_> = history.range(table, 4, "n/", "n/a\0").unwrap().map(|(key, _)| key).collect();
        assert_eq!(keys, ["n/b"]);
    }
}
