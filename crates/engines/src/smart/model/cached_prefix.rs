//! Cached pointers: an operation goes from one cached node to the next by the address in a slot.
//!
//! The root leads by `p` and by `q` to a middle node each, and that to a bottom node. All nodes look alike but for the
//! bytes that lead to them. Nodes are replaced; their addresses are used again from two epochs on; an object may lie
//! there that nobody has linked. A client remembers what it READs and proves the bottom node by its cache alone.

use super::{Model, explore};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A cached node counts for the slot that leads to its address, if it was born by the slot's `c`.
    BirthForPrefix,
    /// A node that is READ by a cached slot counts whatever its birth.
    NoBirth,
    /// Addresses are used again in the epoch in which their object was retired.
    ReuseSameEpoch,
}

const ADDRS: usize = 6;
const EPOCH_LAST: u8 = 5;
const REPLACED_MAX: u8 = 2;

/// The object at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Object {
    birth: u8,
    /// 0 or 1: the prefix `p` or `q` of its keys.
    prefix: u8,
    /// The address of its child, if it is a middle node.
    child: u8,
    is_middle: bool,
    is_linked: bool,
    retired_at: u8,
    is_free: bool,
}

/// A client's memory of a middle node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    birth: u8,
    prefix: u8,
    child: u8,
    c: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    epoch: u8,
    objects: [Object; ADDRS],
    /// The root's slots, and what the client remembers of them, with `c`.
    root: [u8; 2],
    cached_root: ([u8; 2], u8),
    cached: [Option<Entry>; ADDRS],
    replaced: u8,
    made: u8,
    is_wrong: bool,
}

impl State {
    fn first() -> State {
        let object = |prefix, child, is_middle| Object {
            birth: 1,
            prefix,
            child,
            is_middle,
            is_linked: true,
            retired_at: 0,
            is_free: false,
        };
        let free = Object { is_linked: false, is_free: true, ..object(0, 0, false) };
        let objects = [
            object(0, 2, true),
            object(1, 3, true),
            object(0, 0, false),
            object(1, 0, false),
            free,
            free,
        ];
        State {
            epoch: 2,
            objects,
            root: [0, 1],
            cached_root: ([0, 1], 2),
            cached: [None; ADDRS],
            replaced: 0,
            made: 0,
            is_wrong: false,
        }
    }

    fn is_free(&self, at: usize, broken: Broken) -> bool {
        let object = self.objects[at];
        let wait = if broken == Broken::ReuseSameEpoch { 0 } else { 2 };
        object.is_free && (object.retired_at == 0 || object.retired_at + wait <= self.epoch)
    }

    /// The places at which a new object can lie; one stands for all that were never used.
    fn places(&self, broken: Broken) -> Vec<usize> {
        let mut places: Vec<usize> = (0..ADDRS).filter(|at| self.is_free(*at, broken)).collect();
        let is_new = |at: &usize| self.objects[*at].retired_at == 0;
        if let Some(first) = places.iter().copied().find(|at| is_new(at)) {
            places.retain(|at| !is_new(at) || *at == first);
        }
        places
    }

    /// Puts a copy of the node at `at` in its place.
    fn replaced(mut self, at: usize, to: usize) -> State {
        let old = self.objects[at];
        self.objects[to] = Object { birth: self.epoch, retired_at: 0, ..old };
        self.objects[at] =
            Object { is_linked: false, is_free: true, retired_at: self.epoch, ..old };
        let prefix = usize::from(old.prefix);
        if old.is_middle {
            self.root[prefix] = to as u8;
        } else {
            self.objects[usize::from(self.root[prefix])].child = to as u8;
        }
        self.replaced += 1;
        self
    }

    /// READs the middle node of a prefix by a fresh slot, and remembers it.
    fn remembered(mut self, prefix: usize) -> State {
        let at = usize::from(self.root[prefix]);
        let Object { birth, child, .. } = self.objects[at];
        self.cached[at] = Some(Entry { birth, prefix: prefix as u8, child, c: self.epoch });
        self
    }

    /// Proves a node that is READ at `at` by a slot cached at `c`.
    fn proves(&self, at: usize, c: u8, broken: Broken) -> bool {
        let object = self.objects[at];
        let born_by = match broken {
            Broken::NoBirth => u8::MAX,
            _ => c,
        };
        // A retired node is dead.
        !object.is_free && object.birth <= born_by
    }

    /// Goes by the cache for a key below `prefix`; sets the fault if what it proves is not on the way.
    fn looked_up(mut self, prefix: usize, broken: Broken) -> State {
        let (slots, c) = self.cached_root;
        let at = usize::from(slots[prefix]);
        let entry = self.cached[at].filter(|entry| match broken {
            Broken::BirthForPrefix => entry.birth <= c,
            _ => usize::from(entry.prefix) == prefix,
        });
        let (at, c) = match entry {
            Some(entry) => (usize::from(entry.child), entry.c),
            None => (at, c),
        };
        if self.proves(at, c, broken) {
            let object = self.objects[at];
            self.is_wrong |= !object.is_linked || usize::from(object.prefix) != prefix;
        }
        self
    }
}

impl Model for State {
    type Broken = Broken;

    fn next(self, broken: Broken) -> Vec<State> {
        let mut all = Vec::new();
        if self.is_wrong {
            return all;
        }
        if self.epoch < EPOCH_LAST {
            all.push(State { epoch: self.epoch + 1, ..self });
        }
        let places = self.places(broken);
        if self.replaced < REPLACED_MAX {
            let linked = (0..ADDRS).filter(|at| self.objects[*at].is_linked);
            all.extend(linked.flat_map(|at| places.iter().map(move |to| self.replaced(at, *to))));
        }
        if self.made == 0 {
            for at in &places {
                let mut next = self;
                let of = self.objects[*at];
                let birth = self.epoch;
                next.objects[*at] = Object { birth, is_free: false, is_linked: false, ..of };
                next.made = 1;
                all.push(next);
            }
        }
        all.push(State { cached_root: (self.root, self.epoch), ..self });
        for prefix in 0..2 {
            all.push(self.remembered(prefix));
            all.push(self.looked_up(prefix, broken));
        }
        all
    }

    fn fault(&self, _: Broken, _: bool) -> Option<&'static str> {
        self.is_wrong.then_some("a node that is not on the way was proven")
    }
}

#[test]
fn cached_nodes_prove_their_way_by_prefix_and_birth() {
    let (fault, states) = explore([State::first()], Broken::Nothing);
    println!("cached prefix: {states} states");
    assert_eq!(fault, None);
    assert!(states > 50_000, "{states} states");
    for broken in [Broken::BirthForPrefix, Broken::NoBirth, Broken::ReuseSameEpoch] {
        let (fault, states) = explore([State::first()], broken);
        println!("cached prefix, {broken:?}: {states} states until {fault:?}");
        assert!(fault.is_some(), "{broken:?} shows no fault in {states} states");
    }
}
