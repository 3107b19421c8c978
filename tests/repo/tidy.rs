//! The architecture as data: which module may import which (ARCHITECTURE.md), no circles, and what no file may contain.
//!
//! A new edge between modules is a change to [`CORE`] or [`SHELL`] and is reviewed as such.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::source::{Named, code, named, without_tests};
use crate::{assert_none, files, read, root, shown};

/// A module and what it may import. `a::*` stands for `a` and everything below it. A family (a file and the files
/// that it declares) is one idea in several files: its members import one another without an entry.
type Row = (&'static str, &'static [&'static str]);

/// `crates/core/src`. Left never imports right: bytes → feed → journal → session → frame; election stands apart.
const CORE: &[Row] = &[
    ("", &[]),
    ("invariant", &[]),
    ("limits", &[]),
    ("prng", &[]),
    ("time", &[]),
    ("epoch", &[]),
    ("resource_version", &[]),
    ("object", &["resource_version"]),
    ("leadership", &["epoch", "time"]),
    ("codec", &[]),
    ("codec::lines", &["limits"]),
    ("codec::json_scan", &["object", "resource_version", "limits"]),
    ("codec::watch_event", &["object", "resource_version", "limits"]),
    ("codec::list_page", &["object", "resource_version", "limits"]),
    ("codec::status", &["limits"]),
    ("codec::lease", &["object", "resource_version", "epoch", "time", "limits"]),
    ("codec::cursor", &["resource_version", "epoch", "limits"]),
    ("codec::checkpoint", &["resource_version", "epoch", "time", "limits"]),
    ("feed", FEED),
    ("feed::backoff", FEED),
    ("feed::cache", FEED),
    ("feed::failing", FEED),
    ("feed::listing", FEED),
    ("feed::relist", FEED),
    ("feed::resolving", FEED),
    ("feed::rewind", FEED),
    ("feed::watching", FEED),
    ("journal", JOURNAL),
    ("journal::holes", JOURNAL),
    ("journal::retention", JOURNAL),
    ("selector", &["object", "limits"]),
    ("filter", &["feed", "object", "selector", "limits"]),
    (
        "frame",
        &["feed", "object", "resource_version", "codec::cursor", "epoch", "leadership", "time", "limits", "invariant"],
    ),
    ("subscription", SUBSCRIPTION),
    ("session", SESSION),
    ("session::place", SESSION),
    ("session::ack", SESSION),
    ("session::batch", SESSION),
    (
        "status",
        &[
            "object",
            "resource_version",
            "codec::cursor",
            "epoch",
            "leadership",
            "time",
            "feed",
            "frame",
            "session",
            "subscription",
        ],
    ),
    ("replica", REPLICA),
    ("replica::checkpointing", REPLICA),
    ("replica::delivery", REPLICA),
    ("replica::pressure", REPLICA),
    ("replica::report", REPLICA),
    ("replica::takeover", REPLICA),
    ("elector", ELECTOR),
    ("elector::identity", ELECTOR),
    ("elector::messages", ELECTOR),
    ("elector::parameters", ELECTOR),
    ("elector::state", ELECTOR),
    ("gate", &["time", "epoch"]),
];

/// A feed knows the API server's words and nothing of what is done with its changes.
const FEED: &[&str] = &["object", "resource_version", "codec::*", "time", "limits", "prng", "invariant"];
/// The election knows the Lease and the time, and nothing of what is delivered.
const ELECTOR: &[&str] = &[
    "time",
    "epoch",
    "leadership",
    "object",
    "resource_version",
    "codec::lease",
    "codec::status",
    "limits",
    "prng",
    "invariant",
];
/// A journal keeps changes and knows nobody who reads them.
const JOURNAL: &[&str] = &["feed", "object", "resource_version", "time", "limits", "invariant"];
/// A subscription is positions: of frames it knows the names, of the journal what it covers.
const SUBSCRIPTION: &[&str] = &[
    "codec::cursor",
    "codec::checkpoint",
    "resource_version",
    "journal",
    "frame",
    "feed",
    "time",
    "limits",
    "invariant",
];
/// The composition of the data path; the election reaches it as announcements.
const REPLICA: &[&str] = &[
    "status",
    "object",
    "resource_version",
    "codec::*",
    "epoch",
    "leadership",
    "time",
    "limits",
    "prng",
    "invariant",
    "feed::*",
    "journal::*",
    "filter",
    "selector",
    "frame",
    "subscription",
    "session::*",
];
/// What a session sees: a read view of the journal, and no client.
const SESSION: &[&str] = &[
    "object",
    "resource_version",
    "codec::cursor",
    "epoch",
    "leadership",
    "time",
    "limits",
    "invariant",
    "feed::*",
    "journal::*",
    "filter",
    "selector",
    "frame",
    "subscription",
];

/// `src`. What names Kubernetes, what names protobuf and what drives the machines do not import one another.
const SHELL: &[Row] = &[
    ("", &[]),
    ("main", &["cli", "config::*", "app", "playground", "playground::command", "tail"]),
    ("cli", &["config::*", "tail"]),
    ("config", &[]),
    ("config::raw", &[]),
    ("config::address", &[]),
    ("config::document", &[]),
    ("config::feeds", &[]),
    ("config::keys", &[]),
    ("config::units", &[]),
    ("delivery", &[]),
    ("clock", &[]),
    ("telemetry", &["config"]),
    ("telemetry::metrics", &[]),
    ("telemetry::runbook", &[]),
    ("supervisor", &["telemetry::metrics"]),
    ("apiserver", APISERVER),
    ("apiserver::client", APISERVER),
    ("apiserver::discovery", APISERVER),
    ("apiserver::list", APISERVER),
    ("apiserver::watch", APISERVER),
    ("apiserver::lease", APISERVER),
    ("driver", DRIVER),
    ("driver::elector", DRIVER),
    ("driver::elector::backlog", DRIVER),
    ("driver::elector::service", DRIVER),
    ("driver::feed_watch", DRIVER),
    ("driver::replica", DRIVER),
    ("grpc", GRPC),
    ("grpc::pb", &[]),
    ("grpc::open", GRPC),
    ("grpc::observe", GRPC),
    ("grpc::listener", GRPC),
    ("grpc::authority", &[]),
    ("grpc::events", GRPC),
    ("grpc::admin", GRPC),
    ("grpc::health", GRPC),
    ("grpc::frames", GRPC),
    ("grpc::status", GRPC),
    ("http", &["config", "telemetry::*", "supervisor"]),
    ("playground", PLAYGROUND),
    ("playground::http", PLAYGROUND),
    ("playground::life", PLAYGROUND),
    // What a person starts: beside the model server it runs a sidecar and a client, so it stands above the root.
    ("playground::command", &["app", "cli", "clock", "config::*", "tail", "telemetry"]),
    ("readiness", &["clock", "grpc::health", "http", "telemetry::*"]),
    ("tail", &["config::address", "grpc::pb"]),
    ("tail::diff", &[]),
    ("tail::render", &["grpc::pb"]),
    (
        "app",
        &[
            "apiserver::*",
            "clock",
            "config::*",
            "delivery",
            "driver::*",
            "grpc::*",
            "http",
            "readiness",
            "supervisor",
            "telemetry::*",
        ],
    ),
];

const APISERVER: &[&str] = &["clock", "config", "supervisor", "telemetry::*"];
const DRIVER: &[&str] = &["apiserver::*", "clock", "config", "delivery", "supervisor", "telemetry::*"];
const GRPC: &[&str] = &["clock", "config", "delivery", "supervisor", "telemetry::*"];
/// A server for tests and for looking: of the shell it needs the time alone.
const PLAYGROUND: &[&str] = &["clock"];

/// A package of the workspace: where its sources are, its name in a path, its rows.
const PACKAGES: &[(&str, &str, &[Row])] = &[("crates/core/src", "sidewatch_core", CORE), ("src", "sidewatch", SHELL)];

/// Packages whose use is confined: the package, the folders that may name it, the invariant that says so.
const CONFINED: &[(&str, &[&str], &str)] = &[
    ("kube", &["src/apiserver"], "A2: only `apiserver` names Kubernetes client types"),
    ("k8s_openapi", &["src/apiserver"], "A2: only `apiserver` names Kubernetes client types"),
    ("tonic", &["src/grpc", "src/tail"], "A2: only `grpc` names protobuf types (and `tail`, its client)"),
    ("tonic_prost", &["src/grpc"], "A2: only `grpc` names protobuf types"),
    ("tonic_health", &["src/grpc"], "A2: only `grpc` names protobuf types"),
    ("tonic_reflection", &["src/grpc"], "A2: only `grpc` names protobuf types"),
    ("tonic_types", &["src/grpc", "src/tail"], "A2: only `grpc` names protobuf types (and `tail`, its client)"),
    ("prost", &["src/grpc"], "A2: only `grpc` names protobuf types"),
    ("prost_types", &["src/grpc", "src/tail"], "A2: only `grpc` names protobuf types (and `tail`, its client)"),
    ("hyper", &["src/apiserver", "src/http", "src/playground", "src/grpc"], "HTTP stays at the edges"),
    ("hyper_util", &["src/apiserver", "src/http", "src/playground", "src/grpc", "src/tail"], "HTTP stays at the edges"),
    ("sidewatch_model", &["src/playground", "crates/sim"], "the model serves the playground and the simulation"),
    ("rustix", &["src/clock", "src/grpc", "src/http", "src/app", "src/driver"], "system calls stay at the edges"),
    (
        "getrandom",
        &["src/app", "src/config", "src/driver", "src/main", "src/tail"],
        "chance is drawn once, at the start",
    ),
    ("tokio", &["src"], "A1: only the shell has I/O and tasks"),
    ("tracing", &["src"], "A1: machines do not log; the driver logs what they tell it"),
    ("anyhow", &["src"], "errors of machines are typed; `anyhow` is for start-up"),
    ("sidewatch_core", &["src", "crates/sim"], "the model imports neither core nor tokio"),
];

/// Words that no source may contain: the word, where it may stand all the same, what to write.
const BANNED: &[(&str, &[&str], &str)] = &[
    ("#[ignore", &[], "a test that cannot run is a failure, never skipped in silence"),
    ("todo!", &[], "finish it, or return an error that says what is missing"),
    ("unimplemented!", &[], "finish it, or return an error that says what is missing"),
    ("dbg!", &[], "log a field with `tracing`, or print from the test"),
    ("tokio::spawn", &["src/supervisor.rs"], "A8: `supervisor.spawn(\"name\", …)`, so that its end is an event"),
    ("task::spawn", &["src/supervisor.rs"], "A8: `supervisor.spawn(\"name\", …)`, so that its end is an event"),
    ("thread::spawn", &["src/supervisor.rs"], "A8: `supervisor` owns every thread"),
    ("thread::Builder", &["src/supervisor.rs"], "A8: `supervisor` owns every thread"),
    ("unbounded_channel", &[], "A8: every queue is bounded and has a gauge"),
    ("mpsc::unbounded", &[], "A8: every queue is bounded and has a gauge"),
    ("std::sync::mpsc", &[], "A8: every queue is bounded and has a gauge"),
    (
        "Instant::now",
        &["src/clock.rs", "crates/sim/src/main.rs"],
        "A9: `clock` is the only reader of clocks; the simulator times its own speed",
    ),
    ("SystemTime::now", &["src/clock.rs"], "A9: `clock` is the only reader of clocks"),
    ("clock_gettime", &["src/clock.rs"], "A9: `clock` is the only reader of clocks"),
    ("env::var", &["src/config.rs", "src/config/raw.rs"], "A9: one module reads the environment"),
    ("env::vars", &["src/config.rs", "src/config/raw.rs"], "A9: one module reads the environment"),
    ("static mut", &[], "state has an owner"),
    ("unsafe {", &[], "forbidden in the workspace"),
];

/// `cfg`s of the core: only tests and the mutation switches (A3).
const CORE_CFGS: &[&str] =
    &["#[cfg(test)]", "cfg(mutation", "cfg(any(mutation", "cfg(not(mutation", "cfg(not(any(mutation"];

/// Lines of production code after which a file probably holds two ideas.
const LINES_MAX: usize = 800;
/// Files that may be longer, with the reason.
const LONG: &[(&str, &str)] = &[(
    "crates/core/src/elector.rs",
    "one machine: its step, an arm for each row of the table in docs/protocol.md, D.1",
)];

/// One module as read: its name, and what it names with the line.
struct Module {
    name: String,
    shown: String,
    uses: Vec<Named>,
}

/// Whether the file is, or belongs to, a test module that has a file of its own.
fn is_tests(path: &Path) -> bool {
    shown(path).split('/').skip_while(|part| *part != "src").any(|part| matches!(part, "tests" | "tests.rs"))
}

/// The modules of the package in `folder`; `package` is its own name, by which its binary imports it.
fn modules(folder: &str, package: &str) -> Vec<Module> {
    let base = root().join(folder);
    files(folder, "rs")
        .into_iter()
        .filter(|path| !is_tests(path))
        .map(|path| {
            let relative = path.strip_prefix(&base).expect("found below").with_extension("");
            let mut name =
                relative.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("::");
            if name == "lib" {
                name.clear();
            }
            let code = without_tests(&code(&read(&path)));
            let mut uses = named(&code, &name, &[package]);
            for named in &mut uses {
                if named.package == package {
                    named.package = "crate".to_owned();
                }
            }
            Module { name, shown: shown(&path), uses }
        })
        .collect()
}

/// The module that a path from the package's root names: the longest prefix that is one.
fn resolve(segments: &[String], known: &BTreeSet<&str>) -> String {
    (0..=segments.len())
        .rev()
        .map(|length| segments[..length].join("::"))
        .find(|prefix| prefix.is_empty() || known.contains(prefix.as_str()))
        .unwrap_or_default()
}

fn below(module: &str, ancestor: &str) -> bool {
    !ancestor.is_empty() && module.strip_prefix(ancestor).is_some_and(|rest| rest.starts_with("::"))
}

fn parent(module: &str) -> Option<&str> {
    module.rsplit_once("::").map(|(parent, _)| parent)
}

fn allowed(from: &str, to: &str, rows: &[Row]) -> bool {
    let family = below(from, to) || below(to, from) || (parent(from).is_some() && parent(from) == parent(to));
    // Macros live at a package's root.
    let same = from == to || to.is_empty();
    let listed =
        rows.iter().filter(|(module, _)| *module == from).flat_map(|(_, may)| *may).any(|entry| {
            entry.strip_suffix("::*").map_or(*entry == to, |ancestor| to == ancestor || below(to, ancestor))
        });
    family || same || listed
}

/// Every import that its row does not list, and every module without a row.
fn check_imports(modules: &[Module], rows: &[Row]) -> Vec<String> {
    let known: BTreeSet<&str> = modules.iter().map(|module| module.name.as_str()).collect();
    let mut findings = Vec::new();
    for module in modules {
        if !rows.iter().any(|(name, _)| *name == module.name) {
            findings.push(format!("{}: no row in tests/repo/tidy.rs says what this module may import", module.shown));
            continue;
        }
        for named in module.uses.iter().filter(|named| named.package == "crate") {
            let to = resolve(&named.segments, &known);
            if !allowed(&module.name, &to, rows) {
                findings.push(format!(
                    "{}:{}: `{}` may not import `{to}`: an edge that is not in ARCHITECTURE.md. If it is right, it is a \
                     change to the table in tests/repo/tidy.rs, with the reason in the commit",
                    module.shown, named.line, module.name
                ));
            }
        }
    }
    findings
}

/// Every circle among top-level modules, each with all below it.
fn check_circles(modules: &[Module]) -> Vec<String> {
    let top = |name: &str| name.split("::").next().unwrap_or_default().to_owned();
    let known: BTreeSet<&str> = modules.iter().map(|module| module.name.as_str()).collect();
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for module in modules.iter().filter(|module| !module.name.is_empty()) {
        for named in module.uses.iter().filter(|named| named.package == "crate") {
            let to = top(&resolve(&named.segments, &known));
            if !to.is_empty() && to != top(&module.name) {
                graph.entry(top(&module.name)).or_default().insert(to);
            }
        }
    }
    let found = circle(&graph);
    found.map(|circle| format!("modules import one another in a circle: {}", circle.join(" → "))).into_iter().collect()
}

/// A circle of the graph, its first module repeated at the end.
fn circle(graph: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn visit(
        at: &str,
        graph: &BTreeMap<String, BTreeSet<String>>,
        trail: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(start) = trail.iter().position(|seen| seen == at) {
            return Some(trail[start..].iter().cloned().chain([at.to_owned()]).collect());
        }
        if !done.insert(at.to_owned()) {
            return None;
        }
        trail.push(at.to_owned());
        let found = graph.get(at).into_iter().flatten().find_map(|next| visit(next, graph, trail, done));
        trail.pop();
        found
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|start| visit(start, graph, &mut Vec::new(), &mut done))
}

/// Every use of a confined package outside its folders.
fn check_confined(path: &str, text: &str) -> Vec<String> {
    let packages: Vec<&str> = CONFINED.iter().map(|(package, ..)| *package).collect();
    named(&without_tests(&code(text)), "", &packages)
        .iter()
        .filter_map(|named| {
            let (package, folders, why) = CONFINED.iter().find(|(package, ..)| *package == named.package)?;
            let may =
                folders.iter().any(|folder| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with(['/', '.'])));
            (!may).then(|| format!("{path}:{}: names `{package}`. {why}", named.line))
        })
        .collect()
}

/// Every banned word; `production` code may not contain any, tests only those that concern tests.
fn check_banned(path: &str, text: &str, production: bool) -> Vec<String> {
    let code = if production { without_tests(&code(text)) } else { code(text) };
    let concerns_tests = |word: &str| word.starts_with("#[ignore") || word.ends_with('!');
    let mut findings = Vec::new();
    for (at, line) in code.lines().enumerate() {
        for (word, except, instead) in BANNED {
            if line.contains(word) && !except.contains(&path) && (production || concerns_tests(word)) {
                findings.push(format!("{path}:{}: `{word}` is banned: {instead}", at + 1));
            }
        }
    }
    findings
}

/// Every glob import outside tests.
fn check_globs(path: &str, text: &str) -> Vec<String> {
    without_tests(&code(text))
        .lines()
        .enumerate()
        .filter(|(_, line)| line.trim_end().ends_with("::*;"))
        .map(|(at, _)| format!("{path}:{}: a glob hides where a name comes from: import types by name", at + 1))
        .collect()
}

/// Every `cfg` of the core that makes the shipped code differ from the simulated code.
fn check_cfgs(path: &str, text: &str) -> Vec<String> {
    code(text)
        .lines()
        .enumerate()
        .filter(|(_, line)| line.contains("cfg(") || line.contains("cfg!("))
        .filter(|(_, line)| !CORE_CFGS.iter().any(|cfg| line.contains(cfg) || line.contains("cfg!(mutation")))
        .map(|(at, line)| format!("{path}:{}: `{}`. A3: the simulated code is the shipped code", at + 1, line.trim()))
        .collect()
}

fn check_length(path: &str, text: &str) -> Vec<String> {
    let lines = without_tests(&code(text)).trim_end().lines().count();
    let long = lines > LINES_MAX && !LONG.iter().any(|(file, _)| *file == path);
    long.then(|| {
        format!("{path}: {lines} lines besides tests; when a file passes {LINES_MAX}, look for two nouns in it")
    })
    .into_iter()
    .collect()
}

/// What a manifest lists under `[dependencies]`.
fn dependencies(manifest: &str) -> Vec<&str> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(|line| line.split(['=', '.']).next())
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect()
}

