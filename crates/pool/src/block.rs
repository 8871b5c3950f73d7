//! Blocks as they are in the pool: header, carving, adopting, harvesting, giving up.
//!
//! Words of a block's header: 0 tag, 1 object bytes, 2 number of objects, 3 offset of the first
//! object, 4 version of the block's word when it was carved, 5 checksum (xxh3-64 of words 0 to 4).
//! The bitmap follows at byte 64.
//!
//! INV-BLOCK-1: a block is owned, orphan or recovering only with a whole header of the class in its
//! word: it is carved in state carving.
//! INV-BLOCK-2: a block becomes free only when none of its objects is in use or retired.

use farleaf_fabric::{Client, Endpoint, ServerId};
use xxhash_rust::xxh3::xxh3_64;

use crate::class::CLASS_COUNT;
use crate::give_back::{BATCH, SetBits};
use crate::local::Limbo;
use crate::words::{BlockState, BlockWord};
use crate::{Geometry, Pool, PoolError};

const TAG: u64 = u64::from_le_bytes(*b"FLBLOCK1");
pub(crate) const HEADER_WORDS: usize = 6;

/// The header of a block whose word, when it was carved, had `version`.
fn header(geometry: &Geometry, class: usize, version: u64) -> [u64; HEADER_WORDS] {
    let shape = geometry.shape(class);
    let mut words =
        [TAG, shape.object_bytes, shape.count.into(), shape.first_object.into(), version, 0];
    words[HEADER_WORDS - 1] = checksum(&words);
    words
}

fn checksum(words: &[u64; HEADER_WORDS]) -> u64 {
    let mut bytes = [0; (HEADER_WORDS - 1) * 8];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_64(&bytes)
}

/// What is wrong with a block's header, given the block's word.
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

impl Pool {
    /// Takes a free block with that word and carves it; `false` if another was quicker.
    ///
    /// Cost: 1 CAS and 1 chain.
    pub(crate) async fn carve<E: Endpoint>(
        &self,
        client: &Client<E>,
        server: ServerId,
        block: u32,
        free: BlockWord,
        class: usize,
    ) -> Result<bool, PoolError> {
        let geometry = self.geometry();
        let at = geometry.block_word_addr(server, block);
        let carving = free.next(BlockState::Carving, class, self.member);
        let mut limbo = Changing::new(self, server, block, true);
        if client.cas(at, free.0, carving.0).await? != free.0 {
            limbo.settled();
            return Ok(false);
        }
        let owned = carving.next(BlockState::Owned, class, self.member);
        let mut front = client.buf(geometry.shape(class).first_object as usize);
        front.words_mut().fill(0);
        let words = header(geometry, class, carving.version());
        front.words_mut()[..HEADER_WORDS].copy_from_slice(&words);
        let mut ops = client.ops();
        ops.write(geometry.block_addr(server, block), front);
        let cas = ops.cas(at, carving.0, owned.0);
        let ops = client.chain(ops).await?;
        if ops.old(cas) != carving.0 {
            return Err(self.stolen(server, block, ops.old(cas)));
        }
        limbo.settled();
        self.alloc().install(geometry, server, block, owned, true);
        Ok(true)
    }

