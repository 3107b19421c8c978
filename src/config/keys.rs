//! The one table of configuration keys.
//!
//! Flags, environment variables, `--help`, `docs/configuration.md` and the defaults all come from here; what a value
//! means is decided in [`crate::config`].

/// How often a key may be given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// One value.
    One,
    /// A list: the flag repeats or takes commas, the variable takes commas.
    List,
    /// `true` or `false`; the bare flag means `true`.
    Switch,
    /// Only in a file.
    FileOnly,
}

/// One key of the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Path in the file: `lease.duration`.
    pub name: &'static str,
    /// Flag without its dashes, empty for none: `lease-duration`.
    pub flag: &'static str,
    /// Environment variable, empty for none: `SIDEWATCH_LEASE_DURATION`.
    pub env: &'static str,
    /// How often it may be given.
    pub shape: Shape,
    /// Value when nothing is given, as a user would write it; empty for none.
    pub default: &'static str,
    /// What stands in its place in usage lines: unit or form of the value.
    pub unit: &'static str,
    /// What is allowed.
    pub bound: &'static str,
    /// What it does, in one sentence.
    pub sentence: &'static str,
}

impl Key {
    /// The row of this name.
    ///
    /// # Panics
    /// When no key has the name: names are literals of this program.
    pub fn named(name: &str) -> &'static Key {
        KEYS.iter().find(|key| key.name == name).unwrap_or_else(|| panic!("{name} is not a row of the table of keys"))
    }
}

