//! Crash runner: runs many cases on several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{CrashCase, CrashFailure, CrashPoint, cases};
use crate::report::on_threads;

/// Options of a run over all cases.
#[derive(Clone, Debug)]
pub struct CrashOptions {
    /// Threads; each runs simulations of its own.
    pub threads: usize,
    /// Every n-th point of each case only; 1 for all.
    pub stride: usize,
    /// The first of them: the points before it are left out. Taken modulo the stride, so that a case with fewer points
    /// may have none.
    pub first: usize,
    /// Time after which no further point is begun. The report counts those left out.
    pub budget: Option<Duration>,
    /// Failures after which no further point is begun.
    pub failures_max: usize,
}

impl Default for CrashOptions {
    fn default() -> Self {
        CrashOptions { threads: 2, stride: 1, first: 0, budget: None, failures_max: 20 }
    }
}

/// Results of a case.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The case.
    pub name: String,
    /// Remote operations of its action.
    pub ops: usize,
    /// Points that were run.
    pub points: usize,
    /// Points with a failure, and the case itself if its state could not be made.
    pub failures: usize,
    /// Real time, on one thread.
    pub took: Duration,
}

/// Results of a run over all cases.
#[derive(Clone, Debug, Default)]
pub struct CrashReport {
    /// Cases that were begun.
    pub cases: usize,
    /// Points that were run.
    pub points: usize,
    /// Points of the chosen cases that were left out: by the stride, the budget, or too many
    /// failures. Those of cases that were not begun are not counted.
    pub left_out: usize,
    /// Cases that were not begun.
    pub cases_left_out: usize,
    /// Points after which objects were lost until a sweep found them, and how many objects.
    pub swept: (usize, u64),
    /// Failures, by name.
    pub failures: Vec<CrashFailure>,
    /// Real time.
    pub took: Duration,
}

/// Runs the points of every case whose name `filter` accepts. Calls `progress` for each case that
/// is done, from the thread that ran it.
pub fn run_all(
    filter: impl Fn(&str) -> bool,
    options: &CrashOptions,
    progress: impl Fn(&Progress) + Sync,
) -> CrashReport {
    let started = Instant::now();
    let chosen: Vec<CrashCase> = cases().into_iter().filter(|case| filter(case.name())).collect();
    let next = AtomicUsize::new(0);
    let stopped = AtomicBool::new(false);
    let report = Mutex::new(CrashReport::default());
    let locked = || report.lock().unwrap_or_else(PoisonError::into_inner);
    let is_over = || {
        let late = options.budget.is_some_and(|budget| started.elapsed() > budget);
        if late || locked().failures.len() >= options.failures_max {
            stopped.store(true, Ordering::Relaxed);
        }
        stopped.load(Ordering::Relaxed)
    };
    let work = || {
        while let Some(case) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            if is_over() {
                locked().cases_left_out += 1;
                continue;
            }
            let from = Instant::now();
            let (points, failures) = match case.points() {
                Ok(points) => {
                    let stride = options.stride.max(1);
                    let wanted: Vec<CrashPoint> = points
                        .iter()
                        .copied()
                        .skip(options.first % stride)
                        .step_by(stride)
                        .collect();
                    locked().left_out += points.len() - wanted.len();
                    run_points(case, &wanted, &is_over, &locked)
                }
                Err(failure) => {
                    locked().failures.push(failure);
                    (0, 1)
                }
            };
            locked().cases += 1;
            progress(&Progress {
                name: case.name().to_string(),
                ops: case.ops().unwrap_or(0),
                points,
                failures,
                took: from.elapsed(),
            });
        }
    };
    on_threads(options.threads, work);
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.failures.sort_by(|a, b| a.name.cmp(&b.name));
    report.took = started.elapsed();
    report
}

/// Runs points of one case; returns how many ran and how many failed.
fn run_points<'a>(
    case: &CrashCase,
    wanted: &[CrashPoint],
    is_over: &impl Fn() -> bool,
    locked: &impl Fn() -> std::sync::MutexGuard<'a, CrashReport>,
) -> (usize, usize) {
    let mut failures = 0;
    for (count, point) in wanted.iter().enumerate() {
        if is_over() {
            locked().left_out += wanted.len() - count;
            return (count, failures);
        }
        let ran = case.run(*point);
        let mut report = locked();
        report.points += 1;
        match ran {
            Ok(0) => {}
            Ok(lost) => {
                report.swept.0 += 1;
                report.swept.1 += lost;
            }
            Err(failure) => {
                failures += 1;
                report.failures.push(failure);
            }
        }
    }
    (wanted.len(), failures)
}
