//! The gate that every frame with events passes on its way to the wire (docs/protocol.md, D.1; invariants I5, A5).
//!
//! It is an epoch and a deadline in two atomics, not a message in a queue: the moment the elector closes it, every
//! later check fails. It knows nothing of the Lease; the elector decides, the gate only answers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::epoch::Epoch;
use crate::time::BootInstant;

/// Whether frames of an epoch may leave. One writer (the control driver), any number of readers.
///
/// `epoch` names the epoch that the deadline belongs to. The writer moves a deadline first to zero, then changes the
/// epoch, then sets the new deadline; a reader looks at the epoch on both sides of the deadline. So a reader can never
/// combine the deadline of one epoch with another epoch: epochs only grow, hence two equal reads enclose no change.
#[derive(Debug, Default)]
pub struct Gate {
    epoch: AtomicU64,
    until: AtomicU64,
}

impl Gate {
    /// A closed gate.
    pub const fn new() -> Self {
        Self { epoch: AtomicU64::new(0), until: AtomicU64::new(0) }
    }

    /// Lets frames of `epoch` pass before `until`; renewals call it again with a later `until`.
    ///
    /// Called by the control driver only.
    pub fn open(&self, epoch: Epoch, until: BootInstant) {
        if self.epoch.load(Ordering::SeqCst) != epoch.as_u64() {
            self.until.store(0, Ordering::SeqCst);
            self.epoch.store(epoch.as_u64(), Ordering::SeqCst);
        }
        self.until.store(until.as_nanos(), Ordering::SeqCst);
    }

    /// Lets nothing pass. When it returns, no later check succeeds.
    pub fn close(&self) {
        self.until.store(0, Ordering::SeqCst);
    }

    /// Whether a frame of `epoch` may leave at `now`. The answer is good for this moment only.
    pub fn check(&self, epoch: Epoch, now: BootInstant) -> bool {
        let before = self.epoch.load(Ordering::SeqCst);
        let until = self.until.load(Ordering::SeqCst);
        let after = self.epoch.load(Ordering::SeqCst);
        cfg!(mutation = "gate") || before == epoch.as_u64() && after == before && now.as_nanos() < until
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    const fn at(nanos: u64) -> BootInstant {
        BootInstant::from_nanos(nanos)
    }

    #[test]
    fn only_the_open_epoch_passes_and_only_before_the_deadline() {
        let gate = Gate::new();
        let (old, new) = (Epoch::from_u64(1), Epoch::from_u64(2));
        assert!(!gate.check(old, at(0)) && !gate.check(Epoch::NONE, at(0)));
        gate.open(old, at(10));
        assert!(gate.check(old, at(9)) && !gate.check(old, at(10)) && !gate.check(new, at(9)));
        gate.open(old, at(20));
        assert!(gate.check(old, at(10)));
        gate.close();
        assert!(!gate.check(old, at(0)));
        gate.open(new, at(30));
        assert!(gate.check(new, at(29)) && !gate.check(old, at(0)));
    }

    /// Deadlines are made from the epoch, so a reader that mixed two epochs would pass at a time outside its own.
    #[test]
    fn no_reader_combines_an_epoch_with_the_deadline_of_another() {
        const EPOCHS: u64 = 20_000;
        let gate = Gate::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let current = gate.epoch.load(Ordering::Relaxed);
                        for epoch in current.saturating_sub(1)..=current + 1 {
                            // Epoch e is open only before 10 e.
                            assert!(!gate.check(Epoch::from_u64(epoch), at(10 * epoch)), "epoch {epoch}");
                        }
                    }
                });
            }
            for epoch in 1..=EPOCHS {
                gate.open(Epoch::from_u64(epoch), at(10 * epoch - 5));
                gate.open(Epoch::from_u64(epoch), at(10 * epoch));
                gate.close();
                assert!(!gate.check(Epoch::from_u64(epoch), at(0)));
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
