//! Client connection: sends requests to another compute server and receives the replies.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_fabric::tcp::duplex::{self, Incoming, Outgoing};
use farleaf_fabric::{GlobalAddr, Incarnation};

use super::super::answer::{Answer, Waiting, promise};
use super::super::forward::Request;
use super::wire::{
    Entry, GREETING_BYTES, Hello, REPLY_HEAD_BYTES, VERSION, Welcome, decode_reply,
    decode_reply_head, encode_request,
};
use super::{GREETING_TIME, PATIENCE_NS, Shared};
use crate::IndexError;
use crate::sync::{Mutex, lock};

/// Bytes that are gathered before they are written.
const BUFFER_BYTES: usize = 64 << 10;
/// Where nothing has come for so long, although somebody has waited for it and given up, the connection may
/// have been lost without a word (a router has forgotten it, the other machine lost its power).
pub(super) const SILENCE: Duration =
    if cfg!(test) { Duration::from_millis(300) } else { Duration::from_nanos(PATIENCE_NS) };

pub(super) struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Not written yet.
    queue: VecDeque<Pending>,
    /// Written; their replies are to come.
    sent: BTreeMap<u64, Sent>,
    number: u64,
    stream: Option<TcpStream>,
    /// When anything came last, since there is a connection.
    heard: Option<Instant>,
    is_ended: bool,
    /// Why it has ended, for whoever got hold of it before that and sends after it.
    refusal: Option<String>,
}

struct Pending {
    number: u64,
    bytes: Vec<u8>,
    answer: Answer,
}

struct Sent {
    answer: Answer,
    at: Instant,
}

/// Why there is no connection.
enum Trouble {
    /// It may be otherwise later.
    Lost,
    /// It will not be.
    Refused(String),
}

impl From<io::Error> for Trouble {
    fn from(_: io::Error) -> Self {
        Trouble::Lost
    }
}

impl Line {
    /// Begins to connect. What is sent meanwhile waits for that.
    pub(super) fn open(shared: &Arc<Shared>, to: Incarnation, address: SocketAddr) -> Arc<Line> {
        let line = Arc::new(Line { state: Mutex::default(), changed: Condvar::new() });
        let (shared, own) = (Arc::clone(shared), Arc::clone(&line));
        let run = move || {
            let refusal = match own.run(&shared, to, address) {
                Err(Trouble::Refused(why)) => Some(why),
                _ => None,
            };
            // It may listen elsewhere by now, or be gone.
            lock(&shared.addresses).remove(&to.0);
            own.end(refusal);
        };
        if thread::Builder::new().name("farleaf-line".to_owned()).spawn(run).is_err() {
            line.end(None);
        }
        line
    }

    pub(super) fn is_ended(&self) -> bool {
        lock(&self.state).is_ended
    }

    /// Takes a request in, to be written; the wait for its reply, `None` if the connection has ended.
    ///
    /// # Errors
    /// `Invalid` if it is too long; `Unavailable` if the other end has refused the connection.
    pub(super) fn send(
        &self,
        table: GlobalAddr,
        request: &Request,
    ) -> Result<Option<Waiting>, IndexError> {
        let bytes = encode_request(0, table.word(), request);
        let mut bytes = bytes.map_err(|too_long| IndexError::Invalid(too_long.to_string()))?;
        let (answer, waiting) = promise(!request.is_read());
        let mut state = lock(&self.state);
        if let Some(why) = &state.refusal {
            return Err(IndexError::Unavailable(why.clone()));
        }
        if state.is_ended {
            return Ok(None);
        }
        if state.is_lost(Instant::now()) {
            drop(state);
            self.end(None);
            return Ok(None);
        }
        state.number += 1;
        let number = state.number;
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        state.queue.push_back(Pending { number, bytes, answer });
        drop(state);
        self.changed.notify_one();
        Ok(Some(waiting))
    }

    /// Ends it: what has not been written is answered with the refusal, or that nobody is there; what has
    /// been written and is a change has an unknown outcome.
    pub(super) fn end(&self, refusal: Option<String>) {
        let (letters, sent) = {
            let mut state = lock(&self.state);
            state.is_ended = true;
            if refusal.is_some() {
                state.refusal.clone_from(&refusal);
            }
            if let Some(stream) = state.stream.take() {
                let _ = stream.shutdown(Shutdown::Both);
            }
            (std::mem::take(&mut state.queue), std::mem::take(&mut state.sent))
        };
        self.changed.notify_all();
        if let Some(why) = refusal {
            for mut letter in letters {
                letter.answer.give(Err(IndexError::Unavailable(why.clone())));
            }
        }
        // Each is answered when it is dropped, without the lock.
        drop(sent);
    }

