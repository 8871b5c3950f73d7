//! DEX, Figures 6 and 7: five workloads over threads, beside the systems of the paper.
//!
//! An operation takes its worker thread the paper's time for a cached page, whatever the engine, as all systems of the
//! paper run on the same processors.

use std::collections::BTreeMap;

use farleaf_engines::{Engine, dex::Admission};

use super::{
    Repro,
    driver::{self, Driver, PaperCluster, READS, VERBS},
    error::ReproError,
    papers::{self, DexPaper},
    report::{ReproChart, ReproReport, UNEXPLAINED, is_near},
    setup,
};
use crate::{
    config::BenchConfig,
    distribution::RequestDistribution,
    keys::{KeyOrder, KeySpec},
    report::{BusiestCard, Report},
};

const DEX: &str = "dex";
const P_SHERMAN: &str = "p-sherman";
/// The systems of the paper's figures, in its order.
const SYSTEMS: [&str; 5] = [DEX, "sherman", P_SHERMAN, "smart", "p-smart"];
const WORKLOADS: [&str; 5] =
    ["read-only", "read-intensive", "write-intensive", "insert-intensive", "scan-intensive"];
const SCANS: &str = "scan-intensive";
/// A scan counts as so many operations, as it reads as many pairs and more.
const SCAN_WEIGHT: u64 = 10;
/// Threads of all compute servers; the last is the paper's most, of which its text tells ratios.
const THREADS: [usize; 4] = [4, 36, 72, 144];
const MOST: usize = 144;
/// Time of a line of the processors' caches from one thread to another, through the 36 threads of a compute server: what
/// one word that all of them change costs an operation.
const SHARED_WORD_NS: u64 = 36 * setup::HANDOVER_NS;
/// Time of the processor that an operation takes beyond a cached page, if it takes 1 us.
const MICROSECOND_NS: u64 = 600;

/// The requests of a [`Proof`].
#[derive(Clone, Copy, PartialEq)]
enum Requests {
    Same,
    Uniform,
    /// The hottest key has the share of the requests that it has among the paper's keys.
    PapersShare,
}

/// A run that takes away what sets a ratio apart from the paper's: if it comes out as the paper's, that is the reason.
struct Proof {
    others: &'static [&'static str],
    workloads: &'static [&'static str],
    name: &'static str,
    /// Settings of the other system.
    set: &'static [(&'static str, &'static str)],
    /// More time of an operation of the other system.
    more_ns: u64,
    /// The same for both.
    both_ns: u64,
    /// Other requests for both.
    request: Requests,
    why: &'static str,
}

const NO_PROOF: Proof = Proof {
    others: &[],
    workloads: &[],
    name: "",
    set: &[],
    more_ns: 0,
    both_ns: 0,
    request: Requests::Same,
    why: "",
};

const PROOFS: [Proof; 6] = [
    Proof {
        others: &["sherman"],
        workloads: &["read-only", "read-intensive"],
        name: "three READs of a leaf",
        set: &[("read", "locked3"), ("hand_image", "false")],
        why: "the paper's build READs a leaf and its lock word before and after; with three READs the ratio is the \
              paper's",
        ..NO_PROOF
    },
    Proof {
        others: &["sherman"],
        workloads: &["read-only", "read-intensive"],
        name: "three READs of a leaf, 1 us of the processor for each operation",
        set: &[("read", "locked3"), ("hand_image", "false")],
        both_ns: MICROSECOND_NS,
        why: "the paper's build READs a leaf and its lock word before and after; with three READs, and 1 us of the \
              processor for each operation in place of 0.4, the ratio is the paper's",
        ..NO_PROOF
    },
    Proof {
        others: &["sherman", "p-sherman"],
        workloads: &["write-intensive"],
        name: "no content handed on, the hottest key as among 200 M",
        set: &[("hand_image", "false")],
        request: Requests::PapersShare,
        why: "changes of the hottest leaf take turns, and ours get its content with the lock; without that, and with \
              the hottest key's share of the requests as among 200 M keys, the ratio is the paper's",
        ..NO_PROOF
    },
    Proof {
        others: &["smart"],
        workloads: &["read-only", "read-intensive", "write-intensive"],
        name: "one queue of cached nodes, and its counter",
        more_ns: 2 * SHARED_WORD_NS,
        why: "the paper's build has one queue of cached nodes and one counter, for which the threads of a compute \
              server wait; with the time that two words take through 36 threads the ratio is the paper's",
        ..NO_PROOF
    },
    Proof {
        others: &["p-smart"],
        workloads: &["read-only", "read-intensive", "write-intensive"],
        name: "one counter of cached nodes",
        more_ns: SHARED_WORD_NS,
        why: "the paper's build has one counter of cached nodes, for which the threads of a compute server wait; with \
              the time that a word takes through 36 threads the ratio is the paper's",
        ..NO_PROOF
    },
    Proof {
        others: &["p-sherman"],
        workloads: &[SCANS],
        name: "uniform keys",
        request: Requests::Uniform,
        why: "the cards bind its scans, and dex finds more of skewed ones in its cache, at no time of the processor here; \
              with uniform keys the ratio is the paper's",
        ..NO_PROOF
    },
];

