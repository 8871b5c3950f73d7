//! Balancing: moves boundaries by load. It is off unless the options turn it on.
//!
//! Every so often the loads of all partitions are gathered: counts that are halved each time, so that
//! old load fades, and a sample of keys. If two compute servers that are neighbours in the key space
//! differ by more than `ratio` for `patience` rounds on end, the boundary between them is moved so far
//! that, by the sample, both have the same; then nothing is moved for `rest` rounds, in which the
//! counts come to show the new state. A move that would not lower the larger one's load by `gain` is
//! not made. Load travels over several neighbours in several moves.

use farleaf_fabric::Incarnation;

use super::PartLoad;
use crate::compute::ownership::{Load, Ownership};

/// Mode of load balancing: it moves boundaries, or leaves them alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Only when somebody calls for it.
    #[default]
    Off,
    /// By [`balance_repeatedly`](crate::compute::RangeCalls::balance_repeatedly).
    Auto,
}

/// Settings of load balancing: the loads at which it moves boundaries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BalanceOptions {
    /// The mode.
    pub mode: Balance,
    /// Time between two rounds.
    pub round_ns: u64,
    /// A compute server has too much if it has this many times as much as a neighbour.
    pub ratio: f64,
    /// For so many rounds on end.
    pub patience: u32,
    /// Rounds without a move after a move.
    pub rest: u32,
    /// Share of the larger load that a move must take away from the larger load.
    pub gain: f64,
    /// Fewer operations than that are no load.
    pub least_ops: u64,
}

impl Default for BalanceOptions {
    fn default() -> Self {
        BalanceOptions {
            mode: Balance::Off,
            round_ns: 1_000_000_000,
            ratio: 1.3,
            patience: 2,
            rest: 4,
            gain: 0.1,
            least_ops: 1_000,
        }
    }
}

/// A range that had better be another's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeMove {
    /// Exclusive lower bound.
    pub low: Option<Vec<u8>>,
    /// Inclusive upper bound.
    pub high: Option<Vec<u8>>,
    /// The present owner.
    pub from: Incarnation,
    /// The owner to be.
    pub to: Incarnation,
}

/// State of load balancing that lasts from round to round.
#[derive(Clone, Debug)]
pub struct Balancer {
    options: BalanceOptions,
    uneven: u32,
    resting: u32,
}

/// The key of a sample below which, or at which, this share of it lies.
pub(super) fn quantile(keys: &[Vec<u8>], share: f64) -> Option<Vec<u8>> {
    let mut keys: Vec<&Vec<u8>> = keys.iter().collect();
    keys.sort_unstable();
    let at = ((keys.len() as f64 * share) as usize).checked_sub(1)?;
    keys.get(at).map(|key| (*key).clone())
}

impl Balancer {
    /// One that has seen nothing yet.
    pub fn new(options: BalanceOptions) -> Self {
        Balancer { options, uneven: 0, resting: 0 }
    }

    /// One round: what to move, if anything. `loads` are in the order of their keys.
    pub fn decide(&mut self, loads: &[PartLoad]) -> Option<RangeMove> {
        if self.resting > 0 {
            self.resting -= 1;
            return None;
        }
        let sum = |owner: Incarnation| -> u64 {
            loads.iter().filter(|load| load.owner == owner).map(|load| load.ops).sum()
        };
        let neighbours = loads.windows(2).filter(|pair| {
            pair[0].owner != pair[1].owner && pair[0].high.is_some() && pair[0].high == pair[1].low
        });
        let gap = |pair: &&[PartLoad]| sum(pair[0].owner).abs_diff(sum(pair[1].owner));
        let widest = neighbours.max_by_key(gap);
        let Some(pair) = widest else {
            self.uneven = 0;
            return None;
        };
        let upwards = sum(pair[0].owner) > sum(pair[1].owner);
        let (giver, taker) = if upwards { (&pair[0], &pair[1]) } else { (&pair[1], &pair[0]) };
        let (most, least) = (sum(giver.owner) as f64, sum(taker.owner) as f64);
        if most < self.options.least_ops as f64 || most < least.max(1.0) * self.options.ratio {
            self.uneven = 0;
            return None;
        }
        self.uneven += 1;
        if self.uneven < self.options.patience || giver.ops == 0 {
            return None;
        }
        let share = ((most - least) / 2.0 / giver.ops as f64).min(1.0);
        let bound = quantile(&giver.keys, if upwards { 1.0 - share } else { share })?;
        let inside = giver.low.as_ref().is_none_or(|low| bound > *low)
            && giver.high.as_ref().is_none_or(|high| bound < *high);
        let moves = giver.keys.iter().filter(|key| (**key > bound) == upwards).count();
        let moved = moves as f64 / giver.keys.len() as f64 * giver.ops as f64;
        let after = (most - moved).max(least + moved);
        if !inside || after > most * (1.0 - self.options.gain) {
            return None;
        }
        (self.uneven, self.resting) = (0, self.options.rest);
        let (low, high) = match upwards {
            true => (Some(bound), giver.high.clone()),
            false => (giver.low.clone(), Some(bound)),
        };
        Some(RangeMove { low, high, from: giver.owner, to: taker.owner })
    }
}

