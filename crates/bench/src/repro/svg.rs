//! SVG: draws a report: its charts, and the paper's bar beside ours for each case of a quantity.

use plotters::{
    backend::SVGBackend,
    coord::Shift,
    drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea},
    element::{Circle, PathElement, Rectangle, Text},
    style::{
        Color, IntoFont, RGBColor, ShapeStyle, TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

use super::{
    error::ReproError,
    report::{ChartKind, ReproChart, ReproReport, ReproRow, figure},
};
use crate::report::TimeKind;

const WIDTH: i32 = 860;
const TITLE_HEIGHT: i32 = 68;
const MARGIN: i32 = 16;
/// Height of a chart, and of its parts above and below the plot.
const CHART_HEIGHT: i32 = 290;
const CHART_HEAD: i32 = 46;
const CHART_FOOT: i32 = 44;
const AXIS_WIDTH: i32 = 56;
/// Lines of the grid above the axis.
const GRID_LINES: i32 = 4;
/// Width of the cases' names, and of a figure behind a bar.
const CASE_WIDTH: i32 = 330;
const FIGURE_WIDTH: i32 = 70;
const BAR_HEIGHT: i32 = 9;
const ROW_HEIGHT: i32 = 2 * BAR_HEIGHT + 6;
const PANEL_HEAD: i32 = 30;
/// Width of a letter of the smallest texts, about.
const LETTER_WIDTH: i32 = 6;

/// The colours of a drawing, as a page may replace them: ground, ink, grid.
pub(super) const GROUND: RGBColor = RGBColor(0xff, 0xff, 0xff);
pub(super) const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
pub(super) const GRID: RGBColor = RGBColor(0xe6, 0xe6, 0xe6);
const PAPER: RGBColor = RGBColor(0x9a, 0xa5, 0xb1);
const OURS: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
/// Colours of series, readable on light and on dark ground.
const SERIES: [RGBColor; 8] = [
    OURS,
    RGBColor(0xd9, 0x6b, 0x0b),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0xb8, 0x86, 0x0b),
    RGBColor(0x17, 0xa2, 0xb8),
    RGBColor(0xd0, 0x3f, 0x7c),
    RGBColor(0x80, 0x80, 0x80),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawError = DrawingAreaErrorKind<std::io::Error>;

impl ReproReport {
    /// The figures as an SVG document.
    ///
    /// # Errors
    /// [`ReproError::Drawing`], which nothing but a defect brings about.
    pub fn svg(&self) -> Result<String, ReproError> {
        let mut text = String::new();
        self.draw(&mut text).map_err(|error| ReproError::Drawing(error.to_string()))?;
        Ok(text)
    }

    fn draw(&self, into: &mut String) -> Result<(), DrawError> {
        let panels = self.panels();
        let charts = CHART_HEIGHT * self.charts.len() as i32;
        let rows: i32 = panels.iter().map(|(_, rows)| panel_height(rows.len())).sum();
        let height = TITLE_HEIGHT + charts + rows + MARGIN;
        let root = SVGBackend::with_string(into, (WIDTH as u32, height as u32)).into_drawing_area();
        root.fill(&GROUND)?;
        self.draw_title(&root)?;
        let mut top = TITLE_HEIGHT;
        for chart in &self.charts {
            draw_chart(&root, top, chart)?;
            top += CHART_HEIGHT;
        }
        for (quantity, rows) in &panels {
            draw_panel(&root, top, quantity, rows)?;
            top += panel_height(rows.len());
        }
        root.present()
    }

    /// The rows of each quantity. Beside charts, which show ours, only those with a figure to compare with.
    fn panels(&self) -> Vec<(&str, Vec<&ReproRow>)> {
        let mut panels: Vec<(&str, Vec<&ReproRow>)> = Vec::new();
        for row in &self.rows {
            if !self.charts.is_empty() && row.paper.is_none() {
                continue;
            }
            match panels.iter_mut().find(|(quantity, _)| *quantity == row.quantity) {
                Some((_, rows)) => rows.push(row),
                None => panels.push((&row.quantity, vec![row])),
            }
        }
        panels
    }

    fn draw_title(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let clock = match self.time {
            TimeKind::Real => "real time",
            TimeKind::Virtual => "simulated network, virtual time",
        };
        let title = format!("{}: {}", self.experiment, self.title);
        let about = format!("{clock}, scale {:.6}", self.scale);
        area.draw(&Text::new(title, (MARGIN, 8), label(17)))?;
        area.draw(&Text::new(about, (MARGIN, 30), label(11)))?;
        area.draw(&Text::new(self.source.clone(), (MARGIN, 46), label(10)))
    }
}

fn panel_height(rows: usize) -> i32 {
    PANEL_HEAD + ROW_HEIGHT * rows as i32 + 12
}

/// Draws horizontal bars: the other's above ours for each case.
fn draw_panel(
    area: &Area<'_>,
    top: i32,
    quantity: &str,
    rows: &[&ReproRow],
) -> Result<(), DrawError> {
    area.draw(&Text::new(quantity.to_owned(), (MARGIN, top + 8), label(13)))?;
    legend(area, top + 9, [("paper or other", PAPER), ("ours", OURS)].into_iter())?;
    let both = rows.iter().flat_map(|row| [row.paper, row.ours]);
    let largest = largest(both);
    let room = WIDTH - CASE_WIDTH - MARGIN - FIGURE_WIDTH;
    for (at, row) in rows.iter().enumerate() {
        let y = top + PANEL_HEAD + ROW_HEIGHT * at as i32;
        let case = Pos::new(HPos::Right, VPos::Center);
        let name = shortened(&row.case, CASE_WIDTH - MARGIN - 8);
        area.draw(&Text::new(name, (CASE_WIDTH - 8, y + BAR_HEIGHT), label(11).pos(case)))?;
        for (offset, number, color) in [(0, row.paper, PAPER), (BAR_HEIGHT, row.ours, OURS)] {
            let number = number.filter(|number| number.is_finite());
            let length = (number.unwrap_or(0.0).max(0.0) / largest * f64::from(room)) as i32;
            let (upper, lower) = (y + offset, y + offset + BAR_HEIGHT - 1);
            let bar = [(CASE_WIDTH, upper), (CASE_WIDTH + length, lower)];
            area.draw(&Rectangle::new(bar, fill(color)))?;
            let told = number.map_or("-".to_owned(), figure);
            let left = Pos::new(HPos::Left, VPos::Center);
            let place = (CASE_WIDTH + length + 4, upper + BAR_HEIGHT / 2);
            area.draw(&Text::new(told, place, label(10).pos(left)))?;
        }
    }
    Ok(())
}

fn draw_chart(area: &Area<'_>, top: i32, chart: &ReproChart) -> Result<(), DrawError> {
    area.draw(&Text::new(chart.title.clone(), (MARGIN, top + 6), label(13)))?;
    let names = chart.series.iter().map(|series| series.name.as_str());
    legend(area, top + 26, names.enumerate().map(|(at, name)| (name, color_of(at))))?;
    let (left, right) = (MARGIN + AXIS_WIDTH, WIDTH - MARGIN);
    let (upper, lower) = (top + CHART_HEAD + 6, top + CHART_HEIGHT - CHART_FOOT);
    let all = chart.series.iter().flat_map(|series| series.values.iter().copied());
    let highest = round_up(largest(all));
    let y_of = |value: f64| lower - (value / highest * f64::from(lower - upper)) as i32;
    for line in 0..=GRID_LINES {
        let value = highest * f64::from(line) / f64::from(GRID_LINES);
        let y = y_of(value);
        area.draw(&PathElement::new(vec![(left, y), (right, y)], stroke(GRID)))?;
        let place = Pos::new(HPos::Right, VPos::Center);
        area.draw(&Text::new(figure(value), (left - 6, y), label(10).pos(place)))?;
    }
    area.draw(&PathElement::new(vec![(left, lower), (right, lower)], stroke(INK)))?;
    let unit = Pos::new(HPos::Left, VPos::Bottom);
    area.draw(&Text::new(chart.y.clone(), (MARGIN, upper - 6), label(10).pos(unit)))?;
    let below = Pos::new(HPos::Center, VPos::Top);
    let middle = (left + right) / 2;
    area.draw(&Text::new(chart.x.clone(), (middle, lower + 24), label(10).pos(below)))?;
    let width = f64::from(right - left) / chart.labels.len().max(1) as f64;
    let center = |at: usize| left + (width * (at as f64 + 0.5)) as i32;
    for (at, text) in chart.labels.iter().enumerate() {
        let text = shortened(text, width as i32);
        area.draw(&Text::new(text, (center(at), lower + 8), label(10).pos(below)))?;
    }
    for (number, series) in chart.series.iter().enumerate() {
        let color = color_of(number);
        let points = series.values.iter().enumerate();
        let points =
            points.filter_map(|(at, value)| Some((at, value.filter(|it| it.is_finite())?)));
        match chart.kind {
            ChartKind::Bars => {
                let bar = (width * 0.8 / chart.series.len() as f64).clamp(1.0, 60.0);
                let group = bar * chart.series.len() as f64;
                for (at, value) in points {
                    let x = f64::from(center(at)) - group / 2.0 + bar * number as f64;
                    let corners = [(x as i32, y_of(value)), ((x + bar) as i32 - 1, lower)];
                    area.draw(&Rectangle::new(corners, fill(color)))?;
                    if bar >= 30.0 {
                        let place = Pos::new(HPos::Center, VPos::Bottom);
                        let at = ((x + bar / 2.0) as i32, y_of(value) - 2);
                        area.draw(&Text::new(figure(value), at, label(9).pos(place)))?;
                    }
                }
            }
            ChartKind::Lines => {
                let points: Vec<_> = points.map(|(at, value)| (center(at), y_of(value))).collect();
                let line = color.stroke_width(2);
                area.draw(&PathElement::new(points.clone(), line))?;
                for point in points {
                    area.draw(&Circle::new(point, 3, fill(color)))?;
                }
            }
        }
    }
    Ok(())
}

/// Draws names and their colours from the right edge leftwards, in their order.
fn legend<'a>(
    area: &Area<'_>,
    y: i32,
    names: impl Iterator<Item = (&'a str, RGBColor)>,
) -> Result<(), DrawError> {
    let names: Vec<_> = names.collect();
    let width = |name: &str| name.len() as i32 * LETTER_WIDTH + 28;
    let all: i32 = names.iter().map(|(name, _)| width(name)).sum();
    let mut x = (WIDTH - MARGIN - all).max(MARGIN + AXIS_WIDTH);
    for (name, color) in names {
        area.draw(&Rectangle::new([(x, y), (x + 10, y + 10)], fill(color)))?;
        area.draw(&Text::new(name.to_owned(), (x + 14, y - 1), label(11)))?;
        x += width(name);
    }
    Ok(())
}

fn color_of(series: usize) -> RGBColor {
    SERIES[series % SERIES.len()]
}

/// The largest of some numbers, or 1 if none is above 0.
fn largest(numbers: impl Iterator<Item = Option<f64>>) -> f64 {
    let most = numbers.flatten().filter(|number| number.is_finite()).fold(0.0, f64::max);
    if most > 0.0 { most } else { 1.0 }
}

/// The next of 1, 2, 4, 5, 6, 8 and 10 times a power of ten.
fn round_up(number: f64) -> f64 {
    let power = 10f64.powf(number.log10().floor());
    let steps = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    let step = steps.into_iter().find(|step| step * power >= number * (1.0 - 1e-9));
    step.unwrap_or(10.0) * power
}

/// As much of a text as fits into `width`.
fn shortened(text: &str, width: i32) -> String {
    let most = (width / LETTER_WIDTH).max(3) as usize;
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 2).chain("..".chars()).collect()
}

