//! Seen leaves: an operation READs a leaf by a cached slot, and then finds the leaf's address in the slot, or CASes
//! the slot from it.
//!
//! One slot of a node that stays. Leaves of other keys come and go there, and their addresses are used again two
//! epochs later; one that was never linked, at once. The operation must not take the key that it has seen for that of
//! another leaf.

use super::{Model, explore};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A leaf counts whatever its birth.
    NoBirth,
    /// A removed leaf counts.
    NoPresence,
    /// The operation has no pin, so the epoch moves on.
    NoPin,
}

const ADDRS: usize = 2;
const EPOCH_LAST: u8 = 6;
const MADE_MAX: u8 = 3;
const NONE: u8 = u8::MAX;

/// The words at an address; they stay after the leaf is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LeafWords {
    birth: u8,
    key: u8,
    is_present: bool,
    is_free: bool,
    /// The epoch in which it was retired; 0 if it was never linked.
    retired_at: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum LeafOp {
    Idle,
    Pinned { epoch: u8 },
    Seen { epoch: u8, key: u8 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    epoch: u8,
    leaves: [LeafWords; ADDRS],
    /// The address in the slot.
    slot: u8,
    made: u8,
    /// The slot as the operation's member has cached it, with `c`.
    cached: (u8, u8),
    op: LeafOp,
    is_wrong: bool,
}

impl State {
    fn first() -> State {
        let leaf = LeafWords { birth: 1, key: 0, is_present: true, is_free: false, retired_at: 0 };
        State {
            epoch: 1,
            leaves: [leaf, LeafWords { is_free: true, is_present: false, ..leaf }],
            slot: 0,
            made: 0,
            cached: (0, 1),
            op: LeafOp::Idle,
            is_wrong: false,
        }
    }

    fn with(mut self, at: usize, change: impl FnOnce(&mut LeafWords)) -> State {
        change(&mut self.leaves[at]);
        self
    }

    /// The steps of others.
    fn others(self) -> Vec<State> {
        let mut all = Vec::new();
        let linked = usize::from(self.slot);
        if self.slot != NONE {
            all.push(self.with(linked, |leaf| leaf.is_present = false));
            if !self.leaves[linked].is_present {
                let retired_at = self.epoch;
                let gone =
                    |leaf: &mut LeafWords| (leaf.is_free, leaf.retired_at) = (true, retired_at);
                all.push(State { slot: NONE, ..self.with(linked, gone) });
            }
        }
        for at in (0..ADDRS).filter(|at| *at != linked) {
            let leaf = self.leaves[at];
            if !leaf.is_free {
                // Linked, or given up.
                if self.slot == NONE {
                    all.push(State { slot: at as u8, ..self });
                }
                let given_up = |leaf: &mut LeafWords| (leaf.is_free, leaf.retired_at) = (true, 0);
                all.push(self.with(at, given_up));
                continue;
            }
            let is_reusable = leaf.retired_at == 0 || leaf.retired_at + 2 <= self.epoch;
            if is_reusable && self.made < MADE_MAX {
                let (birth, key) = (self.epoch, self.made + 1);
                let made =
                    LeafWords { birth, key, is_present: true, is_free: false, retired_at: 0 };
                all.push(State { made: key, ..self.with(at, |leaf| *leaf = made) });
            }
        }
        all
    }
}

impl Model for State {
    type Broken = Broken;

    fn next(self, broken: Broken) -> Vec<State> {
        if self.is_wrong {
            return Vec::new();
        }
        let mut all = self.others();
        let pinned = match self.op {
            LeafOp::Pinned { epoch } | LeafOp::Seen { epoch, .. } if broken != Broken::NoPin => {
                epoch
            }
            _ => u8::MAX - 1,
        };
        if self.epoch < EPOCH_LAST.min(pinned + 1) {
            all.push(State { epoch: self.epoch + 1, ..self });
        }
        match self.op {
            LeafOp::Idle => {
                all.push(State { cached: (self.slot, self.epoch), ..self });
                all.push(State { op: LeafOp::Pinned { epoch: self.epoch }, ..self });
            }
            LeafOp::Pinned { epoch } => {
                let (at, c) = self.cached;
                let op = match self.leaves.get(usize::from(at)) {
                    Some(leaf)
                        if (leaf.birth <= c || broken == Broken::NoBirth)
                            && (leaf.is_present || broken == Broken::NoPresence) =>
                    {
                        LeafOp::Seen { epoch, key: leaf.key }
                    }
                    _ => LeafOp::Idle,
                };
                all.push(State { op, ..self });
            }
            LeafOp::Seen { key, .. } => {
                let is_there = self.slot == self.cached.0;
                let is_wrong = is_there && self.leaves[usize::from(self.slot)].key != key;
                all.push(State { op: LeafOp::Idle, is_wrong, ..self });
            }
        }
        all
    }

    fn fault(&self, _: Broken, _: bool) -> Option<&'static str> {
        self.is_wrong.then_some("the slot leads to another leaf than was seen")
    }
}

#[test]
fn a_leaf_that_was_seen_is_the_one_that_its_slot_leads_to_afterwards() {
    let (fault, states) = explore([State::first()], Broken::Nothing);
    println!("seen leaf: {states} states");
    assert_eq!(fault, None);
    assert!(states > 1_000, "{states} states");
    for broken in [Broken::NoBirth, Broken::NoPresence, Broken::NoPin] {
        let (fault, states) = explore([State::first()], broken);
        println!("seen leaf, {broken:?}: {states} states until {fault:?}");
        assert!(fault.is_some(), "{broken:?} shows no fault in {states} states");
    }
}
