//! DEX, Figure 10: three compute servers become four while their clients go on.
//!
//! As in the paper, the new server gets half of one server's keys. A second case shares all keys out anew.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use farleaf_engines::dex::{Dex, DexOptions, DexTable, JoinOptions, Take, equal_width};
use farleaf_fabric::{Endpoint, Fabric, Incarnation, ListenConfig};
use farleaf_index::compute::{Host, MoveError, RangeCalls, number_of};
use farleaf_pool::Session;

use super::{
    Repro, ReproOptions, driver,
    error::ReproError,
    papers::{self, DexPaper},
    report::{ReproChart, ReproReport, figure},
    setup,
    watch::{LOOK_NS, Span, Watch},
    world::{Load, World, as_indexes},
};
use crate::run::BenchError;

pub(super) const SCALE_MIN: f64 = 0.002;
/// Compute servers at first; one more joins.
const FIRST: usize = 3;
/// Tasks of each compute server that answer requests of others.
const SERVE_TASKS: usize = 2;
/// Time before the move, for each node that a cache holds; and how many times as long after it.
const LEAD_NS: u64 = 500;
const AFTER: u64 = 4;
/// Points of the curve before, during and after the move.
const POINTS: [u64; 3] = [4, 8, 6];
/// The longest that an operation outside of the ranges may take, milliseconds.
const STALL_MS: f64 = 10.0;
/// The cache whose move is held to the paper's time, MiB.
const BAR_MIB: u64 = 256;

/// A range, and the compute server that gives it to the next one.
#[derive(Clone)]
struct Move {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    from: usize,
}

/// The ranges that change owners, of three parts of equal width.
#[derive(Clone, Copy, PartialEq)]
enum Plan {
    /// The upper half of the last server's keys, as in the paper.
    Half,
    /// A range of each server, so that four have equal parts. The last server gives first, as a giver must have room
    /// to take.
    Quarters,
}

impl Plan {
    fn moves(self, twelfths: &[Vec<u8>]) -> Vec<Move> {
        let upper = |twelfth: usize| twelfths.get(twelfth - 1).cloned();
        let range = |low: usize, high: usize, from: usize| Move {
            low: upper(low).unwrap_or_default(),
            high: upper(high),
            from,
        };
        match self {
            Plan::Half => vec![range(10, 12, 2)],
            Plan::Quarters => vec![range(9, 12, 2), range(6, 8, 1), range(3, 4, 0)],
        }
    }

    fn case(self, mib: u64) -> String {
        match self {
            Plan::Half => format!("{mib} MiB"),
            Plan::Quarters => format!("{mib} MiB, three ranges"),
        }
    }
}

pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let (paper, options) = (papers::papers()?.dex, repro.options);
    let world = setup::begin(
        repro,
        report,
        &paper,
        setup::Added { spare_threads: 1, ..setup::Added::default() },
    )?;
    let twelfths = equal_width(world.layout.options().key, 12).unwrap_or_default();
    let bounds = [4, 8].map(|at: usize| twelfths[at - 1].clone());
    world.cut(bounds.to_vec())?;
    report.set("partitions", "three of equal width; then four");
    report.set("flush_tasks", 1);
    report.set("workload", "write-intensive");
    report.set("warmup_ops", options.scaled(paper.setup.warmup_ops));
    report.set("local_ns", paper.setup.cached_page_access_ns);
    let hosts = (0..world.config.compute_servers).map(|_| Arc::default()).collect();
    let mut scene = Scene { hosts, world: &world, paper: &paper, options, moves: Vec::new() };
    scene.serve()?;
    let halves = paper.fig10.caches_mib.iter().map(|mib| (Plan::Half, *mib));
    for (plan, mib) in halves.chain([(Plan::Quarters, BAR_MIB)]) {
        // The fourth has no keys yet.
        world.bounds.set(bounds.iter().cloned().chain([vec![u8::MAX; 8]]).collect());
        scene.moves = plan.moves(&twelfths);
        scene.cache(report, plan, mib)?;
    }
    world.record_hash(report);
    report.note(
        "Of three compute servers with a third of the keys each, the last gives half of its keys to a fourth. With \
         three ranges, the last gives the last quarter of all keys, then each of the others what is another's in \
         four equal parts, one after the other: half of all keys. Outside are operations on keys that stay.",
    );
    report.note(
        "Lost are items whose value is neither that of their last acknowledged write nor of one that \
         was under way at the same time as it.",
    );
    Ok(())
}

