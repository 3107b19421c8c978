//! The seam between the replica driver and the streams: commands one way, at most two frames per session the other
//! way, and a board on which the streams tell what they have pulled.
//!
//! Nothing here knows gRPC, and nothing here decides: frames come in order from the core, and a frame of an epoch is
//! handed out only while the gate is open for that epoch (docs/protocol.md, A5 and I11). Three rules keep the fence
//! tight:
//!
//! * The gate is asked at the moment of the pull, for each frame, so a frame that waited too long stays.
//! * The sequence number is counted at the pull, so frames that are withdrawn leave no hole.
//! * A stream that disappears leaves a mark on the board, which cannot be lost or refused as a message can.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sidewatch_core::epoch::Epoch;
use sidewatch_core::frame::{Frame, SessionId};
use sidewatch_core::invariant;
use sidewatch_core::limits::FRAMES_QUEUED_MAX;
use sidewatch_core::replica::Now;
use sidewatch_core::session::{AckError, AckOutcome, AckRequest, Open, SessionError};
use sidewatch_core::status::Status;
use tokio::sync::{Notify, mpsc, oneshot};

/// Commands that wait for the driver. Full means that calls wait, not that they fail.
pub const COMMANDS_QUEUED_MAX: usize = 64;

/// Whether a frame of this epoch may leave at this moment.
pub type GateCheck = Arc<dyn Fn(Epoch) -> bool + Send + Sync>;

/// Reads both clocks; frames are stamped with it when they are pulled.
pub type Clock = Arc<dyn Fn() -> Now + Send + Sync>;

/// What calls ask of the driver. That a stream is gone comes over the [`PulledBoard`].
#[derive(Debug)]
pub enum Command {
    /// A consumer opened a stream. Ignore it when [`FrameQueue::is_abandoned`]: its end may have been read already.
    Open {
        /// Names the session; never used twice.
        session: SessionId,
        /// What it asks for.
        open: Box<Open>,
        /// Where its frames go.
        queue: FrameQueue,
    },
    /// A consumer acked. It no longer waits when the answer's receiver is closed.
    Ack {
        /// What was acked.
        ack: AckRequest,
        /// Where the answer goes.
        answer: oneshot::Sender<Result<AckOutcome, AckError>>,
    },
    /// Somebody asks for the status.
    Status {
        /// Where the answer goes.
        answer: oneshot::Sender<Status>,
    },
    /// Somebody wants this replica to give leadership up.
    StepDown {
        /// Do not campaign for this long; none for the default.
        cooldown: Option<Duration>,
        /// Wait for outstanding acks for at most this long first.
        drain_timeout: Duration,
        /// Where the answer goes: the epoch that was given up.
        answer: oneshot::Sender<Result<Epoch, NotLeading>>,
    },
}

/// This replica has no leadership to give up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this replica does not lead; {holder:?} does")]
pub struct NotLeading {
    /// Holder of the Lease, empty when nobody holds it.
    pub holder: String,
    /// Highest epoch seen.
    pub epoch: Epoch,
}

/// The driver has ended: nothing can be asked any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the sidecar shuts down")]
pub struct Gone;

/// The calls' end of the seam. Cheap to clone; one per process.
#[derive(Clone)]
pub struct Delivery {
    commands: mpsc::Sender<Command>,
    next_session: Arc<AtomicU64>,
    board: Arc<PulledBoard>,
    gate: GateCheck,
    clock: Clock,
}

/// The driver's end of the seam.
#[derive(Debug)]
pub struct Inbox {
    /// Commands in the order in which they were given.
    pub commands: mpsc::Receiver<Command>,
    /// What the streams have done.
    pub board: Arc<PulledBoard>,
}

impl Delivery {
    /// Makes both ends.
    pub fn new(gate: GateCheck, clock: Clock) -> (Self, Inbox) {
        let (sender, commands) = mpsc::channel(COMMANDS_QUEUED_MAX);
        let board = Arc::new(PulledBoard::default());
        let next_session = Arc::new(AtomicU64::new(1));
        (Self { commands: sender, next_session, board: Arc::clone(&board), gate, clock }, Inbox { commands, board })
    }

    /// Opens a session. A refusal by the core comes as the end of the returned frames.
    ///
    /// # Errors
    /// [`Gone`] when the driver has ended.
    pub async fn open(&self, open: Open) -> Result<Frames, Gone> {
        let session = SessionId(self.next_session.fetch_add(1, Ordering::Relaxed));
        let (queue, frames) = self.queue(session);
        self.command(Command::Open { session, open: Box::new(open), queue }).await?;
        Ok(frames)
    }

