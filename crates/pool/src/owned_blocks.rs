//! Owned blocks: track the free objects of the blocks that this member owns.
//!
//! A block has two bitmaps in the pool: *given* and *taken*. An object whose bits differ is free for
//! the owner to take.
//!
//! INV-ALLOC-1: either the block's owner knows that an object is free (a set bit here), or the block's
//! bitmaps in the pool show it (two bits that differ). Never both, and nobody else knows.
//! INV-ALLOC-2: only a block's owner changes *taken*, and takes an object by making its bit equal
//! again. So the word shows a change with a lost outcome for ever after.
//! INV-ALLOC-3: any holder of an object may turn its *given* bit, announced live and pinned, and gives
//! up the object by that. As long as that pin holds, nobody can turn it again: the object would have to
//! be retired and reclaimed in between. So a member that lost the outcome finds it in the bit. (With a
//! single bitmap, a clear bit may have been set, and taken since.)
//!
//! No operation here waits or goes over the fabric; the pool keeps all of it in one mutex.

use std::collections::BTreeSet;

use farleaf_fabric::{GlobalAddr, ServerId};

use crate::class::CLASS_COUNT;
use crate::geometry::BlockId;
use crate::words::BlockWord;
use crate::{Geometry, PoolError};

/// The blocks of one member.
#[derive(Debug)]
pub(crate) struct Allocator {
    /// The pool's.
    pub(crate) geometry: Geometry,
    pub(crate) servers: Vec<ServerBlocks>,
    /// Blocks that became wholly free while their class had a spare: to be given back.
    surplus: Vec<BlockId>,
    /// Blocks whose change of state may or may not have happened; see [`Limbo`].
    pub(crate) limbo: Vec<Limbo>,
    /// Those, and those whose state a session is changing.
    pub(crate) changing: BTreeSet<BlockId>,
    /// The server at which this member begins (INV-PLACE-3).
    pub(crate) first_server: usize,
    free_bytes: u64,
    owned_bytes: u64,
    carved_bytes: u64,
}

/// A block whose word was to be changed by a CAS of unknown outcome, and what it is to become if
/// it is found to be this member's.
#[derive(Debug)]
pub(crate) struct Limbo {
    pub(crate) block: BlockId,
    /// To be free; otherwise to be an orphan.
    pub(crate) to_free: bool,
    /// Changes that an orphan's bitmaps still lack.
    pub(crate) left: Option<Left>,
}

/// The known objects of a block that has left the accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// Free at the owner.
    pub(crate) free: Box<[u64]>,
    /// Words of *taken* as last seen.
    pub(crate) taken: Box<[u64]>,
}

impl Left {
    /// Number of objects that the owner knows to be free.
    pub(crate) fn free_count(&self) -> u32 {
        self.free.iter().map(|word| word.count_ones()).sum()
    }
}

#[derive(Debug)]
pub(crate) struct ServerBlocks {
    blocks: Vec<Option<Box<LocalBlock>>>,
    classes: Vec<ClassBlocks>,
    /// Groups of objects that were begun here: [`Allocator::next_server`].
    pub(crate) groups: u64,
    /// Blocks that were free when this member last read the block table.
    pub(crate) free_blocks: u32,
}

#[derive(Debug, Default)]
pub(crate) struct ClassBlocks {
    /// All blocks of the class, in the order in which they came.
    owned: Vec<u32>,
    /// Those with a free object; the last is used first.
    available: Vec<u32>,
    /// Those without an object in use.
    wholly_free: u32,
    /// Somebody is looking for more objects.
    pub(crate) refilling: bool,
    /// Start of the next round of harvesting.
    harvest_next: usize,
    /// Until then, a look for objects need not be repeated: there were none.
    pub(crate) empty_until_ns: u64,
    /// Objects were taken since the last [`Allocator::unused`].
    is_used: bool,
    /// Objects that this member has ever taken.
    taken_count: u64,
    /// So many further objects come from here before another server's turn: the free ones of an orphan.
    pub(crate) turns: u32,
}

