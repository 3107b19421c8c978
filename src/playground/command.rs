//! `sidewatch playground`: the make-believe cluster, a sidecar on it, and what to paste to look at both.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;

use crate::app;
use crate::app::{Sidecar, Stop};
use crate::cli::PlaygroundArgs;
use crate::clock::Clock;
use crate::config::Config;
use crate::config::address::Address;
use crate::config::raw::Flags;
use crate::playground::{Options, Playground, life};
use crate::tail;
use crate::tail::TailArgs;
use crate::telemetry;

/// Name and namespace of the Lease that the sidecar of the playground holds.
const LEASE: (&str, &str) = ("playground", "shop");

/// Runs until Ctrl-C.
///
/// # Errors
/// When a port cannot be had, or when a part ended that must not end.
pub fn run(arguments: &PlaygroundArgs) -> anyhow::Result<ExitCode> {
    let runtime = app::runtime()?;
    let result = runtime.block_on(async {
        let mut stop = Stop::listen()?;
        let mut stop_showing = Stop::listen()?;
        let mut options =
            Options { listen: arguments.server_listen, life: Some(life::Options::default()), ..Options::default() };
        options.server.wall_micros = Clock.wall().as_micros();
        let playground = Playground::start(options);
        let playground = playground.await.context("another address can be given with --server-listen 127.0.0.1:0")?;
        offer_lease(&playground)?;
        let config = config(arguments, &playground.base_url())?;
        telemetry::init(&config.log)?;
        let sidecar = Sidecar::start(&config)
            .await
            .context("other addresses can be given with --listen 127.0.0.1:0 --http-listen 127.0.0.1:0")?;
        let grpc = *sidecar.grpc_addresses().first().context("no address for gRPC")?;
        let program = std::env::args().next().unwrap_or_else(|| "sidewatch".to_owned());
        let (server, http) = (playground.base_url(), sidecar.http_address().to_string());
        eprint!("{}", banner(&program, &server, &grpc.to_string(), &http));
        let shown = TailArgs { address: Address::Tcp(grpc), ..TailArgs::default() };
        // Whoever closes the pipe has seen enough; the sidecar goes on.
        let show = tail::follow_until(&shown, async {
            let _signal = stop_showing.asked().await;
        });
        let (served, shown) = tokio::join!(sidecar.run(&mut stop), show);
        shown?;
        playground.stop().await;
        served
    });
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

/// Makes the Lease, held by nobody: a candidate waits two seconds before it creates one, and nobody wants to wait here.
fn offer_lease(playground: &Playground) -> anyhow::Result<()> {
    let (name, namespace) = LEASE;
    let lease = json!({"metadata": {"name": name}, "spec": {"holderIdentity": ""}});
    let made = playground
        .handle()
        .change(|server, moment| server.create(moment.now, moment.wall_micros, "leases", namespace, lease).map(|_| ()));
    made.map_err(|failure| anyhow::anyhow!("the Lease of the playground: {}", failure.message))
}

/// As a user would write it, less what the command line of `playground` says.
fn config(arguments: &PlaygroundArgs, server: &str) -> anyhow::Result<Config> {
    let (listen, http_listen) = (arguments.listen.to_string(), arguments.http_listen.to_string());
    let keys = [
        ("SIDEWATCH_WATCH", "pods,configmaps,widgets.example.com"),
        ("SIDEWATCH_ALL_NAMESPACES", "true"),
        ("SIDEWATCH_LEASE", LEASE.0),
        ("SIDEWATCH_LEASE_NAMESPACE", LEASE.1),
        ("SIDEWATCH_SERVER", server),
        ("SIDEWATCH_LISTEN", &listen),
        ("SIDEWATCH_HTTP_LISTEN", &http_listen),
        ("SIDEWATCH_DRAIN_TIMEOUT", "0s"),
        ("SIDEWATCH_LOG_LEVEL", "warn"),
        ("POD_NAME", "playground"),
        ("POD_UID", "playground"),
    ];
    let environment: BTreeMap<String, String> =
        keys.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Config::load_with(&Flags::default(), &environment)
}

/// `program` is what was typed to start this one: few have it in their path.
fn banner(program: &str, server: &str, grpc: &str, http: &str) -> String {
    format!(
        r#"sidewatch playground: a make-believe cluster whose objects come, change and go, and a sidecar on it.

  API server   {server}
  gRPC         listening on {grpc} (grpc)
  probes       http://{http}/readyz, /livez, /metrics

Paste into another terminal:

  grpcurl -plaintext {grpc} list
  grpcurl -plaintext -d '{{"feeds":["pods"],"end_after_snapshot":true,"payload":{{"encoding":"PAYLOAD_ENCODING_NONE"}}}}' {grpc} sidewatch.v1.EventService/Subscribe
  grpcurl -plaintext -d '{{"payload":{{"encoding":"PAYLOAD_ENCODING_STRUCT"}}}}' {grpc} sidewatch.v1.EventService/Subscribe
  grpcurl -plaintext {grpc} sidewatch.v1.AdminService/GetStatus
  {program} tail --address {grpc} --subscription app --ack

What follows is an ephemeral subscription to every feed; Ctrl-C ends all of it.

"#
    )
}
