//! Loom models of the index: latches, frame lists, mapping table and waiting of the engine `dex`.
//!
//! They explore every interleaving of one compute server's threads. See the crate's page.
#![allow(clippy::unwrap_used)]
#![allow(clippy::arc_with_non_send_sync, reason = "loom has one thread and checks who shares")]

/// Stands in the modelled modules for the standard library's.
mod sync {
    use std::ops::DerefMut;

    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> impl DerefMut<Target = T> + '_ {
        mutex.lock().unwrap()
    }

    /// Costs time in the simulator alone.
    #[derive(Debug)]
    pub(crate) struct SharedLines;

    impl SharedLines {
        pub(crate) fn new(_: usize) -> Self {
            SharedLines
        }

        pub(crate) fn change(&self, _: usize) {}
    }
}

#[allow(dead_code, unreachable_pub, reason = "the index uses all of it")]
#[path = "../../index/src/local/combiner.rs"]
mod combiner;
#[allow(dead_code, reason = "the index uses all of it")]
#[path = "../../engines/src/dex/cache/cooling_map.rs"]
mod cooling_map;
#[allow(dead_code, reason = "the index uses all of it")]
#[path = "../../engines/src/dex/cache/cooling_queue.rs"]
mod cooling_queue;
#[allow(dead_code, unreachable_pub, reason = "the index uses all of it")]
#[path = "../../index/src/local/delegation.rs"]
mod delegation;
#[allow(dead_code, reason = "the index uses all of it")]
#[path = "../../engines/src/dex/cache/free_frames.rs"]
mod free_frames;
#[allow(dead_code, unreachable_pub, reason = "the index uses all of it")]
#[path = "../../index/src/local/latch.rs"]
mod latch;
#[allow(dead_code, reason = "the index uses all of it")]
#[path = "../../engines/src/dex/cache/mapping_table.rs"]
mod mapping_table;
#[allow(dead_code, reason = "the index uses all of it")]
#[path = "../../index/src/compute/ownership/op_counters.rs"]
mod op_counters;
#[allow(dead_code, unreachable_pub, reason = "the index uses all of it")]
#[path = "../../index/src/local/parking_lot.rs"]
mod parking_lot;

use std::sync::Arc;

use combiner::{Combiner, Ended};
use cooling_map::CoolingMap;
use delegation::{Delegation, Turn};
use free_frames::FreeFrames;
use latch::Latch;
use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::thread;
use mapping_table::{Mapping, MappingTable};
use op_counters::OpCounters;
use parking_lot::ParkingLot;

/// An address that is worked on.
const ADDR: u64 = 64;
/// A reader of an `OffS` mark, in both halves of its number.
const READER: u32 = 1 | 1 << 16;

/// Two words under a latch, always equal but while they are written.
struct Pair {
    latch: Latch,
    words: [AtomicU64; 2],
}

impl Pair {
    fn new(latch: Latch) -> Arc<Self> {
        Arc::new(Pair { latch, words: [AtomicU64::new(0), AtomicU64::new(0)] })
    }

    fn read(&self) -> Option<u64> {
        let version = self.latch.sample()?;
        let words = [0, 1].map(|at: usize| self.words[at].load(Ordering::Relaxed));
        if !self.latch.validate(version) {
            return None;
        }
        assert_eq!(words[0], words[1], "a validated read is of one moment");
        Some(words[0])
    }

