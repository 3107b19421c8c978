//! The model over HTTP against the list that a real kube-apiserver has to pass too. Needs Rust alone.

#[path = "../it/conformance.rs"]
mod conformance;

use conformance::ServerUnderTest;
use sidewatch::playground::{Options, Playground};

#[tokio::test]
async fn the_model_passes_the_conformance_list() {
    let playground = Playground::start(Options::default()).await.unwrap();
    let (compacted, restarted) = (playground.handle().clone(), playground.handle().clone());
    let server = ServerUnderTest {
        base_url: playground.base_url(),
        certificate_authority: None,
        bearer_token: None,
        client_certificate: None,
        compact: Box::new(move || {
            compacted.change(|server, _| server.compact(server.revision()));
            Box::pin(async { Ok(()) })
        }),
        restart: Box::new(move || {
            restarted.change(|server, moment| server.restart(moment.now));
            Box::pin(async { Ok(()) })
        }),
    };
    let failed: Vec<String> = conformance::run(&server)
        .await
        .into_iter()
        .filter_map(|(name, result)| Some(format!("{name}: {}", result.err()?)))
        .collect();
    playground.stop().await;
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
