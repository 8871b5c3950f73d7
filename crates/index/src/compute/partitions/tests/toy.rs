//! Toy table: one leaf and one line for each partition, by the rules that an engine with lines on compute servers has.
//!
//! A leaf is a word on a memory server: how often it was changed, and a sum. A line has a copy of it with the
//! term, and a lock. A change takes the lock, writes the line and then the leaf, from the line. A transfer changes
//! two leaves and leaves a redo record before.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use farleaf_fabric::{Client, Endpoint, GlobalAddr, Incarnation, OpError, OpKind};
use farleaf_pool::{LockToken, Session};
use xxhash_rust::xxh3::xxh3_64;

use super::super::*;
use crate::IndexError;
use crate::compute::ownership::MapWords;
use crate::compute::regions::{RegionEnd, attach_region, on_region};
use crate::retry::{LockWait, backoff};

pub(super) const PARTITIONS: u32 = 16;
pub(super) const LINE_BYTES: u64 = 64;
pub(super) const LOCK_AT: u64 = 56;
const RECORD_BYTES: usize = 64;

/// Addresses of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) words: PartitionWords,
    leaves: GlobalAddr,
    /// Lines of partitions that nobody owns.
    lines: GlobalAddr,
}

/// A change that a client has begun and that was not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    Nothing,
    Add,
    Transfer,
}

/// Changes that one client has made.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) adds: u64,
    pub(super) transfers: u64,
    pub(super) pending: Pending,
    /// A finding that must not be.
    pub(super) wrong: Option<String>,
}

#[derive(Debug)]
struct Inner {
    places: Places,
    membership: PartitionMembership,
    log: Rc<RefCell<Log>>,
}

#[derive(Clone, Debug)]
pub(super) struct Toy(Rc<Inner>);

/// A transfer of 1 from leaf `p` to leaf `q`, `p` below `q`.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// The token of both locks, but of `q`'s if a rescuer has only `p`'s.
    token: u64,
    q_token: u64,
    p: u32,
    q: u32,
    p_words: [u64; 2],
    q_words: [u64; 2],
}

/// The outcome of an attempt.
enum Tried {
    Done,
    Again,
    /// One of these partitions is closed, or may be.
    Closed([u32; 2]),
    /// That owner's memory is gone.
    Gone(Incarnation),
    /// A dead client has left this transfer.
    Found(Record),
}

/// The reason for which an operation on a line failed.
enum Fail {
    Gone(Incarnation),
    Index(IndexError),
}

impl From<IndexError> for Fail {
    fn from(error: IndexError) -> Self {
        Fail::Index(error)
    }
}

impl From<OpError> for Fail {
    fn from(error: OpError) -> Self {
        Fail::Index(error.into())
    }
}

fn tried(fail: Fail) -> Result<Tried, IndexError> {
    match fail {
        Fail::Gone(owner) => Ok(Tried::Gone(owner)),
        Fail::Index(error) => Err(error),
    }
}

/// A leaf's word, changed once more by `delta`.
fn changed(leaf: u64, delta: i64) -> u64 {
    let sum = (leaf as u16).wrapping_add(delta as u16);
    ((leaf >> 16) + 1) << 16 | u64::from(sum)
}

fn line_word(term: u32, leaf: u64) -> u64 {
    u64::from(term) << 32 | leaf
}

impl Record {
    fn words(&self) -> [u64; 8] {
        let Record { token, q_token, p, q, p_words, q_words } = *self;
        let places = u64::from(p) << 32 | u64::from(q);
        let mut words = [0, token, q_token, places, p_words[0], p_words[1], q_words[0], q_words[1]];
        words[0] = Record::check(&words);
        words
    }

    fn check(words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words[1..8].iter().flat_map(|word| word.to_le_bytes()).collect();
        xxh3_64(&bytes) | 1
    }

    fn of(words: &[u64]) -> Option<Record> {
        (words[0] == Record::check(words)).then(|| Record {
            token: words[1],
            q_token: words[2],
            p: (words[3] >> 32) as u32,
            q: words[3] as u32,
            p_words: [words[4], words[5]],
            q_words: [words[6], words[7]],
        })
    }
}

