//! Golden scripts of the feed, one per row of D.2 and of the failure catalogue, and its property test.
//!
//! A script in `testdata/feed` has commands at the left margin and what the machine did below them, indented.
//! `UPDATE_EXPECT=1` rewrites what is below. Commands:
//!
//! ```text
//! feed [selector]                        a new feed, first line of every script
//! start [C]
//! resolved RESOURCE [streaming] [VERSION]
//! page R [OBJECT…] [continue=TOKEN]      an object is name:uid:version
//! opened
//! events EVENT…                          +object  ~object  -object  bookmark:R  end:R  error:KIND
//! undecodable | closed
//! failed KIND [retry=SECONDS]
//! type absent|present|unknown
//! horizon | rewind?
//! tick SECONDS                           time passes, then Tick
//! wait                                   time passes until the deadline, then Tick
//! show                                   condition, head, cache
//! ```
//!
//! An answer goes to the newest request of its form, or with `to=ID` to another.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use expect_test::expect_file;

use super::*;
use crate::codec::status::FailureKind;

mod property;

struct Script {
    feed: Feed,
    now: BootInstant,
    newest: [RequestId; 4],
    out: String,
}

fn version(text: &str) -> ResourceVersion {
    ResourceVersion::parse(text)
}

fn object(text: &str) -> ObjectState {
    let mut parts = text.split(':');
    let mut part = || parts.next().expect(text);
    let (name, uid, rv) = (part(), part(), part());
    ObjectState {
        key: ObjectKey::new("n", name),
        uid: Uid::from(uid),
        resource_version: version(rv),
        body: Bytes::copy_from_slice(format!("{{\"v\":\"{rv}\"}}").as_bytes()),
    }
}

fn kind(text: &str) -> FailureKind {
    use FailureKind::*;
    let kinds = [
        Expired,
        Unauthorized,
        Forbidden,
        NotFound,
        Conflict,
        TooManyRequests,
        Rejected,
        VersionTooLarge,
        Unavailable,
        Timeout,
        Transport,
        Undecodable,
    ];
    *kinds.iter().find(|kind| format!("{kind:?}") == text).expect(text)
}

fn spec(selector: &str) -> Arc<FeedSpec> {
    Arc::new(FeedSpec {
        name: "pods".into(),
        resource: "pods".into(),
        namespace: None,
        label_selector: selector.into(),
        field_selector: "".into(),
        managed_fields: ManagedFields::Drop,
    })
}

fn event(text: &str) -> WatchEvent {
    if let Some(rv) = text.strip_prefix("bookmark:") {
        return WatchEvent::Bookmark { resource_version: version(rv), initial_events_end: false };
    }
    if let Some(rv) = text.strip_prefix("end:") {
        return WatchEvent::Bookmark { resource_version: version(rv), initial_events_end: true };
    }
    if let Some(name) = text.strip_prefix("error:") {
        return WatchEvent::Error(Failure::new(kind(name), "said the server"));
    }
    let object = object(&text[1..]);
    match &text[..1] {
        "+" => WatchEvent::Added(object),
        "~" => WatchEvent::Modified(object),
        "-" => WatchEvent::Deleted(object),
        _ => panic!("{text}"),
    }
}

fn told(change: &Change) -> String {
    let state = |o: &Option<Arc<ObjectState>>| o.as_ref().map(|o| o.resource_version.to_string()).unwrap_or("-".into());
    let kind = match change.kind {
        ChangeKind::Added => "added".into(),
        ChangeKind::Modified => "modified".into(),
        ChangeKind::Deleted { reason, final_state_unknown } => {
            format!("deleted({reason:?}{})", if final_state_unknown { ", final state unknown" } else { "" })
        }
    };
    let (key, uid, origin) = (&change.key.name, &change.uid, change.origin);
    let rv = change.resource_version.as_ref().map(ToString::to_string).unwrap_or("-".into());
    format!("{kind} {key}:{uid} at {rv} old {} object {} {origin:?}", state(&change.old), state(&change.object))
}

