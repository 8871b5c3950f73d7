//! Routing: starts each operation at the compute server that owns its key.
//!
//! Each client makes operations until it has one for its own compute server. Those for others wait
//! in the others' queues, from which their clients take first. So each compute server gets its
//! keys' share of the workload, as with clients that know the partitions, at any pace. A waiting
//! operation takes 24 bytes.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

use super::table::share_of;
use crate::generator::Op;

/// Inclusive upper bounds of all partitions but the last. Clones share them. When they move, operations that
/// already wait in a queue stay there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bounds(Arc<RwLock<Vec<Vec<u8>>>>);

impl Bounds {
    /// Replaces all bounds.
    pub(crate) fn set(&self, bounds: Vec<Vec<u8>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = bounds;
    }

    /// Moves the bound between partition `number` and the next.
    pub(crate) fn move_to(&self, number: usize, bound: Vec<u8>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner)[number] = bound;
    }

    /// The number of partitions.
    pub(crate) fn partitions(&self) -> usize {
        self.read().len() + 1
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Vec<u8>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The partitions' bounds and owners.
#[derive(Clone, Debug)]
pub(crate) struct Owners {
    bounds: Bounds,
    /// Owner of each partition.
    servers: Vec<usize>,
}

impl Owners {
    /// Owners of partitions that `servers` compute servers have taken in turn.
    pub(crate) fn new(bounds: Bounds, servers: usize) -> Self {
        let count = bounds.partitions();
        let shares = (0..servers).map(|server| (server, share_of(count, servers, server)));
        let servers = shares.flat_map(|(server, share)| vec![server; share]).collect();
        Owners { bounds, servers }
    }

    /// The owner of `key`.
    pub(super) fn of(&self, key: &[u8]) -> usize {
        self.servers[self.bounds.read().partition_point(|bound| bound.as_slice() < key)]
    }

    /// Returns whether a partition has no keys.
    fn is_empty(&self, partition: usize) -> bool {
        let bounds = self.bounds.read();
        match (partition.checked_sub(1).map(|at| &bounds[at]), bounds.get(partition)) {
            (Some(low), Some(high)) => low == high,
            (Some(low), None) => low.iter().all(|byte| *byte == u8::MAX),
            (None, _) => false,
        }
    }
}

/// See the [module page](self).
#[derive(Debug)]
pub(crate) struct Router {
    owners: Owners,
    queues: Vec<Mutex<VecDeque<Op>>>,
    /// Operations of the phase that no client has made yet.
    left: AtomicU64,
    /// Clients that may still make some.
    makers: AtomicUsize,
    /// Clients that are making one now.
    making: AtomicUsize,
}

/// A client's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// An operation on a key of its own compute server.
    Op(Op),
    /// Other clients may still make an operation for it.
    Wait,
    /// The phase is over for it.
    End,
}

impl Router {
    /// For `servers` compute servers.
    pub(crate) fn new(owners: Owners, servers: usize) -> Self {
        let queues = (0..servers).map(|_| Mutex::default()).collect();
        let (left, makers, making) = Default::default();
        Router { owners, queues, left, makers, making }
    }

    /// Begins a phase of `ops` operations, while no client works.
    pub(crate) fn allow(&self, ops: u64, clients: usize) {
        self.left.store(ops, SeqCst);
        self.makers.store(clients, SeqCst);
    }

    /// Returns whether a partition has no keys at the moment, but may still get some: its bounds move. Each
    /// compute server has one partition.
    pub(super) fn is_idle(&self, partition: usize) -> bool {
        self.owners.is_empty(partition) && self.left.load(SeqCst) > 0
    }

    /// The next operation for a client of `server`. `make` makes an operation and puts its key into
    /// `key`. `may_make` is the client's, and true when the phase begins.
    pub(super) fn next(
        &self,
        server: usize,
        may_make: &mut bool,
        key: &mut Vec<u8>,
        make: impl FnMut(&mut Vec<u8>) -> Option<Op>,
    ) -> Next {
        if let Some(op) = self.take(server) {
            return Next::Op(op);
        }
        if *may_make {
            if let Some(op) = self.make(server, key, make) {
                return Next::Op(op);
            }
            self.give_up(may_make);
        }
        // In this order: a client that makes an operation takes it from `left`, and queues it
        // before it leaves `making`.
        let is_over = self.left.load(SeqCst) == 0 || self.makers.load(SeqCst) == 0;
        let is_over = is_over && self.making.load(SeqCst) == 0;
        match self.take(server) {
            Some(op) => Next::Op(op),
            None if is_over => Next::End,
            None => Next::Wait,
        }
    }

    /// Ends the client's making of operations in this phase.
    pub(super) fn give_up(&self, may_make: &mut bool) {
        if std::mem::replace(may_make, false) {
            self.makers.fetch_sub(1, SeqCst);
        }
    }

