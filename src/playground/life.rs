//! Objects that come, change and go: pods of a few deployments, configuration, widgets.
//!
//! One step is one write, chosen by a seeded generator, so that the same seed tells the same story.
//! Pods go the way of real ones: pending, bound, running, ready, marked for deletion, gone.

use std::time::Duration;

use serde_json::{Value, json};
use sidewatch_model::prng::Prng;
use sidewatch_model::server::ApiServer;
use sidewatch_model::status::Failure;
use sidewatch_model::time::rfc3339_seconds;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::playground::{Handle, Moment};

/// What lives, and how fast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Seed of every choice.
    pub seed: u64,
    /// Time between two writes; it must not be zero.
    pub step_every: Duration,
    /// Namespaces that the objects live in; they are created.
    pub namespaces: Vec<String>,
    /// Pods to keep about.
    pub pods_len: usize,
    /// ConfigMaps to keep about.
    pub config_maps_len: usize,
    /// Widgets to keep about.
    pub widgets_len: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 1,
            step_every: Duration::from_millis(500),
            namespaces: vec!["shop".to_owned(), "billing".to_owned()],
            pods_len: 12,
            config_maps_len: 6,
            widgets_len: 6,
        }
    }
}

/// Applications whose pods live here.
const APPLICATIONS: [&str; 4] = ["web", "cart", "ledger", "mailer"];
/// Nodes that pods are bound to.
const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// The generator with what it remembers.
#[derive(Debug, Clone)]
pub struct Life {
    options: Options,
    prng: Prng,
}

impl Life {
    /// Creates namespaces, deployments and a first population.
    pub fn begin(options: Options, server: &mut ApiServer, moment: Moment) -> Life {
        let mut life = Life { prng: Prng::new(options.seed), options };
        for namespace in life.options.namespaces.clone() {
            let object = json!({"metadata": {"name": namespace}});
            // Each creation may find the object there already: another life, or an earlier one.
            let _there = server.create(moment.now, moment.wall_micros, "namespaces", "", object);
            for application in APPLICATIONS {
                let object = deployment(application);
                let _there = server.create(moment.now, moment.wall_micros, "deployments", &namespace, object);
            }
        }
        let population = life.options.pods_len + life.options.config_maps_len + life.options.widgets_len;
        for _ in 0..population {
            life.step(server, moment);
        }
        life
    }

    /// Makes one write.
    pub fn step(&mut self, server: &mut ApiServer, moment: Moment) {
        let plural = match self.prng.below(10) {
            0..6 => "pods",
            6..8 => "configmaps",
            _ => "widgets",
        };
        // Clients may have changed or removed what the step meets; then it changes nothing.
        let _lost = self.write(server, moment, plural);
    }

    fn write(&mut self, server: &mut ApiServer, moment: Moment, plural: &str) -> Result<(), Failure> {
        let wanted = match plural {
            "pods" => self.options.pods_len,
            "configmaps" => self.options.config_maps_len,
            _ => self.options.widgets_len,
        };
        let ours: Vec<_> = server
            .states(plural)
            .into_iter()
            .filter(|state| self.options.namespaces.contains(&state.namespace))
            .collect();
        let (now, wall) = (moment.now, moment.wall_micros);
        // Around the wanted number, coming and going are equally likely.
        if ours.len() < wanted || (ours.len() < wanted + 3 && self.prng.below(5) == 0) {
            let namespace = self.choose(&self.options.namespaces.clone());
            let object = match plural {
                "pods" => self.pod(wall),
                "configmaps" => self.config_map(),
                _ => self.widget(),
            };
            server.create(now, wall, plural, &namespace, object)?;
            return Ok(());
        }
        let Some(state) = ours.get(self.prng.below(ours.len() as u64) as usize) else { return Ok(()) };
        let place = (state.namespace.as_str(), state.name.as_str());
        let leaves = ours.len() > wanted && self.prng.below(3) == 0;
        if plural == "pods" {
            return self.pod_goes_on(server, moment, &Value::Object(state.value()), place, leaves);
        }
        if leaves {
            server.delete(now, wall, plural, place)?;
        } else {
            let patch = match plural {
                "configmaps" => json!({"data": {"limit": self.prng.below(1000).to_string()}}),
                _ => json!({"spec": {"size": 1 + self.prng.below(9)}}),
            };
            server.update(now, wall, plural, place, patch)?;
        }
        Ok(())
    }