    fn write(&self, value: u64) {
        for word in &self.words {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// INV-LATCH-1: by a writer that takes X at once, and by one that takes SX first.
#[test]
fn validated_reads_are_of_one_moment() {
    for via_sx in [false, true] {
        loom::model(move || {
            let pair = Pair::new(Latch::new());
            let writer = {
                let pair = Arc::clone(&pair);
                thread::spawn(move || {
                    let version = pair.latch.sample().unwrap();
                    if via_sx {
                        assert!(pair.latch.try_sx(version));
                        pair.latch.sx_to_x();
                    } else {
                        assert!(pair.latch.try_x(version));
                    }
                    pair.write(1);
                    pair.latch.release_x();
                })
            };
            let _ = pair.read();
            writer.join().unwrap();
            assert_eq!(pair.read(), Some(1));
        });
    }
}

/// INV-LATCH-2.
#[test]
fn readers_of_a_recycled_frame_notice() {
    loom::model(|| {
        let pair = Pair::new(Latch::new());
        let owner = {
            let pair = Arc::clone(&pair);
            thread::spawn(move || {
                let version = pair.latch.sample().unwrap();
                assert!(pair.latch.try_x(version));
                pair.latch.x_to_dead();
                pair.latch.begin_filling();
                pair.write(7);
                pair.latch.revive();
            })
        };
        let _ = pair.read();
        owner.join().unwrap();
        assert_eq!(pair.read(), Some(7));
    });
}

/// The same where one thread evicts and another, to which a list of free frames hands the frame, fills it.
#[test]
fn readers_of_a_frame_that_another_fills_notice() {
    loom::model(|| {
        let pair = Pair::new(Latch::new());
        let free = Arc::new(Mutex::new(false));
        let evicts = {
            let (pair, free) = (Arc::clone(&pair), Arc::clone(&free));
            thread::spawn(move || {
                let version = pair.latch.sample().unwrap();
                assert!(pair.latch.try_x(version));
                pair.latch.x_to_dead();
                *free.lock().unwrap() = true;
            })
        };
        let fills = {
            let (pair, free) = (Arc::clone(&pair), Arc::clone(&free));
            thread::spawn(move || {
                if std::mem::take(&mut *free.lock().unwrap()) {
                    pair.latch.begin_filling();
                    pair.write(7);
                    pair.latch.revive();
                }
            })
        };
        let _ = pair.read();
        evicts.join().unwrap();
        fills.join().unwrap();
        let filled = !*free.lock().unwrap();
        assert_eq!(pair.read(), filled.then_some(7));
    });
}

#[test]
fn one_writer_at_a_time() {
    loom::model(|| {
        let pair = Pair::new(Latch::new());
        let add = |pair: &Pair, via_sx: bool| {
            let Some(version) = pair.latch.sample() else { return 0 };
            if via_sx {
                if !pair.latch.try_sx(version) {
                    return 0;
                }
                pair.latch.sx_to_x();
            } else if !pair.latch.try_x(version) {
                return 0;
            }
            pair.write(pair.words[0].load(Ordering::Relaxed) + 1);
            pair.latch.release_x();
            1
        };
        let other = {
            let pair = Arc::clone(&pair);
            thread::spawn(move || add(&pair, true))
        };
        let mine = add(&pair, false);
        let both = mine + other.join().unwrap();
        assert!(both >= 1);
        assert_eq!(pair.read(), Some(both));
    });
}

#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let lot = Arc::new(ParkingLot::new(1));
        let over = Arc::new(AtomicUsize::new(0));
        let other = {
            let (lot, over) = (Arc::clone(&lot), Arc::clone(&over));
            thread::spawn(move || {
                over.store(1, Ordering::Release);
                lot.unpark(9);
            })
        };
        let seen = Arc::clone(&over);
        // Loom reports a deadlock if the waker is never called.
        loom::future::block_on(lot.park(9, move || seen.load(Ordering::Acquire) == 1));
        other.join().unwrap();
        assert_eq!(lot.waiting(), 0);
    });
}

/// True once an interleaving had work done by another thread.
static COMBINED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// A latch, what is under it, and who waits for it.
struct Hot {
    latch: Latch,
    sum: AtomicU64,
    combiner: Combiner<u64, u64>,
    lot: ParkingLot,
}

impl Hot {
    /// Adds to the sum under the latch, or has its holder do it; the sum after that.
    fn add(&self, number: u64) -> u64 {
        loop {
            let taken = self.latch.sample().is_some_and(|version| self.latch.try_x(version));
            if taken {
                let add = |number| {
                    let sum = self.sum.load(Ordering::Relaxed) + number;
                    self.sum.store(sum, Ordering::Relaxed);
                    sum
                };
                let sum = add(number);
                for taken in self.combiner.take(9, 8) {
                    COMBINED.store(true, std::sync::atomic::Ordering::Relaxed);
                    self.combiner.answer(9, &taken, Some(add(taken.work)));
                }
                self.latch.release_x();
                self.lot.unpark(9);
                return sum;
            }
            let mut left = self.combiner.leave(9, number);
            loop {
                let is_over = || left.is_over(|| self.latch.is_held());
                loom::future::block_on(self.lot.park(9, is_over));
                match left.end() {
                    Ended::Done(sum) => return sum,
                    Ended::Back => break,
                    Ended::NotYet => {}
                }
            }
        }
    }
}

