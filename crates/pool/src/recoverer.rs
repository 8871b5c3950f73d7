//! Recoverer: lets one member at a time recover the dead of a pool.
//!
//! A recovery pins the epoch while it walks all tables, and waits for everybody to pass it afterwards. So
//! two of them keep each other from ending. A word of the pool (server 0) names the member that recovers.
//!
//! INV-REC-6: a member begins and ends a recovery or a sweep only while the word names its life. It takes the
//! word by CAS if the word is free, or if the life that it names is not live: that one is fenced, or has
//! left. What the holder finds claimed by somebody else was given up, and is the holder's to claim.
//! INV-REC-7: a recovery that could not end leaves the claimed members dead as they were, with their blocks,
//! pages and clients, and the word free. So any member can begin anew, and the one that gave up may leave
//! the pool in order.
//! INV-REC-8: safety does not rest on the word. A member is recovered by the one whose mark stands in its state, and
//! each block by the one whose CAS changed its word, as they were before the word had a meaning.
//!
//! The word is a client's owner word ([`owner_word`]), with a number that each change moves on, so that a late
//! CAS finds another word. Without an owner it is the number alone.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::member::{DUTY_AT, duty_word, read_table, reverted};
use crate::on_drop::OnDrop;
use crate::reliable::Reliable;
use crate::words::{BlockState, MemberState, MemberWord, owner_of, owner_word};
use crate::{Pool, PoolError, Session};

/// Tries to take the word while others change it.
const TAKE_TRIES: u32 = 8;

/// Numbers of a member's recoveries and sweeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryCounts {
    /// Begun: they had something to do, and this member was the pool's recoverer.
    pub begun: u64,
    /// Ended with everything freed.
    pub done: u64,
    /// Given up: what they had found out by walking the tables is thrown away.
    pub in_vain: u64,
    /// Dead members that the completed ones cleared away.
    pub members: u64,
}

/// The same, as they are counted.
#[derive(Debug, Default)]
pub(crate) struct Recoveries {
    pub(crate) begun: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) in_vain: AtomicU64,
    pub(crate) members: AtomicU64,
}

impl Recoveries {
    pub(crate) fn counts(&self) -> RecoveryCounts {
        RecoveryCounts {
            begun: self.begun.load(Ordering::Relaxed),
            done: self.done.load(Ordering::Relaxed),
            in_vain: self.in_vain.load(Ordering::Relaxed),
            members: self.members.load(Ordering::Relaxed),
        }
    }
}