    /// Acks, and waits for the answer for as long as the driver takes.
    ///
    /// # Errors
    /// [`Gone`] when the driver has ended.
    pub async fn ack(&self, ack: AckRequest) -> Result<Result<AckOutcome, AckError>, Gone> {
        self.ask(|answer| Command::Ack { ack, answer }).await
    }

    /// Asks for the status.
    ///
    /// # Errors
    /// [`Gone`] when the driver has ended.
    pub async fn status(&self) -> Result<Status, Gone> {
        self.ask(|answer| Command::Status { answer }).await
    }

    /// Asks the driver to give leadership up, and waits until it has.
    ///
    /// # Errors
    /// [`Gone`] when the driver has ended.
    pub async fn step_down(
        &self,
        cooldown: Option<Duration>,
        drain_timeout: Duration,
    ) -> Result<Result<Epoch, NotLeading>, Gone> {
        self.ask(|answer| Command::StepDown { cooldown, drain_timeout, answer }).await
    }

    /// Reads the clocks that frames are stamped with.
    pub fn now(&self) -> Now {
        (self.clock)()
    }

    /// Commands that wait for the driver, for the gauge.
    pub fn commands_queued(&self) -> usize {
        self.commands.max_capacity() - self.commands.capacity()
    }

    /// Both ends of the frame queue of `session`.
    fn queue(&self, session: SessionId) -> (FrameQueue, Frames) {
        let shared = Arc::new(Mutex::new(Queue::default()));
        let writer = Writer { shared: Arc::clone(&shared) };
        let frames = Frames {
            session,
            shared,
            sequence: 0,
            board: Arc::clone(&self.board),
            gate: Arc::clone(&self.gate),
            clock: Arc::clone(&self.clock),
        };
        (FrameQueue(Arc::new(writer)), frames)
    }

    async fn command(&self, command: Command) -> Result<(), Gone> {
        self.commands.send(command).await.map_err(|_| Gone)
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Gone> {
        let (answer, answered) = oneshot::channel();
        self.command(command(answer)).await?;
        answered.await.map_err(|_| Gone)
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("commands_queued", &self.commands_queued()).finish_non_exhaustive()
    }
}

/// The driver's end of one session's queue. When the last clone goes without [`FrameQueue::end`], the stream ends as
/// at a shutdown: a consumer never waits for a driver that is no more.
#[derive(Clone, Debug)]
pub struct FrameQueue(Arc<Writer>);

#[derive(Debug)]
struct Writer {
    shared: Arc<Mutex<Queue>>,
}

#[derive(Default, Debug)]
struct Queue {
    frames: VecDeque<Frame>,
    /// Set once: nothing is pushed after it.
    end: Option<Result<(), SessionError>>,
    /// The stream is gone.
    abandoned: bool,
    reader: Option<Waker>,
}

impl FrameQueue {
    /// Appends a frame.
    ///
    /// # Panics
    /// I11: there were [`FRAMES_QUEUED_MAX`] frames already, or the queue had been ended.
    pub fn push(&self, frame: Frame) {
        self.change(|queue| {
            invariant!(I11, queue.frames.len() < FRAMES_QUEUED_MAX, "{} frames are queued already", queue.frames.len());
            invariant!(I11, queue.end.is_none(), "a frame after the end of its stream");
            // Nobody will pull it; what is not acked comes again in the next session.
            if !queue.abandoned {
                queue.frames.push_back(frame);
            }
        });
    }

    /// Ends the stream after what is queued: with OK, or with an error. The first end counts.
    ///
    /// Frames that the gate holds back do not delay an end with an error: they are dropped, and come again in the
    /// next session.
    pub fn end(&self, error: Option<SessionError>) {
        self.change(|queue| {
            queue.end.get_or_insert(error.map_or(Ok(()), Err));
        });
    }

    /// Takes back every frame that belongs to an epoch and was not pulled, oldest first. To be called when the gate
    /// has closed; the frames go back to the core.
    pub fn withdraw(&self) -> Vec<Frame> {
        self.change(|queue| {
            let (gated, free) = mem::take(&mut queue.frames).into_iter().partition(|frame| frame.epoch != Epoch::NONE);
            queue.frames = free;
            let gated: VecDeque<Frame> = gated;
            gated.into()
        })
    }

    /// Lets the stream look again: to be called whenever the gate may have opened.
    pub fn wake(&self) {
        self.change(|_| ());
    }

    /// Frames that were not pulled.
    pub fn len(&self) -> usize {
        lock(&self.0.shared).frames.len()
    }

    /// Whether everything was pulled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the stream is gone. The board says so too, before or after.
    pub fn is_abandoned(&self) -> bool {
        lock(&self.0.shared).abandoned
    }