fn told_effect(effect: &Effect) -> Vec<String> {
    let group = |head: String, changes: &[Change]| {
        [head].into_iter().chain(changes.iter().map(|c| format!("  {}", told(c)))).collect()
    };
    let line = match effect {
        Effect::Resolve { request } => format!("Resolve #{}", request.0),
        Effect::List { request, list } => {
            let mode = match &list.mode {
                ListMode::Consistent => "consistent".into(),
                ListMode::NotOlderThan(rv) => format!("not older than {rv}"),
                ListMode::Exact(rv) => format!("exactly {rv}"),
            };
            let limit = list.limit.map_or("all".into(), |limit| format!("limit {limit}"));
            let from = list.continue_token.as_ref().map_or(String::new(), |token| format!(" continue {token}"));
            let metadata = if list.metadata_only { " metadata only" } else { "" };
            format!("List #{} {mode} {limit}{from}{metadata}", request.0)
        }
        Effect::Watch { request, watch } => {
            let start = match &watch.start {
                WatchStart::After(rv) => format!("after {rv}"),
                WatchStart::InitialEvents(None) => "initial events".into(),
                WatchStart::InitialEvents(Some(rv)) => format!("initial events not older than {rv}"),
            };
            format!("Watch #{} {start} for {:?}", request.0, watch.timeout)
        }
        Effect::AskType { request } => format!("AskType #{}", request.0),
        Effect::Cancel { request } => format!("Cancel #{}", request.0),
        Effect::Synced { at } => format!("Synced at {at}"),
        Effect::Changed(change) => told(change),
        Effect::Head(rv) => format!("Head {rv}"),
        Effect::Relisted { from, to, changes } => return group(format!("Relisted ({from}, {to}]"), changes),
        Effect::Rewound { at } => format!("Rewound at {at}"),
        Effect::TypeRemoved { changes } => return group("TypeRemoved".into(), changes),
        Effect::Horizon(rv) => format!("Horizon {rv}"),
        Effect::Moved { from, to, why } => format!("Moved {from:?} -> {to:?}: {why}"),
        Effect::Noted(note) => format!("Noted {note:?}"),
    };
    vec![line]
}

impl Script {
    fn run(text: &str) -> String {
        let feed = Feed::new(spec(if text.starts_with("feed selector") { "app=x" } else { "" }), 1);
        let mut script = Self { feed, now: BootInstant::from_nanos(0), newest: [RequestId(0); 4], out: String::new() };
        for line in text.lines().filter(|line| !line.starts_with(' ')) {
            script.out.push_str(line);
            script.out.push('\n');
            if !line.is_empty() && !line.starts_with('#') && !line.starts_with("feed") {
                script.command(line);
            }
        }
        script.out
    }

