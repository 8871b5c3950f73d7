//! Calls and regions on mapped memory: pass requests to the receiver's queue, or over Unix sockets to its process.
//!
//! Within one process a call goes straight into the receiver's queue. Between processes it goes over a
//! Unix socket in the pool's folder.
//!
//! ```text
//! <folder>/calls/<life>   the socket at which the compute server of that life listens
//! ```
//!
//! A socket speaks the bytes of `docs/design/wire.md`: a greeting, then calls one way and replies the other.
//! Each thread has a connection of its own to each peer that it calls. A connection has two threads at
//! either end, which sleep while nothing comes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::folder::is_dead;
use crate::calls::{
    Admission, CallLink, OwnRegion, PeerCalls, Replies, Reply, Requests, check_number,
    exposed_twice, promise,
};
use crate::local::OwnRegionCell;
use crate::sync::lock;
use crate::tcp::wire::{
    ANSWER_BYTES, GREETING_BYTES, GreetingStatus, Hello, REQUEST_BYTES, Request, RequestKind,
    Status, VERSION, Welcome, call_head, called, decode_answer, decode_reply, reply_head,
};
use crate::wake::Notify;
use crate::{
    CallError, FabricError, GlobalAddr, Incarnation, OpError, OpErrorKind, Peer, ServerId,
    ServiceId, Words, access,
};

/// Time within which a side has to greet.
const GREETING_TIME: Duration = Duration::from_secs(2);
/// Longest wait for a side that takes no reply.
const SEND_TIME: Duration = Duration::from_secs(10);
/// Bytes that are gathered before they are written.
const BUFFER_BYTES: usize = 64 << 10;
/// Longest path of a socket that the system takes.
const SOCKET_PATH_MAX: usize = 100;

/// The compute servers of one process.
pub(super) type Receivers = Mutex<BTreeMap<Incarnation, LocalPeer>>;

/// A compute server of this process, as the others reach it.
#[derive(Clone)]
pub(super) struct LocalPeer {
    /// Queues of its calls.
    pub(super) requests: Arc<Requests>,
    /// Memory that it exposes.
    pub(super) region: Option<Arc<Words>>,
}

/// One compute server's side of calls and regions.
#[derive(Default)]
pub(super) struct MappedCalls {
    pub(super) requests: Arc<Requests>,
    pub(super) own: OwnRegionCell,
    state: Mutex<CallsState>,
    /// Changes with the peers, and with what is known of their deaths.
    version: AtomicU64,
}

#[derive(Default)]
struct CallsState {
    peers: BTreeMap<ServerId, Peer>,
    /// Lives that this compute server was told are dead.
    dead: BTreeSet<Incarnation>,
    /// Regions of peers that this process has mapped.
    regions: BTreeMap<Incarnation, Arc<Words>>,
    /// Of each thread.
    links: BTreeMap<(ServerId, u64), Arc<CallLink>>,
    /// The last connection of each thread to each life.
    numbers: BTreeMap<(Incarnation, u64), Arc<AtomicU64>>,
    listener: Option<CallListener>,
}

/// Memory that the number of a compute server stands for.
#[derive(Clone)]
pub(super) enum PeerRegion {
    /// There is none.
    None,
    /// It cannot be reached, and nobody has said why.
    Away,
    /// Its life has ended.
    Gone(Incarnation),
    Words(Arc<Words>),
}

impl CallsState {
    /// Lets go of the memory of lives that no number stands for.
    fn forget_regions(&mut self) {
        let peers = &self.peers;
        self.regions.retain(|who, _| peers.values().any(|peer| peer.incarnation == *who));
        self.dead.retain(|who| peers.values().any(|peer| peer.incarnation == *who));
    }

    fn number(&mut self, peer: Peer, thread: u64) -> Arc<AtomicU64> {
        Arc::clone(self.numbers.entry((peer.incarnation, thread)).or_default())
    }
}

