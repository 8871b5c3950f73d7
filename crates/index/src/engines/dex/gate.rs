//! Range guard: admits an operation only while this compute server owns its key.
//!
//! It knows the ownership map, and drains the running operations before a range moves.
//!
//! Every operation on own keys enters the gate, which looks its key up in the map as it is known
//! here, and is *inside* until it ends, and so are the tasks that it leaves behind. A range that is
//! about to be given away is *closed*: who wants to enter waits, and looks again when it opens. The
//! giver *drains* the gate: it waits until everybody who was inside when the range was closed is out.
//!
//! - `INV-DEX-GATE-1` Whoever is inside entered at a moment at which the key was this cache's and open,
//!   by the map as it was known in the line that it entered by.
//! - `INV-DEX-GATE-2` After a drain nobody who entered before it began is inside, nor a task of
//!   theirs; nobody who entered under an older view.
//! - `INV-DEX-GATE-3` Nobody waits for the gate while inside. So a drain ends.
//!
//! It has several lines, one for each few sessions, each with a view of the map and counters of its
//! own behind a mutex, so that threads do not share what they touch: entering and leaving cost a
//! mutex each that nobody else wants. A table without partitions has no gate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farleaf_fabric::Incarnation;
use farleaf_pool::Session;

use super::load::Meter;
use super::partitions::{Partitions, Range};
use super::walk::Seek;
use super::{Cache, Part};
use crate::IndexError;
use crate::blink::remote::{Overdue, RemoteTree};
use crate::detach::run_to_end;
use crate::sync::{Mutex, lock};

/// Lines of a gate.
const LINES: usize = 16;

/// What a cache knows of the map, and does with it.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) map: Partitions,
    /// Which partitions are this cache's.
    pub(super) owned: Vec<bool>,
    /// Bounds that there are about to be: a node that crosses one is shared already.
    pub(super) cuts: Vec<Vec<u8>>,
    /// What is being given away; nobody enters.
    pub(super) closed: Option<Range>,
}

/// How a key is to this cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Own,
    /// It is about to be another's.
    Closed,
    /// Of this partition, which is not this cache's.
    Foreign(usize),
}

impl View {
    pub(super) fn new(map: Partitions) -> Self {
        let owned = vec![false; map.count()];
        View { map, owned, cuts: Vec::new(), closed: None }
    }

    fn standing(&self, seek: Seek<'_>) -> Standing {
        let (number, is_closed) = match seek {
            Seek::At(key) => (self.map.of(key, false), self.is_closed_at(key, false)),
            Seek::After(key) => (self.map.of(key, true), self.is_closed_at(key, true)),
            Seek::First => (0, self.closed.as_ref().is_some_and(|range| range.low.is_none())),
            Seek::Last => {
                let last = self.map.count() - 1;
                (last, self.closed.as_ref().is_some_and(|range| range.high.is_none()))
            }
        };
        match (self.owned[number], is_closed) {
            (false, _) => Standing::Foreign(number),
            (true, true) => Standing::Closed,
            (true, false) => Standing::Own,
        }
    }

    fn is_closed_at(&self, key: &[u8], after: bool) -> bool {
        self.closed.as_ref().is_some_and(|range| range.holds(key, after))
    }

    /// Whether others may change a node of this range, now or once a move that is under way is done.
    pub(super) fn crosses(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        let number = low.map_or(0, |low| self.map.of(low, true));
        !self.owned[number]
            || !self.map.owned_range(number).contains(low, high)
            || self.is_cut(low, high)
    }

    /// Whether a bound that there is about to be lies inside.
    pub(super) fn is_cut(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        self.cuts.iter().any(|cut| {
            low.is_none_or(|low| low < cut.as_slice())
                && high.is_none_or(|high| high > cut.as_slice())
        })
    }
}

#[derive(Debug)]
struct Line {
    view: Arc<View>,
    /// Who is inside, by the generation in which they entered.
    inside: [u64; 2],
    now: usize,
    meter: Meter,
}

/// See the [module page](self).
#[derive(Debug)]
pub(super) struct Gate {
    lines: Box<[Mutex<Line>]>,
    /// What all lines have; changed under this lock.
    view: Mutex<Arc<View>>,
    /// A range is being given away: nodes are not merged.
    moving: AtomicBool,
}

/// Who is inside. Dropped, it has left.
#[derive(Debug)]
pub(super) struct Inside<C: AsRef<Gate>> {
    gate: C,
    line: usize,
    generation: usize,
}

impl<C: AsRef<Gate>> Drop for Inside<C> {
    fn drop(&mut self) {
        let mut line = lock(&self.gate.as_ref().lines[self.line]);
        line.inside[self.generation] -= 1;
    }
}

