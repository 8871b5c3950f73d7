//! Load summary: reports the result of a load at its end.

use farleaf_bench::units::{human_bytes, human_count, human_rate};
use serde_json::{Value, json};

use super::pipeline::Outcome;
use crate::errors;
use crate::output::{Console, escaped};

/// The numbers of a load.
pub(super) struct Summary {
    table: String,
    was_made: bool,
    bulk: bool,
    /// Records that are certainly in the table.
    pub(super) loaded: u64,
    keys_new: u64,
    bytes: u64,
    skipped: u64,
    empty_lines: u64,
    certain: u64,
    seconds: f64,
}

impl Summary {
    pub(super) fn new(
        outcome: &Outcome,
        table: &str,
        was_made: bool,
        bulk: bool,
        seconds: f64,
    ) -> Self {
        Summary {
            table: table.to_owned(),
            was_made,
            bulk,
            loaded: outcome.loaded,
            keys_new: outcome.keys_new,
            bytes: outcome.bytes,
            skipped: outcome.skipped,
            empty_lines: outcome.read.empty_lines,
            certain: outcome.certain,
            seconds,
        }
    }

    /// Records whose key was there, be it from an earlier record of the same input.
    fn keys_changed(&self) -> u64 {
        self.loaded.saturating_sub(self.keys_new)
    }

    fn records_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.loaded as f64 / self.seconds } else { 0.0 }
    }

    pub(super) fn to_json(&self, is_complete: bool, error: Option<&anyhow::Error>) -> Value {
        json!({
            "table": self.table,
            "table_made": self.was_made,
            "bulk": self.bulk,
            "complete": is_complete,
            "records": self.loaded,
            "keys_new": self.keys_new,
            "keys_changed": self.keys_changed(),
            "bytes": self.bytes,
            "skipped": self.skipped,
            "empty_lines": self.empty_lines,
            "loaded_up_to": self.certain,
            "seconds": self.seconds,
            "records_per_s": self.records_per_s(),
            "error": error.map(errors::told),
        })
    }

    pub(super) fn print(&self, console: &mut Console) -> std::io::Result<()> {
        let people = console.is_terminal;
        let count = |count: u64| if people { human_count(count) } else { count.to_string() };
        let size = |bytes: u64| if people { human_bytes(bytes) } else { bytes.to_string() };
        let rate = self.records_per_s();
        let rate = if people { human_rate(rate) } else { format!("{rate:.0}") };
        let seconds = format!("{:.3}{}", self.seconds, if people { " s" } else { "" });
        let mut rows = vec![
            ("table", escaped(self.table.as_bytes())),
            ("records", count(self.loaded)),
            ("keys_new", count(self.keys_new)),
            ("keys_changed", count(self.keys_changed())),
            ("bytes", size(self.bytes)),
        ];
        for (name, number) in [("skipped", self.skipped), ("empty_lines", self.empty_lines)] {
            if number > 0 {
                rows.push((name, count(number)));
            }
        }
        rows.push(("seconds", seconds));
        rows.push(("records_per_s", rate));
        console.fields(&rows)
    }
}
