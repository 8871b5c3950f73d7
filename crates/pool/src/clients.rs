//! Client table: keeps one entry per open session, and the words that must outlive the session.
//!
//! Words of an entry: 0 owner (0: free), 1 tokens given out so far, 2 first token of the member
//! life in word 3, 3 owner of the latest session.
//!
//! The dead hold their entries until a member has recovered them, and that member needs a session. So
//! members that do not recover leave some entries free ([`Pool::session_leaving`]): else the dead could
//! keep everybody from the pool. As many entries as there are members are enough if each member takes
//! one: recovery comes before a slot of the member table is free. More than one entry for a slot are
//! held only if members succeed to dead ones (INV-MEM-3) and die before they have recovered anything.
//!
//! INV-CLIENT-1: the retire page of a free client is zero on every server.
//! INV-CLIENT-2: word 1 is above every number of a token that was ever made with this client.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::geometry::CLIENT_BYTES;
use crate::reliable::Reliable;
use crate::retire::Retirement;
use crate::words::{MemberState, MemberWord, owner_of, owner_word};
use crate::{LockToken, Pool, PoolError, Session};

/// Tokens that are taken from the table at once; given back when the session ends.
pub(crate) const TOKEN_STEP: u64 = 1 << 20;
const COUNTER_END: u64 = 1 << LockToken::COUNTER_BITS;
const ATTEMPTS_MAX: usize = 16;
/// Entries of the table that are looked at first for a free one; then twice as many each time.
const LOOK_CLIENTS: u32 = 64;

/// A client that belongs to a session.
#[derive(Debug)]
pub(crate) struct ClaimedClient {
    pub(crate) id: u32,
    pub(crate) owner: u64,
    pub(crate) tokens: Range<u64>,
}

/// A client whose session was dropped.
#[derive(Debug)]
pub(crate) struct ClosedClient {
    pub(crate) claimed: ClaimedClient,
    pub(crate) retired: Arc<Retirement>,
    /// Freeing it was begun before: then its tokens are not given back, as another's may follow.
    pub(crate) tried: bool,
}

impl Pool {
    /// Takes a free client that is not among the last `kept`.
    ///
    /// Cost: 1 READ of 4 KiB if one of the first 64 is free; of 1024, at most 5 READs of all of 64 KiB.
    pub(crate) async fn claim_client(
        &self,
        client: Reliable<'_>,
        kept: u32,
    ) -> Result<ClaimedClient, PoolError> {
        let count = self.geometry().options().clients_max;
        let owner = owner_word(self.member, self.generation, self.next_session_number());
        // By their places, not by how many are free: several ask at once.
        let open = count.saturating_sub(kept);
        let (mut from, mut looks) = (0, LOOK_CLIENTS);
        while from < open {
            let to = (from + looks).min(open);
            for (id, entry) in (from..to).zip(self.read_entries(client, from..to).await?) {
                if entry[0] != 0 || entry[1] > COUNTER_END - TOKEN_STEP {
                    continue;
                }
                if let Some(claimed) = self.claim_entry(client, id, owner, entry[1]).await? {
                    return Ok(claimed);
                }
            }
            (from, looks) = (to, looks * 2);
        }
        Err(PoolError::NoSlot("client", count as usize))
    }

    /// Takes a client that was free, and had given out `given` tokens, unless another is quicker.
    async fn claim_entry(
        &self,
        client: Reliable<'_>,
        id: u32,
        owner: u64,
        given: u64,
    ) -> Result<Option<ClaimedClient>, PoolError> {
        // From here on, an error or a dropped future leaves the entry to a later tick.
        let mut claim = Claim { pool: self, id, owner, done: false };
        let at = self.geometry().client_addr(id);
        if client.cas(at, 0, owner).await? != 0 {
            claim.done = true;
            return Ok(None);
        }
        let (start, latest) = self.first_tokens(client, id, given).await?;
        if start > COUNTER_END - TOKEN_STEP {
            return Ok(None);
        }
        if !self.is_own(latest) {
            client
                .chain(|ops| {
                    ops.write_word(at.plus(16), start);
                    ops.write_word(at.plus(24), owner);
                })
                .await?;
        }
        claim.done = true;
        self.token_starts[id as usize].fetch_min(start, Ordering::SeqCst);
        Ok(Some(ClaimedClient { id, owner, tokens: start..start + TOKEN_STEP }))
    }

    /// The words of some entries. 1 READ.
    pub(crate) async fn read_entries(
        &self,
        client: Reliable<'_>,
        of: Range<u32>,
    ) -> Result<Vec<[u64; 4]>, PoolError> {
        let table = client.buf(of.len() * CLIENT_BYTES as usize);
        let table = client.read(self.geometry().client_addr(of.start), table).await?;
        let entries = table.words().chunks_exact(CLIENT_BYTES as usize / 8);
        Ok(entries.map(|entry| [entry[0], entry[1], entry[2], entry[3]]).collect())
    }

    /// The clients in use, with slot and generation of their owners. 1 READ.
    pub(crate) async fn read_clients(
        &self,
        client: Reliable<'_>,
    ) -> Result<Vec<(u32, (u32, u32))>, PoolError> {
        let all = 0..self.geometry().options().clients_max;
        let entries = all.clone().zip(self.read_entries(client, all).await?);
        Ok(entries.filter_map(|(id, entry)| owner_of(entry[0]).map(|of| (id, of))).collect())
    }