impl Session {
    /// Makes it this member's duty to recover the dead, for as long as it lives: others that see it leave the
    /// dead to it ([`Pool::has_recoverer`]).
    ///
    /// Cost: 1 WRITE.
    ///
    /// # Errors
    /// `Fabric`, `Closed`.
    pub async fn serve_recovery(&self) -> Result<(), PoolError> {
        let pool = self.pool();
        pool.check_open()?;
        let at = pool.geometry().member_addr(pool.member).plus(DUTY_AT);
        let duty = duty_word(pool.generation);
        self.maintenance().write_word(at, duty).await?;
        pool.has_duty.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Finds another member that lives and whose duty it is to recover the dead. One that is dead is declared so.
    ///
    /// Cost: 1 READ of the member table; for each member with the duty, up to the first that lives, 1 READ and a
    /// look by the fabric.
    ///
    /// # Errors
    /// `Fabric`, `Corrupt`, `Closed`.
    pub async fn find_recoverer(&self) -> Result<bool, PoolError> {
        let (pool, client) = (&**self.pool(), self.maintenance());
        pool.check_open()?;
        for (slot, entry) in (0..).zip(read_table(client, pool.geometry()).await?) {
            let may_live = entry.is_recoverer && slot != pool.member;
            if may_live && !pool.declare_dead(client, slot, entry.word).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives up the place of the pool's recoverer if this member has it and no recovery of its is under way:
    /// what a dropped recovery had claimed is left as it was found, for others to recover (INV-REC-7).
    ///
    /// Cost: none if it does not have the place; else 1 READ of the member table, 1 CAS, and 1 CAS for each
    /// claimed member.
    ///
    /// # Errors
    /// `Fabric`, `Corrupt`: try again; a tick does.
    pub async fn recover_give_up(&self) -> Result<(), PoolError> {
        let (pool, client) = (&**self.pool(), self.maintenance());
        if pool.recoverer.load(Ordering::SeqCst) == 0
            || pool.recovering.swap(true, Ordering::SeqCst)
        {
            return Ok(());
        }
        let _over = OnDrop(|| pool.recovering.store(false, Ordering::SeqCst));
        pool.unclaim_members(client).await?;
        pool.release_recoverer(client).await
    }
}

impl Pool {
    /// Makes this member the pool's recoverer; `false` if another that lives is.
    ///
    /// Cost: none if it is already; 1 READ and 1 CAS; if the word names another, 1 READ more, and if that one
    /// is announced live, a look by the fabric and another READ.
    pub(crate) async fn take_recoverer(&self, client: Reliable<'_>) -> Result<bool, PoolError> {
        if self.recoverer.load(Ordering::SeqCst) != 0 {
            return Ok(true);
        }
        let at = self.geometry().recoverer_addr();
        for _ in 0..TAKE_TRIES {
            let word = client.word(at).await?;
            if let Some(holder) = owner_of(word)
                && !self.is_own(word)
                && self.is_recoverer_there(client, holder).await?
            {
                return Ok(false);
            }
            let next = owner_word(self.member, self.generation, (word as u16).wrapping_add(1));
            if client.cas(at, word, next).await? == word {
                self.recoverer.store(next, Ordering::SeqCst);
                return Ok(true);
            }
        }
        // Others have it, one after the other.
        Ok(false)
    }

    /// Tells whether that life is live. One that is not known to be dead is asked after.
    async fn is_recoverer_there(
        &self,
        client: Reliable<'_>,
        (slot, generation): (u32, u32),
    ) -> Result<bool, PoolError> {
        if slot >= self.geometry().options().members_max {
            return Ok(false);
        }
        let word = MemberWord(client.word(self.geometry().member_addr(slot)).await?);
        if word != MemberWord::new(MemberState::Live, generation) {
            return Ok(false);
        }
        Ok(!self.declare_dead(client, slot, word).await?)
    }

    /// Frees the place of the recoverer, which this member has. 1 CAS.
    pub(crate) async fn release_recoverer(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        let held = self.recoverer.load(Ordering::SeqCst);
        if held != 0 {
            let free = u64::from((held as u16).wrapping_add(1));
            client.cas_release(self.geometry().recoverer_addr(), held, free).await?;
            self.recoverer.store(0, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Makes dead again whom this member has claimed and not recovered.
    async fn unclaim_members(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        for (slot, entry) in (0..).zip(read_table(client, self.geometry()).await?) {
            let is_claimed = slot != self.member
                && entry.word.is(MemberState::Recovering)
                && entry.word.recoverer() == (self.member, self.generation & 0x1fff);
            if is_claimed {
                let at = self.geometry().member_addr(slot);
                client.cas(at, entry.word.0, reverted(entry.word).0).await?;
                self.needs_recovery.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Makes orphans again of those that a dropped recovery of this member's had claimed: it leaves in order.
    /// No longer this member's, they are searched by the next recovery or sweep.
    ///
    /// Cost: 1 READ per 64 KiB of block table, 1 CAS for each such block.
    pub(crate) async fn unclaim_orphans(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        for server in self.geometry().server_ids() {
            for (block, word) in self.read_block_words(client, server).await? {
                if word.state()? == BlockState::Recovering && word.owner() == self.member {
                    // No room is promised: an adopter would keep what is lost in it from being found.
                    let at = self.geometry().block_word_addr(block);
                    client.cas(at, word.0, word.orphan(0, 0).0).await?;
                }
            }
        }
        self.recovery_unfinished.store(false, Ordering::SeqCst);
        Ok(())
    }
}
