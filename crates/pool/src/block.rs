//! Blocks: belong to one member each, which carves runs in them; carving, adopting, harvesting and giving up.
//!
//! Words of a block's header: 0 tag, 1 page bytes, 2 number of pages, 3 pages of the front, 4 version of the
//! block's word when it was carved, 5 checksum (xxh3-64 of words 0 to 4). Page map and bitmaps follow
//! ([`crate::pages`]).
//!
//! INV-BLOCK-1: a block is owned, orphan or recovering only with a whole header: a member carves it in state
//! carving.
//! INV-BLOCK-2: a block becomes free only when none of its objects is in use or retired.
//! INV-BLOCK-3: only the carver of a block WRITEs its header and bitmaps, and it leaves state carving
//! only after that WRITE has ended. A run's words are as well written before the run is used (INV-RUN-1). Tasks do
//! both: a WRITE that came after its caller had gone away could come into a block of another owner.
//! INV-BLOCK-4: an orphan's word says what was free when it was given up: the longest stretch of pages in no run,
//! and the groups of classes with a free object. A member that gives an object of another group back adds that
//! group. So a member that needs memory does not adopt blocks in vain; a lost change of the hint costs no more than
//! that look.

use std::cell::RefCell;
use std::rc::Rc;

use farleaf_fabric::codec::Writer;
use farleaf_fabric::{Endpoint, ServerId};
use xxhash_rust::xxh3::xxh3_64;

use crate::class::{GROUP_COUNT, group_of};
use crate::geometry::BlockId;
use crate::local_block::{Carving, Left, LeftRun, LocalBlock};
use crate::owned_blocks::Limbo;
use crate::pages::{BlockShape, Run};
use crate::reliable::{Cas, Reliable, wait_until};
use crate::remote_free::BATCH;
use crate::words::{BlockState, BlockWord};
use crate::{Pool, PoolError, Session};

farleaf_fabric::canaries! {
    pub LOSE_RUN = "lose-run", "a run of a block is used without its words in the page map";
}

const TAG: u64 = u64::from_le_bytes(*b"FLBLOCK2");
pub(crate) const HEADER_WORDS: usize = 6;
/// Word of a header that holds the version of the block's word at its carving.
pub(crate) const CARVED_AT: u64 = 4 * 8;
/// Tries at a word of *taken*, which only an own lost harvest can have changed.
const TELL_ATTEMPTS: usize = 4;
/// First wait between looks whether a task is done.
const TASK_WAIT_NS: u64 = 500;
/// Time to wait for another session that tries for a block.
const CHANGING_WAIT_NS: u64 = 2_000;

/// The header of a block whose word, when it was carved, had `version`.
fn header(shape: &BlockShape, version: u64) -> [u64; HEADER_WORDS] {
    let (pages, front) = (shape.pages.into(), shape.front_pages.into());
    let mut words = [TAG, shape.page_bytes, pages, front, version, 0];
    words[HEADER_WORDS - 1] = checksum(&words);
    words
}

fn checksum(words: &[u64; HEADER_WORDS]) -> u64 {
    xxh3_64(&Writer::bytes_of(&words[..HEADER_WORDS - 1]))
}

/// The runs of a block whose front begins with these words: header and page map.
///
/// # Errors
/// The fault, if there is one.
pub(crate) fn check_front(shape: &BlockShape, front: &[u64]) -> Result<Vec<Run>, String> {
    let found: [u64; HEADER_WORDS] = front
        .get(..HEADER_WORDS)
        .and_then(|words| words.try_into().ok())
        .ok_or("it is cut short")?;
    let map = map_in(shape, front).ok_or("its page map is cut short")?;
    if found[0] != TAG {
        return Err(format!("its tag is {:#x}", found[0]));
    }
    if found[HEADER_WORDS - 1] != checksum(&found) {
        return Err("its checksum does not match".into());
    }
    if found != header(shape, found[4]) {
        return Err(format!("it says {} pages of {} bytes", found[2], found[1]));
    }
    shape.runs(map)
}

