//! Shrinking: makes a failing scenario smaller as long as it fails in the same way.
//!
//! Every change moves all later moments of a run, and may miss a race. So shrinking tries each
//! smaller scenario with a few other random choices of the simulator (`--salt`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::run::{Failure, run};
use crate::scenario::{Events, Faults, Scenario, Subset, Window};

/// Limits of the effort.
#[derive(Clone, Copy, Debug)]
pub struct ShrinkLimits {
    /// Runs.
    pub tries_max: u64,
    /// Real time.
    pub time_max: Duration,
    /// Salts to try for each smaller scenario.
    pub salts: u64,
}

impl Default for ShrinkLimits {
    fn default() -> Self {
        ShrinkLimits { tries_max: 3_000, time_max: Duration::from_secs(120), salts: 4 }
    }
}

/// The smallest scenario that was found.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The scenario.
    pub scenario: Scenario,
    /// Its failure.
    pub failure: Failure,
    /// Runs that it took.
    pub tries: u64,
    /// True if nothing smaller was found to fail; false if a limit ended the search.
    pub is_minimal: bool,
}

/// Makes `scenario`, which fails with `failure`, smaller. `stop` ends it early.
pub fn shrink(
    scenario: &Scenario,
    failure: &Failure,
    limits: &ShrinkLimits,
    stop: &AtomicBool,
    each: &dyn Fn(u64),
) -> Shrunk {
    let mut shrinker = Shrinker {
        best: scenario.clone(),
        failure: failure.clone(),
        fails: &|scenario| run(scenario).failure,
        tries: 0,
        limits: *limits,
        began: Instant::now(),
        stop,
        each,
    };
    let is_minimal = shrinker.shrink();
    let Shrinker { best, failure, tries, .. } = shrinker;
    Shrunk { scenario: best, failure, tries, is_minimal }
}

struct Shrinker<'a> {
    best: Scenario,
    failure: Failure,
    fails: &'a dyn Fn(&Scenario) -> Option<Failure>,
    tries: u64,
    limits: ShrinkLimits,
    began: Instant,
    stop: &'a AtomicBool,
    each: &'a dyn Fn(u64),
}

