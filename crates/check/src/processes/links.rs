//! Links: a proxy of bytes in front of a process, which the driver can sever and slow down.
//!
//! Each process of a run reaches each memory server through a link of its own, and finds the pool
//! at the links' addresses. If keys have owners, a client has one more, its *call link*. It
//! advertises that link's address, so that the others ask it over the link. The driver can sever
//! the link for all of them, or for some by their greetings. As on a network, a severed link loses
//! no bytes: they arrive when the link is whole again. Only an end that has closed the connection
//! loses them.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use farleaf_fabric::Incarnation;
use farleaf_fabric::tcp::greeting_of;

use super::owners;

/// Bytes that are forwarded at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// Time for a server to take a connection.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// Address of a memory server; `None` while it is away.
pub(super) type Target = Arc<Mutex<Option<SocketAddr>>>;

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    Fair,
    /// Each piece of bytes is delayed by this time.
    Slow(Duration),
    /// Nothing gets through in these directions.
    Cut {
        requests: bool,
        replies: bool,
    },
}

/// One of a process's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To that memory server.
    Memory(usize),
    /// From other compute servers.
    Post,
}

/// Callers that are meant; `None`: all.
pub(super) type Callers = Option<Vec<Incarnation>>;

/// One process's links.
#[derive(Debug)]
pub(super) struct Links {
    /// In the order of the memory servers.
    memory: Vec<Link>,
    post: Option<Link>,
}

/// The target of a link.
#[derive(Debug)]
enum End {
    Memory(Target),
    /// The process itself, which notes its address in this file.
    Post(PathBuf),
}

#[derive(Debug)]
struct Link {
    address: SocketAddr,
    shared: Arc<LinkShared>,
}

/// The state that a link shares with the threads that forward its bytes.
#[derive(Debug)]
struct LinkShared {
    end: End,
    state: Mutex<LinkTable>,
    changed: Condvar,
}

#[derive(Debug)]
struct LinkTable {
    link_state: LinkState,
    /// The callers with that state; the links of others are fair.
    callers: Callers,
    is_closed: bool,
    /// Connections, both ends of each, by their numbers.
    streams: BTreeMap<u64, (Caller, [TcpStream; 2])>,
    connections: u64,
}

/// The compute server that connects, once it has greeted another one.
type Caller = Arc<OnceLock<Incarnation>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

impl Links {
    /// Opens links to these memory servers, all of them fair.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn open(targets: &[Target]) -> io::Result<Links> {
        let open = |target| Link::open(End::Memory(Arc::clone(target)));
        let memory = targets.iter().map(open).collect::<io::Result<_>>()?;
        Ok(Links { memory, post: None })
    }

    /// Adds the call link of the process, which will note its own address in `notes` (see
    /// [`owners::listens`]). Returns the address to advertise.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn open_post(&mut self, notes: PathBuf) -> io::Result<SocketAddr> {
        let link = Link::open(End::Post(notes))?;
        Ok(self.post.insert(link).address)
    }

    /// The pool's address for the process that uses these links.
    pub(super) fn uri(&self) -> String {
        pool_uri(self.memory.iter().map(|link| link.address))
    }

    /// Sets the state of a link for these callers, and makes it fair for all others.
    pub(super) fn set(&self, way: Way, link_state: LinkState, callers: Callers) {
        if let Some(link) = self.link(way) {
            let mut state = link.shared.state();
            (state.link_state, state.callers) = (link_state, callers);
            drop(state);
            link.shared.changed.notify_all();
        }
    }

    /// Ends all connections of these callers over that link; it accepts new ones.
    pub(super) fn end_connections(&self, way: Way, callers: &Callers) {
        if let Some(link) = self.link(way) {
            link.shared.state().end_connections(callers);
        }
    }

    fn link(&self, way: Way) -> Option<&Link> {
        match way {
            Way::Memory(server) => self.memory.get(server),
            Way::Post => self.post.as_ref(),
        }
    }
}

/// The address of a pool of memory servers at these addresses.
pub(super) fn pool_uri(addresses: impl Iterator<Item = SocketAddr>) -> String {
    let addresses: Vec<_> = addresses.map(|address| address.to_string()).collect();
    format!("tcp://{}", addresses.join(","))
}

/// The address of a memory server, unless it is away.
pub(super) fn address_of(target: &Target) -> Option<SocketAddr> {
    *target.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    fn open(end: End) -> io::Result<Link> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(LinkShared {
            end,
            state: Mutex::new(LinkTable {
                link_state: LinkState::Fair,
                callers: None,
                is_closed: false,
                streams: BTreeMap::new(),
                connections: 0,
            }),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&shared);
        spawn(move || accept(&listener, &own))?;
        Ok(Link { address, shared })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.is_closed = true;
            state.end_connections(&None);
        }
        self.shared.changed.notify_all();
        // Wakes the thread that accepts. If that fails, it waits for the end of the process.
        let _ = TcpStream::connect_timeout(&self.address, CONNECT_TIME);
    }
}

impl End {
    fn address(&self) -> Option<SocketAddr> {
        match self {
            End::Memory(target) => address_of(target),
            End::Post(notes) => owners::listens(notes),
        }
    }
}