fn check_manifest(path: &str, manifest: &str, may: &[&str]) -> Vec<String> {
    dependencies(manifest)
        .into_iter()
        .filter(|name| !may.contains(name))
        .map(|name| {
            format!("{path}: depends on `{name}`. A1: this package is pure; a new dependency needs a design note")
        })
        .collect()
}

#[test]
fn modules_import_only_what_the_table_lists() {
    let findings: Vec<String> =
        PACKAGES.iter().flat_map(|(folder, package, rows)| check_imports(&modules(folder, package), rows)).collect();
    assert_none(&findings);
}

#[test]
fn no_module_imports_itself_in_a_circle() {
    let findings: Vec<String> =
        PACKAGES.iter().flat_map(|(folder, package, _)| check_circles(&modules(folder, package))).collect();
    assert_none(&findings);
}

#[test]
fn a_module_has_one_row() {
    let mut findings = Vec::new();
    for (folder, package, rows) in PACKAGES {
        let mut seen = BTreeSet::new();
        let modules = modules(folder, package);
        for (module, _) in rows.iter().filter(|(row, _)| !modules.iter().any(|module| module.name == *row)) {
            findings.push(format!("tests/repo/tidy.rs: `{module}` of {folder} has a row and no file"));
        }
        for (module, may) in *rows {
            if !seen.insert(*module) {
                findings.push(format!("tests/repo/tidy.rs: `{module}` of {folder} has two rows"));
            }
            for entry in *may {
                let to = entry.strip_suffix("::*").unwrap_or(entry);
                if !rows.iter().any(|(module, _)| *module == to) {
                    findings.push(format!(
                        "tests/repo/tidy.rs: `{module}` of {folder} may import `{to}`, which has no row"
                    ));
                }
            }
        }
    }
    assert_none(&findings);
}

