//! The language of the golden scripts: one elector `a_1_x` against one truthful store.
//!
//! `wait 15s` lets time pass, with a tick at each deadline; `freeze 60s` lets it pass without any, then ticks once;
//! `wall +1h` steps the wall clock. `create`, `edit` and `delete` are done by somebody else. `answer` lets the store
//! carry out the request under way and answers it; `apply` carries it out and keeps the answer back, which `late`
//! delivers; `delay` keeps the request itself on its way until it does `arrive`; `fail Timeout` tells the machine that
//! there was no answer. `show` delivers the present state on the watch, `keep` and `show-kept` an
//! earlier one, `restore` makes the kept state the present one, as a restored backup does; `show-deletion` an earlier deletion; `close` ends
//! the watch, `break Expired` breaks it.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;

use super::store::Store;
use crate::codec::lease::{CHECKPOINT_ANNOTATION, EPOCH_ANNOTATION, LeaseRecord};
use crate::codec::status::{Failure, FailureKind};
use crate::elector::{Effect, Elector, Identity, Input, Parameters, RequestId};
use crate::epoch::Epoch;
use crate::leadership::{Announcement, PendingCheckpoint, Role};
use crate::time::{BootInstant, WallTime};

/// Server time at the start of a script, in seconds: small, so that epochs can be read.
const SERVER_START: i64 = 1000;
/// The boot clock at the start of a script.
const START: BootInstant = BootInstant::from_nanos(1_000_000_000_000);

enum Request {
    Get,
    Put(LeaseRecord),
    Create(LeaseRecord),
}

struct World {
    elector: Elector,
    store: Store,
    now: BootInstant,
    wall_offset_micros: i64,
    /// The last request sent.
    pending: Option<RequestId>,
    /// The request under way, until it is carried out.
    flight: Option<(RequestId, Request)>,
    delayed: Option<(RequestId, Request)>,
    watch: Option<RequestId>,
    withheld: Option<Input>,
    deleted: Option<LeaseRecord>,
    kept: Option<LeaseRecord>,
    out: String,
}

/// Runs the commands of `text` and returns it with the answers that the machine gives.
pub(super) fn run(text: &str) -> String {
    let mut world = World {
        elector: Elector::new(Parameters::default(), Identity::new("a", "1", "x"), "shop", "orders", 1),
        store: Store::default(),
        now: START,
        wall_offset_micros: 0,
        pending: None,
        flight: None,
        delayed: None,
        watch: None,
        withheld: None,
        deleted: None,
        kept: None,
        out: String::new(),
    };
    for line in text.lines().filter(|line| !line.starts_with(' ')) {
        writeln!(world.out, "{line}").unwrap();
        if !line.is_empty() && !line.starts_with('#') {
            world.command(line);
        }
    }
    world.out
}

