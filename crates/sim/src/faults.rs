//! What goes wrong, and when: profiles, and the schedule that a seed makes of one.
//!
//! Every fault is named after its row in the failure catalogue (docs/protocol.md, E); the number stands beside it.

use std::fmt;
use std::time::Duration;

use sidewatch_core::prng::Prng;

/// One fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Row 1: the server ends watches.
    WatchClosed,
    /// Row 2: watches end with an ERROR event, 410.
    WatchExpired,
    /// Row 3: the API server restarts, its watch windows are empty.
    ServerRestart,
    /// Row 4: etcd is compacted up to the newest revision, page tokens and exact states end.
    Compaction,
    /// Row 6: the next line of some watch cannot be decoded.
    Undecodable,
    /// Row 6: a watch ends with an ERROR event that is not 410.
    WatchError,
    /// Row 7: the server answers 429 and 503 for a while.
    Storm,
    /// Row 7: the server cannot be reached by anybody for a while.
    Outage,
    /// Row 8: watches of one host go silent, for ever.
    HalfOpen,
    /// Row 9: requests are answered with 401 or 403 for a while.
    Unauthorized,
    /// Row 13: etcd is restored from a backup.
    Rewind,
    /// Row 14: lists are answered from an older state for a while.
    StaleLists,
    /// Row 15, 18: an application crashes and comes back.
    ConsumerCrash,
    /// Row 16: an application is slow for a while.
    ConsumerSlow,
    /// Row 17: an application stays away for a while.
    ConsumerAbsent,
    /// Row 19: a second instance of an application attaches with the same name.
    TwoConsumers,
    /// Row 21: the sidecar container is killed; the pod stays.
    ContainerKilled,
    /// Row 22: a pod is killed, another takes its place.
    PodKilled,
    /// Row 22: the pod of the leader is killed.
    LeaderKilled,
    /// Row 23: a pod gets SIGTERM, another takes its place.
    Drained,
    /// A leader is asked to step down.
    StepDown,
    /// Row 24: a host cannot reach the server, in both directions.
    Partition,
    /// Row 24: what a host sends is lost.
    PartitionUp,
    /// Row 25: the server's answers to a host are lost.
    PartitionDown,
    /// Row 26: answers are slow for a while, some requests overtake others.
    Slow,
    /// Row 27: a process is stopped and goes on.
    Frozen,
    /// Row 27: a whole machine is stopped, its boot clock too.
    MachinePaused,
    /// Row 28: the wall clock of a host steps.
    WallClockStep,
    /// Row 29: somebody deletes the Lease.
    LeaseDeleted,
    /// Row 30: somebody edits the Lease.
    LeaseEdited,
    /// The data path of a host is busy: what the elector says is heard late.
    Busy,
    /// Row 35: all replicas are killed at once.
    AllKilled,
    /// Row 36: all pods are replaced, one after the other.
    RollingUpdate,
    /// Many writes at once.
    Burst,
}

/// What kinds of faults a run has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Profile {
    /// Nothing goes wrong.
    Calm,
    /// A little of everything but rewinds and overflow.
    Mixed,
    /// Processes die.
    Crash,
    /// Networks fail.
    Network,
    /// History is lost.
    History,
    /// The Lease is disturbed and clocks drift.
    Lease,
    /// The journal is far too small, and consumers are slow.
    Overflow,
    /// etcd goes back in time.
    Rewind,
}

impl Profile {
    /// All, in the order in which seeds take turns.
    pub(crate) const ALL: [Self; 8] =
        [Self::Mixed, Self::Crash, Self::Network, Self::History, Self::Lease, Self::Overflow, Self::Rewind, Self::Calm];