/// The page map among the words of a front.
pub(crate) fn map_in<'a>(shape: &BlockShape, front: &'a [u64]) -> Option<&'a [u64]> {
    front.get(shape.map_at(0) as usize / 8..shape.map_end() as usize / 8)
}

/// The pairs of a run among the words of a front.
pub(crate) fn pairs_in<'a>(shape: &BlockShape, front: &'a [u64], run: &Run) -> &'a [u64] {
    let first = shape.pairs_at(run.page) as usize / 8;
    &front[first..first + run.words() * 2]
}

impl Session {
    /// Takes a free block with that word and carves it, with a run of the class; `false` if another was quicker.
    ///
    /// Cost: 1 CAS and 1 chain.
    ///
    /// # Errors
    /// `Unsettled` if the server cannot be reached for as long as the caller has patience.
    pub(crate) async fn carve(
        &self,
        block: BlockId,
        free: BlockWord,
        class: usize,
    ) -> Result<bool, PoolError> {
        self.in_task(async move |session| {
            session.pool().carve(session.reliable(), block, free, class).await
        })
        .await
    }

    /// Carves a run of the class in an own block of the server, if one has the room.
    ///
    /// Cost: 1 WRITE.
    ///
    /// # Errors
    /// As [`Session::carve`].
    pub(crate) async fn carve_run(
        &self,
        server: ServerId,
        class: usize,
        is_hard: bool,
    ) -> Result<bool, PoolError> {
        // Bound to a name of its own, so that the lock is free again before the WRITE.
        let begun = self.pool().alloc().carve(server, class, is_hard);
        let Some((block, carving)) = begun else { return Ok(false) };
        self.in_task(async move |session| {
            session.pool().write_run(session.reliable(), block, carving).await.map(|()| true)
        })
        .await
    }

    /// Runs a task to its end, and waits for it: if the caller goes away, or has no patience any more, it
    /// goes on.
    ///
    /// # Errors
    /// The task's; `Unsettled` if it takes too long.
    pub(crate) async fn in_task<T: 'static>(
        &self,
        task: impl AsyncFnOnce(&Session) -> Result<T, PoolError> + 'static,
    ) -> Result<T, PoolError> {
        let result = Rc::new(RefCell::new(None));
        let done = Rc::clone(&result);
        self.spawn(async move |session| {
            let outcome = task(&session).await;
            *done.borrow_mut() = Some(outcome);
        });
        wait_until(self.reliable(), TASK_WAIT_NS, || result.borrow().is_some()).await;
        result.take().unwrap_or(Err(PoolError::Unsettled))
    }
}

impl Pool {
    /// As [`Session::carve`], with a client that brings it to its end, and nobody to drop it.
    async fn carve(
        &self,
        client: Reliable<'_>,
        block: BlockId,
        free: BlockWord,
        class: usize,
    ) -> Result<bool, PoolError> {
        let (geometry, shape) = (self.geometry(), self.geometry().shape());
        let at = geometry.block_word_addr(block);
        let carving = free.next(BlockState::Carving, self.member);
        let Some(mut limbo) = Changing::of_none(self, block, true) else {
            return Ok(false);
        };
        if client.cas(at, free.0, carving.0).await? != free.0 {
            limbo.settled();
            return Ok(false);
        }
        let owned = carving.next(BlockState::Owned, self.member);
        let words = header(shape, carving.version());
        let pages = self.alloc().next_run_pages(block.server, class);
        let run = shape.run(class, shape.front_pages, pages);
        let map = vec![0; shape.pages as usize];
        let mut local = LocalBlock::new(shape, owned, map.into(), &[], Box::default());
        let written = local.carve(shape, run);
        let (ops, again) = client
            .chain(|ops| {
                let mut front = client.buf(shape.front_bytes() as usize);
                front.words_mut().fill(0);
                front.words_mut()[..HEADER_WORDS].copy_from_slice(&words);
                let first = shape.map_at(written.from) as usize / 8;
                front.words_mut()[first..first + written.words.len()]
                    .copy_from_slice(&written.words);
                ops.write(geometry.block_addr(block), front);
                ops.cas(at, carving.0, owned.0);
            })
            .await?;
        let found = ops.old(1);
        if found != carving.0 && !(again && found == owned.0) {
            return Err(self.stolen(block, found));
        }
        limbo.settled();
        let mut alloc = self.alloc();
        alloc.install(block, local);
        alloc.carved(block, run);
        alloc.let_go(block);
        Ok(true)
    }

