//! Reliable operations: settle the outcome of an operation whose completion was lost.
//!
//! An operation that fails with `Timeout` or `Unavailable` has happened, or has not, or happens later
//! (F5). After the thread has reconnected to that server, it can no longer happen later (F10). The
//! thread then removes the remaining doubt by mark the same operation once more:
//!
//! - **READ**: nothing has happened.
//! - **WRITE** to memory that nobody else writes: the same bytes again.
//! - **CAS to a word that only this one makes**, and that nobody takes away again before it returns (a
//!   lock's token, a block's next version): if the word holds it already, it was the first try's doing.
//!   [`Reliable::cas`]. If others may take it away at once, the next kind is needed:
//! - **CAS away from a word that only this one holds**: if it is gone, the first try took it away.
//!   [`Reliable::cas_release`].
//! - **Chain that ends with such a release**: while the word is still held, the whole chain again;
//!   once it is gone, all in front of it was done (F3). [`Reliable::release`].
//!
//! INV-SETTLE-1: no operation here returns while its posts may still take effect, except with an error:
//! then the server was out of reach for as long as the caller allows. A task of a session without bound
//! ([`crate::Session::without_deadline`]) then finishes work that must not stay half done.
//! INV-SETTLE-2: `Fenced` is final: no operation tries again.
//!
//! Reconnecting fails what the thread's other tasks have in flight. So that tasks do not chase one
//! another, one reconnect serves all whose operations were posted before it began.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use farleaf_fabric::{
    AnyEndpoint, Buf, Client, Endpoint, GlobalAddr, Incarnation, Op, OpError, OpErrorKind, Ops,
    ServerId,
};

use crate::on_drop::OnDrop;

farleaf_fabric::canaries! {
    pub SETTLE_WITHOUT_RECONNECT = "settle-without-reconnect",
        "what became of a lost operation is looked at while it may still happen";
    pub REGION_UNSETTLED = "region-unsettled",
        "an operation on a region is posted again without a reconnect";
}

/// Time for which a session tries an operation that a caller waits for. Then it is `Unavailable`, or its
/// outcome unknown.
pub(crate) const PATIENCE_NS: u64 = 1_000_000_000;
/// Factor by which waits are longer while no memory server fails: the machine is busy then, or a compute server
/// that has just died is not known to be dead yet.
const PATIENCE_WHILE_BUSY: u64 = 10;
/// First and longest wait between two tries.
const BACKOFF_NS: (u64, u64) = (2_000, 2_000_000);
/// First wait between looks whether another task's reconnect is done.
const BUSY_WAIT_NS: u64 = 2_000;
/// Longest wait between looks whether a task is done.
const WAIT_NS_MAX: u64 = 1_000_000;

/// One thread's reconnects.
#[derive(Debug)]
pub(crate) struct Reconnects {
    /// Reconnects begun, to any server.
    begun: AtomicU64,
    servers: Box<[ServerReconnects]>,
    /// To compute servers whose regions have failed once.
    peers: Mutex<BTreeMap<ServerId, Arc<ServerReconnects>>>,
    /// The member's, over all of its threads.
    failures: Arc<ServerFailures>,
}

/// Failures of memory servers that a member has seen.
#[derive(Debug, Default)]
struct ServerFailures {
    /// Time of the last failed operation.
    failed_ns: AtomicU64,
    /// Operations that have failed and are not being tried again yet.
    settling: AtomicUsize,
}

impl ServerFailures {
    /// Notes a failed operation, which is settling until what this returns is dropped.
    fn note(&self, now_ns: u64) -> OnDrop<impl FnMut()> {
        self.failed_ns.fetch_max(now_ns, Ordering::SeqCst);
        self.settling.fetch_add(1, Ordering::SeqCst);
        OnDrop(|| {
            self.settling.fetch_sub(1, Ordering::SeqCst);
        })
    }

    /// Tells whether a memory server has failed the member since then.
    fn since(&self, begun_ns: u64) -> bool {
        self.settling.load(Ordering::SeqCst) > 0 || self.failed_ns.load(Ordering::SeqCst) > begun_ns
    }
}

#[derive(Debug, Default)]
struct ServerReconnects {
    /// Number of the latest reconnect that succeeded.
    ended: AtomicU64,
    /// One is under way.
    busy: AtomicBool,
}

