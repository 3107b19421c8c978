//! Watches as values: a cursor into a window, polled for lines.
//!
//! Implements `docs/protocol.md` A.1, A.5 and A.6: order, selectors that objects enter and leave,
//! the revision of a deletion, bookmarks, the streaming list, and errors inside HTTP 200.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::object::{Form, State};
use crate::resource::{Origin, Resource, ResourceId};
use crate::selector::Selector;
use crate::status::Failure;
use crate::window::{Change, Window};

/// How often a watch that asked for bookmarks gets one (apiserver `bookmarkFrequency`).
pub const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// How long before its known end a watch gets a last bookmark (apiserver cache watcher).
pub const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// Most lines of one poll: a large initial list comes in several polls.
pub const LINES_PER_POLL_MAX: usize = 1000;

/// Name of a running watch. Never used twice by one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u64);

/// What one poll yields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WatchOutput {
    /// Complete lines, each with its line end.
    pub lines: Vec<Bytes>,
    /// Whether the body ends behind these lines.
    pub closed: bool,
}

/// What a watch shows.
#[derive(Debug, Clone)]
pub struct View {
    /// The type.
    pub resource: ResourceId,
    /// Only this namespace; nothing for all.
    pub namespace: Option<String>,
    /// Only objects that match.
    pub selector: Selector,
    /// How objects are written.
    pub form: Form,
}

impl View {
    /// Tells whether a state is inside the view.
    pub fn shows(&self, state: &State) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == state.namespace) && self.selector.matches(state)
    }
}

/// Whether and how bookmarks are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bookmarks {
    /// The client did not ask for any.
    Off,
    /// The next one is due at this model time.
    NextAt(Duration),
}

/// A running watch.
#[derive(Debug, Clone)]
pub struct Watch {
    view: View,
    /// Events up to this revision are not shown, even if they happen later (an etcd rewind).
    after: u64,
    /// Sequence number of the next event of the window to look at.
    next: u64,
    initial: VecDeque<Arc<State>>,
    /// Revision of the bookmark that ends the initial events, until it is sent.
    initial_end: Option<u64>,
    bookmarks: Bookmarks,
    deadline: Duration,
    failure: Option<Failure>,
}

impl Watch {
    /// Starts a watch of the events after a revision; `next` is their position in the window.
    pub fn new(view: View, after: u64, next: u64, deadline: Duration) -> Watch {
        Watch {
            view,
            after,
            next,
            initial: VecDeque::new(),
            initial_end: None,
            bookmarks: Bookmarks::Off,
            deadline,
            failure: None,
        }
    }

    /// Starts a watch that says one thing and ends: HTTP 200 with an ERROR event.
    pub fn failed(view: View, failure: Failure) -> Watch {
        Watch { failure: Some(failure), ..Watch::new(view, 0, 0, Duration::MAX) }
    }

    /// Adds synthetic ADDED events before the live ones.
    pub fn with_initial(mut self, states: impl Iterator<Item = Arc<State>>) -> Watch {
        self.initial = states.filter(|state| self.view.shows(state)).collect();
        self
    }

    /// Adds the bookmark that says that the initial events are complete.
    pub fn with_initial_end(mut self, revision: u64) -> Watch {
        self.initial_end = Some(revision);
        self
    }

    /// Turns periodic bookmarks on.
    pub fn with_bookmarks(mut self, now: Duration) -> Watch {
        self.bookmarks = Bookmarks::NextAt(self.bookmark_after(now));
        self
    }

    /// Returns the type that is watched.
    pub fn resource(&self) -> ResourceId {
        self.view.resource
    }

    fn bookmark_after(&self, now: Duration) -> Duration {
        let regular = now + BOOKMARK_PERIOD;
        let last = self.deadline.saturating_sub(BOOKMARK_BEFORE_END);
        if last > now { regular.min(last) } else { regular }
    }

    /// Returns the time of the next poll that can yield something; `now` when lines are waiting.
    pub fn next_wake(&self, window: &Window, now: Duration) -> Duration {
        let waiting = !self.initial.is_empty() || self.initial_end.is_some() || self.next < window.end();
        if self.failure.is_some() || waiting {
            return now;
        }
        match self.bookmarks {
            Bookmarks::NextAt(at) => at.min(self.deadline),
            Bookmarks::Off => self.deadline,
        }
    }

