//! Pool: one member's view of a pool, which its sessions share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_fabric::{
    AnyEndpoint, Client, Counters, Endpoint, GlobalAddr, Incarnation, OpKind, ServerId,
};

use crate::class::class_bytes;
use crate::clients::ClosedClient;
use crate::drops::LeftDrops;
use crate::epoch::Epochs;
use crate::fullness::LastFullness;
use crate::geometry::BlockId;
use crate::inbox::Inbox;
use crate::open_tables::Kept;
use crate::owned_blocks::{Allocator, Bytes};
use crate::pages::MapWord;
use crate::pins::Pins;
use crate::recoverer::{Recoveries, RecoveryCounts};
use crate::reliable::{PATIENCE_NS, Reconnects, Reliable};
use crate::retire::Retirement;
use crate::words::{BlockState, BlockWord, MemberState, MemberWord, SESSION_LEFT, owner_of};
use crate::{Geometry, PoolError, Session, epoch, member, superblock};

/// A word of freed memory: no type, life, length or address of any engine.
const POISON: u64 = u64::MAX;
/// Time for which a member keeps a wholly free block of a class that it does not use.
const UNUSED_NS: u64 = 1_000_000_000;
/// If more than this part of the pool waits for reclamation, sessions help to reclaim it.
const RETIRED_PART: u64 = 16;
/// Time between tries to join a pool whose member table is full: at first, then twice as long each time.
const JOIN_WAIT_NS: u64 = 10_000_000;
const JOIN_WAIT_NS_MAX: u64 = 500_000_000;

/// A member's view of the pool's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of all regions.
    pub pool_bytes: u64,
    /// Bytes of the blocks that this member owns.
    pub block_bytes_owned: u64,
    /// Bytes of objects of those blocks that are in use, or free in a way that is not known here:
    /// retired, or given back by others and not harvested yet. Not of those that it has handed on
    /// ([`Session::hand_on`]).
    pub live_bytes: u64,
    /// Bytes of those blocks that are free for this member to hand out: of objects, and of pages of which each size
    /// may have some.
    pub free_bytes: u64,
    /// Bytes of objects of those blocks that this member's sessions have retired and that are not
    /// reclaimed yet. Part of `live_bytes`.
    pub retired_bytes: u64,
    /// Objects, of any member's blocks, that this member's sessions have retired and that are not reclaimed yet.
    pub retired_objects: u64,
}

