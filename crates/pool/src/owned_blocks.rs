//! Owned blocks: track the free objects and pages of the blocks that this member owns.
//!
//! Each pair of bitmap words in a block's front consists of a word of *given* and one of *taken*. An object
//! whose bits differ is free for the owner to take.
//!
//! INV-ALLOC-1: either the block's owner knows that an object is free (a set bit here), or the block's
//! bitmaps in the pool show it (two bits that differ). Never both, and nobody else knows.
//! INV-ALLOC-2: only a block's owner changes *taken*, and takes an object by making its bit equal
//! again. So the word shows a change with a lost outcome for ever after.
//! INV-ALLOC-3: any holder of an object may turn its *given* bit, announced live and pinned, and gives
//! up the object by that. As long as that pin holds, nobody can turn it again: the object would have to
//! be retired and reclaimed in between. So a member that lost the outcome finds it in the bit. (With a
//! single bitmap, a clear bit may have been set, and taken since.)
//! INV-ALLOC-4: a server keeps one block without an object in use; others are given back. A class keeps its runs
//! without an object in use until the member lacks pages: then all of them are dropped before it takes a block.
//!
//! No operation here waits or goes over the fabric; the pool keeps all of it in one mutex.

use std::collections::BTreeSet;

use farleaf_fabric::{GlobalAddr, ServerId};

use crate::class::{CLASS_COUNT, class_bytes};
use crate::geometry::BlockId;
use crate::local_block::{Carving, Left, LocalBlock, LocalRun, no_object};
use crate::pages::Run;
use crate::words::BlockWord;
use crate::{Geometry, PoolError};

/// A run that is not as long as wanted is carved if it has this part of it; for less, the member looks elsewhere
/// first.
const SHORT_PART: u32 = 8;

/// The blocks of one member.
#[derive(Debug)]
pub(crate) struct Allocator {
    /// The pool's.
    pub(crate) geometry: Geometry,
    pub(crate) servers: Vec<ServerBlocks>,
    /// Blocks that became wholly free: to be given back, but for one.
    surplus: BTreeSet<BlockId>,
    /// Blocks whose change of state may or may not have happened; see [`Limbo`].
    pub(crate) limbo: Vec<Limbo>,
    /// Those, and those whose state a session is changing.
    pub(crate) changing: BTreeSet<BlockId>,
    /// The server at which this member begins (INV-PLACE-3).
    pub(crate) first_server: usize,
    /// Bytes of objects in use.
    used_bytes: u64,
    /// Bytes of free objects.
    free_bytes: u64,
    /// Objects that were to be handed on, in blocks that hold others of this member as well.
    handed_on: Vec<GlobalAddr>,
}

/// A block whose word was to be changed by a CAS of unknown outcome, and what it is to become if
/// it is found to be this member's.
#[derive(Debug)]
pub(crate) struct Limbo {
    pub(crate) block: BlockId,
    /// To be free; otherwise to be an orphan.
    pub(crate) to_free: bool,
    /// Changes that an orphan's bitmaps and page map still lack.
    pub(crate) left: Option<Left>,
}

#[derive(Debug)]
pub(crate) struct ServerBlocks {
    blocks: Vec<Option<Box<LocalBlock>>>,
    /// Numbers of the owned ones, in the order in which they came.
    owned: Vec<u32>,
    classes: Vec<ClassRuns>,
    /// Groups of objects that were begun here: [`Allocator::next_server`].
    pub(crate) groups: u64,
    /// Blocks that were free when this member last read the block table.
    pub(crate) free_blocks: u32,
    /// A session takes another block.
    pub(crate) taking: bool,
    /// Objects were taken since the last [`Allocator::unused`].
    is_used: bool,
}

/// The place of a run on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RunAt {
    number: u32,
    page: u32,
}

/// The runs of one class on one server.
#[derive(Debug, Default)]
pub(crate) struct ClassRuns {
    /// All of them, in the order in which they came.
    owned: Vec<RunAt>,
    /// Those with a free object; the last is used first.
    available: Vec<RunAt>,
    /// Those without an object in use.
    wholly_free: u32,
    /// Their pages.
    pages: u32,
    /// Somebody is looking for more objects.
    pub(crate) refilling: bool,
    /// Start of the next round of harvesting.
    harvest_next: usize,
    /// Until then, a look for objects need not be repeated: there were none.
    pub(crate) empty_until_ns: u64,
    /// Objects that this member has ever taken.
    taken_count: u64,
    /// So many further objects come from here before another server's turn: the free ones of an orphan.
    pub(crate) turns: u32,
}