impl Reconnects {
    /// Those of a member's first thread.
    pub(crate) fn new(servers: usize) -> Self {
        let servers = (0..servers).map(|_| ServerReconnects::default()).collect();
        let (begun, peers, failures) = (AtomicU64::new(0), Mutex::default(), Arc::default());
        Reconnects { begun, servers, peers, failures }
    }

    /// The reconnects to a compute server.
    fn to_peer(&self, server: ServerId) -> Arc<ServerReconnects> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(peers.entry(server).or_default())
    }

    /// Those of another thread of the same member.
    pub(crate) fn of_another_thread(&self) -> Self {
        Reconnects { failures: Arc::clone(&self.failures), ..Reconnects::new(self.servers.len()) }
    }
}

/// One try at an operation: how many reconnects had begun before it was posted. Each try takes its own,
/// last of all before it is posted: one that began in between, for something else, is no proof of it.
#[derive(Debug)]
#[must_use = "a try that fails is settled by what was known before it was posted"]
pub struct PostMark(u64);

/// Tries at one operation: since when it has been failing.
#[derive(Debug, Default)]
pub struct Tries {
    failing_since_ns: u64,
    failures: u32,
}

impl Tries {
    /// Tells whether an earlier try may have taken effect.
    #[inline]
    pub fn in_doubt(&self) -> bool {
        self.failures > 0
    }
}

/// A client whose operations have known outcomes, as far as its servers can be reached in time. See
/// the module's page.
///
/// Costs are those of [`Client`]; each failure adds at most one reconnect and the same again.
#[derive(Clone, Copy, Debug)]
pub struct Reliable<'a> {
    client: &'a Client,
    reconnects: &'a Reconnects,
    patience_ns: u64,
}

/// A CAS of a list; see [`Reliable::cas_many`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cas {
    /// The word, 8-byte aligned.
    pub at: GlobalAddr,
    /// The content that the CAS replaces.
    pub expected: u64,
    /// The new content.
    pub new: u64,
}

impl<'a> Reliable<'a> {
    pub(crate) fn new(client: &'a Client, reconnects: &'a Reconnects, patience_ns: u64) -> Self {
        Reliable { client, reconnects, patience_ns }
    }

