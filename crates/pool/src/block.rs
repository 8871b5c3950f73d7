//! Blocks: hold objects of one size class; carving, adopting, harvesting and giving up.
//!
//! Words of a block's header: 0 tag, 1 object bytes, 2 number of objects, 3 offset of the first
//! object, 4 version of the block's word when it was carved, 5 checksum (xxh3-64 of words 0 to 4).
//! The bitmaps *given* and *taken* (see `local`) follow at byte 64.
//!
//! INV-BLOCK-1: a block is owned, orphan or recovering only with a whole header of the class in its
//! word: a member carves it in state carving.
//! INV-BLOCK-2: a block becomes free only when none of its objects is in use or retired.
//! INV-BLOCK-3: only the carver of a block WRITEs its header and bitmaps, and it leaves state carving
//! only after that WRITE has ended.
//! INV-BLOCK-4: an orphan's word says how many of its objects were free when it was given up, and the first
//! object that is given back to a full orphan turns 0 into 1. So a member that needs memory does not adopt
//! blocks in vain; a lost change of the hint costs no more than that look.

use std::cell::RefCell;
use std::rc::Rc;

use farleaf_fabric::Endpoint;
use farleaf_fabric::codec::Writer;
use xxhash_rust::xxh3::xxh3_64;

use crate::class::{BLOCK_HEADER_BYTES, CLASS_COUNT};
use crate::geometry::BlockId;
use crate::owned_blocks::{Left, Limbo};
use crate::reliable::{Cas, Reliable, wait_until};
use crate::remote_free::BATCH;
use crate::words::{BlockState, BlockWord};
use crate::{Geometry, Pool, PoolError, Session};

const TAG: u64 = u64::from_le_bytes(*b"FLBLOCK1");
pub(crate) const HEADER_WORDS: usize = 6;
/// Word of a header that holds the version of the block's word at its carving.
pub(crate) const CARVED_AT: u64 = 4 * 8;
/// Tries at a word of *taken*, which only an own lost harvest can have changed.
const TELL_ATTEMPTS: usize = 4;
/// First wait between looks whether a block is carved.
const CARVE_WAIT_NS: u64 = 500;
/// Time to wait for another session that tries for a block.
const CHANGING_WAIT_NS: u64 = 2_000;

/// The header of a block whose word, when it was carved, had `version`.
fn header(geometry: &Geometry, class: usize, version: u64) -> [u64; HEADER_WORDS] {
    let shape = geometry.shape(class);
    let mut words =
        [TAG, shape.object_bytes, shape.count.into(), shape.first_object.into(), version, 0];
    words[HEADER_WORDS - 1] = checksum(&words);
    words
}

fn checksum(words: &[u64; HEADER_WORDS]) -> u64 {
    xxh3_64(&Writer::bytes_of(&words[..HEADER_WORDS - 1]))
}

/// Finds the fault of a block's header, given the block's word.
pub(crate) fn check_header(
    geometry: &Geometry,
    word: BlockWord,
    found: &[u64],
) -> Result<(), String> {
    let found: [u64; HEADER_WORDS] = found
        .get(..HEADER_WORDS)
        .and_then(|words| words.try_into().ok())
        .ok_or("it is cut short")?;
    if word.class() >= CLASS_COUNT || geometry.shape(word.class()).count == 0 {
        return Err(format!("the block table gives it class {}", word.class()));
    }
    if found[0] != TAG {
        return Err(format!("its tag is {:#x}", found[0]));
    }
    if found[HEADER_WORDS - 1] != checksum(&found) {
        return Err("its checksum does not match".into());
    }
    if found != header(geometry, word.class(), found[4]) {
        return Err(format!("it says {} bytes, the block table class {}", found[1], word.class()));
    }
    Ok(())
}