impl Places {
    /// Makes a table.
    pub(super) async fn create(session: &Session) -> Result<Places, IndexError> {
        let _pin = session.begin(OpKind::Other).await?;
        let lines = u64::from(PARTITIONS) * LINE_BYTES;
        let mut at = Vec::new();
        for bytes in [256, ack_bytes(session.pool()), lines as usize, lines as usize] {
            let object = session.alloc_unlinked(session.place(), bytes).await?;
            let mut zeroes = session.reliable().buf(bytes);
            zeroes.words_mut().fill(0);
            object.write(zeroes).await?;
            object.keep();
            at.push(object.addr());
        }
        let meta = at[0];
        let map = MapWords { meta, map: meta.plus(128), lock: meta.plus(136) };
        let words = PartitionWords { map, conductor: meta.plus(192), acks: at[1] };
        create_partitions(&words, session, PARTITIONS as usize).await?;
        Ok(Places { words, leaves: at[2], lines: at[3] })
    }

    fn leaf(&self, partition: u32) -> GlobalAddr {
        self.leaves.plus(u64::from(partition) * LINE_BYTES)
    }

    /// The line of a partition in the memory of `owner`.
    async fn line(
        &self,
        session: &Session,
        owner: Option<Incarnation>,
        partition: u32,
    ) -> Result<GlobalAddr, Fail> {
        let offset = u64::from(partition) * LINE_BYTES;
        let Some(owner) = owner else { return Ok(self.lines.plus(offset)) };
        match attach_region(session, owner).await? {
            Some(server) => Ok(GlobalAddr::new(server, offset)),
            None => Err(Fail::Gone(owner)),
        }
    }

    /// The sum of all leaves' counts, and of their sums.
    pub(super) async fn totals(&self, session: &Session) -> Result<(u64, u64), IndexError> {
        let (mut count, mut sum) = (0, 0);
        for partition in 0..PARTITIONS {
            let leaf = session.reliable().word(self.leaf(partition)).await?;
            count += leaf >> 16;
            sum += i64::from(leaf as u16 as i16);
        }
        Ok((count, sum as u64))
    }
}

/// Waits for an operation on the memory of `owner`.
async fn at_home<T>(
    session: &Session,
    owner: Option<Incarnation>,
    posted: impl Future<Output = Result<T, OpError>>,
) -> Result<T, Fail> {
    let Some(owner) = owner else { return Ok(posted.await?) };
    match on_region(session, owner, posted).await {
        RegionEnd::Done(done) => Ok(done),
        RegionEnd::Gone => Err(Fail::Gone(owner)),
        RegionEnd::Unreachable(error) => Err(error.into()),
    }
}

async fn write_word(
    session: &Session,
    owner: Option<Incarnation>,
    at: GlobalAddr,
    word: u64,
) -> Result<(), Fail> {
    let mut buf = session.reliable().buf(8);
    buf.words_mut()[0] = word;
    at_home(session, owner, session.reliable().write(at, buf)).await
}

/// A line whose lock is held.
struct HeldLine {
    home: Home,
    at: GlobalAddr,
    token: u64,
    /// The leaf's word.
    leaf: u64,
}

/// The outcome of an attempt at a lock.
enum Took {
    Line(HeldLine),
    /// Leave the guard first.
    Leave,
    Found(Record),
}

impl Toy {
    pub(super) async fn join(
        places: Places,
        session: &Session,
        log: Rc<RefCell<Log>>,
    ) -> Result<Toy, IndexError> {
        let membership = PartitionMembership::join(places.words, session).await?;
        Ok(Toy(Rc::new(Inner { places, membership, log })))
    }

    pub(super) fn places(&self) -> &Places {
        &self.0.places
    }

    pub(super) fn own(&self) -> &PartitionMembership {
        &self.0.membership
    }

    fn wrong(&self, what: String) {
        self.0.log.borrow_mut().wrong.get_or_insert(what);
    }

    async fn leaf(&self, session: &Session, partition: u32) -> Result<u64, Fail> {
        Ok(session.reliable().word(self.places().leaf(partition)).await?)
    }

