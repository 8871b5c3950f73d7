//! Left clients: pass on what members that leave have retired and could not free.
//!
//! Others may hold what a member has retired for longer than it wants to wait. It leaves its clients behind then, as their
//! pages name all those objects, and another member frees them when their time has come. Nobody has to walk the tables
//! for it, as somebody has for the dead.
//!
//! INV-LEFT-1: a *left client* names a life that has left the pool, and has no more than announced objects. The
//! recoverer ([`crate::recoverer`]) adopts it: its objects wait in the adopter's memory from then on, and its words stand
//! until they are freed. Until then recoveries leave the objects alone, as those of any running client.
//! INV-LEFT-2: the number of times that clients were left moves on after the clients are left, and the number of those
//! that are adopted becomes what it was before the table was read, after all clients found there are adopted. So as long
//! as a left client may be there, the two differ. An adopter that dies leaves them as they are.

use std::sync::atomic::Ordering;

use farleaf_fabric::GlobalAddr;

use crate::clients::{ClaimedClient, ClosedClient};
use crate::geometry::RETIRE_BYTES;
use crate::on_drop::OnDrop;
use crate::reliable::Reliable;
use crate::retire::Retirement;
use crate::words::{SESSION_LEFT, is_left_client, owner_of, owner_word};
use crate::{Pool, PoolError, Session};

/// Tries to move the number on while others do.
const TRIES: u32 = 1_000;

impl Session {
    /// Adopts the clients that members have left behind with announced objects: later ticks free these. Nothing if
    /// another member is the recoverer, or knows it as its duty, or this one recovers, which does so itself.
    ///
    /// Cost: nothing if the last look at all members found none; else 1 READ of 16 bytes. If some may have been left:
    /// 1 READ and 2 CAS for the place of the recoverer, 1 READ of the client table, 1 WRITE, and for each left client 1
    /// CAS and 1 READ per server.
    ///
    /// # Errors
    /// `Fabric`, `Corrupt`: try again.
    pub(crate) async fn adopt_left(&self) -> Result<(), PoolError> {
        let (pool, client) = (&**self.pool(), self.maintenance());
        let is_left_to_others = pool.has_recoverer() && !pool.has_duty.load(Ordering::Relaxed);
        if !pool.has_left_clients.load(Ordering::Relaxed) || is_left_to_others {
            return Ok(());
        }
        if pool.left_numbers(client).await?.is_none()
            || pool.recovering.swap(true, Ordering::SeqCst)
        {
            return Ok(());
        }
        // If an error or a drop keeps it from giving the place back, a tick does so.
        let _over = OnDrop(|| pool.recovering.store(false, Ordering::SeqCst));
        if pool.take_recoverer(client).await? {
            pool.adopt_left_clients(client).await?;
            pool.release_recoverer(client).await?;
        }
        Ok(())
    }
}

impl Pool {
    /// The number of times that clients were left, unless all of them are adopted. 1 READ.
    async fn left_numbers(&self, client: Reliable<'_>) -> Result<Option<u64>, PoolError> {
        let numbers = client.read(self.geometry().left_addr(), client.buf(16)).await?;
        let (left, adopted) = (numbers.words()[0], numbers.words()[1]);
        self.has_left_clients.store(left != adopted, Ordering::Relaxed);
        Ok((left != adopted).then_some(left))
    }

    /// Adopts all left clients. By the recoverer alone (INV-LEFT-1).
    pub(crate) async fn adopt_left_clients(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        let Some(number) = self.left_numbers(client).await? else { return Ok(()) };
        let all = 0..self.geometry().options().clients_max;
        let entries = self.read_entries(client, all.clone()).await?;
        for (id, entry) in all.zip(entries) {
            if is_left_client(entry[0]) {
                self.adopt_client(client, id, entry[0]).await?;
            }
        }
        // INV-LEFT-2
        client.write_word(self.geometry().left_addr().plus(8), number).await?;
        Ok(())
    }

    /// Moves the number of times that clients were left on. 1 READ and 1 CAS.
    async fn count_left(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        let at = self.geometry().left_addr();
        let mut number = client.word(at).await?;
        for _ in 0..TRIES {
            let found = client.cas(at, number, number.wrapping_add(1)).await?;
            if found == number {
                return Ok(());
            }
            number = found;
        }
        Err(PoolError::Corrupt("the number of left clients is changed without end".into()))
    }

    /// Its pages do not change until it is adopted.
    ///
    /// Cost: 1 READ per server and 1 CAS.
    async fn adopt_client(
        &self,
        client: Reliable<'_>,
        id: u32,
        left: u64,
    ) -> Result<(), PoolError> {
        let retired = Retirement::new(id, self.geometry().servers());
        for server in self.geometry().server_ids() {
            let at = self.geometry().retire_addr(server, id, 0);
            let page = client.read(at, client.buf(RETIRE_BYTES as usize)).await?;
            for (index, word) in (0..).zip(page.words()).filter(|(_, word)| **word != 0) {
                let addr = GlobalAddr::from_word(*word);
                let Some(addr) = addr.filter(|addr| self.geometry().block_of(*addr).is_some())
                else {
                    let what = format!("client {id} has announced {word:#x} on server {server}");
                    return Err(PoolError::Corrupt(what));
                };
                self.adopt_announced(&retired, addr, server, index);
            }
        }
        let owner = owner_word(self.member, self.generation, self.next_session_number());
        // Of an error or a drop, only the end of this life tells what became of it.
        self.is_adopting.store(true, Ordering::SeqCst);
        let found = client.cas(self.geometry().client_addr(id), left, owner).await?;
        self.is_adopting.store(false, Ordering::SeqCst);
        if found != left {
            return Ok(());
        }
        // Its tokens are not this life's to give back.
        let claimed = ClaimedClient { id, owner, tokens: 0..0 };
        self.closed().push(ClosedClient { claimed, retired, tried: true });
        Ok(())
    }

    /// Leaves the clients of this member behind, as all that they have is announced (INV-LEFT-1).
    ///
    /// Cost: 1 CAS for each, 1 READ and 1 CAS.
    pub(crate) async fn leave_clients(
        &self,
        client: Reliable<'_>,
        own: &[(u32, u64)],
    ) -> Result<(), PoolError> {
        for (id, owner) in own {
            let left = owner_of(*owner)
                .map(|(slot, generation)| owner_word(slot, generation, SESSION_LEFT));
            let left = left.unwrap_or(*owner);
            client.cas_release(self.geometry().client_addr(*id), *owner, left).await?;
        }
        self.count_left(client).await
    }
}
