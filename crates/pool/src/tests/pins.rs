//! Pin tests: the least pin counts, and a second pin stands behind the first.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pins::{LAST_PIN, PinGuard, PinSlots, Pins, UNPINNED, pin_at};

#[test]
fn the_least_pin_counts() {
    let pins = Pins::new(3);
    let view = AtomicU64::new(7);
    pin_at(&pins.operations(2)[1], &view);
    assert_eq!(pins.least(), UNPINNED, "not enabled");
    pins.enable(2);
    assert_eq!(pins.least(), 7);
    view.store(9, Ordering::SeqCst);
    pin_at(pins.reclaim(0), &view);
    assert_eq!(pins.least(), 7);
    drop(PinGuard(&pins.operations(2)[1]));
    assert_eq!(pins.least(), 9);
    pins.recovery.store(3, Ordering::SeqCst);
    assert_eq!(pins.least(), 3);
    pins.count_begin(1);
    pins.count_begin(2);
    assert_eq!(pins.begun(), 2);
}

/// INV-PIN-2, which did not hold: the second pin of a held epoch could stand in front of the first,
/// where a tick on another thread had looked already; it then announced an epoch above the pin.
#[test]
fn a_second_pin_stands_behind_the_first() {
    let pins = Pins::new(1);
    pins.enable(0);
    let (view, slots, of) = (AtomicU64::new(5), PinSlots::default(), pins.operations(0));
    let (first, second) = (slots.take(of, &view), slots.take(of, &view));
    assert_eq!((first, second), (0, 1));
    slots.release(of, first);
    view.store(6, Ordering::SeqCst);
    assert_eq!(slots.double(of, second), 2, "0 is free, but in front");
    slots.release(of, second);
    assert_eq!(pins.least(), 5);
    assert_eq!(slots.double(of, 2), LAST_PIN);
    assert_eq!(slots.double(of, LAST_PIN), LAST_PIN, "shared by both");
    slots.release(of, 2);
    slots.release(of, LAST_PIN);
    assert_eq!(pins.least(), 5);
    slots.release(of, LAST_PIN);
    assert_eq!(pins.least(), UNPINNED);
}