    /// Yields what is new. `revision` is the server's newest one.
    pub fn poll(&mut self, resource: &Resource, window: &Window, revision: u64, now: Duration) -> WatchOutput {
        let mut output = WatchOutput::default();
        if let Some(failure) = self.failure.take() {
            output.lines.push(error_line(&failure));
            output.closed = true;
            return output;
        }
        while output.lines.len() < LINES_PER_POLL_MAX {
            let Some(state) = self.initial.pop_front() else { break };
            output.lines.push(event_line("ADDED", &state, self.view.form, state.revision));
        }
        if self.initial.is_empty()
            && let Some(end) = self.initial_end.take()
        {
            output.lines.push(bookmark_line(resource, self.view.form, end, true));
        }
        while self.initial.is_empty() && output.lines.len() < LINES_PER_POLL_MAX {
            match window.get(self.next) {
                Ok(Some(change)) => {
                    self.next += 1;
                    output.lines.extend(self.line(change));
                }
                Ok(None) => break,
                Err(_) => {
                    // The buffer of a real watch is far shorter; a reader this slow is cut off.
                    output.closed = true;
                    return output;
                }
            }
        }
        let caught_up = self.initial.is_empty() && self.next == window.end();
        if caught_up
            && let Bookmarks::NextAt(at) = self.bookmarks
            && at <= now
        {
            self.bookmarks = Bookmarks::NextAt(self.bookmark_after(now));
            if revision > self.after {
                output.lines.push(bookmark_line(resource, self.view.form, revision, false));
            }
        }
        output.closed = caught_up && self.deadline <= now;
        output
    }

    fn line(&self, change: &Change) -> Option<Bytes> {
        if change.revision <= self.after {
            return None;
        }
        let shown = |state: &Option<Arc<State>>| state.as_ref().filter(|state| self.view.shows(state)).cloned();
        let (kind, state) = match (shown(&change.before), shown(&change.after)) {
            (None, Some(after)) => ("ADDED", after),
            (Some(_), Some(after)) => ("MODIFIED", after),
            (Some(before), None) => ("DELETED", before),
            (None, None) => return None,
        };
        Some(event_line(kind, &state, self.view.form, change.revision))
    }
}

fn event_line(kind: &str, state: &State, form: Form, revision: u64) -> Bytes {
    let mut line = Vec::with_capacity(state.text().len() + 64);
    line.extend_from_slice(br#"{"type":""#);
    line.extend_from_slice(kind.as_bytes());
    line.extend_from_slice(br#"","object":"#);
    state.write(form, revision, &mut line);
    line.extend_from_slice(b"}\n");
    Bytes::from(line)
}

/// Renders an ERROR event, the form that a failure takes once HTTP 200 is sent.
pub fn error_line(failure: &Failure) -> Bytes {
    let body = failure.body();
    let mut line = Vec::with_capacity(body.len() + 32);
    line.extend_from_slice(br#"{"type":"ERROR","object":"#);
    line.extend_from_slice(&body);
    line.extend_from_slice(b"}\n");
    Bytes::from(line)
}

fn bookmark_line(resource: &Resource, form: Form, revision: u64, ends_initial: bool) -> Bytes {
    let (kind, api_version) = match form {
        Form::Full => (resource.kind.clone(), resource.api_version()),
        Form::Metadata => ("PartialObjectMetadata".to_owned(), "meta.k8s.io/v1".to_owned()),
    };
    let end = if ends_initial { r#""annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    let comma = if ends_initial { "," } else { "" };
    let object = if resource.origin == Origin::Custom && form == Form::Full {
        format!(
            r#"{{"apiVersion":"{api_version}","kind":"{kind}","metadata":{{{end}{comma}"resourceVersion":"{revision}"}}}}"#
        )
    } else {
        // A bookmark of a built-in type is an empty object of that type, zero values included.
        let empty = match (form, resource.kind.as_str()) {
            (Form::Full, "Pod") => r#","spec":{"containers":null},"status":{}"#,
            (Form::Full, "Lease") => r#","spec":{}"#,
            (Form::Full, "Namespace") => r#","spec":{},"status":{}"#,
            _ => "",
        };
        format!(
            r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{{"resourceVersion":"{revision}"{comma}{end}}}{empty}}}"#
        )
    };
    Bytes::from(format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n"))
}