    /// Takes an orphan with that word; `None` if another was quicker or it is damaged. Its free
    /// objects are still to be harvested.
    ///
    /// Cost: 1 CAS and 1 READ.
    pub(crate) async fn adopt<E: Endpoint>(
        &self,
        client: &Client<E>,
        server: ServerId,
        block: u32,
        orphan: BlockWord,
    ) -> Result<Option<Held<'_>>, PoolError> {
        let geometry = self.geometry();
        let at = geometry.block_word_addr(server, block);
        let owned = orphan.next(BlockState::Owned, orphan.class(), self.member);
        let mut limbo = Changing::new(self, server, block, false);
        if client.cas(at, orphan.0, owned.0).await? != orphan.0 {
            limbo.settled();
            return Ok(None);
        }
        let front = client.buf(HEADER_WORDS * 8);
        let front = client.read(geometry.block_addr(server, block), front).await?;
        if check_header(geometry, owned, front.words()).is_err() {
            let damaged = owned.next(BlockState::Damaged, owned.class(), self.member);
            client.cas(at, owned.0, damaged.0).await?;
            limbo.settled();
            return Ok(None);
        }
        limbo.settled();
        self.alloc().install(geometry, server, block, owned, false);
        Ok(Some(Held { pool: self, server, block }))
    }

    /// Moves free objects from an own block's bitmap to this member; how many.
    ///
    /// Cost: 1 READ, and a batch of CAS per 64 words with a free object.
    pub(crate) async fn harvest<E: Endpoint>(
        &self,
        client: &Client<E>,
        held: &Held<'_>,
    ) -> Result<u32, PoolError> {
        let geometry = self.geometry();
        let Held { server, block, .. } = *held;
        let Some(class) = self.alloc().class_at(server, block) else { return Ok(0) };
        let shape = geometry.shape(class);
        let bitmap = client.buf(shape.bitmap_words() * 8);
        let bitmap = client.read(self.bitmap_addr(server, block, 0), bitmap).await?;
        let mut taken = 0;
        // Of an earlier CAS with unknown outcome: nobody but the owner clears bits, and nobody
        // sets those of objects that nobody holds. So if they are clear it was done.
        let undecided = self.alloc().undecided(server, block);
        for (word, bits) in undecided {
            let done = bitmap.words().get(word as usize).is_some_and(|found| found & bits == 0);
            taken += if done { bits.count_ones() } else { 0 };
            self.alloc().harvest_ends(geometry, server, block, (word, bits), done)?;
        }
        let mut from = 0;
        while from < shape.bitmap_words() {
            let mut ops = client.ops();
            let mut words = [(0_u32, 0_u64); BATCH];
            while from < shape.bitmap_words() && ops.len() < BATCH {
                let bits = bitmap.words()[from];
                if bits != 0 {
                    words[ops.len()] = (from as u32, bits);
                    self.alloc().harvest_begins(server, block, from as u32, bits);
                    ops.cas(self.bitmap_addr(server, block, from), bits, 0);
                }
                from += 1;
            }
            if ops.is_empty() {
                break;
            }
            let ops = client.post_many(ops).await?;
            let mut outcome = Ok(());
            for (index, word) in words[..ops.len()].iter().enumerate() {
                let done = ops.old(index) == word.1;
                taken += if done { word.1.count_ones() } else { 0 };
                let ended = self.alloc().harvest_ends(geometry, server, block, *word, done);
                outcome = outcome.and(ended);
            }
            outcome?;
        }
        Ok(taken)
    }

    /// Takes an own block in hand, unless somebody else has it.
    pub(crate) fn hold(&self, server: ServerId, block: u32) -> Option<Held<'_>> {
        // Made only if it is held: dropping one lets go, which takes the lock.
        let is_held = self.alloc().hold(server, block);
        is_held.then(|| Held { pool: self, server, block })
    }

    /// Makes a block that was taken out of this member's accounts free for all. 1 CAS.
    pub(crate) async fn release<E: Endpoint>(
        &self,
        client: &Client<E>,
        server: ServerId,
        block: u32,
        word: BlockWord,
    ) -> Result<(), PoolError> {
        self.change(client, server, block, word, BlockState::Free).await
    }

    /// Gives a block up with objects in use: its free ones go to its bitmap, and it is an orphan.
    ///
    /// Cost: a batch of CAS per 64 words of the bitmap with a free object, and 1 CAS.
    pub(crate) async fn abandon<E: Endpoint>(
        &self,
        client: &Client<E>,
        server: ServerId,
        block: u32,
        word: BlockWord,
        free: &[u64],
    ) -> Result<(), PoolError> {
        let sets = free.iter().enumerate().filter(|(_, bits)| **bits != 0).map(|(at, bits)| {
            SetBits { at: self.bitmap_addr(server, block, at), bits: *bits, expected: 0 }
        });
        let twice = self.set_bits(client, sets.collect()).await?;
        self.change(client, server, block, word, BlockState::Orphan).await?;
        match twice {
            Some(set) => Err(PoolError::Corrupt(format!(
                "objects {:#x} of the bitmap at {} were freed twice",
                set.bits, set.at
            ))),
            None => Ok(()),
        }
    }

    /// Changes an own block's word.
    pub(crate) async fn change<E: Endpoint>(
        &self,
        client: &Client<E>,
        server: ServerId,
        block: u32,
        word: BlockWord,
        state: BlockState,
    ) -> Result<(), PoolError> {
        let mut limbo = Changing::new(self, server, block, state == BlockState::Free);
        let class = if state == BlockState::Free { 0 } else { word.class() };
        let next = word.next(state, class, 0);
        let at = self.geometry().block_word_addr(server, block);
        let found = client.cas(at, word.0, next.0).await?;
        limbo.settled();
        if found == word.0 { Ok(()) } else { Err(self.stolen(server, block, found)) }
    }

    /// Finds out about one block whose change had no known outcome, and finishes it.
    ///
    /// Cost: 1 READ and 1 CAS.
    pub(crate) async fn settle<E: Endpoint>(&self, client: &Client<E>) -> Result<(), PoolError> {
        let Some(limbo) = self.alloc().limbo.pop() else { return Ok(()) };
        let Limbo { server, block, to_free } = limbo;
        let mut again = Changing::new(self, server, block, to_free);
        let at = self.geometry().block_word_addr(server, block);
        let word = BlockWord(client.read(at, client.buf(8)).await?.words()[0]);
        let mine = word.owner() == self.member
            && (word.is(BlockState::Carving) || word.is(BlockState::Owned))
            && self.alloc().block(server, block).is_none();
        // A word that is nobody's is renewed as it is, so that a late CAS finds another.
        let next = match word.state()? {
            BlockState::Free | BlockState::Orphan => word.0.wrapping_add(1 << 27),
            _ if mine && (to_free || word.is(BlockState::Carving)) => {
                word.next(BlockState::Free, 0, 0).0
            }
            _ if mine => word.next(BlockState::Orphan, word.class(), 0).0,
            _ => word.0,
        };
        if next != word.0 {
            client.cas(at, word.0, next).await?;
        }
        again.settled();
        Ok(())
    }

    #[cold]
    fn stolen(&self, server: ServerId, block: u32, found: u64) -> PoolError {
        PoolError::Corrupt(format!(
            "block {block} of memory server {server} was member {}'s and its word is {found:#x}",
            self.member
        ))
    }
}

/// An own block in hand: nobody else harvests it or takes it out of the accounts.
pub(crate) struct Held<'a> {
    pool: &'a Pool,
    server: ServerId,
    block: u32,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.pool.alloc().let_go(self.server, self.block);
    }
}

/// Notes a block whose word is being changed, if the outcome stays unknown.
struct Changing<'a> {
    pool: &'a Pool,
    limbo: Option<Limbo>,
}

impl<'a> Changing<'a> {
    fn new(pool: &'a Pool, server: ServerId, block: u32, to_free: bool) -> Self {
        Changing { pool, limbo: Some(Limbo { server, block, to_free }) }
    }

    fn settled(&mut self) {
        self.limbo = None;
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(limbo) = self.limbo.take() {
            self.pool.alloc().limbo.push(limbo);
        }
    }
}
