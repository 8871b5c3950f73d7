//! `farleaf bench`: runs a workload on a cluster, and reports.

use std::io::Write;

use farleaf_bench::{BenchConfig, FabricKind, PerOp, Report, ReportKind, Row, TargetCosts};
use serde_json::{Value, to_value};

use crate::bench::BenchArgs;
use crate::cluster::{Cluster, ClusterConfig};
use crate::errors::{Exit, Failure};
use crate::output::{Console, counted};
use crate::progress::Meter;
use crate::source::create;

pub(super) fn run(args: &BenchArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let plan = args.plan(&super::builder(console)?)?;
    for name in &plan.ignored {
        console.warn(format_args!("the property {name} changes nothing here"));
    }
    if args.dry_run {
        for config in &plan.runs {
            console.json_line(&Value::Object(config.to_json()))?;
        }
        return Ok(Exit::Done);
    }
    let mut file = args.output.as_deref().map(create).transpose()?;
    let mut reports = Vec::new();
    for config in &plan.runs {
        console.detail(format_args!("runs {}", Value::Object(config.to_json())));
        // They end with each run, so that none finds anything that another has left.
        let (config, _servers) = with_servers(config, console)?;
        let meter = Meter::new(console.shows_progress(), None);
        let run = farleaf_bench::run(&config, &meter);
        meter.clear();
        let report = run?;
        let has = |name: &str| {
            let all = report.config.get("capabilities").and_then(Value::as_array);
            all.is_some_and(|all| all.iter().any(|it| it == name))
        };
        if !has("word_atomic") {
            console.warn(super::TORN);
        }
        let told = to_value(&report)?;
        if let (Some(path), Some(file)) = (&args.output, &mut file) {
            let unwritable = |error| Failure::unwritable(path.display(), error);
            writeln!(file, "{told}").map_err(unwritable)?;
        }
        if console.args.json {
            console.json_line(&told)?;
        }
        reports.push(report);
    }
    match (console.args.json, args.costs) {
        (true, _) => {}
        (false, true) => print_costs(&reports, console)?,
        (false, false) => print(&reports, console)?,
    }
    let errors: u64 = reports.iter().map(|report| report.run.errors).sum();
    if errors > 0 {
        for report in reports.iter().filter(|report| report.run.errors > 0) {
            let first = report.run.first_error.as_deref().unwrap_or("a wrong answer");
            let (engine, count) = (&report.engine, report.run.errors);
            console.warn(format_args!("{engine}: {count}, the first: {first}"));
        }
        let errors = counted(errors, "operation");
        console.warn(format_args!("{errors} failed or gave a wrong answer"));
        return Ok(Exit::NotFound);
    }
    Ok(Exit::Done)
}

/// The configuration with memory servers of its own, if it needs some and names none.
fn with_servers(
    config: &BenchConfig,
    console: &Console,
) -> anyhow::Result<(BenchConfig, Option<Cluster>)> {
    let mut config = BenchConfig { tls: console.args.tls.load()?, ..config.clone() };
    if !config.fabric.is_network() || config.cluster.is_some() {
        return Ok((config, None));
    }
    let servers = Cluster::start(&ClusterConfig {
        servers: u16::try_from(config.memory_servers)
            .map_err(|_| Failure::usage("too many memory servers to number"))?,
        region_bytes: Some(farleaf_bench::region_bytes(&config)?),
        threads: config.parts.memory_threads.unwrap_or(1),
        tls: console.args.tls.clone(),
        card: (config.fabric == FabricKind::Verbs).then(|| config.card.clone()),
        ..ClusterConfig::default()
    })?;
    config.cluster = Some(farleaf_bench::Cluster::Own(servers.addresses()));
    Ok((config, Some(servers)))
}

/// One line for each number, one column for each run.
fn print(reports: &[Report], console: &mut Console) -> std::io::Result<()> {
    let runs: Vec<Vec<Row>> = reports.iter().map(Report::rows).collect();
    let mut names: Vec<(&str, &str)> = Vec::new();
    for row in runs.iter().flatten() {
        if !names.contains(&(row.group, row.name.as_str())) {
            names.push((row.group, &row.name));
        }
    }
    let line = |(group, name): (&str, &str)| {
        let value = |rows: &Vec<Row>| {
            let row = rows.iter().find(|row| (row.group, row.name.as_str()) == (group, name));
            row.map(|row| row.value.clone()).unwrap_or_default()
        };
        [group.to_owned(), name.to_owned()].into_iter().chain(runs.iter().map(value)).collect()
    };
    console.table(&[], names.into_iter().map(line))
}

/// One line for each run and kind of operation: what an operation costs on the fabric; and one for each kind of server
/// if compute servers' memory is in use. Work that no operation
/// waits for is left out.
fn print_costs(reports: &[Report], console: &mut Console) -> std::io::Result<()> {
    let mut lines = Vec::new();
    for report in reports {
        for (kind, told) in &report.run.by_kind {
            if *kind == ReportKind::Maintenance {
                continue;
            }
            let line = |name: String, cost: &PerOp| {
                let counts = [cost.reads, cost.writes, cost.atomics, cost.rpcs, cost.calls];
                let counts = counts.into_iter().chain([cost.round_trips]);
                let bytes = cost.bytes_read + cost.bytes_written;
                let names = [report.engine.clone(), report.fabric.clone(), name];
                let numbers = counts.map(|count| format!("{count:.2}"));
                names.into_iter().chain(numbers).chain([format!("{bytes:.0}")]).collect()
            };
            lines.push(line(kind.name().to_owned(), &told.per_op));
            for (target, cost) in told.targets.iter().flat_map(TargetCosts::named) {
                lines.push(line(format!("{}, {target}", kind.name()), &cost));
            }
        }
    }
    let header = [
        "engine",
        "fabric",
        "operation",
        "READ",
        "WRITE",
        "CAS/FAA",
        "RPC",
        "calls",
        "round trips",
        "bytes",
    ];
    console.table(&header, lines)
}
