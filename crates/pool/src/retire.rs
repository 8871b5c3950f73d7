//! Retired objects: waits until no operation can hold an unlinked object, and frees it.
//!
//! A session announces an object in the pool before it unlinks it, so that the object is not lost with
//! the session.
//!
//! INV-RETIRE-1: an object's address stands in its retirer's page from before it is unlinked until
//! it is about to be freed. The word is cleared first and the object freed after.
//! INV-RETIRE-2: from the clearing to the freeing, the member is announced live and the session's
//! reclaim pin is set, also across a failure or a dropped future in between, until a later tick has
//! seen to it. Recovery waits for such pins (see `recover`). A task returns objects of others' blocks,
//! and nobody can drop it half way (INV-ALLOC-3).
//! INV-RETIRE-3: a word with bit 63 names an object that this client has unlinked and nobody else will
//! free. A word without may be left over: its client may have lost the race for the unlinking and died,
//! and the object may have been freed and handed out again since. So recovery frees on the strength of
//! confirmed words alone. Objects of own blocks need none: if this member dies, recovery searches their
//! blocks. A client that drops a table writes confirmed words at once, because nobody else takes
//! objects from that table (INV-DROP-2). So recovery frees only unreachable objects.
//! INV-RETIRE-4: sessions confirm and clear words by CAS from their known content, so that a late CAS
//! does nothing to the word's next user.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_fabric::{GlobalAddr, ServerId};

use crate::canary::Canary;
use crate::geometry::RETIRE_WORDS;
use crate::pins::{PinGuard, UNPINNED, pin_at};
use crate::reliable::{Cas, Reliable, wait_until};
use crate::{Pool, PoolError, Session};

/// Between looks whether the task that gives objects back is done.
const GIVE_WAIT_NS: u64 = 500;
/// Objects that are reclaimed with one doorbell.
const BATCH: usize = 64;

/// An object announced for retirement: to be given to [`crate::Session::retire`] once it is
/// unlinked, or to [`crate::Session::cancel_retire`] if it stays.
///
/// Dropped, a later tick clears its word in the retire page; then the object counts as in use, and
/// a sweep frees it if it is not.
#[derive(Debug)]
#[must_use = "the object must be retired, or its retirement cancelled"]
pub struct Retiring {
    pub(crate) addr: GlobalAddr,
    pub(crate) word: u16,
    pub(crate) client: u32,
    /// `None` once the word is somebody else's to care for.
    pub(crate) of: Option<Arc<Retirement>>,
}

impl PartialEq for Retiring {
    fn eq(&self, other: &Self) -> bool {
        (self.addr, self.word, self.client) == (other.addr, other.word, other.client)
    }
}

impl Eq for Retiring {}

impl Drop for Retiring {
    fn drop(&mut self) {
        if let Some(of) = self.of.take() {
            of.lock().spoiled.push((self.addr.server(), self.word));
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
        let (retired, busy) = (Mutex::new(Retired::new(servers)), AtomicBool::new(false));
        Arc::new(Retirement { id, retired, busy })
    }

    /// Its content. Never held across an await.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Retired> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the right to free from it, unless somebody has it.
    pub(crate) fn claim(self: &Arc<Self>) -> Option<Freeing> {
        // Made only if it is claimed: dropping one lets go.
        let claimed = !self.busy.swap(true, Ordering::SeqCst);
        claimed.then(|| Freeing { count: self.lock().queue.len(), of: Arc::clone(self) })
    }
}

/// The right to free one client's retired objects, as many as there were when it was taken.
#[derive(Debug)]
pub(crate) struct Freeing {
    of: Arc<Retirement>,
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
#[derive(Debug)]
pub(crate) struct Retired {
    queue: VecDeque<Entry>,
    pages: Vec<Page>,
    /// Objects of others' blocks that a task is giving back.
    giving: usize,
    give_error: Option<PoolError>,
    /// Words that may hold the address of an object that nobody will retire.
    spoiled: Vec<(ServerId, u16)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    epoch: u64,
    addr: GlobalAddr,
    word: u16,
    /// Bytes if the object is of an own block, otherwise 0.
    bytes: u32,
    page: PageWord,
    /// The word is being cleared, or was, by a CAS that has not come back.
    clearing: bool,
}

/// The known content of a word of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageWord {
    Announced,
    /// One of the others: a CAS had no known outcome.
    Confirming,
    Confirmed,
}

/// The bit of a confirmed word.
pub(crate) const CONFIRMED: u64 = 1 << 63;
/// CASes that a word's clearing takes at most: another of this client's may land in between.
const CLEAR_ATTEMPTS: usize = 4;

/// Words of a server's retire page that are in use.
#[derive(Clone, Copy, Debug, Default)]
struct Page([u64; RETIRE_WORDS / 64]);

/// Words in use above which operations wait for reclamation before they begin.
const PRESSED_WORDS: u32 = RETIRE_WORDS as u32 / 4 * 3;

impl Page {
    fn used(&self) -> u32 {
        self.0.iter().map(|bits| bits.count_ones()).sum()
    }
}

impl Retired {
    pub(crate) fn new(servers: usize) -> Self {
        Retired {
            queue: VecDeque::with_capacity(RETIRE_WORDS),
            pages: vec![Page::default(); servers],
            giving: 0,
            give_error: None,
            spoiled: Vec::new(),
        }
    }

