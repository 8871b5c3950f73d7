//! The member table: joining, and declaring the dead dead.
//!
//! Words of an entry: 0 state ([`MemberWord`]), 1 incarnation, 2 announcement, 3 to 5 address
//! (`address`).
//!
//! INV-MEM-1: the incarnation is set (by CAS from 0) before the state becomes live and cleared
//! after it became free. So a process that dies while it joins or leaves can be proven dead by
//! whoever meets the entry.
//! INV-MEM-2: a state becomes dead only after its incarnation has been fenced on every server, or
//! by the member itself when it leaves something behind and does nothing any more.

use std::sync::atomic::Ordering;

use farleaf_fabric::{Endpoint, Incarnation, OpErrorKind};

use crate::address::ADDRESS_AT;
use crate::canary::Canary;
use crate::geometry::MEMBER_BYTES;
use crate::settle::{Steady, Trial};
use crate::words::{AnnounceWord, MemberState, MemberWord};
use crate::{Geometry, Pool, PoolError};

/// One entry as a READ found it; its words may be of different moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberEntry {
    pub(crate) word: MemberWord,
    pub(crate) incarnation: Incarnation,
    pub(crate) announced: AnnounceWord,
}

/// What joining gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) announced: AnnounceWord,
}

/// The entries in the words of a member table.
pub(crate) fn entries(words: &[u64]) -> impl Iterator<Item = MemberEntry> + '_ {
    words.chunks_exact(MEMBER_BYTES as usize / 8).map(|entry| MemberEntry {
        word: MemberWord(entry[0]),
        incarnation: Incarnation(entry[1]),
        announced: AnnounceWord(entry[2]),
    })
}

/// READs the whole table. 1 round trip.
pub(crate) async fn read_table<E: Endpoint>(
    client: Steady<'_, E>,
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
pub(crate) async fn join<E: Endpoint>(
    client: Steady<'_, E>,
    geometry: &Geometry,
) -> Result<Joined, PoolError> {
    let own = client.endpoint().incarnation();
    for (slot, entry) in read_table(client, geometry).await?.into_iter().enumerate() {
        let slot = slot as u32;
        if entry.word.state()? != MemberState::Free {
            continue;
        }
        let at = geometry.member_addr(slot);
        if entry.incarnation.0 != 0 {
            // Died while joining or leaving: only the incarnation is left.
            if !fence_if_dead(client, entry.incarnation).await? {
                continue;
            }
            // What it had sent before may have arrived since the table was read, and have made it live.
            if client.word(at).await? != entry.word.0 {
                continue;
            }
            client.cas(at.plus(8), entry.incarnation.0, 0).await?;
        }
        let mut trial = Trial::default();
        let found = loop {
            let posting = client.posting();
            match client.client().cas(at.plus(8), 0, own.0).await {
                Ok(found) => break found,
                Err(error) => client.again(&mut trial, posting, error).await?,
            }
        };
        let perhaps = trial.in_doubt() && found == own.0;
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
            return Ok(Joined { slot, generation, announced: idle });
        }
    }
    Err(PoolError::NoSlot("member", geometry.options().members_max as usize))
}

/// How far a generation moves on where another join of this process may try the next one.
fn doubtful_step<E: Endpoint>(client: Steady<'_, E>) -> u32 {
    2 + (client.endpoint().random() & 0xffff) as u32
}

/// Frees the entry of a member that has left nothing behind.
///
/// Cost: 1 chain.
pub(crate) async fn leave<E: Endpoint>(
    client: Steady<'_, E>,
    geometry: &Geometry,
    (slot, generation): (u32, u32),
    (own, address): (Incarnation, u64),
) -> Result<(), PoolError> {
    let at = geometry.member_addr(slot);
    let mut generation = generation;
    let mut trial = Trial::default();
    loop {
        let mut ops = client.client().ops();
        let live = MemberWord::new(MemberState::Live, generation);
        if address != 0 {
            // INV-ADDR-1
            ops.cas(at.plus(ADDRESS_AT), address, 0);
        }
        ops.cas(at, live.0, MemberWord::new(MemberState::Free, generation).0);
        ops.cas(at.plus(8), own.0, 0);
        let posting = client.posting();
        let Err(error) = client.client().chain(ops).await else { return Ok(()) };
        client.again(&mut trial, posting, error).await?;
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

/// Whether that life is dead; then it is fenced on every server.
async fn fence_if_dead<E: Endpoint>(
    client: Steady<'_, E>,
    who: Incarnation,
) -> Result<bool, PoolError> {
    if who == client.endpoint().incarnation() || !client.endpoint().is_dead(who).await {
        return Ok(false);
    }
    if Canary::SkipFence.is_armed() {
        return Ok(true);
    }
    match client.fence_everywhere(who).await {
        Ok(()) => Ok(true),
        Err(error) if error.kind == OpErrorKind::StillAlive => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Pool {
    /// Whether the member in `slot`, seen live with `seen`, is dead; then it is fenced and marked.
    ///
    /// Cost: 1 READ and a look by the fabric; if it is dead, a fence per server and 1 CAS.
    pub(crate) async fn declare_dead<E: Endpoint>(
        &self,
        client: Steady<'_, E>,
        slot: u32,
        seen: MemberWord,
    ) -> Result<bool, PoolError> {
        let at = self.geometry().member_addr(slot);
        // Read after `seen` was: it is the incarnation of that life, or a later one's, and then the
        // CAS fails. The one that was read together with `seen` may be of an earlier life.
        let read = client.read(at.plus(8), client.buf(8)).await?;
        let incarnation = Incarnation(read.words()[0]);
        if incarnation.0 == 0 || !fence_if_dead(client, incarnation).await? {
            return Ok(false);
        }
        let dead = MemberWord::new(MemberState::Dead, seen.generation());
        // If the word has changed, another has marked, or even recovered, this life.
        client.cas(at, seen.0, dead.0).await?;
        self.needs_recovery.store(true, Ordering::Relaxed);
        Ok(true)
    }
}
