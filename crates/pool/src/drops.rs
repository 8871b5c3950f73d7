//! Dropped tables: free a table's objects in steps, which another member can take over.
//!
//! A table has more objects than the retire pages hold. So the dropper frees it in steps, from the last
//! object of the engine's walk to the first. The root entry stays until the end, without a name. Word
//! 30 counts the objects that are left, or is all ones before the count. Word 31 is a lock token of the
//! dropper.
//!
//! INV-DROP-1: the objects within the count of word 30 are whole and reachable from the root: recovery
//! marks them. Lowering the count is the unlinking. Before it, the dropper announces the objects of
//! others' blocks, so that none is lost with it.
//! INV-DROP-2: only the session of word 31 lowers the count and retires the objects. So recovery may free
//! those that the dropper has announced and that are no longer reachable.
//! INV-DROP-3: another member's session takes over a drop only after the entry of the member in word 31 is
//! clear, and with it that member's retire pages. Before that, an object could stand in two pages, and
//! the older word could outlive its reuse.
//! INV-DROP-4: a session that waits no longer for room leaves the drop to its member, having announced nothing that the
//! count still covers. Another session of the member goes on, once it has put its own token into word 31.

use std::sync::{Mutex, PoisonError};

use farleaf_fabric::GlobalAddr;

use crate::retire::Retiring;
use crate::root::{DROPPING, FREE, LEFT_WORD, OWNER_WORD};
use crate::words::{MemberState, MemberWord, owner_of};
use crate::{Pool, PoolError, Root, Session};

/// Words of a root entry that tell of a drop.
pub(crate) const UNCOUNTED: u64 = u64::MAX;

/// A table that is being dropped, as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropping {
    /// Its former root entry.
    pub root: Root,
    /// Number of its objects that are left, in the order of the engine's walk; `None` for all.
    pub left: Option<u64>,
    /// The entry's state word.
    pub(crate) state: u64,
    /// Word 31.
    pub(crate) owner: u64,
}

/// A drop that its session has left to the member (INV-DROP-4).
#[derive(Debug)]
pub struct LeftDrop {
    /// The drop.
    pub of: Dropping,
    /// The objects of the table that are left, in the order of the engine's walk.
    pub objects: Vec<GlobalAddr>,
}

/// Drops that sessions of this member have left to it.
#[derive(Debug, Default)]
pub(crate) struct LeftDrops(Mutex<Vec<LeftDrop>>);

impl Pool {
    /// Leaves a drop to whichever session of this member takes it with [`Pool::take_left_drop`].
    pub fn leave_drop(&self, left: LeftDrop) {
        self.left_drops.0.lock().unwrap_or_else(PoisonError::into_inner).push(left);
    }

