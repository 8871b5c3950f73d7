//! Model of `own_nodes.rs`: the exact entry of one node with two slots, under own changes, READs and a move.
//!
//! Changes store words in the slots by CAS, and one by a WRITE, which has the node alone. Each begins, stores or loses,
//! and ends. A READ notes the moment, samples
//! the two slots, and takes in an entry; nothing guards it. The range goes to another compute server, which changes
//! a slot, and comes back.

use super::{Model, explore};

/// The rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Broken {
    Nothing,
    /// An entry is exact whatever was changed since its READ began.
    ForgetStamp,
    /// Only beginnings of changes are counted, and a READ may begin while one is under way.
    CountBeginnings,
    /// A change that ends stores its word whatever the entry holds.
    AmendBlindly,
    /// An entry is exact while a change is under way.
    BelieveChanging,
    /// An entry is exact whatever became of the range since its READ began.
    ForgetView,
    /// A READ that begins in a closed range makes an exact entry.
    StampClosed,
    /// A range is handed over, and its entries stay.
    KeepEntries,
    /// A range is handed over while changes are under way.
    Undrained,
    /// A WRITE of a slot begins while other changes of the node are under way.
    WriteBeside,
    /// Other changes begin while a WRITE of a slot is under way.
    CasBeside,
    /// A WRITE of a slot begins whatever the entry says.
    WriteByHint,
}

