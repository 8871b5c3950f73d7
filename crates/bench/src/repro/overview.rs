//! Overview: every table and figure with results of the four papers, and the experiment that repeats it.
//!
//! A figure is a numbered table or figure of a paper, or a result that stands in its text alone. DEX's Table 1 defines
//! workloads and has no results.

use super::page::Finding;
use super::report::{ReproReport, TOLERANCE};

/// A table or figure of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaperFigure {
    /// The paper's system.
    pub paper: &'static str,
    /// The number in the paper, or the section if the result stands in the text.
    pub figure: &'static str,
    /// Its subject.
    pub shows: &'static str,
    /// The experiment that repeats it, or the reason why none does.
    pub by: Repeated,
}

/// The way in which a figure is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeated {
    /// By the experiment of that name.
    By(&'static str),
    /// Not at all, because of this.
    Not(&'static str),
}

/// Agreement of an experiment's rows with the paper's values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Agreement {
    /// Rows with a value of the paper and one of ours.
    pub compared: usize,
    /// Rows of these within [`TOLERANCE`].
    pub within: usize,
    /// Rows with a value of the paper alone.
    pub missing: usize,
    /// The ratio that is furthest from 1, by its factor.
    pub worst: Option<f64>,
}

impl Agreement {
    /// Counts the rows of a report.
    pub fn of(report: &ReproReport) -> Agreement {
        let mut all = Agreement::default();
        for row in report.rows.iter().filter(|row| row.paper.is_some()) {
            let (Some(_), Some(ratio)) = (row.ours, row.ratio) else {
                all.missing += usize::from(row.ours.is_none());
                continue;
            };
            all.compared += 1;
            all.within += usize::from((ratio - 1.0).abs() <= TOLERANCE);
            let distance = |ratio: f64| ratio.max(0.0).ln().abs();
            if all.worst.is_none_or(|worst| distance(ratio) > distance(worst)) {
                all.worst = Some(ratio);
            }
        }
        all
    }
}

/// Columns of [`rows`].
pub(super) const COLUMNS: [&str; 6] =
    ["paper", "figure", "shows", "experiment", "state", "worst ratio"];

/// A row for each figure: [`COLUMNS`]. An experiment that repeats several figures has one state for all of them.
pub(super) fn rows(findings: &[Finding]) -> Vec<Vec<String>> {
    let row = |figure: &PaperFigure| {
        let (by, (state, worst)) = match figure.by {
            Not(reason) => (String::new(), (format!("not repeated: {reason}"), String::new())),
            By(name) => {
                let finding = findings.iter().find(|it| it.name == name);
                (name.to_owned(), state_of(finding.and_then(|it| it.result.as_ref())))
            }
        };
        let [paper, number, shows] = [figure.paper, figure.figure, figure.shows].map(str::to_owned);
        vec![paper, number, shows, by, state, worst]
    };
    FIGURES.iter().map(row).collect()
}

/// The state of an experiment, and the ratio that is furthest from 1.
fn state_of(result: Option<&Result<ReproReport, String>>) -> (String, String) {
    let report = match result {
        None => return ("has not run".to_owned(), String::new()),
        Some(Err(_)) => return ("failed".to_owned(), String::new()),
        Some(Ok(report)) => report,
    };
    let Agreement { compared, within, missing, worst } = Agreement::of(report);
    let worst = worst.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
    let mut state = match compared {
        0 if missing == 0 => return ("curves without numbers".to_owned(), String::new()),
        0 => String::new(),
        _ => format!("{within} of {compared} within 25 %"),
    };
    if missing > 0 {
        let separator = if state.is_empty() { "" } else { "; " };
        state = format!("{state}{separator}{missing} missing");
    }
    (state, worst)
}

/// The figures as a table of Markdown, with the state of each experiment among `findings`.
pub fn overview(findings: &[Finding]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&COLUMNS.map(str::to_owned));
    text += &format!("|{}\n", "---|".repeat(COLUMNS.len()));
    for mut row in rows(findings) {
        // The name is code on the page.
        if let Some(by) = row.get_mut(3).filter(|by| !by.is_empty()) {
            *by = format!("`{by}`");
        }
        text += &line(&row);
    }
    text
}

use Repeated::{By, Not};

const fn figure(
    paper: &'static str,
    figure: &'static str,
    shows: &'static str,
    by: Repeated,
) -> PaperFigure {
    PaperFigure { paper, figure, shows, by }
}

