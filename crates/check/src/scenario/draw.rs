//! Draw: chooses a scenario from a seed.

use farleaf_engines::Engine;
use farleaf_index::Settings;
use fastrand::Rng;

use super::{
    Choices, Events, FaultKind, Faults, FormatName, Scenario, Subset, TimedFault, Workload, mix,
};

/// Pairs of a load that fit in the smallest memory, whatever their size.
const SMALL_PRELOAD: u64 = 512;

/// A generator for one field (INV-SCENARIO-1).
fn rng(seed: u64, field: &str) -> Rng {
    Rng::with_seed(field.bytes().fold(mix(seed, 0x5ce7), |hash, byte| mix(hash, byte.into())))
}

fn pick<T: Copy>(rng: &mut Rng, list: &[T]) -> T {
    list[rng.usize(..list.len())]
}

/// The engine of a seed: that whose name gives the largest hash. So a further engine takes one seed in as many as there are
/// engines, and moves no other.
fn engine(seed: u64) -> Engine {
    let hash = |engine: &&Engine| rng(seed, engine.name()).u64(..);
    Engine::ALL.iter().max_by_key(hash).copied().unwrap_or_default()
}

/// `some` with that probability, else the default.
fn maybe<T: Default>(rng: &mut Rng, probability: f64, some: impl FnOnce(&mut Rng) -> T) -> T {
    if rng.f64() < probability { some(rng) } else { T::default() }
}

pub(super) fn scenario(seed: u64, choices: &Choices) -> Scenario {
    let mut drawn = Scenario {
        seed,
        salt: choices.salt.unwrap_or(0),
        engine: choices.engine.unwrap_or_else(|| engine(seed)),
        format: choices.format.unwrap_or_else(|| format(&mut rng(seed, "format"))),
        settings: Settings::default(),
        memory_servers: choices.memory_servers.unwrap_or_else(|| rng(seed, "memory").usize(1..=3)),
        compute_servers: choices
            .compute_servers
            .unwrap_or_else(|| rng(seed, "compute").usize(1..=3)),
        clients: 1,
        workload: choices.workload.unwrap_or_else(|| {
            pick(&mut rng(seed, "workload"), &Vec::from_iter(Workload::drawn()))
        }),
        ops: 1,
        keys: 1,
        preload: 0,
        region_kib: 0,
        expose_kib: 0,
        think_ns: 0,
        impatience: 0.0,
        faults: Faults::default(),
        window: choices.window.unwrap_or_default(),
        events: Events::default(),
        aged: choices.aged.unwrap_or_else(|| rng(seed, "aged").u8(..6) == 0),
        only: choices.only.clone().unwrap_or(Subset(None)),
    };
    let variants = FormatName::variants(drawn.engine);
    if choices.format.is_none() && !variants.is_empty() {
        let mut rng = rng(seed, "reserved");
        if rng.u8(..3) == 0 {
            let at = rng.usize(..variants[0].len());
            let mut variant = 0;
            while variant + 1 < variants.len() && rng.bool() {
                variant += 1;
            }
            drawn.format = variants[variant][at];
        }
    }
    drawn.settings = settings(&drawn, &choices.settings);
    drawn.clients = choices.clients.unwrap_or_else(|| {
        let mut rng = rng(seed, "clients");
        drawn.compute_servers * rng.usize(1..=3) - rng.usize(..2).min(drawn.compute_servers - 1)
    });
    drawn.ops = choices.ops.unwrap_or_else(|| {
        // Some hundred operations in all.
        let all = pick(&mut rng(seed, "ops"), &[60, 150, 250, 400, 600]);
        (all / drawn.clients).max(8)
    });
    drawn.keys = choices.keys.unwrap_or_else(|| keys(&drawn, &mut rng(seed, "keys")));
    drawn.preload = choices.preload.unwrap_or_else(|| {
        let mut rng = rng(seed, "preload");
        match drawn.workload {
            Workload::Removes | Workload::Reads => drawn.keys,
            Workload::Ascending => maybe(&mut rng, 0.3, |rng| rng.u64(..=drawn.keys / 4)),
            _ => maybe(&mut rng, 0.6, |rng| rng.u64(..=drawn.keys)),
        }
    });
    drawn.region_kib = choices.region_kib.unwrap_or_else(|| {
        let mut rng = rng(seed, "region");
        // The smallest have room for a few blocks only, and run full. A large load does not fit.
        if rng.u8(..8) == 0 && drawn.preload <= SMALL_PRELOAD {
            rng.u64(17..25) * 64
        } else {
            8 << 10
        }
    });
    drawn.expose_kib = choices.expose_kib.unwrap_or_else(|| match drawn.engine.traits().exposes {
        true => pick(&mut rng(seed, "expose"), &[64, 256, 1024]),
        false => 0,
    });
    drawn.think_ns =
        choices.think_ns.unwrap_or_else(|| pick(&mut rng(seed, "think"), &[0, 0, 0, 500, 4_000]));
    drawn.impatience =
        choices.impatience.unwrap_or_else(|| maybe(&mut rng(seed, "impatience"), 0.15, |_| 0.04));
    drawn.faults = choices.faults.clone().unwrap_or_else(|| Faults {
        repeated: maybe(&mut rng(seed, "repeated"), 0.5, |rng| pick(rng, &[0.01, 0.1, 0.5])),
        ..faults(&mut rng(seed, "faults"))
    });
    drawn.events =
        choices.events.clone().unwrap_or_else(|| Events(events(&drawn, &mut rng(seed, "events"))));
    if choices.events.is_none() {
        let cuts = cut_calls(&drawn, &mut rng(seed, "cut calls"));
        let events = &mut drawn.events.0;
        events.extend(cuts);
        events.sort_by_key(|event| event.at_ns);
    }
    drawn
}