fn is_among(caller: &Caller, callers: &Callers) -> bool {
    let is_named = |callers: &Vec<_>| caller.get().is_some_and(|caller| callers.contains(caller));
    callers.as_ref().is_none_or(is_named)
}

impl LinkTable {
    fn end_connections(&mut self, callers: &Callers) {
        let streams = self.streams.values().filter(|(caller, _)| is_among(caller, callers));
        for stream in streams.flat_map(|(_, streams)| streams) {
            // It may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn link_state(&self, caller: &Caller) -> LinkState {
        if is_among(caller, &self.callers) { self.link_state } else { LinkState::Fair }
    }

    fn blocks(&self, direction: Direction, caller: &Caller) -> bool {
        match self.link_state(caller) {
            LinkState::Cut { requests, replies } => match direction {
                Direction::Requests => requests,
                Direction::Replies => replies,
            },
            LinkState::Fair | LinkState::Slow(_) => false,
        }
    }
}

impl LinkShared {
    fn state(&self) -> MutexGuard<'_, LinkTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the link passes bytes in that direction; `false` after it was closed.
    fn pass(&self, direction: Direction, caller: &Caller) -> bool {
        let mut state = self.state();
        if let LinkState::Slow(time) = state.link_state(caller) {
            drop(state);
            thread::sleep(time);
            state = self.state();
        }
        while state.blocks(direction, caller) && !state.is_closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.is_closed
    }

