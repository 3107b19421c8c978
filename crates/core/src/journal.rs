//! What happened to one feed, in version order, for as long as somebody may still need it (docs/protocol.md, D.3).
//!
//! The journal knows neither sessions nor subscriptions: it is told what may be dropped. Readers
//! keep a sequence number of their own; positions (resource versions) are translated to sequence
//! numbers once, when a reader starts.
//!
//! ```text
//!          floor                                        head
//!            │  e e e [Relisted h→R  d d u u!] e e e     │        ! closes its group
//! gone ◀─────┼───────────────────────────────────────────┼─────▶ not yet seen
//!            positions inside a group are not positions a cursor may take (I14)
//! ```

pub mod holes;
pub mod retention;

use std::cmp::Ordering;
use std::collections::VecDeque;

use crate::feed::{Change, ChangeKind};
use crate::invariant;
use crate::journal::holes::Holes;
use crate::limits::JOURNAL_ENTRY_BYTES;
use crate::resource_version::ResourceVersion;
use crate::time::WallTime;

/// One entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Place in this journal, growing by one with each entry ever appended.
    pub seq: u64,
    /// Position of the entry's group; none for the deletes of a removed type, after which no position exists.
    pub position: Option<ResourceVersion>,
    /// The last of its group: a cursor may take the position after this entry.
    pub closes_group: bool,
    /// What happened.
    pub item: Item,
    /// When this sidecar learned of it.
    pub observed: WallTime,
}

/// What an entry tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// One change.
    Changed(Recorded),
    /// A hole: the group that follows is the difference of the states at `from` and at `to`.
    Relisted {
        /// Complete up to here.
        from: ResourceVersion,
        /// Version of the list.
        to: ResourceVersion,
    },
}

/// A change and what retention has made of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// The change.
    pub change: Change,
    /// An older entry of the object was merged into this one.
    pub coalesced: bool,
    /// Size of the body of `change.old` that was dropped for room.
    pub old_evicted_bytes: Option<usize>,
    /// Size of the body of `change.object` that was dropped for room.
    pub object_evicted_bytes: Option<usize>,
}

/// Whether a reader may go on from a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coverage {
    /// Every change after it is here, one by one.
    Complete,
    /// Every change is here, but for holes that end after it (Rule D.6: not covered for what others delivered).
    Holed,
    /// Changes after it are gone.
    Lost,
    /// It cannot be placed: versions of this type have no order.
    Unordered,
}

/// The journal of one feed.
#[derive(Debug, Default)]
pub struct Journal {
    entries: VecDeque<Entry>,
    seq_next: u64,
    floor: Option<ResourceVersion>,
    head: Option<ResourceVersion>,
    holes: Holes,
    bytes: usize,
    dropped_before: u64,
}

impl Journal {
    /// Forgets everything: the state at `at` is known, changes follow from there.
    pub fn reset(&mut self, at: ResourceVersion) {
        self.entries.clear();
        self.dropped_before = self.seq_next;
        self.bytes = 0;
        self.holes = Holes::default();
        self.floor = Some(at.clone());
        self.head = Some(at);
    }

    /// Appends one change seen on a watch; its position is its version.
    pub fn append(&mut self, change: Change, observed: WallTime) {
        let position = change.resource_version.clone();
        if let (Some(position), Some(head)) = (&position, &self.head) {
            invariant!(I2, position.order(head) != Some(Ordering::Less), "{position} appended after {head}");
        }
        // A name that changed hands gives two changes with one version (Rule D.2-2): no cursor may fall between them.
        if let Some(last) = self.entries.back_mut().filter(|last| last.position == position) {
            last.closes_group = false;
        }
        self.head.clone_from(&position);
        self.push(position, true, Item::Changed(Recorded::new(change)), observed);
    }

