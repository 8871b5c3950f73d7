//! Member table: lets compute servers join, and declares dead members dead.
//!
//! Words of an entry: 0 state ([`MemberWord`]), 1 incarnation, 2 announcement, 3 to 5 address and 6 region
//! (`address`), 7 duty: the generation of the life that recovers the dead, and bit 63.
//!
//! INV-MEM-1: the incarnation is set (by CAS from 0) before the state becomes live and cleared after it
//! became free. So any member that meets the entry can prove a process dead that died while it joined
//! or left.
//! INV-MEM-2: a state becomes dead only after its incarnation has been fenced on every server, or
//! by the member itself when it leaves something behind and does nothing any more.
//! INV-MEM-3: if all entries are taken, a new member *succeeds to* one whose life is dead. The slot
//! goes from dead to live without having been free, so that the dead, as many as they are, keep nobody
//! from the pool. The successor recovers the former life. It claims that life's blocks before it hands
//! anything out, as after a dropped recovery of its own. The former clients name another generation of
//! the slot, and the former tokens are of no client of this life. If several members try to succeed to
//! one slot, the winner is the one whose mark (recovering, by the slot itself and a drawn number)
//! stands in the state. The winner then sets its incarnation, so that others can also prove a successor
//! dead that died on the way.
//! INV-MEM-4: a fence cuts the dead off from every memory server, *then* READs which members expose regions,
//! attaches those, and fences there (F11.8). The dead learn of no further region after the first step, so
//! that the table names all that they can know. In the other order a region that appears in between would
//! keep letting them in.

use std::sync::atomic::Ordering;

use farleaf_fabric::{Endpoint, Incarnation, OpError, OpErrorKind};

use crate::address::{ADDRESS_AT, Published, read_members};
use crate::geometry::MEMBER_BYTES;
use crate::reliable::{Reliable, Tries};
use crate::words::{AnnounceWord, BlockState, MemberState, MemberWord};
use crate::{Geometry, Pool, PoolError};

farleaf_fabric::canaries! {
    pub SKIP_FENCE = "skip-fence", "the dead are not cut off before their locks are taken over";
    pub MEMBERS_BEFORE_FENCE = "members-before-fence",
        "the member table is read before the fence at memory servers";
}

/// One entry as a READ found it; its words may be of different moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberEntry {
    pub(crate) word: MemberWord,
    pub(crate) incarnation: Incarnation,
    pub(crate) announced: AnnounceWord,
    /// It lives, and recovers the dead as its duty ([`crate::Session::serve_recovery`]).
    pub(crate) is_recoverer: bool,
}

/// Offset of the duty word in an entry.
pub(crate) const DUTY_AT: u64 = 56;

/// The duty word of a life that recovers the dead. One of another generation says nothing, so it is never cleared.
pub(crate) fn duty_word(generation: u32) -> u64 {
    1 << 63 | u64::from(generation)
}

/// The word of a claimed life that is dead as before.
pub(crate) fn reverted(word: MemberWord) -> MemberWord {
    MemberWord::new(MemberState::Dead, word.generation())
}

/// Result of joining.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) announced: AnnounceWord,
    /// There was a life before that is to be recovered (INV-MEM-3).
    pub(crate) inherits: bool,
}

/// The entries in the words of a member table.
pub(crate) fn entries(words: &[u64]) -> impl Iterator<Item = MemberEntry> + '_ {
    words.chunks_exact(MEMBER_BYTES as usize / 8).map(|entry| MemberEntry {
        word: MemberWord(entry[0]),
        incarnation: Incarnation(entry[1]),
        announced: AnnounceWord(entry[2]),
        is_recoverer: MemberWord(entry[0]).is(MemberState::Live)
            && entry[7] == duty_word(MemberWord(entry[0]).generation()),
    })
}

/// READs the whole table. 1 round trip.
pub(crate) async fn read_table(
    client: Reliable<'_>,
    geometry: &Geometry,
) -> Result<Vec<MemberEntry>, PoolError> {
    let bytes = geometry.options().members_max as usize * MEMBER_BYTES as usize;
    let table = client.read(geometry.member_addr(0), client.buf(bytes)).await?;
    Ok(entries(table.words()).collect())
}

