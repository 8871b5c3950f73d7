//! Collapse: a node that has lost its children leaves the tree beside inserts and cached readers.
//!
//! A parent's slot leads to a node with two slots, of keys 0 and 1. Key 0 has a leaf or not; that of key 1 was just
//! unlinked. Two clients find the node sparse and replace it, the second because its insert of key 1 meets the dead
//! node; a third gets key 1 by its cached copy. CASes of the parent's slot may lose their completions, done or not, and
//! the first client may die. After a collapse the insert splits the leaf of key 0, or takes the slot without a child.

use super::{Model, explore};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A client that may have won retires the node without a claim.
    RetiresUnclaimed,
    /// A client whose completion was lost leaves the node to others.
    LeavesLost,
    /// A client that has linked a copy retires the node without a claim.
    CopyUnclaimed,
    /// The node's words are not frozen.
    FreezesNothing,
    /// The word that takes the node's place comes from before the freezing.
    ChoosesUnfrozen,
    /// The reader takes a dead node for live.
    TrustsDead,
}

/// The child of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Child {
    None,
    Leaf(u8),
    Node(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    is_dead: bool,
    slots: [Child; 2],
    frozen: [bool; 2],
    is_claimed: bool,
    was_linked: bool,
    retired: u8,
}

const UNMADE: Node = Node {
    is_dead: false,
    slots: [Child::None; 2],
    frozen: [false; 2],
    is_claimed: false,
    was_linked: false,
    retired: 0,
};
const NODES: usize = 7;
const SHRINKER: usize = 0;
const INSERTER: usize = 1;

/// A client that replaces a node, or inserts key 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Changer {
    step: Step,
    /// The node, and its words as seen.
    of: u8,
    seen: [Child; 2],
    heir: Child,
    has_lost: bool,
    copies: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Begins,
    Fills,
    Dooms,
    Freezes(u8),
    Chooses,
    Links,
    /// The completion was lost.
    Asks,
    Claims,
    Ends,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    parent: Child,
    nodes: [Node; NODES],
    changers: [Changer; 2],
    is_dead: bool,
    is_acked: bool,
    /// Steps of the reader: gets that it has ended, and whether it goes by the root in this one.
    gets: u8,
    by_root: bool,
    /// The get under way must find the key.
    must_find: bool,
    has_found: bool,
    has_missed: bool,
    has_key_0: bool,
}

impl State {
    fn first(has_key_0: bool) -> State {
        let mut nodes = [UNMADE; NODES];
        let leaf = if has_key_0 { Child::Leaf(0) } else { Child::None };
        nodes[0] = Node { slots: [leaf, Child::None], was_linked: true, ..UNMADE };
        let changer = Changer {
            step: Step::Begins,
            of: 0,
            seen: [Child::None; 2],
            heir: Child::None,
            has_lost: false,
            copies: 0,
        };
        State {
            parent: Child::Node(0),
            nodes,
            changers: [changer; 2],
            is_dead: false,
            is_acked: false,
            gets: 0,
            by_root: false,
            must_find: false,
            has_found: false,
            has_missed: false,
            has_key_0,
        }
    }

    fn has(&self, key: usize) -> bool {
        match self.parent {
            Child::None => false,
            Child::Leaf(leaf) => usize::from(leaf) == key,
            Child::Node(at) => self.nodes[usize::from(at)].slots[key] != Child::None,
        }
    }

    fn link(&mut self, child: Child) {
        self.parent = child;
        if let Child::Node(at) = child {
            self.nodes[usize::from(at)].was_linked = true;
        }
    }

    /// A new node of a client; `None` if it has made enough.
    fn made(&mut self, who: usize, slots: [Child; 2]) -> Option<Child> {
        let copies = self.changers[who].copies;
        let at = 1 + who as u8 * 3 + copies;
        if copies == 3 {
            return None;
        }
        if self.nodes[usize::from(at)].was_linked {
            self.changers[who].copies += 1;
            return self.made(who, slots);
        }
        self.nodes[usize::from(at)] = Node { slots, ..UNMADE };
        Some(Child::Node(at))
    }

