//! Forwarding: sends operations on other compute servers' keys to their owners.
//!
//! An operation on a foreign key is never begun here: it is passed on as a whole, once. Who does not
//! own the key either says so and has done nothing; then the map is read again and the operation goes
//! where that leads, a bounded number of times. How it travels is the cluster's business
//! ([`Forward`]; [`super::Cluster`] within one process).
//!
//! - `INV-DEX-FWD-1` A change is done at most once: it is sent again only after an answer that says that
//!   it was not begun. If there is no answer, its outcome is unknown.
//! - `INV-DEX-FWD-2` Whoever serves a request is inside the gate for its key, as for an own operation.

use std::fmt;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::ops::Bound;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use farleaf_fabric::{Endpoint, Incarnation, OpKind};
use farleaf_pool::Session;
use farleaf_pool::canary::Canary;

use super::repartition::{MoveError, PartLoad};
use super::walk::Seek;
use super::{Cache, Dex};
use crate::blink::remote::{Passage, RemoteTree};
use crate::change::{Change, Outcome};
use crate::index::{Exchange, ScanRange};
use crate::{Entries, IndexError};

/// Pairs that an owner is asked for at a time.
const PAIRS_ASKED_MAX: usize = 512;
/// Times that an operation is passed on before it fails.
const HOPS_MAX: u32 = 1_000;
/// How long a reply is waited for before the owner's life is looked at.
const ALIVE_CHECK_NS: u64 = 2_000_000;
/// Tries after which one in real time waits longer for the next, and how long.
const QUICK_TRIES: u32 = 16;
const PAUSE_NS: u64 = 1_000_000;

/// A key that belongs to a partition of another compute server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongOwner {
    /// The partition.
    pub partition: usize,
    /// Who serves it; nobody at the moment if there is none.
    pub owner: Option<Incarnation>,
    /// Epoch of the ownership map.
    pub epoch: u64,
}

impl fmt::Display for WrongOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongOwner { partition, owner, epoch } = self;
        write!(f, "the key belongs to partition {partition} (map of epoch {epoch})")?;
        match owner {
            Some(owner) => write!(f, ", which compute server {owner} serves"),
            None => write!(f, ", which nobody serves: open it first"),
        }
    }
}

