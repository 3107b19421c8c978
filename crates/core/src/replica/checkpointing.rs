//! The checkpoint on its way to the Lease and back: what was given to the elector, what is stored, who waits for it (D.5).

use std::collections::VecDeque;
use std::time::Duration;

use crate::codec::checkpoint::Checkpoint;
use crate::epoch::Epoch;
use crate::leadership::{PendingCheckpoint, Role};
use crate::limits::CHECKPOINT_INTERVAL_MIN;
use crate::replica::{AckId, Effect, Note, Now, Replica};
use crate::resource_version::ResourceVersion;
use crate::session::AckError;
use crate::time::BootInstant;

/// Acked positions of all subscriptions at one moment, by subscription and feed.
type Positions = Vec<Vec<Option<ResourceVersion>>>;

/// State of the checkpoint.
#[derive(Debug, Default)]
pub(super) struct Checkpointing {
    generation: u64,
    /// Given to the elector and not known to be stored, oldest first.
    pending: VecDeque<(u64, Positions)>,
    moved: bool,
    written_at: Option<BootInstant>,
    stored_at: Option<BootInstant>,
    stored_generation: u64,
    waiting: Vec<(AckId, usize, u64)>,
    unknown: Checkpoint,
}

impl Checkpointing {
    /// Positions have changed since the last text.
    pub(super) fn positions_moved(&mut self) {
        self.moved = true;
    }

    /// A new epoch: what an earlier one had not stored is gone.
    pub(super) fn begin_epoch(&mut self, effects: &mut Vec<Effect>) {
        self.refuse_waiting("", Epoch::NONE, effects);
        self.pending.clear();
        self.moved = false;
    }

    /// Keeps what a newer version wrote beside our fields.
    pub(super) fn keep_unknown(&mut self, checkpoint: Checkpoint) {
        self.unknown = Checkpoint { subscriptions: Default::default(), ..checkpoint };
    }

    /// The positions of a generation are stored; none when that is no news.
    pub(super) fn stored(&mut self, generation: u64, now: BootInstant) -> Option<Positions> {
        self.stored_at = Some(now);
        self.stored_generation = self.stored_generation.max(generation);
        let mut newest = None;
        while self.pending.front().is_some_and(|(pending, _)| *pending <= generation) {
            newest = self.pending.pop_front().map(|(_, positions)| positions);
        }
        newest
    }

    /// Notes that an ack waits until what is acked now is stored. Returns false when it is stored already.
    pub(super) fn wait(&mut self, id: AckId, subscription: usize) -> bool {
        let needed = if self.moved { self.generation + 1 } else { self.generation };
        let waits = self.moved || needed > self.stored_generation;
        if waits {
            self.waiting.push((id, subscription, needed));
        }
        waits
    }

    /// Forgets an ack that nobody waits for any more.
    pub(super) fn abandon(&mut self, id: AckId) {
        self.waiting.retain(|(waiting, ..)| *waiting != id);
    }

    /// Acks whose positions are stored by now, with their subscription.
    pub(super) fn answerable(&mut self) -> Vec<(AckId, usize)> {
        let stored = self.stored_generation;
        let ready = self.waiting.iter().filter(|(_, _, needed)| *needed <= stored);
        let ready = ready.map(|(id, subscription, _)| (*id, *subscription)).collect();
        self.waiting.retain(|(_, _, needed)| *needed > stored);
        ready
    }

    /// Tells everybody who waits that this replica can store nothing any more.
    pub(super) fn refuse_waiting(&mut self, holder: &str, epoch: Epoch, effects: &mut Vec<Effect>) {
        for (id, ..) in self.waiting.drain(..) {
            let error = AckError::NotLeader { holder: holder.to_owned(), epoch };
            effects.push(Effect::Acked { id, result: Err(error) });
        }
    }

    /// When the next text is due.
    pub(super) fn deadline(&self) -> Option<BootInstant> {
        self.moved.then(|| self.written_at.map_or(BootInstant::default(), |at| at + CHECKPOINT_INTERVAL_MIN))
    }

    /// Time since a text of ours was stored.
    pub(super) fn stored_age(&self, now: BootInstant) -> Option<Duration> {
        self.stored_at.map(|at| now.since(at))
    }
}

impl Replica {
    /// Gives the newest positions to the elector, if they have moved and the last text is old enough.
    pub(super) fn write_checkpoint_when_due(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if matches!(self.role, Role::Leading { .. } | Role::Releasing { .. })
            && self.checkpointing.deadline().is_some_and(|due| due <= now.boot)
        {
            self.write_checkpoint(now, false, effects);
        }
        if !self.owns_positions() || self.role == Role::Disabled {
            self.checkpointing.moved = false;
        }
    }

    /// Gives the newest positions to the elector now.
    pub(super) fn write_checkpoint(&mut self, now: Now, clean: bool, effects: &mut Vec<Effect>) {
        let subscriptions = self.subscriptions.iter();
        let stored = subscriptions.map(|known| (known.name.to_string(), known.store(&self.fingerprints)));
        let checkpoint = Checkpoint {
            cluster: self.cluster,
            epoch: self.epoch(),
            writer: self.options.identity.clone(),
            clean,
            subscriptions: stored.collect(),
            unknown: self.checkpointing.unknown.unknown.clone(),
        };
        self.checkpointing.moved = false;
        self.checkpointing.written_at = Some(now.boot);
        match checkpoint.encode() {
            Ok(text) => {
                self.checkpointing.generation += 1;
                let generation = self.checkpointing.generation;
                let places = self.subscriptions.iter().map(|known| &known.places);
                let positions = places.map(|places| places.iter().map(|place| place.acked.clone()).collect());
                self.checkpointing.pending.push_back((generation, positions.collect()));
                effects.push(Effect::Checkpoint(PendingCheckpoint { epoch: self.epoch(), generation, text }));
            }
            Err(error) => effects.push(Effect::Noted(Note::CheckpointUnwritable { why: error.to_string() })),
        }
    }

    pub(super) fn answer_stored_acks(&mut self, effects: &mut Vec<Effect>) {
        for (id, subscription) in self.checkpointing.answerable() {
            effects.push(Effect::Acked { id, result: Ok(self.ack_outcome(subscription)) });
        }
    }
}