    /// Takes the lock of a line, and READs the line; builds it from the leaf if it is of another term.
    async fn take(
        &self,
        session: &Session,
        inside: &InsidePartitions<&PartitionGuard>,
        (partition, home): (u32, Home),
        token: u64,
    ) -> Result<Took, Fail> {
        let at = self.places().line(session, home.owner, partition).await?;
        let lock = at.plus(LOCK_AT);
        let (mut wait, mut expected) = (LockWait::default(), 0);
        let mut is_lost = false;
        loop {
            let posted = session.reliable().cas(lock, expected, token);
            let found = at_home(session, home.owner, posted).await?;
            if found == expected {
                break;
            }
            (expected, is_lost) = (0, false);
            if inside.is_stale() {
                return Ok(Took::Leave);
            }
            if found != 0 && wait.again(session, ("line", at), found).await? {
                if let Some(record) = self.record(session, found).await? {
                    return Ok(Took::Found(record));
                }
                (expected, is_lost) = (found, true);
            }
        }
        let word = at_home(session, home.owner, session.reliable().word(at)).await?;
        let leaf = self.leaf(session, partition).await?;
        let is_current =
            (word >> 32) as u32 == home.term || word >> 32 != 0 && IGNORE_TERM.is_armed();
        let mut held = HeldLine { home, at, token, leaf };
        if is_current && !is_lost {
            held.leaf = word & 0xffff_ffff;
            if held.leaf != leaf {
                self.wrong(format!(
                    "partition {partition} of {home:?}: line {:#x}, leaf {leaf:#x}",
                    held.leaf
                ));
            }
        }
        Ok(Took::Line(held))
    }

    /// Writes the line.
    async fn write_line(&self, session: &Session, line: &HeldLine, leaf: u64) -> Result<(), Fail> {
        let word = line_word(line.home.term, leaf);
        write_word(session, line.home.owner, line.at, word).await
    }

    async fn write_leaf(&self, session: &Session, partition: u32, leaf: u64) -> Result<(), Fail> {
        write_word(session, None, self.places().leaf(partition), leaf).await
    }

    /// Gives the lock back; that of a region which is gone needs none.
    async fn release(&self, session: &Session, line: &HeldLine) -> Result<(), IndexError> {
        let posted = session.reliable().cas_release(line.at.plus(LOCK_AT), line.token, 0);
        match at_home(session, line.home.owner, posted).await {
            Ok(_) | Err(Fail::Gone(_)) => Ok(()),
            Err(Fail::Index(error)) => Err(error),
        }
    }

    /// The record of the transfer under `token`, if its client has left one.
    async fn record(&self, session: &Session, token: u64) -> Result<Option<Record>, IndexError> {
        let server = self.places().leaves.server();
        let at = session.redo_addr_of(server, token)?;
        let reliable = session.reliable();
        let words = reliable.read(at, reliable.buf(RECORD_BYTES)).await?;
        Ok(Record::of(words.words()).filter(|record| record.token == token))
    }

    async fn write_record(&self, session: &Session, record: &Record) -> Result<(), IndexError> {
        let reliable = session.reliable();
        let mut buf = reliable.buf(RECORD_BYTES);
        buf.words_mut().copy_from_slice(&record.words());
        Ok(reliable.write(session.redo_addr(self.places().leaves.server()), buf).await?)
    }

    /// Adds 1 to a leaf.
    pub(super) async fn add(&self, session: &Session, partition: u32) -> Result<(), IndexError> {
        self.0.log.borrow_mut().pending = Pending::Add;
        self.until_done(session, async || self.try_add(session, partition).await).await?;
        let mut log = self.0.log.borrow_mut();
        (log.adds, log.pending) = (log.adds + 1, Pending::Nothing);
        Ok(())
    }

    /// Moves 1 from leaf `p` to leaf `q`.
    pub(super) async fn transfer(
        &self,
        session: &Session,
        p: u32,
        q: u32,
    ) -> Result<(), IndexError> {
        self.0.log.borrow_mut().pending = Pending::Transfer;
        self.until_done(session, async || self.try_transfer(session, p, q).await).await?;
        let mut log = self.0.log.borrow_mut();
        (log.transfers, log.pending) = (log.transfers + 1, Pending::Nothing);
        Ok(())
    }