/// Takes a free entry and makes it live, announced as idle.
///
/// A process that joins twice writes the same incarnation twice. So an entry whose incarnation was
/// taken by a CAS that had to be repeated may be another join's of this process: the state decides,
/// and whoever finds it changed goes on to the next entry. The generation that such a doubtful one
/// tries is drawn, so that no other join's is the same.
pub(crate) async fn join(client: Reliable<'_>, geometry: &Geometry) -> Result<Joined, PoolError> {
    let own = client.endpoint().incarnation();
    for (slot, entry) in read_table(client, geometry).await?.into_iter().enumerate() {
        let slot = slot as u32;
        if entry.word.state()? != MemberState::Free {
            continue;
        }
        let at = geometry.member_addr(slot);
        if entry.incarnation.0 != 0 {
            // Died while joining or leaving: only the incarnation is left.
            if !fence_if_dead(client, geometry, entry.incarnation).await? {
                continue;
            }
            // What it had sent before may have arrived since the table was read, and have made it live.
            if client.word(at).await? != entry.word.0 {
                continue;
            }
            client.cas(at.plus(8), entry.incarnation.0, 0).await?;
        }
        let mut tries = Tries::default();
        let found = loop {
            let mark = client.post_mark();
            match client.client().cas(at.plus(8), 0, own.0).await {
                Ok(found) => break found,
                Err(error) => client.again(&mut tries, mark, error).await?,
            }
        };
        let perhaps = tries.in_doubt() && found == own.0;
        if found != 0 && !perhaps {
            continue;
        }
        let read = client.read(at, client.buf(24)).await?;
        let (word, announced) = (MemberWord(read.words()[0]), AnnounceWord(read.words()[2]));
        if !word.is(MemberState::Free) {
            // Another join of this process has it, or one that left and does not know it has: what takes
            // an entry in doubt moves its generation on by more than one.
            let is_drawn = word.generation() != entry.word.generation().wrapping_add(1);
            if perhaps || is_drawn {
                continue;
            }
            let what = format!("member {slot} has no incarnation but state {:#x}", word.0);
            return Err(PoolError::Corrupt(what));
        }
        let idle = announced.next_idle();
        let step = if perhaps { doubtful_step(client) } else { 1 };
        let generation = word.generation().wrapping_add(step);
        let live = MemberWord::new(MemberState::Live, generation);
        let (ops, again) = client
            .chain(|ops| {
                ops.cas(at.plus(16), announced.0, idle.0);
                ops.cas(at, word.0, live.0);
            })
            .await?;
        if ops.old(1) == word.0 || again && ops.old(1) == live.0 {
            // Announcements are nobody's but the member's: a repeated one is in place.
            return Ok(Joined { slot, generation, announced: idle, inherits: false });
        }
    }
    succeed(client, geometry).await
}

/// Takes the entry of a dead member, as none is free (INV-MEM-3).
///
/// Cost: 2 READs of the table; per live member 1 READ and a look by the fabric, and if it is dead a fence
/// per server and 1 CAS; for the entry 2 READs, 2 CAS and 1 chain.
async fn succeed(client: Reliable<'_>, geometry: &Geometry) -> Result<Joined, PoolError> {
    for (slot, entry) in (0..).zip(read_table(client, geometry).await?) {
        if entry.word.state()? == MemberState::Live {
            mark_dead(client, geometry, slot, entry.word).await?;
        }
    }
    let table = read_table(client, geometry).await?;
    for (slot, entry) in (0..).zip(&table) {
        let is_left = is_left(client, geometry, (slot, entry.word), &table, false).await?;
        if is_left && let Some(joined) = succeed_to(client, geometry, slot, entry.word).await? {
            return Ok(joined);
        }
    }
    Err(PoolError::NoSlot("member", geometry.options().members_max as usize))
}

/// Takes the entry in `slot`, whose life is dead; `None` if another is quicker: to succeed to it, or to
/// recover it.
async fn succeed_to(
    client: Reliable<'_>,
    geometry: &Geometry,
    slot: u32,
    seen: MemberWord,
) -> Result<Option<Joined>, PoolError> {
    let (at, own) = (geometry.member_addr(slot), client.endpoint().incarnation());
    let mark = seen.recovering(slot, client.endpoint().random() as u32);
    if client.cas(at, seen.0, mark.0).await? != seen.0 {
        return Ok(None);
    }
    let before = client.word(at.plus(8)).await?;
    if client.cas(at.plus(8), before, own.0).await? != before {
        return Ok(None);
    }
    let read = client.read(at, client.buf(Published::bytes(client))).await?;
    let announced = AnnounceWord(read.words()[2]);
    let Published { address, region } = Published::of_entry(read.words());
    let (idle, generation) = (announced.next_idle(), seen.generation().wrapping_add(1));
    let live = MemberWord::new(MemberState::Live, generation);
    let (ops, again) = client
        .chain(|ops| {
            ops.cas(at.plus(16), announced.0, idle.0);
            // INV-ADDR-1
            ops.cas(at.plus(ADDRESS_AT), address, 0);
            Published { address: 0, region }.clear(at, ops);
            ops.cas(at, mark.0, live.0);
        })
        .await?;
    let found = ops.old(ops.len() - 1);
    if found == mark.0 || again && found == live.0 {
        return Ok(Some(Joined { slot, generation, announced: idle, inherits: true }));
    }
    // A recoverer has taken it before the incarnation was set. It clears the entry without.
    client.cas_release(at.plus(8), own.0, 0).await?;
    Ok(None)
}

