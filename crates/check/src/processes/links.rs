//! The links between a process and the memory servers: a proxy of bytes that can be cut and slowed.
//!
//! Each process of a run reaches each memory server through a link of its own, and finds the pool at the
//! links' addresses. As on a network, what is sent over a cut link is not lost: it arrives when the link
//! is whole again, however late, unless somebody has closed the connection by then.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes that are forwarded at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// Time for a memory server to take a connection.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// Where a memory server listens; `None` while it is not there.
pub(super) type Target = Arc<Mutex<Option<SocketAddr>>>;

/// What a link does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weather {
    Fair,
    /// Each piece waits for that long.
    Slow(Duration),
    /// Nothing gets through in these directions.
    Cut {
        requests: bool,
        replies: bool,
    },
}

/// One process's links, in the order of the memory servers.
#[derive(Debug)]
pub(super) struct Links(Vec<Link>);

#[derive(Debug)]
struct Link {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// What a link shares with the threads that forward its bytes.
#[derive(Debug)]
struct Shared {
    target: Target,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    weather: Weather,
    is_closed: bool,
    /// Connections that there are, both ends of each, by their numbers.
    streams: BTreeMap<u64, [TcpStream; 2]>,
    connections: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

impl Links {
    /// Links to these memory servers, in fair weather.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn open(targets: &[Target]) -> io::Result<Links> {
        targets.iter().map(Link::open).collect::<io::Result<_>>().map(Links)
    }

    /// The pool's address for who is to use these links.
    pub(super) fn uri(&self) -> String {
        let addresses: Vec<_> = self.0.iter().map(|link| link.address.to_string()).collect();
        format!("tcp://{}", addresses.join(","))
    }

    /// From now on the link to that memory server is so.
    pub(super) fn set(&self, server: usize, weather: Weather) {
        if let Some(link) = self.0.get(server) {
            link.shared.state().weather = weather;
            link.shared.changed.notify_all();
        }
    }

    /// Ends all connections to that memory server; new ones are let through.
    pub(super) fn end_connections(&self, server: usize) {
        if let Some(link) = self.0.get(server) {
            link.shared.state().end_connections();
        }
    }
}

impl Link {
    fn open(target: &Target) -> io::Result<Link> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Arc::clone(target),
            state: Mutex::new(State {
                weather: Weather::Fair,
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
            state.end_connections();
        }
        self.shared.changed.notify_all();
        // Wakes the thread that accepts. If that fails, it waits for the end of the process.
        let _ = TcpStream::connect_timeout(&self.address, CONNECT_TIME);
    }
}

impl State {
    fn end_connections(&mut self) {
        for stream in self.streams.values().flatten() {
            // It may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn blocks(&self, direction: Direction) -> bool {
        match self.weather {
            Weather::Cut { requests, replies } => match direction {
                Direction::Requests => requests,
                Direction::Replies => replies,
            },
            Weather::Fair | Weather::Slow(_) => false,
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something may pass in that direction; `false` if the link is no more.
    fn pass(&self, direction: Direction) -> bool {
        let mut state = self.state();
        if let Weather::Slow(time) = state.weather {
            drop(state);
            thread::sleep(time);
            state = self.state();
        }
        while state.blocks(direction) && !state.is_closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.is_closed
    }

    /// Notes a connection, unless the link is no more.
    fn note(&self, streams: [TcpStream; 2]) -> Option<u64> {
        let mut state = self.state();
        if state.is_closed {
            return None;
        }
        state.connections += 1;
        let number = state.connections;
        state.streams.insert(number, streams);
        Some(number)
    }
}

/// Takes connections until the link is no more.
fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.state().is_closed {
            return;
        }
        let Ok(stream) = stream else { continue };
        let own = Arc::clone(shared);
        // Without a thread the connection ends, which a network may do, too.
        let _ = spawn(move || drop(forward(stream, &own)));
    }
}

/// Forwards a connection's bytes in both directions until either side ends it.
fn forward(client: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    // It takes a packet each way to come about.
    if !shared.pass(Direction::Requests) || !shared.pass(Direction::Replies) {
        return Ok(());
    }
    let target = *shared.target.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(target) = target else { return Ok(()) };
    let server = TcpStream::connect_timeout(&target, CONNECT_TIME)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let Some(number) = shared.note([client.try_clone()?, server.try_clone()?]) else {
        return Ok(());
    };
    let (back_from, back_to) = (server.try_clone()?, client.try_clone()?);
    thread::scope(|scope| {
        thread::Builder::new()
            .name("link".to_owned())
            .spawn_scoped(scope, || pump(back_from, back_to, shared, Direction::Replies))?;
        pump(client, server, shared, Direction::Requests);
        Ok::<_, io::Error>(())
    })?;
    shared.state().streams.remove(&number);
    Ok(())
}

fn pump(mut from: TcpStream, mut to: TcpStream, shared: &Shared, direction: Direction) {
    let mut bytes = vec![0; CHUNK_BYTES];
    loop {
        let count = match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        if !shared.pass(direction) || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // The end is not heard of either while the link is cut.
    shared.pass(direction);
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

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);
    const WHILE: Duration = Duration::from_millis(100);

    /// A server that echoes, and a link to it.
    fn linked() -> (Links, TcpStream, Target) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let target = Arc::new(Mutex::new(Some(listener.local_addr().unwrap())));
        spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                spawn(move || drop(io::copy(&mut stream.try_clone().unwrap(), &mut stream)))
                    .unwrap();
            }
        })
        .unwrap();
        let links = Links::open(std::slice::from_ref(&target)).unwrap();
        let stream = connect(&links);
        (links, stream, target)
    }

    fn connect(links: &Links) -> TcpStream {
        let uri = links.uri();
        let stream = TcpStream::connect(uri.strip_prefix("tcp://").unwrap()).unwrap();
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
            links.set(0, Weather::Cut { requests, replies });
            stream.write_all(&[word]).unwrap();
            hears_nothing(&mut stream);
            links.set(0, Weather::Fair);
            hear(&mut stream, word);
        }
        // A new connection does not come about over a cut link.
        links.set(0, Weather::Cut { requests: true, replies: false });
        let mut other = connect(&links);
        other.write_all(&[9]).unwrap();
        hears_nothing(&mut other);
        links.set(0, Weather::Fair);
        hear(&mut other, 9);
    }

    #[test]
    fn a_slow_link_takes_its_time() {
        let (links, mut stream, _) = linked();
        links.set(0, Weather::Slow(WHILE));
        let start = Instant::now();
        echo(&mut stream, 1);
        assert!(start.elapsed() >= 2 * WHILE);
    }

    #[test]
    fn connections_end_with_either_side_and_with_the_link() {
        let (links, mut stream, target) = linked();
        echo(&mut stream, 1);
        links.end_connections(0);
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
        links.set(0, Weather::Cut { requests: true, replies: true });
        drop(links);
        assert_eq!(cut.read(&mut [0]).unwrap_or(0), 0, "the link is no more");
    }
}
