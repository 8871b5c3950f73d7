//! Descent: finds a leaf without locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farleaf_fabric::{Buf, Endpoint, GlobalAddr};
use farleaf_pool::{LockToken, Session};

use super::remembered::NodePointer;
use super::{BlinkFail, BlinkTree, LEVEL_MASK, META_ROOT};
use crate::bnode::{Cover, Node};
use crate::retry::{
    Attempts, LOCK_WAIT_MAX_NS, OWNER_CHECK_NS, RetryPolicy, backoff, locked_too_long,
};
use crate::{IndexError, Seek};

farleaf_fabric::canaries! {
    pub ACCEPT_TORN = "accept-torn", "a READ is accepted whatever its checksum says";
}

/// READs of one node before waiting in between.
pub(super) const REREADS_QUICK: u32 = 16;
/// A node that nobody has locked and whose checksum does not fit for so long is corrupt.
pub(super) const CORRUPT_AFTER_NS: u64 = 50_000_000;

/// A split that a walk found unfinished: its parent lacks the separator.
#[derive(Clone, Debug)]
pub(super) struct Unfinished {
    /// Level of the parent.
    pub(super) level: u8,
    /// High fence of the left part.
    pub(super) separator: Vec<u8>,
    /// The right part.
    pub(super) right: GlobalAddr,
}

/// The root word as last seen, and the moment of the pool's epochs that it is of.
///
/// A root of the past is an entry as good as the root, while it is what it was. Nothing in the node
/// itself tells that: once its memory is reused, checksum, address, level and the lack of a low fence
/// fit a node that was written there and never linked, as by a split whose writer died or a bulk load
/// that came too late. So the word is used only as long as its moment lasts: until then the address is
/// not handed out again (`INV-EPOCH-7` of the pool).
#[derive(Debug, Default)]
pub(super) struct RememberedRoot {
    word: AtomicU64,
    /// 0 while the word is being changed.
    moment: AtomicU64,
    /// The epoch of the moment, for trees whose nodes bear their births.
    epoch: AtomicU64,
    changing: Mutex<()>,
}

impl RememberedRoot {
    /// The word, if it is of this moment.
    #[inline]
    pub(super) fn at(&self, moment: u64) -> Option<u64> {
        let is_of_it = || self.moment.load(Ordering::Acquire) == moment;
        let word = is_of_it().then(|| self.word.load(Ordering::Acquire))?;
        // Each word is stored between two stores of the moment.
        (is_of_it() && word != 0).then_some(word)
    }

    /// The word, of whatever moment; 0 before the first.
    pub(super) fn word(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// Address and level of the root of whatever moment, and the epoch from before the word's READ (`INV-REM-1`). The
    /// epoch stays while the moment does.
    pub(super) fn by_birth(&self) -> Option<(GlobalAddr, u8, u64)> {
        let moment = self.moment.load(Ordering::Acquire);
        let epoch = self.epoch.load(Ordering::Acquire);
        let word = self.at(moment).filter(|_| moment != 0)?;
        let (addr, level) = root_parts(word).ok()?;
        Some((addr, level, epoch))
    }

    /// The word led astray: it is READ before it is used again.
    pub(super) fn forget(&self) {
        self.remember(0, 0, 0);
    }

    /// The root word was `word` at a time after `moment` and `epoch` were asked for.
    pub(super) fn remember(&self, word: u64, moment: u64, epoch: u64) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.moment.store(0, Ordering::Release);
        self.word.store(word, Ordering::Release);
        self.epoch.store(epoch, Ordering::Release);
        self.moment.store(moment, Ordering::Release);
    }
}