/// A card that is in use for this share of the time binds the rate.
const BINDS: f64 = 0.9;

/// 400,000 keys: a table of the paper's shape that loads within a second.
pub(super) const SCALE: f64 = 0.002;

/// Figure 6: zipfian keys.
pub(super) fn skewed(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dex;
    let zipfian = RequestDistribution::Zipfian { theta: paper.setup.zipf_theta };
    let runs = Runs::begin(repro, report, &paper, zipfian);
    for name in WORKLOADS {
        let (chart, cards) = runs.over_threads(report, name)?;
        for (other, gain) in chart.gains(DEX, &MOST.to_string()) {
            let told = paper.fig6.get(name).and_then(|by| by.get(&other)).copied();
            let case = format!("{name}, dex over {other}");
            let (mut why, mut proven) = (String::new(), Vec::new());
            if let Some(card) = cards.get(&other).filter(|card| card.share >= BINDS) {
                why = format!("{UNEXPLAINED}; {other} is bound by {card}");
            }
            for proof in PROOFS.iter().filter(|it| it.is_about(name, &other)) {
                let of_proof = runs.gain_with(proof, name, &other)?;
                if told.is_some_and(|told| is_near(told, of_proof)) {
                    why = proof.why.to_owned();
                }
                proven.push((format!("{case}, {}", proof.name), of_proof));
            }
            report.gain(&case, "throughput, ratio", told, gain, &why);
            for (case, gain) in proven {
                report.gain(&case, "throughput, ratio", told, gain, "");
            }
        }
        for (other, told) in paper.fig6.get(name).into_iter().flatten() {
            if driver::engine(other).is_none() {
                let case = format!("{name}, dex over {other}");
                let why = driver::no_engine(other);
                report.missing(&case, "throughput, ratio", Some(*told), &why);
            }
        }
        report.charts.push(chart);
    }
    report.note(
        "Rows with a system and a cause test that cause: dex over that system in a run without it. The reason of a ratio \
         that differs stands if that run comes out as the paper says. Else it names the card that binds the other system \
         here, if one is in use for nine tenths of the time.",
    );
    report.note(
        "The paper's text has no ratios for the insert-intensive workload: \"similar trend as write-intensive\".",
    );
    Ok(())
}

/// Figure 7: uniform keys, and twice the cache.
pub(super) fn uniform(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dex;
    let mut runs = Runs::begin(repro, report, &paper, RequestDistribution::Uniform);
    for name in WORKLOADS {
        let (chart, _) = runs.over_threads(report, name)?;
        let at = MOST.to_string();
        let gains = chart.gains(DEX, &at);
        for (other, gain) in &gains {
            let told = (other == P_SHERMAN).then_some(paper.fig7.over_p_sherman);
            report.row(&format!("{name}, dex over {other}"), "throughput, ratio", told, *gain, "");
        }
        if driver::engine(P_SHERMAN).is_none() {
            let (case, why) =
                (format!("{name}, dex over {P_SHERMAN}"), driver::no_engine(P_SHERMAN));
            let told = Some(paper.fig7.over_p_sherman);
            report.missing(&case, "throughput, ratio", told, &why);
        }
        let others = gains.iter().filter(|(other, _)| other != P_SHERMAN);
        let is_ahead = others.map(|(_, gain)| *gain).all(|gain| gain >= 1.0);
        report.bar(format!("{name}: dex is not behind SMART and P-SMART"), is_ahead);
        report.charts.push(chart);
    }
    let name = WORKLOADS[0];
    let usual = driver::mops(&runs.measure(Engine::Dex, name, MOST)?);
    runs.driver.cluster.cache_bytes *= 2;
    let twice = driver::mops(&runs.measure(Engine::Dex, name, MOST)?);
    let case = format!("{name}, dex with 512 MiB over 256 MiB");
    report.gain(&case, "throughput, ratio", Some(paper.fig7.gain_of_512_mib), twice / usual, "");
    report.note(
        "The paper's text says \"about\" P-Sherman, and ahead of the others by less than skewed.",
    );
    Ok(())
}

impl Proof {
    fn is_about(&self, workload: &str, other: &str) -> bool {
        self.workloads.contains(&workload) && self.others.contains(&other)
    }
}

