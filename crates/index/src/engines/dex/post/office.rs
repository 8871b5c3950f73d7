//! Server connections: receive other compute servers' requests, queue them, and send the replies.

use std::collections::BTreeMap;
use std::future;
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use farleaf_fabric::Incarnation;
use farleaf_fabric::tcp::duplex::{self, Incoming, Outgoing};

use super::super::forward::{Forward, Replied, Reply, Request, WrongOwner};
use super::line::read_content;
use super::wire::{
    Entry, GREETING_BYTES, Hello, REQUEST_HEAD_BYTES, VERSION, Welcome, decode_request,
    decode_request_head, encode_reply,
};
use super::{GREETING_TIME, Shared};
use crate::sync::{Mutex, lock};

/// Requests of a connection that are under way; whoever sends more waits.
const UNDER_WAY_MAX: usize = 1024;
/// Connections beyond those allowed that may be about to greet, each on a thread, and be told that there is no
/// room.
const STRANGERS_MAX: usize = 64;
/// Who has taken no reply for so long is not there, or wants none.
const SEND_TIME: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 10_000 });
const BUFFER_BYTES: usize = 64 << 10;
/// Between two tries to accept, where the system refuses.
const PAUSE: Duration = Duration::from_millis(10);

/// Lets connections in until the post is shut down.
pub(super) fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let accepted = listener.accept();
        if shared.is_closed.load(Ordering::SeqCst) {
            return;
        }
        let Ok((stream, peer)) = accepted else {
            // Too many open files, most likely.
            thread::sleep(PAUSE);
            continue;
        };
        let serving = Listed::new(shared, &stream).and_then(|listed| {
            let serve = move || {
                if let Err(error) = serve(&listed, stream) {
                    listed.shared.refuse(peer, &error);
                }
            };
            thread::Builder::new().name("farleaf-office".to_owned()).spawn(serve)
        });
        // What no thread can be had for is closed.
        if let Err(error) = serving {
            shared.refuse(peer, &error);
        }
    }
}

impl Shared {
    /// Counts a connection that is not let in, or says what is no request, and logs it: one in a second, so that
    /// nobody fills a disk by knocking.
    fn refuse(&self, peer: SocketAddr, error: &io::Error) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let second = self.since.elapsed().as_secs() + 1;
        if self.told_at.swap(second, Ordering::Relaxed) == second {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        let why = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                "nothing was heard of it for too long".to_owned()
            }
            io::ErrorKind::UnexpectedEof => "it has ended".to_owned(),
            _ => error.to_string(),
        };
        tracing::warn!(compute_server = self.config.me.0, %peer, left_out, why, "refused");
    }
}

/// A connection in the list of those that are open.
struct Listed {
    shared: Arc<Shared>,
    number: u64,
    /// There are as few as are allowed.
    has_room: bool,
}

impl Listed {
    fn new(shared: &Arc<Shared>, stream: &TcpStream) -> io::Result<Self> {
        let number = shared.incoming_number.fetch_add(1, Ordering::Relaxed);
        let mut incoming = lock(&shared.incoming);
        let others = incoming.len();
        if others >= shared.config.connections_max + STRANGERS_MAX {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, FULL));
        }
        incoming.insert(number, stream.try_clone()?);
        let has_room = others < shared.config.connections_max;
        Ok(Listed { shared: Arc::clone(shared), number, has_room })
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        lock(&self.shared.incoming).remove(&self.number);
    }
}

const FULL: &str = "there are as many connections as are allowed";

/// Why a connection with that answer is not let in.
fn refusal(entry: Entry) -> Option<io::Error> {
    let why = match entry {
        Entry::LetIn => return None,
        Entry::OtherVersion => "it speaks another version of the protocol",
        Entry::OtherPool => "it works on another pool",
        Entry::OtherServer => "it looks for another compute server",
        Entry::Full => FULL,
    };
    Some(io::Error::new(io::ErrorKind::ConnectionRefused, why))
}

/// One connection, to its end; an error if it was not let in, or said what is no request.
fn serve(listed: &Listed, stream: TcpStream) -> io::Result<()> {
    let (shared, has_room) = (&listed.shared, listed.has_room);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GREETING_TIME))?;
    stream.set_write_timeout(Some(SEND_TIME))?;
    let tls = shared.config.tls.as_ref();
    let (mut incoming, mut outgoing) = duplex::accepted(stream.try_clone()?, tls)?;
    let mut bytes = [0; GREETING_BYTES];
    incoming.read_exact(&mut bytes)?;
    let nonsense =
        || io::Error::new(io::ErrorKind::InvalidData, "what came is not of this protocol");
    let hello = Hello::decode(&bytes).ok_or_else(nonsense)?;
    let (pool, me) = (shared.config.pool, shared.config.me);
    let entry = match hello {
        Hello { version, .. } if version != VERSION => Entry::OtherVersion,
        Hello { pool: theirs, .. } if theirs != pool => Entry::OtherPool,
        Hello { to, .. } if to != me => Entry::OtherServer,
        _ if !has_room => Entry::Full,
        _ => Entry::LetIn,
    };
    // A stranger does not hear what it would have to know.
    let (pool, me) = if entry == Entry::LetIn { (pool, me) } else { (0, Incarnation(0)) };
    outgoing.write_all(&Welcome { version: VERSION, entry, pool, me }.encode())?;
    if let Some(refused) = refusal(entry) {
        return Err(refused);
    }
    stream.set_read_timeout(None)?;
    // It may have been shut down before it was listed.
    if shared.is_closed.load(Ordering::SeqCst) {
        return Ok(());
    }
    let counter = Arc::new(Counter { state: Mutex::default(), changed: Condvar::new() });
    let answering = Arc::clone(&counter);
    let writer = thread::Builder::new().name("farleaf-office-out".to_owned()).spawn(move || {
        // Its other end has gone away, which the reader finds out, too.
        let _ = answering.answer(outgoing);
    })?;
    let read = read(shared, &counter, incoming);
    counter.close();
    let _ = stream.shutdown(Shutdown::Both);
    // One that panicked has said so.
    let _ = writer.join();
    match read {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error),
        _ => Ok(()),
    }
}

