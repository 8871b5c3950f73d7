//! Maintenance: ticks of a session, and leaving the pool.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::Endpoint;

use crate::address::Published;
use crate::clients::ClosedClient;
use crate::epoch::Observation;
use crate::on_drop::OnDrop;
use crate::reliable::Reliable;
use crate::retire::{Freeing, Retirement};
use crate::{Pool, PoolError, Session, member};

/// Ticks between looks at one own block for what others have given back.
const HARVEST_TICKS: u32 = 16;
/// Time that a member with nothing to free goes without a tick.
const QUIET_NS: u64 = 10_000_000;
/// The same where there is no other member; whoever joins waits for so long once.
const ALONE_NS: u64 = 40_000_000;
/// Ticks of a leaving member that wait for retired objects to become free.
const LEAVE_TICKS: usize = 64;
const LEAVE_WAIT_NS: u64 = 20_000;

impl Session {
    /// Maintenance, to be called every few dozen operations or every millisecond by each session:
    /// learns the global epoch, announces this member's, moves the global one on, finds out about
    /// members that lag, and frees what is due: of its own, and
    /// of one other session of the member in turn, so that one that does nothing any more keeps
    /// nothing. A member that has sessions but never ticks holds up
    /// everybody's reclamation unless it is announced idle, which its first tick without an
    /// operation since the one before does.
    ///
    /// Cost: 1 chain of 2 READs; at most 1 CAS to announce and 1 to advance. Per 64 objects freed of other
    /// members' blocks 1 WRITE to announce and 1 to clear them, and for each owner 1 READ and 1 WRITE. Now
    /// and then 1 READ of a block's bitmap, and of what others have freed. Three times out of four 1 READ of 8 bytes, and no more, if this member has nothing
    /// to free and nobody has moved the epoch on.
    ///
    /// # Errors
    /// `Closed` if this member was declared dead or has left; `Corrupt`, `Fabric`. What was not
    /// done is done by the next tick.
    pub async fn tick(&self) -> Result<(), PoolError> {
        let inner = &*self.inner;
        let (pool, client) = (&**self.pool(), self.maintenance());
        pool.check_open()?;
        if inner.ticking.replace(true) {
            return Ok(());
        }
        let _ticking = OnDrop(|| inner.ticking.set(false));
        inner.ticks.set(inner.ticks.get().wrapping_add(1));
        // What is retired from here on is not judged by what this tick sees (INV-EPOCH-5).
        let own = inner.retired.claim();
        let other = pool.next_retirement().and_then(|other| other.claim());
        let closed = Closed::take(pool);
        let wants_room = closed.is_some() || own.iter().chain(&other).any(Freeing::has_any);
        pool.ticked_ns.store(self.endpoint().now_ns(), Ordering::Relaxed);
        let is_quiet = !wants_room && !pool.has_retired();
        let look = pool.next_look();
        let seen = if is_quiet && pool.may_glance(look) && pool.glance(client).await? {
            None
        } else {
            Some(pool.observe_as(client, look).await?)
        };
        // Before what this member holds is announced: what is pending holds an epoch.
        let in_hand = closed.as_ref().and_then(Closed::retired);
        self.announce_pending(pool.is_quiet(), in_hand).await?;
        pool.announce(client).await?;
        if let Some(seen) = &seen {
            pool.advance(client, seen, wants_room).await?;
        }
        self.fill_tokens().await?;
        // What was not looked for is not known to be free.
        let bound = seen.as_ref().map_or(0, |seen| pool.reuse_bound(seen));
        for freeing in own.iter().chain(&other) {
            self.reclaim(freeing, bound).await?;
        }
        self.tend_inbox(seen.as_ref(), bound, is_quiet).await?;
        inner.pressed.set(inner.retired.lock().is_pressed() || pool.retires_much());
        if let Some(closed) = closed {
            closed.finish(self, bound).await?;
        }
        pool.housekeep(client, inner.ticks.get()).await?;
        // Of a recovery that was dropped.
        self.recover_give_up().await?;
        self.adopt_left().await?;
        match seen {
            Some(seen) => pool.ask_for_suspects(client, &seen).await,
            None => Ok(()),
        }
    }

