//! Repartitioning: moves ranges of keys between compute servers while clients use them.
//!
//! The giver of a range does nearly all of the move (`give`). The taker learns of the new map and
//! checks its cached nodes (`adopt`). Steps, of range X from A to B:
//!
//! 1. A writes the intent into the map. One move is under way at a time.
//! 2. A merges nothing from now on, and waits until no merge is under way.
//! 3. A splits leaves so that X's ends are fences, and visits the children of the inner nodes that
//!    will cross them, so that what a crash left half done there is done.
//! 4. A writes back what is dirty in X, children first, while operations go on; again as long as what has
//!    become dirty meanwhile is at most half of what was.
//! 5. A takes X's ends for bounds: nodes that it reads are shared if they cross one, and those that it
//!    has cached are written back and become shared.
//! 6. A closes X: operations on it wait. It drains its gate.
//! 7. A writes back what has become dirty since, and drops everything inside X from its cache.
//! 8. A puts the map with X given to B in place of the one with the intent: from here on X is B's.
//! 9. A opens the gate; who waited finds the key to be B's and goes there. A tells B, which adopts.
//!
//! - `INV-DEX-MOVE-1` When the map comes to name B as X's owner, A has nothing of X cached that is not
//!   shared, nothing of it is dirty, and no operation of A's on it is under way.
//! - `INV-DEX-MOVE-2` At every moment X has one owner, by the map. Up to step 8 the move can be called off
//!   by dropping the intent; what has been done till then only costs time.
//! - `INV-DEX-MOVE-3` The map's new bounds are given in step 8 only if the intent is still there. So a
//!   successor of a dead A or B that drops the intent ends the move.
//! - `INV-DEX-MOVE-4` A node that was cached as shared is taken for exclusive only once its image
//!   has been compared with remote memory, after the map gave all of its range to this compute server.

mod adopt;
mod balance;
mod calls;
mod give;
mod sweep;

pub use balance::{Balance, BalanceOptions, Balancer, Decision};
pub use give::MoveOptions;
pub(super) use give::Moving;