    /// Number of objects that wait or are being given back.
    pub(crate) fn len(&self) -> usize {
        self.queue.len() + self.giving
    }

    /// Tells whether a page is nearly full.
    pub(crate) fn is_pressed(&self) -> bool {
        self.pages.iter().any(|page| page.used() > PRESSED_WORDS)
    }

    /// Takes a free word of the page on `server`.
    pub(crate) fn take_word(&mut self, server: ServerId) -> Option<u16> {
        let page = &mut self.pages.get_mut(server.index())?.0;
        let (at, bits) = page.iter_mut().enumerate().find(|(_, bits)| **bits != u64::MAX)?;
        let bit = bits.trailing_ones();
        *bits |= 1 << bit;
        Some(at as u16 * 64 + bit as u16)
    }

    pub(crate) fn give_word(&mut self, server: ServerId, word: u16) {
        self.pages[server.index()].0[usize::from(word) / 64] &= !(1 << (word % 64));
    }

    /// Tells whether a word of the page on `server` may be other than zero.
    pub(crate) fn is_used(&self, server: ServerId) -> bool {
        self.pages[server.index()].0 != [0; RETIRE_WORDS / 64]
    }

    /// Queues an unlinked object, whose word of the page holds `page`.
    fn push(&mut self, pool: &Pool, addr: GlobalAddr, word: u16, page: PageWord) {
        let class = pool
            .geometry()
            .block_of(addr)
            .and_then(|(block, _)| pool.alloc().class_at(addr.server(), block));
        let bytes = class.map_or(0, |class| pool.geometry().shape(class).object_bytes);
        pool.retired_bytes.fetch_add(bytes, Ordering::Relaxed);
        let epoch = pool.epochs.view.load(Ordering::SeqCst);
        let bytes = bytes as u32;
        self.queue.push_back(Entry { epoch, addr, word, bytes, page, clearing: false });
    }
}

impl Entry {
    /// The most likely content of its word of the page.
    fn expected(&self) -> u64 {
        match self.page {
            PageWord::Announced => self.addr.word(),
            PageWord::Confirming | PageWord::Confirmed => self.addr.word() | CONFIRMED,
        }
    }
}

impl Session {
    /// Frees what `bound` allows of the objects that were retired when `freeing` was taken.
    ///
    /// Cost: nothing if none is due. Per 64 objects 1 batch of CAS; for those of other members'
    /// blocks 2 batches of READs and one of CAS more.
    pub(crate) async fn reclaim(&self, freeing: &Freeing, bound: u64) -> Result<(), PoolError> {
        let (pool, client) = (&**self.pool(), self.maintenance());
        let (of, mut count) = (&freeing.of, freeing.count);
        loop {
            if of.lock().giving > 0 {
                // A task is at it still, under the same pin.
                return Ok(());
            }
            let is_due = |entry: &Entry| {
                entry.clearing || entry.epoch + 2 <= bound || Canary::ReuseEarly.is_armed()
            };
            let batch: Vec<Entry> = of
                .lock()
                .queue
                .iter()
                .take(count.min(BATCH))
                .take_while(|entry| is_due(entry))
                .copied()
                .collect();
            if batch.is_empty() {
                return Ok(());
            }
            let pin = pool.pins.reclaim(of.id);
            if pin.load(Ordering::SeqCst) == UNPINNED {
                pin_at(pin, &pool.epochs.view);
            }
            pool.ensure_live(client).await?;
            for entry in of.lock().queue.iter_mut().take(batch.len()) {
                entry.clearing = true;
            }
            let mut outcome = pool.clear_words(client, of.id, &batch).await?;
            // Everything before may be done again by the next tick, under the same pin.
            let pinned = PinGuard(pin);
            count -= batch.len();
            let mut foreign = Vec::new();
            for entry in batch {
                of.lock().queue.pop_front();
                of.lock().give_word(entry.addr.server(), entry.word);
                pool.retired_bytes.fetch_sub(u64::from(entry.bytes), Ordering::Relaxed);
                let own = pool.alloc().free(pool.geometry(), entry.addr);
                match own {
                    Ok(true) => {}
                    Ok(false) => foreign.push(entry.addr),
                    Err(error) => outcome = Err(error),
                }
            }
            if !foreign.is_empty() {
                std::mem::forget(pinned);
                self.give_back_in_task(of, foreign);
                if !wait_until(client, GIVE_WAIT_NS, || of.lock().giving == 0).await {
                    return outcome;
                }
                if let Some(error) = of.lock().give_error.take() {
                    return Err(error);
                }
            }
            outcome?;
        }
    }

