//! The playground: one command, no cluster, and events arrive. Run by `make playground-test`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The API as its clients have it.
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod pb {
    tonic::include_proto!("sidewatch.v1");
}

use pb::event_service_client::EventServiceClient;
use pb::frame::Kind;

/// The playground, ended with the test.
struct Playground(Child);

impl Drop for Playground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The address in the line that tells where gRPC listens, in a log for people.
fn address(line: &str) -> Option<String> {
    if !line.contains("listening") || !line.contains("grpc") {
        return None;
    }
    let (_, rest) = line.split_once("127.0.0.1:")?;
    let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
    (!port.is_empty()).then(|| format!("127.0.0.1:{port}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_command_shows_a_snapshot_and_then_changes() {
    let child = Command::new(env!("CARGO_BIN_EXE_sidewatch"))
        .args([
            "playground",
            "--listen",
            "127.0.0.1:0",
            "--http-listen",
            "127.0.0.1:0",
            "--server-listen",
            "127.0.0.1:0",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program can be started");
    let mut playground = Playground(child);
    let errors = playground.0.stderr.take().expect("piped");
    let (send, lines) = mpsc::sync_channel(1000);
    std::thread::spawn(move || {
        BufReader::new(errors).lines().map_while(Result::ok).for_each(|line| drop(send.try_send(line)))
    });

    let (begin, mut log) = (Instant::now(), String::new());
    let address = loop {
        assert!(begin.elapsed() < Duration::from_secs(30), "nothing listens; the log:\n{log}");
        let Ok(line) = lines.recv_timeout(Duration::from_millis(100)) else { continue };
        log += &line;
        log.push('\n');
        if let Some(address) = address(&line) {
            break address;
        }
    };

    let mut client = EventServiceClient::connect(format!("http://{address}")).await.expect("it listens");
    let mut stream = client.subscribe(pb::SubscribeRequest::default()).await.expect("a stream").into_inner();
    let (mut frames, mut events, mut snapshots, mut live) = (0, 0, 0, 0);
    let told = tokio::time::timeout(Duration::from_secs(60), async {
        while let Some(message) = stream.message().await.expect("the stream goes on") {
            frames += 1;
            match message.frame.and_then(|frame| frame.kind) {
                Some(Kind::SnapshotEnd(_)) => snapshots += 1,
                Some(Kind::Batch(batch)) => {
                    events += batch.events.len();
                    live += batch.events.iter().filter(|event| !event.in_snapshot).count();
                }
                _ => {}
            }
            if snapshots > 0 && live > 0 {
                return;
            }
        }
        panic!("the stream ended");
    })
    .await;
    println!("result: playground frames={frames} events={events} snapshots={snapshots} live={live}");
    assert!(told.is_ok(), "no snapshot and no change after a minute");
}