/// One owned block.
#[derive(Debug, Default)]
pub(crate) struct LocalBlock {
    pub(crate) class: usize,
    /// Its word of the block table.
    pub(crate) word: BlockWord,
    free: Box<[u64]>,
    free_count: u32,
    hint: usize,
    /// Somebody harvests it or decides about it: it must not be taken out.
    busy: bool,
    /// Words of *taken* as last seen.
    taken: Box<[u64]>,
    /// A harvest was begun and has not ended: its CASes may be under way.
    pub(crate) harvesting: bool,
    /// Objects that are retired, or about to be, and not announced (INV-RETIRE-4).
    retired: u32,
    /// Objects that were taken from it since it became this member's.
    taken_count: u32,
}

impl Allocator {
    pub(crate) fn new(geometry: &Geometry, first_server: usize) -> Self {
        let servers: Vec<ServerBlocks> = geometry
            .server_ids()
            .map(|server| ServerBlocks {
                blocks: (0..geometry.block_count(server)).map(|_| None).collect(),
                classes: (0..CLASS_COUNT).map(|_| ClassBlocks::default()).collect(),
                groups: 0,
                free_blocks: geometry.block_count(server),
            })
            .collect();
        let first_server = first_server % servers.len().max(1);
        Allocator {
            geometry: geometry.clone(),
            servers,
            surplus: Vec::new(),
            limbo: Vec::new(),
            changing: BTreeSet::new(),
            first_server,
            free_bytes: 0,
            owned_bytes: 0,
            carved_bytes: 0,
        }
    }

    /// Bytes of owned blocks, of objects in use, of free objects.
    pub(crate) fn bytes(&self) -> (u64, u64, u64) {
        (self.owned_bytes, self.carved_bytes - self.free_bytes, self.free_bytes)
    }

    /// A free object of `class`; it is in use now.
    pub(crate) fn take(&mut self, server: ServerId, class: usize) -> Option<GlobalAddr> {
        let blocks = &mut self.servers[server.index()];
        let of_class = &mut blocks.classes[class];
        let number = *of_class.available.last()?;
        let block = blocks.blocks[number as usize].as_mut()?;
        of_class.is_used = true;
        block.taken_count = block.taken_count.saturating_add(1);
        of_class.taken_count += 1;
        of_class.turns = of_class.turns.saturating_sub(1);
        let shape = self.geometry.shape(class);
        if block.free_count == shape.count {
            of_class.wholly_free -= 1;
        }
        let word = block.next_free_word()?;
        let bit = block.free[word].trailing_zeros();
        block.free[word] &= block.free[word] - 1;
        block.free_count -= 1;
        if block.free_count == 0 {
            of_class.available.pop();
        }
        self.free_bytes -= shape.object_bytes;
        let offset = shape.offset_of(word as u32 * 64 + bit);
        Some(self.geometry.block_addr(BlockId { server, number }).plus(offset))
    }

    /// Frees the object at `addr` if its block is this member's; `false` if it is not.
    ///
    /// # Errors
    /// `Corrupt` if no object starts there, or it is free already.
    pub(crate) fn free(&mut self, addr: GlobalAddr) -> Result<bool, PoolError> {
        let Some((at, offset)) = self.geometry.block_of(addr) else {
            return Err(PoolError::Corrupt(format!("{addr} is in no block")));
        };
        let blocks = &mut self.servers[at.server.index()].blocks;
        let Some(block) = blocks[at.number as usize].as_mut() else {
            return Ok(false);
        };
        let Some(index) = self.geometry.shape(block.class).object_at(offset) else {
            return Err(PoolError::Corrupt(format!("no object starts at {addr}")));
        };
        let added = block.add((index / 64) as usize, 1 << (index % 64));
        if added == 0 {
            return Err(PoolError::Corrupt(format!("the object at {addr} is freed twice")));
        }
        self.note_added(at, 1);
        Ok(true)
    }

    /// Notes that the object is about to be retired; `false` if its block is not this member's.
    pub(crate) fn hold_retired(&mut self, addr: GlobalAddr) -> bool {
        self.block_with(addr).map(|block| block.retired += 1).is_some()
    }