#[test]
fn sources_keep_to_the_rules() {
    let production = ["src", "crates/core/src", "crates/model/src", "crates/sim/src"];
    let mut findings = Vec::new();
    for folder in production {
        for path in files(folder, "rs").into_iter().filter(|path| !is_tests(path)) {
            let (name, text) = (shown(&path), read(&path));
            findings.extend(check_confined(&name, &text));
            findings.extend(check_banned(&name, &text, true));
            findings.extend(check_globs(&name, &text));
            findings.extend(check_length(&name, &text));
            if folder == "crates/core/src" {
                findings.extend(check_cfgs(&name, &text));
            }
        }
    }
    for folder in production.iter().chain(&["tests", "crates/core/tests", "crates/model/tests", "crates/sim/tests"]) {
        for path in files(folder, "rs") {
            findings.extend(check_banned(&shown(&path), &read(&path), false));
        }
    }
    findings.sort();
    findings.dedup();
    assert_none(&findings);
}

#[test]
fn pure_packages_depend_on_nothing_that_does_io() {
    let pure: &[(&str, &[&str])] = &[
        ("crates/core/Cargo.toml", &["bytes", "serde", "serde_json", "thiserror", "immutable-chunkmap", "memchr"]),
        ("crates/model/Cargo.toml", &["bytes", "serde", "serde_json", "thiserror", "immutable-chunkmap"]),
        ("crates/sim/Cargo.toml", &["sidewatch-core", "sidewatch-model", "bytes", "serde", "serde_json", "thiserror"]),
    ];
    let findings: Vec<String> =
        pure.iter().flat_map(|(path, may)| check_manifest(path, &read(&root().join(path)), may)).collect();
    assert_none(&findings);
}