/// Settings that the engine draws for its format, with those of `pinned` that it has in their places.
fn settings(drawn: &Scenario, pinned: &Settings) -> Settings {
    let format = drawn.format.table(drawn.engine);
    // If the engine cannot use the format, the run reports it.
    let mut settings = drawn.engine.draw(&mut rng(drawn.seed, "set"), &format).unwrap_or_default();
    settings.set_all(&drawn.engine.known(pinned));
    settings
}

/// Links between compute servers that break for a while, in one direction.
fn cut_calls(drawn: &Scenario, rng: &mut Rng) -> Vec<TimedFault> {
    let (computes, end_ns) = (drawn.compute_servers, drawn.likely_ns().max(1_000));
    let count = if computes > 1 { pick(rng, &[0, 0, 0, 1, 2]) } else { 0 };
    let cut = |_| {
        let from = rng.usize(..computes);
        let to = (from + rng.usize(1..computes)) % computes;
        let at_ns = rng.u64(..end_ns);
        let most_ns = pick(rng, &[end_ns, 4_000_000]);
        let over_ns = at_ns + 1 + rng.u64(..most_ns);
        [(at_ns, FaultKind::CutCalls(from, to)), (over_ns, FaultKind::HealCalls(from, to))]
    };
    let events = (0..count).flat_map(cut);
    events.map(|(at_ns, kind)| TimedFault { at_ns, kind }).collect()
}

/// Half of the time tiny nodes.
fn format(rng: &mut Rng) -> FormatName {
    if rng.bool() { pick(rng, &FormatName::tiny()) } else { pick(rng, &FormatName::common()) }
}

fn keys(drawn: &Scenario, rng: &mut Rng) -> u64 {
    let all = (drawn.clients * drawn.ops) as u64;
    match drawn.workload {
        Workload::Ascending => all,
        Workload::Counters => rng.u64(1..=8),
        Workload::Hot => rng.u64(4..=60),
        Workload::Removes => rng.u64(all / 3..=all),
        _ => pick(rng, &[5, 20, 60, 150, 400]),
    }
}