    fn command(&mut self, line: &str) {
        let named = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name));
        let words: Vec<&str> = line.split(' ').filter(|word| !word.contains('=')).collect();
        let to = named("to=").map(|id| RequestId(id.parse().unwrap()));
        let [resolve, list, watch, ask] = self.newest.map(|newest| to.unwrap_or(newest));
        let newest = *[resolve, list, watch, ask].iter().max().unwrap();
        let input = match words[0] {
            "start" => Input::Start { recover_from: words.get(1).map(|rv| version(rv)) },
            "resolved" => Input::Resolved {
                request: resolve,
                info: ResourceInfo {
                    group: "".into(),
                    version: words.iter().skip(2).find(|w| w.starts_with('v')).map_or("v1", |w| w).into(),
                    resource: words[1].into(),
                    kind: "Pod".into(),
                    namespaced: true,
                    streaming_list: words.contains(&"streaming"),
                },
            },
            "page" => Input::ListPage {
                request: list,
                page: ListPage {
                    resource_version: version(words[1]),
                    continue_token: named("continue=").map(String::from),
                    objects: words[2..].iter().map(|text| object(text)).collect(),
                },
            },
            "opened" => Input::WatchOpened { request: watch },
            "events" => Input::WatchEvents { request: watch, events: words[1..].iter().map(|e| event(e)).collect() },
            "undecodable" => Input::WatchUndecodable { request: watch, message: "not JSON at byte 3".into() },
            "closed" => Input::WatchClosed { request: watch },
            "failed" => {
                let retry_after = named("retry=").map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
                let failure = Failure { retry_after, ..Failure::new(kind(words[1]), "said the server") };
                Input::Failed { request: newest, failure }
            }
            "type" => Input::TypeAnswered {
                request: ask,
                answer: match words[1] {
                    "absent" => TypeAnswer::Absent,
                    "present" => TypeAnswer::Present,
                    _ => TypeAnswer::Unknown,
                },
            },
            "horizon" => Input::ReadHorizon,
            "rewind?" => Input::CheckRewind,
            "tick" => {
                self.now = self.now + Duration::from_secs_f64(words[1].parse().unwrap());
                Input::Tick
            }
            "wait" => {
                let deadline = self.feed.deadline().unwrap();
                let after = deadline.since(self.now);
                self.now = self.now.max(deadline);
                let _ = writeln!(self.out, "    after {after:?}");
                Input::Tick
            }
            "show" => return self.show(),
            other => panic!("unknown command {other}"),
        };
        let mut effects = Vec::new();
        self.feed.step(self.now, input, &mut effects);
        for effect in &effects {
            match effect {
                Effect::Resolve { request } => self.newest[0] = *request,
                Effect::List { request, .. } => self.newest[1] = *request,
                Effect::Watch { request, .. } => self.newest[2] = *request,
                Effect::AskType { request } => self.newest[3] = *request,
                _ => {}
            }
            for line in told_effect(effect) {
                let _ = writeln!(self.out, "    {line}");
            }
        }
        if effects.is_empty() {
            self.out.push_str("    nothing\n");
        }
    }

    fn show(&mut self) {
        let head = self.feed.head().map_or("-".into(), ToString::to_string);
        let objects: Vec<_> =
            self.feed.cache().iter().map(|o| format!(" {}:{}:{}", o.key.name, o.uid, o.resource_version)).collect();
        let _ = writeln!(self.out, "    {:?} at {head}:{}", self.feed.condition(), objects.concat());
    }
}

macro_rules! scripts {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                let script = expect_file![concat!("../../testdata/feed/", stringify!($name), ".txt")];
                script.assert_eq(&Script::run(&script.data()));
            }
        )*
    };
}

scripts! {
    row_01_a_closed_watch_reopens_at_head,
    row_02_expired_in_the_stream_relists,
    row_03_expired_as_status_relists,
    row_04_expired_list_begins_anew,
    row_05_recreated_in_a_hole_is_deleted_first,
    row_06_undecodable_reopens_then_relists,
    row_06_error_event_reopens_then_relists,
    row_07_storm_backs_off_and_tells_after_10_s,
    row_08_silence_reopens_at_head,
    row_09_forbidden_keeps_the_cache,
    row_10_removed_type_is_confirmed,
    row_11_absent_type_is_waited_for,
    row_12_another_version_begins_anew,
    row_13_rewind_needs_two_reads,
    row_14_stale_list_is_refused,
    row_40_unordered_versions_are_taken_in_stream_order,
    backoff_resets_after_health,
    empty_watches_relist,
    events_follow_the_cache,
    horizon_is_read_until_answered,
    late_answers_change_nothing,
    list_pages_resume,
    no_answer_is_a_failure,
    recover_after_a_rewind,
    recover_exactly_or_list,
    recover_falls_back_to_a_list,
    selector_deletes_may_be_unselections,
    short_watch_to_the_horizon,
    streaming_list,
    streaming_list_falls_back,
    streaming_list_of_a_plain_watch,
    version_too_large_waits,
}