    /// Writes a run's words, and makes its objects free. Not to be dropped.
    async fn write_run(
        &self,
        client: Reliable<'_>,
        block: BlockId,
        Carving { run, from, words }: Carving,
    ) -> Result<(), PoolError> {
        let mut content = client.buf(words.len() * 8);
        content.words_mut().copy_from_slice(&words);
        // INV-RUN-1
        if !LOSE_RUN.is_armed() {
            client.write(self.map_addr(block, from), content).await?;
        }
        let mut alloc = self.alloc();
        alloc.carved(block, run);
        alloc.let_go(block);
        Ok(())
    }

    /// Takes an orphan with that word, and what is free of its objects; `None` if another was quicker or it is
    /// damaged.
    ///
    /// Cost: 1 CAS and 1 READ, and a batch of CAS per 64 words of its bitmaps with a free object.
    pub(crate) async fn adopt(
        &self,
        client: Reliable<'_>,
        block: BlockId,
        orphan: BlockWord,
    ) -> Result<Option<Held<'_>>, PoolError> {
        let (geometry, shape) = (self.geometry(), self.geometry().shape());
        let at = geometry.block_word_addr(block);
        let owned = orphan.next(BlockState::Owned, self.member);
        let Some(mut limbo) = Changing::of_none(self, block, false) else {
            return Ok(None);
        };
        if client.cas(at, orphan.0, owned.0).await? != orphan.0 {
            limbo.settled();
            return Ok(None);
        }
        let front = client.buf(shape.front_bytes() as usize);
        let front = client.read(geometry.block_addr(block), front).await?;
        let front = front.words();
        let Ok(runs) = check_front(shape, front) else {
            let damaged = owned.next(BlockState::Damaged, self.member);
            client.cas_release(at, owned.0, damaged.0).await?;
            limbo.settled();
            return Ok(None);
        };
        limbo.settled();
        let map = map_in(shape, front).unwrap_or_default().into();
        let pairs = &front[shape.pairs_at(0) as usize / 8..];
        let taken = pairs.chunks_exact(2).map(|pair| pair[1]).collect();
        self.alloc().install(block, LocalBlock::new(shape, owned, map, &runs, taken));
        let held = Held { pool: self, block };
        self.begin_harvest(client, &held, &runs).await?;
        let pairs = runs.iter().map(|run| (*run, pairs_in(shape, front, run)));
        self.take_given(client, &held, &pairs.collect::<Vec<_>>()).await?;
        Ok(Some(held))
    }

    /// Moves free objects from the bitmaps of an own block's run to this member; how many.
    ///
    /// Cost: 1 READ, and a batch of CAS per 64 words with a free object.
    pub(crate) async fn harvest(
        &self,
        client: Reliable<'_>,
        held: &Held<'_>,
        page: u32,
    ) -> Result<u32, PoolError> {
        let run = self.alloc().block(held.block).and_then(|block| Some(block.run_at(page)?.run));
        let Some(run) = run else { return Ok(0) };
        self.begin_harvest(client, held, &[run]).await?;
        let pairs = client.buf(run.words() * 16);
        let pairs = client.read(self.pair_addr(held.block, page, 0), pairs).await?;
        self.take_given(client, held, &[(run, pairs.words())]).await
    }

    /// The same from all runs of the block.
    ///
    /// Cost: 1 READ, and a batch of CAS per 64 words with a free object.
    pub(crate) async fn harvest_all(
        &self,
        client: Reliable<'_>,
        held: &Held<'_>,
    ) -> Result<u32, PoolError> {
        let shape = self.geometry().shape();
        let runs: Vec<Run> = {
            let alloc = self.alloc();
            let Some(block) = alloc.block(held.block) else { return Ok(0) };
            block.runs().iter().map(|run| run.run).collect()
        };
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(0) };
        self.begin_harvest(client, held, &runs).await?;
        let from = shape.pairs_at(first.page);
        let bytes = shape.pairs_at(last.page) + last.words() as u64 * 16 - from;
        let at = self.geometry().block_addr(held.block).plus(from);
        let pairs = client.read(at, client.buf(bytes as usize)).await?;
        let of_run = |run: &Run| {
            let first = (shape.pairs_at(run.page) - from) as usize / 8;
            (*run, &pairs.words()[first..first + run.words() * 2])
        };
        self.take_given(client, held, &runs.iter().map(of_run).collect::<Vec<_>>()).await
    }

    /// Notes that *taken* words of these runs are about to be read and changed. If an earlier harvest has not ended,
    /// nothing of it takes effect after this.
    async fn begin_harvest(
        &self,
        client: Reliable<'_>,
        held: &Held<'_>,
        runs: &[Run],
    ) -> Result<(), PoolError> {
        let in_doubt = {
            let mut alloc = self.alloc();
            let begin = |run: &Run| alloc.harvest_begins(held.block, run.page);
            runs.iter().map(begin).filter(|in_doubt| *in_doubt).count() > 0
        };
        if in_doubt {
            client.settle(held.block.server).await?;
        }
        Ok(())
    }

    /// Takes what is free in these pairs, as they were read since the block was taken in hand.
    async fn take_given(
        &self,
        client: Reliable<'_>,
        held: &Held<'_>,
        runs: &[(Run, &[u64])],
    ) -> Result<u32, PoolError> {
        let block = held.block;
        let (mut found, mut outcome) = (0, Ok(()));
        let mut note = |page: u32, word: usize, value: u64| match self
            .alloc()
            .note_taken(block, page, word, value)
        {
            Ok(added) => found += added,
            Err(error) => outcome = Err(error),
        };
        let mut list: Vec<(u32, usize, Cas)> = Vec::new();
        for (run, pairs) in runs {
            for (word, pair) in pairs.chunks_exact(2).enumerate() {
                let (given, taken) = (pair[0], pair[1]);
                // A harvest whose outcome was lost may have taken some.
                note(run.page, word, taken);
                let free = (given ^ taken) & run.valid_bits(word);
                if free != 0 {
                    let at = self.pair_addr(block, run.page, word).plus(8);
                    let cas = Cas { at, expected: taken, new: taken ^ free };
                    list.push((run.page, word, cas));
                }
            }
        }
        for some in list.chunks(BATCH) {
            let cases: Vec<Cas> = some.iter().map(|(.., cas)| *cas).collect();
            let olds = client.cas_many(&cases).await?;
            for ((page, word, cas), old) in some.iter().zip(olds) {
                note(*page, *word, if old == cas.expected { cas.new } else { old });
            }
        }
        let mut alloc = self.alloc();
        runs.iter().for_each(|(run, _)| alloc.harvest_ends(block, run.page));
        drop(alloc);
        self.inbox.note_returned(found);
        outcome.map(|()| found)
    }

    /// Takes an own block in hand, unless somebody else has it.
    pub(crate) fn hold(&self, block: BlockId) -> Option<Held<'_>> {
        // Made only if it is held: dropping one lets go, which takes the lock.
        let is_held = self.alloc().hold(block);
        is_held.then(|| Held { pool: self, block })
    }

    /// Makes a block that was taken out of this member's accounts free for all. 1 CAS.
    pub(crate) async fn release(
        &self,
        client: Reliable<'_>,
        block: BlockId,
        word: BlockWord,
    ) -> Result<(), PoolError> {
        let limbo = Changing::of_own(self, client, block, true).await;
        self.swap_word(client, limbo, block, word, word.next(BlockState::Free, 0)).await
    }

    /// Gives a block up with objects in use: its free ones go to its bitmaps, and it is an orphan.
    ///
    /// Cost: a batch of CAS per 64 words of its bitmaps with a free object, 1 CAS, and 1 WRITE if runs of it were
    /// dropped.
    pub(crate) async fn abandon(
        &self,
        client: Reliable<'_>,
        block: BlockId,
        word: BlockWord,
        left: Left,
    ) -> Result<(), PoolError> {
        let mut limbo = Changing::of_own(self, client, block, false).await;
        if let Some(limbo) = &mut limbo.limbo {
            limbo.left = Some(left.clone());
        }
        let next = left.orphan(word);
        self.tell_left(client, block, left).await?;
        self.swap_word(client, limbo, block, word, next).await
    }

    /// Makes what is free of a block that is given up free in its bitmaps and its page map. May be done again.
    async fn tell_left(
        &self,
        client: Reliable<'_>,
        block: BlockId,
        left: Left,
    ) -> Result<(), PoolError> {
        if let Some(map) = left.map {
            let mut content = client.buf(map.len() * 8);
            content.words_mut().copy_from_slice(&map);
            client.write(self.map_addr(block, 0), content).await?;
        }
        let mut runs = left.runs;
        let words = |(at, run): (usize, &LeftRun)| (0..run.free.len()).map(move |word| (at, word));
        let all = runs.iter().enumerate().flat_map(words);
        let mut to_do: Vec<(usize, usize)> =
            all.filter(|(at, word)| runs[*at].free[*word] != 0).collect();
        for _ in 0..TELL_ATTEMPTS {
            let mut failed = Vec::new();
            for now in to_do.chunks(BATCH) {
                let cas = |(at, word): &(usize, usize)| {
                    let LeftRun { run, free, taken } = &runs[*at];
                    let (expected, new) = (taken[*word], taken[*word] ^ free[*word]);
                    Cas { at: self.pair_addr(block, run.page, *word).plus(8), expected, new }
                };
                let list: Vec<Cas> = now.iter().map(cas).collect();
                let olds = client.cas_many(&list).await?;
                for ((cas, &(at, word)), old) in list.iter().zip(now).zip(olds) {
                    if old != cas.expected && old != cas.new {
                        // A harvest whose outcome was lost: what it took is free, too.
                        runs[at].free[word] |= old ^ runs[at].taken[word];
                        runs[at].taken[word] = old;
                        failed.push((at, word));
                    }
                }
            }
            if failed.is_empty() {
                return Ok(());
            }
            to_do = failed;
        }
        Err(PoolError::Corrupt(format!("the bitmaps of {block} are changed by others")))
    }

    /// Changes an own block's word. 1 CAS.
    async fn swap_word(
        &self,
        client: Reliable<'_>,
        mut limbo: Changing<'_>,
        block: BlockId,
        word: BlockWord,
        next: BlockWord,
    ) -> Result<(), PoolError> {
        let at = self.geometry().block_word_addr(block);
        let found = client.cas_release(at, word.0, next.0).await?;
        limbo.settled();
        if found == word.0 { Ok(()) } else { Err(self.stolen(block, found)) }
    }

    /// Finds out about one block whose change had no known outcome, and finishes it.
    ///
    /// Cost: 1 READ and 1 CAS, and what giving it up costs.
    pub(crate) async fn settle(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        let Some(limbo) = self.alloc().limbo.pop() else { return Ok(()) };
        let Limbo { block, to_free, .. } = limbo;
        let left = limbo.left.clone();
        let is_written = left.as_ref().is_some_and(|left| left.map.is_some());
        let mut again = Changing { pool: self, limbo: Some(limbo) };
        let at = self.geometry().block_word_addr(block);
        let word = BlockWord(client.word(at).await?);
        let mine = word.owner() == self.member
            && (word.is(BlockState::Carving) || word.is(BlockState::Owned))
            && self.alloc().block(block).is_none();
        // A word that is nobody's is renewed as it is, so that a late CAS finds another.
        let next = match word.state()? {
            BlockState::Free | BlockState::Orphan => word.0.wrapping_add(1 << 27),
            _ if mine && (to_free || word.is(BlockState::Carving)) => {
                word.next(BlockState::Free, 0).0
            }
            _ if mine => left.as_ref().map_or_else(|| unknown(word), |left| left.orphan(word)).0,
            _ => word.0,
        };
        if let (true, Some(left)) = (mine, left) {
            if is_written {
                // So that an earlier WRITE of the page map does not come later.
                client.settle(block.server).await?;
            }
            self.tell_left(client, block, left).await?;
        }
        // What was on its way may have come in between: then it is looked at once more, some other time.
        if next == word.0 || client.cas(at, word.0, next).await? == word.0 {
            again.settled();
        }
        Ok(())
    }

    #[cold]
    fn stolen(&self, block: BlockId, found: u64) -> PoolError {
        PoolError::Corrupt(format!(
            "{block} was member {}'s and its word is {found:#x}",
            self.member
        ))
    }
}

