//! The driver against a Lease in memory, in paused time.

use std::sync::Mutex;

use futures_util::{FutureExt, stream};
use serde_json::{Value, json};
use sidewatch_core::elector::{Identity, Parameters};
use sidewatch_core::leadership::Role;

use super::*;

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new(WallTime::default()))
}

/// What the service does with a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Answering,
    Silent,
    Panicking,
}

struct Shared {
    object: Option<Value>,
    version: u64,
    mood: Mood,
}

/// One Lease, without a watch.
#[derive(Clone)]
struct Memory(Arc<Mutex<Shared>>);

impl Memory {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Shared { object: None, version: 0, mood: Mood::Answering })))
    }

    fn set_mood(&self, mood: Mood) {
        self.0.lock().unwrap().mood = mood;
    }

    fn record(&self) -> Option<LeaseRecord> {
        let shared = self.0.lock().unwrap();
        shared.object.as_ref().map(|object| LeaseRecord::decode(object.to_string().as_bytes()).unwrap())
    }

    fn answer<T: Send + 'static>(&self, answer: Result<T, Failure>) -> BoxFuture<'static, Result<T, Failure>> {
        match self.0.lock().unwrap().mood {
            Mood::Answering => std::future::ready(answer).boxed(),
            Mood::Silent => std::future::pending().boxed(),
            Mood::Panicking => panic!("the service broke"),
        }
    }

    fn write(&self, record: &LeaseRecord, exists: bool) -> Result<LeaseRecord, Failure> {
        let stored = self.record();
        if stored.is_some() != exists || stored.is_some_and(|stored| stored.resource_version != record.resource_version)
        {
            return Err(Failure::new(FailureKind::Conflict, "somebody else wrote"));
        }
        let mut shared = self.0.lock().unwrap();
        shared.version += 1;
        let mut object: Value = serde_json::from_slice(&record.encode()).unwrap();
        object["metadata"]["uid"] = json!("u1");
        object["metadata"]["resourceVersion"] = json!(shared.version.to_string());
        object["metadata"]["creationTimestamp"] = json!("1970-01-01T00:16:40Z");
        shared.object = Some(object);
        drop(shared);
        Ok(self.record().unwrap())
    }
}

impl LeaseService for Memory {
    fn get(&self, _: Duration) -> BoxFuture<'static, Result<Option<LeaseRecord>, Failure>> {
        self.answer(Ok(self.record()))
    }

    fn put(&self, record: LeaseRecord, _: Duration) -> BoxFuture<'static, Result<LeaseRecord, Failure>> {
        let written =
            if self.0.lock().unwrap().mood == Mood::Answering { self.write(&record, true) } else { Ok(record) };
        self.answer(written)
    }

    fn create(&self, record: LeaseRecord, _: Duration) -> BoxFuture<'static, Result<LeaseRecord, Failure>> {
        self.answer(self.write(&record, false))
    }

    fn watch(&self, _: Option<ResourceVersion>) -> BoxStream<'static, Result<LeaseEvent, Failure>> {
        stream::pending().boxed()
    }
}

struct Fixture {
    memory: Memory,
    gate: Arc<Gate>,
    commands: mpsc::Sender<Command>,
    checkpoints: watch::Sender<Option<PendingCheckpoint>>,
    announcements: mpsc::Receiver<Announcement>,
    start: tokio::time::Instant,
}

fn boot(start: tokio::time::Instant) -> BootInstant {
    BootInstant::from_nanos(1_000_000_000) + start.elapsed()
}

impl Fixture {
    fn now(&self) -> BootInstant {
        boot(self.start)
    }

    /// The next announcement that is no renewal.
    async fn role(&mut self) -> Role {
        loop {
            if let Announcement::Role { role, .. } = self.announcements.recv().await.expect("the driver runs") {
                return role;
            }
        }
    }

    async fn leading(&mut self) -> Epoch {
        loop {
            if let Role::Leading { epoch, .. } = self.role().await {
                return epoch;
            }
        }
    }
}

fn elector() -> Elector {
    Elector::new(Parameters::default(), Identity::new("a", "1", "x"), "shop", "orders", 1)
}

/// A driver that is not running yet, and everything around it. `capacity` is that of the announcements.
fn fixture(capacity: usize) -> (Driver, Fixture) {
    let (commands, command_receiver) = mpsc::channel(COMMANDS_MAX);
    let (checkpoints, checkpoint_receiver) = watch::channel(None);
    let (announcement_sender, announcements) = mpsc::channel(capacity);
    let ports =
        Ports { commands: command_receiver, checkpoints: checkpoint_receiver, announcements: announcement_sender };
    let (memory, gate, start) = (Memory::new(), Arc::new(Gate::new()), tokio::time::Instant::now());
    let clocks = Box::new(move || {
        let now = boot(start);
        (now, WallTime::from_micros(i64::try_from(now.as_nanos() / 1000).unwrap()))
    });
    let driver = Driver::new(elector(), Arc::clone(&gate), ports, Box::new(memory.clone()), metrics(), clocks);
    (driver, Fixture { memory, gate, commands, checkpoints, announcements, start })
}

