//! Growing in place: inserts behind the slots that count, clients that die there, and readers with old hints.
//!
//! One slot of a node counts, and is in use. Two clients insert behind it, under different edges or the same; each may
//! die at any moment. They grow the header, and the hint in the parent's slot with it, in any order. A reader goes by
//! the hint of its moment or by an old one, and READs word by word, forwards or backwards. What was acknowledged or read
//! before a reader began must be there for it.

use super::super::model::{Model, explore};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// An insert is acknowledged before it has grown the header.
    AcknowledgesFirst,
    /// The second insert leaves the header to the first.
    SecondLeavesIt,
    /// An insert that finds its edge taken says so, and leaves the header to the first.
    FoundLeavesIt,
    /// A reader believes the hint, and does not look at the header.
    HintRules,
    /// A reader that was led here by a hint ahead of the header looks at all that it has READ.
    FollowsUncounted,
}

/// Words of the node: the header, then the two slots behind the one that counts.
const HEADER: usize = 0;
const WORDS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Insert {
    /// Next it CASes the slot in this word.
    Links(usize),
    /// Its key is there; the CASes of header and hint are to come.
    Grows {
        header: bool,
        hint: bool,
    },
    Acknowledged,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ReadStep {
    Begins,
    /// Next it samples the header alone, of a node that the hint calls small.
    Small,
    /// Next it samples this word in its order.
    Whole(usize),
    Judges,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    /// 0 or 1 in the header: 1 if all slots count. Keys 1 and 2 in slots.
    words: [u8; WORDS],
    hint: bool,
    keys: [u8; 2],
    inserts: [Insert; 2],
    read: ReadStep,
    backwards: bool,
    by_hint: bool,
    seen: [u8; WORDS],
    /// Keys that every reader must find that begins now, and that this one must.
    must: [bool; 3],
    must_now: [bool; 3],
    rounds: u8,
    is_denied: bool,
}

impl State {
    fn firsts() -> Vec<State> {
        let mut all = Vec::new();
        for keys in [[1, 2], [1, 1]] {
            for backwards in [false, true] {
                all.push(State {
                    words: [0; WORDS],
                    hint: false,
                    keys,
                    inserts: [Insert::Links(1); 2],
                    read: ReadStep::Begins,
                    backwards,
                    by_hint: false,
                    seen: [0; WORDS],
                    must: [false; 3],
                    must_now: [false; 3],
                    rounds: 0,
                    is_denied: false,
                });
            }
        }
        all
    }

    fn acknowledge(&mut self, client: usize) {
        self.must[usize::from(self.keys[client])] = true;
        self.inserts[client] = Insert::Acknowledged;
    }

    /// The next states of an insert.
    fn insert(self, client: usize, broken: Broken) -> Vec<State> {
        let with = |insert| {
            let mut next = self;
            next.inserts[client] = insert;
            next
        };
        let mut all = Vec::new();
        match self.inserts[client] {
            Insert::Acknowledged | Insert::Dead => return all,
            Insert::Links(at) => {
                let (found, own) = (self.words[at], self.keys[client]);
                let grows = Insert::Grows { header: false, hint: false };
                let leaves = match found {
                    0 => {
                        broken == Broken::AcknowledgesFirst
                            || broken == Broken::SecondLeavesIt && at == 2
                    }
                    _ => broken == Broken::FoundLeavesIt,
                };
                if found != 0 && found != own {
                    all.push(with(Insert::Links(at + 1)));
                } else {
                    let mut next = with(grows);
                    next.words[at] = own;
                    if leaves {
                        next.acknowledge(client);
                    }
                    all.push(next);
                }
            }
            Insert::Grows { header, hint } => {
                if !header {
                    let mut next = with(Insert::Grows { header: true, hint });
                    next.words[HEADER] = 1;
                    all.push(next);
                } else {
                    let mut next = self;
                    next.acknowledge(client);
                    all.push(next);
                }
                if !hint {
                    all.push(State { hint: true, ..with(Insert::Grows { header, hint: true }) });
                }
            }
        }
        all.push(with(Insert::Dead));
        all
    }

    fn begins(mut self, by_hint: bool, broken: Broken) -> State {
        self.by_hint = by_hint;
        self.seen = [0; WORDS];
        self.must_now = self.must;
        self.read = match (by_hint, broken) {
            (true, _) => ReadStep::Whole(0),
            (false, Broken::HintRules) => ReadStep::Judges,
            (false, _) => ReadStep::Small,
        };
        self
    }

    /// The next states of the reader.
    fn reads(self, broken: Broken) -> Vec<State> {
        match self.read {
            ReadStep::Begins if self.rounds == 2 => Vec::new(),
            ReadStep::Begins if self.hint => {
                vec![self.begins(true, broken), self.begins(false, broken)]
            }
            ReadStep::Begins => vec![self.begins(false, broken)],
            ReadStep::Small if self.words[HEADER] == 1 => {
                vec![State { read: ReadStep::Whole(0), ..self }]
            }
            ReadStep::Small => vec![State { read: ReadStep::Judges, ..self }],
            ReadStep::Whole(at) => {
                let mut next = self;
                let word = if self.backwards { WORDS - 1 - at } else { at };
                next.seen[word] = self.words[word];
                next.read = if at + 1 < WORDS { ReadStep::Whole(at + 1) } else { ReadStep::Judges };
                vec![next]
            }
            ReadStep::Judges => {
                let counts = match broken {
                    Broken::HintRules | Broken::FollowsUncounted => true,
                    _ => self.seen[HEADER] == 1,
                };
                let mut next = State { read: ReadStep::Begins, rounds: self.rounds + 1, ..self };
                for key in [1, 2] {
                    let is_there = counts && self.seen[1..].contains(&(key as u8));
                    next.must[key] |= is_there;
                    next.is_denied |= self.must_now[key] && !is_there;
                }
                vec![next]
            }
        }
    }
}

impl Model for State {
    type Broken = Broken;

    fn next(self, broken: Broken) -> Vec<State> {
        let mut all = self.insert(0, broken);
        all.extend(self.insert(1, broken));
        all.extend(self.reads(broken));
        all
    }

    fn fault(&self, _broken: Broken, _is_end: bool) -> Option<&'static str> {
        let same = self.words[1] != 0 && self.words[1] == self.words[2];
        if same {
            return Some("an edge has two slots");
        }
        self.is_denied.then_some("a key is denied that was acknowledged or read before")
    }
}

#[test]
fn a_node_grows_before_what_it_makes_room_for_counts() {
    let (fault, states) = explore(State::firsts(), Broken::Nothing);
    println!("growing in place: {states} states");
    assert_eq!(fault, None);
    assert!(states > 1_000, "{states} states");
    for broken in [
        Broken::AcknowledgesFirst,
        Broken::SecondLeavesIt,
        Broken::FoundLeavesIt,
        Broken::HintRules,
        Broken::FollowsUncounted,
    ] {
        let (fault, states) = explore(State::firsts(), broken);
        println!("growing in place, {broken:?}: {states} states until {fault:?}");
        assert!(fault.is_some(), "{broken:?} shows no fault in {states} states");
    }
}
