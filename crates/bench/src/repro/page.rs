//! Page: sets reports on one page of HTML, with their drawings and tables.
//!
//! The page is one file that loads nothing and runs nothing. It follows the reader's choice of light or dark: its
//! style replaces the ground, the ink and the grid of the drawings.

use std::fmt::Write;

use plotters::style::RGBColor;
use serde_json::Value;

use super::{
    error::ReproError,
    overview::{self, COLUMNS},
    report::ReproReport,
    svg::{GRID, GROUND, INK},
};

/// An experiment of a page, and its report once there is one.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The experiment's name.
    pub name: String,
    /// The experiment's subject.
    pub about: String,
    /// Its report; the message of its error; `None` if it has not run.
    pub result: Option<Result<ReproReport, String>>,
}

const STYLE: &str = "\
:root { color-scheme: light dark; --ground: #ffffff; --ink: #222222; --grid: #e6e6e6; --soft: #5a6470; --bad: #b00020; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #15181c; --ink: #e4e6e8; --grid: #343a41; --soft: #a2abb5; --bad: #ff7b86; }
}
body { background: var(--ground); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; margin: 0 auto;
  max-width: 66em; padding: 1.5em; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.2em; border-top: 1px solid var(--grid); padding-top: 1em; }
nav ul { columns: 2 24em; padding-left: 1.2em; } a { color: inherit; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 13px; } details { overflow-x: auto; margin: .6em 0; }
th, td { border-bottom: 1px solid var(--grid); padding: .2em .7em .2em 0; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
summary { cursor: pointer; } .soft { color: var(--soft); } .bad { color: var(--bad); }
";

/// One page with all of `findings`, in their order.
///
/// # Errors
/// [`ReproError::Drawing`], which nothing but a defect brings about.
pub fn page(title: &str, findings: &[Finding]) -> Result<String, ReproError> {
    let mut text = String::new();
    write_page(&mut text, title, findings)?;
    Ok(text)
}

fn write_page(out: &mut String, title: &str, findings: &[Finding]) -> Result<(), ReproError> {
    let title = escaped(title);
    out.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n");
    put(out, format_args!("<title>{title}</title>\n<style>\n{STYLE}"));
    for (color, name) in [(GROUND, "ground"), (INK, "ink"), (GRID, "grid")] {
        let code = code(color);
        put(out, format_args!("svg [fill=\"{code}\"] {{ fill: var(--{name}); }}\n"));
        put(out, format_args!("svg [stroke=\"{code}\"] {{ stroke: var(--{name}); }}\n"));
    }
    put(out, format_args!("</style>\n</head>\n<body>\n<h1>{title}</h1>\n"));
    let done = findings.iter().filter(|it| matches!(it.result, Some(Ok(_)))).count();
    put(out, format_args!("<p>{done} of {} experiments have run.</p>\n", findings.len()));
    let first = findings.iter().find_map(|it| it.result.as_ref()?.as_ref().ok());
    if let Some(report) = first {
        write_origin(out, report);
    }
    out.push_str("<nav><ul>\n");
    for finding in findings {
        let (name, about) = (escaped(&finding.name), escaped(&finding.about));
        let state = match &finding.result {
            Some(Ok(report)) => match report.failed().count() {
                0 => "",
                _ => " <span class=\"bad\">(a bar does not hold)</span>",
            },
            Some(Err(_)) => " <span class=\"bad\">(failed)</span>",
            None => " <span class=\"soft\">(has not run)</span>",
        };
        put(out, format_args!("<li><a href=\"#{name}\">{name}</a>: {about}{state}</li>\n"));
    }
    out.push_str("</ul></nav>\n");
    write_overview(out, findings);
    for finding in findings {
        write_finding(out, finding)?;
    }
    out.push_str("</body>\n</html>\n");
    Ok(())
}

/// Every figure of the papers, and how far the run agrees with it.
fn write_overview(out: &mut String, findings: &[Finding]) {
    write_table(out, "Figures of the papers", &COLUMNS, &overview::rows(findings));
}

fn write_origin(out: &mut String, report: &ReproReport) {
    let machine = &report.machine;
    let cores = machine.cores.map(|cores| format!("{cores} processors"));
    let commit = report.commit.as_ref().map(|commit| format!("commit {commit}"));
    let parts: Vec<_> = [commit, machine.cpu.clone(), cores].into_iter().flatten().collect();
    put(out, format_args!("<p class=\"soft\">{}</p>\n", escaped(&parts.join(", "))));
}

fn write_finding(out: &mut String, finding: &Finding) -> Result<(), ReproError> {
    let (name, about) = (escaped(&finding.name), escaped(&finding.about));
    put(out, format_args!("<section id=\"{name}\">\n<h2>{about}</h2>\n"));
    match &finding.result {
        None => out.push_str("<p class=\"soft\">This experiment has not run.</p>\n"),
        Some(Err(error)) => put(out, format_args!("<p class=\"bad\">{}</p>\n", escaped(error))),
        Some(Ok(report)) => write_report(out, report)?,
    }
    out.push_str("</section>\n");
    Ok(())
}

fn write_report(out: &mut String, report: &ReproReport) -> Result<(), ReproError> {
    let command = format!("farleaf repro {} --scale {}", report.experiment, report.scale);
    put(out, format_args!("<p class=\"soft\"><code>{}</code></p>\n", escaped(&command)));
    put(out, format_args!("<div>\n{}\n</div>\n", report.svg()?.trim_end()));
    if !report.checks.is_empty() {
        out.push_str("<ul>\n");
        for check in &report.checks {
            let what = escaped(&check.what);
            let (class, holds) = match check.holds {
                Some(true) => ("", "holds"),
                Some(false) => ("bad", "does not hold"),
                None => ("soft", "not asked for at this scale"),
            };
            put(out, format_args!("<li class=\"{class}\">{what}: {holds}</li>\n"));
        }
        out.push_str("</ul>\n");
    }
    for note in &report.notes {
        put(out, format_args!("<p class=\"soft\">{}</p>\n", escaped(note)));
    }
    for table in &report.tables {
        let (header, rows) = table.cells();
        write_table(out, &table.title, &header, &rows);
    }
    let (header, rows) = report.table();
    write_table(out, "All figures", &header, &rows);
    let config = report.config.iter().map(|(name, value)| {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        vec![name.clone(), text]
    });
    write_table(out, "Configuration", &["name", "value"], &config.collect::<Vec<_>>());
    Ok(())
}

fn write_table(out: &mut String, title: &str, header: &[&str], rows: &[Vec<String>]) {
    put(out, format_args!("<details>\n<summary>{}</summary>\n<table>\n<tr>", escaped(title)));
    let numbers = |column: usize| {
        rows.iter()
            .all(|row| row.get(column).is_some_and(|it| it == "-" || it.parse::<f64>().is_ok()))
    };
    let classes: Vec<_> = (0..header.len())
        .map(|column| if numbers(column) { " class=\"number\"" } else { "" })
        .collect();
    for (name, class) in header.iter().zip(&classes) {
        put(out, format_args!("<th{class}>{}</th>", escaped(name)));
    }
    out.push_str("</tr>\n");
    for row in rows {
        out.push_str("<tr>");
        for (cell, class) in row.iter().zip(&classes) {
            put(out, format_args!("<td{class}>{}</td>", escaped(cell)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n</details>\n");
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Nothing keeps a string from growing.
    let _ = out.write_fmt(text);
}

/// A colour as the drawings have it.
fn code(color: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2)
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
#[path = "../../tests/bench/well_formed.rs"]
mod well_formed;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{well_formed::check_well_formed, *};
    use crate::report::TimeKind;

    #[test]
    fn a_page_is_well_formed_and_tells_how_each_experiment_ended() {
        let mut report = ReproReport::new("one", "a < b", TimeKind::Virtual);
        report.source = "paper & more".to_owned();
        report.row("case", "READs /op", Some(0.33), 0.7, "because \"so\"");
        report.check("a bar", Some(false));
        report.notes.push("a note".to_owned());
        let finding = |name: &str, result| Finding {
            name: name.to_owned(),
            about: format!("about <{name}>"),
            result,
        };
        let all = [
            finding("one", Some(Ok(report))),
            finding("two", Some(Err("it went wrong".to_owned()))),
            finding("three", None),
        ];
        let text = page("all & more", &all).unwrap();
        check_well_formed(&text);
        for told in [
            "1 of 3 experiments have run",
            "Figures of the papers",
            "about &lt;one&gt;",
            "because &quot;so&quot;",
            "a bar: does not hold",
            "it went wrong",
            "has not run",
            "prefers-color-scheme: dark",
            "svg [fill=\"#FFFFFF\"]",
        ] {
            assert!(text.contains(told), "{told}");
        }
        // The drawings have the colours that the style replaces.
        for color in [GROUND, INK] {
            assert!(
                text.contains(&format!("fill=\"{}\" ", code(color)))
                    || text.contains(&format!("fill=\"{}\"", code(color))),
                "{}",
                code(color)
            );
        }
    }
}