    /// The object stays after all.
    pub(crate) fn let_go_retired(&mut self, addr: GlobalAddr) {
        if let Some(block) = self.block_with(addr) {
            block.retired -= 1;
        }
    }

    /// Frees an object of [`Allocator::hold_retired`].
    ///
    /// # Errors
    /// As [`Allocator::free`].
    pub(crate) fn free_retired(&mut self, addr: GlobalAddr) -> Result<(), PoolError> {
        self.let_go_retired(addr);
        self.free(addr).map(drop)
    }

    fn block_with(&mut self, addr: GlobalAddr) -> Option<&mut LocalBlock> {
        let (at, _) = self.geometry.block_of(addr)?;
        self.block_mut(at)
    }

    /// Class of the block if this member owns it.
    pub(crate) fn class_at(&self, at: BlockId) -> Option<usize> {
        self.block(at).map(|block| block.class)
    }

    pub(crate) fn block(&self, at: BlockId) -> Option<&LocalBlock> {
        self.servers.get(at.server.index())?.blocks.get(at.number as usize)?.as_deref()
    }

    fn block_mut(&mut self, at: BlockId) -> Option<&mut LocalBlock> {
        self.servers[at.server.index()].blocks[at.number as usize].as_deref_mut()
    }

    pub(crate) fn of_class(&self, server: ServerId, class: usize) -> &ClassBlocks {
        &self.servers[server.index()].classes[class]
    }

    pub(crate) fn of_class_mut(&mut self, server: ServerId, class: usize) -> &mut ClassBlocks {
        &mut self.servers[server.index()].classes[class]
    }

    /// Takes in a block that became this member's: with all of its objects free, or none and
    /// `taken` as it was found.
    pub(crate) fn install(&mut self, at: BlockId, word: BlockWord, taken: Option<Box<[u64]>>) {
        let all_free = taken.is_none();
        // An adopted block is in the hands of its adopter until the bitmap has been looked at.
        let busy = !all_free;
        let class = word.class();
        let shape = self.geometry.shape(class);
        let free = (0..shape.bitmap_words())
            .map(|word| if all_free { shape.valid_bits(word) } else { 0 })
            .collect();
        let block = LocalBlock {
            class,
            word,
            free,
            free_count: if all_free { shape.count } else { 0 },
            busy,
            taken: taken.unwrap_or_else(|| vec![0; shape.bitmap_words()].into()),
            ..LocalBlock::default()
        };
        let blocks = &mut self.servers[at.server.index()];
        blocks.blocks[at.number as usize] = Some(Box::new(block));
        let of_class = &mut blocks.classes[class];
        of_class.owned.push(at.number);
        // Room for all blocks of the class, so that freeing never allocates.
        let missing = of_class.owned.len().saturating_sub(of_class.available.len());
        of_class.available.reserve(missing);
        if all_free {
            of_class.available.push(at.number);
            of_class.wholly_free += 1;
        }
        let bytes = u64::from(shape.count) * shape.object_bytes;
        self.carved_bytes += bytes;
        self.free_bytes += if all_free { bytes } else { 0 };
        self.owned_bytes += self.geometry.options().block_bytes;
    }

    /// Takes a block out, whatever its objects' state; its word and what is known of its objects. `None` also
    /// if objects of it are retired and not announced (INV-RETIRE-4).
    pub(crate) fn remove(&mut self, at: BlockId) -> Option<(BlockWord, Left)> {
        let blocks = &mut self.servers[at.server.index()];
        let block = blocks.blocks[at.number as usize].take_if(|block| block.retired == 0)?;
        let shape = self.geometry.shape(block.class);
        let of_class = &mut blocks.classes[block.class];
        of_class.owned.retain(|other| *other != at.number);
        of_class.available.retain(|other| *other != at.number);
        of_class.wholly_free -= u32::from(block.free_count == shape.count);
        self.carved_bytes -= u64::from(shape.count) * shape.object_bytes;
        self.free_bytes -= u64::from(block.free_count) * shape.object_bytes;
        self.owned_bytes -= self.geometry.options().block_bytes;
        Some((block.word, Left { free: block.free, taken: block.taken }))
    }

