//! Faults of a script, as a client on a plain socket meets them, and the life of a playground.

use std::time::Duration;

use bytes::Bytes;
use sidewatch::playground::{Options, Playground, life};
use sidewatch_model::request::Method;
use sidewatch_model::script::{Fault, Pattern, Rule};
use sidewatch_model::status::Failure;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Long enough for an answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Long enough to believe that nothing comes.
const SILENCE: Duration = Duration::from_millis(300);

/// How an exchange ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The server closed the connection.
    Closed,
    /// Nothing came for a while.
    Silent,
}

/// Sends one request and reads until the connection ends or falls silent.
async fn exchange(
    playground: &Playground,
    method: &str,
    target: &str,
    body: &str,
    patience: Duration,
) -> (String, End) {
    let mut stream = TcpStream::connect(playground.address()).await.unwrap();
    let length = body.len();
    let head =
        format!("{method} {target} HTTP/1.1\r\nhost: model\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes()).await.unwrap();
    let mut read = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        match timeout(patience, stream.read(&mut chunk)).await {
            Ok(Ok(length)) if length > 0 => read.extend_from_slice(&chunk[..length]),
            Ok(_) => return (String::from_utf8_lossy(&read).into_owned(), End::Closed),
            Err(_) => return (String::from_utf8_lossy(&read).into_owned(), End::Silent),
        }
    }
}

async fn playground(rule: Rule) -> Playground {
    let playground = Playground::start(Options::default()).await.unwrap();
    playground.handle().change(|server, moment| {
        let object = serde_json::json!({"metadata": {"name": "a"}});
        server.create(moment.now, moment.wall_micros, "configmaps", "default", object).unwrap();
    });
    playground.handle().add_fault(rule);
    playground
}

#[tokio::test]
async fn an_answer_of_the_script_carries_status_and_retry_after() {
    let playground = playground(Rule::once(Pattern::default(), Fault::answer(&Failure::too_many_requests(7)))).await;
    let (text, _) = exchange(&playground, "GET", MAPS, "", PATIENCE).await;
    assert!(text.starts_with("HTTP/1.1 429") && text.contains("retry-after: 7\r\n"), "{text}");
    let (text, _) = exchange(&playground, "GET", MAPS, "", PATIENCE).await;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    playground.stop().await;
}

