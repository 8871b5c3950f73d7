//! Retired objects: waits until no operation can hold an unlinked object, and frees it.
//!
//! An object of an own block waits in this member's memory alone: if the member dies, recovery searches
//! its blocks. An object of another's block is *announced* as well: its address stands in the client's
//! retire page, so that recoveries leave it alone, and free it if this member dies.
//!
//! INV-RETIRE-1: a member announces an object after it has unlinked it. From the unlinking until the
//! announcement has ended, it holds the epoch that the unlinking operation had pinned (the *pending* pin).
//! Recovery waits for later epochs before it reads the pages. One WRITE announces all that waits.
//! INV-RETIRE-2: the word is cleared before the object is freed. From the clearing to the freeing the
//! member is announced live and the client's reclaim pin is set. Recovery waits for such pins between the
//! pages and the bitmaps. Tasks announce, clear and free, so that no caller can drop them half way.
//! INV-RETIRE-3: a word names an object that its client has unlinked, or is about to unlink while nobody
//! else can (INV-DROP-2), and that nobody else will free. So recovery frees on the strength of words, as
//! far as no table reaches their objects.
//! INV-RETIRE-4: a block with a retired object that is not announced stays its member's.
//!
//! `tests/waits.rs` models how these meet a recovery.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_fabric::{GlobalAddr, ServerId};

use crate::class::class_bytes;
use crate::geometry::RETIRE_WORDS;
use crate::pins::{PinGuard, UNPINNED, pin_at};
use crate::reliable::wait_until;
use crate::{Pool, PoolError, Session};

farleaf_fabric::canaries! {
    pub REUSE_EARLY = "reuse-early", "a retired object is reused while operations may hold it";
}

/// Between looks whether a task is done.
const TASK_WAIT_NS: u64 = 500;
/// Objects that are reclaimed together.
const BATCH: usize = 64;
/// Words of a page that are taken and freed together.
const CHUNK_WORDS: usize = 64;
const CHUNKS: usize = RETIRE_WORDS / CHUNK_WORDS;
/// Objects of own blocks that may wait.
const OWN_ROOM: usize = 1024;
/// Pending objects above which the next tick announces them, whether they hold the epoch back or not.
const PENDING_MANY: usize = 48;

/// Room for an object that is about to be unlinked: to be given to [`crate::Session::retire`] once it is,
/// or to [`crate::Session::cancel_retire`] if it stays.
///
/// Dropped, the object counts as in use, and a sweep frees it if it is not.
#[derive(Debug)]
#[must_use = "the object must be retired, or its retirement cancelled"]
pub struct Retiring {
    pub(crate) addr: GlobalAddr,
    pub(crate) client: u32,
    /// Of a block of this member's.
    is_own: bool,
    /// `None` once the room is taken or given back.
    of: Option<Arc<Retirement>>,
}

impl Drop for Retiring {
    fn drop(&mut self) {
        if let Some(of) = self.of.take() {
            let mut retired = of.lock();
            retired.give_room(self.is_own);
            if self.is_own {
                retired.let_go.push(self.addr);
            }
        }
    }
}

impl Retiring {
    /// The object.
    pub fn addr(&self) -> GlobalAddr {
        self.addr
    }
}

/// One client's retired objects, known to its session and to its member, so that any tick of the
/// member frees them: a session that has nothing to do any more must not keep them.
#[derive(Debug)]
pub(crate) struct Retirement {
    /// The client.
    pub(crate) id: u32,
    retired: Mutex<Retired>,
    /// Somebody frees from it.
    busy: AtomicBool,
}

impl Retirement {
    pub(crate) fn new(id: u32, servers: usize) -> Arc<Self> {
        let retired = Retired { pages: Pages::new(servers), ..Retired::default() };
        Arc::new(Retirement { id, retired: Mutex::new(retired), busy: AtomicBool::new(false) })
    }