/// Tells whether the life in `slot` is dead, and nobody who lives recovers it or succeeds to it. For the pool's
/// recoverer nobody else recovers it (INV-REC-6).
///
/// Cost: if the word is the mark of a successor, 1 READ, a look by the fabric and a fence per server.
pub(crate) async fn is_left(
    client: Reliable<'_>,
    geometry: &Geometry,
    (slot, word): (u32, MemberWord),
    table: &[MemberEntry],
    is_recoverer: bool,
) -> Result<bool, PoolError> {
    let recoverer = word.recoverer();
    Ok(match word.state()? {
        MemberState::Dead => true,
        MemberState::Recovering if recoverer.0 == slot => {
            let successor = client.word(geometry.member_addr(slot).plus(8)).await?;
            fence_if_dead(client, geometry, Incarnation(successor)).await?
        }
        MemberState::Recovering => is_recoverer || !is_there(table.iter().copied(), recoverer),
        MemberState::Free | MemberState::Live => false,
    })
}

/// Tells whether the recoverer that a word names, by slot and low bits of its generation, is a live member.
pub(crate) fn is_there(
    mut table: impl Iterator<Item = MemberEntry>,
    (slot, generation): (u32, u32),
) -> bool {
    table.nth(slot as usize).is_some_and(|recoverer| {
        recoverer.word.is(MemberState::Live) && recoverer.word.generation() & 0x1fff == generation
    })
}

/// Step of a generation if another join of this process may try the next one.
fn doubtful_step(client: Reliable<'_>) -> u32 {
    2 + (client.endpoint().random() & 0xffff) as u32
}

/// Frees the entry of a member that has left nothing behind.
///
/// Cost: 1 chain.
pub(crate) async fn leave(
    client: Reliable<'_>,
    geometry: &Geometry,
    (slot, generation): (u32, u32),
    (own, published): (Incarnation, Published),
) -> Result<(), PoolError> {
    let at = geometry.member_addr(slot);
    let mut generation = generation;
    let mut tries = Tries::default();
    loop {
        let mut ops = client.client().ops();
        let live = MemberWord::new(MemberState::Live, generation);
        published.clear(at, &mut ops);
        ops.cas(at, live.0, MemberWord::new(MemberState::Free, generation).0);
        ops.cas(at.plus(8), own.0, 0);
        let mark = client.post_mark();
        let Err(error) = client.client().chain(ops).await else { return Ok(()) };
        client.again(&mut tries, mark, error).await?;
        let entry = client.read(at, client.buf(16)).await?;
        let free = MemberWord::new(MemberState::Free, generation);
        let (word, incarnation) = (MemberWord(entry.words()[0]), entry.words()[1]);
        if word == live {
            continue;
        }
        if word != free || incarnation != own.0 {
            return Ok(());
        }
        // Either the incarnation is still to be cleared, or another join of this process has just
        // taken the entry. Taking it back by its state decides which.
        generation = generation.wrapping_add(doubtful_step(client));
        let live = MemberWord::new(MemberState::Live, generation);
        if client.cas(at, free.0, live.0).await? != free.0 {
            return Ok(());
        }
    }
}

/// Cuts off a dead life from all memory (INV-MEM-4).
///
/// Cost: a fence per memory server and per attached compute server; 1 READ of the table if compute servers may
/// expose memory.
pub(crate) async fn fence(
    client: Reliable<'_>,
    geometry: &Geometry,
    who: Incarnation,
) -> Result<(), PoolError> {
    let (mut tries, mut mark) = (Tries::default(), client.post_mark());
    loop {
        match fence_once(client, geometry, who).await {
            // It needs no reconnect, since it may arrive twice.
            Err(PoolError::Fabric(error)) if error.server.is_compute() => {
                client.fence_again(&mut tries, error).await?;
            }
            Err(PoolError::Fabric(error)) => client.again(&mut tries, mark, error).await?,
            ended => return ended,
        }
        mark = client.post_mark();
    }
}

