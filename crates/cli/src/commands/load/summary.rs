//! Load summary: reports the result of a load at its end.

use farleaf_index::units::human_rate;
use serde_json::{Value, json};

use super::pipeline::Outcome;
use crate::errors;
use crate::output::{Console, escaped};

/// The numbers of a load.
pub(super) struct Summary<'a> {
    pub(super) outcome: &'a Outcome,
    pub(super) table: &'a str,
    pub(super) was_made: bool,
    pub(super) bulk: bool,
    pub(super) seconds: f64,
}

impl Summary<'_> {
    /// Records whose key was there, be it from an earlier record of the same input.
    fn keys_changed(&self) -> u64 {
        self.outcome.loaded.saturating_sub(self.outcome.keys_new)
    }

    fn records_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.outcome.loaded as f64 / self.seconds } else { 0.0 }
    }

    pub(super) fn to_json(&self, is_complete: bool, error: Option<&anyhow::Error>) -> Value {
        json!({
            "table": self.table,
            "table_made": self.was_made,
            "bulk": self.bulk,
            "complete": is_complete,
            "records": self.outcome.loaded,
            "keys_new": self.outcome.keys_new,
            "keys_changed": self.keys_changed(),
            "bytes": self.outcome.bytes,
            "skipped": self.outcome.skipped,
            "empty_lines": self.outcome.read.empty_lines,
            "loaded_up_to": self.outcome.certain,
            "seconds": self.seconds,
            "records_per_s": self.records_per_s(),
            "error": error.map(errors::told),
        })
    }

    pub(super) fn print(&self, console: &mut Console) -> std::io::Result<()> {
        let people = console.is_terminal;
        let rate = self.records_per_s();
        let rate = if people { human_rate(rate) } else { format!("{rate:.0}") };
        let seconds = format!("{:.3}{}", self.seconds, if people { " s" } else { "" });
        let mut rows = vec![
            ("table", escaped(self.table.as_bytes())),
            ("records", console.count(self.outcome.loaded)),
            ("keys_new", console.count(self.outcome.keys_new)),
            ("keys_changed", console.count(self.keys_changed())),
            ("bytes", console.size(self.outcome.bytes)),
        ];
        for (name, number) in
            [("skipped", self.outcome.skipped), ("empty_lines", self.outcome.read.empty_lines)]
        {
            if number > 0 {
                rows.push((name, console.count(number)));
            }
        }
        rows.push(("seconds", seconds));
        rows.push(("records_per_s", rate));
        console.fields(&rows)
    }
}
