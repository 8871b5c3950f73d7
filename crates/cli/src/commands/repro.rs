//! `farleaf repro`: repeats experiments of papers.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use farleaf_bench::repro::{Experiment, Host, HostError, Hosts, ReproOptions, ReproReport};
use serde_json::{json, to_value};

use crate::cluster::{Cluster, ClusterConfig};
use crate::errors::{Exit, Failure};
use crate::output::Console;
use crate::progress::Meter;
use crate::settings::SetArgs;
use crate::tls::TlsArgs;

/// Repeat experiments of papers, or measure beside Redis
#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 1 if something that must hold does not. A figure that differs from the paper's does not
count as that: its row says why it does.")]
pub(crate) struct ReproArgs {
    /// The experiment; --list names all
    #[arg(required_unless_present = "list")]
    pub(crate) experiment: Option<String>,
    /// List the experiments
    #[arg(long, conflicts_with = "experiment")]
    pub(crate) list: bool,
    /// Share of the paper's keys, cache and operations, above 0 and at most 1 [default: see --list]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub(crate) scale: Option<f64>,
    /// Seed of all randomness [default: 1]
    #[arg(short, long)]
    pub(crate) seed: Option<u64>,
    /// Write the report to this file, too, as JSON
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Draw the figures into this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) set: SetArgs,
}

pub(super) fn run(args: &ReproArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let Some(name) = &args.experiment else { return list(console) };
    let experiment: Experiment = name.parse()?;
    let defaults = ReproOptions::default();
    let options = ReproOptions {
        scale: args.scale.unwrap_or(experiment.usual_scale()),
        seed: args.seed.unwrap_or(defaults.seed),
        settings: args.set.settings(),
    };
    // Before the run, so that it is not in vain.
    let mut files = Vec::new();
    for path in [&args.output, &args.svg] {
        files.push(match path {
            Some(path) => {
                let unwritable = |error| Failure::unwritable(path.display(), error);
                Some((path, File::create(path).map_err(unwritable)?))
            }
            None => None,
        });
    }
    let meter = Meter::new(console.shows_progress(), None);
    let ran = experiment.run(&options, &Processes, &meter);
    meter.clear();
    let report = ran?;
    let told = to_value(&report)?;
    let texts = [format!("{told}\n"), report.svg()?];
    for (file, text) in files.iter_mut().zip(texts) {
        if let Some((path, file)) = file {
            let unwritable = |error| Failure::unwritable(path.display(), error);
            file.write_all(text.as_bytes()).map_err(unwritable)?;
        }
    }
    if console.json {
        console.json_line(&told)?;
    } else {
        print(&report, console)?;
    }
    let mut exit = Exit::Done;
    for check in report.failed() {
        console.warn(format_args!("does not hold: {}", check.what));
        exit = Exit::NotFound;
    }
    Ok(exit)
}

/// Memory servers as processes of this very program, reached in the open.
struct Processes;

impl Hosts for Processes {
    fn memory_server(&self, region_bytes: u64) -> Result<Box<dyn Host>, HostError> {
        let servers = Cluster::start(&ClusterConfig {
            servers: 1,
            region_bytes: Some(region_bytes),
            threads: 1,
            folder: None,
            port: 0,
            tls: TlsArgs::default(),
            card: None,
        })?;
        let address = servers.addresses().first().copied().ok_or("it has no address")?;
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
    if console.json {
        for it in Experiment::ALL {
            let (name, about) = (it.name(), it.about());
            let line = json!({ "experiment": name, "about": about, "scale": it.usual_scale() });
            console.json_line(&line)?;
        }
        return Ok(Exit::Done);
    }
    let row = |it: Experiment| {
        vec![it.name().to_owned(), it.about().to_owned(), it.usual_scale().to_string()]
    };
    console.table(&["experiment", "about", "scale"], &Experiment::ALL.map(row))?;
    Ok(Exit::Done)
}

fn print(report: &ReproReport, console: &mut Console) -> std::io::Result<()> {
    console.note(format_args!("{}: {} ({})", report.experiment, report.title, report.source));
    for table in &report.tables {
        console.note(&table.title);
        console.flush()?;
        let (header, rows) = table.cells();
        console.table(&header, &rows)?;
        console.flush()?;
    }
    if report.tables.is_empty() {
        let (header, rows) = report.table();
        console.table(&header, &rows)?;
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
