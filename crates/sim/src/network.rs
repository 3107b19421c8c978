//! Between hosts and server: connections with delay, loss, cuts in either direction, and streams that go silent.
//!
//! Requests travel as the bytes that the shell would send, and are answered by the model. A request on its way may
//! arrive long after its sender has given it up: a write is then carried out all the same.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sidewatch_core::codec::lines::Lines;
use sidewatch_core::codec::status::{Failure, FailureKind};
use sidewatch_core::limits::WATCH_LINE_BYTES_MAX;
use sidewatch_core::{elector, feed};
use sidewatch_model::request::{Method, Request, Response};
use sidewatch_model::status as model_status;
use sidewatch_model::watch::{WatchId, error_line};

use crate::world::{Boot, Event, Heal, Nanos, World};

/// Number of the Lease among the watched types; before it stand the feeds.
pub(crate) const LEASES: usize = 2;

/// Names one connection; never used twice in a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ConnId(pub(crate) u64);

/// Who waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The elector, and what it asked.
    Elector(elector::RequestId, LeaseCall),
    /// A feed, and what it asked.
    Feed(usize, feed::RequestId, FeedCall),
}

/// Requests of the elector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeaseCall {
    /// GET.
    Read,
    /// PUT or POST.
    Write,
    /// WATCH.
    Watch,
}

/// Requests of a feed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FeedCall {
    /// Discovery.
    Resolve,
    /// One page.
    List,
    /// WATCH.
    Watch,
}

/// What comes back.
#[derive(Debug)]
pub(crate) enum Answer {
    /// From the server.
    Http(Response),
    /// From the transport.
    Failed(Failure),
}

/// How a stream ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// In order.
    Eof,
    /// By a broken connection.
    Reset,
    /// Nobody tells the client.
    Silent,
}

/// One request, or one watch.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) host: usize,
    pub(crate) boot: Boot,
    pub(crate) owner: Owner,
    /// Which type a watch shows.
    plural: usize,
    watch: Option<WatchId>,
    pub(crate) opened: bool,
    /// Set while the link is cut: the server's lines wait.
    stalled: bool,
    polling_soon: bool,
    turn: u64,
    arrived: Nanos,
    pub(crate) lines: Lines,
}

/// The way between one host and the server.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Link {
    up_cuts: u32,
    down_cuts: u32,
    /// Sending fails at once instead of going nowhere.
    refuses: bool,
    /// Delays of seconds.
    pub(crate) slow: bool,
}

impl Link {
    /// Whether anything is cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.up_cuts + self.down_cuts > 0
    }
}

/// All connections, and what is wrong with the server.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) conns: BTreeMap<ConnId, Conn>,
    conns_started: u64,
    pub(crate) links: Vec<Link>,
    /// Sent into a cut link, and sent again when it is mended.
    held: Vec<(usize, Event)>,
    /// Nobody reaches the server.
    pub(crate) outage: bool,
    /// Codes that some requests are answered with.
    pub(crate) storm: Option<[u16; 2]>,
    /// How many revisions old the lists are.
    pub(crate) staleness: u64,
    /// How many lines are still to be made undecodable.
    pub(crate) garble: u32,
}

impl Network {
    /// A network in which everything works.
    pub(crate) fn new(hosts: usize) -> Self {
        Self {
            conns: BTreeMap::new(),
            conns_started: 0,
            links: vec![Link::default(); hosts],
            held: Vec::new(),
            outage: false,
            storm: None,
            staleness: 0,
            garble: 0,
        }
    }
}

impl World {
    fn link_delay(&mut self, host: usize) -> Duration {
        if self.network.links[host].slow && self.happens(600) {
            return self.up_to(Duration::from_secs(8));
        }
        self.chance.between(Duration::from_micros(200), Duration::from_millis(8))
    }

