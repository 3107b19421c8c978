//! Faults as rules: which requests they meet, and what goes wrong. Pure data and a matcher; the
//! HTTP shell and the simulator carry them out.

use std::time::Duration;

use bytes::Bytes;

use crate::request::{Method, Request};
use crate::status::Failure;

/// What goes wrong with one request.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The answer comes late. The server acts when the request arrives.
    DelayAnswer(Duration),
    /// The request arrives late: the server acts only then.
    DelayRequest(Duration),
    /// The request arrives nowhere and the connection stays open: nothing, for ever.
    Stall,
    /// The server acts, and the connection breaks before the answer: a write that may have happened.
    LoseAnswer,
    /// The body stops after so many bytes and the connection stays open.
    StallAfter(u64),
    /// The connection breaks after so many bytes of the body; the server has acted.
    ResetAfter(u64),
    /// The body ends cleanly after so many bytes.
    TruncateAfter(u64),
    /// Another answer; the server does not act.
    Answer {
        /// HTTP status.
        status: u16,
        /// The body; a Status object or anything else.
        body: Bytes,
        /// Seconds of a Retry-After header.
        retry_after: Option<u32>,
    },
    /// A read is answered from a state so many revisions old.
    Stale(u64),
    /// A watch says this after so many lines, and ends.
    ErrorEvent {
        /// Lines before it.
        after_lines: u64,
        /// The failure.
        failure: Failure,
    },
}

impl Fault {
    /// Makes an answer out of a failure.
    pub fn answer(failure: &Failure) -> Fault {
        Fault::Answer { status: failure.code, body: failure.body(), retry_after: failure.retry_after }
    }
}

/// Which requests a rule looks at. Every condition that is set must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pattern {
    /// The verb.
    pub method: Option<Method>,
    /// Text at the start of the path.
    pub path_prefix: String,
    /// Text in the query, such as `watch=` or `continue=`.
    pub query_contains: String,
    /// Text that the query must not have.
    pub query_lacks: String,
}

impl Pattern {
    /// Matches requests of a verb to paths with a prefix.
    pub fn new(method: Method, path_prefix: &str) -> Pattern {
        Pattern { method: Some(method), path_prefix: path_prefix.to_owned(), ..Pattern::default() }
    }

    /// Matches watches of paths with a prefix.
    pub fn watch(path_prefix: &str) -> Pattern {
        Pattern { query_contains: "watch=".to_owned(), ..Pattern::new(Method::Get, path_prefix) }
    }

    /// Matches lists and reads of paths with a prefix, but no watches.
    pub fn read(path_prefix: &str) -> Pattern {
        Pattern { query_lacks: "watch=".to_owned(), ..Pattern::new(Method::Get, path_prefix) }
    }

    /// Tells whether a request fits.
    pub fn matches(&self, request: &Request) -> bool {
        self.method.is_none_or(|method| method == request.method)
            && request.path.starts_with(&self.path_prefix)
            && request.query.contains(&self.query_contains)
            && (self.query_lacks.is_empty() || !request.query.contains(&self.query_lacks))
    }
}

/// A fault for some of the requests that a pattern matches.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Which requests count.
    pub pattern: Pattern,
    /// How many of them pass before the fault begins.
    pub skip: u64,
    /// How many then meet it; nothing for all.
    pub times: Option<u64>,
    /// The fault.
    pub fault: Fault,
}

impl Rule {
    /// A fault for every request that matches.
    pub fn always(pattern: Pattern, fault: Fault) -> Rule {
        Rule { pattern, skip: 0, times: None, fault }
    }

    /// A fault for the next request that matches.
    pub fn once(pattern: Pattern, fault: Fault) -> Rule {
        Rule { pattern, skip: 0, times: Some(1), fault }
    }

    /// A fault for one request: the nth that matches, counted from 1.
    pub fn nth(pattern: Pattern, nth: u64, fault: Fault) -> Rule {
        Rule { pattern, skip: nth.saturating_sub(1), times: Some(1), fault }
    }
}

/// Rules in the order of their precedence, each with its own count.
#[derive(Debug, Clone, Default)]
pub struct Script {
    rules: Vec<(Rule, u64)>,
}

impl Script {
    /// Makes a script of rules.
    pub fn new(rules: Vec<Rule>) -> Script {
        Script { rules: rules.into_iter().map(|rule| (rule, 0)).collect() }
    }

    /// Appends a rule.
    pub fn push(&mut self, rule: Rule) {
        self.rules.push((rule, 0));
    }

    /// Ends all faults.
    pub fn clear(&mut self) {
        self.rules.clear();
    }

    /// Counts a request with every rule that it matches, and returns the first fault it meets.
    pub fn decide(&mut self, request: &Request) -> Option<Fault> {
        let mut met = None;
        for (rule, seen) in self.rules.iter_mut().filter(|(rule, _)| rule.pattern.matches(request)) {
            let index = *seen;
            *seen += 1;
            let ended = rule.times.is_some_and(|times| index >= rule.skip.saturating_add(times));
            if met.is_none() && index >= rule.skip && !ended {
                met = Some(rule.fault.clone());
            }
        }
        met
    }
}

#[cfg(test)]
mod tests {
    use super::{Fault, Pattern, Rule, Script};
    use crate::request::{Method, Request};

    #[test]
    fn the_nth_matching_request_meets_the_fault() {
        let mut script = Script::new(vec![Rule::nth(Pattern::new(Method::Put, "/apis/coordination"), 2, Fault::Stall)]);
        let put = Request::new(Method::Put, "/apis/coordination.k8s.io/v1/x");
        let met: Vec<bool> = (0..3).map(|_| script.decide(&put).is_some()).collect();
        assert_eq!(met, [false, true, false]);
        assert_eq!(script.decide(&Request::get("/apis/coordination.k8s.io/v1/x")), None);
    }

    #[test]
    fn watches_and_reads_are_told_apart() {
        let (watch, list) = (Request::get("/api/v1/pods?watch=1&x=2"), Request::get("/api/v1/pods?limit=5"));
        assert!(Pattern::watch("/api/v1/pods").matches(&watch) && !Pattern::watch("/api/v1/pods").matches(&list));
        assert!(Pattern::read("/api/v1/pods").matches(&list) && !Pattern::read("/api/v1/pods").matches(&watch));
    }

    #[test]
    fn the_first_rule_wins_and_all_count() {
        let list = Request::get("/api/v1/pods");
        let rule = |fault| Rule::once(Pattern::default(), fault);
        let mut script = Script::new(vec![
            rule(Fault::Stall),
            rule(Fault::LoseAnswer),
            Rule::always(Pattern::default(), Fault::Stale(1)),
        ]);
        let met: Vec<Option<Fault>> = (0..2).map(|_| script.decide(&list)).collect();
        assert_eq!(met, [Some(Fault::Stall), Some(Fault::Stale(1))]);
    }
}
