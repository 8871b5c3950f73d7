//! Experiment report: each row holds the published figure, ours and their ratio.
//!
//! - INV-REPRO-1: at one seed and scale, an experiment in the simulator gives the same report.
//! - INV-REPRO-2: a row that differs from the paper's by more than a quarter says why.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    machine::Machine,
    report::{TimeKind, build_commit},
};

/// The ratio may be off by this much without a reason.
pub const TOLERANCE: f64 = 0.25;
/// A gain of the paper below this is compared by its part above 1.
const GAIN_LARGE: f64 = 2.0;
/// The reason where none has been found, or where one is likely and no run has tested it.
pub(super) const UNEXPLAINED: &str = "unexplained";

/// Results of an experiment, beside the paper's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReproReport {
    /// The experiment's name.
    pub experiment: String,
    /// The experiment's subject.
    pub title: String,
    /// The paper, or the other program.
    pub source: String,
    /// Owner of the figures beside ours, as in `paper`.
    pub against: String,
    /// Clock of the throughput.
    pub time: TimeKind,
    /// Share of the paper's sizes.
    pub scale: f64,
    /// The parameters of the run.
    pub config: Map<String, Value>,
    /// The figures.
    pub rows: Vec<ReproRow>,
    /// The figures and more in tables, of experiments that have some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<ReproTable>,
    /// Curves and groups of bars, of experiments that compare several engines or sizes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub charts: Vec<ReproChart>,
    /// The checks.
    pub checks: Vec<ReproCheck>,
    /// Further remarks.
    pub notes: Vec<String>,
    /// The machine of the run.
    pub machine: Machine,
    /// Commit of the source it was built from.
    pub commit: Option<String>,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReproRow {
    /// The case, as in `read-only`.
    pub case: String,
    /// The quantity, with its unit.
    pub quantity: String,
    /// The paper's figure, if it gives one; or that of what [`ReproReport::against`] names.
    pub paper: Option<f64>,
    /// Ours, if it could be measured.
    pub ours: Option<f64>,
    /// Our figure divided by the paper's, if that is a number. Of a gain below 2, the parts above 1 are divided.
    pub ratio: Option<f64>,
    /// The reason why our figure differs or is missing.
    pub reason: Option<String>,
}

impl ReproRow {
    /// A row without a reason.
    pub(super) fn new(case: &str, quantity: &str, paper: Option<f64>, ours: Option<f64>) -> Self {
        let ratio = ours.zip(paper.filter(|paper| *paper != 0.0)).map(|(ours, paper)| ours / paper);
        let (case, quantity) = (case.to_owned(), quantity.to_owned());
        ReproRow { case, quantity, paper, ours, ratio, reason: None }
    }
}

/// Figures of which several belong together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReproTable {
    /// The tables' subject.
    pub title: String,
    /// Each with the same names, in the same order.
    pub rows: Vec<Map<String, Value>>,
}

impl ReproTable {
    /// A table without rows.
    pub(super) fn new(title: &str) -> Self {
        ReproTable { title: title.to_owned(), rows: Vec::new() }
    }

    /// Adds a row.
    pub(super) fn row<'a>(&mut self, cells: impl IntoIterator<Item = (&'a str, Value)>) {
        let cells = cells.into_iter().map(|(column, value)| (column.to_owned(), value));
        self.rows.push(cells.collect());
    }

    /// The names of its columns, and the rows for people.
    pub fn cells(&self) -> (Vec<&str>, Vec<Vec<String>>) {
        let header = self.rows.first().map(|row| row.keys().map(String::as_str).collect());
        let cell = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.as_f64().map_or("-".to_owned(), figure),
        };
        let rows = self.rows.iter().map(|row| row.values().map(cell).collect());
        (header.unwrap_or_default(), rows.collect())
    }
}

/// A chart of several series over the same points.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReproChart {
    /// The chart's subject.
    pub title: String,
    /// The quantity along the horizontal axis.
    pub x: String,
    /// The quantity along the vertical axis, with its unit.
    pub y: String,
    /// The form of the chart.
    pub kind: ChartKind,
    /// Texts of the points, in their order.
    pub labels: Vec<String>,
    /// The series.
    pub series: Vec<ReproSeries>,
}

impl ReproChart {
    /// A chart of bars without points.
    pub(super) fn bars(title: &str, x: &str, y: &str) -> Self {
        Self::new(ChartKind::Bars, title, x, y)
    }

    /// A chart of lines without points.
    pub(super) fn lines(title: &str, x: &str, y: &str) -> Self {
        Self::new(ChartKind::Lines, title, x, y)
    }

    /// A chart without points.
    pub(super) fn new(kind: ChartKind, title: &str, x: &str, y: &str) -> Self {
        let [title, x, y] = [title, x, y].map(str::to_owned);
        ReproChart { title, x, y, kind, labels: Vec::new(), series: Vec::new() }
    }

