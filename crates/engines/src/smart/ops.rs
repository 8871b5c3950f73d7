//! Operations: gets, and the reads that gets and changes begin with.

use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::retry::Attempts;
use farleaf_index::{Change, IndexError, Outcome};
use farleaf_pool::Session;

use super::changing::Changing;
use super::delegation::ChangeLead;
use super::descent::{CachedStart, Path, PathEnd, Proof};
use super::layout::Slot;
use super::leaf::NewValue;
use super::tree::{Fail, Tree, count};

farleaf_fabric::canaries! {
    pub(crate) BELIEVE_CACHED_ABSENCE = "believe-cached-absence",
        "a key is absent because the leaf of a cached slot says so";
}

/// A leaf that was READ by a cached slot, and linked there at a moment of that READ.
pub(super) struct SeenLeaf {
    pub(super) slot: Slot,
    pub(super) image: Buf,
    /// The moment before the READ.
    pub(super) stamp: Option<u64>,
    /// It is that of the operation's key.
    pub(super) is_of_key: bool,
}

impl Tree {
    /// Copies the value of `key`.
    pub(super) async fn get(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        value.clear();
        let mut attempts = Attempts::default();
        loop {
            match self.try_get(session, key, value).await {
                Err(Fail::Again) => attempts.again(session).await?,
                Err(Fail::Error(error)) => return Err(error),
                Ok(found) => return Ok(found),
            }
        }
    }

    async fn try_get(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, Fail> {
        let guess = self.guess(key);
        if guess.as_ref().is_some_and(|guess| guess.proof == Proof::Absent) {
            return Ok(false);
        }
        let seen = self.proven_leaf(session, guess.as_ref(), key).await?;
        if let Some(SeenLeaf { image, is_of_key: true, .. }) = &seen {
            return self
                .value_of(session, self.leaf(GlobalAddr::NULL, image).content(), value)
                .await;
        }
        if BELIEVE_CACHED_ABSENCE.is_armed()
            && let Some(slot) = guess.as_ref().and_then(|it| it.slot).filter(|it| it.is_leaf())
        {
            let image = self.read_leaf(session, slot).await?;
            let leaf = self.leaf(slot.addr(), &image);
            if leaf.is_whole() && (!leaf.is_valid() || leaf.key() != key) {
                return Ok(false);
            }
        }
        let path = self.path(session, guess.as_ref(), key).await?;
        let PathEnd::Leaf { index, slot } = path.landing else { return Ok(false) };
        if seen.is_some_and(|seen| seen.slot == slot.thawed()) {
            return Ok(false);
        }
        let image = self.read_fresh_leaf(session, (path.last().slot_addr(index), slot)).await?;
        let leaf = self.leaf(slot.addr(), &image);
        if leaf.key() != key {
            return Ok(false);
        }
        self.value_of(session, leaf.content(), value).await
    }

    /// The leaf that a cached slot leads to, if that is proven: 1 READ. Not that of an exact entry, whose slot is as
    /// good as one that was READ.
    pub(super) async fn proven_leaf(
        &self,
        session: &Session,
        guess: Option<&CachedStart>,
        key: &[u8],
    ) -> Result<Option<SeenLeaf>, Fail> {
        let Some(guess) = guess.filter(|it| it.proof != Proof::Exact) else { return Ok(None) };
        let Some(slot) = guess.slot.filter(|slot| slot.is_leaf()) else { return Ok(None) };
        let stamp = self.leaf_stamp(slot.addr());
        let image = self.read_leaf(session, slot).await?;
        let is_proven = self.is_proven(guess, slot, &image);
        let is_of_key = is_proven && self.leaf(slot.addr(), &image).key() == key;
        count(if is_of_key { &self.counts.proven } else { &self.counts.unproven });
        Ok(is_proven.then_some(SeenLeaf { slot, image, stamp, is_of_key }))
    }

    /// The way to `key`, from the deepest node that the cache knows of.
    pub(super) async fn path(
        &self,
        session: &Session,
        guess: Option<&CachedStart>,
        key: &[u8],
    ) -> Result<Path, Fail> {
        let proven = match guess {
            Some(guess) => self.prove(session, guess, key, None).await?,
            None => None,
        };
        let start = match proven {
            Some(held) => held,
            None => self.root_node(session).await?,
        };
        self.descend(session, start, key).await
    }

    /// The node in which the cached way to `key` ends. No remote operation.
    pub(super) fn cached_end(&self, key: &[u8]) -> Option<GlobalAddr> {
        let guess = self.guess(key)?;
        let below = guess.slot.filter(|slot| !slot.is_leaf());
        Some(below.map_or_else(|| guess.entry.addr(), Slot::addr))
    }

    /// READs the leaf that a fresh slot at an address leads to.
    pub(super) async fn read_fresh_leaf(
        self: &Arc<Self>,
        session: &Session,
        (at, slot): (GlobalAddr, Slot),
    ) -> Result<Buf, Fail> {
        let image = self.read_leaf(session, slot).await?;
        self.shape.mode.met_leaf(self, session, (at, slot), image.words()[0]);
        self.settle_leaf(session, slot.addr(), image).await
    }

    pub(super) async fn value_of(
        &self,
        session: &Session,
        content: NewValue<'_>,
        value: &mut Vec<u8>,
    ) -> Result<bool, Fail> {
        match content {
            NewValue::Absent => return Ok(false),
            NewValue::Inline(held) => {
                value.clear();
                value.extend_from_slice(held);
            }
            NewValue::Record(word) => self.read_record(session, word, value).await?,
        }
        Ok(true)
    }

    /// Refuses a change that the table does not take.
    pub(super) fn check_change(&self, change: &Change<'_>) -> Result<(), IndexError> {
        self.spec.check_change(change)
    }

    /// Changes one key. What it held is left in `held` if the change has an expectation.
    pub(crate) async fn change(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
        lead: Option<ChangeLead>,
    ) -> Result<Outcome, IndexError> {
        Changing::new((self, session), change, held, lead).run().await
    }
}