/// What travels to another compute server: an operation to its key's owner, whose fields are those of
/// [`crate::Index`]'s methods, or what concerns the server itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as the methods' parameters")]
pub enum Request {
    Get {
        key: Vec<u8>,
    },
    Insert {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Update {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Upsert {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Remove {
        key: Vec<u8>,
    },
    CompareExchange {
        key: Vec<u8>,
        expected: Option<Vec<u8>>,
        new: Option<Vec<u8>>,
    },
    Scan {
        from: Bound<Vec<u8>>,
        to: Bound<Vec<u8>>,
        reverse: bool,
        limit: usize,
    },
    /// Are you there?
    Hello,
    /// The map is of this epoch by now; it may give you something.
    Learn {
        epoch: u64,
    },
    /// Give the keys of `(low, high]`, which are yours, to another.
    Give {
        low: Option<Vec<u8>>,
        high: Option<Vec<u8>>,
        to: Incarnation,
    },
    /// Give a part of what you have to another, about half of its load.
    Share {
        to: Incarnation,
    },
    /// How much is done on what you have; `decay` forgets half of it.
    Load {
        decay: bool,
    },
}

/// Whether operations of this kind report whether the key was absent, not whether it was present.
fn adds_absent(kind: OpKind) -> bool {
    matches!(kind, OpKind::Insert | OpKind::Upsert)
}

impl Request {
    /// The request that carries `change`.
    fn of(change: &Change<'_>) -> Self {
        let key = change.key.to_vec();
        let value = change.value.map(<[u8]>::to_vec);
        match (change.kind, value) {
            (OpKind::Insert, Some(value)) => Request::Insert { key, value },
            (OpKind::Update, Some(value)) => Request::Update { key, value },
            (OpKind::Upsert, Some(value)) => Request::Upsert { key, value },
            (OpKind::Remove, None) => Request::Remove { key },
            (_, new) => {
                let expected = change.expected.flatten().map(<[u8]>::to_vec);
                Request::CompareExchange { key, expected, new }
            }
        }
    }

    /// The change that it carries; `None` if it carries none.
    fn change(&self) -> Option<Change<'_>> {
        Some(match self {
            Request::Insert { key, value } => Change::insert(key, value),
            Request::Update { key, value } => Change::update(key, value),
            Request::Upsert { key, value } => Change::upsert(key, value),
            Request::Remove { key } => Change::remove(key),
            Request::CompareExchange { key, expected, new } => {
                Change::compare_exchange(key, expected.as_deref(), new.as_deref())
            }
            _ => return None,
        })
    }

    /// Where it belongs; `None` if it is for one compute server and not for a key.
    fn seek(&self) -> Option<Seek<'_>> {
        match self {
            Request::Get { key }
            | Request::Insert { key, .. }
            | Request::Update { key, .. }
            | Request::Upsert { key, .. }
            | Request::Remove { key }
            | Request::CompareExchange { key, .. } => Some(Seek::At(key)),
            Request::Scan { from, to, reverse, .. } => Some(match (reverse, from, to) {
                (false, Bound::Unbounded, _) => Seek::First,
                (false, Bound::Included(key), _) => Seek::At(key),
                (false, Bound::Excluded(key), _) => Seek::After(key),
                (true, _, Bound::Unbounded) => Seek::Last,
                (true, _, Bound::Included(key) | Bound::Excluded(key)) => Seek::At(key),
            }),
            _ => None,
        }
    }

    /// Whether it changes nothing, so that it may be done again.
    pub fn is_read(&self) -> bool {
        matches!(
            self,
            Request::Get { .. }
                | Request::Scan { .. }
                | Request::Hello
                | Request::Learn { .. }
                | Request::Load { .. }
        )
    }
}

/// What became of a [`Request`].
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Of a get.
    Value(Option<Vec<u8>>),
    /// Of a change, as its method returns it.
    Done(bool),
    /// Of a compare-exchange, and what the key held.
    Exchanged(Exchange, Option<Vec<u8>>),
    /// Of a scan.
    Pairs(Entries),
    /// The first pairs of a scan, at least one; there may be more.
    Part(Entries),
    /// Nothing was done: the key is not here, by the map of this epoch.
    WrongOwner {
        /// The epoch.
        epoch: u64,
    },
    /// Nothing was done: nobody is there.
    Gone,
    /// Of a move: the map's epoch after it.
    Moved(Result<u64, MoveError>),
    /// Of a question for the load.
    Load(Vec<PartLoad>),
}

/// The reply, once it is there.
pub type Replied = Pin<Box<dyn Future<Output = Result<Reply, IndexError>> + Send>>;

/// Carries operations to other compute servers.
pub trait Forward: fmt::Debug + Send + Sync {
    /// Sends `request` to the owner that `to` names, whose [`Dex::serve`] answers it.
    ///
    /// If it is not known whether a change has happened, the reply is `OutcomeUnknown`; it must not be
    /// sent twice. If nobody is there who could have begun it, the reply is [`Reply::Gone`].
    fn forward(&self, to: WrongOwner, request: Request) -> Replied;

    /// How long a message takes, one way, beside what `forward` takes by itself: the caller waits
    /// that long before and after.
    fn latency_ns(&self) -> u64 {
        0
    }

    /// How long an operation may be passed on, and wait for replies, before it fails; `None` for as long
    /// as its owner lives.
    fn patience_ns(&self) -> Option<u64> {
        None
    }

    /// How long a reply is waited for before it is asked whether the owner lives.
    fn alive_check_ns(&self) -> u64 {
        ALIVE_CHECK_NS
    }