    /// As [`Allocator::remove`], but only if no object is in use.
    pub(crate) fn remove_if_free(&mut self, at: BlockId) -> Option<BlockWord> {
        let block = self.block(at)?;
        let is_free = block.free_count == self.geometry.shape(block.class).count;
        (is_free && !block.busy && !block.harvesting)
            .then(|| self.remove(at))?
            .map(|(word, _)| word)
    }

    /// A wholly free block beyond the spare that its class keeps, taken out.
    pub(crate) fn take_surplus(&mut self) -> Option<(BlockId, BlockWord)> {
        while let Some(at) = self.surplus.pop() {
            let Some(class) = self.class_at(at) else { continue };
            if self.of_class(at.server, class).wholly_free > 1
                && let Some(word) = self.remove_if_free(at)
            {
                return Some((at, word));
            }
        }
        None
    }

    /// A block of each class that has a wholly free one and that nothing was taken of since the last call; now
    /// every class counts as unused.
    pub(crate) fn unused(&mut self) -> Vec<BlockId> {
        let mut all = Vec::new();
        for server in self.geometry.server_ids() {
            let blocks = &mut self.servers[server.index()];
            for (class, of_class) in blocks.classes.iter_mut().enumerate() {
                let is_used = std::mem::take(&mut of_class.is_used);
                if is_used || of_class.wholly_free == 0 {
                    continue;
                }
                let count = self.geometry.shape(class).count;
                let is_free = |number: &u32| {
                    let block = blocks.blocks[*number as usize].as_ref();
                    block.is_some_and(|block| block.free_count == count)
                };
                let number = of_class.owned.iter().copied().find(is_free);
                all.extend(number.map(|number| BlockId { server, number }));
            }
        }
        all
    }

    /// Takes a block out of which this member has taken one object alone, and that is linked. `None` if it has
    /// taken others, or the block is in use in another way.
    pub(crate) fn remove_handed_on(&mut self, at: BlockId) -> Option<(BlockWord, Left)> {
        let block = self.block(at)?;
        let is_alone = block.taken_count == 1 && !block.busy && !block.harvesting;
        is_alone.then(|| self.remove(at))?
    }

    /// Objects of the class that this member has ever taken on the server.
    pub(crate) fn taken_count(&self, server: ServerId, class: usize) -> u64 {
        self.of_class(server, class).taken_count
    }

    pub(crate) fn note_free_blocks(&mut self, server: ServerId, count: u32) {
        self.servers[server.index()].free_blocks = count;
    }

    /// Tells whether a look for objects of the class found none a short time ago.
    pub(crate) fn is_empty(&self, server: ServerId, class: usize, now_ns: u64) -> bool {
        now_ns < self.of_class(server, class).empty_until_ns
    }

    /// Any wholly free block of the server, taken out.
    pub(crate) fn take_spare(&mut self, server: ServerId) -> Option<(BlockId, BlockWord)> {
        let blocks: Vec<BlockId> = self.servers[server.index()]
            .classes
            .iter()
            .filter(|of_class| of_class.wholly_free > 0)
            .flat_map(|of_class| of_class.owned.iter())
            .map(|number| BlockId { server, number: *number })
            .collect();
        blocks.into_iter().find_map(|at| self.remove_if_free(at).map(|word| (at, word)))
    }

    /// Every owned block, by server and number.
    pub(crate) fn owned(&self) -> Vec<BlockId> {
        let all = self.geometry.server_ids().flat_map(|server| self.geometry.blocks(server));
        all.filter(|at| self.block(*at).is_some()).collect()
    }

    /// Tells whether an object of the class is free.
    pub(crate) fn has_free(&self, server: ServerId, class: usize) -> bool {
        !self.of_class(server, class).available.is_empty()
    }

    /// Starts looking for objects of the class; `false` if somebody does already.
    pub(crate) fn begin_refill(&mut self, server: ServerId, class: usize) -> bool {
        !std::mem::replace(&mut self.of_class_mut(server, class).refilling, true)
    }