impl AsRef<Gate> for Gate {
    fn as_ref(&self) -> &Gate {
        self
    }
}

impl Gate {
    pub(super) fn new(map: Partitions) -> Self {
        let view = Arc::new(View::new(map));
        // Each line has a copy of its own, so that its count of references is, too.
        let line = |view: &View| Line {
            view: Arc::new(view.clone()),
            inside: [0; 2],
            now: 0,
            meter: Meter::default(),
        };
        Gate {
            lines: (0..LINES).map(|_| Mutex::new(line(&view))).collect(),
            view: Mutex::new(view),
            moving: AtomicBool::new(false),
        }
    }

    /// What is known of the map.
    pub(super) fn view(&self) -> Arc<View> {
        Arc::clone(&lock(&self.view))
    }

    /// Changes what is known; whoever enters after this has returned does so by the new view. `None`
    /// leaves it as it is.
    pub(super) fn change(&self, change: impl FnOnce(&View) -> Option<View>) -> Arc<View> {
        let mut view = lock(&self.view);
        if let Some(new) = change(&view) {
            for line in &self.lines {
                lock(line).view = Arc::new(new.clone());
            }
            *view = Arc::new(new);
        }
        Arc::clone(&view)
    }

    /// Enters by a line, if the key is this cache's and open.
    #[inline]
    fn enter(&self, worker: u32, seek: Seek<'_>) -> Result<Inside<&Gate>, Standing> {
        let number = worker as usize % LINES;
        let mut line = lock(&self.lines[number]);
        match line.view.standing(seek) {
            Standing::Own => {
                let generation = line.now;
                line.inside[generation] += 1;
                line.meter.count(seek);
                Ok(Inside { gate: self, line: number, generation })
            }
            other => Err(other),
        }
    }

    /// Waits until everybody is out who is inside now, with the tasks that they leave behind.
    pub(super) async fn drain(&self, session: &Session) {
        // Twice: a task that somebody left behind may have entered after the first turn.
        for _ in 0..2 {
            for line in &self.lines {
                let before = {
                    let mut line = lock(line);
                    line.now ^= 1;
                    line.now ^ 1
                };
                let mut attempt = 0;
                while lock(line).inside[before] > 0 {
                    RemoteTree::backoff(session, attempt).await;
                    attempt = (attempt + 1).min(4);
                }
            }
        }
    }

    pub(super) fn is_moving(&self) -> bool {
        self.moving.load(Ordering::SeqCst)
    }

    /// Begins to give something away, unless that is under way.
    pub(super) fn begin_moving(&self) -> bool {
        !self.moving.swap(true, Ordering::SeqCst)
    }

    pub(super) fn end_moving(&self) {
        self.change(|view| Some(View { cuts: Vec::new(), closed: None, ..view.clone() }));
        self.moving.store(false, Ordering::SeqCst);
    }

    /// The load that all lines have counted.
    pub(super) fn load(&self) -> Meter {
        self.lines.iter().fold(Meter::default(), |sum, line| sum.add(&lock(line).meter))
    }

    /// Takes half of the load away from all lines.
    pub(super) fn decay(&self) {
        self.lines.iter().for_each(|line| lock(line).meter.decay());
    }
}

/// Changes of shared nodes in remote memory by this compute server, and adoptions, which exclude them
/// (`INV-DEX-SHARED-5`).
#[derive(Debug, Default)]
pub(super) struct Posts(Mutex<(u32, bool)>);

/// The right to change shared nodes in remote memory, or to adopt.
pub(super) struct PostTurn {
    cache: Arc<Cache>,
    adopts: bool,
}

impl Drop for PostTurn {
    fn drop(&mut self) {
        if let Some(part) = &self.cache.part {
            let mut posts = lock(&part.posts.0);
            match self.adopts {
                true => posts.1 = false,
                false => posts.0 -= 1,
            }
        }
        self.cache.lot.unpark(self.cache.posts_key());
    }
}

impl Cache {
    fn posts_key(&self) -> u64 {
        self.remote.meta().word() + 192
    }

    /// Waits for the turn to change shared nodes remotely, or to adopt. `None` where there are no
    /// partitions.
    pub(super) async fn post_turn(self: &Arc<Self>, adopts: bool) -> Option<PostTurn> {
        let posts = &self.part.as_ref()?.posts.0;
        let is_free = |(count, adopting): (u32, bool)| !adopting && (!adopts || count == 0);
        loop {
            {
                let mut posts = lock(posts);
                if is_free(*posts) {
                    match adopts {
                        true => posts.1 = true,
                        false => posts.0 += 1,
                    }
                    return Some(PostTurn { cache: Arc::clone(self), adopts });
                }
            }
            self.lot.park(self.posts_key(), || is_free(*lock(posts))).await;
        }
    }
}

