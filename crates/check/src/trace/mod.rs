//! Trace: draws a run as one HTML file that needs no other file.
//!
//! A lane for each client with its operations as bars and its remote operations below, one for each
//! compute server's maintenance, one for the looker-on; what happened to servers as lines from top to
//! bottom. The data stand in the file as one JSON object, for other tools.

mod data;
#[cfg(test)]
mod tests;

use std::io::{self, Write};

use farleaf_fabric::sim::OpRecord;

use crate::run::Outcome;
use crate::scenario::Scenario;

const PAGE: &str = include_str!("page.html");
/// Where the data go.
const PLACE: &str = "/*DATA*/null";

/// Writes the drawing of a run to `out`.
///
/// # Errors
/// As `out`.
pub fn write_html(
    mut out: impl Write,
    scenario: &Scenario,
    outcome: &Outcome,
    records: &[OpRecord],
) -> io::Result<()> {
    let data = data::of(scenario, outcome, records).to_string();
    // No data may end the script.
    let data = data.replace("</", "<\\/").replace("<!--", "<\\!--");
    let (before, after) = PAGE.split_once(PLACE).unwrap_or((PAGE, ""));
    write!(out, "{before}{data}{after}")
}