/// INV-COMBINE-1 and -2: each piece of work is done once, by one or the other, its outcome is its own, and
/// nobody waits for ever.
#[test]
fn work_left_to_a_holder_is_done_once() {
    loom::model(|| {
        let hot = Arc::new(Hot {
            latch: Latch::new(),
            sum: AtomicU64::new(0),
            combiner: Combiner::new(1),
            lot: ParkingLot::new(1),
        });
        let other = {
            let hot = Arc::clone(&hot);
            thread::spawn(move || hot.add(10))
        };
        let mine = hot.add(1);
        let theirs = other.join().unwrap();
        assert!([(1, 11), (11, 10)].contains(&(mine, theirs)), "{mine} {theirs}");
        assert_eq!(hot.sum.load(Ordering::Relaxed), 11);
        assert!(!hot.combiner.has_work(9) && hot.combiner.take(9, 1).is_empty());
    });
    assert!(COMBINED.load(std::sync::atomic::Ordering::Relaxed));
}

/// True once an interleaving had a change done by another thread.
static DELEGATED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// A sum that only the leader of a key changes; loom reports two leaders at a time.
struct Led {
    sum: UnsafeCell<u64>,
    queue: Arc<Delegation<u64, u64>>,
}

impl Led {
    /// Adds to the sum, or has the leader do it; the sum after that. A leader that is `lost` drops the lead first.
    fn add(&self, number: u64, is_lost: bool) -> u64 {
        let mut is_lost = is_lost;
        loop {
            let lead = self.queue.try_lead(b"k");
            let mut lead = match lead
                .map_or_else(|| loom::future::block_on(self.queue.join(b"k", number)), Turn::Lead)
            {
                Turn::Lead(lead) => lead,
                Turn::Done(sum) => return sum,
                Turn::Back => continue,
            };
            if std::mem::take(&mut is_lost) {
                // Cancelled before it has begun: nothing of what it has taken is done.
                lead.close();
                continue;
            }
            let add = |number| {
                self.sum.with_mut(|sum| {
                    // SAFETY: the leader alone reads and changes it, and loom checks that.
                    unsafe {
                        *sum += number;
                        *sum
                    }
                })
            };
            let sum = add(number);
            lead.seal(
                || 0,
                |number| {
                    DELEGATED.store(true, std::sync::atomic::Ordering::Relaxed);
                    Some(add(*number))
                },
            );
            lead.acknowledge();
            return sum;
        }
    }
}

/// INV-DELEGATE-1 to -3: each change is done once, by its owner or its leader, its answer is its own, one leads at
/// a time, and nobody waits for ever; also when a leader is dropped.
#[test]
fn a_change_is_done_once_by_its_owner_or_its_leader() {
    for is_lost in [false, true] {
        loom::model(move || {
            let queue = Delegation::of_changes(1, 8);
            let led = Arc::new(Led { sum: UnsafeCell::new(0), queue });
            let other = {
                let led = Arc::clone(&led);
                thread::spawn(move || led.add(10, false))
            };
            let mine = led.add(1, is_lost);
            let theirs = other.join().unwrap();
            assert!([(1, 11), (11, 10)].contains(&(mine, theirs)), "{mine} {theirs}");
            assert!(led.queue.is_idle());
        });
    }
    assert!(DELEGATED.load(std::sync::atomic::Ordering::Relaxed));
}

/// A get never has the answer of a READ that began before it: the value that it returns is not older than what was
/// stored when it began.
#[test]
fn a_delegated_get_is_not_older_than_itself() {
    loom::model(|| {
        let queue: Arc<Delegation<(), u64>> = Delegation::of_reads(1, 0);
        let stored = Arc::new(AtomicU64::new(0));
        let get = |queue: &Arc<Delegation<(), u64>>, stored: &AtomicU64| loop {
            let least = stored.load(Ordering::SeqCst);
            let lead = queue.try_lead(b"k");
            let found = match lead
                .map_or_else(|| loom::future::block_on(queue.join(b"k", ())), Turn::Lead)
            {
                Turn::Lead(mut lead) => {
                    lead.close();
                    let found = stored.load(Ordering::SeqCst);
                    lead.answer(|| found);
                    found
                }
                Turn::Done(found) => found,
                Turn::Back => continue,
            };
            assert!(found >= least, "{found} was replaced before {least} was seen");
            break;
        };
        let other = {
            let (queue, stored) = (Arc::clone(&queue), Arc::clone(&stored));
            thread::spawn(move || get(&queue, &stored))
        };
        stored.store(1, Ordering::SeqCst);
        get(&queue, &stored);
        other.join().unwrap();
        assert!(queue.is_idle());
    });
}

