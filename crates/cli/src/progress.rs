//! Progress: shows the progress of long work on standard error.

use std::time::Duration;

#[cfg(feature = "lab")]
use farleaf_bench::{Phase, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const BAR: &str = "{prefix} {bar:30} {percent:>3} %  {msg}  {elapsed_precise}, {eta} left";
const COUNT: &str = "{prefix} {spinner} {msg}  {elapsed_precise}";

/// Time between two drawings of a line.
const DRAW_EVERY: Duration = Duration::from_millis(200);

/// A bar, a count where the end is not known, or nothing where nobody looks.
pub(crate) struct Meter {
    bar: ProgressBar,
}

impl Meter {
    /// `total` steps, if that is known.
    pub(crate) fn new(is_shown: bool, total: Option<u64>) -> Self {
        let bar = if is_shown { ProgressBar::no_length() } else { ProgressBar::hidden() };
        let meter = Meter { bar };
        if is_shown {
            meter.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
            meter.bar.enable_steady_tick(DRAW_EVERY);
        }
        meter.start("", total);
        meter
    }

    /// Begins anew.
    fn start(&self, name: &'static str, total: Option<u64>) {
        self.bar.reset();
        self.bar.set_prefix(name);
        let template = match total {
            Some(total) => {
                self.bar.set_length(total);
                BAR
            }
            None => COUNT,
        };
        // A template that is wrong costs the looks, nothing else.
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
    }

    /// `loaded` records are in the table, `read` bytes were taken from the input.
    pub(crate) fn show(&self, loaded: u64, read: u64) {
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{loaded} records"));
            self.bar.set_position(read);
        }
    }

    /// One step more is done.
    #[cfg(feature = "lab")]
    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    /// Prints lines above the bar, if there is one.
    #[cfg(feature = "lab")]
    pub(crate) fn tell(&self, lines: &str) {
        if !self.bar.is_hidden() {
            self.bar.println(lines);
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(feature = "lab")]
impl Progress for Meter {
    fn begin(&self, phase: Phase, total: u64) {
        self.start(phase.name(), (total > 0).then_some(total));
    }

    fn advance(&self, steps: u64) {
        self.bar.inc(steps);
    }
}
