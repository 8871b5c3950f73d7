//! Range guard: admits an operation only while this compute server owns its key.
//!
//! Before a range moves, it drains the running operations.
//!
//! Each operation on own keys acquires the guard, which looks its key up in a *view*: the ownership map as
//! it is known here. The operation is *inside* until it ends, and so are the tasks that it leaves behind. A
//! range that is about to be given away is *closed*: an operation that wants it waits, and looks again when
//! it opens. The giver *drains* the guard: it waits until all operations have ended that were inside when
//! the range was closed.
//!
//! - `INV-COMPUTE-GUARD-1` An operation is inside only if its key was this compute server's and open by the
//!   view that was published when it entered.
//! - `INV-COMPUTE-GUARD-2` After a drain no operation is inside that entered before the drain began, nor
//!   under a view older than the one published then, nor a task of such an operation.
//! - `INV-COMPUTE-GUARD-3` No operation waits for the guard while inside. So a drain ends.
//!
//! [`super::published`] has the views and the counters.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farleaf_pool::Session;

use super::load::{Load, Meter};
use super::partitions::{Partitions, Range};
use super::published::{Published, ViewCache, ViewEntry, Viewed, no_views};
use crate::Seek;

/// The map as this compute server knows it, and what is being done with it.
#[derive(Clone, Debug)]
pub struct View {
    /// The ownership map.
    pub map: Partitions,
    /// True for each partition of this compute server.
    pub owned: Vec<bool>,
    /// Bounds that there are about to be: a node that crosses one is shared already.
    pub cuts: Vec<Vec<u8>>,
    /// The range that is being given away; no operation enters it.
    pub closed: Option<Range>,
}

/// A key's state with this compute server: whose it is, and whether operations on it begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    Own,
    /// It is about to be another's.
    Closed,
    /// Of this partition, which is another's.
    Foreign(usize),
}

impl View {
    /// The view of a compute server that owns nothing of that map.
    pub fn new(map: Partitions) -> Self {
        let owned = vec![false; map.count()];
        View { map, owned, cuts: Vec::new(), closed: None }
    }

    pub(super) fn state_of(&self, seek: Seek<'_>) -> KeyState {
        let number = self.map.at(seek);
        let is_closed = self.closed.as_ref().is_some_and(|range| match seek {
            Seek::At(key) => range.holds(key, false),
            Seek::After(key) => range.holds(key, true),
            Seek::First => range.low.is_none(),
            Seek::Last => range.high.is_none(),
        });
        match (self.owned[number], is_closed) {
            (false, _) => KeyState::Foreign(number),
            (true, true) => KeyState::Closed,
            (true, false) => KeyState::Own,
        }
    }

    /// The partition at `seek`, if it is another's.
    pub(super) fn foreign_at(&self, seek: Seek<'_>) -> Option<usize> {
        match self.state_of(seek) {
            KeyState::Foreign(number) => Some(number),
            KeyState::Own | KeyState::Closed => None,
        }
    }

    /// Returns whether `key` is this compute server's and not about to be another's.
    pub fn is_open(&self, key: &[u8]) -> bool {
        self.state_of(Seek::At(key)) == KeyState::Own
    }

    /// The part of the partition at `seek`, which is this compute server's and open there, that is open.
    pub fn open_part(&self, seek: Seek<'_>) -> Range {
        let mut part = self.map.owned_range(self.map.at(seek));
        let Some(closed) = &self.closed else { return part };
        if !closed.meets(part.low.as_deref(), part.high.as_deref()) {
            return part;
        }
        // The place lies on one side of what is closed.
        let low = closed.low.as_deref();
        let is_below = match seek {
            Seek::At(key) => low.is_some_and(|low| key <= low),
            Seek::After(key) => low.is_some_and(|low| key < low),
            Seek::First => true,
            Seek::Last => false,
        };
        *(if is_below { &mut part.high } else { &mut part.low }) =
            if is_below { closed.low.clone() } else { closed.high.clone() };
        part
    }

    /// Returns whether others may change a node of this range, now or after a move that is under way.
    pub fn crosses(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        let number = low.map_or(0, |low| self.map.of(low, true));
        !self.owned[number]
            || !self.map.owned_range(number).contains(low, high)
            || self.is_cut(low, high)
    }

