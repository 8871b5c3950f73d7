//! Operation context: counts the attempts of one operation and carries its wishes through them.

use farleaf_index::IndexError;
use farleaf_index::retry::{Attempts, RetryPolicy};
use farleaf_pool::Session;

use super::DexTree;
use super::crowd::CrowdTurn;
use crate::dex::offload::Offloadable;
use crate::dex::stats::Cause;

/// Steps of one operation before it gives up.
const STEPS_MAX: u32 = 100_000;
/// Attempts of one operation: the number of its steps ends them.
const WALKS: RetryPolicy = RetryPolicy {
    at_once: 16,
    yielding: 48,
    most: u32::MAX,
    gave_up: "one walk through the cache: try again",
    ..RetryPolicy::KEY
};

/// The reason why an attempt did not come to an end.
#[derive(Debug)]
pub(crate) enum DexFail {
    /// Something changed: walk again.
    Restart,
    /// Every frame was in use.
    NoFrame,
    /// The operation fails.
    Error(IndexError),
}

impl<E: Into<IndexError>> From<E> for DexFail {
    fn from(error: E) -> Self {
        DexFail::Error(error.into())
    }
}

/// The attempts and steps of one operation, and its wishes.
#[derive(Debug)]
pub(crate) struct OpContext {
    attempts: Attempts,
    steps: u32,
    /// The caller reads a missed leaf that is not to be cached. Else the leaf is cached.
    pub(super) streams: bool,
    /// Every frame was in use, so a missed leaf is not cached.
    pub(super) no_frame: bool,
    /// The part of the operation that a memory server may execute.
    pub(super) offloadable: Option<Offloadable>,
    /// The caller reads a missed leaf, whether it is to be cached or not.
    pub(super) reads_ahead: bool,
    /// The caller waits where another task works on a node.
    pub(super) joins: bool,
    /// The purpose of the READs.
    pub(super) cause: Cause,
    /// The caller has a frame in hand, and must give it up before it waits for others (`INV-DEX-CROWD-1`).
    pub(super) has_hand: bool,
    /// It has let others go first before the step under way.
    pub(super) has_passed: bool,
    /// Its turn, if it has found every frame in use.
    turn: Option<CrowdTurn>,
}

impl Default for OpContext {
    fn default() -> Self {
        OpContext {
            attempts: Attempts::new(&WALKS),
            steps: 0,
            streams: false,
            no_frame: false,
            offloadable: None,
            reads_ahead: false,
            joins: false,
            cause: Cause::default(),
            has_hand: false,
            has_passed: false,
            turn: None,
        }
    }
}

impl OpContext {
    /// Begins a change, which may be offloaded.
    pub(super) fn change(offloadable: Option<Offloadable>) -> Self {
        OpContext { offloadable, streams: true, ..OpContext::default() }
    }

    /// Begins a get.
    pub(super) fn get() -> Self {
        OpContext { joins: true, ..OpContext::change(Some(Offloadable::Get)) }
    }

    /// Begins a step of a scan, which may read ahead, and may be offloaded.
    pub(super) fn scan(reads_ahead: bool, offloadable: Option<Offloadable>) -> Self {
        OpContext { reads_ahead, cause: Cause::Scan, ..OpContext::change(offloadable) }
    }

    /// Ends offloading for the operation (`INV-DEX-OFF-6`), because a memory server said so or could not be
    /// asked.
    pub(super) fn fall_back(&mut self) {
        self.offloadable = None;
        self.cause = Cause::Fallback;
    }

    /// Demands that the leaf is cached, as the next step needs it there.
    pub(super) fn must_cache(&mut self) {
        self.streams = false;
        self.offloadable = None;
    }

    /// Counts one step more.
    ///
    /// # Errors
    /// `Unavailable` after too many.
    pub(super) fn step(&mut self) -> Result<(), IndexError> {
        self.steps += 1;
        if self.steps <= STEPS_MAX {
            return Ok(());
        }
        Err(IndexError::Unavailable(format!(
            "gave up after {STEPS_MAX} steps through the cache: it may be too small for so many \
             operations at once"
        )))
    }

    /// Prepares one more attempt: waits if there were many.
    pub(crate) async fn again(
        &mut self,
        tree: &DexTree,
        session: &Session,
    ) -> Result<(), IndexError> {
        self.step()?;
        tree.stats.restarts.add();
        self.attempts.again(session).await
    }

    /// Waits for the turn, unless the session has it. The caller holds nothing that others wait for.
    pub(super) async fn take_turn(&mut self, tree: &DexTree, session: &Session) {
        debug_assert!(!self.has_hand, "INV-DEX-CROWD-1");
        if self.turn.is_none() && !tree.crowd.has_turn(session) {
            self.turn = Some(Box::pin(tree.crowd.turn(session)).await);
        }
    }

    /// Prepares one more attempt after `fail`, if that is nothing final.
    pub(crate) async fn after(
        &mut self,
        fail: DexFail,
        tree: &DexTree,
        session: &Session,
    ) -> Result<(), IndexError> {
        match fail {
            DexFail::Restart => self.again(tree, session).await,
            DexFail::NoFrame => {
                self.no_frame = true;
                self.take_turn(tree, session).await;
                self.attempts.wait_from_now();
                self.again(tree, session).await
            }
            DexFail::Error(error) => Err(error),
        }
    }
}