#[tokio::test(start_paused = true)]
async fn it_leads_renews_and_releases_with_the_last_checkpoint() {
    let (driver, mut fixture) = fixture(ANNOUNCEMENTS_MAX);
    let driver = tokio::spawn(driver.run());
    let epoch = fixture.leading().await;
    assert!(fixture.gate.check(epoch, fixture.now()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(fixture.gate.check(epoch, fixture.now()), "renewals keep the gate open");

    fixture.commands.send(Command::Shutdown { drain: Duration::from_secs(5) }).await.unwrap();
    while fixture.role().await != (Role::Releasing { epoch }) {}
    assert!(!fixture.gate.check(epoch, fixture.now()), "the gate is closed before the release");
    assert_eq!(fixture.memory.record().unwrap().holder_identity, "a_1_x");
    let text = "last".to_owned();
    fixture.checkpoints.send_replace(Some(PendingCheckpoint { epoch, generation: 1, text }));
    fixture.commands.send(Command::Drained).await.unwrap();
    driver.await.unwrap().unwrap();
    let released = fixture.memory.record().unwrap();
    assert_eq!((released.holder_identity.as_str(), released.checkpoint.as_deref()), ("", Some("last")));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_hangs_closes_the_gate_at_the_deadline() {
    let (driver, mut fixture) = fixture(ANNOUNCEMENTS_MAX);
    let driver = tokio::spawn(driver.run());
    let epoch = fixture.leading().await;
    fixture.memory.set_mood(Mood::Silent);
    while fixture.role().await != (Role::Suspended { epoch }) {}
    assert!(!fixture.gate.check(epoch, fixture.now()));
    assert!(fixture.now() <= BootInstant::from_nanos(0) + Duration::from_secs(16), "within D of the last renewal");
    fixture.memory.set_mood(Mood::Answering);
    assert_eq!(fixture.leading().await, epoch, "the same epoch");
    driver.abort();
}

#[tokio::test(start_paused = true)]
async fn announcements_that_are_not_taken_do_not_stop_renewals() {
    let (driver, mut fixture) = fixture(1);
    let driver = tokio::spawn(driver.run());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let holder = fixture.memory.record().unwrap();
    assert!(fixture.gate.check(holder.epoch(), fixture.now()));
    let mut taken = 0;
    while fixture.announcements.recv().now_or_never().flatten().is_some() {
        taken += 1;
        tokio::task::yield_now().await;
        assert!(taken < 10, "1800 renewals wait in one place");
    }
    driver.abort();
}

#[tokio::test(start_paused = true)]
async fn step_down_answers_with_the_epoch_and_leads_again_later() {
    let (driver, mut fixture) = fixture(ANNOUNCEMENTS_MAX);
    let driver = tokio::spawn(driver.run());
    let epoch = fixture.leading().await;
    let (answer, answered) = oneshot::channel();
    let command = Command::StepDown { cooldown: Duration::ZERO, drain: Duration::from_secs(1), answer };
    fixture.commands.send(command).await.unwrap();
    assert_eq!(answered.await.unwrap(), epoch);
    let again = loop {
        let next = fixture.leading().await;
        if next != epoch {
            break next;
        }
    };
    assert!(again > epoch);
    driver.abort();
}

#[tokio::test]
async fn a_panic_closes_the_gate_before_it_is_reported() {
    let (_, checkpoints) = watch::channel(None);
    let (_commands, commands) = mpsc::channel(COMMANDS_MAX);
    let (announcements, _announcements) = mpsc::channel(ANNOUNCEMENTS_MAX);
    let gate = Arc::new(Gate::new());
    let forever = BootInstant::from_nanos(u64::MAX);
    gate.open(Epoch::from_u64(7), forever);
    let memory = Memory::new();
    memory.set_mood(Mood::Panicking);
    let connect = move || Ok::<Box<dyn LeaseService>, std::io::Error>(Box::new(memory));
    let ports = Ports { commands, checkpoints, announcements };
    let control = spawn(elector(), Arc::clone(&gate), ports, metrics(), connect).unwrap();
    let error = control.ended().await.unwrap_err();
    assert_eq!(error.to_string(), "the control driver panicked: the service broke");
    assert!(!gate.check(Epoch::from_u64(7), Clock.boot()));
}