    /// Returns whether all keys that begin with `prefix` are this compute server's, now and once a move that is
    /// under way is done. All keys have `key_bytes`, if that is given.
    pub fn owns_prefix(&self, prefix: &[u8], key_bytes: Option<usize>) -> bool {
        let is_last = |key: &[u8]| {
            key_bytes == Some(key.len()) && key[prefix.len()..].iter().all(|byte| *byte == 0xff)
        };
        // Not between two of those keys.
        let is_outside = |bound: &Vec<u8>| !bound.starts_with(prefix) || is_last(bound);
        let number = self.map.of(prefix, false);
        let is_closed = self.closed.as_ref().is_some_and(|closed| {
            let is_above =
                closed.low.as_ref().is_some_and(|low| low.as_slice() >= prefix && is_outside(low));
            let is_below = closed.high.as_ref().is_some_and(|high| high.as_slice() < prefix);
            !is_above && !is_below
        });
        self.owned[number]
            && self.map.bounds.get(number).is_none_or(is_outside)
            && self.cuts.iter().all(is_outside)
            && !is_closed
    }

    /// Returns whether a bound that a move is about to set lies inside.
    pub fn is_cut(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        self.cuts.iter().any(|cut| {
            low.is_none_or(|low| low < cut.as_slice())
                && high.is_none_or(|high| high > cut.as_slice())
        })
    }
}

/// Admits an operation only while this compute server owns its key. The module's page has the invariants.
#[derive(Debug)]
pub struct RangeGuard {
    published: Published<View>,
    meter: Meter,
    /// A range is being given away: nodes are not merged.
    moving: AtomicBool,
}

thread_local! {
    static VIEWS: RefCell<ViewCache<View>> = const { RefCell::new(no_views()) };
}

impl Viewed for View {
    #[inline]
    fn with_cache<T>(with: impl FnOnce(&mut ViewCache<Self>) -> T) -> T {
        VIEWS.with_borrow_mut(with)
    }
}

/// Proof that an operation is inside. Dropped, it has left.
#[derive(Debug)]
pub struct OpGuard<G: AsRef<RangeGuard>> {
    guard: G,
    entry: ViewEntry,
}

impl<G: AsRef<RangeGuard>> Drop for OpGuard<G> {
    #[inline]
    fn drop(&mut self) {
        self.guard.as_ref().published.leave(&self.entry);
    }
}

impl AsRef<RangeGuard> for RangeGuard {
    fn as_ref(&self) -> &RangeGuard {
        self
    }
}

impl RangeGuard {
    pub(crate) fn new(map: Partitions) -> Self {
        RangeGuard {
            published: Published::new(View::new(map)),
            meter: Meter::new(),
            moving: AtomicBool::new(false),
        }
    }

    /// The latest known map.
    pub(crate) fn view(&self) -> Arc<View> {
        self.published.view()
    }

    /// Publishes what `change` makes of the view, or leaves it if that is `None`; gives the one that is
    /// published then. Operations that are inside go on by the view before until a drain.
    pub(crate) fn change(&self, change: impl FnOnce(&View) -> Option<View>) -> Arc<View> {
        self.published.change(change)
    }

    /// The number of the view that is published.
    #[inline]
    pub fn view_number(&self) -> u64 {
        self.published.number()
    }

    /// Calls `with` with the view of this number; `None` if another has been published since.
    #[inline]
    pub fn with_view<T>(&self, number: u64, with: impl FnOnce(&View) -> T) -> Option<T> {
        self.published.with_view(number, with)
    }

    /// Calls `with` with the view that is published.
    pub fn with_current<T>(&self, with: impl Fn(&View) -> T) -> T {
        loop {
            if let Some(done) = self.with_view(self.view_number(), &with) {
                return done;
            }
        }
    }

    /// Enters, if the key is this compute server's and open. Begins anew only as often as views change and drains run.
    #[inline]
    pub(super) fn try_acquire(
        &self,
        session: u32,
        seek: Seek<'_>,
    ) -> Result<OpGuard<&RangeGuard>, KeyState> {
        let admit = |view: &View| match view.state_of(seek) {
            KeyState::Own => Ok(()),
            other => Err(other),
        };
        let (entry, ()) = self.published.try_enter(session, admit)?;
        self.meter.count(entry.line(), entry.op, seek);
        Ok(OpGuard { guard: self, entry })
    }

    /// Waits until all operations have left that are inside now, with the tasks that they leave behind.
    pub async fn drain(&self, session: &Session) {
        self.published.drain(session).await;
    }

