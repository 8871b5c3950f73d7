//! Connection: the bytes of a client, its commands, and their replies.
//!
//! - INV-CONNECTION-1: replies are written in the order of their commands.
//! - INV-CONNECTION-2: commands take effect in their order, but for reads that stand next to each other: these run
//!   together. A write begins once all before it are answered, and all behind it begin once it is answered.
//! - INV-CONNECTION-3: a client whose replies wait is neither read nor served until it has taken most of them.

use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

use farleaf::Operation;
use mio::net::TcpStream;

use crate::client::Client;
use crate::commands::{self, Call, Command, Plan, Shape, Work};
use crate::resp::replies::Replies;
use crate::resp::request::{Limits, Parsed, Parser};
use crate::shared::Shared;

/// Bytes that a turn reads of a connection, at most.
const READ_BYTES: usize = 256 << 10;
/// Reads that run together.
const READS_MAX: usize = 64;
/// Waiting replies with which a connection stops, and with which it goes on.
const WAITING_MAX: usize = 1 << 20;
const WAITING_LEAST: usize = 256 << 10;
/// A buffer that is empty keeps so many bytes.
const KEPT_BYTES: usize = 4 << 10;

/// See the [module page](self).
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: TcpStream,
    pub(crate) client: Client,
    input: Vec<u8>,
    /// Bytes of the input that are done.
    used: usize,
    parser: Parser,
    pub(crate) replies: Replies,
    /// Bytes of the replies that are sent.
    sent: usize,
    /// The socket may have bytes to read, and may take some.
    pub(crate) is_readable: bool,
    is_writable: bool,
    /// INV-CONNECTION-3.
    is_held: bool,
    /// The client sends nothing more.
    has_ended: bool,
    /// The socket is broken.
    pub(crate) is_broken: bool,
    /// The last moment at which the client took bytes while some waited.
    pub(crate) taken: Instant,
}

/// A command whose reply follows from operations of the round.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) operations: usize,
}

/// The commands of a connection that run in a round.
pub(crate) enum Part {
    /// None that needs the table.
    Nothing,
    /// Operations of commands that run together, and a reply for each command.
    Batch(Vec<Operation>, Vec<Item>),
    /// One command that runs alone.
    Alone(&'static str, Work),
}

/// A reply of a part, in its order.
pub(crate) enum Item {
    Ready(Vec<u8>),
    Asked(Asked),
}

impl Connection {
    pub(crate) fn new(socket: TcpStream, client: Client) -> Self {
        Connection {
            socket,
            client,
            input: Vec::new(),
            used: 0,
            parser: Parser::default(),
            replies: Replies::default(),
            sent: 0,
            is_readable: true,
            is_writable: true,
            is_held: false,
            has_ended: false,
            is_broken: false,
            taken: Instant::now(),
        }
    }

    fn waiting(&self) -> usize {
        self.replies.bytes.len() - self.sent
    }

    /// Tells whether replies wait for the client.
    pub(crate) fn waits(&self) -> bool {
        self.waiting() > 0
    }

    /// Tells whether the connection is to be closed.
    pub(crate) fn is_done(&self) -> bool {
        let is_answered = !self.waits();
        self.is_broken
            || self.client.ends && is_answered
            // All whole commands have run by then; the rest is a part of one.
            || self.has_ended && is_answered
    }

    /// Tells whether it has something to do without waiting for its socket.
    pub(crate) fn has_work(&self) -> bool {
        self.is_readable && !self.is_held && !self.client.ends
    }

    /// The socket is ready for this.
    pub(crate) fn wake(&mut self, readable: bool, writable: bool) {
        self.is_readable |= readable;
        self.is_writable |= writable;
    }

    /// Reads what the client has sent, through the thread's `buffer`; true if something came.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> bool {
        if self.is_held || self.client.ends || self.has_ended {
            return false;
        }
        let mut all = 0;
        while self.is_readable && all < READ_BYTES {
            match self.socket.read(buffer) {
                Ok(0) => {
                    self.has_ended = true;
                    self.is_readable = false;
                }
                Ok(count) => {
                    self.compact();
                    self.input.extend_from_slice(&buffer[..count]);
                    all += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.is_broken = true;
                    self.is_readable = false;
                }
            }
        }
        all > 0
    }

