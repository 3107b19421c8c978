//! Where clients connect: loopback TCP, and a Unix socket in a volume that both containers mount.
//!
//! A socket file outlives its process, so binding needs care: the lock beside it says whether another sidecar lives,
//! a connect says whether anything else does, and only a socket that nobody serves is removed. The mode is set between
//! bind and listen, when nobody can have connected.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{Stream, stream};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::grpc::authority::AuthorityShim;

/// Connections that wait to be accepted (the backlog of std and tokio).
const BACKLOG: u32 = 1024;
/// Pause after a failed accept: with no file descriptor left, accepting again at once would only burn CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A Unix socket to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnixAddress {
    /// Where the socket file is made; at most 107 bytes.
    pub path: PathBuf,
    /// Mode of the socket file, e.g. 0o660: who may write may connect.
    pub mode: u32,
}

/// Why a listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The TCP address cannot be bound.
    #[error("cannot listen on {address}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Another process serves the socket.
    #[error("{}: another process serves this socket; give each sidecar a path of its own", path.display())]
    Alive {
        /// The socket's path.
        path: PathBuf,
    },
    /// Something that is not a socket is in the way. It is never removed.
    #[error("{}: is there and is not a socket; remove it or choose another path", path.display())]
    NotSocket {
        /// The path.
        path: PathBuf,
    },
    /// A step of making the socket failed.
    #[error("{}: cannot {step}", path.display())]
    Unix {
        /// The path concerned.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// A bound TCP address.
#[derive(Debug)]
pub struct Tcp {
    listener: TcpListener,
    address: SocketAddr,
}

impl Tcp {
    /// Binds; port 0 lets the system choose. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ListenError::Tcp`] when the address is taken or not ours.
    pub async fn bind(address: SocketAddr) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Tcp { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        info!(listener = "grpc", %address, "listening");
        Ok(Self { listener, address })
    }

    /// The address with its real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections, without end.
    pub fn incoming(self) -> impl Stream<Item = io::Result<TcpStream>> + Send {
        stream::unfold(self, |tcp| async move {
            let connection = accepted("grpc", || tcp.listener.accept()).await.0;
            // A single event must not wait for the acknowledgement of the one before. A connection on which this
            // fails is broken and ends by itself.
            let _ = connection.set_nodelay(true);
            Some((Ok(connection), tcp))
        })
    }
}

/// A bound Unix socket. Its file is removed when this is dropped, if it is still ours.
#[derive(Debug)]
pub struct Unix {
    listener: UnixListener,
    _file: SocketFile,
}

impl Unix {
    /// Makes the socket file and listens, in place of a stale one. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ListenError`] when the path is in use, is no socket, or cannot be made.
    pub fn bind(address: &UnixAddress) -> Result<Self, ListenError> {
        let path = &address.path;
        let failed = |step| move |source| ListenError::Unix { path: path.clone(), step, source };
        let lock = lock(path)?;
        remove_stale(path)?;
        let socket = UnixSocket::new_stream().map_err(failed("make a socket"))?;
        socket.bind(path).map_err(failed("bind the socket"))?;
        let file = SocketFile::of(path.clone(), lock).map_err(failed("look at the new socket"))?;
        // Nobody can connect before `listen`, so no mode but this one is ever in force.
        fs::set_permissions(path, Permissions::from_mode(address.mode)).map_err(failed("set the socket's mode"))?;
        let listener = socket.listen(BACKLOG).map_err(failed("listen on the socket"))?;
        info!(listener = "unix", address = %path.display(), "listening");
        Ok(Self { listener, _file: file })
    }

    /// Connections, without end, fit for clients that send the path as `:authority`.
    pub fn incoming(self) -> impl Stream<Item = io::Result<AuthorityShim<UnixStream>>> + Send {
        stream::unfold(self, |unix| async move {
            let connection = accepted("unix", || unix.listener.accept()).await.0;
            Some((Ok(AuthorityShim::new(connection)), unix))
        })
    }
}

/// The next connection, however many accepts fail before.
async fn accepted<T, F: Future<Output = io::Result<T>>>(listener: &'static str, accept: impl Fn() -> F) -> T {
    loop {
        match accept().await {
            Ok(connection) => return connection,
            Err(error) => {
                warn!(listener, %error, "accept failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A socket file that this process has made.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode: another file at the same path is not ours.
    identity: (u64, u64),
    /// Held until the file is gone. The lock file itself stays: to remove it would let two processes hold "the" lock.
    _lock: File,
}

impl SocketFile {
    fn of(path: PathBuf, lock: File) -> io::Result<Self> {
        Ok(Self { identity: identity(&path)?, path, _lock: lock })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|there| there == self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            warn!(path = %self.path.display(), %error, "socket file not removed");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Takes the lock beside the socket, which the kernel frees when the process ends in whatever way.
fn lock(path: &Path) -> Result<File, ListenError> {
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&lock_path)
        .map_err(|source| ListenError::Unix { path: lock_path.clone(), step: "open the lock file", source })?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(ListenError::Alive { path: path.to_owned() }),
        Err(errno) => Err(ListenError::Unix { path: lock_path, step: "take the lock", source: errno.into() }),
    }
}

/// Removes a socket that nobody serves.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let failed = |step| move |source| ListenError::Unix { path: path.to_owned(), step, source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at what is there")(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ListenError::NotSocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match probe(path) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed("remove the stale socket")),
        Err(Errno::NOENT) => Ok(()),
        // A full backlog, a socket of another type: somebody is there.
        Ok(()) | Err(Errno::WOULDBLOCK | Errno::PROTOTYPE) => Err(ListenError::Alive { path: path.to_owned() }),
        Err(errno) => Err(failed("find out whether the socket is served")(errno.into())),
    }
}

/// Connects without ever waiting.
fn probe(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as StdUnixListener;

    use super::*;

    /// A directory of its own per test, removed at the end.
    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sw-{}-{test}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn address(&self, mode: u32) -> UnixAddress {
            UnixAddress { path: self.0.join("s.sock"), mode }
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[tokio::test]
    async fn the_socket_has_its_mode_and_is_removed_at_the_end() {
        let directory = Directory::new("mode");
        for mode in [0o660, 0o777, 0o600] {
            let address = directory.address(mode);
            let unix = Unix::bind(&address).unwrap();
            let metadata = fs::symlink_metadata(&address.path).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o7777, mode);
            assert_eq!(probe(&address.path), Ok(()));
            drop(unix);
            assert!(!address.path.exists());
        }
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced() {
        let directory = Directory::new("stale");
        let address = directory.address(0o660);
        drop(StdUnixListener::bind(&address.path).unwrap());
        assert!(address.path.exists(), "std leaves the file");
        let unix = Unix::bind(&address).unwrap();
        assert_eq!(probe(&address.path), Ok(()));
        drop(unix);
    }

    #[tokio::test]
    async fn a_live_socket_of_another_sidecar_is_left_alone() {
        let directory = Directory::new("alive");
        let address = directory.address(0o660);
        let first = Unix::bind(&address).unwrap();
        let second = Unix::bind(&address).unwrap_err();
        assert!(matches!(second, ListenError::Alive { .. }), "{second:?}");
        assert_eq!(probe(&address.path), Ok(()));
        drop(first);
        Unix::bind(&address).unwrap();
    }

    #[tokio::test]
    async fn a_sidecar_that_is_about_to_listen_is_left_alone() {
        let directory = Directory::new("lock");
        let address = directory.address(0o660);
        let held = lock(&address.path).unwrap();
        assert!(matches!(Unix::bind(&address), Err(ListenError::Alive { .. })));
        drop(held);
        Unix::bind(&address).unwrap();
    }

    #[tokio::test]
    async fn a_live_socket_of_anything_else_is_left_alone() {
        let directory = Directory::new("other");
        let address = directory.address(0o660);
        let _other = StdUnixListener::bind(&address.path).unwrap();
        let error = Unix::bind(&address).unwrap_err();
        assert!(error.to_string().contains("another process serves this socket"), "{error}");
    }

    #[tokio::test]
    async fn what_is_not_a_socket_is_never_removed() {
        let directory = Directory::new("file");
        let address = directory.address(0o660);
        fs::write(&address.path, "precious").unwrap();
        assert!(matches!(Unix::bind(&address), Err(ListenError::NotSocket { .. })));
        assert_eq!(fs::read(&address.path).unwrap(), b"precious");
        fs::remove_file(&address.path).unwrap();
        std::os::unix::fs::symlink("/nowhere", &address.path).unwrap();
        assert!(matches!(Unix::bind(&address), Err(ListenError::NotSocket { .. })));
    }

    #[tokio::test]
    async fn a_socket_that_somebody_replaced_is_not_removed() {
        let directory = Directory::new("replaced");
        let address = directory.address(0o660);
        let unix = Unix::bind(&address).unwrap();
        fs::rename(&address.path, directory.0.join("kept-so-that-the-inode-is-not-used-again")).unwrap();
        let _other = StdUnixListener::bind(&address.path).unwrap();
        drop(unix);
        assert_eq!(probe(&address.path), Ok(()));
    }

    #[tokio::test]
    async fn a_path_that_cannot_be_made_is_an_error_with_the_path() {
        let directory = Directory::new("missing");
        let address = UnixAddress { path: directory.0.join("missing/s.sock"), mode: 0o660 };
        let error = Unix::bind(&address).unwrap_err();
        assert!(error.to_string().contains("missing/s.sock"), "{error}");
        let address = UnixAddress { path: directory.0.join("x".repeat(120)), mode: 0o660 };
        assert!(matches!(Unix::bind(&address), Err(ListenError::Unix { step: "bind the socket", .. })));
    }

    #[tokio::test]
    async fn a_taken_port_is_an_error_with_the_address() {
        let tcp = Tcp::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        assert_ne!(tcp.address().port(), 0);
        let error = Tcp::bind(tcp.address()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("cannot listen on {}", tcp.address()));
    }
}
