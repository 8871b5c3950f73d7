//! `farleaf repro`: repeats experiments of papers.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Args, ValueHint};
use farleaf_bench::repro::{
    ALL_FIGURES, Experiment, Finding, Host, HostError, Hosts, ReproOptions, ReproReport, Scale,
    TOLERANCE, overview, page,
};
use serde_json::{json, to_value};

use crate::cluster::{Cluster, ClusterConfig};
use crate::errors::{self, Exit, Failure};
use crate::output::Console;
use crate::progress::Meter;
use crate::settings::SetArgs;
use crate::source::create;

/// Repeat experiments of papers, or measure beside Redis
#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 1 if something that must hold does not. A figure that differs from the paper's does not
count as that: its row says why it does.

`all` runs every figure of the papers, one after the other, and writes one page of HTML:
  farleaf repro all --scale small --out figures.html
and, with --overview FILE, a table of the state of each figure. Both are written anew after each
experiment, so that Ctrl-C leaves what has finished.")]
pub(crate) struct ReproArgs {
    /// The experiment, or all of them (all); --list names them
    #[arg(required_unless_present = "list")]
    pub(crate) experiment: Option<String>,
    /// List the experiments
    #[arg(long, conflicts_with = "experiment")]
    pub(crate) list: bool,
    /// Share of the paper's keys, cache and operations, above 0 and at most 1; or small (a quick
    /// look), usual (see --list), or full [default: usual; small for all]
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true)]
    pub(crate) scale: Option<String>,
    /// Seed of all randomness [default: 1]
    #[arg(short, long)]
    pub(crate) seed: Option<u64>,
    /// Write the report to this file, too, as JSON
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Draw the figures into this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) svg: Option<PathBuf>,
    /// Write a page of HTML with figures and tables to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) out: Option<PathBuf>,
    /// With all: write a table of every figure, its state and its worst ratio to this file, as Markdown
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) overview: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) set: SetArgs,
}

pub(super) fn run(args: &ReproArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let Some(name) = &args.experiment else { return list(console) };
    let scale = args.scale.as_ref().map(|text| text.parse::<Scale>()).transpose()?;
    if name.trim().eq_ignore_ascii_case(ALL_FIGURES) {
        return run_all(args, scale.unwrap_or(Scale::Small), console);
    }
    let experiment: Experiment = name.parse()?;
    if args.overview.is_some() {
        let message = "--overview is for all: farleaf repro all --overview FILE";
        return Err(Failure::usage(message).into());
    }
    let options = ReproOptions {
        scale: scale.unwrap_or_default().of(experiment),
        seed: args.seed.unwrap_or(ReproOptions::default().seed),
        settings: args.set.settings(),
    };
    let output = args.output.as_deref().map(create).transpose()?;
    let svg = args.svg.as_deref().map(create).transpose()?;
    let mut finding = finding_of(experiment);
    if let Some(path) = &args.out {
        write_page(path, experiment.about(), std::slice::from_ref(&finding))?;
    }
    let meter = Meter::new(console.shows_progress(), None);
    let ran = experiment.run(&options, &Processes, &meter);
    meter.clear();
    let report = ran?;
    let told = to_value(&report)?;
    let texts = [format!("{told}\n"), report.svg()?];
    for ((path, file), text) in [(&args.output, output), (&args.svg, svg)].into_iter().zip(texts) {
        if let (Some(path), Some(mut file)) = (path, file) {
            let unwritable = |error| Failure::unwritable(path.display(), error);
            file.write_all(text.as_bytes()).map_err(unwritable)?;
        }
    }
    if console.args.json {
        console.json_line(&told)?;
    } else {
        print(&report, console)?;
    }
    let exit = warn_of_checks(&report, console);
    if let Some(path) = &args.out {
        finding.result = Some(Ok(report));
        write_page(path, experiment.about(), std::slice::from_ref(&finding))?;
    }
    Ok(exit)
}