    fn pod_goes_on(
        &mut self,
        server: &mut ApiServer,
        moment: Moment,
        pod: &Value,
        place: (&str, &str),
        leaves: bool,
    ) -> Result<(), Failure> {
        let (now, wall) = (moment.now, moment.wall_micros);
        let time = rfc3339_seconds(wall);
        let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let ready = text("/status/conditions/0/status") == "True";
        if pod.pointer("/metadata/labels/leaving").is_some() {
            server.delete(now, wall, "pods", place)?;
            return Ok(());
        }
        let container = |started: bool, ready: bool, restarts: u64| {
            json!([{"name": "app", "image": "registry.example.com/app:1", "imageID": "", "ready": ready,
                "restartCount": restarts, "started": started, "state": {"running": {"startedAt": time}}}])
        };
        let conditions = |ready: &str| {
            let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": time});
            json!([
                condition("Ready", ready),
                condition("PodScheduled", "True"),
                condition("Initialized", "True"),
                condition("ContainersReady", ready)
            ])
        };
        let patch = if leaves {
            json!({"metadata": {"labels": {"leaving": "true"}}, "status": {"conditions": conditions("False")}})
        } else if text("/spec/nodeName").is_empty() {
            json!({"spec": {"nodeName": NODES[self.prng.below(3) as usize]}, "status": {"conditions": conditions("False")}})
        } else if text("/status/phase") == "Pending" {
            let address = format!("10.42.{}.{}", self.prng.below(4), 1 + self.prng.below(250));
            json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "startTime": time,
                "hostIP": "192.0.2.10", "containerStatuses": container(true, false, 0), "conditions": conditions("False")}})
        } else if ready {
            let restarts = self.prng.below(20);
            json!({"status": {"containerStatuses": container(true, false, restarts), "conditions": conditions("False")}})
        } else {
            json!({"status": {"containerStatuses": container(true, true, 0), "conditions": conditions("True")}})
        };
        server.update(now, wall, "pods", place, patch)?;
        Ok(())
    }

    fn choose(&mut self, names: &[String]) -> String {
        let index = self.prng.below(names.len() as u64) as usize;
        names.get(index).cloned().unwrap_or_else(|| "default".to_owned())
    }

    fn pod(&mut self, wall_micros: i64) -> Value {
        let application = APPLICATIONS[self.prng.below(APPLICATIONS.len() as u64) as usize];
        let set = format!("{application}-7d9c6b5f48");
        let probe = |path: &str| {
            json!({"httpGet": {"path": path, "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
                "successThreshold": 1, "failureThreshold": 3})
        };
        let secret = json!({"name": "api-access", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}});
        let container = json!({
            "name": "app", "image": "registry.example.com/app:1", "imagePullPolicy": "IfNotPresent",
            "args": ["--listen=:8080", "--log=json"],
            "env": [{"name": "APPLICATION", "value": application}, {"name": "STARTED", "value": rfc3339_seconds(wall_micros)}],
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
            "livenessProbe": probe("/livez"), "readinessProbe": probe("/readyz"),
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "volumeMounts": [{"name": "api-access", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
        });
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set,
            "uid": "00000000-0000-4000-8000-000000000001", "controller": true, "blockOwnerDeletion": true}]);
        json!({
            "metadata": {
                "generateName": format!("{set}-"), "ownerReferences": owner,
                "labels": {"app": application, "pod-template-hash": "7d9c6b5f48", "tier": if application == "web" { "front" } else { "back" }},
            },
            "spec": {
                "containers": [container], "volumes": [secret], "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
                "serviceAccountName": application, "securityContext": {}, "enableServiceLinks": true,
                "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            },
            "status": {"phase": "Pending", "qosClass": "Burstable"},
        })
    }

    fn config_map(&mut self) -> Value {
        let name = format!("settings-{}", self.prng.suffix(5));
        json!({"metadata": {"name": name, "labels": {"app": "settings"}},
            "data": {"limit": self.prng.below(1000).to_string(), "mode": "normal"}})
    }

    fn widget(&mut self) -> Value {
        let name = format!("widget-{}", self.prng.suffix(5));
        let color = ["red", "green", "blue"][self.prng.below(3) as usize];
        json!({"metadata": {"name": name, "labels": {"color": color}}, "spec": {"size": 1 + self.prng.below(9), "color": color}})
    }
}

fn deployment(application: &str) -> Value {
    let labels = json!({"app": application});
    json!({"metadata": {"name": application, "labels": labels}, "spec": {
        "replicas": 2, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "registry.example.com/app:1"}]}}}})
}

/// Makes a step at every tick until told to stop.
pub async fn run(mut life: Life, handle: Handle, mut stop: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(life.options.step_every.max(Duration::from_micros(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // Both are cancel-safe.
            _ = ticks.tick() => handle.change(|server, moment| life.step(server, moment)),
            _ = stop.wait_for(|stopping| *stopping) => return,
        }
    }
}