    /// Whether it is to be told where `who` can be asked, before anything is sent there.
    fn wants_address(&self, _who: Incarnation) -> bool {
        false
    }

    /// Where `who` can be asked, by the pool's list of members.
    fn learn_address(&self, _who: Incarnation, _address: SocketAddr) {}
}

/// How much longer an operation is passed on.
#[derive(Clone, Copy, Debug)]
struct Patience {
    tries: u32,
    until_ns: Option<u64>,
}

impl Patience {
    fn is_over(self, now_ns: u64) -> bool {
        match self.until_ns {
            Some(until_ns) => now_ns >= until_ns,
            None => self.tries > HOPS_MAX,
        }
    }
}

impl Dex {
    /// Whose `key` is, if it is not this compute server's.
    ///
    /// Cost: none for an own key, else that of reading the map, 2 READs.
    ///
    /// # Errors
    /// `Unavailable`, `Closed`.
    pub async fn wrong_owner(
        &self,
        session: &Session,
        key: &[u8],
    ) -> Result<Option<WrongOwner>, IndexError> {
        let seek = Seek::At(key);
        if self.0.acquire(session, seek).await?.is_ok() {
            return Ok(None);
        }
        self.refresh_map(session).await?;
        let standing = self.0.acquire(session, seek).await?;
        Ok(standing.err().map(|number| self.0.wrong_owner(number)))
    }

    /// Operations on other compute servers' keys go through `forward` from now on. Without one they
    /// fail with `Unavailable`. The first one counts.
    pub fn set_forward(&self, forward: Arc<dyn Forward>) {
        let _ = self.0.forward.set(forward);
    }

    /// Does what another compute server has sent here. If the key is not this compute server's, by the
    /// map as it is now, nothing is done and the reply says so.
    ///
    /// # Errors
    /// Those of the operation.
    pub async fn serve(&self, session: &Session, request: Request) -> Result<Reply, IndexError> {
        match request {
            Request::Hello => {
                self.0.check_open()?;
                return Ok(Reply::Done(true));
            }
            Request::Learn { epoch } => {
                if self.0.view().map.epoch < epoch {
                    self.refresh_map(session).await?;
                }
                return Ok(Reply::Done(true));
            }
            Request::Give { low, high, to } => {
                return Ok(Reply::Moved(self.give(session, low, high, to).await));
            }
            Request::Share { to } => return Ok(Reply::Moved(self.share(session, to).await)),
            Request::Load { decay } => return Ok(Reply::Load(self.0.own_load(decay))),
            _ => {}
        }
        if let Some(reply) = self.serve_own(session, &request).await? {
            session.vouch()?;
            return Ok(reply);
        }
        self.refresh_map(session).await?;
        let reply = self.serve_own(session, &request).await?;
        session.vouch()?;
        Ok(reply.unwrap_or(Reply::WrongOwner { epoch: self.0.wrong_owner(0).epoch }))
    }

    /// Does what is asked if the key is this compute server's; `None` if it is not, and nothing was
    /// done.
    async fn serve_own(
        &self,
        session: &Session,
        request: &Request,
    ) -> Result<Option<Reply>, IndexError> {
        let cache = &self.0;
        if let Request::Scan { from, to, reverse, limit } = request {
            let range = ScanRange { from: as_slice(from), to: as_slice(to), reverse: *reverse };
            let mut out = Entries::new();
            if let Some(mut passage) = Passage::begin(range, *limit, &out)
                && cache.scan_own(session, &mut passage, &mut out).await?.is_some()
            {
                return Ok(None);
            }
            return Ok(Some(Reply::Pairs(out)));
        }
        let Some(seek) = request.seek() else { return Ok(None) };
        let inside = cache.acquire(session, seek).await?;
        if inside.is_err() && !Canary::ForwardUnchecked.is_armed() {
            return Ok(None);
        }
        if let Request::Get { key } = request {
            let _pin = session.begin(OpKind::Get).await?;
            let mut value = Vec::new();
            let has = cache.get(session, key, &mut value).await?;
            return Ok(Some(Reply::Value(has.then_some(value))));
        }
        let Some(change) = request.change() else { return Ok(None) };
        let mut held = Vec::new();
        let outcome = cache.modify(session, &change, &mut held).await?;
        Ok(Some(match change.kind {
            OpKind::CompareExchange => {
                let exchange = if outcome.differs { Exchange::Differs } else { Exchange::Done };
                Reply::Exchanged(exchange, outcome.existed.then_some(held))
            }
            kind => Reply::Done(outcome.existed != adds_absent(kind)),
        }))
    }