    fn change<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> T {
        self.0.change(change)
    }
}

impl Writer {
    /// Changes the queue, then wakes the stream with the lock released.
    fn change<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> T {
        let mut queue = lock(&self.shared);
        let changed = change(&mut queue);
        let reader = queue.reader.take();
        drop(queue);
        if let Some(reader) = reader {
            reader.wake();
        }
        changed
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.change(|queue| {
            queue.end.get_or_insert(Err(SessionError::ShuttingDown));
        });
    }
}

/// A frame on its way out.
#[derive(Clone, PartialEq, Debug)]
pub struct Pulled {
    /// 1, 2, 3, … within the session.
    pub sequence: u64,
    /// When it was pulled.
    pub emitted: Now,
    /// The frame.
    pub frame: Frame,
}

/// The stream's end of one session's queue. Dropping it marks the session closed on the board.
pub struct Frames {
    session: SessionId,
    shared: Arc<Mutex<Queue>>,
    sequence: u64,
    board: Arc<PulledBoard>,
    gate: GateCheck,
    clock: Clock,
}

impl Frames {
    /// Pulls the next frame, if the gate lets it out. None, or one error and then none, at the end of the session.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Pulled, SessionError>>> {
        let mut queue = lock(&self.shared);
        if matches!(queue.end, Some(Err(_))) {
            queue.frames.retain(|frame| self.may_leave(frame));
        }
        let Some(front) = queue.frames.front() else {
            return match &mut queue.end {
                Some(Ok(())) => Poll::Ready(None),
                Some(failed) => Poll::Ready(mem::replace(failed, Ok(())).err().map(Err)),
                None => {
                    queue.reader = Some(cx.waker().clone());
                    Poll::Pending
                }
            };
        };
        if !self.may_leave(front) {
            queue.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let Some(frame) = queue.frames.pop_front() else { return Poll::Ready(None) };
        drop(queue);
        self.sequence += 1;
        self.board.post(self.session, |progress| progress.frames += 1);
        Poll::Ready(Some(Ok(Pulled { sequence: self.sequence, emitted: (self.clock)(), frame })))
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    fn may_leave(&self, frame: &Frame) -> bool {
        frame.epoch == Epoch::NONE || (self.gate)(frame.epoch)
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared);
        // Before the board: a driver that has read the board already and sees the command only now must find this.
        queue.abandoned = true;
        queue.frames.clear();
        drop(queue);
        self.board.post(self.session, |progress| progress.closed = true);
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames")
            .field("session", &self.session)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

/// What a stream has done since the board was last read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Frames pulled.
    pub frames: usize,
    /// The stream is gone; nothing more will be said of this session.
    pub closed: bool,
}

/// Where streams note what they have pulled, and that they are gone. Bounded by the number of sessions, and never
/// full: what a slow driver has not read adds up.
#[derive(Default, Debug)]
pub struct PulledBoard {
    sessions: Mutex<BTreeMap<SessionId, Progress>>,
    changed: Notify,
}

impl PulledBoard {
    /// Waits until something was noted since the last [`PulledBoard::take`]. Cancel-safe; for one driver only.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Reads and clears the board. May name sessions the driver does not know.
    pub fn take(&self) -> BTreeMap<SessionId, Progress> {
        mem::take(&mut *lock(&self.sessions))
    }

    fn post(&self, session: SessionId, note: impl FnOnce(&mut Progress)) {
        note(lock(&self.sessions).entry(session).or_default());
        self.changed.notify_one();
    }
}

/// A panic elsewhere must not take the other sessions along: each change leaves the data whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicBool;

    use futures_util::task::noop_waker;
    use sidewatch_core::frame::{EndReason, FrameKind};
    use sidewatch_core::time::{BootInstant, WallTime};
    use tokio::time::timeout;

    use super::*;

    struct Fixture {
        open: Arc<AtomicBool>,
        inbox: Inbox,
        queue: FrameQueue,
        frames: Frames,
    }

    fn fixture() -> Fixture {
        let open = Arc::new(AtomicBool::new(true));
        let gate = Arc::clone(&open);
        let now = Now { boot: BootInstant::from_nanos(5), wall: WallTime::from_micros(7) };
        let (delivery, inbox) = Delivery::new(Arc::new(move |_| gate.load(Ordering::Relaxed)), Arc::new(move || now));
        let (queue, frames) = delivery.queue(SessionId(1));
        Fixture { open, inbox, queue, frames }
    }

    /// A frame that can be told apart by its retry delay.
    fn frame(epoch: u64, mark: u64) -> Frame {
        let kind = FrameKind::SessionEnding { reason: EndReason::Shutdown, retry_delay: Duration::from_secs(mark) };
        Frame { epoch: Epoch::from_u64(epoch), cursor: None, kind }
    }

    fn poll(frames: &mut Frames) -> Poll<Option<Result<Pulled, SessionError>>> {
        frames.poll_next(&mut Context::from_waker(&noop_waker()))
    }

