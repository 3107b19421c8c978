//! One instance of the application: it follows its own sidecar and writes to the common store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

use super::pb;
use super::pb::event_service_client::EventServiceClient;
use super::store::{Session, Store};
use super::{check, wait_for};

/// The store, shared by the instances.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Store>>);

impl Shared {
    /// The store, for a look.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Store> {
        // A test that fails while it looks poisons the lock; its message must not drown in the consumers'.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the store satisfies `condition`.
    pub(crate) async fn until(&self, what: &str, deadline: Duration, condition: impl Fn(&Store) -> bool) {
        wait_for(what, deadline, || {
            let store = self.lock();
            let result = check(condition(&store), || store.summary());
            async move { result }
        })
        .await;
    }
}

/// What a consumer is told.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Order {
    /// Follow the sidecar at this address. The number tells two orders apart: a new one drops the stream.
    Follow(String, u64),
    /// Stay away.
    Rest,
}

/// One instance. Dropping it ends it.
pub(crate) struct Consumer {
    orders: watch::Sender<Order>,
    task: JoinHandle<()>,
}

impl Consumer {
    /// An instance `name` that opens `request` at `address`, applies every frame to `store`, acks, and comes back
    /// whenever the stream ends.
    pub(crate) fn start(name: &str, address: &str, request: pb::SubscribeRequest, store: &Shared) -> Self {
        let (orders, told) = watch::channel(Order::Follow(address.to_owned(), 0));
        let (name, store) = (name.to_owned(), store.clone());
        let task = tokio::spawn(async move { live(&name, told, request, store).await });
        Self { orders, task }
    }

    /// Drops the stream in its middle and comes back at once.
    pub(crate) fn reconnect(&self) {
        self.orders.send_modify(|order| {
            if let Order::Follow(_, number) = order {
                *number += 1;
            }
        });
    }

    /// Drops the stream and stays away.
    pub(crate) fn rest(&self) {
        self.orders.send_replace(Order::Rest);
    }

    /// Follows the sidecar at this address from here on.
    pub(crate) fn follow(&self, address: &str) {
        self.orders.send_replace(Order::Follow(address.to_owned(), 0));
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A durable subscription `app` with bodies.
pub(crate) fn durable() -> pb::SubscribeRequest {
    pb::SubscribeRequest { subscription: "app".to_owned(), ..Default::default() }
}

/// A connection to the sidecar at this address.
pub(crate) async fn connect(address: &str) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    endpoint.connect_timeout(Duration::from_secs(2)).tcp_nodelay(true).connect().await
}

async fn live(name: &str, mut told: watch::Receiver<Order>, request: pb::SubscribeRequest, store: Shared) {
    loop {
        let order = told.borrow_and_update().clone();
        let Order::Follow(address, _) = order else {
            if told.changed().await.is_err() {
                return;
            }
            continue;
        };
        let ended = tokio::select! {
            ended = session(name, &address, request.clone(), &store) => Some(ended),
            changed = told.changed() => match changed { Ok(()) => None, Err(_) => return },
        };
        if let Some(ended) = ended {
            if let Err(error) = ended {
                store.lock().errors.push(format!("{name}: {error}"));
            }
            // The back-off of the client algorithm.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn session(name: &str, address: &str, request: pb::SubscribeRequest, store: &Shared) -> Result<(), String> {
    let channel = connect(address).await.map_err(|error| format!("{error:?}"))?;
    let mut client = EventServiceClient::new(channel.clone());
    let durable = !request.subscription.is_empty();
    let subscription = request.subscription.clone();
    let mut stream = client.subscribe(request).await.map_err(|status| status.to_string())?.into_inner();
    let mut session = store.lock().begin();
    let (acks, latest) = watch::channel(Position::default());
    // Ends with this session, whichever way that ends.
    let acker = durable.then(|| tokio::spawn(acknowledge(channel, subscription, latest, store.clone())));
    let acker = AbortOnDrop(acker);
    while let Some(message) = stream.message().await.map_err(|status| status.to_string())? {
        let Some(frame) = message.frame else { continue };
        let done = store.lock().apply(name, &mut session, frame);
        if let Some((cursor, delivered)) = done {
            acks.send_replace(Position { cursor, delivered, session: id(&session) });
        }
    }
    drop(acker);
    Ok(())
}

fn id(session: &Session) -> String {
    session.id.clone()
}

struct AbortOnDrop(Option<JoinHandle<()>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// What has been processed.
#[derive(Clone, Default)]
struct Position {
    cursor: String,
    delivered: BTreeMap<String, u128>,
    session: String,
}

/// Acks the newest cursor as soon as the ack before it is answered; the first and every eighth after it wait until they are stored in the
/// cluster, from where on nothing up to it may come again.
async fn acknowledge(channel: Channel, subscription: String, mut latest: watch::Receiver<Position>, store: Shared) {
    let mut client = EventServiceClient::new(channel);
    let mut count = 0_u32;
    while latest.changed().await.is_ok() {
        let position = latest.borrow_and_update().clone();
        count += 1;
        let wait_durable = count % 8 == 1;
        let request = pb::AckRequest {
            subscription: subscription.clone(),
            cursor: position.cursor,
            wait_durable,
            session_id: position.session,
        };
        match client.ack(request).await {
            Ok(_) if wait_durable => {
                let mut store = store.lock();
                for (resource, version) in position.delivered {
                    let floor = store.durable.entry(resource).or_default();
                    *floor = version.max(*floor);
                }
            }
            Ok(_) => {}
            // Leadership moved on, or the stream ends: what was not acked comes again.
            Err(status) => store.lock().errors.push(format!("ack: {status}")),
        }
    }
}