    /// Enters for a task that an operation which is inside leaves behind; `holder` keeps the guard alive.
    pub fn acquire_for_task<G: AsRef<RangeGuard>>(holder: G, session: &Session) -> OpGuard<G> {
        let entry = holder.as_ref().published.enter_task(session.id());
        OpGuard { guard: holder, entry }
    }

    /// Returns whether a range is being given away.
    pub(crate) fn is_moving(&self) -> bool {
        self.moving.load(Ordering::SeqCst)
    }

    /// Begins to give something away, unless that is under way.
    pub(crate) fn begin_moving(&self) -> bool {
        !self.moving.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn end_moving(&self) {
        self.change(|view| Some(View { cuts: Vec::new(), closed: None, ..view.clone() }));
        self.moving.store(false, Ordering::SeqCst);
    }

    /// The load that was counted; half of it is forgotten then if it `decays`.
    pub(crate) fn load(&self, decays: bool) -> Load {
        self.meter.load(self.published.entered(), decays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_part_ends_at_what_is_closed() {
        let bounds = [b"g".to_vec(), b"p".to_vec()];
        let some = |end: &str| (!end.is_empty()).then(|| end.as_bytes().to_vec());
        let range = |low, high| Range { low: some(low), high: some(high) };
        let mut view = View::new(Partitions::cut(&bounds));
        assert_eq!(view.open_part(Seek::At(b"h")), range("g", "p"));
        assert_eq!(view.open_part(Seek::After(b"g")), range("g", "p"));
        assert_eq!(view.open_part(Seek::At(b"g")), range("", "g"));
        view.closed = Some(range("j", "m"));
        assert_eq!(view.open_part(Seek::At(b"j")), range("g", "j"), "the bound is below it");
        assert_eq!(view.open_part(Seek::After(b"h")), range("g", "j"));
        assert_eq!(view.open_part(Seek::After(b"m")), range("m", "p"));
        assert_eq!(view.open_part(Seek::At(b"n")), range("m", "p"));
        assert_eq!(view.open_part(Seek::First), range("", "g"), "another partition");
        view.closed = Some(range("p", "t"));
        assert_eq!(view.open_part(Seek::Last), range("t", ""));
        view.closed = Some(range("c", "g"));
        assert_eq!(view.open_part(Seek::First), range("", "c"));
    }

    #[test]
    fn a_prefix_is_own_if_all_of_its_keys_are() {
        let bounds = [b"bf\xff".to_vec(), b"dab".to_vec()];
        let mut view = View::new(Partitions::cut(&bounds));
        view.owned[1] = true;
        let owned = |view: &View, bytes| {
            [&b"b"[..], b"bf", b"bg", b"c", b"da", b"dab", b"dac", b"e", b""]
                .map(|prefix| u8::from(view.owns_prefix(prefix, bytes)))
        };
        // (bf\xff, dab]: of fixed keys, bf\xff is the last one below bf, and nothing else begins with dab.
        assert_eq!(owned(&view, None), [0, 0, 1, 1, 0, 0, 0, 0, 0]);
        assert_eq!(owned(&view, Some(3)), [0, 0, 1, 1, 0, 1, 0, 0, 0]);
        view.owned[0] = true;
        assert_eq!(owned(&view, None), [0, 0, 1, 1, 0, 0, 0, 0, 0], "each partition by itself");
        assert_eq!(owned(&view, Some(3)), [0, 1, 1, 1, 0, 1, 0, 0, 0]);
        view.cuts = vec![b"caa".to_vec()];
        assert_eq!(owned(&view, Some(3)), [0, 1, 1, 0, 0, 1, 0, 0, 0]);
        view.cuts.clear();
        let range =
            |low: &[u8], high: &[u8]| Range { low: Some(low.into()), high: Some(high.into()) };
        view.closed = Some(range(b"caa", b"cbb"));
        assert_eq!(owned(&view, Some(3)), [0, 1, 1, 0, 0, 1, 0, 0, 0]);
        view.closed = Some(range(b"bff", b"bgb"));
        assert_eq!(owned(&view, Some(3)), [0, 0, 0, 1, 0, 1, 0, 0, 0]);
        view.closed = Some(range(b"bf\xff", b"bgb"));
        assert_eq!(owned(&view, Some(3)), [0, 1, 0, 1, 0, 1, 0, 0, 0]);
    }
}
