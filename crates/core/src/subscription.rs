//! Durable subscriptions: for each name and feed, how far the consumer has acked and how far it was sent (D.4, D.5).

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::codec::checkpoint::StoredSubscription;
use crate::codec::cursor::{Fingerprint, Positions};
use crate::frame::{GapReason, SessionId};
use crate::journal::Journal;
use crate::resource_version::ResourceVersion;

/// One durable subscription.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// Its name.
    pub name: Arc<str>,
    /// One per feed, in the order of the configuration.
    pub places: Vec<Place>,
    /// The attached session.
    pub session: Option<SessionId>,
    unknown: Map<String, Value>,
}

/// Where a subscription stands in one feed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// Acked up to here; none: the consumer has to be reset.
    pub acked: Option<ResourceVersion>,
    /// Acked and stored in the cluster.
    pub durable: Option<ResourceVersion>,
    /// Handed to a stream by this process in this epoch, up to this closed position.
    pub delivered: Option<ResourceVersion>,
    /// Journal entries before this number were handed to a stream by this process.
    pub sent_seq: u64,
    /// The position was found or taken over and its coverage has not been judged yet.
    pub unjudged: bool,
    /// Why the position was given up, for the gap that announces it.
    pub reset: Option<GapReason>,
    /// While there is no acked position: the version of the snapshot whose end was sent. Only an ack that reaches it
    /// ends the reset; an older cursor still on its way must not.
    pub resets_at: Option<ResourceVersion>,
}

impl Subscription {
    /// A subscription of which nothing is known.
    pub fn new(name: Arc<str>, feeds: usize) -> Self {
        Self { name, places: vec![Place::default(); feeds], session: None, unknown: Map::new() }
    }

    /// Takes over what the Lease holds: everything else about delivery belongs to an earlier epoch or another replica.
    pub fn load(&mut self, stored: Option<&StoredSubscription>, fingerprints: &[Fingerprint]) {
        for (place, fingerprint) in self.places.iter_mut().zip(fingerprints) {
            let acked = stored.and_then(|stored| stored.positions.get(fingerprint)).cloned();
            let reset = acked.is_none().then_some(GapReason::ColdStart);
            *place = Place { durable: acked.clone(), unjudged: acked.is_some(), acked, reset, ..Place::default() };
        }
        self.unknown = stored.map(|stored| stored.unknown.clone()).unwrap_or_default();
    }

    /// What goes into the checkpoint.
    pub fn store(&self, fingerprints: &[Fingerprint]) -> StoredSubscription {
        StoredSubscription {
            positions: self.positions(fingerprints, |place| &place.acked),
            unknown: self.unknown.clone(),
        }
    }

    /// One position of each feed that has it.
    pub fn positions(
        &self,
        fingerprints: &[Fingerprint],
        which: impl Fn(&Place) -> &Option<ResourceVersion>,
    ) -> Positions {
        let places = self.places.iter().zip(fingerprints);
        places.filter_map(|(place, fingerprint)| Some((*fingerprint, which(place).clone()?))).collect()
    }

    /// Takes an ack: each position moves forward or stays. Returns whether anything moved.
    ///
    /// # Errors
    /// [`Beyond`] and no change when a position lies beyond what was delivered.
    pub fn ack(&mut self, acked: &Positions, fingerprints: &[Fingerprint]) -> Result<bool, Beyond> {
        let known: BTreeMap<_, _> = fingerprints.iter().zip(0..).collect();
        let mut moves: Vec<(usize, Option<ResourceVersion>)> = Vec::new();
        for (fingerprint, position) in acked {
            let Some(&index) = known.get(fingerprint) else { continue };
            let place: &Place = &self.places[index];
            let was_delivered = place.delivered.as_ref().is_some_and(|delivered| delivered.reaches(position));
            match place.acked.as_ref().map(|known| position.order(known)) {
                Some(Some(Ordering::Less | Ordering::Equal)) => {}
                Some(_) if was_delivered => moves.push((index, Some(position.clone()))),
                // Opaque versions cannot be placed: only the newest or the known one is taken.
                Some(None) if !position.is_ordered() && place.delivered.is_some() => {}
                Some(_) => return Err(Beyond),
                None if was_delivered
                    && (cfg!(mutation = "M11")
                        || place.resets_at.as_ref().is_some_and(|end| position.reaches(end))) =>
                {
                    moves.push((index, Some(position.clone())));
                }
                // A cursor from before the reset, or of somebody else's snapshot.
                None => {}
            }
        }
        for (index, place) in self.places.iter().enumerate() {
            // The consumer was told that the type is gone and that no position exists any more.
            let told =
                place.acked.is_some() && place.delivered.is_none() && place.reset == Some(GapReason::FeedChanged);
            if told && !acked.contains_key(&fingerprints[index]) {
                moves.push((index, None));
            }
        }
        let moved = !moves.is_empty();
        for (index, position) in moves {
            let place = &mut self.places[index];
            place.reset = place.reset.filter(|_| position.is_none());
            place.acked = position;
            place.resets_at = None;
        }
        Ok(moved)
    }
}

/// The ack lies beyond what was delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beyond;