impl Shrinker<'_> {
    /// Shrinks; returns whether it came to its end.
    fn shrink(&mut self) -> bool {
        loop {
            let before = self.best.clone();
            self.events();
            self.faults();
            self.simplify();
            self.clients();
            self.ops();
            self.window();
            if self.is_over() {
                return false;
            }
            if (Scenario { salt: 0, ..before }) == (Scenario { salt: 0, ..self.best.clone() }) {
                return true;
            }
        }
    }

    fn is_over(&self) -> bool {
        self.tries >= self.limits.tries_max
            || self.began.elapsed() >= self.limits.time_max
            || self.stop.load(Ordering::Relaxed)
    }

    /// Keeps `smaller` if it fails in the same way.
    fn attempt(&mut self, smaller: Scenario) -> bool {
        if smaller == self.best {
            return false;
        }
        // A salt that has worked goes first.
        let salts = 0..self.limits.salts;
        let salts = [smaller.salt].into_iter().chain(salts.filter(|salt| *salt != smaller.salt));
        for salt in salts {
            if self.is_over() {
                return false;
            }
            let smaller = Scenario { salt, ..smaller.clone() };
            self.tries += 1;
            (self.each)(self.tries);
            match (self.fails)(&smaller) {
                Some(failure) if failure.kind() == self.failure.kind() => {
                    (self.best, self.failure) = (smaller, failure);
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    /// Keeps the change if the scenario then fails in the same way.
    fn change(&mut self, change: impl FnOnce(&mut Scenario)) -> bool {
        let mut smaller = self.best.clone();
        change(&mut smaller);
        self.attempt(smaller)
    }

    /// Delta debugging: leaves out ever smaller pieces of a list. `with` makes the scenario of the
    /// rest.
    fn list<T: Clone>(&mut self, list: Vec<T>, with: impl Fn(&Scenario, &[T]) -> Scenario) {
        let mut left = list;
        let mut piece = left.len();
        while piece > 0 && !self.is_over() {
            let mut at = 0;
            while at < left.len() && !self.is_over() {
                let end = (at + piece).min(left.len());
                let without = [&left[..at], &left[end..]].concat();
                if self.attempt(with(&self.best, &without)) {
                    left = without;
                } else {
                    at = end;
                }
            }
            piece /= 2;
        }
    }

    fn events(&mut self) {
        let events = self.best.events.0.clone();
        self.list(events, |best, events| Scenario {
            events: Events(events.to_vec()),
            ..best.clone()
        });
    }

    fn faults(&mut self) {
        let kinds: Vec<String> =
            self.best.faults.to_string().split(',').map(str::to_owned).collect();
        self.list(kinds, |best, kinds| {
            let kinds = if kinds.is_empty() { "none".to_owned() } else { kinds.join(",") };
            // They were printed by the same type.
            let faults: Faults = kinds.parse().unwrap_or_default();
            Scenario { faults, ..best.clone() }
        });
    }

    /// Simplifies whole numbers, and removes unneeded parts.
    fn simplify(&mut self) {
        self.change(|smaller| smaller.impatience = 0.0);
        self.change(|smaller| smaller.think_ns = 0);
        self.change(|smaller| smaller.aged = false);
        self.change(|smaller| smaller.region_kib = 8 << 10);
        self.change(|smaller| smaller.expose_kib = 0);
        for part in [0, 4, 2] {
            self.change(|it| it.preload = it.preload.checked_div(part).unwrap_or(0));
        }
        for part in [8, 2] {
            let mut fails = true;
            while fails && self.best.keys > 1 {
                fails = self.change(|smaller| {
                    smaller.keys = (smaller.keys / part).max(1);
                    smaller.preload = smaller.preload.min(smaller.keys);
                });
            }
        }
        let mut fails = true;
        while fails && self.best.memory_servers > 1 {
            fails = self.change(|smaller| smaller.memory_servers -= 1);
        }
    }

    /// Clients without operations at the end of the list, and compute servers without clients.
    fn clients(&mut self) {
        let all = lists(&self.best);
        self.list((0..all.len()).collect(), |best, kept| {
            let lists = (0..all.len()).map(|client| {
                if kept.contains(&client) { all[client].clone() } else { Vec::new() }
            });
            with_lists(best, lists.collect())
        });
        let lists = lists(&self.best);
        let clients = lists.iter().rposition(|ops| !ops.is_empty()).map_or(1, |last| last + 1);
        let ops = lists.iter().flatten().max().map_or(1, |last| *last as usize + 1);
        self.change(|smaller| smaller.clients = clients);
        self.change(|smaller| smaller.ops = ops);
        self.change(|it| it.compute_servers = it.compute_servers.min(it.clients));
    }

    fn ops(&mut self) {
        let all: Vec<(usize, u32)> = lists(&self.best)
            .into_iter()
            .enumerate()
            .flat_map(|(client, ops)| ops.into_iter().map(move |op| (client, op)))
            .collect();
        self.list(all, |best, kept| {
            let mut lists = vec![Vec::new(); best.clients];
            for (client, op) in kept {
                lists[*client].push(*op);
            }
            with_lists(best, lists)
        });
    }

    /// Halves the window of posts that may have faults, from either end.
    fn window(&mut self) {
        let has_faults = Faults { jitter: 0.0, ..self.best.faults.clone() } != Faults::default();
        if !has_faults {
            return;
        }
        let mut high = self.best.window.to.min(1 << 20);
        let mut low = self.best.window.from;
        while low < high && !self.is_over() {
            let to = low + (high - low) / 2;
            let window = Window { from: self.best.window.from.min(to), to };
            if self.change(|smaller| smaller.window = window) { high = to } else { low = to + 1 }
        }
        let to = self.best.window.to;
        let (mut low, mut high) = (self.best.window.from, to.min(1 << 20));
        while low < high && !self.is_over() {
            let from = high - (high - low) / 2;
            let window = Window { from, to };
            if self.change(|smaller| smaller.window = window) {
                low = from
            } else {
                high = from - 1
            }
        }
    }
}

/// Every client's operations.
fn lists(scenario: &Scenario) -> Vec<Vec<u32>> {
    (0..scenario.clients).map(|client| scenario.only.of(client, scenario.ops)).collect()
}

fn with_lists(scenario: &Scenario, mut lists: Vec<Vec<u32>>) -> Scenario {
    while lists.last().is_some_and(Vec::is_empty) {
        lists.pop();
    }
    Scenario { only: Subset(Some(lists)), ..scenario.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Choices, FaultKind};

    /// A bug that takes two operations of different clients, one event, and tearing.
    fn is_bad(scenario: &Scenario) -> Option<Failure> {
        let has = |client: usize, op: u32| {
            client < scenario.clients && scenario.only.of(client, scenario.ops).contains(&op)
        };
        let window = scenario.window;
        let killed = scenario.events.0.iter().any(|event| event.kind == FaultKind::Kill(0));
        let is_bad = has(0, 3)
            && has(1, 7)
            && killed
            && scenario.faults.torn > 0.0
            && window.from <= 700
            && window.to > 700;
        is_bad.then(|| Failure::Leaked(String::new()))
    }

    #[test]
    fn shrinking_leaves_only_what_the_failure_needs() {
        let mut choices = Choices::default();
        let events = "kill:1@5,stop:0@10,kill:0@70,resume:0@90,restart:1@95";
        for (flag, text) in [("clients", "6"), ("ops", "40"), ("event", events)] {
            choices.set(flag, text).expect("a flag");
        }
        choices.set("faults", "torn=0.5,split=0.1,jitter=500").expect("a flag");
        let scenario = choices.scenario(3);
        let failure = is_bad(&scenario).expect("it fails");
        let mut shrinker = Shrinker {
            best: scenario,
            failure,
            fails: &is_bad,
            tries: 0,
            limits: ShrinkLimits::default(),
            began: Instant::now(),
            stop: &AtomicBool::new(false),
            each: &|_| {},
        };
        assert!(shrinker.shrink());
        let best = shrinker.best;
        assert_eq!(best.only.to_string(), "0:3/1:7", "{best}");
        assert_eq!(best.events.to_string(), "kill:0@70");
        assert_eq!(best.faults.to_string(), "torn=0.5");
        assert_eq!(best.window, Window { from: 700, to: 701 });
        assert_eq!((best.clients, best.ops, best.keys), (2, 8, 1));
        assert!(shrinker.tries < 1_000, "{} tries", shrinker.tries);
    }

    #[test]
    fn limits_hold() {
        let scenario = Scenario::from_seed(3, &Choices::default());
        let limits = ShrinkLimits { tries_max: 5, ..ShrinkLimits::default() };
        let mut shrinker = Shrinker {
            best: scenario,
            failure: Failure::Leaked(String::new()),
            fails: &|_| None,
            tries: 0,
            limits,
            began: Instant::now(),
            stop: &AtomicBool::new(false),
            each: &|_| {},
        };
        assert!(!shrinker.shrink());
        assert_eq!(shrinker.tries, 5);
    }
}