fn faults(rng: &mut Rng) -> Faults {
    let mut faults = Faults {
        torn: maybe(rng, 0.75, |rng| pick(rng, &[0.1, 0.5, 1.0])),
        split: maybe(rng, 0.5, |rng| pick(rng, &[0.1, 0.5, 1.0])),
        jitter: maybe(rng, 0.6, |rng| pick(rng, &[200.0, 1_000.0, 1_500.0])),
        late: maybe(rng, 0.4, |rng| pick(rng, &[0.01, 0.1, 0.5])),
        shuffle: maybe(rng, 0.5, |_| 1.0),
        lease: maybe(rng, 0.6, |rng| pick(rng, &[50_000.0, 300_000.0, 2_000_000.0])),
        skew: maybe(rng, 0.3, |rng| pick(rng, &[1_000.0, 100_000.0, 5_000_000.0])),
        drift: maybe(rng, 0.2, |rng| pick(rng, &[50.0, 1_000.0])),
        queue: maybe(rng, 0.2, |rng| pick(rng, &[1.0, 2.0, 8.0])),
        ..Faults::default()
    };
    if faults.late > 0.0 {
        faults.late_ns = pick(rng, &[2_000.0, 10_000.0, 100_000.0]);
    }
    faults.lost = maybe(rng, 0.5, |rng| pick(rng, &[0.0005, 0.005, 0.02]));
    if faults.lost > 0.0 {
        faults.lost_ns = pick(rng, &[10_000.0, 100_000.0, 1_000_000.0]);
    }
    faults
}

/// Servers that die, with or without coming back, stop or slow down for a while, and links that
/// break for a while.
fn events(drawn: &Scenario, rng: &mut Rng) -> Vec<TimedFault> {
    let mut events = Vec::new();
    let count = pick(rng, &[0, 0, 0, 0, 1, 1, 1, 2, 3]);
    let end_ns = drawn.likely_ns().max(1_000);
    let mut push = |at_ns: u64, kind: FaultKind| events.push(TimedFault { at_ns, kind });
    for _ in 0..count {
        let compute = rng.usize(..drawn.compute_servers);
        let server = rng.usize(..drawn.memory_servers);
        let at_ns = rng.u64(..end_ns);
        // Short ones, and some longer than every lease.
        let over_ns = at_ns
            + 1
            + match rng.u8(..4) {
                0..2 => rng.u64(..end_ns),
                2 => rng.u64(..4_000_000),
                _ => rng.u64(..40_000_000),
            };
        match rng.u8(..10) {
            0..3 => {
                push(at_ns, FaultKind::Kill(compute));
                if rng.u8(..3) > 0 {
                    push(over_ns, FaultKind::Restart(compute));
                }
            }
            3..6 => {
                // A card serves the memory of a stopped one, a thread of it does not.
                let kind = match drawn.expose_kib > 0 && rng.bool() {
                    true => FaultKind::StopWithRegion(compute),
                    false => FaultKind::Stop(compute),
                };
                push(at_ns, kind);
                push(over_ns, FaultKind::Resume(compute));
            }
            6 => {
                push(at_ns, FaultKind::Slow(server, pick(rng, &[3, 10, 50])));
                push(over_ns, FaultKind::Slow(server, 1));
            }
            7 => {
                push(at_ns, FaultKind::StopMemory(server));
                push(over_ns, FaultKind::ResumeMemory(server));
            }
            8 => {
                push(at_ns, FaultKind::CutRequests(compute, server));
                push(over_ns, FaultKind::Heal(compute, server));
            }
            _ => {
                push(at_ns, FaultKind::CutReplies(compute, server));
                push(over_ns, FaultKind::Heal(compute, server));
            }
        }
    }
    events.sort_by_key(|event| event.at_ns);
    events
}