    /// The client below.
    #[inline]
    pub fn client(self) -> &'a Client {
        self.client
    }

    /// The thread's endpoint.
    #[inline]
    pub fn endpoint(self) -> &'a AnyEndpoint {
        self.client.endpoint()
    }

    /// A buffer; see [`Client::buf`].
    #[inline]
    pub fn buf(self, len: usize) -> Buf {
        self.client.buf(len)
    }

    /// The same, trying for ever.
    #[must_use]
    pub fn without_deadline(self) -> Self {
        Reliable { patience_ns: u64::MAX, ..self }
    }

    /// An operation is about to be posted.
    #[inline]
    pub fn post_mark(self) -> PostMark {
        PostMark(self.reconnects.begun.load(Ordering::SeqCst))
    }

    /// After a try at an operation on `error.server` has failed: returns once neither this one nor an
    /// earlier one takes effect any more, and it is time for the next.
    ///
    /// # Errors
    /// `error` itself if it is final; the last one if patience is at an end: earlier tries may still
    /// take effect.
    #[cold]
    pub async fn again(
        self,
        tries: &mut Tries,
        mark: PostMark,
        error: OpError,
    ) -> Result<(), OpError> {
        self.again_on(tries, mark, error, &[error.server]).await
    }

    /// As [`Reliable::again`] for a batch to several servers.
    pub(crate) async fn again_on(
        self,
        tries: &mut Tries,
        mark: PostMark,
        error: OpError,
        servers: &[ServerId],
    ) -> Result<(), OpError> {
        // Boxed: every operation's future has room for this, and hardly ever needs it.
        Box::pin(self.again_on_all(tries, mark, error, servers)).await
    }

    async fn again_on_all(
        self,
        tries: &mut Tries,
        mark: PostMark,
        error: OpError,
        servers: &[ServerId],
    ) -> Result<(), OpError> {
        if !is_open(error) {
            return Err(error);
        }
        let now_ns = self.endpoint().now_ns();
        let is_compute = error.server.is_compute();
        let _settling = (!is_compute).then(|| self.reconnects.failures.note(now_ns));
        if tries.failures == 0 {
            tries.failing_since_ns = now_ns;
        }
        tries.failures += 1;
        if tries.failures > 2 {
            if now_ns - tries.failing_since_ns >= self.patience_ns {
                return Err(error);
            }
            self.back_off(tries.failures - 2).await;
        }
        for server in servers {
            let canary = match server.is_compute() {
                true => &REGION_UNSETTLED,
                false => &SETTLE_WITHOUT_RECONNECT,
            };
            if !canary.is_armed() {
                self.renew(*server, &mark, tries.failing_since_ns).await?;
            }
        }
        Ok(())
    }

    /// As [`Reliable::again`] for a fence at a compute server. It needs no reconnect, since it may arrive twice.
    pub(crate) async fn fence_again(
        self,
        tries: &mut Tries,
        error: OpError,
    ) -> Result<(), OpError> {
        if !is_open(error) {
            return Err(error);
        }
        let now_ns = self.endpoint().now_ns();
        if tries.failures == 0 {
            tries.failing_since_ns = now_ns;
        }
        tries.failures += 1;
        if tries.failures > 2 {
            if now_ns - tries.failing_since_ns >= self.busy_ns() {
                return Err(error);
            }
            self.back_off(tries.failures - 2).await;
        }
        Ok(())
    }

    /// Returns once a reconnect to `server` that began after `mark` has succeeded.
    async fn renew(
        self,
        server: ServerId,
        mark: &PostMark,
        failing_since_ns: u64,
    ) -> Result<(), OpError> {
        let peer = server.is_compute().then(|| self.reconnects.to_peer(server));
        let line = peer.as_deref().unwrap_or_else(|| &self.reconnects.servers[server.index()]);
        let mut attempt = 0;
        let mut last = OpError { server, kind: OpErrorKind::Unavailable };
        while line.ended.load(Ordering::SeqCst) <= mark.0 {
            let waited_ns = self.endpoint().now_ns() - failing_since_ns;
            if attempt > 0 && waited_ns >= self.patience_ns {
                return Err(last);
            }
            if line.busy.swap(true, Ordering::SeqCst) {
                self.endpoint().sleep(BUSY_WAIT_NS << attempt.min(8)).await;
                attempt += 1;
                continue;
            }
            let busy = OnDrop(|| line.busy.store(false, Ordering::SeqCst));
            let number = self.reconnects.begun.fetch_add(1, Ordering::SeqCst) + 1;
            match self.client.reconnect(server).await {
                Ok(()) => {
                    line.ended.fetch_max(number, Ordering::SeqCst);
                }
                Err(error) if is_open(error) => {
                    last = error;
                    drop(busy);
                    attempt += 1;
                    self.back_off(attempt).await;
                }
                // Another thread has learned that its life has ended.
                Err(_) if self.is_detached(server) => {
                    return Err(OpError { server, kind: OpErrorKind::Unavailable });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns whether the number of a compute server stands for nobody.
    fn is_detached(self, server: ServerId) -> bool {
        let endpoint = self.endpoint();
        server.is_compute()
            && endpoint.own_region().is_none_or(|own| own.number != server)
            && endpoint.peers().iter().all(|peer| peer.server != server)
    }

    async fn back_off(self, attempt: u32) {
        let most = (BACKOFF_NS.0 << attempt.min(16)).min(BACKOFF_NS.1);
        let ns = most / 2 + self.endpoint().random() % (most / 2 + 1);
        self.endpoint().sleep(ns).await;
    }

    /// Returns once nothing that this thread has posted to `server` before takes effect any more.
    ///
    /// # Errors
    /// Patience is at an end, or this compute server has been cut off.
    pub async fn settle(self, server: ServerId) -> Result<(), OpError> {
        let error = OpError { server, kind: OpErrorKind::Timeout };
        self.again(&mut Tries::default(), self.post_mark(), error).await
    }

    /// READ, until it succeeds.
    ///
    /// # Errors
    /// As [`Endpoint::read`]; nothing was done.
    pub async fn read(self, from: GlobalAddr, into: Buf) -> Result<Buf, OpError> {
        let (len, window) = (into.len(), window_of(&into));
        let (mut tries, mut mark) = (Tries::default(), self.post_mark());
        let mut posted = self.client.read(from, into).await;
        while let Err(error) = posted {
            self.again(&mut tries, mark, error).await?;
            mark = self.post_mark();
            posted = self.client.read(from, self.buf(len).window(window.clone())).await;
        }
        posted
    }

    /// After a READ of `from` into a buffer of `len` bytes, posted after `mark`, has failed: as
    /// [`Reliable::read`].
    ///
    /// # Errors
    /// As [`Reliable::read`].
    #[cold]
    pub async fn read_again(
        self,
        mut mark: PostMark,
        mut error: OpError,
        from: GlobalAddr,
        len: usize,
    ) -> Result<Buf, OpError> {
        let mut tries = Tries::default();
        loop {
            self.again(&mut tries, mark, error).await?;
            mark = self.post_mark();
            match self.client.read(from, self.buf(len)).await {
                Ok(buf) => return Ok(buf),
                Err(again) => error = again,
            }
        }
    }

    /// Reads one word.
    ///
    /// # Errors
    /// As [`Reliable::read`].
    pub async fn word(self, at: GlobalAddr) -> Result<u64, OpError> {
        Ok(self.read(at, self.buf(8)).await?.words()[0])
    }

    /// Reads words, together.
    ///
    /// # Errors
    /// As [`Reliable::read`].
    pub(crate) async fn words(
        self,
        at: impl Iterator<Item = GlobalAddr>,
    ) -> Result<Vec<u64>, OpError> {
        let mut ops = self.client.ops();
        at.for_each(|at| {
            ops.read(at, self.buf(8));
        });
        if ops.is_empty() {
            return Ok(Vec::new());
        }
        let (count, ops) = (ops.len(), self.post_many(ops).await?);
        Ok((0..count).map(|index| ops.buf(index).words()[0]).collect())
    }

    /// WRITE to memory that nobody else writes, until it has happened.
    ///
    /// # Errors
    /// As [`Endpoint::write`].
    pub async fn write(self, to: GlobalAddr, from: Buf) -> Result<(), OpError> {
        let spare = self.spare(&from);
        let (mut tries, mut mark) = (Tries::default(), self.post_mark());
        let mut posted = self.client.write(to, from).await;
        while let Err(error) = posted {
            let Some(spare) = &spare else { return Err(error) };
            self.again(&mut tries, mark, error).await?;
            mark = self.post_mark();
            posted = self.client.write(to, self.copy(spare)).await;
        }
        posted.map(drop)
    }

    /// WRITE of one word that nobody else writes.
    pub(crate) async fn write_word(self, to: GlobalAddr, value: u64) -> Result<(), OpError> {
        let mut buf = self.buf(8);
        buf.words_mut()[0] = value;
        self.write(to, buf).await
    }

    /// CAS to a word that nobody but the caller ever stores there, and that nobody takes away before
    /// this has returned. The word that was there: `expected` if the change has happened.
    ///
    /// # Errors
    /// As [`Endpoint::cas`].
    pub async fn cas(self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64, OpError> {
        let mut tries = Tries::default();
        loop {
            let mark = self.post_mark();
            match self.client.cas(at, expected, new).await {
                Ok(found) if tries.in_doubt() && found == new => return Ok(expected),
                Ok(found) => return Ok(found),
                Err(error) => self.again(&mut tries, mark, error).await?,
            }
        }
    }

    /// CAS from a word that nobody but the caller changes. The word that was there: `own` if the
    /// change has happened.
    ///
    /// # Errors
    /// As [`Endpoint::cas`].
    pub async fn cas_release(self, at: GlobalAddr, own: u64, new: u64) -> Result<u64, OpError> {
        let mut tries = Tries::default();
        loop {
            let mark = self.post_mark();
            match self.client.cas(at, own, new).await {
                Ok(_) if tries.in_doubt() => return Ok(own),
                Ok(found) => return Ok(found),
                Err(error) => self.again(&mut tries, mark, error).await?,
            }
        }
    }

    /// CASes of the kind of [`Reliable::cas`], posted together, also to several servers. Returns the word
    /// that each found, in the order of `list`: `expected` if its change has happened. Several clients may
    /// store the same `new` if it means the same from all of them, as a frozen word does.
    ///
    /// Cost: 1 CAS each, 1 round trip.
    ///
    /// # Errors
    /// As [`Endpoint::cas`]: any of them may have happened, or may still happen.
    pub async fn cas_many(self, list: &[Cas]) -> Result<Vec<u64>, OpError> {
        let mut tries = Tries::default();
        loop {
            let mut ops = self.client.ops();
            for cas in list {
                ops.cas(cas.at, cas.expected, cas.new);
            }
            let mark = self.post_mark();
            match self.client.post_many(ops).await {
                Ok(ops) => {
                    let found = list.iter().enumerate().map(|(index, cas)| match ops.old(index) {
                        found if tries.in_doubt() && found == cas.new => cas.expected,
                        found => found,
                    });
                    return Ok(found.collect());
                }
                Err(error) => {
                    let servers = servers_of(list.iter().map(|cas| cas.at));
                    self.again_on(&mut tries, mark, error, &servers).await?;
                }
            }
        }
    }

    /// READs, and WRITEs to memory that nobody else writes, posted together.
    ///
    /// # Errors
    /// As [`Endpoint::post_many`].
    pub async fn post_many(self, ops: Ops) -> Result<Ops, OpError> {
        let spare = self.spare_ops(&ops);
        let (mut tries, mut mark) = (Tries::default(), self.post_mark());
        let mut posted = self.client.post_many(ops).await;
        while let Err(error) = posted {
            let Some(spare) = &spare else { return Err(error) };
            let servers = servers_of(spare.iter().map(Op::addr));
            self.again_on(&mut tries, mark, error, &servers).await?;
            mark = self.post_mark();
            posted = self.client.post_many(self.copy_ops(spare)).await;
        }
        posted
    }

    /// A list of any operations, CASes too, posted once; `None` if a completion was lost. Then nothing of it takes effect
    /// any more, on no server, and the caller finds out what did.
    ///
    /// # Errors
    /// As [`Reliable::again`].
    pub async fn post_once(self, ops: Ops) -> Result<Option<Ops>, OpError> {
        let servers = servers_of(ops.iter().map(Op::addr));
        let mark = self.post_mark();
        match self.client.post_many(ops).await {
            Ok(ops) => Ok(Some(ops)),
            Err(error) => {
                self.again_on(&mut Tries::default(), mark, error, &servers).await?;
                Ok(None)
            }
        }
    }

    /// A chain that may be repeated: of READs, of WRITEs to memory that nobody else writes, and of
    /// CASes of the kind of [`Reliable::cas`], whose result is then either word. Also says whether it
    /// was.
    ///
    /// # Errors
    /// As [`Endpoint::chain`].
    pub async fn chain(self, build: impl Fn(&mut Ops)) -> Result<(Ops, bool), OpError> {
        let mut tries = Tries::default();
        loop {
            let mut ops = self.client.ops();
            build(&mut ops);
            let mark = self.post_mark();
            match self.client.chain(ops).await {
                Ok(ops) => return Ok((ops, tries.in_doubt())),
                Err(error) => self.again(&mut tries, mark, error).await?,
            }
        }
    }

    /// A chain whose last operation takes `own` away from `word`, and that may be repeated until
    /// that has happened.
    ///
    /// # Errors
    /// As [`Endpoint::chain`].
    pub async fn release(
        self,
        word: GlobalAddr,
        own: u64,
        build: impl Fn(&mut Ops),
    ) -> Result<(), OpError> {
        let mut tries = Tries::default();
        loop {
            let mut ops = self.client.ops();
            build(&mut ops);
            let mark = self.post_mark();
            let Err(error) = self.client.chain(ops).await else { return Ok(()) };
            self.again(&mut tries, mark, error).await?;
            if self.word(word).await? != own {
                return Ok(());
            }
        }
    }

    /// Cuts off a dead compute server from every server.
    ///
    /// # Errors
    /// As [`Endpoint::fence`].
    pub async fn fence_everywhere(self, who: Incarnation) -> Result<(), OpError> {
        let (mut tries, mut mark) = (Tries::default(), self.post_mark());
        while let Err(error) = self.client.fence_everywhere(who).await {
            if error.server.is_compute() {
                self.fence_again(&mut tries, error).await?;
            } else {
                self.again(&mut tries, mark, error).await?;
            }
            mark = self.post_mark();
        }
        Ok(())
    }

    /// A copy of what is about to be written, where it may have to be written again.
    pub fn spare(self, buf: &Buf) -> Option<Buf> {
        self.endpoint().is_lossy().then(|| self.copy(buf))
    }

    /// A copy of a buffer.
    pub fn copy(self, buf: &Buf) -> Buf {
        let mut copy = self.buf(buf.len());
        copy.words_mut().copy_from_slice(buf.words());
        copy.window(window_of(buf))
    }

    /// As [`Reliable::spare`], of a list.
    pub fn spare_ops(self, ops: &Ops) -> Option<Ops> {
        self.endpoint().is_lossy().then(|| self.copy_ops(ops))
    }

    fn copy_ops(self, ops: &Ops) -> Ops {
        let mut copy = self.client.ops();
        self.copy_into(ops, &mut copy);
        copy
    }

    /// Adds copies of all operations of `ops` to `copy`.
    pub fn copy_into(self, ops: &Ops, copy: &mut Ops) {
        for op in ops.iter() {
            match op {
                Op::Read { from, into } => {
                    copy.read(*from, self.buf(into.len()).window(window_of(into)))
                }
                Op::Write { to, from } => copy.write(*to, self.copy(from)),
                Op::WriteWord { to, value } => copy.write_word(*to, *value),
                Op::Cas { at, expected, new, .. } => copy.cas(*at, *expected, *new),
                Op::Faa { at, add, .. } => copy.faa(*at, *add),
            };
        }
    }

    /// Returns the result of `work`, unless that takes longer than the session's time limit. If no memory
    /// server has failed this member meanwhile, the limit is ten times as long.
    pub async fn within<T>(self, work: impl Future<Output = T>) -> Option<T> {
        if self.patience_ns == u64::MAX || !self.endpoint().is_lossy() {
            return Some(work.await);
        }
        let mut work = pin!(work);
        let mut begun_ns = None;
        loop {
            let mut sleep = pin!(self.endpoint().sleep(self.patience_ns));
            let done = poll_fn(|context| match work.as_mut().poll(context) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
            });
            let done = done.await;
            // Not before: hardly anybody waits for so long, and asking for the time costs.
            let begun = || self.endpoint().now_ns().saturating_sub(self.patience_ns);
            if done.is_some() || self.gives_up(*begun_ns.get_or_insert_with(begun)) {
                return done;
            }
        }
    }

    /// Tells whether a task that waits since then for another's work has waited for long enough.
    fn gives_up(self, begun_ns: u64) -> bool {
        let waited_ns = self.endpoint().now_ns() - begun_ns;
        waited_ns >= self.patience_ns
            && (waited_ns >= self.busy_ns() || self.reconnects.failures.since(begun_ns))
    }

    /// The time limit while no memory server fails.
    fn busy_ns(self) -> u64 {
        self.patience_ns.saturating_mul(PATIENCE_WHILE_BUSY)
    }
}

/// Tells whether the operation may have happened, and the server may be reached again.
pub fn is_open(error: OpError) -> bool {
    matches!(error.kind, OpErrorKind::Timeout | OpErrorKind::Unavailable)
}

fn window_of(buf: &Buf) -> std::ops::Range<usize> {
    buf.window_start()..buf.window_start() + buf.window_len()
}

pub(crate) fn servers_of(addrs: impl Iterator<Item = GlobalAddr>) -> Vec<ServerId> {
    let mut servers: Vec<ServerId> = addrs.map(GlobalAddr::server).collect();
    servers.sort_unstable();
    servers.dedup();
    servers
}

/// Waits for `done` to become true, for as long as the caller has patience; whether it did.
pub(crate) async fn wait_until(
    reliable: Reliable<'_>,
    wait_ns: u64,
    done: impl Fn() -> bool,
) -> bool {
    let since_ns = reliable.endpoint().now_ns();
    while !done() {
        let waited_ns = reliable.endpoint().now_ns() - since_ns;
        if reliable.gives_up(since_ns) {
            return false;
        }
        // Rarely, where it takes long.
        reliable.endpoint().sleep(wait_ns.max(waited_ns / 16).min(WAIT_NS_MAX)).await;
    }
    true
}
