//! Entries and cached objects → events of a frame, under its bound in bytes and count.

use std::sync::Arc;

use crate::feed::{ChangeKind, DeleteReason, Origin};
use crate::frame::{Encoding, Event, FeedLabel, Omission, Payload};
use crate::journal::{Entry, Recorded};
use crate::object::ObjectState;
use crate::session::{Open, UpdateDetail};
use crate::time::WallTime;

/// The events of one frame in the making.
#[derive(Debug)]
pub struct Batch {
    events: Vec<Event>,
    bytes: usize,
    bytes_max: usize,
    events_max: usize,
    encoding: Encoding,
    refused: bool,
}

impl Batch {
    /// An empty batch within these bounds.
    pub fn new(bytes_max: usize, events_max: usize, encoding: Encoding) -> Self {
        Self { events: Vec::new(), bytes: 0, bytes_max, events_max, encoding, refused: false }
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Counts the events from index `from` on, those of them that stand for several changes, and those that are deletes
    /// derived by comparison.
    pub fn count_from(&self, from: usize) -> (u64, u64, u64) {
        let is_derived_delete = |event: &&Event| event.synthesized && matches!(event.kind, ChangeKind::Deleted { .. });
        let added = &self.events[from..];
        let coalesced = added.iter().filter(|event| event.coalesced).count() as u64;
        (added.len() as u64, coalesced, added.iter().filter(is_derived_delete).count() as u64)
    }

    /// Whether a bound is reached: no more events, or an event did not fit any more.
    pub fn is_full(&self) -> bool {
        self.refused || self.events.len() >= self.events_max
    }

    /// Adds an event. Returns false, and adds nothing, when it has to wait for the next frame.
    ///
    /// An event that does not fit into any frame loses its old state first, then its body; its identity and versions
    /// always go (E row 39).
    pub fn push(&mut self, mut event: Event) -> bool {
        if self.is_full() {
            return false;
        }
        let fits_alone = |event: &Event| event.size_bytes_max(self.encoding) <= self.bytes_max;
        if !fits_alone(&event) {
            event.old_object = event.old_object.map(omit_too_large);
        }
        if !fits_alone(&event) {
            event.object = omit_too_large(event.object);
        }
        let bytes = event.size_bytes_max(self.encoding);
        if !self.events.is_empty() && self.bytes + bytes > self.bytes_max {
            self.refused = true;
            return false;
        }
        self.bytes += bytes;
        self.events.push(event);
        true
    }

    /// The events.
    pub fn into_events(self) -> Vec<Event> {
        self.events
    }
}

fn omit_too_large(payload: Payload) -> Payload {
    match payload {
        Payload::Body(body) => Payload::Omitted { omission: Omission::TooLarge, full_size_bytes: body.len() },
        omitted => omitted,
    }
}

/// The event that a journal entry is for this session, its kind being the verdict of the filter.
pub fn event_of_entry(
    open: &Open,
    feed: &Arc<FeedLabel>,
    entry: &Entry,
    recorded: &Recorded,
    kind: ChangeKind,
    redelivered: bool,
) -> Event {
    let change = &recorded.change;
    let old = change.old.as_deref();
    // An object that left the filter is told with the last state that matched.
    let left = matches!(kind, ChangeKind::Deleted { reason: DeleteReason::Unselected, .. });
    let (object, evicted) = match (left, old) {
        (true, Some(old)) => (Some(old), recorded.old_evicted_bytes),
        _ => (change.object.as_deref(), recorded.object_evicted_bytes),
    };
    let with_old = kind == ChangeKind::Modified
        && open.update_detail == UpdateDetail::NewAndOld
        && (old.is_some() || recorded.old_evicted_bytes.is_some());
    Event {
        feed: feed.clone(),
        kind,
        key: change.key.clone(),
        uid: change.uid.clone(),
        resource_version: change.resource_version.clone(),
        old_resource_version: old.map(|old| old.resource_version.clone()),
        object: payload(open, object, evicted),
        old_object: with_old.then(|| payload(open, old, recorded.old_evicted_bytes)),
        coalesced: recorded.coalesced,
        synthesized: change.origin == Origin::Synthesized,
        in_snapshot: false,
        redelivered,
        observed: entry.observed,
    }
}

/// The event that a cached object is within a snapshot.
pub fn event_of_snapshot(open: &Open, feed: &Arc<FeedLabel>, state: &ObjectState) -> Event {
    Event {
        feed: feed.clone(),
        kind: ChangeKind::Added,
        key: state.key.clone(),
        uid: state.uid.clone(),
        resource_version: Some(state.resource_version.clone()),
        old_resource_version: None,
        object: payload(open, Some(state), None),
        old_object: None,
        coalesced: false,
        synthesized: false,
        in_snapshot: true,
        redelivered: false,
        observed: WallTime::default(),
    }
}

fn payload(open: &Open, state: Option<&ObjectState>, evicted_bytes: Option<usize>) -> Payload {
    match (state, evicted_bytes) {
        (None, Some(bytes)) => Payload::Omitted { omission: Omission::Evicted, full_size_bytes: bytes },
        (None, None) => Payload::Omitted { omission: Omission::Unknown, full_size_bytes: 0 },
        (Some(state), _) if open.encoding == Encoding::None => {
            Payload::Omitted { omission: Omission::NotRequested, full_size_bytes: state.body.len() }
        }
        (Some(state), _) => {
            Payload::Body(open.fields.as_ref().map_or_else(|| state.body.clone(), |fields| fields.apply(&state.body)))
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::journal::tests::state;

    fn event(body_bytes: usize, old_bytes: Option<usize>) -> Event {
        let label = FeedLabel { name: "pods".into(), api_version: "v1".into(), kind: "Pod".into() };
        let state = state("a", 7);
        let body = |bytes| Payload::Body(Bytes::from(vec![b'x'; bytes]));
        Event {
            feed: Arc::new(label),
            kind: ChangeKind::Modified,
            key: state.key.clone(),
            uid: state.uid.clone(),
            resource_version: Some(state.resource_version.clone()),
            old_resource_version: None,
            object: body(body_bytes),
            old_object: old_bytes.map(body),
            coalesced: false,
            synthesized: false,
            in_snapshot: false,
            redelivered: false,
            observed: WallTime::default(),
        }
    }

    fn batch(bytes_max: usize) -> Batch {
        Batch::new(bytes_max, 3, Encoding::Json)
    }

    #[test]
    fn a_batch_keeps_both_bounds() {
        let mut by_count = batch(1 << 20);
        assert_eq!([0; 4].map(|_| by_count.push(event(10, None))), [true, true, true, false]);
        let mut by_bytes = batch(3000);
        assert_eq!([0; 3].map(|_| by_bytes.push(event(1000, None))), [true, true, false]);
    }

    #[test]
    fn what_fits_no_frame_loses_the_old_state_then_the_body_never_itself() {
        let omitted = Payload::Omitted { omission: Omission::TooLarge, full_size_bytes: 2000 };
        let mut first = batch(3000);
        assert!(first.push(event(2000, Some(2000))));
        let event_without_old = &first.into_events()[0];
        assert_eq!(event_without_old.old_object, Some(omitted.clone()));
        assert!(matches!(event_without_old.object, Payload::Body(_)));
        let mut second = batch(1500);
        assert!(second.push(event(2000, None)));
        assert_eq!(second.into_events()[0].object, omitted);
    }
}