/// Runs every figure of the papers. An experiment that fails does not keep the others from running.
fn run_all(args: &ReproArgs, scale: Scale, console: &mut Console) -> anyhow::Result<Exit> {
    if args.output.is_some() || args.svg.is_some() {
        let message = "--output and --svg are for one experiment; all writes one page: --out FILE";
        return Err(Failure::usage(message).into());
    }
    if !args.set.settings().is_empty() {
        let message =
            "--set is for one experiment: all runs each with the settings that it compares";
        return Err(Failure::usage(message).into());
    }
    if args.out.is_none() && args.overview.is_none() {
        let message =
            "all writes one page with every figure: give --out FILE, as in --out figures.html";
        return Err(Failure::usage(message).into());
    }
    let experiments: Vec<_> = Experiment::figures().collect();
    let mut findings: Vec<_> = experiments.iter().map(|it| finding_of(*it)).collect();
    let title = format!("Figures of the papers, scale {scale}");
    let write_all = |findings: &[Finding]| {
        if let Some(path) = &args.out {
            write_page(path, &title, findings)?;
        }
        args.overview.as_ref().map_or(Ok(()), |path| write_whole(path, &overview(findings)))
    };
    // Before the first run, so that it is not in vain.
    write_all(&findings)?;
    let paths: Vec<_> =
        args.out.iter().chain(&args.overview).map(|path| path.display().to_string()).collect();
    let paths = paths.join(" and ");
    let left = format!("interrupted; the experiments that have finished are in {paths}");
    let quiet = console.args.quiet;
    ctrlc::set_handler(move || {
        if !quiet {
            // Nobody reads it where it cannot be written.
            let _ = writeln!(std::io::stderr(), "farleaf: {left}");
        }
        process::exit(Exit::Interrupted as i32);
    })
    .context("cannot listen for Ctrl-C")?;
    let (mut exit, mut failure) = (Exit::Done, None);
    let mut summary = Vec::new();
    for (at, experiment) in experiments.iter().enumerate() {
        let name = experiment.name();
        console.note(format_args!("{name} ({} of {})", at + 1, experiments.len()));
        let options = ReproOptions {
            scale: scale.of(*experiment),
            seed: args.seed.unwrap_or(ReproOptions::default().seed),
            ..ReproOptions::default()
        };
        let began = Instant::now();
        let meter = Meter::new(console.shows_progress(), None);
        let ran = experiment.run(&options, &Processes, &meter);
        meter.clear();
        let seconds = began.elapsed().as_secs_f64();
        match &ran {
            Ok(report) => {
                if console.args.json {
                    console.json_line(&to_value(report)?)?;
                    console.flush()?;
                }
                if let Exit::NotFound = warn_of_checks(report, console) {
                    exit = Exit::NotFound;
                }
                summary.push(summary_row(report, seconds));
            }
            Err(error) => console.warn(format_args!("{name} failed: {error}")),
        }
        findings[at].result = Some(match ran {
            Ok(report) => Ok(report),
            Err(error) => {
                let text = error.to_string();
                failure.get_or_insert_with(|| errors::exit_of(&error.into()));
                Err(text)
            }
        });
        write_all(&findings)?;
    }
    if !console.args.json {
        let header =
            ["experiment", "figures", "beside others", "beyond 25 %", "missing", "seconds"];
        console.table(&header, summary)?;
    }
    console.note(format_args!("written to {paths}"));
    Ok(failure.unwrap_or(exit))
}

fn finding_of(experiment: Experiment) -> Finding {
    let (name, about) = (experiment.name().to_owned(), experiment.about().to_owned());
    Finding { name, about, result: None }
}

