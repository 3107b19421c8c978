//! Announcements that the replica driver has not taken yet: bounded, and without what a newer one replaces.

use std::collections::VecDeque;

use sidewatch_core::leadership::{Announcement, Role};

/// Announcements that may wait. Renewals and checkpoints replace one another, so this many are as many transitions.
const WAITING_MAX: usize = 256;

/// The backlog is full.
#[derive(Debug)]
pub(super) struct Full;

/// Announcements in their order.
#[derive(Debug, Default)]
pub(super) struct Backlog(VecDeque<Announcement>);

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<Announcement> {
        self.0.pop_front()
    }

    /// Appends, or puts the announcement in place of one that it makes superfluous.
    pub(super) fn push(&mut self, announcement: Announcement) -> Result<(), Full> {
        // What stands before the last transition belongs to another role.
        let replaced = self.0.iter().rposition(|waiting| replaces(&announcement, waiting));
        let transition = self.0.iter().rposition(|waiting| is_transition(waiting, &announcement));
        match replaced {
            Some(at) if transition.is_none_or(|transition| transition < at) => self.0[at] = announcement,
            _ if self.0.len() >= WAITING_MAX => return Err(Full),
            _ => self.0.push_back(announcement),
        }
        Ok(())
    }
}

/// Whether a reader that hears `new` need not hear `old`.
fn replaces(new: &Announcement, old: &Announcement) -> bool {
    match (new, old) {
        (Announcement::Role { role: new, .. }, Announcement::Role { role: old, .. }) => same_role(new, old),
        (Announcement::CheckpointSeen { .. }, Announcement::CheckpointSeen { .. })
        | (Announcement::CheckpointStored { .. }, Announcement::CheckpointStored { .. }) => true,
        _ => false,
    }
}

/// Whether `waiting` begins another role than the one in which `new` is said.
fn is_transition(waiting: &Announcement, new: &Announcement) -> bool {
    match (waiting, new) {
        (Announcement::Acquired { .. }, _) => true,
        (Announcement::Role { role: waiting, .. }, Announcement::Role { role: new, .. }) => !same_role(waiting, new),
        _ => false,
    }
}

/// Whether two roles differ in the deadline at most.
fn same_role(one: &Role, other: &Role) -> bool {
    match (one, other) {
        (Role::Leading { epoch: one, .. }, Role::Leading { epoch: other, .. }) => one == other,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use sidewatch_core::epoch::Epoch;
    use sidewatch_core::leadership::LeaseView;
    use sidewatch_core::time::BootInstant;

    use super::*;

    fn role(role: Role) -> Announcement {
        Announcement::Role { role, lease: LeaseView::default() }
    }

    fn leading(until: u64) -> Announcement {
        role(Role::Leading { epoch: Epoch::from_u64(1), until: BootInstant::from_nanos(until) })
    }

    #[test]
    fn renewals_replace_one_another_and_transitions_stay() {
        let mut backlog = Backlog::default();
        let suspended = role(Role::Suspended { epoch: Epoch::from_u64(1) });
        let stored = |generation| Announcement::CheckpointStored { generation };
        let all = [leading(1), stored(1), leading(2), stored(2), suspended.clone(), leading(3), leading(4)];
        for announcement in all {
            backlog.push(announcement).unwrap();
        }
        let waiting: Vec<Announcement> = std::iter::from_fn(|| backlog.pop()).collect();
        assert_eq!(waiting, [leading(2), stored(2), suspended, leading(4)]);
    }

    #[test]
    fn a_checkpoint_is_not_moved_before_an_acquisition() {
        let mut backlog = Backlog::default();
        let seen = |text: &str| Announcement::CheckpointSeen { checkpoint: Some(text.to_owned()) };
        let acquired = Announcement::Acquired { checkpoint: None };
        for announcement in [seen("a"), seen("b"), acquired.clone(), seen("c")] {
            backlog.push(announcement).unwrap();
        }
        let waiting: Vec<Announcement> = std::iter::from_fn(|| backlog.pop()).collect();
        assert_eq!(waiting, [seen("b"), acquired, seen("c")]);
    }

    #[test]
    fn it_is_bounded() {
        let mut backlog = Backlog::default();
        let acquired = || Announcement::Acquired { checkpoint: None };
        for _ in 0..WAITING_MAX {
            backlog.push(acquired()).unwrap();
        }
        assert!(backlog.push(acquired()).is_err());
    }
}
