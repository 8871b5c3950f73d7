//! Router: gives each operation of a workload to the compute server that owns its key.

use std::{cell::RefCell, collections::VecDeque, rc::Rc};

use crate::{
    generator::{Op, OpGenerator},
    keys::{KeyError, KeyMaker},
};

/// Inclusive upper bounds of all partitions but the last. When they move, operations that already
/// wait in a queue stay there.
pub(super) type Bounds = Rc<RefCell<Vec<Vec<u8>>>>;

/// One stream of operations that all clients take from, cut by partition.
///
/// An operation that is drawn while a client of another partition asks waits in its partition's
/// queue. So each partition gets its keys' share of the workload, as with clients that send an
/// operation to its owner, at any pace.
#[derive(Debug)]
pub(super) struct Router {
    generator: OpGenerator,
    keys: KeyMaker,
    bounds: Bounds,
    queues: Vec<VecDeque<Op>>,
    left: u64,
    key: Vec<u8>,
}

impl Router {
    /// Distributes the operations of `generator`.
    pub(super) fn new(generator: OpGenerator, keys: KeyMaker, bounds: Bounds) -> Self {
        let queues = vec![VecDeque::new(); bounds.borrow().len() + 1];
        Router { generator, keys, bounds, queues, left: 0, key: Vec::new() }
    }

    /// Allows `ops` more operations.
    pub(super) fn allow(&mut self, ops: u64) {
        self.left += ops;
    }

    /// Returns whether a partition has no keys at the moment, but may still get some.
    pub(super) fn is_idle(&self, partition: usize) -> bool {
        let bounds = self.bounds.borrow();
        let is_empty = match (partition.checked_sub(1).map(|at| &bounds[at]), bounds.get(partition))
        {
            (Some(low), Some(high)) => low == high,
            (Some(low), None) => low.iter().all(|byte| *byte == u8::MAX),
            (None, _) => false,
        };
        is_empty && self.left > 0
    }

    /// The next operation of `partition`, and its key in `key`; `None` if there is none left.
    /// # Errors
    /// [`KeyError`] if an item has no key.
    pub(super) fn next(
        &mut self,
        partition: usize,
        key: &mut Vec<u8>,
    ) -> Result<Option<Op>, KeyError> {
        if let Some(op) = self.queues[partition].pop_front() {
            self.keys.write_key(op.item, key)?;
            return Ok(Some(op));
        }
        while self.left > 0 {
            let Some(op) = self.generator.next_op() else { break };
            self.left -= 1;
            self.keys.write_key(op.item, &mut self.key)?;
            let owner = self.bounds.borrow().partition_point(|bound| *bound < self.key);
            if owner == partition {
                std::mem::swap(&mut self.key, key);
                return Ok(Some(op));
            }
            self.queues[owner].push_back(op);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;
    use crate::{item_space::ItemSpace, keys::KeyOrder, workload::Workload};

    #[test]
    fn every_operation_goes_to_its_owner_once() {
        let workload = Workload::named("write-intensive").unwrap();
        let generator = || {
            let space = Arc::new(ItemSpace::new(1000, None));
            OpGenerator::new(&workload, space, 5, 0, 1).unwrap()
        };
        let mut all = generator();
        let mut expected: Vec<Op> = (0..2000).map(|_| all.next_op().unwrap()).collect();
        let keys = KeyMaker::U64(KeyOrder::Hashed);
        let bounds = [1u64 << 62, 1 << 63].map(|bound| bound.to_be_bytes().to_vec()).to_vec();
        let shared = Rc::new(RefCell::new(bounds.clone()));
        let mut router = Router::new(generator(), keys, shared);
        let (mut taken, mut key) = (Vec::new(), Vec::new());
        router.allow(2000);
        for partition in [2, 0, 1] {
            while let Some(op) = router.next(partition, &mut key).unwrap() {
                assert_eq!(bounds.partition_point(|bound| *bound < key), partition);
                taken.push(op);
            }
        }
        let order = |op: &Op| (op.item, op.kind);
        expected.sort_by_key(order);
        taken.sort_by_key(order);
        assert_eq!(taken, expected);
    }

    #[test]
    fn a_partition_without_keys_is_idle_until_bounds_move() {
        let workload = Workload::named("read-only").unwrap();
        let space = Arc::new(ItemSpace::new(1000, None));
        let generator = OpGenerator::new(&workload, space, 5, 0, 1).unwrap();
        let bounds = Rc::new(RefCell::new(vec![vec![0x7f; 8], vec![0xff; 8]]));
        let mut router = Router::new(generator, KeyMaker::U64(KeyOrder::Hashed), bounds.clone());
        router.allow(100);
        assert_eq!([0, 1, 2].map(|partition| router.is_idle(partition)), [false, false, true]);
        bounds.borrow_mut()[1] = vec![0xbf; 8];
        assert!(!router.is_idle(2));
        let mut key = Vec::new();
        assert!(router.next(2, &mut key).unwrap().is_some() && key > vec![0xbf; 8]);
        bounds.borrow_mut()[1] = vec![0x7f; 8];
        assert!(router.is_idle(1));
        while router.next(2, &mut key).unwrap().is_some() {}
        assert!(!router.is_idle(1), "nothing is left for it to wait for");
    }
}
