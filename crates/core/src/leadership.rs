//! The role of this replica, as the elector tells it and the sessions hear it.

use crate::epoch::Epoch;
use crate::time::BootInstant;

/// The role of this replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// Election is off: this replica delivers, with epoch 0.
    Disabled,
    /// Another replica leads, or none yet.
    Standby,
    /// This replica leads.
    Leading {
        /// The fencing token.
        epoch: Epoch,
        /// Events may leave until here, unless renewed.
        until: BootInstant,
    },
    /// The Lease could not be renewed in time; same epoch if it still can be.
    Suspended {
        /// The epoch in question.
        epoch: Epoch,
    },
    /// Leadership is being given up in order: nothing new leaves, acks are still taken.
    Releasing {
        /// The epoch that ends.
        epoch: Epoch,
    },
    /// Leadership is gone; a new campaign is under way.
    Lost {
        /// The epoch that ended.
        epoch: Epoch,
    },
}

/// What is known of the Lease, for people and for frames.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeaseView {
    /// `spec.holderIdentity`, empty when nobody holds it.
    pub holder_identity: String,
    /// `spec.leaseTransitions`.
    pub lease_transitions: i32,
    /// The highest epoch stored in the Lease or seen.
    pub epoch_seen: Epoch,
}

/// What the elector tells the replica machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Announcement {
    /// The role changed, or a renewal moved `until`. On an acquisition [`Announcement::Acquired`] comes right before.
    Role {
        /// The role from here on.
        role: Role,
        /// The Lease behind it.
        lease: LeaseView,
    },
    /// A Lease write made this replica the leader. Comes before the role.
    Acquired {
        /// Text of the checkpoint annotation that the write copied; none when the Lease was new or held none.
        checkpoint: Option<String>,
    },
    /// As a standby, the Lease was read: the positions that the leader has stored.
    CheckpointSeen {
        /// Text of the checkpoint annotation, none when there is none.
        checkpoint: Option<String>,
    },
    /// A consistent read of the Lease was older than one before: etcd may have been restored from a backup.
    Rewound,
    /// A Lease write stored this generation of our checkpoint.
    CheckpointStored {
        /// The generation given with the text.
        generation: u64,
    },
}

/// A checkpoint on its way to the Lease: only the newest matters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingCheckpoint {
    /// The leadership it was made under; a Lease write of another epoch leaves it out (I6).
    pub epoch: Epoch,
    /// Grows with each text.
    pub generation: u64,
    /// The annotation's text.
    pub text: String,
}