/// Every key, in the order of the documentation.
pub const KEYS: &[Key] = &[
    Key {
        name: "watch",
        flag: "watch",
        env: "SIDEWATCH_WATCH",
        shape: Shape::List,
        default: "",
        unit: "RESOURCE",
        bound: "Names as kubectl takes them: pods, deploy, widgets.example.com, widgets.v1.example.com.",
        sentence: "Resources to list and watch, one feed each.",
    },
    Key {
        name: "namespaces",
        flag: "namespace",
        env: "SIDEWATCH_NAMESPACE",
        shape: Shape::List,
        default: "",
        unit: "NAMESPACE",
        bound: "DNS labels; not together with allNamespaces.",
        sentence: "Namespaces of every feed that names none itself; without any, the namespace of the pod or of the kubeconfig's context.",
    },
    Key {
        name: "allNamespaces",
        flag: "all-namespaces",
        env: "SIDEWATCH_ALL_NAMESPACES",
        shape: Shape::Switch,
        default: "false",
        unit: "BOOL",
        bound: "true or false.",
        sentence: "Watch all namespaces in every feed that names none itself.",
    },
    Key {
        name: "labelSelector",
        flag: "label-selector",
        env: "SIDEWATCH_LABEL_SELECTOR",
        shape: Shape::One,
        default: "",
        unit: "SELECTOR",
        bound: "A Kubernetes label selector: app=web,tier in (front,back),!legacy.",
        sentence: "Label selector, evaluated by the API server, of every feed given by watch.",
    },
    Key {
        name: "fieldSelector",
        flag: "field-selector",
        env: "SIDEWATCH_FIELD_SELECTOR",
        shape: Shape::One,
        default: "",
        unit: "SELECTOR",
        bound: "A Kubernetes field selector: spec.nodeName=n1,status.phase!=Failed.",
        sentence: "Field selector, evaluated by the API server, of every feed given by watch.",
    },
    Key {
        name: "managedFields",
        flag: "managed-fields",
        env: "SIDEWATCH_MANAGED_FIELDS",
        shape: Shape::One,
        default: "drop",
        unit: "drop|keep",
        bound: "drop or keep.",
        sentence: "What becomes of metadata.managedFields, often half of an object, in every feed given by watch.",
    },
    Key {
        name: "feeds",
        flag: "",
        env: "",
        shape: Shape::FileOnly,
        default: "",
        unit: "list",
        bound: "See below.",
        sentence: "Feeds with settings of their own, besides those given by watch.",
    },
    Key {
        name: "subscriptions",
        flag: "subscription",
        env: "SIDEWATCH_SUBSCRIPTION",
        shape: Shape::List,
        default: "app",
        unit: "NAME",
        bound: "1 to 16 different names of 1 to 63 lower case letters, digits and dashes.",
        sentence: "Durable subscriptions, whose positions are kept in the Lease.",
    },
    Key {
        name: "maxUnackedEvents",
        flag: "max-unacked-events",
        env: "SIDEWATCH_MAX_UNACKED_EVENTS",
        shape: Shape::One,
        default: "1000",
        unit: "EVENTS",
        bound: "1 to 1000000.",
        sentence: "Events that a durable subscription may hold unacked before delivery to it pauses, unless the client asks otherwise.",
    },
    Key {
        name: "heartbeatInterval",
        flag: "heartbeat-interval",
        env: "SIDEWATCH_HEARTBEAT_INTERVAL",
        shape: Shape::One,
        default: "10s",
        unit: "DURATION",
        bound: "1s to 5m.",
        sentence: "Interval of heartbeats on a quiet stream, unless the client asks otherwise.",
    },
    Key {
        name: "journal.limit",
        flag: "journal-limit",
        env: "SIDEWATCH_JOURNAL_LIMIT",
        shape: Shape::One,
        default: "64Mi",
        unit: "BYTES",
        bound: "8Mi to 64Gi.",
        sentence: "Memory for events that are not acked yet, over all feeds; beyond it events are coalesced and a gap is announced.",
    },
    Key {
        name: "election",
        flag: "election",
        env: "SIDEWATCH_ELECTION",
        shape: Shape::One,
        default: "on",
        unit: "on|off",
        bound: "on or off.",
        sentence: "With on, only the replica that holds the Lease delivers events; with off, every replica does.",
    },
    Key {
        name: "lease.name",
        flag: "lease",
        env: "SIDEWATCH_LEASE",
        shape: Shape::One,
        default: "",
        unit: "NAME",
        bound: "A DNS subdomain; needed while election is on.",
        sentence: "Lease that the replicas of one application share: its holder leads, its annotations keep the positions.",
    },
    Key {
        name: "lease.namespace",
        flag: "lease-namespace",
        env: "SIDEWATCH_LEASE_NAMESPACE",
        shape: Shape::One,
        default: "",
        unit: "NAMESPACE",
        bound: "A DNS label.",
        sentence: "Namespace of the Lease; without one, the namespace of the pod or of the kubeconfig's context.",
    },
    Key {
        name: "lease.duration",
        flag: "lease-duration",
        env: "SIDEWATCH_LEASE_DURATION",
        shape: Shape::One,
        default: "15s",
        unit: "DURATION",
        bound: "3s to 10m, whole seconds, at least 1.5 times lease.renewDeadline.",
        sentence: "How long the others wait after the last renewal they saw before they take over.",
    },
    Key {
        name: "lease.renewDeadline",
        flag: "lease-renew-deadline",
        env: "SIDEWATCH_LEASE_RENEW_DEADLINE",
        shape: Shape::One,
        default: "10s",
        unit: "DURATION",
        bound: "At most 2/3 of lease.duration and at least 2.5 times lease.retryPeriod.",
        sentence: "How long after sending its last successful renewal the leader may deliver events.",
    },
    Key {
        name: "lease.retryPeriod",
        flag: "lease-retry-period",
        env: "SIDEWATCH_LEASE_RETRY_PERIOD",
        shape: Shape::One,
        default: "2s",
        unit: "DURATION",
        bound: "At least 250ms and at most 2/5 of lease.renewDeadline.",
        sentence: "Time between two renewals.",
    },
    Key {
        name: "pod.name",
        flag: "pod-name",
        env: "POD_NAME",
        shape: Shape::One,
        default: "",
        unit: "NAME",
        bound: "A DNS subdomain.",
        sentence: "First part of the identity in the Lease; without one, the host name, which in a pod is its name.",
    },
    Key {
        name: "pod.uid",
        flag: "pod-uid",
        env: "POD_UID",
        shape: Shape::One,
        default: "",
        unit: "UID",
        bound: "1 to 63 letters, digits and dashes.",
        sentence: "Uid of the pod: a part of the name under which this process holds the Lease, so that two pods of one name are two holders.",
    },
    Key {
        name: "pod.namespace",
        flag: "pod-namespace",
        env: "POD_NAMESPACE",
        shape: Shape::One,
        default: "",
        unit: "NAMESPACE",
        bound: "A DNS label.",
        sentence: "The pod's own namespace; without it, that of the service account or of the kubeconfig's context.",
    },
    Key {
        name: "kubeconfig",
        flag: "kubeconfig",
        env: "KUBECONFIG",
        shape: Shape::One,
        default: "",
        unit: "FILE",
        bound: "One path, or several joined by colons; not together with server.",
        sentence: "How to reach the API server; without it, the pod's service account, and outside of a pod ~/.kube/config.",
    },
    Key {
        name: "context",
        flag: "context",
        env: "SIDEWATCH_CONTEXT",
        shape: Shape::One,
        default: "",
        unit: "NAME",
        bound: "A context of the kubeconfig; not together with server.",
        sentence: "Context of the kubeconfig to use; without it, the current one.",
    },
    Key {
        name: "server",
        flag: "server",
        env: "SIDEWATCH_SERVER",
        shape: Shape::One,
        default: "",
        unit: "URL",
        bound: "http:// or https:// and a host, without credentials.",
        sentence: "API server to talk to without credentials: the playground, or kubectl proxy.",
    },
    Key {
        name: "listen",
        flag: "listen",
        env: "SIDEWATCH_LISTEN",
        shape: Shape::List,
        default: "127.0.0.1:50151",
        unit: "ADDRESS",
        bound: "IP:PORT of a loopback address, or unix:///PATH?mode=0660.",
        sentence: "Where the application finds the gRPC services.",
    },
    Key {
        name: "http.listen",
        flag: "http-listen",
        env: "SIDEWATCH_HTTP_LISTEN",
        shape: Shape::One,
        default: "[::]:9151",
        unit: "ADDRESS",
        bound: "IP:PORT.",
        sentence: "Where probes and metrics are served; [::] falls back to 0.0.0.0 where there is no IPv6.",
    },
    Key {
        name: "drainTimeout",
        flag: "drain-timeout",
        env: "SIDEWATCH_DRAIN_TIMEOUT",
        shape: Shape::One,
        default: "10s",
        unit: "DURATION",
        bound: "0s to 10m.",
        sentence: "How long after SIGTERM attached clients may still ack before the Lease is released.",
    },
    Key {
        name: "log.level",
        flag: "log-level",
        env: "SIDEWATCH_LOG_LEVEL",
        shape: Shape::One,
        default: "info",
        unit: "FILTER",
        bound: "error, warn, info, debug, trace or off, or directives such as info,sidewatch::driver=debug.",
        sentence: "What is logged to standard error.",
    },
    Key {
        name: "log.format",
        flag: "log-format",
        env: "SIDEWATCH_LOG_FORMAT",
        shape: Shape::One,
        default: "text",
        unit: "text|json",
        bound: "text or json.",
        sentence: "Form of a log line.",
    },
];