impl Place {
    /// Gives the position up: the consumer will be told of a reset.
    pub fn give_up(&mut self, reason: GapReason) {
        self.acked = None;
        self.delivered = None;
        self.unjudged = false;
        self.reset = Some(reason);
        self.resets_at = None;
    }

    /// The position that an ack may be about to confirm: what follows it is still needed.
    pub fn held(&self) -> Option<&ResourceVersion> {
        self.acked.as_ref().or(self.resets_at.as_ref())
    }

    /// Entries that were sent and are not acked: they stay as they are until they are acked.
    pub fn sent(&self, journal: &Journal) -> Option<Range<u64>> {
        let acked = journal.seq_after(self.held()?)?;
        (acked < self.sent_seq).then_some(acked..self.sent_seq)
    }

    /// The first entry that this subscription still needs; none when it needs none.
    pub fn needs_from(&self, journal: &Journal) -> Option<u64> {
        journal.seq_after(self.held()?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FEEDS: [Fingerprint; 2] = [Fingerprint(1), Fingerprint(2)];

    fn delivered_up_to(versions: [u64; 2]) -> Subscription {
        let mut subscription = Subscription::new("app".into(), 2);
        for (place, version) in subscription.places.iter_mut().zip(versions) {
            place.acked = Some(1_u64.into());
            place.delivered = Some(version.into());
        }
        subscription
    }

    fn at(positions: &[(usize, u64)]) -> Positions {
        positions.iter().map(|(feed, version)| (FEEDS[*feed], (*version).into())).collect()
    }

    #[test]
    fn an_ack_never_passes_what_was_delivered_and_then_changes_nothing() {
        let mut subscription = delivered_up_to([10, 10]);
        assert_eq!(subscription.ack(&at(&[(0, 9), (1, 11)]), &FEEDS), Err(Beyond));
        assert_eq!(subscription.places[0].acked, Some(1_u64.into()));
    }

    #[test]
    fn an_old_ack_succeeds_and_moves_nothing() {
        let mut subscription = delivered_up_to([10, 10]);
        assert_eq!(subscription.ack(&at(&[(0, 9)]), &FEEDS), Ok(true));
        assert_eq!(subscription.ack(&at(&[(0, 4)]), &FEEDS), Ok(false));
        assert_eq!(subscription.places[0].acked, Some(9_u64.into()));
    }

    /// Otherwise a crash after this ack would forget that a reset was needed.
    #[test]
    fn a_reset_ends_only_with_an_ack_of_its_snapshot() {
        let mut subscription = delivered_up_to([10, 10]);
        subscription.places[0].give_up(GapReason::JournalOverflow);
        assert_eq!(subscription.ack(&at(&[(0, 9)]), &FEEDS), Ok(false), "an older cursor is no error");
        subscription.places[0].delivered = Some(30_u64.into());
        subscription.places[0].resets_at = Some(30_u64.into());
        assert_eq!(subscription.ack(&at(&[(0, 9)]), &FEEDS), Ok(false));
        assert_eq!(subscription.places[0].acked, None);
        assert_eq!(subscription.ack(&at(&[(0, 30)]), &FEEDS), Ok(true));
        assert_eq!(subscription.places[0].acked, Some(30_u64.into()));
    }

    #[test]
    fn a_feed_that_is_not_configured_any_more_is_passed_over() {
        let mut subscription = delivered_up_to([10, 10]);
        let stranger = [(Fingerprint(99), 5_u64.into())].into();
        assert_eq!(subscription.ack(&stranger, &FEEDS), Ok(false));
    }

    #[test]
    fn what_is_not_stored_has_to_be_reset() {
        let mut subscription = delivered_up_to([10, 10]);
        let stored = StoredSubscription { positions: at(&[(1, 7)]), unknown: Map::new() };
        subscription.load(Some(&stored), &FEEDS);
        assert_eq!(subscription.places[0].reset, Some(GapReason::ColdStart));
        assert_eq!((&subscription.places[1].acked, subscription.places[1].reset), (&Some(7_u64.into()), None));
        assert_eq!(subscription.store(&FEEDS).positions, stored.positions);
    }

    proptest! {
        /// I13: idempotent, monotone, and in any order the same.
        #[test]
        fn acks_commute(acks in proptest::collection::vec((0_u64..20, 0_u64..20), 1..8)) {
            let take = |acks: &[(u64, u64)]| {
                let mut subscription = delivered_up_to([19, 19]);
                for (a, b) in acks {
                    subscription.ack(&at(&[(0, a + 1), (1, b + 1)]), &FEEDS).ok();
                }
                subscription.places.into_iter().map(|place| place.acked).collect::<Vec<_>>()
            };
            let accepted: Vec<_> = acks.into_iter().filter(|(a, b)| *a < 19 && *b < 19).collect();
            let mut sorted = accepted.clone();
            sorted.sort_unstable();
            let twice: Vec<_> = accepted.iter().chain(&accepted).copied().collect();
            prop_assert_eq!(take(&accepted), take(&sorted));
            prop_assert_eq!(take(&accepted), take(&twice));
        }
    }
}
