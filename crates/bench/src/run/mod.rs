//! Run: sets up a cluster, loads a table, runs a workload on it and reports.
//!
//! One loop serves every fabric (`client`): a client makes its next operation, runs it on the
//! engine, and checks the answer. A thread brings its clients through the phases together with all
//! other threads (`worker`). Each fabric starts the threads in its own way (`real`, `sim`).
//!
//! - INV-RUN-1: in the simulator, the same configuration gives the same report, number by number.
//! - INV-RUN-2: nothing but measured operations lies between the counts before and after the run
//!   phase, except for maintenance.
//! - INV-RUN-3: an answer that cannot be right is counted as an error, and so is a failure.

pub(crate) mod client;
pub(crate) mod context;
mod error;
pub(crate) mod meet;
mod progress;
mod real;
pub(crate) mod route;
mod sim;
pub(crate) mod sorted;
pub(crate) mod table;
pub(crate) mod tally;
mod worker;

use farleaf_engines::Engine;
use farleaf_fabric::{
    AnyFabric, Capabilities,
    sim::OpRecord,
    tcp::Tcp,
    verbs::{Verbs, VerbsConfig},
};
use farleaf_index::{Index, Settings, TableReport, knobs::CACHE};
use serde_json::{Map, Value, json};

pub use error::BenchError;
pub use progress::{NoProgress, Phase, Progress};

use crate::{
    config::{BenchConfig, FabricKind, settings_json},
    machine::Machine,
    report::{
        CounterReport, LoopKind, MemoryReport, PhaseReport, Report, RunReport, TimeKind,
        build_commit,
    },
    units::Size,
};
use context::Context;
use sim::AboutSim;
use table::{Loaded, Server};
use worker::Outcome;

/// Sets up the cluster of `config`, runs the workload, and reports.
///
/// # Errors
/// [`BenchError`] if the configuration makes no sense, or if a step before or after the operations
/// fails. The report counts operations that fail or answer wrongly.
pub fn run(config: &BenchConfig, progress: &dyn Progress) -> Result<Report, BenchError> {
    match config.fabric {
        FabricKind::Sim => {
            let context = Context::new(config)?;
            Ok(sim::run(&context, progress)?.report(&context))
        }
        FabricKind::Mapped => {
            let context = Context::new(config)?;
            Ok(real::on_mapped(&context, progress)?.report(&context))
        }
        FabricKind::Tcp => {
            let (run, context, _) =
                real::on_network(config, |tcp| Tcp::connect(tcp).map(AnyFabric::Tcp), progress)?;
            Ok(run.report(&context))
        }
        FabricKind::Verbs => {
            let card = &config.card;
            let connect = |tcp| {
                let config = VerbsConfig { tcp, card: card.clone(), ..VerbsConfig::to([]) };
                Verbs::connect(config).map(AnyFabric::Verbs)
            };
            let (run, context, fabric) = real::on_network(config, connect, progress)?;
            let mut report = run.report(&context);
            if let AnyFabric::Verbs(fabric) = fabric {
                report.config.insert("card".to_owned(), json!(fabric.place()));
            }
            Ok(report)
        }
    }
}

/// As [`run`] in the simulator; also returns every remote operation, the newest million of them.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_recorded(
    config: &BenchConfig,
    progress: &dyn Progress,
) -> Result<(Report, Vec<OpRecord>), BenchError> {
    let context = Context::new(config)?;
    let (run, records) = sim::run_recorded(&context, progress)?;
    Ok((run.report(&context), records))
}

/// Bytes of each memory server that `config` needs.
///
/// # Errors
/// As [`run`], if the configuration makes no sense.
pub fn region_bytes(config: &BenchConfig) -> Result<u64, BenchError> {
    Ok(Context::new(config)?.region_bytes)
}

/// Results of a run.
struct Run {
    outcome: Outcome,
    loaded: Loaded,
    servers: Vec<Server>,
    seen: Option<TableReport>,
    capabilities: Capabilities,
    about_sim: Option<AboutSim>,
}

