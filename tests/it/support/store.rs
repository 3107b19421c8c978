//! The one downstream store that the application's instances write to: the client algorithm of docs/api.md, with records.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::pb;
use super::pb::frame::Kind;
use super::pb::payload::Body;

/// A resourceVersion as a number; 0 when it is none.
pub(crate) fn version(text: &str) -> u128 {
    text.parse().unwrap_or(0)
}

/// An object that the store holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
    /// Its resourceVersion.
    pub(crate) version: u128,
    /// Its JSON, when it was sent.
    pub(crate) json: Option<String>,
}

/// An event that was applied.
#[derive(Clone, Debug)]
pub(crate) struct Applied {
    /// Plural resource of the feed.
    pub(crate) resource: String,
    /// What happened.
    pub(crate) kind: pb::EventType,
    /// To which object.
    pub(crate) uid: String,
    /// Its name.
    pub(crate) name: String,
    /// Version of the change.
    pub(crate) version: u128,
    /// The session in which it came.
    pub(crate) session: u64,
    /// The event as it came, without bodies.
    pub(crate) coalesced: bool,
    /// Derived by comparison.
    pub(crate) synthesized: bool,
    /// Part of a snapshot.
    pub(crate) in_snapshot: bool,
    /// Marked as possibly repeated.
    pub(crate) redelivered: bool,
    /// Why it is gone.
    pub(crate) reason: pb::DeleteReason,
}

/// One session as its consumer knows it.
#[derive(Debug)]
pub(crate) struct Session {
    number: u64,
    sequence: u64,
    seen: BTreeMap<String, HashSet<String>>,
    delivered: BTreeMap<String, u128>,
    /// From the server, for acks.
    pub(crate) id: String,
}

/// The store and all that happened to it.
#[derive(Default, Debug)]
pub(crate) struct Store {
    /// Plural resource of each feed: two namespaces are two feeds of one resource.
    pub(crate) resources: BTreeMap<String, String>,
    /// By feed and uid.
    pub(crate) held: BTreeMap<String, BTreeMap<String, Held>>,
    /// The highest epoch that wrote here: lower ones are refused.
    pub(crate) epoch: u64,
    /// Frames refused because of their epoch.
    pub(crate) refused: u64,
    /// Every event applied, in order.
    pub(crate) applied: Vec<Applied>,
    /// Ids of all events applied outside of snapshots.
    pub(crate) ids: HashSet<String>,
    /// Events whose id had been applied before.
    pub(crate) duplicates: u64,
    /// What came in the wrong order, in words.
    pub(crate) disorder: Vec<String>,
    /// Gaps with the resource concerned.
    pub(crate) gaps: Vec<(String, pb::Gap)>,
    /// Completed snapshots: resource and version.
    pub(crate) snapshots: Vec<(String, u128)>,
    /// Leadership as told, with the name of the instance that heard it.
    pub(crate) leadership: Vec<(String, pb::Leadership)>,
    /// Conditions of feeds as told.
    pub(crate) statuses: Vec<(String, pb::FeedState)>,
    /// Why sessions ended.
    pub(crate) endings: Vec<pb::EndReason>,
    /// Errors with which streams and acks ended.
    pub(crate) errors: Vec<String>,
    /// By feed: nothing up to here may come again, because the ack is stored in the cluster.
    pub(crate) durable: BTreeMap<String, u128>,
    /// Sessions so far.
    pub(crate) sessions: u64,
}

impl Store {
    /// Begins a session.
    pub(crate) fn begin(&mut self) -> Session {
        self.sessions += 1;
        Session {
            number: self.sessions,
            sequence: 0,
            seen: BTreeMap::new(),
            delivered: BTreeMap::new(),
            id: String::new(),
        }
    }

    /// Applies a frame that the instance `app` received; returns the cursor to ack, and what has been delivered up to it.
    pub(crate) fn apply(
        &mut self,
        app: &str,
        session: &mut Session,
        frame: pb::Frame,
    ) -> Option<(String, BTreeMap<String, u128>)> {
        session.sequence += 1;
        if frame.sequence != session.sequence {
            self.disorder.push(format!(
                "session {}: frame {} after {}",
                session.number,
                frame.sequence,
                session.sequence - 1
            ));
            session.sequence = frame.sequence;
        }
        if frame.epoch != 0 && frame.epoch < self.epoch {
            self.refused += 1;
            return None;
        }
        self.epoch = self.epoch.max(frame.epoch);
        match frame.kind {
            Some(Kind::SessionStarted(started)) => {
                session.id = started.session_id;
                // As configured until discovery has answered: `widgets.example.com` means `widgets`.
                let plural = |resource: &str| resource.split('.').next().unwrap_or(resource).to_owned();
                self.resources.extend(started.feeds.into_iter().map(|feed| (feed.name, plural(&feed.resource))));
            }
            Some(Kind::Batch(batch)) => {
                if batch.events.is_empty() {
                    self.disorder.push(format!("session {}: an empty batch", session.number));
                }
                for event in batch.events {
                    self.event(session, event);
                }
            }
            Some(Kind::SnapshotBegin(begin)) => {
                session.seen.insert(begin.feed, HashSet::new());
            }
            Some(Kind::SnapshotEnd(end)) => {
                let seen = session.seen.remove(&end.feed).unwrap_or_default();
                if end.sweep {
                    self.held.entry(end.feed.clone()).or_default().retain(|uid, _| seen.contains(uid));
                }
                session.delivered.insert(end.feed.clone(), version(&end.resource_version));
                // A reset skips everything up to the snapshot that makes up for it.
                let (resource, at) = (self.resource(&end.feed), version(&end.resource_version));
                let resets =
                    self.gaps.iter_mut().filter(|(of, gap)| *of == resource && gap.kind() == pb::GapKind::Reset);
                for (_, gap) in resets.filter(|(_, gap)| version(&gap.to_resource_version) < at).take(1) {
                    gap.to_resource_version.clone_from(&end.resource_version);
                }
                self.snapshots.push((self.resource(&end.feed), version(&end.resource_version)));
            }
            Some(Kind::Gap(gap)) => self.gaps.push((self.resource(&gap.feed), gap)),
            Some(Kind::Leadership(leadership)) => self.leadership.push((app.to_owned(), leadership)),
            Some(Kind::FeedStatus(status)) => self.statuses.push((self.resource(&status.feed), status.state())),
            Some(Kind::SessionEnding(ending)) => self.endings.push(ending.reason()),
            Some(Kind::Heartbeat(_)) | None => {}
        }
        (!frame.cursor.is_empty()).then(|| (frame.cursor, session.delivered.clone()))
    }

