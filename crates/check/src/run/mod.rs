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

/// The command line of the run, or the name of the crash point, that this thread is in, for panic hooks.
pub fn running() -> Option<String> {
    RUNNING.with_borrow(Clone::clone)
}

/// Runs `scenario` and checks it. The same scenario gives the same outcome.
pub fn run(scenario: &Scenario) -> Outcome {
    run_with(scenario, false).0
}

/// As [`run`], with a record of the newest remote operations if `is_recorded`.
pub fn run_with(scenario: &Scenario, is_recorded: bool) -> (Outcome, Vec<OpRecord>) {
    let ended = caught(&scenario.to_string(), || driver::run(scenario, is_recorded));
    let (mut outcome, records) = ended.unwrap_or_else(|why| {
        let failure = Some(Failure::Panicked(why));
        (Outcome { failure, ..Outcome::default() }, Vec::new())
    });
    judge(&mut outcome);
    (outcome, records)
}

/// Makes the run of that name, which panic hooks are told ([`running`]). If it panics, returns the message.
pub(crate) fn caught<T>(name: &str, run: impl FnOnce() -> T) -> Result<T, String> {
    RUNNING.set(Some(name.to_owned()));
    let ended = catch_unwind(AssertUnwindSafe(run));
    RUNNING.set(None);
    ended.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("without a message").to_owned()
    })
}