/// INV-DEX-COOL-1, of the buckets and of the single queue.
#[test]
fn promotion_and_eviction_do_not_both_get_a_frame() {
    for single_queue in [false, true] {
        loom::model(move || {
            let map = Arc::new(CoolingMap::new(8, 0.1, single_queue));
            assert_eq!(map.insert(ADDR, 3), None);
            let evict = {
                let map = Arc::clone(&map);
                thread::spawn(move || map.take_oldest(0).is_some())
            };
            let promoted = map.remove(ADDR, 3);
            assert!(promoted ^ evict.join().unwrap(), "exactly one");
        });
    }
}

/// INV-DEX-FREE-1: of two workers one gets the last frame that was never used, and what one of them
/// gives back comes out once.
#[test]
fn a_free_frame_comes_out_once() {
    let mut model = loom::model::Builder::new();
    // A worker in vain looks into all 64 lists.
    model.preemption_bound = Some(2);
    model.check(|| {
        let free = Arc::new(FreeFrames::new(1, 0));
        let other = {
            let free = Arc::clone(&free);
            thread::spawn(move || {
                let got = free.pop(1);
                got.inspect(|&frame| free.push(1, frame)).is_some()
            })
        };
        let mine = free.pop(2);
        let gave_back = other.join().unwrap();
        assert!(mine.is_some() || gave_back, "one of them gets it");
        assert_eq!(free.pop(3).is_some(), mine.is_none(), "it is in one place");
        assert_eq!(free.pop(3), None);
    });
}

/// The node that a mark gives the right to work on; loom sees who does so beside another.
struct Node {
    map: MappingTable,
    lot: ParkingLot,
    remote: UnsafeCell<()>,
    frame: UnsafeCell<()>,
}

impl Node {
    fn new() -> Arc<Self> {
        Arc::new(Node {
            map: MappingTable::new(4),
            lot: ParkingLot::new(1),
            remote: UnsafeCell::new(()),
            frame: UnsafeCell::new(()),
        })
    }

    /// As `Cache::wait_for_node`.
    fn wait(&self) {
        let is_over = || matches!(self.map.get(ADDR), None | Some(Mapping::Resident(_)));
        loom::future::block_on(self.lot.park(ADDR, is_over));
    }

    /// Ends a mark that its holder has alone.
    fn end(&self, mark: Mapping, to: Option<Mapping>) {
        assert!(self.map.exchange(ADDR, Some(mark), to), "INV-DEX-MAP-2");
        self.lot.unpark(ADDR);
    }

    /// As a miss that is kept: reads the node into its frame, or waits until that is there. Whether
    /// it was this one that read it.
    fn load(&self) -> bool {
        loop {
            match self.map.claim(ADDR, Mapping::Io) {
                Ok(()) => {
                    self.remote.with(|_| ());
                    self.frame.with_mut(|_| ());
                    self.end(Mapping::Io, Some(Mapping::Resident(5)));
                    return true;
                }
                Err(Mapping::Resident(frame)) => {
                    assert_eq!(frame, 5);
                    self.frame.with(|_| ());
                    return false;
                }
                Err(_) => self.wait(),
            }
        }
    }

    /// As a change at a memory server, or a streamed one: alone with what is remote.
    fn change(&self, mark: Mapping) -> bool {
        loop {
            match self.map.claim(ADDR, mark) {
                Ok(()) => {
                    self.remote.with_mut(|_| ());
                    self.end(mark, None);
                    return true;
                }
                Err(Mapping::Resident(_)) => return false,
                Err(_) => self.wait(),
            }
        }
    }

    /// As gets at a memory server: the first one marks, others join, the last one takes the mark away.
    fn get_there(&self) -> bool {
        loop {
            let joined = match self.map.claim(ADDR, Mapping::OffS(READER)) {
                Ok(()) => true,
                Err(Mapping::OffS(count)) => {
                    let to = Mapping::OffS(count + READER);
                    self.map.exchange(ADDR, Some(Mapping::OffS(count)), Some(to))
                }
                Err(Mapping::Resident(_)) => return false,
                Err(_) => false,
            };
            if joined {
                break;
            }
            self.wait();
        }
        self.remote.with(|_| ());
        loop {
            let Some(Mapping::OffS(count)) = self.map.get(ADDR) else { panic!("INV-DEX-MAP-2") };
            let left = (count & 0xffff > 1).then(|| Mapping::OffS(count - 1));
            if self.map.exchange(ADDR, Some(Mapping::OffS(count)), left) {
                break;
            }
        }
        self.lot.unpark(ADDR);
        true
    }
}