/// The word of an orphan of which nothing is known.
fn unknown(word: BlockWord) -> BlockWord {
    word.orphan(u32::MAX, (1 << GROUP_COUNT) - 1)
}

impl Left {
    /// The word of the orphan that a block with `word` becomes.
    fn orphan(&self, word: BlockWord) -> BlockWord {
        let with_free = self.runs.iter().filter(|run| run.free.iter().any(|free| *free != 0));
        let groups = with_free.fold(0, |groups, run| groups | 1 << group_of(run.run.class));
        word.orphan(self.stretch, groups)
    }
}

/// An own block in hand: nobody else harvests it or takes it out of the accounts.
pub(crate) struct Held<'a> {
    pool: &'a Pool,
    block: BlockId,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.pool.alloc().let_go(self.block);
    }
}

/// Notes a block whose word is being changed, if the outcome stays unknown.
struct Changing<'a> {
    pool: &'a Pool,
    limbo: Option<Limbo>,
}

impl<'a> Changing<'a> {
    /// `None` if another session is changing it, or an earlier change has no known outcome.
    fn new(pool: &'a Pool, block: BlockId, to_free: bool) -> Option<Self> {
        let is_first = pool.alloc().changing.insert(block);
        let limbo = Limbo { block, to_free, left: None };
        // Made only if it is the first: dropping one notes the block.
        is_first.then(|| Changing { pool, limbo: Some(limbo) })
    }