    /// Connects, and writes what is sent until the connection ends.
    fn run(
        self: &Arc<Self>,
        shared: &Shared,
        to: Incarnation,
        address: SocketAddr,
    ) -> Result<(), Trouble> {
        let (stream, reading, writing) = connect(shared, to, address)?;
        {
            let mut state = lock(&self.state);
            if state.is_ended {
                return Ok(());
            }
            state.stream = Some(stream);
            state.heard = Some(Instant::now());
        }
        let line = Arc::clone(self);
        thread::Builder::new().name("farleaf-line-in".to_owned()).spawn(move || {
            // Whatever it was: this connection is of no use any more.
            let _ = line.read(reading);
            line.end(None);
        })?;
        let mut output = BufWriter::with_capacity(BUFFER_BYTES, writing);
        while let Some(letters) = self.next() {
            for Pending { number, bytes, mut answer } in letters {
                if !answer.is_wanted() {
                    continue;
                }
                // INV-DEX-POST-1: before any of it may have been written.
                answer.begin();
                {
                    let mut state = lock(&self.state);
                    if state.is_ended {
                        return Ok(());
                    }
                    state.sent.insert(number, Sent { answer, at: Instant::now() });
                }
                output.write_all(&bytes)?;
            }
            output.flush()?;
        }
        Ok(())
    }

    /// Waits for something to write; `None` once it has ended.
    fn next(&self) -> Option<VecDeque<Pending>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.is_ended {
                return None;
            }
            if !state.queue.is_empty() {
                return Some(std::mem::take(&mut state.queue));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reads replies until there are no more, or one that makes no sense.
    fn read(&self, incoming: Incoming) -> io::Result<()> {
        let mut input = BufReader::with_capacity(BUFFER_BYTES, Heard { line: self, incoming });
        let mut content = Vec::new();
        loop {
            let mut head = [0; REPLY_HEAD_BYTES];
            input.read_exact(&mut head)?;
            let (length, number) = decode_reply_head(&head).map_err(io::Error::other)?;
            read_content(&mut input, length, &mut content)?;
            let outcome = decode_reply(&content).map_err(io::Error::other)?;
            let sent = lock(&self.state).sent.remove(&number);
            let Some(Sent { mut answer, .. }) = sent else {
                return Err(io::Error::other("a reply to no request"));
            };
            answer.give(outcome);
        }
    }
}

impl State {
    /// Whether somebody has asked, waited and given up, and nothing has come ever since.
    fn is_lost(&self, now: Instant) -> bool {
        let Some(heard) = self.heard else { return false };
        let is_long = |since| now.saturating_duration_since(since) >= SILENCE;
        let in_vain =
            |sent: &Sent| sent.at >= heard && is_long(sent.at) && !sent.answer.is_wanted();
        is_long(heard) && self.sent.values().any(in_vain)
    }
}

/// Notes when something comes.
struct Heard<'a> {
    line: &'a Line,
    incoming: Incoming,
}

impl Read for Heard<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.incoming.read(bytes)?;
        lock(&self.line.state).heard = Some(Instant::now());
        Ok(count)
    }
}

/// Reads a content; memory is taken as it comes.
pub(super) fn read_content(
    input: &mut impl Read,
    length: usize,
    content: &mut Vec<u8>,
) -> io::Result<()> {
    content.clear();
    if input.take(length as u64).read_to_end(content)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// First byte of what says in TLS that something is wrong.
const TLS_ALERT: u8 = 21;

/// A connection on which both sides have agreed (`INV-DEX-POST-2`), and its halves.
fn connect(
    shared: &Shared,
    to: Incarnation,
    address: SocketAddr,
) -> Result<(TcpStream, Incoming, Outgoing), Trouble> {
    let who = format!("compute server {to}, at {address},");
    let refused = |why: String| Err(Trouble::Refused(format!("{who} {why}")));
    // What was said makes no sense, and will not.
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => {
            Trouble::Refused(format!("{who} and this one do not agree on TLS: {error}"))
        }
        _ => Trouble::Lost,
    };
    let stream = TcpStream::connect_timeout(&address, GREETING_TIME)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GREETING_TIME))?;
    let tls = shared.config.tls.as_ref();
    let (mut incoming, mut outgoing) =
        duplex::connected(stream.try_clone()?, tls, address).map_err(failed)?;
    let (pool, from) = (shared.config.pool, shared.config.me);
    outgoing.write_all(&Hello { version: VERSION, pool, from, to }.encode())?;
    let mut bytes = [0; GREETING_BYTES];
    incoming.read_exact(&mut bytes[..1]).map_err(failed)?;
    if bytes[0] == TLS_ALERT && tls.is_none() {
        return refused("lets nobody in without TLS: give it certificates".to_owned());
    }
    incoming.read_exact(&mut bytes[1..]).map_err(failed)?;
    match Welcome::decode(&bytes) {
        None => refused("does not answer as one of Farleaf".to_owned()),
        Some(Welcome { entry: Entry::OtherVersion, version, .. }) => {
            refused(format!("speaks version {version} of the protocol, this program {VERSION}"))
        }
        Some(Welcome { entry: Entry::OtherPool, .. }) => {
            refused("works on another pool".to_owned())
        }
        Some(Welcome { entry: Entry::LetIn, me, pool: theirs, .. })
            if me == to && theirs == pool =>
        {
            stream.set_read_timeout(None)?;
            Ok((stream, incoming, outgoing))
        }
        Some(_) => Err(Trouble::Lost),
    }
}