    /// Takes tokens for a client that has just been claimed, with `given` out so far when it was
    /// last looked at; their start, and the entry's latest owner. Nobody else changes its count.
    ///
    /// Cost: 1 chain.
    async fn first_tokens(
        &self,
        client: Reliable<'_>,
        id: u32,
        given: u64,
    ) -> Result<(u64, u64), PoolError> {
        let at = self.geometry().client_addr(id);
        let mut start = given;
        for _ in 0..ATTEMPTS_MAX {
            if start > COUNTER_END - TOKEN_STEP {
                return Ok((start, 0));
            }
            let end = start + TOKEN_STEP;
            let (ops, again) = client
                .chain(|ops| {
                    ops.cas(at.plus(8), start, end);
                    ops.read(at, client.buf(32));
                })
                .await?;
            let found = ops.old(0);
            if found == start || again && found == end {
                return Ok((start, ops.buf(1).words()[3]));
            }
            start = found;
        }
        Err(PoolError::Corrupt(format!("the tokens of client {id} are taken by others")))
    }

    /// More tokens for the client, which has had those below `given`.
    pub(crate) async fn more_tokens(
        &self,
        client: Reliable<'_>,
        id: u32,
        given: u64,
    ) -> Result<u64, PoolError> {
        if given > COUNTER_END - TOKEN_STEP {
            return Err(PoolError::NoSlot("lock token", COUNTER_END as usize));
        }
        let at = self.geometry().client_addr(id).plus(8);
        // Only the client's owner changes it; so what is more was taken by a call of this session
        // that was dropped.
        let found = client.cas(at, given, given + TOKEN_STEP).await?;
        if found != given && found != given + TOKEN_STEP {
            return Err(PoolError::Corrupt(format!("client {id} has given out {found} tokens")));
        }
        Ok(given)
    }

    /// Frees a client that has nothing retired any more.
    ///
    /// Cost: 1 chain.
    pub(crate) async fn release_client(
        &self,
        client: Reliable<'_>,
        closed: &ClosedClient,
    ) -> Result<(), PoolError> {
        let ClaimedClient { id, owner, tokens } = &closed.claimed;
        let at = self.geometry().client_addr(*id);
        let give_tokens = !closed.tried;
        client
            .release(at, *owner, |ops| {
                if give_tokens {
                    ops.cas(at.plus(8), tokens.end, tokens.start);
                }
                ops.cas(at, *owner, 0);
            })
            .await?;
        Ok(())
    }
}

impl Session {
    /// Tells whether this member has made a lock's token, in its present life. No remote operation.
    pub fn is_own_token(&self, token: u64) -> bool {
        let pool = self.pool();
        let is_of_life = |token: LockToken| {
            let start = pool.token_starts.get(token.client() as usize);
            start.is_some_and(|start| token.counter() >= start.load(Ordering::SeqCst))
        };
        let token = LockToken::from_word(token).filter(|token| token.member() == pool.member);
        token.is_some_and(is_of_life)
    }

    /// The token in a lock's word, if a client of this pool can have made it.
    pub(crate) fn known_token(&self, word: u64) -> Option<LockToken> {
        let options = self.pool().geometry().options();
        LockToken::from_word(word)
            .filter(|token| token.member() < options.members_max)
            .filter(|token| token.client() < options.clients_max)
    }

    /// Tells whether the member that a lock's word names is dead; then it is fenced on every server and
    /// marked, and the lock may be taken over. `false` says nothing.
    ///
    /// Cost: nothing for an own token. Otherwise 1 chain of 2 READs, 1 READ, and a look by the
    /// fabric; if the member has just died, a fence per server and 1 CAS.
    ///
    /// # Errors
    /// `Corrupt` if it is no token of this pool, `Fabric`.
    pub async fn owner_is_dead(&self, token: u64) -> Result<bool, PoolError> {
        let (pool, client) = (self.pool(), self.maintenance());
        let unknown = || PoolError::Corrupt(format!("{token:#x} is no lock's token"));
        let named = self.known_token(token).ok_or_else(unknown)?;
        if named.member() == pool.member {
            // Or an earlier life of the slot made it, which has been recovered.
            return Ok(!self.is_own_token(token));
        }
        let (ops, _) = client
            .chain(|ops| {
                ops.read(pool.geometry().member_addr(named.member()), client.buf(8));
                ops.read(pool.geometry().client_addr(named.client()), client.buf(32));
            })
            .await?;
        let member = MemberWord(ops.buf(0).words()[0]);
        let entry = ops.buf(1).words();
        if member.state()? != MemberState::Live {
            // Left, or fenced.
            return Ok(true);
        }
        let life = Some((named.member(), member.generation()));
        let is_of_life = if owner_of(entry[3]) == life {
            named.counter() >= entry[2]
        } else {
            // Words 2 and 3 are written after word 0.
            owner_of(entry[0]) == life
        };
        if !is_of_life {
            return Ok(true);
        }
        pool.declare_dead(client, named.member(), member).await
    }
}

/// Leaves a half-claimed client to the next tick.
struct Claim<'a> {
    pool: &'a Pool,
    id: u32,
    owner: u64,
    done: bool,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.done {
            // The tokens that may have been taken stay unused.
            let claimed = ClaimedClient { id: self.id, owner: self.owner, tokens: 0..0 };
            let retired = Retirement::new(claimed.id, self.pool.geometry().servers());
            self.pool.closed().push(ClosedClient { claimed, retired, tried: false });
        }
    }
}
