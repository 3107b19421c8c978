//! Every bound in one place, with its unit and its source.

use std::time::Duration;

/// The largest message that all five stock gRPC clients accept by default: grpcio, grpc-go, grpc-java, grpc-js, tonic.
pub const GRPC_MESSAGE_BYTES_MAX: usize = 4 << 20;
/// The largest frame a session may ask for: the client's limit less room for the envelope.
pub const FRAME_BYTES_MAX: usize = GRPC_MESSAGE_BYTES_MAX - (64 << 10);
/// The smallest frame a session may ask for: identity, versions and two references of one event fit in it.
pub const FRAME_BYTES_MIN: usize = 16 << 10;
/// Events in one frame unless the client asks for less.
pub const BATCH_EVENTS_MAX: usize = 256;
/// Frames that a session may have handed to its stream and that HTTP/2 has not pulled: keeps the fence tight (I11).
pub const FRAMES_QUEUED_MAX: usize = 2;
/// Events delivered to a durable subscription and not acked before delivery pauses.
pub const UNACKED_EVENTS_MAX_DEFAULT: u32 = 1000;
/// Names in one path of a field mask: a mask is walked by recursion, and a stack that overflows ends the process. Types of
/// Kubernetes nest about a dozen deep.
pub const FIELD_PATH_STEPS_MAX: usize = 64;
/// Durable subscriptions of one sidecar: each costs a position per feed in the checkpoint.
pub const SUBSCRIPTIONS_MAX: usize = 16;

/// Interval of heartbeats on a quiet stream.
pub const HEARTBEAT_INTERVAL_DEFAULT: Duration = Duration::from_secs(10);
/// The shortest heartbeat interval a client may ask for.
pub const HEARTBEAT_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Bytes of journal over all feeds unless configured.
pub const JOURNAL_BYTES_DEFAULT: usize = 64 << 20;
/// The smallest journal that can hold one event of the largest object with its old state.
pub const JOURNAL_BYTES_MIN: usize = 8 << 20;
/// Memory of a journal entry besides the bodies it alone keeps (measured by `journal::tests`).
pub const JOURNAL_ENTRY_BYTES: usize = 240;

/// The longest line of a watch, and the largest page of a list, that is read: an object is at most
/// 1.5 MiB in etcd by default, its JSON can be several times that.
pub const WATCH_LINE_BYTES_MAX: usize = 32 << 20;
/// Objects in one page of a list (client-go's and kube's page size).
pub const LIST_PAGE_OBJECTS: u32 = 500;
/// Bytes of one list page that are read before it is given up as too large.
pub const LIST_PAGE_BYTES_MAX: usize = 512 << 20;

/// Shortest and longest `timeoutSeconds` of a watch: below kube's 295 s, spread so that feeds do not reopen together.
pub const WATCH_TIMEOUT: (Duration, Duration) = (Duration::from_secs(240), Duration::from_secs(290));
/// `timeoutSeconds` of a watch that shall bring a bookmark soon: the API server sends one two seconds before the end.
pub const WATCH_TIMEOUT_TO_HORIZON: Duration = Duration::from_secs(3);
/// How long a watch that has shown bookmarks may be silent: two periods of the API server's one minute, plus 10 s.
pub const WATCH_SILENCE_MAX: Duration = Duration::from_secs(130);
/// How long a streaming list may go without an event before it is given up.
pub const STREAMING_LIST_SILENCE_MAX: Duration = Duration::from_secs(60);
/// Deadline of a list page and of a discovery request.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Deadline of the first byte of a watch, and of the server's acceptance of it.
pub const WATCH_OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long after `timeoutSeconds` a watch that the server has not ended is ended from here.
pub const WATCH_END_GRACE: Duration = Duration::from_secs(5);
/// How much later than the shell a machine gives up a request by itself: the shell's answer should come first.
pub const ANSWER_GRACE: Duration = Duration::from_secs(5);
/// How long a feed must have been failing before it counts as disconnected (failure catalogue, row 7).
pub const DISCONNECTED_AFTER: Duration = Duration::from_secs(10);
/// The longest `Retry-After` that is followed: a larger one is more likely a fault than a wish.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);
/// First, and longest, delay between two tries of one feed (client-go's reflector: 800 ms to 30 s).
pub const BACKOFF: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(30));
/// Shortest time of health after which the delays start from the beginning.
pub const BACKOFF_RESET_MIN: Duration = Duration::from_secs(5);
/// Least time between two starts of a watch of one feed.
pub const WATCH_START_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// How long the absence of a type must be confirmed before its objects count as deleted (Rule D.2-7).
pub const TYPE_ABSENT_CONFIRMATION: Duration = Duration::from_secs(60);

/// Duration of the Lease.
pub const LEASE_DURATION_DEFAULT: Duration = Duration::from_secs(15);
/// How long after *sending* a successful renewal a leader may emit.
pub const RENEW_DEADLINE_DEFAULT: Duration = Duration::from_secs(10);
/// Time between two renewals.
pub const RETRY_PERIOD_DEFAULT: Duration = Duration::from_secs(2);
/// Deadline of one Lease request.
pub const LEASE_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest deadline of a renewal when little is left of the leadership: a shorter one would only cancel writes that
/// could still end a suspension.
pub const LEASE_REQUEST_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// How long an orderly release is tried: the kubelet leaves a sidecar two seconds when the application used up the grace period.
pub const LEASE_RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// `leaseDurationSeconds` of a released Lease: the smallest that the API accepts.
pub const LEASE_DURATION_RELEASED: Duration = Duration::from_secs(1);
/// How long a candidate that never saw the Lease waits before it creates it: two seconds, so that the creation time,
/// which counts seconds, and with it the epoch moves on.
pub const LEASE_CREATE_DELAY: Duration = Duration::from_secs(2);
/// How long candidates spread their writes after a release: short, since an empty holder means nobody leads.
pub const LEASE_RELEASED_JITTER: Duration = Duration::from_millis(50);
/// Least time between two Lease writes when a checkpoint waits.
pub const CHECKPOINT_INTERVAL_MIN: Duration = Duration::from_millis(250);
/// Annotations of one object may hold 256 KiB together (apimachinery `TotalAnnotationSizeLimitB`); ours keep to this.
pub const CHECKPOINT_BYTES_MAX: usize = 48 << 10;
/// How far the wall clock may run ahead of the boot clock between two ticks before a pause of the machine is suspected.
pub const WALL_CLOCK_JUMP: Duration = Duration::from_secs(2);

const _: () = assert!(FRAME_BYTES_MIN < FRAME_BYTES_MAX && FRAME_BYTES_MAX < GRPC_MESSAGE_BYTES_MAX);
const _: () = assert!(JOURNAL_BYTES_MIN <= JOURNAL_BYTES_DEFAULT);
const _: () = assert!(WATCH_TIMEOUT.0.as_secs() < WATCH_TIMEOUT.1.as_secs());
const _: () = assert!(2 * LEASE_DURATION_DEFAULT.as_millis() >= 3 * RENEW_DEADLINE_DEFAULT.as_millis());
const _: () = assert!(2 * RENEW_DEADLINE_DEFAULT.as_millis() >= 5 * RETRY_PERIOD_DEFAULT.as_millis());