/// INV-DEX-IO and INV-DEX-MAP-2: of two that miss a node one reads it, and both find it in its frame.
#[test]
fn one_of_two_reads_a_node() {
    loom::model(|| {
        let node = Node::new();
        let other = {
            let node = Arc::clone(&node);
            thread::spawn(move || node.load())
        };
        let mine = node.load();
        assert!(mine ^ other.join().unwrap(), "one READ");
        assert_eq!(node.map.get(ADDR), Some(Mapping::Resident(5)));
    });
}

/// A change of a remote node, by a WRITE or by a memory server, has the node to itself.
#[test]
fn a_change_excludes_a_miss_and_another_change() {
    for marks in [[Mapping::Io, Mapping::OffX], [Mapping::OffX, Mapping::OffX]] {
        loom::model(move || {
            let node = Node::new();
            let other = {
                let node = Arc::clone(&node);
                thread::spawn(move || node.change(marks[0]))
            };
            assert!(node.change(marks[1]) && other.join().unwrap());
            assert_eq!(node.map.get(ADDR), None);
        });
    }
    loom::model(|| {
        let node = Node::new();
        let other = {
            let node = Arc::clone(&node);
            thread::spawn(move || node.change(Mapping::OffX))
        };
        assert!(node.load(), "nobody else does");
        other.join().unwrap();
        assert_eq!(node.map.get(ADDR), Some(Mapping::Resident(5)));
    });
}

/// INV-DEX-OFF-4: gets at a memory server share a mark, which goes with the last of them; a change
/// waits for that.
#[test]
fn gets_share_a_mark_that_changes_wait_for() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let node = Node::new();
        let gets = [0, 1].map(|_| {
            let node = Arc::clone(&node);
            thread::spawn(move || node.get_there())
        });
        assert!(node.change(Mapping::OffX));
        assert!(gets.into_iter().all(|get| get.join().unwrap()));
        assert_eq!(node.map.get(ADDR), None, "the mark is gone");
    });
}

/// INV-DEX-MAP-1: who finds a node Resident in a Cooling frame and takes that out of its bucket finds the
/// node in it, though another evicts it meanwhile, fills the frame with another node and lets that cool.
#[test]
fn a_promoted_frame_holds_the_node() {
    const OTHER: u64 = 128;
    loom::model(|| {
        let map = Arc::new(MappingTable::new(4));
        let cooling = Arc::new(CoolingMap::new(8, 0.1, false));
        // The content of frame 5.
        let holds = Arc::new(AtomicU64::new(ADDR));
        assert_eq!(map.claim(ADDR, Mapping::Resident(5)), Ok(()));
        assert_eq!(cooling.insert(ADDR, 5), None);
        let evicts = {
            let (map, cooling, holds) =
                (Arc::clone(&map), Arc::clone(&cooling), Arc::clone(&holds));
            thread::spawn(move || {
                let Some(frame) = cooling.take_oldest(0) else { return false };
                assert!(map.exchange(ADDR, Some(Mapping::Resident(frame)), None), "INV-DEX-MAP-1");
                assert_eq!(map.claim(OTHER, Mapping::Io), Ok(()));
                holds.store(OTHER, Ordering::Relaxed);
                assert!(map.exchange(OTHER, Some(Mapping::Io), Some(Mapping::Resident(frame))));
                assert_eq!(cooling.insert(OTHER, frame), None);
                true
            })
        };
        let mut promoted = false;
        if let Some(entry) = map.get(ADDR) {
            assert_eq!(entry, Mapping::Resident(5));
            promoted = cooling.remove(ADDR, 5);
        }
        if promoted {
            assert_eq!(holds.load(Ordering::Relaxed), ADDR);
        }
        assert!(promoted ^ evicts.join().unwrap());
        let now = if promoted { ADDR } else { OTHER };
        assert_eq!(map.entries(), [(now, Mapping::Resident(5))]);
    });
}