    /// Its content. Never held across an await.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Retired> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the right to free from it, unless somebody has it.
    pub(crate) fn claim(self: &Arc<Self>) -> Option<Freeing> {
        // Made only if it is claimed: dropping one lets go.
        let claimed = !self.busy.swap(true, Ordering::SeqCst);
        let count = claimed.then(|| self.lock().len())?;
        Some(Freeing { count, of: Arc::clone(self) })
    }
}

/// The right to free one client's retired objects, as many as there were when it was taken.
#[derive(Debug)]
pub(crate) struct Freeing {
    pub(crate) of: Arc<Retirement>,
    count: usize,
}

impl Freeing {
    /// Tells whether anything was retired when the right was taken.
    pub(crate) fn has_any(&self) -> bool {
        self.count > 0
    }
}

impl Drop for Freeing {
    fn drop(&mut self) {
        self.of.busy.store(false, Ordering::SeqCst);
    }
}

/// One client's retired objects and its use of its retire pages.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    /// Of own blocks.
    own: VecDeque<RetiredObject>,
    /// Of others' blocks, unlinked and not announced.
    pending: Vec<Pending>,
    /// Of others' blocks, announced.
    announced: VecDeque<Announced>,
    pages: Pages,
    /// Room that [`Retiring`]s hold: of own blocks, of others'.
    reserved: [usize; 2],
    /// A task announces the first so many of `pending`.
    announcing: usize,
    /// Objects that a task frees.
    freeing: usize,
    error: Option<PoolError>,
    /// Objects of own blocks whose [`Retiring`] was dropped.
    let_go: Vec<GlobalAddr>,
}

/// An unlinked object.
#[derive(Clone, Copy, Debug)]
struct RetiredObject {
    epoch: u64,
    addr: GlobalAddr,
    bytes: u32,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    object: RetiredObject,
    /// Pinned by the operation that unlinked it.
    pinned: u64,
}

/// An object whose address stands in a page.
#[derive(Clone, Copy, Debug)]
struct Announced {
    object: RetiredObject,
    word: PageWord,
}

/// A word of a client's page on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageWord {
    pub(crate) server: ServerId,
    pub(crate) index: u16,
}

impl PageWord {
    /// Tells whether the other one is the next word of the same page.
    pub(crate) fn is_before(self, other: PageWord) -> bool {
        self.server == other.server && self.index + 1 == other.index
    }
}

/// Use of one client's retire pages, in chunks that are filled one after the other.
#[derive(Debug, Default)]
struct Pages {
    /// Words in use, by server and chunk.
    used: Vec<u8>,
    /// The chunk that is being filled, and its first free word.
    filling: Option<(usize, usize)>,
    /// Chunk from which the next is looked for.
    next: usize,
}

impl Pages {
    fn new(servers: usize) -> Self {
        Pages { used: vec![0; servers * CHUNKS], ..Pages::default() }
    }

    /// Objects that surely find words: all but the chunk that is filled and the one that is emptied.
    fn room(&self) -> usize {
        (self.used.len() - 2) * CHUNK_WORDS
    }

    fn take(&mut self) -> Option<PageWord> {
        let (chunk, word) = match self.filling {
            Some(at) => at,
            None => {
                let count = self.used.len();
                let mut chunks = (0..count).map(|at| (self.next + at) % count);
                let chunk = chunks.find(|chunk| self.used[*chunk] == 0)?;
                self.next = chunk + 1;
                (chunk, 0)
            }
        };
        self.used[chunk] += 1;
        self.filling = (word + 1 < CHUNK_WORDS).then_some((chunk, word + 1));
        let servers = self.used.len() / CHUNKS;
        let index = chunk / servers * CHUNK_WORDS + word;
        Some(PageWord { server: ServerId((chunk % servers) as u16), index: index as u16 })
    }

    /// Counts a word that an earlier owner has taken.
    fn adopt(&mut self, word: PageWord) {
        let chunk = self.chunk_of(word);
        self.used[chunk] += 1;
    }

