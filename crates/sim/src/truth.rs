//! What really happened to the objects: births, versions and deaths, taken from the server's answers to the writes.
//!
//! The checkers compare what stores hold with this log and never with the model's own lists, so that an error of the
//! model shows as well.

use std::collections::BTreeMap;

use sidewatch_core::object::Uid;

/// Feeds of the simulation, by plural name, in the order of the configuration.
pub(crate) const FEEDS: [&str; 2] = ["pods", "configmaps"];

/// One incarnation of an object.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    /// Revisions of its states, oldest first.
    pub(crate) versions: Vec<u64>,
    /// Revision of its deletion.
    pub(crate) died: Option<u64>,
}

impl Life {
    fn version_at(&self, revision: u64) -> Option<u64> {
        if self.died.is_some_and(|died| died <= revision) {
            return None;
        }
        self.versions.iter().rev().copied().find(|version| *version <= revision)
    }
}

/// The history of one feed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Truth {
    lives: BTreeMap<Uid, Life>,
    /// Every revision of this feed with the object it concerns, oldest first.
    log: Vec<(u64, Uid)>,
}

impl Truth {
    /// A state was written.
    pub(crate) fn wrote(&mut self, uid: &str, revision: u64) {
        let uid = Uid::from(uid);
        self.log.push((revision, uid.clone()));
        let new = Life { versions: Vec::new(), died: None };
        self.lives.entry(uid).or_insert(new).versions.push(revision);
    }

    /// An object was deleted.
    pub(crate) fn deleted(&mut self, uid: &str, revision: u64) {
        let uid = Uid::from(uid);
        self.log.push((revision, uid.clone()));
        if let Some(life) = self.lives.get_mut(&uid) {
            life.died = Some(revision);
        }
    }

    /// The server went back to an older revision: what came later has not happened.
    pub(crate) fn rewind(&mut self, revision: u64) {
        self.log.retain(|(at, _)| *at <= revision);
        for life in self.lives.values_mut() {
            life.versions.retain(|version| *version <= revision);
            life.died = life.died.filter(|died| *died <= revision);
        }
        self.lives.retain(|_, life| !life.versions.is_empty());
    }

    /// The objects alive at a revision, with their versions.
    pub(crate) fn state_at(&self, revision: u64) -> BTreeMap<Uid, u64> {
        let alive = |(uid, life): (&Uid, &Life)| Some((uid.clone(), life.version_at(revision)?));
        self.lives.iter().filter_map(alive).collect()
    }

    /// The life of an object; none when it never existed, or not any more after a rewind.
    pub(crate) fn life(&self, uid: &Uid) -> Option<&Life> {
        self.lives.get(uid)
    }

    /// Whether an object was dead at a revision; true for one that never existed.
    pub(crate) fn is_dead_at(&self, uid: &Uid, revision: u64) -> bool {
        self.lives.get(uid).is_none_or(|life| life.died.is_some_and(|died| died <= revision))
    }

    /// The version before one version of an object.
    pub(crate) fn predecessor(&self, uid: &Uid, version: u64) -> Option<u64> {
        self.lives.get(uid)?.versions.iter().rev().copied().find(|known| *known < version)
    }

    /// The revisions after `from` up to `to`, each with its object.
    pub(crate) fn revisions(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, &Uid)> {
        let first = self.log.partition_point(|(at, _)| *at <= from);
        self.log[first..].iter().map(|(at, uid)| (*at, uid)).take_while(move |(at, _)| *at <= to)
    }

    /// The newest revision of this feed; 0 when there is none.
    pub(crate) fn newest(&self) -> u64 {
        self.log.last().map_or(0, |(at, _)| *at)
    }
}
