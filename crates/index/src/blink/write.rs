//! Writes: point operations that change a leaf.

use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use farleaf_pool::Session;

use super::lock::Locked;
use super::read::Unfinished;
use super::records::UnlinkedRecord;
use super::remembered::NodePointer;
use super::{BlinkFail, BlinkTree};
use crate::bnode::{ChangeError, Cover, Node, Value};
use crate::change::{Change, Decision, Outcome};
use crate::local::key_queues::ChangeLead;
use crate::retry::{Attempts, RetryPolicy};
use crate::{IndexError, Seek};

farleaf_fabric::canaries! {
    pub FORGET_RETIRE = "forget-retire", "what a merge or a changed value unlinks is never freed";
    pub SKIP_COVER_CHECK = "skip-cover-check", "a locked node is not checked for covering the key";
    pub COMPARE_UNLOCKED = "compare-unlocked", "a compare-exchange compares before it locks";
}

/// The end of an attempt under the lock.
enum ChangeAttempt {
    Done(Outcome),
    /// The leaf was split; there is room now.
    Again,
}

impl BlinkTree {
    /// Changes one key. What it held is left in `held` if the change has an expectation. See the
    /// [module page](super) for the cost.
    pub async fn change(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.check_change(change)?;
        let _pin = session.begin(change.kind).await?;
        self.change_begun(session, change, held).await
    }

    /// As [`BlinkTree::change`], of a key and a value that the table takes; the caller has a pin.
    pub async fn change_begun(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.change_leading(session, change, held, &mut None).await
    }

    /// The same by the leader of the key's changes: those that wait share its lock and its WRITE, if the key is there and its
    /// leaf is guarded. Else they are left in `lead`, and follow.
    pub async fn change_leading(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
        lead: &mut Option<ChangeLead>,
    ) -> Result<Outcome, IndexError> {
        let record = match change.value {
            Some(value) if value.len() > self.layout.inline_value_max() => {
                Some(self.write_record(session, value).await?)
            }
            _ => None,
        };
        let mut unfinished = None;
        let mut attempts = Attempts::new(&RetryPolicy::WAY);
        let result = loop {
            let attempt =
                self.attempt(session, change, (held, lead), record.as_ref(), &mut unfinished);
            match attempt.await {
                Ok(ChangeAttempt::Done(outcome)) => break Ok(outcome),
                Ok(ChangeAttempt::Again) => {}
                Err(BlinkFail::Restart) => {
                    if let Err(error) = self.again(session, &mut attempts).await {
                        break Err(error);
                    }
                }
                Err(BlinkFail::Error(error)) => break Err(error),
            }
        };
        // Freed, unless a leaf refers to it.
        drop(record);
        if let Some(unfinished) = unfinished
            && result.is_ok()
        {
            // The change has happened; a separator that cannot be added now is added by another.
            let _ = self.finish_split(session, unfinished).await;
        }
        result
    }

    /// One way down and, under the leaf's lock, the change.
    async fn attempt(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        (held, lead): (&mut Vec<u8>, &mut Option<ChangeLead>),
        record: Option<&UnlinkedRecord>,
        unfinished: &mut Option<Unfinished>,
    ) -> Result<ChangeAttempt, BlinkFail> {
        let key = change.key;
        let compared = COMPARE_UNLOCKED.is_armed() && change.expected.is_some();
        if compared && let Some(expected) = change.expected {
            let existed = self.get(session, key, held).await?;
            if existed.then_some(held.as_slice()) != expected {
                return Ok(ChangeAttempt::Done(Outcome { existed, differs: true }));
            }
        }
        if self.guarded.is_some() {
            let leaf = Box::pin(self.lock_near(session, change, unfinished)).await?;
            let outcome = Box::pin(self.change_slot(session, leaf, change, held, lead)).await?;
            return Ok(outcome.map_or(ChangeAttempt::Again, ChangeAttempt::Done));
        }
        let mut leaf = self.lock_level(session, key, 0, unfinished).await?;
        let found = leaf.node().find(key);
        if !compared && change.expected.is_some() {
            held.clear();
            if let Ok(index) = found {
                let node = Node::new(&self.layout, leaf.image.words());
                self.value_of(session, &node, index, held).await?;
            }
        }
        let held = found.is_ok().then_some(held.as_slice());
        let decided = if compared { Change { expected: None, ..*change } } else { *change };
        let outcome = match decided.decide(found.is_ok(), held) {
            Decision::Leave(outcome) => {
                leaf.unlock().await?;
                return Ok(ChangeAttempt::Done(outcome));
            }
            Decision::Apply(outcome) => outcome,
        };
        let old_record = match found {
            Ok(index) => leaf.node().record(index),
            Err(_) => None,
        };
        let value = match (record, change.value) {
            (Some(record), _) => Some(Value::Record(record.reference())),
            (None, Some(value)) => Some(Value::Inline(value)),
            (None, None) => None,
        };
        let (changed, many_words) = match (value, found) {
            (Some(value), Ok(index)) => {
                let one_word = self.layout.is_dense() && self.layout.inline_value_max() <= 8;
                (leaf.node_mut().replace(index, value), !one_word || self.has_owners)
            }
            (Some(value), Err(_)) => (leaf.node_mut().insert(key, value).map(drop), true),
            (None, Ok(index)) => (leaf.node_mut().remove(index), true),
            (None, Err(_)) => (Ok(()), false),
        };
        match changed {
            Ok(()) => {}
            Err(ChangeError::NoRoom) => {
                // Split first; the next attempt finds room.
                self.split(session, leaf, key.to_vec()).await?;
                return Ok(ChangeAttempt::Again);
            }
            Err(error) => return Err(self.damaged(leaf.addr, error).into()),
        }
        let shrank = found.is_ok() && (change.value.is_none() || !self.layout.is_dense());
        let sparse = shrank && self.is_sparse(&leaf.node());
        // Room to retire the record that the leaf stops naming, before the change: after it nothing may fail.
        let old_addr = old_record.map(|old| self.record_place(old)).transpose()?;
        let retiring = match old_addr {
            Some((addr, _)) => Some(session.prepare_retire(addr).await?),
            None => None,
        };
        if let Some(record) = record {
            record.keep();
        }
        let retiring = retiring.filter(|_| !FORGET_RETIRE.is_armed());
        leaf.publish(many_words, retiring).await?;
        if sparse {
            self.merge(session, key, 1).await;
        }
        Ok(ChangeAttempt::Done(outcome))
    }