/// Free memory of owned blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes {
    /// Of owned blocks.
    pub(crate) owned: u64,
    /// Of objects in use.
    pub(crate) used: u64,
    /// Of free objects and of pages in no run.
    pub(crate) free: u64,
}

impl Allocator {
    pub(crate) fn new(geometry: &Geometry, first_server: usize) -> Self {
        let servers: Vec<ServerBlocks> = geometry
            .server_ids()
            .map(|server| ServerBlocks {
                blocks: (0..geometry.block_count(server)).map(|_| None).collect(),
                owned: Vec::new(),
                classes: (0..CLASS_COUNT).map(|_| ClassRuns::default()).collect(),
                groups: 0,
                free_blocks: geometry.block_count(server),
                taking: false,
                is_used: false,
            })
            .collect();
        let first_server = first_server % servers.len().max(1);
        Allocator {
            geometry: geometry.clone(),
            servers,
            surplus: BTreeSet::new(),
            limbo: Vec::new(),
            changing: BTreeSet::new(),
            first_server,
            used_bytes: 0,
            free_bytes: 0,
            handed_on: Vec::new(),
        }
    }

    pub(crate) fn bytes(&self) -> Bytes {
        let blocks = self.servers.iter().flat_map(|server| server.blocks.iter().flatten());
        let pages: u64 = blocks.map(|block| u64::from(block.free_pages)).sum();
        let owned: u64 = self.servers.iter().map(|server| server.owned.len() as u64).sum();
        Bytes {
            owned: owned * self.geometry.options().block_bytes,
            used: self.used_bytes
                - self.handed_on.iter().map(|addr| self.in_use_at(*addr)).sum::<u64>(),
            free: self.free_bytes + pages * self.geometry.shape().page_bytes,
        }
    }

    /// Bytes of the object at `addr` if it is in use in a block of this member.
    fn in_use_at(&self, addr: GlobalAddr) -> u64 {
        let run = self.geometry.block_of(addr).and_then(|(at, offset)| {
            let run = self.block(at)?.run_at(self.geometry.shape().page_of(offset))?;
            let index = run.run.object_at(offset)?;
            (!run.is_free(index)).then(|| class_bytes(run.run.class))
        });
        run.unwrap_or(0)
    }

    /// A free object of `class`; it is in use now.
    pub(crate) fn take(&mut self, server: ServerId, class: usize) -> Option<GlobalAddr> {
        let blocks = &mut self.servers[server.index()];
        let of_class = &mut blocks.classes[class];
        let RunAt { number, page } = *of_class.available.last()?;
        let block = blocks.blocks[number as usize].as_mut()?;
        let was_free = block.run_at(page)?.is_wholly_free();
        let offset = block.take(page)?;
        let run = block.run_at(page)?;
        of_class.wholly_free -= u32::from(was_free);
        if run.free_count == 0 {
            of_class.available.pop();
        }
        of_class.taken_count += 1;
        of_class.turns = of_class.turns.saturating_sub(1);
        blocks.is_used = true;
        let bytes = run.run.object_bytes();
        self.free_bytes -= bytes;
        self.used_bytes += bytes;
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
        let Some(block) = self.block(at) else { return Ok(false) };
        let run = block.run_at(self.geometry.shape().page_of(offset)).map(|run| run.run);
        let index = run.and_then(|run| run.object_at(offset));
        let (Some(run), Some(index)) = (run, index) else { return Err(no_object(addr)) };
        if self.add(at, run, (index / 64) as usize, 1 << (index % 64)) == 0 {
            return Err(PoolError::Corrupt(format!("the object at {addr} is freed twice")));
        }
        Ok(true)
    }

    /// Notes that the object is about to be retired; `false` if its block is not this member's.
    pub(crate) fn hold_retired(&mut self, addr: GlobalAddr) -> bool {
        self.handed_on.retain(|other| *other != addr);
        self.block_with(addr).map(|block| block.retired += 1).is_some()
    }

