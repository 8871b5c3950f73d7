//! SVG: draws a report, one panel for each quantity, the paper's bar beside ours for each case.

use plotters::{
    backend::SVGBackend,
    chart::ChartBuilder,
    coord::Shift,
    drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea},
    element::{Rectangle, Text},
    style::{
        Color, IntoFont, RGBColor, ShapeStyle, TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

use super::{
    error::ReproError,
    report::{ReproReport, ReproRow, figure},
};
use crate::report::TimeKind;

const WIDTH: u32 = 860;
const TITLE_HEIGHT: u32 = 64;
const PANEL_HEIGHT: u32 = 190;
const PAPER: RGBColor = RGBColor(0x9a, 0xa5, 0xb1);
const OURS: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);

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
        let mut panels: Vec<(&str, Vec<&ReproRow>)> = Vec::new();
        for row in &self.rows {
            match panels.iter_mut().find(|(quantity, _)| *quantity == row.quantity) {
                Some((_, rows)) => rows.push(row),
                None => panels.push((&row.quantity, vec![row])),
            }
        }
        let height = TITLE_HEIGHT + PANEL_HEIGHT * panels.len().max(1) as u32;
        let root = SVGBackend::with_string(into, (WIDTH, height)).into_drawing_area();
        root.fill(&RGBColor(255, 255, 255))?;
        let (title, body) = root.split_vertically(TITLE_HEIGHT);
        self.draw_title(&title)?;
        for (area, (quantity, rows)) in
            body.split_evenly((panels.len().max(1), 1)).iter().zip(&panels)
        {
            draw_panel(area, quantity, rows)?;
        }
        root.present()
    }

    fn draw_title(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let clock = match self.time {
            TimeKind::Real => "real time",
            TimeKind::Virtual => "simulated network, virtual time",
        };
        let title = format!("{}: {}", self.experiment, self.title);
        let about = format!("{clock}, scale {}; {}", self.scale, self.source);
        area.draw(&Text::new(title, (16, 10), label(17)))?;
        area.draw(&Text::new(about, (16, 34), label(11)))?;
        for (at, color, name) in [(16, PAPER, self.against.as_str()), (90, OURS, "Farleaf")] {
            area.draw(&Rectangle::new([(at, 51), (at + 10, 61)], fill(color)))?;
            area.draw(&Text::new(name, (at + 15, 49), label(11)))?;
        }
        Ok(())
    }
}

fn draw_panel(area: &Area<'_>, quantity: &str, rows: &[&ReproRow]) -> Result<(), DrawError> {
    let largest = rows
        .iter()
        .flat_map(|row| [row.paper, row.ours])
        .flatten()
        .filter(|number| number.is_finite())
        .fold(0.0, f64::max);
    let top = if largest > 0.0 { largest * 1.18 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .caption(quantity, label(13))
        .x_label_area_size(26)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..rows.len() as f64, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_labels(5)
        .y_label_formatter(&|number| figure(*number))
        .label_style(label(10))
        .light_line_style(RGBColor(255, 255, 255))
        .bold_line_style(RGBColor(0xe6, 0xe6, 0xe6))
        .axis_style(INK)
        .draw()?;
    let center = Pos::new(HPos::Center, VPos::Bottom);
    for (at, row) in rows.iter().enumerate() {
        let at = at as f64;
        for (left, number, color) in [(0.16, row.paper, PAPER), (0.52, row.ours, OURS)] {
            let number = number.filter(|number| number.is_finite());
            let bar = [(at + left, 0.0), (at + left + 0.32, number.unwrap_or(0.0))];
            chart.draw_series([Rectangle::new(bar, fill(color))])?;
            let told = number.map_or("-".to_owned(), figure);
            let place = (at + left + 0.16, number.unwrap_or(0.0) + top * 0.015);
            chart.draw_series([Text::new(told, place, label(10).pos(center))])?;
        }
        let below = (at + 0.5, -top * 0.05);
        let style = label(11).pos(Pos::new(HPos::Center, VPos::Top));
        let (x, y) = chart.backend_coord(&below);
        let (left, upper) = area.get_base_pixel();
        area.draw(&Text::new(row.case.clone(), (x - left, y - upper), style))?;
    }
    Ok(())
}

fn label(size: u32) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size).into_font()).color(&INK)
}

fn fill(color: RGBColor) -> ShapeStyle {
    color.filled()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_drawing_has_every_figure_and_no_markup_of_its_texts() {
        let mut report = ReproReport::new("dex-x", "a < b", "paper & more", TimeKind::Virtual);
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
    fn an_empty_report_can_be_drawn() {
        let empty = ReproReport::new("x", "", "", TimeKind::Real);
        assert!(empty.svg().unwrap().contains("</svg>"));
        let mut zeros = empty.clone();
        zeros.row("a", "b", Some(0.0), 0.0, "");
        zeros.row("a", "c", Some(f64::INFINITY), f64::NAN, "");
        assert!(zeros.svg().unwrap().contains("</svg>"));
    }
}