    /// Writes the words of objects that nobody else will unlink, as confirmed.
    pub(crate) async fn announce_confirmed(&self, all: &[Retiring]) -> Result<(), PoolError> {
        let mut ops = self.client().ops();
        for retiring in all {
            ops.write_word(self.retire_addr(retiring), retiring.addr.word() | CONFIRMED);
        }
        self.reliable().post_many(ops).await?;
        Ok(())
    }

    /// As [`Session::retire`], for an object of [`Session::announce_confirmed`].
    pub(crate) fn retire_confirmed(&self, retiring: Retiring) {
        self.queue_retired(retiring, PageWord::Confirmed);
    }

    /// As [`Session::retire`], for an object that was announced alone.
    pub(crate) fn retire_announced(&self, retiring: Retiring) {
        self.queue_retired(retiring, PageWord::Announced);
    }

    fn queue_retired(&self, mut retiring: Retiring, page: PageWord) {
        assert_eq!(retiring.client, self.id(), "retired by another session than announced it");
        retiring.of = None;
        self.inner.retired.lock().push(self.pool(), retiring.addr, retiring.word, page);
    }

    /// Gives objects back under the client's reclaim pin, which is let go after.
    fn give_back_in_task(&self, of: &Arc<Retirement>, objects: Vec<GlobalAddr>) {
        of.lock().giving = objects.len();
        let of = Arc::clone(of);
        self.spawn(async move |session| {
            let pool = &**session.pool();
            let outcome = pool.give_back(session.maintenance(), &objects).await;
            drop(PinGuard(pool.pins.reclaim(of.id)));
            let mut retired = of.lock();
            retired.give_error = outcome.err();
            retired.giving = 0;
        });
    }

    /// Clears the words of announcements that came to nothing. 1 reconnect and 1 WRITE each.
    pub(crate) async fn clear_spoiled(&self, freeing: &Freeing) -> Result<(), PoolError> {
        let (pool, client, of) = (&**self.pool(), self.maintenance(), &freeing.of);
        loop {
            let next = of.lock().spoiled.last().copied();
            let Some((server, word)) = next else { return Ok(()) };
            // The WRITE that announced it may be under way.
            client.settle(server).await?;
            let at = pool.geometry().retire_addr(server, of.id, usize::from(word));
            client.write_word(at, 0).await?;
            let mut retired = of.lock();
            retired.spoiled.retain(|other| *other != (server, word));
            retired.give_word(server, word);
        }
    }
}

impl Pool {
    /// Clears the words of `entries`. The inner result tells of a word that held something else.
    async fn clear_words(
        &self,
        client: Reliable<'_>,
        owner: u32,
        entries: &[Entry],
    ) -> Result<Result<(), PoolError>, PoolError> {
        let list: Vec<Cas> = entries
            .iter()
            .map(|entry| {
                let at = self.page_word(owner, entry);
                Cas { at, expected: entry.expected(), new: 0 }
            })
            .collect();
        let olds = client.cas_many(&list).await?;
        let mut outcome = Ok(());
        for (entry, old) in entries.iter().zip(olds) {
            let (plain, mut expected, mut found) = (entry.addr.word(), entry.expected(), old);
            for _ in 0..CLEAR_ATTEMPTS {
                if found == expected || found == 0 || found & !CONFIRMED != plain {
                    break;
                }
                expected = found;
                found = client.cas(self.page_word(owner, entry), expected, 0).await?;
            }
            if found != 0 && found & !CONFIRMED != plain {
                outcome = Err(PoolError::Corrupt(format!(
                    "the retire page of client {owner} holds {found:#x} in place of {}",
                    entry.addr
                )));
            }
        }
        Ok(outcome)
    }

    /// Confirms what waits and is of other members' blocks, or whatever its blocks are if `all`, so that
    /// it is not lost with this member.
    ///
    /// Cost: per 64 such objects that were retired since the last time, 1 batch of CAS.
    pub(crate) async fn confirm(
        &self,
        client: Reliable<'_>,
        freeing: &Freeing,
        all: bool,
    ) -> Result<(), PoolError> {
        let (retired, owner) = (&*freeing.of, freeing.of.id);
        loop {
            let mut list = Vec::new();
            let mut words = Vec::new();
            for entry in &mut retired.lock().queue {
                let is_due = all || entry.bytes == 0;
                if is_due && entry.page != PageWord::Confirmed && !entry.clearing {
                    entry.page = PageWord::Confirming;
                    let plain = entry.addr.word();
                    let at = self.page_word(owner, entry);
                    list.push(Cas { at, expected: plain, new: plain | CONFIRMED });
                    words.push((entry.addr, entry.word));
                    if words.len() == BATCH {
                        break;
                    }
                }
            }
            if words.is_empty() {
                return Ok(());
            }
            client.cas_many(&list).await?;
            for entry in &mut retired.lock().queue {
                if words.contains(&(entry.addr, entry.word)) {
                    entry.page = PageWord::Confirmed;
                }
            }
        }
    }

    fn page_word(&self, owner: u32, entry: &Entry) -> GlobalAddr {
        self.geometry().retire_addr(entry.addr.server(), owner, usize::from(entry.word))
    }
}
