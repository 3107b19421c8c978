//! deploy/example.yaml against a real API server: every field is known, and its rights are enough.

use std::time::Duration;

use serde_json::Value;

use crate::support::cluster::Cluster;
use crate::support::consumer::{Consumer, Shared, durable};
use crate::support::sidecar::{Options, Sidecar};

fn objects() -> Vec<Value> {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/example.yaml")).expect("the manifest");
    serde_saphyr::from_multiple(&text).expect("YAML")
}

/// The collection of an object of the manifest.
fn collection(object: &Value) -> String {
    let plural = object["kind"].as_str().expect("a kind").to_lowercase() + "s";
    let version = object["apiVersion"].as_str().expect("a version");
    let base = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    format!("{base}/namespaces/{}/{plural}", object["metadata"]["namespace"].as_str().expect("a namespace"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_knows_every_field() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    for object in objects() {
        admin.create(&format!("{}?fieldValidation=Strict", collection(&object)), object).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn its_arguments_are_understood_and_its_rights_are_enough() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let (mut uid, mut arguments) = (String::new(), Vec::new());
    for object in objects() {
        let made = admin.create(&collection(&object), object).await;
        match made["kind"].as_str() {
            Some("ServiceAccount") => uid = made["metadata"]["uid"].as_str().expect("a uid").to_owned(),
            Some("Deployment") => {
                let sidecar = &made["spec"]["template"]["spec"]["initContainers"][0];
                let list = sidecar["args"].as_array().expect("arguments").iter();
                arguments = list.map(|argument| argument.as_str().expect("text").to_owned()).collect();
            }
            _ => {}
        }
    }
    let token = cluster.folder().join("token");
    std::fs::write(&token, cluster.token("default", "app", &uid, Duration::from_secs(3600))).expect("can be written");
    let kubeconfig = cluster.kubeconfig_with_token("as-app", &token);
    // What the pod would give, and nothing of the machine's own.
    let socket = cluster.folder().join("s.sock").display().to_string();
    for argument in &mut arguments {
        *argument = argument
            .replace("$(POD_NAME)", "app-0")
            .replace("$(POD_UID)", "0c1d8a1e-0000-4000-8000-000000000000")
            .replace("127.0.0.1:50151", "127.0.0.1:0")
            .replace("[::]:9151", "127.0.0.1:0")
            .replace("/run/sidewatch/sidewatch.sock", &socket);
    }
    arguments.extend(["--kubeconfig".to_owned(), kubeconfig.display().to_string()]);
    admin.config_map("default", "one", "1").await;
    let sidecar = Sidecar::start_with(&cluster, Options::new("app-0", &[], &[]), &arguments).await;
    let store = Shared::default();
    let _app = Consumer::start("app-0", sidecar.grpc(), durable(), &store);
    store
        .until("a leader and its snapshot", Duration::from_secs(60), |store| {
            store.epoch > 0 && store.names("configmaps").contains(&("default".to_owned(), "one".to_owned()))
        })
        .await;
    sidecar.ready().await;
    assert!(std::path::Path::new(&socket).exists(), "the socket");
}