    /// Passes an operation on keys that are not own on to their owner, wherever the map leads.
    ///
    /// Cost: none here but reading the map anew, 2 READs, each time the keys are not where it was sent.
    ///
    /// # Errors
    /// `Unavailable` if nobody serves the key, or it cannot be reached; `OutcomeUnknown` if its owner
    /// died with a change; those of the operation.
    pub(super) async fn route(
        &self,
        session: &Session,
        request: Request,
    ) -> Result<Reply, IndexError> {
        let sent = self.route_within(session, request, None).await?;
        sent.ok_or_else(|| self.0.no_level())
    }

    /// As [`Dex::route`]; gives up with `None`, and nothing done, once the bounds are others than these.
    async fn route_within(
        &self,
        session: &Session,
        request: Request,
        bounds: Option<&[Vec<u8>]>,
    ) -> Result<Option<Reply>, IndexError> {
        let Some(seek) = request.seek() else {
            return Err(IndexError::Invalid("a request that belongs to no key".into()));
        };
        let mut patience = self.patience(session);
        loop {
            let moved = |bounds: &[Vec<u8>]| self.0.view().map.bounds.as_slice() != bounds;
            if bounds.is_some_and(moved) {
                return Ok(None);
            }
            // Is it, by now?
            if let Some(reply) = self.serve_own(session, &request).await? {
                session.vouch()?;
                return Ok(Some(reply));
            }
            let Err(number) = self.0.acquire(session, seek).await? else { continue };
            let to = self.0.wrong_owner(number);
            patience.tries += 1;
            if to.owner.is_some() && self.0.forward.get().is_some() {
                self.0.stats.forwarded.add();
                match self.send(session, to, request.clone(), patience.until_ns).await {
                    Ok(Reply::WrongOwner { .. } | Reply::Gone) => {}
                    Err(
                        IndexError::OutcomeUnknown(_)
                        | IndexError::Unavailable(_)
                        | IndexError::Closed(_),
                    ) if request.is_read() => {}
                    // Of the owner's, not of this compute server.
                    Err(IndexError::Closed(why)) => return Err(IndexError::OutcomeUnknown(why)),
                    done => return done.map(Some),
                }
            }
            self.find_owner(session, seek, to, patience).await?;
        }
    }

    fn patience(&self, session: &Session) -> Patience {
        let patience_ns = self.0.forward.get().and_then(|forward| forward.patience_ns());
        let now_ns = || session.endpoint().now_ns();
        Patience { tries: 0, until_ns: patience_ns.map(|ns| now_ns().saturating_add(ns)) }
    }