    /// Sends a request; its owner gives it up after `timeout` of its own clock.
    pub(crate) fn send(&mut self, host: usize, owner: Owner, request: Request, timeout: Duration) {
        let Some(boot) = self.hosts[host].boot() else { return };
        self.network.conns_started += 1;
        let id = ConnId(self.network.conns_started);
        let plural = match owner {
            Owner::Elector(..) => LEASES,
            Owner::Feed(feed, ..) => feed,
        };
        let conn = Conn {
            host,
            boot,
            owner,
            plural,
            watch: None,
            opened: false,
            stalled: false,
            polling_soon: false,
            turn: 0,
            arrived: 0,
            lines: Lines::new(WATCH_LINE_BYTES_MAX),
        };
        self.trace(|_| format!("host {host} sends {owner:?} {:?} {}?{}", request.method, request.path, request.query));
        self.network.conns.insert(id, conn);
        let given_up = self.hosts[host].true_time(self.hosts[host].clock.boot(self.now) + timeout);
        self.at(given_up, Event::Deadline { conn: id });
        let delay = self.link_delay(host);
        let link = self.network.links[host];
        let arrive = Event::Arrive { conn: id, request: Box::new(request) };
        if link.up_cuts > 0 {
            if link.refuses {
                self.fail_soon(id, "no route to host");
            } else if self.happens(400) {
                self.network.held.push((host, arrive));
            }
        } else if self.network.outage {
            if self.happens(500) {
                self.fail_soon(id, "connection refused");
            }
        } else {
            self.after(delay, arrive);
        }
    }

    fn fail_soon(&mut self, conn: ConnId, why: &str) {
        let answer = Answer::Failed(Failure::new(FailureKind::Transport, why));
        self.after(Duration::from_millis(1), Event::Answer { conn, answer });
    }

