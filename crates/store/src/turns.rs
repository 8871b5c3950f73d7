//! Turns: one thread or task at a time opens a table of a name, or takes it out of the list of opened ones.
//!
//! - `INV-TURN-1` From its READ of a table's root until the table is in the list, an opener has the name's turn. A
//!   dropper takes the turn to take the table out of the list, once the root is gone. So a store opens each table once.
//!   If an opener has read the root of a table that this store drops, it finds the table in the list, marked as
//!   dropped, and opens nothing.
//!
//! A turn is held across remote operations only, and never while its holder waits for other operations of the store to
//! end. So each turn ends.

use std::collections::BTreeSet;
use std::sync::Mutex;

use farleaf_index::local::ParkingLot;
use farleaf_index::sync::lock;

/// The key under which all wait.
const LOT_KEY: u64 = 0;

/// The names whose turn is taken.
#[derive(Debug)]
pub(crate) struct Turns {
    taken: Mutex<BTreeSet<String>>,
    lot: ParkingLot,
}

impl Default for Turns {
    fn default() -> Self {
        Turns { taken: Mutex::default(), lot: ParkingLot::new(1) }
    }
}

impl Turns {
    /// Waits for the turn of that name.
    pub(crate) async fn take(&self, name: &str) -> Turn<'_> {
        while !lock(&self.taken).insert(name.to_owned()) {
            self.lot.park(LOT_KEY, || !lock(&self.taken).contains(name)).await;
        }
        Turn { turns: self, name: name.to_owned() }
    }
}

/// The turn of a name. Dropped, the next one has it.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    name: String,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.turns.taken).remove(&self.name);
        self.turns.lot.unpark(LOT_KEY);
    }
}