    /// One request and its reply, there and back; not waited for beyond `until_ns`.
    async fn send(
        &self,
        session: &Session,
        to: WrongOwner,
        request: Request,
        until_ns: Option<u64>,
    ) -> Result<Reply, IndexError> {
        let (Some(forward), Some(owner)) = (self.0.forward.get(), to.owner) else {
            return Ok(Reply::Gone);
        };
        if forward.wants_address(owner) {
            let members = session.members().await?;
            let member = members
                .iter()
                .find(|member| member.incarnation == owner && member.address.is_some());
            let Some(address) = member.and_then(|member| member.address) else {
                return Ok(Reply::Gone);
            };
            forward.learn_address(owner, address);
        }
        let endpoint = session.endpoint();
        let latency_ns = forward.latency_ns();
        let is_read = request.is_read();
        if latency_ns > 0 {
            endpoint.sleep(latency_ns).await;
        }
        let check_ns = forward.alive_check_ns();
        let replied = forward.forward(to, request);
        let reply = match unless_dead(session, owner, check_ns, until_ns, replied).await {
            Waited::Reply(reply) => reply,
            Waited::Dead if is_read => Ok(Reply::Gone),
            Waited::Dead => Err(IndexError::OutcomeUnknown(format!(
                "compute server {owner}, which had the operation, has died"
            ))),
            Waited::TooLong if is_read => Err(silent(owner)),
            Waited::TooLong => Err(IndexError::OutcomeUnknown(silent(owner).to_string())),
        };
        if latency_ns > 0 {
            endpoint.sleep(latency_ns).await;
        }
        reply
    }

    /// Asks one compute server.
    pub(super) async fn ask(
        &self,
        session: &Session,
        who: Incarnation,
        request: Request,
    ) -> Result<Reply, IndexError> {
        if who == session.endpoint().incarnation() {
            return Box::pin(self.serve(session, request)).await;
        }
        let to = WrongOwner { owner: Some(who), ..self.0.wrong_owner(0) };
        // What gives a range away takes as long as it takes.
        let until_ns = self.patience(session).until_ns.filter(|_| request.is_read());
        self.send(session, to, request, until_ns).await
    }

    /// The key is not served by whom the map named: reads it again, and takes the place of a dead owner,
    /// or of none, if this compute server does so.
    async fn find_owner(
        &self,
        session: &Session,
        seek: Seek<'_>,
        before: WrongOwner,
        patience: Patience,
    ) -> Result<(), IndexError> {
        let tries = patience.tries;
        if patience.is_over(session.endpoint().now_ns()) {
            let why = match patience.until_ns {
                Some(_) => format!("{before} and which does not answer"),
                None => format!("after {tries} tries: {before}"),
            };
            return Err(IndexError::Unavailable(why));
        }
        if self.refresh_map(session).await? != before.epoch {
            // A way that has not been tried.
            return Ok(());
        }
        let takes_over = self.0.part.take_over;
        let refused = || Err(IndexError::Unavailable(before.to_string()));
        match before.owner {
            None if !takes_over => refused(),
            None => {
                let _pin = session.begin(OpKind::Maintenance).await?;
                self.0.take_free(session, seek).await
            }
            Some(owner) if session.endpoint().is_dead(owner).await => {
                if !takes_over {
                    return Err(IndexError::Unavailable(format!(
                        "{before}, and is dead: take it over"
                    )));
                }
                match self.take_over(session, owner).await {
                    // Somebody else is at it.
                    Err(IndexError::Unavailable(_)) => {
                        RemoteTree::backoff(session, tries).await;
                        Ok(())
                    }
                    taken => taken.map(drop),
                }
            }
            Some(_) if self.0.forward.get().is_none() => refused(),
            Some(_) => {
                // It is just getting there, or leaving.
                if patience.until_ns.is_some() && tries > QUICK_TRIES {
                    session.endpoint().sleep(PAUSE_NS).await;
                } else {
                    RemoteTree::backoff(session, tries).await;
                }
                Ok(())
            }
        }
    }