/// A cache, for the tasks that are inside.
#[derive(Debug)]
struct Holder(Arc<Cache>);

impl AsRef<Gate> for Holder {
    fn as_ref(&self) -> &Gate {
        match &self.0.part {
            Some(part) => &part.gate,
            None => unreachable!("only a cache with a gate makes one"),
        }
    }
}

/// How an operation is inside: a table without partitions has no gate.
pub(super) type Entered<'a> = Option<Inside<&'a Gate>>;

impl Cache {
    pub(super) fn gate(&self) -> Option<&Gate> {
        self.part.as_ref().map(|part| &part.gate)
    }

    /// What is known of the map; `None` if the table is not partitioned.
    pub(super) fn view(&self) -> Option<Arc<View>> {
        self.gate().map(Gate::view)
    }

    /// What waits for a range to open waits under this: an address at which no node is.
    fn gate_key(&self) -> u64 {
        self.remote.meta().word() + 64
    }

    /// Lets in those who wait for a range that was closed.
    pub(super) fn wake_gate(&self) {
        self.lot.unpark(self.gate_key());
    }

    /// Enters for an operation at `seek`, once that is open; `Err` is the partition that it is in, and
    /// that is not this cache's. The caller has no pin, is not inside, and enters again for the
    /// next operation.
    ///
    /// Cost: none; 1 READ for the first in a partition that is opened by number, and a change of the map.
    pub(super) async fn enter(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
    ) -> Result<Result<Entered<'_>, usize>, IndexError> {
        let Some(Part { gate, .. }) = &self.part else { return Ok(Ok(None)) };
        loop {
            match gate.enter(session.id(), seek) {
                Ok(inside) => return Ok(Ok(Some(inside))),
                Err(Standing::Foreign(number)) => {
                    if !self.claim_wanted(session, seek).await? {
                        return Ok(Err(number));
                    }
                }
                Err(_) => {
                    self.stats.parked.add();
                    let is_open = || {
                        self.check_open().is_err() || gate.view().standing(seek) != Standing::Closed
                    };
                    self.lot.park(self.gate_key(), is_open).await;
                }
            }
            self.check_open()?;
        }
    }

    /// As [`RemoteTree::detach`], for a task of an operation that is inside: so is the task.
    pub(super) fn detach<T: Overdue + 'static>(
        self: &Arc<Self>,
        session: &Session,
        task: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> {
        let done = self.detach_within(session, task);
        async { done.await.unwrap_or_else(T::overdue) }
    }

    /// As [`Cache::detach`]; `None` if it goes on for longer than the caller waits.
    pub(super) fn detach_within<T: 'static>(
        self: &Arc<Self>,
        session: &Session,
        task: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = Option<T>> {
        run_to_end(session, Box::pin(task), self.go_inside(session))
    }

    /// Runs a task that nobody waits for, inside as [`Cache::detach`]'s. It begins no operation, and has no
    /// pin: the nodes that it deals with are those whose latches it holds.
    pub(super) fn spawn(
        self: &Arc<Self>,
        session: &Session,
        task: impl AsyncFnOnce(Session) + 'static,
    ) {
        let inside = self.go_inside(session);
        session.spawn(async move |session| {
            task(session).await;
            drop(inside);
        });
    }

    fn go_inside(self: &Arc<Self>, session: &Session) -> Option<Inside<Holder>> {
        self.gate().map(|gate| {
            let number = session.id() as usize % LINES;
            let mut line = lock(&gate.lines[number]);
            let generation = line.now;
            line.inside[generation] += 1;
            Inside { gate: Holder(Arc::clone(self)), line: number, generation }
        })
    }

    /// Whether others may change a node of this range.
    pub(super) fn crosses_bounds(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        self.gate().is_some_and(|gate| lock(&gate.view).crosses(low, high))
    }

    /// Whether nodes must not be merged now, as a range is being given away.
    pub(super) fn merges_rest(&self) -> bool {
        self.gate().is_some_and(Gate::is_moving)
    }

    /// Who serves partition `number`, as far as it is known here.
    pub(super) fn known_owner(&self, number: usize) -> (Option<Incarnation>, u64) {
        let Some(view) = self.view() else { return (None, 0) };
        let owner = view.map.owners.get(number).copied().filter(|owner| *owner != 0);
        (owner.map(Incarnation), view.map.epoch)
    }
}