    /// Adds a point to the series of that name.
    pub(super) fn add(&mut self, series: &str, at: &str, value: f64) {
        let place = self.place(at);
        let number = self.series.iter().position(|it| it.name == series).unwrap_or_else(|| {
            self.series.push(ReproSeries { name: series.to_owned(), values: Vec::new() });
            self.series.len() - 1
        });
        let values = &mut self.series[number].values;
        if values.len() <= place {
            values.resize(place + 1, None);
        }
        values[place] = Some(value);
    }

    /// Keeps a place for a point that nothing may have.
    pub(super) fn place(&mut self, at: &str) -> usize {
        self.labels.iter().position(|label| label == at).unwrap_or_else(|| {
            self.labels.push(at.to_owned());
            self.labels.len() - 1
        })
    }

    /// The value of a series at a point.
    pub(super) fn at(&self, series: &str, at: &str) -> Option<f64> {
        let place = self.labels.iter().position(|label| label == at)?;
        let series = self.series.iter().find(|it| it.name == series)?;
        series.values.get(place).copied().flatten()
    }

    /// A series over each other one at a point: their names and the ratios.
    pub(super) fn gains(&self, own: &str, at: &str) -> Vec<(String, f64)> {
        let Some(ours) = self.at(own, at) else { return Vec::new() };
        let others = self.series.iter().filter(|it| it.name != own);
        let others = others.filter_map(|it| Some((it.name.clone(), self.at(&it.name, at)?)));
        others.filter(|(_, other)| *other > 0.0).map(|(name, other)| (name, ours / other)).collect()
    }
}

/// Form of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChartKind {
    /// A group of bars for each point.
    Bars,
    /// A line for each series.
    Lines,
}

/// One series of a chart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReproSeries {
    /// Its name, as in the legend.
    pub name: String,
    /// A value for each label; `None`, or no value at the end, where there is none.
    pub values: Vec<Option<f64>>,
}

/// Something that must hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReproCheck {
    /// The condition.
    pub what: String,
    /// True if it holds; `None` if it is not checked at this scale.
    pub holds: Option<bool>,
}

/// A gain of ours over the paper's, by the parts above 1 if the paper's is small.
fn gain_ratio(told: f64, ours: f64) -> f64 {
    match 1.0 < told && told < GAIN_LARGE {
        true => (ours - 1.0) / (told - 1.0),
        false => ours / told,
    }
}

/// Returns whether a gain of ours agrees with the paper's.
pub(super) fn is_near(told: f64, ours: f64) -> bool {
    (gain_ratio(told, ours) - 1.0).abs() <= TOLERANCE
}

impl ReproReport {
    /// A report without rows.
    pub(super) fn new(experiment: &str, title: &str, time: TimeKind) -> Self {
        ReproReport {
            experiment: experiment.to_owned(),
            title: title.to_owned(),
            source: String::new(),
            against: "paper".to_owned(),
            time,
            scale: 1.0,
            config: Map::new(),
            rows: Vec::new(),
            tables: Vec::new(),
            charts: Vec::new(),
            checks: Vec::new(),
            notes: Vec::new(),
            machine: Machine::detect(),
            commit: build_commit().map(str::to_owned),
        }
    }

    /// Records a parameter of the run.
    pub(super) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.config.insert(name.to_owned(), value.into());
    }

    /// Adds a figure. `reason` is reported if it differs by more than [`TOLERANCE`].
    pub(super) fn row(
        &mut self,
        case: &str,
        quantity: &str,
        paper: Option<f64>,
        ours: f64,
        reason: &str,
    ) {
        self.judge(ReproRow::new(case, quantity, paper, Some(ours)), reason);
    }

    /// Adds a gain: throughput or the like over that of another case. A gain of the paper below [`GAIN_LARGE`] is
    /// compared by its part above 1, so that no gain is no agreement with a small one.
    pub(super) fn gain(
        &mut self,
        case: &str,
        quantity: &str,
        paper: Option<f64>,
        ours: f64,
        reason: &str,
    ) {
        let row = ReproRow::new(case, quantity, paper, Some(ours));
        let ratio = paper.map(|told| gain_ratio(told, ours)).or(row.ratio);
        self.judge(ReproRow { ratio, ..row }, reason);
    }

    /// Adds a row, with the reason if it differs from the paper's by more than [`TOLERANCE`].
    fn judge(&mut self, row: ReproRow, reason: &str) {
        let differs = match (row.paper, row.ratio) {
            (_, Some(ratio)) => (ratio - 1.0).abs() > TOLERANCE,
            // Nothing is a share of 0: any figure of ours is more.
            (Some(_), None) => row.ours != Some(0.0),
            (None, None) => false,
        };
        let reason = if reason.is_empty() { UNEXPLAINED } else { reason };
        self.rows.push(ReproRow { reason: differs.then(|| reason.to_owned()), ..row });
    }

    /// Adds a figure of the paper that cannot be measured here, and the reason.
    pub(super) fn missing(&mut self, case: &str, quantity: &str, paper: Option<f64>, why: &str) {
        let row = ReproRow::new(case, quantity, paper, None);
        self.rows.push(ReproRow { reason: Some(why.to_owned()), ..row });
    }

    /// Adds something that must hold.
    pub(super) fn check(&mut self, what: impl Into<String>, holds: Option<bool>) {
        self.checks.push(ReproCheck { what: what.into(), holds });
    }

    /// Adds something that must hold at the paper's own scale.
    pub(super) fn bar(&mut self, what: impl Into<String>, holds: bool) {
        self.check(what, (self.scale == 1.0).then_some(holds));
    }

    /// Adds a remark.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &ReproCheck> {
        self.checks.iter().filter(|check| check.holds == Some(false))
    }

    /// The figures as rows for people: case, quantity, figure to compare with, ours, ratio, reason.
    pub fn table(&self) -> (Vec<&str>, Vec<Vec<String>>) {
        let header = vec!["case", "quantity", &self.against, "ours", "ratio", "reason"];
        let number = |number: Option<f64>| number.map_or("-".to_owned(), figure);
        let row = |row: &ReproRow| {
            vec![
                row.case.clone(),
                row.quantity.clone(),
                number(row.paper),
                number(row.ours),
                row.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
                row.reason.clone().unwrap_or_default(),
            ]
        };
        (header, self.rows.iter().map(row).collect())
    }
}