/// Each check is seen to fail on a sample that breaks its rule.
#[cfg(test)]
mod samples {
    use super::*;

    fn module(name: &str, text: &str) -> Module {
        Module {
            name: name.to_owned(),
            shown: format!("{name}.rs"),
            uses: named(&without_tests(&code(text)), name, &[]),
        }
    }

    #[test]
    fn an_edge_that_is_not_in_the_table_is_found() {
        let modules = [
            module("journal", "use crate::{object::Uid,\n session::Session};"),
            module("object", ""),
            module("session", ""),
        ];
        let findings = check_imports(&modules, CORE);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with("journal.rs:2: `journal` may not import `session`"), "{findings:?}");
    }

    #[test]
    fn a_module_without_a_row_is_found() {
        assert_eq!(check_imports(&[module("helpers", "")], CORE).len(), 1);
        assert_eq!(check_imports(&[module("codec::helpers", "")], CORE).len(), 1);
    }

    #[test]
    fn a_parent_does_not_stand_for_its_children() {
        let modules =
            [module("grpc", "use crate::config::raw::RawConfig;"), module("config", ""), module("config::raw", "")];
        assert_eq!(check_imports(&modules, SHELL).len(), 1);
    }

    #[test]
    fn a_family_needs_no_entry() {
        let modules = [
            module("feed", "use crate::feed::cache::Cache;"),
            module("feed::cache", "use super::Feed; use super::relist::Diff;"),
            module("feed::relist", ""),
        ];
        assert_none(&check_imports(&modules, CORE));
        assert_none(&check_circles(&modules));
    }

    #[test]
    fn circles_are_found() {
        let top = [
            module("a", "use crate::b::c::D;"),
            module("b", ""),
            module("b::c", ""),
            module("b::e", "use crate::a::F;"),
        ];
        assert_eq!(check_circles(&top), ["modules import one another in a circle: a → b → a"]);
    }

    #[test]
    fn confined_packages_are_found() {
        assert_eq!(check_confined("src/driver/replica.rs", "use kube::Client;").len(), 1);
        assert_eq!(check_confined("src/apiserver_extra.rs", "use kube::Client;").len(), 1);
        assert_none(&check_confined("src/apiserver.rs", "use kube::Client;"));
        assert_none(&check_confined("src/apiserver/list.rs", "use kube::Client;"));
        for package in ["tokio", "kube", "tonic", "prost", "tracing", "hyper"] {
            assert_eq!(check_confined("crates/core/src/feed.rs", &format!("fn f() {{ {package}::g(); }}")).len(), 1);
        }
    }

    #[test]
    fn every_banned_word_is_found() {
        for (word, ..) in BANNED {
            let text = format!("fn f() {{ {word}(g) }}");
            assert!(!check_banned("src/app.rs", &text, true).is_empty(), "{word}");
        }
        assert!(!check_banned("tests/it/watch.rs", "#[ignore = \"slow\"]", false).is_empty());
        assert_none(&check_banned(
            "src/app.rs",
            "// dbg! is banned\n#[cfg(test)]\nmod tests { fn f() { tokio::spawn(g) } }",
            true,
        ));
        assert_none(&check_banned("src/supervisor.rs", "tokio::spawn(g)", true));
    }

    #[test]
    fn globs_cfgs_long_files_and_dependencies_are_found() {
        assert_eq!(check_globs("src/app.rs", "use crate::grpc::*;").len(), 1);
        assert_none(&check_globs("src/app.rs", "#[cfg(test)]\nmod tests {\n use super::*;\n}"));
        assert_eq!(check_cfgs("crates/core/src/feed.rs", "#[cfg(feature = \"x\")]\nfn f() {}").len(), 1);
        assert_none(&check_cfgs("crates/core/src/feed.rs", "if cfg!(mutation = \"m1\") {}\n#[cfg(test)]"));
        assert_eq!(check_length("src/app.rs", &"fn f() {}\n".repeat(LINES_MAX + 1)).len(), 1);
        assert_eq!(
            check_manifest("m", "[dependencies]\nbytes = \"1\"\ntokio.workspace = true\n[lints]", &["bytes"]).len(),
            1
        );
    }
}
