//! Session: one coroutine's access to the pool.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::{AnyEndpoint, Client, Endpoint, GlobalAddr, OpKind, ServerId};

use crate::clients::{ClaimedClient, ClosedClient, TOKEN_STEP};
use crate::pins::{LAST_PIN, PinSlots, SessionPins, pin_at};
use crate::placement::Placement;
use crate::reliable::{PATIENCE_NS, Reconnects, Reliable, is_open, wait_until};
use crate::retire::{Retirement, Retiring};
use crate::{LockToken, Pool, PoolError};

farleaf_fabric::canaries! {
    pub SKIP_PIN = "skip-pin", "operations do not pin the epoch that they began in";
    pub ANSWER_AS_ZOMBIE = "answer-as-zombie", "a compute server that was declared dead answers from its cache";
}

/// Tokens that are left after every `begin` and `tick`.
const TOKENS_LEAST: u64 = 1 << 16;
/// Pins of [`Session::pin_for_task`] above which the next operation waits: with its own, they leave the
/// shared pin free, whose epoch would move on only when all of its users have ended.
const TASK_PINS_MAX: usize = LAST_PIN - 1;
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
#[derive(Clone, Debug)]
pub struct Session {
    pub(crate) inner: Rc<Inner>,
    patience_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Inner {
    client: Client,
    /// As `client`, but counts as maintenance.
    maintenance: Client,
    lines: Arc<Reconnects>,
    pool: Arc<Pool>,
    pub(crate) id: u32,
    owner: u64,
    tokens: Cell<(u64, u64)>,
    pin_slots: PinSlots,
    /// Tasks that outlive their operations; see [`Session::hold`].
    held: Cell<usize>,
    /// Tasks of [`Session::pin_for_task`].
    task_pins: Cell<usize>,
    /// Tasks of [`Session::spawn`] that have not ended.
    tasks: Cell<usize>,
    /// Leaving was begun before.
    pub(crate) tried_to_leave: Cell<bool>,
    pub(crate) retired: Arc<Retirement>,
    /// A retire page is nearly full.
    pub(crate) pressed: Cell<bool>,
    pub(crate) ticking: Cell<bool>,
    pub(crate) ticks: Cell<u32>,
}

/// While it lives, no object that could be reached when it was made is reused.
#[derive(Debug)]
#[must_use = "objects are reused once it is dropped"]
pub struct Pinned<'a> {
    session: &'a Session,
    slot: usize,
}

/// As [`Pinned`], for a task that may outlive its caller.
#[derive(Debug)]
#[must_use = "objects are reused once it is dropped"]
pub struct OwnedPin {
    session: Session,
    slot: usize,
    /// The task may use the redo area.
    has_redo: bool,
}

impl Session {
    pub(crate) fn new(
        pool: &Arc<Pool>,
        client: Client,
        lines: Arc<Reconnects>,
        claimed: ClaimedClient,
    ) -> Self {
        pool.sessions.fetch_add(1, Ordering::SeqCst);
        pool.pins.enable(claimed.id);
        let maintenance = Client::new(client.endpoint().clone());
        maintenance.charge_to(OpKind::Maintenance);
        let inner = Inner {
            client,
            maintenance,
            lines,
            id: claimed.id,
            owner: claimed.owner,
            tokens: Cell::new((claimed.tokens.start, claimed.tokens.end)),
            pin_slots: PinSlots::default(),
            held: Cell::new(0),
            task_pins: Cell::new(0),
            tasks: Cell::new(0),
            tried_to_leave: Cell::new(false),
            retired: pool.new_retirement(claimed.id),
            pressed: Cell::new(false),
            ticking: Cell::new(false),
            ticks: Cell::new(0),
            pool: Arc::clone(pool),
        };
        Session { inner: Rc::new(inner), patience_ns: PATIENCE_NS }
    }

