//! What a journal drops when it must, in the order of Rule D.3: superseded updates, old states, last states of deletes,
//! and at the very last whole entries from the front. A delete never goes before its reader is told of a reset.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::feed::ChangeKind;
use crate::journal::{Entry, Item, Journal, Recorded};
use crate::object::Uid;

impl Journal {
    /// Drops every entry before `seq` and raises the floor accordingly.
    pub fn trim_to(&mut self, seq: u64) {
        while self.entries.front().is_some_and(|entry| entry.seq < seq) {
            let Some(entry) = self.entries.pop_front() else { break };
            self.bytes -= entry.bytes();
            self.dropped_before = entry.seq + 1;
            if let (Some(position), true) = (entry.position, self.floor.is_some()) {
                self.holes.raise_floor(&position);
                self.floor = Some(position);
            }
        }
    }

    /// Drops entries before `seq` from the front for as long as the journal is larger than `bytes`.
    pub fn shed_to(&mut self, seq: u64, bytes: usize) {
        while self.bytes > bytes && self.entries.front().is_some_and(|entry| entry.seq < seq) {
            let next = self.start() + 1;
            self.trim_to(next);
        }
    }

    /// Merges updates into later entries of the same object, outside the `sent` ranges of sequence numbers: what was
    /// sent and not acked stays as it was. Returns how many were merged.
    ///
    /// A delete is never merged away, nor cancelled against the birth before it: the birth may have
    /// been delivered elsewhere and not acked.
    pub fn coalesce(&mut self, sent: &[Range<u64>]) -> u64 {
        let mut latest: BTreeMap<Uid, usize> = BTreeMap::new();
        let mut merged = vec![false; self.entries.len()];
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            let Item::Changed(recorded) = &entry.item else { continue };
            let uid = recorded.change.uid.clone();
            let upsert = !matches!(recorded.change.kind, ChangeKind::Deleted { .. });
            let frozen = sent.iter().any(|range| range.contains(&entry.seq));
            if let (Some(older), false) = (latest.remove(&uid), frozen) {
                merged[older] = true;
                self.merge(older, index);
            }
            if upsert && !frozen {
                latest.insert(uid, index);
            }
        }
        self.remove(&merged)
    }

    /// Drops the bodies of old states outside the `sent` ranges. Returns how many bytes were freed.
    pub fn strip_old(&mut self, sent: &[Range<u64>]) -> usize {
        self.strip(sent, |recorded| {
            if let Some(old) = recorded.change.old.take() {
                recorded.old_evicted_bytes = Some(old.body.len());
            }
        })
    }

    /// Reduces deletes outside the `sent` ranges to identity and version. Returns how many bytes were freed.
    pub fn reduce_tombstones(&mut self, sent: &[Range<u64>]) -> usize {
        self.strip(sent, |recorded| {
            if matches!(recorded.change.kind, ChangeKind::Deleted { .. })
                && let Some(last) = recorded.change.object.take()
            {
                recorded.object_evicted_bytes = Some(last.body.len());
            }
        })
    }

    fn strip(&mut self, sent: &[Range<u64>], strip: impl Fn(&mut Recorded)) -> usize {
        let before = self.bytes;
        for entry in &mut self.entries {
            if sent.iter().any(|range| range.contains(&entry.seq)) {
                continue;
            }
            let charged = entry.bytes();
            if let Item::Changed(recorded) = &mut entry.item {
                strip(recorded);
            }
            self.bytes -= charged - entry.bytes();
        }
        before - self.bytes
    }

    /// Makes the entry at `newer` tell what both told: its old state becomes the one before `older`.
    fn merge(&mut self, older: usize, newer: usize) {
        let Item::Changed(passed) = self.entries[older].item.clone() else { return };
        let entry = &mut self.entries[newer];
        self.bytes -= entry.bytes();
        if let Item::Changed(recorded) = &mut entry.item {
            recorded.coalesced = true;
            if matches!(recorded.change.kind, ChangeKind::Modified) {
                recorded.change.kind = passed.change.kind;
                recorded.change.old = passed.change.old;
                recorded.old_evicted_bytes = passed.old_evicted_bytes;
            }
        }
        self.bytes += entry.bytes();
    }

    /// Removes the marked entries; the group of a removed last entry is closed by the one before it.
    fn remove(&mut self, merged: &[bool]) -> u64 {
        let mut kept: std::collections::VecDeque<Entry> = std::collections::VecDeque::with_capacity(self.entries.len());
        let mut removed = 0;
        for (entry, merged) in std::mem::take(&mut self.entries).into_iter().zip(merged) {
            if !merged {
                kept.push_back(entry);
                continue;
            }
            removed += 1;
            self.bytes -= entry.bytes();
            if let Some(last) = kept.back_mut().filter(|last| entry.closes_group && last.position == entry.position) {
                last.closes_group = true;
            }
        }
        self.entries = kept;
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::{added, deleted, journal, modified, texts};
    use crate::time::WallTime;

    fn recount(journal: &Journal) -> usize {
        journal.read_from(0).map(Entry::bytes).sum()
    }

    #[test]
    fn superseded_updates_merge_and_keep_the_state_the_consumer_knows() {
        let mut journal = journal(
            1,
            [modified("a", 1, 2), added("b", 3), modified("a", 2, 4), modified("a", 4, 5), modified("b", 3, 6)],
        );
        assert_eq!(journal.coalesce(&[]), 3);
        assert_eq!(texts(&journal), ["mod~ a 5<1", "add~ b 6"]);
        assert!(!journal.has_dropped(0), "merging is not dropping");
        assert_eq!(journal.bytes(), recount(&journal));
    }

    #[test]
    fn deletes_are_never_merged_away_nor_cancelled() {
        let mut journal = journal(1, [added("a", 2), deleted("a", 3), added("a", 4), deleted("a", 5)]);
        journal.coalesce(&[]);
        assert_eq!(texts(&journal), ["del~ a 3", "del~ a 5"]);
    }

    #[test]
    fn what_was_sent_is_left_alone() {
        let mut journal = journal(1, [modified("a", 1, 2), modified("a", 2, 3), modified("a", 3, 4)]);
        assert_eq!(journal.coalesce(std::slice::from_ref(&(0..1))), 1);
        assert_eq!(texts(&journal), ["mod a 2<1", "mod~ a 4<2"]);
        assert_eq!(journal.read_from(1).count(), 1, "readers find their place by sequence number");
        assert_eq!(journal.strip_old(std::slice::from_ref(&(0..9))), 0);
    }

    #[test]
    fn shedding_stops_at_the_size_and_at_the_reader() {
        let mut journal = journal(1, (2..12).map(|version| added("a", version)));
        let half = journal.bytes() / 2;
        journal.shed_to(9, half);
        assert_eq!((journal.len(), journal.start()), (5, 5));
        journal.shed_to(7, 0);
        assert_eq!(journal.start(), 7, "a reader is there");
    }

    #[test]
    fn a_group_that_loses_its_last_entry_is_still_closed() {
        let mut journal = journal(1, []);
        journal.relist(1_u64.into(), 9_u64.into(), vec![added("a", 7), added("b", 8)], WallTime::default());
        journal.append(modified("b", 8, 10), WallTime::default());
        journal.coalesce(&[]);
        assert_eq!(texts(&journal), ["hole 1-9", "add a 7", "add~ b 10"]);
        assert_eq!(journal.read_from(0).map(|entry| entry.closes_group).collect::<Vec<_>>(), [false, true, true]);
    }

    #[test]
    fn stripping_frees_what_it_says_and_keeps_identity() {
        let mut journal = journal(1, [modified("a", 1, 2), deleted("a", 3)]);
        let before = journal.bytes();
        let freed = journal.strip_old(&[]) + journal.reduce_tombstones(&[]);
        assert!(freed > 0 && journal.bytes() == before - freed && journal.bytes() == recount(&journal));
        assert_eq!(texts(&journal), ["mod a 2", "del a 3"]);
        let evicted = journal.read_from(0).filter_map(|entry| match &entry.item {
            Item::Changed(recorded) => recorded.old_evicted_bytes.or(recorded.object_evicted_bytes),
            Item::Relisted { .. } => None,
        });
        assert_eq!(evicted.count(), 2);
        assert_eq!(journal.strip_old(&[]), 0, "nothing is left to free");
    }

    #[test]
    fn trimming_raises_the_floor_and_forgets_holes() {
        let mut journal = journal(1, [added("a", 2)]);
        journal.relist(2_u64.into(), 9_u64.into(), vec![deleted("a", 9)], WallTime::default());
        journal.append(added("b", 12), WallTime::default());
        journal.trim_to(3);
        assert_eq!(journal.floor(), Some(&9_u64.into()));
        assert_eq!(journal.coverage(&9_u64.into()), crate::journal::Coverage::Complete);
        journal.trim_to(99);
        assert_eq!((journal.bytes(), journal.floor()), (0, Some(&12_u64.into())));
        assert!(journal.has_dropped(3) && !journal.has_dropped(4));
    }
}