impl MappedCalls {
    /// Takes requests in, over a socket if there is a folder, and exposes `region`.
    pub(super) fn expose(
        &self,
        number: ServerId,
        region: Option<Arc<Words>>,
        me: Incarnation,
        folder: Option<&Arc<Path>>,
    ) -> Result<(), FabricError> {
        if self.requests.is_open() {
            return Err(exposed_twice());
        }
        let listener =
            folder.map(|folder| CallListener::start(me, folder, &self.requests)).transpose()?;
        if !self.requests.open() {
            return Err(exposed_twice());
        }
        lock(&self.state).listener = listener;
        if let Some(words) = region {
            let _ = self.own.set(OwnRegion { number, words });
            self.version.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// See [`CallsState::peers`] and [`CallsState::dead`].
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The memory that `server` stands for now. `map` maps that of a peer whose memory this process has not
    /// used.
    pub(super) fn region(
        &self,
        server: ServerId,
        me: Incarnation,
        map: impl FnOnce(Peer) -> Option<Arc<Words>>,
    ) -> PeerRegion {
        let own = self.own.get().filter(|own| own.number == server);
        let mut state = lock(&self.state);
        let peer = match state.peers.get(&server).copied() {
            Some(peer) if peer.incarnation != me => peer,
            _ => {
                return own
                    .map_or(PeerRegion::None, |own| PeerRegion::Words(Arc::clone(&own.words)));
            }
        };
        let who = peer.incarnation;
        if state.dead.contains(&who) {
            return PeerRegion::Gone(who);
        }
        if peer.region_bytes == 0 {
            return PeerRegion::None;
        }
        if let Some(words) = state.regions.get(&who) {
            return PeerRegion::Words(Arc::clone(words));
        }
        let Some(words) = map(peer).filter(|words| words.bytes() == peer.region_bytes) else {
            return PeerRegion::Away;
        };
        state.regions.insert(who, Arc::clone(&words));
        PeerRegion::Words(words)
    }

    pub(super) fn peer(&self, server: ServerId) -> Result<Peer, OpError> {
        let peer = lock(&self.state).peers.get(&server).copied();
        peer.ok_or_else(|| access::out_of_bounds(None, GlobalAddr::new(server, 0), 0))
    }

    /// Ends all links to a life that is gone, or attached no more.
    fn end_links(&self, server: ServerId, who: Incarnation) {
        let ended = self.take_links(server);
        ended.iter().for_each(|link| link.end(OpErrorKind::Gone { who }));
    }

    fn take_links(&self, server: ServerId) -> Vec<Arc<CallLink>> {
        let mut state = lock(&self.state);
        let taken = state.links.extract_if(.., |(to, _), _| *to == server);
        taken.map(|(_, link)| link).collect()
    }

    /// `who` is dead: no reply of it is taken any more (F12.6).
    pub(super) fn told_dead(&self, who: Incarnation) {
        let servers: Vec<_> = {
            let mut state = lock(&self.state);
            let dead = state.peers.values().filter(|peer| peer.incarnation == who);
            let servers: Vec<_> = dead.map(|peer| peer.server).collect();
            if !servers.is_empty() && state.dead.insert(who) {
                state.regions.remove(&who);
                self.version.fetch_add(1, Ordering::Release);
            }
            servers
        };
        let links = servers.into_iter().flat_map(|server| self.take_links(server));
        links.for_each(|link| link.peer_died());
    }

    /// Gives up a thread's link (F12.4). A new one is made by the next call. Returns the place for the
    /// number of its connection.
    pub(super) fn give_up_link(&self, peer: Peer, thread: u64) -> Arc<AtomicU64> {
        let (link, number) = {
            let mut state = lock(&self.state);
            (state.links.remove(&(peer.server, thread)), state.number(peer, thread))
        };
        link.into_iter().for_each(|link| link.end(OpErrorKind::Timeout));
        number
    }

    /// See [`crate::Endpoint::call`]. `link` makes a link to a peer's life.
    pub(super) async fn call(
        &self,
        to: ServerId,
        thread: u64,
        service: ServiceId,
        request: Vec<u8>,
        link: impl FnOnce(Peer, Arc<AtomicU64>) -> Option<Arc<CallLink>>,
    ) -> Result<Vec<u8>, CallError> {
        let link = {
            let mut state = lock(&self.state);
            let Some(peer) = state.peers.get(&to).copied() else { return Err(CallError::NotBegun) };
            let key = (to, thread);
            match state.links.get(&key).filter(|link| !link.is_ended()) {
                Some(link) => Arc::clone(link),
                None => {
                    let number = state.number(peer, thread);
                    let Some(link) = link(peer, number) else { return Err(CallError::NotBegun) };
                    state.links.insert(key, Arc::clone(&link));
                    link
                }
            }
        };
        link.call(service, request).await
    }

    /// Takes nothing in any more, and ends what is under way: this life is over.
    pub(super) fn end(&self) {
        self.requests.close();
        let (links, listener) = {
            let mut state = lock(&self.state);
            (std::mem::take(&mut state.links), state.listener.take())
        };
        links.into_values().for_each(|link| link.end(OpErrorKind::Unavailable));
        drop(listener);
    }
}

impl PeerCalls for MappedCalls {
    fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }

    fn attach(&self, peer: Peer) -> Result<(), FabricError> {
        check_number(peer.server)?;
        let before = {
            let mut state = lock(&self.state);
            let before = state.peers.insert(peer.server, peer);
            state.forget_regions();
            before
        };
        self.version.fetch_add(1, Ordering::Release);
        if let Some(before) = before.filter(|before| before.incarnation != peer.incarnation) {
            self.end_links(before.server, before.incarnation);
        }
        Ok(())
    }

    fn detach(&self, server: ServerId) {
        let before = {
            let mut state = lock(&self.state);
            let before = state.peers.remove(&server);
            state.forget_regions();
            before
        };
        self.version.fetch_add(1, Ordering::Release);
        if let Some(before) = before {
            self.end_links(server, before.incarnation);
        }
    }

    fn peers(&self) -> Vec<Peer> {
        lock(&self.state).peers.values().copied().collect()
    }

    fn peer_of(&self, who: Incarnation) -> Option<Peer> {
        lock(&self.state).peers.values().find(|peer| peer.incarnation == who).copied()
    }
}

/// The folder of sockets, and what leads to one in it, however long its path is.
struct Socket {
    path: PathBuf,
    /// Open while `path` leads through it.
    _folder: Option<File>,
}

impl Socket {
    fn of(folder: &Path, who: Incarnation) -> io::Result<Socket> {
        let calls = folder.join("calls");
        let path = calls.join(who.to_string());
        if path.as_os_str().len() <= SOCKET_PATH_MAX {
            return Ok(Socket { path, _folder: None });
        }
        let open = File::open(&calls)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{who}", open.as_raw_fd()));
        Ok(Socket { path, _folder: Some(open) })
    }
}

/// A compute server that listens at its socket, until it is dropped.
struct CallListener {
    path: PathBuf,
    shared: Arc<SocketServer>,
    thread: Option<JoinHandle<()>>,
}

/// State that a listener's connections share.
struct SocketServer {
    me: Incarnation,
    folder: Arc<Path>,
    requests: Arc<Requests>,
    is_closed: AtomicBool,
    count: AtomicU64,
    /// Open connections by number: their replies, and their sockets.
    open: Mutex<BTreeMap<u64, (Arc<Replies>, UnixStream)>>,
}

impl CallListener {
    fn start(
        me: Incarnation,
        folder: &Arc<Path>,
        requests: &Arc<Requests>,
    ) -> Result<CallListener, FabricError> {
        let calls = folder.join("calls");
        let path = calls.join(me.to_string());
        let failed = FabricError::io("listen at", &path);
        fs::create_dir_all(&calls).map_err(&failed)?;
        remove_dead(folder, &calls);
        let socket = Socket::of(folder, me).map_err(&failed)?;
        let listener = UnixListener::bind(&socket.path).map_err(&failed)?;
        let shared = Arc::new(SocketServer {
            me,
            folder: Arc::clone(folder),
            requests: Arc::clone(requests),
            is_closed: AtomicBool::new(false),
            count: AtomicU64::new(0),
            open: Mutex::default(),
        });
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("farleaf-calls".to_owned())
            .spawn(move || accept(&own, &listener))
            .map_err(&failed)?;
        Ok(CallListener { path: path.clone(), shared, thread: Some(thread) })
    }
}

/// Removes the sockets, or other files, of lives that are gone. If one cannot be removed now, the next caller
/// tries again.
pub(super) fn remove_dead(folder: &Path, calls: &Path) {
    let Ok(entries) = fs::read_dir(calls) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let life = name.to_str().and_then(|name| u64::from_str_radix(name, 16).ok());
        if life.is_some_and(|life| is_dead(folder, Incarnation(life))) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl Drop for CallListener {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        let socket = Socket::of(&self.shared.folder, self.shared.me);
        // Ends the wait for the next connection.
        let is_woken = socket.is_ok_and(|socket| UnixStream::connect(&socket.path).is_ok());
        let _ = fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take().filter(|_| is_woken) {
            // One that panicked has said so.
            let _ = thread.join();
        }
        for (replies, stream) in lock(&self.shared.open).values() {
            replies.close();
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(server: &Arc<SocketServer>, listener: &UnixListener) {
    loop {
        let accepted = listener.accept();
        if server.is_closed.load(Ordering::SeqCst) {
            return;
        }
        let Ok((stream, _)) = accepted else {
            // Too many open files, most likely.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let own = Arc::clone(server);
        // If there is no thread for it, or the other side breaks the protocol, the connection is closed.
        let _ = thread::Builder::new().name("farleaf-calls-in".to_owned()).spawn(move || {
            let _ = serve(&own, stream);
        });
    }
}

/// Decides whether a connection's requests may begin: only the dead are fenced here, and all processes see
/// their deaths at once.
struct LivingSenders(Arc<Path>);

impl Admission for LivingSenders {
    fn may_begin(&self, from: Incarnation) -> bool {
        !is_dead(&self.0, from)
    }

    fn holds_lease(&self) -> bool {
        true
    }
}

/// One connection, to its end.
fn serve(server: &Arc<SocketServer>, mut stream: UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(GREETING_TIME))?;
    stream.set_write_timeout(Some(SEND_TIME))?;
    let mut bytes = [0; GREETING_BYTES];
    stream.read_exact(&mut bytes)?;
    let hello = Hello::decode(&bytes).ok_or(io::ErrorKind::InvalidData)?;
    let mut welcome = Welcome {
        version: VERSION,
        server: hello.server,
        servers: hello.servers,
        ..Welcome::default()
    };
    let from = Incarnation(hello.incarnation);
    if hello.version != VERSION {
        welcome.status = GreetingStatus::OtherVersion;
    } else if Incarnation(hello.meant) != server.me {
        welcome.status = GreetingStatus::OtherServer;
    } else if is_dead(&server.folder, from) {
        welcome.status = GreetingStatus::Fenced;
    }
    // One signal stands for all replies until the writer takes it, and for the end.
    let (raise, raised) = sync_channel(1);
    let signal: Notify = Arc::new(move || {
        let _ = raise.try_send(());
    });
    let admission = Box::new(LivingSenders(Arc::clone(&server.folder)));
    // Its sender then knows that nothing was begun.
    let replies = server
        .requests
        .connection(admission, Arc::clone(&signal))
        .ok_or(io::ErrorKind::ConnectionRefused)?;
    let is_in = welcome.status == GreetingStatus::LetIn;
    if is_in {
        welcome.connection = server.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut open = lock(&server.open);
        // Nothing of the one before is begun once this one is let in (F12.4).
        if let Some((before, stream)) = open.get(&hello.replaces) {
            before.close();
            let _ = stream.shutdown(Shutdown::Both);
        }
        open.insert(welcome.connection, (Arc::clone(&replies), stream.try_clone()?));
    }
    let connection =
        ServedSocket { server, number: welcome.connection, signal: &signal, replies: &replies };
    stream.write_all(&welcome.encode())?;
    if !is_in || server.is_closed.load(Ordering::SeqCst) {
        return Ok(());
    }
    stream.set_read_timeout(None)?;
    let (writing, own) = (stream.try_clone()?, Arc::clone(&replies));
    let writer = thread::Builder::new().name("farleaf-calls-out".to_owned()).spawn(move || {
        // Its other end has gone, which the reader finds out, too.
        let _ = write_replies(&raised, &own, &writing);
        let _ = writing.shutdown(Shutdown::Both);
    })?;
    let read = read_calls(server, from, &replies, &stream);
    drop(connection);
    let _ = stream.shutdown(Shutdown::Both);
    // One that panicked has said so.
    let _ = writer.join();
    read
}

/// A connection in the list. Dropped, it begins nothing any more.
struct ServedSocket<'a> {
    server: &'a SocketServer,
    number: u64,
    signal: &'a Notify,
    replies: &'a Replies,
}

impl Drop for ServedSocket<'_> {
    fn drop(&mut self) {
        self.replies.close();
        lock(&self.server.open).remove(&self.number);
        (self.signal)();
    }
}

fn read_calls(
    server: &SocketServer,
    from: Incarnation,
    replies: &Arc<Replies>,
    stream: &UnixStream,
) -> io::Result<()> {
    let mut input = BufReader::with_capacity(BUFFER_BYTES, stream);
    loop {
        let mut head = [0; REQUEST_BYTES];
        input.read_exact(&mut head)?;
        let request =
            Request::decode(&head).ok().filter(|request| request.verb == RequestKind::Call);
        let request = request.ok_or(io::ErrorKind::InvalidData)?;
        let content = read_content(&mut input, request.operand_bytes())?;
        let (number, service) = called(&request);
        if !replies.take_in(&server.requests, from, number, service, content) {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Reads a content; memory is taken as it comes.
fn read_content(input: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    if input.take(length as u64).read_to_end(&mut content)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(content)
}

fn write_replies(raised: &Receiver<()>, replies: &Replies, stream: &UnixStream) -> io::Result<()> {
    let mut output = BufWriter::with_capacity(BUFFER_BYTES, stream);
    while raised.recv().is_ok() && !replies.is_closed() {
        for Reply { number, outcome, bytes } in replies.take_ready() {
            output.write_all(&reply_head(number, outcome, bytes.len()))?;
            output.write_all(&bytes)?;
        }
        output.flush()?;
        replies.sent();
    }
    Ok(())
}

/// Begins to connect to a peer, in the place of the connection that `number` names, and sets `number` to the
/// new one. Calls wait for that meanwhile.
pub(super) fn connect(
    folder: &Arc<Path>,
    me: Incarnation,
    peer: Peer,
    number: Arc<AtomicU64>,
) -> Option<Arc<CallLink>> {
    let link = CallLink::new(me, peer.incarnation, None);
    let (own, folder) = (Arc::clone(&link), Arc::clone(folder));
    let run = move || {
        // This connection is of no use any more, with or without an error.
        let _ = run(&own, &folder, me, peer, &number);
        own.end(OpErrorKind::Unavailable);
    };
    thread::Builder::new().name("farleaf-call".to_owned()).spawn(run).ok()?;
    Some(link)
}

/// Takes the place of the connection that `number` names: nothing of that is begun any more (F12.4).
pub(super) async fn replace(
    folder: &Arc<Path>,
    me: Incarnation,
    peer: Peer,
    number: Arc<AtomicU64>,
) -> Result<(), OpErrorKind> {
    let before = number.load(Ordering::SeqCst);
    if before == 0 {
        // Nothing was ever sent.
        return Ok(());
    }
    let (answer, waiting) = promise();
    let (folder, given) = (Arc::clone(folder), answer.clone());
    let greets = move || {
        let greeted = greet(&folder, me, peer, before);
        if let Ok((_, connection)) = &greeted {
            number.store(*connection, Ordering::SeqCst);
        }
        given.give(greeted.map(|_| Vec::new()).map_err(|_| CallError::NotBegun));
    };
    // Connecting waits, and this thread has other things to do.
    if thread::Builder::new().name("farleaf-connect".to_owned()).spawn(greets).is_err() {
        answer.give(Err(CallError::NotBegun));
    }
    waiting.await.map(drop).map_err(|_| OpErrorKind::Unavailable)
}

/// Greets, in the place of connection `replaces`; the number of this one.
pub(super) fn greet(
    folder: &Path,
    me: Incarnation,
    peer: Peer,
    replaces: u64,
) -> io::Result<(UnixStream, u64)> {
    let socket = Socket::of(folder, peer.incarnation)?;
    let mut stream = UnixStream::connect(&socket.path)?;
    stream.set_read_timeout(Some(GREETING_TIME))?;
    let greeting = Hello::to(peer.server, peer.incarnation.0, me);
    let hello = Hello { servers: 0, replaces, ..greeting };
    stream.write_all(&hello.encode())?;
    let mut bytes = [0; GREETING_BYTES];
    stream.read_exact(&mut bytes)?;
    match Welcome::decode(&bytes) {
        Some(Welcome { version: VERSION, status: GreetingStatus::LetIn, connection, .. }) => {
            stream.set_read_timeout(None)?;
            Ok((stream, connection))
        }
        _ => Err(io::ErrorKind::ConnectionRefused.into()),
    }
}

fn run(
    link: &Arc<CallLink>,
    folder: &Path,
    me: Incarnation,
    peer: Peer,
    number: &AtomicU64,
) -> io::Result<()> {
    let (stream, connection) = greet(folder, me, peer, number.load(Ordering::SeqCst))?;
    number.store(connection, Ordering::SeqCst);
    if !link.connected(stream.try_clone()?) {
        return Ok(());
    }
    let (reading, own) = (stream.try_clone()?, Arc::clone(link));
    let reader = thread::Builder::new().name("farleaf-call-in".to_owned()).spawn(move || {
        // This connection is of no use any more, with or without an error.
        let _ = read_replies(&own, &reading);
        own.end(OpErrorKind::Unavailable);
    })?;
    let written = write_calls(link, &stream);
    if written.is_err() {
        // The peer has closed. Its last replies, which say what it has not begun, may still be on their way to
        // the reader; to end the link now would call the outcome of these requests unknown.
        let _ = reader.join();
    }
    written
}

fn write_calls(link: &CallLink, stream: &UnixStream) -> io::Result<()> {
    let mut output = BufWriter::with_capacity(BUFFER_BYTES, stream);
    while let Some(next) = link.next() {
        let head = call_head(next.number, next.service, next.request.len());
        output.write_all(&head.encode())?;
        output.write_all(&next.request)?;
        output.flush()?;
    }
    Ok(())
}

fn read_replies(link: &CallLink, stream: &UnixStream) -> io::Result<()> {
    let mut input = BufReader::with_capacity(BUFFER_BYTES, stream);
    loop {
        let mut head = [0; ANSWER_BYTES];
        input.read_exact(&mut head)?;
        let Ok((Status::Reply, length)) = decode_answer(&head) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let content = read_content(&mut input, length)?;
        let (number, outcome, reply) =
            decode_reply(&content).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        link.came(number, outcome.of_call(reply.to_vec()));
    }
}
