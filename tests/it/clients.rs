//! Stock clients: grpcurl by reflection, and the Python consumer with generated stubs.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::cluster::Cluster;
use crate::support::process::Process;
use crate::support::sidecar::{Options, Sidecar};
use crate::support::{check, wait_for};

const SOON: Duration = Duration::from_secs(60);

/// The tool as `make it` found it, or as its script in tests/tools finds it (and builds what is missing).
fn tool(variable: &str, script: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        let script = format!("{}/tests/tools/{script}", env!("CARGO_MANIFEST_DIR"));
        let output = Command::new(&script).output().unwrap_or_else(|error| panic!("{script}: {error}"));
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}

/// Runs grpcurl; `Err` with what it printed where it fails.
fn grpcurl(arguments: &[&str]) -> Result<String, String> {
    let program = tool("GRPCURL", "grpcurl.sh");
    let output = Command::new(&program).args(["-plaintext", "-max-time", "60"]).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(out.into_owned()) } else { Err(format!("{out}{err}")) }
}

fn call(address: &str, method: &str, request: &str) -> Result<Vec<Value>, String> {
    let text = grpcurl(&["-d", request, address, method])?;
    serde_json::Deserializer::from_str(&text)
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|error| format!("{error}: {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn grpcurl_finds_and_calls_everything() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    admin.config_map("default", "one", "1").await;
    let sidecar = Sidecar::start(&cluster, Options::new("app-0", &["configmaps"], &["default"])).await;
    let address = sidecar.grpc();
    sidecar.ready().await;

    let services = grpcurl(&[address, "list"]).expect("reflection");
    for service in ["sidewatch.v1.EventService", "sidewatch.v1.AdminService", "grpc.health.v1.Health"] {
        assert!(services.lines().any(|line| line == service), "{service} in {services}");
    }
    let health = call(address, "grpc.health.v1.Health/Check", "{}").expect("health");
    assert_eq!(health[0]["status"], "SERVING");

    // Whoever leads sends; until then the call waits for the Lease.
    let frames =
        call(address, "sidewatch.v1.EventService/Subscribe", r#"{"subscription":"app","end_after_snapshot":true}"#);
    let frames = frames.expect("a snapshot");
    assert!(frames[0]["frame"]["sessionStarted"]["sessionId"].is_string(), "{}", frames[0]);
    let names: Vec<&str> = frames
        .iter()
        .flat_map(|message| message["frame"]["batch"]["events"].as_array().into_iter().flatten())
        .filter_map(|event| event["objectRef"]["name"].as_str())
        .collect();
    assert!(names.contains(&"one"), "{names:?}");
    let cursor = frames.iter().rev().find_map(|message| message["frame"]["cursor"].as_str()).expect("a cursor to ack");
    let request = format!(r#"{{"subscription":"app","cursor":"{cursor}","wait_durable":true}}"#);
    let ack = call(address, "sidewatch.v1.EventService/Ack", &request).expect("the ack");
    assert!(ack[0]["result"]["durableCursor"].is_string(), "{}", ack[0]);
    let status = call(address, "sidewatch.v1.AdminService/GetStatus", "{}").expect("the status");
    assert_eq!(status[0]["leadership"]["state"], "LEADERSHIP_STATE_LEADING", "{}", status[0]);
    assert_eq!(status[0]["subscriptions"][0]["name"], "app", "{}", status[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_consumer_follows() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    admin.config_map("default", "one", "1").await;
    let sidecar = Sidecar::start(&cluster, Options::new("app-0", &["configmaps"], &["default"])).await;
    let mut command = Command::new(tool("PYTHON", "python.sh"));
    command
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/consumer.py"))
        .args(["--address", sidecar.grpc(), "--subscription", "app"])
        .arg("--stubs")
        .arg(cluster.folder().join("stubs"));
    let mut consumer = Process::start("python", cluster.folder(), &mut command);
    let held = |output: &str, names: &[&str]| {
        let last = output.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok()).unwrap_or_default();
        names.iter().all(|name| last["held"].as_array().is_some_and(|held| held.iter().any(|one| one == name)))
    };
    for (made, names) in [(None, &["default/one"][..]), (Some("two"), &["default/one", "default/two"])] {
        if let Some(name) = made {
            admin.config_map("default", name, "1").await;
        }
        wait_for("the Python consumer", SOON, || {
            let output = consumer.output();
            let ended = consumer.ended();
            async move {
                assert!(ended.is_none(), "it ended: {output}");
                check(held(&output, names), || output)
            }
        })
        .await;
    }
    admin.delete("/api/v1/namespaces/default/configmaps/one").await;
    wait_for("the deletion", SOON, || {
        let output = consumer.output();
        async move { check(held(&output, &["default/two"]) && !held(&output, &["default/one"]), || output) }
    })
    .await;
}

/// The first fenced block of this language in the README.
fn readme_block(language: &str) -> String {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).expect("README.md");
    let (_, block) = readme.split_once(&format!("```{language}\n")).expect("the README has such a block");
    block.split_once("```").expect("closed").0.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_readmes_consumer_runs_as_printed() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin().await;
    let sidecar = Sidecar::start(&cluster, Options::new("app-0", &["configmaps"], &["default"])).await;
    let python = tool("PYTHON", "python.sh");
    let stubs = Command::new(&python)
        .args(["-m", "grpc_tools.protoc", "-I", "proto", "sidewatch/v1/sidewatch.proto"])
        .arg(format!("--python_out={}", cluster.folder().display()))
        .arg(format!("--grpc_python_out={}", cluster.folder().display()))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("Python can be started");
    assert!(stubs.status.success(), "{}", String::from_utf8_lossy(&stubs.stderr));
    let file = cluster.folder().join("consumer.py");
    std::fs::write(&file, readme_block("python").replace("127.0.0.1:50151", sidecar.grpc())).expect("can be written");
    let mut consumer = Process::start("readme", cluster.folder(), Command::new(&python).arg(&file));
    for count in 1..=2 {
        admin.config_map("default", &format!("m{count}"), "1").await;
        wait_for("the README's consumer", SOON, || {
            let (output, ended) = (consumer.output(), consumer.ended());
            async move {
                assert!(ended.is_none(), "it ended: {output}");
                // One snapshot and one batch, or two batches: in the end it holds them all.
                check(output.lines().last().is_some_and(|line| line.ends_with(&format!(": {count} objects"))), || {
                    output
                })
            }
        })
        .await;
    }
}
