//! Connection: the bytes of a client, its commands, and their replies.
//!
//! - INV-CONNECTION-1: replies are written in the order of their commands.
//! - INV-CONNECTION-2: commands take effect in their order, but for reads that stand next to each other: these run
//!   together. A write begins once all before it are answered, and all behind it begin once it is answered
//!   ([`Overlap`] has the other choices).
//! - INV-CONNECTION-3: a client whose replies wait is neither read nor served until it has taken most of them.
//! - INV-CONNECTION-4: a connection that waits for its client holds no buffer, and a part of a command no more than
//!   twice its bytes.

use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

use farleaf::{Answer, Operation};
use farleaf_fabric::tcp::Link;
use mio::event::Event;
use mio::net::TcpStream;
use smallvec::SmallVec;

use crate::client::Client;
use crate::commands::{self, Call, Command, Plan, Shape, Work};
use crate::long::Long;
use crate::queue::Queue;
use crate::shared::Shared;
use crate::{Multi, Overlap};
use farleaf_resp::replies::Replies;
use farleaf_resp::request::{Limits, Parsed, Parser};

/// Bytes that a turn reads of a connection, at most; of one whose value is under way; and before `AUTH`. The other
/// clients wait for as long as that takes.
const READ_BYTES: usize = 64 << 10;
const READ_BYTES_OF_A_VALUE: usize = 256 << 10;
const READ_BYTES_BEFORE_AUTH: usize = 4 << 10;
/// Waiting replies with which a connection stops, and with which it goes on; and those with which one ends that has
/// not said who it is.
const WAITING_MAX: usize = 1 << 20;
const WAITING_LEAST: usize = 256 << 10;
const WAITING_BEFORE_AUTH: usize = 4 << 10;
/// Arguments of most commands, at most.
const ARGS: usize = 8;
/// Bytes that the buffer of replies keeps when its connection runs commands again.
const KEPT_MAX: usize = 4 << 20;

/// See the [module page](self).
#[derive(Debug)]
pub(crate) struct Connection {
    link: Link<TcpStream>,
    pub(crate) client: Client,
    input: Vec<u8>,
    /// Bytes of the input that are done.
    used: usize,
    parser: Parser,
    pub(crate) replies: Replies,
    /// Bytes of the replies that are sent.
    sent: usize,
    /// The command under way, if it has more operations than run together.
    long: Option<Box<Long>>,
    /// Commands behind `MULTI`.
    queue: Option<Box<Queue>>,
    /// The socket may have bytes to read, and may take some.
    is_readable: bool,
    is_writable: bool,
    /// INV-CONNECTION-3.
    is_held: bool,
    /// Memory for clients is short, and this one has much of it.
    pub(crate) is_paused: bool,
    /// An event has told that the client sends nothing more: reads come to that.
    is_closed: bool,
    /// The client sends nothing more.
    has_ended: bool,
    /// The client has sent bytes that are no commands, or has not said who it is and takes no replies.
    is_refused: bool,
    /// The socket is broken.
    is_broken: bool,
    /// It stands in the event loop's list.
    pub(crate) is_active: bool,
    /// It stands in the event loop's list of those that are to be closed.
    pub(crate) is_lingering: bool,
    /// Bytes that are counted for it.
    pub(crate) charged: usize,
    /// Bytes of the largest value of its last operations.
    pub(crate) value_bytes: usize,
    /// The last moments at which the client sent bytes, and took bytes while some waited.
    pub(crate) heard: Instant,
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
    /// None now.
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
    /// Some operations of the long command.
    Long(usize),
}

