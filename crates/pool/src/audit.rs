//! Audit: finds for every object of the pool whether it is live, free, retired, held or lost.
//!
//! The caller marks the objects that its tables reach; the audit reads the pool's own tables. In a pool
//! where no other member runs, every object of a carved block is live (marked), free (in its block's
//! bitmap, or with the caller's own member), or retired. Any other object is lost.

mod blocks;
mod tables;

use std::collections::BTreeMap;
use std::sync::Arc;

use farleaf_fabric::{Endpoint, GlobalAddr, ServerId};

use self::blocks::AuditBlock;
pub(crate) use self::blocks::{mark_word, object_at};
use crate::block::{CARVED_AT, check_front};
use crate::class::{CLASS_COUNT, class_bytes, class_of};
use crate::geometry::{BlockId, RETIRE_BYTES};
use crate::member::read_table;
use crate::pages::Run;
use crate::reliable::Reliable;
use crate::words::{BlockState, BlockWord, MemberState};
use crate::{Pool, PoolError, Session};

/// Words of the block table that are read at once.
pub(crate) const SCAN_WORDS: u32 = 8192;

/// Second looks of a report at blocks whose objects do not add up, and what lies between two of them.
const LOOKS: usize = 32;
const LOOK_WAIT_NS: u64 = 1_000_000;

/// Marks of live objects, and what they are compared with.
#[derive(Debug)]
pub struct Audit {
    pool: Arc<Pool>,
    /// Carved blocks.
    blocks: BTreeMap<BlockId, AuditBlock>,
    states: [u64; 3],
    free_by_server: Vec<u64>,
    /// If set, only these blocks and objects are tracked, and marks of others are ignored.
    watched: Option<BTreeMap<GlobalAddr, bool>>,
    problems: Vec<String>,
}

/// Objects of one size class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassReport {
    /// Bytes of an object.
    pub bytes: u64,
    /// Runs of pages that are carved for the class.
    pub runs: u64,
    /// Bytes of those runs.
    pub run_bytes: u64,
    /// Objects in those runs.
    pub handed_out: u64,
    /// Marked objects.
    pub live: u64,
    /// Objects that are free: in a bitmap, or with the caller's own member.
    pub free: u64,
    /// Objects in retire pages.
    pub retired: u64,
    /// Objects that may be other running members': free in their own blocks, on the way into or out of a
    /// table, or on the way home.
    pub held: u64,
    /// Objects that nobody knows.
    pub leaked: u64,
}

impl ClassReport {
    /// Adds one block's.
    fn add(&mut self, other: &ClassReport) {
        let ClassReport {
            bytes: _,
            runs,
            run_bytes,
            handed_out,
            live,
            free,
            retired,
            held,
            leaked,
        } = other;
        self.runs += runs;
        self.run_bytes += run_bytes;
        self.handed_out += handed_out;
        self.live += live;
        self.free += free;
        self.retired += retired;
        self.held += held;
        self.leaked += leaked;
    }
}

/// Blocks of one memory server that one compute server owns, or nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerReport {
    /// The memory server.
    pub server: u16,
    /// The owner's slot in the member table; `None` if its member has left.
    pub member: Option<u32>,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of their marked objects.
    pub live_bytes: u64,
    /// Bytes of their objects that are known to be free, and of their pages in no run.
    pub free_bytes: u64,
}

/// The findings of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Blocks that nobody uses.
    pub blocks_free: u64,
    /// Blocks of members.
    pub blocks_owned: u64,
    /// Blocks left by members that are gone.
    pub blocks_orphan: u64,
    /// Per size class, ascending; classes without a run are left out.
    pub classes: Vec<ClassReport>,
    /// Carved blocks per memory server and owner, ascending; those without an owner come first.
    pub owners: Vec<OwnerReport>,
    /// Free blocks per memory server.
    pub free_by_server: Vec<u64>,
    /// Faults, each with its place.
    pub problems: Vec<String>,
}

impl AuditReport {
    /// Tells whether every object is accounted for and nothing is wrong: live, free and retired objects
    /// are all that there are. Holds in a pool where nobody but the caller's member runs, and that
    /// has no operation under way.
    pub fn closes(&self) -> bool {
        let sums = |class: &ClassReport| class.live + class.free + class.retired;
        self.problems.is_empty() && self.classes.iter().all(|class| class.handed_out == sums(class))
    }
}

