//! Crash point: names a moment at which a compute server dies.

use std::fmt;
use std::str::FromStr;

use farleaf_fabric::sim::{CountedOp, CrashPlan, CrashWay, Landing, Verb};

/// Most words of a WRITE of which every prefix is tried.
const ALL_PREFIXES_WORDS: u32 = 48;
/// Seeded subsets of the words of each WRITE.
const SUBSETS: u64 = 4;

/// One way to die, or to be stopped, at one remote operation. Written as in `k=7,before`,
/// `k=7,after`, `k=7,skip`, `k=7,within=prefix:3`, `k=7,within=subset:2`, `k=7,pause=before`,
/// `k=7,pause=after`; `k=7,owner` and `k=7,both` for the death of the compute server that the operation goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint(pub CrashPlan);

impl CrashPoint {
    /// Returns whether the compute server comes back as a zombie.
    pub fn is_pause(self) -> bool {
        matches!(self.0.way, CrashWay::PauseBefore | CrashWay::PauseAfter)
    }

    /// Returns whether the compute server that acts goes on, and another one dies.
    pub(super) fn is_of_owner(self) -> bool {
        self.0.way == CrashWay::OwnerDies
    }

    /// All that can happen at the operations `ops`, including WRITEs of more than
    /// `crash_atomic_bytes` in part; with `owners`, the death of the compute server that an operation goes to as well.
    pub(super) fn all(ops: &[CountedOp], crash_atomic_bytes: u32, owners: bool) -> Vec<CrashPoint> {
        let mut points = Vec::new();
        for (op, counted) in (0..).zip(ops) {
            let mut add = |way| points.push(CrashPoint(CrashPlan { op, way }));
            let is_last = counted.part + 1 == counted.parts;
            // A list is posted as a whole: the process is never stopped inside of one.
            if counted.part == 0 {
                add(CrashWay::PauseBefore);
            }
            add(CrashWay::Before);
            if counted.is_batch && !is_last {
                add(CrashWay::Skip);
            }
            if counted.kind == Verb::Write && counted.words * 8 > crash_atomic_bytes {
                for words in prefixes(counted.words) {
                    add(CrashWay::Within(Landing::Prefix(words)));
                }
                for seed in 0..SUBSETS {
                    add(CrashWay::Within(Landing::Subset(seed)));
                }
            }
            add(CrashWay::After);
            if owners {
                add(CrashWay::OwnerDies);
                add(CrashWay::BothDie);
            }
            if is_last {
                add(CrashWay::PauseAfter);
            }
        }
        points
    }
}

/// Numbers of words of a WRITE that may have landed: neither none nor all.
fn prefixes(words: u32) -> Vec<u32> {
    if words <= ALL_PREFIXES_WORDS {
        return (1..words).collect();
    }
    // The edges of headers and lines, and of what may be a list of nodes.
    let parts = [1, 2, 4, 7, 8, 9, 16, words / 4, words / 3, words / 2, words * 2 / 3];
    let mut chosen = parts.to_vec();
    chosen.extend([words * 3 / 4, words - 9, words - 8, words - 2, words - 1]);
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// Ways of a whole operation, by name.
const WAYS: [(&str, CrashWay); 7] = [
    ("before", CrashWay::Before),
    ("after", CrashWay::After),
    ("skip", CrashWay::Skip),
    ("pause=before", CrashWay::PauseBefore),
    ("pause=after", CrashWay::PauseAfter),
    ("owner", CrashWay::OwnerDies),
    ("both", CrashWay::BothDie),
];

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "k={},", self.0.op)?;
        match self.0.way {
            CrashWay::Within(Landing::Prefix(words)) => write!(f, "within=prefix:{words}"),
            CrashWay::Within(Landing::Subset(seed)) => write!(f, "within=subset:{seed}"),
            way => {
                let (name, _) = WAYS.iter().find(|(_, it)| *it == way).ok_or(fmt::Error)?;
                f.write_str(name)
            }
        }
    }
}

/// A text that names no point.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no crash point: write it as in k=7,before or k=7,within=prefix:3")]
pub struct NoCrashPoint(pub String);

impl FromStr for CrashPoint {
    type Err = NoCrashPoint;

    fn from_str(text: &str) -> Result<Self, NoCrashPoint> {
        parse(text).ok_or_else(|| NoCrashPoint(text.to_string()))
    }
}

fn parse(text: &str) -> Option<CrashPoint> {
    let (op, way) = text.strip_prefix("k=")?.split_once(',')?;
    let way = match WAYS.iter().find(|(name, _)| *name == way) {
        Some((_, way)) => *way,
        None => match way.strip_prefix("within=")?.split_once(':')? {
            ("prefix", words) => CrashWay::Within(Landing::Prefix(words.parse().ok()?)),
            ("subset", seed) => CrashWay::Within(Landing::Subset(seed.parse().ok()?)),
            _ => return None,
        },
    };
    Some(CrashPoint(CrashPlan { op: op.parse().ok()?, way }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let op = CountedOp { kind: Verb::Write, words: 9, part: 0, parts: 2, is_batch: true };
        let large = CountedOp { words: 640, part: 1, ..op };
        let points = CrashPoint::all(&[op, large], 8, false);
        for point in &points {
            assert_eq!(point.to_string().parse().as_ref(), Ok(point));
        }
        let count = |of: &str| points.iter().filter(|point| point.to_string().contains(of)).count();
        assert_eq!((count("k=0,within=prefix"), count("subset")), (8, 8));
        assert_eq!((count("pause"), count("skip"), count("k=0,")), (2, 1, 16));
        assert!(count("k=1,within=prefix") < 20);
        // WRITEs that land whole or not at all.
        let whole = CrashPoint::all(&[op], 72, true);
        assert!(whole.iter().all(|at| !at.to_string().contains("within")));
        assert_eq!(whole.iter().filter(|at| at.is_of_owner()).count(), 1);
        for point in &whole {
            assert_eq!(point.to_string().parse().as_ref(), Ok(point));
        }
        for wrong in ["", "k=,before", "k=1", "k=1,never", "k=1,within=prefix:", "1,before"] {
            assert!(wrong.parse::<CrashPoint>().is_err(), "{wrong}");
        }
    }
}