impl Session {
    /// Takes a free block with that word and carves it; `false` if another was quicker.
    ///
    /// By a task (INV-BLOCK-3): a header that came after its caller had gone away could come into a block that
    /// was given up since, and carved by another.
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
        let carved = Rc::new(RefCell::new(None));
        let done = Rc::clone(&carved);
        self.spawn(async move |session| {
            let pool = session.pool();
            let result = pool.carve(session.reliable(), block, free, class).await;
            *done.borrow_mut() = Some(result);
        });
        wait_until(self.reliable(), CARVE_WAIT_NS, || carved.borrow().is_some()).await;
        carved.take().unwrap_or(Err(PoolError::Unsettled))
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
        let geometry = self.geometry();
        let at = geometry.block_word_addr(block);
        let carving = free.next(BlockState::Carving, class, self.member);
        let Some(mut limbo) = Changing::of_none(self, block, true) else {
            return Ok(false);
        };
        if client.cas(at, free.0, carving.0).await? != free.0 {
            limbo.settled();
            return Ok(false);
        }
        let owned = carving.next(BlockState::Owned, class, self.member);
        let words = header(geometry, class, carving.version());
        let (ops, again) = client
            .chain(|ops| {
                let mut front = client.buf(geometry.shape(class).first_object as usize);
                front.words_mut().fill(0);
                front.words_mut()[..HEADER_WORDS].copy_from_slice(&words);
                ops.write(geometry.block_addr(block), front);
                ops.cas(at, carving.0, owned.0);
            })
            .await?;
        let found = ops.old(1);
        if found != carving.0 && !(again && found == owned.0) {
            return Err(self.stolen(block, found));
        }
        limbo.settled();
        self.alloc().install(block, owned, None);
        Ok(true)
    }

    /// Takes an orphan with that word; `None` if another was quicker or it is damaged. Its free
    /// objects are still to be harvested.
    ///
    /// Cost: 1 CAS and 1 READ.
    pub(crate) async fn adopt(
        &self,
        client: Reliable<'_>,
        block: BlockId,
        orphan: BlockWord,
    ) -> Result<Option<Held<'_>>, PoolError> {
        let geometry = self.geometry();
        let at = geometry.block_word_addr(block);
        let owned = orphan.next(BlockState::Owned, orphan.class(), self.member);
        let Some(mut limbo) = Changing::of_none(self, block, false) else {
            return Ok(None);
        };
        if client.cas(at, orphan.0, owned.0).await? != orphan.0 {
            limbo.settled();
            return Ok(None);
        }
        let shape = geometry.shape(owned.class());
        let front = client.buf((shape.first_object as usize).max(HEADER_WORDS * 8));
        let front = client.read(geometry.block_addr(block), front).await?;
        if check_header(geometry, owned, front.words()).is_err() {
            let damaged = owned.next(BlockState::Damaged, owned.class(), self.member);
            client.cas_release(at, owned.0, damaged.0).await?;
            limbo.settled();
            return Ok(None);
        }
        limbo.settled();
        let first = BLOCK_HEADER_BYTES as usize / 8 + shape.bitmap_words();
        let taken = front.words()[first..first + shape.bitmap_words()].into();
        self.alloc().install(block, owned, Some(taken));
        Ok(Some(Held { pool: self, block }))
    }

    /// Moves free objects from an own block's bitmaps to this member; how many.
    ///
    /// Cost: 1 READ, and a batch of CAS per 64 words with a free object.
    pub(crate) async fn harvest(
        &self,
        client: Reliable<'_>,
        held: &Held<'_>,
    ) -> Result<u32, PoolError> {
        let geometry = self.geometry();
        let block = held.block;
        let Some(class) = self.alloc().class_at(block) else { return Ok(0) };
        if self.alloc().harvest_begins(block) {
            client.settle(block.server).await?;
        }
        let shape = geometry.shape(class);
        let words = shape.bitmap_words();
        let bitmaps = client.buf(words * 16);
        let bitmaps = client.read(self.given_addr(block, 0), bitmaps).await?;
        let (given, taken) = bitmaps.words().split_at(words);
        let (mut found, mut outcome) = (0, Ok(()));
        let mut note = |word: usize, value: u64| match self.alloc().note_taken(block, word, value) {
            Ok(added) => found += added,
            Err(error) => outcome = Err(error),
        };
        let mut list = Vec::new();
        let mut at = Vec::new();
        for word in 0..words {
            // What a harvest whose outcome was lost has taken.
            note(word, taken[word]);
            let free = (given[word] ^ taken[word]) & shape.valid_bits(word);
            if free != 0 {
                let (expected, new) = (taken[word], taken[word] ^ free);
                list.push(Cas { at: self.taken_addr(block, words, word), expected, new });
                at.push(word);
            }
        }
        for (list, at) in list.chunks(BATCH).zip(at.chunks(BATCH)) {
            let olds = client.cas_many(list).await?;
            for ((cas, word), old) in list.iter().zip(at).zip(olds) {
                note(*word, if old == cas.expected { cas.new } else { old });
            }
        }
        self.alloc().harvest_ends(block);
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
        self.swap_word(client, limbo, block, word, word.next(BlockState::Free, 0, 0)).await
    }

    /// Gives a block up with objects in use: its free ones go to its bitmaps, and it is an orphan.
    ///
    /// Cost: a batch of CAS per 64 words of the bitmap with a free object, and 1 CAS.
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
        let free = left.free_count();
        self.tell_taken(client, block, left).await?;
        self.swap_word(client, limbo, block, word, word.orphan(word.class(), free)).await
    }

    /// Makes what is free of a block that is given up free in its bitmaps. May be done again.
    async fn tell_taken(
        &self,
        client: Reliable<'_>,
        block: BlockId,
        left: Left,
    ) -> Result<(), PoolError> {
        let words = left.free.len();
        let Left { mut free, mut taken } = left;
        let mut to_do: Vec<usize> = (0..words).filter(|word| free[*word] != 0).collect();
        for _ in 0..TELL_ATTEMPTS {
            let mut failed = Vec::new();
            for words_now in to_do.chunks(BATCH) {
                let list: Vec<Cas> = words_now
                    .iter()
                    .map(|&word| Cas {
                        at: self.taken_addr(block, words, word),
                        expected: taken[word],
                        new: taken[word] ^ free[word],
                    })
                    .collect();
                let olds = client.cas_many(&list).await?;
                for ((cas, &word), old) in list.iter().zip(words_now).zip(olds) {
                    if old != cas.expected && old != cas.new {
                        // A harvest whose outcome was lost: what it took is free, too.
                        free[word] |= old ^ taken[word];
                        taken[word] = old;
                        failed.push(word);
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
    /// Cost: 1 READ and 1 CAS.
    pub(crate) async fn settle(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        let Some(limbo) = self.alloc().limbo.pop() else { return Ok(()) };
        let Limbo { block, to_free, .. } = limbo;
        let left = limbo.left.clone();
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
                word.next(BlockState::Free, 0, 0).0
            }
            _ if mine => word.orphan(word.class(), left.as_ref().map_or(1, Left::free_count)).0,
            _ => word.0,
        };
        if let (true, Some(left)) = (mine, left) {
            self.tell_taken(client, block, left).await?;
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