    /// [`Session::tick`] if it is time: if this member has something to free, or none of its sessions has
    /// ticked for 10 ms, or 40 ms where there is no other member. So who calls it often pays no more for
    /// maintenance than there is to maintain.
    ///
    /// # Errors
    /// As [`Session::tick`].
    pub async fn tick_if_due(&self) -> Result<(), PoolError> {
        let pool = self.pool();
        let is_busy = pool.has_retired() || !pool.closed().is_empty();
        let ticked_ns = pool.ticked_ns.load(Ordering::Relaxed);
        let quiet_ns = if pool.is_alone() { ALONE_NS } else { QUIET_NS };
        if is_busy || self.endpoint().now_ns().saturating_sub(ticked_ns) >= quiet_ns {
            return self.tick().await;
        }
        pool.check_open()
    }

    /// This member leaves the pool: what it holds is given back, and every session of it ends.
    ///
    /// Cost: per own block 1 CAS and a batch per 64 words of its bitmap with free objects; some
    /// ticks; a batch per 64 objects that are retired and cannot be freed in these, and 1 CAS for each client that has
    /// some; what it takes to hand back the claims of a recovery that was dropped.
    ///
    /// # Errors
    /// `Invalid` if it has other sessions, or this one has a clone or a pin, or something is kept open
    /// ([`Pool::keep`]): nothing was done.
    /// `Fabric`, `Corrupt`: try again, or leave the rest to recovery.
    pub async fn leave(&self) -> Result<(), PoolError> {
        let (pool, client) = (&**self.pool(), self.maintenance());
        pool.check_open()?;
        if !self.finish_tasks().await {
            return Err(PoolError::Unsettled);
        }
        let handles = std::rc::Rc::strong_count(&self.inner);
        if pool.sessions() != 1 || handles != 1 {
            return Err(PoolError::Invalid(format!(
                "cannot leave the pool with {} other sessions and {} other handles of this one",
                pool.sessions() - 1,
                handles - 1
            )));
        }
        if !pool.kept.is_empty() {
            return Err(PoolError::Invalid(
                "cannot leave the pool while tables of it are open: close them first".into(),
            ));
        }
        if pool.recovering.load(Ordering::SeqCst) {
            return Err(PoolError::Invalid("cannot leave the pool during a recovery".into()));
        }
        for _ in 0..LEAVE_TICKS {
            if !self.has_retired() {
                break;
            }
            self.tick().await?;
            self.endpoint().sleep(LEAVE_WAIT_NS).await;
        }
        while !pool.alloc().limbo.is_empty() {
            pool.settle(client).await?;
        }
        self.close_inbox().await?;
        // What is left stands in the pages, or, if they have no room, in blocks that stay this member's
        // (INV-RETIRE-4), for its recovery to find.
        self.let_own_be_announced();
        self.announce_pending(true, None).await?;
        let owned = pool.alloc().owned();
        for block in owned {
            let freed = pool.alloc().remove_if_free(block);
            if let Some(word) = freed {
                pool.release(client, block, word).await?;
                continue;
            }
            // What a harvest whose outcome was lost has taken, must be known first.
            let lost = pool.alloc().block(block).is_some_and(|block| !block.is_idle());
            if let (true, Some(held)) = (lost, pool.hold(block)) {
                pool.harvest_all(client, &held).await?;
            }
            let removed = pool.alloc().remove(block);
            if let Some((word, left)) = removed {
                pool.abandon(client, block, word, left).await?;
            }
        }
        self.give_up_entries().await
    }

    /// This member leaves the pool as if it had died: recovery takes over what it holds. For a
    /// member that has sessions on threads that do not end them; all of them end with this call,
    /// and none may have an operation under way.
    ///
    /// Cost: 1 CAS.
    ///
    /// # Errors
    /// `Closed` if it has left before, `Fabric`.
    pub async fn leave_as_dead(&self) -> Result<(), PoolError> {
        let pool = &**self.pool();
        pool.check_open()?;
        pool.close();
        pool.die(self.maintenance()).await
    }

    /// Tells whether something that this member has retired is not free yet.
    fn has_retired(&self) -> bool {
        self.inner.retired.lock().len() > 0 || !self.pool().closed().is_empty()
    }