    /// The object stays after all.
    pub(crate) fn let_go_retired(&mut self, addr: GlobalAddr) {
        let block = self.block_with(addr);
        debug_assert!(block.is_some(), "INV-RETIRE-4: the block of {addr} was given up");
        if let Some(block) = block {
            debug_assert!(block.retired > 0, "INV-RETIRE-4: {addr} is freed twice");
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

    /// Class of an object in an owned block.
    pub(crate) fn class_at(&self, addr: GlobalAddr) -> Option<usize> {
        let (at, offset) = self.geometry.block_of(addr)?;
        let run = self.block(at)?.run_at(self.geometry.shape().page_of(offset))?;
        Some(run.run.class)
    }

    pub(crate) fn block(&self, at: BlockId) -> Option<&LocalBlock> {
        self.servers.get(at.server.index())?.blocks.get(at.number as usize)?.as_deref()
    }

    pub(crate) fn block_mut(&mut self, at: BlockId) -> Option<&mut LocalBlock> {
        self.servers[at.server.index()].blocks[at.number as usize].as_deref_mut()
    }

    pub(crate) fn of_class(&self, server: ServerId, class: usize) -> &ClassRuns {
        &self.servers[server.index()].classes[class]
    }

    pub(crate) fn of_class_mut(&mut self, server: ServerId, class: usize) -> &mut ClassRuns {
        &mut self.servers[server.index()].classes[class]
    }

    /// Takes in a block that became this member's. It is in the caller's hands until [`Allocator::let_go`].
    pub(crate) fn install(&mut self, at: BlockId, mut block: LocalBlock) {
        block.busy = true;
        let runs: Vec<Run> = block.runs().iter().map(|run| run.run).collect();
        let blocks = &mut self.servers[at.server.index()];
        blocks.blocks[at.number as usize] = Some(Box::new(block));
        blocks.owned.push(at.number);
        runs.iter().for_each(|run| self.note_run(at, *run));
    }

    /// A run is there, of which no object is free.
    fn note_run(&mut self, at: BlockId, run: Run) {
        let of_class = self.of_class_mut(at.server, run.class);
        of_class.owned.push(RunAt { number: at.number, page: run.page });
        of_class.pages += run.pages;
        // Room for all runs of the class, so that freeing never allocates.
        let missing = of_class.owned.len().saturating_sub(of_class.available.len());
        of_class.available.reserve(missing);
        self.used_bytes += u64::from(run.count) * run.object_bytes();
    }

    /// A run is not there any more; all that is known of its objects.
    fn forget_run(&mut self, at: BlockId, run: Run, free_count: u32) {
        let of_class = self.of_class_mut(at.server, run.class);
        let at = RunAt { number: at.number, page: run.page };
        of_class.owned.retain(|other| *other != at);
        of_class.available.retain(|other| *other != at);
        of_class.wholly_free -= u32::from(free_count == run.count);
        of_class.pages -= run.pages;
        self.free_bytes -= u64::from(free_count) * run.object_bytes();
        self.used_bytes -= u64::from(run.count - free_count) * run.object_bytes();
    }

    /// Drops a run without an object in use, if nobody has it in hand.
    fn drop_run(&mut self, at: BlockId, page: u32) {
        let Some(block) = self.servers[at.server.index()].blocks[at.number as usize].as_deref_mut()
        else {
            return;
        };
        let run = block.run_at(page).map(|run| run.run);
        let (true, Some(run)) = (block.can_drop(page), run) else { return };
        block.drop_run(self.geometry.shape(), page);
        self.forget_run(at, run, run.count);
    }

    /// Drops all runs of the server without an object in use.
    pub(crate) fn drop_free_runs(&mut self, server: ServerId) {
        let of_server = &self.servers[server.index()];
        let with_free = of_server.classes.iter().filter(|of_class| of_class.wholly_free > 0);
        let runs: Vec<RunAt> =
            with_free.flat_map(|of_class| of_class.available.iter().copied()).collect();
        for RunAt { number, page } in runs {
            self.drop_run(BlockId { server, number }, page);
        }
    }

    /// Begins to carve a run of the class in an owned block, which is in the caller's hands until
    /// [`Allocator::let_go`]. `None` if none has the room: for a good part of what suits, or if `is_hard` for the
    /// fewest pages that a run may have.
    pub(crate) fn carve(
        &mut self,
        server: ServerId,
        class: usize,
        is_hard: bool,
    ) -> Option<(BlockId, Carving)> {
        let shape = self.geometry.shape();
        let fewest = shape.run_pages(class);
        let wanted = self.next_run_pages(server, class);
        let least = if is_hard { fewest } else { fewest.max(wanted / SHORT_PART) };
        let of_server = &mut self.servers[server.index()];
        let mut best: Option<((u32, u32), u32, Run)> = None;
        for number in &of_server.owned {
            let block = of_server.blocks[*number as usize].as_deref();
            let Some(block) = block.filter(|block| !block.busy) else { continue };
            let Some((page, pages)) = block.place(shape, wanted, fewest) else { continue };
            // The longest that suits, in the fullest block, so that others may become empty.
            let key = (u32::MAX - pages, block.free_pages);
            if pages >= least && best.is_none_or(|(other, ..)| key < other) {
                best = Some((key, *number, shape.run(class, page, pages)));
            }
        }
        let (_, number, run) = best?;
        let block = of_server.blocks[number as usize].as_deref_mut()?;
        block.busy = true;
        let carving = block.carve(shape, run);
        let at = BlockId { server, number };
        self.note_run(at, run);
        Some((at, carving))
    }

    /// Pages of the next run of the class on the server.
    pub(crate) fn next_run_pages(&self, server: ServerId, class: usize) -> u32 {
        let owned = self.of_class(server, class).pages;
        self.geometry.shape().next_run_pages(class, owned, self.is_tight())
    }

    /// Tells whether few of the pool's blocks were free when this member last looked: a quarter or less.
    pub(crate) fn is_tight(&self) -> bool {
        let all: u32 = self.geometry.server_ids().map(|at| self.geometry.block_count(at)).sum();
        let free: u32 = self.servers.iter().map(|server| server.free_blocks).sum();
        free <= all / 4
    }

    /// The words of a carved run are in the pool.
    pub(crate) fn carved(&mut self, at: BlockId, run: Run) {
        let Some(block) = self.block_mut(at) else { return };
        block.carved(run.page);
        let of_class = self.of_class_mut(at.server, run.class);
        of_class.available.push(RunAt { number: at.number, page: run.page });
        of_class.wholly_free += 1;
        let bytes = u64::from(run.count) * run.object_bytes();
        self.free_bytes += bytes;
        self.used_bytes -= bytes;
    }

    /// Takes a block out, whatever its objects' state; its word and what is known of its objects. `None` also
    /// if objects of it are retired and not announced (INV-RETIRE-4).
    pub(crate) fn remove(&mut self, at: BlockId) -> Option<(BlockWord, Left)> {
        let blocks = &mut self.servers[at.server.index()];
        let block = blocks.blocks[at.number as usize].take_if(|block| block.retired == 0)?;
        blocks.owned.retain(|other| *other != at.number);
        for run in block.runs() {
            self.forget_run(at, run.run, run.free_count);
        }
        Some(block.into_left(self.geometry.shape()))
    }

    /// As [`Allocator::remove`], but only if no object is in use.
    pub(crate) fn remove_if_free(&mut self, at: BlockId) -> Option<BlockWord> {
        let is_free = self.block(at)?.is_free();
        is_free.then(|| self.remove(at))?.map(|(word, _)| word)
    }

    /// As [`Allocator::remove`], unless somebody has the block in hand or a harvest of it has not ended.
    pub(crate) fn remove_idle(&mut self, at: BlockId) -> Option<(BlockWord, Left)> {
        self.block(at)?.is_idle().then(|| self.remove(at))?
    }

    /// A wholly free block beyond the one that each server keeps, taken out.
    pub(crate) fn take_surplus(&mut self) -> Option<(BlockId, BlockWord)> {
        let (mut in_hand, mut taken) = (Vec::new(), None);
        while let Some(at) = self.surplus.pop_first() {
            let is_in_hand =
                self.block(at).is_some_and(|block| block.in_use() == 0 && !block.is_idle());
            if is_in_hand {
                in_hand.push(at);
            } else if self.free_of(at.server).len() > 1
                && let Some(word) = self.remove_if_free(at)
            {
                taken = Some((at, word));
                break;
            }
        }
        // Their holders free nothing more in them: only this set knows them as surplus.
        self.surplus.extend(in_hand);
        taken
    }

    /// The wholly free blocks of a server.
    fn free_of(&self, server: ServerId) -> Vec<BlockId> {
        let numbers = self.servers[server.index()].owned.iter();
        let all = numbers.map(|number| BlockId { server, number: *number });
        all.filter(|at| self.block(*at).is_some_and(LocalBlock::is_free)).collect()
    }

    /// The wholly free blocks of servers on which nothing was taken since the last call; now every server counts
    /// as unused.
    pub(crate) fn unused(&mut self) -> Vec<BlockId> {
        let mut all = Vec::new();
        for server in self.geometry.server_ids() {
            if !std::mem::take(&mut self.servers[server.index()].is_used) {
                all.append(&mut self.free_of(server));
            }
        }
        all
    }

    /// Takes a block out of which this member has taken one object alone, and that is linked. `None` if it has
    /// taken others, or the block is in use in another way.
    pub(crate) fn remove_handed_on(&mut self, at: BlockId) -> Option<(BlockWord, Left)> {
        let is_alone = self.block(at)?.taken_count == 1;
        is_alone.then(|| self.remove_idle(at))?
    }

    /// The object at `addr` is not counted as this member's any more, though its block is.
    pub(crate) fn note_handed_on(&mut self, addr: GlobalAddr) {
        let handed_on = std::mem::take(&mut self.handed_on);
        self.handed_on = handed_on.into_iter().filter(|addr| self.in_use_at(*addr) > 0).collect();
        if self.in_use_at(addr) > 0 && !self.handed_on.contains(&addr) {
            self.handed_on.push(addr);
        }
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

    /// Every owned block, by server and in the order in which they came.
    pub(crate) fn owned(&self) -> Vec<BlockId> {
        self.geometry.server_ids().flat_map(|server| self.owned_on(server)).collect()
    }

    /// Every owned block of the server.
    pub(crate) fn owned_on(&self, server: ServerId) -> Vec<BlockId> {
        let numbers = self.servers[server.index()].owned.iter();
        numbers.map(|number| BlockId { server, number: *number }).collect()
    }

    /// Tells whether an object of the class is free.
    pub(crate) fn has_free(&self, server: ServerId, class: usize) -> bool {
        !self.of_class(server, class).available.is_empty()
    }

    /// Starts looking for objects of the class; `false` if somebody does already.
    pub(crate) fn begin_refill(&mut self, server: ServerId, class: usize) -> bool {
        !std::mem::replace(&mut self.of_class_mut(server, class).refilling, true)
    }

    /// The next `most` runs of the class to harvest, round robin: block, and first page.
    pub(crate) fn harvest_round(
        &mut self,
        server: ServerId,
        class: usize,
        most: usize,
    ) -> Vec<(BlockId, u32)> {
        let of_class = self.of_class_mut(server, class);
        let count = of_class.owned.len();
        let most = most.min(count);
        // Runs may have gone since.
        let start = if of_class.harvest_next < count { of_class.harvest_next } else { 0 };
        of_class.harvest_next = start + most;
        let runs = (0..most).map(|at| of_class.owned[(start + at) % count]);
        runs.map(|at| (BlockId { server, number: at.number }, at.page)).collect()
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

    /// Notes that the run's *taken* words are about to be changed; whether an earlier harvest has not
    /// ended.
    pub(crate) fn harvest_begins(&mut self, at: BlockId, page: u32) -> bool {
        let run = self.run_mut(at, page);
        run.is_some_and(|run| std::mem::replace(&mut run.harvesting, true))
    }

    pub(crate) fn harvest_ends(&mut self, at: BlockId, page: u32) {
        if let Some(run) = self.run_mut(at, page) {
            run.harvesting = false;
        }
    }

    fn run_mut(&mut self, at: BlockId, page: u32) -> Option<&mut LocalRun> {
        self.block_mut(at)?.run_at_mut(page)
    }

    /// A word of the run's *taken* holds `value`: objects whose bit has changed are this member's
    /// now. How many.
    ///
    /// # Errors
    /// `Corrupt` if an object was free here already; it is counted once.
    pub(crate) fn note_taken(
        &mut self,
        at: BlockId,
        page: u32,
        word: usize,
        value: u64,
    ) -> Result<u32, PoolError> {
        let Some(run) = self.run_mut(at, page) else { return Ok(0) };
        let bits = run.note_taken(word, value);
        if bits == 0 {
            return Ok(0);
        }
        let run = run.run;
        let added = self.add(at, run, word, bits & run.valid_bits(word));
        if added != bits.count_ones() {
            return Err(PoolError::Corrupt(format!(
                "{at}: objects of bitmap word {word} of page {page} were freed twice ({bits:#x})"
            )));
        }
        Ok(added)
    }

    /// Makes objects of a run free; how many were not.
    fn add(&mut self, at: BlockId, run: Run, word: usize, bits: u64) -> u32 {
        let blocks = &mut self.servers[at.server.index()];
        let Some(block) = blocks.blocks[at.number as usize].as_deref_mut() else { return 0 };
        let added = block.add(run.page, word, bits);
        let Some(free_count) = block.run_at(run.page).map(|run| run.free_count) else { return 0 };
        if added == 0 {
            return 0;
        }
        let is_free = block.in_use() == 0;
        let of_class = &mut blocks.classes[run.class];
        if free_count == added {
            of_class.available.push(RunAt { number: at.number, page: run.page });
        }
        let is_wholly_free = free_count == run.count;
        of_class.wholly_free += u32::from(is_wholly_free);
        let bytes = u64::from(added) * run.object_bytes();
        self.free_bytes += bytes;
        self.used_bytes -= bytes;
        if is_free {
            self.surplus.insert(at);
        }
        added
    }
}