/// Keys of one entry of `feeds`; they exist only in a file.
pub const FEED_KEYS: &[Key] = &[
    feed_key("resource", "", "As for watch; needed.", "What to list and watch."),
    feed_key(
        "name",
        "the resource",
        "1 to 63 lower case letters, digits, dashes and dots.",
        "Name that clients select the feed by.",
    ),
    feed_key(
        "namespaces",
        "as for watch",
        "DNS labels; not together with allNamespaces.",
        "Namespaces of this feed; with several, NAME@NAMESPACE is the name of each part.",
    ),
    feed_key("allNamespaces", "as for watch", "true or false.", "Watch all namespaces."),
    feed_key("labelSelector", "none", "A Kubernetes label selector.", "Label selector of this feed."),
    feed_key("fieldSelector", "none", "A Kubernetes field selector.", "Field selector of this feed."),
    feed_key("managedFields", "as for watch", "drop or keep.", "What becomes of metadata.managedFields."),
];

const fn feed_key(name: &'static str, default: &'static str, bound: &'static str, sentence: &'static str) -> Key {
    Key { name, flag: "", env: "", shape: Shape::FileOnly, default, unit: "", bound, sentence }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_flags_and_variables_are_unique_and_variables_follow_the_flag() {
        let flagged: Vec<&Key> = KEYS.iter().filter(|key| key.shape != Shape::FileOnly).collect();
        assert_eq!(KEYS.iter().map(|key| key.name).collect::<BTreeSet<_>>().len(), KEYS.len());
        assert_eq!(flagged.iter().map(|key| key.flag).collect::<BTreeSet<_>>().len(), flagged.len());
        for key in flagged {
            let plain = key.flag.replace('-', "_").to_uppercase();
            let borrowed = matches!(key.env, "POD_NAME" | "POD_UID" | "POD_NAMESPACE" | "KUBECONFIG");
            assert_eq!(key.env, if borrowed { plain } else { format!("SIDEWATCH_{plain}") }, "{}", key.name);
            assert!(key.sentence.ends_with('.') && key.bound.ends_with('.'), "{}", key.name);
        }
    }
}