    /// Appends the difference that replaces the lost history `(from, to]`, as one group.
    pub fn relist(&mut self, from: ResourceVersion, to: ResourceVersion, changes: Vec<Change>, observed: WallTime) {
        self.holes.open(from.clone(), to.clone());
        let position = Some(to.clone());
        self.push(position.clone(), changes.is_empty(), Item::Relisted { from, to: to.clone() }, observed);
        self.push_group(position, changes, observed);
        self.head = Some(to);
    }

    /// Appends the deletes of a removed type: after them no position exists.
    pub fn remove_type(&mut self, changes: Vec<Change>, observed: WallTime) {
        self.push_group(None, changes, observed);
        self.floor = None;
        self.head = None;
    }

    /// Everything up to `head` has been seen, without changes.
    pub fn advance(&mut self, head: ResourceVersion) {
        if self.head.as_ref().is_none_or(|known| head.order(known) != Some(Ordering::Less)) {
            self.head = Some(head);
        }
    }

    /// Oldest position from which everything is here; none when nothing is.
    pub fn floor(&self) -> Option<&ResourceVersion> {
        self.floor.as_ref()
    }

    /// Everything up to here has been seen; none before the first list.
    pub fn head(&self) -> Option<&ResourceVersion> {
        self.head.as_ref()
    }

    /// Sequence number that the next entry will get.
    pub fn end(&self) -> u64 {
        self.seq_next
    }

    /// Sequence number of the oldest entry held, or of the next one.
    pub fn start(&self) -> u64 {
        self.entries.front().map_or(self.seq_next, |entry| entry.seq)
    }

    /// Whether entries from `seq` on have been dropped: a reader there has been overtaken. Merged entries do not count.
    pub fn has_dropped(&self, seq: u64) -> bool {
        seq < self.dropped_before
    }

    /// Bytes that the entries keep alive, as accounted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a reader may go on after `position`.
    pub fn coverage(&self, position: &ResourceVersion) -> Coverage {
        let Some(floor) = &self.floor else { return Coverage::Lost };
        match position.order(floor) {
            Some(Ordering::Less) => Coverage::Lost,
            Some(_) if self.holes.any_after(position) && !cfg!(mutation = "M1") => Coverage::Holed,
            Some(_) => Coverage::Complete,
            None if self.seq_after(position).is_some() => Coverage::Complete,
            None => Coverage::Unordered,
        }
    }

    /// The first sequence number after `position`; none when the position cannot be placed.
    pub fn seq_after(&self, position: &ResourceVersion) -> Option<u64> {
        if self.head.as_ref() == Some(position) {
            return Some(self.seq_next);
        }
        if position.is_ordered() {
            let passed = |entry: &Entry| entry.position.as_ref().is_some_and(|at| position.reaches(at));
            let index = self.entries.partition_point(passed);
            return Some(self.entries.get(index).map_or(self.seq_next, |entry| entry.seq));
        }
        let at = |entry: &&Entry| entry.closes_group && entry.position.as_ref() == Some(position);
        match self.entries.iter().rev().find(at) {
            Some(entry) => Some(entry.seq + 1),
            None => (self.floor.as_ref() == Some(position)).then(|| self.start()),
        }
    }

    /// The entries from sequence number `seq` on, oldest first.
    pub fn read_from(&self, seq: u64) -> impl Iterator<Item = &Entry> {
        self.entries.range(self.index_of(seq)..)
    }

    /// How many entries there are from `seq` on.
    pub fn len_from(&self, seq: u64) -> usize {
        self.entries.len() - self.index_of(seq)
    }

    /// Index of the first entry at or after `seq`.
    fn index_of(&self, seq: u64) -> usize {
        // Without coalescing, sequence numbers have no holes and the index follows from the start.
        let guess = usize::try_from(seq.saturating_sub(self.start())).unwrap_or(usize::MAX);
        match self.entries.get(guess) {
            Some(entry) if entry.seq == seq => guess,
            _ => self.entries.partition_point(|entry| entry.seq < seq),
        }
    }

    fn push_group(&mut self, position: Option<ResourceVersion>, changes: Vec<Change>, observed: WallTime) {
        let last = changes.len().saturating_sub(1);
        for (index, change) in changes.into_iter().enumerate() {
            self.push(position.clone(), index == last, Item::Changed(Recorded::new(change)), observed);
        }
    }

