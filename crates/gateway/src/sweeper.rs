//! Sweeper: removes expired records that no client meets, so that their memory comes back.
//!
//! One thread of the gateway walks the tables that clients have used, each by a share of its keys a second. The walk before has
//! counted a table's keys; during the first one, the keys met so far count. So a first walk is slow at its beginning, and
//! takes about twice as long as any other.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use farleaf::{Content, Table};

use crate::shared::Shared;

const EVERY: Duration = Duration::from_secs(1);
/// Keys of a table that are looked at in a second, at least.
const KEYS_LEAST: u64 = 100;
/// Keys that are looked at in one call, because their values are read.
const KEYS_AT_ONCE: u64 = 64;

/// The walk through a table.
#[derive(Debug, Default)]
struct Walk {
    /// The last key that was looked at; the next turn goes on behind it.
    last: Option<Vec<u8>>,
    /// Keys that this walk has looked at.
    looked: u64,
    /// Those that the whole walk before has looked at.
    known: u64,
}

impl Walk {
    /// Keys to look at in a turn.
    fn share(&self, percent: u32) -> u64 {
        let keys = self.known.max(self.looked);
        (keys * u64::from(percent) / 100).max(KEYS_LEAST)
    }

    /// Looks at the keys of one turn, as long as `goes_on`. At the end of the table the next turn begins anew.
    fn turn(
        &mut self,
        table: &Table,
        percent: u32,
        goes_on: impl Fn() -> bool,
    ) -> farleaf::Result<()> {
        let mut left = self.share(percent);
        while left > 0 && goes_on() {
            let from = self.last.take().map_or(Bound::Unbounded, Bound::Excluded);
            let range = (from, Bound::<Vec<u8>>::Unbounded);
            let swept = table.sweep_expired(range, left.min(KEYS_AT_ONCE) as usize)?;
            self.looked += swept.looked;
            left = left.saturating_sub(swept.looked.max(1));
            self.last = swept.last;
            if self.last.is_none() {
                (self.known, self.looked) = (self.looked, 0);
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Sweeps until the gateway stops, which wakes this thread.
pub(crate) fn run(shared: &Shared) {
    let percent = shared.options.sweep_percent;
    let mut walks: HashMap<String, Walk> = HashMap::new();
    let mut next = Instant::now() + EVERY;
    let goes_on = || !shared.stops.load(Ordering::SeqCst);
    while goes_on() {
        let rest = next.saturating_duration_since(Instant::now());
        if !rest.is_zero() {
            thread::park_timeout(rest);
            continue;
        }
        for table in shared.opened() {
            if table.info().content != Content::Records {
                continue;
            }
            let walk = walks.entry(table.name().to_owned()).or_default();
            if let Err(error) = walk.turn(&table, percent, goes_on) {
                // A table that was dropped, or a pool that is away: the next turn begins the walk anew.
                tracing::debug!(table = table.name(), %error, "cannot sweep a table");
                *walk = Walk::default();
            }
        }
        next = Instant::now() + EVERY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf::{Expiry, Farleaf, TableOptions};

    #[test]
    fn a_walk_looks_at_each_key_in_some_turns() {
        let db = Farleaf::open("mem:").expect("a store");
        let options = TableOptions::default().content(Content::Records);
        let table = db.create_table("t", options).expect("a table");
        table.insert_many((0..950).map(|at| (format!("{at:04}"), "stays"))).expect("room");
        for at in 0..50 {
            let gone = Expiry::In(Duration::from_millis(1));
            table.insert_with(format!("{:04}x", at * 19), b"gone".to_vec(), gone).expect("room");
        }
        thread::sleep(Duration::from_millis(5));
        let mut walk = Walk::default();
        let mut turns = 0;
        while walk.known == 0 {
            walk.turn(&table, 1, || true).expect("a sweep");
            turns += 1;
        }
        // A gateway that stops does not wait for the rest of a turn.
        let calls = std::cell::Cell::new(0);
        let mut stopped = Walk { known: 1_000_000, ..Walk::default() };
        let two_calls = || calls.replace(calls.get() + 1) < 2;
        stopped.turn(&table, 100, two_calls).expect("a sweep");
        assert_eq!(stopped.looked, 2 * KEYS_AT_ONCE);
        // The last one meets the end.
        assert_eq!((turns, walk.known, walk.looked), (11, 1_000, 0));
        assert_eq!(table.counters().get("expired_records"), 50);
        assert_eq!(walk.share(1), KEYS_LEAST);
        assert_eq!(walk.share(50), 500);
        assert_eq!(table.count(..).expect("a count"), 950);
    }
}