    fn at(mut self, who: usize, step: Step) -> State {
        self.changers[who].step = step;
        self
    }

    /// The next steps of a client that replaces a node.
    fn changer(mut self, who: usize, broken: Broken) -> Vec<State> {
        let of = usize::from(self.changers[who].of);
        match self.changers[who].step {
            Step::Begins if who == SHRINKER => match self.parent {
                Child::Node(at) => {
                    self.changers[who].of = at;
                    self.changers[who].seen = self.nodes[usize::from(at)].slots;
                    vec![self.at(who, Step::Dooms)]
                }
                _ => vec![self.at(who, Step::Ends)],
            },
            Step::Begins => self.begins_insert(),
            // The CAS of an insert into a slot without a child.
            Step::Fills => {
                let node = &mut self.nodes[of];
                if node.slots[1] == Child::None && !node.frozen[1] {
                    node.slots[1] = Child::Leaf(1);
                    self.is_acked = true;
                    return vec![self.at(who, Step::Ends)];
                }
                vec![self.at(who, Step::Begins)]
            }
            Step::Dooms => {
                self.nodes[of].is_dead = true;
                vec![self.at(who, Step::Freezes(0))]
            }
            Step::Freezes(2) => vec![self.at(who, Step::Chooses)],
            Step::Freezes(slot) => {
                let at = usize::from(slot);
                let node = &mut self.nodes[of];
                node.frozen[at] |= broken != Broken::FreezesNothing;
                if broken != Broken::ChoosesUnfrozen {
                    self.changers[who].seen[at] = node.slots[at];
                }
                vec![self.at(who, Step::Freezes(slot + 1))]
            }
            Step::Chooses => {
                let seen = self.changers[who].seen;
                let mut children = seen.into_iter().filter(|child| *child != Child::None);
                let heir = match (children.next(), children.next()) {
                    (None, _) => Some(Child::None),
                    (Some(child), None) => Some(child),
                    _ => self.made(who, seen),
                };
                let Some(heir) = heir else { return vec![self.at(who, Step::Ends)] };
                self.changers[who].heir = heir;
                let mut all = vec![self.at(who, Step::Links)];
                // A client that saw a copy as needed may also link one for a single child.
                if let (Child::Leaf(_), Some(copy)) = (heir, self.made(who, seen)) {
                    self.changers[who].heir = copy;
                    all.push(self.at(who, Step::Links));
                }
                all
            }
            Step::Links => self.links(who, broken),
            Step::Asks => {
                if self.parent == Child::Node(of as u8) {
                    return vec![self.at(who, Step::Links)];
                }
                let may_have_won = match self.changers[who].heir {
                    Child::Node(copy) => self.nodes[usize::from(copy)].was_linked,
                    _ => broken != Broken::LeavesLost,
                };
                vec![self.won(who, may_have_won, broken)]
            }
            Step::Claims => {
                let is_first = !self.nodes[of].is_claimed;
                self.nodes[of].is_claimed = true;
                self.nodes[of].retired += u8::from(is_first);
                vec![self.ends(who)]
            }
            Step::Ends => Vec::new(),
        }
    }

    fn begins_insert(mut self) -> Vec<State> {
        match self.parent {
            Child::None => {
                self.link(Child::Leaf(1));
                self.is_acked = true;
                vec![self.at(INSERTER, Step::Ends)]
            }
            Child::Leaf(_) => {
                let slots = [Child::Leaf(0), Child::Leaf(1)];
                let Some(split) = self.made(INSERTER, slots) else {
                    return vec![self.at(INSERTER, Step::Ends)];
                };
                self.link(split);
                self.is_acked = true;
                vec![self.at(INSERTER, Step::Ends)]
            }
            Child::Node(at) => {
                let node = self.nodes[usize::from(at)];
                self.changers[INSERTER].of = at;
                self.changers[INSERTER].seen = node.slots;
                let is_dying = node.is_dead || node.frozen[1];
                let mut all = vec![self.at(INSERTER, Step::Fills)];
                if is_dying {
                    all.push(self.at(INSERTER, Step::Dooms));
                }
                all
            }
        }
    }