    fn pulled(frames: &mut Frames) -> (u64, Frame) {
        match poll(frames) {
            Poll::Ready(Some(Ok(pulled))) => (pulled.sequence, pulled.frame),
            other => panic!("expected a frame, got {other:?}"),
        }
    }

    #[test]
    fn frames_come_in_order_and_each_pull_is_on_the_board() {
        let mut f = fixture();
        f.queue.push(frame(1, 1));
        f.queue.push(frame(0, 2));
        assert_eq!(pulled(&mut f.frames), (1, frame(1, 1)));
        assert_eq!(pulled(&mut f.frames), (2, frame(0, 2)));
        assert!(poll(&mut f.frames).is_pending());
        assert_eq!(f.inbox.board.take(), [(SessionId(1), Progress { frames: 2, closed: false })].into());
        assert!(f.inbox.board.take().is_empty());
    }

    #[test]
    fn a_closed_gate_withholds_the_frame_and_what_is_behind_it() {
        let mut f = fixture();
        f.queue.push(frame(1, 1));
        f.queue.push(frame(0, 2));
        f.open.store(false, Ordering::Relaxed);
        assert!(poll(&mut f.frames).is_pending());
        assert_eq!(f.queue.withdraw(), [frame(1, 1)]);
        // The withdrawn frame leaves no hole in the sequence.
        assert_eq!(pulled(&mut f.frames), (1, frame(0, 2)));
        assert!(f.queue.is_empty());
    }

    #[tokio::test]
    async fn a_gate_that_opens_lets_the_frame_out() {
        let f = fixture();
        f.open.store(false, Ordering::Relaxed);
        f.queue.push(frame(1, 1));
        let mut frames = f.frames;
        let mut polled = 0;
        let pulled = poll_fn(|cx| {
            polled += 1;
            let poll = frames.poll_next(cx);
            if poll.is_pending() {
                f.open.store(true, Ordering::Relaxed);
                f.queue.wake();
            }
            poll
        })
        .await;
        assert_eq!(pulled.unwrap().unwrap().frame, frame(1, 1));
        assert_eq!(polled, 2);
    }

    #[test]
    #[should_panic(expected = "invariant I11 broken")]
    fn a_third_frame_is_refused() {
        let f = fixture();
        (1..=3).for_each(|mark| f.queue.push(frame(0, mark)));
    }

    #[test]
    fn an_end_comes_after_what_is_queued_and_once() {
        let mut f = fixture();
        f.queue.push(frame(0, 1));
        f.queue.end(Some(SessionError::Superseded));
        f.queue.end(None);
        assert_eq!(pulled(&mut f.frames).0, 1);
        assert_eq!(poll(&mut f.frames), Poll::Ready(Some(Err(SessionError::Superseded))));
        assert_eq!(poll(&mut f.frames), Poll::Ready(None));
    }

    #[test]
    fn an_error_does_not_wait_for_frames_that_the_gate_holds_back() {
        let mut f = fixture();
        f.open.store(false, Ordering::Relaxed);
        f.queue.push(frame(1, 1));
        f.queue.push(frame(0, 2));
        f.queue.end(Some(SessionError::Superseded));
        assert_eq!(pulled(&mut f.frames), (1, frame(0, 2)));
        assert_eq!(poll(&mut f.frames), Poll::Ready(Some(Err(SessionError::Superseded))));
    }

    #[test]
    fn a_driver_that_goes_away_ends_the_stream() {
        let mut f = fixture();
        drop(f.queue.clone());
        assert!(poll(&mut f.frames).is_pending());
        drop(f.queue);
        assert_eq!(poll(&mut f.frames), Poll::Ready(Some(Err(SessionError::ShuttingDown))));
    }

    #[tokio::test]
    async fn a_stream_that_goes_away_is_on_the_board_and_takes_no_more() {
        let f = fixture();
        f.queue.push(frame(0, 1));
        drop(f.frames);
        timeout(Duration::from_secs(10), f.inbox.board.changed()).await.expect("a note on the board");
        assert_eq!(f.inbox.board.take(), [(SessionId(1), Progress { frames: 0, closed: true })].into());
        assert!(f.queue.is_abandoned() && f.queue.is_empty());
        (1..=5).for_each(|mark| f.queue.push(frame(0, mark)));
        assert!(f.queue.withdraw().is_empty());
    }

    #[tokio::test]
    async fn calls_fail_when_the_driver_is_gone() {
        let f = fixture();
        let (delivery, inbox) = Delivery::new(Arc::new(|_| true), Arc::new(|| unreachable!("nothing is stamped")));
        drop((f, inbox));
        assert_eq!(delivery.status().await, Err(Gone));
        assert_eq!(delivery.step_down(None, Duration::ZERO).await, Err(Gone));
    }
}