    /// As [`Changing::new`], for a block that is not in this member's accounts.
    fn of_none(pool: &'a Pool, block: BlockId, to_free: bool) -> Option<Self> {
        let is_own = pool.alloc().block(block).is_some();
        if is_own { None } else { Changing::new(pool, block, to_free) }
    }

    /// For a block that has just been taken out of this member's accounts, so that nobody else
    /// knows of it: waits for whoever tries to have it on the strength of an old look at the table.
    async fn of_own(pool: &'a Pool, client: Reliable<'_>, block: BlockId, to_free: bool) -> Self {
        // Given up while it waits, the block is still found out about. That the other one still tries
        // does no harm then: it can only fail.
        let limbo = Limbo { block, to_free, left: None };
        let mut waiting = Changing { pool, limbo: Some(limbo) };
        loop {
            if let Some(changing) = Changing::new(pool, block, to_free) {
                waiting.limbo = None;
                return changing;
            }
            // If the other has left its outcome unknown, it is found out here.
            let _ = Box::pin(pool.settle(client)).await;
            client.endpoint().sleep(CHANGING_WAIT_NS).await;
        }
    }

    fn settled(&mut self) {
        if let Some(Limbo { block, .. }) = self.limbo.take() {
            self.pool.alloc().changing.remove(&block);
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(limbo) = self.limbo.take() {
            self.pool.alloc().limbo.push(limbo);
        }
    }
}