    /// The next `most` blocks of the class to harvest, round robin.
    pub(crate) fn harvest_round(
        &mut self,
        server: ServerId,
        class: usize,
        most: usize,
    ) -> Vec<BlockId> {
        let of_class = self.of_class_mut(server, class);
        let count = of_class.owned.len();
        let most = most.min(count);
        // Blocks may have gone since.
        let start = if of_class.harvest_next < count { of_class.harvest_next } else { 0 };
        of_class.harvest_next = start + most;
        let numbers = (0..most).map(|at| of_class.owned[(start + at) % count]);
        numbers.map(|number| BlockId { server, number }).collect()
    }

    /// Takes a block in hand, so that nobody else harvests it or takes it out; `false` if somebody
    /// has it, or it is not this member's.
    pub(crate) fn hold(&mut self, at: BlockId) -> bool {
        let block = self.block_mut(at);
        block.is_some_and(|block| !std::mem::replace(&mut block.busy, true))
    }

    pub(crate) fn let_go(&mut self, at: BlockId) {
        if let Some(block) = self.block_mut(at) {
            block.busy = false;
        }
    }

    /// Notes that the block's *taken* words are about to be changed; whether an earlier harvest
    /// has not ended.
    pub(crate) fn harvest_begins(&mut self, at: BlockId) -> bool {
        let block = self.block_mut(at);
        block.is_some_and(|block| std::mem::replace(&mut block.harvesting, true))
    }

    pub(crate) fn harvest_ends(&mut self, at: BlockId) {
        if let Some(block) = self.block_mut(at) {
            block.harvesting = false;
        }
    }

    /// A word of the block's *taken* holds `value`: objects whose bit has changed are this member's
    /// now. How many.
    ///
    /// # Errors
    /// `Corrupt` if an object was free here already; it is counted once.
    pub(crate) fn note_taken(
        &mut self,
        at: BlockId,
        word: usize,
        value: u64,
    ) -> Result<u32, PoolError> {
        let blocks = &mut self.servers[at.server.index()].blocks;
        let Some(block) = blocks[at.number as usize].as_mut() else {
            return Ok(0);
        };
        let bits = std::mem::replace(&mut block.taken[word], value) ^ value;
        if bits == 0 {
            return Ok(0);
        }
        let added = block.add(word, bits & self.geometry.shape(block.class).valid_bits(word));
        if added > 0 {
            self.note_added(at, added);
        }
        if added != bits.count_ones() {
            return Err(PoolError::Corrupt(format!(
                "{at}: objects of bitmap word {word} were freed twice ({bits:#x})"
            )));
        }
        Ok(added)
    }

    /// Accounts for objects of a block that have just become free.
    fn note_added(&mut self, at: BlockId, added: u32) {
        let blocks = &mut self.servers[at.server.index()];
        let Some(block) = blocks.blocks[at.number as usize].as_ref() else { return };
        let shape = self.geometry.shape(block.class);
        let of_class = &mut blocks.classes[block.class];
        if block.free_count == added {
            of_class.available.push(at.number);
        }
        if block.free_count == shape.count {
            of_class.wholly_free += 1;
            if of_class.wholly_free > 1 {
                self.surplus.push(at);
            }
        }
        self.free_bytes += u64::from(added) * shape.object_bytes;
    }
}

impl LocalBlock {
    /// Tells whether the object is free here.
    pub(crate) fn is_free(&self, index: u32) -> bool {
        self.free[(index / 64) as usize] >> (index % 64) & 1 == 1
    }

    /// The first word from the hint on, around, with a free object.
    fn next_free_word(&mut self) -> Option<usize> {
        let words = self.free.len();
        if self.free.get(self.hint).is_none_or(|word| *word == 0) {
            self.hint = (self.hint + 1..words).chain(0..words).find(|at| self.free[*at] != 0)?;
        }
        Some(self.hint)
    }

    /// Makes objects free; how many were not.
    fn add(&mut self, word: usize, bits: u64) -> u32 {
        let new = bits & !self.free[word];
        self.free[word] |= new;
        self.free_count += new.count_ones();
        new.count_ones()
    }
}