    fn event(&mut self, session: &mut Session, event: pb::Event) {
        let resource = self.resource(&event.feed);
        let (kind, reason) = (event.r#type(), event.delete_reason());
        let change = version(&event.resource_version);
        let object = event.object_ref.unwrap_or_default();
        let plain = !event.in_snapshot && !event.synthesized;
        if plain {
            let last = session.delivered.get(&event.feed).copied().unwrap_or(0);
            if change <= last {
                self.disorder
                    .push(format!("session {}: {resource} {} at {change} after {last}", session.number, object.name));
            }
            let floor = self.durable.get(&event.feed).copied().unwrap_or(0);
            if change <= floor {
                self.disorder
                    .push(format!("{resource} {} at {change} came again although {floor} was acked", object.name));
            }
            session.delivered.insert(event.feed.clone(), change.max(last));
        }
        if !event.in_snapshot && !self.ids.insert(event.id.clone()) {
            self.duplicates += 1;
        }
        self.applied.push(Applied {
            resource,
            kind,
            uid: object.uid.clone(),
            name: object.name.clone(),
            version: change,
            session: session.number,
            coalesced: event.coalesced,
            synthesized: event.synthesized,
            in_snapshot: event.in_snapshot,
            redelivered: event.redelivered,
            reason,
        });
        if let Some(seen) = session.seen.get_mut(&event.feed) {
            seen.insert(object.uid.clone());
        }
        let held = self.held.entry(event.feed).or_default();
        if kind == pb::EventType::Deleted {
            held.remove(&object.uid);
        } else {
            let json = event.object.and_then(|payload| payload.body).and_then(|body| match body {
                Body::Json(text) => Some(text),
                _ => None,
            });
            held.insert(object.uid, Held { namespace: object.namespace, name: object.name, version: change, json });
        }
    }

    /// What it holds of this resource, over all feeds.
    pub(crate) fn objects(&self, resource: &str) -> impl Iterator<Item = (&String, &Held)> {
        self.held.iter().filter(move |(feed, _)| self.resource(feed) == resource).flat_map(|(_, held)| held)
    }

    /// The names of this resource that the store holds, with their namespaces.
    pub(crate) fn names(&self, resource: &str) -> BTreeSet<(String, String)> {
        self.objects(resource).map(|(_, held)| (held.namespace.clone(), held.name.clone())).collect()
    }

    /// Uid and version of what it holds of this resource.
    pub(crate) fn versions(&self, resource: &str) -> BTreeMap<String, u128> {
        self.objects(resource).map(|(uid, held)| (uid.clone(), held.version)).collect()
    }

    /// The events applied for objects of this name, as words.
    pub(crate) fn story(&self, resource: &str, name: &str) -> Vec<&'static str> {
        self.applied
            .iter()
            .filter(|event| event.resource == resource && event.name == name)
            .map(|event| match event.kind {
                pb::EventType::Added => "added",
                pb::EventType::Modified => "modified",
                pb::EventType::Deleted => "deleted",
                pb::EventType::Unspecified => "unspecified",
            })
            .collect()
    }

    fn resource(&self, feed: &str) -> String {
        self.resources.get(feed).cloned().unwrap_or_else(|| feed.to_owned())
    }

    /// The gaps but for the one that a durable subscription begins with on a new Lease: there nothing is lost, because
    /// nothing was delivered.
    pub(crate) fn later_gaps(&self) -> impl Iterator<Item = &pb::Gap> {
        let first = |gap: &pb::Gap| gap.reason() == pb::GapReason::ColdStart && gap.from_resource_version.is_empty();
        let began = self.gaps.first().is_some_and(|(_, gap)| first(gap));
        self.gaps.iter().skip(usize::from(began)).map(|(_, gap)| gap)
    }

    /// In a few words, for messages.
    pub(crate) fn summary(&self) -> String {
        let held: Vec<String> = self.held.iter().map(|(feed, held)| format!("{} of {feed}", held.len())).collect();
        format!(
            "holds {}; {} events, {} sessions, epoch {}, gaps {:?}, last leadership {:?}, errors {:?}",
            held.join(", "),
            self.applied.len(),
            self.sessions,
            self.epoch,
            self.gaps,
            self.leadership.last().map(|(app, leadership)| (app, leadership.state())),
            self.errors.iter().rev().take(3).collect::<Vec<_>>()
        )
    }
}