impl Connection {
    pub(crate) fn new(link: Link<TcpStream>, client: Client) -> Self {
        let now = Instant::now();
        Connection {
            link,
            client,
            input: Vec::new(),
            used: 0,
            parser: Parser::default(),
            replies: Replies::default(),
            sent: 0,
            long: None,
            queue: None,
            is_readable: true,
            is_writable: true,
            is_held: false,
            is_paused: false,
            is_closed: false,
            has_ended: false,
            is_refused: false,
            is_broken: false,
            is_active: false,
            is_lingering: false,
            charged: 0,
            value_bytes: 0,
            heard: now,
            taken: now,
        }
    }

    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        self.link.socket()
    }

    /// Bytes of replies that the client has not taken.
    pub(crate) fn waiting(&self) -> usize {
        self.replies.bytes.len() - self.sent
    }

    /// Tells whether replies wait for the client.
    pub(crate) fn waits(&self) -> bool {
        self.waiting() > 0 || self.link.is_pending()
    }

    /// Bytes of its own buffers.
    pub(crate) fn private_bytes(&self) -> usize {
        let queued = self.queue.as_ref().map_or(0, |queue| queue.capacity());
        self.input.capacity() + self.replies.bytes.capacity() + queued
    }

    /// Tells whether the connection is to be closed.
    pub(crate) fn is_done(&self) -> bool {
        let is_sent = if self.is_refused { self.waiting() == 0 } else { !self.waits() };
        let is_answered = is_sent && self.long.is_none();
        self.is_broken
            || self.client.ends && is_answered
            // All whole commands have run by then; the rest is a part of one.
            || self.has_ended && is_answered && !self.is_held
    }

    /// Tells whether it is to be closed a while after its last reply: its client was refused, and is still there.
    pub(crate) fn lingers(&self) -> bool {
        self.is_refused && !self.is_broken && !self.is_closed && !self.has_ended
    }

    /// Tells whether it has something to do without waiting for its socket.
    pub(crate) fn has_work(&self) -> bool {
        let is_read = !self.is_held && !self.is_paused && !self.has_ended && !self.client.ends;
        self.is_readable && is_read
    }

    /// The socket is ready for what the event says.
    pub(crate) fn wake(&mut self, event: &Event) {
        self.is_closed |= event.is_read_closed() || event.is_error();
        self.is_readable |= event.is_readable() || self.is_closed;
        self.is_writable |= event.is_writable();
    }

    /// Reads what the client has sent, through the thread's `buffer`.
    ///
    /// If memory is short, `share` are the bytes of its own that it may have.
    pub(crate) fn read(&mut self, buffer: &mut [u8], shared: &Shared, share: Option<usize>) {
        if self.is_held || self.is_paused || self.client.ends || self.has_ended {
            return;
        }
        let is_known = shared.knows(&self.client);
        let wanted = (self.used + self.parser.needs()).saturating_sub(self.input.len());
        let mut most = match is_known {
            true => wanted.clamp(READ_BYTES, READ_BYTES_OF_A_VALUE),
            false => READ_BYTES_BEFORE_AUTH,
        };
        if let Some(share) = share {
            most = most.min(share.saturating_sub(self.private_bytes()));
        }
        let room = buffer.len().min(most);
        let mut all = 0;
        while self.is_readable && all < most {
            match self.link.read(&mut buffer[..room]) {
                Ok(0) => {
                    self.has_ended = true;
                    self.is_readable = false;
                }
                Ok(count) => {
                    self.append(&buffer[..count]);
                    all += count;
                    // Less than there was room for is all (epoll(7)); an event tells of more, and of the end.
                    self.is_readable = count == room || self.is_closed || self.link.is_sealed();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    if error.kind() == ErrorKind::InvalidData {
                        let address = &self.client.card.address;
                        tracing::warn!(%address, %error, "refuses a client: TLS");
                    }
                    self.is_broken = true;
                    self.is_readable = false;
                }
            }
        }
        if all > 0 {
            self.heard = Instant::now();
        }
    }

    /// Adds bytes to the input, whose memory at most doubles until the command is whole.
    fn append(&mut self, bytes: &[u8]) {
        self.compact();
        let least = self.input.len() + bytes.len();
        if least > self.input.capacity() {
            let wanted = self.parser.needs().clamp(least, least.max(2 * self.input.capacity()));
            self.input.reserve_exact(wanted - self.input.len());
        }
        self.input.extend_from_slice(bytes);
    }

    fn compact(&mut self) {
        if self.used == self.input.len() {
            self.input.clear();
            self.used = 0;
        } else if self.used > self.input.len() / 2 {
            self.input.drain(..self.used);
            self.used = 0;
        }
    }

    /// Gives memory back that an idle connection does not need (INV-CONNECTION-4).
    pub(crate) fn release(&mut self) {
        if self.is_refused {
            self.used = self.input.len();
        }
        self.compact();
        if self.input.is_empty() {
            self.input = Vec::new();
            self.parser.release();
        } else if self.input.capacity() > 2 * self.input.len() {
            self.input.shrink_to_fit();
        }
        if !self.waits() {
            self.replies.bytes = Vec::new();
            self.sent = 0;
        } else if self.sent > self.replies.bytes.len() / 2 {
            self.replies.bytes.drain(..self.sent);
            self.sent = 0;
            self.replies.bytes.shrink_to(2 * self.replies.bytes.len());
        }
    }

    /// Makes room for replies of so many bytes; if they are large, without the reserve of a vector that grows.
    pub(crate) fn reserve(&mut self, bytes: usize, are_large: bool) {
        if are_large {
            self.replies.bytes.reserve_exact(bytes);
        } else {
            self.replies.bytes.reserve(bytes);
        }
    }

    /// The next commands that may run together (INV-CONNECTION-2), of at most `most` operations if they have several.
    pub(crate) fn next_part(&mut self, shared: &Shared, most: usize) -> Part {
        if self.is_held || self.is_broken {
            return Part::Nothing;
        }
        if let Some(long) = &mut self.long {
            let operations = long.next(most);
            let count = operations.len();
            return Part::Batch(operations, vec![Item::Long(count)]);
        }
        let (mut operations, mut items) = (Vec::new(), Vec::new());
        let mut is_over = false;
        while !self.client.ends && !is_over && operations.len() < most {
            let limits =
                if shared.knows(&self.client) { Limits::OPEN } else { Limits::BEFORE_AUTH };
            let input = &self.input[self.used..];
            let used = match self.parser.parse(input, limits) {
                Ok(Parsed::Incomplete) => break,
                Ok(Parsed::Command(used)) => used,
                Err(error) => {
                    self.client.ends = true;
                    self.is_refused = true;
                    let address = &self.client.card.address;
                    tracing::warn!(%address, %error, "ends a connection");
                    items.push(Item::Ready(error_reply(&error.to_string())));
                    break;
                }
            };
            let args: SmallVec<[&[u8]; ARGS]> =
                (0..self.parser.args()).map(|number| self.parser.arg(input, number)).collect();
            if args.is_empty() {
                self.used += used;
                continue;
            }
            let command = shared.command(args[0]);
            let mut call = Call { args: &args, client: &mut self.client, shared };
            if shared.options.multi == Multi::Sequence
                && let Some(step) = Queue::step(&mut self.queue, &call, command, &input[..used])
            {
                self.used += used;
                shared.count(&shared.commands_done);
                items.push(Item::Ready(step.reply));
                if !step.runs.is_empty() {
                    // They borrow the input.
                    drop(args);
                    self.input.splice(..self.used, step.runs);
                    self.used = 0;
                }
                continue;
            }
            let begins = |command: &Command| command.begins_a_part(shared.options.overlap);
            if !items.is_empty() && command.is_some_and(begins) {
                break;
            }
            let plan = match commands::plan(&mut call, command) {
                Ok(Plan::Reads(..) | Plan::Writes(..)) if shared.is_lost() => {
                    Err(commands::LOADING.to_owned())
                }
                plan => plan,
            };
            let name = command.map_or("", |command| command.name);
            let is_first = items.is_empty();
            let (own, shape, is_write) = match plan {
                Ok(Plan::Alone(_)) if !is_first => break,
                Ok(Plan::Alone(work)) => {
                    self.used += used;
                    shared.count(&shared.commands_done);
                    return Part::Alone(name, work);
                }
                Ok(Plan::Reads(own, shape)) => (own, shape, false),
                Ok(Plan::Writes(own, shape)) => (own, shape, true),
                ready => {
                    items.push(Item::Ready(match ready {
                        Ok(Plan::Reply(bytes)) => bytes,
                        Err(text) => error_reply(&text),
                        Ok(_) => Vec::new(),
                    }));
                    self.used += used;
                    shared.count(&shared.commands_done);
                    continue;
                }
            };
            let is_alone = match shared.options.overlap {
                Overlap::Reads => is_write,
                Overlap::Nothing => true,
                Overlap::All => false,
            };
            if !is_first && (is_alone || own.len() > most - operations.len()) {
                break;
            }
            is_over = is_alone;
            if own.len() > most {
                let mut long = Box::new(Long::new(name, shape, own));
                operations = long.next(most);
                items.push(Item::Long(operations.len()));
                self.long = Some(long);
                is_over = true;
            } else {
                items.push(Item::Asked(Asked { name, shape, operations: own.len() }));
                operations.extend(own);
            }
            self.used += used;
            shared.count(&shared.commands_done);
        }
        if items.is_empty() { Part::Nothing } else { Part::Batch(operations, items) }
    }

    /// Takes the answers of some operations of the long command; writes its reply, or as much as there is of it.
    pub(crate) fn answer_long(
        &mut self,
        operations: &[Operation],
        answers: &[farleaf::Result<Answer>],
    ) {
        if let Some(long) = &mut self.long
            && long.answer(operations, answers, &mut self.replies)
        {
            self.long = None;
        }
    }

    /// Answers a command that ran alone.
    pub(crate) fn answer(&mut self, replies: &[u8]) {
        self.replies.bytes.extend_from_slice(replies);
    }

    /// Stops if too many replies wait.
    pub(crate) fn hold(&mut self, shared: &Shared) {
        self.is_held |= self.waiting() > WAITING_MAX;
        if self.waiting() > WAITING_BEFORE_AUTH && !shared.knows(&self.client) {
            let address = &self.client.card.address;
            tracing::warn!(%address, "ends a connection that takes no replies before AUTH");
            self.client.ends = true;
            self.is_refused = true;
            self.replies.bytes.clear();
            self.sent = 0;
        }
    }

    /// Sends what the client takes; true if commands that had to wait for that may run now.
    pub(crate) fn flush(&mut self) -> bool {
        let was_held = self.is_held;
        while self.is_writable && !self.is_broken && self.waits() {
            let sent = match self.waiting() {
                0 => self.link.flush().map(|()| 0),
                _ => self.link.write(&self.replies.bytes[self.sent..]),
            };
            match sent {
                Ok(count) => {
                    self.sent += count;
                    self.taken = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.is_broken = true,
            }
        }
        if self.waiting() == 0 {
            self.replies.bytes.clear();
            self.sent = 0;
        }
        if !self.waits() {
            self.taken = Instant::now();
        }
        if self.waiting() < WAITING_LEAST {
            if self.is_held {
                // Replies to come go behind what still waits: else the buffer of a large part would stay as long as the
                // client never takes all.
                self.replies.bytes.drain(..self.sent);
                self.sent = 0;
                self.replies.bytes.shrink_to(KEPT_MAX);
            }
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