/// Returns the load of each own partition, by this compute server's count and sample.
pub(crate) fn own_load(ownership: &Ownership, decay: bool) -> Vec<PartLoad> {
    let view = ownership.view();
    let Load { ops, keys } = ownership.guard().load(decay);
    let mut loads: Vec<(usize, PartLoad)> = (0..view.map.count())
        .filter(|number| view.owned[*number])
        .map(|number| {
            let range = view.map.owned_range(number);
            let owner = Incarnation(view.map.owners[number]);
            let (low, high) = (range.low, range.high);
            (number, PartLoad { owner, low, high, ops: 0, keys: Vec::new() })
        })
        .collect();
    let all = keys.len() as u64;
    for key in keys {
        let number = view.map.of(&key, false);
        if let Some((_, load)) = loads.iter_mut().find(|(own, _)| *own == number) {
            load.keys.push(key);
        }
    }
    for (_, load) in &mut loads {
        load.ops = (ops * load.keys.len() as u64).checked_div(all).unwrap_or(0);
    }
    loads.into_iter().map(|(_, load)| load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads of compute servers whose ranges end at `bounds`, when the keys 0 to 99 are used so often.
    fn loads(bounds: &[u8], weight: impl Fn(u8) -> usize) -> Vec<PartLoad> {
        let ends: Vec<Option<Vec<u8>>> = bounds.iter().map(|end| Some(vec![*end])).collect();
        (0..=bounds.len())
            .map(|at| {
                let low = at.checked_sub(1).map(|before| bounds[before]);
                let own = (0..100_u8).filter(|key| {
                    low.is_none_or(|low| *key > low) && bounds.get(at).is_none_or(|end| key <= end)
                });
                let keys: Vec<Vec<u8>> = own.flat_map(|key| vec![vec![key]; weight(key)]).collect();
                PartLoad {
                    owner: Incarnation(at as u64 + 1),
                    low: low.map(|low| vec![low]),
                    high: ends.get(at).cloned().flatten(),
                    ops: keys.len() as u64 * 100,
                    keys,
                }
            })
            .collect()
    }

    fn spread(loads: &[PartLoad]) -> f64 {
        let ops = |load: &PartLoad| load.ops as f64;
        let most = loads.iter().map(ops).fold(0.0, f64::max);
        most / loads.iter().map(ops).fold(f64::MAX, f64::min).max(1.0)
    }

    /// Runs until nothing has been moved for a while; the bounds, and how often something was moved.
    fn settle(mut bounds: Vec<u8>, weight: impl Fn(u8) -> usize) -> (Vec<u8>, u32) {
        let mut balancer = Balancer::new(BalanceOptions::default());
        let mut moves = 0;
        for _ in 0..400 {
            let now = loads(&bounds, &weight);
            let Some(RangeMove { low, high, from, to }) = balancer.decide(&now) else { continue };
            moves += 1;
            // Of neighbours: the bound between the two is the other end now.
            let (at, end) = if to > from { (from.0, low) } else { (to.0, high) };
            bounds[at as usize - 1] = end.expect("a bound")[0];
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
        (bounds, moves)
    }

    #[test]
    fn an_even_load_stays_where_it_is() {
        let (bounds, moves) = settle(vec![24, 49, 74], |_| 3);
        assert_eq!((bounds, moves), (vec![24, 49, 74], 0));
        // Within the hysteresis, too.
        assert_eq!(settle(vec![27, 49, 74], |_| 3).1, 0);
    }

    #[test]
    fn a_skewed_load_becomes_even_and_rests() {
        let weight = |key: u8| if key < 10 { 30 } else { 1 };
        let before = spread(&loads(&[24, 49, 74], weight));
        let (bounds, moves) = settle(vec![24, 49, 74], weight);
        let after = spread(&loads(&bounds, weight));
        println!("{before} to {after} in {moves} moves: {bounds:?}");
        assert!(before > 10.0 && after < 1.8, "{before}, {after}");
        assert!(moves < 40, "{moves} moves");
    }

    #[test]
    fn one_hot_key_is_not_sent_to_and_fro() {
        let (_, moves) = settle(vec![49], |key| if key == 20 { 1_000 } else { 1 });
        assert!(moves <= 3, "{moves} moves");
    }

    #[test]
    fn it_takes_patience_and_load() {
        let mut balancer = Balancer::new(BalanceOptions::default());
        let uneven = loads(&[79], |_| 3);
        assert_eq!(balancer.decide(&uneven), None, "once is chance");
        let decision = balancer.decide(&uneven).expect("twice is not");
        assert_eq!((decision.from, decision.to), (Incarnation(1), Incarnation(2)));
        assert_eq!(decision.high, Some(vec![79]));
        for _ in 0..4 {
            assert_eq!(balancer.decide(&uneven), None, "it rests");
        }
        let mut little = uneven.clone();
        little.iter_mut().for_each(|load| load.ops /= 100);
        let mut balancer = Balancer::new(BalanceOptions::default());
        assert!((0..9).all(|_| balancer.decide(&little).is_none()), "that is no load");
    }
}