    /// The change under way has failed, and nothing was done.
    pub(super) fn forget_pending(&self) {
        self.0.log.borrow_mut().pending = Pending::Nothing;
    }

    async fn until_done(
        &self,
        session: &Session,
        attempt: impl AsyncFn() -> Result<Tried, IndexError>,
    ) -> Result<(), IndexError> {
        for number in 0..10_000 {
            match attempt().await? {
                Tried::Done => return Ok(()),
                Tried::Again => {}
                // Waits until both are open.
                Tried::Closed(both) => drop(enter(self, self.own(), session, both).await?),
                Tried::Gone(owner) if session.endpoint().is_dead(owner).await => {
                    fail_over(self, session, owner).await?;
                }
                // It has left the pool in order: another has its partitions.
                Tried::Gone(_) => tick(self, session).await?,
                Tried::Found(record) => self.rescue(session, record).await?,
            }
            backoff(session, number.min(4)).await;
        }
        Err(IndexError::Unavailable("an operation of the toy table finds no end".into()))
    }

    async fn try_add(&self, session: &Session, partition: u32) -> Result<Tried, IndexError> {
        let (inside, [home]) = enter(self, self.own(), session, [partition]).await?;
        let _pin = session.begin(OpKind::Update).await?;
        let token = session.lock_token();
        let line = match self.take(session, &inside, (partition, home), token).await {
            Ok(Took::Line(line)) => line,
            Ok(Took::Leave) => return Ok(Tried::Again),
            Ok(Took::Found(record)) => return Ok(Tried::Found(record)),
            Err(fail) => return tried(fail),
        };
        let next = changed(line.leaf, 1);
        if let Err(fail) = self.write_line(session, &line, next).await {
            return tried(fail);
        }
        if let Err(fail) = self.write_leaf(session, partition, next).await {
            return tried(fail);
        }
        self.release(session, &line).await?;
        Ok(Tried::Done)
    }

    async fn try_transfer(&self, session: &Session, p: u32, q: u32) -> Result<Tried, IndexError> {
        let (inside, [home]) = enter(self, self.own(), session, [p]).await?;
        let _pin = session.begin(OpKind::Update).await?;
        let token = session.lock_token();
        let left = match self.take(session, &inside, (p, home), token).await {
            Ok(Took::Line(line)) => line,
            Ok(Took::Leave) => return Ok(Tried::Again),
            Ok(Took::Found(record)) => return Ok(Tried::Found(record)),
            Err(fail) => return tried(fail),
        };
        // Nobody waits for the guard while inside.
        let Some(home) = inside.try_enter(q) else {
            self.restore(session, &left).await?;
            return Ok(Tried::Closed([p, q]));
        };
        let right = match self.take(session, &inside, (q, home), token).await {
            Ok(Took::Line(line)) => line,
            Ok(other) => {
                self.restore(session, &left).await?;
                let Took::Found(record) = other else { return Ok(Tried::Again) };
                return Ok(Tried::Found(record));
            }
            Err(fail) => {
                self.restore(session, &left).await?;
                return tried(fail);
            }
        };
        let (p_words, q_words) =
            ([left.leaf, changed(left.leaf, -1)], [right.leaf, changed(right.leaf, 1)]);
        let record = Record { token, q_token: token, p, q, p_words, q_words };
        self.write_record(session, &record).await?;
        // From here on it is done to its end, also without the lines.
        self.finish(session, &record, Some(&left), Some(&right)).await?;
        Ok(Tried::Done)
    }

    /// Gives a lock back under which nothing was changed.
    async fn restore(&self, session: &Session, line: &HeldLine) -> Result<(), IndexError> {
        match self.write_line(session, line, line.leaf).await {
            Ok(()) | Err(Fail::Gone(_)) => self.release(session, line).await,
            Err(Fail::Index(error)) => Err(error),
        }
    }

