//! Cost model: decides whether offloading an operation costs less than fetching its nodes.
//!
//! Reading a path costs a READ for each of its `L + 1` levels, and a little work for each; offloading
//! costs one RPC, with whatever queue there is before the memory server's threads. The model measures
//! both for each memory server by itself, since load differs between them: means of the last 50
//! samples, none older than a second. At the start it takes 50 of each regardless of their cost. Later
//! it reverses one in a hundred decisions, so that neither side's figures go stale. It counts RPCs of
//! scans by themselves, because each does more work.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// Samples of a mean.
const WINDOW: usize = 50;
/// Age at which a sample counts no more.
const EXPIRY_NS: u64 = 1_000_000_000;
/// Probability of the opposite of what the figures say.
const EXPLORE: f64 = 0.01;
/// The cost of a path's level beside its READ (`l_s`), and the factor by which a path may look dearer than
/// the RPC before it is offloaded (`c`).
const LEVEL_NS: f64 = 40.0;
const CAUTION: f64 = 1.2;
/// The time for which a server that is busy, or has no such service, gets no request.
const BUSY_NS: u64 = 20_000;
const ABSENT_NS: u64 = 1_000_000_000;

/// The operations that go to the memory server of a node that they miss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Offload {
    /// None.
    #[default]
    Never,
    /// All that can.
    Always,
    /// This share of those that can, drawn at random.
    Ratio(f64),
    /// Those that measurement shows to be quicker there.
    Adaptive,
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Offload::Never => f.write_str("never"),
            Offload::Always => f.write_str("always"),
            Offload::Ratio(share) => write!(f, "ratio:{share}"),
            Offload::Adaptive => f.write_str("adaptive"),
        }
    }
}

/// A text that names no way of offloading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no way of offloading: take never, always, adaptive, or ratio: and 0 to 1")]
pub struct OffloadError(String);

impl FromStr for Offload {
    type Err = OffloadError;

    fn from_str(text: &str) -> Result<Self, OffloadError> {
        let wrong = || OffloadError(text.to_owned());
        match text {
            "never" => Ok(Offload::Never),
            "always" => Ok(Offload::Always),
            "adaptive" => Ok(Offload::Adaptive),
            _ => {
                let share = text.strip_prefix("ratio:").ok_or_else(wrong)?;
                let share: f64 = share.parse().map_err(|_| wrong())?;
                if (0.0..=1.0).contains(&share) { Ok(Offload::Ratio(share)) } else { Err(wrong()) }
            }
        }
    }
}

/// The last samples of something, each with its time, the oldest first.
#[derive(Debug, Default)]
struct Window(VecDeque<(u64, u64)>);

impl Window {
    fn add(&mut self, now_ns: u64, ns: u64) {
        if self.0.len() == WINDOW {
            self.0.pop_front();
        }
        self.0.push_back((now_ns, ns));
    }

    fn mean(&self, now_ns: u64) -> Option<f64> {
        let fresh = self.0.iter().filter(|(at, _)| now_ns.saturating_sub(*at) <= EXPIRY_NS);
        let (count, sum) = fresh
            .fold((0_u64, 0_u64), |(count, sum), (_, ns)| (count + 1, sum.saturating_add(*ns)));
        (count > 0).then(|| sum as f64 / count as f64)
    }
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) offload: bool,
    /// It is the opposite of what the figures say, or there are none yet.
    pub(crate) explores: bool,
}

/// The kind of operation that a decision is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffloadWork {
    /// An operation on a key.
    Point,
    /// A scan.
    Scan,
}

/// The measurements of one memory server.
#[derive(Debug, Default)]
pub(crate) struct CostModel {
    reads: Window,
    /// Of either [`OffloadWork`].
    calls: [Window; 2],
    /// Decisions of the start about either: to fetch, to offload.
    forced: [(usize, usize); 2],
    /// The time before which no request is sent.
    not_before_ns: u64,
}

impl CostModel {
    /// Adds the time of a READ of a node.
    pub(crate) fn add_read(&mut self, now_ns: u64, ns: u64) {
        self.reads.add(now_ns, ns);
    }

    /// Adds the time of an RPC that was answered.
    pub(crate) fn add_call(&mut self, work: OffloadWork, now_ns: u64, ns: u64) {
        self.calls[work as usize].add(now_ns, ns);
    }

    /// Notes that the server turned a request away. Its speed says nothing about that of other requests.
    pub(crate) fn is_busy(&mut self, now_ns: u64) {
        self.not_before_ns = now_ns.saturating_add(BUSY_NS);
    }

    /// Notes that the server has no such service, or did not understand.
    pub(crate) fn is_absent(&mut self, now_ns: u64) {
        self.not_before_ns = now_ns.saturating_add(ABSENT_NS);
    }

    /// Returns whether requests may be sent there now.
    pub(crate) fn is_open(&self, now_ns: u64) -> bool {
        now_ns >= self.not_before_ns
    }

    /// Returns the means of the recent READs and RPCs.
    pub(crate) fn means(&self, work: OffloadWork, now_ns: u64) -> (Option<f64>, Option<f64>) {
        (self.reads.mean(now_ns), self.calls[work as usize].mean(now_ns))
    }