#[tokio::test]
async fn a_lost_answer_leaves_the_write_done() {
    let playground = playground(Rule::once(Pattern::new(Method::Post, MAPS), Fault::LoseAnswer)).await;
    let (text, end) = exchange(&playground, "POST", MAPS, r#"{"metadata":{"name":"b"}}"#, PATIENCE).await;
    assert_eq!((text.as_str(), end), ("", End::Closed));
    assert!(playground.handle().look(|server, _| server.state("configmaps", "default", "b").is_some()));
    playground.stop().await;
}

#[tokio::test]
async fn a_stalled_request_is_never_answered_and_does_nothing() {
    let playground = playground(Rule::once(Pattern::new(Method::Delete, MAPS), Fault::Stall)).await;
    let (text, end) = exchange(&playground, "DELETE", &format!("{MAPS}/a"), "", SILENCE).await;
    assert_eq!((text.as_str(), end), ("", End::Silent));
    assert!(playground.handle().look(|server, _| server.state("configmaps", "default", "a").is_some()));
    playground.stop().await;
}

#[tokio::test]
async fn bodies_are_cut_where_the_script_says() {
    let watch = format!("{MAPS}?watch=1");
    for (fault, end, clean) in [
        (Fault::TruncateAfter(20), End::Closed, true),
        (Fault::ResetAfter(20), End::Closed, false),
        (Fault::StallAfter(20), End::Silent, false),
    ] {
        for target in [MAPS, watch.as_str()] {
            let playground = playground(Rule::once(Pattern::default(), fault.clone())).await;
            let patience = if end == End::Silent { SILENCE } else { PATIENCE };
            let (text, ended) = exchange(&playground, "GET", target, "", patience).await;
            assert_eq!((&ended, text.ends_with("0\r\n\r\n")), (&end, clean), "{fault:?} {target}: {text}");
            playground.stop().await;
        }
    }
}

#[tokio::test]
async fn an_error_event_ends_a_watch_after_its_lines() {
    let failure = Failure::expired_watch(1, 2);
    let rule = Rule::once(Pattern::watch(MAPS), Fault::ErrorEvent { after_lines: 1, failure });
    let playground = playground(rule).await;
    let (text, end) = exchange(&playground, "GET", &format!("{MAPS}?watch=1"), "", PATIENCE).await;
    assert_eq!(end, End::Closed);
    let (added, error) = (text.find(r#""type":"ADDED""#), text.find(r#""type":"ERROR""#));
    assert!(added.is_some() && added < error && text.contains("too old resource version: 1 (2)"), "{text}");
    playground.stop().await;
}

#[tokio::test]
async fn a_stale_read_shows_the_past() {
    let playground = playground(Rule::once(Pattern::read(MAPS), Fault::Stale(1))).await;
    let (text, _) = exchange(&playground, "GET", MAPS, "", PATIENCE).await;
    assert!(text.contains(r#""items":[]"#), "{text}");
    playground.stop().await;
}

#[tokio::test]
async fn delays_come_before_or_after_the_act() {
    for (fault, done) in [(Fault::DelayAnswer(PATIENCE), true), (Fault::DelayRequest(PATIENCE), false)] {
        let playground = playground(Rule::once(Pattern::new(Method::Post, MAPS), fault)).await;
        let (text, _) = exchange(&playground, "POST", MAPS, r#"{"metadata":{"name":"b"}}"#, SILENCE).await;
        assert_eq!(text, "");
        let exists = playground.handle().look(|server, _| server.state("configmaps", "default", "b").is_some());
        assert_eq!(exists, done);
        playground.stop().await;
    }
}

#[tokio::test]
async fn a_watch_is_forgotten_with_its_connection_and_ends_with_a_restart() {
    let playground = Playground::start(Options::default()).await.unwrap();
    let running = |playground: &Playground| playground.handle().look(|server, _| server.watches_len());
    exchange(&playground, "GET", &format!("{MAPS}?watch=1"), "", SILENCE).await;
    let forgotten = async {
        while running(&playground) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, forgotten).await.expect("the watch is forgotten");
    let target = format!("{MAPS}?watch=1");
    let restart = async {
        while running(&playground) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        playground.restart();
    };
    let ((text, end), ()) = tokio::join!(exchange(&playground, "GET", &target, "", PATIENCE), restart);
    assert!(end == End::Closed && text.ends_with("0\r\n\r\n"), "{text}");
    playground.stop().await;
}

#[tokio::test]
async fn life_goes_on_and_repeats_with_its_seed() {
    let texts = |playground: &Playground| -> Vec<Bytes> {
        playground.handle().look(|server, _| server.states("pods").iter().map(|state| state.text()).collect())
    };
    let still = life::Options { step_every: Duration::from_secs(3600), ..life::Options::default() };
    let one = Playground::start(Options { life: Some(still.clone()), ..Options::default() }).await.unwrap();
    let names = |playground: &Playground| -> Vec<String> {
        playground.handle().look(|server, _| server.states("pods").iter().map(|state| state.name.clone()).collect())
    };
    let two = Playground::start(Options { life: Some(still), ..Options::default() }).await.unwrap();
    assert_eq!(names(&one), names(&two));
    let sizes: Vec<usize> = texts(&one).iter().map(Bytes::len).collect();
    assert!(!sizes.is_empty() && sizes.iter().all(|size| (2000..5000).contains(size)), "{sizes:?}");
    one.stop().await;
    two.stop().await;
    let fast = life::Options { step_every: Duration::from_millis(1), ..life::Options::default() };
    let playground = Playground::start(Options { life: Some(fast), ..Options::default() }).await.unwrap();
    let grown = async {
        let start = playground.handle().look(|server, _| server.revision());
        while playground.handle().look(|server, _| server.revision()) < start + 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, grown).await.expect("life writes");
    let (text, _) = exchange(&playground, "GET", "/api/v1/pods?watch=1&timeoutSeconds=1", "", PATIENCE).await;
    for kind in ["ADDED", "MODIFIED"] {
        assert!(text.contains(kind), "{kind}");
    }
    playground.stop().await;
}