/// Every figure, in the papers' order.
pub const FIGURES: &[PaperFigure] = &[
    figure("DEX", "2.3", "replacements a second in one queue and in a map", By("dex-fig4")),
    figure("DEX", "Table 2", "remote operations and bytes of an operation", By("dex-table2")),
    figure("DEX", "Figure 4", "cooling map and one queue over threads", By("dex-fig4")),
    figure("DEX", "Figure 5", "offloading never, by cost, always over threads", By("dex-fig5")),
    figure("DEX", "Figure 6", "five workloads over threads, skewed", By("dex-fig6")),
    figure("DEX", "Figure 7", "five workloads over threads, uniform", By("dex-fig7")),
    figure("DEX", "Figure 8", "the gain of each technique", By("dex-fig8")),
    figure("DEX", "Figure 9", "cooling map, admission of leaves", By("dex-fig9")),
    figure("DEX", "Figure 10", "a range moves to a new server", By("dex-fig10")),
    figure("DEX", "Figure 11", "sizes of the cache", By("dex-fig11")),
    figure("DEX", "Figure 12", "offloading over memory servers' threads", By("dex-fig12")),
    figure("DEX", "8.3", "share of a local tree's throughput", By("dex-local")),
    figure("SMART", "3", "bytes moved for each byte of a pair", By("smart-amplification")),
    figure("SMART", "Figure 11", "YCSB over clients", By("smart-throughput")),
    figure("SMART", "Figure 15", "the gain of each technique", By("smart-factors")),
    figure("DART", "2.2", "round trips and bytes of plain ART", By("dart-fig7")),
    figure("DART", "3.2", "memory below plain ART", By("dart-table2")),
    figure("DART", "Table 1", "node locks of plain ART", By("dart-table1")),
    figure("DART", "Table 2", "memory beside keys and values", By("dart-table2")),
    figure("DART", "Figure 6", "throughput and latency of YCSB", By("dart-fig6")),
    figure("DART", "Figure 7", "round trips and bytes of YCSB", By("dart-fig7")),
    figure("DART", "Figure 8", "the gain of each technique", By("dart-fig8")),
    figure("DART", "Figure 9", "sizes of a bucket", By("dart-fig9")),
    figure("DART", "Figure 10", "maintenance of the skip table", By("dart-fig10")),
    figure("DART", "Figure 11", "adjustment of prefix lengths", By("dart-fig11")),
    figure("DART", "Figure 12", "lengths of scans", By("dart-fig12")),
    figure("DART", "Figure 13", "sizes of the cache", By("dart-fig13")),
    figure("DART", "Figure 14", "skews", By("dart-fig14")),
    figure("DART", "Figure 15", "clients", By("dart-fig15")),
    figure("DMTree", "Table 1", "parts of an operation's latency", By("dmtree-table1")),
    figure("DMTree", "Figure 3", "share of the expected throughput", By("dmtree-fig3")),
    figure("DMTree", "Figure 5", "operations of compute servers' cards", By("dmtree-fig5")),
    figure("DMTree", "Figure 11", "micro-benchmarks, uniform", By("dmtree-fig11")),
    figure("DMTree", "Figure 12", "micro-benchmarks, skewed", By("dmtree-fig12")),
    figure("DMTree", "Figure 13", "tail latency", By("dmtree-fig13")),
    figure("DMTree", "Figure 14", "YCSB", By("dmtree-fig14")),
    figure("DMTree", "Figure 15", "memory of a compute server", By("dmtree-fig15")),
    figure("DMTree", "Figure 16", "the gain of each technique", By("dmtree-fig16")),
    figure("DMTree", "Figure 17", "operations of cards in use", By("dmtree-fig17")),
    figure("DMTree", "Figure 18", "sizes of pairs", By("dmtree-fig18")),
    figure("DMTree", "Figure 19", "lengths of scans", By("dmtree-fig19")),
    figure("DMTree", "5.3, compute", "memory of each compute server", By("dmtree-memory")),
    figure("DMTree", "5.3, pool", "memory of the pool", By("dmtree-memory")),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{report::TimeKind, repro::Experiment};

    /// A figure that loses its experiment, or an experiment of a paper that no figure names, shows here.
    #[test]
    fn every_figure_has_an_experiment_or_a_reason() {
        assert_eq!(FIGURES.len(), 43);
        for figure in FIGURES {
            match figure.by {
                By(name) => assert!(name.parse::<Experiment>().is_ok(), "{figure:?}"),
                Not(reason) => assert!(!reason.is_empty(), "{figure:?}"),
            }
        }
        // Bars of SMART's OSDI paper, beyond the slides' numbers.
        let beyond = ["smart-locks", "smart-cache"];
        for experiment in Experiment::figures().filter(|it| !beyond.contains(&it.name())) {
            let names = |figure: &&PaperFigure| figure.by == By(experiment.name());
            assert!(FIGURES.iter().any(|figure| names(&figure)), "{}", experiment.name());
        }
    }

    /// The page's table has a row for each figure.
    #[test]
    fn the_page_lists_every_figure() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/repro.md");
        let page = std::fs::read_to_string(path).unwrap();
        for row in rows(&[]) {
            let [paper, number, shows, by, ..] = row.as_slice() else { panic!("{row:?}") };
            let begin = format!("| {paper} | {number} | {shows} | `{by}` |");
            let is_there = page.lines().any(|line| line.starts_with(&begin));
            assert!(is_there, "docs/repro.md lacks this row:\n{begin}");
        }
    }

    #[test]
    fn an_overview_tells_the_state_of_each_figure() {
        let mut report = ReproReport::new("dex-fig8", "", TimeKind::Virtual);
        report.row("a", "reads", Some(1.0), 1.2, "");
        report.missing("b", "reads", Some(1.0), "no engine");
        let finding =
            |name: &str, result| Finding { name: name.to_owned(), about: String::new(), result };
        let text = overview(&[
            finding("dex-fig8", Some(Ok(report))),
            finding("dex-fig9", Some(Err("no".to_owned()))),
        ]);
        assert_eq!(text.lines().count(), FIGURES.len() + 2);
        for told in [
            "| DEX | Figure 8 | the gain of each technique | `dex-fig8` | 1 of 1 within 25 %; 1 missing | 1.20 |",
            "`dex-fig9` | failed |  |",
            "`dart-fig6` | has not run |  |",
        ] {
            assert!(text.contains(told), "{told}\n{text}");
        }
    }

    #[test]
    fn agreement_counts_rows_of_the_paper() {
        let mut report = ReproReport::new("x", "", TimeKind::Virtual);
        report.row("a", "reads", Some(1.0), 1.2, "");
        report.row("a", "writes", Some(1.0), 0.1, "");
        report.row("a", "Mops", None, 7.0, "");
        report.missing("b", "reads", Some(1.0), "no engine");
        let told = Agreement::of(&report);
        assert_eq!((told.compared, told.within, told.missing), (2, 1, 1));
        assert_eq!(told.worst, Some(0.1));
    }
}