impl Run {
    fn report(self, context: &Context) -> Report {
        let config = &context.config;
        let Outcome { tally, load_ns, run_ns, cost, counters, cache_bytes, .. } = &self.outcome;
        let memory: Vec<_> = self.servers.iter().map(|server| server.pool.memory()).collect();
        let data_bytes = self.loaded.data_bytes.saturating_add_signed(tally.data_bytes());
        Report {
            engine: config.engine.name().to_owned(),
            fabric: config.fabric.name().to_owned(),
            time: match config.fabric {
                FabricKind::Mapped | FabricKind::Tcp | FabricKind::Verbs => TimeKind::Real,
                FabricKind::Sim => TimeKind::Virtual,
            },
            loop_kind: if config.rate.is_some() { LoopKind::Open } else { LoopKind::Closed },
            config: self.config(context),
            load: self
                .loaded
                .load
                .unwrap_or_else(|| PhaseReport::new(seconds(*load_ns), config.keys)),
            run: RunReport {
                counters: (!counters.is_empty()).then(|| CounterReport::new(counters, cost)),
                busiest_card: self.about_sim.as_ref().and_then(|it| it.busiest_card.clone()),
                ..tally.report(seconds(*run_ns), cost)
            },
            memory: MemoryReport {
                pool_bytes: context.pool_bytes(),
                index_bytes: memory.iter().map(|it| it.live_bytes - it.retired_bytes).sum(),
                data_bytes,
                compute_bytes: *cache_bytes,
            },
            machine: Machine::detect(),
            commit: build_commit().map(str::to_owned),
        }
    }

    /// The configuration with defaults filled in, and further properties that explain the numbers.
    fn config(&self, context: &Context) -> Map<String, Value> {
        let mut config = context.config.to_json();
        let mut set = |name: &str, value: Value| config.insert(name.to_owned(), value);
        set("pool_bytes", json!(context.pool_bytes()));
        set("block_bytes", json!(context.pool.block_bytes));
        set("node_bytes", json!(context.format.node_bytes()));
        let engine = context.config.engine;
        if let Some(server) = self.servers.first() {
            let options = in_effect(engine, &server.settings);
            let size = options.get(CACHE).and_then(|text| text.parse::<Size>().ok());
            if let Some(size) = size {
                set("cache_bytes", json!(size.0));
            }
            set("settings", settings_json(options.iter()));
        }
        if engine.traits().owned {
            set("partitions", json!(self.loaded.bounds.len() + 1));
            let parts = &context.config.parts;
            set("boundaries", json!(parts.boundaries.unwrap_or_default().name()));
            set("routing", json!(parts.routing(&context.config).name()));
        }
        set("parts", json!(self.parts(context)));
        set("capabilities", json!(capability_names(&self.capabilities)));
        set("crash_atomic_bytes", json!(self.capabilities.crash_atomic_bytes));
        if let Some(seen) = &self.seen {
            set("levels", json!(seen.nodes_per_level.len()));
            set("leaves", json!(seen.nodes_per_level.first()));
            set("keys_at_end", json!(seen.keys));
        }
        if let Some(about) = &self.about_sim {
            // As text: numbers beyond 2^53 do not survive every reader of JSON.
            set("trace_hash", json!(format!("{:016x}", about.trace_hash)));
            set("sim_events", json!(about.events));
            set("sim_remote_ops", json!(about.remote_ops));
        }
        config
    }
}

impl Run {
    /// The engine's chosen settings and what follows from them, and parts of the table, each in a few words.
    fn parts(&self, context: &Context) -> Vec<String> {
        let engine = context.config.engine;
        let mut parts = Vec::new();
        if let Some(server) = self.servers.first() {
            let options = in_effect(engine, &server.settings);
            let told = |name: &str| name == CACHE || server.settings.get(name).is_some();
            let told = options.iter().filter(|(name, _)| told(name));
            parts.extend(told.map(|(name, text)| format!("{name}={text}")));
            parts.extend(server.index.parts());
        }
        if !self.loaded.bounds.is_empty() {
            let boundaries = context.config.parts.boundaries.unwrap_or_default();
            parts.push(format!("{} partitions ({boundaries})", self.loaded.bounds.len() + 1));
        }
        if context.open.calls {
            let begins = if context.routes { "begin at the key's owner" } else { "are forwarded" };
            parts.push(format!("operations {begins}"));
        }
        parts
    }
}

/// All options of the engine: `settings`, and the defaults of the others.
fn in_effect(engine: Engine, settings: &Settings) -> Settings {
    let mut all = Settings::default();
    engine.options().iter().for_each(|it| all.set(it.knob.name, &it.default));
    all.set_all(settings);
    all
}

fn capability_names(it: &Capabilities) -> Vec<&'static str> {
    [
        ("word_atomic", it.word_atomic),
        ("line_atomic", it.line_atomic),
        ("write_inorder", it.write_inorder),
        ("write_vs_rmw", it.write_vs_rmw),
        ("rmw_global", it.rmw_global),
        ("cpu_visible", it.cpu_visible),
        ("native_atomics", it.native_atomics),
        ("needs_target_progress", it.needs_target_progress),
    ]
    .into_iter()
    .filter_map(|(name, has)| has.then_some(name))
    .collect()
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
