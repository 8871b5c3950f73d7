//! Run: executes one scenario in the simulator, and makes the checks that it must pass.
//!
//! Clients work while servers die, stand still and come back. Then faults stop, and the remaining
//! servers must end within bounded virtual time. The lab recovers the dead, reads every key once
//! more, and then checks:
//!
//! - the history, that last look included, is linearizable ([`crate::linear`]);
//! - the table's own check finds no problem;
//! - the pool's accounts close: every object is live, free or retired.
//!
//! One more compute server, the observer, makes the table, ticks, and does the last checks.

mod batches;
mod client;
mod driver;
mod life;
mod outcome;
mod record;
mod steps;
mod table;
mod verdict;

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use driver::threads;
pub use outcome::{Failure, Outcome, RunStats};
pub use verdict::judge;

use crate::scenario::Scenario;
use farleaf_fabric::sim::OpRecord;

thread_local! {
    static RUNNING: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The command line of the run that this thread is in, for panic hooks.
pub fn running() -> Option<String> {
    RUNNING.with_borrow(Clone::clone)
}

/// Runs `scenario` and checks it. The same scenario gives the same outcome.
pub fn run(scenario: &Scenario) -> Outcome {
    run_with(scenario, false).0
}

/// As [`run`], with a record of the newest remote operations if `is_recorded`.
pub fn run_with(scenario: &Scenario, is_recorded: bool) -> (Outcome, Vec<OpRecord>) {
    RUNNING.set(Some(scenario.to_string()));
    let ended = catch_unwind(AssertUnwindSafe(|| driver::run(scenario, is_recorded)));
    RUNNING.set(None);
    let (mut outcome, records) = ended.unwrap_or_else(|panic| {
        let why = message_of(&*panic).unwrap_or("somehow");
        let failure = Some(Failure::Panicked(why.to_owned()));
        (Outcome { failure, ..Outcome::default() }, Vec::new())
    });
    judge(&mut outcome);
    (outcome, records)
}

/// The message of a panic, if it has one.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
}