/// Entries that share a stripe are found while others come and go beside them, move into gaps, and the
/// stripe grows.
#[test]
fn an_entry_stays_while_its_stripe_moves() {
    const FEW: u64 = 8;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let map = Arc::new(MappingTable::new(4));
        for node in 1..FEW - 1 {
            assert_eq!(map.claim(node * ADDR, Mapping::Resident(node as u32)), Ok(()));
        }
        let other = {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                assert_eq!(map.claim(FEW * ADDR, Mapping::Io), Ok(()), "the stripe grows");
                assert!(map.exchange(ADDR, Some(Mapping::Resident(1)), None), "a gap is closed");
                assert!(map.exchange(FEW * ADDR, Some(Mapping::Io), None));
            })
        };
        for node in 2..4 {
            assert_eq!(map.get(node * ADDR), Some(Mapping::Resident(node as u32)));
        }
        assert!(map.exchange(2 * ADDR, Some(Mapping::Resident(2)), None));
        other.join().unwrap();
        assert_eq!((map.get(ADDR), map.get(2 * ADDR), map.get(FEW * ADDR)), (None, None, None));
        assert_eq!(map.entries().len() as u64, FEW - 4);
    });
}

/// A range of one compute server: operations on it, and a move that gives it away. View 0 has it open, the
/// next has it closed.
struct Guarded {
    counters: OpCounters,
    /// The data that operations may touch while the range is open, and the mover once it has drained them.
    range: UnsafeCell<u32>,
}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Guarded { counters: OpCounters::new(), range: UnsafeCell::new(0) })
    }

    /// An operation of a session; whether the range was open.
    fn operate(&self, session: u32) -> bool {
        loop {
            let state = self.counters.state();
            if state.view() > 0 {
                return false;
            }
            if let Some((entry, _)) = self.counters.enter(state, session) {
                self.range.with(|range| {
                    // SAFETY: loom checks that nobody writes meanwhile.
                    let _ = unsafe { *range };
                });
                self.counters.leave(&entry);
                return true;
            }
        }
    }

    /// Closes the range, drains `turns` times, and changes what operations must not see any more.
    fn give(&self, turns: usize, is_empty: impl Fn(&OpCounters, usize) -> bool) {
        self.counters.publish();
        for _ in 0..turns {
            let generation = self.counters.flip();
            while !is_empty(&self.counters, generation) {
                thread::yield_now();
            }
        }
        self.range.with_mut(|range| {
            // SAFETY: loom checks that nobody reads meanwhile.
            unsafe { *range += 1 };
        });
    }
}

/// INV-COMPUTE-GUARD-1 and 2: operations that were let in are out when a drain ends, what they did happens before,
/// and none is let into the closed range after.
#[test]
fn a_drain_waits_for_the_operations_that_were_let_in() {
    loom::model(|| {
        let guarded = Guarded::new();
        let operates = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.operate(0))
        };
        guarded.give(1, OpCounters::is_empty);
        assert!(!guarded.operate(0), "the range is closed");
        operates.join().unwrap();
        assert!(guarded.counters.is_empty(0) && guarded.counters.is_empty(1));
    });
}

/// INV-COMPUTE-GUARD-2: a task that an operation leaves behind is waited for as well, on whichever side of the
/// flip it begins.
#[test]
fn a_drain_waits_for_the_tasks_that_operations_leave() {
    loom::model(|| {
        let guarded = Guarded::new();
        let state = guarded.counters.state();
        let (operation, _) = guarded.counters.enter(state, 0).unwrap();
        let task = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || {
                let task = guarded.counters.enter_task(0);
                guarded.counters.leave(&operation);
                guarded.range.with(|range| {
                    // SAFETY: loom checks that nobody writes meanwhile.
                    let _ = unsafe { *range };
                });
                guarded.counters.leave(&task);
            })
        };
        guarded.give(2, OpCounters::is_empty);
        task.join().unwrap();
    });
}

/// The counts of operations do not miss one, whatever is drained meanwhile.
#[test]
fn operations_are_counted_once() {
    loom::model(|| {
        let guarded = Guarded::new();
        let other = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.operate(0))
        };
        let generation = guarded.counters.flip();
        while !guarded.counters.is_empty(generation) {
            thread::yield_now();
        }
        assert!(guarded.operate(0) && other.join().unwrap());
        assert_eq!(guarded.counters.entered(), 2);
    });
}

/// The models see an ordering that is too weak: a drain that loads the count, and does not change it, may
/// miss an operation that is just entering.
#[test]
#[should_panic]
fn a_drain_by_a_load_is_caught() {
    loom::model(|| {
        let guarded = Guarded::new();
        let operates = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.operate(0))
        };
        guarded.give(1, OpCounters::is_empty_by_load);
        operates.join().unwrap();
    });
}