/// The state that is the same for all caches.
struct Scene<'a> {
    /// Those of the compute servers, which serve to the end.
    hosts: Vec<Arc<Host<DexTable>>>,
    world: &'a World<'a>,
    paper: &'a DexPaper,
    options: &'a ReproOptions,
    moves: Vec<Move>,
}

impl Scene<'_> {
    fn cache(&self, report: &mut ReproReport, plan: Plan, mib: u64) -> Result<(), ReproError> {
        let (world, scale) = (self.world, self.options.scale);
        let cache_bytes = self.options.scaled(mib << 20);
        let options = DexOptions { cache_bytes, ..setup::with_settings(self.options)? };
        let caches = self.join(options)?;
        let frames = cache_bytes / world.layout.node_bytes() as u64;
        let lead_ns = frames * LEAD_NS;
        let moved = self.moves.iter().map(|it| {
            (it.low.clone(), it.high.clone().unwrap_or_else(|| vec![u8::MAX; it.low.len()]))
        });
        let watch = Rc::new(Watch::new(moved.collect(), (lead_ns / 64).max(1)));
        let outcome = self.spawn_move(&caches, &watch, lead_ns)?;
        let load = Load {
            workload: driver::workload("write-intensive")?,
            warmup: self.options.scaled(self.paper.setup.warmup_ops),
            // The watch ends the run.
            ops: u64::MAX / 2,
            local_ns: self.paper.setup.cached_page_access_ns,
            clients: None,
        };
        world.run_watched(&as_indexes(&caches), &load, &watch)?;
        outcome.replace(Ok(()))?;
        let nodes: u64 = caches.iter().map(|cache| cache.tree().stats().moved_nodes).sum();
        let lost = world.lost(&caches[0], &watch)?;
        let span = watch.move_span();
        let seconds = (span.ended_ns - span.began_ns) as f64 / 1e9;
        let [outside, inside] = watch.longest_ns().map(|ns| ns as f64 / 1e6);
        let case = plan.case(mib);
        let told = (plan == Plan::Half).then_some(self.paper.fig10.seconds);
        let why = "the paper gives a bound";
        report.row(&case, "seconds of the move, over the scale", told, seconds / scale, why);
        for (quantity, ours) in [
            ("seconds of the move", seconds),
            ("nodes written back, for each that a cache holds", nodes as f64 / frames as f64),
            ("longest operation outside, ms", outside),
            ("longest operation inside, ms", inside),
            ("acknowledged writes", watch.acknowledged() as f64),
            ("items whose last write is lost", lost as f64),
        ] {
            report.row(&case, quantity, None, ours, "");
        }
        self.curve(report, &case, &watch, lead_ns);
        let most = self.paper.fig10.seconds * scale;
        let holds = (plan == Plan::Half && mib == BAR_MIB).then_some(seconds < most);
        report.check(format!("{case}: the move takes less than {} s", figure(most)), holds);
        let what = format!("{case}: nothing outside takes longer than {STALL_MS} ms");
        report.check(what, Some(outside <= STALL_MS));
        report.check(format!("{case}: no acknowledged write is lost"), Some(lost == 0));
        self.move_back(&caches)?;
        self.hosts.iter().for_each(|host| drop(host.remove(world.meta)));
        world.close(caches)?;
        Ok(())
    }

    /// Throughput over time; 0 is when the move begins.
    fn curve(&self, report: &mut ReproReport, case: &str, watch: &Watch, lead_ns: u64) {
        let moving = watch.move_span();
        let (began_ns, ended_ns) = (moving.began_ns, moving.ended_ns);
        let spans = [
            ("before", Span { began_ns: began_ns - lead_ns, ended_ns: began_ns }),
            ("during", moving),
            ("after", Span { began_ns: ended_ns, ended_ns: ended_ns + AFTER * lead_ns }),
        ];
        for (name, span) in spans {
            report.row(&format!("{case}, {name}"), "Mops", None, watch.mops(span), "");
        }
        let title = format!("{case}: throughput; the move begins at 0");
        let mut chart = ReproChart::lines(&title, "ms", "Mops");
        for ((name, span), points) in spans.into_iter().zip(POINTS) {
            let step_ns = ((span.ended_ns - span.began_ns) / points).max(1);
            for point in 0..points {
                let from_ns = span.began_ns + point * step_ns;
                let part = Span { began_ns: from_ns, ended_ns: from_ns + step_ns - 1 };
                let at_ms = (from_ns as f64 - began_ns as f64) / 1e6;
                let quantity = format!("{case}: Mops over time");
                report.row(&format!("{at_ms:.1} ms"), &quantity, None, watch.mops(part), "");
                chart.add(name, &format!("{at_ms:.1}"), watch.mops(part));
            }
        }
        report.charts.push(chart);
    }

    /// Lets all compute servers execute each other's requests.
    fn serve(&self) -> Result<(), ReproError> {
        let world = self.world;
        let serving = async {
            for (number, host) in self.hosts.iter().enumerate() {
                let fabric = world.sim.fabric(number);
                let own = number_of(world.sessions[number].pool().member());
                fabric.expose(own, 0, &ListenConfig::default()).map_err(BenchError::from)?;
                for _ in 0..SERVE_TASKS {
                    let serve = Arc::clone(host).serve(self.spare(number).await?);
                    // If it ends early, operations on the way to it fail, and say so.
                    world.sim.spawn(number, async move { drop(serve.await) });
                }
            }
            Ok::<_, ReproError>(())
        };
        world.sim.block_on(serving).map_err(BenchError::from)?
    }

    /// Opens the caches: three with a partition each, and one with none.
    fn join(&self, options: DexOptions) -> Result<Vec<DexTable>, ReproError> {
        let world = self.world;
        let joining = async {
            let mut caches = Vec::new();
            for number in 0..world.config.compute_servers {
                let take = if number < FIRST { Take::Free(1) } else { Take::Nothing };
                let join = JoinOptions { take, take_over: false, calls: true };
                let session = &world.sessions[number];
                let joined = Dex::open(session, world.meta, world.layout, options, join);
                let cache = joined.await.map_err(BenchError::Table)?;
                self.hosts[number].add(cache.clone());
                caches.push(cache);
            }
            Ok::<_, ReproError>(caches)
        };
        world.sim.block_on(joining).map_err(BenchError::from)?
    }

    /// A session on a compute server's spare thread.
    async fn spare(&self, compute: usize) -> Result<Session, ReproError> {
        let world = self.world;
        let thread = world.config.threads.div_ceil(world.config.compute_servers);
        let endpoint = world.sim.fabric(compute).endpoint_on(thread).map_err(BenchError::from)?;
        let session = world.sessions[compute].pool().session(endpoint.into()).await;
        Ok(session.map_err(|source| BenchError::Pool { pool_bytes: 0, source })?)
    }

    /// Moves the ranges once the warm-up is over; the returned cell receives the result.
    fn spawn_move(
        &self,
        caches: &[DexTable],
        watch: &Rc<Watch>,
        lead_ns: u64,
    ) -> Result<Rc<RefCell<Result<(), MoveError>>>, ReproError> {
        let world = self.world;
        let session = world.sim.block_on(self.spare(0)).map_err(BenchError::from)??;
        let outcome = Rc::new(RefCell::new(Ok(())));
        let (told, watch, index) = (Rc::clone(&outcome), Rc::clone(watch), caches[0].clone());
        let (moves, bounds) = (self.moves.clone(), world.bounds.clone());
        let names = self.names();
        world.sim.spawn(0, async move {
            let endpoint = session.endpoint();
            while !watch.is_measuring() {
                endpoint.sleep(LOOK_NS).await;
            }
            endpoint.sleep(lead_ns).await;
            watch.begin_move(endpoint.now_ns());
            for Move { low, high, from } in moves {
                let to = names[from + 1];
                let moved = index.move_range(&session, Some(&low), high.as_deref(), to).await;
                if let Err(error) = moved {
                    *told.borrow_mut() = Err(error);
                    break;
                }
                bounds.move_to(from, low);
            }
            watch.end_move(endpoint.now_ns());
            endpoint.sleep(AFTER * lead_ns).await;
            watch.end();
        });
        Ok(outcome)
    }

    /// Gives every range back to its former owner.
    fn move_back(&self, caches: &[DexTable]) -> Result<(), ReproError> {
        let (world, names) = (self.world, self.names());
        let giving = async {
            for Move { low, high, from } in self.moves.iter().rev() {
                let (session, to) = (&world.sessions[0], names[*from]);
                caches[0].move_range(session, Some(low), high.as_deref(), to).await?;
            }
            Ok::<_, MoveError>(())
        };
        Ok(world.sim.block_on(giving).map_err(BenchError::from)??)
    }

    /// The incarnations of the compute servers.
    fn names(&self) -> Vec<Incarnation> {
        let computes = 0..self.world.config.compute_servers;
        computes.map(|compute| self.world.sim.fabric(compute).incarnation()).collect()
    }
}