    /// The profile with this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.to_string() == name)
    }

    /// Whether the journal is so small that entries are merged and positions are given up.
    pub(crate) fn overflows(self) -> bool {
        self == Self::Overflow
    }

    /// The faults of this profile with their weights.
    fn weights(self) -> &'static [(Fault, u64)] {
        use Fault::{
            AllKilled, Burst, Busy, Compaction, ConsumerAbsent, ConsumerCrash, ConsumerSlow, ContainerKilled, Drained,
            Frozen, HalfOpen, LeaderKilled, LeaseDeleted, LeaseEdited, MachinePaused, Outage, Partition, PartitionDown,
            PartitionUp, PodKilled, RollingUpdate, ServerRestart, Slow, StaleLists, StepDown, Storm, TwoConsumers,
            Unauthorized, Undecodable, WallClockStep, WatchClosed, WatchError, WatchExpired,
        };
        match self {
            Self::Calm => &[],
            Self::Mixed => &[
                (WatchClosed, 2),
                (WatchExpired, 2),
                (ServerRestart, 2),
                (Compaction, 2),
                (Undecodable, 1),
                (WatchError, 1),
                (Storm, 1),
                (Outage, 1),
                (HalfOpen, 1),
                (Unauthorized, 1),
                (StaleLists, 1),
                (ConsumerCrash, 2),
                (ConsumerSlow, 1),
                (ConsumerAbsent, 1),
                (TwoConsumers, 1),
                (ContainerKilled, 1),
                (PodKilled, 1),
                (LeaderKilled, 2),
                (Drained, 1),
                (StepDown, 1),
                (Partition, 2),
                (PartitionUp, 1),
                (PartitionDown, 1),
                (Slow, 1),
                (Frozen, 1),
                (MachinePaused, 1),
                (WallClockStep, 1),
                (LeaseDeleted, 1),
                (LeaseEdited, 1),
                (Busy, 1),
                (AllKilled, 1),
                (RollingUpdate, 1),
                (Burst, 1),
            ],
            Self::Crash => &[
                (ContainerKilled, 3),
                (PodKilled, 2),
                (LeaderKilled, 4),
                (AllKilled, 2),
                (Drained, 2),
                (StepDown, 2),
                (RollingUpdate, 1),
                (ConsumerCrash, 3),
                (TwoConsumers, 1),
                (ServerRestart, 2),
                (Compaction, 1),
                (Busy, 1),
            ],
            Self::Network => &[
                (Partition, 4),
                (PartitionUp, 2),
                (PartitionDown, 2),
                (HalfOpen, 2),
                (Slow, 3),
                (Outage, 1),
                (Storm, 2),
                (Unauthorized, 1),
                (ServerRestart, 2),
                (WatchClosed, 1),
                (LeaderKilled, 1),
                (Busy, 1),
            ],
            Self::History => &[
                (ServerRestart, 5),
                (Compaction, 4),
                (WatchExpired, 3),
                (WatchError, 1),
                (Undecodable, 2),
                (StaleLists, 2),
                (Burst, 2),
                (Partition, 3),
                (LeaderKilled, 3),
                (AllKilled, 1),
                (ConsumerCrash, 2),
                (ConsumerSlow, 2),
                (StepDown, 1),
            ],
            Self::Lease => &[
                (LeaseDeleted, 2),
                (LeaseEdited, 3),
                (Slow, 3),
                (PartitionUp, 2),
                (PartitionDown, 2),
                (Frozen, 3),
                (MachinePaused, 3),
                (WallClockStep, 2),
                (LeaderKilled, 2),
                (ContainerKilled, 2),
                (Storm, 1),
                (Busy, 2),
                (StepDown, 1),
                (Drained, 1),
                (ServerRestart, 1),
            ],
            Self::Overflow => &[
                (ConsumerSlow, 4),
                (ConsumerAbsent, 3),
                (ConsumerCrash, 2),
                (Burst, 4),
                (LeaderKilled, 2),
                (StepDown, 2),
                (ServerRestart, 2),
                (Partition, 1),
                (AllKilled, 1),
                (Compaction, 1),
                (WatchExpired, 1),
            ],
            Self::Rewind => &[
                (Fault::Rewind, 4),
                (LeaderKilled, 2),
                (StepDown, 1),
                (ConsumerCrash, 2),
                (ConsumerSlow, 1),
                (ServerRestart, 1),
                (WatchClosed, 1),
            ],
        }
    }

    /// The schedule that `chance` makes of this profile: when which fault begins, within `span`.
    pub(crate) fn schedule(self, chance: &mut Prng, span: Duration) -> Vec<(Duration, Fault)> {
        let weights = self.weights();
        let total: u64 = weights.iter().map(|(_, weight)| weight).sum();
        if total == 0 {
            return Vec::new();
        }
        let count = 2 + chance.below(9);
        let mut schedule: Vec<_> = (0..count)
            .map(|_| {
                let mut drawn = chance.below(total);
                let drawn = weights.iter().find(|(_, weight)| {
                    let here = drawn < *weight;
                    drawn = drawn.saturating_sub(*weight);
                    here
                });
                (chance.between(Duration::from_secs(3), span), drawn.map_or(Fault::Burst, |(fault, _)| *fault))
            })
            .collect();
        schedule.sort_by_key(|(at, _)| *at);
        schedule
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Calm => "calm",
            Self::Mixed => "mixed",
            Self::Crash => "crash",
            Self::Network => "network",
            Self::History => "history",
            Self::Lease => "lease",
            Self::Overflow => "overflow",
            Self::Rewind => "rewind",
        })
    }
}