    fn links(self, who: usize, broken: Broken) -> Vec<State> {
        let (of, heir) = (self.changers[who].of, self.changers[who].heir);
        let is_there = self.parent == Child::Node(of);
        let mut done = self;
        if is_there {
            done.link(heir);
        }
        let mut all = vec![done.won(who, is_there, broken)];
        if !self.changers[who].has_lost {
            for mut lost in [self, done] {
                lost.changers[who].has_lost = true;
                all.push(lost.at(who, Step::Asks));
            }
        }
        all
    }

    /// A client knows, or has to assume, that it has taken the node out of the tree.
    fn won(mut self, who: usize, may_have_won: bool, broken: Broken) -> State {
        let Changer { of, heir, seen, .. } = self.changers[who];
        if !may_have_won {
            return self.ends(who);
        }
        let few = seen.iter().filter(|child| **child != Child::None).count() <= 1;
        let is_unclaimed = match broken {
            Broken::RetiresUnclaimed => true,
            Broken::CopyUnclaimed => matches!(heir, Child::Node(_)),
            _ => !few,
        };
        if is_unclaimed {
            self.nodes[usize::from(of)].retired += 1;
            return self.ends(who);
        }
        self.at(who, Step::Claims)
    }

    /// The shrinker has ended; the inserter tries again.
    fn ends(self, who: usize) -> State {
        self.at(who, if who == SHRINKER { Step::Ends } else { Step::Begins })
    }

    /// Two gets of key 1, one after the other, by a copy of the first node in the cache.
    fn reader(self, broken: Broken) -> Vec<State> {
        if self.gets == 4 {
            return Vec::new();
        }
        let mut next = self;
        next.gets += 1;
        if self.gets.is_multiple_of(2) {
            // It begins: the READ of the first word.
            next.must_find = self.is_acked || self.has_found;
            next.by_root = self.nodes[0].is_dead && broken != Broken::TrustsDead;
            return vec![next];
        }
        let finds = match (self.by_root, self.parent) {
            (false, _) => self.nodes[0].slots[1] != Child::None,
            (true, _) => self.has(1),
        };
        next.has_found |= finds;
        next.has_missed |= self.must_find && !finds;
        vec![next]
    }
}

impl Model for State {
    type Broken = Broken;

    fn next(self, broken: Broken) -> Vec<State> {
        let mut all = self.reader(broken);
        all.extend(self.changer(INSERTER, broken));
        if !self.is_dead && self.changers[SHRINKER].step != Step::Ends {
            all.push(State { is_dead: true, ..self });
            all.extend(self.changer(SHRINKER, broken));
        }
        all
    }

    fn fault(&self, _: Broken, is_end: bool) -> Option<&'static str> {
        if self.has_missed {
            return Some("an acknowledged key was denied");
        }
        if self.has_key_0 && !self.has(0) || self.is_acked && !self.has(1) {
            return Some("a key is out of reach");
        }
        for (at, node) in self.nodes.iter().enumerate() {
            let is_linked = self.parent == Child::Node(at as u8);
            if node.retired > 1 {
                return Some("a node was retired twice");
            }
            if node.retired > 0 && is_linked {
                return Some("a linked node was retired");
            }
            if is_end && !self.is_dead && node.was_linked && !is_linked && node.retired == 0 {
                return Some("a node was never retired");
            }
        }
        None
    }
}

#[test]
fn a_node_without_children_leaves_once_and_takes_nothing_along() {
    let firsts = || [true, false].map(State::first);
    let (fault, states) = explore(firsts(), Broken::Nothing);
    println!("collapse: {states} states");
    assert_eq!(fault, None);
    assert!(states > 5_000, "{states} states");
    for broken in [
        Broken::RetiresUnclaimed,
        Broken::LeavesLost,
        Broken::CopyUnclaimed,
        Broken::FreezesNothing,
        Broken::ChoosesUnfrozen,
        Broken::TrustsDead,
    ] {
        let (fault, states) = explore(firsts(), broken);
        println!("collapse, {broken:?}: {states} states until {fault:?}");
        assert!(fault.is_some(), "{broken:?} shows no fault in {states} states");
    }
}