/// A pool, as one member (compute server) uses it. Shared by its threads.
#[derive(Debug)]
pub struct Pool {
    geometry: Geometry,
    id: u128,
    /// This member's slot, and which life of the slot it is.
    pub(crate) member: u32,
    pub(crate) generation: u32,
    pub(crate) incarnation: Incarnation,
    /// The first word of the address that it has published; 0 if it has none.
    pub(crate) address_word: AtomicU64,
    /// The word of the region that it has published; 0 if it has none.
    pub(crate) region_word: AtomicU64,
    pub(crate) epochs: Epochs,
    pub(crate) pins: Pins,
    pub(crate) inbox: Inbox,
    pub(crate) last_fullness: LastFullness,
    /// What is freed is overwritten first; see [`Pool::poison_freed`].
    poisons: AtomicBool,
    alloc: Mutex<Allocator>,
    /// Clients of sessions that were dropped, to be freed by a tick.
    closed: Mutex<Vec<ClosedClient>>,
    /// Of the sessions that there are; in front the next that a tick looks at.
    retirements: Mutex<VecDeque<Arc<Retirement>>>,
    /// Per client, the first number of a token that this life of the member made with it.
    pub(crate) token_starts: Box<[AtomicU64]>,
    /// Tokens of the root lock: in use by a session now, left behind by a dropped call.
    pub(crate) root_token: AtomicU64,
    pub(crate) root_leftover: AtomicU64,
    pub(crate) sessions: AtomicUsize,
    pub(crate) session_number: AtomicU16,
    pub(crate) retired_bytes: AtomicU64,
    /// Bytes of all objects that its sessions have retired, as far as the class of their blocks is known.
    pub(crate) waiting_bytes: AtomicU64,
    /// Bytes that may wait before the sessions help.
    waiting_bytes_most: u64,
    /// Time at which it last looked for blocks that nobody uses.
    unused_ns: AtomicU64,
    /// Time of the last tick of a session of this member.
    pub(crate) ticked_ns: AtomicU64,
    pub(crate) needs_recovery: AtomicBool,
    /// A live member whose duty recovery is was there at the last look at all members.
    pub(crate) has_recoverer: AtomicBool,
    /// Recovery is this member's duty.
    pub(crate) has_duty: AtomicBool,
    /// Clients that leaving members left were there at the last look (`left`).
    pub(crate) has_left_clients: AtomicBool,
    /// It is not known whether a left client has become this member's.
    pub(crate) is_adopting: AtomicBool,
    /// A recovery of this member's is under way.
    pub(crate) recovering: AtomicBool,
    /// It has begun to clear what only it knows of, and must end.
    pub(crate) ending_recovery: AtomicBool,
    /// The pool's recoverer word while this member holds it; else 0.
    pub(crate) recoverer: AtomicU64,
    pub(crate) recoveries: Recoveries,
    /// One was dropped that had claimed orphans, or has inherited: they are claimed still.
    pub(crate) recovery_unfinished: AtomicBool,
    /// The life that this slot had before is still to be recovered (INV-MEM-3).
    pub(crate) inherits: AtomicBool,
    left: AtomicBool,
    /// Lines of the threads that have had a session, by their counters.
    lines: Mutex<Vec<(Arc<Counters>, Arc<Reconnects>)>>,
    pub(crate) kept: Kept,
    pub(crate) left_drops: LeftDrops,
}

impl Pool {
    /// Checks that every server is formatted and part of one pool, and becomes a member.
    ///
    /// If no slot is free, it succeeds to a dead member, whose recovery is then this one's to do
    /// ([`Pool::needs_recovery`]).
    ///
    /// Cost: 1 READ per server, 3 READs, 3 CAS. If no slot is free besides 4 READs, 2 CAS, per member 1 READ
    /// and a look by the fabric, and 1 READ per 64 KiB of block table.
    ///
    /// # Errors
    /// `Format` with the server and what to do, `NoSlot` if all member slots are taken by members that are
    /// not known to be dead, `Fabric`.
    pub async fn join(client: &Client) -> Result<Arc<Pool>, PoolError> {
        let lines = Arc::new(Reconnects::new(client.endpoint().server_count()));
        let reliable = Reliable::new(client, &lines, PATIENCE_NS);
        let (geometry, id) = superblock::open(reliable).await?;
        // Before the first pin, which would hold the epoch of the pool's beginning.
        let epoch = reliable.word(geometry.epoch_addr()).await?;
        epoch::check(epoch)?;
        let joined = member::join(reliable, &geometry).await?;
        let clients = geometry.options().clients_max;
        let pool = Arc::new(Pool {
            member: joined.slot,
            generation: joined.generation,
            incarnation: client.endpoint().incarnation(),
            address_word: AtomicU64::new(0),
            region_word: AtomicU64::new(0),
            epochs: Epochs::new(joined.announced, geometry.options().members_max, epoch),
            pins: Pins::new(clients),
            inbox: Inbox::default(),
            last_fullness: LastFullness::default(),
            poisons: AtomicBool::new(false),
            alloc: Mutex::new(Allocator::new(
                &geometry,
                joined.slot as usize + joined.generation as usize,
            )),
            closed: Mutex::default(),
            retirements: Mutex::default(),
            token_starts: (0..clients).map(|_| AtomicU64::new(u64::MAX)).collect(),
            root_token: AtomicU64::new(0),
            root_leftover: AtomicU64::new(0),
            sessions: AtomicUsize::new(0),
            session_number: AtomicU16::new(0),
            retired_bytes: AtomicU64::new(0),
            waiting_bytes: AtomicU64::new(0),
            waiting_bytes_most: usable_bytes(&geometry) / RETIRED_PART,
            unused_ns: AtomicU64::new(client.endpoint().now_ns()),
            ticked_ns: AtomicU64::new(0),
            needs_recovery: AtomicBool::new(false),
            has_recoverer: AtomicBool::new(false),
            has_duty: AtomicBool::new(false),
            has_left_clients: AtomicBool::new(false),
            is_adopting: AtomicBool::new(false),
            recovering: AtomicBool::new(false),
            ending_recovery: AtomicBool::new(false),
            recoverer: AtomicU64::new(0),
            recoveries: Recoveries::default(),
            recovery_unfinished: AtomicBool::new(false),
            inherits: AtomicBool::new(false),
            left: AtomicBool::new(false),
            lines: Mutex::new(vec![(Arc::clone(client.endpoint().counters()), Arc::clone(&lines))]),
            kept: Kept::default(),
            left_drops: LeftDrops::default(),
            geometry,
            id,
        });
        if joined.inherits
            && let Err(error) = pool.inherit(reliable).await
        {
            // Others recover both lives then. If they cannot be told, they find out when this process ends.
            let _ = pool.die(reliable).await;
            return Err(error);
        }
        Ok(pool)
    }