    fn chunk_of(&self, word: PageWord) -> usize {
        let servers = self.used.len() / CHUNKS;
        usize::from(word.index) / CHUNK_WORDS * servers + word.server.index()
    }

    fn give(&mut self, word: PageWord) {
        let chunk = self.chunk_of(word);
        self.used[chunk] -= 1;
        if self.used[chunk] == 0 && self.filling.is_some_and(|(filling, _)| filling == chunk) {
            self.filling = None;
        }
    }
}

impl Retired {
    /// Number of objects that wait or are being freed.
    pub(crate) fn len(&self) -> usize {
        self.own.len() + self.pending.len() + self.announced.len() + self.freeing
    }

    /// Objects that wait here, or have room, and how many may: of own blocks or of others'.
    fn load(&self, is_own: bool) -> (usize, usize) {
        let others = self.pending.len() + self.announced.len() + self.freeing;
        match is_own {
            true => (self.own.len() + self.reserved[0], OWN_ROOM),
            false => (others + self.reserved[1], self.pages.room()),
        }
    }

    /// Tells whether little room is left: less than a quarter.
    pub(crate) fn is_pressed(&self) -> bool {
        [true, false].map(|is_own| self.load(is_own)).iter().any(|(load, room)| load * 4 > room * 3)
    }

    fn take_room(&mut self, is_own: bool) -> bool {
        let (load, room) = self.load(is_own);
        self.reserved[usize::from(!is_own)] += usize::from(load < room);
        load < room
    }

    fn give_room(&mut self, is_own: bool) {
        self.reserved[usize::from(!is_own)] -= 1;
    }

    /// Tells whether what is pending must be announced now: it holds back a member that has seen `view`, or
    /// is much.
    fn is_due(&self, view: u64) -> bool {
        self.pending.len() >= PENDING_MANY || self.pending.iter().any(|object| object.pinned < view)
    }

    /// Tells whether all that waits is announced.
    pub(crate) fn is_announced(&self) -> bool {
        let waits = self.own.len() + self.pending.len() + self.announcing + self.freeing;
        waits == 0
    }

    /// Returns the objects that wait in this member's memory alone.
    pub(crate) fn unannounced(&self) -> impl Iterator<Item = GlobalAddr> + '_ {
        let pending = self.pending.iter().map(|pending| pending.object.addr);
        self.own.iter().map(|object| object.addr).chain(pending)
    }
}

impl Session {
    /// Room for the retirement of an object, before it is unlinked.
    pub(crate) fn make_room(&self, addr: GlobalAddr) -> Result<Retiring, PoolError> {
        let pool = self.pool();
        pool.block_of(addr)?;
        let is_own = pool.alloc().hold_retired(addr);
        let mut retired = self.inner.retired.lock();
        let has_room = retired.take_room(is_own);
        self.inner.pressed.set(retired.is_pressed() || pool.retires_much());
        if !has_room {
            if is_own {
                retired.let_go.push(addr);
            }
            return Err(PoolError::RetireFull);
        }
        let of = Some(Arc::clone(&self.inner.retired));
        Ok(Retiring { addr, client: self.inner.id, is_own, of })
    }

    /// The object stays, or another client has unlinked it. No remote operation.
    ///
    /// # Panics
    /// If another session prepared it.
    pub fn cancel_retire(&self, mut retiring: Retiring) {
        assert_eq!(retiring.client, self.id(), "cancelled by another session");
        retiring.of = None;
        self.inner.retired.lock().give_room(retiring.is_own);
        if retiring.is_own {
            self.pool().alloc().let_go_retired(retiring.addr);
        }
    }