/// Slot, expected word, new word.
const CHANGES: [(usize, u8, u8); 5] = [(0, 0, 1), (0, 1, 2), (0, 2, 3), (1, 0, 1), (1, 0, 2)];
/// The change that is a WRITE.
const WRITE: usize = 4;
/// The word that the other owner stores in slot 0.
const OTHERS: u8 = 9;
const READS: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ChangeStep {
    Idle,
    Begun,
    Stored,
    Lost,
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Reading {
    /// Sampled slots; 3 before the moment is noted.
    at: u8,
    phase: u8,
    /// Changes so far; `None` if one was under way.
    changes: Option<u8>,
    words: [u8; 2],
    left: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    remote: [u8; 2],
    entry: Option<([u8; 2], bool)>,
    changes: [ChangeStep; CHANGES.len()],
    counted: u8,
    read: Reading,
    /// 0 own, 1 closed, 2 handed over, 3 another's, 4 own again.
    phase: u8,
    /// A change landed when the range was another's.
    is_beside: bool,
    /// A WRITE has replaced what it did not expect.
    is_overwritten: bool,
}

impl State {
    const FIRST: State = State {
        remote: [0; 2],
        entry: None,
        changes: [ChangeStep::Idle; CHANGES.len()],
        counted: 0,
        read: Reading { at: 3, phase: 0, changes: None, words: [0; 2], left: READS },
        phase: 0,
        is_beside: false,
        is_overwritten: false,
    };

    fn under_way(&self) -> usize {
        self.changes.iter().filter(|it| !matches!(it, ChangeStep::Idle | ChangeStep::Over)).count()
    }

    /// Returns whether a change may begin.
    fn may_begin(&self, number: usize, broken: Broken) -> bool {
        let (slot, expected, _) = CHANGES[number];
        if number != WRITE {
            let writes = matches!(self.changes[WRITE], ChangeStep::Begun | ChangeStep::Stored);
            return !writes || broken == Broken::CasBeside;
        }
        let is_known = |(words, is_exact): ([u8; 2], bool)| {
            words[slot] == expected && (is_exact || broken == Broken::WriteByHint)
        };
        self.entry.is_some_and(is_known) && (self.under_way() == 0 || broken == Broken::WriteBeside)
    }

    fn is_own(&self) -> bool {
        matches!(self.phase, 0 | 4)
    }

    fn view(phase: u8) -> u8 {
        [0, 1, 1, 2, 3][usize::from(phase)]
    }

    fn end(&mut self, number: usize, is_stored: bool, broken: Broken) {
        let (slot, expected, new) = CHANGES[number];
        self.changes[number] = ChangeStep::Over;
        self.counted += u8::from(broken != Broken::CountBeginnings);
        let Some((words, is_exact)) = self.entry.as_mut().filter(|_| is_stored) else { return };
        if words[slot] == expected || broken == Broken::AmendBlindly {
            words[slot] = new;
        } else {
            *is_exact = false;
        }
    }

    fn put(&mut self, broken: Broken) {
        let read = self.read;
        let same_view = State::view(read.phase) == State::view(self.phase);
        let was_own = matches!(read.phase, 0 | 4)
            || broken == Broken::StampClosed && matches!(read.phase, 1 | 2);
        let is_own = was_own && (same_view || broken == Broken::ForgetView);
        let mut now = Some(self.counted);
        if self.under_way() > 0 && broken != Broken::CountBeginnings {
            now = None;
        }
        let unchanged = read.changes.is_some() && read.changes == now;
        let is_exact = is_own && (unchanged || broken == Broken::ForgetStamp);
        if !self.entry.is_some_and(|(_, is_exact)| is_exact) {
            self.entry = Some((read.words, is_exact));
        }
    }
}

impl Model for State {
    type Broken = Broken;

    fn next(self, broken: Broken) -> Vec<State> {
        let mut next = Vec::new();
        for (number, (slot, expected, new)) in CHANGES.into_iter().enumerate() {
            let mut state = self;
            match self.changes[number] {
                ChangeStep::Idle if self.is_own() && self.may_begin(number, broken) => {
                    state.changes[number] = ChangeStep::Begun;
                    state.counted += 1;
                }
                ChangeStep::Begun if self.remote[slot] == expected || number == WRITE => {
                    state.is_overwritten = self.remote[slot] != expected;
                    state.remote[slot] = new;
                    state.changes[number] = ChangeStep::Stored;
                    state.is_beside |= matches!(self.phase, 2 | 3);
                }
                ChangeStep::Begun => state.changes[number] = ChangeStep::Lost,
                ChangeStep::Stored => state.end(number, true, broken),
                ChangeStep::Lost => state.end(number, false, broken),
                ChangeStep::Idle | ChangeStep::Over => continue,
            }
            next.push(state);
        }
        let mut state = self;
        match self.read.at {
            3 if self.read.left > 0 => {
                let is_free = self.under_way() == 0 || broken == Broken::CountBeginnings;
                let changes = is_free.then_some(self.counted);
                let left = self.read.left - 1;
                state.read = Reading { at: 0, phase: self.phase, changes, words: [0; 2], left };
                next.push(state);
            }
            3 => {}
            2 => {
                state.put(broken);
                state.read = Reading { at: 3, ..State::FIRST.read };
                state.read.left = self.read.left;
                next.push(state);
            }
            at => {
                state.read.words[usize::from(at)] = self.remote[usize::from(at)];
                state.read.at += 1;
                next.push(state);
            }
        }
        let mut state = self;
        state.phase += 1;
        match self.phase {
            1 if self.under_way() == 0 || broken == Broken::Undrained => {
                state.entry = self.entry.filter(|_| broken == Broken::KeepEntries);
                next.push(state);
            }
            0 | 2 => next.push(state),
            3 => {
                next.push(state);
                state.phase = 3;
                state.remote[0] = OTHERS;
                next.push(state);
            }
            _ => {}
        }
        next
    }

    fn fault(&self, broken: Broken, _is_end: bool) -> Option<&'static str> {
        if self.is_beside {
            return Some("a change beside the owner's");
        }
        if self.is_overwritten {
            return Some("a WRITE replaces a slot unseen");
        }
        let (words, is_exact) = self.entry?;
        let is_believed = is_exact
            && self.is_own()
            && (self.under_way() == 0 || broken == Broken::BelieveChanging);
        (is_believed && words != self.remote).then_some("an exact entry is wrong")
    }
}

#[test]
fn an_exact_entry_is_what_its_node_holds() {
    let (fault, states) = explore([State::FIRST], Broken::Nothing);
    assert_eq!(fault, None);
    assert!(states > 10_000, "{states} states");
}

#[test]
fn each_rule_of_own_nodes_is_needed() {
    for broken in [
        Broken::ForgetStamp,
        Broken::CountBeginnings,
        Broken::AmendBlindly,
        Broken::BelieveChanging,
        Broken::ForgetView,
        Broken::StampClosed,
        Broken::KeepEntries,
    ] {
        let fault = explore([State::FIRST], broken).0;
        assert_eq!(fault, Some("an exact entry is wrong"), "{broken:?}");
    }
    let fault = explore([State::FIRST], Broken::Undrained).0;
    assert_eq!(fault, Some("a change beside the owner's"));
    for broken in [Broken::WriteBeside, Broken::CasBeside, Broken::WriteByHint] {
        let fault = explore([State::FIRST], broken).0;
        assert_eq!(fault, Some("a WRITE replaces a slot unseen"), "{broken:?}");
    }
}
