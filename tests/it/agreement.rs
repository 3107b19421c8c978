//! The real server against the list that the model passes too (`tests/model`): what the simulation, the playground and the
//! fault tests stand on is what a kube-apiserver does.

use std::sync::Arc;

use tokio::sync::Mutex;

use crate::conformance;
use crate::conformance::ServerUnderTest;
use crate::support::cluster::Cluster;

#[tokio::test(flavor = "multi_thread")]
async fn the_real_server_passes_the_conformance_list() {
    let cluster = Cluster::start().await;
    let key = |name: &str| cluster.folder().join("pki").join(name);
    let (authority, certificate) = (key("ca.crt"), (key("admin.crt"), key("admin.key")));
    let base_url = cluster.url_of(0);
    let cluster = Arc::new(Mutex::new(cluster));
    let (compacted, restarted) = (Arc::clone(&cluster), Arc::clone(&cluster));
    let server = ServerUnderTest {
        base_url,
        certificate_authority: Some(authority),
        bearer_token: None,
        client_certificate: Some(certificate),
        compact: Box::new(move || {
            let cluster = Arc::clone(&compacted);
            Box::pin(async move {
                cluster.lock().await.compact();
                Ok(())
            })
        }),
        restart: Box::new(move || {
            let cluster = Arc::clone(&restarted);
            Box::pin(async move {
                let mut cluster = cluster.lock().await;
                cluster.stop_server(0);
                cluster.start_server(0).await;
                Ok(())
            })
        }),
    };
    let results = conformance::run(&server).await;
    assert!(results.len() >= 20, "the list has shrunk to {} checks", results.len());
    let failed: Vec<String> =
        results.into_iter().filter_map(|(name, result)| Some(format!("{name}: {}", result.err()?))).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