impl Audit {
    /// Reads the block tables and the headers of carved blocks, and checks the other tables. The
    /// report's problems name the invariants that do not hold.
    ///
    /// Cost: per server 1 READ for each 64 KiB of its block table, and 1 READ for each carved block
    /// and of 4 KiB for each free client; some READs of the tables on server 0.
    ///
    /// # Errors
    /// `Fabric`. Damage is a finding of the report, not an error.
    pub async fn new(session: &Session) -> Result<Audit, PoolError> {
        let mut audit = Audit {
            pool: Arc::clone(session.pool()),
            blocks: BTreeMap::new(),
            states: [0; 3],
            free_by_server: vec![0; session.pool().geometry().servers()],
            watched: None,
            problems: Vec::new(),
        };
        for server in session.pool().geometry().server_ids() {
            let table = session.pool().read_block_words(session.reliable(), server).await?;
            for (block, word) in table {
                audit.add_block(session, block, word).await?;
            }
        }
        tables::check(session, &mut audit.problems).await?;
        Ok(audit)
    }

    /// An audit of some blocks and objects alone, for a recovery.
    pub(crate) fn of<'a>(
        pool: &Arc<Pool>,
        blocks: impl Iterator<Item = &'a (BlockId, BlockWord)>,
        runs: &BTreeMap<BlockId, Vec<Run>>,
        watched: &[GlobalAddr],
    ) -> Audit {
        let shape = pool.geometry().shape();
        let blocks = blocks.map(|(block, word)| {
            let runs = runs.get(block).cloned().unwrap_or_default();
            (*block, AuditBlock::new(shape, *word, 0, runs))
        });
        Audit {
            pool: Arc::clone(pool),
            blocks: blocks.collect(),
            states: [0; 3],
            free_by_server: Vec::new(),
            watched: Some(watched.iter().map(|addr| (*addr, false)).collect()),
            problems: Vec::new(),
        }
    }

    /// Marks the object of `bytes` at `addr` as live. No remote operation.
    ///
    /// # Errors
    /// The fault, if there is one: no block is there, no object starts there, it is of another size, or it was
    /// marked before. The audit stays usable.
    pub fn mark(&mut self, addr: GlobalAddr, bytes: usize) -> Result<(), String> {
        if let Some(reached) = self.watched.as_mut().and_then(|watched| watched.get_mut(&addr)) {
            *reached = true;
        }
        let lenient = self.watched.is_some();
        let ignored = |why: String| if lenient { Ok(()) } else { Err(why) };
        let Some((at, offset)) = self.pool.geometry().block_of(addr) else {
            return Err(format!("{bytes} bytes at {addr} are in no block"));
        };
        let Some(block) = self.blocks.get_mut(&at) else {
            return ignored(format!(
                "INV-BLOCK-2: {bytes} bytes at {addr} are in a block that is not carved"
            ));
        };
        // Adopted since, it may even have been carved anew (INV-REC-5).
        let lenient = lenient && block.word.is(BlockState::Orphan);
        let ignored = |why: String| if lenient { Ok(()) } else { Err(why) };
        let Some((run, index)) = block.object_at(offset) else {
            return ignored(format!("no object starts at {addr}, where {bytes} bytes should be"));
        };
        if class_of(bytes) != Some(run.class) {
            let of = run.object_bytes();
            return ignored(format!("{bytes} bytes at {addr} are in a run of objects of {of}"));
        }
        let (word, bit) = (mark_word(self.pool.geometry().shape(), run, index), 1 << (index % 64));
        if block.marks[word] & bit != 0 {
            return Err(format!("the object at {addr} is linked twice"));
        }
        block.marks[word] |= bit;
        Ok(())
    }

    /// Reads retire pages and bitmaps and does the sums. The caller's member may free meanwhile what is
    /// retired, as the maintenance of a store does: a block that does not add up is looked at again.
    ///
    /// Cost: 1 READ of the client table and 1 of the member table, per client in use and server 1 READ of 4 KiB, per carved
    /// block 1 READ of its bitmap. Of a pool that does not add up, 32 times more all but the bitmaps, and 2
    /// READs.
    ///
    /// # Errors
    /// `Fabric`.
    pub async fn report(&self, session: &Session) -> Result<AuditReport, PoolError> {
        let mut report = AuditReport {
            blocks_free: self.states[0],
            blocks_owned: self.states[1],
            blocks_orphan: self.states[2],
            free_by_server: self.free_by_server.clone(),
            problems: self.problems.clone(),
            ..AuditReport::default()
        };
        // What is on its way home is not free anywhere yet.
        session.take_from_inbox().await?;
        let mut retired = self.retired(session, &mut report.problems).await?;
        let others_run = self.others_run(session).await?;
        let mut classes = vec![ClassReport::default(); CLASS_COUNT];
        let mut owners: BTreeMap<(ServerId, Option<u32>), OwnerReport> = BTreeMap::new();
        let mut looks = LOOKS;
        for (at, block) in &self.blocks {
            let mut word = block.word;
            let found = loop {
                let of_block = retired.get(at).map_or(&[][..], Vec::as_slice);
                let found = block.account(session, *at, word, of_block, others_run).await?;
                if found.adds_up() && found.sum(|sums| sums.held) > 0 {
                    // Its owner may have been recovered since it was read.
                    let now = read_word(session, *at).await?;
                    if now != word && looks > 0 {
                        (word, looks) = (now, looks - 1);
                        retired = self.retired(session, &mut Vec::new()).await?;
                        continue;
                    }
                }
                if found.adds_up() || looks == 0 {
                    break found;
                }
                // What maintenance moves at this moment is seen twice, or not at all.
                looks -= 1;
                session.endpoint().sleep(LOOK_WAIT_NS).await;
                word = read_word(session, *at).await?;
                retired = self.retired(session, &mut Vec::new()).await?;
            };
            found.sums.iter().for_each(|(class, sums)| classes[*class].add(sums));
            let member = (!block.word.is(BlockState::Orphan)).then(|| block.word.owner());
            let first = || OwnerReport { server: at.server.0, member, ..OwnerReport::default() };
            let owner = owners.entry((at.server, member)).or_insert_with(first);
            let in_runs = found.sum(|sums| sums.run_bytes);
            owner.blocks += 1;
            owner.live_bytes += found.bytes(|sums| sums.live);
            owner.free_bytes += found.bytes(|sums| sums.free);
            owner.free_bytes += self.pool.geometry().shape().usable_bytes() - in_runs;
            report.problems.extend(found.problems);
        }
        for (class, sums) in classes.iter_mut().enumerate() {
            sums.bytes = class_bytes(class);
        }
        classes.retain(|sums| sums.runs > 0);
        report.classes = classes;
        report.owners = owners.into_values().collect();
        Ok(report)
    }

    /// The objects in retire pages, and those that this member has retired without, by block: their offsets.
    async fn retired(
        &self,
        session: &Session,
        problems: &mut Vec<String>,
    ) -> Result<BTreeMap<BlockId, Vec<u64>>, PoolError> {
        let mut retired: BTreeMap<BlockId, Vec<u64>> = BTreeMap::new();
        let (pool, client) = (session.pool(), session.reliable());
        let clients = pool.read_clients(client).await?.into_iter().map(|(id, _)| id);
        for (client, addr) in pool.read_retired(client, clients).await? {
            match self.locate(addr) {
                Some((at, offset)) => retired.entry(at).or_default().push(offset),
                None => problems.push(format!(
                    "INV-RETIRE-1: client {client} has retired {addr}, where no object starts"
                )),
            }
        }
        // After the pages: what is announced meanwhile is in both, and seen once.
        for addr in pool.unannounced() {
            if let Some((at, offset)) = self.locate(addr) {
                let of_block = retired.entry(at).or_default();
                if !of_block.contains(&offset) {
                    of_block.push(offset);
                }
            }
        }
        Ok(retired)
    }

    /// Tells whether another member may have unlinked objects that it has not announced yet.
    async fn others_run(&self, session: &Session) -> Result<bool, PoolError> {
        let table = read_table(session.reliable(), self.pool.geometry()).await?;
        Ok((0..).zip(table).any(|(slot, entry)| {
            let is_live = entry.word.is(MemberState::Live);
            slot != self.pool.member && is_live && entry.announced.epoch().is_some()
        }))
    }

    async fn add_block(
        &mut self,
        session: &Session,
        at: BlockId,
        word: BlockWord,
    ) -> Result<(), PoolError> {
        let BlockId { server, number } = at;
        let mut problem =
            |why: String| self.problems.push(format!("block {number} of server {server}: {why}"));
        match word.state() {
            Ok(BlockState::Free) => {
                self.states[0] += 1;
                self.free_by_server[server.index()] += 1;
            }
            Ok(BlockState::Carving | BlockState::Owned | BlockState::Recovering) => {
                self.states[1] += 1;
            }
            Ok(BlockState::Orphan) => self.states[2] += 1,
            Ok(BlockState::Damaged) => {
                problem("its header was found damaged; it is left alone".into());
            }
            Err(error) => problem(error.to_string()),
        }
        if !word.state().is_ok_and(BlockState::is_carved) {
            return Ok(());
        }
        let pool = session.pool();
        let shape = pool.geometry().shape();
        let front = session.reliable().buf(shape.map_end() as usize);
        let front = session.reliable().read(pool.geometry().block_addr(at), front).await?;
        let mut runs = match check_front(shape, front.words()) {
            Ok(runs) => runs,
            Err(why) => {
                problem(format!("INV-BLOCK-1: {why}"));
                return Ok(());
            }
        };
        if let Some(local) = pool.alloc().block(at) {
            runs = local.runs().iter().map(|run| run.run).collect();
        }
        let carved = front.words()[(CARVED_AT / 8) as usize];
        self.blocks.insert(at, AuditBlock::new(shape, word, carved, runs));
        Ok(())
    }

    /// The block of the object at `addr`, and the offset there, if one of a known block starts there.
    fn locate(&self, addr: GlobalAddr) -> Option<(BlockId, u64)> {
        let (at, offset) = self.pool.geometry().block_of(addr)?;
        self.blocks.get(&at)?.object_at(offset)?;
        Some((at, offset))
    }

    /// Tells whether the object at `addr` was marked. `None` if nothing can be said: no object starts
    /// there, or the recovery has not claimed its block, so that the object is another's to free.
    ///
    /// An unmarked object of a recovery's audit may be freed by it. No remote operation.
    pub fn is_marked(&self, addr: GlobalAddr) -> Option<bool> {
        if let Some(reached) = self.watched.as_ref().and_then(|watched| watched.get(&addr)) {
            return Some(*reached);
        }
        let (at, offset) = self.pool.geometry().block_of(addr)?;
        let block = self.blocks.get(&at)?;
        let (run, index) = block.object_at(offset)?;
        Some(block.marked(self.pool.geometry().shape(), run, index))
    }

    /// Forgets blocks that are not a recovery's to search.
    pub(crate) fn forget(&mut self, blocks: &[BlockId]) {
        blocks.iter().for_each(|at| {
            self.blocks.remove(at);
        });
    }

    /// The marks of a block's objects ([`mark_word`]), if the block had these runs when the audit began.
    pub(crate) fn marks(&self, at: BlockId, runs: Option<&Vec<Run>>) -> Option<&[u64]> {
        let block = self.blocks.get(&at)?;
        (Some(&block.runs) == runs).then_some(&block.marks)
    }
}

