//! Publication: the one CAS that makes a change visible, and what depends on its outcome.
//!
//! From the mark of the CAS to its verdict, a guard owns the new objects and the retirement. If the caller
//! drops the operation in between, the guard gives them to a task, which settles the outcome.

use std::sync::Arc;

use farleaf_index::IndexError;
use farleaf_pool::{Retiring, Session, Tries, Unlinked, is_open};

use super::DartTree;
use super::outcome::{Attempt, Verdict};
use super::word::SlotWord;

farleaf_fabric::canaries! {
    pub(crate) LOST_IS_NOT_DONE = "lost-is-not-done",
        "a publishing CAS whose completion was lost counts as not done";
}

/// A CAS with its new objects, and what it unlinks.
pub(super) struct Publication<'a> {
    pub(super) tree: &'a Arc<DartTree>,
    pub(super) session: &'a Session,
    pub(super) key: &'a [u8],
    pub(super) attempt: Attempt,
    /// The new objects that the CAS links.
    pub(super) objects: Vec<Unlinked>,
    /// The object that it unlinks.
    pub(super) retiring: Option<Retiring>,
    is_posted: bool,
}

/// The end of a publication.
pub(super) enum Published {
    Done,
    /// Nothing has changed. The slot held this word; `None` if it has to be read again.
    Lost(Option<SlotWord>, Vec<Unlinked>),
}

impl<'a> Publication<'a> {
    pub(super) fn new(
        tree: &'a Arc<DartTree>,
        session: &'a Session,
        key: &'a [u8],
        attempt: Attempt,
        objects: Vec<Unlinked>,
        retiring: Option<Retiring>,
    ) -> Self {
        Publication { tree, session, key, attempt, objects, retiring, is_posted: false }
    }

    /// Posts the CAS. 1 CAS; if its completion is lost, a reconnect and some READs.
    ///
    /// # Errors
    /// `OutcomeUnknown`.
    pub(super) async fn run(mut self) -> Result<Published, IndexError> {
        let Attempt { at, expected, put, .. } = self.attempt;
        debug_assert!(
            expected.is_empty() || expected.step() == put.step(),
            "INV-DART-1: {put:?} over the slot of {expected:?}"
        );
        debug_assert!(!put.is_sealed(), "INV-DART-3: {put:?} is sealed before it is in the tree");
        debug_assert!(!expected.is_sealed(), "INV-DART-3: {put:?} over the sealed {expected:?}");
        let io = self.session.reliable();
        let mut tries = Tries::default();
        self.objects.iter().for_each(Unlinked::keep);
        self.is_posted = true;
        let mark = io.post_mark();
        let found = match self.session.client().cas(at, expected.raw(), put.raw()).await {
            Ok(found) => SlotWord::from_raw(found),
            Err(error) if is_open(error) => {
                let unknown = |error: String| IndexError::OutcomeUnknown(error);
                let settled = io.again(&mut tries, mark, error).await;
                settled.map_err(|error| unknown(error.to_string()))?;
                let verdict = self.tree.judge(self.session, io, self.key, &self.attempt).await;
                let mut verdict = verdict.map_err(|error| unknown(error.to_string()))?;
                if LOST_IS_NOT_DONE.is_armed() {
                    verdict = Verdict::NotDone;
                }
                self.is_posted = false;
                self.tree.counters.outcomes[verdict as usize].add(1);
                match verdict {
                    Verdict::Done => expected,
                    Verdict::NotDone => return Ok(self.lost(None)),
                    Verdict::Unknown => {
                        self.tree.undecided(&self.objects, self.retiring.as_ref());
                        return Err(unknown(format!(
                            "a completion from memory server {} was lost, and others have changed \
                             the key meanwhile",
                            at.server()
                        )));
                    }
                }
            }
            Err(error) => {
                self.is_posted = false;
                return Err(IndexError::OutcomeUnknown(error.to_string()));
            }
        };
        self.is_posted = false;
        if found != expected {
            return Ok(self.lost(Some(found)));
        }
        if let Some(retiring) = self.retiring.take() {
            self.session.retire(retiring);
        }
        Ok(Published::Done)
    }

    /// It has not happened, and will not.
    fn lost(&mut self, found: Option<SlotWord>) -> Published {
        self.objects.iter().for_each(Unlinked::unkeep);
        let objects = std::mem::take(&mut self.objects);
        if let Some(retiring) = self.retiring.take() {
            self.session.cancel_retire(retiring);
        }
        Published::Lost(found, objects)
    }
}

impl DartTree {
    /// Counts objects of a CAS whose outcome stays unknown. They stay, until their blocks are swept: what may be
    /// linked must not be freed, and what another has replaced is the other's to retire.
    fn undecided(&self, objects: &[Unlinked], retiring: Option<&Retiring>) {
        self.counters.undecided.add((objects.len() + usize::from(retiring.is_some())) as u64);
    }
}

impl Drop for Publication<'_> {
    fn drop(&mut self) {
        if !self.is_posted {
            return;
        }
        let hold = self.session.hold();
        let (tree, key, attempt) = (Arc::clone(self.tree), self.key.to_vec(), self.attempt);
        let objects = std::mem::take(&mut self.objects);
        let retiring = self.retiring.take();
        self.session.spawn(async move |session| {
            let io = session.maintenance();
            let judged = async {
                io.settle(attempt.at.server()).await?;
                tree.judge(&session, io, &key, &attempt).await
            };
            let verdict = judged.await.unwrap_or(Verdict::Unknown);
            tree.counters.outcomes[verdict as usize].add(1);
            match (verdict, retiring) {
                (Verdict::Done, Some(retiring)) => session.retire(retiring),
                (Verdict::NotDone, retiring) => {
                    objects.iter().for_each(Unlinked::unkeep);
                    drop(objects);
                    if let Some(retiring) = retiring {
                        session.cancel_retire(retiring);
                    }
                }
                (Verdict::Unknown, retiring) => tree.undecided(&objects, retiring.as_ref()),
                (Verdict::Done, None) => {}
            }
            drop(hold);
        });
    }
}