    /// Records a connection, unless the link was closed.
    fn note(&self, caller: &Caller, streams: [TcpStream; 2]) -> Option<u64> {
        let mut state = self.state();
        if state.is_closed {
            return None;
        }
        state.connections += 1;
        let number = state.connections;
        state.streams.insert(number, (Arc::clone(caller), streams));
        Some(number)
    }
}

/// Accepts connections until the link is closed.
fn accept(listener: &TcpListener, shared: &Arc<LinkShared>) {
    for stream in listener.incoming() {
        if shared.state().is_closed {
            return;
        }
        let Ok(stream) = stream else { continue };
        let own = Arc::clone(shared);
        // Without a thread the connection ends, as one on a network may.
        let _ = spawn(move || drop(forward(stream, &own)));
    }
}

/// Forwards a connection's bytes in both directions until either side ends it.
fn forward(client: TcpStream, shared: &Arc<LinkShared>) -> io::Result<()> {
    let caller = Caller::default();
    // A new connection takes a packet each way. Its caller is unknown until it greets.
    if !shared.pass(Direction::Requests, &caller) || !shared.pass(Direction::Replies, &caller) {
        return Ok(());
    }
    let Some(target) = shared.end.address() else { return Ok(()) };
    let server = TcpStream::connect_timeout(&target, CONNECT_TIME)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let Some(number) = shared.note(&caller, [client.try_clone()?, server.try_clone()?]) else {
        return Ok(());
    };
    let (back_from, back_to) = (server.try_clone()?, client.try_clone()?);
    thread::scope(|scope| {
        thread::Builder::new().name("link".to_owned()).spawn_scoped(scope, || {
            pump(back_from, back_to, shared, Direction::Replies, &caller);
        })?;
        pump(client, server, shared, Direction::Requests, &caller);
        Ok::<_, io::Error>(())
    })?;
    shared.state().streams.remove(&number);
    Ok(())
}

fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    shared: &LinkShared,
    direction: Direction,
    caller: &Caller,
) {
    let mut bytes = vec![0; CHUNK_BYTES];
    let mut is_first = direction == Direction::Requests;
    loop {
        let count = match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        if std::mem::take(&mut is_first)
            && let Some(from) = greeting_of(&bytes[..count])
        {
            // Nobody else sets it. A greeting is one piece, as it is written.
            let _ = caller.set(from);
        }
        if !shared.pass(direction, caller) || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // While the link is cut, the end does not pass either.
    shared.pass(direction, caller);
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("link".to_owned()).spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Instant;

    use farleaf_fabric::tcp::greeting;
    use farleaf_fabric::{Peer, ServerId};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);
    const WHILE: Duration = Duration::from_millis(100);
    const FIRST: Way = Way::Memory(0);
    const GREETING_BYTES: usize = 64;

    /// A server that echoes.
    fn server() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                spawn(move || drop(io::copy(&mut stream.try_clone().unwrap(), &mut stream)))
                    .unwrap();
            }
        })
        .unwrap();
        address
    }

    /// A server that echoes, and a link to it.
    fn linked() -> (Links, TcpStream, Target) {
        let target = Arc::new(Mutex::new(Some(server())));
        let links = Links::open(std::slice::from_ref(&target)).unwrap();
        let stream = connect(&links);
        (links, stream, target)
    }

    fn connect(links: &Links) -> TcpStream {
        let uri = links.uri();
        connect_to(uri.strip_prefix("tcp://").unwrap().parse().unwrap())
    }

    fn connect_to(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn echo(stream: &mut TcpStream, word: u8) {
        stream.write_all(&[word]).unwrap();
        hear(stream, word);
    }

    fn hear(stream: &mut TcpStream, word: u8) {
        let mut heard = [0];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(heard, [word]);
    }

    fn hears_nothing(stream: &mut TcpStream) {
        stream.set_read_timeout(Some(WHILE)).unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }

    #[test]
    fn what_is_sent_over_a_cut_link_arrives_when_it_is_whole_again() {
        let (links, mut stream, _) = linked();
        echo(&mut stream, 1);
        for (word, (requests, replies)) in (2..).zip([(true, true), (true, false), (false, true)]) {
            links.set(FIRST, LinkState::Cut { requests, replies }, None);
            stream.write_all(&[word]).unwrap();
            hears_nothing(&mut stream);
            links.set(FIRST, LinkState::Fair, None);
            hear(&mut stream, word);
        }
        // A new connection does not come about over a cut link.
        links.set(FIRST, LinkState::Cut { requests: true, replies: false }, None);
        let mut other = connect(&links);
        other.write_all(&[9]).unwrap();
        hears_nothing(&mut other);
        links.set(FIRST, LinkState::Fair, None);
        hear(&mut other, 9);
    }

    #[test]
    fn a_slow_link_takes_its_time() {
        let (links, mut stream, _) = linked();
        links.set(FIRST, LinkState::Slow(WHILE), None);
        let start = Instant::now();
        echo(&mut stream, 1);
        assert!(start.elapsed() >= 2 * WHILE);
    }

    #[test]
    fn connections_end_with_either_side_and_with_the_link() {
        let (links, mut stream, target) = linked();
        echo(&mut stream, 1);
        links.end_connections(FIRST, &None);
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "broken");
        let mut stream = connect(&links);
        echo(&mut stream, 2);
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "ended in order");
        *target.lock().unwrap() = None;
        let mut nobody = connect(&links);
        assert_eq!(nobody.read(&mut [0]).unwrap_or(0), 0, "nobody is there");
        *target.lock().unwrap() = Some(([127, 0, 0, 1], 1).into());
        let mut cut = connect(&links);
        links.set(FIRST, LinkState::Cut { requests: true, replies: true }, None);
        drop(links);
        assert_eq!(cut.read(&mut [0]).unwrap_or(0), 0, "the link is no more");
    }

    /// A file that is removed with its owner.
    struct Notes(PathBuf);

    impl Drop for Notes {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// A caller that has greeted; its greeting was answered if the link passes it.
    fn greeted(address: SocketAddr, from: u64, is_heard: bool) -> TcpStream {
        let server = ServerId::COMPUTE_FIRST;
        let peer = Peer { server, incarnation: Incarnation(9), address: None, region_bytes: 0 };
        let hello = greeting(Incarnation(from), peer);
        assert_eq!(hello.len(), GREETING_BYTES);
        let mut stream = connect_to(address);
        stream.write_all(&hello).unwrap();
        if is_heard {
            stream.read_exact(&mut [0; GREETING_BYTES]).unwrap();
        }
        stream
    }

    #[test]
    fn a_call_link_leads_where_its_process_listens_and_is_cut_for_some_or_all() {
        let name = format!("farleaf-post-link-{}", std::process::id());
        let notes = Notes(std::env::temp_dir().join(name));
        let mut links = Links::open(&[]).unwrap();
        let address = links.open_post(notes.0.clone()).unwrap();
        assert_eq!(links.uri(), "tcp://");
        assert_eq!(connect_to(address).read(&mut [0]).unwrap_or(0), 0, "it listens nowhere so far");
        // Opened twice: the former address is stale.
        owners::note(&notes.0, Some(("0000000000000008".parse().unwrap(), address)));
        owners::note(&notes.0, Some(("0000000000000009".parse().unwrap(), server())));
        let (mut five, mut six) = (greeted(address, 5, true), greeted(address, 6, true));
        let only_six = Some(vec![Incarnation(6), Incarnation(7)]);
        links.set(Way::Post, LinkState::Cut { requests: true, replies: true }, only_six.clone());
        echo(&mut five, 1);
        six.write_all(&[2]).unwrap();
        hears_nothing(&mut six);
        // The connection is made, and its greeting does not pass.
        let mut again = greeted(address, 6, false);
        hears_nothing(&mut again);
        echo(&mut greeted(address, 5, true), 3);
        links.set(Way::Post, LinkState::Fair, None);
        hear(&mut six, 2);
        again.read_exact(&mut [0; GREETING_BYTES]).unwrap();
        echo(&mut again, 4);
        links.end_connections(Way::Post, &only_six);
        assert_eq!(six.read(&mut [0]).unwrap_or(0), 0, "ended");
        assert_eq!(again.read(&mut [0]).unwrap_or(0), 0, "ended");
        echo(&mut five, 5);
        links.set(Way::Post, LinkState::Cut { requests: false, replies: true }, None);
        five.write_all(&[6]).unwrap();
        hears_nothing(&mut five);
        drop(links);
        assert_eq!(five.read(&mut [0]).unwrap_or(0), 0, "the link is no more");
    }
}