    /// The client that remote operations go through.
    #[inline]
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// The same client, with operations whose outcome is known; see [`Reliable`].
    #[inline]
    pub fn reliable(&self) -> Reliable<'_> {
        Reliable::new(&self.inner.client, &self.inner.lines, self.patience_ns)
    }

    /// As [`Session::reliable`], but counts as maintenance.
    #[inline]
    pub fn maintenance(&self) -> Reliable<'_> {
        Reliable::new(&self.inner.maintenance, &self.inner.lines, self.patience_ns)
    }

    /// This session for work that must end once begun: its operations are tried until the server
    /// can be reached, or this compute server is cut off.
    #[must_use]
    pub fn without_deadline(&self) -> Self {
        Session { inner: Rc::clone(&self.inner), patience_ns: u64::MAX }
    }

    /// Runs `task` on this thread to its end, with a patient session. Leaving waits for it.
    pub fn spawn<T>(&self, task: T)
    where
        T: AsyncFnOnce(Session) + 'static,
    {
        let session = self.without_deadline();
        session.inner.tasks.set(session.inner.tasks.get() + 1);
        self.endpoint().spawn(async move {
            let inner = Rc::clone(&session.inner);
            task(session).await;
            inner.tasks.set(inner.tasks.get() - 1);
        });
    }

    /// Waits until the tasks of [`Session::spawn`] have ended; whether they did while patience
    /// lasted.
    pub async fn finish_tasks(&self) -> bool {
        wait_until(self.reliable(), HELD_WAIT_NS, || self.inner.tasks.get() == 0).await
    }

    /// The thread's endpoint.
    #[inline]
    pub fn endpoint(&self) -> &AnyEndpoint {
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
    pub async fn begin(&self, kind: OpKind) -> Result<Pinned<'_>, PoolError> {
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
        let may_begin =
            || self.inner.held.get() == 0 && self.inner.task_pins.get() <= TASK_PINS_MAX;
        if !may_begin() && !wait_until(self.reliable(), HELD_WAIT_NS, may_begin).await {
            return Err(PoolError::Unsettled);
        }
        Ok(pinned)
    }

    /// A number that stands for what may be remembered until the next operation: a pointer to a linked
    /// object that was read at a moment still leads to that object, or to what it was when it was
    /// unlinked, as long as the moment is the same (INV-EPOCH-7). It changes when the global epoch moves
    /// on for this member, and when the member has been idle. Asked for within an operation, before what
    /// is to be remembered is read, and again before it is used. No remote operation.
    #[inline]
    pub fn moment(&self) -> u64 {
        self.inner.pool.epochs.moment()
    }

    /// The member's view of the global epoch. An address that was linked when the view of some member was
    /// `c` is handed out again only where the view is above `c` (INV-EPOCH-6): so an object that bears the
    /// view of its making tells whether a pointer that was read at `c` leads to it. Asked for within an
    /// operation. No remote operation.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.inner.pool.epochs.view.load(Ordering::SeqCst)
    }

    /// Counts an operation of `kind` that was done in this compute server's own memory and reached
    /// nothing in the pool, so that nothing had to be pinned for it.
    ///
    /// Cost: none.
    ///
    /// # Errors
    /// `Closed`: what it has found is not to be told any more.
    #[inline]
    pub fn count_local(&self, kind: OpKind) -> Result<(), PoolError> {
        self.vouch()?;
        self.inner.client.begin(kind);
        Ok(())
    }

    /// Makes sure that what this compute server has read in its own memory, and alone may change, was
    /// still its own: nobody has been told that it is dead ([`Endpoint::holds_lease`]).
    ///
    /// Cost: none.
    ///
    /// # Errors
    /// `Closed`: what it has found is not to be told any more.
    #[inline]
    pub fn vouch(&self) -> Result<(), PoolError> {
        self.inner.pool.check_open()?;
        if self.endpoint().holds_lease() || ANSWER_AS_ZOMBIE.is_armed() {
            return Ok(());
        }
        Err(PoolError::Closed)
    }

    /// A pin for a task that must end even if the operation's caller is dropped: of the oldest
    /// moment that a running operation of this session has pinned. The session's next operation
    /// begins when the task is done, since both would use the same redo area; so the task must not
    /// begin one. Called within an operation: without one there is no moment to hold.
    pub fn hold(&self) -> OwnedPin {
        self.inner.held.set(self.inner.held.get() + 1);
        OwnedPin { session: self.clone(), slot: self.double_pin(), has_redo: true }
    }

    /// As [`Session::hold`], for a task that uses no redo area: the session's next operation begins
    /// without it. Only from the third such task at one time on does the next operation wait.
    pub fn pin_for_task(&self) -> OwnedPin {
        self.inner.task_pins.set(self.inner.task_pins.get() + 1);
        OwnedPin { session: self.clone(), slot: self.double_pin(), has_redo: false }
    }

    /// Waits until the tasks with a pin of [`Session::pin_for_task`] have ended; whether they did while patience
    /// lasted. An operation that begins such a task often waits first: each task pins the oldest epoch of the session, so
    /// tasks that overlap without end would hold the first one's for ever.
    pub async fn finish_pinned_tasks(&self) -> bool {
        let is_none = || self.inner.task_pins.get() == 0;
        is_none() || wait_until(self.reliable(), HELD_WAIT_NS, is_none).await
    }

    /// A second pin of the oldest epoch that the session has pinned.
    fn double_pin(&self) -> usize {
        let (slots, pins) = (0..=LAST_PIN, self.pins());
        let oldest = slots.min_by_key(|slot| pins[*slot].load(Ordering::Relaxed)).unwrap_or(0);
        self.inner.pin_slots.double(pins, oldest)
    }

    /// Waits until a nearly full retire page has room again, for a while. Before the pin, which
    /// would hold back what is to be freed.
    #[cold]
    async fn relieve(&self) -> Result<(), PoolError> {
        let mut wait_ns = RELIEF_WAIT_NS;
        for _ in 0..RELIEF_TICKS {
            match self.tick().await {
                // What was not done is done later.
                Ok(()) => {}
                Err(PoolError::Fabric(error)) if is_open(error) => {}
                Err(error) => return Err(error),
            }
            if !self.inner.pressed.get() {
                return Ok(());
            }
            self.endpoint().sleep(wait_ns).await;
            wait_ns = (wait_ns * 2).min(RELIEF_WAIT_NS_MAX);
        }
        Ok(())
    }

    #[cold]
    async fn begin_slowly(&self, pinned: &Pinned<'_>) -> Result<(), PoolError> {
        self.inner.pool.check_open()?;
        self.fill_tokens().await?;
        self.inner.pool.ensure_live(self.maintenance()).await?;
        // The view may have been old; nothing was read yet, so the pin may move up.
        if pinned.slot < LAST_PIN {
            pin_at(&self.pins()[pinned.slot], &self.inner.pool.epochs.view);
        }
        Ok(())
    }

    /// Memory for an object of `bytes` (1 to [`crate::Geometry::object_bytes_max`]) near `place`: on the server
    /// of that number, or of [`Session::place`], and on another if it is full. It is
    /// aligned to 64 bytes, content arbitrary. It is this session's until it is linked or freed;
    /// lost if the process dies before, until its block is swept.
    ///
    /// Cost: nothing in the steady state. Otherwise the member carves a run in an own block (1 WRITE), reads a run's
    /// bitmap, or takes another block (1 READ, 1 READ for each server together, 1 CAS, 1 chain).
    ///
    /// # Errors
    /// `Full`: no memory on any server, also after trying to reclaim, and who has it; the object that this operation's own pin
    /// holds back may be had after it. `Invalid` (no such server or too large), `Fabric`, `Corrupt`.
    pub async fn alloc(
        &self,
        place: impl Into<Placement>,
        bytes: usize,
    ) -> Result<GlobalAddr, PoolError> {
        self.alloc_object(place.into(), false, bytes).await
    }

    /// As [`Session::alloc`], on no other server.
    ///
    /// # Errors
    /// As [`Session::alloc`]; `Full` if that server is.
    pub async fn alloc_on(&self, on: ServerId, bytes: usize) -> Result<GlobalAddr, PoolError> {
        self.alloc_object(on.into(), true, bytes).await
    }

    /// Gives the block of a linked object to whichever member next needs memory, if this member has taken nothing
    /// else from it: for an object that stays the only one for long. A task does it.
    ///
    /// Cost: a batch of CAS per 64 words of the block's bitmap, and 1 CAS.
    pub fn hand_on(&self, addr: GlobalAddr) {
        let Some((block, _)) = self.pool().geometry().block_of(addr) else { return };
        let removed = self.pool().alloc().remove_handed_on(block);
        let Some((word, left)) = removed else {
            self.pool().alloc().note_handed_on(addr);
            return;
        };
        self.spawn(async move |session| {
            // If that fails, the block is in limbo, and a later tick gives it up.
            let _ = session.pool().abandon(session.maintenance(), block, word, left).await;
        });
    }

    /// Frees an object that this member allocated and that was never linked. No remote operation.
    ///
    /// # Panics
    /// If the member owns no such object, or it is free already.
    pub fn free_unpublished(&self, addr: GlobalAddr, bytes: usize) {
        let pool = self.pool();
        let freed = pool.alloc().free(addr);
        assert_eq!(freed, Ok(true), "{bytes} bytes at {addr} cannot be freed");
    }

    /// Makes room for the retirement of the object at `addr`, which is going to be unlinked. Before the
    /// unlinking, so that there is no object that is unlinked and cannot be retired. Should this process
    /// die between the unlinking and its next tick, an object of its own blocks is found by the recovery, one
    /// of another's block is lost until that is swept.
    ///
    /// Cost: no remote operation, unless there is no room before some ticks.
    ///
    /// # Errors
    /// `RetireFull`: too many retired objects wait, also after some ticks; nothing was done.
    /// `Corrupt` if the address is in no block. `Fabric`.
    pub async fn prepare_retire(&self, addr: GlobalAddr) -> Result<Retiring, PoolError> {
        let mut ticks = 0;
        loop {
            match self.make_room(addr) {
                Err(PoolError::RetireFull) if ticks < RETIRE_TICKS => {
                    ticks += 1;
                    self.tick().await?;
                }
                result => return result,
            }
        }
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

    pub(crate) async fn fill_tokens(&self) -> Result<(), PoolError> {
        let (next, end) = self.inner.tokens.get();
        if end - next >= TOKENS_LEAST {
            return Ok(());
        }
        let start = self.pool().more_tokens(self.maintenance(), self.inner.id, end).await?;
        // Another task of this session may have used or added some meanwhile.
        let (next, end) = self.inner.tokens.get();
        let next = if start == end { next } else { start };
        self.inner.tokens.set((next, start + TOKEN_STEP));
        Ok(())
    }

    fn token_client(&self, word: u64) -> Result<u32, PoolError> {
        let clients = self.pool().geometry().options().clients_max;
        LockToken::from_word(word)
            .map(LockToken::client)
            .filter(|client| *client < clients)
            .ok_or_else(|| PoolError::Corrupt(format!("{word:#x} is no lock's token")))
    }

    #[inline]
    fn pins(&self) -> &SessionPins {
        self.inner.pool.pins.operations(self.inner.id)
    }

    #[inline]
    fn take_pin(&self) -> usize {
        if SKIP_PIN.is_armed() {
            return self.inner.pin_slots.reserve(0);
        }
        self.inner.pin_slots.take(self.pins(), &self.inner.pool.epochs.view)
    }

    #[inline]
    fn drop_pin(&self, slot: usize) {
        self.inner.pin_slots.release(self.pins(), slot);
    }
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        self.session.drop_pin(self.slot);
    }
}

impl Drop for OwnedPin {
    fn drop(&mut self) {
        let inner = &self.session.inner;
        let count = if self.has_redo { &inner.held } else { &inner.task_pins };
        count.set(count.get() - 1);
        self.session.drop_pin(self.slot);
    }
}

impl Inner {
    /// Returns what is left to do about this session's client once the session has ended.
    pub(crate) fn closed(&self) -> ClosedClient {
        let (next, end) = self.tokens.get();
        ClosedClient {
            claimed: ClaimedClient { id: self.id, owner: self.owner, tokens: next..end },
            retired: Arc::clone(&self.retired),
            tried: self.tried_to_leave.get(),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.pool.forget_retirement(&self.retired);
        self.pool.closed().push(self.closed());
        self.pool.sessions.fetch_sub(1, Ordering::SeqCst);
    }
}