/// The exponent with which the first of `keys` zipfian items gets the share of the requests that it has among `of` with
/// `theta`.
fn theta_of_share(keys: u64, of: u64, theta: f64) -> f64 {
    // The sum of i^-theta, but for a constant.
    let sum = |keys: u64, theta: f64| ((keys as f64).powf(1.0 - theta) - 1.0) / (1.0 - theta);
    let wanted = sum(of, theta);
    let (mut low, mut high) = (0.0, theta);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        // The less skewed, the larger the sum.
        if sum(keys, middle) > wanted { low = middle } else { high = middle }
    }
    high
}

/// Runs of one distribution.
struct Runs<'a> {
    driver: Driver<'a>,
    request: RequestDistribution,
    local_ns: u64,
}

impl<'a> Runs<'a> {
    fn begin(
        repro: &Repro<'a>,
        report: &mut ReproReport,
        paper: &DexPaper,
        request: RequestDistribution,
    ) -> Self {
        let driver = Driver::begin(repro, report, &paper.source, PaperCluster::of(&paper.setup));
        let local_ns = paper.setup.cached_page_access_ns;
        report.set("distribution", request.to_string());
        report.set("local_ns", local_ns);
        report.set("admission", Admission::LAZY.to_string());
        Runs { driver, request, local_ns }
    }

    /// Throughput of every system of the paper that this build has, and the busiest card of each with the most threads.
    fn over_threads(
        &self,
        report: &mut ReproReport,
        name: &str,
    ) -> Result<(ReproChart, BTreeMap<String, BusiestCard>), ReproError> {
        let mut cards = BTreeMap::new();
        let mut chart = ReproChart::lines(name, "threads", "Mops");
        for threads in THREADS {
            for engine in SYSTEMS.into_iter().filter_map(driver::engine) {
                let case = format!("{name}, {threads} threads, {engine}");
                let measured = self.measure(engine, name, threads)?;
                let mops = driver::mops(&measured);
                report.row(&case, "Mops", None, mops, "");
                for (quantity, of) in [READS, VERBS] {
                    report.row(&case, quantity, None, of(&measured), "");
                }
                chart.add(engine.name(), &threads.to_string(), mops);
                if let Some(card) = measured.run.busiest_card.filter(|_| threads == MOST) {
                    let quantity = format!("share of {}'s card, {}", card.server, card.part);
                    report.row(&case, &quantity, None, card.share, "");
                    cards.insert(engine.name().to_owned(), card);
                }
            }
        }
        Ok((chart, cards))
    }

    /// The throughput of `dex` over that of `other` with what `proof` takes away.
    fn gain_with(&self, proof: &Proof, name: &str, other: &str) -> Result<f64, ReproError> {
        let mops = |system: &str| -> Result<f64, ReproError> {
            let Some(engine) = driver::engine(system) else { return Ok(f64::NAN) };
            let is_other = system == other;
            let mut config = self.case(engine, name, MOST)?;
            config.local_ns += proof.both_ns + if is_other { proof.more_ns } else { 0 };
            if is_other {
                proof.set.iter().for_each(|(name, text)| config.settings.set(name, text));
            }
            let request = &mut config.workload.request;
            match (proof.request, *request) {
                (Requests::Uniform, _) => *request = RequestDistribution::Uniform,
                (Requests::PapersShare, RequestDistribution::Zipfian { theta }) => {
                    let theta = theta_of_share(config.keys, self.driver.cluster.keys, theta);
                    *request = RequestDistribution::Zipfian { theta };
                }
                _ => {}
            }
            Ok(driver::mops(&self.driver.measure(&config)?))
        };
        let of_other = mops(other)?;
        Ok(mops(DEX)? / of_other)
    }

    fn measure(&self, engine: Engine, name: &str, threads: usize) -> Result<Report, ReproError> {
        self.driver.measure(&self.case(engine, name, threads)?)
    }

    fn case(&self, engine: Engine, name: &str, threads: usize) -> Result<BenchConfig, ReproError> {
        let mut workload = driver::workload(name)?;
        workload.request = self.request;
        let config = self.driver.case(engine, &KeySpec::U64(KeyOrder::Hashed), workload);
        let weight = if name == SCANS { SCAN_WEIGHT } else { 1 };
        // Fewer clients measure for as long.
        let share = |ops: u64| ops * threads as u64 / MOST as u64;
        let mut config = BenchConfig {
            clients: threads,
            threads,
            local_ns: self.local_ns,
            ops: share(config.ops).max(threads as u64 * SCAN_WEIGHT / weight),
            ..config
        };
        if engine.name() == DEX {
            config.settings.set("admission", &Admission::LAZY.to_string());
        }
        Ok(config)
    }
}
