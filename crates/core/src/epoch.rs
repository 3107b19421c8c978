//! The fencing token: a number that grows with every acquisition of the Lease (Rule D.1, invariant I5).

use std::fmt;

/// A leader's epoch. 0 means "outside leadership".
///
/// Composed of the Lease's creation time and its `leaseTransitions`, so that it goes on growing
/// when somebody deletes the Lease and `leaseTransitions` starts again at 0. Fits in 53 bits, so
/// that languages whose numbers are doubles hold it exactly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(u64);

/// Bits of the transitions within an epoch; above them stand the seconds of the Lease's creation.
const TRANSITION_BITS: u32 = 20;
/// The greatest whole number up to which every double is exact.
const EPOCH_MAX: u64 = (1 << 53) - 1;
/// Acquisitions that must still be possible after a stored epoch for it to be believed. Creation times reach this close
/// to the end in the year 2242.
const ACQUISITIONS_LEFT: u64 = 1 << 32;

impl Epoch {
    /// Outside leadership.
    pub const NONE: Self = Self(0);

    /// The epoch with this number, as stored or received.
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The epoch that an annotation of the Lease tells: none when it lies so high that no acquisition can have made it and
    /// hardly any could follow. Somebody else wrote it, and to go on from there would be to never lead again.
    pub fn stored(number: u64) -> Self {
        if number <= EPOCH_MAX - ACQUISITIONS_LEFT { Self(number) } else { Self::NONE }
    }

    /// The epoch of an acquisition: at least what creation time (seconds since the Unix epoch) and
    /// transitions say, and above every epoch stored in the Lease or seen by this replica.
    pub fn acquire(created_seconds: i64, transitions: i32, stored: Self, seen: Self) -> Self {
        if cfg!(mutation = "M9") {
            return Self(u64::try_from(transitions).unwrap_or(0));
        }
        let created = u64::try_from(created_seconds).unwrap_or(0) << TRANSITION_BITS;
        let composed = created.saturating_add(u64::try_from(transitions).unwrap_or(0));
        Self(composed.max(stored.0.saturating_add(1)).max(seen.0.saturating_add(1)).min(EPOCH_MAX))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-12-01T12:00:00Z.
    const CREATED: i64 = 1_796_126_400;

    #[test]
    fn grows_when_the_lease_is_deleted_and_transitions_start_again() {
        let before = Epoch::acquire(CREATED, 900, Epoch::NONE, Epoch::NONE);
        let after = Epoch::acquire(CREATED + 16, 0, Epoch::NONE, Epoch::NONE);
        assert!(after > before);
    }

    #[test]
    fn grows_over_what_was_stored_or_seen() {
        let seen = Epoch::from_u64(u64::from(u32::MAX) << 20);
        assert_eq!(Epoch::acquire(1, 1, Epoch::NONE, seen).as_u64(), seen.as_u64() + 1);
        assert_eq!(Epoch::acquire(1, 1, seen, Epoch::NONE).as_u64(), seen.as_u64() + 1);
    }

    #[test]
    fn fits_in_53_bits_for_centuries() {
        let year_2200 = 7_258_118_400;
        let epoch = Epoch::acquire(year_2200, i32::MAX, Epoch::NONE, Epoch::NONE).as_u64();
        assert!(epoch < 1 << 53);
    }

    #[test]
    fn a_stored_epoch_beyond_every_acquisition_is_not_believed() {
        for nonsense in [u64::MAX, EPOCH_MAX, EPOCH_MAX - ACQUISITIONS_LEFT + 1] {
            assert_eq!(Epoch::stored(nonsense), Epoch::NONE);
        }
        let year_2200 = Epoch::acquire(7_258_118_400, i32::MAX, Epoch::NONE, Epoch::NONE);
        assert_eq!(Epoch::stored(year_2200.0), year_2200);
    }

    #[test]
    fn nonsense_in_the_lease_does_not_lower_it() {
        assert_eq!(Epoch::acquire(-5, -7, Epoch::from_u64(9), Epoch::NONE).as_u64(), 10);
    }
}