    /// Retires a prepared object that was unlinked for good: it is freed when nobody can hold it any more.
    ///
    /// Call it in the operation that unlinked the object, before the pin is dropped, once the change is complete and its
    /// lock released. If the client dies earlier, the client that completes its change retires the object. No remote
    /// operation; until the next tick the member holds back the epoch that the operation has pinned.
    ///
    /// # Panics
    /// If another session prepared it.
    pub fn retire(&self, mut retiring: Retiring) {
        assert_eq!(retiring.client, self.id(), "retired by another session than made room for it");
        retiring.of = None;
        let (pool, addr) = (self.pool(), retiring.addr);
        let mut retired = self.inner.retired.lock();
        retired.give_room(retiring.is_own);
        let object = pool.retired_object(addr);
        if retiring.is_own {
            pool.retired_bytes.fetch_add(object.bytes.into(), Ordering::Relaxed);
            retired.own.push_back(object);
            return;
        }
        // Of the operation that unlinked it, at the latest; the view may be a later epoch (INV-RETIRE-1).
        let least = pool.pins.least_operation(self.id());
        debug_assert!(least != UNPINNED, "INV-RETIRE-1: {addr} is retired outside of an operation");
        let pinned = least.min(object.epoch);
        retired.pending.push(Pending { object, pinned });
        pool.pins.pending(self.id()).fetch_min(pinned, Ordering::SeqCst);
    }

    /// Announces objects that only this session will unlink, before it does (INV-DROP-2); to be given to
    /// [`Session::queue_announced`] or [`Session::take_back`] all.
    pub(crate) async fn announce_now(
        &self,
        all: &[Retiring],
    ) -> Result<Vec<Option<PageWord>>, PoolError> {
        let words: Vec<Option<PageWord>> = {
            let mut retired = self.inner.retired.lock();
            let pages = &mut retired.pages;
            all.iter().map(|retiring| if retiring.is_own { None } else { pages.take() }).collect()
        };
        let mut ops = self.client().ops();
        for (retiring, word) in all.iter().zip(&words) {
            if let Some(word) = word {
                ops.write_word(self.pool().page_word(self.id(), *word), retiring.addr.word());
            }
        }
        if !ops.is_empty() {
            self.reliable().post_many(ops).await?;
        }
        Ok(words)
    }

    /// Queues an object of [`Session::announce_now`] that is unlinked.
    pub(crate) fn queue_announced(&self, mut retiring: Retiring, word: Option<PageWord>) {
        let Some(word) = word else { return self.retire(retiring) };
        retiring.of = None;
        let object = self.pool().retired_object(retiring.addr);
        let mut retired = self.inner.retired.lock();
        retired.give_room(false);
        retired.announced.push_back(Announced { object, word });
    }