    /// Takes a drop that a session of this member has left. No remote operation.
    pub fn take_left_drop(&self) -> Option<LeftDrop> {
        self.left_drops.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Returns whether there is such a drop.
    pub fn has_left_drops(&self) -> bool {
        !self.left_drops.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl Dropping {
    /// The lock token of the session that drops it.
    pub fn owner(&self) -> u64 {
        self.owner
    }
}

impl Session {
    /// Takes over a drop whose compute server has died and been recovered, or has left. `None` if it
    /// is not to be had: its owner lives, is still to be recovered, or somebody else was quicker.
    ///
    /// Cost: 1 chain (2 READs), 5 CAS, 1 READ.
    ///
    /// # Errors
    /// `Busy`, `Fabric`: nothing was done, or the drop is this session's and stays so until its member
    /// has left.
    pub async fn adopt_drop(&self, of: &Dropping) -> Result<Option<Dropping>, PoolError> {
        if !self.is_forgotten(of.owner).await? {
            return Ok(None);
        }
        self.take_drop(of).await
    }

    /// Goes on with a drop that another session of this member has left ([`Pool::take_left_drop`]). `None` if it has
    /// been ended, or taken over, meanwhile.
    ///
    /// Cost: 5 CAS, 2 READs.
    ///
    /// # Errors
    /// As [`Session::adopt_drop`].
    pub async fn take_drop(&self, of: &Dropping) -> Result<Option<Dropping>, PoolError> {
        self.under_root_lock(async || {
            let at = self.pool().geometry().root_addr(of.root.slot);
            if self.reliable().word(at).await? != of.state {
                return Ok(None);
            }
            let owner = self.lock_token();
            if self.reliable().cas(at.plus(OWNER_WORD as u64 * 8), of.owner, owner).await?
                != of.owner
            {
                return Ok(None);
            }
            let left = self.reliable().word(at.plus(LEFT_WORD as u64 * 8)).await?;
            let left = (left != UNCOUNTED).then_some(left);
            Ok(Some(Dropping { owner, left, ..of.clone() }))
        })
        .await
    }

    /// Retires objects of a table that is being dropped by this session: the last of those that are
    /// left. `objects` is in the order of the walk. Within an operation. Gives how many were
    /// retired: fewer, or none, if the retire pages have no room.
    ///
    /// Cost: 1 batch of WRITEs and 1 CAS.
    ///
    /// # Errors
    /// `Corrupt`, `Fabric`: they are left, and will be announced again.
    pub async fn retire_dropped(
        &self,
        of: &mut Dropping,
        objects: &[GlobalAddr],
    ) -> Result<usize, PoolError> {
        let mut all: Vec<Retiring> = Vec::with_capacity(objects.len());
        for addr in objects.iter().rev() {
            match self.make_room(*addr) {
                Ok(retiring) => all.push(retiring),
                Err(PoolError::RetireFull) => break,
                Err(error) => return Err(error),
            }
        }
        if all.is_empty() {
            return Ok(0);
        }
        let words = self.announce_now(&all).await?;
        let left = of.left.unwrap_or(0).saturating_sub(all.len() as u64);
        self.count_drop(of, left).await?;
        let count = all.len();
        all.into_iter()
            .zip(words)
            .for_each(|(retiring, word)| self.queue_announced(retiring, word));
        Ok(count)
    }

    /// Says how many objects of the table are left. Before the first is retired, it must be known how many the
    /// table has.
    ///
    /// Cost: 1 CAS.
    ///
    /// # Errors
    /// `Corrupt`, `Fabric`.
    pub async fn count_drop(&self, of: &mut Dropping, left: u64) -> Result<(), PoolError> {
        let at = self.pool().geometry().root_addr(of.root.slot).plus(LEFT_WORD as u64 * 8);
        let before = of.left.unwrap_or(UNCOUNTED);
        let found = self.reliable().cas(at, before, left).await?;
        if found != before {
            return Err(PoolError::Corrupt(format!(
                "INV-DROP-2: {found:#x} objects are left of table {:?}, not {before:#x}",
                of.root.name
            )));
        }
        of.left = Some(left);
        Ok(())
    }

    /// Ends a drop: its entry of the root table is free. What is left of the table is lost until it is
    /// swept.
    ///
    /// Cost: 3 CAS.
    ///
    /// # Errors
    /// `Busy`, `Corrupt`, `Fabric`.
    pub async fn end_drop(&self, of: Dropping) -> Result<(), PoolError> {
        let at = self.pool().geometry().root_addr(of.root.slot);
        let free = (of.state >> 4).wrapping_add(1) << 4 | FREE;
        self.under_root_lock(async || self.change_root(at, of.state, free).await).await
    }

    /// Gives up a drop whose owner is dead, because what is left of the table is damaged. Before the
    /// owner's recovery is finished.
    ///
    /// Cost: as [`Session::end_drop`].
    ///
    /// # Errors
    /// As [`Session::end_drop`].
    pub async fn abandon_drop(&self, of: Dropping) -> Result<(), PoolError> {
        debug_assert_eq!(of.state & 15, DROPPING);
        self.end_drop(of).await
    }

    /// Tells whether the life that a token names has ended, and nothing of it is left.
    pub(crate) async fn is_forgotten(&self, token: u64) -> Result<bool, PoolError> {
        let Some(named) = self.known_token(token) else { return Ok(true) };
        let (pool, client) = (&**self.pool(), self.maintenance());
        let slot = named.member();
        if slot != pool.member {
            let word = client.word(pool.geometry().member_addr(slot)).await?;
            match MemberWord(word).state()? {
                MemberState::Free => return Ok(true),
                MemberState::Dead | MemberState::Recovering => return Ok(false),
                MemberState::Live => {}
            }
            if !self.owner_is_dead(token).await? {
                return Ok(false);
            }
            // Dead is either an earlier life of the slot, or the one that has been found dead now.
            let word = client.word(pool.geometry().member_addr(slot)).await?;
            let state = MemberWord(word).state()?;
            if !matches!(state, MemberState::Live | MemberState::Free) {
                return Ok(false);
            }
        } else if !self.owner_is_dead(token).await? {
            return Ok(false);
        }
        // An earlier life that has been succeeded to (INV-MEM-3) has its clients until it is recovered, which
        // others have from another generation. Of that slot's present life they are no sign of it.
        let at = pool.geometry().client_addr(named.client());
        let (ops, _) = client
            .chain(|ops| {
                ops.read(pool.geometry().member_addr(slot), client.buf(8));
                ops.read(at, client.buf(8));
            })
            .await?;
        let generation = MemberWord(ops.buf(0).words()[0]).generation();
        let owner = owner_of(ops.buf(1).words()[0]);
        Ok(owner.is_none_or(|(of, life)| of != slot || life == generation))
    }
}