fn read(shared: &Shared, counter: &Arc<Counter>, incoming: Incoming) -> io::Result<()> {
    let malformed = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut input = BufReader::with_capacity(BUFFER_BYTES, incoming);
    let mut content = Vec::new();
    loop {
        let mut head = [0; REQUEST_HEAD_BYTES];
        input.read_exact(&mut head)?;
        let (length, number, table) = decode_request_head(&head).map_err(malformed)?;
        read_content(&mut input, length, &mut content)?;
        let request = decode_request(&content).map_err(malformed)?;
        (shared.on_request)();
        if !counter.take_in(number, put(shared, table, request)) {
            return Ok(());
        }
    }
}

/// Puts a request at its table's desk; nothing is done of one that has none.
fn put(shared: &Shared, table: u64, request: Request) -> Replied {
    let desk = lock(&shared.desks).get(&table).map(Arc::clone);
    match desk {
        Some(desk) => {
            let me = WrongOwner { partition: 0, owner: Some(shared.config.me), epoch: 0 };
            desk.forward(me, request)
        }
        None => Box::pin(future::ready(Ok(Reply::Gone))),
    }
}

/// Requests that have just come, with the numbers that they were sent with.
type New = Vec<(u64, Replied)>;

/// The requests of a connection that are under way.
struct Counter {
    state: Mutex<Taken>,
    changed: Condvar,
}

#[derive(Default)]
struct Taken {
    new: New,
    /// Those whose answer may be there, by the numbers that they have here.
    ready: Vec<u64>,
    under_way: usize,
    is_closed: bool,
}

/// Tells that an answer may be there.
struct Bell {
    counter: Arc<Counter>,
    number: u64,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        lock(&self.counter.state).ready.push(self.number);
        self.counter.changed.notify_all();
    }
}

impl Counter {
    /// Takes a request in, once there are few enough; `false` if the connection has ended.
    fn take_in(&self, number: u64, reply: Replied) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.under_way >= UNDER_WAY_MAX && !state.is_closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return false;
        }
        state.under_way += 1;
        state.new.push((number, reply));
        drop(state);
        self.changed.notify_all();
        true
    }

    fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }

    /// Waits for requests that are new, or may have been answered.
    fn next(&self) -> Option<(New, Vec<u64>)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.is_closed {
                return None;
            }
            if !state.new.is_empty() || !state.ready.is_empty() {
                let new = std::mem::take(&mut state.new);
                return Some((new, std::mem::take(&mut state.ready)));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes replies as they come, until the connection ends. What is under way then is abandoned:
    /// what has not been begun never is.
    fn answer(self: &Arc<Self>, mut output: Outgoing) -> io::Result<()> {
        let mut waiting: BTreeMap<u64, (u64, Replied, Waker)> = BTreeMap::new();
        let mut count = 0;
        let mut bytes = Vec::new();
        while let Some((new, mut ready)) = self.next() {
            for (number, reply) in new {
                let bell = Bell { counter: Arc::clone(self), number: count };
                waiting.insert(count, (number, reply, Waker::from(Arc::new(bell))));
                ready.push(count);
                count += 1;
            }
            let mut done = 0;
            for here in ready {
                let Some((number, reply, waker)) = waiting.get_mut(&here) else { continue };
                let polled = reply.as_mut().poll(&mut Context::from_waker(waker));
                let Poll::Ready(outcome) = polled else { continue };
                bytes.extend(encode_reply(*number, &outcome));
                waiting.remove(&here);
                done += 1;
                if bytes.len() >= BUFFER_BYTES {
                    self.write(&mut output, &mut bytes)?;
                }
            }
            self.write(&mut output, &mut bytes)?;
            if done > 0 {
                lock(&self.state).under_way -= done;
                self.changed.notify_all();
            }
        }
        Ok(())
    }

    fn write(&self, output: &mut Outgoing, bytes: &mut Vec<u8>) -> io::Result<()> {
        let written = output.write_all(bytes);
        bytes.clear();
        if written.is_err() {
            self.close();
            output.shut_down();
        }
        written
    }
}