    /// As [`Pool::join`], but if every member slot is taken by a member that is not known to be dead, tries
    /// again for `patience_ns`: until one has left, or its lease has run out.
    ///
    /// # Errors
    /// As [`Pool::join`].
    pub async fn join_within(client: &Client, patience_ns: u64) -> Result<Arc<Pool>, PoolError> {
        let from_ns = client.endpoint().now_ns();
        let mut wait_ns = JOIN_WAIT_NS;
        loop {
            let joined = Pool::join(client).await;
            let waited_ns = client.endpoint().now_ns().saturating_sub(from_ns);
            let is_full = matches!(joined, Err(PoolError::NoSlot("member", _)));
            if !is_full || waited_ns >= patience_ns {
                return joined;
            }
            // Openers that have failed together do not come back together.
            let spread_ns = client.endpoint().random() % wait_ns;
            let left_ns = patience_ns - waited_ns;
            client.endpoint().sleep((wait_ns / 2 + spread_ns).min(left_ns).max(1)).await;
            wait_ns = (wait_ns * 2).min(JOIN_WAIT_NS_MAX);
        }
    }

    /// Marks this member as dead, which does nothing any more. 1 CAS.
    pub(crate) async fn die(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        let at = self.geometry().member_addr(self.member);
        let live = MemberWord::new(MemberState::Live, self.generation);
        let dead = MemberWord::new(MemberState::Dead, self.generation);
        client.cas_release(at, live.0, dead.0).await?;
        Ok(())
    }

    /// A session for one coroutine on `endpoint`'s thread.
    ///
    /// Cost: 1 READ of 64 entries of the client table (as many again as before for each more, if none of
    /// them is free), 1 CAS, 1 chain, and a chain more if another member had the client before.
    ///
    /// # Errors
    /// `NoSlot` if all clients are taken, `Closed`, `Fabric`.
    pub async fn session(self: &Arc<Self>, endpoint: AnyEndpoint) -> Result<Session, PoolError> {
        self.session_leaving(endpoint, 0).await
    }

    /// As [`Pool::session`], but takes none of the last `kept` clients: those are for members that recover
    /// the dead, who hold the clients that they had until then.
    ///
    /// # Errors
    /// As [`Pool::session`]; `NoSlot` also if only those are free.
    pub async fn session_leaving(
        self: &Arc<Self>,
        endpoint: AnyEndpoint,
        kept: u32,
    ) -> Result<Session, PoolError> {
        self.check_open()?;
        let endpoint_counters = Arc::clone(endpoint.counters());
        let client = Client::new(endpoint);
        client.charge_to(OpKind::Maintenance);
        let lines = self.lines_of(&endpoint_counters);
        let claimed = self.claim_client(Reliable::new(&client, &lines, PATIENCE_NS), kept).await?;
        client.charge_to(OpKind::Other);
        Ok(Session::new(self, client, lines, claimed))
    }