    /// The host does not want the answers of a request any more.
    pub(crate) fn cancel(&mut self, host: usize, wanted: impl Fn(&Owner) -> bool) {
        let boot = self.hosts[host].boot();
        let conns = self.network.conns.iter();
        let ids: Vec<_> = conns
            .filter(|(_, conn)| conn.host == host && Some(conn.boot) == boot && wanted(&conn.owner))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.drop_conn(id);
        }
    }

    /// A process is gone, and its connections with it.
    pub(crate) fn drop_conns(&mut self, host: usize) {
        let of_host = self.network.conns.iter().filter(|(_, conn)| conn.host == host);
        let ids: Vec<_> = of_host.map(|(id, _)| *id).collect();
        for id in ids {
            self.drop_conn(id);
        }
    }

    fn drop_conn(&mut self, id: ConnId) -> Option<Conn> {
        let conn = self.network.conns.remove(&id)?;
        if let Some(watch) = conn.watch {
            self.server.drop_watch(watch);
        }
        Some(conn)
    }

    /// A request reaches the server.
    pub(crate) fn arrive(&mut self, id: ConnId, mut request: Request) {
        let writes = matches!(request.method, Method::Put | Method::Post);
        let conn = self.network.conns.get(&id);
        let (host, owner) = (conn.map(|conn| conn.host), conn.map(|conn| conn.owner));
        if !writes && host.is_none() {
            return;
        }
        if self.network.outage {
            return self.fail_soon(id, "connection reset");
        }
        let list = matches!(owner, Some(Owner::Feed(_, _, FeedCall::List)));
        let metadata_only = !request.accept.is_empty();
        if list && !metadata_only && self.happens(500) {
            // A read of X is a quorum read by contract; a page may come from a cache that lags.
            request.staleness = self.network.staleness;
        }
        let refusal = match self.network.storm {
            Some(codes) if self.chance.below(10) < 7 => Some(codes[self.chance.below(2) as usize]),
            Some(_) | None => None,
        };
        let response = match refusal {
            Some(code) => refused(code, self.chance.below(3) as u32),
            None => self.server.handle(Duration::from_nanos(self.now), self.wall_micros(), &request),
        };
        let status = match &response {
            Response::Complete { status, .. } => *status,
            Response::Watch(_) => 200,
        };
        self.mark(&[u64::from(status), self.server.revision(), request.body.len() as u64]);
        if writes && status < 300 {
            self.lease_written();
            self.touch(LEASES);
        }
        let Some(host) = host else { return };
        let delay = self.link_delay(host);
        if let (Response::Watch(watch), Some(conn)) = (&response, self.network.conns.get_mut(&id)) {
            conn.watch = Some(*watch);
        }
        let link = self.network.links[host];
        let answer = Event::Answer { conn: id, answer: Answer::Http(response) };
        if link.down_cuts > 0 {
            if let Some(conn) = self.network.conns.get_mut(&id) {
                conn.stalled = true;
            }
            if self.happens(400) {
                self.network.held.push((host, answer));
            }
        } else if self.faulty && self.profile != crate::faults::Profile::Calm && self.happens(8) {
            // The connection breaks before the answer: what was done is done.
            self.fail_soon(id, "connection reset");
        } else {
            let at = self.now + crate::world::nanos(delay);
            if let Some(conn) = self.network.conns.get_mut(&id) {
                conn.arrived = at;
            }
            self.at(at, answer);
            self.poll_after(id, delay);
        }
    }

    /// An answer reaches its host.
    pub(crate) fn answered(&mut self, id: ConnId, answer: Answer) {
        if let Answer::Http(Response::Watch(_)) = answer {
            let Some(conn) = self.network.conns.get_mut(&id) else { return };
            conn.opened = true;
            let (host, owner) = (conn.host, conn.owner);
            return self.watch_opened(host, owner);
        }
        let Some(conn) = self.drop_conn(id) else { return };
        self.trace(|_| match &answer {
            Answer::Http(Response::Complete { status, .. }) => {
                format!("host {} gets {status} for {:?}", conn.host, conn.owner)
            }
            other => format!("host {} gets {other:?} for {:?}", conn.host, conn.owner),
        });
        self.take_answer(conn.host, conn.owner, answer);
    }

    /// The shell's deadline of a request. An open watch has none of this kind.
    pub(crate) fn deadline(&mut self, id: ConnId) {
        if self.network.conns.get(&id).is_some_and(|conn| conn.opened) {
            return;
        }
        let Some(conn) = self.drop_conn(id) else { return };
        self.trace(|_| format!("host {} gives up {:?}", conn.host, conn.owner));
        let failure = Failure::new(FailureKind::Timeout, "no answer within the deadline");
        self.take_answer(conn.host, conn.owner, Answer::Failed(failure));
    }

    /// Something of a type was written: its watches have news.
    pub(crate) fn touch(&mut self, plural: usize) {
        let wanted = |conn: &Conn| conn.watch.is_some() && conn.plural == plural && !conn.polling_soon;
        let ids: Vec<_> = self.network.conns.iter().filter(|(_, conn)| wanted(conn)).map(|(id, _)| *id).collect();
        for id in ids {
            let delay = self.up_to(Duration::from_millis(15));
            if let Some(conn) = self.network.conns.get_mut(&id) {
                conn.polling_soon = true;
            }
            self.poll_after(id, delay);
        }
    }

    fn poll_after(&mut self, id: ConnId, delay: Duration) {
        let Some(conn) = self.network.conns.get_mut(&id).filter(|conn| conn.watch.is_some()) else { return };
        conn.turn += 1;
        let turn = conn.turn;
        self.after(delay, Event::Poll { conn: id, turn });
    }

    /// A watch sends what it has.
    pub(crate) fn poll(&mut self, id: ConnId, turn: u64) {
        let Some(conn) = self.network.conns.get_mut(&id).filter(|conn| conn.turn == turn) else { return };
        let Some(watch) = conn.watch else { return };
        conn.polling_soon = false;
        let host = conn.host;
        if self.network.links[host].down_cuts > 0 {
            conn.stalled = true;
            return;
        }
        if conn.stalled {
            return;
        }
        let now = Duration::from_nanos(self.now);
        let mut output = self.server.poll_watch(watch, now);
        if self.network.garble > 0 && !output.lines.is_empty() {
            self.network.garble -= 1;
            let line = self.chance.below(output.lines.len() as u64) as usize;
            let cut = output.lines[line].len() / 2;
            output.lines[line] = [&output.lines[line][..cut], b"\n"].concat().into();
        }
        let body: Bytes = output.lines.concat().into();
        if !body.is_empty() {
            let cut = if self.happens(200) { self.chance.below(body.len() as u64) as usize } else { 0 };
            for bytes in [body.slice(..cut), body.slice(cut..)] {
                if !bytes.is_empty() {
                    let at = self.arrival(id);
                    self.at(at, Event::Chunk { conn: id, bytes });
                }
            }
        }
        if output.closed {
            return self.end_watch(id, End::Eof);
        }
        let wake = self.server.next_wake(watch, now);
        self.poll_after(id, wake.saturating_sub(now).max(Duration::from_millis(1)));
    }

    /// When the next bytes of a stream arrive: in order.
    fn arrival(&mut self, id: ConnId) -> Nanos {
        let Some(host) = self.network.conns.get(&id).map(|conn| conn.host) else { return self.now };
        let at = self.now + crate::world::nanos(self.link_delay(host));
        match self.network.conns.get_mut(&id) {
            Some(conn) => {
                conn.arrived = conn.arrived.max(at);
                conn.arrived
            }
            None => at,
        }
    }

    /// The server's side of a watch ends.
    fn end_watch(&mut self, id: ConnId, end: End) {
        let at = self.arrival(id);
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        if let Some(watch) = conn.watch.take() {
            self.server.drop_watch(watch);
        }
        let cut = self.network.links[conn.host].down_cuts > 0;
        if end != End::Silent && !cut {
            self.at(at, Event::ChunkEnd { conn: id, end });
        }
    }

    fn watches_of(&self, host: Option<usize>) -> Vec<ConnId> {
        let watched = |conn: &Conn| conn.watch.is_some() && host.is_none_or(|host| conn.host == host);
        self.network.conns.iter().filter(|(_, conn)| watched(conn)).map(|(id, _)| *id).collect()
    }

    /// Watches of one host, or of all, end, each in the way that is drawn for it.
    pub(crate) fn end_watches(&mut self, host: Option<usize>, draw: impl Fn(&mut Self) -> End) {
        for id in self.watches_of(host) {
            let end = draw(self);
            self.end_watch(id, end);
        }
    }

    /// Some watches end with an ERROR event.
    pub(crate) fn end_watches_with_error(&mut self, code: u16) {
        for id in self.watches_of(None) {
            if self.happens(500) {
                continue;
            }
            let failure = match code {
                410 => model_status::Failure::expired_watch(1, self.server.revision()),
                429 => model_status::Failure::too_many_requests(1),
                504 => model_status::Failure::too_large_version(self.server.revision() + 9, self.server.revision()),
                other => model_status::Failure::new(other, "InternalError", "the storage could not be read"),
            };
            let at = self.arrival(id);
            self.at(at, Event::Chunk { conn: id, bytes: error_line(&failure) });
            self.end_watch(id, End::Eof);
        }
    }

    /// The API server restarts on the same etcd.
    pub(crate) fn restart_server(&mut self) {
        self.end_watches(None, |world| match world.chance.below(10) {
            0 => End::Silent,
            1..=4 => End::Eof,
            _ => End::Reset,
        });
        self.server.restart(Duration::from_nanos(self.now));
    }

    /// Cuts the link of a host for a while.
    pub(crate) fn cut(&mut self, host: usize, up: bool, down: bool, lasts: Duration) {
        let refuses = self.happens(300);
        let link = &mut self.network.links[host];
        link.up_cuts += u32::from(up);
        link.down_cuts += u32::from(down);
        link.refuses = refuses && up;
        self.after(lasts, Event::Heal(Heal::Link { host, up, down }));
    }

    /// A cut ends: what was sent again and again meanwhile arrives, streams go on, break, or have gone silent.
    pub(crate) fn mend(&mut self, host: usize, up: bool, down: bool) {
        let link = &mut self.network.links[host];
        link.up_cuts = link.up_cuts.saturating_sub(u32::from(up));
        link.down_cuts = link.down_cuts.saturating_sub(u32::from(down));
        if link.is_cut() {
            return;
        }
        let (again, held) = std::mem::take(&mut self.network.held).into_iter().partition(|(of, _)| *of == host);
        self.network.held = held;
        let again: Vec<(usize, Event)> = again;
        for (_, event) in again {
            let delay = self.up_to(Duration::from_secs(3));
            self.after(delay, event);
        }
        let stalled = |conn: &Conn| conn.host == host && conn.stalled;
        let ids: Vec<_> = self.network.conns.iter().filter(|(_, conn)| stalled(conn)).map(|(id, _)| *id).collect();
        for id in ids {
            match self.chance.below(10) {
                0 => self.end_watch(id, End::Silent),
                1..=4 => self.end_watch(id, End::Reset),
                _ => {
                    let delay = self.up_to(Duration::from_secs(3));
                    if let Some(conn) = self.network.conns.get_mut(&id) {
                        conn.stalled = false;
                    }
                    self.poll_after(id, delay);
                }
            }
        }
    }
}

fn refused(code: u16, wait_seconds: u32) -> Response {
    let failure = match code {
        429 => model_status::Failure::too_many_requests(wait_seconds),
        401 => model_status::Failure::new(401, "Unauthorized", "Unauthorized"),
        403 => model_status::Failure::new(403, "Forbidden", "forbidden: a right is missing"),
        other => model_status::Failure::new(other, "ServiceUnavailable", "the server is currently unable to handle it"),
    };
    Response::Complete {
        status: failure.code,
        content_type: sidewatch_model::request::JSON,
        body: failure.body(),
        retry_after: failure.retry_after,
    }
}