    /// Announces what is pending of this client, and of the member's others what holds it back, or all of it
    /// if `all`. `closed` is of a client whose session has ended, and that a tick has in hand.
    ///
    /// Cost: per client with such objects 1 WRITE for each run of 64 words of its pages.
    pub(crate) async fn announce_pending(
        &self,
        all: bool,
        closed: Option<&Arc<Retirement>>,
    ) -> Result<(), PoolError> {
        let pool = self.pool();
        let view = pool.epochs.view.load(Ordering::SeqCst);
        for of in pool.all_retirements().into_iter().chain(closed.cloned()) {
            let is_due = |retired: &Retired| match all || of.id == self.id() {
                true => !retired.pending.is_empty(),
                false => retired.is_due(view),
            };
            if !is_due(&of.lock()) {
                continue;
            }
            self.announce_in_task(&of);
            wait_until(self.maintenance(), TASK_WAIT_NS, || of.lock().announcing == 0).await;
            if let Some(error) = of.lock().error.take() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Lets what waits of own blocks be announced, as far as the pages have room, so that this member may give
    /// up the blocks.
    pub(crate) fn let_own_be_announced(&self) {
        let pool = self.pool();
        let view = pool.epochs.view.load(Ordering::SeqCst);
        for of in pool.all_retirements() {
            let mut retired = of.lock();
            let (load, room) = retired.load(false);
            let count = retired.own.len().min(room.saturating_sub(load));
            let own: Vec<RetiredObject> = retired.own.drain(..count).collect();
            for object in own {
                pool.retired_bytes.fetch_sub(u64::from(object.bytes), Ordering::Relaxed);
                retired.pending.push(Pending { object, pinned: view });
                pool.pins.pending(of.id).fetch_min(view, Ordering::SeqCst);
                pool.alloc().let_go_retired(object.addr);
            }
        }
    }

    fn announce_in_task(&self, of: &Arc<Retirement>) {
        let mut words = Vec::new();
        {
            let mut retired = of.lock();
            if retired.announcing > 0 {
                return;
            }
            while words.len() < retired.pending.len() {
                // There is room for all that is pending.
                let Some(word) = retired.pages.take() else { break };
                words.push((word, retired.pending[words.len()].object.addr));
            }
            retired.announcing = words.len();
        }
        let of = Arc::clone(of);
        self.spawn(async move |session| {
            let (pool, client) = (session.pool(), session.maintenance());
            let mut ops = client.client().ops();
            for run in words.chunk_by(|one, next| one.0.is_before(next.0)) {
                let mut content = client.buf(run.len() * 8);
                content.words_mut().iter_mut().zip(run).for_each(|(to, (_, addr))| {
                    *to = addr.word();
                });
                ops.write(pool.page_word(of.id, run[0].0), content);
            }
            let posted = client.post_many(ops).await;
            let mut retired = of.lock();
            retired.error = posted.err().map(PoolError::from);
            let count = std::mem::take(&mut retired.announcing);
            let Retired { pending, announced, .. } = &mut *retired;
            let objects = pending.drain(..count).map(|pending| pending.object);
            let objects = objects.zip(words);
            announced.extend(objects.map(|(object, (word, _))| Announced { object, word }));
            let pinned = retired.pending.iter().map(|object| object.pinned).min();
            pool.pins.pending(of.id).store(pinned.unwrap_or(UNPINNED), Ordering::SeqCst);
        });
    }

    /// Frees what `bound` allows of the objects that were retired when `freeing` was taken.
    ///
    /// Cost: nothing for objects of own blocks. Of others' blocks, per 64 objects: 1 WRITE for each run of
    /// words that they have in the pages, and what [`Pool::give_home`] costs.
    pub(crate) async fn reclaim(&self, freeing: &Freeing, bound: u64) -> Result<(), PoolError> {
        let (pool, of, mut count) = (&**self.pool(), &freeing.of, freeing.count);
        let is_due = |epoch: u64| epoch + 2 <= bound || REUSE_EARLY.is_armed();
        let let_go = std::mem::take(&mut of.lock().let_go);
        let_go.iter().for_each(|addr| pool.alloc().let_go_retired(*addr));
        loop {
            if of.lock().freeing > 0 {
                // A task is at it still, under the same pin.
                return Ok(());
            }
            let own = self.take_due_own(of, count, is_due)?;
            count -= own.len();
            let batch: Vec<Announced> = {
                let mut retired = of.lock();
                let due = retired.announced.iter().take(count.min(BATCH));
                let due = due.take_while(|announced| is_due(announced.object.epoch)).count();
                retired.freeing = due + own.len();
                retired.announced.drain(..due).collect()
            };
            if batch.is_empty() && own.is_empty() {
                return Ok(());
            }
            count -= batch.len();
            self.free_in_task(of, own, batch);
            if !wait_until(self.maintenance(), TASK_WAIT_NS, || of.lock().freeing == 0).await {
                return Ok(());
            }
            if let Some(error) = of.lock().error.take() {
                return Err(error);
            }
        }
    }

    /// Frees what is due of own blocks. Returns what is to be overwritten before.
    fn take_due_own(
        &self,
        of: &Retirement,
        count: usize,
        is_due: impl Fn(u64) -> bool,
    ) -> Result<Vec<GlobalAddr>, PoolError> {
        let pool = &**self.pool();
        let (mut outcome, mut poisoned) = (Ok(()), Vec::new());
        for _ in 0..count {
            let object = of.lock().own.pop_front_if(|object| is_due(object.epoch));
            let Some(object) = object else { break };
            pool.retired_bytes.fetch_sub(u64::from(object.bytes), Ordering::Relaxed);
            pool.waiting_bytes.fetch_sub(u64::from(object.bytes), Ordering::Relaxed);
            if pool.is_poisoning() {
                poisoned.push(object.addr);
                if poisoned.len() == BATCH {
                    break;
                }
            } else if let Err(error) = pool.alloc().free_retired(object.addr) {
                outcome = Err(error);
            }
        }
        outcome.map(|()| poisoned)
    }

    /// Frees objects under the client's reclaim pin, which is let go after.
    fn free_in_task(&self, of: &Arc<Retirement>, own: Vec<GlobalAddr>, batch: Vec<Announced>) {
        let pin = self.pool().pins.reclaim(of.id);
        if pin.load(Ordering::SeqCst) == UNPINNED {
            pin_at(pin, &self.pool().epochs.view);
        }
        let of = Arc::clone(of);
        self.spawn(async move |session| {
            let pool = &**session.pool();
            let freed = pool.free_all(session.maintenance(), of.id, &own, &batch).await;
            drop(PinGuard(pool.pins.reclaim(of.id)));
            let bytes = batch.iter().map(|announced| u64::from(announced.object.bytes)).sum();
            pool.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            let mut retired = of.lock();
            batch.iter().for_each(|announced| retired.pages.give(announced.word));
            retired.error = freed.err();
            retired.freeing = 0;
        });
    }
}

impl Pool {
    async fn free_all(
        &self,
        client: crate::Reliable<'_>,
        owner: u32,
        own: &[GlobalAddr],
        batch: &[Announced],
    ) -> Result<(), PoolError> {
        self.ensure_live(client).await?;
        debug_assert!(
            self.pins.reclaim(owner).load(Ordering::SeqCst) != UNPINNED,
            "INV-RETIRE-2: client {owner} clears words without its reclaim pin"
        );
        let all: Vec<GlobalAddr> = batch.iter().map(|announced| announced.object.addr).collect();
        self.poison(client, own).await?;
        self.poison(client, &all).await?;
        let mut outcome = Ok(());
        for addr in own {
            if let Err(error) = self.alloc().free_retired(*addr) {
                outcome = Err(error);
            }
        }
        if batch.is_empty() {
            return outcome;
        }
        let mut ops = client.client().ops();
        for run in batch.chunk_by(|one, next| one.word.is_before(next.word)) {
            let mut zeros = client.buf(run.len() * 8);
            zeros.words_mut().fill(0);
            ops.write(self.page_word(owner, run[0].word), zeros);
        }
        client.post_many(ops).await?;
        self.give_home(client, &all).await?;
        outcome
    }

    /// Queues an object that a left client has announced by the word `index` of its page on `server`.
    pub(crate) fn adopt_announced(
        &self,
        of: &Retirement,
        addr: GlobalAddr,
        server: ServerId,
        index: u16,
    ) {
        let object = self.retired_object(addr);
        let word = PageWord { server, index };
        let mut retired = of.lock();
        retired.pages.adopt(word);
        retired.announced.push_back(Announced { object, word });
    }

    /// An object that is retired now. Its bytes count as waiting; 0 if its block is another's and nothing is known
    /// of its page.
    fn retired_object(&self, addr: GlobalAddr) -> RetiredObject {
        let epoch = self.epochs.view.load(Ordering::SeqCst);
        let own = self.alloc().class_at(addr).map(class_bytes);
        let bytes = own.unwrap_or_else(|| {
            let page = self.page_of(addr);
            page.map_or(0, |(block, page, _)| self.inbox.bytes_at(block, page))
        });
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        RetiredObject { epoch, addr, bytes: bytes as u32 }
    }

    pub(crate) fn page_word(&self, client: u32, word: PageWord) -> GlobalAddr {
        self.geometry().retire_addr(word.server, client, usize::from(word.index))
    }
}
