//! Promises of the configuration: what is accepted, what wins, and what each refusal says.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::{Args, Command, FromArgMatches as _};

use super::*;

/// A file that is gone when the test ends.
struct TempFile(PathBuf);

impl TempFile {
    fn new(text: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sidewatch-config-{}-{number}.yaml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn flags(arguments: &str) -> Flags {
    let command = Flags::augment_args(Command::new("run").no_binary_name(true));
    Flags::from_arg_matches(&command.get_matches_from(arguments.split_whitespace())).unwrap()
}

fn load(arguments: &str) -> Result<Config, String> {
    load_in(arguments, &[])
}

fn load_in(arguments: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Config::load_with(&flags(arguments), &environment).map_err(|error| format!("{error:#}"))
}

/// Errors name the file as `FILE`.
fn load_both(yaml: &str, arguments: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
    let file = TempFile::new(yaml);
    let path = file.0.display().to_string();
    load_in(&format!("--config {path} {arguments}"), environment).map_err(|error| error.replace(&path, "FILE"))
}

pub(super) fn load_file(yaml: &str) -> Result<Config, String> {
    load_both(yaml, "", &[])
}

fn names(config: &Config) -> Vec<String> {
    config.feeds("own").unwrap().iter().map(|feed| feed.spec.name.to_string()).collect()
}

#[test]
fn flags_alone_are_a_complete_invocation() {
    let config = load("--watch pods --watch widgets.example.com --namespace shop --lease shop-events").unwrap();
    assert_eq!(names(&config), ["pods", "widgets.example.com"]);
    let feeds = config.feeds("own").unwrap();
    assert_eq!(feeds[0].spec.namespace.as_deref(), Some("shop"));
    assert_eq!(&*config.subscriptions[0], "app");
    assert_eq!(config.cluster, Cluster::Inferred);
    let Election::On(lease) = &config.election else { panic!("election is on by default") };
    assert_eq!(
        (lease.duration, lease.renew_deadline, lease.retry_period),
        (limits::LEASE_DURATION_DEFAULT, limits::RENEW_DEADLINE_DEFAULT, limits::RETRY_PERIOD_DEFAULT)
    );
    assert_eq!(config.heartbeat_interval, limits::HEARTBEAT_INTERVAL_DEFAULT);
    assert_eq!(config.journal_bytes_max, limits::JOURNAL_BYTES_DEFAULT);
    assert_eq!(config.unacked_events_max, limits::UNACKED_EVENTS_MAX_DEFAULT);
}

#[test]
fn a_watch_over_several_namespaces_is_several_feeds_of_one_name() {
    let config = load("--watch pods --namespace shop,billing --namespace x --lease l").unwrap();
    assert_eq!(names(&config), ["pods@shop", "pods@billing", "pods@x"]);
    assert!(config.feeds("own").unwrap().iter().all(|feed| &*feed.watch == "pods"));
}

#[test]
fn without_a_namespace_the_own_one_stands_in() {
    let config = load("--watch pods --lease l").unwrap();
    let feeds = config.feeds("home").unwrap();
    assert_eq!(feeds[0].spec.namespace.as_deref(), Some("home"));
    assert_eq!(feeds[0].namespace_choice, NamespaceChoice::Default);
    let config = load("--watch pods --all-namespaces --lease l").unwrap();
    assert_eq!(config.feeds("home").unwrap()[0].spec.namespace, None);
}

#[test]
fn flag_wins_over_variable_over_file() {
    let yaml = "watch: [pods]\nlease:\n  name: from-file\n  duration: 30s\nlog: {level: warn}\n";
    let environment =
        [("SIDEWATCH_LEASE", "from-variable"), ("SIDEWATCH_LOG_LEVEL", "debug"), ("SIDEWATCH_JOURNAL_LIMIT", "")];
    let config = load_both(yaml, "--log-level trace", &environment).unwrap();
    let Election::On(lease) = &config.election else { panic!("election is on by default") };
    assert_eq!((&*lease.name, lease.duration), ("from-variable", Duration::from_secs(30)));
    assert_eq!(&*config.log.filter, "trace");
    let config = load_both("watch: [pods]\nallNamespaces: true\nelection: off\n", "--namespace shop", &[]).unwrap();
    assert_eq!(config.watches[0].scope, Scope::Named(vec!["shop".into()]), "the flag replaces the file's choice");
    let config = load_in("--watch pods --lease l --server http://127.0.0.1:1/", &[("KUBECONFIG", "/k")]).unwrap();
    assert_eq!(config.cluster, Cluster::Server { url: "http://127.0.0.1:1".into() });
}

#[test]
fn the_pod_is_read_from_the_downward_api() {
    let environment = [("POD_NAME", "web-0"), ("POD_UID", "a-b"), ("POD_NAMESPACE", "shop")];
    let config = load_in("--watch pods --lease l", &environment).unwrap();
    assert_eq!(config.pod, Pod { name: "web-0".into(), uid: Some("a-b".into()), namespace: Some("shop".into()) });
    assert!(!load("--watch pods --lease l").unwrap().pod.name.is_empty());
}

#[test]
fn the_effective_configuration_gives_itself_again() {
    for arguments in [
        "--watch pods --watch nodes --lease l --pod-name p",
        "--watch pods --election off --pod-name p --all-namespaces --label-selector app=a,b!=c --log-format json",
        "--watch pods --namespace a,b --lease l --lease-namespace n --pod-name p --pod-uid u --pod-namespace n \
         --kubeconfig /a:/b --context c --listen unix:///a.sock?mode=0600,[::1]:1 --http-listen [::]:1 \
         --managed-fields keep --field-selector a.b!=c --subscription x,y --drain-timeout 1m1s --journal-limit 9000000",
        "--watch pods --lease l --pod-name p --server http://127.0.0.1:1",
    ] {
        let config = load(arguments).unwrap();
        let yaml = config.to_yaml();
        assert_eq!(load_file(&yaml).unwrap(), config, "{yaml}");
    }
}

/// Runs and compares the whole message: it is what people read at start.
fn refuse(result: Result<Config, String>, expected: &str) {
    assert_eq!(result.expect_err("must be refused"), expected);
}

#[test]
fn refusals_name_place_key_value_and_rule() {
    let base = "watch: [pods]\nlease:\n  name: l\n";
    refuse(
        load_file(&format!("{base}  renewDeadline: 20s\n")),
        "FILE:4: lease.renewDeadline = 20s: must be at most 2/3 of lease.duration (15s): 10s",
    );
    refuse(
        load("--watch pods --lease l --lease-duration 6s"),
        "--lease-duration: lease.duration = 6s: must be at least 1.5 times lease.renewDeadline (10s): 15s",
    );
    refuse(
        load_in("--watch pods --lease l", &[("SIDEWATCH_LEASE_RETRY_PERIOD", "5s")]),
        "SIDEWATCH_LEASE_RETRY_PERIOD: lease.retryPeriod = 5s: must be at most 2/5 of lease.renewDeadline (10s): 4s",
    );
    refuse(
        load("--watch pods"),
        "lease.name: needed while election is on: the same name in every replica of the application, for example \
         --lease shop-events; or --election off",
    );
    refuse(load("--lease l"), "watch: nothing is watched: name a resource, for example --watch pods");
}

#[test]
fn unknown_keys_are_refused_with_the_nearest() {
    for (yaml, expected) in [
        ("watch: [pods]\nlisten_on: [x]\n", "FILE:2: listen_on: there is no such key here; did you mean listen?"),
        (
            "lease:\n  renewDeadlne: 1s\n",
            "FILE:2: renewDeadlne: there is no such key here; did you mean renewDeadline?",
        ),
        ("renewDeadline: 1s\n", "FILE:1: renewDeadline: there is no such key here; did you mean lease.renewDeadline?"),
        ("log:\n  colour: red\n", "FILE:2: colour: there is no such key here; these may stand: level, format"),
        (
            "feeds:\n  - resource: pods\n    selector: a=b\n",
            "FILE:3: selector: there is no such key here; these may stand: resource, name, namespaces, allNamespaces, \
             labelSelector, fieldSelector, managedFields",
        ),
    ] {
        refuse(load_file(yaml), expected);
    }
}

#[test]
fn misspelt_variables_are_refused_and_those_of_services_are_not() {
    refuse(
        load_in("--watch pods --lease l", &[("SIDEWATCH_LEASE_DURATON", "15s")]),
        "SIDEWATCH_LEASE_DURATON: there is no such variable; did you mean SIDEWATCH_LEASE_DURATION?",
    );
    refuse(
        load_in("--watch pods --lease l", &[("SIDEWATCH_FOO", "1")]),
        "SIDEWATCH_FOO: there is no such variable; `sidewatch run --help` names them all",
    );
    let of_service = [
        ("SIDEWATCH_SERVICE_HOST", "10.0.0.1"),
        ("SIDEWATCH_PORT", "tcp://10.0.0.1:9151"),
        ("SIDEWATCH_METRICS_PORT_9151_TCP_ADDR", "10.0.0.1"),
        ("SIDEWATCH_SERVICE_PORT_HTTP", "9151"),
    ];
    assert!(load_in("--watch pods --lease l", &of_service).is_ok());
}

#[test]
fn broken_files_are_refused_with_their_line() {
    for yaml in ["watch: [pods\nlease: {}\n", "watch:\n\t- pods\n", "- a\n", "watch: {a: b}\n", "lease: [a]\n"] {
        let error = load_file(yaml).expect_err(yaml);
        assert!(error.starts_with("FILE:") && error.lines().count() == 1, "{yaml:?}: {error}");
    }
    for (yaml, expected) in [
        ("watch: pods\n", "FILE:1: must be a list, such as [pods] or [app, audit]"),
        ("lease: shop-events\n", "FILE:1: must be keys of its own, such as lease: {name: shop-events}"),
        ("log:\n  level: [info]\n", "FILE:2: must be one value, not a list or keys"),
        ("lease: {name: a, name: b}\n", "FILE:1: a key stands twice here: leave one of them out"),
    ] {
        refuse(load_file(yaml), expected);
    }
    let error = load("--config /nonexistent").unwrap_err();
    assert!(error.starts_with("--config /nonexistent: the file must exist"), "{error}");
    assert!(load_both("", "--watch pods --lease l", &[]).is_ok(), "an empty file says nothing");
    assert!(load_both("# nothing\n", "--watch pods --lease l", &[]).is_ok(), "comments say nothing");
}

/// Each bad value, and a piece of what must be said about it.
#[test]
fn bad_values_are_refused() {
    let seventeen = (0..17).map(|number| format!("s{number}")).collect::<Vec<_>>().join(",");
    let long = "a".repeat(64);
    let namespaces = (0..257).map(|number| format!("n{number}")).collect::<Vec<_>>().join(",");
    for (arguments, said) in [
        (&*format!("--watch pods --namespace {namespaces}"), "makes more than 256 feeds"),
        ("--watch Pods", "--watch: watch = Pods: resources are written in lower case: pods"),
        ("--watch pods/log", "as kubectl takes it"),
        ("--watch pods,pods", "watched twice"),
        ("--watch pods --namespace Shop", "--namespace: namespaces = Shop: a namespace has"),
        ("--watch pods --namespace shop,shop", "name each namespace once"),
        ("--watch pods --namespace shop --all-namespaces", "allNamespaces = true: excludes namespaces"),
        ("--watch pods --all-namespaces=maybe", "must be true or false"),
        ("--watch pods --label-selector a=b=c", "is not a label selector: at character 4"),
        ("--watch pods --field-selector a", "is not a field selector: at character 1"),
        ("--watch pods --managed-fields some", "must be drop or keep"),
        ("--watch pods --subscription App", "a subscription's name has"),
        (&format!("--watch pods --subscription {long}"), "1 to 63"),
        (&format!("--watch pods --subscription {seventeen}"), "subscriptions = s16: is one too many: at most 16"),
        ("--watch pods --subscription a,a", "name each subscription once"),
        ("--watch pods --max-unacked-events 0", "from 1 to 1000000"),
        ("--watch pods --heartbeat-interval 10", "a whole number with a unit"),
        ("--watch pods --heartbeat-interval 500ms", "must be from 1s to 5m"),
        ("--watch pods --journal-limit 1Mi", "must be from 8Mi to 64Gi"),
        ("--watch pods --journal-limit lots", "a whole number of bytes"),
        ("--watch pods --election maybe", "must be on or off"),
        ("--watch pods --lease My_Lease", "a DNS subdomain"),
        ("--watch pods --lease-duration 15500ms", "whole seconds"),
        ("--watch pods --lease-duration 2s", "must be from 3s to 10m"),
        ("--watch pods --lease-retry-period 10ms", "must be at least 250ms"),
        ("--watch pods --listen 0.0.0.0:50151", "must be a loopback address"),
        ("--watch pods --listen [::]:50151", "must be a loopback address"),
        ("--watch pods --listen 127.0.0.1:1,127.0.0.1:1", "name each address once"),
        ("--watch pods --listen unix:///a$b", "letters, digits and . _ / -"),
        ("--watch pods --http-listen 9151", "must be IP:PORT"),
        ("--watch pods --server ftp://a", "must be http:// or https://"),
        ("--watch pods --server http://a --kubeconfig /k", "excludes server"),
        ("--watch pods --drain-timeout 1h", "must be from 0s to 10m"),
        ("--watch pods --log-level loud", "must be error, warn"),
        ("--watch pods --log-format xml", "must be text or json"),
        ("--watch pods --pod-uid a/b", "uid of the pod"),
    ] {
        let lease = if arguments.contains("--lease ") { "" } else { "--lease l" };
        let error = load(&format!("{arguments} {lease}")).expect_err(arguments);
        assert!(error.contains(said), "{arguments}: {error}");
        assert_eq!(error.lines().count(), 1, "{arguments}: one fault, one line: {error}");
    }
}

#[test]
fn credentials_in_a_url_are_not_repeated() {
    let error = load("--watch pods --lease l --server http://me:secret@host").unwrap_err();
    assert!(error.contains("must not hold credentials") && !error.contains("secret"), "{error}");
}

#[test]
fn every_fault_is_told_at_once() {
    let error =
        load("--watch Pods --listen 0.0.0.0:1 --lease-renew-deadline 20s --log-format xml --lease l").unwrap_err();
    assert_eq!(error.lines().count(), 4, "{error}");
}

#[test]
fn feeds_of_the_file_have_settings_of_their_own() {
    let yaml = "
election: off
watch: [pods]
namespaces: [shop]
labelSelector: app=web
managedFields: keep
feeds:
  - resource: pods
    name: failed
    allNamespaces: true
    fieldSelector: status.phase=Failed
  - resource: configmaps
    managedFields: drop
";
    let config = load_file(yaml).unwrap();
    let [pods, failed, maps] = &config.watches[..] else { panic!("three watches: {config:?}") };
    assert_eq!((&*pods.label_selector, pods.managed_fields), ("app=web", ManagedFields::Keep));
    assert_eq!((&*failed.name, &failed.scope, &*failed.label_selector), ("failed", &Scope::All, ""));
    assert_eq!((&maps.scope, maps.managed_fields), (&Scope::Named(vec!["shop".into()]), ManagedFields::Drop));
}

#[test]
fn faults_of_feeds_have_their_line() {
    for (feeds, expected) in [
        ("  - name: a\n", "FILE:3: feeds[0].resource: needed: what to list and watch, for example resource: pods"),
        (
            "  - resource: pods\n  - resource: pods\n    labelSelector: a=b\n",
            "FILE:4: feeds[1].resource = pods: is already the name of a feed (at FILE:3): give one of them another name in \
             feeds",
        ),
        (
            "  - resource: pods\n  - resource: pods\n    name: other\n",
            "FILE:5: feeds[1].name = other: is watched twice with the same namespace and selectors (first at FILE:3): leave \
             one of them out",
        ),
        (
            "  - resource: pods\n    namespaces: [a]\n    allNamespaces: true\n",
            "FILE:5: feeds[0].allNamespaces = true: excludes namespaces: give one of the two",
        ),
        (
            "  - resource: pods\n    name: a@b\n",
            "FILE:4: feeds[0].name = a@b: the name of a feed has 1 to 63 lower case letters, digits, dashes and dots, and \
             begins and ends with a letter or digit",
        ),
    ] {
        refuse(load_file(&format!("election: off\nfeeds:\n{feeds}")), expected);
    }
}

#[test]
fn the_own_namespace_may_make_two_feeds_the_same() {
    let yaml = "
election: off
feeds:
  - resource: pods
  - resource: pods
    name: shop-pods
    namespaces: [shop]
";
    let config = load_file(yaml).unwrap();
    assert!(config.feeds("other").is_ok());
    let error = config.feeds("shop").unwrap_err().to_string();
    assert!(error.contains("feeds pods and shop-pods are the same"), "{error}");
    assert!(load_both(yaml, "--pod-namespace shop", &[]).is_err(), "known at start where the pod's namespace is");
}
