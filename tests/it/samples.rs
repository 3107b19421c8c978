//! The judges themselves: each is seen to find what it is there to find. Needs no server.

use crate::support::history::{History, Record, Verdict};
use crate::support::pb;
use crate::support::pb::EventType::{Added, Deleted, Modified};
use crate::support::pb::frame::Kind;
use crate::support::store::{Session, Store};

fn event(kind: pb::EventType, uid: &str, version: u128) -> pb::Event {
    pb::Event {
        id: format!("f/{uid}/{version}"),
        r#type: kind.into(),
        feed: "f".to_owned(),
        object_ref: Some(pb::ObjectRef { uid: uid.to_owned(), name: uid.to_owned(), ..Default::default() }),
        resource_version: version.to_string(),
        ..Default::default()
    }
}

struct Stream {
    store: Store,
    session: Session,
    sequence: u64,
    epoch: u64,
}

impl Stream {
    fn start() -> Self {
        let mut store = Store::default();
        let session = store.begin();
        let mut stream = Self { store, session, sequence: 0, epoch: 5 };
        let feed = pb::FeedInfo { name: "f".to_owned(), resource: "r".to_owned(), ..Default::default() };
        stream.send(Kind::SessionStarted(pb::SessionStarted { feeds: vec![feed], ..Default::default() }));
        stream
    }

    fn send(&mut self, kind: Kind) {
        self.sequence += 1;
        let frame = pb::Frame { sequence: self.sequence, epoch: self.epoch, kind: Some(kind), ..Default::default() };
        self.store.apply("app", &mut self.session, frame);
    }

    fn events(&mut self, events: &[(pb::EventType, &str, u128)]) {
        for (kind, uid, version) in events {
            self.send(Kind::Batch(pb::EventBatch { events: vec![event(*kind, uid, *version)] }));
        }
    }
}

/// What really happened to `a` and `b`.
fn truth() -> History {
    let mut record = Record { start: 1, head: 9, ..Default::default() };
    record.states.insert("a".to_owned(), [2, 3].into());
    record.states.insert("b".to_owned(), [4].into());
    record.deaths.insert("b".to_owned(), 5);
    History::of("r", record)
}

fn verdict(stream: &Stream) -> (usize, usize, usize) {
    let mut verdict = Verdict::default();
    truth().judge(&stream.store, &mut verdict);
    (verdict.lost.len(), verdict.invented.len(), stream.store.disorder.len())
}

#[tokio::test]
async fn a_faithful_stream_has_nothing_to_say_against_it() {
    let mut stream = Stream::start();
    stream.events(&[(Added, "a", 2), (Modified, "a", 3), (Added, "b", 4), (Deleted, "b", 5)]);
    assert_eq!(verdict(&stream), (0, 0, 0));
    assert_eq!(stream.store.versions("r"), [("a".to_owned(), 3)].into());
}

#[tokio::test]
async fn a_lost_update_and_a_lost_deletion_are_found() {
    let mut stream = Stream::start();
    stream.events(&[(Added, "a", 3), (Added, "b", 4)]);
    assert_eq!(verdict(&stream), (2, 0, 0));
}

#[tokio::test]
async fn what_is_announced_is_not_lost() {
    let mut stream = Stream::start();
    let gap = pb::Gap {
        feed: "f".to_owned(),
        from_resource_version: "1".to_owned(),
        to_resource_version: "2".to_owned(),
        ..Default::default()
    };
    stream.send(Kind::Gap(gap));
    stream.events(&[(Added, "a", 3), (Added, "b", 4), (Deleted, "b", 5)]);
    assert_eq!(verdict(&stream), (0, 0, 0));
    // A later state that is marked stands for the ones before it.
    let mut stream = Stream::start();
    let coalesced = pb::Event { coalesced: true, ..event(Added, "a", 3) };
    stream.send(Kind::Batch(pb::EventBatch { events: vec![coalesced] }));
    stream.events(&[(Added, "b", 4), (Deleted, "b", 5)]);
    assert_eq!(verdict(&stream), (0, 0, 0));
}