/// Counts of a report's figures: all, those with one to compare with, those that differ, those that are missing.
fn summary_row(report: &ReproReport, seconds: f64) -> Vec<String> {
    let rows = &report.rows;
    let count = |number: usize| number.to_string();
    let differs = |ratio: Option<f64>| ratio.is_some_and(|ratio| (ratio - 1.0).abs() > TOLERANCE);
    vec![
        report.experiment.clone(),
        count(rows.len()),
        count(rows.iter().filter(|row| row.paper.is_some() && row.ours.is_some()).count()),
        count(rows.iter().filter(|row| differs(row.ratio)).count()),
        count(rows.iter().filter(|row| row.ours.is_none()).count()),
        format!("{seconds:.1}"),
    ]
}

fn write_page(path: &Path, title: &str, findings: &[Finding]) -> anyhow::Result<()> {
    write_whole(path, &page(title, findings)?)
}

/// Writes a file beside its place and moves it there, so that a reader always finds a whole one.
fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = path.with_file_name(name);
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    written.map_err(|error| {
        // A page that is written in part is of no use.
        let _ = fs::remove_file(&part);
        Failure::unwritable(path.display(), error).into()
    })
}

/// Warns of each check that does not hold; 1 if there is one.
fn warn_of_checks(report: &ReproReport, console: &Console) -> Exit {
    let mut exit = Exit::Done;
    for check in report.failed() {
        console.warn(format_args!("does not hold: {}", check.what));
        exit = Exit::NotFound;
    }
    exit
}

/// Servers as processes of this very program, reached in the open.
struct Processes;

impl Hosts for Processes {
    fn memory_server(&self, region_bytes: u64) -> Result<Box<dyn Host>, HostError> {
        let servers = Cluster::start(&ClusterConfig {
            servers: 1,
            region_bytes: Some(region_bytes),
            threads: 1,
            ..ClusterConfig::default()
        })?;
        let address = servers.addresses().first().copied().ok_or("it has no address")?;
        Ok(Box::new(Process { address, _servers: servers }))
    }

    fn gateway(&self, words: &[&str]) -> Result<Box<dyn Host>, HostError> {
        let mut servers = Cluster::start(&ClusterConfig::default())?;
        let address = servers.add_gateway(words)?;
        Ok(Box::new(Process { address, _servers: servers }))
    }
}

/// One of them.
struct Process {
    address: SocketAddr,
    /// It ends with them.
    _servers: Cluster,
}

impl Host for Process {
    fn address(&self) -> SocketAddr {
        self.address
    }
}

fn list(console: &mut Console) -> anyhow::Result<Exit> {
    if console.args.json {
        for it in Experiment::all() {
            let (name, about) = (it.name(), it.about());
            let (usual, small) = (it.usual_scale(), it.small_scale());
            let line =
                json!({ "experiment": name, "about": about, "scale": usual, "small_scale": small });
            console.json_line(&line)?;
        }
        return Ok(Exit::Done);
    }
    let row = |it: Experiment| {
        let scales = [it.usual_scale(), it.small_scale()].map(|scale| scale.to_string());
        [it.name().to_owned(), it.about().to_owned()].into_iter().chain(scales).collect()
    };
    console.table(&["experiment", "about", "scale", "small"], Experiment::all().map(row))?;
    Ok(Exit::Done)
}

fn print(report: &ReproReport, console: &mut Console) -> std::io::Result<()> {
    console.note(format_args!("{}: {} ({})", report.experiment, report.title, report.source));
    for table in &report.tables {
        console.note(&table.title);
        console.flush()?;
        let (header, rows) = table.cells();
        console.table(&header, rows)?;
        console.flush()?;
    }
    if report.tables.is_empty() {
        let (header, rows) = report.table();
        console.table(&header, rows)?;
    }
    for check in &report.checks {
        let holds = match check.holds {
            Some(true) => "holds",
            Some(false) => "does not hold",
            None => "not asked for at this scale",
        };
        console.note(format_args!("{}: {holds}", check.what));
    }
    for note in &report.notes {
        console.note(note);
    }
    Ok(())
}