/// The slots of a guarded leaf that a reader needs whole.
#[derive(Clone, Copy, Debug)]
pub(super) enum LeafFit<'a> {
    /// None: header and fences alone.
    Header,
    /// That of the key, or all if none has it.
    Key(&'a [u8]),
    /// All, if the leaf covers the place.
    All(Seek<'a>),
}

impl BlinkTree {
    /// Before one more attempt: waits when there were many, and READs the root word again. No READ while the first few
    /// go by copies, as the copy that led astray has been dropped.
    ///
    /// # Errors
    /// `Unavailable` after very many.
    pub(super) async fn again(
        &self,
        session: &Session,
        attempts: &mut Attempts,
    ) -> Result<(), IndexError> {
        attempts.again(session).await?;
        if self.remembered.is_none() || !attempts.is_quick() {
            self.read_root(session).await?;
        }
        Ok(())
    }

    /// Address and level of the root as last seen by an operation of this moment. 1 READ if there was
    /// none: when the epoch has moved on, or this compute server was idle.
    #[inline]
    pub(super) async fn root(&self, session: &Session) -> Result<(GlobalAddr, u8), IndexError> {
        match self.root.at(session.moment()) {
            None => self.read_root(session).await,
            Some(word) => root_parts(word),
        }
    }

    /// READs the root word: address and level.
    pub async fn read_root(&self, session: &Session) -> Result<(GlobalAddr, u8), IndexError> {
        let (moment, epoch) = (session.moment(), session.epoch());
        let word = session.reliable().word(self.meta.plus(META_ROOT)).await?;
        let parts = root_parts(word)?;
        self.root.remember(word, moment, epoch);
        Ok(parts)
    }

    /// Reads the leaf that covers `key`: height READs, 1 if copies lead to it.
    pub async fn get(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        if self.remembered.is_some() {
            return self.get_remembered(session, key, value).await;
        }
        let mut attempts = Attempts::new(&RetryPolicy::WAY);
        loop {
            let leaf = match self.node_at(session, Seek::At(key), 0).await {
                Ok((_, leaf)) => leaf,
                Err(BlinkFail::Restart) => {
                    self.again(session, &mut attempts).await?;
                    continue;
                }
                Err(BlinkFail::Error(error)) => return Err(error),
            };
            let node = Node::new(&self.layout, leaf.words());
            let Ok(index) = node.find(key) else {
                value.clear();
                return Ok(false);
            };
            self.value_of(session, &node, index, value).await?;
            return Ok(true);
        }
    }

    /// Reads the node of `level` that `seek` wants. 1 READ for each level from the root down to it.
    pub(super) async fn node_at(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
    ) -> Result<(GlobalAddr, Buf), BlinkFail> {
        if self.remembered.is_some() {
            return Box::pin(self.proven_at(session, seek, level, LeafFit::Header)).await;
        }
        let (root, mut at) = self.root(session).await?;
        if at < level {
            return Err(BlinkFail::Restart);
        }
        let mut addr = root;
        let client = session.client();
        loop {
            // A failed READ is rare; one `async fn` more around each would not be.
            let (mark, bytes) = (session.reliable().post_mark(), self.layout.node_bytes());
            let mut image = match client.read(addr, client.buf(bytes)).await {
                Ok(image) => image,
                Err(error) => session.reliable().read_again(mark, error, addr, bytes).await?,
            };
            if !self.is_current(&image, addr, at) {
                image = self.read_again(session, addr, at, image).await?;
            }
            let node = Node::new(&self.layout, image.words());
            match node.covers_place(seek) {
                Cover::Inside if at == level => {
                    // A leaf that is the root gives way to a loaded tree under its lock, and is dead only
                    // after that: in between its content is not the table's any more. If the lock was free
                    // at some moment of the READ, it was the table's then.
                    let may_give_way = level == 0 && addr == root && image.words()[0] != 0;
                    if may_give_way && self.read_root(session).await?.0 != root {
                        return Err(BlinkFail::Restart);
                    }
                    return Ok((addr, image));
                }
                Cover::Inside => {
                    addr = self.pointer(node.child_at_place(seek).1, addr)?;
                    at -= 1;
                }
                Cover::Above => addr = self.pointer(node.right(), addr)?,
                Cover::Below => return Err(BlinkFail::Restart),
            }
        }
    }

    /// The address of the node of `level` that probably covers `key`, not read yet: 1 READ for each
    /// level above it. Puts down a split that it finds unfinished.
    pub(super) async fn way_to(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        level: u8,
        unfinished: &mut Option<Unfinished>,
    ) -> Result<GlobalAddr, BlinkFail> {
        let (mut addr, mut at) = self.root(session).await?;
        if at < level {
            return Err(BlinkFail::Restart);
        }
        let client = session.client();
        let mut from_parent = false;
        while at > level {
            // A failed READ is rare; one `async fn` more around each would not be.
            let (mark, bytes) = (session.reliable().post_mark(), self.layout.node_bytes());
            let mut image = match client.read(addr, client.buf(bytes)).await {
                Ok(image) => image,
                Err(error) => session.reliable().read_again(mark, error, addr, bytes).await?,
            };
            if !self.is_current(&image, addr, at) {
                image = self.read_again(session, addr, at, image).await?;
            }
            let node = Node::new(&self.layout, image.words());
            match node.covers(key) {
                Cover::Inside => {
                    addr = self.pointer(node.child_for(key).1, addr)?;
                    at -= 1;
                    from_parent = true;
                }
                Cover::Above => {
                    let right = self.pointer(node.right(), addr)?;
                    if from_parent {
                        *unfinished = Some(Unfinished::of(&node, right));
                    }
                    addr = right;
                }
                Cover::Below => return Err(BlinkFail::Restart),
            }
        }
        Ok(addr)
    }

    /// Reads the node of `level` at `addr`. 1 READ, more if it is torn.
    pub(super) async fn read_node(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
    ) -> Result<Buf, BlinkFail> {
        if self.remembered.is_some() {
            let pointer = NodePointer::fresh(addr);
            return Box::pin(self.read_fitting(session, &pointer, level, LeafFit::Header)).await;
        }
        let reliable = session.reliable();
        let image = reliable.read(addr, reliable.buf(self.layout.node_bytes())).await?;
        if self.is_current(&image, addr, level) {
            return Ok(image);
        }
        self.read_again(session, addr, level, image).await
    }

    /// A READ did not give a current image: reads on until it does, or says what to do instead.
    #[cold]
    pub(super) async fn read_again(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
        mut image: Buf,
    ) -> Result<Buf, BlinkFail> {
        let (endpoint, reliable) = (session.endpoint(), session.reliable());
        let start_ns = endpoint.now_ns();
        let mut tries = 0;
        loop {
            let node = Node::new(&self.layout, image.words());
            if node.sum_ok() {
                if self.is_current(&image, addr, level) {
                    return Ok(image);
                }
                // Merged away, or memory that this tree uses for another node now.
                return Err(BlinkFail::Restart);
            }
            // Torn, or not of this tree any more.
            let lock = image.words()[0];
            let waited_ns = endpoint.now_ns() - start_ns;
            if tries >= REREADS_QUICK {
                let seen = self.root.word();
                self.read_root(session).await?;
                if self.root.word() != seen {
                    return Err(BlinkFail::Restart);
                }
                backoff(session, tries - REREADS_QUICK).await;
            }
            if waited_ns >= OWNER_CHECK_NS
                && LockToken::from_word(lock).is_some()
                && session.owner_is_dead(lock).await?
            {
                self.recover(session, addr, lock).await?;
                return Err(BlinkFail::Restart);
            }
            if waited_ns >= CORRUPT_AFTER_NS && lock == 0 {
                return Err(BlinkFail::Error(IndexError::Corrupt(format!(
                    "node {addr} (level {level}) of the table at {}: INV-NODE-4: its checksum does \
                     not fit its content and nobody is writing it",
                    self.meta
                ))));
            }
            if waited_ns >= LOCK_WAIT_MAX_NS {
                return Err(BlinkFail::Error(locked_too_long("node", addr, lock)));
            }
            tries += 1;
            image = reliable.read(addr, reliable.buf(self.layout.node_bytes())).await?;
        }
    }

    /// The address that a node's word holds.
    #[inline]
    pub fn pointer(&self, word: u64, holder: GlobalAddr) -> Result<GlobalAddr, IndexError> {
        match GlobalAddr::from_word(word) {
            Some(addr) if word != 0 && word & LEVEL_MASK == 0 => Ok(addr),
            _ => Err(IndexError::Corrupt(format!(
                "node {holder} of the table at {} points to {word:#018x}, which is not an address",
                self.meta
            ))),
        }
    }
}

impl Unfinished {
    pub(super) fn of(node: &Node<'_, u64>, right: GlobalAddr) -> Self {
        let mut separator = Vec::new();
        node.high_fence(&mut separator);
        Unfinished { level: node.level() + 1, separator, right }
    }
}

pub(super) fn root_parts(word: u64) -> Result<(GlobalAddr, u8), IndexError> {
    match GlobalAddr::from_word(word & !LEVEL_MASK) {
        Some(addr) if !addr.is_null() => Ok((addr, (word & LEVEL_MASK) as u8)),
        _ => Err(IndexError::Corrupt(format!("the root word {word:#018x} is not an address"))),
    }
}