/// Reads a block's current word.
async fn read_word(session: &Session, at: BlockId) -> Result<BlockWord, PoolError> {
    let at = session.pool().geometry().block_word_addr(at);
    Ok(BlockWord(session.reliable().word(at).await?))
}

/// The words of a block table from the block `first` on.
pub(crate) fn block_words(
    first: BlockId,
    words: &[u64],
) -> impl Iterator<Item = (BlockId, BlockWord)> {
    let words = (first.number..).zip(words);
    words.map(move |(number, word)| (BlockId { number, ..first }, BlockWord(*word)))
}

impl Pool {
    /// The words of a server's block table.
    pub(crate) async fn read_block_words(
        &self,
        client: Reliable<'_>,
        server: ServerId,
    ) -> Result<Vec<(BlockId, BlockWord)>, PoolError> {
        let count = self.geometry().block_count(server);
        let mut all = Vec::with_capacity(count as usize);
        for number in (0..count).step_by(SCAN_WORDS as usize) {
            let words = SCAN_WORDS.min(count - number);
            let first = BlockId { server, number };
            let at = self.geometry().block_word_addr(first);
            let table = client.read(at, client.buf(words as usize * 8)).await?;
            all.extend(block_words(first, table.words()));
        }
        Ok(all)
    }

    /// Everything in the retire pages of these clients, each with its client. 1 READ for each on each server.
    pub(crate) async fn read_retired(
        &self,
        client: Reliable<'_>,
        of: impl IntoIterator<Item = u32>,
    ) -> Result<Vec<(u32, GlobalAddr)>, PoolError> {
        let mut all = Vec::new();
        for id in of {
            for server in self.geometry().server_ids() {
                let at = self.geometry().retire_addr(server, id, 0);
                let page = client.read(at, client.buf(RETIRE_BYTES as usize)).await?;
                let words = page.words().iter().filter(|word| **word != 0);
                let addrs = words.map(|word| GlobalAddr::from_word(*word).unwrap_or_default());
                all.extend(addrs.map(|addr| (id, addr)));
            }
        }
        Ok(all)
    }
}