async fn fence_once(
    client: Reliable<'_>,
    geometry: &Geometry,
    who: Incarnation,
) -> Result<(), PoolError> {
    let is_wrong_way_round = MEMBERS_BEFORE_FENCE.is_armed();
    if is_wrong_way_round {
        attach_regions(client, geometry).await?;
    }
    client.client().fence_memory(who).await?;
    if !is_wrong_way_round {
        attach_regions(client, geometry).await?;
    }
    Ok(client.client().fence_peers(who).await?)
}

/// Attaches every live member that exposes a region.
async fn attach_regions(client: Reliable<'_>, geometry: &Geometry) -> Result<(), PoolError> {
    let endpoint = client.endpoint();
    if !endpoint.may_meet_regions() {
        return Ok(());
    }
    for member in read_members(client, geometry).await? {
        let peer = member.peer();
        let is_own = peer.incarnation == endpoint.incarnation();
        if peer.region_bytes == 0 || is_own || endpoint.peer_of(peer.incarnation) == Some(peer) {
            continue;
        }
        // Nobody can go there without the address that is missing.
        if endpoint.attach(peer).is_err() {
            let error = OpError { server: peer.server, kind: OpErrorKind::Unavailable };
            return Err(error.into());
        }
    }
    Ok(())
}

/// Tells whether that life is dead; then it is fenced on every server.
async fn fence_if_dead(
    client: Reliable<'_>,
    geometry: &Geometry,
    who: Incarnation,
) -> Result<bool, PoolError> {
    if who == client.endpoint().incarnation() || !client.endpoint().is_dead(who).await {
        return Ok(false);
    }
    if SKIP_FENCE.is_armed() {
        return Ok(true);
    }
    match fence(client, geometry, who).await {
        Ok(()) => Ok(true),
        Err(PoolError::Fabric(error)) if error.kind == OpErrorKind::StillAlive => Ok(false),
        Err(error) => Err(error),
    }
}

/// Tells whether the member in `slot`, seen live with `seen`, is dead; then it is fenced and marked.
///
/// Cost: 1 READ and a look by the fabric; if it is dead, a fence per server and 1 CAS.
async fn mark_dead(
    client: Reliable<'_>,
    geometry: &Geometry,
    slot: u32,
    seen: MemberWord,
) -> Result<bool, PoolError> {
    let at = geometry.member_addr(slot);
    // Read after `seen` was: it is the incarnation of that life, or a later one's, and then the
    // CAS fails. The one that was read together with `seen` may be of an earlier life.
    let incarnation = Incarnation(client.word(at.plus(8)).await?);
    if incarnation.0 == 0 || !fence_if_dead(client, geometry, incarnation).await? {
        return Ok(false);
    }
    let dead = MemberWord::new(MemberState::Dead, seen.generation());
    // If the word has changed, another has marked, or even recovered, this life.
    client.cas(at, seen.0, dead.0).await?;
    Ok(true)
}

impl Pool {
    /// As [`mark_dead`]; then there is somebody to recover.
    pub(crate) async fn declare_dead(
        &self,
        client: Reliable<'_>,
        slot: u32,
        seen: MemberWord,
    ) -> Result<bool, PoolError> {
        let is_dead = mark_dead(client, self.geometry(), slot, seen).await?;
        self.needs_recovery.fetch_or(is_dead, Ordering::Relaxed);
        Ok(is_dead)
    }

    /// Claims the blocks that the slot's life before had, before this one hands out anything of its own,
    /// and leaves the rest to a recovery (INV-MEM-3).
    ///
    /// Cost: 1 READ per 64 KiB of block table, 1 CAS for each such block.
    pub(crate) async fn inherit(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        self.inherits.store(true, Ordering::SeqCst);
        self.recovery_unfinished.store(true, Ordering::SeqCst);
        self.close_inbox_of(client, self.member).await?;
        for server in self.geometry().server_ids() {
            for (block, word) in self.read_block_words(client, server).await? {
                let next = match word.state()? {
                    BlockState::Owned => word.next(BlockState::Recovering, self.member),
                    BlockState::Carving => word.next(BlockState::Free, 0),
                    _ => continue,
                };
                if word.owner() == self.member {
                    let at = self.geometry().block_word_addr(block);
                    client.cas(at, word.0, next.0).await?;
                }
            }
        }
        Ok(())
    }
}