    fn compact(&mut self) {
        if self.used == self.input.len() {
            self.input.clear();
            self.used = 0;
            self.input.shrink_to(KEPT_BYTES);
        } else if self.used > self.input.len() / 2 {
            self.input.drain(..self.used);
            self.used = 0;
        }
    }

    /// The next commands that may run together (INV-CONNECTION-2).
    pub(crate) fn next_part(&mut self, shared: &Shared) -> Part {
        let (mut operations, mut items) = (Vec::new(), Vec::new());
        let mut is_write = false;
        while !self.is_held && !self.client.ends && !is_write && operations.len() < READS_MAX {
            let input = &self.input[self.used..];
            let used = match self.parser.parse(input, Limits::OPEN) {
                Ok(Parsed::Incomplete) => break,
                Ok(Parsed::Command(used)) => used,
                Err(error) => {
                    self.client.ends = true;
                    items.push(Item::Ready(error_reply(&error.to_string())));
                    break;
                }
            };
            let args: Vec<&[u8]> =
                (0..self.parser.args()).map(|number| self.parser.arg(input, number)).collect();
            if args.is_empty() {
                self.used += used;
                continue;
            }
            let command = shared.command(args[0]);
            if !items.is_empty() && command.is_some_and(Command::begins_a_part) {
                break;
            }
            let mut call = Call { args: &args, client: &mut self.client, shared };
            let name = command.map_or("", |command| command.name);
            match commands::plan(command, &mut call) {
                Err(text) => items.push(Item::Ready(error_reply(&text))),
                Ok(Plan::Reply(bytes)) => items.push(Item::Ready(bytes)),
                Ok(Plan::Reads(reads, shape)) => {
                    items.push(Item::Asked(Asked { name, shape, operations: reads.len() }));
                    operations.extend(reads);
                }
                Ok(Plan::Writes(..) | Plan::Alone(_)) if !items.is_empty() => break,
                Ok(Plan::Writes(writes, shape)) => {
                    is_write = true;
                    items.push(Item::Asked(Asked { name, shape, operations: writes.len() }));
                    operations.extend(writes);
                }
                Ok(Plan::Alone(work)) => {
                    self.used += used;
                    shared.count(&shared.commands_done);
                    return Part::Alone(name, work);
                }
            }
            self.used += used;
            shared.count(&shared.commands_done);
        }
        self.compact();
        if items.is_empty() { Part::Nothing } else { Part::Batch(operations, items) }
    }

    /// Answers a command that ran alone.
    pub(crate) fn answer(&mut self, replies: Vec<u8>) {
        self.replies.bytes.extend_from_slice(&replies);
        self.hold();
    }

    /// Stops if too many replies wait.
    pub(crate) fn hold(&mut self) {
        self.replies.protocol = self.client.protocol;
        self.is_held |= self.waiting() > WAITING_MAX;
    }

    /// Sends what the client takes; true if commands that had to wait for that may run now.
    pub(crate) fn flush(&mut self) -> bool {
        let was_held = self.is_held;
        while self.is_writable && self.waits() && !self.is_broken {
            match self.socket.write(&self.replies.bytes[self.sent..]) {
                Ok(count) => {
                    self.sent += count;
                    self.taken = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.is_broken = true,
            }
        }
        if !self.waits() {
            self.replies.bytes.clear();
            self.replies.bytes.shrink_to(KEPT_BYTES);
            self.sent = 0;
            self.taken = Instant::now();
        }
        if self.waiting() < WAITING_LEAST {
            self.is_held = false;
        }
        was_held && !self.is_held
    }
}

fn error_reply(text: &str) -> Vec<u8> {
    let mut replies = Replies::default();
    replies.error(text);
    replies.bytes
}