    fn push(&mut self, position: Option<ResourceVersion>, closes_group: bool, item: Item, observed: WallTime) {
        let entry = Entry { seq: self.seq_next, position, closes_group, item, observed };
        self.seq_next += 1;
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
    }
}

impl Entry {
    /// Bytes this entry is charged with: itself, and the states that the cache has let go of.
    ///
    /// The new state of a live object is shared with the cache; once superseded, it is the old
    /// state of a later entry and charged there.
    pub fn bytes(&self) -> usize {
        let states = match &self.item {
            Item::Relisted { .. } => 0,
            Item::Changed(Recorded { change, .. }) => {
                let old = change.old.as_ref().map_or(0, |state| state.size_bytes());
                let last = match change.kind {
                    ChangeKind::Deleted { .. } => change.object.as_ref().map_or(0, |state| state.size_bytes()),
                    ChangeKind::Added | ChangeKind::Modified => 0,
                };
                old + last
            }
        };
        JOURNAL_ENTRY_BYTES + states
    }
}

impl Recorded {
    fn new(change: Change) -> Self {
        Self { change, coalesced: false, old_evicted_bytes: None, object_evicted_bytes: None }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::feed::{DeleteReason, Origin};
    use crate::object::{ObjectKey, ObjectState, Uid};

    pub(crate) fn state(name: &str, version: u64) -> Arc<ObjectState> {
        Arc::new(ObjectState {
            key: ObjectKey::new("shop", name),
            uid: Uid::from(name),
            resource_version: ResourceVersion::from(version),
            body: Bytes::from(format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}}}}"#)),
        })
    }

    fn change(kind: ChangeKind, object: Arc<ObjectState>, old: Option<Arc<ObjectState>>) -> Change {
        Change {
            kind,
            origin: Origin::Watched,
            key: object.key.clone(),
            uid: object.uid.clone(),
            resource_version: Some(object.resource_version.clone()),
            old,
            object: Some(object),
        }
    }

    pub(crate) fn added(name: &str, version: u64) -> Change {
        change(ChangeKind::Added, state(name, version), None)
    }

    pub(crate) fn modified(name: &str, old: u64, version: u64) -> Change {
        change(ChangeKind::Modified, state(name, version), Some(state(name, old)))
    }

    pub(crate) fn deleted(name: &str, version: u64) -> Change {
        let kind = ChangeKind::Deleted { reason: DeleteReason::Deleted, final_state_unknown: false };
        change(kind, state(name, version), None)
    }

    pub(crate) fn journal(at: u64, changes: impl IntoIterator<Item = Change>) -> Journal {
        let mut journal = Journal::default();
        journal.reset(ResourceVersion::from(at));
        for change in changes {
            journal.append(change, WallTime::default());
        }
        journal
    }

    pub(crate) fn texts(journal: &Journal) -> Vec<String> {
        journal
            .read_from(0)
            .map(|entry| match &entry.item {
                Item::Relisted { from, to } => format!("hole {from}-{to}"),
                Item::Changed(recorded) => {
                    let kind = match recorded.change.kind {
                        ChangeKind::Added => "add",
                        ChangeKind::Modified => "mod",
                        ChangeKind::Deleted { .. } => "del",
                    };
                    let version = recorded.change.resource_version.as_ref().unwrap();
                    let old = recorded.change.old.as_ref().map(|old| format!("<{}", old.resource_version));
                    let coalesced = if recorded.coalesced { "~" } else { "" };
                    format!("{kind}{coalesced} {} {version}{}", recorded.change.key.name, old.unwrap_or_default())
                }
            })
            .collect()
    }

    #[test]
    fn positions_translate_to_the_first_entry_after_them() {
        let journal = journal(10, [added("a", 12), modified("a", 12, 15), deleted("a", 20)]);
        let after = |version: u64| journal.seq_after(&ResourceVersion::from(version));
        assert_eq!(
            [after(10), after(12), after(13), after(15), after(20), after(99)].map(Option::unwrap),
            [0, 1, 1, 2, 3, 3]
        );
    }

    #[test]
    fn below_the_floor_is_lost_and_above_the_head_is_covered() {
        let mut journal = journal(10, [added("a", 12), added("b", 15)]);
        assert_eq!(journal.coverage(&ResourceVersion::from(9)), Coverage::Lost);
        assert_eq!(journal.coverage(&ResourceVersion::from(10)), Coverage::Complete);
        assert_eq!(journal.coverage(&ResourceVersion::from(99)), Coverage::Complete, "this replica lags");
        journal.trim_to(1);
        assert_eq!(journal.coverage(&ResourceVersion::from(11)), Coverage::Lost);
        assert_eq!(journal.coverage(&ResourceVersion::from(12)), Coverage::Complete);
    }

    #[test]
    fn a_hole_uncovers_every_position_before_its_end() {
        let mut journal = journal(10, [added("a", 12)]);
        journal.relist(
            ResourceVersion::from(12),
            ResourceVersion::from(30),
            vec![deleted("a", 30)],
            WallTime::default(),
        );
        journal.append(added("b", 31), WallTime::default());
        for (position, coverage) in
            [(10, Coverage::Holed), (12, Coverage::Holed), (29, Coverage::Holed), (30, Coverage::Complete)]
        {
            assert_eq!(journal.coverage(&ResourceVersion::from(position)), coverage, "{position}");
        }
        assert_eq!(journal.seq_after(&ResourceVersion::from(30)), Some(3), "the group is one position");
    }

    #[test]
    fn only_the_last_of_a_group_closes_it() {
        let mut journal = journal(10, []);
        journal.relist(10_u64.into(), 20_u64.into(), vec![deleted("a", 20), added("b", 18)], WallTime::default());
        journal.relist(20_u64.into(), 25_u64.into(), vec![], WallTime::default());
        let closes: Vec<_> = journal.read_from(0).map(|entry| entry.closes_group).collect();
        assert_eq!(closes, [false, false, true, true]);
        assert_eq!(journal.head(), Some(&25_u64.into()));
    }

    #[test]
    fn two_changes_with_one_version_are_one_group() {
        let journal = journal(10, [deleted("a", 12), added("a", 12), added("b", 13)]);
        assert_eq!(journal.read_from(0).map(|entry| entry.closes_group).collect::<Vec<_>>(), [false, true, true]);
    }

    #[test]
    fn after_a_removed_type_no_position_is_covered() {
        let mut journal = journal(10, [added("a", 12)]);
        journal.remove_type(vec![deleted("a", 12)], WallTime::default());
        assert_eq!(journal.coverage(&ResourceVersion::from(12)), Coverage::Lost);
        assert_eq!(journal.read_from(1).filter(|entry| entry.position.is_none()).count(), 1);
    }

    #[test]
    fn opaque_positions_are_found_by_equality_or_not_at_all() {
        let opaque = |text: &str| ResourceVersion::Opaque(text.into());
        let mut journal = Journal::default();
        journal.reset(opaque("v0"));
        for (name, version) in [("a", "v9"), ("b", "v3")] {
            let mut change = added(name, 1);
            change.resource_version = Some(opaque(version));
            journal.append(change, WallTime::default());
        }
        assert_eq!(journal.seq_after(&opaque("v0")), Some(0));
        assert_eq!(journal.seq_after(&opaque("v9")), Some(1));
        assert_eq!(journal.seq_after(&opaque("v3")), Some(2));
        assert_eq!(journal.coverage(&opaque("v9")), Coverage::Complete);
        assert_eq!(journal.coverage(&opaque("v7")), Coverage::Unordered);
    }

    #[test]
    #[should_panic(expected = "invariant I2")]
    fn a_version_that_goes_backwards_breaks_an_invariant() {
        journal(10, [added("a", 12), added("b", 11)]);
    }
}