    /// Locks the node of `level` that covers `key`.
    pub(super) async fn lock_level(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        level: u8,
        unfinished: &mut Option<Unfinished>,
    ) -> Result<Locked, BlinkFail> {
        if self.remembered.is_some() {
            let pointer = self.pointer_to(session, Seek::At(key), level, unfinished).await?;
            return self.lock_from(session, pointer, key, level, unfinished).await;
        }
        let addr = self.way_to(session, key, level, unfinished).await?;
        self.lock_covering(session, addr, key, level, unfinished).await
    }

    /// The same from the node that a pointer leads to, to the right.
    pub(super) async fn lock_from(
        self: &Arc<Self>,
        session: &Session,
        mut pointer: NodePointer,
        key: &[u8],
        level: u8,
        unfinished: &mut Option<Unfinished>,
    ) -> Result<Locked, BlinkFail> {
        loop {
            let mut locked = self.lock_proven(session, &pointer, level).await?;
            let cover = locked.view().covers(key);
            if cover != Cover::Inside && !SKIP_COVER_CHECK.is_armed() {
                // It may be another compute server's leaf.
                locked.leave_unmended();
            }
            match cover {
                Cover::Inside => return Ok(locked),
                _ if SKIP_COVER_CHECK.is_armed() => return Ok(locked),
                Cover::Above => {
                    let right = self.go_right(level, locked.image.words(), &pointer, unfinished)?;
                    // INV-BT-7: one lock at a time.
                    locked.unlock().await?;
                    pointer = right;
                }
                Cover::Below => {
                    locked.unlock().await?;
                    self.refuse(&pointer);
                    return Err(BlinkFail::Restart);
                }
            }
        }
    }

    /// Locks the node of `level` that covers `key`, from `addr` to the right.
    pub(super) async fn lock_covering(
        self: &Arc<Self>,
        session: &Session,
        mut addr: GlobalAddr,
        key: &[u8],
        level: u8,
        unfinished: &mut Option<Unfinished>,
    ) -> Result<Locked, BlinkFail> {
        loop {
            let locked = self.lock(session, addr, level).await?;
            let node = locked.node();
            match node.covers(key) {
                Cover::Inside => return Ok(locked),
                _ if SKIP_COVER_CHECK.is_armed() => return Ok(locked),
                Cover::Above => {
                    let right = self.pointer(node.right(), addr)?;
                    *unfinished = Some(Unfinished::of(&node, right));
                    // INV-BT-7: one lock at a time.
                    locked.unlock().await?;
                    addr = right;
                }
                Cover::Below => {
                    locked.unlock().await?;
                    return Err(BlinkFail::Restart);
                }
            }
        }
    }

    /// Tells whether a node has become so empty that a neighbour could take it in.
    pub(super) fn is_sparse(&self, node: &Node<'_, u64>) -> bool {
        (node.used_bytes() as f64) < node.capacity_bytes() as f64 * self.options.merge_low
    }

    /// The error that says that the node at `addr` could not be changed as it must be.
    pub fn damaged(&self, addr: GlobalAddr, error: ChangeError) -> IndexError {
        IndexError::Corrupt(format!("node {addr} of the table at {}: {error}", self.meta))
    }
}