/// A number with four significant digits or so.
pub(super) fn figure(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1000.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        size if size >= 0.1 => format!("{number:.3}"),
        _ => format!("{number:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_beyond_the_tolerance_has_a_reason() {
        let mut report = ReproReport::new("x", "", TimeKind::Virtual);
        report.row("a", "reads", Some(0.33), 0.31, "never told");
        report.row("a", "writes", Some(0.2), 0.1, "because");
        report.row("a", "atomics", Some(0.0), 0.0, "never told");
        report.row("a", "rpcs", Some(0.0), 0.5, "");
        report.row("a", "mops", None, 3.0, "never told");
        report.missing("b", "mops", Some(2.0), "not built");
        let reasons: Vec<_> = report.rows.iter().map(|row| row.reason.as_deref()).collect();
        let expected = [None, Some("because"), None, Some(UNEXPLAINED), None, Some("not built")];
        assert_eq!(reasons, expected);
        let (header, rows) = report.table();
        assert!(rows.iter().all(|row| row.len() == header.len()));
        assert_eq!(rows[1], ["a", "writes", "0.200", "0.100", "0.50", "because"]);
        assert_eq!(rows[5][3], "-");
    }

    #[test]
    fn small_gains_are_compared_above_one() {
        let mut report = ReproReport::new("x", "", TimeKind::Virtual);
        for (paper, ours) in [(1.21, 1.0), (1.21, 1.2), (5.0, 4.0), (1.0, 0.9), (0.8, 0.7)] {
            report.gain("a", "gain", Some(paper), ours, "");
        }
        let differ: Vec<_> = report.rows.iter().map(|row| row.reason.is_some()).collect();
        assert_eq!(differ, [true, false, false, false, false]);
        assert_eq!(report.rows[0].ratio, Some(0.0));
        assert_eq!(report.rows[2].ratio, Some(0.8));
    }

    #[test]
    fn figures_are_short() {
        let told = [0.0, 1234.5, 319.39, 0.3117, 7.31e-5].map(figure);
        assert_eq!(told, ["0", "1234", "319.4", "0.312", "7.31e-5"]);
    }

    #[test]
    fn tables_are_of_texts_and_figures() {
        let mut table = ReproTable::new("x");
        assert_eq!(table.cells(), (vec![], vec![]));
        let row = serde_json::json!({"system": "dex", "Mops": 1.2345, "READ /op": null});
        table.rows.extend(row.as_object().cloned());
        let told = (vec!["system", "Mops", "READ /op"], vec![vec!["dex", "1.234", "-"]]);
        let (header, rows) = table.cells();
        assert_eq!(
            (header, rows[0].iter().map(String::as_str).collect()),
            (told.0, told.1[0].clone())
        );
    }

    #[test]
    fn unchecked_conditions_do_not_fail() {
        let mut report = ReproReport::new("x", "", TimeKind::Real);
        report.check("a", Some(true));
        report.check("b", None);
        report.check("c", Some(false));
        assert_eq!(report.failed().map(|check| check.what.as_str()).collect::<Vec<_>>(), ["c"]);
    }

    #[test]
    fn charts_have_gaps_where_points_are_missing() {
        let mut chart = ReproChart::lines("t", "x", "y");
        chart.add("a", "1", 1.0);
        chart.add("a", "3", 3.0);
        chart.add("b", "3", 4.0);
        assert_eq!(chart.at("b", "1"), None);
        assert_eq!(chart.at("a", "3"), Some(3.0));
        assert_eq!(chart.gains("b", "3"), [("a".to_owned(), 4.0 / 3.0)]);
        assert_eq!(chart.gains("b", "1"), []);
    }
}
