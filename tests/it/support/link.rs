//! The network between a sidecar and the API server, in the test's hands: it can be cut, and it can fall silent.

use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A forwarder on a port of its own. Dropping it cuts everything.
pub(crate) struct Link {
    address: String,
    state: watch::Sender<State>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy, Default)]
struct State {
    silent: bool,
    cuts: u64,
}

impl Link {
    /// Forwards to the server of this kubeconfig; returns the link and a kubeconfig that leads over it.
    pub(crate) async fn start(kubeconfig: &Path, name: &str) -> (Self, PathBuf) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let text = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
        let (_, rest) = text.split_once("https://").expect("names its server");
        let target: String =
            rest.chars().take_while(|letter| letter.is_ascii_digit() || matches!(letter, '.' | ':')).collect();
        let ours = kubeconfig.with_file_name(name);
        std::fs::write(&ours, text.replace(&format!("https://{target}"), &format!("https://{address}")))
            .expect("can be written");
        let (state, told) = watch::channel(State::default());
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (target, told) = (target.clone(), told.clone());
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(&target).await {
                        carry(client, server, told).await;
                    }
                });
            }
        });
        (Self { address, state, task }, ours)
    }

    /// Ends every connection, and what it held back with it; new ones are made at once.
    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Loses every byte's way in both directions: connections stay, and nothing arrives.
    pub(crate) fn silence(&self) {
        self.state.send_modify(|state| state.silent = true);
    }

    /// Delivers again, what was held back included.
    pub(crate) fn restore(&self) {
        self.state.send_modify(|state| state.silent = false);
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn carry(client: TcpStream, server: TcpStream, mut told: watch::Receiver<State>) {
    let cuts = told.borrow_and_update().cuts;
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    tokio::select! {
        () = forward(client_in, server_out, told.clone(), cuts) => {}
        () = forward(server_in, client_out, told.clone(), cuts) => {}
        _ = told.wait_for(|state| state.cuts != cuts) => {}
    }
}

async fn forward(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut told: watch::Receiver<State>,
    cuts: u64,
) {
    let mut chunk = vec![0; 32 << 10];
    while let Ok(length @ 1..) = from.read(&mut chunk).await {
        // A link that was cut while it was silent delivers nothing more, even if it is restored at the same moment.
        let passes = match told.wait_for(|state| !state.silent || state.cuts != cuts).await {
            Ok(state) => state.cuts == cuts,
            Err(_) => false,
        };
        if !passes || to.write_all(&chunk[..length]).await.is_err() {
            return;
        }
    }
}