    /// Does the steps of a record: lines, leaves by versions, locks.
    async fn finish(
        &self,
        session: &Session,
        record: &Record,
        left: Option<&HeldLine>,
        right: Option<&HeldLine>,
    ) -> Result<(), IndexError> {
        let only_index = |done: Result<(), Fail>| match done {
            Ok(()) | Err(Fail::Gone(_)) => Ok(()),
            Err(Fail::Index(error)) => Err(error),
        };
        let sides = [(left, record.p, record.p_words), (right, record.q, record.q_words)];
        let mut now = [0; 2];
        for (at, (line, partition, [before, after])) in sides.into_iter().enumerate() {
            let Ok(leaf) = self.leaf(session, partition).await else { continue };
            now[at] = if leaf == before { after } else { leaf };
            if let Some(line) = line {
                only_index(self.write_line(session, line, now[at]).await)?;
            }
        }
        for (_, partition, [before, after]) in sides {
            let Ok(leaf) = self.leaf(session, partition).await else { continue };
            if leaf == before {
                only_index(self.write_leaf(session, partition, after).await)?;
            }
        }
        for line in [left, right].into_iter().flatten() {
            self.release(session, line).await?;
        }
        Ok(())
    }

    /// Finishes the transfer of a dead client whose lock was met.
    async fn rescue(&self, session: &Session, record: Record) -> Result<(), IndexError> {
        let (_inside, homes) = enter(self, self.own(), session, [record.p, record.q]).await?;
        let _pin = session.begin(OpKind::Update).await?;
        match self.rescue_inside(session, record, homes).await {
            Ok(()) | Err(Fail::Gone(_)) => Ok(()),
            Err(Fail::Index(error)) => Err(error),
        }
    }

    async fn rescue_inside(
        &self,
        session: &Session,
        record: Record,
        [p_home, q_home]: [Home; 2],
    ) -> Result<(), Fail> {
        let (p_at, q_at) = (
            self.places().line(session, p_home.owner, record.p).await?,
            self.places().line(session, q_home.owner, record.q).await?,
        );
        let q_lock = q_at.plus(LOCK_AT);
        let q_now = at_home(session, q_home.owner, session.reliable().word(q_lock)).await?;
        let is_dead = |word: u64| word == record.token || word == record.q_token;
        let token = session.lock_token();
        let line = |home, at| HeldLine { home, at, token, leaf: 0 };
        let (left, right) = (line(p_home, p_at), line(q_home, q_at));
        // A copy of its own first: it may die between the two locks.
        let q_token = if is_dead(q_now) { q_now } else { token };
        let own = Record { token, q_token, ..record };
        self.write_record(session, &own).await?;
        let posted = session.reliable().cas(p_at.plus(LOCK_AT), record.token, token);
        let has_left = at_home(session, p_home.owner, posted).await? == record.token;
        let is_done = self.leaf(session, record.q).await? != record.q_words[0];
        if !has_left && !is_done {
            // Another is at it.
            return Ok(());
        }
        let mut has_right = false;
        if is_dead(q_now) {
            let posted = session.reliable().cas(q_lock, q_now, token);
            has_right = at_home(session, q_home.owner, posted).await? == q_now;
        }
        let (left, right) = (has_left.then_some(&left), has_right.then_some(&right));
        match has_left {
            true => self.finish(session, &own, left, right).await?,
            false => {
                let leaf = self.leaf(session, record.q).await?;
                if let Some(right) = right {
                    self.write_line(session, right, leaf).await?;
                    self.release(session, right).await?;
                }
            }
        }
        Ok(())
    }

