//! Run record: the history, progress and failures that all tasks of a run share.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use farleaf_fabric::sim::Sim;

use super::outcome::{Failure, RunStats};
use super::steps::Steps;
use super::table::TableSetup;
use crate::history::{Answer, Event, History, Op};
use crate::scenario::Scenario;

/// Shared by all tasks of a run, outside of the simulated world.
pub(super) struct RunShared {
    pub(super) scenario: Scenario,
    pub(super) table: TableSetup,
    /// Source of the time: clocks of compute servers may be wrong.
    pub(super) sim: Weak<Sim>,
    pub(super) history: RefCell<History>,
    pub(super) steps: RefCell<Vec<Option<(usize, u32)>>>,
    /// Per client, the steps that are left.
    pub(super) left: Vec<RefCell<std::collections::VecDeque<u32>>>,
    pub(super) failure: RefCell<Option<Failure>>,
    pub(super) stats: Cell<RunStats>,
    /// Number of the next client of the history: each life's clients are others.
    next_client: Cell<u32>,
    pub(super) stop: Cell<bool>,
    /// The reason of the last refusal.
    pub(super) refusal: RefCell<String>,
}

impl RunShared {
    pub(super) fn new(scenario: &Scenario, sim: &Rc<Sim>) -> Self {
        let left = (0..scenario.clients)
            .map(|client| RefCell::new(scenario.only.of(client, scenario.ops).into()))
            .collect();
        let initial = Steps::new(scenario).preload();
        RunShared {
            scenario: scenario.clone(),
            table: TableSetup::new(scenario),
            sim: Rc::downgrade(sim),
            history: RefCell::new(History { initial, events: Vec::new() }),
            steps: RefCell::default(),
            left,
            failure: RefCell::default(),
            stats: Cell::default(),
            next_client: Cell::new(0),
            stop: Cell::new(false),
            refusal: RefCell::default(),
        }
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.sim.upgrade().map_or(0, |sim| sim.now_ns())
    }

    pub(super) fn new_client(&self) -> u32 {
        let next = self.next_client.get();
        self.next_client.set(next + 1);
        next
    }

    /// Records the begin of an operation; returns its place.
    pub(super) fn call(&self, client: u32, step: Option<(usize, u32)>, call: Op) -> usize {
        self.count(|stats| {
            stats.ops += 1;
            stats.scans += u64::from(matches!(call, Op::Scan { .. }));
        });
        let from_ns = self.now_ns();
        self.steps.borrow_mut().push(step);
        let events = &mut self.history.borrow_mut().events;
        events.push(Event { client, call, from_ns, answer: None });
        events.len() - 1
    }

    /// Records the answer.
    pub(super) fn answer(&self, place: usize, answer: Answer) {
        let now_ns = self.now_ns();
        self.history.borrow_mut().events[place].answer = Some((now_ns, answer));
    }

    /// Records that an operation which began at `from_ns` and ends now has found `value` at `key`: as a get by a client
    /// of its own, because it may overlap with others of the same operation.
    pub(super) fn looked(
        &self,
        step: Option<(usize, u32)>,
        key: &[u8],
        from_ns: u64,
        value: Option<Vec<u8>>,
    ) {
        let place = self.call(self.new_client(), step, Op::Get { key: key.to_vec() });
        self.history.borrow_mut().events[place].from_ns = from_ns;
        self.answer(place, Answer::Value(value));
    }

    /// Records a failure; the first one stays.
    pub(super) fn fail(&self, failure: Failure) {
        self.failure.borrow_mut().get_or_insert(failure);
        self.stop.set(true);
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut RunStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }
}
