//! One coroutine's face of the pool.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_fabric::{Client, Endpoint, GlobalAddr, OpKind, Ops, ServerId};

use crate::clients::{ClaimedClient, ClosedClient, TOKEN_STEP};
use crate::pins::{SESSION_PINS, UNPINNED, pin_at};
use crate::retire::{Retirement, Retiring};
use crate::{LockToken, Pool, PoolError};

/// Tokens that are left after every `begin` and `tick`.
const TOKENS_LEAST: u64 = 1 << 16;
/// Between looks whether a task that outlived its operation has ended.
const HELD_WAIT_NS: u64 = 1_000;
/// Ticks that make room in a full retire page.
const RETIRE_TICKS: usize = 4;
/// Ticks in front of an operation when a retire page is nearly full, and waits between them.
const RELIEF_TICKS: usize = 24;
const RELIEF_WAIT_NS: u64 = 2_000;
const RELIEF_WAIT_NS_MAX: u64 = 1_000_000;

/// One client of the pool: one logical thread of operations.
///
/// It stays on its thread. Clones share it, so that tasks that outlive their caller can hold it;
/// when the last is dropped, the client is freed by a later tick of any session of the member. A
/// session must not be dropped while it holds a lock. A member's last session should tick twice
/// before it is dropped, or [`Session::leave`]: a member that is announced live and does not tick
/// holds up everybody's reclamation.
#[derive(Debug)]
pub struct Session<E: Endpoint> {
    pub(crate) inner: Rc<Inner<E>>,
}

#[derive(Debug)]
pub(crate) struct Inner<E: Endpoint> {
    client: Client<E>,
    /// As `client`, but counts as maintenance.
    pub(crate) upkeep: Client<E>,
    pool: Arc<Pool>,
    pub(crate) id: u32,
    owner: u64,
    tokens: Cell<(u64, u64)>,
    /// Bit per pin in use, and users of the last one.
    pins_taken: Cell<u8>,
    last_pin_users: Cell<u32>,
    /// Tasks that outlive their operations; see [`Session::hold`].
    held: Cell<usize>,
    place: Cell<usize>,
    pub(crate) retired: Arc<Retirement>,
    /// A retire page is nearly full.
    pub(crate) pressed: Cell<bool>,
    pub(crate) ticking: Cell<bool>,
    pub(crate) ticks: Cell<u32>,
}

impl<E: Endpoint> Clone for Session<E> {
    fn clone(&self) -> Self {
        Session { inner: Rc::clone(&self.inner) }
    }
}

/// While it lives, no object that could be reached when it was made is reused.
#[derive(Debug)]
#[must_use = "objects are reused once it is dropped"]
pub struct Pinned<'a, E: Endpoint> {
    session: &'a Session<E>,
    slot: usize,
}

/// As [`Pinned`], for a task that may outlive its caller.
#[derive(Debug)]
#[must_use = "objects are reused once it is dropped"]
pub struct OwnedPin<E: Endpoint> {
    session: Session<E>,
    slot: usize,
}

impl<E: Endpoint> Session<E> {
    pub(crate) fn new(pool: &Arc<Pool>, client: Client<E>, claimed: ClaimedClient) -> Self {
        pool.sessions.fetch_add(1, Ordering::SeqCst);
        pool.pins.enable(claimed.id);
        let upkeep = Client::new(client.endpoint().clone());
        upkeep.charge_to(OpKind::Maintenance);
        let inner = Inner {
            client,
            upkeep,
            id: claimed.id,
            owner: claimed.owner,
            tokens: Cell::new((claimed.tokens.start, claimed.tokens.end)),
            pins_taken: Cell::new(0),
            last_pin_users: Cell::new(0),
            held: Cell::new(0),
            place: Cell::new(claimed.id as usize),
            retired: pool.new_retirement(claimed.id),
            pressed: Cell::new(false),
            ticking: Cell::new(false),
            ticks: Cell::new(0),
            pool: Arc::clone(pool),
        };
        Session { inner: Rc::new(inner) }
    }

    /// The client that remote operations go through.
    #[inline]
    pub fn client(&self) -> &Client<E> {
        &self.inner.client
    }

    /// The thread's endpoint.
    #[inline]
    pub fn endpoint(&self) -> &E {
        self.inner.client.endpoint()
    }

