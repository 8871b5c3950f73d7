//! Generator: yields one client's operations, one after the other.
//!
//! - INV-OP-1: the kinds, the scan lengths and the random choices depend on the seed and the
//!   client's index only; the items follow from them and from what the [`ItemSpace`] answers, so
//!   that a run whose inserts finish in the same order repeats itself exactly;
//! - INV-OP-2: every item that is not inserted lies below the frontier.

use std::sync::Arc;

use fastrand::Rng;

use crate::{
    distribution::{DistributionError, ItemChooser, ZIPFIAN_THETA_DEFAULT, Zipfian},
    item_space::ItemSpace,
    mix64::mix64,
    workload::{Mix, OpKind, ScanLength, Workload},
};

/// An operation to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The kind of operation.
    pub kind: OpKind,
    /// The item, or the first one of a scan.
    pub item: u64,
    /// Items to scan; 0 for all other kinds.
    pub scan_len: u32,
}

/// Yields the operations of one client, without end unless items run out. Does not allocate.
#[derive(Debug)]
pub struct OpGenerator {
    rng: Rng,
    mix: Mix,
    chooser: ItemChooser,
    scans: Scans,
    space: Arc<ItemSpace>,
}

impl OpGenerator {
    /// The operations of client `client` of `clients` on the items of `space`.
    ///
    /// Clients of one run get the same `seed` and different indices.
    ///
    /// # Errors
    /// [`DistributionError`] if a number of the workload's distribution or of its scan length is
    /// out of range.
    pub fn new(
        workload: &Workload,
        space: Arc<ItemSpace>,
        seed: u64,
        client: u64,
        clients: u64,
    ) -> Result<Self, DistributionError> {
        Ok(Self {
            rng: Rng::with_seed(mix64(mix64(seed) ^ client)),
            mix: workload.mix.clone(),
            chooser: ItemChooser::new(&workload.request, space.loaded(), client, clients)?,
            scans: Scans::new(workload.scan_length)?,
            space,
        })
    }

    /// The next operation; `None` if it is an insert and there is no new item left.
    ///
    /// After an insert the caller calls [`ItemSpace::acknowledge`]. With no item to read, reads ask
    /// for item 0.
    pub fn next_op(&mut self) -> Option<Op> {
        let kind = self.mix.kind_at(self.rng.f64());
        let item = match kind {
            OpKind::Insert => self.space.claim()?,
            _ => self.chooser.choose(&mut self.rng, self.space.readable()),
        };
        let scan_len = if kind == OpKind::Scan { self.scans.sample(&mut self.rng) } else { 0 };
        Some(Op { kind, item, scan_len })
    }

    /// The items that are read and inserted.
    pub fn space(&self) -> &ItemSpace {
        &self.space
    }
}

/// Draws scan lengths.
#[derive(Debug)]
struct Scans {
    min: u32,
    max: u32,
    zipfian: Option<Zipfian>,
}

impl Scans {
    fn new(length: ScanLength) -> Result<Self, DistributionError> {
        let (min, max) = length.range();
        if min == 0 || min > max {
            return Err(DistributionError::ScanLength { min, max });
        }
        let zipfian = match length {
            ScanLength::Zipfian { .. } => {
                Some(Zipfian::new(ZIPFIAN_THETA_DEFAULT, u64::from(max - min) + 1)?)
            }
            _ => None,
        };
        Ok(Self { min, max, zipfian })
    }