    /// The reconnects of the thread with those counters.
    fn lines_of(&self, counters: &Arc<Counters>) -> Arc<Reconnects> {
        let mut all = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, lines)) = all.iter().find(|(of, _)| Arc::ptr_eq(of, counters)) {
            return Arc::clone(lines);
        }
        // The one that joined is always there.
        let lines = Arc::new(match all.first() {
            Some((_, first)) => first.of_another_thread(),
            None => Reconnects::new(self.geometry().servers()),
        });
        all.push((Arc::clone(counters), Arc::clone(&lines)));
        lines
    }

    /// The number that this pool was given when it was formatted, and no other has.
    pub fn id(&self) -> u128 {
        self.id
    }

    /// Returns the places of all areas.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns this member's view of the pool's memory. No remote operation.
    pub fn memory(&self) -> MemoryUse {
        let Bytes { owned, used, free } = self.alloc().bytes();
        MemoryUse {
            pool_bytes: self.geometry.pool_bytes(),
            block_bytes_owned: owned,
            live_bytes: used,
            free_bytes: free,
            retired_bytes: self.retired_bytes.load(Ordering::Relaxed),
            retired_objects: self.all_retirements().iter().map(|of| of.lock().len() as u64).sum(),
        }
    }

    /// This member's slot in the pool's member table.
    pub fn member(&self) -> u32 {
        self.member
    }

    /// The number that tells this life of the member's slot from the lives before and after.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Tells whether the last tick saw a dead member that nobody is recovering, or a recovery of this
    /// member's was not completed: then [`Session::recover_begin`] has something to do.
    pub fn needs_recovery(&self) -> bool {
        self.needs_recovery.load(Ordering::Relaxed)
            || self.recovery_unfinished.load(Ordering::Relaxed)
    }

    /// Tells whether the last look at all members found a live one whose duty it is to recover the dead
    /// ([`Session::serve_recovery`]). Others leave the dead to it.
    pub fn has_recoverer(&self) -> bool {
        self.has_recoverer.load(Ordering::Relaxed)
    }

    /// Tells whether a recovery of this member's has begun to clear what only it knows of. It is not to be
    /// dropped then; it waits for no other member any more.
    pub fn is_ending_recovery(&self) -> bool {
        self.ending_recovery.load(Ordering::SeqCst)
    }

    /// Counts this member's recoveries.
    pub fn recovery_counts(&self) -> RecoveryCounts {
        self.recoveries.counts()
    }

    /// The number of the next session of this life.
    pub(crate) fn next_session_number(&self) -> u16 {
        loop {
            let number = self.session_number.fetch_add(1, Ordering::Relaxed);
            if number != SESSION_LEFT {
                return number;
            }
        }
    }

    /// Open sessions of this member.
    pub fn sessions(&self) -> usize {
        self.sessions.load(Ordering::SeqCst)
    }

    pub(crate) fn alloc(&self) -> MutexGuard<'_, Allocator> {
        self.alloc.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place for a new session's retired objects.
    pub(crate) fn new_retirement(&self, client: u32) -> Arc<Retirement> {
        let retirement = Retirement::new(client, self.geometry().servers());
        self.retirements().push_back(Arc::clone(&retirement));
        retirement
    }

    /// The session of these has ended.
    pub(crate) fn forget_retirement(&self, ended: &Arc<Retirement>) {
        self.retirements().retain(|retirement| !Arc::ptr_eq(retirement, ended));
    }

    /// Some session's retired objects, all of them in turn.
    pub(crate) fn next_retirement(&self) -> Option<Arc<Retirement>> {
        let mut all = self.retirements();
        let next = all.pop_front()?;
        all.push_back(Arc::clone(&next));
        Some(next)
    }

    /// Retired objects of all clients of this member, also of those whose sessions have ended.
    pub(crate) fn all_retirements(&self) -> Vec<Arc<Retirement>> {
        let closed = self.closed().iter().map(|closed| Arc::clone(&closed.retired)).collect();
        [Vec::from(self.retirements().clone()), closed].concat()
    }

    /// Objects that this member has retired and not announced.
    pub(crate) fn unannounced(&self) -> Vec<GlobalAddr> {
        let all = self.all_retirements();
        all.iter().flat_map(|of| of.lock().unannounced().collect::<Vec<_>>()).collect()
    }

    /// From now on this member overwrites what it frees with words that no engine takes for its own: all
    /// ones, so that a read of freed memory shows. For tests; 1 WRITE more for each object that is
    /// retired, or found lost.
    pub fn poison_freed(&self) {
        self.poisons.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_poisoning(&self) -> bool {
        self.poisons.load(Ordering::SeqCst)
    }

    /// Overwrites objects that are about to be free, if it is asked for.
    pub(crate) async fn poison(
        &self,
        client: Reliable<'_>,
        objects: &[GlobalAddr],
    ) -> Result<(), PoolError> {
        if !self.is_poisoning() || objects.is_empty() {
            return Ok(());
        }
        let mut ops = client.client().ops();
        for addr in objects {
            let (block, page, _) = self.page_of(*addr)?;
            let word = MapWord(client.word(self.map_addr(block, page)).await?);
            if let Some((class, _)) = word.run_at(page, self.geometry().shape()) {
                let mut content = client.buf(class_bytes(class) as usize);
                content.words_mut().fill(POISON);
                ops.write(*addr, content);
            }
        }
        client.post_many(ops).await?;
        Ok(())
    }

    fn retirements(&self) -> MutexGuard<'_, VecDeque<Arc<Retirement>>> {
        self.retirements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whether so many bytes wait for reclamation that sessions must help before they retire more.
    pub(crate) fn retires_much(&self) -> bool {
        self.waiting_bytes.load(Ordering::Relaxed) > self.waiting_bytes_most
    }

    /// Notes the free blocks of a server whose block table was read.
    pub(crate) fn note_free_blocks(&self, server: ServerId, table: &[(BlockId, BlockWord)]) {
        let free = table.iter().filter(|(_, word)| word.is(BlockState::Free)).count();
        self.alloc().note_free_blocks(server, free as u32);
    }

    /// Tells once a second that it is time to look for blocks that nobody uses.
    pub(crate) fn is_tidying_due(&self, now_ns: u64) -> bool {
        let is_due = now_ns.saturating_sub(self.unused_ns.load(Ordering::Relaxed)) >= UNUSED_NS;
        if is_due {
            self.unused_ns.store(now_ns, Ordering::Relaxed);
        }
        is_due
    }

    /// Tells whether this member has retired objects that are not free yet.
    pub(crate) fn has_retired(&self) -> bool {
        self.retired_bytes.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn closed(&self) -> MutexGuard<'_, Vec<ClosedClient>> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_open(&self) -> Result<(), PoolError> {
        if self.left.load(Ordering::SeqCst) { Err(PoolError::Closed) } else { Ok(()) }
    }

    pub(crate) fn close(&self) {
        self.left.store(true, Ordering::SeqCst);
    }

    /// Tells whether a client's owner word names this life of this member.
    pub(crate) fn is_own(&self, owner: u64) -> bool {
        owner_of(owner) == Some((self.member, self.generation))
    }
}

/// Bytes of all blocks of the pool.
fn usable_bytes(geometry: &Geometry) -> u64 {
    let blocks = geometry.server_ids().map(|server| u64::from(geometry.block_count(server)));
    blocks.sum::<u64>() * geometry.options().block_bytes
}