#[tokio::test]
async fn a_gap_that_promises_all_deletes_is_held_to_it() {
    let gap = |kind: pb::GapKind, from: u128, to: u128| pb::Gap {
        feed: "f".to_owned(),
        kind: kind.into(),
        from_resource_version: from.to_string(),
        to_resource_version: if to == 0 { String::new() } else { to.to_string() },
        deletes_complete: kind == pb::GapKind::Coalesced,
        ..Default::default()
    };
    // `b` was known before the gap, and its deletion is not sent.
    let mut stream = Stream::start();
    stream.events(&[(Added, "a", 2), (Modified, "a", 3), (Added, "b", 4)]);
    stream.send(Kind::Gap(gap(pb::GapKind::Coalesced, 4, 8)));
    assert_eq!(verdict(&stream), (1, 0, 0));
    // It came and went within the gap: nobody was told of it.
    let mut stream = Stream::start();
    stream.events(&[(Added, "a", 2), (Modified, "a", 3)]);
    stream.send(Kind::Gap(gap(pb::GapKind::Coalesced, 3, 8)));
    assert_eq!(verdict(&stream), (0, 0, 0));
    // A reset says it with a sweep.
    let mut stream = Stream::start();
    stream.events(&[(Added, "a", 2), (Modified, "a", 3), (Added, "b", 4)]);
    stream.send(Kind::Gap(gap(pb::GapKind::Reset, 4, 0)));
    assert_eq!(verdict(&stream), (1, 0, 0));
    stream.send(Kind::SnapshotBegin(pb::SnapshotBegin { feed: "f".to_owned(), ..Default::default() }));
    stream.send(Kind::SnapshotEnd(pb::SnapshotEnd {
        feed: "f".to_owned(),
        resource_version: "9".to_owned(),
        sweep: true,
    }));
    assert_eq!(verdict(&stream).0, 0);
}

#[tokio::test]
async fn an_invented_change_and_an_invented_deletion_are_found() {
    let mut stream = Stream::start();
    stream.events(&[
        (Added, "a", 2),
        (Modified, "a", 3),
        (Added, "b", 4),
        (Deleted, "b", 5),
        (Deleted, "a", 6),
        (Added, "c", 7),
    ]);
    assert_eq!(verdict(&stream), (0, 2, 0));
}

#[tokio::test]
async fn disorder_is_found_in_versions_in_sequence_and_behind_an_ack() {
    let mut stream = Stream::start();
    stream.events(&[(Modified, "a", 3), (Added, "a", 2)]);
    assert_eq!(stream.store.disorder.len(), 1);
    stream.sequence += 1;
    stream.events(&[(Added, "b", 4)]);
    assert_eq!(stream.store.disorder.len(), 2);
    stream.store.durable.insert("f".to_owned(), 9);
    stream.events(&[(Deleted, "b", 5)]);
    assert_eq!(stream.store.disorder.len(), 3);
}

#[tokio::test]
async fn a_lower_epoch_writes_nothing_and_a_repeat_is_counted() {
    let mut stream = Stream::start();
    stream.events(&[(Added, "a", 2)]);
    stream.epoch = 4;
    stream.events(&[(Deleted, "a", 5)]);
    assert_eq!((stream.store.refused, stream.store.applied.len(), stream.store.names("r").len()), (1, 1, 1));
    stream.epoch = 6;
    stream.session = stream.store.begin();
    stream.sequence = 0;
    stream.events(&[(Added, "a", 2)]);
    assert_eq!((stream.store.duplicates, stream.store.disorder.len()), (1, 0));
}

#[tokio::test]
async fn a_sweep_removes_what_the_snapshot_did_not_send() {
    let mut stream = Stream::start();
    stream.events(&[(Added, "a", 2), (Added, "b", 4)]);
    stream.send(Kind::SnapshotBegin(pb::SnapshotBegin { feed: "f".to_owned(), ..Default::default() }));
    let again = pb::Event { in_snapshot: true, ..event(Added, "a", 3) };
    stream.send(Kind::Batch(pb::EventBatch { events: vec![again] }));
    stream.send(Kind::SnapshotEnd(pb::SnapshotEnd {
        feed: "f".to_owned(),
        resource_version: "9".to_owned(),
        sweep: true,
    }));
    assert_eq!(stream.store.versions("r"), [("a".to_owned(), 3)].into());
}