    /// At the end, when nobody works: every line of the current term has its leaf's word, and no lock is held.
    pub(super) async fn verify(&self, session: &Session) -> Result<(), String> {
        let view = self.own().view();
        for partition in 0..PARTITIONS {
            let home = view.home(partition).ok_or(format!("partition {partition} is closed"))?;
            let line = async {
                let at = self.places().line(session, home.owner, partition).await?;
                let read = session.reliable().read(at, session.reliable().buf(64));
                let line = at_home(session, home.owner, read).await?;
                Ok::<_, Fail>((line, self.leaf(session, partition).await?))
            };
            let (line, leaf) = line.await.map_err(|_| format!("{home:?} cannot be read"))?;
            let [word, .., lock] = line.words() else { unreachable!("8 words") };
            if *lock != 0 {
                let holder = LockToken::from_word(*lock);
                return Err(format!("partition {partition} of {home:?} is locked by {holder:?}"));
            }
            if *word != line_word(home.term, leaf) {
                return Err(format!(
                    "partition {partition} of {home:?}: {word:#x}, leaf {leaf:#x}"
                ));
            }
        }
        let conductor = session.reliable().word(self.places().words.conductor).await;
        match conductor {
            Ok(0) => Ok(()),
            // It has died at its last step; the word is taken over when it is next needed.
            Ok(token) if session.owner_is_dead(token).await.is_ok_and(|is_dead| is_dead) => Ok(()),
            other => Err(format!("the conductor's word is {other:?}")),
        }
    }
}

impl PartitionedTable for Toy {
    fn words(&self) -> &PartitionWords {
        &self.0.places.words
    }

    fn membership(&self) -> Option<&PartitionMembership> {
        Some(&self.0.membership)
    }

    fn slice_bytes(&self, _session: &Session) -> u64 {
        u64::from(PARTITIONS) * LINE_BYTES
    }

    async fn finish_dead(&self, session: &Session, closed: &[u32]) -> Result<(), IndexError> {
        let clients = session.pool().geometry().options().clients_max;
        let server = self.places().leaves.server();
        for client in 0..clients {
            // Any token of the client.
            let named = 1 << 63 | u64::from(client) << LockToken::COUNTER_BITS;
            let at = session.redo_addr_of(server, named)?;
            let reliable = session.reliable();
            let words = reliable.read(at, reliable.buf(RECORD_BYTES)).await?;
            let Some(record) = Record::of(words.words()) else { continue };
            if !closed.contains(&record.p) && !closed.contains(&record.q) {
                continue;
            }
            if session.owner_is_dead(record.token).await? {
                self.finish(session, &record, None, None).await?;
            }
        }
        Ok(())
    }

    async fn copy_lines(
        &self,
        session: &Session,
        partition: u32,
        from: Home,
        to: Home,
    ) -> Result<(), IndexError> {
        let copied = async {
            let source = self.places().line(session, from.owner, partition).await?;
            let target = self.places().line(session, to.owner, partition).await?;
            let read = session.reliable().read(source, session.reliable().buf(64));
            let mut line = at_home(session, from.owner, read).await?;
            let word = line.words()[0];
            let is_current = (word >> 32) as u32 == from.term;
            line.words_mut()[0] =
                if is_current { line_word(to.term, word & 0xffff_ffff) } else { 0 };
            at_home(session, to.owner, session.reliable().write(target, line)).await
        };
        copied.await.map_err(|fail| match fail {
            Fail::Gone(who) => IndexError::Unavailable(format!("{who} is gone")),
            Fail::Index(error) => error,
        })
    }

    async fn clear_unowned(&self, session: &Session, partitions: &[u32]) -> Result<(), IndexError> {
        for partition in partitions {
            let mut zeroes = session.reliable().buf(64);
            zeroes.words_mut().fill(0);
            let at = self.places().lines.plus(u64::from(*partition) * LINE_BYTES);
            session.reliable().write(at, zeroes).await?;
        }
        Ok(())
    }

    async fn forget_lines(&self, session: &Session, partitions: &[u32]) -> Result<(), IndexError> {
        let Some(own) = session.endpoint().own_region() else { return Ok(()) };
        for partition in partitions {
            let mut zeroes = session.reliable().buf(64);
            zeroes.words_mut().fill(0);
            let at = GlobalAddr::new(own.number, u64::from(*partition) * LINE_BYTES);
            session.reliable().write(at, zeroes).await?;
        }
        Ok(())
    }
}

/// A client of `sim`'s compute server, whose memory is exposed.
pub(super) async fn session_of(client: &Client) -> Result<Session, IndexError> {
    let pool = farleaf_pool::Pool::join(client).await?;
    Ok(pool.session(client.endpoint().clone()).await?)
}