    fn make(
        &self,
        server: usize,
        key: &mut Vec<u8>,
        mut make: impl FnMut(&mut Vec<u8>) -> Option<Op>,
    ) -> Option<Op> {
        self.making.fetch_add(1, SeqCst);
        let mut found = None;
        while found.is_none()
            && self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
        {
            let Some(op) = make(key) else { break };
            match self.owners.of(key) {
                owner if owner == server => found = Some(op),
                owner => self.queue(owner).push_back(op),
            }
        }
        self.making.fetch_sub(1, SeqCst);
        found
    }

    fn take(&self, server: usize) -> Option<Op> {
        self.queue(server).pop_front()
    }

    fn queue(&self, server: usize) -> std::sync::MutexGuard<'_, VecDeque<Op>> {
        self.queues[server].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread;

    use super::*;
    use crate::workload::OpKind;

    fn op(item: u64) -> Op {
        Op { kind: OpKind::Get, item, scan_len: 0 }
    }

    fn owners() -> Owners {
        let bounds = Bounds::default();
        bounds.set(vec![vec![40], vec![80], vec![90]]);
        Owners::new(bounds, 3)
    }

    #[test]
    fn partitions_are_taken_in_turn() {
        let owners = owners();
        let of = |key: u8| owners.of(&[key]);
        assert_eq!([of(0), of(40), of(41), of(80), of(81), of(90), of(91)], [0, 0, 0, 0, 1, 1, 2]);
        // Fewer partitions than compute servers: some have none.
        let few = Owners::new(Bounds::default(), 3);
        assert_eq!(few.of(&[7]), 0);
    }

    #[test]
    fn every_operation_is_done_once_by_its_owner() {
        let (servers, clients, each) = (3, 6, 5_000_u64);
        let router = Router::new(owners(), servers);
        router.allow(each * clients as u64, clients);
        let done: Vec<(usize, Vec<u64>)> = thread::scope(|scope| {
            let work = |client: usize| {
                let router = &router;
                move || {
                    let server = client % servers;
                    let mut items = (0_u64..).map(|at| at * clients as u64 + client as u64);
                    let (mut mine, mut may_make, mut key) = (Vec::new(), true, Vec::new());
                    loop {
                        let make = |key: &mut Vec<u8>| {
                            let item = items.next()?;
                            *key = vec![(item % 100) as u8];
                            Some(op(item))
                        };
                        match router.next(server, &mut may_make, &mut key, make) {
                            Next::Op(op) => mine.push(op.item),
                            Next::Wait => thread::yield_now(),
                            Next::End => return (server, mine),
                        }
                    }
                }
            };
            let threads: Vec<_> = (0..clients).map(|client| scope.spawn(work(client))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut all = Vec::new();
        for (server, items) in done {
            assert!(items.iter().all(|item| router.owners.of(&[(item % 100) as u8]) == server));
            all.extend(items);
        }
        assert_eq!(all.len() as u64, each * clients as u64);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len() as u64, each * clients as u64);
    }

    #[test]
    fn clients_wait_while_another_may_make_operations() {
        let router = Router::new(owners(), 3);
        router.allow(100, 2);
        let (mut first, mut second) = (true, true);
        let mut two = [op(10), op(95)].into_iter();
        let mut next = |server, may_make: &mut bool| {
            let make = |key: &mut Vec<u8>| {
                let op = two.next().filter(|_| server == 2)?;
                *key = vec![op.item as u8];
                Some(op)
            };
            router.next(server, may_make, &mut Vec::new(), make)
        };
        assert_eq!(next(2, &mut second), Next::Op(op(95)));
        assert_eq!(next(0, &mut first), Next::Op(op(10)));
        assert_eq!(next(0, &mut first), Next::Wait, "the other may make more");
        assert_eq!(next(2, &mut second), Next::End);
        assert_eq!(next(0, &mut first), Next::End);
    }

    #[test]
    fn a_partition_without_keys_is_idle_until_bounds_move() {
        let bounds = Bounds::default();
        bounds.set(vec![vec![0x7f], vec![0xff]]);
        let router = Router::new(Owners::new(bounds.clone(), 3), 3);
        router.allow(2, 1);
        assert_eq!([0, 1, 2].map(|partition| router.is_idle(partition)), [false, false, true]);
        bounds.move_to(1, vec![0xbf]);
        assert!(!router.is_idle(2));
        let (mut may_make, mut key) = (true, Vec::new());
        let mut next = |server| {
            router.next(server, &mut may_make, &mut key, |key: &mut Vec<u8>| {
                *key = vec![0xc0];
                Some(op(0xc0))
            })
        };
        assert_eq!(next(2), Next::Op(op(0xc0)));
        bounds.move_to(1, vec![0x7f]);
        assert!(router.is_idle(1));
        assert_eq!([next(2), next(2)], [Next::Op(op(0xc0)), Next::End]);
        assert!(!router.is_idle(1), "nothing is left for it to wait for");
    }
}