impl World {
    fn command(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["wait", time] => self.wait(duration(time)),
            ["freeze", time] => {
                self.now = self.now + duration(time);
                self.step(Input::Tick);
            }
            ["wall", step] => {
                let micros = i64::try_from(duration(&step[1..]).as_micros()).unwrap();
                self.wall_offset_micros += if step.starts_with('-') { -micros } else { micros };
                self.step(Input::Tick);
            }
            ["create", ref fields @ ..] => {
                self.store.create(RequestId(0), &LeaseRecord::new("shop", "orders"), self.server_seconds());
                self.edit(fields);
            }
            ["edit", ref fields @ ..] => self.edit(fields),
            ["delete"] => self.deleted = self.store.delete(),
            ["answer"] => {
                let answer = self.carry_out();
                self.step(answer);
            }
            ["apply"] => self.withheld = Some(self.carry_out()),
            ["late"] => {
                let answer = self.withheld.take().expect("an answer was kept back");
                self.step(answer);
            }
            ["delay"] => self.delayed = self.flight.take(),
            ["arrive"] => {
                let (request, what) = self.delayed.take().expect("a request is on its way");
                self.perform(request, &what);
            }
            ["fail", kind] => {
                let request = self.pending.expect("a request was sent");
                self.flight = None;
                self.step(Input::RequestFailed { request, failure: failure(kind) });
            }
            ["show"] => {
                let request = self.watch.expect("a watch is open");
                match self.store.record() {
                    Some(record) => self.step(Input::LeaseObserved { request, record }),
                    None => self.show_deletion(request),
                }
            }
            ["show-deletion"] => {
                let request = self.watch.expect("a watch is open");
                self.show_deletion(request);
            }
            ["keep"] => self.kept = self.store.record(),
            ["restore"] => {
                let kept = self.kept.take().expect("a state was kept");
                self.store.restore(&kept);
            }
            ["show-kept"] => {
                let request = self.watch.expect("a watch is open");
                let record = self.kept.take().expect("a state was kept");
                self.step(Input::LeaseObserved { request, record });
            }
            ["close"] => {
                let request = self.watch.take().expect("a watch is open");
                self.step(Input::WatchClosed { request });
            }
            ["break", kind] => {
                let request = self.watch.take().expect("a watch is open");
                self.step(Input::RequestFailed { request, failure: failure(kind) });
            }
            ["checkpoint", generation, text, epoch] => self.step(Input::Checkpoint(PendingCheckpoint {
                epoch: parse_epoch(epoch),
                generation: generation.parse().unwrap(),
                text: text.to_owned(),
            })),
            ["step-down", cooldown, drain] => {
                self.step(Input::StepDown { cooldown: duration(cooldown), drain: duration(drain) });
            }
            ["shutdown", drain] => self.step(Input::Shutdown { drain: duration(drain) }),
            ["drained"] => self.step(Input::Drained),
            ["lock", "held"] => self.step(Input::LocalLockHeld),
            ["start"] => self.step(Input::Start),
            _ => panic!("unknown command: {line}"),
        }
    }

    fn show_deletion(&mut self, request: RequestId) {
        let record = self.deleted.take().expect("a Lease was deleted");
        self.step(Input::LeaseDeleted { request, record });
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.elector.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.step(Input::Tick);
        }
        self.now = end;
    }

    fn server_seconds(&self) -> i64 {
        SERVER_START + i64::try_from(self.now.since(START).as_secs()).unwrap()
    }

    fn carry_out(&mut self) -> Input {
        let (request, what) = self.flight.take().expect("a request is under way");
        self.perform(request, &what)
    }

    fn perform(&mut self, request: RequestId, what: &Request) -> Input {
        match what {
            Request::Get => self.store.get(request),
            Request::Put(record) => self.store.put(request, record),
            Request::Create(record) => self.store.create(request, record, self.server_seconds()),
        }
    }

    fn edit(&mut self, fields: &[&str]) {
        self.store.edit(|object| {
            for field in fields {
                let (key, value) = field.split_once('=').expect("key=value");
                match key {
                    "holder" => {
                        object["spec"]["holderIdentity"] = json!(value);
                        object["spec"]["leaseDurationSeconds"] = json!(if value.is_empty() { 1 } else { 15 });
                    }
                    "duration" => object["spec"]["leaseDurationSeconds"] = json!(value.parse::<i32>().unwrap()),
                    "transitions" => object["spec"]["leaseTransitions"] = json!(value.parse::<i32>().unwrap()),
                    "preferred" => object["spec"]["preferredHolder"] = json!(value),
                    "checkpoint" => object["metadata"]["annotations"][CHECKPOINT_ANNOTATION] = json!(value),
                    "epoch" => {
                        let epoch = parse_epoch(value).to_string();
                        object["metadata"]["annotations"][EPOCH_ANNOTATION] = json!(epoch);
                    }
                    "note" => object["metadata"]["annotations"]["example.com/note"] = json!(value),
                    _ => panic!("unknown field {key}"),
                }
            }
        });
    }

    fn step(&mut self, input: Input) {
        let wall = 1_700_000_000_000_000 + i64::try_from(self.now.as_nanos() / 1000).unwrap() + self.wall_offset_micros;
        let mut effects = Vec::new();
        self.elector.step(self.now, WallTime::from_micros(wall), input, &mut effects);
        let at = self.time(self.now);
        for effect in effects {
            let text = self.render(&effect);
            writeln!(self.out, "  {at} {text}").unwrap();
            if let Effect::GetLease { request, .. }
            | Effect::PutLease { request, .. }
            | Effect::CreateLease { request, .. } = &effect
            {
                self.pending = Some(*request);
            }
            match effect {
                Effect::GetLease { request, .. } => self.flight = Some((request, Request::Get)),
                Effect::PutLease { request, record, .. } => self.flight = Some((request, Request::Put(record))),
                Effect::CreateLease { request, record, .. } => self.flight = Some((request, Request::Create(record))),
                Effect::WatchLease { request, .. } => self.watch = Some(request),
                Effect::Cancel { request } if self.watch == Some(request) => self.watch = None,
                Effect::Cancel { .. } => self.flight = None,
                Effect::OpenGate { .. }
                | Effect::CloseGate
                | Effect::Announce(_)
                | Effect::Released { .. }
                | Effect::Ended
                | Effect::Moved { .. } => {}
            }
        }
    }

    fn time(&self, at: BootInstant) -> String {
        let millis = at.since(START).as_millis();
        format!("{}.{:03}", millis / 1000, millis % 1000)
    }

    fn render(&self, effect: &Effect) -> String {
        match effect {
            Effect::GetLease { request, timeout } => format!("GET #{} within {timeout:?}", request.0),
            Effect::PutLease { request, record, timeout } => {
                let version = record.resource_version.as_ref().unwrap();
                format!("PUT #{} if {version} within {timeout:?}: {}", request.0, lease(record))
            }
            Effect::CreateLease { request, record, timeout } => {
                format!("POST #{} within {timeout:?}: {}", request.0, lease(record))
            }
            Effect::WatchLease { request, after: Some(after) } => format!("WATCH #{} after {after}", request.0),
            Effect::WatchLease { request, after: None } => format!("WATCH #{} from the most recent state", request.0),
            Effect::Cancel { request } => format!("cancel #{}", request.0),
            Effect::OpenGate { epoch, until } => format!("gate open {} until {}", show(*epoch), self.time(*until)),
            Effect::CloseGate => "gate closed".to_owned(),
            Effect::Announce(Announcement::Role { role, lease }) => {
                let role = match role {
                    Role::Disabled => "Disabled".to_owned(),
                    Role::Standby => "Standby".to_owned(),
                    Role::Leading { epoch, until } => format!("Leading {} until {}", show(*epoch), self.time(*until)),
                    Role::Suspended { epoch } => format!("Suspended {}", show(*epoch)),
                    Role::Releasing { epoch } => format!("Releasing {}", show(*epoch)),
                    Role::Lost { epoch } => format!("Lost {}", show(*epoch)),
                };
                let seen = show(lease.epoch_seen);
                format!("say {role} (holder {:?}, seen {seen})", lease.holder_identity)
            }
            Effect::Announce(Announcement::Acquired { checkpoint }) => format!("say Acquired {checkpoint:?}"),
            Effect::Announce(Announcement::CheckpointSeen { checkpoint }) => {
                format!("say CheckpointSeen {checkpoint:?}")
            }
            Effect::Announce(Announcement::Rewound) => "say Rewound".to_owned(),
            Effect::Announce(Announcement::CheckpointStored { generation }) => {
                format!("say CheckpointStored {generation}")
            }
            Effect::Released { epoch } => format!("released {}", show(*epoch)),
            Effect::Ended => "ended".to_owned(),
            Effect::Moved { from, to, why } => format!("{from} -> {to}: {why:?}"),
        }
    }
}

