//! Shuttle models: interleavings of larger protocols, and of those that need sequential consistency.
//!
//! See the crate's page.
#![allow(clippy::unwrap_used)]

/// Stands in the modelled modules for the standard library's.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicU64, Ordering, fence};
    pub(crate) use shuttle::sync::{Mutex, atomic};
}

#[allow(dead_code, unreachable_pub, reason = "the bench uses all of it, and makes it public")]
#[path = "../../bench/src/item_space.rs"]
mod item_space;
#[allow(dead_code, unreachable_pub, reason = "the index uses all of it")]
#[path = "../../index/src/local/latch.rs"]
mod latch;
#[allow(dead_code, reason = "the pool uses all of it")]
#[path = "../../pool/src/pins.rs"]
mod pins;

use std::sync::Arc;

use item_space::ItemSpace;
use latch::Latch;
use pins::{PinGuard, PinSlots, Pins, UNPINNED, pin_at};
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use shuttle::thread;

/// Runs through all interleavings.
fn all(model: impl Fn() + Send + Sync + 'static) {
    shuttle::check_dfs(model, None);
}

/// Runs through random interleavings from a fixed seed; `FARLEAF_SOAK=n` through n times as many.
fn some(model: impl Fn() + Send + Sync + 'static) {
    let soak = std::env::var("FARLEAF_SOAK").ok().and_then(|soak| soak.parse().ok()).unwrap_or(1);
    let scheduler = shuttle::scheduler::RandomScheduler::new_from_seed(1, 5_000 * soak);
    shuttle::Runner::new(scheduler, shuttle::Config::new()).run(model);
}

fn member() -> (Arc<Pins>, Arc<AtomicU64>) {
    let pins = Pins::new(1);
    pins.enable(0);
    (Arc::new(pins), Arc::new(AtomicU64::new(5)))
}

/// INV-PIN-1 and INV-EPOCH-1: what a tick announces is not above a pin that is visible by then. Another
/// tick moves the view on meanwhile.
#[test]
fn an_announcement_is_not_above_a_pin() {
    // All interleavings of three threads take most of a minute.
    some(|| {
        let (pins, view) = member();
        let announced = Arc::new(AtomicU64::new(0));
        let tick = {
            let (pins, view) = (Arc::clone(&pins), Arc::clone(&view));
            let announced = Arc::clone(&announced);
            thread::spawn(move || announced.store(pins.announceable(&view), SeqCst))
        };
        let other = {
            let view = Arc::clone(&view);
            thread::spawn(move || {
                view.fetch_max(6, SeqCst);
            })
        };
        let slots = PinSlots::default();
        let slot = slots.take(pins.operations(0), &view);
        let pin = pins.operations(0)[slot].load(SeqCst);
        assert!(announced.load(SeqCst) <= pin, "announced above the pin {pin}");
        tick.join().unwrap();
        other.join().unwrap();
        assert!(announced.load(SeqCst) <= pin, "announced above the pin {pin}");
        slots.release(pins.operations(0), slot);
        assert_eq!(pins.least(), UNPINNED);
    });
}

/// INV-EPOCH-4: an operation that begins while a tick takes its member for idle is seen by the tick,
/// or sees that the member is not announced live.
#[test]
fn nobody_begins_unseen_by_who_goes_idle() {
    all(|| {
        let (pins, view) = member();
        let live = Arc::new(AtomicBool::new(true));
        let tick = {
            let (pins, live) = (Arc::clone(&pins), Arc::clone(&live));
            thread::spawn(move || pins.try_idle(&live))
        };
        let slots = PinSlots::default();
        slots.take(pins.operations(0), &view);
        let saw_live = live.load(SeqCst);
        let is_idle = tick.join().unwrap();
        assert!(!(is_idle && saw_live), "begun in an idle member without a word");
        assert_eq!(live.load(SeqCst), !is_idle);
    });
}

/// INV-PIN-2: the epoch that a held task needs is never out of sight, while pins of the session are
/// taken, doubled and dropped. It once was: the second pin could stand in front of the first.
#[test]
fn a_doubled_pin_is_never_out_of_sight() {
    all(|| {
        let (pins, view) = member();
        let slots = PinSlots::default();
        let of = pins.operations(0);
        let first = slots.take(of, &view);
        let second = slots.take(of, &view);
        slots.release(of, first);
        view.store(6, SeqCst);
        let tick = {
            let (pins, view) = (Arc::clone(&pins), Arc::clone(&view));
            thread::spawn(move || assert_eq!(pins.announceable(&view), 5))
        };
        // The operation hands over to a task and is dropped; so does that task.
        let held = slots.double(of, second);
        slots.release(of, second);
        let again = slots.double(of, held);
        slots.release(of, held);
        tick.join().unwrap();
        assert_eq!(pins.least(), 5);
        slots.release(of, again);
        assert_eq!(pins.least(), UNPINNED);
    });
}

/// A tick that frees pins its session's reclaim pin while another goes idle.
#[test]
fn reclaiming_keeps_its_member_live() {
    all(|| {
        let (pins, view) = member();
        let live = Arc::new(AtomicBool::new(true));
        let tick = {
            let (pins, live) = (Arc::clone(&pins), Arc::clone(&live));
            thread::spawn(move || pins.try_idle(&live))
        };
        pin_at(pins.reclaim(0), &view);
        let saw_live = live.load(SeqCst);
        let pinned = PinGuard(pins.reclaim(0));
        assert!(!(tick.join().unwrap() && saw_live));
        drop(pinned);
        assert_eq!(pins.least(), UNPINNED);
    });
}

/// INV-SPACE-1 and INV-SPACE-2, with a window that is soon too small.
#[test]
fn the_frontier_passes_acknowledged_items_alone() {
    some(|| {
        const EACH: usize = 3;
        let space = Arc::new(ItemSpace::with_window(0, None, 2));
        let done: Arc<Vec<AtomicBool>> = Arc::new((0..9).map(|_| AtomicBool::new(false)).collect());
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let (space, done) = (Arc::clone(&space), Arc::clone(&done));
                thread::spawn(move || {
                    let mut items: Vec<u64> = (0..EACH).filter_map(|_| space.claim()).collect();
                    items.reverse();
                    for item in items {
                        done[item as usize].store(true, SeqCst);
                        space.acknowledge(item);
                        let readable = space.readable() as usize;
                        assert!(done[..readable].iter().all(|done| done.load(SeqCst)));
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        assert_eq!(space.readable(), 9, "the frontier stays behind");
    });
}

/// A reader that announces itself (a pin on a frame) and then finds the latch quiet, and a writer that takes
/// the latch and then looks for announcements, never miss each other.
#[test]
fn a_pinned_frame_and_a_writer_do_not_miss_each_other() {
    for via_sx in [false, true] {
        all(move || {
            let latch = Arc::new(Latch::new());
            let pins = Arc::new(AtomicU64::new(0));
            let version = latch.sample().unwrap();
            let writer = {
                let (latch, pins) = (Arc::clone(&latch), Arc::clone(&pins));
                thread::spawn(move || {
                    let taken = if via_sx { latch.try_sx(version) } else { latch.try_x(version) };
                    taken && pins.load(SeqCst) == 0
                })
            };
            pins.fetch_add(1, SeqCst);
            let pinned = latch.is_quiet_at(version);
            let alone = writer.join().unwrap();
            assert!(!(pinned && alone), "both believe that they are alone");
        });
    }
}