    fn sample(&self, rng: &mut Rng) -> u32 {
        match &self.zipfian {
            // A rank is at most `max - min`, which fits.
            Some(zipfian) => self.min + zipfian.sample(rng) as u32,
            None => rng.u32(self.min..=self.max),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn generator(workload: &str, loaded: u64, seed: u64, client: u64) -> OpGenerator {
        let space = Arc::new(ItemSpace::new(loaded, None));
        OpGenerator::new(&workload.parse().unwrap(), space, seed, client, 4).unwrap()
    }

    fn run(generator: &mut OpGenerator, count: usize) -> Vec<Op> {
        let mut ops = Vec::new();
        for _ in 0..count {
            let op = generator.next_op().unwrap();
            if op.kind == OpKind::Insert {
                generator.space().acknowledge(op.item);
            } else {
                // INV-OP-2
                assert!(op.item < generator.space().readable());
            }
            ops.push(op);
        }
        ops
    }

    /// INV-OP-1.
    #[test]
    fn operations_follow_the_seed_and_the_client() {
        for name in Workload::NAMES {
            let ops = |seed, client| run(&mut generator(name, 1000, seed, client), 500);
            assert_eq!(ops(1, 0), ops(1, 0));
            assert_ne!(ops(1, 0), ops(2, 0));
            assert_ne!(ops(1, 0), ops(1, 1));
        }
    }

    #[test]
    fn operations_follow_the_mix() {
        const COUNT: usize = 40_000;
        for text in ["ycsb-a", "ycsb-e", "ycsb-f", "get=1,remove=2,upsert=3,insert=4"] {
            let workload: Workload = text.parse().unwrap();
            let ops = run(&mut generator(text, 1000, 3, 0), COUNT);
            for kind in OpKind::ALL {
                let share = workload.mix.share(kind);
                let found = ops.iter().filter(|op| op.kind == kind).count() as f64 / COUNT as f64;
                let deviation = (share * (1.0 - share) / COUNT as f64).sqrt();
                assert!((found - share).abs() <= 4.0 * deviation, "{text} {kind:?}: {found}");
            }
        }
    }

    #[test]
    fn inserts_take_new_items_in_order() {
        let ops = run(&mut generator("insert-intensive", 50, 3, 0), 1000);
        let inserted: Vec<u64> =
            ops.iter().filter(|op| op.kind == OpKind::Insert).map(|op| op.item).collect();
        assert!(inserted.len() > 400);
        assert!(inserted.iter().copied().eq(50..50 + inserted.len() as u64));
    }

    #[test]
    fn latest_reads_acknowledged_items_only() {
        let mut generator = generator("ycsb-d", 100, 5, 0);
        let mut inserts = 0;
        for _ in 0..2000 {
            // Inserts are never acknowledged here.
            let op = generator.next_op().unwrap();
            match op.kind {
                OpKind::Insert => inserts += 1,
                _ => assert!(op.item < 100),
            }
        }
        assert!(inserts > 50);
    }

    /// A client that joins late must not have popular items of its own.
    #[test]
    fn clients_that_begin_late_agree_on_the_popular_items() {
        let space = Arc::new(ItemSpace::new(1000, None));
        let workload = Workload::named("ycsb-c").unwrap();
        let hottest = |client| {
            let mut generator =
                OpGenerator::new(&workload, Arc::clone(&space), 1, client, 2).unwrap();
            let mut seen = vec![0; 3000];
            run(&mut generator, 10_000).iter().for_each(|op| seen[op.item as usize] += 1);
            (0..seen.len()).max_by_key(|item| seen[*item]).unwrap()
        };
        let early = hottest(0);
        (0..777).for_each(|_| space.acknowledge(space.claim().unwrap()));
        assert_eq!(space.readable(), 1777);
        assert_eq!(hottest(1), early);
    }

    #[test]
    fn scan_lengths_follow_their_distribution() {
        let lengths = |length: &str| {
            let mut workload = Workload::named("ycsb-e").unwrap();
            workload.scan_length = length.parse().unwrap();
            let space = Arc::new(ItemSpace::new(1000, None));
            let mut generator = OpGenerator::new(&workload, space, 1, 0, 1).unwrap();
            let ops = run(&mut generator, 20_000);
            assert!(ops.iter().all(|op| (op.kind == OpKind::Scan) == (op.scan_len > 0)));
            let scans: Vec<u32> =
                ops.iter().map(|op| op.scan_len).filter(|length| *length > 0).collect();
            let mean =
                scans.iter().map(|length| f64::from(*length)).sum::<f64>() / scans.len() as f64;
            (*scans.iter().min().unwrap(), *scans.iter().max().unwrap(), mean)
        };
        assert_eq!(lengths("100"), (100, 100, 100.0));
        let (min, max, mean) = lengths("1-100");
        assert_eq!((min, max), (1, 100));
        assert!((49.5..51.5).contains(&mean), "{mean}");
        let (min, max, mean) = lengths("zipfian:5-100");
        assert_eq!((min, max), (5, 100));
        assert!(mean < 30.0, "{mean}");
    }

    #[test]
    fn running_out_of_items_ends_the_operations() {
        let space = Arc::new(ItemSpace::new(0, Some(2)));
        let workload = "insert=1".parse().unwrap();
        let mut generator = OpGenerator::new(&workload, space, 1, 0, 1).unwrap();
        assert!(generator.next_op().is_some() && generator.next_op().is_some());
        assert_eq!(generator.next_op(), None);
    }

    #[test]
    fn wrong_numbers_are_refused() {
        let space = Arc::new(ItemSpace::new(10, None));
        let mut workload = Workload::named("ycsb-e").unwrap();
        workload.scan_length = ScanLength::Uniform { min: 0, max: 5 };
        let error = OpGenerator::new(&workload, space, 1, 0, 1).unwrap_err();
        assert_eq!(error, DistributionError::ScanLength { min: 0, max: 5 });
    }
}