fn label(size: u32) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size).into_font()).color(&INK)
}

fn fill(color: RGBColor) -> ShapeStyle {
    color.filled()
}

fn stroke(color: RGBColor) -> ShapeStyle {
    color.stroke_width(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_drawing_has_every_figure_and_no_markup_of_its_texts() {
        let mut report = ReproReport::new("dex-x", "a < b", TimeKind::Virtual);
        report.source = "paper & more".to_owned();
        report.row("skewed", "READs /op", Some(0.33), 0.3117, "");
        report.row("uniform", "READs /op", None, 1234.5, "");
        report.missing("skewed", "Mops", Some(2.5), "not built");
        let svg = report.svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in ["skewed", "uniform", "0.330", "0.312", "1234", "READs /op", "Mops", "a &lt; b"]
        {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("a < b") && !svg.contains("paper & more"));
        assert_eq!(svg, report.svg().unwrap());
    }

    #[test]
    fn charts_are_drawn_with_the_paper_beside() {
        let mut report = ReproReport::new("x", "", TimeKind::Virtual);
        for kind in [ChartKind::Bars, ChartKind::Lines] {
            let mut chart = ReproChart::new(kind, "a chart", "size", "Mops");
            chart.add("first", "1", 2.5);
            chart.add("second", "2", f64::NAN);
            report.charts.push(chart);
        }
        report.row("gain", "ratio", Some(1.75), 1.5, "");
        report.row("not compared", "ratio", None, 7.5, "");
        let svg = report.svg().unwrap();
        for text in ["a chart", "first", "second", "size", "1.750", "<circle"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("not compared") && !svg.contains("NaN"));
    }

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!([0.7, 1.0, 23.0, 410.0, 0.011].map(round_up), [0.8, 1.0, 30.0, 500.0, 0.02]);
        assert_eq!(shortened("a long name", 36), "a lo..");
    }

    #[test]
    fn an_empty_report_can_be_drawn() {
        let empty = ReproReport::new("x", "", TimeKind::Real);
        assert!(empty.svg().unwrap().contains("</svg>"));
        let mut zeros = empty.clone();
        zeros.row("a", "b", Some(0.0), 0.0, "");
        zeros.row("a", "c", Some(f64::INFINITY), f64::NAN, "");
        assert!(zeros.svg().unwrap().contains("</svg>"));
    }
}