    /// Frees the member's and the session's entries. Clients with announced objects are left for another member to
    /// adopt (INV-LEFT-1). If objects stand in no page, or the slot's life before is not recovered (INV-MEM-3), the
    /// member stays, as dead, for recovery to see to them.
    async fn give_up_entries(&self) -> Result<(), PoolError> {
        let (pool, client) = (&**self.pool(), self.maintenance());
        self.recover_give_up().await?;
        let inherits = pool.inherits.load(Ordering::SeqCst);
        if !inherits && pool.recovery_unfinished.load(Ordering::SeqCst) {
            pool.unclaim_orphans(client).await?;
        }
        let is_announced = pool.all_retirements().iter().all(|of| of.lock().is_announced());
        if !is_announced || inherits || pool.is_adopting.load(Ordering::SeqCst) {
            pool.die(client).await?;
            pool.close();
            return Ok(());
        }
        let closed = self.inner.closed();
        self.inner.tried_to_leave.set(true);
        if self.has_retired() {
            let of = |it: &ClosedClient| (it.claimed.id, it.claimed.owner);
            let mut all: Vec<_> = pool.closed().iter().map(of).collect();
            all.push(of(&closed));
            pool.leave_clients(client, &all).await?;
        } else {
            pool.release_client(client, &closed).await?;
        }
        let life = (pool.member, pool.generation);
        let published = Published {
            address: pool.address_word.load(Ordering::SeqCst),
            region: pool.region_word.load(Ordering::SeqCst),
        };
        member::leave(client, pool.geometry(), life, (pool.incarnation, published)).await?;
        pool.close();
        Ok(())
    }
}

impl Pool {
    /// Small duties: changes of unknown outcome, surplus blocks, what others gave back, a root
    /// lock left behind.
    async fn housekeep(&self, client: Reliable<'_>, tick: u32) -> Result<(), PoolError> {
        self.settle(client).await?;
        self.release_root_leftover(client).await?;
        if tick.is_multiple_of(HARVEST_TICKS) {
            let owned = self.alloc().owned();
            if let Some(block) = owned.get(tick as usize / 16 % owned.len().max(1))
                && let Some(held) = self.hold(*block)
            {
                self.harvest_all(client, &held).await?;
            }
        }
        // Bound to a name of its own, so that the lock is free again before the release.
        let surplus = self.alloc().take_surplus();
        if let Some((block, word)) = surplus {
            self.release(client, block, word).await?;
        }
        if self.is_tidying_due(client.endpoint().now_ns()) {
            let unused = self.alloc().unused();
            for block in unused {
                let freed = self.alloc().remove_if_free(block);
                if let Some(word) = freed {
                    self.release(client, block, word).await?;
                }
            }
            self.free_orphans(client).await?;
        }
        Ok(())
    }

    pub(crate) async fn ask_for_suspects(
        &self,
        client: Reliable<'_>,
        seen: &Observation,
    ) -> Result<(), PoolError> {
        for (slot, word) in &seen.suspects {
            self.declare_dead(client, *slot, *word).await?;
        }
        Ok(())
    }
}

/// A dropped session's client in the hands of a tick; goes back to the list unless it is freed.
struct Closed<'a> {
    pool: &'a Pool,
    client: Option<ClosedClient>,
    freeing: Option<Freeing>,
}

impl<'a> Closed<'a> {
    fn take(pool: &'a Pool) -> Option<Self> {
        let client = {
            let mut closed = pool.closed();
            // The oldest first, so that one that has to wait does not hold up the others.
            (!closed.is_empty()).then(|| closed.remove(0))
        };
        client.map(|client| {
            let freeing = client.retired.claim();
            Closed { pool, client: Some(client), freeing }
        })
    }

    fn retired(&self) -> Option<&Arc<Retirement>> {
        self.client.as_ref().map(|closed| &closed.retired)
    }

    async fn finish(mut self, session: &Session, bound: u64) -> Result<(), PoolError> {
        let (Some(closed), Some(freeing)) = (&mut self.client, &self.freeing) else {
            return Ok(());
        };
        session.reclaim(freeing, bound).await?;
        if closed.retired.lock().len() == 0 {
            let freed = self.pool.release_client(session.maintenance(), closed);
            if let Err(error) = freed.await {
                closed.tried = true;
                return Err(error);
            }
            self.client = None;
        }
        Ok(())
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            self.pool.closed().push(client);
        }
    }
}
