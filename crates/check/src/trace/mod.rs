//! Trace: draws a run as one HTML file that needs no other file.
//!
//! The drawing has a lane for each client, with its operations as bars and its remote operations
//! below. There is one lane for each compute server's maintenance, and one for the observer
//! (`looker-on`). Faults of servers are lines from top to bottom. The data stand in the file as one
//! JSON object, for other tools.

mod data;

use std::io::{self, Write};

use farleaf_fabric::sim::OpRecord;

use crate::run::Outcome;
use crate::scenario::Scenario;

const PAGE: &str = include_str!("page.html");
/// Placeholder of the data in the page.
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