    /// Passes a change on to the owner of its key; what the key held is left in `held` if the change has an
    /// expectation.
    pub(super) async fn forward_change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.0.check_change(change)?;
        match self.route(session, Request::of(change)).await? {
            Reply::Done(done) => {
                Ok(Outcome { existed: done != adds_absent(change.kind), differs: false })
            }
            Reply::Exchanged(exchange, found) => {
                let existed = found.is_some();
                *held = found.unwrap_or_default();
                Ok(Outcome { existed, differs: exchange == Exchange::Differs })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// A scan over all partitions that `range` meets, each by its owner.
    pub(super) async fn scan_all(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let end = out.len().saturating_add(limit);
        if self.scan_until_cut(session, range, limit, out).await? {
            return Ok(());
        }
        // Behind what has come so far.
        let (mut from, mut to) = (range.from.map(<[u8]>::to_vec), range.to.map(<[u8]>::to_vec));
        loop {
            let Some((last, _)) = out.last() else { return Ok(()) };
            *(if range.reverse { &mut to } else { &mut from }) = Bound::Excluded(last.to_vec());
            let reverse = range.reverse;
            let rest = ScanRange { from: as_slice(&from), to: as_slice(&to), reverse };
            let limit = end.saturating_sub(out.len());
            if self.scan_until_cut(session, rest, limit, out).await? {
                return Ok(());
            }
        }
    }

    /// As [`Dex::scan_all`], up to a reply that holds a part of what was asked for; whether all is done.
    async fn scan_until_cut(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<bool, IndexError> {
        let Some(mut passage) = Passage::begin(range, limit, out) else { return Ok(true) };
        loop {
            let Some(number) = self.0.scan_own(session, &mut passage, out).await? else {
                return Ok(true);
            };
            let view = self.0.view();
            if number >= view.map.count() || view.owned[number] {
                // The map has just changed.
                continue;
            }
            // Of one partition as it is known here; its owner has all of it, or says that it has not,
            // and once the bounds are others it is cut anew.
            let (low, high) = view.map.range(number);
            let (from, to, limit) = passage.rest_in(low, high, out);
            let asked = limit.min(PAIRS_ASKED_MAX);
            let request = Request::Scan { from, to, reverse: range.reverse, limit: asked };
            let routed = self.route_within(session, request, Some(&view.map.bounds));
            let (pairs, is_part) = match Box::pin(routed).await? {
                Some(Reply::Pairs(pairs)) => {
                    let is_part = pairs.len() >= asked && asked < limit;
                    (pairs, is_part)
                }
                Some(Reply::Part(pairs)) if !pairs.is_empty() => (pairs, true),
                Some(other) => return Err(unexpected(&other)),
                None => continue,
            };
            pairs.iter().take(limit).for_each(|(key, value)| out.push(key, value));
            if is_part {
                return Ok(false);
            }
            if !passage.skip_to(if range.reverse { low } else { high }, out) {
                return Ok(true);
            }
        }
    }
}

impl Cache {
    /// What there is to say about a key of a partition that is not own.
    pub(super) fn wrong_owner(&self, partition: usize) -> WrongOwner {
        let (owner, epoch) = self.known_owner(partition);
        WrongOwner { partition, owner, epoch }
    }
}

/// How the wait for a reply ended.
enum Waited<T> {
    Reply(T),
    /// Whom it is to come from has died.
    Dead,
    TooLong,
}

/// Waits for a reply, and looks every so often whether whom it is to come from lives.
async fn unless_dead<T>(
    session: &Session,
    who: Incarnation,
    check_ns: u64,
    until_ns: Option<u64>,
    reply: impl Future<Output = T>,
) -> Waited<T> {
    let endpoint = session.endpoint();
    let mut reply = pin!(reply);
    loop {
        let mut pause = pin!(endpoint.sleep(check_ns));
        let ready = poll_fn(|context| match reply.as_mut().poll(context) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            Poll::Pending => pause.as_mut().poll(context).map(|()| None),
        });
        if let Some(reply) = ready.await {
            return Waited::Reply(reply);
        }
        if endpoint.is_dead(who).await {
            return Waited::Dead;
        }
        if until_ns.is_some_and(|until_ns| endpoint.now_ns() >= until_ns) {
            return Waited::TooLong;
        }
    }
}

fn silent(owner: Incarnation) -> IndexError {
    IndexError::Unavailable(format!(
        "compute server {owner}, which has the key, lives but does not answer"
    ))
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// A reply to another request.
pub(super) fn unexpected(reply: &Reply) -> IndexError {
    IndexError::OutcomeUnknown(format!("the key's owner replied what was not asked: {reply:?}"))
}