fn lease(record: &LeaseRecord) -> String {
    let mut text = format!("holder={:?} transitions={}", record.holder_identity, record.lease_transitions);
    write!(text, " epoch={}", show(record.stored_epoch)).unwrap();
    if let Some(checkpoint) = &record.checkpoint {
        write!(text, " checkpoint={checkpoint}").unwrap();
    }
    if let Some(preferred) = &record.preferred_holder {
        write!(text, " preferred={preferred}").unwrap();
    }
    if let Some(duration) = record.lease_duration.filter(|duration| duration.as_secs() != 15) {
        write!(text, " duration={duration:?}").unwrap();
    }
    text
}

/// Creation second and the rest.
fn show(epoch: Epoch) -> String {
    format!("{}:{}", epoch.as_u64() >> 20, epoch.as_u64() & 0xF_FFFF)
}

fn parse_epoch(text: &str) -> Epoch {
    let (seconds, rest) = text.split_once(':').expect("seconds:rest");
    Epoch::from_u64((seconds.parse::<u64>().unwrap() << 20) + rest.parse::<u64>().unwrap())
}

fn failure(kind: &str) -> Failure {
    let kind = match kind {
        "Timeout" => FailureKind::Timeout,
        "Transport" => FailureKind::Transport,
        "Unavailable" => FailureKind::Unavailable,
        "Forbidden" => FailureKind::Forbidden,
        "Expired" => FailureKind::Expired,
        _ => panic!("unknown failure {kind}"),
    };
    Failure::new(kind, "scripted")
}

fn duration(text: &str) -> Duration {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().expect("a number before the unit");
    match &text[digits.len()..] {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "h" => Duration::from_secs(3600 * number),
        unit => panic!("unknown unit {unit}"),
    }
}