    /// The pool.
    #[inline]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.inner.pool
    }

    /// This session's number in the pool's client table.
    pub fn id(&self) -> u32 {
        self.inner.id
    }

    /// Begins an operation of `kind`: counts it, and keeps whatever it may reach from being reused
    /// until the pin is dropped. Must come before the operation's first remote READ. Operations of
    /// one session may overlap.
    ///
    /// Cost: no remote operation; 1 chain if the member was announced idle, 1 FAA every million
    /// lock tokens. If three quarters of a retire page are in use, some ticks, up to about 20 ms.
    ///
    /// # Errors
    /// `Closed`, `Fabric`: nothing was done.
    #[inline]
    pub async fn begin(&self, kind: OpKind) -> Result<Pinned<'_, E>, PoolError> {
        self.inner.client.begin(kind);
        let pool = &*self.inner.pool;
        if self.inner.pressed.get() {
            self.relieve().await?;
        }
        pool.pins.count_begin(self.inner.id);
        let pinned = Pinned { session: self, slot: self.take_pin() };
        let (next, end) = self.inner.tokens.get();
        if end - next < TOKENS_LEAST || !pool.epochs.announced_live.load(Ordering::SeqCst) {
            self.begin_slowly(&pinned).await?;
        }
        // A task of an operation whose caller was dropped still uses this client's redo area.
        while self.inner.held.get() > 0 {
            self.endpoint().sleep(HELD_WAIT_NS).await;
        }
        Ok(pinned)
    }

    /// A pin for a task that must end even if the operation's caller is dropped: of the oldest
    /// moment that a running operation of this session has pinned. The session's next operation
    /// begins when the task is done, since both would use the same redo area; so the task must not
    /// begin one. Called within an operation: without one there is no moment to hold.
    pub fn hold(&self) -> OwnedPin<E> {
        let slots = 0..SESSION_PINS;
        let oldest = slots.min_by_key(|slot| self.pin(*slot).load(Ordering::Relaxed)).unwrap_or(0);
        self.inner.held.set(self.inner.held.get() + 1);
        OwnedPin { session: self.clone(), slot: self.double_pin(oldest) }
    }

    /// Waits until a nearly full retire page has room again, for a while. Before the pin, which
    /// would hold back what is to be freed.
    #[cold]
    async fn relieve(&self) -> Result<(), PoolError> {
        let mut wait_ns = RELIEF_WAIT_NS;
        for _ in 0..RELIEF_TICKS {
            self.tick().await?;
            if !self.inner.pressed.get() {
                return Ok(());
            }
            self.endpoint().sleep(wait_ns).await;
            wait_ns = (wait_ns * 2).min(RELIEF_WAIT_NS_MAX);
        }
        Ok(())
    }

    #[cold]
    async fn begin_slowly(&self, pinned: &Pinned<'_, E>) -> Result<(), PoolError> {
        self.inner.pool.check_open()?;
        self.fill_tokens().await?;
        self.inner.pool.ensure_live(&self.inner.upkeep).await?;
        // The view may have been old; nothing was read yet, so the pin may move up.
        if pinned.slot < SESSION_PINS - 1 {
            pin_at(self.pin(pinned.slot), &self.inner.pool.epochs.view);
        }
        Ok(())
    }

    /// Memory for an object of `bytes` (1 to [`crate::Geometry::object_bytes_max`]) on server `on`,
    /// aligned to 64 bytes, content arbitrary. It is this session's until it is linked or freed;
    /// lost if the process dies before, until its block is swept.
    ///
    /// Cost: nothing in the steady state. Otherwise the block's bitmap is read, or another block
    /// taken (2 READs, 1 CAS, 1 chain).
    ///
    /// # Errors
    /// `Full`: no memory, also after trying to reclaim; the object that this operation's own pin
    /// holds back may be had after it. `Invalid` (no such server or too large), `Fabric`, `Corrupt`.
    pub async fn alloc(&self, on: ServerId, bytes: usize) -> Result<GlobalAddr, PoolError> {
        self.alloc_object(on, bytes).await
    }

    /// The server for the next object: all in turn.
    #[inline]
    pub fn place(&self) -> ServerId {
        let place = (self.inner.place.get() + 1) % self.inner.pool.geometry().servers();
        self.inner.place.set(place);
        ServerId(place as u16)
    }

    /// Frees an object that this member allocated and that was never linked. No remote operation.
    ///
    /// # Panics
    /// If the member owns no such object, or it is free already.
    pub fn free_unpublished(&self, addr: GlobalAddr, bytes: usize) {
        let pool = self.pool();
        let freed = pool.alloc().free(pool.geometry(), addr);
        assert_eq!(freed, Ok(true), "{bytes} bytes at {addr} cannot be freed");
    }

    /// Announces that the object at `addr` is going to be unlinked, so that it is not lost should
    /// this process die in between. Before the unlinking.
    ///
    /// Cost: 1 WRITE.
    ///
    /// # Errors
    /// `RetireFull`: too many retired objects wait, also after some ticks; nothing was done.
    /// `Corrupt` if the address is in no block. `Fabric`.
    pub async fn announce_retire(&self, addr: GlobalAddr) -> Result<Retiring, PoolError> {
        let mut ticks = 0;
        let retiring = loop {
            match self.take_retire_word(addr) {
                Err(PoolError::RetireFull) if ticks < RETIRE_TICKS => {
                    ticks += 1;
                    self.tick().await?;
                }
                result => break result?,
            }
        };
        let mut word = self.client().buf(8);
        word.words_mut()[0] = addr.word();
        self.client().write(self.retire_addr(&retiring), word).await?;
        Ok(retiring)
    }

    /// As [`Session::announce_retire`], but adds the WRITE to `ops`, which the caller posts. In a
    /// chain (the page is on the object's server) it must stand in front of the unlinking.
    ///
    /// # Errors
    /// `RetireFull`, `Corrupt`: `ops` is as before.
    pub fn announce_retire_in(
        &self,
        ops: &mut Ops,
        addr: GlobalAddr,
    ) -> Result<Retiring, PoolError> {
        let retiring = self.take_retire_word(addr)?;
        ops.write_word(self.retire_addr(&retiring), addr.word());
        Ok(retiring)
    }

    /// The announced object is unlinked, and nobody will unlink it again: it is freed when nobody
    /// can hold it any more. Called in the operation that unlinked it, before its pin is dropped,
    /// and after the change is complete and no lock invites others to finish it: whoever finishes a
    /// dead client's change announces and retires what that unlinks itself. No remote operation.
    ///
    /// # Panics
    /// If another session announced it.
    pub fn retire(&self, retiring: Retiring) {
        assert_eq!(retiring.client, self.inner.id, "retired by another session than announced it");
        self.inner.retired.lock().push(self.pool(), retiring.addr, retiring.word);
    }

    /// The announced object stays, or another client has unlinked it.
    ///
    /// Cost: 1 CAS.
    ///
    /// # Errors
    /// `Fabric`: the page's word stays taken until the session ends.
    ///
    /// # Panics
    /// If another session announced it.
    pub async fn cancel_retire(&self, retiring: Retiring) -> Result<(), PoolError> {
        assert_eq!(retiring.client, self.inner.id, "cancelled by another session");
        let at = self.retire_addr(&retiring);
        self.client().cas(at, retiring.addr.word(), 0).await?;
        self.inner.retired.lock().give_word(retiring.addr.server(), retiring.word);
        Ok(())
    }

    /// A word for a lock, never used before; see [`LockToken`]. No remote operation.
    ///
    /// # Panics
    /// After 65,536 calls without a [`Session::begin`] or [`Session::tick`] in between.
    #[inline]
    pub fn lock_token(&self) -> u64 {
        let (next, end) = self.inner.tokens.get();
        assert!(next < end, "lock tokens run out: an operation locked 65536 times");
        self.inner.tokens.set((next + 1, end));
        LockToken::new(self.inner.pool.member, self.inner.id, next).word()
    }

    /// This client's redo area on `server`: [`Session::redo_bytes`] bytes that only it writes, and
    /// that the finder of its lock reads when it is dead. Content: what the client's last user
    /// left, or zero.
    pub fn redo_addr(&self, server: ServerId) -> GlobalAddr {
        self.pool().geometry().redo_addr(server, self.inner.id)
    }

    /// The redo area on `server` of the client that a lock's word names.
    ///
    /// # Errors
    /// `Corrupt` if it is no token of this pool.
    pub fn redo_addr_of(&self, server: ServerId, token: u64) -> Result<GlobalAddr, PoolError> {
        let client = self.token_client(token)?;
        Ok(self.pool().geometry().redo_addr(server, client))
    }

    /// Bytes of a redo area.
    pub fn redo_bytes(&self) -> usize {
        self.pool().geometry().options().redo_bytes as usize
    }

    /// Whether the member that a lock's word names is dead; then it is fenced on every server and
    /// marked, and the lock may be taken over. `false` says nothing.
    ///
    /// Cost: nothing for an own token. Otherwise 1 chain of 2 READs, 1 READ, and a look by the
    /// fabric; if the member has just died, a fence per server and 1 CAS.
    ///
    /// # Errors
    /// `Corrupt` if it is no token of this pool, `Fabric`.
    pub async fn owner_is_dead(&self, token: u64) -> Result<bool, PoolError> {
        self.pool().token_is_dead(&self.inner.upkeep, token).await
    }

    pub(crate) async fn fill_tokens(&self) -> Result<(), PoolError> {
        let (next, end) = self.inner.tokens.get();
        if end - next >= TOKENS_LEAST {
            return Ok(());
        }
        let start = self.pool().more_tokens(&self.inner.upkeep, self.inner.id).await?;
        // Another task of this session may have used or added some meanwhile.
        let (next, end) = self.inner.tokens.get();
        let next = if start == end { next } else { start };
        self.inner.tokens.set((next, start + TOKEN_STEP));
        Ok(())
    }

    /// What the client table knows this session by.
    pub(crate) fn claimed(&self) -> ClaimedClient {
        let (next, end) = self.inner.tokens.get();
        ClaimedClient { id: self.inner.id, owner: self.inner.owner, tokens: next..end }
    }

    fn token_client(&self, word: u64) -> Result<u32, PoolError> {
        let clients = self.pool().geometry().options().clients_max;
        LockToken::from_word(word)
            .map(LockToken::client)
            .filter(|client| *client < clients)
            .ok_or_else(|| PoolError::Corrupt(format!("{word:#x} is no lock's token")))
    }

    fn take_retire_word(&self, addr: GlobalAddr) -> Result<Retiring, PoolError> {
        self.pool().block_of(addr)?;
        let mut retired = self.inner.retired.lock();
        let word = retired.take_word(addr.server());
        self.inner.pressed.set(retired.is_pressed());
        let word = word.ok_or(PoolError::RetireFull)?;
        Ok(Retiring { addr, word, client: self.inner.id })
    }

    fn retire_addr(&self, retiring: &Retiring) -> GlobalAddr {
        let word = usize::from(retiring.word);
        self.pool().geometry().retire_addr(retiring.addr.server(), self.inner.id, word)
    }

    #[inline]
    fn pin(&self, slot: usize) -> &AtomicU64 {
        self.inner.pool.pins.operation(self.inner.id, slot)
    }

    /// Pins the current view with a free pin. The last one is shared by those that find none; it
    /// keeps its first user's epoch, which holds back more than is needed.
    #[inline]
    fn take_pin(&self) -> usize {
        let slot = self.reserve_pin();
        if slot < SESSION_PINS - 1 || self.inner.last_pin_users.get() == 1 {
            pin_at(self.pin(slot), &self.inner.pool.epochs.view);
        }
        slot
    }

    #[inline]
    fn reserve_pin(&self) -> usize {
        let taken = self.inner.pins_taken.get();
        let slot = (taken.trailing_ones() as usize).min(SESSION_PINS - 1);
        if slot == SESSION_PINS - 1 {
            self.inner.last_pin_users.set(self.inner.last_pin_users.get() + 1);
        } else {
            self.inner.pins_taken.set(taken | 1 << slot);
        }
        slot
    }

    #[inline]
    fn drop_pin(&self, slot: usize) {
        if slot == SESSION_PINS - 1 {
            let users = self.inner.last_pin_users.get() - 1;
            self.inner.last_pin_users.set(users);
            if users > 0 {
                return;
            }
        } else {
            self.inner.pins_taken.set(self.inner.pins_taken.get() & !(1 << slot));
        }
        self.pin(slot).store(UNPINNED, Ordering::Release);
    }

    /// A second pin of the epoch that `slot` holds.
    fn double_pin(&self, slot: usize) -> usize {
        let epoch = self.pin(slot).load(Ordering::Relaxed);
        let second = self.reserve_pin();
        // The first pin holds the epoch until this store is done.
        let pin = self.pin(second);
        pin.store(epoch.min(pin.load(Ordering::Relaxed)), Ordering::SeqCst);
        second
    }
}

impl<E: Endpoint> Drop for Pinned<'_, E> {
    #[inline]
    fn drop(&mut self) {
        self.session.drop_pin(self.slot);
    }
}

impl<E: Endpoint> Drop for OwnedPin<E> {
    fn drop(&mut self) {
        self.session.inner.held.set(self.session.inner.held.get() - 1);
        self.session.drop_pin(self.slot);
    }
}

impl<E: Endpoint> Drop for Inner<E> {
    fn drop(&mut self) {
        let (next, end) = self.tokens.get();
        self.pool.forget_retirement(&self.retired);
        self.pool.closed().push(ClosedClient {
            claimed: ClaimedClient { id: self.id, owner: self.owner, tokens: next..end },
            retired: Arc::clone(&self.retired),
        });
        self.pool.sessions.fetch_sub(1, Ordering::SeqCst);
    }
}