    /// Decides about a miss that would be so many READs one after the other, the wanted node's included;
    /// `random` is a number from 0 to 1.
    pub(crate) fn decide(
        &mut self,
        work: OffloadWork,
        reads: u32,
        now_ns: u64,
        random: f64,
    ) -> Choice {
        let forced = &mut self.forced[work as usize];
        let (fetched, offloaded) = *forced;
        if fetched < WINDOW || offloaded < WINDOW {
            let offload = offloaded <= fetched;
            *if offload { &mut forced.1 } else { &mut forced.0 } += 1;
            return Choice { offload, explores: true };
        }
        let (read_ns, call_ns) = match self.means(work, now_ns) {
            (Some(read_ns), Some(call_ns)) => (read_ns, call_ns),
            // The side that lacks a fresh figure is tried.
            (_, None) => return Choice { offload: true, explores: true },
            (None, _) => return Choice { offload: false, explores: true },
        };
        let path_ns = f64::from(reads) * (read_ns + LEVEL_NS) * CAUTION;
        let offload = call_ns < path_ns;
        let explores = random < EXPLORE;
        Choice { offload: offload != explores, explores }
    }
}

#[cfg(test)]
mod tests {
    use super::OffloadWork::{Point, Scan};
    use super::*;

    #[test]
    fn ways_of_offloading_come_back_from_their_names() {
        for way in [Offload::Never, Offload::Always, Offload::Adaptive, Offload::Ratio(0.3)] {
            assert_eq!(way.to_string().parse(), Ok(way));
        }
        assert_eq!("ratio:1".parse(), Ok(Offload::Ratio(1.0)));
        for text in ["", "Never", "ratio", "ratio:", "ratio:1.1", "ratio:-0.1", "ratio:NaN"] {
            let error = text.parse::<Offload>().expect_err(text);
            assert!(error.to_string().contains("adaptive"), "{error}");
        }
    }

    /// A model with 50 samples of each.
    fn trained(read_ns: u64, call_ns: u64) -> CostModel {
        let mut model = CostModel::default();
        let mut offloads = 0;
        for _ in 0..2 * WINDOW {
            let choice = model.decide(Point, 1, 0, 0.5);
            assert!(choice.explores);
            offloads += usize::from(choice.offload);
            if choice.offload {
                model.add_call(Point, 0, call_ns);
            } else {
                model.add_read(0, read_ns);
            }
        }
        assert_eq!(offloads, WINDOW, "as many of either");
        model
    }

    #[test]
    fn it_offloads_what_is_cheaper_from_some_level_on() {
        // (L + 1) * (1960 + 40) * 1.2 = 2400, 4800, 7200, 9600.
        let mut model = trained(1_960, 6_000);
        let choices = [1, 2, 3, 4].map(|reads| model.decide(Point, reads, 1, 0.5).offload);
        assert_eq!(choices, [false, false, true, true]);
        let opposite = model.decide(Point, 4, 1, 0.009);
        assert_eq!(opposite, Choice { offload: false, explores: true });
        assert!(!model.decide(Point, 4, 1, 0.011).explores);
        // The window forgets: fifty slow answers turn it round.
        (0..49).for_each(|_| model.add_call(Point, 1, 60_000));
        assert!(!model.decide(Point, 4, 1, 0.5).offload);
        (0..50).for_each(|_| model.add_call(Point, 1, 2_000));
        assert!(model.decide(Point, 1, 1, 0.5).offload);
    }

    #[test]
    fn scans_have_figures_of_their_own() {
        let mut model = trained(1_960, 3_000);
        for _ in 0..2 * WINDOW {
            let choice = model.decide(Scan, 5, 0, 0.5);
            assert!(choice.explores);
            if choice.offload {
                model.add_call(Scan, 0, 9_000);
            }
        }
        let choices = [3, 4].map(|reads| model.decide(Scan, reads, 1, 0.5).offload);
        assert_eq!(choices, [false, true]);
        assert!(model.decide(Point, 2, 1, 0.5).offload);
        assert_eq!(model.means(Point, 1), (Some(1_960.0), Some(3_000.0)));
    }

    #[test]
    fn old_samples_expire_and_what_is_not_known_is_tried() {
        let mut model = trained(2_000, 1_000);
        let late = EXPIRY_NS + 1;
        assert_eq!(model.decide(Point, 1, late, 0.5), Choice { offload: true, explores: true });
        model.add_call(Point, late, 9_000);
        assert_eq!(model.decide(Point, 1, late, 0.5), Choice { offload: false, explores: true });
        model.add_read(late, 2_000);
        assert_eq!(model.decide(Point, 1, late, 0.5), Choice { offload: false, explores: false });
        assert_eq!(model.means(Point, late), (Some(2_000.0), Some(9_000.0)));
    }

    #[test]
    fn a_busy_server_is_left_alone_for_a_while() {
        let mut model = CostModel::default();
        assert!(model.is_open(0));
        model.is_busy(5);
        assert!(!model.is_open(4 + BUSY_NS) && model.is_open(5 + BUSY_NS));
        model.is_absent(5);
        assert!(!model.is_open(5 + BUSY_NS) && model.is_open(5 + ABSENT_NS));
    }
}
